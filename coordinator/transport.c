#include "coordinator/transport.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>
#include "proto/log.h"

#define ENDPOINT_BYTES_MAX 256
#define QUEUE_MESSAGES 4096                              /* a peer that reads nothing may hold so many */
#ifndef ZMQ_ZERO_COPY_RECV
#define ZMQ_ZERO_COPY_RECV 10                            /* zmq.h shows it to draft builds only; the library has it since 4.2 */
#endif

struct transport {
    void *context, *socket;                              /* owned */
    char endpoint[ENDPOINT_BYTES_MAX];
    zmq_msg_t *frames;                                   /* owned [capacity]; the message that was read last, in n_frames frames */
    fl_bytes *parts;                                     /* owned [capacity] */
    uint32_t n_frames, capacity;
    fl_arena scratch;                                    /* headers being sent */
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
    fl_arena_init(&t->scratch, 64 * 1024, 0);
    t->context = zmq_ctx_new();
    /* A message that borrows from libzmq's receive buffer keeps all 8 KB of it: twenty times the bytes of a short result that waits to be read. */
    if (t->context && zmq_ctx_set(t->context, ZMQ_ZERO_COPY_RECV, 0) != 0) fl_log(FL_LOG_INFO, "this libzmq keeps 8 KB for each message that waits: %s", zmq_strerror(zmq_errno()));
    t->socket = t->context ? zmq_socket(t->context, ZMQ_ROUTER) : NULL;
    if (!t->socket) { st = fl_fail(err, FL_FULL, "transport: ZeroMQ gives no socket: %s", zmq_strerror(zmq_errno())); goto done; }
    if ((st = set_int(t->socket, ZMQ_ROUTER_MANDATORY, 1, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_SNDHWM, QUEUE_MESSAGES, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_RCVHWM, QUEUE_MESSAGES, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_LINGER, 1000, err)) != FL_OK) goto done;
    if ((st = set_int(t->socket, ZMQ_IPV6, strncmp(endpoint, "tcp://[", 7) == 0, err)) != FL_OK) goto done;
    int64_t largest = FL_FRAME_PAYLOAD_MAX;
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

static void drop_frames(transport *t)
{
    for (uint32_t i = 0; i < t->n_frames; i++) zmq_msg_close(&t->frames[i]);
    t->n_frames = 0;
}

void transport_close(transport *t)
{
    if (!t) return;
    drop_frames(t);
    if (t->socket) zmq_close(t->socket);
    if (t->context) zmq_ctx_term(t->context);
    fl_arena_fini(&t->scratch);
    free(t->frames);
    free(t->parts);
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

static fl_status grow_frames(transport *t, fl_err *err)
{
    if (t->n_frames < t->capacity) return FL_OK;
    uint32_t capacity = t->capacity ? t->capacity * 2 : 64;
    zmq_msg_t *frames = malloc(capacity * sizeof *frames);
    fl_bytes *parts = malloc(capacity * sizeof *parts);
    if (!frames || !parts) {
        free(frames);
        free(parts);
        return fl_fail(err, FL_FULL, "transport: no memory for a message of %u frames", capacity);
    }
    for (uint32_t i = 0; i < t->n_frames; i++) {         /* a zmq_msg_t may not be moved by memcpy */
        zmq_msg_init(&frames[i]);
        zmq_msg_move(&frames[i], &t->frames[i]);
    }
    free(t->frames);
    free(t->parts);
    t->frames = frames;
    t->parts = parts;
    t->capacity = capacity;
    return FL_OK;
}

/* Read frames until the message ends; those beyond the most a message may have are read and dropped. */
static fl_status read_frames(transport *t, bool *too_many, fl_err *err)
{
    *too_many = false;
    for (int more = 1; more; ) {
        fl_status st = grow_frames(t, err);
        if (st != FL_OK) return st;
        zmq_msg_t *frame = &t->frames[t->n_frames];
        zmq_msg_init(frame);
        if (zmq_msg_recv(frame, t->socket, ZMQ_DONTWAIT) < 0) {
            int error = zmq_errno();
            zmq_msg_close(frame);
            if (error == EAGAIN || error == EINTR) return FL_AGAIN;
            return fl_fail(err, FL_IO, "transport: reading a message: %s", zmq_strerror(error));
        }
        more = zmq_msg_more(frame);
        if (t->n_frames < WIRE_PARTS_MAX + 2) {
            t->n_frames++;
        } else {
            *too_many = true;
            zmq_msg_close(frame);
        }
    }
    return FL_OK;
}

fl_status transport_recv(transport *t, transport_peer *from, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    bool too_many = false;
    drop_frames(t);
    from->n = 0;
    fl_status st = read_frames(t, &too_many, err);
    if (st != FL_OK) return st;
    size_t n_id = zmq_msg_size(&t->frames[0]);
    if (n_id == 0 || n_id > TRANSPORT_PEER_BYTES_MAX) return fl_fail(err, FL_CORRUPT, "transport: a peer with a routing id of %zu bytes", n_id);
    from->n = (uint8_t)n_id;
    memcpy(from->bytes, zmq_msg_data(&t->frames[0]), n_id);
    if (too_many || t->n_frames < 2) return fl_fail(err, FL_CORRUPT, "transport: a message of %s frames", too_many ? "too many" : "no");
    for (uint32_t i = 2; i < t->n_frames; i++) t->parts[i - 2] = (fl_bytes){ zmq_msg_data(&t->frames[i]), zmq_msg_size(&t->frames[i]) };
    return wire_decode(msg, zmq_msg_data(&t->frames[1]), zmq_msg_size(&t->frames[1]), t->parts, t->n_frames - 2, arena, err);
}

static fl_status send_frame(transport *t, const void *data, size_t n_bytes, int flags, fl_err *err)
{
    while (zmq_send(t->socket, data, n_bytes, flags | ZMQ_DONTWAIT) < 0) {
        int error = zmq_errno();
        if (error == EINTR) continue;
        if (error == EAGAIN) return fl_fail(err, FL_AGAIN, "transport: the peer's queue is full");
        if (error == EHOSTUNREACH) return fl_fail(err, FL_CLOSED, "transport: the peer is gone");
        return fl_fail(err, FL_IO, "transport: sending: %s", zmq_strerror(error));
    }
    return FL_OK;
}

fl_status transport_send(transport *t, const transport_peer *to, const wire_msg *msg, fl_err *err)
{
    const uint8_t *header = NULL;
    size_t n_bytes = 0;
    fl_arena_reset(&t->scratch);
    fl_status st = wire_encode(msg, &t->scratch, &header, &n_bytes, err);
    if (st != FL_OK) return st;
    if ((st = send_frame(t, to->bytes, to->n, ZMQ_SNDMORE, err)) != FL_OK) return st;
    /* Behind the first frame the message is admitted as a whole: the frames that follow find the same pipe. */
    if ((st = send_frame(t, header, n_bytes, msg->n_parts ? ZMQ_SNDMORE : 0, err)) != FL_OK) return st;
    for (uint32_t i = 0; i < msg->n_parts; i++) {
        st = send_frame(t, msg->parts[i].data, msg->parts[i].bytes, i + 1 < msg->n_parts ? ZMQ_SNDMORE : 0, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}
