/* spool.h - the coordinator's directory: its layout, its lock, and what file systems it may lie on.
 * Layout   DIR (0700)/lock                      one line: the pid of the holder
 *          DIR/journal.db (+ -wal)              journal.h
 *          DIR/endpoint                         while a coordinator holds it: where it can be asked
 *          DIR/jobs/job-<16 hex>/ledger/NNNNNN.seg ledger.h; ledger.2/, ledger.3/, ... after a retry: the journal names the one that counts
 *          DIR/jobs/job-<16 hex>/...            what the shell keeps beside it (the job's lines)
 * Threads  any; a spool is immutable after it is open. */
#ifndef COORDINATOR_SPOOL_H
#define COORDINATOR_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/ids.h"
#include "proto/status.h"

typedef struct spool spool;
#define SPOOL_PATH_MAX 480                               /* bytes of DIR as an absolute path: SQLite takes 512 with its own behind it */

typedef enum { SPOOL_CREATE = 1, SPOOL_READ_ONLY = 2, SPOOL_UNSAFE = 4 } spool_flag;

/* Open DIR. SPOOL_CREATE makes it (and jobs/) when missing; without it FL_NOT_FOUND. Unless SPOOL_READ_ONLY, takes the lock: waits up to 5 s, then
 * FL_CONFLICT with the holder's pid. FL_INVALID: its path is too long. A network file system is FL_UNSUPPORTED unless SPOOL_UNSAFE. */
fl_status spool_open(spool **out, const char *dir, unsigned flags, fl_err *err);
void      spool_close(spool *s);                         /* accepts NULL; gives the lock back */
const char *spool_dir(const spool *s);

/* Paths, malloc'ed; NULL without memory. `file` may be NULL: the job's folder. */
char *spool_path(const spool *s, const char *file);
char *spool_job_path(const spool *s, job_id job, const char *file);

/* Where the coordinator that holds DIR can be asked, as it wrote it (daemon_start.c). False: nobody has written that. One that was killed leaves it behind. */
#define SPOOL_ENDPOINT_FILE "endpoint"
#define SPOOL_ENDPOINT_MAX 300
bool spool_read_endpoint(const char *dir, char endpoint[SPOOL_ENDPOINT_MAX]);

/* The folder of a job's ledger: `ledger` for generation 1, `ledger.N` for what a retry made of it. Malloc'ed; NULL without memory. */
char *spool_ledger_path(const spool *s, job_id job, uint32_t generation);

/* Make jobs/JOB/ (0700, synced). FL_CONFLICT when it exists. remove: the folder and all in it, synced; FL_OK when absent. */
fl_status spool_job_create(const spool *s, job_id job, fl_err *err);
fl_status spool_job_remove(const spool *s, job_id job, fl_err *err);

/* A file, or a folder and all in it: remove it (FL_OK when absent; not synced), or add the sizes of its files to *n_bytes. */
fl_status spool_tree_remove(const char *path, fl_err *err);
fl_status spool_tree_bytes(const char *path, uint64_t *n_bytes, fl_err *err);

/* fsync a folder, so that what was created or renamed in it stays. */
fl_status spool_sync_dir(const char *dir, fl_err *err);

#endif
