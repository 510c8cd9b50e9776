/* ledger.h - the durable record of one job: append-only segment files, from which the output files are a pure function.
 * Layout   DIR/000001.seg, 000002.seg, ...: frames (proto/frame.h, kind = ledger_kind) back to back. The checksum of a frame is
 *          the chain of the next one, also across segments (0 before the first), so a frame that was removed, doubled or moved breaks its successor.
 *          A group commit is its records, one MARKER, one fdatasync; a segment is left for the next one after a marker only, at
 *          LEDGER_SEGMENT_BYTES. Integers are little-endian. Payloads:
 *            JOB           the job's settings, one JSON object; always the first frame
 *            INGEST_ERROR  u64 row, u64 line, u64 offset, u32 code, u32 custom id bytes, the custom id, then the sentence
 *            DETOK         u32 fingerprint bytes, fingerprint, then fl_detok_encode's bytes
 *            PIN           u32 n_vocab, u32 context, then three times u32 bytes + bytes: fingerprint, numerics, model name
 *            RESULT        u64 row, u64 lease, u32 sample, u32 piece, u32 n_pieces, u32 n_tokens, then a piece of fl_result_encode's body;
 *                          the pieces of one body follow each other in one group. In a graded job of n rows, row n + r: the verdict (proto/verdict.h) on a sample of row r
 *            ROW_ERROR     u64 row, u64 lease, u32 code, u32 zero, then the sentence
 *            CLOSE         u32 cause (ledger_cause), u32 zero; nothing but a marker may follow
 *            MARKER        u64 frames before it in the ledger, u64 its own place (segment << 40 | offset), u64 XXH3-64 of both
 * Threads  a ledger belongs to one thread; readers open the files themselves and see what was marked when they opened. */
#ifndef COORDINATOR_LEDGER_H
#define COORDINATOR_LEDGER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/frame.h"
#include "proto/ids.h"
#include "proto/row_error.h"
#include "proto/status.h"

#define LEDGER_SEGMENT_BYTES (32u * 1024 * 1024)
#define LEDGER_SEGMENTS_MAX 999999

typedef enum {
    LEDGER_JOB = 1, LEDGER_INGEST_ERROR = 2, LEDGER_DETOK = 3, LEDGER_PIN = 4, LEDGER_RESULT = 5, LEDGER_ROW_ERROR = 6,
    LEDGER_CLOSE = 7, LEDGER_MARKER = 8
} ledger_kind;
typedef enum { LEDGER_COMPLETED = 1, LEDGER_CANCELLED = 2, LEDGER_EXPIRED = 3 } ledger_cause;

/* Where a frame lies. segment counts from 1; 0 = nowhere. */
typedef struct { uint32_t segment; uint64_t offset; } ledger_place;

/* One record. Only the fields that the kind's payload names are read or set; all bytes are borrowed. */
typedef struct {
    ledger_kind kind;
    ledger_place place;                  /* set by readers */
    row_index row;                       /* INGEST_ERROR, RESULT, ROW_ERROR */
    lease_id lease;                      /* RESULT, ROW_ERROR: under which it was committed, 0 = none (quarantine) */
    uint32_t sample, piece, n_pieces, n_tokens;      /* RESULT; n_tokens is the whole body's, the same in each piece */
    uint32_t code;                       /* INGEST_ERROR, ROW_ERROR: fl_row_error */
    uint64_t line, line_offset;          /* INGEST_ERROR: physical line from 1, byte offset in it */
    ledger_cause cause;                  /* CLOSE */
    uint32_t n_vocab, context;           /* PIN */
    fl_bytes fingerprint;                /* PIN, DETOK */
    fl_bytes numerics, model;            /* PIN */
    fl_bytes custom_id;                  /* INGEST_ERROR; empty when the line has none */
    fl_bytes body;                       /* JOB: JSON. INGEST_ERROR, ROW_ERROR: sentence. DETOK: table. RESULT: piece */
} ledger_record;

/* Called for each committed record in order (markers are not shown). Anything but FL_OK ends the walk and is returned. */
typedef fl_status (*ledger_visit)(void *context, const ledger_record *record, fl_err *err);

typedef struct ledger ledger;

/* Begin a ledger in the empty or missing folder `dir` (made 0700; its parent must exist). Nothing is durable before the first ledger_commit. */
fl_status ledger_create(ledger **out, const char *dir, fl_err *err);

/* Open for appending: walk all committed records through `visit` (NULL allowed), cut what lies after the last good marker, and
 * stand ready at the end. FL_CORRUPT names segment and offset: a bad frame before a marker, a segment that is missing, a record
 * after CLOSE. FL_NOT_FOUND: no folder, or nothing was ever committed in it (an ingest that did not end: remove and start over). */
fl_status ledger_open(ledger **out, const char *dir, ledger_visit visit, void *context, fl_err *err);
void      ledger_close(ledger *l);       /* accepts NULL; uncommitted records are lost */

/* Append one record to the group (written to the file no later than ledger_commit). FL_CONFLICT after a CLOSE. FL_DISK_FULL: the whole group
 * was cut back to the last marker; append it again from its first record when there is room. FL_INVALID: over FL_FRAME_PAYLOAD_MAX. */
fl_status ledger_append(ledger *l, const ledger_record *record, fl_err *err);

/* End the group: marker, fdatasync, a new segment where the old one is full. FL_OK also when the group is empty. FL_DISK_FULL as above.
 * FL_IO: the disk failed under us; what it holds is unknown, so the process must end (a restart finds the last good marker). */
fl_status ledger_commit(ledger *l, fl_err *err);

ledger_place ledger_last(const ledger *l);               /* where the record lies that was appended last; segment 0: none was */
bool     ledger_is_closed(const ledger *l);              /* CLOSE was appended or replayed */
uint64_t ledger_bytes(const ledger *l);                  /* of all segments, for status */
ledger_place ledger_marked(const ledger *l);             /* the end of the last marker that was synced: readers may read up to here */

/* Walk the committed records without changing anything; FL_CORRUPT and FL_NOT_FOUND as ledger_open. */
fl_status ledger_scan(const char *dir, ledger_visit visit, void *context, fl_err *err);

/* The same, and what ledger_marked and ledger_is_closed would say. */
fl_status ledger_scan_to_end(const char *dir, ledger_visit visit, void *context, ledger_place *end, bool *is_closed, fl_err *err);

#endif
