/* daemon.h - the shell around the pure core (coord.h): sockets, clock, ledgers, journal and output files in one loop.
 * A turn   wait for messages (above 5,000 a second from many workers let them gather for up to 60 ms, so that one sync and one answer serve several); decode them and step the core; perform what it wants in its three phases; work a little on output files.
 *          When the disk is full the turns that could not be made durable are kept, nothing of theirs is answered, and they are tried again every
 *          few seconds; everything else goes on.
 * Threads  one; the loop is the caller's. */
#ifndef COORDINATOR_DAEMON_H
#define COORDINATOR_DAEMON_H

#include "coordinator/coord.h"
#include "coordinator/job_retry.h"
#include "coordinator/job_store.h"
#include "coordinator/output_writer.h"
#include "coordinator/transport.h"

typedef struct coord_daemon coord_daemon;

#define DAEMON_SOCKET_DIR "tokenfleet-"  /* how the folder of a `run`'s socket begins: DIR/tokenfleet-XXXXXX/s */

typedef struct {
    const char *spool;                   /* made when missing */
    const char *endpoint;                /* where workers and clients come */
    uint32_t beat_ms, term_ms, progress_ms;      /* 0 = the core's defaults */
    bool unsafe_spool;                   /* allow a spool on a network file system */
    bool workers_are_children;           /* `run`: a worker that cannot be reached is a process that ended */
    output_place out, errors;            /* `run`: where the output files go; a path of NULL = into the job's folder of the spool */
} daemon_options;

/* Take the spool, replay its journal and ledgers, bind the endpoint. Strings are copied. FL_CONFLICT: spool or endpoint in use. */
fl_status daemon_open(coord_daemon **out, const daemon_options *options, fl_err *err);
void      daemon_close(coord_daemon *d);                       /* accepts NULL; what is not durable was never answered and is lost */

/* One turn of the loop; waits for messages at most timeout_ms. Any failure ends the process: a restart finds all that was answered. */
fl_status daemon_turn(coord_daemon *d, int timeout_ms, fl_err *err);

/* Take a job that was stored (job_store_create) into journal and core; *job moves here on FL_OK. */
fl_status daemon_add_job(coord_daemon *d, stored_job **job, fl_err *err);

/* Step the core with an event of the shell's own (cancel, drain, ...); it is performed in the next turn. */
fl_status daemon_step(coord_daemon *d, const event *ev, fl_err *err);

/* A child process of ours died: find out within the next turns which worker it was. */
void daemon_child_died(coord_daemon *d);

/* This spool is of one `run`, which lives as long as its job: nobody takes the job away from it. */
bool         daemon_is_run(const coord_daemon *d);
const coord *daemon_core(const coord_daemon *d);
const spool *daemon_spool(const coord_daemon *d);
const char  *daemon_endpoint(const coord_daemon *d);

/* Jobs in submit order, closed ones too. */
size_t      daemon_n_jobs(const coord_daemon *d);
stored_job *daemon_job_at(coord_daemon *d, size_t i);
stored_job *daemon_job_find(coord_daemon *d, job_id id);       /* NULL: unknown */

/* Why a job's folder must not change under somebody right now ("its output files are being written"); NULL: it may. */
const char *daemon_job_busy(const coord_daemon *d, const stored_job *job);

/* Take n closed jobs that are not busy out of journal, core and memory, in one transaction, durable when this returns: they are no more. Their folders go in the
 * background. FL_CONFLICT, FL_AGAIN: one of them is open or busy, and all of them stay. */
fl_status daemon_jobs_delete(coord_daemon *d, stored_job *const *jobs, size_t n, fl_err *err);

/* Begin to run a closed job's failed rows again (job_retry.h), in the background; the job is open when daemon_last_retry tells that it ended well. One at a
 * time: FL_AGAIN while another one is under way or the job is busy. */
fl_status daemon_job_retry(coord_daemon *d, stored_job *job, fl_err *err);
bool      daemon_is_retrying(const coord_daemon *d, job_id job);
typedef struct { job_id job; fl_status status; fl_err err; job_retry_counts counts; } daemon_retry;
const daemon_retry *daemon_last_retry(const coord_daemon *d);  /* job 0: none ended since the start */

/* Remove a file or folder of the spool in the background. */
fl_status daemon_remove(coord_daemon *d, const char *path, fl_err *err);
bool      daemon_is_removing(const coord_daemon *d, const char *path);
size_t    daemon_n_removing(const coord_daemon *d);

/* Where OUT or ERR of a job is written; malloc'ed, NULL without memory. */
char *daemon_output_path(const coord_daemon *d, const stored_job *job, bool errors);

/* A job whose files are not whole yet (running, or closed a moment ago): how much of them can be read under the temporary names (output_file_temporary). The first
 * call for a running job begins to write them. *why: what they wait for, "" = nothing. A failure is the writer's own, told once; a full disk is waited for.
 * The temporary files go when a writer ends early, before the loop takes notice of it: what cannot be found any more is not there yet. */
fl_status daemon_outputs_follow(coord_daemon *d, stored_job *job, output_written *written, const char **why, fl_err *err);

/* Why the disk is full; NULL when it is not. */
const char *daemon_disk_full(const coord_daemon *d);

/* Queues of the loop (README.md). unsent: bytes to one peer; not_durable: bytes of results of turns that wait for the disk, capacity: all workers' credits; turn: messages of one. */
typedef struct { queue_figures unsent, not_durable, turn; } daemon_queues;
daemon_queues daemon_queue_figures(const coord_daemon *d);

/* What the last HELLO of a worker said; "" before the first. */
typedef struct { char model[257], fingerprint[65], numerics[257]; uint64_t n_hellos; } daemon_hello;
const daemon_hello *daemon_last_hello(const coord_daemon *d);

#endif
