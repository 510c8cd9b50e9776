/* bench_model.h - a model with the memory of one step for benches: sequences side by side, no scheduler, no sampler; and what a step must move and compute.
 * Threads  belongs to the thread that opened it. */
#ifndef WORKER_BENCH_MODEL_H
#define WORKER_BENCH_MODEL_H

#include "engine/model.h"
#include "proto/status.h"

typedef struct {
    ops *o;                              /* owned, as all below */
    model *m;
    kv_cache *kv;
    state_pool *states;
    block_table *tables;                 /* [n_seqs] */
    int32_t n_seqs, context, n_rows_max, stride;
    act *hidden; float *logits;          /* device: [n_logits_max, hidden], [n_logits_max, n_vocab] */
    int32_t n_logits_max;
    float *row;                          /* host: one row of logits */
    int32_t *ids, *ids_from, *positions, *seq_of_row, *row_begin, *slots, *blocks, *logit_rows; bool *is_prefill;
    int32_t *chosen;                     /* device: where a step of the engine finds ids that were chosen there */
} bench_model;

/* Open `path` on `o` (taken over, also on failure) for n_seqs sequences of `context` positions and steps of at most n_rows_max rows. FL_FULL and what model_open says. */
fl_status bench_model_open(bench_model *b, const char *path, ops *o, int32_t n_seqs, int32_t context, int32_t n_rows_max, int32_t n_logits_max, fl_err *err);
void      bench_model_close(bench_model *b);             /* accepts a zeroed one */

/* Rows first .. first + n - 1 of sequence 0's prompt, `ids` its ids; logits of the last row when `is_last`. */
void bench_prefill_step(bench_model *b, const int32_t *ids, int32_t first, int32_t n, bool is_last);

/* One row for each of the first n sequences at `position`, and their logits; replayed where the device can. */
void bench_decode_step(bench_model *b, int32_t n, int32_t position);

/* Copy row `index` of the logits to b->row; its argmax. FL_GPU when a kernel failed. */
fl_status bench_read_logits(bench_model *b, int32_t index, int32_t *argmax, fl_err *err);

/* Multiply-adds times two of a prompt of n tokens with one row of logits. */
double bench_prefill_flop(const model_config *c, int32_t n);

/* Bytes that a decode step of n rows must read and write, with values of value_bytes: weights once (of experts those that n rows choose when they choose evenly), and for
 * each row the KV of its context, its states and its logits. */
double bench_weight_bytes(const model_config *c, size_t value_bytes, double n);
double bench_token_bytes(const model_config *c, size_t value_bytes, double context);

#endif
