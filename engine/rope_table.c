#include "engine/rope_table.h"

#include <sys/mman.h>

#define STEP_POSITIONS 1024              /* filled at a time */

size_t rope_table_bytes(const rope_config *rope, int32_t n_positions) { return 2 * (size_t)n_positions * (size_t)(rope->n_rot / 2) * sizeof(float); }

fl_status rope_table_open(rope_table *t, const rope_config *rope, int32_t n_positions, fl_err *err)
{
    const size_t bytes = rope_table_bytes(rope, n_positions);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return fl_fail(err, FL_FULL, "model: no memory for the rotary table of %d positions (%zu bytes); lower --max-context", n_positions, bytes);
    *t = (rope_table){ .memory = memory, .n_bytes = bytes, .scale = rope_attention_factor(rope) };
    t->view = (ops_rope){ t->memory, t->memory + bytes / 2 / sizeof(float), rope->n_rot, n_positions };
    rope_inv_freq(t->inv_freq, rope);
    return FL_OK;
}

void rope_table_close(rope_table *t)
{
    if (t->memory) munmap(t->memory, t->n_bytes);
    *t = (rope_table){ 0 };
}

void rope_table_reach(rope_table *t, int32_t position)
{
    if (position < t->n_filled) return;
    FL_ASSERT(position < t->view.n_positions);
    const int32_t left = t->view.n_positions - position, n = position + (left < STEP_POSITIONS ? left : STEP_POSITIONS) - t->n_filled;
    const size_t half = (size_t)t->view.n_rot / 2, begin = (size_t)t->n_filled * half;
    rope_fill(t->memory + begin, t->memory + (size_t)t->view.n_positions * half + begin, t->inv_freq, t->view.n_rot, t->n_filled, n, t->scale);
    t->n_filled += n;
}
