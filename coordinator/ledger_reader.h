/* ledger_reader.h - the committed records of a ledger, read on from where the last read ended: what a job's outputs follow while the job runs.
 * Memory   a window of the segment; it grows to the largest group.
 * Threads  one, which need not be the writer's: what is read lies before a marker that the writer has synced. */
#ifndef COORDINATOR_LEDGER_READER_H
#define COORDINATOR_LEDGER_READER_H

#include "coordinator/ledger.h"

typedef struct ledger_reader ledger_reader;

/* FL_NOT_FOUND without the folder. */
fl_status ledger_reader_open(ledger_reader **out, const char *dir, fl_err *err);
void      ledger_reader_close(ledger_reader *r);         /* accepts NULL */

/* Show the records behind those already shown, up to `until` (ledger_marked of the writer; segment 0: as far as markers go, which is for a ledger that nobody
 * writes). FL_CORRUPT as ledger_open: a bad frame before a marker, a segment that is missing, a record after CLOSE. */
fl_status ledger_reader_read(ledger_reader *r, ledger_place until, ledger_visit visit, void *context, fl_err *err);

#endif
