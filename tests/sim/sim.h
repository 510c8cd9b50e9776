/* sim.h - one schedule of the simulator: the real coordinator core and the real ledger format, stub workers, a lossy network and a
 * disk that loses what was not synced, on virtual time and all from one seed. struct sim is the one to read first.
 * Files     sim_test.c (arguments, schedules, coverage), sim_world.c (time, random numbers, network), sim_disk.c (ledgers and journal),
 *           sim_shell.c (the coordinator process: turns, crashes, restarts), sim_worker.c (stub workers), sim_history.c (what must hold).
 * Model     a message is lost only together with its connection, as with ZeroMQ; then both sides notice late or, for a coordinator that restarted, not
 *           at all. Messages of one connection arrive in order, but for a few that are repeated or overtaken.
 * Threads   one. */
#ifndef TESTS_SIM_H
#define TESTS_SIM_H

#include "coordinator/coord.h"
#include "coordinator/ledger_record.h"

#define SIM_BEAT_MS 1000
#define SIM_TERM_MS 6000
#define SIM_PROGRESS_MS 30000
#define SIM_SEGMENT_BYTES 3000           /* small, so that ledgers roll */
#define SIM_WORKERS_MAX 6
#define SIM_JOBS_MAX 3
#define SIM_TIME_MAX (4 * 3600 * 1000)   /* a schedule that is not done by then hangs */

/* Everything that can go wrong, counted; a run of many schedules must hit each. */
#define SIM_FAULTS(X) \
    X(CRASH_BEFORE_APPEND) X(CRASH_BEFORE_SYNC) X(CRASH_TORN_TAIL) X(CRASH_LOST_PAGE) X(CRASH_AFTER_SYNC) X(CRASH_AFTER_JOURNAL) X(CRASH_AMID_SENDS) \
    X(CRASH_IN_RESTART) X(SEGMENT_ROLL) X(DISK_FULL) X(SLOW_DISK) X(WORKER_KILLED) X(WORKER_KILL_SEEN) X(WORKER_DRAINED) X(ENGINE_KILLED) X(ENGINE_POISONED) \
    X(POISON_ALONE) X(QUARANTINED) X(ENGINE_STALLED) X(LEASE_STALL_LOST) X(LEASE_EXPIRED) X(NO_ROOM) X(LINK_CUT) X(PARTITION) X(LINK_CUT_UNSEEN) X(MESSAGE_REPEATED) \
    X(MESSAGE_OVERTAKEN) X(MESSAGE_LATE) X(RESULT_INVALID) X(RESULT_IN_PIECES) X(ROW_ERROR) X(CANCELLED) X(OTHER_NUMERICS) X(FATE_COMMITTED) \
    X(FATE_DUPLICATE) X(FATE_STALE) X(FATE_REFUSED) X(RESTORED_LEASE) X(SAY_HELLO) X(UNREACHABLE) X(CLOCK_JUMP)
typedef enum {
#define SIM_FAULT_ENUM(name) SIM_##name,
    SIM_FAULTS(SIM_FAULT_ENUM)
#undef SIM_FAULT_ENUM
    SIM_FAULT_COUNT
} sim_fault;

typedef enum { SIM_ROW_GOOD, SIM_ROW_BAD_LINE, SIM_ROW_ERROR_ROW, SIM_ROW_POISON, SIM_ROW_LARGE } sim_row_kind;
/* Bit s = sample s; durable: in the synced ledger; appended: the core said so, perhaps not yet durable. */
typedef struct { uint8_t n, kind; bool has_error, is_error_appended; uint32_t durable, appended; } sim_row;

typedef struct { uint8_t *data; size_t n, capacity, synced; } sim_segment;
typedef struct {
    sim_segment *segments; uint32_t n_segments;
    uint64_t chain, n_frames, marked_chain, marked_frames;
    bool is_dirty;
} sim_ledger;

typedef struct {
    job_id id;
    sim_row *rows; uint32_t n_rows;
    int64_t submit_ms, cancel_ms;        /* cancel 0: never */
    bool is_submitted, is_closed, is_close_appended;     /* closed: its closing record is synced */
    job_state journal_state;
    sim_ledger ledger;
} sim_job;

/* A lease as journal rows hold it, and as the history sees it. */
typedef struct { uint64_t id, job, worker; lease_item *items; uint32_t n_items; } sim_lease;
typedef struct { sim_lease *v; size_t n, capacity; } sim_lease_list;

/* A message under way, with copies of all it points to. */
typedef struct { wire_msg msg; int slot; uint64_t worker, connection; uint8_t *body; size_t body_bytes; uint64_t *memory; } sim_packet;

typedef enum { SIM_TO_COORDINATOR, SIM_TO_WORKER, SIM_POLL_WORKER, SIM_TURN, SIM_TICK, SIM_RESTART, SIM_START_WORKER, SIM_WORKER_DEATH_SEEN, SIM_MISCHIEF, SIM_CLIENT } sim_kind;
typedef struct { int64_t at; uint64_t order; sim_kind kind; int slot; uint64_t number; sim_packet *packet; } sim_item;

typedef enum { TASK_WAITING, TASK_RUNNING, TASK_DONE } task_state;
typedef struct { uint64_t lease, job, row; uint32_t sample; task_state state; int64_t done_ms; bool is_row_error; } sim_task;
typedef struct {
    int slot;
    bool is_alive, is_draining, knows_link;      /* knows_link: it believes to be connected */
    uint64_t id, connection;             /* connection 0: cut */
    uint32_t context; bool has_other_numerics;
    int n_parallel;
    int64_t heard_ms, beat_ms, stalled_until_ms, cut_until_ms, retry_ms;
    uint64_t tokens;
    uint64_t jobs[SIM_JOBS_MAX]; int n_jobs;
    sim_task *tasks; size_t n_tasks, tasks_capacity;
    int64_t sent_ahead_ms[2];            /* when the last message of each direction arrives */
} sim_worker;

typedef struct sim {
    uint64_t seed, random;
    int64_t now_ms, calm_ms;             /* after calm_ms nothing goes wrong any more */
    int64_t jump_ms;                     /* the coordinator's clock runs ahead by this */
    bool is_verbose;
    sim_item *heap; size_t n_heap, heap_capacity;
    uint64_t order, n_ids;
    uint64_t hits[SIM_FAULT_COUNT];

    sim_job jobs[SIM_JOBS_MAX]; int n_jobs;
    sim_worker workers[SIM_WORKERS_MAX]; int n_workers;

    /* the coordinator process */
    bool is_up, turn_is_set;
    coord *core; action_list actions;
    event *inbox; sim_packet **inbox_packets; size_t n_inbox, inbox_capacity;
    int64_t disk_full_until_ms, slow_disk_until_ms;
    bool is_kept;                        /* actions hold an unfinished turn of a full disk */
    long n_bodies;                       /* bodies in the core's or the actions' hands */

    /* the journal's durable content */
    uint64_t next_lease;
    sim_lease_list leases;

    /* the history */
    sim_lease_list live;
    uint64_t highest_lease;
    char violation[512];
} sim;

/* sim_world.c */
uint64_t sim_random(sim *s);
uint32_t sim_below(sim *s, uint32_t n);                  /* 0 .. n-1 */
bool     sim_chance(sim *s, uint32_t in_1000);
bool     sim_trouble(sim *s, uint32_t in_1000);          /* the same, but never after calm_ms */
void     sim_hit(sim *s, sim_fault fault);
void     sim_at(sim *s, int64_t at, sim_kind kind, int slot, uint64_t number, sim_packet *packet);
bool     sim_next(sim *s, sim_item *item);
sim_packet *sim_packet_new(const wire_msg *msg, const uint8_t *body, size_t body_bytes);
void     sim_packet_free(sim_packet *p);
void     sim_send(sim *s, sim_worker *w, bool to_coordinator, const wire_msg *msg, const uint8_t *body, size_t body_bytes);
void     sim_log(sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t sim_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d);
uint32_t sim_result(const sim_job *j, uint64_t row, uint32_t sample, uint8_t body[64]);  /* the one right answer; returns its size */
uint32_t sim_tokens(const sim_job *j, uint64_t row, uint32_t sample);
void    *sim_grow(void *array, size_t *capacity, size_t count, size_t size);
sim_job *sim_job_of(sim *s, uint64_t id);

/* sim_disk.c */
void sim_ledger_append(sim *s, sim_job *j, const ledger_record *record);
void sim_ledger_mark(sim *s, sim_job *j);
void sim_ledger_sync(sim *s, sim_job *j);                /* and what is durable now is noted in the rows */
void sim_ledger_cut_back(sim_job *j);                    /* a full disk */
void sim_ledger_crash(sim *s, sim_job *j);               /* some of what was not synced is lost */
bool sim_ledger_walk(sim *s, sim_job *j, ledger_cursor *cursor, ledger_visit visit, void *context);  /* cuts the tail as ledger_open does */
void sim_ledger_free(sim_ledger *l);
void sim_lease_save(sim_lease_list *list, const action *a);
void sim_lease_end(sim_lease_list *list, uint64_t id);
sim_lease *sim_lease_find(sim_lease_list *list, uint64_t id);
void sim_leases_free(sim_lease_list *list);
void sim_journal_perform(sim *s, const action *a);

/* sim_shell.c */
void sim_shell_start(sim *s);
void sim_shell_stop(sim *s);                             /* at the end of the schedule */
void sim_shell_take(sim *s, const event *ev, sim_packet *packet);
void sim_shell_turn(sim *s);
void sim_shell_crash(sim *s);
void sim_submit(sim *s, sim_job *j);

/* sim_worker.c */
void sim_worker_start(sim *s, sim_worker *w);
void sim_worker_poll(sim *s, sim_worker *w);
void sim_worker_receive(sim *s, sim_worker *w, const wire_msg *msg);
void sim_worker_kill(sim *s, sim_worker *w);
void sim_worker_cut(sim *s, sim_worker *w, int64_t for_ms, bool is_seen);

/* sim_history.c */
void sim_violation(sim *s, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_see_step(sim *s, size_t n_appends, size_t n_journal, size_t n_sends);   /* what one event added to the actions, counted from these */
void sim_see_send(sim *s, const action *a);              /* at the moment it leaves */
void sim_see_restart(sim *s);                            /* what the core should know now: the durable state */
void sim_see_end(sim *s);

#endif
