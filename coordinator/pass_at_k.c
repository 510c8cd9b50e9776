#include "coordinator/pass_at_k.h"

#include <stdlib.h>

#define SEED 0x70617373406bu
#define TAIL_PART 0.025

double pass_at_k(pass_count count, uint32_t k)
{
    FL_ASSERT(k >= 1 && k <= count.n && count.c <= count.n);
    if (count.n - count.c < k) return 1.0;
    double none = 1.0;
    for (uint32_t i = count.n - count.c + 1; i <= count.n; i++) none *= 1.0 - (double)k / i;
    return 1.0 - none;
}

static uint64_t next_random(uint64_t *state)             /* splitmix64 */
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

fl_status pass_at_k_mean(const pass_count *counts, size_t n_tasks, uint32_t k, pass_interval *out, fl_err *err)
{
    FL_ASSERT(n_tasks > 0 && n_tasks <= UINT32_MAX);
    double *values = malloc(n_tasks * sizeof *values), *means = malloc(PASS_RESAMPLES * sizeof *means), sum = 0;
    uint64_t state = SEED + k;
    if (!values || !means) {
        free(values);
        free(means);
        return fl_fail(err, FL_FULL, "no memory for the intervals of %zu tasks", n_tasks);
    }
    for (size_t i = 0; i < n_tasks; i++) sum += values[i] = pass_at_k(counts[i], k);
    for (int r = 0; r < PASS_RESAMPLES; r++) {
        double drawn = 0;
        for (size_t i = 0; i < n_tasks; i++) drawn += values[(next_random(&state) >> 32) * n_tasks >> 32];
        means[r] = drawn / (double)n_tasks;
    }
    qsort(means, PASS_RESAMPLES, sizeof *means, by_value);
    size_t tail = (size_t)(TAIL_PART * PASS_RESAMPLES);
    *out = (pass_interval){ sum / (double)n_tasks, means[tail], means[PASS_RESAMPLES - 1 - tail] };
    free(values);
    free(means);
    return FL_OK;
}
