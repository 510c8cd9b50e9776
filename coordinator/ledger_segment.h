/* ledger_segment.h - the segment files of a ledger: their names, how many there are, their bytes.
 * Threads  plain functions. */
#ifndef COORDINATOR_LEDGER_SEGMENT_H
#define COORDINATOR_LEDGER_SEGMENT_H

#include "coordinator/ledger.h"

#define LEDGER_SEGMENT_NAME_BYTES 16     /* "000001.seg" + NUL */
void ledger_segment_name(uint32_t segment, char out[LEDGER_SEGMENT_NAME_BYTES]);

/* Open the folder and count its segments; they must be 1 .. *n_segments without a gap (FL_CORRUPT names a missing one). FL_NOT_FOUND without the folder.
 * *dir_fd is the caller's to close. n_segments may be 0. */
fl_status ledger_segments_open(const char *dir, int *dir_fd, uint32_t *n_segments, fl_err *err);

/* All bytes of one segment, malloc'ed (never NULL on FL_OK); the caller frees. */
fl_status ledger_segment_read(int dir_fd, const char *dir, uint32_t segment, uint8_t **out, size_t *n_bytes, fl_err *err);

#endif
