#include "engine/kv_cache.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct kv_cache {
    int32_t n_layers, n_kv_heads, head_dim, n_blocks;
    size_t block_floats;                 /* n_kv_heads * 64 * head_dim: one block of one layer's k or v */
    float *pool; size_t pool_bytes;      /* owned mapping: k of layer 0, v of layer 0, k of layer 1, ... */
    int32_t *free_blocks; int32_t n_free;    /* owned stack; the last entry is taken next */
    int32_t *owners;                     /* owned [n_blocks] */
};

fl_status kv_cache_open(kv_cache **out, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim, int32_t n_blocks, fl_err *err)
{
    fl_status status = FL_OK;
    kv_cache *kv = calloc(1, sizeof *kv);
    if (!kv) { status = fl_fail(err, FL_FULL, "kv cache: no memory"); goto done; }
    kv->n_layers = n_layers;
    kv->n_kv_heads = n_kv_heads;
    kv->head_dim = head_dim;
    kv->n_blocks = n_blocks;
    kv->block_floats = (size_t)n_kv_heads * OPS_BLOCK_TOKENS * (size_t)head_dim;
    kv->free_blocks = calloc((size_t)n_blocks, sizeof *kv->free_blocks);
    kv->owners = calloc((size_t)n_blocks, sizeof *kv->owners);
    if (!kv->free_blocks || !kv->owners) { status = fl_fail(err, FL_FULL, "kv cache: no memory for the list of %d blocks", n_blocks); goto done; }
    for (int32_t i = 0; i < n_blocks; i++) kv->free_blocks[i] = n_blocks - 1 - i;        /* low ids first: only used memory is touched */
    kv->n_free = n_blocks;

    size_t bytes = 2 * sizeof(float);
    if (__builtin_mul_overflow(bytes, kv->block_floats, &bytes) || __builtin_mul_overflow(bytes, (size_t)n_layers, &bytes)
        || __builtin_mul_overflow(bytes, (size_t)n_blocks, &bytes)) {
        status = fl_fail(err, FL_FULL, "kv cache: %d blocks are more than memory can address; ask for a smaller pool", n_blocks);
        goto done;
    }
    if (bytes > 0) {
        void *pool = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (pool == MAP_FAILED) { status = fl_fail(err, FL_FULL, "kv cache: no memory for a pool of %zu bytes; ask for a smaller one", bytes); goto done; }
        kv->pool = pool;
        kv->pool_bytes = bytes;
    }
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
        munmap(kv->pool, kv->pool_bytes);
    }
    free(kv->free_blocks);
    free(kv->owners);
    free(kv);
}

int32_t kv_cache_blocks(const kv_cache *kv) { return kv->n_blocks; }
int32_t kv_cache_blocks_free(const kv_cache *kv) { return kv->n_free; }
size_t kv_cache_block_floats(const kv_cache *kv) { return 2 * (size_t)kv->n_layers * kv->block_floats; }
int32_t kv_cache_owners(const kv_cache *kv, int32_t block) { return kv->owners[block]; }
int32_t kv_blocks_of(int64_t n_positions) { return (int32_t)((n_positions + OPS_BLOCK_TOKENS - 1) / OPS_BLOCK_TOKENS); }

ops_kv kv_cache_layer(const kv_cache *kv, int32_t layer)
{
    FL_ASSERT(layer >= 0 && layer < kv->n_layers);
    size_t one = (size_t)kv->n_blocks * kv->block_floats;
    return (ops_kv){ kv->pool + 2 * (size_t)layer * one, kv->pool + (2 * (size_t)layer + 1) * one, kv->n_kv_heads, kv->head_dim };
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

void kv_cache_copy_out(const kv_cache *kv, int32_t block, float *host)
{
    for (size_t i = 0; i < 2 * (size_t)kv->n_layers; i++)
        memcpy(host + i * kv->block_floats, kv->pool + (i * (size_t)kv->n_blocks + (size_t)block) * kv->block_floats, kv->block_floats * sizeof(float));
}

void kv_cache_copy_in(kv_cache *kv, int32_t block, const float *host)
{
    FL_ASSERT(kv->owners[block] == 1);
    for (size_t i = 0; i < 2 * (size_t)kv->n_layers; i++)
        memcpy(kv->pool + (i * (size_t)kv->n_blocks + (size_t)block) * kv->block_floats, host + i * kv->block_floats, kv->block_floats * sizeof(float));
}
