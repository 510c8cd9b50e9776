#include "coordinator/bench_process.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/commands.h"
#include "coordinator/stub_fleet.h"
#include "proto/clock.h"

#define SELF "/proc/self/exe"
#define POLL_MS 5

/* In a child: a group of its own, and death with the parent. */
static void belong_to(pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);                   /* it died before prctl */
}

static _Noreturn void become(const char *program, char *const *argv, int output, int errors, int net_fd, pid_t parent)
{
    belong_to(parent);
    if (net_fd >= 0 && setns(net_fd, CLONE_NEWNET) != 0) _exit(3);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, 0) < 0 || dup2(output, 1) < 0 || dup2(errors, 2) < 0) _exit(3);
    execv(program, argv);
    _exit(3);
}

fl_status bench_start(pid_t *out, const bench_program *p, fl_err *err)
{
    int fds[2] = { -1, -1 };
    fl_status st = FL_OK;
    for (int i = 0; st == FL_OK && i < 2; i++) {
        const char *path = i == 0 ? p->output : p->errors;
        fds[i] = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        if (fds[i] < 0) st = fl_fail_errno(err, errno, "cannot write %s", path);
    }
    pid_t parent = getpid(), pid = st == FL_OK ? command_fork() : -1;
    if (pid == 0) become(p->path ? p->path : SELF, p->argv, fds[0], fds[1], p->net_fd, parent);
    if (st == FL_OK && pid < 0) st = fl_fail_errno(err, errno, "no process for %s", p->argv[1]);
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) close(fds[i]);
    }
    if (st == FL_OK) *out = pid;
    return st;
}

fl_status bench_start_self(pid_t *out, char *const *argv, const char *log, fl_err *err)
{
    unlink(log);
    return bench_start(out, &(bench_program){ .argv = argv, .output = log, .errors = log, .net_fd = -1 }, err);
}

/* Both streams of a child until they end, each into memory. */
static bool read_streams(int fds[2], char *texts[2])
{
    size_t n[2] = { 0, 0 };
    struct pollfd p[2] = { { .fd = fds[0], .events = POLLIN }, { .fd = fds[1], .events = POLLIN } };
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        if (poll(p, 2, -1) < 0 && errno != EINTR) return false;
        for (int i = 0; i < 2; i++) {
            if (p[i].fd < 0 || !p[i].revents) continue;
            char *grown = realloc(texts[i], n[i] + 65536);
            if (!grown) return false;
            texts[i] = grown;
            ssize_t got = read(p[i].fd, texts[i] + n[i], 65535);
            if (got < 0 && errno == EINTR) continue;
            if (got <= 0) p[i].fd = -1;
            else n[i] += (size_t)got;
            texts[i][n[i]] = '\0';
        }
    }
    return true;
}

static const char *last_line_of(char *text)
{
    size_t n = text ? strlen(text) : 0;
    while (n > 0 && text[n - 1] == '\n') text[--n] = '\0';
    const char *end = n ? strrchr(text, '\n') : NULL;
    return end ? end + 1 : n ? text : "";
}

fl_status bench_call_self(char *const *argv, char **text, fl_err *err)
{
    int out[2] = { -1, -1 }, errors[2] = { -1, -1 }, status = 0;
    char *texts[2] = { NULL, NULL };
    fl_status st = FL_OK;
    pid_t parent = getpid(), pid = -1;
    if (pipe2(out, O_CLOEXEC) != 0 || pipe2(errors, O_CLOEXEC) != 0) { st = fl_fail_errno(err, errno, "no pipe to `tokenfleet %s`", argv[1]); goto done; }
    if ((pid = command_fork()) == 0) become(SELF, argv, out[1], errors[1], -1, parent);
    if (pid < 0) { st = fl_fail_errno(err, errno, "no process for `tokenfleet %s`", argv[1]); goto done; }
    close(out[1]);
    close(errors[1]);
    out[1] = errors[1] = -1;
    bool was_read = read_streams((int[2]){ out[0], errors[0] }, texts);
    if (!was_read) kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (!was_read) st = fl_fail(err, FL_FULL, "the answer of `tokenfleet %s` cannot be read", argv[1]);
    else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) st = fl_fail(err, FL_IO, "`tokenfleet %s` failed: %s", argv[1], last_line_of(texts[1]));
    if (st == FL_OK) {
        *text = texts[0];
        texts[0] = NULL;
    }
done:
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0) close(out[i]);
        if (errors[i] >= 0) close(errors[i]);
        free(texts[i]);
    }
    return st;
}

/* ---- stub fleets ---- */

static _Noreturn void serve(const bench_stubs_options *options, bench_shared *shared, int stop_fd, pid_t parent)
{
    fl_err err = { 0 };
    stub_options own = options->options;
    belong_to(parent);
    own.stats = &shared->stats;
    fl_status st = stub_fleet_run(options->endpoint, options->n_workers, &own, stop_fd, &err);
    if (st != FL_OK) snprintf(shared->error, sizeof shared->error, "%s", err.text);
    shared->stats.cpu_us = (uint64_t)fl_cpu_us(0);
    _exit(st == FL_OK ? 0 : 3);
}

fl_status bench_stubs_start(bench_stubs *out, const bench_stubs_options *options, fl_err *err)
{
    int ends[2];
    bench_shared *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return fl_fail_errno(err, errno, "no memory shared with the stub workers");
    if (pipe2(ends, O_CLOEXEC) != 0) {
        munmap(shared, sizeof *shared);
        return fl_fail_errno(err, errno, "no pipe to the stub workers");
    }
    pid_t parent = getpid(), pid = command_fork();
    if (pid == 0) {
        close(ends[1]);                                  /* so that the end of the parent's shows */
        serve(options, shared, ends[0], parent);
    }
    int error = errno;
    close(ends[0]);
    if (pid < 0) {
        close(ends[1]);
        munmap(shared, sizeof *shared);
        return fl_fail_errno(err, error, "no process for the stub workers");
    }
    *out = (bench_stubs){ pid, ends[1], shared };
    return FL_OK;
}

void bench_stubs_stop(bench_stubs *s)
{
    if (s->stop_fd >= 0) close(s->stop_fd);
    s->stop_fd = -1;
}

void bench_stubs_free(bench_stubs *s)
{
    if (!s->shared) return;
    bench_stubs_stop(s);
    munmap(s->shared, sizeof *s->shared);
    s->shared = NULL;
}

/* ---- their ends ---- */

bool bench_has_ended(pid_t pid, int *status)
{
    return waitpid(pid, status, WNOHANG) == pid;
}

void bench_end(pid_t pid, int timeout_ms)
{
    int status;
    for (int waited = 0; waited < timeout_ms; waited += POLL_MS) {
        if (waitpid(pid, &status, WNOHANG) != 0) return;
        poll(NULL, 0, POLL_MS);
    }
    kill(pid, SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
}

/* ---- what the system says ---- */

bench_usage bench_usage_of(pid_t pid)
{
    bench_usage usage = { .cpu_s = (double)fl_cpu_us(pid) * 1e-6 };
    char path[64], line[256];
    unsigned long long kb;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmHWM: %llu kB", &kb) == 1) usage.rss_high_bytes = (uint64_t)kb * 1024;
        if (sscanf(line, "VmRSS: %llu kB", &kb) == 1) usage.rss_bytes = (uint64_t)kb * 1024;
    }
    if (file) fclose(file);
    return usage;
}

uint64_t bench_folder_bytes(const char *path)
{
    uint64_t n = 0;
    DIR *dir = opendir(path);
    struct stat at;
    for (struct dirent *entry; dir && (entry = readdir(dir)); )
        if (fstatat(dirfd(dir), entry->d_name, &at, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(at.st_mode)) n += (uint64_t)at.st_size;
    if (dir) closedir(dir);
    return n;
}

uint64_t bench_file_limit(void)
{
    struct rlimit limit = { 0 };
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
    struct rlimit raised = { limit.rlim_max, limit.rlim_max };
    if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    return limit.rlim_cur;
}

void bench_last_line(const char *path, char *out, size_t n_bytes)
{
    char text[4096];
    out[0] = '\0';
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return;
    off_t end = lseek(fd, 0, SEEK_END);
    off_t from = end > (off_t)sizeof text - 1 ? end - (off_t)sizeof text + 1 : 0;
    ssize_t n = end > 0 ? pread(fd, text, sizeof text - 1, from) : 0;
    close(fd);
    if (n <= 0) return;
    text[n] = '\0';
    snprintf(out, n_bytes, "%s", last_line_of(text));
}
