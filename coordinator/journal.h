/* journal.h - jobs and leases in SQLite (WAL, synchronous=FULL, locking_mode=EXCLUSIVE): what the core needs after a restart beside the
 * ledgers. One transaction is one loop turn; nothing is written per row. The file's content is never trusted: types and ranges are checked on
 * read and a violation is FL_CORRUPT with the table, the row and the field.
 * Schema   v2: meta(key, value: version, next_lease), jobs(id, seq, state, created_s, name, generation: of the ledger), leases(id, job, worker, items blob:
 *          n times LEB128 row delta, sample_lo, sample_hi - sample_lo). v1 had no generation; it is added when the file is opened for writing.
 * Threads  one writer thread owns it. */
#ifndef COORDINATOR_JOURNAL_H
#define COORDINATOR_JOURNAL_H

#include "coordinator/coord.h"

typedef struct journal journal;

/* Open or make the file. FL_UNSUPPORTED: a newer schema. FL_CONFLICT: another process holds it. */
fl_status journal_open(journal **out, const char *path, fl_err *err);
fl_status journal_open_read_only(journal **out, const char *path, fl_err *err);      /* for commands on a spool nobody holds */
void      journal_close(journal *j);                     /* accepts NULL */

/* One transaction holds everything between begin and commit; commit is durable when it returns. Calls outside a transaction are an assertion. */
fl_status journal_begin(journal *j, fl_err *err);
fl_status journal_commit(journal *j, fl_err *err);
void      journal_rollback(journal *j);                  /* fine outside a transaction */
fl_status journal_perform(journal *j, const action *a, fl_err *err);                 /* one phase 2 action */
fl_status journal_job_add(journal *j, job_id id, uint64_t created_s, const char *name, fl_err *err);   /* FL_CONFLICT when it exists; name <= 4096 bytes */

/* n jobs and their leases go, in a transaction of its own: all of them or none. */
fl_status journal_jobs_delete(journal *j, const job_id *ids, size_t n, fl_err *err);

/* The job runs again with this generation of its ledger (a retry): it is open from now on and nobody holds anything of it. */
fl_status journal_job_reopen(journal *j, job_id id, uint32_t generation, fl_err *err);

typedef struct { job_id id; job_state state; uint64_t created_s; uint32_t generation; const char *name; } journal_job;     /* name is borrowed for the call */
typedef fl_status (*journal_job_visit)(void *context, const journal_job *job, fl_err *err);
typedef fl_status (*journal_lease_visit)(void *context, lease_id lease, job_id job, worker_id worker, const lease_item *items, uint32_t n_items, fl_err *err);
fl_status journal_jobs(journal *j, journal_job_visit visit, void *context, fl_err *err);               /* in submit order */
fl_status journal_leases(journal *j, journal_lease_visit visit, void *context, fl_err *err);           /* newest first, as EVENT_LEASE_RESTORE wants them */
fl_status journal_next_lease(journal *j, uint64_t *value, fl_err *err);                                /* 1 in a new journal */

#endif
