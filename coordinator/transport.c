#include "coordinator/transport.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <xxhash.h>
#include <zmq.h>
#include "coordinator/id_map.h"
#include "proto/log.h"

#define ENDPOINT_BYTES_MAX 256
#define QUEUE_MESSAGES 4096                              /* a peer that reads nothing may hold so many, of at most TRANSPORT_UNSENT_BYTES_MAX in all */
#define INBOX_MESSAGES 256                               /* of one peer that were not read yet: behind them its connection waits. As many as a worker's own queue has */
#ifndef ZMQ_ZERO_COPY_RECV
#define ZMQ_ZERO_COPY_RECV 10                            /* zmq.h shows it to draft builds only; the library has it since 4.2 */
#endif

/* What waits for one peer inside libzmq. */
typedef struct { uint64_t key; atomic_size_t n_bytes, n_messages; } peer_queue;

/* A message on its way, in memory that libzmq gives back. */
typedef struct { peer_queue *to; size_t n_bytes; uint8_t data[]; } outgoing;

struct transport {
    void *context, *socket;                              /* owned */
    char endpoint[ENDPOINT_BYTES_MAX];
    zmq_msg_t frame;                                     /* the message that was read last */
    fl_arena scratch;                                    /* headers being sent */
    peer_queue **queues; size_t n_queues, queues_capacity;           /* owned */
    id_map queue_of;                                     /* from queue_key */
    size_t most_bytes;                                   /* so far, in one of them */
};

bool transport_peer_equal(const transport_peer *a, const transport_peer *b)
{
    return a->n == b->n && memcmp(a->bytes, b->bytes, a->n) == 0;
}

/* Each peer takes a descriptor: raise the soft limit of open files to the hard one, and say how many fit. */
static void raise_file_limit(void)
{
    struct rlimit limit = { 0 };
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    struct rlimit raised = { limit.rlim_max, limit.rlim_max };
    if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    fl_log(FL_LOG_INFO, "%llu open files are allowed: about so many workers and clients fit", (unsigned long long)limit.rlim_cur);
}

static bool is_loopback(const char *host, size_t n_bytes)
{
    return (n_bytes > 4 && memcmp(host, "127.", 4) == 0) || (n_bytes == 9 && memcmp(host, "localhost", 9) == 0) ||
           (n_bytes == 5 && memcmp(host, "[::1]", 5) == 0);
}

fl_status transport_check_endpoint(const char *endpoint, fl_err *err)
{
    if (strlen(endpoint) >= ENDPOINT_BYTES_MAX) return fl_fail(err, FL_INVALID, "the endpoint is longer than %d bytes", ENDPOINT_BYTES_MAX - 1);
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        size_t n = strlen(endpoint + 6);
        if (n == 0 || n >= sizeof ((struct sockaddr_un *)0)->sun_path) {
            return fl_fail(err, FL_INVALID, "%s: the path of an ipc endpoint has 1 to %zu bytes, this one has %zu", endpoint, sizeof ((struct sockaddr_un *)0)->sun_path - 1, n);
        }
        return FL_OK;
    }
    if (strncmp(endpoint, "tcp://", 6) != 0) {
        return fl_fail(err, FL_INVALID, "'%s' is no endpoint; give tcp://127.0.0.1:PORT or ipc:///path", endpoint);
    }
    const char *host = endpoint + 6, *colon = strrchr(host, ':');
    char *end = NULL;
    unsigned long port = colon && colon[1] ? strtoul(colon + 1, &end, 10) : 65536;
    if (!colon || colon == host || port > 65535 || !end || *end) {
        return fl_fail(err, FL_INVALID, "'%s' is no endpoint; give tcp://HOST:PORT with a port from 0 to 65535", endpoint);
    }
    if (!is_loopback(host, (size_t)(colon - host))) {
        return fl_fail(err, FL_INVALID, "%s is not a loopback address, and this release cannot yet encrypt and authenticate connections: use tcp://127.0.0.1:PORT, and an SSH tunnel between machines", endpoint);
    }
    return FL_OK;
}

static fl_status set_int(void *socket, int option, int value, fl_err *err)
{
    if (zmq_setsockopt(socket, option, &value, sizeof value) == 0) return FL_OK;
    return fl_fail(err, FL_IO, "transport: ZeroMQ refuses option %d: %s", option, zmq_strerror(zmq_errno()));
}

/* ZeroMQ removes whatever lies at an ipc path before it binds. Only a socket that nobody listens on any more may go. */
static fl_status check_ipc_path(const char *endpoint, fl_err *err)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct stat at;
    snprintf(address.sun_path, sizeof address.sun_path, "%s", endpoint + strlen("ipc://"));
    if (lstat(address.sun_path, &at) != 0) return FL_OK;             /* nothing there, or the bind says what is wrong */
    if (!S_ISSOCK(at.st_mode)) return fl_fail(err, FL_CONFLICT, "%s exists and is no socket: choose another endpoint", address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) return fl_fail_errno(err, errno, "transport: no socket to examine %s", address.sun_path);
    bool is_left_behind = connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 && errno == ECONNREFUSED;
    close(fd);
    return is_left_behind ? FL_OK : fl_fail(err, FL_CONFLICT, "%s is in use by another program: stop it, or choose another endpoint", endpoint);
}

static fl_status bind_socket(transport *t, const char *endpoint, fl_err *err)
{
    fl_status st = strncmp(endpoint, "ipc://", 6) == 0 ? check_ipc_path(endpoint, err) : FL_OK;
    if (st != FL_OK) return st;
    if (zmq_bind(t->socket, endpoint) != 0) {
        int error = zmq_errno();
        if (error == EADDRINUSE) return fl_fail(err, FL_CONFLICT, "%s is in use by another program: stop it, or choose another endpoint", endpoint);
        return fl_fail(err, FL_IO, "cannot listen on %s: %s", endpoint, zmq_strerror(error));
    }
    size_t n = sizeof t->endpoint;
    if (zmq_getsockopt(t->socket, ZMQ_LAST_ENDPOINT, t->endpoint, &n) != 0) {
        return fl_fail(err, FL_IO, "transport: no address after binding %s: %s", endpoint, zmq_strerror(zmq_errno()));
    }
    return FL_OK;
}

fl_status transport_open(transport **out, const char *endpoint, fl_err *err)
{
    fl_status st = transport_check_endpoint(endpoint, err);
    if (st != FL_OK) return st;
    raise_file_limit();
    transport *t = calloc(1, sizeof *t);
    if (!t) return fl_fail(err, FL_FULL, "transport: no memory");
    zmq_msg_init(&t->frame);
    fl_arena_init(&t->scratch, 64 * 1024, 0);
    t->context = zmq_ctx_new();
    /* A message that borrows from libzmq's receive buffer keeps all 8 KB of it: twenty times the bytes of a short result that waits to be read. */
    if (t->context && zmq_ctx_set(t->context, ZMQ_ZERO_COPY_RECV, 0) != 0) fl_log(FL_LOG_INFO, "this libzmq keeps 8 KB for each message that waits: %s", zmq_strerror(zmq_errno()));
    t->socket = t->context ? zmq_socket(t->context, ZMQ_ROUTER) : NULL;
    if (!t->socket) { st = fl_fail(err, FL_FULL, "transport: ZeroMQ gives no socket: %s", zmq_strerror(zmq_errno())); goto done; }
    if ((st = set_int(t->socket, ZMQ_ROUTER_MANDATORY, 1, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_SNDHWM, QUEUE_MESSAGES, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_RCVHWM, INBOX_MESSAGES, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_LINGER, 1000, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_IPV6, strncmp(endpoint, "tcp://[", 7) == 0, err)) != FL_OK) goto done;
    int64_t largest = WIRE_BYTES_MAX_UP;
    if (zmq_setsockopt(t->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest) != 0) {
        st = fl_fail(err, FL_IO, "transport: ZeroMQ refuses a frame limit: %s", zmq_strerror(zmq_errno()));
        goto done;
    }
    if ((st = bind_socket(t, endpoint, err)) != FL_OK) goto done;
    *out = t;
    t = NULL;
done:
    transport_close(t);
    return st;
}

void transport_close(transport *t)
{
    if (!t) return;
    zmq_msg_close(&t->frame);
    if (t->socket) zmq_close(t->socket);
    if (t->context) zmq_ctx_term(t->context);            /* gives every message back */
    fl_arena_fini(&t->scratch);
    for (size_t i = 0; i < t->n_queues; i++) free(t->queues[i]);
    free(t->queues);
    id_map_fini(&t->queue_of);
    free(t);
}

const char *transport_endpoint(const transport *t)
{
    return t->endpoint;
}

fl_status transport_wait(transport *t, int timeout_ms, bool *ready, fl_err *err)
{
    zmq_pollitem_t item = { .socket = t->socket, .events = ZMQ_POLLIN };
    int n = zmq_poll(&item, 1, timeout_ms);
    *ready = n > 0;
    if (n < 0 && zmq_errno() != EINTR) return fl_fail(err, FL_IO, "transport: waiting for messages: %s", zmq_strerror(zmq_errno()));
    return FL_OK;
}

/* Read a message's frames: the peer's routing id, what it sent, and, from what is no peer of this release, others, which are dropped. */
static fl_status read_frames(transport *t, zmq_msg_t *id, bool *has_more, fl_err *err)
{
    *has_more = false;
    if (zmq_msg_recv(id, t->socket, ZMQ_DONTWAIT) < 0) {
        int error = zmq_errno();
        return error == EAGAIN || error == EINTR ? FL_AGAIN : fl_fail(err, FL_IO, "transport: reading a message: %s", zmq_strerror(error));
    }
    for (int n = 0, more = zmq_msg_more(id); more; n++) {
        zmq_msg_t extra, *frame = n == 0 ? &t->frame : &extra;
        zmq_msg_init(&extra);
        if (zmq_msg_recv(frame, t->socket, ZMQ_DONTWAIT) < 0) return fl_fail(err, FL_IO, "transport: reading a message: %s", zmq_strerror(zmq_errno()));
        more = zmq_msg_more(frame);
        *has_more |= more != 0;
        zmq_msg_close(&extra);
    }
    return FL_OK;
}

fl_status transport_recv(transport *t, transport_peer *from, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    zmq_msg_t id;
    bool has_more = false;
    from->n = 0;
    zmq_msg_init(&id);
    zmq_msg_close(&t->frame);
    zmq_msg_init(&t->frame);
    fl_status st = read_frames(t, &id, &has_more, err);
    size_t n_id = zmq_msg_size(&id);
    if (st == FL_OK && (n_id == 0 || n_id > TRANSPORT_PEER_BYTES_MAX)) st = fl_fail(err, FL_CORRUPT, "transport: a peer with a routing id of %zu bytes", n_id);
    if (st == FL_OK) {
        from->n = (uint8_t)n_id;
        memcpy(from->bytes, zmq_msg_data(&id), n_id);
        st = wire_unpack(msg, zmq_msg_data(&t->frame), zmq_msg_size(&t->frame), arena, err);     /* a peer of the release that sent several frames is told so by its version */
    }
    if (st == FL_OK && has_more) st = fl_fail(err, FL_CORRUPT, "transport: a message of several frames");
    zmq_msg_close(&id);
    return st;
}

/* ---- sending ---- */

/* ZeroMQ is done with a message: it was written to the connection, or the connection is gone. On any thread of libzmq. */
static void take_off(void *data, void *hint)
{
    outgoing *o = hint;
    (void)data;
    atomic_fetch_sub(&o->to->n_bytes, o->n_bytes);
    atomic_fetch_sub(&o->to->n_messages, 1);
    free(o);
}

static uint64_t queue_key(const transport_peer *peer)
{
    uint64_t key = XXH3_64bits(peer->bytes, peer->n);
    return key ? key : 1;
}

/* Forget the queues in which nothing waits: their peers are gone, or get a new one with the next message. */
static void forget_empty(transport *t)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < t->n_queues; i++) {
        peer_queue *q = t->queues[i];
        if (atomic_load(&q->n_messages)) {
            t->queues[n_kept++] = q;
            continue;
        }
        id_map_remove(&t->queue_of, q->key);
        free(q);
    }
    t->n_queues = n_kept;
}

static peer_queue *queue_to(transport *t, const transport_peer *to)
{
    uint64_t key = queue_key(to);
    peer_queue *q = id_map_get(&t->queue_of, key);
    if (q) return q;
    if (t->n_queues == t->queues_capacity) forget_empty(t);
    if (t->n_queues * 2 >= t->queues_capacity) {         /* grow where half of them are in use, so that forgetting is rare */
        size_t capacity = t->queues_capacity ? t->queues_capacity * 2 : 64;
        peer_queue **grown = realloc(t->queues, capacity * sizeof *grown);
        if (!grown) return NULL;
        t->queues = grown;
        t->queues_capacity = capacity;
    }
    if (!(q = calloc(1, sizeof *q))) return NULL;
    q->key = key;
    id_map_put(&t->queue_of, key, q);
    t->queues[t->n_queues++] = q;
    return q;
}

size_t transport_unsent(const transport *t, const transport_peer *to)
{
    const peer_queue *q = id_map_get(&t->queue_of, queue_key(to));
    return q ? atomic_load(&q->n_bytes) : 0;
}

queue_figures transport_queue(const transport *t)
{
    queue_figures f = { .high_water = t->most_bytes, .capacity = TRANSPORT_UNSENT_BYTES_MAX };
    for (size_t i = 0; i < t->n_queues; i++) {
        size_t n_bytes = atomic_load(&t->queues[i]->n_bytes);
        if (n_bytes > f.depth) f.depth = n_bytes;
    }
    return f;
}

/* The message in memory that is counted until ZeroMQ gives it back. */
static fl_status pack(transport *t, const wire_msg *msg, peer_queue *q, zmq_msg_t *frame, fl_err *err)
{
    wire_packing p;
    fl_arena_reset(&t->scratch);
    fl_status st = wire_pack_begin(&p, msg, &t->scratch, err);
    if (st != FL_OK) return st;
    outgoing *o = malloc(sizeof *o + p.n_bytes);
    if (!o || zmq_msg_init_data(frame, o->data, p.n_bytes, take_off, o) != 0) {
        free(o);
        return fl_fail(err, FL_FULL, "transport: no memory for a message of %zu bytes", p.n_bytes);
    }
    o->to = q;
    o->n_bytes = p.n_bytes;
    wire_pack(&p, msg, o->data);
    size_t waiting = atomic_fetch_add(&q->n_bytes, p.n_bytes) + p.n_bytes;
    atomic_fetch_add(&q->n_messages, 1);
    if (waiting > t->most_bytes) t->most_bytes = waiting;
    return FL_OK;
}

static fl_status send_failed(fl_err *err)
{
    int error = zmq_errno();
    if (error == EAGAIN) return fl_fail(err, FL_AGAIN, "transport: the peer's queue is full");
    if (error == EHOSTUNREACH) return fl_fail(err, FL_CLOSED, "transport: the peer is gone");
    return fl_fail(err, FL_IO, "transport: sending: %s", zmq_strerror(error));
}

/* Two frames for libzmq, of which the first, the routing id, never leaves this process. A connection that ends between the two calls is no danger: the ROUTER then drops
 * the second frame. Nor does it abort while it reads from one that ends (fq.cpp: !_more): the id it hands out first is its own, and the message behind it is one frame. */
fl_status transport_send(transport *t, const transport_peer *to, const wire_msg *msg, fl_err *err)
{
    zmq_msg_t frame;
    int n;
    peer_queue *q = queue_to(t, to);
    if (!q) return fl_fail(err, FL_FULL, "transport: no memory for a peer's queue");
    if (atomic_load(&q->n_bytes) >= TRANSPORT_UNSENT_BYTES_MAX) return fl_fail(err, FL_AGAIN, "transport: the peer's queue is full");
    fl_status st = pack(t, msg, q, &frame, err);
    if (st != FL_OK) return st;
    do n = zmq_send(t->socket, to->bytes, to->n, ZMQ_SNDMORE | ZMQ_DONTWAIT); while (n < 0 && zmq_errno() == EINTR);
    if (n >= 0) do n = zmq_msg_send(&frame, t->socket, ZMQ_DONTWAIT); while (n < 0 && zmq_errno() == EINTR);
    if (n >= 0) return FL_OK;
    st = send_failed(err);
    zmq_msg_close(&frame);
    return st;
}
