/* upload.h - one job on its way in from a client: pieces go into a queue, and a thread of the upload's own ingests them, syncs the folder and reads the job back, so that the
 * daemon's loop never waits for a disk or a parser.
 * Queue    UPLOAD_QUEUE_BYTES; when full the client waits: upload_limit tells how far it may go.
 * Threads  everything here belongs to the daemon's thread; the upload's thread touches its draft and, under a lock, the queue and the numbers. */
#ifndef COORDINATOR_UPLOAD_H
#define COORDINATOR_UPLOAD_H

#include "coordinator/job_store.h"

#define UPLOAD_QUEUE_BYTES (8u << 20)

typedef struct upload upload;

fl_status upload_open(upload **out, const spool *s, job_id id, const job_settings *settings, fl_err *err);       /* settings are copied */
void      upload_close(upload *u);       /* accepts NULL; waits for the thread, and what did not become a job is removed */
void      upload_abandon(upload *u);     /* nobody wants it any more: the thread ends soon, then upload_is_done */

job_id    upload_job(const upload *u);
uint64_t  upload_offset(const upload *u);                /* bytes pushed */
uint64_t  upload_limit(upload *u);                       /* bytes that may be pushed in all, as the queue is now */

/* Copy the next bytes into the queue. FL_INVALID: beyond the limit, or after the end. Otherwise what failed in the thread, if anything did. */
fl_status upload_push(upload *u, const void *data, size_t n_bytes, fl_err *err);
void      upload_end(upload *u);                         /* that was all of it */
bool      upload_has_ended(const upload *u);

/* FL_AGAIN while the thread works (*so_far as far as it is, else zero); then what became of the job: FL_OK and the caller owns *out. */
fl_status upload_poll(upload *u, stored_job **out, ingest_report *so_far, fl_err *err);
void      upload_queues(upload *u, queue_figures *pieces, queue_figures *blocks);    /* bytes that were not read yet; blocks of its ingest */
bool      upload_is_done(upload *u);                     /* the thread has ended: close does not wait */

#endif
