/* grader_state.h - what the grader's own files share: cells and checkers while they live. Read `candidate` first. */
#ifndef WORKER_GRADER_STATE_H
#define WORKER_GRADER_STATE_H

#include "worker/grade_cell.h"
#include "worker/grade_job.h"

typedef enum { CELL_EMPTY, CELL_STARTING, CELL_READY, CELL_RUNNING } cell_state;
typedef enum { STOP_NONE, STOP_CPU, STOP_IDLE, STOP_OUTPUT, STOP_MEMORY, STOP_CANCELLED } stop_reason;

typedef struct checker checker;
typedef struct {
    grade_cell cell;
    cell_state state;
    /* of one run, from dispatch to finish */
    grade_job *job;                          /* owned */
    checker *checker;                        /* borrowed, until it is done with this cell */
    stop_reason stop;
    int64_t run_ms, left_ms, end_ms;         /* when it was dispatched, when the checker was done with it, when it was gone; 0: not yet */
    uint64_t group_cpu_ms, cpu_ms;           /* what its group had used before; what it has used, as measured last */
    int64_t group_oom_kills;
    bool has_verdict, we_killed;
    char verdict[600];                       /* the checker's line */
    int checker_status, status;              /* wait statuses of the checker's child and of the cell */
} candidate;

typedef enum { CHECKER_EMPTY, CHECKER_STARTING, CHECKER_FREE, CHECKER_BUSY, CHECKER_ENDING } checker_state;

struct checker {
    grade_cell cell;
    checker_state state;
    candidate *candidate;                    /* borrowed; NULL: that one is gone already */
    int verdict_fd;                          /* -1 when its end was read */
    char line[600];
    size_t n_line;
    int64_t left_ms;                         /* when the candidate left it */
    bool has_base;
    uint64_t base_ms;                        /* CPU and waiting time when it was measured first with this sample */
};

struct grader {
    sandbox_kit kit;
    grade_limits limits;
    size_t n_slots, n_candidates;
    candidate *candidates;                   /* owned [n_candidates] */
    checker *checkers;                       /* owned [n_slots] */
    int checker_program_fd, candidate_program_fd;
    int epoll_fd, timer_fd;
    bool is_ticking;
    task_table *tasks;                       /* owned */
    grade_jobs waiting, alone, parked, results;      /* parked: their task is being measured */
    bool is_alone_turn, is_running_alone;
    int64_t alone_ms;                        /* when the first of `alone` came */
    size_t n_pending, n_start_failures;
    int64_t retry_ms, measured_ms;
    char why[sizeof ((fl_err *)0)->text];     /* the sentence of the last start that failed */
};

/* CPU time that a job may take. */
uint32_t grader_cpu_limit_ms(const grader *g, const grade_job *j);

/* The verdict of a cell that has ended, into its job's result. needs_more: plain data was not enough. (grade_judge.c) */
void grader_judge(const grader *g, candidate *c, bool *needs_more);

#endif
