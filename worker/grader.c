/* One sample's way:
 *
 *     submit ──▶ waiting ──▶ a ready candidate cell + a free checker ──▶ verdict on the checker's pipe, or a limit ──▶ the cell is killed and reaped ──▶ results
 *                   ▲  ▲                                                                                              │
 *                   │  └── tasks not measured yet: their samples wait while the canonical solution runs               ├── a first timeout ──▶ alone
 *                   └──────────────────────────────────────────────────────── the sandbox failed, at most twice ◀─────┘
 *
 * Candidate cells are started ahead, one for each waiting sample up to n_slots, so that a sandbox's making (mostly waiting for the kernel) costs no time. A checker is a sandbox that
 * lasts and forks for each sample (grade_checker.py). A verdict becomes a result only when its cell is gone: nothing of it runs and all of its output was counted. */
#include "worker/grader.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "proto/clock.h"
#include "proto/log.h"
#include "worker/grade_programs.h"
#include "worker/grader_state.h"

enum {
    PENDING_MAX = 1024, SLOTS_MAX = 256,
    TICK_MS = 50, MEASURE_AFTER_MS = 250, MEASURE_EVERY_MS = 100,
    START_MS_MAX = 60000,                    /* a sandbox that is not ready by then never will be */
    GONE_MS = 200,                           /* how long a completion that closed its channel may take to end by itself */
    CHECKER_MS_MAX = 3000,                   /* how long a checker may go on after its completion is gone */
    CANONICAL_CPU_MS = 60000,
    ALONE_MAX = 16, ALONE_MS_MAX = 10000,    /* so many timeouts, or so long, wait for the rest before they run alone */
    GROUP_MEMORY_MORE = 64 << 20,            /* above the limit of each process, so that one process alone meets its own limit first and Python can say so */
    FAULTS_MAX = 3, START_FAILURES_MAX = 3, RETRY_MS = 1000,
};

/* ---- small things ---- */

static int64_t now(void) { return fl_awake_ms() + 1; }   /* never 0, which means `not yet` */

static size_t count_cores(void)
{
    cpu_set_t cores;
    int n = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return n > 0 ? (size_t)n : 1;
}

const char *grade_verdict_name(grade_verdict verdict)
{
    static const char *const names[] = {
#define GRADE_VERDICT_NAME(code, name, meaning) [code] = name,
        GRADE_VERDICT_TABLE(GRADE_VERDICT_NAME)
#undef GRADE_VERDICT_NAME
    };
    return (unsigned)verdict < GRADE_N_VERDICTS ? names[verdict] : "?";
}

grade_limits grade_limits_default(void)
{
    return (grade_limits){.cpu_ms_min = 3000, .cpu_factor = 5, .idle_ms = 10000, .memory_bytes = 1ull << 30, .output_bytes = 16ull << 20, .n_processes = 32};
}

/* The job's work is over: its result waits for grader_next. */
static void job_done(grader *g, grade_job *j)
{
    task_entry_drop(j->task);
    free(j->completion);
    j->completion = NULL;
    if (j->is_cancelled || j->kind != JOB_SAMPLE) grade_job_free(j);
    else grade_jobs_push(&g->results, j);
}

/* Edge-triggered: a process that is just being forked holds copies of descriptors that we close, and those would be reported for as long as it takes to run. Each step looks at
 * everything, so that no edge is missed. */
static void watch(const grader *g, int fd)
{
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    if (fd >= 0) epoll_ctl(g->epoll_fd, EPOLL_CTL_ADD, fd, &event);  /* one that cannot be watched is seen by the timer */
}

static void drain_events(const grader *g)
{
    struct epoll_event events[64];
    while (epoll_wait(g->epoll_fd, events, 64, 0) == 64) { }
}

static void unwatch(const grader *g, int fd)
{
    if (fd >= 0) epoll_ctl(g->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static void watch_cell(const grader *g, const grade_cell *cell)
{
    watch(g, cell->box.outer_pidfd);
    watch(g, cell->output_fd);
    watch(g, cell->link_fd);
}

/* ---- checkers ---- */

static void start_failed(grader *g, const char *why)
{
    g->n_start_failures++;
    g->retry_ms = now() + RETRY_MS;
    snprintf(g->why, sizeof g->why, "%s", why);
}

static void checker_start(grader *g, checker *k)
{
    fl_err err;
    if (cell_start(&k->cell, &g->kit, g->checker_program_fd, SOCK_SEQPACKET, now(), &err) != FL_OK) { start_failed(g, err.text); return; }
    k->state = CHECKER_STARTING;
    k->candidate = NULL;
    watch_cell(g, &k->cell);
    size_t n = strlen(grade_candidate_source);
    for (size_t at = 0; at < n; at += 60000) {
        size_t part = n - at < 60000 ? n - at : 60000;
        if (send(k->cell.link_fd, grade_candidate_source + at, part, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)part) { sandbox_kill(&k->cell.box); return; }
    }
    if (send(k->cell.link_fd, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) != 1) sandbox_kill(&k->cell.box);
}

static void checker_kill(checker *k)
{
    sandbox_kill(&k->cell.box);
    k->state = CHECKER_ENDING;
}

/* It is done with its sample, or ended: the verdict, if any, is in line. */
static void checker_leave(checker *k, int status)
{
    candidate *c = k->candidate;
    k->candidate = NULL;
    if (!c) return;
    c->checker = NULL;
    c->left_ms = now();
    c->checker_status = status;
    c->has_verdict = k->n_line > 0 && k->line[k->n_line - 1] == '\n';
    if (c->has_verdict) memcpy(c->verdict, k->line, k->n_line);
    c->verdict[c->has_verdict ? k->n_line - 1 : 0] = '\0';
}

static void checker_read_verdict(checker *k)
{
    while (k->verdict_fd >= 0) {
        ssize_t n = read(k->verdict_fd, k->line + k->n_line, sizeof k->line - k->n_line);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EAGAIN) return;
        if (n <= 0) {
            close(k->verdict_fd);
            k->verdict_fd = -1;
            return;
        }
        k->n_line += (size_t)n;
    }
}

static void checker_read_link(grader *g, checker *k, fl_err *err)
{
    char text[1 << 17];
    ssize_t n = recv(k->cell.link_fd, text, sizeof text, MSG_DONTWAIT);
    if (n <= 0) return;
    if (k->state == CHECKER_STARTING) {
        if (g->candidate_program_fd < 0 && sandbox_sealed_file(&g->candidate_program_fd, "tokenfleet-candidate", text, (size_t)n, err) != FL_OK) { start_failed(g, err->text); checker_kill(k); return; }
        k->state = CHECKER_FREE;
        g->n_start_failures = 0;
    } else if (k->state == CHECKER_BUSY) {
        text[n < 12 ? n : 12] = '\0';
        checker_read_verdict(k);
        if (k->verdict_fd >= 0) close(k->verdict_fd);
        k->verdict_fd = -1;
        k->state = CHECKER_FREE;
        checker_leave(k, atoi(text));
    }
}

static void checker_tend(grader *g, checker *k, int64_t at_ms, fl_err *err)
{
    int status = 0;
    if (k->state == CHECKER_EMPTY) return;
    cell_read_output(&k->cell);
    if (k->state == CHECKER_BUSY) checker_read_verdict(k);
    if (k->cell.link_fd >= 0) checker_read_link(g, k, err);
    if (k->state == CHECKER_STARTING && at_ms - k->cell.start_ms > START_MS_MAX) checker_kill(k);
    if (k->state == CHECKER_BUSY && !k->candidate && at_ms - k->left_ms > CHECKER_MS_MAX) checker_kill(k);
    if (k->state == CHECKER_ENDING) sandbox_kill(&k->cell.box);
    bool was_starting = k->state == CHECKER_STARTING;
    if (!cell_reap(&k->cell, &status)) return;
    if (was_starting) start_failed(g, cell_last_line(&k->cell));
    if (k->verdict_fd >= 0) close(k->verdict_fd);
    k->verdict_fd = -1;
    k->state = CHECKER_EMPTY;
    checker_leave(k, -1);
}

/* ---- candidates ---- */

static void candidate_start(grader *g, candidate *c)
{
    fl_err err;
    if (cell_start(&c->cell, &g->kit, g->candidate_program_fd, SOCK_STREAM, now(), &err) != FL_OK) { start_failed(g, err.text); return; }
    c->state = CELL_STARTING;
    watch_cell(g, &c->cell);
}

uint32_t grader_cpu_limit_ms(const grader *g, const grade_job *j)
{
    if (j->kind != JOB_SAMPLE) return CANONICAL_CPU_MS;
    uint64_t ms = (uint64_t)j->task->canonical_cpu_ms * g->limits.cpu_factor;
    if (ms < g->limits.cpu_ms_min) ms = g->limits.cpu_ms_min;
    return ms < 3600000u ? (uint32_t)ms : 3600000u;
}

/* What the checker reads: the task's fields, then the completion and the numbers of this run. */
static fl_status job_file(const grader *g, const grade_job *j, int *fd, fl_err *err)
{
    char numbers[160];
    const unsigned char *completion = j->kind == JOB_SAMPLE ? j->completion : j->task->fields + j->task->canonical_at;
    size_t n = j->kind == JOB_SAMPLE ? j->completion_bytes : j->task->canonical_bytes;
    int n_numbers = snprintf(numbers, sizeof numbers, "%d %d %a %u %llu %llu %u", j->kind == JOB_SAMPLE ? j->task->in_process : j->kind == JOB_MEASURE_TOGETHER, j->full_script, j->task->atol,
                             grader_cpu_limit_ms(g, j) / 1000 + 2, (unsigned long long)g->limits.memory_bytes, (unsigned long long)g->limits.output_bytes, g->limits.n_processes);
    size_t total = j->task->fields_bytes + 16 + n + (size_t)n_numbers;
    unsigned char *bytes = malloc(total), *at = bytes;
    if (!bytes) return fl_fail(err, FL_FULL, "grading: no memory for a sample of %zu bytes", total);
    memcpy(at, j->task->fields, j->task->fields_bytes);
    at += j->task->fields_bytes;
    for (int b = 0; b < 8; b++) *at++ = (unsigned char)((uint64_t)n >> (8 * b));
    if (n > 0) memcpy(at, completion, n);
    at += n;
    for (int b = 0; b < 8; b++) *at++ = (unsigned char)((uint64_t)n_numbers >> (8 * b));
    memcpy(at, numbers, (size_t)n_numbers);
    fl_status st = sandbox_sealed_file(fd, "tokenfleet-sample", bytes, total, err);
    free(bytes);
    return st;
}

/* Give the checker its three descriptors: what to check, the completion's link, the verdict's pipe. */
static bool send_job(int control_fd, const int fds[3])
{
    char one = 'J';
    union { char bytes[CMSG_SPACE(3 * sizeof(int))]; struct cmsghdr align; } space = {.bytes = {0}};
    struct iovec part = {.iov_base = &one, .iov_len = 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space.bytes, .msg_controllen = sizeof space.bytes};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(3 * sizeof(int));
    memcpy(CMSG_DATA(header), fds, 3 * sizeof(int));
    return sendmsg(control_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/* Run a job in a ready cell with a free checker. The job stays the caller's on failure. */
static fl_status dispatch(grader *g, candidate *c, checker *k, grade_job *j, int64_t at_ms, fl_err *err)
{
    int job_fd = -1, verdict[2] = {-1, -1};
    fl_status st = job_file(g, j, &job_fd, err);
    if (st != FL_OK) goto done;
    if (pipe2(verdict, O_CLOEXEC | O_NONBLOCK) != 0 || fcntl(verdict[1], F_SETFL, 0) != 0) { st = fl_fail_errno(err, errno, "grading: cannot make a verdict's pipe"); goto done; }
    if (!send_job(k->cell.link_fd, (const int[3]){job_fd, c->cell.link_fd, verdict[1]})) {
        checker_kill(k);
        st = fl_fail(err, FL_IO, "grading: a checker took no sample; it is started again");
        goto done;
    }
    cell_close_link(&c->cell);
    k->state = CHECKER_BUSY;
    k->candidate = c;
    k->n_line = 0;
    k->has_base = false;
    k->verdict_fd = verdict[0];
    watch(g, k->verdict_fd);
    verdict[0] = -1;
    grade_cell cell = c->cell;
    *c = (candidate){.cell = cell, .state = CELL_RUNNING, .job = j, .checker = k, .run_ms = at_ms};
    if (!sandbox_group_cpu_ms(&c->cell.group, &c->group_cpu_ms)) c->group_cpu_ms = 0;
    c->group_oom_kills = sandbox_group_oom_kills(&c->cell.group);
done:
    if (job_fd >= 0) close(job_fd);
    for (int i = 0; i < 2; i++) {
        if (verdict[i] >= 0) close(verdict[i]);
    }
    return st;
}

/* A task's canonical solution ran. Either another way is tried, or its samples may go. */
static void measured(grader *g, grade_job *j, bool needs_more)
{
    task_entry *task = j->task;
    bool passed = j->result.verdict == GRADE_PASSED;
    if (j->kind == JOB_MEASURE_APART && (!passed || needs_more)) {
        j->kind = JOB_MEASURE_TOGETHER;
        grade_jobs_push(&g->waiting, j);
        return;
    }
    task->state = TASK_MEASURED;
    task->in_process = passed && j->kind == JOB_MEASURE_TOGETHER;
    grade_verdict verdict = j->result.verdict;
    task->canonical_failed = verdict == GRADE_WRONG || verdict == GRADE_ERROR || verdict == GRADE_SYNTAX;     /* what does not depend on the machine */
    task->canonical_cpu_ms = passed ? j->result.cpu_ms : 0;
    if (!passed)
        fl_log(FL_LOG_WARN, "grading: the canonical solution of %s does not pass its own test (%s: %s); its samples get the least limits", task->id, grade_verdict_name(verdict), j->result.detail);
    grade_jobs left = {.first = NULL};
    for (grade_job *p; (p = grade_jobs_pop(&g->parked));) grade_jobs_push(p->task == task ? &g->waiting : &left, p);
    g->parked = left;
    job_done(g, j);
}

static void finish(grader *g, candidate *c)
{
    bool needs_more;
    grade_job *j = c->job;
    if (c->checker) {
        c->checker->candidate = NULL;
        c->checker->left_ms = now();
        c->checker = NULL;
    }
    grader_judge(g, c, &needs_more);
    c->job = NULL;
    c->state = CELL_EMPTY;
    j->result.in_process = j->task->in_process;
    j->result.canonical_failed = j->task->canonical_failed;
    if (j->is_cancelled) { job_done(g, j); return; }
    if (j->result.verdict == GRADE_SANDBOX_FAULT && ++j->n_faults < FAULTS_MAX) { grade_jobs_push(&g->waiting, j); return; }
    if (j->kind != JOB_SAMPLE) { measured(g, j, needs_more); return; }
    if (j->result.verdict == GRADE_TIMEOUT && !j->is_second) {
        j->is_second = true;
        if (g->alone.n == 0) g->alone_ms = now();
        grade_jobs_push(&g->alone, j);
        return;
    }
    job_done(g, j);
}

/* ---- tending ---- */

static void candidate_tend_run(grader *g, candidate *c, int64_t at_ms)
{
    if (c->stop == STOP_NONE) {
        if (c->job->is_cancelled) c->stop = STOP_CANCELLED;
        else if (c->cell.output_bytes > g->limits.output_bytes) c->stop = STOP_OUTPUT;
        else if (c->end_ms && c->checker && at_ms - c->end_ms > (int64_t)g->limits.idle_ms + grader_cpu_limit_ms(g, c->job)) c->stop = STOP_IDLE;
    }
    bool is_gone = c->has_verdict && strncmp(c->verdict, "gone\t", 5) == 0;
    if (!c->end_ms) {
        if (c->stop != STOP_NONE || (!c->checker && (!is_gone || at_ms - c->left_ms > GONE_MS))) {
            c->we_killed = true;
            sandbox_kill(&c->cell.box);
        }
        if (cell_reap(&c->cell, &c->status)) c->end_ms = at_ms;
    }
    if (c->end_ms && (!c->checker || c->stop != STOP_NONE)) finish(g, c);
}

static bool is_ready(const grade_cell *cell)
{
    struct pollfd p = {.fd = cell->link_fd, .events = POLLIN};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLIN) && !(p.revents & POLLHUP);
}

static void candidate_tend(grader *g, candidate *c, int64_t at_ms)
{
    if (c->state == CELL_EMPTY) return;
    cell_read_output(&c->cell);
    if (c->state == CELL_RUNNING) { candidate_tend_run(g, c, at_ms); return; }
    if (c->state == CELL_STARTING && is_ready(&c->cell)) {
        unwatch(g, c->cell.link_fd);
        c->state = CELL_READY;
        c->cell.output_bytes = 0;
        g->n_start_failures = 0;
    }
    if (c->state == CELL_STARTING && at_ms - c->cell.start_ms > START_MS_MAX) sandbox_kill(&c->cell.box);
    if (!cell_reap(&c->cell, NULL)) return;
    start_failed(g, cell_last_line(&c->cell));                        /* also of one that was ready: somebody outside ended it */
    c->state = CELL_EMPTY;
}

/* Limits that only a look at the processes tells. Samples that take no time are never looked at. */
static void measure(grader *g, int64_t at_ms)
{
    sandbox *boxes[2 * SLOTS_MAX];
    candidate *which[SLOTS_MAX];
    sandbox_use use[2 * SLOTS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < g->n_candidates && n < SLOTS_MAX; i++) {
        candidate *c = &g->candidates[i];
        if (c->state != CELL_RUNNING || !c->checker || c->end_ms || c->stop != STOP_NONE || at_ms - c->run_ms < MEASURE_AFTER_MS) continue;
        which[n] = c;
        boxes[2 * n] = &c->cell.box;
        boxes[2 * n + 1] = &c->checker->cell.box;
        n++;
    }
    if (n == 0 || at_ms - g->measured_ms < MEASURE_EVERY_MS) return;
    sandbox_measure(boxes, 2 * n, use);
    g->measured_ms = at_ms;
    for (size_t i = 0; i < n; i++) {
        candidate *c = which[i];
        const sandbox_use *own = &use[2 * i], *checkers = &use[2 * i + 1];
        uint64_t group_ms, checker_ms = checkers->cpu_ms + checkers->waited_ms, wall_ms = (uint64_t)(at_ms - c->run_ms);
        c->cpu_ms = own->cpu_ms;
        if (sandbox_group_cpu_ms(&c->cell.group, &group_ms) && group_ms - c->group_cpu_ms > c->cpu_ms) c->cpu_ms = group_ms - c->group_cpu_ms;
        if (!c->checker->has_base) {
            c->checker->has_base = true;
            c->checker->base_ms = checker_ms;
        }
        uint64_t busy_ms = c->cpu_ms + own->waited_ms + (checker_ms > c->checker->base_ms ? checker_ms - c->checker->base_ms : 0);
        if (c->cpu_ms > grader_cpu_limit_ms(g, c->job)) c->stop = STOP_CPU;
        else if (c->group_oom_kills < 0 && own->memory_bytes > g->limits.memory_bytes) c->stop = STOP_MEMORY;
        else if (wall_ms > busy_ms + g->limits.idle_ms) c->stop = STOP_IDLE;
        if (c->stop != STOP_NONE) candidate_tend_run(g, c, at_ms);
    }
}

static size_t count_cells(const grader *g, cell_state state)
{
    size_t n = 0;
    for (size_t i = 0; i < g->n_candidates; i++) n += g->candidates[i].state == state;
    return n;
}

static candidate *find_cell(const grader *g, cell_state state)
{
    for (size_t i = 0; i < g->n_candidates; i++) {
        if (g->candidates[i].state == state) return &g->candidates[i];
    }
    return NULL;
}

static checker *find_checker(const grader *g, checker_state state)
{
    for (size_t i = 0; i < g->n_slots; i++) {
        if (g->checkers[i].state == state) return &g->checkers[i];
    }
    return NULL;
}

/* The list whose first job may run now; NULL: none. Timeouts run alone: when nothing else waits, when many have come together, or when the first has waited long. */
static grade_jobs *due(grader *g, int64_t at_ms)
{
    size_t n_running = count_cells(g, CELL_RUNNING);
    if (g->alone.n >= ALONE_MAX || (g->alone.n > 0 && at_ms - g->alone_ms > ALONE_MS_MAX)) g->is_alone_turn = true;
    if (g->alone.n == 0) g->is_alone_turn = false;
    if (g->is_running_alone && n_running > 0) return NULL;
    g->is_running_alone = false;
    if (g->alone.n > 0 && (g->is_alone_turn || g->waiting.n == 0)) return n_running == 0 ? &g->alone : NULL;
    return g->waiting.n > 0 ? &g->waiting : NULL;
}

static fl_status dispatch_due(grader *g, int64_t at_ms, fl_err *err)
{
    fl_status st = FL_OK;
    for (grade_jobs *list; st == FL_OK && (list = due(g, at_ms));) {
        candidate *c = find_cell(g, CELL_READY);
        checker *k = find_checker(g, CHECKER_FREE);
        if (!c || !k) return FL_OK;
        bool is_alone = list == &g->alone;
        grade_job *j = grade_jobs_pop(list);
        st = dispatch(g, c, k, j, at_ms, err);
        if (st != FL_OK) grade_jobs_push_first(list, j);
        else if (is_alone) g->is_running_alone = true;
    }
    return st;
}

static void start_what_is_needed(grader *g, int64_t at_ms)
{
    size_t wanted = g->waiting.n + g->alone.n, n_checkers = 0, n_cells = count_cells(g, CELL_STARTING) + count_cells(g, CELL_READY);
    if (at_ms < g->retry_ms) return;
    for (size_t i = 0; i < g->n_slots; i++) n_checkers += g->checkers[i].state == CHECKER_STARTING || g->checkers[i].state == CHECKER_FREE;
    for (checker *k; n_checkers < wanted && (k = find_checker(g, CHECKER_EMPTY)); n_checkers++) {
        checker_start(g, k);
        if (k->state == CHECKER_EMPTY) return;
    }
    if (wanted > g->n_slots) wanted = g->n_slots;
    for (candidate *c; g->candidate_program_fd >= 0 && n_cells < wanted && (c = find_cell(g, CELL_EMPTY)); n_cells++) {
        candidate_start(g, c);
        if (c->state == CELL_EMPTY) return;
    }
}

static void set_ticking(grader *g, bool is_ticking)
{
    struct itimerspec t = {.it_value = {.tv_nsec = 1000}, .it_interval = {.tv_nsec = TICK_MS * 1000000}};
    if (is_ticking == g->is_ticking) return;
    if (!is_ticking) t = (struct itimerspec){.it_value = {0}};
    timerfd_settime(g->timer_fd, 0, &t, NULL);
    g->is_ticking = is_ticking;
}

/* bubblewrap's usual complaints, with what to do about each. */
static fl_status explain(const grader *g, fl_err *err)
{
    if (strstr(g->why, "namespace") || strstr(g->why, "uid map") || strstr(g->why, "Operation not permitted") || strstr(g->why, "Permission denied"))
        return fl_fail(err, FL_UNSUPPORTED, "grading needs user namespaces, which this machine refuses (%.200s): set the sysctls kernel.unprivileged_userns_clone=1 (Debian), "
                       "kernel.apparmor_restrict_unprivileged_userns=0 (Ubuntu) and user.max_user_namespaces above 0; start a container with --security-opt seccomp=unconfined", g->why);
    return fl_fail(err, FL_IO, "grading: a sandbox could not be started: %.300s", g->why);
}

fl_status grader_step(grader *g, fl_err *err)
{
    uint64_t ticks;
    int64_t at_ms = now();
    fl_err own;
    if (!err) err = &own;
    drain_events(g);
    if (read(g->timer_fd, &ticks, sizeof ticks) < 0 && errno != EAGAIN) return fl_fail_errno(err, errno, "grading: cannot read its timer");
    for (size_t i = 0; i < g->n_slots; i++) checker_tend(g, &g->checkers[i], at_ms, err);
    for (size_t i = 0; i < g->n_candidates; i++) candidate_tend(g, &g->candidates[i], at_ms);
    measure(g, at_ms);
    fl_status st = dispatch_due(g, at_ms, err);
    start_what_is_needed(g, at_ms);
    bool is_busy = g->waiting.n + g->alone.n > 0 || count_cells(g, CELL_RUNNING) + count_cells(g, CELL_STARTING) > 0 || find_checker(g, CHECKER_STARTING) || find_checker(g, CHECKER_ENDING);
    set_ticking(g, is_busy);
    if (st == FL_OK && g->n_start_failures >= START_FAILURES_MAX) st = explain(g, err);
    return st;
}

/* ---- the caller's side ---- */

/* Wait until the first checker is there: bubblewrap, the filter, Python and its program all work then. */
static fl_status try_sandbox(grader *g, fl_err *err)
{
    int64_t until_ms = now() + START_MS_MAX;
    checker_start(g, &g->checkers[0]);
    while (g->checkers[0].state == CHECKER_STARTING && now() < until_ms) {
        struct pollfd p = {.fd = g->epoll_fd, .events = POLLIN};
        poll(&p, 1, TICK_MS);
        drain_events(g);
        checker_tend(g, &g->checkers[0], now(), err);
    }
    if (g->checkers[0].state == CHECKER_FREE) return FL_OK;
    if (!g->why[0]) snprintf(g->why, sizeof g->why, "it was not ready after %d s", START_MS_MAX / 1000);
    return explain(g, err);
}

fl_status grader_open(grader **out, const grader_options *options, fl_err *err)
{
    fl_status st = FL_OK;
    size_t n_slots = options->n_slots ? options->n_slots : count_cores();
    if (n_slots > SLOTS_MAX) n_slots = SLOTS_MAX;
    grader *g = calloc(1, sizeof *g);
    if (!g) return fl_fail(err, FL_FULL, "grading: no memory for a grader");
    g->checker_program_fd = g->candidate_program_fd = g->epoll_fd = g->timer_fd = -1;
    g->kit.filter_fd = -1;
    g->limits = options->limits;
    g->checkers = calloc(n_slots, sizeof *g->checkers);
    g->candidates = calloc(3 * n_slots, sizeof *g->candidates);
    if (!g->checkers || !g->candidates) { st = fl_fail(err, FL_FULL, "grading: no memory for %zu slots", n_slots); goto done; }
    g->n_slots = n_slots;
    g->n_candidates = 3 * n_slots;                                   /* one running, one ahead, one ending */
    for (size_t i = 0; i < n_slots; i++) g->checkers[i] = (checker){.cell = GRADE_CELL_NONE, .verdict_fd = -1};
    for (size_t i = 0; i < g->n_candidates; i++) g->candidates[i] = (candidate){.cell = GRADE_CELL_NONE};
    if ((st = task_table_open(&g->tasks, err)) != FL_OK) goto done;
    if ((st = sandbox_kit_open(&g->kit, err)) != FL_OK) goto done;
    if ((st = sandbox_sealed_file(&g->checker_program_fd, "tokenfleet-checker", grade_checker_source, strlen(grade_checker_source), err)) != FL_OK) goto done;
    g->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    g->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (g->epoll_fd < 0 || g->timer_fd < 0) { st = fl_fail_errno(err, errno, "grading: cannot make its descriptors"); goto done; }
    watch(g, g->timer_fd);
    sandbox_group_sweep();
    for (size_t i = 0; i < g->n_candidates; i++) {
        char name[64];
        snprintf(name, sizeof name, SANDBOX_GROUP_PREFIX "%d-%d-%zu", (int)getpid(), g->epoll_fd, i);
        sandbox_group_open(&g->candidates[i].cell.group, name, g->limits.memory_bytes + GROUP_MEMORY_MORE, g->limits.n_processes + 2);
    }
    if ((st = try_sandbox(g, err)) != FL_OK) goto done;
    *out = g;
    g = NULL;
done:
    grader_close(g);
    return st;
}

void grader_close(grader *g)
{
    if (!g) return;
    for (size_t i = 0; i < g->n_slots; i++) sandbox_kill(&g->checkers[i].cell.box);
    for (size_t i = 0; i < g->n_candidates; i++) sandbox_kill(&g->candidates[i].cell.box);
    for (size_t i = 0; i < g->n_slots; i++) {
        cell_end(&g->checkers[i].cell);
        if (g->checkers[i].verdict_fd >= 0) close(g->checkers[i].verdict_fd);
    }
    for (size_t i = 0; i < g->n_candidates; i++) {
        candidate *c = &g->candidates[i];
        cell_end(&c->cell);
        sandbox_group_close(&c->cell.group);
        if (c->job) grade_jobs_push(&g->waiting, c->job);
    }
    grade_jobs_free(&g->waiting);
    grade_jobs_free(&g->alone);
    grade_jobs_free(&g->parked);
    grade_jobs_free(&g->results);
    task_table_close(g->tasks);
    sandbox_kit_close(&g->kit);
    const int fds[] = {g->checker_program_fd, g->candidate_program_fd, g->epoll_fd, g->timer_fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    free(g->checkers);
    free(g->candidates);
    free(g);
}

fl_status grader_submit(grader *g, const grade_task *task, const grade_sample *sample, fl_err *err)
{
    task_entry *entry;
    if (grader_room(g) == 0) return fl_fail(err, FL_FULL, "grading: %d samples are pending; take results first", PENDING_MAX);
    fl_status st = task_table_take(g->tasks, task, &entry, err);
    if (st != FL_OK) return st;
    grade_job *j = grade_job_make(JOB_SAMPLE, entry, sample), *first = NULL;
    if (j && entry->state == TASK_NEW && entry->has_canonical) first = grade_job_make(JOB_MEASURE_APART, entry, NULL);
    if (!j || (entry->state == TASK_NEW && entry->has_canonical && !first)) {
        grade_job_free(j);
        task_entry_drop(entry);
        return fl_fail(err, FL_FULL, "grading: no memory for a sample of %zu bytes", sample->completion.n);
    }
    if (first) {
        entry->state = TASK_MEASURING;
        entry->n_pending++;
        grade_jobs_push_first(&g->waiting, first);
    } else if (entry->state == TASK_NEW) {
        entry->state = TASK_MEASURED;
    }
    grade_jobs_push(entry->state == TASK_MEASURING ? &g->parked : &g->waiting, j);
    g->n_pending++;
    set_ticking(g, true);
    return FL_OK;
}

size_t grader_room(const grader *g) { return PENDING_MAX - g->n_pending; }
int grader_fd(const grader *g) { return g->epoll_fd; }

bool grader_cancel(grader *g, uint64_t tag)
{
    grade_jobs *const lists[] = {&g->waiting, &g->parked, &g->alone, &g->results};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        grade_job *j = grade_jobs_take(lists[i], tag);
        if (!j) continue;
        if (j->completion) task_entry_drop(j->task);
        grade_job_free(j);
        g->n_pending--;
        return true;
    }
    for (size_t i = 0; i < g->n_candidates; i++) {
        grade_job *j = g->candidates[i].job;
        if (!j || j->kind != JOB_SAMPLE || j->result.tag != tag || j->is_cancelled) continue;
        j->is_cancelled = true;
        g->n_pending--;
        return true;
    }
    return false;
}

bool grader_next(grader *g, grade_result *result)
{
    grade_job *j = grade_jobs_pop(&g->results);
    if (!j) return false;
    *result = j->result;
    grade_job_free(j);
    g->n_pending--;
    return true;
}
