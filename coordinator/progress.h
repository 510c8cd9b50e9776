/* progress.h - how far a job is, on stderr: one line that is rewritten on a terminal, else a plain line every few seconds.
 * Threads  belongs to its caller's thread. */
#ifndef COORDINATOR_PROGRESS_H
#define COORDINATOR_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/pace.h"

typedef struct { uint64_t rows, done, failed, tokens; int workers; const char *note; } progress_numbers;   /* tokens: generated so far, in this process */

typedef struct {
    bool terminal, shown;
    int64_t next_ms, first_ms;
    uint64_t first_done;
    pace pace;                           /* tokens, rows done */
} progress;

void progress_init(progress *p, int64_t now_ms, bool terminal);
void progress_show(progress *p, int64_t now_ms, const progress_numbers *numbers);   /* cheap; prints when it is time */
void progress_clear(progress *p);                        /* take the line off a terminal, before other words */

/* An ingest on stderr: nothing in its first second, then in place on a terminal, else a line every 10 s. Zeroed but for `what` ("reading job.jsonl"). */
typedef struct { const char *what; int64_t first_ms, next_ms; bool shown; } progress_ingest;
void progress_ingest_show(progress_ingest *p, int64_t now_ms, bool terminal, uint64_t rows, uint64_t bytes);
void progress_ingest_clear(progress_ingest *p);

/* "1h02m", "3m05s", "12s" in out[n_bytes]. */
void progress_duration(char *out, size_t n_bytes, int64_t seconds);

#endif
