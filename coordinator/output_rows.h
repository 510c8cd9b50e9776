/* output_rows.h - the lines of OUT and ERR of a job, in input order, made from its folder alone: also while the job runs, as far as its first rows are all
 * finished. What writes the files and what verifies them both read this. The bytes are a function of the job alone, so an offset in them stays what it is.
 * Memory   the index of the ledger (ledger_index.h); 4 MB a thread, and one large row (output_maker.h).
 * Threads  belongs to its caller, who is also the one that takes the batches; others help to make them and are gone when the call returns. */
#ifndef COORDINATOR_OUTPUT_ROWS_H
#define COORDINATOR_OUTPUT_ROWS_H

#include <stdatomic.h>
#include "coordinator/job_store.h"
#include "coordinator/output_maker.h"

typedef struct output_rows output_rows;

fl_status output_rows_open(output_rows **out, const char *job_dir, const char *ledger_dir, fl_err *err);
void      output_rows_close(output_rows *o);             /* accepts NULL */

/* Read the ledger on, up to `until` (ledger_reader_read). FL_CORRUPT: with the place. */
fl_status output_rows_read(output_rows *o, ledger_place until, fl_err *err);
bool      output_rows_is_closed(const output_rows *o);   /* the closing record was read: all rows can be made */

/* Make what is ready with at most n_threads and hand it to `take` batch by batch, in order, on the calling thread. *stop (NULL: never) ends it early with
 * FL_CLOSED. Rows before one that fails are handed out first. Anything but FL_OK from `take` ends it and is returned. */
typedef fl_status (*output_take)(void *context, const output_batch *batch, fl_err *err);
fl_status output_rows_make(output_rows *o, int n_threads, const atomic_bool *stop, output_take take, void *context, fl_err *err);

const job_counts *output_rows_counts(const output_rows *o);      /* of what was handed out so far */

/* As many as this process may run at the same time, 16 at most. */
int output_rows_cores(void);

#endif
