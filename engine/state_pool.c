#include "engine/state_pool.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct state_pool {
    int32_t n_layers, n_slots;
    size_t delta_floats, conv_floats;
    float *pool; size_t pool_bytes;      /* owned mapping: delta of layer 0, conv of layer 0, delta of layer 1, ... */
    int32_t *free_slots; int32_t n_free; /* owned stack */
    bool *is_taken;                      /* owned [n_slots] */
};

fl_status state_pool_open(state_pool **out, int32_t n_layers, size_t delta_floats, size_t conv_floats, int32_t n_slots, fl_err *err)
{
    fl_status status = FL_OK;
    state_pool *pool = calloc(1, sizeof *pool);
    if (!pool) { status = fl_fail(err, FL_FULL, "state pool: no memory"); goto done; }
    pool->n_layers = n_layers;
    pool->n_slots = n_slots;
    pool->delta_floats = delta_floats;
    pool->conv_floats = conv_floats;
    pool->free_slots = calloc((size_t)n_slots, sizeof *pool->free_slots);
    pool->is_taken = calloc((size_t)n_slots, sizeof *pool->is_taken);
    if (!pool->free_slots || !pool->is_taken) { status = fl_fail(err, FL_FULL, "state pool: no memory for the list of %d slots", n_slots); goto done; }
    for (int32_t i = 0; i < n_slots; i++) pool->free_slots[i] = n_slots - 1 - i;
    pool->n_free = n_slots;

    size_t bytes = (delta_floats + conv_floats) * sizeof(float);
    if (__builtin_mul_overflow(bytes, (size_t)n_layers, &bytes) || __builtin_mul_overflow(bytes, (size_t)n_slots, &bytes)) {
        status = fl_fail(err, FL_FULL, "state pool: %d slots are more than memory can address; lower the batch limit", n_slots);
        goto done;
    }
    if (bytes > 0) {
        void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) { status = fl_fail(err, FL_FULL, "state pool: no memory for %zu bytes; lower the batch limit", bytes); goto done; }
        pool->pool = memory;
        pool->pool_bytes = bytes;
    }
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
        munmap(pool->pool, pool->pool_bytes);
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
    return pool->pool + (size_t)layer * (size_t)pool->n_slots * (pool->delta_floats + pool->conv_floats);
}

float *state_pool_conv(const state_pool *pool, int32_t layer)
{
    return state_pool_delta(pool, layer) + (size_t)pool->n_slots * pool->delta_floats;
}

void state_pool_copy_out(const state_pool *pool, int32_t slot, float *host)
{
    for (int32_t layer = 0; layer < pool->n_layers; layer++) {
        memcpy(host, state_pool_delta(pool, layer) + (size_t)slot * pool->delta_floats, pool->delta_floats * sizeof(float));
        host += pool->delta_floats;
        memcpy(host, state_pool_conv(pool, layer) + (size_t)slot * pool->conv_floats, pool->conv_floats * sizeof(float));
        host += pool->conv_floats;
    }
}

void state_pool_copy_in(state_pool *pool, int32_t slot, const float *host)
{
    for (int32_t layer = 0; layer < pool->n_layers; layer++) {
        memcpy(state_pool_delta(pool, layer) + (size_t)slot * pool->delta_floats, host, pool->delta_floats * sizeof(float));
        host += pool->delta_floats;
        memcpy(state_pool_conv(pool, layer) + (size_t)slot * pool->conv_floats, host, pool->conv_floats * sizeof(float));
        host += pool->conv_floats;
    }
}
