/* daemon_state.h - what the daemon's own files share (daemon.c: the loop; daemon_start.c: start, replay, end; daemon_outputs.c: output files; daemon_jobs.c: jobs that run again or go). Nobody else includes it. */
#ifndef COORDINATOR_DAEMON_STATE_H
#define COORDINATOR_DAEMON_STATE_H

#include "coordinator/background.h"
#include "coordinator/daemon.h"
#include "coordinator/output_writer.h"
#include "coordinator/peers.h"
#include "coordinator/service.h"

typedef struct { transport_peer to; service_reply reply; uint64_t number; } late_reply;

/* One turn of the core: what it wants, and how much of that was performed. */
typedef struct turn {
    action_list list;
    late_reply *replies; size_t n_replies, replies_capacity;     /* owned; wait for the sync */
    uint64_t n_bytes;                    /* of results in it, once it is kept */
    struct turn *next;
} turn;

/* A job whose output files are being written. */
#define DAEMON_WRITERS_MAX 4             /* the first for closed jobs, one after the other; the others for running ones that somebody fetches */
typedef struct { stored_job *job; output_writer *writer; int64_t asked_ms; } output_slot;        /* writer: owned, NULL = free */

/* What the thread that writes a ledger anew works on. */
typedef struct { const spool *spool; journal_job named; stored_job *job, *fresh; job_retry_counts counts; } retry_work;     /* job: borrowed by the loop alone */

/* Paths that are to go. */
typedef struct { char **v; size_t n, capacity; } path_list;

struct coord_daemon {
    spool *spool;                        /* owned */
    journal *journal;                    /* owned */
    transport *transport;                /* owned */
    coord *core;                         /* owned */
    service *service;                    /* owned */
    stored_job **jobs; size_t n_jobs, jobs_capacity;     /* owned, in submit order */
    peers peers;
    turn *now, *spare;                   /* owned; `now` collects this turn's actions */
    turn *kept_first, *kept_last;        /* owned; turns that wait for room on the disk */
    uint64_t n_turns;
    uint64_t n_full;                     /* how often the disk was full */
    queue_figures kept, inbox;           /* bytes of results in kept turns; messages of the last turn */
    fl_arena messages;
    int64_t tick_ms, retry_ms, probe_ms, complain_ms;
    int64_t turn_ms, load_ms;            /* when the last turn with messages began; since when both are counted */
    uint64_t n_load, n_answers;          /* messages that came, ANSWERs that went */
    bool is_busy;                        /* messages come so fast that turns gather them */
    uint64_t n_dropped;                  /* messages that were none of ours */
    uint32_t beat_ms, term_ms, progress_ms;
    int probes;
    bool workers_are_children;
    char disk_full[480];                 /* "" = it is not */
    char *out, *errors;                  /* owned; NULL = into the job's folder */
    bool is_out_new, is_errors_new;
    output_slot writers[DAEMON_WRITERS_MAX];
    job_id follow_failed; fl_err follow_error; int64_t follow_retry_ms;      /* a running job's writer that failed: told to the next who fetches, or begun again when the disk was full */
    char outputs_full[480];              /* "" = there was room for them */
    int64_t output_retry_ms;
    background retrier;
    retry_work retry;
    daemon_retry last_retry;
    background remover;
    path_list removals, being_removed;   /* owned; the second one is the remover's while it runs */
    daemon_hello hello;
};

turn *daemon_turn_new(void);             /* NULL without memory */
void  daemon_turn_free(turn *t);         /* accepts NULL */

/* daemon_outputs.c */
void      daemon_outputs_committed(coord_daemon *d, const stored_job *job);      /* more of its ledger is durable */
void      daemon_outputs_closed(coord_daemon *d, stored_job *job);               /* its closing record is */
bool      daemon_outputs_busy(const coord_daemon *d, const stored_job *job);     /* a thread works on its files */
bool      daemon_outputs_now(const coord_daemon *d);                             /* there is something to begin */
bool      daemon_outputs_soon(const coord_daemon *d);                            /* a closed job's files will be whole any moment */
fl_status daemon_tend_outputs(coord_daemon *d, fl_err *err);                     /* takes notice of writers that ended, begins the next */
void      daemon_end_outputs(coord_daemon *d);                                   /* at the daemon's end: closed jobs' files are finished, others are left */

/* daemon_jobs.c */
fl_status daemon_tend_jobs(coord_daemon *d, fl_err *err);                /* takes notice of work in the background that ended */
fl_status daemon_expire_jobs(coord_daemon *d, fl_err *err);              /* closes those whose time is over */
bool      daemon_has_jobs_work(const coord_daemon *d);                   /* something of it is under way */
void      daemon_end_jobs(coord_daemon *d);                              /* at the daemon's end: waits for it */
fl_status daemon_add_to_core(coord_daemon *d, stored_job *job, fl_err *err);

/* The core's question, with the daemon's answer: can the pieces be read as one result? */
bool daemon_result_is_valid(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces);
bool daemon_verdict_is_valid(void *context, fl_bytes verdict);
uint64_t daemon_line_bytes(void *context, job_id id, row_index row);

#endif
