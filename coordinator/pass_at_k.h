/* pass_at_k.h - how likely one of k samples solves a task: the unbiased estimator, its mean over tasks and a bootstrap interval.
 * Source   Chen et al. 2021 (arXiv:2107.03374): 1 - C(n-c, k) / C(n, k) for n samples of which c passed; computed as 1 - prod_{i = n-c+1}^{n} (1 - k / i), whose factors lie
 *          between 0 and 1, so nothing over- or underflows.
 * Interval the middle 95% of the means of PASS_RESAMPLES sets of as many tasks, drawn with replacement by a generator of fixed seed: the same tasks give the same interval.
 * Threads  plain functions. */
#ifndef COORDINATOR_PASS_AT_K_H
#define COORDINATOR_PASS_AT_K_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define PASS_RESAMPLES 2000
#define PASS_KS_MAX 16

typedef struct { uint32_t n, c; } pass_count;            /* of a task: samples, and those that passed */
typedef struct { double mean, low, high; } pass_interval;

/* 1 <= k <= n, c <= n. */
double pass_at_k(pass_count count, uint32_t k);

/* Over all tasks, n_tasks >= 1; k is at most the n of each. FL_FULL: no memory. */
fl_status pass_at_k_mean(const pass_count *counts, size_t n_tasks, uint32_t k, pass_interval *out, fl_err *err);

#endif
