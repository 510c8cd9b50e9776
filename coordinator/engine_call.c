#include "coordinator/engine_call.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/flags.h"
#include "coordinator/spawn.h"

#define ARGUMENTS_MAX 8
#define PREFIX "tokenfleet-worker: "

/* In the child: files without a name take its output and its words. Never returns. */
static _Noreturn void become_worker(const char *path, const char *const *arguments, int out, int words, pid_t parent)
{
    const char *argv[ARGUMENTS_MAX + 2] = { path };
    for (int i = 0; i < ARGUMENTS_MAX && arguments[i]; i++) argv[i + 1] = arguments[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(ENDED_ENVIRONMENT);   /* it died before prctl */
    if (dup2(out, 1) < 0 || dup2(words, 2) < 0) _exit(ENDED_ENVIRONMENT);
    execv(path, (char *const *)argv);
    fprintf(stderr, "%s cannot be started: %s\n", path, strerror(errno));
    _exit(ENDED_ENVIRONMENT);
}

/* The whole file; NULL without memory. */
static char *read_all(int fd)
{
    off_t end = lseek(fd, 0, SEEK_END), at = 0;
    char *text = malloc((size_t)(end > 0 ? end : 0) + 1);
    while (text && at < end) {
        ssize_t n = pread(fd, text + at, (size_t)(end - at), at);
        if (n <= 0) break;
        at += n;
    }
    if (text) text[at] = '\0';
    return text;
}

static fl_status tell_end(int words, int status, fl_err *err)
{
    char *text = read_all(words);
    size_t n = text ? strlen(text) : 0;
    while (n > 0 && text[n - 1] == '\n') text[--n] = '\0';
    const char *last = text && strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text ? text : "";
    if (strncmp(last, PREFIX, strlen(PREFIX)) == 0) last += strlen(PREFIX);
    fl_status code = WIFEXITED(status) && WEXITSTATUS(status) == ENDED_USAGE ? FL_INVALID : FL_CLOSED;
    if (last[0]) fl_fail(err, code, "%s", last);
    else if (WIFSIGNALED(status)) fl_fail(err, code, "the engine was ended by signal %d", WTERMSIG(status));
    else fl_fail(err, code, "the engine ended with status %d", WEXITSTATUS(status));
    free(text);
    return code;
}

fl_status engine_call(const char *const *arguments, char **text, fl_err *err)
{
    char path[4096];
    int status = 0, out = -1, words = -1;
    fl_status st = spawn_find_beside("tokenfleet-worker", path, sizeof path, err);
    if (st != FL_OK) return st;
    out = memfd_create("engine stdout", MFD_CLOEXEC);
    words = memfd_create("engine stderr", MFD_CLOEXEC);
    if (out < 0 || words < 0) { st = fl_fail_errno(err, errno, "no file for the engine's answer"); goto done; }
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) become_worker(path, arguments, out, words, parent);
    if (pid < 0) { st = fl_fail_errno(err, errno, "the engine cannot be started"); goto done; }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    if (!WIFEXITED(status) || WEXITSTATUS(status) != ENDED_WELL) { st = tell_end(words, status, err); goto done; }
    if (!(*text = read_all(out))) st = fl_fail(err, FL_FULL, "no memory for the engine's answer");
done:
    if (out >= 0) close(out);
    if (words >= 0) close(words);
    return st;
}
