#include "engine/state_pool.h"

#include <stdbool.h>
#include <stdlib.h>

#define REGION_BYTES 256                 /* where a layer's delta and conv begin: multiples of it */
_Static_assert(REGION_BYTES % OPS_STATE_ALIGN == 0, "kernels read states in pieces");

struct state_pool {
    ops *o;                              /* borrowed */
    int32_t n_layers, n_slots;
    size_t delta_floats, conv_floats;    /* of a slot in a layer */
    size_t delta_bytes, layer_bytes;     /* of all slots: from a layer's delta to its conv, and to the next layer's delta */
    float *pool; size_t pool_bytes;      /* owned, of the device: delta of layer 0, conv of layer 0, delta of layer 1, ... */
    int32_t *free_slots; int32_t n_free; /* owned stack */
    bool *is_taken;                      /* owned [n_slots] */
};

/* What `floats` of each slot take, with the gap to the next multiple of REGION_BYTES; SIZE_MAX beyond memory. */
static size_t region_bytes(size_t floats, int32_t n_slots)
{
    size_t bytes;
    if (__builtin_mul_overflow(floats, (size_t)n_slots * sizeof(float), &bytes) || bytes > SIZE_MAX - REGION_BYTES) return SIZE_MAX;
    return (bytes + REGION_BYTES - 1) / REGION_BYTES * REGION_BYTES;
}

size_t state_pool_bytes(int32_t n_layers, size_t delta_floats, size_t conv_floats, int32_t n_slots)
{
    const size_t delta = region_bytes(delta_floats, n_slots), conv = region_bytes(conv_floats, n_slots);
    size_t bytes;
    if (delta == SIZE_MAX || conv == SIZE_MAX || __builtin_add_overflow(delta, conv, &bytes) || __builtin_mul_overflow(bytes, (size_t)n_layers, &bytes)) return SIZE_MAX;
    return bytes;
}

fl_status state_pool_open(state_pool **out, ops *o, int32_t n_layers, size_t delta_floats, size_t conv_floats, int32_t n_slots, fl_err *err)
{
    fl_status status = FL_OK;
    state_pool *pool = calloc(1, sizeof *pool);
    if (!pool) { status = fl_fail(err, FL_FULL, "state pool: no memory"); goto done; }
    pool->o = o;
    pool->n_layers = n_layers;
    pool->n_slots = n_slots;
    pool->delta_floats = delta_floats;
    pool->conv_floats = conv_floats;
    pool->free_slots = calloc((size_t)n_slots, sizeof *pool->free_slots);
    pool->is_taken = calloc((size_t)n_slots, sizeof *pool->is_taken);
    if (!pool->free_slots || !pool->is_taken) { status = fl_fail(err, FL_FULL, "state pool: no memory for the list of %d slots", n_slots); goto done; }
    for (int32_t i = 0; i < n_slots; i++) pool->free_slots[i] = n_slots - 1 - i;
    pool->n_free = n_slots;

    const size_t bytes = state_pool_bytes(n_layers, delta_floats, conv_floats, n_slots);
    if (bytes == SIZE_MAX) {
        status = fl_fail(err, FL_FULL, "state pool: %d slots are more than memory can address; lower the batch limit", n_slots);
        goto done;
    }
    void *memory = NULL;
    if ((status = o->take(o, &memory, bytes, "the states of sequences; lower --batch", err)) != FL_OK) goto done;
    pool->pool = memory;
    pool->pool_bytes = bytes;
    pool->delta_bytes = region_bytes(delta_floats, n_slots);
    pool->layer_bytes = pool->delta_bytes + region_bytes(conv_floats, n_slots);
    *out = pool;
    pool = NULL;
done:
    state_pool_close(pool);
    return status;
}

void state_pool_close(state_pool *pool)
{
    if (!pool) return;
    if (pool->pool) {
        FL_ASSERT(pool->n_free == pool->n_slots);
        pool->o->give(pool->o, pool->pool, pool->pool_bytes);
    }
    free(pool->free_slots);
    free(pool->is_taken);
    free(pool);
}

int32_t state_pool_take(state_pool *pool)
{
    if (pool->n_free == 0) return -1;
    int32_t slot = pool->free_slots[--pool->n_free];
    pool->is_taken[slot] = true;
    return slot;
}

void state_pool_give(state_pool *pool, int32_t slot)
{
    FL_ASSERT(slot >= 0 && slot < pool->n_slots && pool->is_taken[slot]);
    pool->is_taken[slot] = false;
    pool->free_slots[pool->n_free++] = slot;
}

int32_t state_pool_free(const state_pool *pool) { return pool->n_free; }
size_t state_pool_slot_floats(const state_pool *pool) { return (size_t)pool->n_layers * (pool->delta_floats + pool->conv_floats); }

float *state_pool_delta(const state_pool *pool, int32_t layer)
{
    FL_ASSERT(layer >= 0 && layer < pool->n_layers);
    return pool->pool + (size_t)layer * (pool->layer_bytes / sizeof(float));
}

float *state_pool_conv(const state_pool *pool, int32_t layer)
{
    return state_pool_delta(pool, layer) + pool->delta_bytes / sizeof(float);
}

/* The host has each layer's delta and conv behind each other, the device each layer's for all slots. */
void state_pool_copy_out(const state_pool *pool, int32_t slot, float *host)
{
    const size_t slot_bytes = (pool->delta_floats + pool->conv_floats) * sizeof(float);
    if (pool->n_layers == 0) return;
    const float *delta = state_pool_delta(pool, 0) + (size_t)slot * pool->delta_floats, *conv = state_pool_conv(pool, 0) + (size_t)slot * pool->conv_floats;
    pool->o->download_rows(pool->o, host, slot_bytes, delta, pool->layer_bytes, pool->delta_floats * sizeof(float), (size_t)pool->n_layers);
    pool->o->download_rows(pool->o, host + pool->delta_floats, slot_bytes, conv, pool->layer_bytes, pool->conv_floats * sizeof(float), (size_t)pool->n_layers);
}

void state_pool_copy_in(state_pool *pool, int32_t slot, const float *host)
{
    const size_t slot_bytes = (pool->delta_floats + pool->conv_floats) * sizeof(float);
    if (pool->n_layers == 0) return;
    float *delta = state_pool_delta(pool, 0) + (size_t)slot * pool->delta_floats, *conv = state_pool_conv(pool, 0) + (size_t)slot * pool->conv_floats;
    pool->o->upload_rows(pool->o, delta, pool->layer_bytes, host, slot_bytes, pool->delta_floats * sizeof(float), (size_t)pool->n_layers);
    pool->o->upload_rows(pool->o, conv, pool->layer_bytes, host + pool->delta_floats, slot_bytes, pool->conv_floats * sizeof(float), (size_t)pool->n_layers);
}
