/* ledger_index.h - where each result of a job lies in its ledger, so that lines are made in input order with bounded memory. ledger_lookup.h reads there.
 * Memory   8 bytes a sample, and 2 a row when some row has more than one (10 M rows of one sample: 80 MB).
 * Threads  one that adds and notes; while it does neither, any thread may ask. */
#ifndef COORDINATOR_LEDGER_INDEX_H
#define COORDINATOR_LEDGER_INDEX_H

#include "coordinator/ledger.h"

typedef struct ledger_index ledger_index;

/* For n_rows rows with n_samples samples in all; then each row is added in order. */
fl_status ledger_index_open(ledger_index **out, uint64_t n_rows, uint64_t n_samples, fl_err *err);
void      ledger_index_add(ledger_index *index, uint32_t n_samples);             /* of the next row, at least 1 */
void      ledger_index_close(ledger_index *index);       /* accepts NULL */

/* Note one record in a walk: RESULT, ROW_ERROR, INGEST_ERROR; others are ignored. FL_CORRUPT: a second result or error for the same place, or a row or
 * sample that the job does not have. */
fl_status ledger_index_note(ledger_index *index, const ledger_record *record, fl_err *err);

/* Where the error of this row or the first piece of a sample's result lies; false when there is none (yet). The row and sample exist. */
bool ledger_index_error(const ledger_index *index, row_index row, ledger_place *place);
bool ledger_index_result(const ledger_index *index, row_index row, uint32_t sample, ledger_place *place);
bool ledger_index_finished(const ledger_index *index, row_index row);            /* an error, or every sample */

#endif
