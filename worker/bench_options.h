/* bench_options.h - the command line of `tokenfleet-worker bench KIND`.
 * Threads  plain functions; texts are borrowed from argv. */
#ifndef WORKER_BENCH_OPTIONS_H
#define WORKER_BENCH_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define BENCH_SIZES_MAX 8

typedef enum { BENCH_PREFILL, BENCH_DECODE, BENCH_JOB, BENCH_SAMPLER, BENCH_KINDS } bench_kind;

typedef struct { int32_t v[BENCH_SIZES_MAX], n; } bench_sizes;

typedef struct {
    bench_kind kind;
    const char *kind_name, *model, *device, *precision;
    int64_t n_threads;                   /* of the CPU; 0 = all cores */
    bool as_json;
    int64_t prompt, context;             /* prefill: tokens of the prompt; decode: of each sequence */
    bench_sizes budgets;                 /* prefill: prompt tokens in a step, 0 = all */
    bench_sizes batches;                 /* decode, sampler: rows in a step */
    bench_sizes vocabularies;            /* sampler */
    int64_t n_calls;                     /* sampler: of each way, at most */
    int64_t rows, input, output;         /* job; input, output: fixed lengths, 0 = drawn */
    double temperature;
    int64_t batch, prefill_budget, kv_tokens;            /* job: engine_options, 0 = its default */
} bench_options;

/* argv[0] is "bench". Returns -1 when the bench should go on, else the exit status to end with: 0 after --help, 2 after one sentence on stderr. */
int bench_options_parse(bench_options *o, int argc, char **argv);

#endif
