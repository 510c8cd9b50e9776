/* ingest_block.h - some whole lines of a job on their way through ingest: the feeder fills in bytes and numbers, a parser thread what the lines mean, the collector
 * takes it out in the job's order. A block's result depends on its bytes and numbers alone, never on who parses it.
 * Memory   BLOCK_BYTES and at most BLOCK_LINES_MAX lines a block, more bytes only for a line that is longer; results are bounded by both.
 * Threads  whoever holds the block (ingest_pool.h). */
#ifndef COORDINATOR_INGEST_BLOCK_H
#define COORDINATOR_INGEST_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/id_runs.h"
#include "proto/status.h"

#define BLOCK_BYTES (512u * 1024)
#define BLOCK_LINES_MAX 16384u

typedef struct { uint8_t *bytes; size_t used, capacity; } block_bytes;               /* owned */

typedef struct {
    /* the feeder's */
    char *data; size_t used, capacity;   /* owned; lines with their feeds, the job's last may lack it */
    uint64_t offset, first_line;         /* of data[0] in the job; of its first line, from 1 */
    uint64_t long_bytes; bool long_has_text;             /* not 0: one line of so many bytes that was not worth keeping; data is empty */

    /* the parser's */
    uint64_t n_lines, n_rows, n_bad, n_samples, cost;
    block_bytes entries;                 /* rows.h, one a row */
    block_bytes ids;                     /* id_record, one a row whose id could be read; row counts from the block's first */
    block_bytes faults;                  /* fault_list.h; row likewise */
    block_bytes unknown; size_t unknown_last;            /* runs of rows with the same unknown fields: u32 rows, u32 bytes, the names */
    fl_status status; fl_err err;
} ingest_block;

void ingest_block_parse(ingest_block *b, const char *defaults);      /* into the second half; a failure (FL_FULL) stands in status */
void ingest_block_reset(ingest_block *b);                            /* ready to be filled; memory for a long line is given back */
void ingest_block_fini(ingest_block *b);

#endif
