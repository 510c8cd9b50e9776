/* id_runs.h - many records in, the same records in order out, in bounded memory: sorted runs, the first of them in memory, and a merge of them at the end.
 * Use      ingest finds double custom_ids with it (key = XXH3-128 of the id: equal ids come out side by side, the lowest row first), and puts what it found
 *          back into the order of rows (key = row).
 * Memory   a run and, while it is sorted, as much again: 48 bytes a record of a run; 256 KB to 8 MB for the merge. Fewer records than one run touch no file.
 * Disk     24 bytes a record in one file without a name (spill.h).
 * Threads  one. */
#ifndef COORDINATOR_ID_RUNS_H
#define COORDINATOR_ID_RUNS_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define ID_RUNS_DEFAULT (1u << 19)       /* records of a run */

typedef struct { uint64_t high, low, row; } id_record;               /* in this order */

typedef struct id_runs id_runs;

fl_status id_runs_open(id_runs **out, const char *dir, size_t run_records, fl_err *err);         /* dir is copied: where the file would lie */
void      id_runs_close(id_runs *r);     /* accepts NULL */
fl_status id_runs_add(id_runs *r, const id_record *records, size_t n, fl_err *err);              /* before id_runs_begin. FL_FULL, FL_DISK_FULL, FL_IO */
uint64_t  id_runs_count(const id_runs *r);

/* Read all of them in order: begin, then next until FL_CLOSED. Any number of times. */
fl_status id_runs_begin(id_runs *r, fl_err *err);
fl_status id_runs_next(id_runs *r, id_record *out, fl_err *err);

#endif
