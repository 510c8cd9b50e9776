/* rows.h - the lines of a job as its folder keeps them: job.jsonl (the job's bytes, decompressed, otherwise as they came) and rows.idx (where each row lies).
 * Layout   rows.idx, little-endian: a header of 64 bytes, then one entry of 32 bytes for each non-blank line, good or bad, in input order.
 *            header  u32 magic "TRI1", u16 version (1), u16 zero, u64 rows, u64 bytes of job.jsonl, u64 XXH3-64 (over the entries, seeded with XXH3-64 of the
 *                    header without this field), 16 bytes XXH3-128 of job.jsonl (canonical form), 16 bytes zero
 *            entry   u64 offset in job.jsonl, u32 bytes (without line feed and trailing 0x0D; saturating), u32 samples (0 = a bad row), u64 physical line
 *                    from 1, u32 cost, u32 flags (bit 0: is_renamed; the others zero)
 *          Entries ascend in offset and line. cost: tokens of work of the whole row, prompt + n * max_tokens, an estimate that never changes results.
 * Trust    everything is checked at open and again at each read; a file that shrinks later is FL_CORRUPT, never a signal.
 * Threads  a `rows` belongs to one thread; any number may be open. */
#ifndef COORDINATOR_ROWS_H
#define COORDINATOR_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/ids.h"
#include "proto/status.h"

#define ROWS_JOB_FILE "job.jsonl"
#define ROWS_INDEX_FILE "rows.idx"
#define ROWS_HEADER_BYTES 64
#define ROWS_ENTRY_BYTES 32
#define ROWS_HASH_BYTES 16

/* is_renamed: an earlier row has this row's custom_id, and the job gives such rows names of their own: fl_row_rename after each fl_row_parse. */
typedef struct { uint64_t offset; uint32_t n_bytes, n_samples; uint64_t line; uint32_t cost; bool is_renamed; } rows_entry;
typedef struct { uint64_t n_rows, n_bytes, checksum; uint8_t hash[ROWS_HASH_BYTES]; } rows_header;

typedef struct rows rows;

/* Open the two files of a job folder. FL_NOT_FOUND: one is missing. FL_CORRUPT names the file and what is wrong with it. */
fl_status rows_open(rows **out, const char *job_dir, fl_err *err);
void      rows_close(rows *r);                           /* accepts NULL */

/* The same files once more, for another thread; the check of rows_open is not repeated. `from` may be closed before *out. */
fl_status rows_share(rows **out, const rows *from, fl_err *err);
const rows_header *rows_describe(const rows *r);

/* The entry of one row (index < n_rows, else FL_NOT_FOUND). */
fl_status rows_get(rows *r, row_index row, rows_entry *entry, fl_err *err);

/* The bytes of an entry's line, borrowed until the next call. FL_INVALID for a line above FL_LINE_BYTES_MAX (always a bad row). */
fl_status rows_line(rows *r, const rows_entry *entry, const char **line, fl_err *err);

/* Does job.jsonl still have the bytes that were ingested? Reads it all. FL_CORRUPT when not. */
fl_status rows_verify(rows *r, fl_err *err);

/* The pure halves, for ingest and tests. checksum runs over entries in order: begin, add any number of times, end. */
void rows_entry_encode(uint8_t out[ROWS_ENTRY_BYTES], const rows_entry *entry);
fl_status rows_entry_decode(rows_entry *entry, const uint8_t in[ROWS_ENTRY_BYTES], const rows_header *header, fl_err *err);
void rows_header_encode(uint8_t out[ROWS_HEADER_BYTES], const rows_header *header);
uint64_t rows_header_seed(const rows_header *header);    /* of the checksum over the entries */

#endif
