/* bench_steps.h - `bench prefill` and `bench decode`: steps of a model alone, without scheduler and sampler.
 * Threads  plain functions. */
#ifndef WORKER_BENCH_STEPS_H
#define WORKER_BENCH_STEPS_H

#include <jansson.h>
#include "worker/bench_device.h"

/* Measure the model at `path`; what comes out is added to `report`. */
fl_status bench_prefill_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err);
void      bench_prefill_print(const json_t *report);
fl_status bench_decode_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err);
void      bench_decode_print(const json_t *report);

#endif
