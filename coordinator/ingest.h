/* ingest.h - a job file becomes a job's folder: every line is checked once, and what the job is from then on is the copy in the spool.
 * Input    plain JSONL or gzip (also several members back to back), told apart by the first bytes. Lines end at byte 0x0A alone; the last one may lack it. One UTF-8 BOM
 *          is accepted; blank lines are skipped but counted as physical lines. A bad line never stops the ingest: it is told by ingest_faults.
 * Output   job.jsonl and rows.idx (rows.h) in the job's folder, synced by ingest_end. Half an ingest is thrown away by the caller with the folder.
 * Ids      the first row with a custom_id has it, also when that row is bad; a row without one is called row-<line> and has that. Later rows are
 *          duplicate_custom_id, or get a name of their own where the job wants that (suffix_duplicates). Ids are compared by 128-bit hashes in sorted runs
 *          (id_runs.h). Only a job written to collide could be refused wrongly, and only itself.
 * Way      the caller's thread unpacks, hashes, copies and cuts the bytes into blocks of whole lines (ingest_block.h); parser threads (ingest_pool.h) read them; the
 *          caller's thread takes the results back in order. What comes out does not depend on the number of threads.
 * Memory   30 MB with two parsers, whatever the job: blocks on the way (at most 16 MB of lines), a run of ids (24 MB while it is sorted), what fl_row_parse takes. A line of
 *          64 MB takes up to 5 times its size.
 * Threads  an ingest belongs to one thread. */
#ifndef COORDINATOR_INGEST_H
#define COORDINATOR_INGEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/queue_figures.h"
#include "coordinator/rows.h"
#include "proto/ids.h"
#include "proto/row_error.h"
#include "proto/status.h"

#define INGEST_CHAT_TOKENS 512           /* what a chat without max_tokens is thought to generate; only for the cost */

/* A bad line. Everything is borrowed for the call. */
typedef struct {
    row_index row;
    fl_row_error code;
    uint64_t line;                       /* physical line, from 1 */
    uint64_t offset;                     /* of the fault: bytes from the start of the (decompressed) file */
    const char *custom_id; size_t custom_id_bytes;       /* valid UTF-8; row-<line> when the line has none that can be read */
    const char *text; size_t text_bytes;                 /* the sentence; no NUL behind it */
} ingest_fault;
typedef fl_status (*ingest_visit)(void *context, const ingest_fault *fault, fl_err *err);      /* anything but FL_OK ends the walk and is returned */

typedef struct {
    uint64_t n_rows, n_bad, n_samples, n_lines, n_bytes; /* n_bytes: decompressed */
    uint64_t n_renamed;                  /* rows with a suffix */
    uint64_t cost;                       /* sum of the rows' */
    uint8_t hash[ROWS_HASH_BYTES];       /* XXH3-128 of the decompressed bytes: what the job is */
    queue_figures blocks;                /* on their way to the parsers and back (ingest_pool.h) */
    char unknown_fields[1024];           /* "task_id (164 rows), top_n (3 rows)"; "" when every field is known */
} ingest_report;

/* Called now and then, with the counts so far; anything but FL_OK ends the ingest and is returned. */
typedef fl_status (*ingest_note)(void *context, const ingest_report *so_far, fl_err *err);

typedef struct {
    const char *name;                    /* what sentences call the job */
    const char *defaults;                /* NULL, "" or the --set object (fl_row_defaults_check has passed) */
    const char *job_dir;                 /* exists; leftovers in it are overwritten */
    bool suffix_duplicates;              /* --duplicates suffix */
    int n_threads;                       /* that parse; 0 = one a core */
    ingest_note note; void *context;     /* note may be NULL */
} ingest_options;

typedef struct ingest ingest;

/* For bytes that arrive in pieces: open, push, end. Strings are copied. After a failure only ingest_close is allowed. */
fl_status ingest_open(ingest **out, const ingest_options *options, fl_err *err);
fl_status ingest_push(ingest *in, const void *data, size_t n_bytes, fl_err *err);
fl_status ingest_end(ingest *in, ingest_report *report, fl_err *err);               /* FL_INVALID: no rows. FL_CORRUPT: a gzip stream that ends early */
void      ingest_close(ingest *in);                                                  /* accepts NULL */

/* Push all of a file, or of standard input when path is "-". A plain file is cloned into the spool where the file system can. FL_NOT_FOUND, FL_INVALID
 * (a directory, an empty job), FL_UNSUPPORTED (another compression, UTF-16), FL_IO, FL_DISK_FULL, each with a sentence. */
fl_status ingest_read(ingest *in, const char *path, fl_err *err);

/* After ingest_end: all bad lines in input order. */
fl_status ingest_faults(ingest *in, ingest_visit visit, void *context, fl_err *err);

#endif
