/* crash_at.c - preloaded into a program: kills it at a chosen call (SIGKILL, as a crash would). The environment says where:
 *   CRASH_CALL    write, sync, rename, create; send (a message through ZeroMQ), send_engine (a worker to its engine), send_parent (an engine's message,
 *                 of which the first part goes out)
 *   CRASH_FILE    part of the path that the call works on; none for the sends
 *   CRASH_COUNT   at the n-th such call, from 1
 *   CRASH_WHEN    before or after the call
 *   CRASH_COMM    only in a process of this name (prctl), so that an engine's parent alone is meant
 *   CRASH_ONCE    a file that is made with the kill: once it is there nobody is killed
 *   CRASH_DELAY_US  microseconds between send_engine and the kill
 *   CRASH_SLOW_US  not a crash: each fdatasync takes so many microseconds more
 *   CRASH_TALLY   a file: instead of killing, the number of such calls so far is written to it at each of them */
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

int zmq_msg_send(void *msg, void *socket, int flags);

static atomic_int n_calls;

static bool is_set_to(const char *name, const char *value)
{
    const char *set = getenv(name);
    return set && strcmp(set, value) == 0;
}

static bool is_process(void)
{
    char name[17] = "";
    const char *wanted = getenv("CRASH_COMM");
    prctl(PR_GET_NAME, name);
    return !wanted || strcmp(name, wanted) == 0;
}

static bool is_file(const char *path)
{
    const char *part = getenv("CRASH_FILE");
    return !part || (path && strstr(path, part));
}

static void tally(const char *path, int n)
{
    char text[16];
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int length = snprintf(text, sizeof text, "%d\n", n);
    if (fd < 0 || syscall(SYS_write, fd, text, length) != length) _exit(9);
    syscall(SYS_close, fd);
}

static bool is_first(void)
{
    const char *once = getenv("CRASH_ONCE");
    int fd = once ? (int)syscall(SYS_openat, AT_FDCWD, once, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : 0;
    if (fd > 0) syscall(SYS_close, fd);
    return fd >= 0;
}

/* Is this the call? Then it returns only when the call is to be made first. */
static bool reach(const char *call, const char *path)
{
    const char *count = getenv("CRASH_COUNT"), *file = getenv("CRASH_TALLY");
    if (!is_set_to("CRASH_CALL", call) || !is_file(path) || !is_process()) return false;
    int n = atomic_fetch_add(&n_calls, 1) + 1;
    if (file) tally(file, n);
    if (file || !count || n != atoi(count) || !is_first()) return false;
    if (is_set_to("CRASH_WHEN", "before")) kill(getpid(), SIGKILL);
    return true;
}

static void fall(bool is_reached)
{
    if (is_reached) kill(getpid(), SIGKILL);
}

static const char *path_of(int fd, char path[4096])
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 4095);
    path[n > 0 ? n : 0] = '\0';
    return path;
}

#define AT_FD(call, fd) char path[4096]; bool reached = is_set_to("CRASH_CALL", call) && reach(call, path_of(fd, path))

ssize_t write(int fd, const void *data, size_t n)
{
    AT_FD("write", fd);
    ssize_t result = syscall(SYS_write, fd, data, n);
    fall(reached);
    return result;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    AT_FD("write", fd);
    ssize_t result = syscall(SYS_pwrite64, fd, data, n, offset);
    fall(reached);
    return result;
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset)
{
    return pwrite(fd, data, n, offset);
}

int fdatasync(int fd)
{
    AT_FD("sync", fd);
    if (getenv("CRASH_SLOW_US")) usleep((useconds_t)atoi(getenv("CRASH_SLOW_US")));
    int result = (int)syscall(SYS_fdatasync, fd);
    fall(reached);
    return result;
}

int fsync(int fd)
{
    AT_FD("sync", fd);
    int result = (int)syscall(SYS_fsync, fd);
    fall(reached);
    return result;
}

int rename(const char *from, const char *to)
{
    bool reached = reach("rename", to);
    int result = (int)syscall(SYS_rename, from, to);
    fall(reached);
    return result;
}

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags)
{
    bool reached = reach("rename", to);
    int result = (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    fall(reached);
    return result;
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    bool reached = flags & O_CREAT && reach("create", path);
    int result = (int)syscall(SYS_openat, dir, path, flags, mode);
    fall(reached);
    return result;
}

/* Messages of a worker to its coordinator. */
int zmq_msg_send(void *msg, void *socket, int flags)
{
    int (*next)(void *, void *, int) = (int (*)(void *, void *, int))dlsym(RTLD_NEXT, "zmq_msg_send");
    bool reached = reach("send", NULL);
    int result = next(msg, socket, flags);
    if (reached) usleep(20000);                          /* libzmq's own thread puts it on the wire */
    fall(reached);
    return result;
}

ssize_t sendmsg(int fd, const struct msghdr *msg, int flags)
{
    struct msghdr part = *msg;
    bool reached = reach("send_parent", NULL);
    if (reached) part.msg_iovlen = 1;
    ssize_t result = syscall(SYS_sendmsg, fd, &part, flags);
    fall(reached);
    return result;
}

ssize_t writev(int fd, const struct iovec *pieces, int n)
{
    bool reached = reach("send_parent", NULL);
    ssize_t result = syscall(SYS_writev, fd, pieces, reached ? 1 : n);
    fall(reached);
    return result;
}

/* To the engine: grants and what else it hears. */
ssize_t send(int fd, const void *data, size_t n, int flags)
{
    bool reached = reach("send_engine", NULL);
    ssize_t result = syscall(SYS_sendto, fd, data, n, flags, NULL, 0);
    if (reached && getenv("CRASH_DELAY_US")) usleep((useconds_t)atoi(getenv("CRASH_DELAY_US")));
    fall(reached);
    return result;
}
