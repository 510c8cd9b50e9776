/* ledger_lookup.h - reading single records of a ledger where ledger_index.h says they lie, nearly in order: through a cache of blocks.
 * Trust    the walk that noted a place checked the chain; here a changed payload shows as a record of another row, or in the block inside it.
 * Memory   2 MB, and the largest result.
 * Threads  one; any number may be open. */
#ifndef COORDINATOR_LEDGER_LOOKUP_H
#define COORDINATOR_LEDGER_LOOKUP_H

#include "coordinator/ledger.h"

typedef struct ledger_lookup ledger_lookup;

/* Only places that were committed by now may be asked for: bytes behind the last marker may be cached and become others. */
fl_status ledger_lookup_open(ledger_lookup **out, const char *dir, fl_err *err);
void      ledger_lookup_close(ledger_lookup *l);         /* accepts NULL */

/* The error of a row (ROW_ERROR or INGEST_ERROR), and all pieces of a result's body. Borrowed until the next call. FL_CORRUPT: something else lies there. */
fl_status ledger_lookup_error(ledger_lookup *l, ledger_place place, row_index row, ledger_record *record, fl_err *err);
fl_status ledger_lookup_result(ledger_lookup *l, ledger_place place, row_index row, uint32_t sample, fl_bytes *body, fl_err *err);

/* About how many bytes the result at `place` has, without reading it all. */
fl_status ledger_lookup_size(ledger_lookup *l, ledger_place place, uint64_t *n_bytes, fl_err *err);

#endif
