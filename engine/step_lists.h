/* step_lists.h - the rows of one step, as ops.h takes them, made from the scheduler's plan. Where the device chooses tokens, the id of a row that it chose a step ago is not known here yet:
 * the row says where it lies among the chosen ones (ops_batch's ids_from).
 * Padding  steps of decode rows alone can be made as large as others of their kind, so that few kinds of work come again and again (ops.h: replay): rows up to the next of 1, 2, 4, 8, 16,
 *          24, 32, 48, 64, 96, 128, then quarters of a power of two, and block tables up to the next power of two. The rows beyond are the first position of a sequence that nobody
 *          reads, with a state slot and a KV block of its own. No row's bits depend on them (ops.h).
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_STEP_LISTS_H
#define ENGINE_STEP_LISTS_H

#include "engine/request.h"
#include "engine/scheduler.h"
#include "kernels/ops.h"

/* One row of logits of the step: what becomes of it. */
typedef struct { request *r; sequence *seq; int32_t position; bool is_prefill; } logit_row;

typedef struct {
    int32_t n_seqs_max, seq_blocks;
    int32_t n_rows, n_seqs, n_logits, stride;            /* of this step, with padding */
    int32_t n_real;                                      /* rows of logits without it: [n_real] of `rows` are filled */
    int32_t n_prefill;                                   /* prompt tokens */
    bool is_padded;                                      /* decode rows alone, made larger */
    int32_t *ids, *ids_from, *positions, *seq_of_row, *logit_rows; logit_row *rows;      /* owned, as the next */
    int32_t *row_begin, *slots, *tables; bool *is_prefill;                               /* tables [n_seqs_max, seq_blocks] at most */
} step_lists;

/* For steps of at most n_rows rows of n_seqs sequences of seq_blocks blocks. FL_FULL without memory; step_lists_close is due in any case, and accepts a zeroed one. */
fl_status step_lists_open(step_lists *l, int32_t n_rows, int32_t n_seqs, int32_t seq_blocks, fl_err *err);
void      step_lists_close(step_lists *l);

/* What rows beyond the real ones use; NULL where steps are not padded. */
typedef struct { int32_t slot, block; } step_padding;
void step_lists_fill(step_lists *l, const plan_entry *entries, int32_t n, const step_padding *padding);

/* The batch, whose arrays are the lists'. chosen: where the device keeps what it chose last; NULL where the host chooses. */
ops_batch step_lists_batch(const step_lists *l, const int32_t *chosen);

/* How many rows a step of n is padded to, at most `most`. */
int32_t step_rows_padded(int32_t n, int32_t most);

#endif
