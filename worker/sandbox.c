#include "worker/sandbox.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "worker/sandbox_filter.h"

enum { NOBODY = 65534, FILTER_FD = 5, INFO_FD = 6, FREE_FD = 32 };

#define LOADER "import marshal,posix;p=posix.pread(4,1<<24,0);posix.close(4);exec(p if p[:1]==b'#' else marshal.loads(p))"           /* 4: SANDBOX_PROGRAM_FD */

fl_status sandbox_sealed_file(int *out, const char *name, const void *bytes, size_t n, fl_err *err)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return fl_fail_errno(err, errno, "grading: cannot make a memory file");
    for (size_t done = 0; done < n;) {
        ssize_t wrote = write(fd, (const char *)bytes + done, n - done);
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0) {
            fl_status st = fl_fail_errno(err, errno, "grading: cannot write a memory file of %zu bytes", n);
            close(fd);
            return st;
        }
        done += (size_t)wrote;
    }
    if (fcntl(fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) {
        fl_status st = fl_fail_errno(err, errno, "grading: cannot seal a memory file");
        close(fd);
        return st;
    }
    *out = fd;
    return FL_OK;
}

/* ---- what all starts share ---- */

static bool find_program(const char *name, char *path, size_t n)
{
    const char *folders = getenv("PATH");
    for (const char *at = folders && *folders ? folders : "/usr/bin:/bin"; *at;) {
        int length = (int)strcspn(at, ":");
        if (length > 0 && snprintf(path, n, "%.*s/%s", length, at, name) < (int)n && access(path, X_OK) == 0) return true;
        at += length;
        if (*at == ':') at++;
    }
    return false;
}

fl_status sandbox_kit_open(sandbox_kit *kit, fl_err *err)
{
    unsigned char program[SANDBOX_FILTER_BYTES_MAX];
    size_t n_bytes = 0;
    *kit = (sandbox_kit){.filter_fd = -1, .gives_up_root = geteuid() == 0};
    if (!find_program("bwrap", kit->bwrap, sizeof kit->bwrap))
        return fl_fail(err, FL_UNSUPPORTED, "grading runs completions under bubblewrap, and bwrap is not on PATH: install it (Debian: apt-get install bubblewrap, or ops/setup)");
    snprintf(kit->python, sizeof kit->python, "/usr/bin/python3");
    if (access(kit->python, X_OK) != 0)
        return fl_fail(err, FL_UNSUPPORTED, "grading needs %s: install it (Debian: apt-get install python3, or ops/setup)", kit->python);
    fl_status st = sandbox_filter_make(program, &n_bytes, err);
    if (st == FL_OK) st = sandbox_sealed_file(&kit->filter_fd, "tokenfleet-filter", program, n_bytes, err);
    return st;
}

void sandbox_kit_close(sandbox_kit *kit)
{
    if (kit->bwrap[0] && kit->filter_fd >= 0) close(kit->filter_fd);
    *kit = (sandbox_kit){.filter_fd = -1};
}

/* ---- starting ---- */

typedef struct { const char *words[80]; size_t n; } command;

static void add(command *c, const char *word)
{
    FL_ASSERT(c->n + 1 < sizeof c->words / sizeof *c->words);
    c->words[c->n++] = word;
    c->words[c->n] = NULL;
}

#define ADD(c, ...) do { const char *const words_[] = {__VA_ARGS__}; for (size_t i_ = 0; i_ < sizeof words_ / sizeof *words_; i_++) add((c), words_[i_]); } while (0)

/* On most systems /bin, /lib and so on are links into /usr; where they are folders they are bound as such. */
static void add_top_folders(command *c)
{
    static const char *const top[][2] = {{"usr/bin", "/bin"}, {"usr/lib", "/lib"}, {"usr/lib64", "/lib64"}};
    for (size_t i = 0; i < sizeof top / sizeof *top; i++) {
        struct stat info;
        if (lstat(top[i][1], &info) != 0) continue;
        if (S_ISLNK(info.st_mode)) ADD(c, "--symlink", top[i][0], top[i][1]);
        else ADD(c, "--ro-bind", top[i][1], top[i][1]);
    }
}

static void make_command(command *c, const sandbox_kit *kit)
{
    ADD(c, kit->bwrap, "--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try");
    ADD(c, "--uid", "65534", "--gid", "65534", "--hostname", "sandbox", "--cap-drop", "ALL", "--new-session", "--die-with-parent", "--as-pid-1");
    ADD(c, "--ro-bind", "/usr", "/usr");
    add_top_folders(c);
    ADD(c, "--dev-bind", "/dev/null", "/dev/null", "--dev-bind", "/dev/zero", "/dev/zero", "--dev-bind", "/dev/urandom", "/dev/urandom");
    ADD(c, "--size", "33554432", "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/tmp");
    ADD(c, "--seccomp", "5", "--info-fd", "6");
    ADD(c, kit->python, "-s", "-S", "-B", "-c", LOADER);
}

/* Between fork and exec: only calls that are safe there. Says on stderr, which the grader reads, what failed. */
__attribute__((noreturn)) static void become_sandbox(const sandbox_kit *kit, const command *c, const int fds[INFO_FD + 1], const sandbox_group *group)
{
    static char *const environment[] = {"PATH=/usr/bin:/bin", "HOME=/tmp", "TMPDIR=/tmp", "LC_ALL=C.UTF-8", "TZ=UTC", "PYTHONHASHSEED=0", "OMP_NUM_THREADS=1", "OPENBLAS_NUM_THREADS=1", NULL};
    int high[INFO_FD + 1];
    sigset_t none;
    sigemptyset(&none);
    for (int n = 1; n < NSIG; n++) signal(n, n == SIGTERM || n == SIGINT || n == SIGHUP ? SIG_IGN : SIG_DFL);      /* bubblewrap stays when a whole service is told to stop */
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (group) sandbox_group_enter(group);
    for (int i = 0; i <= INFO_FD; i++) {
        if ((high[i] = fcntl(fds[i], F_DUPFD, FREE_FD)) < 0) _exit(125);
    }
    for (int i = 0; i <= INFO_FD; i++) {
        if (dup2(high[i], i) < 0) _exit(125);
    }
    if (close_range(INFO_FD + 1, ~0u, 0) != 0) _exit(125);
    if (kit->gives_up_root && (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 || setresuid(NOBODY, NOBODY, NOBODY) != 0)) {
        static const char text[] = "cannot give up root (setresuid)\n";
        if (write(2, text, sizeof text - 1) < 0) _exit(125);
        _exit(125);
    }
    execve(kit->bwrap, (char *const *)c->words, environment);
    static const char text[] = "bwrap cannot be executed\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(126);
    _exit(127);
}

static int inner_of(const char *info)
{
    const char *at = strstr(info, "\"child-pid\":");
    return at ? atoi(at + strlen("\"child-pid\":")) : 0;
}

/* The process between the grader and bubblewrap: it lives until the sandbox has ended, and ends it when the grader does, however that came. bubblewrap's own --die-with-parent is not enough:
 * when its parent dies just then, its half-made child waits for ever. So the guard waits until bubblewrap has said which process is pid 1 inside (`info`), and kills that one.
 * Like all between fork and exec, it calls nothing that allocates. Its status is bubblewrap's; SIGKILL when that was ended from outside. */
__attribute__((noreturn)) static void guard(const sandbox_kit *kit, const command *c, int fds[INFO_FD + 1], const sandbox_group *group, int life_fd, int report_fd)
{
    enum { LIFE_FD = 3, REPORT_FD = 4, INFO_READ_FD = 5 };
    int info[2], inner_pidfd = -1, status = 0;
    bool is_alive = true, is_known = false;
    char text[512];
    setsid();
    prctl(PR_SET_NAME, "grade-guard");
    signal(SIGTERM, SIG_IGN);                                        /* a whole service is told to stop: the worker drains, and what it grades goes on */
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    if (pipe2(info, O_CLOEXEC) != 0) _exit(125);
    fds[INFO_FD] = info[1];
    pid_t outer = fork();
    if (outer < 0) _exit(125);
    if (outer == 0) become_sandbox(kit, c, fds, group);
    int high[3] = {fcntl(life_fd, F_DUPFD, FREE_FD), fcntl(report_fd, F_DUPFD, FREE_FD), fcntl(info[0], F_DUPFD, FREE_FD)};
    int outer_pidfd = pidfd_open(outer, 0);
    if (outer_pidfd < 0 || high[0] < 0 || high[1] < 0 || high[2] < 0 || dup2(outer_pidfd, 0) < 0 || dup2(high[0], LIFE_FD) < 0 || dup2(high[1], REPORT_FD) < 0 || dup2(high[2], INFO_READ_FD) < 0) _exit(125);
    close_range(1, 2, 0);
    close_range(INFO_READ_FD + 1, ~0u, 0);
    for (;;) {
        struct pollfd p[3] = {{.fd = 0, .events = POLLIN}, {.fd = is_alive ? LIFE_FD : -1, .events = POLLIN}, {.fd = is_known ? -1 : INFO_READ_FD, .events = POLLIN}};
        if (poll(p, 3, -1) < 0) continue;
        if (p[2].revents) {
            ssize_t n = read(INFO_READ_FD, text, sizeof text - 1);
            is_known = true;
            text[n > 0 ? n : 0] = '\0';
            int inner = inner_of(text);
            if (inner > 1) inner_pidfd = pidfd_open(inner, 0);
            if (n > 0 && write(REPORT_FD, text, (size_t)n) < 0) is_alive = false;
            close(REPORT_FD);
        }
        if (p[1].revents) is_alive = false;
        if (!is_alive && inner_pidfd >= 0) pidfd_send_signal(inner_pidfd, SIGKILL, NULL, 0);
        if (p[0].revents) break;
        if (!is_alive && inner_pidfd >= 0) poll(p, 1, -1);
    }
    if (waitpid(outer, &status, 0) != outer || !WIFEXITED(status)) kill(getpid(), SIGKILL);
    _exit(WEXITSTATUS(status));
}

fl_status sandbox_start(sandbox *box, const sandbox_kit *kit, int link_fd, int program_fd, int output_fd, const sandbox_group *group, fl_err *err)
{
    fl_status st = FL_OK;
    int report[2] = {-1, -1}, life[2] = {-1, -1}, null_fd = -1, filter_fd = -1;
    char filter_path[40];
    command c = {.n = 0};
    *box = SANDBOX_NONE;
    snprintf(filter_path, sizeof filter_path, "/proc/self/fd/%d", kit->filter_fd);
    null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    filter_fd = open(filter_path, O_RDONLY | O_CLOEXEC);             /* its own place in the file: bwrap reads it to its end */
    if (null_fd < 0 || filter_fd < 0 || pipe2(report, O_CLOEXEC) != 0 || pipe2(life, O_CLOEXEC) != 0) { st = fl_fail_errno(err, errno, "grading: cannot prepare a sandbox"); goto done; }
    make_command(&c, kit);
    int fds[INFO_FD + 1] = {null_fd, output_fd, output_fd, link_fd, program_fd, filter_fd, -1};
    pid_t pid = fork();
    if (pid < 0) { st = fl_fail_errno(err, errno, "grading: cannot start a process"); goto done; }
    if (pid == 0) {
        close(life[1]);
        close(report[0]);
        guard(kit, &c, fds, group, life[0], report[1]);
    }
    box->outer = pid;
    box->outer_pidfd = pidfd_open(pid, 0);
    box->life_fd = life[1];
    life[1] = -1;
    if (box->outer_pidfd < 0 || fcntl(report[0], F_SETFL, O_NONBLOCK) != 0) {
        st = fl_fail_errno(err, errno, "grading: cannot hold a process by a descriptor (Linux 5.3 or later is needed)");
        sandbox_end(box);
        goto done;
    }
    box->info_fd = report[0];
    report[0] = -1;
done:
    if (null_fd >= 0) close(null_fd);
    if (filter_fd >= 0) close(filter_fd);
    for (int i = 0; i < 2; i++) {
        if (report[i] >= 0) close(report[i]);
        if (life[i] >= 0) close(life[i]);
    }
    return st;
}

/* ---- ending ---- */

static bool has_ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

/* Hear from the guard which process is pid 1 inside. It is bubblewrap's child, unreaped while that one and so the guard lives, so its number is still its own when we take hold of it. */
static void learn_inner(sandbox *box)
{
    char text[512];
    if (box->info_fd < 0) return;
    ssize_t n = read(box->info_fd, text, sizeof text - 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    close(box->info_fd);
    box->info_fd = -1;
    if (n <= 0) return;
    text[n] = '\0';
    int pid = inner_of(text);
    if (pid <= 1) return;
    int pidfd = pidfd_open(pid, 0);
    if (pidfd < 0) return;
    if (has_ended(box->outer_pidfd)) { close(pidfd); return; }       /* then the number may already be another's */
    box->inner = pid;
    box->inner_pidfd = pidfd;
}

void sandbox_kill(sandbox *box)
{
    if (box->outer == 0) return;
    learn_inner(box);
    if (box->inner_pidfd >= 0) pidfd_send_signal(box->inner_pidfd, SIGKILL, NULL, 0);
    if (box->life_fd >= 0) close(box->life_fd);                      /* the guard does the same, also when it is not known yet */
    box->life_fd = -1;
}

bool sandbox_reap(sandbox *box, int *status)
{
    int ended_with = 0;
    if (box->outer == 0) return true;
    learn_inner(box);
    if (!has_ended(box->outer_pidfd)) return false;
    if (box->inner_pidfd >= 0 && !has_ended(box->inner_pidfd)) {     /* guard or bubblewrap were killed: what they started follows them */
        pidfd_send_signal(box->inner_pidfd, SIGKILL, NULL, 0);
        return false;
    }
    pid_t got = waitpid(box->outer, &ended_with, 0);
    if (status) *status = got == box->outer ? ended_with : 0;
    close(box->outer_pidfd);
    if (box->inner_pidfd >= 0) close(box->inner_pidfd);
    if (box->info_fd >= 0) close(box->info_fd);
    if (box->life_fd >= 0) close(box->life_fd);
    *box = SANDBOX_NONE;
    return true;
}

void sandbox_end(sandbox *box)
{
    if (box->outer > 0 && box->outer_pidfd < 0) {                     /* only when it could not be held: its guard ends it */
        sandbox_kill(box);
        waitpid(box->outer, NULL, 0);
        *box = SANDBOX_NONE;
        return;
    }
    while (box->outer != 0) {
        sandbox_kill(box);
        struct pollfd p = {.fd = box->outer_pidfd, .events = POLLIN};
        poll(&p, 1, 20);
        if (sandbox_reap(box, NULL)) return;
    }
}

/* ---- what it uses ---- */

typedef struct { pid_t pid, parent; uint64_t ticks, pages; int owner; } process;

static bool read_small(const char *path, char *text, size_t n)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, n - 1) : -1;
    if (fd >= 0) close(fd);
    if (got <= 0) return false;
    text[got] = '\0';
    return true;
}

static bool read_process(pid_t pid, process *out)
{
    char path[40], text[1024];
    int parent;
    unsigned long long user, sys;
    long long child_user, child_sys, pages;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    if (!read_small(path, text, sizeof text)) return false;
    const char *after_name = strrchr(text, ')');
    if (!after_name || sscanf(after_name + 1, " %*c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld %*d %*d %*d %*d %*u %*u %lld", &parent, &user, &sys, &child_user, &child_sys, &pages) != 6) return false;
    *out = (process){.pid = pid, .parent = parent, .ticks = user + sys + (uint64_t)child_user + (uint64_t)child_sys, .pages = pages > 0 ? (uint64_t)pages : 0, .owner = -1};
    return true;
}

static uint64_t waited_ms_of(pid_t pid)
{
    char path[40], text[128];
    unsigned long long waited_ns = 0;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)pid);
    if (!read_small(path, text, sizeof text) || sscanf(text, "%*u %llu", &waited_ns) != 1) return 0;
    return waited_ns / 1000000u;
}

static int by_pid(const void *a, const void *b)
{
    pid_t left = ((const process *)a)->pid, right = ((const process *)b)->pid;
    return (left > right) - (left < right);
}

void sandbox_measure(sandbox *const boxes[], size_t n, sandbox_use use[])
{
    process *all = NULL;
    size_t n_all = 0, room = 0;
    uint64_t tick_ms = 1000u / (uint64_t)sysconf(_SC_CLK_TCK), page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    memset(use, 0, n * sizeof *use);
    for (size_t i = 0; i < n; i++) learn_inner(boxes[i]);
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        process p;
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9' || !read_process((pid_t)atoi(entry->d_name), &p)) continue;
        if (n_all == room) {
            process *more = realloc(all, (room = room ? 2 * room : 256) * sizeof *all);
            if (!more) break;
            all = more;
        }
        all[n_all++] = p;
    }
    if (folder) closedir(folder);
    for (size_t i = 0; i < n_all; i++) {
        for (size_t b = 0; b < n; b++) {
            if (boxes[b]->inner != 0 && all[i].pid == boxes[b]->inner) all[i].owner = (int)b;
        }
    }
    if (n_all > 0) qsort(all, n_all, sizeof *all, by_pid);
    for (bool found = true; found;) {                                 /* children of what is known, until nothing is added */
        found = false;
        for (size_t i = 0; i < n_all; i++) {
            const process *parent = all[i].owner < 0 ? bsearch(&(process){.pid = all[i].parent}, all, n_all, sizeof *all, by_pid) : NULL;
            if (parent && parent->owner >= 0) { all[i].owner = parent->owner; found = true; }
        }
    }
    for (size_t i = 0; i < n_all; i++) {
        if (all[i].owner < 0) continue;
        sandbox_use *u = &use[all[i].owner];
        u->cpu_ms += all[i].ticks * tick_ms;
        u->memory_bytes += all[i].pages * page_bytes;
        u->waited_ms += waited_ms_of(all[i].pid);
        u->n_processes++;
    }
    free(all);
}
