/* state_pool.h - the recurrent states of one model's linear-attention layers: a slot holds one sequence's state of all of them.
 * Layout   for each linear layer delta [n_slots, n_v_heads, k_dim, v_dim] and conv [n_slots, conv_width - 1, n_channels], fp32, in the device's memory, taken once at open.
 *          Each begins at a multiple of 256 bytes, whatever the sizes and the number of slots: kernels read it alike in every batch (ops.h, OPS_STATE_ALIGN).
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_STATE_POOL_H
#define ENGINE_STATE_POOL_H

#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct state_pool state_pool;

/* What a pool takes of the device's memory; SIZE_MAX where no memory can hold it. */
size_t state_pool_bytes(int32_t n_layers, size_t delta_floats, size_t conv_floats, int32_t n_slots);

/* n_layers >= 0 layers, each with delta_floats and conv_floats a slot. Takes state_pool_bytes. `o` is borrowed for life. FL_FULL without memory. */
fl_status state_pool_open(state_pool **out, ops *o, int32_t n_layers, size_t delta_floats, size_t conv_floats, int32_t n_slots, fl_err *err);
void      state_pool_close(state_pool *pool);            /* accepts NULL; every slot must be free */

int32_t state_pool_take(state_pool *pool);               /* a free slot, or -1; its contents are the last owner's (position 0 clears them) */
void    state_pool_give(state_pool *pool, int32_t slot);
int32_t state_pool_free(const state_pool *pool);
size_t  state_pool_slot_floats(const state_pool *pool);  /* over all layers */

float *state_pool_delta(const state_pool *pool, int32_t layer);          /* layer counts linear layers; [n_slots, delta_floats] */
float *state_pool_conv(const state_pool *pool, int32_t layer);           /* [n_slots, conv_floats] */

/* Copy a slot of all layers to or from host memory [state_pool_slot_floats]. */
void state_pool_copy_out(const state_pool *pool, int32_t slot, float *host);
void state_pool_copy_in(state_pool *pool, int32_t slot, const float *host);

#endif
