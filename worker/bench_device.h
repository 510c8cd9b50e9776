/* bench_device.h - the device of a bench, and what it does at best: rates measured in the same run, which everything else is held against.
 * Threads  plain functions. */
#ifndef WORKER_BENCH_DEVICE_H
#define WORKER_BENCH_DEVICE_H

#include "kernels/ops.h"
#include "proto/status.h"
#include "worker/bench_options.h"

/* Open what --device, --precision and --threads ask for. FL_UNSUPPORTED where there is no such GPU, or it cannot be used. */
fl_status bench_device_open(ops **out, const bench_options *o, fl_err *err);

/* Bytes read and written a second by a large copy, and multiply-adds times two a second of a large product. */
typedef struct { double copy_bytes_per_s, product_flop_per_s; const char *kernels; } bench_rates;      /* kernels: the device's name of its operations */
fl_status bench_device_measure(bench_rates *rates, const bench_options *o, fl_err *err);      /* on a device of its own, closed again */

/* The value of which `share` of the n are not above; sorts them. n >= 1. */
double bench_percentile(double *values, int32_t n, double share);

#endif
