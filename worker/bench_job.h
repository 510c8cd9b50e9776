/* bench_job.h - `bench job`: rows through the engine itself, from the first engine_add to the last result, without coordinator and worker.
 * Threads  plain functions. */
#ifndef WORKER_BENCH_JOB_H
#define WORKER_BENCH_JOB_H

#include <jansson.h>
#include "worker/bench_device.h"

/* Run the rows (bench_rows.h) on the model at `path`; what comes out is added to `report`. FL_INVALID for rows that the model cannot hold, and what engine_open and engine_step say. */
fl_status bench_job_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err);
void      bench_job_print(const json_t *report);

#endif
