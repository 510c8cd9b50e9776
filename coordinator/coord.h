/* coord.h - the coordinator's core: jobs, workers and leases as one pure step function. It reads no clock, socket, file or random
 * source; what should happen comes back as actions that the shell performs. tests/sim drives the same code on virtual time.
 * A turn    the shell steps any number of events into one action_list, then performs it in three phases, each in order:
 *             1 ledger    the appends of each job, one ledger_commit a job touched          (action_list.appends)
 *             2 journal   all of them in one SQLite transaction                              (action_list.journal)
 *             3 sends     messages to workers, outputs to write, notes for the log           (action_list.sends)
 *           A crash between any two of them is harmless: nothing is answered before it is durable, no lease is sent before its id is.
 *           A phase fails with FL_DISK_FULL: keep the appends and journal actions that are not done and the sends marked after_sync, perform the
 *           other sends, step EVENT_DISK (full), collect later turns behind the kept one, and retry every few seconds; EVENT_DISK (not full) when
 *           it worked. A ledger whose group was cut back takes that group again from its first record. Any other failure ends the process.
 * Restart   EVENT_JOB_ADD for each open job in submit order (row table replayed from its ledger), then EVENT_LEASE_RESTORE for each lease of the
 *           journal, newest first; then messages.
 * Time      now_ms never goes backwards (CLOCK_BOOTTIME). EVENT_TICK at least every beat_ms / 2.
 * Expiry    is the shell's: it reads the wall clock and steps EVENT_JOB_CLOSE. Limits of rows (row_limits) run in the core, on now_ms.
 * Blame     what happened to a row so far (crashes, stalls, ends of leases, with how many it may run) is kept in memory only: after a restart a row that crashed once counts anew,
 *           so a row that kills engines costs some ends more, and what was decided (a quarantine) is in the ledger.
 * Memory    a failed allocation of the core's small objects ends the process; the leases run out or are restored.
 * Grading   a graded job's table has grade rows (row_table.h). They are leased to workers that grade, whatever the job is pinned to; their results are verdicts. For the rest they are rows:
 *           leases, fates, copies, restarts and the ledger make no difference. A grader that ends is no evidence against what it graded, unless it did so twice with that row alone.
 * Threads   one. */
#ifndef COORDINATOR_COORD_H
#define COORDINATOR_COORD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/ledger.h"
#include "coordinator/queue_figures.h"
#include "coordinator/row_table.h"
#include "proto/arena.h"
#include "proto/ids.h"
#include "proto/status.h"
#include "proto/wire.h"

typedef struct coord coord;

#define COORD_PARTIAL_BYTES (256u * 1024 * 1024) /* of pieces of results that are not whole, of one lease: more than any model's logprobs of a whole context */
#define COORD_LINE_BYTES (64u * 1024 * 1024)     /* of lines under a worker's leases; not below FL_LINE_BYTES_MAX, so that any row can be granted */

/* Bytes that the core passes on but does not look into (a result piece, a detokenizer table). `owner` is the shell's handle to free; it comes back in
 * exactly one append (free it after the commit) or one ACTION_RELEASE. */
typedef struct { const void *data; size_t bytes; void *owner; } coord_body;

typedef struct {
    uint32_t beat_ms;                    /* heartbeat interval told to workers */
    uint32_t term_ms;                    /* a lease ends when no beat renewed it for so long; a worker silent for so long is gone */
    uint32_t copy_ms;                    /* a lease must be so old, and older than results took on average, before an idle worker copies rows of it that its own worker has begun */
    uint32_t progress_ms;                /* a lease whose worker's token totals stand still for so long is lost */
    uint64_t next_lease;                 /* the journal's counter, >= 1 */
    /* A pure check of a whole result body (fl_result_decode with the job's vocabulary). NULL: all are valid. */
    bool (*result_is_valid)(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces);
    /* The same of a grade row's result, a whole fl_verdict. NULL: all are valid. */
    bool (*verdict_is_valid)(void *context, fl_bytes verdict);
    /* Pure: how many bytes the row's line has, so that no worker holds more than COORD_LINE_BYTES of lines. NULL: they do not count. */
    uint64_t (*line_bytes)(void *context, job_id job, row_index row);
    void *context;                       /* of both */
} coord_options;
#define COORD_OPTIONS_DEFAULT { .beat_ms = 5000, .term_ms = 30000, .copy_ms = 10000, .progress_ms = 600000, .next_lease = 1 }

/* Numbers are kept in the journal: append only. */
typedef enum { JOB_OPEN = 1, JOB_COMPLETED = 2, JOB_CANCELLED = 3, JOB_EXPIRED = 4 } job_state;
const char *job_state_name(job_state state);             /* "running", "completed", "cancelled", "expired" */

/* How long a row may take before it fails with request_timeout; 0 = any time. Counted by the coordinator, from its start for the jobs that it finds then. */
typedef struct {
    uint64_t queue_ms;                   /* from the job's submission until a worker first holds the row */
    uint64_t run_ms;                     /* under one lease: from when a worker was given the row */
    uint64_t total_ms;                   /* from the job's submission until the row is finished */
} row_limits;

/* A job as the core takes it. Strings are copied. */
typedef struct {
    job_id id;
    row_limits limits;
    uint64_t seed;
    uint32_t max_context, now_s;
    wire_str defaults;                   /* --set as one JSON object, may be empty */
    wire_str model;                      /* the name the user asked for; empty = whatever comes first */
    bool is_pinned, has_detok;           /* replayed from its ledger */
    wire_str fingerprint, numerics;      /* of the pin */
    uint32_t n_vocab;                    /* of the pin */
    uint64_t n_tokens;                   /* committed so far, for status */
    job_state state;                     /* what the ledger says; 0 is JOB_OPEN */
    job_state journal_state;             /* what the journal says; 0 is JOB_OPEN. A closed job whose journal does not know it yet gets its ACTION_JOB_STATE and
                                            ACTION_JOB_CLOSED again; one that agrees is only listed */
} coord_job;

typedef enum {
    EVENT_JOB_ADD,          /* job, rows: *rows moves to the core on FL_OK. A closed job of this id is replaced, in its place (a retry); an open one is FL_CONFLICT */
    EVENT_JOB_REMOVE,       /* job_id: forget a closed job; FL_NOT_FOUND, or FL_CONFLICT when it is open */
    EVENT_JOB_CLOSE,        /* job_id, cause: cancelled or expired; FL_NOT_FOUND, or FL_CONFLICT when it is closed already */
    EVENT_LEASE_RESTORE,    /* lease, job_id, worker, n_items, items */
    EVENT_MESSAGE,          /* worker, msg (a decoded message of a worker), body (RESULT, DETOK: the part; moves to the core). A DETOK whose table
                               fl_detok_decode refuses, or whose vocabulary is not the worker's, is not stepped */
    EVENT_WORKER_GONE,      /* worker: its process is known to be dead (run's child ended): its leases end at once */
    EVENT_UNREACHABLE,      /* worker: a send found no peer; nothing is granted to it until it speaks again */
    EVENT_DRAIN,            /* drain: grant nothing more; STOP with this value goes to every worker, also to later ones */
    EVENT_DISK,             /* disk_full, text */
    EVENT_TICK
} event_type;

/* Samples sample_lo .. sample_hi - 1 of a row. */
typedef struct { row_index row; uint32_t sample_lo, sample_hi; } lease_item;

typedef struct {
    event_type type;
    const coord_job *job; row_table **rows;
    job_id job_id; ledger_cause cause;
    lease_id lease; const lease_item *items; uint32_t n_items;
    worker_id worker;
    const wire_msg *msg; coord_body body;
    bool drain, disk_full;
    const char *text;                    /* why the disk is full, for status */
} event;

typedef enum {
    /* phase 1 */
    ACTION_APPEND,          /* job, record (record.body is body when that has an owner: free it after the commit) */
    /* phase 2 */
    ACTION_LEASE_SAVE,      /* lease, job, worker, items, n_items: insert or replace */
    ACTION_LEASE_END,       /* lease: delete (fine when absent) */
    ACTION_NEXT_LEASE,      /* value: the counter to store */
    ACTION_JOB_STATE,       /* job, state */
    /* phase 3 */
    ACTION_SEND,            /* worker, msg. GRANT: the shell adds `lines` and the parts. after_sync: only when phases 1 and 2 of this turn worked */
    ACTION_JOB_CLOSED,      /* job, state: its closing record is durable, write the outputs (after_sync) */
    ACTION_RELEASE,         /* body: not wanted, free it */
    ACTION_NOTE             /* text: a sentence for the log */
} action_type;

typedef struct {
    action_type type;
    bool after_sync;
    job_id job; lease_id lease; worker_id worker;
    ledger_record record;
    coord_body body;
    const lease_item *items; uint32_t n_items;
    uint64_t value;
    job_state state;
    wire_msg msg;
    const char *text;
} action;

typedef struct { action *v; size_t n, capacity; } action_array;
typedef struct {
    action_array appends, journal, sends;
    fl_arena arena;                      /* strings and lists of the actions */
    uint64_t turn;                       /* counts clears */
} action_list;
void action_list_init(action_list *list);
void action_list_clear(action_list *list);               /* after it was performed; keeps its memory */
void action_list_fini(action_list *list);

fl_status coord_open(coord **out, const coord_options *options, fl_err *err);
void      coord_close(coord *c, action_list *out);       /* bodies still held are released into out; accepts NULL */

/* Advance by one event. FL_OK: actions were added to `out`. FL_INVALID, FL_NOT_FOUND, FL_CONFLICT: the event is refused with a sentence,
 * nothing changed (the body of a refused message is released into out). */
fl_status coord_step(coord *c, int64_t now_ms, const event *ev, action_list *out, fl_err *err);

/* For status; all pure reads. */
typedef struct {
    job_id id;
    job_state state;
    char why[480];                       /* why an open job does not advance right now; "" when it does */
    bool is_stuck;                       /* open, nothing of it is held by a live lease, and no worker here can take what waits */
    uint64_t rows, rows_completed, rows_failed, rows_running, rows_waiting;
    uint64_t samples_committed, n_tokens;
    uint64_t rows_suspect, rows_room;    /* of the waiting ones: run among themselves since an engine ended under them; need a larger worker */
    double tokens_per_s, rows_per_s;     /* committed, over the last minutes */
    int64_t left_s;                      /* at that pace; -1 = not known */
    uint64_t duplicates, stale, refused, retries, leases_granted, leases_lost, handbacks, crashes, timeouts;
    uint64_t rows_tail;                  /* nothing waits any more: the rows that are left, all with workers; else 0 */
    int64_t oldest_lease_ms;             /* age of its oldest live lease; 0 without one */
    uint64_t samples_copied;             /* granted a second time to idle workers */
    uint64_t samples_twice;              /* held by two leases now */
    uint64_t duplicate_tokens;           /* of results that came after another one of the same sample */
    bool is_graded;
    uint64_t samples_graded, samples_grading, samples_ungraded;  /* of an open graded job: with a verdict; with a grader; waiting for one */
} coord_job_status;

/* An engine that ended while it ran a row: what is known of it, for people. */
#define COORD_ENDS_MAX 32                /* kept for a job; those that say who is to blame push out the others */
typedef struct {
    row_index row;
    bool was_alone;                      /* with evidence: the row is to blame */
    uint32_t n_crashes;                  /* of the row alone, this one with it */
    char place[128], last_words[300];    /* whose engine; how it ended and the end of its log */
    int64_t at_ms;
} coord_end;
typedef struct {
    worker_id id;
    char model[257], place[257], why[480];       /* why it idles; "" when it works or may */
    bool is_accepted, is_draining, grades;       /* grades: held and credit count samples */
    uint64_t held_tokens, credit_tokens, prefill_tokens, decode_tokens, preemptions, unanswered_bytes;
    uint64_t busy_us;                    /* that its GPU worked */
    int32_t gpu;                         /* that it computes on; -1: the CPU */
    uint32_t running, waiting, n_leases;
    uint64_t rows_held;
    double prefill_per_s, decode_per_s;  /* tokens, over its last beats */
    uint64_t samples_committed;
    int64_t heard_ms;
} coord_worker_status;
bool   coord_job_find(const coord *c, job_id id, coord_job_status *out);
bool   coord_job_end(const coord *c, job_id id, size_t i, coord_end *out);      /* the i-th end kept for the job; false: there are no more */
size_t coord_n_workers(const coord *c);
bool   coord_worker_at(const coord *c, size_t i, coord_worker_status *out);
size_t coord_n_leases(const coord *c);                   /* live ones; after EVENT_DRAIN 0 says that all is handed in */
queue_figures coord_partials(const coord *c);            /* bytes of pieces of results whose last piece has not come; the capacity is a lease's */

#endif
