/* torture_fleet.h - the processes of `torture`: one coordinator, its workers and their engines, all of them really there; started again after whatever happened to them, and every end that
 * nobody asked for is a finding.
 * Threads  one; only processes that it started, and the engines below its workers, are ever signalled. */
#ifndef COORDINATOR_TORTURE_FLEET_H
#define COORDINATOR_TORTURE_FLEET_H

#include <stdbool.h>
#include <stdint.h>
#include "coordinator/torture_lab.h"

#define TORTURE_WORKERS_MAX 64
#define TORTURE_LEAVING_MAX 64

/* How a process may end now. */
typedef enum { END_NEVER, END_KILLED, END_DRAINED } torture_end;

typedef struct {
    pid_t pid;                           /* 0: not running */
    int host;
    torture_end may_end;
    int64_t due_ms;                      /* pid 0: when to start it; draining: when it must have ended */
    int64_t continue_ms;                 /* stopped until then; 0 = not stopped */
} torture_process;

/* A command of ours, such as `list`, that runs beside. */
typedef struct { pid_t pid; bool is_done; int status; char output[128], errors[128]; } torture_task;

typedef struct {
    torture_lab *lab;
    const char *model;                   /* borrowed */
    char worker_path[4096], endpoint[64], coordinator_log[128], worker_log[128];
    torture_process coordinator;
    torture_process workers[TORTURE_WORKERS_MAX]; int n_workers;
    torture_process leaving[TORTURE_LEAVING_MAX]; int n_leaving;         /* drain while others have their place */
    torture_task *tasks[4]; int n_tasks;         /* borrowed; those that run */
    uint64_t n_starts;                   /* of the coordinator */
    int64_t drained_ms;                  /* when a coordinator was told to drain last; workers end with it */
    bool may_lack_space;                 /* the disk is full, or was a moment ago */
    bool is_ending;                      /* nothing is started again */
    uint64_t n_worker_starts, n_no_space, n_drained;
} torture_fleet;

fl_status torture_fleet_open(torture_fleet *f, torture_lab *lab, int n_workers, const char *model, fl_err *err);

/* Collect the dead, start what is missing, let stopped ones go on. FL_CORRUPT: an end that nobody asked for, with the process's last words. */
fl_status torture_fleet_tend(torture_fleet *f, int64_t now_ms, fl_err *err);

/* Disturbances; false: there is nobody to disturb so right now. */
bool torture_kill_worker(torture_fleet *f, uint64_t choice, int64_t restart_ms);
bool torture_kill_engine(torture_fleet *f, uint64_t choice);
bool torture_stop_worker(torture_fleet *f, uint64_t choice, int64_t until_ms);
bool torture_drain_worker(torture_fleet *f, uint64_t choice, int64_t now_ms);
bool torture_kill_coordinator(torture_fleet *f, int64_t restart_ms);
bool torture_stop_coordinator(torture_fleet *f, int64_t until_ms);
bool torture_drain_coordinator(torture_fleet *f, int64_t now_ms);

/* Run this program beside, up to 4 at a time; its output is empty at first. */
fl_status torture_task_start(torture_fleet *f, torture_task *t, const char *name, char *const *argv, fl_err *err);

/* Drain everything and wait for it (at most a minute). FL_CORRUPT: something did not end well. */
fl_status torture_fleet_end(torture_fleet *f, fl_err *err);

/* Kill what still runs; how many processes were left that torture_fleet_end should have ended. */
int torture_fleet_close(torture_fleet *f);

#endif
