/* scheduler.h - which sequences are in memory and which rows of them run in the next step: continuous batching with chunked prefill, forks and preemption.
 *
 *   scheduler_add ─▶ waiting ──admit──▶ resident ──scheduler_remove──▶ outside
 *                       ▲                  │  └─ scheduler_fork: n - 1 more that wait on an image of the first
 *                       └──── preempt ─────┘     (KV blocks and state copied to host memory, later back, bit for bit)
 *
 * Order    older requests first, then lower samples. The waiting queue is admitted in that order and its head blocks the rest; the youngest is preempted first. So
 *          the oldest resident sequence runs in every step until it ends (unless it rests), and a pool that holds one full context suffices for any load.
 * Prompts  run in 64-token chunks at absolute positions, as many in a step as the prefill budget holds: one for every prompt, what is left for the oldest.
 * Bits     the schedule decides when a row is computed, never what.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_SCHEDULER_H
#define ENGINE_SCHEDULER_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/kv_cache.h"
#include "engine/state_pool.h"
#include "proto/status.h"

typedef struct scheduler scheduler;
typedef struct seq_image seq_image;
typedef enum { SEQ_OUTSIDE, SEQ_WAITING, SEQ_RESIDENT } seq_place;

typedef struct sequence {
    void *owner;                     /* the caller's */
    uint64_t request;                /* order: request first, then sample; set by the caller while outside */
    uint32_t sample;
    int32_t n_prompt;                /* positions computed in prefill form */
    int32_t n_cached;                /* positions whose KV and state are held: 0 .. n_cached - 1 */
    bool is_resting;                 /* set by the caller: no row of it runs for now, since what it goes on with is not known yet */
    seq_place place;
    int32_t slot;                    /* resident: state slot */
    block_table table;               /* resident: owned */
    seq_image *image;                /* waiting: what it goes on from, shared by forks; NULL = position 0 */
    struct sequence *next, *previous;    /* in the waiting queue */
} sequence;

/* One sequence's rows of the next step: positions first .. first + n_rows - 1. */
typedef struct { sequence *seq; int32_t first, n_rows; bool is_prefill; } plan_entry;

/* o, kv and states are borrowed for life; states has n_resident_max free slots at least. prefill_budget >= 64. */
fl_status scheduler_open(scheduler **out, ops *o, kv_cache *kv, state_pool *states, int32_t n_resident_max, int32_t prefill_budget, fl_err *err);
void      scheduler_close(scheduler *s);                 /* accepts NULL; every sequence must be outside */

void scheduler_add(scheduler *s, sequence *seq);         /* from outside to the waiting queue; seq is borrowed until it is outside again */
void scheduler_remove(scheduler *s, sequence *seq);      /* frees what it holds, wherever it is */

/* Admit, grow and preempt, then fill *entries [*n] (borrowed until the next call), oldest first; *n is 0 only when no sequence is left or all that are resident rest. The caller
 * runs all of them, then adds n_rows to each seq->n_cached; or it runs none and plans again. FL_FULL when host memory for a preempted sequence is lacking. */
fl_status scheduler_plan(scheduler *s, const plan_entry **entries, int32_t *n, fl_err *err);

/* Let `children` [n] (outside, n >= 1) go on from `from` at its n_cached, which is resident or was preempted: they share its full blocks, or its image, and wait in the queue. FL_FULL
 * without memory. */
fl_status scheduler_fork(scheduler *s, const sequence *from, sequence *const *children, int32_t n, fl_err *err);

int32_t  scheduler_resident(const scheduler *s);
uint64_t scheduler_preemptions(const scheduler *s);

#endif
