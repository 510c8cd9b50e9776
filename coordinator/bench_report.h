/* bench_report.h - what `bench-fleet` found, as JSON and as text.
 * Threads  plain functions. */
#ifndef COORDINATOR_BENCH_REPORT_H
#define COORDINATOR_BENCH_REPORT_H

#include <jansson.h>
#include "coordinator/bench_process.h"

typedef struct {
    /* asked for */
    uint64_t workers, processes, rate, tokens;
    const char *transport, *endpoint;
    bool is_own;                         /* the coordinator is ours: what the system says of it is known */
    /* found */
    uint64_t rows, samples, failed_rows, job_bytes, ledger_bytes, file_limit;
    double ingest_s, run_s, tail_s, outputs_s, verify_s; /* run_s: first grant to last answer; tail_s: its part behind the last grant */
    bench_usage at_start, at_ingested, at_run, at_outputs, at_end;       /* of the coordinator, each at the end of what it names; at_end: behind verify */
    stub_stats stats;                    /* of all fleets together */
    json_t *verify;                      /* borrowed; NULL: not asked for */
} bench_found;

/* Add one fleet's stats to the sum. */
void bench_sum(stub_stats *sum, const stub_stats *one);

json_t *bench_report(const bench_found *found);          /* the caller owns it */
void    bench_report_print(const json_t *report);        /* as text, on standard output */

#endif
