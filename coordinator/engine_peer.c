#include "coordinator/engine_peer.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/spawn.h"

#define ARENA_BYTES (64u * 1024)
#define LAST_WORDS_BYTES 4096

struct engine_peer {
    int fd;                      /* our end of the socket pair; -1 when closed */
    int words;                   /* a file without a name that takes the engine's stderr */
    pid_t pid;
    fl_arena arena;              /* the last message */
    fl_detok *detok;             /* owned */
    char model[257], fingerprint[65], numerics[257];
    engine_peer_info info;
};

/* In the child: keep the engine's end and stderr, and become the worker. Never returns. */
static _Noreturn void become_engine(const char *path, const char *model, uint64_t n_threads, int end, int words, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(3);                   /* it died before prctl */
    if (dup2(words, 2) < 0 || fcntl(end, F_SETFD, 0) < 0) _exit(3);
    char fd_text[16], threads_text[24];
    snprintf(fd_text, sizeof fd_text, "%d", end);
    snprintf(threads_text, sizeof threads_text, "%llu", (unsigned long long)n_threads);
    const char *argv[9] = { path, "--serve", fd_text };
    int argc = 3;
    argv[argc++] = model ? "--model" : "--roles";
    argv[argc++] = model ? model : "grade";
    if (!model) argv[argc++] = "--details=1";
    if (n_threads) argv[argc++] = "--threads";
    if (n_threads) argv[argc++] = threads_text;
    execv(path, (char *const *)argv);
    fprintf(stderr, "%s cannot be started: %s\n", path, strerror(errno));
    _exit(3);
}

static fl_status start_engine(engine_peer *p, const char *model, uint64_t n_threads, fl_err *err)
{
    char path[4096];
    int ends[2];
    fl_status st = spawn_find_beside("tokenfleet-worker", path, sizeof path, err);
    if (st != FL_OK) return st;
    if ((p->words = memfd_create("engine stderr", MFD_CLOEXEC)) < 0) return fl_fail_errno(err, errno, "no file for the engine's words");
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return fl_fail_errno(err, errno, "no socket pair to the engine");
    pid_t parent = getpid();
    if ((p->pid = fork()) == 0) become_engine(path, model, n_threads, ends[1], p->words, parent);
    int error = errno;
    close(ends[1]);
    p->fd = ends[0];
    return p->pid < 0 ? fl_fail_errno(err, error, "the engine cannot be started") : FL_OK;
}

/* The engine is gone: wait for it, and say what it said last. */
static fl_status tell_end(engine_peer *p, fl_err *err)
{
    int status = 0;
    close(p->fd);
    p->fd = -1;
    while (waitpid(p->pid, &status, 0) < 0 && errno == EINTR) {}
    p->pid = 0;
    char text[LAST_WORDS_BYTES + 1];
    off_t end = lseek(p->words, 0, SEEK_END), start = end > LAST_WORDS_BYTES ? end - LAST_WORDS_BYTES : 0;
    ssize_t n = pread(p->words, text, LAST_WORDS_BYTES, start < 0 ? 0 : start);
    while (n > 0 && text[n - 1] == '\n') n--;
    text[n > 0 ? n : 0] = '\0';
    const char *last = strrchr(text, '\n') ? strrchr(text, '\n') + 1 : text;
    static const char prefix[] = "tokenfleet-worker: ";  /* who asked has a name of its own in front */
    if (strncmp(last, prefix, sizeof prefix - 1) == 0) last += sizeof prefix - 1;
    if (last[0]) return fl_fail(err, FL_CLOSED, "%s", last);
    return WIFSIGNALED(status) ? fl_fail(err, FL_CLOSED, "the engine was ended by signal %d", WTERMSIG(status))
                               : fl_fail(err, FL_CLOSED, "the engine ended with status %d", WEXITSTATUS(status));
}

static fl_status take_hello(engine_peer *p, const wire_hello *hello, fl_err *err)
{
    if (hello->n_vocab == 0) return fl_fail(err, FL_CORRUPT, "the engine announces a model without a vocabulary");
    snprintf(p->model, sizeof p->model, "%.*s", (int)hello->model.n, hello->model.p);
    snprintf(p->fingerprint, sizeof p->fingerprint, "%.*s", (int)hello->fingerprint.n, hello->fingerprint.p);
    snprintf(p->numerics, sizeof p->numerics, "%.*s", (int)hello->numerics.n, hello->numerics.p);
    p->info = (engine_peer_info){ p->model, p->fingerprint, p->numerics, (int32_t)hello->n_vocab, NULL };
    return FL_OK;
}

static engine_peer *new_peer(void)
{
    engine_peer *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->fd = p->words = -1;
    fl_arena_init(&p->arena, ARENA_BYTES, 0);
    return p;
}

fl_status engine_peer_open_grader(engine_peer **out, uint64_t n_slots, uint64_t *credit, fl_err *err)
{
    wire_msg msg;
    engine_peer *p = new_peer();
    if (!p) return fl_fail(err, FL_FULL, "no memory for a grader");
    fl_status st = start_engine(p, NULL, n_slots, err);
    if (st == FL_OK) st = engine_peer_recv(p, &msg, err);
    if (st == FL_OK && (msg.type != WIRE_HELLO || !msg.hello.grades)) st = fl_fail(err, FL_CORRUPT, "the grader begins with %s", wire_type_name(msg.type));
    if (st != FL_OK) {
        engine_peer_close(p);
        return st;
    }
    *credit = msg.hello.credit_tokens;
    *out = p;
    return FL_OK;
}

fl_status engine_peer_open(engine_peer **out, const char *model, uint64_t n_threads, fl_err *err)
{
    engine_peer *p = new_peer();
    if (!p) return fl_fail(err, FL_FULL, "no memory for an engine");
    fl_status st = start_engine(p, model, n_threads, err);
    while (st == FL_OK && !p->detok) {
        wire_msg msg;
        if ((st = engine_peer_recv(p, &msg, err)) != FL_OK) break;
        if (msg.type == WIRE_HELLO) st = take_hello(p, &msg.hello, err);
        else if (msg.type == WIRE_DETOK && msg.n_parts == 1) st = fl_detok_decode(&p->detok, msg.parts[0].data, msg.parts[0].bytes, err);
        else st = fl_fail(err, FL_CORRUPT, "the engine begins with %s", wire_type_name(msg.type));
    }
    if (st == FL_OK && p->info.n_vocab == 0) st = fl_fail(err, FL_CORRUPT, "the engine did not say which model it has");
    if (st != FL_OK) {
        engine_peer_close(p);
        return st;
    }
    p->info.detok = p->detok;
    *out = p;
    return FL_OK;
}

const engine_peer_info *engine_peer_describe(const engine_peer *p)
{
    return &p->info;
}

fl_status engine_peer_send(engine_peer *p, const wire_msg *msg, fl_err *err)
{
    if (p->fd < 0) return fl_fail(err, FL_CLOSED, "the engine has ended");
    fl_status st = wire_send_fd(p->fd, msg, err);
    return st == FL_CLOSED ? tell_end(p, err) : st;
}

fl_status engine_peer_recv(engine_peer *p, wire_msg *msg, fl_err *err)
{
    if (p->fd < 0) return fl_fail(err, FL_CLOSED, "the engine has ended");
    for (;;) {
        fl_arena_reset(&p->arena);
        fl_status st = wire_recv_fd(p->fd, msg, &p->arena, err);
        if (st == FL_CLOSED) return tell_end(p, err);
        if (st != FL_OK || msg->type != WIRE_BEAT) return st;
    }
}

void engine_peer_close(engine_peer *p)
{
    if (!p) return;
    if (p->fd >= 0) close(p->fd);                        /* the end of the stream ends the engine */
    if (p->words >= 0) close(p->words);
    if (p->pid > 0) {
        while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) {}
    }
    fl_detok_free(p->detok);
    fl_arena_fini(&p->arena);
    free(p);
}
