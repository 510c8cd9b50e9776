#include "coordinator/torture_fleet.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/bench_process.h"
#include "coordinator/commands.h"
#include "coordinator/flags.h"
#include "coordinator/spawn.h"
#include "proto/clock.h"

#define LEASE_TERM_S "6"                 /* short, so that cuts and stops lose leases */
#define DRAIN_MS 90000                   /* a worker's 30 s and a coordinator's, on a busy machine */
#define DRAINED_MS 120000                /* after a coordinator was told to drain its workers may end: its time and theirs */
#define DRAINED_PAUSE_MS 1000            /* before one that ended by itself is started again */
#define TURN_MS 20
#define REAP_MS 5000                     /* for the engines of killed workers to follow them */

/* ---- starting ---- */

static fl_status start_coordinator(torture_fleet *f, fl_err *err)
{
    char *argv[] = { "tokenfleet", "coordinator", "--spool", f->lab->spool, "--bind", f->endpoint, "--lease-term", LEASE_TERM_S, NULL };
    torture_process p = { .host = -1 };
    fl_status st = bench_start(&p.pid, &(bench_program){ .argv = argv, .output = f->coordinator_log, .errors = f->coordinator_log, .net_fd = -1 }, err);
    if (st != FL_OK) return st;
    f->coordinator = p;
    f->n_starts++;
    return FL_OK;
}

static fl_status start_worker(torture_fleet *f, torture_process *w, fl_err *err)
{
    char endpoint[64];
    int host = w->host;
    snprintf(endpoint, sizeof endpoint, "tcp://127.0.0.1:%d", f->lab->relay.ports[host]);
    char *argv[] = { f->worker_path, "--connect", endpoint, "--model", (char *)(uintptr_t)f->model, "--threads", "1", NULL };
    *w = (torture_process){ .host = host };
    f->n_worker_starts++;
    return bench_start(&w->pid, &(bench_program){ .path = f->worker_path, .argv = argv, .output = f->worker_log, .errors = f->worker_log, .net_fd = f->lab->net_fds[host] }, err);
}

fl_status torture_fleet_open(torture_fleet *f, torture_lab *lab, int n_workers, const char *model, fl_err *err)
{
    *f = (torture_fleet){ .lab = lab, .model = model, .n_workers = n_workers, .drained_ms = -DRAINED_MS };
    snprintf(f->endpoint, sizeof f->endpoint, "tcp://127.0.0.1:%d", lab->port);
    snprintf(f->coordinator_log, sizeof f->coordinator_log, "%s/coordinator.log", lab->dir);
    snprintf(f->worker_log, sizeof f->worker_log, "%s/workers.log", lab->dir);
    for (int i = 0; i < n_workers; i++) f->workers[i].host = i % lab->n_hosts;
    return spawn_find_beside("tokenfleet-worker", f->worker_path, sizeof f->worker_path, err);
}

fl_status torture_task_start(torture_fleet *f, torture_task *t, const char *name, char *const *argv, fl_err *err)
{
    FL_ASSERT(f->n_tasks < (int)(sizeof f->tasks / sizeof *f->tasks) && t->pid == 0);
    *t = (torture_task){ 0 };
    snprintf(t->output, sizeof t->output, "%s/%s.out", f->lab->dir, name);
    snprintf(t->errors, sizeof t->errors, "%s/%s.err", f->lab->dir, name);
    unlink(t->output);
    unlink(t->errors);
    fl_status st = bench_start(&t->pid, &(bench_program){ .argv = argv, .output = t->output, .errors = t->errors, .net_fd = -1 }, err);
    if (st == FL_OK) f->tasks[f->n_tasks++] = t;
    return st;
}

/* ---- ends ---- */

static fl_status unasked(const char *who, const char *log, int status, fl_err *err)
{
    char last[300];
    bench_last_line(log, last, sizeof last);
    return fl_fail(err, FL_CORRUPT, "%s %s %d, which nobody asked for%s%s", who, WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), last[0] ? "; the last line of its log: " : "", last);
}

static bool ended_with(int status, int code)
{
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* SIGTERM met a process that was too young to catch it: it had taken nothing yet. */
static bool ended_unborn(torture_end may, int status)
{
    return may == END_DRAINED && WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM;
}

static fl_status worker_ended(torture_fleet *f, torture_process *w, int status, int64_t now_ms, fl_err *err)
{
    torture_end may = w->may_end;
    *w = (torture_process){ .host = w->host, .due_ms = w->due_ms };
    if (may == END_KILLED) return FL_OK;
    bool is_well = ended_with(status, ENDED_WELL) || ended_unborn(may, status);
    if (is_well && (may == END_DRAINED || now_ms - f->drained_ms < DRAINED_MS)) {
        f->n_drained++;
        w->due_ms = now_ms + DRAINED_PAUSE_MS;
        return FL_OK;
    }
    return unasked("a worker", f->worker_log, status, err);
}

static fl_status coordinator_ended(torture_fleet *f, int status, int64_t now_ms, fl_err *err)
{
    torture_process *c = &f->coordinator;
    torture_end may = c->may_end;
    *c = (torture_process){ .due_ms = c->due_ms };
    if (may == END_KILLED) return FL_OK;
    if (may == END_DRAINED && (ended_with(status, ENDED_WELL) || ended_with(status, ENDED_INCOMPLETE) || ended_unborn(may, status))) {
        f->n_drained++;
        c->due_ms = now_ms + DRAINED_PAUSE_MS;
        return FL_OK;
    }
    if (f->may_lack_space && ended_with(status, ENDED_INCOMPLETE)) {
        f->n_no_space++;
        c->due_ms = now_ms + DRAINED_PAUSE_MS;
        return FL_OK;
    }
    return unasked("the coordinator", f->coordinator_log, status, err);
}

/* One that we do not know is the engine of a worker that is dead. */
static fl_status note_end(torture_fleet *f, pid_t pid, int status, int64_t now_ms, fl_err *err)
{
    if (pid == f->coordinator.pid) return coordinator_ended(f, status, now_ms, err);
    for (int i = 0; i < f->n_workers; i++) {
        if (f->workers[i].pid == pid) return worker_ended(f, &f->workers[i], status, now_ms, err);
    }
    for (int i = 0; i < f->n_leaving; i++) {
        if (f->leaving[i].pid != pid) continue;
        torture_process w = f->leaving[i];
        f->leaving[i] = f->leaving[--f->n_leaving];
        return worker_ended(f, &w, status, now_ms, err);
    }
    for (int i = 0; i < f->n_tasks; i++) {
        torture_task *t = f->tasks[i];
        if (t->pid != pid) continue;
        t->pid = 0;
        t->is_done = true;
        t->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        f->tasks[i] = f->tasks[--f->n_tasks];
        break;
    }
    return pid == f->lab->relay.pid ? fl_fail(err, FL_CORRUPT, "the relay between workers and coordinator ended, which nobody asked for") : FL_OK;
}

static void let_go_on(torture_process *p, int64_t now_ms)
{
    if (!p->pid || !p->continue_ms || now_ms < p->continue_ms) return;
    kill(p->pid, SIGCONT);
    p->continue_ms = 0;
}

static fl_status check_drain(const torture_process *p, const char *who, int64_t now_ms, fl_err *err)
{
    return p->pid && p->may_end == END_DRAINED && now_ms > p->due_ms ? fl_fail(err, FL_CORRUPT, "%s did not end within %d s of its SIGTERM", who, DRAIN_MS / 1000) : FL_OK;
}

fl_status torture_fleet_tend(torture_fleet *f, int64_t now_ms, fl_err *err)
{
    fl_status st = FL_OK;
    int status;
    for (pid_t pid; st == FL_OK && (pid = waitpid(-1, &status, WNOHANG)) > 0; ) st = note_end(f, pid, status, now_ms, err);
    if (st == FL_OK) st = check_drain(&f->coordinator, "the coordinator", now_ms, err);
    for (int i = 0; st == FL_OK && i < f->n_leaving; i++) st = check_drain(&f->leaving[i], "a worker", now_ms, err);
    let_go_on(&f->coordinator, now_ms);
    if (st == FL_OK && !f->coordinator.pid && !f->is_ending && now_ms >= f->coordinator.due_ms) st = start_coordinator(f, err);
    for (int i = 0; st == FL_OK && i < f->n_workers; i++) {
        let_go_on(&f->workers[i], now_ms);
        if (!f->workers[i].pid && !f->is_ending && now_ms >= f->workers[i].due_ms) st = start_worker(f, &f->workers[i], err);
    }
    return st;
}

/* ---- disturbances ---- */

/* A worker that runs and is not stopped; from `choice` on, the first. */
static torture_process *pick_worker(torture_fleet *f, uint64_t choice)
{
    for (int i = 0; i < f->n_workers; i++) {
        torture_process *w = &f->workers[(choice + (uint64_t)i) % (uint64_t)f->n_workers];
        if (w->pid && !w->continue_ms && w->may_end == END_NEVER) return w;
    }
    return NULL;
}

bool torture_kill_worker(torture_fleet *f, uint64_t choice, int64_t restart_ms)
{
    torture_process *w = pick_worker(f, choice);
    if (!w) return false;
    w->may_end = END_KILLED;
    w->due_ms = restart_ms;
    kill(w->pid, SIGKILL);
    return true;
}

/* The processes that the kernel names as the worker's children now; a worker reaps its engine itself, so that none of them can be somebody else's by the time of the kill unless
 * the worker ended in between, which only we do. */
bool torture_kill_engine(torture_fleet *f, uint64_t choice)
{
    torture_process *w = pick_worker(f, choice);
    char path[64];
    int pid = 0;
    if (!w) return false;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)w->pid, (int)w->pid);
    FILE *file = fopen(path, "re");
    bool found = file && fscanf(file, "%d", &pid) == 1 && pid > 1;
    if (file) fclose(file);
    return found && kill(pid, SIGKILL) == 0;
}

bool torture_stop_worker(torture_fleet *f, uint64_t choice, int64_t until_ms)
{
    torture_process *w = pick_worker(f, choice);
    if (!w || kill(w->pid, SIGSTOP) != 0) return false;
    w->continue_ms = until_ms;
    return true;
}

bool torture_drain_worker(torture_fleet *f, uint64_t choice, int64_t now_ms)
{
    torture_process *w = pick_worker(f, choice);
    if (!w || f->n_leaving == TORTURE_LEAVING_MAX || kill(w->pid, SIGTERM) != 0) return false;
    w->may_end = END_DRAINED;
    w->due_ms = now_ms + DRAIN_MS;
    f->leaving[f->n_leaving++] = *w;
    *w = (torture_process){ .host = w->host };
    return true;
}

static torture_process *steady_coordinator(torture_fleet *f)
{
    torture_process *c = &f->coordinator;
    return c->pid && !c->continue_ms && c->may_end == END_NEVER ? c : NULL;
}

bool torture_kill_coordinator(torture_fleet *f, int64_t restart_ms)
{
    torture_process *c = steady_coordinator(f);
    if (!c) return false;
    c->may_end = END_KILLED;
    c->due_ms = restart_ms;
    kill(c->pid, SIGKILL);
    return true;
}

bool torture_stop_coordinator(torture_fleet *f, int64_t until_ms)
{
    torture_process *c = steady_coordinator(f);
    if (!c || kill(c->pid, SIGSTOP) != 0) return false;
    c->continue_ms = until_ms;
    return true;
}

bool torture_drain_coordinator(torture_fleet *f, int64_t now_ms)
{
    torture_process *c = steady_coordinator(f);
    if (!c || kill(c->pid, SIGTERM) != 0) return false;
    c->may_end = END_DRAINED;
    c->due_ms = now_ms + DRAIN_MS;
    f->drained_ms = now_ms;
    return true;
}

/* ---- the end ---- */

static bool is_any_left(const torture_fleet *f)
{
    bool any = f->coordinator.pid != 0 || f->n_leaving > 0;
    for (int i = 0; i < f->n_workers; i++) any |= f->workers[i].pid != 0;
    return any;
}

fl_status torture_fleet_end(torture_fleet *f, fl_err *err)
{
    int64_t now = fl_boot_ms(), until = now + DRAIN_MS;
    fl_status st = FL_OK;
    f->is_ending = true;
    if (f->coordinator.pid) torture_drain_coordinator(f, now);
    while (st == FL_OK && is_any_left(f)) {
        if (fl_boot_ms() > until) return fl_fail(err, FL_CORRUPT, "not all workers ended within %d s of the coordinator's drain", DRAIN_MS / 1000);
        if (command_signals()) return fl_fail(err, FL_AGAIN, "interrupted");
        poll(NULL, 0, TURN_MS);
        st = torture_fleet_tend(f, fl_boot_ms(), err);
        if (st == FL_OK && !f->coordinator.pid) {        /* workers that never heard of the drain */
            for (int i = 0; i < f->n_workers; i++) torture_drain_worker(f, (uint64_t)i, fl_boot_ms());
        }
    }
    return st;
}

static void kill_one(pid_t pid)
{
    if (pid > 0) kill(pid, SIGKILL);
}

int torture_fleet_close(torture_fleet *f)
{
    int n_left = 0, status;
    if (!f->lab) return 0;                               /* it was never opened */
    kill_one(f->coordinator.pid);
    for (int i = 0; i < f->n_workers; i++) kill_one(f->workers[i].pid);
    for (int i = 0; i < f->n_leaving; i++) kill_one(f->leaving[i].pid);
    for (int i = 0; i < f->n_tasks; i++) kill_one(f->tasks[i]->pid);
    for (int waited = 0; waited < REAP_MS; waited += TURN_MS) {          /* the relay is the lab's */
        pid_t pid;
        bool any = false;
        while ((pid = waitpid(-1, &status, WNOHANG)) > 0) any = true;
        if (pid < 0) return 0;
        char path[64], line[4096];
        snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)getpid(), (int)getpid());
        FILE *file = fopen(path, "re");
        size_t n = file ? fread(line, 1, sizeof line - 1, file) : 0;
        if (file) fclose(file);
        line[n] = '\0';
        n_left = 0;
        for (char *at = strtok(line, " "); at; at = strtok(NULL, " ")) n_left += atoi(at) != (int)f->lab->relay.pid;
        if (!any && n_left == 0) return 0;
        poll(NULL, 0, TURN_MS);
    }
    return n_left;
}
