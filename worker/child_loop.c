/* child_loop.c - see child_loop.h. */
#include "worker/child_loop.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "proto/clock.h"
#include "proto/log.h"

#define BEAT_MS 1000
#define MESSAGES_A_TURN 8            /* messages read between two pieces of work */
#define ARENA_KEPT_BYTES (4 << 20)   /* behind a message with a very long line */

typedef struct {
    const child_kind *kind;
    void *child;
    int fd;
    bool was_busy, stopping, draining;
    int64_t beat_at_ms;
    fl_arena arena;                  /* of the message in hand */
} loop;

static fl_status say_beat(loop *l, int64_t now, fl_err *err)
{
    wire_msg m = { .type = WIRE_BEAT };
    l->kind->count(l->child, &m.beat);
    m.beat.draining = l->draining;
    l->beat_at_ms = now + BEAT_MS;
    return wire_send_fd(l->fd, &m, err);
}

static fl_status hear(loop *l, const wire_msg *m, fl_err *err)
{
    switch (m->type) {
    case WIRE_JOB: return l->kind->hear_job(l->child, &m->job, err);
    case WIRE_GRANT: return l->kind->hear_grant(l->child, m, &l->arena, err);
    case WIRE_REVOKE: l->kind->hear_revoke(l->child, &m->revoke); return FL_OK;
    case WIRE_STOP:
        l->draining = m->stop.drain;
        l->stopping = !m->stop.drain;
        return FL_OK;
    default: return fl_fail(err, FL_CORRUPT, "worker: %s takes no %s", l->kind->called, wire_type_name(m->type));
    }
}

/* Read the messages that are there, a few at most, so that a long stream of them does not hold up the work. */
static fl_status hear_all(loop *l, fl_err *err)
{
    for (int i = 0; i < MESSAGES_A_TURN && !l->stopping; i++) {
        struct pollfd p = { .fd = l->fd, .events = POLLIN };
        int n = poll(&p, 1, 0);
        if (n < 0 && errno != EINTR) return fl_fail_errno(err, errno, "worker: poll the socket pair");
        if (n <= 0) return FL_OK;
        wire_msg m;
        fl_arena_trim(&l->arena, ARENA_KEPT_BYTES);
        fl_status st = wire_recv_fd(l->fd, &m, &l->arena, err);
        if (st == FL_OK) st = hear(l, &m, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* Sleep until a message, what the child waits for or, while it is busy, the next beat. */
static fl_status rest(const loop *l, bool busy, int64_t now, fl_err *err)
{
    int64_t until = busy ? l->beat_at_ms : INT64_MAX;
    struct pollfd p[2] = { { .fd = l->fd, .events = POLLIN }, { .fd = l->kind->wake(l->child, now, &until), .events = POLLIN } };
    if (until <= now) return FL_OK;
    if (poll(p, 2, until == INT64_MAX ? -1 : (int)(until - now)) < 0 && errno != EINTR) return fl_fail_errno(err, errno, "worker: poll the socket pair");
    return FL_OK;
}

static fl_status serve(loop *l, fl_err *err)
{
    fl_status st = FL_OK;
    while (st == FL_OK && !l->stopping && !(l->draining && !l->kind->is_busy(l->child))) {
        int64_t now = fl_boot_ms();
        bool busy = l->kind->is_busy(l->child);
        if (busy ? now >= l->beat_at_ms : l->was_busy) st = say_beat(l, now, err);
        l->was_busy = busy;
        if (st == FL_OK) st = rest(l, busy, now, err);
        if (st == FL_OK) st = hear_all(l, err);
        if (st == FL_OK && !l->stopping) st = l->kind->work(l->child, fl_boot_ms(), err);
    }
    return st;
}

static void settle_process(const child_kind *kind, int fd)
{
    char name[32];
    prctl(PR_SET_NAME, kind->process_name);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    fcntl(fd, F_SETFD, FD_CLOEXEC);              /* a process that the child starts must not hold the stream open */
    snprintf(name, sizeof name, "%s %d", kind->log_name, (int)getpid());
    fl_log_name(name);
}

int child_loop_main(const child_kind *kind, void *child, const worker_options *options)
{
    fl_err err = { 0 };
    loop l = { .kind = kind, .child = child, .fd = options->serve_fd };
    int status = WORKER_ENDED_WELL;
    settle_process(kind, l.fd);
    fl_arena_init(&l.arena, 64 * 1024, 0);
    if (kind->open(child, options, &err) != FL_OK) {
        fprintf(stderr, "tokenfleet-worker: %s\n", err.text);
        status = WORKER_ENDED_ENVIRONMENT;
    } else {
        fl_status st = kind->greet(child, &err);
        if (st == FL_OK) st = serve(&l, &err);
        if (st != FL_OK && st != FL_CLOSED) status = kind->failed(st, &err);     /* FL_CLOSED: the starter is gone, so nobody waits for anything */
    }
    kind->close(child);
    fl_arena_fini(&l.arena);
    return status;
}
