/* ledger_verify.h - does a ledger hold exactly one result or error for every row, and was any frame touched?
 * Salvage   walks past broken frames (a frame's stored checksum is the next frame's chain; when its length is broken, the next
 *           magic is looked for), so that it can name what is missing and not only where the chain breaks.
 * Threads   one; changes nothing on disk. */
#ifndef COORDINATOR_LEDGER_VERIFY_H
#define COORDINATOR_LEDGER_VERIFY_H

#include "coordinator/ledger.h"
#include "coordinator/row_table.h"

typedef struct {
    bool has_row; row_index row;         /* the row it concerns, when one can be named */
    ledger_place place;                  /* segment 0: not about one place */
    char text[320];                      /* a sentence without the row's custom_id: the caller puts that before it */
} ledger_finding;

typedef struct {
    uint64_t n_frames, n_results, n_verdicts, n_errors, n_findings;     /* n_verdicts: results of grade rows, which n_results does not count */
    uint64_t n_rows_open;                /* rows without result or error (only a finding when the ledger is closed as completed) */
    uint64_t n_tail_bytes;               /* after the last marker: normal after a crash, a finding after CLOSE */
    bool closed; ledger_cause cause;
} ledger_report;

/* Findings come in the order of the ledger, then missing rows in row order; at most 1,000 are reported, all are counted. FL_OK even with findings: look at
 * report->n_findings. Other statuses: the ledger cannot be read at all. */
fl_status ledger_verify(const char *dir, const row_table *rows, void (*finding)(void *context, const ledger_finding *f), void *context,
                        ledger_report *report, fl_err *err);

#endif
