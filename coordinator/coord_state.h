/* coord_state.h - what the core knows, for its own files only (coord.h is its contract): struct coord is the one to read first.
 * Files     coord.c (step, time), coord_job.c (jobs), coord_worker.c (workers and their messages), coord_result.c (results and row errors), coord_blame.c
 *           (crashes), coord_limits.c (rows that take too long), coord_grant.c (who gets what), lease_table.c (leases), action_list.c (actions), coord_status.c (reads).
 * Threads   one. */
#ifndef COORDINATOR_COORD_STATE_H
#define COORDINATOR_COORD_STATE_H

#include "coordinator/coord.h"
#include "coordinator/id_map.h"
#include "coordinator/pace.h"

#define ROW_RETRIES_MAX 100              /* ends of leases without blame before the job pauses */
#define ROW_CRASHES_MAX 2                /* crashes while alone before the row is quarantined */
#define ROOM_CONTEXTS_MAX 127
/* A row's mark says which workers handed it back: the low bits are an index of room_contexts + 1 (0: none for want of room), the high bit that it is a chat
 * that some worker cannot render. */
#define ROW_MARK_CONTEXT 0x7Fu
#define ROW_MARK_CHAT 0x80u
#define WINDOW_ROWS_FIRST 8              /* rows a fresh worker holds at first, or its batch of samples; doubled with each lease it finishes */
#define WINDOW_ROWS_MAX 4096
#define LEASE_SAMPLES_MAX 65536
#define GRANT_ITEMS_MAX 4096             /* proto/wire.h, WIRE_GRANT_FIELDS */

typedef struct job {
    job_id id;
    job_state state;
    uint64_t seed;
    uint32_t max_context, now_s;
    row_limits limits;
    int64_t added_ms;                    /* when it came here */
    uint64_t queue_checked, total_checked;       /* rows below these were looked at since the limit was reached */
    bool is_timed_out;                   /* total_ms is over: what is left fails within the next ticks */
    char *defaults, *model;              /* owned; "" when absent */
    bool is_pinned, has_detok;
    char *fingerprint, *numerics;        /* owned; of the pin */
    uint32_t n_vocab;
    row_table *rows;                     /* owned; NULL once closed */
    uint32_t room_contexts[ROOM_CONTEXTS_MAX];   /* contexts of workers that had no room for a row; see ROW_MARK_CONTEXT */
    uint32_t n_room_contexts;
    char no_chats[256];                  /* why a worker could not render a chat; "" when none said so */
    char pause[480];                     /* "" unless the job waits for a person */
    uint32_t n_pins;                     /* counts changes of model, fingerprint and numerics: what workers remember of them is void */
    uint64_t n_able[2], able_version;    /* workers that may work on it (1: that may grade it), counted at this fleet_version */
    uint64_t n_rows, n_completed, n_failed;      /* of a closed job, whose rows are gone */
    pace pace;                           /* tokens committed, rows finished */
    uint64_t n_samples, n_verdicts, n_tokens, n_duplicates, n_stale, n_refused, n_retries, n_granted, n_lost, n_handbacks, n_crashes, n_timeouts;
    uint64_t n_timed, timed_ms;          /* committed here, and the age of their leases then, summed */
    uint64_t n_copied, n_duplicate_tokens;       /* samples granted as copies; tokens of results that came too late */
    coord_end *ends; uint32_t n_ends;    /* owned [COORD_ENDS_MAX], NULL before the first */
} job;

typedef struct worker {
    worker_id id;
    char *model, *fingerprint, *numerics, *place;        /* owned */
    uint32_t n_vocab, context;
    uint64_t credit_tokens, credit_bytes;
    bool grades, has_tokenizer, no_chats, is_accepted, is_draining, is_unreachable, was_stopped;
    char why[480];
    int64_t heard_ms, progress_ms;       /* last message; last change of its token totals or last result */
    uint64_t prefill_tokens, decode_tokens, preemptions, busy_us, unanswered_bytes;
    int32_t gpu;                         /* -1: the CPU */
    uint64_t batch, kv_tokens;           /* as HELLO's */
    pace pace;                           /* of prefill_tokens and decode_tokens */
    uint32_t running, waiting, n_spare;  /* n_spare: of the waiting ones of the last beat, those that nobody copied since */
    lease_id newest;                     /* of its leases: what waits there is at its end */
    uint64_t held_tokens;                /* of all samples its leases still hold */
    uint64_t held_line_bytes;            /* of all rows of its leases */
    uint32_t n_leases, window_rows;
    bool runs_suspects;                  /* gets groups of suspects and nothing else, each when it holds nothing */
    uint32_t n_ends;                     /* of its engine in a row, without a result in between; a standstill counts twice */
    uint64_t n_ended;                    /* rows that came back so since it was last given something or made a result */
    const job *asked_job; uint32_t asked_pins; bool asked_serves;    /* worker_serves' last answer; asked_job NULL: none */
    job_id *announced; size_t n_announced, announced_capacity;       /* owned; JOB was sent on this connection */
    uint64_t n_samples;
    uint64_t answer_turn; size_t answer_at;      /* the ANSWER under construction: valid in this turn of the list */
} worker;

/* Pieces of one result that came so far. */
typedef struct partial {
    struct partial *next;
    row_index row;
    uint32_t sample, n_pieces, n_have;
    coord_body *pieces;                  /* owned [n_pieces]; n_have are filled */
} partial;

typedef struct { uint32_t row; uint16_t sample; bool is_gone; } lease_sample;

typedef struct lease {
    lease_id id;
    job *job;                            /* borrowed; an open one */
    worker_id worker;
    int64_t deadline_ms, granted_ms;
    int64_t progress_limit_ms;           /* doubled for each stall of a row in it */
    lease_sample *samples;               /* owned [n_samples], by row, then sample */
    uint32_t n_samples, n_left;
    uint64_t cost_left;
    uint64_t line_bytes;                 /* of all its rows, also of those that are done */
    partial *partials;                   /* owned list */
    uint64_t partial_bytes;              /* in them */
    size_t at;                           /* in coord.leases */
} lease;

/* A detokenizer table of one model, kept for the jobs that will be pinned to it. */
typedef struct { char *fingerprint; coord_body body; bool is_here, was_asked; int64_t asked_ms; } detok_entry;

struct coord {
    coord_options options;
    job **jobs; size_t n_jobs, jobs_capacity;            /* owned, in submit order */
    job **open; size_t n_open, open_capacity;            /* those of them that are open, in the same order */
    worker **workers; size_t n_workers, workers_capacity;    /* owned, in order of arrival */
    lease **leases; size_t n_leases, leases_capacity;    /* owned, in no order */
    id_map job_of, worker_of, lease_of;
    detok_entry *detoks; size_t n_detoks, detoks_capacity;   /* owned */
    uint64_t next_lease;
    bool is_draining, drain, is_disk_full;
    char disk_text[480];
    uint64_t fleet_version;              /* counts changes of who may work */
    lease_item *shard_items;             /* owned [GRANT_ITEMS_MAX]; of the shard under construction */
    bool must_grant_graders;             /* samples were committed that graders wait for */
    bool must_grant_all;                 /* rows or workers changed so that others than the speaker may get work */
    uint64_t partial_bytes, most_partial_bytes;          /* of all leases: now, and at most so far */
    uint64_t next_turn; size_t next_at;  /* the NEXT_LEASE action of this turn */
    int64_t now_ms;                      /* of the event being stepped */
    action_list *out;                    /* of the event being stepped */
};

/* Memory that must be there (coord.h, Memory). */
void *coord_alloc(size_t n, size_t size);                /* zeroed */
void *coord_grow(void *array, size_t *capacity, size_t count, size_t size);  /* room for one more */
char *coord_copy(wire_str s);

/* action_list.c */
action *action_add(action_array *array, action_type type);
const char *action_text(action_list *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t *action_numbers(action_list *list, size_t n);
action *send_to(coord *c, worker_id to, wire_type type, bool after_sync);
void send_release(coord *c, coord_body body);
void send_note(coord *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void send_answer(coord *c, worker_id to, job_id of_job, lease_id of_lease, uint64_t row, uint64_t sample, wire_fate fate);
void send_revoke(coord *c, worker_id to, lease_id ended);                    /* the whole lease */
void send_revoke_row(coord *c, worker_id to, lease_id of_lease, row_index row, uint32_t sample);     /* WIRE_WHOLE_ROW: all of it */

/* lease_table.c: none of these sends anything but LEASE_END, LEASE_SAVE and releases of partial results. */
lease *lease_find(const coord *c, lease_id id);
/* Holds what is free of the items, which ascend by row and sample; may_copy: also what one lease of another worker holds. NULL when nothing is. */
lease *lease_add(coord *c, lease_id id, job *j, worker_id worker, const lease_item *items, uint32_t n_items, bool may_copy);
lease *lease_other(const coord *c, const job *j, row_index row, uint32_t sample, const lease *except);       /* a lease that holds the sample; NULL: none */
bool   lease_holds(const lease *l, row_index row, uint32_t sample);
bool   lease_holds_row(const lease *l, row_index row);
bool   lease_is_grading(const lease *l);                         /* of grade rows; else it has none */
bool   lease_is_only(const lease *l, row_index row);             /* something of the row waits again when the lease ends */
void   lease_drop_sample(coord *c, lease *l, row_index row, uint32_t sample);    /* committed: no longer held, not waiting */
void   lease_release_sample(coord *c, lease *l, row_index row, uint32_t sample); /* waits again */
void   lease_release_row(coord *c, lease *l, row_index row);
bool   lease_settle(coord *c, lease *l, bool has_changed);       /* true: it was empty and is gone. has_changed: else what is left is saved */
void   lease_end(coord *c, lease *l);                            /* all that is left waits again; l is gone */
void   lease_save(coord *c, const lease *l);
bool   lease_next_row(const lease *l, uint32_t *at, row_index *row);             /* rows still held, ascending; *at starts at 0 */
void   partial_drop(coord *c, lease *l, row_index row, uint32_t sample);

/* coord_job.c */
job *job_find(const coord *c, job_id id);
fl_status job_add(coord *c, const coord_job *spec, row_table **rows, fl_err *err);
fl_status job_remove(coord *c, job_id id, fl_err *err);          /* a closed one */
void job_close(coord *c, job *j, ledger_cause cause);
void job_settle(coord *c, job *j);                               /* closes it when no row is open */
void job_pin(coord *c, job *j, const worker *w);
void job_fail_row(coord *c, job *j, row_index row, lease_id by, fl_row_error code, const char *text, size_t n_text);   /* takes it out of all leases; `by` is the caller's to settle */
void job_retry_row(coord *c, job *j, row_index row);             /* its lease ended without it: counts, pauses the job after too many */
void job_free(job *j);

/* coord_worker.c */
worker *worker_find(const coord *c, worker_id id);
void worker_message(coord *c, worker_id id, const wire_msg *msg, coord_body body);
void worker_gone(coord *c, worker *w);                           /* its leases end, it is forgotten */
void worker_leases_end(coord *c, worker_id id, const char *why);
void workers_review(coord *c);
void lease_lost(coord *c, lease *l, bool is_stall);              /* deadline or progress: rows are requeued, the worker is told */
typedef enum { WORKER_FITS, WORKER_OTHER_STAGE, WORKER_OTHER_MODEL, WORKER_OTHER_FILES, WORKER_OTHER_NUMERICS } worker_fit;
worker_fit worker_fits(const worker *w, const job *j);
bool worker_serves(const worker *w, const job *j, const char **why, action_list *list);  /* model and pin fit; *why (list may be NULL) in the arena */
bool worker_can_serve(worker *w, const job *j);                  /* the same, remembered for one job */
bool worker_has_detok(const coord *c, const worker *w, const job *j);
detok_entry *detok_find(coord *c, const char *fingerprint);
void worker_free(worker *w);

/* coord_result.c */
void result_arrived(coord *c, worker_id worker, const wire_result *m, coord_body body);
void row_error_arrived(coord *c, worker_id worker, const wire_row_error *m);

/* coord_blame.c */
uint64_t rows_together(const coord *c, worker_id id);            /* how many rows the worker's engine had when it ended: what it holds and n_ended */
void worker_ended(worker *w, uint64_t n_rows, bool is_stall);      /* its engine did, or stood still, under these rows of a lease, which is the caller's */
void row_suspect(coord *c, job *j, row_index row, const lease *by, uint64_t n_together);     /* its group is smaller than n_together from now on (row_table_group): it leaves all leases but `by`, which is the caller's to settle */
void row_note_end(coord *c, job *j, row_index row, const worker *w, bool was_alone, wire_str last_words);     /* keeps what was seen; before row_crashed counts it */
void row_crashed(coord *c, job *j, row_index row);               /* while it ran alone: counts, quarantines after ROW_CRASHES_MAX */

/* coord_limits.c */
void job_check_limits(coord *c, job *j);                         /* of an open job; may close it */

/* coord_grant.c */
uint64_t row_line_bytes(const coord *c, const job *j, row_index row);
void grant_worker(coord *c, worker *w);
void grant_all(coord *c);
void grant_graders(coord *c);
bool grant_possible(const coord *c, const job *j, const worker *w);     /* could this worker take something of what waits? */

#endif
