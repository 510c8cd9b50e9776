/* kv_cache.h - the paged KV cache of one model: blocks of 64 positions, shared by reference count, and its block tables.
 * Layout   for each full-attention layer k, v [n_blocks, n_kv_heads, 64, head_dim] of the device's activations, taken once at open; block i of every layer
 *          belongs together, so one id stands for 64 positions of the whole model. On the host memory is touched only as blocks are first used.
 * Source   PagedAttention, Kwon et al. 2023, section 4 (arXiv:2309.06180).
 * Threads  belongs to the engine thread; nothing here locks or blocks. */
#ifndef ENGINE_KV_CACHE_H
#define ENGINE_KV_CACHE_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct kv_cache kv_cache;

/* The blocks of one sequence, in position order. */
typedef struct { int32_t *blocks; int32_t n_blocks, capacity; } block_table;     /* blocks owned, [capacity] */

/* n_layers >= 0 full-attention layers; n_blocks >= 1. `o` is borrowed for life. FL_FULL without memory. */
fl_status kv_cache_open(kv_cache **out, ops *o, int32_t n_layers, int32_t n_kv_heads, int32_t head_dim, int32_t n_blocks, fl_err *err);
void      kv_cache_close(kv_cache *kv);                  /* accepts NULL; every block must be free */

int32_t kv_cache_blocks(const kv_cache *kv);
int32_t kv_cache_blocks_free(const kv_cache *kv);
size_t  kv_cache_block_bytes(const kv_cache *kv);        /* of one block over all layers */
ops_kv  kv_cache_layer(const kv_cache *kv, int32_t layer);               /* layer counts full-attention layers */

/* Blocks that hold n_positions positions. */
int32_t kv_blocks_of(int64_t n_positions);

/* Append n_blocks free blocks to `table`. FL_FULL: nothing was taken; the scheduler may preempt a sequence and call again. */
fl_status kv_cache_reserve(kv_cache *kv, block_table *table, int32_t n_blocks, fl_err *err);

/* Append blocks that others hold; each gains an owner and must not be written any more. FL_FULL without memory for the table. */
fl_status kv_cache_share(kv_cache *kv, block_table *table, const int32_t *blocks, int32_t n_blocks, fl_err *err);

/* Give up the table's blocks from index `keep` on; a block is free when its last owner gave it up. keep 0 also frees the table's memory. */
void    kv_cache_release(kv_cache *kv, block_table *table, int32_t keep);
int32_t kv_cache_owners(const kv_cache *kv, int32_t block);

/* Copy one block of all layers to or from host memory of kv_cache_block_bytes. */
void kv_cache_copy_out(const kv_cache *kv, int32_t block, void *host);
void kv_cache_copy_in(kv_cache *kv, int32_t block, const void *host);

#endif
