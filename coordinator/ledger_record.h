/* ledger_record.h - records as frames in memory: what ledger.c writes, what every reader walks. Layout in ledger.h.
 * Threads  plain functions on the caller's memory. */
#ifndef COORDINATOR_LEDGER_RECORD_H
#define COORDINATOR_LEDGER_RECORD_H

#include "coordinator/ledger.h"

#define LEDGER_MARKER_BYTES 24
#define LEDGER_RECORD_PARTS 6

/* A record as frame header + parts to write back to back; the parts borrow from the record and from `fixed`. */
typedef struct {
    uint8_t header[FL_FRAME_HEADER_BYTES];
    uint8_t fixed[LEDGER_RECORD_PARTS][32];
    fl_bytes parts[LEDGER_RECORD_PARTS];
    int n_parts;
    size_t bytes;                        /* header and all parts */
    uint64_t checksum;                   /* the next frame's chain */
} ledger_frame;

/* FL_INVALID: the payload is over FL_FRAME_PAYLOAD_MAX. The record's fields are ours, so their ranges are asserted. */
fl_status ledger_frame_record(ledger_frame *frame, const ledger_record *record, uint64_t chain, fl_err *err);
void      ledger_frame_marker(ledger_frame *frame, uint64_t n_frames, ledger_place place, uint64_t chain);

/* Decode a frame's payload. FL_CORRUPT: another size or range than the kind allows. */
fl_status ledger_record_decode(ledger_record *record, uint16_t kind, const uint8_t *payload, size_t n_bytes, fl_err *err);

/* Is this payload a marker that stands at `place`? (No matter what lies before it.) */
bool ledger_marker_matches(const uint8_t *payload, size_t n_bytes, ledger_place place, uint64_t *n_frames);

/* Where a walk stands between two groups. Zero-initialised = before the first. base: where the bytes of the next walk begin in their segment (0: a whole segment). */
typedef struct { uint64_t chain, n_frames, base; bool is_closed; } ledger_cursor;

/* Walk the bytes of segment number `segment` from cursor->base on, which the caller moves. Each group is shown to `visit` (NULL allowed) after its marker was seen. *marked_bytes is the end of the last
 * good marker. is_last: what follows that may be a torn tail; a bad frame that a marker of this file follows is FL_CORRUPT all the same,
 * unless a page of the last group was never written (reads as zeros), as a crash can leave it. */
fl_status ledger_walk(const uint8_t *data, size_t n_bytes, uint32_t segment, bool is_last, ledger_cursor *cursor, ledger_visit visit, void *context,
                      size_t *marked_bytes, fl_err *err);

/* Offset of the next intact marker at or after `from`, also one that stands at a wrong place because bytes before it were removed or added; n_bytes when there is none. */
size_t ledger_find_marker(const uint8_t *data, size_t n_bytes, size_t from);

#endif
