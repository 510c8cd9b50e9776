/* job_failures.h - what failed in a job and why, in bounded memory: how many rows of each code, and a few examples of as many codes as there are.
 * Threads  belongs to its job's. Pure memory. */
#ifndef COORDINATOR_JOB_FAILURES_H
#define COORDINATOR_JOB_FAILURES_H

#include "coordinator/ledger.h"

#define JOB_FAILURES_EXAMPLES 5
#define JOB_FAILURES_NAME_BYTES 128
#define JOB_FAILURES_TEXT_BYTES 256

typedef struct {
    row_index row;
    fl_row_error code;
    bool is_named;                       /* custom_id and line are known; else the job's lines tell them (job_store_failures) */
    uint64_t line;                       /* physical, from 1 */
    char custom_id[JOB_FAILURES_NAME_BYTES], text[JOB_FAILURES_TEXT_BYTES];      /* cut to what fits, printable UTF-8 */
} failure_example;

typedef struct { uint64_t n[ROW_ERROR_COUNT]; failure_example examples[JOB_FAILURES_EXAMPLES]; int n_examples; } job_failures;

/* Count an INGEST_ERROR or ROW_ERROR; other records are nothing to it. */
void job_failures_note(job_failures *f, const ledger_record *record);

/* Text of whatever bytes as people can read it: cut at a character, control characters and what is no UTF-8 become '?'. */
void job_failures_copy(char *out, size_t capacity, const char *text, size_t n_bytes);

#endif
