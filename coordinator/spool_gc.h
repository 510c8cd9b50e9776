/* spool_gc.h - what a spool holds that nobody needs: folders of jobs that the journal does not name (half an ingest, a deleted job), ledgers that it does not
 * name (before a retry, or half of one), files that still have their temporary name.
 * Threads  plain functions on files. */
#ifndef COORDINATOR_SPOOL_GC_H
#define COORDINATOR_SPOOL_GC_H

#include "coordinator/spool.h"

/* A job that counts. is_busy: somebody works in its folder right now, so nothing in it is left over. */
typedef struct { job_id id; uint32_t generation; bool is_busy; } gc_job;

typedef struct { const char *path, *what; uint64_t bytes; } gc_item;             /* borrowed for the call */
typedef fl_status (*gc_visit)(void *context, const gc_item *item, fl_err *err);

/* Show everything that is left over. `visit` may remove it. */
fl_status spool_gc_walk(const spool *s, const gc_job *jobs, size_t n_jobs, gc_visit visit, void *context, fl_err *err);

#endif
