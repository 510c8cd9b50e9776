#include "coordinator/spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/commands.h"
#include "proto/clock.h"
#include "proto/log.h"

#define LAST_BYTES 1024
#define PAUSE_MS_FIRST 50
#define PAUSE_MS_MAX 5000
#define YOUNG_MS 2000                                    /* a worker that dies before this age makes the next pause longer */
#define DEATHS_MAX 50                                    /* in a row without progress */

typedef struct {
    pid_t pid;                                           /* 0 = not running */
    int output;                                          /* owned; read end of its stdout and stderr, -1 = none */
    int64_t started_ms, restart_ms;                      /* restart_ms: when to start it again, 0 = at once */
    int64_t pause_ms;
    char line[LAST_BYTES]; size_t n_line;                /* what it is printing */
    char last[LAST_BYTES];                               /* its last whole line that was not empty */
} slot;

struct spawn {
    char **argv;                                         /* owned copy */
    slot *slots; int n_slots;                            /* owned */
    int gpus[SPAWN_GPUS_MAX], n_gpus; char *device;      /* device: the last of argv, set for each worker */
    bool restarts, shows;
    int deaths_in_a_row;
    uint64_t deaths;
};

fl_status spawn_find_beside(const char *name, char *out, size_t n_bytes, fl_err *err)
{
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n < 0) return fl_fail_errno(err, errno, "cannot tell where this program lies");
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (slash) *slash = '\0';
    if ((size_t)snprintf(out, n_bytes, "%s/%s", self, name) >= n_bytes) return fl_fail(err, FL_INVALID, "the path of this program is too long");
    if (access(out, X_OK) == 0) return FL_OK;
    return fl_fail(err, FL_NOT_FOUND, "%s is not there; it must lie beside tokenfleet: build or install both", out);
}

/* In the child, between fork and exec: only async-signal-safe calls. */
static _Noreturn void become_worker(char **argv, int output, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);                   /* it died before prctl */
    int null = open("/dev/null", O_RDWR);
    if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(output, 2) < 0) _exit(3);
    close_range(3, ~0u, CLOSE_RANGE_CLOEXEC);
    execv(argv[0], argv);
    static const char sentence[] = "the worker program cannot be started\n";
    ssize_t ignored = write(2, sentence, sizeof sentence - 1);
    (void)ignored;
    _exit(3);
}

static fl_status start_slot(spawn *s, slot *w, fl_err *err)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) return fl_fail_errno(err, errno, "no pipe to a worker");
    if (s->n_gpus > 0) snprintf(s->device, sizeof "--device=cuda:0000000000", "--device=cuda:%u", (unsigned)s->gpus[(w - s->slots) % s->n_gpus] % 10000u);
    pid_t parent = getpid(), pid = command_fork();
    if (pid == 0) become_worker(s->argv, ends[1], parent);
    int error = errno;
    close(ends[1]);
    if (pid < 0) {
        close(ends[0]);
        return fl_fail_errno(err, error, "a worker cannot be started");
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    w->pid = pid;
    w->output = ends[0];
    w->started_ms = fl_boot_ms();
    w->n_line = 0;
    w->last[0] = '\0';
    return FL_OK;
}

fl_status spawn_open(spawn **out, char *const *argv, int n_workers, const int *gpus, int n_gpus, fl_err *err)
{
    fl_status st = FL_OK;
    int argc = 0;
    FL_ASSERT(n_gpus <= SPAWN_GPUS_MAX);
    while (argv[argc]) argc++;
    spawn *s = calloc(1, sizeof *s);
    if (!s) return fl_fail(err, FL_FULL, "no memory for workers");
    s->argv = calloc((size_t)argc + 2, sizeof *s->argv);
    s->slots = calloc((size_t)n_workers, sizeof *s->slots);
    if (!s->argv || !s->slots) { st = fl_fail(err, FL_FULL, "no memory for %d workers", n_workers); goto done; }
    for (int i = 0; i < argc; i++) {
        if (!(s->argv[i] = strdup(argv[i]))) { st = fl_fail(err, FL_FULL, "no memory for a worker's arguments"); goto done; }
    }
    if (n_gpus > 0 && !(s->argv[argc] = strdup("--device=cuda:0000000000"))) { st = fl_fail(err, FL_FULL, "no memory for a worker's arguments"); goto done; }
    s->device = n_gpus > 0 ? s->argv[argc] : NULL;
    for (int i = 0; i < n_gpus; i++) s->gpus[i] = gpus[i];
    s->n_gpus = n_gpus;
    s->restarts = true;
    s->shows = getenv("TOKENFLEET_LOG") != NULL;
    s->n_slots = n_workers;
    for (int i = 0; i < n_workers; i++) s->slots[i].output = -1;
    for (int i = 0; i < n_workers; i++) {
        if ((st = start_slot(s, &s->slots[i], err)) != FL_OK) goto done;
    }
    *out = s;
    s = NULL;
done:
    spawn_close(s, 0);
    return st;
}

static void end_line(spawn *s, slot *w)
{
    w->line[w->n_line] = '\0';
    if (w->n_line) {
        memcpy(w->last, w->line, w->n_line + 1);
        if (s->shows) fprintf(stderr, "%s\n", w->line);
    }
    w->n_line = 0;
}

static void read_output(spawn *s, slot *w)
{
    char bytes[4096];
    ssize_t n = 0;
    while (w->output >= 0 && (n = read(w->output, bytes, sizeof bytes)) > 0) {
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n') end_line(s, w);
            else if (w->n_line < LAST_BYTES - 1) w->line[w->n_line++] = bytes[i];
        }
    }
}

/* The sentence in a worker's last line: what follows "tokenfleet-worker: " when it begins so. */
static const char *last_sentence(const slot *w)
{
    static const char prefix[] = "tokenfleet-worker: ";
    return strncmp(w->last, prefix, sizeof prefix - 1) == 0 ? w->last + sizeof prefix - 1 : w->last;
}

/* A worker ended with wait status `status`: FL_OK when it may be started again. */
static fl_status note_death(spawn *s, slot *w, int status, int64_t now_ms, fl_err *err)
{
    read_output(s, w);
    end_line(s, w);
    close(w->output);
    w->output = -1;
    w->pid = 0;
    if (!s->restarts) return FL_OK;
    s->deaths++;
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 2 || WEXITSTATUS(status) == 3)) {
        return fl_fail(err, FL_IO, "%s", w->last[0] ? last_sentence(w) : "a worker ended at its start without a word; run it by hand with TOKENFLEET_LOG=debug to see why");
    }
    if (++s->deaths_in_a_row >= DEATHS_MAX) {
        return fl_fail(err, FL_IO, "workers died %d times in a row without finishing a row; the last one %s %d%s%s", s->deaths_in_a_row,
                       WIFSIGNALED(status) ? "was ended by signal" : "ended with status", WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status),
                       w->last[0] ? ", saying: " : "", last_sentence(w));
    }
    bool young = now_ms - w->started_ms < YOUNG_MS;
    w->pause_ms = !young ? 0 : w->pause_ms ? w->pause_ms * 2 : PAUSE_MS_FIRST;
    if (w->pause_ms > PAUSE_MS_MAX) w->pause_ms = PAUSE_MS_MAX;
    w->restart_ms = now_ms + w->pause_ms;
    fl_log(FL_LOG_INFO, "a worker %s %d; it is started again in %lld ms%s%s", WIFSIGNALED(status) ? "was ended by signal" : "ended with status",
           WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status), (long long)w->pause_ms, w->last[0] ? "; its last words: " : "", last_sentence(w));
    return FL_OK;
}

fl_status spawn_tend(spawn *s, int64_t now_ms, fl_err *err)
{
    for (int i = 0; s && i < s->n_slots; i++) {
        slot *w = &s->slots[i];
        int status = 0;
        fl_status st = FL_OK;
        read_output(s, w);
        if (w->pid > 0 && waitpid(w->pid, &status, WNOHANG) == w->pid) st = note_death(s, w, status, now_ms, err);
        if (st == FL_OK && w->pid == 0 && s->restarts && now_ms >= w->restart_ms) st = start_slot(s, w, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

void spawn_note_progress(spawn *s)
{
    if (s) s->deaths_in_a_row = 0;
}

void spawn_no_restart(spawn *s)
{
    if (s) s->restarts = false;
}

int spawn_alive(const spawn *s)
{
    int n = 0;
    for (int i = 0; s && i < s->n_slots; i++) n += s->slots[i].pid > 0;
    return n;
}

uint64_t spawn_deaths(const spawn *s)
{
    return s ? s->deaths : 0;
}

static void signal_all(spawn *s, int signal_number)
{
    for (int i = 0; i < s->n_slots; i++) {
        if (s->slots[i].pid > 0) kill(s->slots[i].pid, signal_number);
    }
}

void spawn_close(spawn *s, int64_t grace_ms)
{
    if (!s) return;
    s->restarts = false;
    if (spawn_alive(s)) signal_all(s, SIGTERM);
    fl_err ignored;
    for (int64_t end = fl_boot_ms() + grace_ms; spawn_alive(s) && fl_boot_ms() < end; ) {
        spawn_tend(s, fl_boot_ms(), &ignored);
        if (spawn_alive(s)) poll(NULL, 0, 5);
    }
    signal_all(s, SIGKILL);
    for (int i = 0; i < s->n_slots; i++) {
        if (s->slots[i].pid > 0) waitpid(s->slots[i].pid, NULL, 0);
        if (s->slots[i].output >= 0) close(s->slots[i].output);
    }
    for (int i = 0; s->argv && s->argv[i]; i++) free(s->argv[i]);
    free(s->argv);
    free(s->slots);
    free(s);
}
