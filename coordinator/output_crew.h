/* output_crew.h - threads that make lines of a range of rows, handed on in order: output_rows.c's other half.
 *
 *   makers       take the next OUTPUT_BATCH_ROWS rows and a free batch, fill it, mark it ready
 *   the caller   waits for the batch whose turn it is, hands it to `take`, frees it; then it is the next one's turn
 *
 * Batches in hand: two a thread and one. A batch that grows beyond PART_BYTES, and a large row, wait for their turn and are handed on in parts, so what is in
 * memory is bounded whatever rows there are: the batch whose turn it is never waits for another.
 * Threads  the caller's and n_threads more, which end before the call returns. */
#ifndef COORDINATOR_OUTPUT_CREW_H
#define COORDINATOR_OUTPUT_CREW_H

#include <stdatomic.h>
#include "coordinator/output_maker.h"

typedef fl_status (*output_crew_take)(void *context, const output_batch *batch, fl_err *err);

/* Rows first .. end - 1. Ends with the first failure in row order, after the rows before it were handed on; FL_CLOSED when *stop (NULL allowed) became true. */
fl_status output_crew_make(const output_shared *shared, uint64_t first, uint64_t end, int n_threads, const atomic_bool *stop, output_crew_take take, void *context, fl_err *err);

#endif
