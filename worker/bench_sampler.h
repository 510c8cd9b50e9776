/* bench_sampler.h - `bench sampler`: choosing a token for each row of logits, three ways: the CPU's chain on the host's logits (one core), the GPU's on logits that come from the host,
 * their copy included, and the GPU's on logits that lie there. Each until the ids are on the host; and one of many calls queued one behind the other.
 * Threads  plain functions. */
#ifndef WORKER_BENCH_SAMPLER_H
#define WORKER_BENCH_SAMPLER_H

#include <jansson.h>
#include "worker/bench_device.h"

/* `path` is not used: there is no model. */
fl_status bench_sampler_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err);
void      bench_sampler_print(const json_t *report);

#endif
