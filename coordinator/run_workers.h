/* run_workers.h - what `run` knows of its workers, also of those that have gone, and its report for each GPU.
 * Threads  plain functions. */
#ifndef COORDINATOR_RUN_WORKERS_H
#define COORDINATOR_RUN_WORKERS_H

#include <jansson.h>
#include <stdio.h>
#include "coordinator/coord.h"

typedef struct {
    worker_id id;
    int32_t gpu;                         /* -1: the CPU */
    uint64_t samples, prefill, decode, preemptions, busy_us;
} run_worker;

typedef struct { run_worker *v; size_t n; } run_workers;             /* v owned */

/* Note what the coordinator knows of one now. FL_FULL without memory. */
fl_status run_workers_note(run_workers *w, const coord_worker_status *now, fl_err *err);
void      run_workers_free(run_workers *w);

run_worker run_workers_sum(const run_workers *w);        /* of all: id and gpu mean nothing */
json_t    *run_workers_json(const run_workers *w);       /* [{"rows"}] */

/* A report for each GPU that a worker computed on, in the order of their numbers; `seconds` is how long they had work. As JSON: [{"gpu", "workers", "rows", "prefill_tokens",
 * "decode_tokens", "decode_tokens_per_s", "busy_share"}]; as lines. busy_share: part of the time in which the GPU worked; not there where that was not measured. */
json_t *run_workers_gpus_json(const run_workers *w, double seconds);
void    run_workers_gpus_print(FILE *f, const run_workers *w, double seconds);

#endif
