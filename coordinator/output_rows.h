/* output_rows.h - the lines of OUT and ERR of a closed job one after the other, in input order, made from its folder alone. What writes the files and what
 * verifies them both read this.
 * Memory   the index of the ledger (ledger_index.h), the row table, one row's results.
 * Threads  belongs to its caller; reads files only. */
#ifndef COORDINATOR_OUTPUT_ROWS_H
#define COORDINATOR_OUTPUT_ROWS_H

#include "coordinator/job_store.h"

typedef struct output_rows output_rows;

typedef struct {
    bool is_error;                       /* a line of ERR, else of OUT */
    row_index row;
    const char *custom_id; size_t custom_id_bytes;
    const char *line; size_t n_bytes;    /* with its line feed; all borrowed until the next call */
} output_row;

/* FL_AGAIN: the job is not closed yet. FL_CORRUPT: with the place. */
fl_status output_rows_open(output_rows **out, const char *job_dir, const char *ledger_dir, fl_err *err);
fl_status output_rows_next(output_rows *o, output_row *row, fl_err *err);        /* FL_CLOSED behind the last row */
const job_counts *output_rows_counts(const output_rows *o);                      /* of what was given out so far */
void      output_rows_close(output_rows *o);             /* accepts NULL */

#endif
