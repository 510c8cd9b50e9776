/* job_retry.h - a closed job runs again, without computing anew what is good: its ledger refuses frames behind the closing record, so a new generation of
 * it is written into a folder beside the old one, then one transaction of the journal names that folder and opens the job.
 * Kept     the job's settings, its pin and table of tokens, bad lines (they stay bad), results of every row that did not fail. Left out: row errors, what
 *          failed rows had committed, the closing record.
 * Crash    before the transaction the old closed job is what counts, behind it the new open one; a folder that the journal does not name is removed at the
 *          next start (spool_gc.h). Outputs of before are outdated from the transaction on (job_store_drop_outputs, also at a start).
 * Threads  job_retry_build reads and writes files only and may run beside the loop (background.h). */
#ifndef COORDINATOR_JOB_RETRY_H
#define COORDINATOR_JOB_RETRY_H

#include "coordinator/job_store.h"

typedef struct { uint64_t again, kept, bad; } job_retry_counts;      /* rows that run again, rows that are whole, bad lines */

/* Write the new generation, synced, and open it: *fresh is what the job will be. NULL with FL_OK: nothing to run again, nothing was written. FL_CONFLICT: the job
 * is not closed. After any failure nothing of it is left. */
fl_status job_retry_build(stored_job **fresh, const spool *s, const journal_job *named, job_retry_counts *counts, fl_err *err);

/* The transaction. FL_OK: the old outputs and the old ledger are the caller's to remove. FL_DISK_FULL: it did not happen, abandon what was written. Any other
 * failure: whether it happened is not known, so both ledgers stay for the next start to decide. */
fl_status job_retry_commit(journal *j, const stored_job *fresh, fl_err *err);

/* Close it and remove what was written. Accepts NULL. */
void job_retry_abandon(stored_job *fresh);

/* All of it, on a spool that the caller holds. *counts tells: again 0 = there was nothing to do. */
fl_status job_retry(const spool *s, journal *j, const journal_job *named, job_retry_counts *counts, fl_err *err);

#endif
