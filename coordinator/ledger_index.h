/* ledger_index.h - where each result of a job lies, so that the output is written in input order with bounded memory.
 * Memory   8 bytes a sample (10 M samples: 80 MB). Rows and samples are numbered by the job's row_table, which must outlive the index.
 * Threads  one. */
#ifndef COORDINATOR_LEDGER_INDEX_H
#define COORDINATOR_LEDGER_INDEX_H

#include "coordinator/ledger.h"
#include "coordinator/row_table.h"

typedef struct ledger_index ledger_index;
fl_status ledger_index_open(ledger_index **out, const row_table *rows, const char *dir, fl_err *err);
void      ledger_index_close(ledger_index *index);       /* accepts NULL */

/* Note one record in a walk (ledger_scan, ledger_open): RESULT, ROW_ERROR, INGEST_ERROR; others are ignored.
 * FL_CORRUPT: a second result or error for the same place, or a row or sample that the job does not have. */
fl_status ledger_index_note(ledger_index *index, const ledger_record *record, fl_err *err);

/* Does this row have an error? Then *record is it (ROW_ERROR or INGEST_ERROR), borrowed until the next call. FL_NOT_FOUND otherwise. */
fl_status ledger_index_error(ledger_index *index, row_index row, ledger_record *record, fl_err *err);

/* The whole result body of (row, sample), all pieces joined: borrowed until the next call. FL_NOT_FOUND when there is none yet. */
fl_status ledger_index_result(ledger_index *index, row_index row, uint32_t sample, fl_bytes *body, fl_err *err);

#endif
