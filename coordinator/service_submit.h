/* service_submit.h - the submit verbs of service.h: jobs that clients are sending, each an upload.h.
 * Queue    SUBMITS_MAX uploads under way; another is refused with a sentence. One that was silent for a minute has gone.
 * Threads  the daemon's. */
#ifndef COORDINATOR_SERVICE_SUBMIT_H
#define COORDINATOR_SERVICE_SUBMIT_H

#include "coordinator/service.h"

#define SUBMITS_MAX 16

typedef struct service_submit service_submit;

fl_status service_submit_open(service_submit **out, coord_daemon *d, fl_err *err);
void      service_submit_close(service_submit *s);       /* accepts NULL */

fl_status service_submit_begin(service_submit *s, const json_t *args, service_reply *reply, fl_err *err);
fl_status service_submit_piece(service_submit *s, const json_t *args, const fl_bytes *part, service_reply *reply, fl_err *err);
fl_status service_submit_end(service_submit *s, const json_t *args, service_reply *reply, fl_err *err);
fl_status service_submit_abort(service_submit *s, const json_t *args, fl_err *err);

/* uploads under way; of the fullest of them: bytes not read yet, blocks of its ingest. The high-water marks are of all since the start. */
typedef struct { queue_figures uploads, pieces, blocks; } submit_queues;
submit_queues service_submit_queues(service_submit *s);

/* The jobs on their way: their folders are in use. Returns how many. */
size_t service_submit_jobs(const service_submit *s, job_id out[SUBMITS_MAX]);

#endif
