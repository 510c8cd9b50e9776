/* rope_table.h - the cosines and sines of one kind of layer in the device's memory, computed on the host as far as positions have come: on the host a context of a million tokens
 * costs address space until it is used.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_ROPE_TABLE_H
#define ENGINE_ROPE_TABLE_H

#include <stddef.h>
#include "engine/rope.h"
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct {
    ops_rope view;                   /* for the kernels; all zero before rope_table_open */
    ops *o;                          /* borrowed */
    float *memory; size_t n_bytes;   /* owned, of the device: cos [n_positions, n_rot / 2], then sin */
    float *staging;                  /* owned, where the device is not the host: what is filled at a time */
    float inv_freq[OPS_HEAD_DIM_MAX / 2], scale;
    int32_t n_filled;                /* positions 0 .. n_filled - 1 are there */
} rope_table;

size_t rope_table_bytes(const rope_config *rope, int32_t n_positions);

/* FL_FULL without memory for n_positions >= 1. */
fl_status rope_table_open(rope_table *t, ops *o, const rope_config *rope, int32_t n_positions, fl_err *err);
void      rope_table_close(rope_table *t);               /* accepts a zeroed one */

/* Fill it up to `position`, below n_positions, at least. Between steps: it waits for copies to a device. */
void      rope_table_reach(rope_table *t, int32_t position);

#endif
