#include "coordinator/stub_fleet.h"
#include "proto/clock.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <unistd.h>
#include <zmq.h>

#define QUEUE_MESSAGES 256               /* each way, as worker/coord_link.c has it */
#define RECONNECT_MS 50
#define RECONNECT_MS_MAX 1000
#define MESSAGES_A_TURN 256              /* of one worker each way, so that none starves another */
#define EVENTS_A_TURN 256
#define STOP_EVENT UINT32_MAX
#define FAREWELL_US 10000000             /* the coordinator has so long to answer what is under way */

typedef struct { stub_worker *worker; void *socket; int64_t due_us; bool has_event; } member;     /* due_us: when it is to be tended; has_event: its socket may have a message */

typedef struct {
    void *context;                       /* owned, as all below */
    member *members; uint32_t n;
    int epoll;
    fl_arena arena;                      /* of the message in hand */
    zmq_msg_t frame;
    stub_stats *stats;                   /* borrowed */
    bool is_stopping;
} fleet;

static fl_status zmq_failed(fl_err *err, const char *what)
{
    return fl_fail(err, FL_IO, "stub workers: %s: %s", what, zmq_strerror(zmq_errno()));
}

/* ---- life ---- */

static fl_status member_open(fleet *f, uint32_t i, const char *endpoint, const stub_options *options, fl_err *err)
{
    static const struct { int option, value; } settings[] = {
        { ZMQ_IMMEDIATE, 1 }, { ZMQ_SNDHWM, QUEUE_MESSAGES }, { ZMQ_RCVHWM, QUEUE_MESSAGES }, { ZMQ_LINGER, 1000 }, { ZMQ_RECONNECT_IVL, RECONNECT_MS },
        { ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX }, { ZMQ_IPV6, 1 },
    };
    member *m = &f->members[i];
    uint64_t id = 0;
    while (id == 0)
        if (getrandom(&id, sizeof id, 0) != (ssize_t)sizeof id && errno != EINTR) return fl_fail_errno(err, errno, "stub workers: no random id");
    if (!(m->socket = zmq_socket(f->context, ZMQ_DEALER))) return zmq_failed(err, "make a socket");
    for (size_t k = 0; k < sizeof settings / sizeof *settings; k++)
        if (zmq_setsockopt(m->socket, settings[k].option, &settings[k].value, sizeof(int)) != 0) return zmq_failed(err, "set up a socket");
    if (zmq_connect(m->socket, endpoint) != 0) return zmq_failed(err, "connect");
    int fd;
    size_t size = sizeof fd;
    if (zmq_getsockopt(m->socket, ZMQ_FD, &fd, &size) != 0) return zmq_failed(err, "watch a socket");
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = i };
    if (epoll_ctl(f->epoll, EPOLL_CTL_ADD, fd, &event) != 0) return fl_fail_errno(err, errno, "stub workers: watch a socket");
    return stub_open(&m->worker, id, options, fl_boot_us(), err);
}

static void fleet_close(fleet *f)
{
    zmq_msg_close(&f->frame);
    for (uint32_t i = 0; f->members && i < f->n; i++) {
        stub_close(f->members[i].worker);
        if (f->members[i].socket) zmq_close(f->members[i].socket);
    }
    if (f->context) zmq_ctx_term(f->context);
    if (f->epoll >= 0) close(f->epoll);
    fl_arena_fini(&f->arena);
    free(f->members);
}

static fl_status fleet_open(fleet *f, const char *endpoint, uint32_t n_workers, const stub_options *options, int stop_fd, fl_err *err)
{
    *f = (fleet){ .n = n_workers, .stats = options->stats };
    zmq_msg_init(&f->frame);
    fl_arena_init(&f->arena, 64 * 1024, 0);
    f->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (f->epoll < 0) return fl_fail_errno(err, errno, "stub workers: watch sockets");
    f->members = calloc(n_workers, sizeof *f->members);
    f->context = zmq_ctx_new();
    if (!f->members || !f->context) return fl_fail(err, FL_FULL, "no memory for %u stub workers", n_workers);
    if (zmq_ctx_set(f->context, ZMQ_MAX_SOCKETS, (int)n_workers + 8) != 0) return zmq_failed(err, "allow so many sockets");
    struct epoll_event event = { .events = EPOLLIN, .data.u32 = STOP_EVENT };
    if (epoll_ctl(f->epoll, EPOLL_CTL_ADD, stop_fd, &event) != 0) return fl_fail_errno(err, errno, "stub workers: watch for the end");
    for (uint32_t i = 0; i < n_workers; i++) {
        fl_status st = member_open(f, i, endpoint, options, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- messages ---- */

static fl_status say(fleet *f, member *m, const wire_msg *msg, bool *said, fl_err *err)
{
    wire_packing p;
    zmq_msg_t frame;
    fl_arena_reset(&f->arena);
    fl_status st = wire_pack_begin(&p, msg, &f->arena, err);
    if (st != FL_OK) return st;
    if (zmq_msg_init_size(&frame, p.n_bytes) != 0) return fl_fail(err, FL_FULL, "no memory to send a message of %zu bytes", p.n_bytes);
    wire_pack(&p, msg, zmq_msg_data(&frame));
    *said = zmq_msg_send(&frame, m->socket, ZMQ_DONTWAIT) >= 0;
    if (*said) f->stats->sent_bytes += p.n_bytes;
    else if (zmq_errno() != EAGAIN && zmq_errno() != EINTR) st = zmq_failed(err, "send");
    if (!*said) zmq_msg_close(&frame);
    return st;
}

static fl_status speak(fleet *f, member *m, int64_t now_us, bool *spoke, fl_err *err)
{
    wire_msg msg;
    fl_bytes part;
    fl_status st = FL_OK;
    bool said = true;
    for (int i = 0; st == FL_OK && said && i < MESSAGES_A_TURN && stub_next(m->worker, now_us, &msg, &part); i++) {
        st = say(f, m, &msg, &said, err);
        *spoke = true;
        if (st == FL_OK && said) stub_said(m->worker, now_us);
    }
    return st;
}

/* FL_AGAIN: none there. The message borrows from f->frame until the next one is read. */
static fl_status read_message(fleet *f, member *m, wire_msg *msg, fl_err *err)
{
    zmq_msg_close(&f->frame);
    zmq_msg_init(&f->frame);
    if (zmq_msg_recv(&f->frame, m->socket, ZMQ_DONTWAIT) < 0) return zmq_errno() == EAGAIN || zmq_errno() == EINTR ? FL_AGAIN : zmq_failed(err, "read");
    f->stats->received_bytes += zmq_msg_size(&f->frame);
    fl_arena_reset(&f->arena);
    return wire_unpack(msg, zmq_msg_data(&f->frame), zmq_msg_size(&f->frame), &f->arena, err);
}

static fl_status listen_to(fleet *f, member *m, int64_t now_us, bool *has_more, fl_err *err)
{
    for (int i = 0; i < MESSAGES_A_TURN; i++) {
        wire_msg msg;
        fl_status st = read_message(f, m, &msg, err);
        if (st == FL_AGAIN) return FL_OK;
        if (st == FL_OK) st = stub_hear(m->worker, &msg, now_us, err);
        if (st != FL_OK) return st;
    }
    *has_more = true;                                    /* perhaps: its event is used up */
    return FL_OK;
}

/* A send may use up the event that told of a message, so each worker that spoke is listened to behind it. */
static fl_status tend(fleet *f, member *m, int64_t now_us, fl_err *err)
{
    bool spoke = false, has_more = false;
    fl_status st = m->has_event ? listen_to(f, m, now_us, &has_more, err) : FL_OK;
    if (st == FL_OK) st = speak(f, m, now_us, &spoke, err);
    if (st == FL_OK && (spoke || !m->has_event)) st = listen_to(f, m, now_us, &has_more, err);
    m->has_event = has_more;
    m->due_us = has_more ? 0 : stub_due_us(m->worker);
    return st;
}

/* ---- the loop ---- */

static void begin_farewell(fleet *f)
{
    f->is_stopping = true;
    for (uint32_t i = 0; i < f->n; i++) {
        stub_stop(f->members[i].worker, false);
        f->members[i].due_us = 0;
    }
}

static bool all_ended(const fleet *f)
{
    for (uint32_t i = 0; i < f->n; i++)
        if (!stub_ended(f->members[i].worker)) return false;
    return true;
}

static fl_status turn(fleet *f, int stop_fd, fl_err *err)
{
    struct epoll_event events[EVENTS_A_TURN];
    int64_t now_us = fl_boot_us(), next_us = now_us + 1000000;
    for (uint32_t i = 0; i < f->n; i++)
        if (f->members[i].due_us < next_us) next_us = f->members[i].due_us;
    int n = epoll_wait(f->epoll, events, EVENTS_A_TURN, next_us > now_us ? (int)((next_us - now_us + 999) / 1000) : 1);    /* 1: one that could not send tries again */
    if (n < 0 && errno != EINTR) return fl_fail_errno(err, errno, "stub workers: wait for messages");
    now_us = fl_boot_us();
    for (int i = 0; i < n; i++) {
        if (events[i].data.u32 != STOP_EVENT) {
            f->members[events[i].data.u32].due_us = 0;
            f->members[events[i].data.u32].has_event = true;
        } else if (epoll_ctl(f->epoll, EPOLL_CTL_DEL, stop_fd, NULL) == 0) {
            begin_farewell(f);
        }
    }
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->members[i].due_us > now_us) continue;
        fl_status st = tend(f, &f->members[i], fl_boot_us(), err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

fl_status stub_fleet_run(const char *endpoint, uint32_t n_workers, const stub_options *options, int stop_fd, fl_err *err)
{
    fleet f;
    int64_t until_us = 0;
    fl_status st = fleet_open(&f, endpoint, n_workers, options, stop_fd, err);
    while (st == FL_OK && !(f.is_stopping && (all_ended(&f) || fl_boot_us() > until_us))) {
        if (!f.is_stopping) until_us = fl_boot_us() + FAREWELL_US;
        st = turn(&f, stop_fd, err);
    }
    for (uint32_t i = 0; st == FL_OK && i < n_workers; i++) stub_account(f.members[i].worker);
    fleet_close(&f);
    return st;
}
