/* sim.h - one schedule of the simulator: the real coordinator core and the real ledger format, stub workers, a lossy network and a
 * disk that loses what was not synced, on virtual time and all from one seed. struct sim is the one to read first.
 * Files     sim_test.c (arguments, processes, coverage), sim_schedule.c (one schedule), sim_world.c (time, random numbers, network), sim_disk.c (ledgers and
 *           journal), sim_shell.c (the coordinator process: turns, crashes, restarts), sim_client.c (submit, cancel, expiry, retry, delete, outputs), sim_worker.c
 *           (stub workers), sim_history.c (what must hold, step by step), sim_audit.c (what must hold at the end, and what status says). mutants.py breaks the core and
 *           the ledger in ways that must be found.
 * Model     a message is lost only together with its connection, as with ZeroMQ; then both sides notice late or, for a coordinator that restarted, not
 *           at all. Messages of one connection arrive in order, but for a few that are repeated or overtaken.
 * Schedule  3 to 6 workers, 2 or 3 jobs of 40 to 60 rows with n 1 to 4, at least SIM_FAULTS_MIN faults. Some jobs are graded: then there are 2 workers more, which grade,
 *           and each row has its grade row behind all rows (row_table.h), which is a row like others here.
 * Threads   one. */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include "coordinator/coord.h"
#include "coordinator/ledger_record.h"

#define SIM_BEAT_MS 1000
#define SIM_TERM_MS 6000
#define SIM_PROGRESS_MS 30000
#define SIM_COPY_MS 2000
#define SIM_SEGMENT_BYTES 3000           /* small, so that ledgers roll */
#define SIM_WORKERS_MAX 8
#define SIM_GRADERS 2
#define SIM_JOBS_MAX 3
#define SIM_BASE_ROWS_MAX 60
#define SIM_ROWS_MAX (2 * SIM_BASE_ROWS_MAX)     /* with the grade rows */
#define SIM_N_MAX 4
#define SIM_WORDS ((SIM_ROWS_MAX * SIM_N_MAX + 63) / 64)
#define SIM_FAULTS_MIN 5
#define SIM_POISONED_MAX 7               /* ends by poison that a row may meet among others: once with whatever was there, then in groups of its job's 60 rows, of 32, 16, 8, 4 and 2 */
#define SIM_RETRIES_MAX 2                /* of a job, so that schedules end */

/* Everything that can go wrong, counted. */
#define SIM_FAULTS(X) \
    X(CRASH_BEFORE_WRITE) X(CRASH_BEFORE_SYNC) X(CRASH_AFTER_SYNC) X(CRASH_AFTER_JOURNAL) X(CRASH_AMID_SENDS) X(CRASH_IN_RESTART) X(CRASH_AT_ROLL) X(CRASH_AT_CLOSE) \
    X(CRASH_IN_INGEST) X(CRASH_AT_RENAME) X(CRASH_IN_RETRY) X(CRASH_IN_DELETE) X(TORN_WRITE) X(LOST_WRITE) X(DISK_FULL) X(SLOW_DISK) X(COORDINATOR_DRAINED) X(WORKER_KILLED) \
    X(WORKER_KILL_SEEN) X(WORKER_PREEMPTED) X(ENGINE_KILLED) X(ENGINE_POISONED) X(ENGINE_STALLED) X(NO_ROOM) X(LINK_CUT) X(PARTITION) X(LINK_CUT_UNSEEN) X(MESSAGE_REPEATED) \
    X(MESSAGE_OVERTAKEN) X(MESSAGE_LATE) X(RESULT_INVALID) X(OTHER_NUMERICS) X(UNREACHABLE) X(CLOCK_JUMP)
/* Messages in both directions, and what rows, leases and jobs went through. */
#define SIM_STATES(X) \
    X(HELLO) X(BEAT) X(DETOK) X(RESULT) X(ROW_ERROR) X(HANDBACK) X(BYE) X(WELCOME) X(JOB) X(GRANT) X(BEAT_BACK) X(ANSWER) X(REVOKE_LEASE) X(REVOKE_ROW) X(REVOKE_SAMPLE) X(STOP) \
    X(SAY_HELLO) X(RESULT_IN_PIECES) X(FATE_COMMITTED) X(FATE_DUPLICATE) X(FATE_STALE) X(FATE_REFUSED) \
    X(WAITS_TO_HELD) X(HELD_TO_TWICE) X(HELD_TO_WAITS) X(TWICE_TO_HELD) X(HELD_TO_DONE) X(TWICE_TO_DONE) X(WAITS_TO_FAILED) X(HELD_TO_FAILED) X(TWICE_TO_FAILED) X(DONE_TO_FAILED) \
    X(ROW_SUSPECT) X(SUSPECTS_TOGETHER) X(SUSPECTS_HALVED) X(SUSPECT_ALONE) X(GROUPS_AT_ONCE) X(SUSPECT_DONE) X(CRASH_ALONE) X(QUARANTINED) X(TIMEOUT_QUEUE) X(TIMEOUT_RUN) X(TIMEOUT_TOTAL) \
    X(LEASE_GRANTED) X(LEASE_COPY) X(COPY_OF_WAITING) X(LEASE_RENEWED) X(LEASE_RESTORED) X(LEASE_RESTORED_TWICE) X(LEASE_SHRUNK) X(LEASE_FINISHED) X(LEASE_LEFT_BY_COPY) X(LEASE_ROW_FAILED) X(LEASE_RAN_OUT) \
    X(LEASE_STALLED) X(LEASE_SILENT) X(LEASE_HANDED_BACK) X(LEASE_NOT_PRESENTED) X(LEASE_WORKER_DIED) X(LEASE_BYE) X(LEASE_JOB_CLOSED) X(LEASE_NOT_RESTORED) \
    X(JOB_COMPLETED) X(JOB_CANCELLED) X(JOB_EXPIRED) X(JOB_RETRIED) X(JOB_DELETED) X(CANCEL_RACES_EXPIRY) X(CANCEL_ON_FULL_DISK) X(CANCEL_WHILE_DRAINING) X(EXPIRED_AT_RESTART) \
    X(GRADE_GRANTED) X(GRADE_COPY) X(GRADE_DONE) X(GRADE_TWICE_TO_DONE) X(GRADE_FAILED) X(GRADER_ENDED) X(GRADER_IDLES) \
    X(SEGMENT_ROLL) X(OUTPUTS_NAMED)
#define SIM_HITS(X) SIM_FAULTS(X) SIM_STATES(X)
typedef enum {
#define SIM_HIT_ENUM(name) SIM_##name,
    SIM_FAULTS(SIM_HIT_ENUM)
    SIM_FAULT_COUNT,                     /* those before it are faults; the states begin here */
    SIM_FAULT_LAST = SIM_FAULT_COUNT - 1,
    SIM_STATES(SIM_HIT_ENUM)
#undef SIM_HIT_ENUM
    SIM_HIT_COUNT
} sim_hit_kind;

typedef enum { SIM_ROW_GOOD, SIM_ROW_BAD_LINE, SIM_ROW_ERROR_ROW, SIM_ROW_POISON, SIM_ROW_LARGE, SIM_ROW_GRADE, SIM_ROW_GRADE_ERROR } sim_row_kind;
/* Bit s = sample s; durable: in the synced ledger; appended: the core said so, perhaps not yet durable. */
typedef struct {
    uint8_t n, kind;
    bool has_error, is_error_appended;
    bool is_suspect, was_held;           /* since the coordinator started */
    uint8_t n_poisoned, n_crashed;       /* engines that ended under it and others by poison; that crashed under it alone: since the coordinator started */
    uint32_t group;                      /* of a suspect: so many may run together, itself counted */
    uint32_t durable, appended;
} sim_row;

typedef struct { uint8_t *data; size_t n, capacity, synced; } sim_segment;
typedef struct {
    sim_segment *segments; uint32_t n_segments;
    uint64_t chain, n_frames, marked_chain, marked_frames;
    bool is_dirty;
} sim_ledger;

/* What the core counts, counted by the history since the coordinator started. */
typedef struct { uint64_t granted, copied, duplicates, duplicate_tokens, stale, refused, timeouts; } sim_counts;

typedef struct {
    job_id id;
    sim_row rows[SIM_ROWS_MAX]; uint32_t n_base, n_rows;         /* n_rows: with the grade rows of a graded job */
    row_limits limits;
    int64_t submit_ms, cancel_ms, expire_ms, added_ms;   /* 0: never. added_ms: by the shell's clock */
    bool is_submitted, is_deleted, is_closed, is_close_appended;     /* closed: its closing record is synced */
    bool has_outputs;
    int n_retries;
    ledger_cause cause;                  /* of the closing record that was appended */
    job_state journal_state;
    sim_ledger ledger;
    sim_counts seen;
} sim_job;

/* A lease as the journal holds it, and as the history sees it: bit row * SIM_N_MAX + sample. is_group: of suspects. */
typedef struct { uint64_t id, worker; int64_t granted_ms; int job; bool is_copy, is_group; uint64_t bits[SIM_WORDS]; } sim_lease;
typedef struct { sim_lease *v; size_t n, capacity; } sim_lease_list;

/* A message under way, with copies of all it points to behind it. */
typedef struct { wire_msg msg; int slot; uint64_t worker, connection; uint8_t *body; size_t body_bytes; uint64_t memory[]; } sim_packet;

typedef enum { SIM_TO_COORDINATOR, SIM_TO_WORKER, SIM_POLL_WORKER, SIM_TURN, SIM_TICK, SIM_RESTART, SIM_START_WORKER, SIM_WORKER_DEATH_SEEN, SIM_MISCHIEF, SIM_CLIENT, SIM_OUTPUTS,
               SIM_STOPPED } sim_kind;
typedef struct { int64_t at; uint64_t order; sim_kind kind; int slot; uint64_t number; sim_packet *packet; } sim_item;

typedef enum { TASK_WAITING, TASK_RUNNING, TASK_DONE } task_state;
typedef struct { uint64_t lease, job, row; uint32_t sample; task_state state; int64_t done_ms; bool is_row_error; } sim_task;
typedef struct {
    int slot;
    bool is_alive, is_draining, knows_link;      /* knows_link: it believes to be connected */
    bool is_disordered;                  /* a message of it was repeated or overtaken: it may run rows of leases that are over */
    uint64_t id, connection;             /* connection 0: cut */
    uint32_t context; bool has_other_numerics, grades;
    int n_parallel;
    uint32_t slowness;                   /* a sample takes up to so many ms */
    int64_t heard_ms, beat_ms, stalled_until_ms, cut_until_ms, retry_ms;
    uint64_t tokens;
    uint64_t jobs[SIM_JOBS_MAX]; int n_jobs;
    sim_task *tasks; size_t n_tasks, tasks_capacity;
    int64_t sent_ahead_ms[2];            /* when the last message of each direction arrives */
} sim_worker;

typedef enum { CLIENT_SUBMIT, CLIENT_CANCEL, CLIENT_RETRY, CLIENT_DELETE } sim_wish;

typedef struct sim {
    uint64_t seed, random;
    int64_t now_ms, calm_ms;             /* after calm_ms nothing goes wrong any more */
    int64_t jump_ms;                     /* the coordinator's clock runs ahead by this */
    bool is_verbose;
    sim_item *heap; size_t n_heap, heap_capacity;
    uint64_t order, n_ids;
    uint64_t hits[SIM_HIT_COUNT];

    sim_job jobs[SIM_JOBS_MAX]; int n_jobs;
    sim_worker workers[SIM_WORKERS_MAX]; int n_workers;

    /* the coordinator process */
    bool is_up, is_draining, turn_is_set;
    coord *core; action_list actions;
    event *inbox; sim_packet **inbox_packets; size_t n_inbox, inbox_capacity;
    int64_t disk_full_until_ms, slow_disk_until_ms;
    bool is_kept;                        /* actions hold an unfinished turn of a full disk */
    size_t turn_sends;                   /* sends that older turns left in the actions */
    long n_bodies;                       /* bodies in the core's or the actions' hands */

    /* the journal's durable content */
    uint64_t next_lease;
    sim_lease_list leases;

    /* the history */
    sim_lease_list live;
    uint64_t highest_lease;
    wire_fate expected, may_refuse;      /* of the message being stepped; 0: no answer; WIRE_REFUSED as well when may_refuse */
    size_t n_answers;                    /* in this turn, before it */
    uint64_t stalled_lease;              /* that the step being seen lost so */
    char violation[512];
} sim;

/* sim_schedule.c: one schedule. False: it broke a rule, which is in `violation`. */
bool sim_play(uint64_t seed, bool is_verbose, uint64_t hits[SIM_HIT_COUNT], char violation[512]);

/* sim_world.c */
uint64_t sim_random(sim *s);
uint32_t sim_below(sim *s, uint32_t n);                  /* 0 .. n-1 */
bool     sim_chance(sim *s, uint32_t in_1000);
bool     sim_trouble(sim *s, uint32_t in_1000);          /* the same, but never after calm_ms */
const char *sim_hit_name(sim_hit_kind kind);
void     sim_hit(sim *s, sim_hit_kind kind);
uint64_t sim_faults(const sim *s);                       /* so far, of all kinds */
void     sim_at(sim *s, int64_t at, sim_kind kind, int slot, uint64_t number, sim_packet *packet);
bool     sim_next(sim *s, sim_item *item);
void     sim_packet_free(sim_packet *p);
void     sim_send(sim *s, sim_worker *w, bool to_coordinator, const wire_msg *msg, const uint8_t *body, size_t body_bytes);
void     sim_log(sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
uint32_t sim_result(const sim_job *j, uint64_t row, uint32_t sample, uint8_t body[64]);  /* the one right answer; returns its size */
uint32_t sim_tokens(const sim_job *j, uint64_t row, uint32_t sample);
void    *sim_grow(void *array, size_t *capacity, size_t count, size_t size);
int      sim_job_index(uint64_t id);
sim_job *sim_job_of(sim *s, uint64_t id);
static inline bool sim_is_grade(const sim_job *j, uint64_t row) { return row >= j->n_base; }
static inline uint64_t sim_graded(const sim_job *j, uint64_t row) { return sim_is_grade(j, row) ? row - j->n_base : row; }
static inline bool sim_bit(const uint64_t *bits, uint64_t row, uint32_t sample) { uint64_t i = row * SIM_N_MAX + sample; return bits[i / 64] >> (i % 64) & 1; }
static inline void sim_bit_set(uint64_t *bits, uint64_t row, uint32_t sample) { uint64_t i = row * SIM_N_MAX + sample; bits[i / 64] |= (uint64_t)1 << (i % 64); }
static inline void sim_bit_clear(uint64_t *bits, uint64_t row, uint32_t sample) { uint64_t i = row * SIM_N_MAX + sample; bits[i / 64] &= ~((uint64_t)1 << (i % 64)); }

/* sim_disk.c */
bool sim_ledger_append(sim *s, sim_job *j, const ledger_record *record);     /* true: it began a new segment */
void sim_ledger_mark(sim_job *j);
void sim_ledger_sync(sim_job *j);                        /* and what is durable now is noted in the rows */
void sim_ledger_cut_back(sim_job *j);                    /* a full disk */
void sim_ledger_crash(sim *s, sim_job *j);               /* some of what was not synced is lost */
bool sim_ledger_walk(sim *s, sim_job *j, ledger_cursor *cursor, ledger_visit visit, void *context);  /* cuts the tail as ledger_open does */
void sim_ledger_free(sim_ledger *l);
void sim_lease_bits(uint64_t bits[SIM_WORDS], const lease_item *items, uint32_t n_items);
uint32_t sim_lease_items(const sim_lease *l, lease_item items[SIM_ROWS_MAX * SIM_N_MAX]);
void sim_lease_save(sim_lease_list *list, const action *a);
void sim_lease_end(sim_lease_list *list, uint64_t id);
sim_lease *sim_lease_find(sim_lease_list *list, uint64_t id);
void sim_journal_perform(sim *s, const action *a);

/* sim_shell.c */
void sim_shell_start(sim *s);
void sim_shell_stop(sim *s);                             /* at the end of the schedule */
void sim_shell_take(sim *s, const event *ev, sim_packet *packet);
void sim_shell_step(sim *s, const event *ev);            /* now, into the turn that is being collected */
void sim_shell_turn(sim *s);
void sim_shell_perform(sim *s);                          /* what was collected */
bool sim_shell_crash(sim *s, sim_hit_kind fault, uint32_t in_100000);        /* it may die here; true: it did */
void sim_shell_die(sim *s);
bool sim_shell_add_job(sim *s, sim_job *j);              /* rebuilds it from its ledger */
int64_t sim_shell_now(const sim *s);

/* sim_actions.c: a full disk. The appends of a job that were committed go, then the sends that wait for no sync (they are performed before). */
void sim_actions_drop_appends(action_list *list, job_id done);
void sim_actions_keep(action_list *list);

/* sim_client.c */
void sim_client(sim *s, sim_job *j, sim_wish wish);
void sim_client_closed(sim *s, sim_job *j);              /* its closing record is durable: outputs, and what a user may do next */
void sim_client_outputs(sim *s, sim_job *j);
void sim_client_expire(sim *s, bool at_restart);

/* sim_worker.c */
void sim_worker_start(sim *s, sim_worker *w);
void sim_worker_poll(sim *s, sim_worker *w);
void sim_worker_receive(sim *s, sim_worker *w, const wire_msg *msg);
void sim_worker_kill(sim *s, sim_worker *w);
void sim_worker_cut(sim *s, sim_worker *w, int64_t for_ms, bool is_seen);
void sim_worker_preempt(sim *s, sim_worker *w);

/* sim_history.c */
void sim_violation(sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_see_before(sim *s, const event *ev);            /* what the core should answer to it */
void sim_see_step(sim *s, const event *ev, size_t n_appends, size_t n_journal, size_t n_sends);  /* what the event added to the actions, counted from these */
void sim_see_send(sim *s, const action *a);              /* at the moment it leaves */
void sim_see_restart(sim *s);                            /* what the core should know now: the durable state */
void sim_see_job(sim *s, sim_job *j);                    /* a job came to the core */

/* sim_audit.c */
void sim_audit_counts(sim *s);                           /* what status says now */
void sim_audit_job(sim *s, sim_job *j);                  /* a closed job's ledger, read as its output files are made */
void sim_audit_end(sim *s);

#endif
