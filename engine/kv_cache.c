#include "engine/kv_cache.h"

#include <stdlib.h>

struct kv_cache {
    ops *o;                              /* borrowed */
    int32_t n_layers, n_kv_heads, head_dim, n_blocks;
    size_t part_bytes;                   /* n_kv_heads * 64 * head_dim activations: one block of one layer's k or v */
    char *pool; size_t pool_bytes;       /* owned, of the device: k of layer 0, v of layer 0, k of layer 1, ... */
    int32_t *free_blocks; int32_t n_free;    /* owned stack; the last entry is taken next */
    int32_t *owners;                     /* owned [n_blocks] */
};

fl_status kv_cache_open(kv_cache **out, ops *o, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim, int32_t n_blocks, fl_err *err)
{
    fl_status status = FL_OK;
    kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv) { status = fl_fail(err, FL_FULL, "kv cache: no memory"); goto done; }
    kv->o = o;
    kv->n_layers = n_layers;
    kv->n_kv_heads = n_kv_heads;
    kv->head_dim = head_dim;
    kv->n_blocks = n_blocks;
    kv->part_bytes = (size_t)n_kv_heads * OPS_BLOCK_TOKENS * (size_t)head_dim * o->act_bytes;
    kv->free_blocks = calloc((size_t)n_blocks, sizeof *kv->free_blocks);
    kv->owners = calloc((size_t)n_blocks, sizeof *kv->owners);
    if (!kv->free_blocks || !kv->owners) { status = fl_fail(err, FL_FULL, "kv cache: no memory for the list of %d blocks", n_blocks); goto done; }
    for (int32_t i = 0; i < n_blocks; i++) kv->free_blocks[i] = n_blocks - 1 - i;        /* low ids first: only used memory is touched */
    kv->n_free = n_blocks;

    size_t bytes = 2 * kv->part_bytes;
    void *pool = NULL;
    if (__builtin_mul_overflow(bytes, (size_t)n_layers, &bytes) || __builtin_mul_overflow(bytes, (size_t)n_blocks, &bytes)) {
        status = fl_fail(err, FL_FULL, "kv cache: %d blocks are more than memory can address; ask for a smaller pool", n_blocks);
        goto done;
    }
    if ((status = o->take(o, &pool, bytes, "the KV pool; ask for a smaller one with --kv-tokens", err)) != FL_OK) goto done;
    kv->pool = pool;
    kv->pool_bytes = bytes;
    *out = kv;
    kv = NULL;
done:
    kv_cache_close(kv);
    return status;
}

void kv_cache_close(kv_cache *kv)
{
    if (!kv) return;
    if (kv->pool) {
        FL_ASSERT(kv->n_free == kv->n_blocks);
        kv->o->give(kv->o, kv->pool, kv->pool_bytes);
    }
    free(kv->free_blocks);
    free(kv->owners);
    free(kv);
}

int32_t kv_cache_blocks(const kv_cache *kv) { return kv->n_blocks; }
int32_t kv_cache_blocks_free(const kv_cache *kv) { return kv->n_free; }
size_t kv_cache_block_bytes(const kv_cache *kv) { return 2 * (size_t)kv->n_layers * kv->part_bytes; }
int32_t kv_cache_owners(const kv_cache *kv, int32_t block) { return kv->owners[block]; }
int32_t kv_blocks_of(int64_t n_positions) { return (int32_t)((n_positions + OPS_BLOCK_TOKENS - 1) / OPS_BLOCK_TOKENS); }

ops_kv kv_cache_layer(const kv_cache *kv, int32_t layer)
{
    FL_ASSERT(layer >= 0 && layer < kv->n_layers);
    size_t one = (size_t)kv->n_blocks * kv->part_bytes;
    char *k = kv->pool + 2 * (size_t)layer * one;
    return (ops_kv){ (act *)(void *)k, (act *)(void *)(k + one), kv->n_kv_heads, kv->head_dim };
}

static fl_status grow_table(block_table *table, int32_t n_more, fl_err *err)
{
    if (table->n_blocks + n_more <= table->capacity) return FL_OK;
    int32_t capacity = table->n_blocks + n_more > 2 * table->capacity ? table->n_blocks + n_more : 2 * table->capacity;
    int32_t *grown = realloc(table->blocks, (size_t)capacity * sizeof *grown);
    if (!grown) return fl_fail(err, FL_FULL, "kv cache: no memory for a block table of %d", capacity);
    table->blocks = grown;
    table->capacity = capacity;
    return FL_OK;
}

fl_status kv_cache_reserve(kv_cache *kv, block_table *table, int32_t n_blocks, fl_err *err)
{
    if (n_blocks <= 0) return FL_OK;
    if (n_blocks > kv->n_free) return fl_fail(err, FL_FULL, "kv cache: %d blocks wanted, %d free", n_blocks, kv->n_free);
    fl_status status = grow_table(table, n_blocks, err);
    if (status != FL_OK) return status;
    for (int32_t i = 0; i < n_blocks; i++) {
        int32_t block = kv->free_blocks[--kv->n_free];
        FL_ASSERT(kv->owners[block] == 0);
        kv->owners[block] = 1;
        table->blocks[table->n_blocks++] = block;
    }
    return FL_OK;
}

fl_status kv_cache_share(kv_cache *kv, block_table *table, const int32_t *blocks, int32_t n_blocks, fl_err *err)
{
    if (n_blocks <= 0) return FL_OK;
    fl_status status = grow_table(table, n_blocks, err);
    if (status != FL_OK) return status;
    for (int32_t i = 0; i < n_blocks; i++) {
        FL_ASSERT(kv->owners[blocks[i]] > 0);
        kv->owners[blocks[i]]++;
        table->blocks[table->n_blocks++] = blocks[i];
    }
    return FL_OK;
}

void kv_cache_release(kv_cache *kv, block_table *table, int32_t keep)
{
    while (table->n_blocks > keep) {
        int32_t block = table->blocks[--table->n_blocks];
        FL_ASSERT(kv->owners[block] > 0);
        if (--kv->owners[block] == 0) kv->free_blocks[kv->n_free++] = block;
    }
    if (keep > 0) return;
    free(table->blocks);
    *table = (block_table){ 0 };
}

void kv_cache_copy_out(const kv_cache *kv, int32_t block, void *host)
{
    const size_t part = kv->part_bytes;
    kv->o->download_rows(kv->o, host, part, kv->pool + (size_t)block * part, (size_t)kv->n_blocks * part, part, 2 * (size_t)kv->n_layers);
}

void kv_cache_copy_in(kv_cache *kv, int32_t block, const void *host)
{
    const size_t part = kv->part_bytes;
    FL_ASSERT(kv->owners[block] == 1);
    kv->o->upload_rows(kv->o, kv->pool + (size_t)block * part, (size_t)kv->n_blocks * part, host, part, part, 2 * (size_t)kv->n_layers);
}
