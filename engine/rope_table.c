#include "engine/rope_table.h"

#include <stdlib.h>

#define STEP_POSITIONS 1024              /* filled at a time */

size_t rope_table_bytes(const rope_config *rope, int32_t n_positions) { return 2 * (size_t)n_positions * (size_t)(rope->n_rot / 2) * sizeof(float); }

fl_status rope_table_open(rope_table *t, ops *o, const rope_config *rope, int32_t n_positions, fl_err *err)
{
    const size_t bytes = rope_table_bytes(rope, n_positions);
    void *memory = NULL;
    fl_status st = o->take(o, &memory, bytes, "the rotary table; lower --max-context", err);
    if (st != FL_OK) return st;
    *t = (rope_table){ .o = o, .memory = memory, .n_bytes = bytes, .scale = rope_attention_factor(rope) };
    t->view = (ops_rope){ t->memory, t->memory + bytes / 2 / sizeof(float), rope->n_rot, n_positions };
    rope_inv_freq(t->inv_freq, rope);
    if (o->is_host) return FL_OK;
    t->staging = malloc(rope_table_bytes(rope, STEP_POSITIONS));
    return t->staging ? FL_OK : fl_fail(err, FL_FULL, "model: no memory to fill a rotary table");
}

void rope_table_close(rope_table *t)
{
    if (t->memory) t->o->give(t->o, t->memory, t->n_bytes);
    free(t->staging);
    *t = (rope_table){ 0 };
}

/* Positions n_filled .. n_filled + n - 1. */
static void fill(rope_table *t, int32_t n)
{
    const size_t half = (size_t)t->view.n_rot / 2, begin = (size_t)t->n_filled * half, n_floats = (size_t)n * half;
    float *cosines = t->memory + begin, *sines = t->memory + (size_t)t->view.n_positions * half + begin;
    if (t->o->is_host) {
        rope_fill(cosines, sines, t->inv_freq, t->view.n_rot, t->n_filled, n, t->scale);
    } else {
        rope_fill(t->staging, t->staging + n_floats, t->inv_freq, t->view.n_rot, t->n_filled, n, t->scale);
        t->o->upload(t->o, cosines, t->staging, n_floats * sizeof(float));
        t->o->upload(t->o, sines, t->staging + n_floats, n_floats * sizeof(float));
    }
    t->n_filled += n;
}

void rope_table_reach(rope_table *t, int32_t position)
{
    FL_ASSERT(position < t->view.n_positions);
    while (position >= t->n_filled) {
        const int32_t left = t->view.n_positions - t->n_filled;
        fill(t, left < STEP_POSITIONS ? left : STEP_POSITIONS);
    }
}
