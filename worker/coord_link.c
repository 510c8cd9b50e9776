/* coord_link.c - see coord_link.h. */
#include "worker/coord_link.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#define QUEUE_MESSAGES 256           /* each way; bytes are bounded by the outbox and by the granted rows */
#define RECONNECT_MS 50
#define RECONNECT_MS_MAX 1000
#define MONITOR_ENDPOINT "inproc://coordinator-connection"

struct coord_link {
    void *context, *socket, *monitor;        /* owned */
    bool is_up;
    zmq_msg_t frame;                         /* the message that was read last */
};

/* ---- endpoint ---- */

static bool is_loopback(const char *host, size_t n)
{
    return (n == 9 && memcmp(host, "localhost", 9) == 0) || (n == 5 && memcmp(host, "[::1]", 5) == 0) || (n > 4 && memcmp(host, "127.", 4) == 0 &&
           strspn(host, "0123456789.") == n);
}

fl_status coord_link_check(const char *endpoint, fl_err *err)
{
    if (strncmp(endpoint, "ipc://", 6) == 0 && endpoint[6]) {
        if (strlen(endpoint + 6) > 107) return fl_fail(err, FL_INVALID, "the path of %.160s is longer than the 107 bytes a socket may have", endpoint);
        return FL_OK;
    }
    const char *host = endpoint + 6, *colon = strrchr(endpoint, ':');
    if (strncmp(endpoint, "tcp://", 6) != 0 || !colon || colon <= host || !colon[1] || colon[1 + strspn(colon + 1, "0123456789")] || strlen(colon + 1) > 5)
        return fl_fail(err, FL_INVALID, "%.160s is not an endpoint: use tcp://127.0.0.1:PORT or ipc:///PATH", endpoint);
    if (!is_loopback(host, (size_t)(colon - host)))
        return fl_fail(err, FL_INVALID, "%.160s is off loopback: traffic between machines needs keys, which this release does not have; connect to 127.0.0.1 through a tunnel",
                       endpoint);
    return FL_OK;
}

/* ---- life ---- */

static fl_status zmq_failed(fl_err *err, const char *what)
{
    return fl_fail(err, FL_IO, "worker: %s: %s", what, zmq_strerror(zmq_errno()));
}

static fl_status set_int(void *socket, int option, int value, fl_err *err)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0 ? FL_OK : zmq_failed(err, "set up the socket");
}

static fl_status set_up(coord_link *link, const char *endpoint, fl_err *err)
{
    static const struct { int option, value; } options[] = {
        {ZMQ_IMMEDIATE, 1}, {ZMQ_SNDHWM, QUEUE_MESSAGES}, {ZMQ_RCVHWM, QUEUE_MESSAGES}, {ZMQ_LINGER, 0}, {ZMQ_RECONNECT_IVL, RECONNECT_MS},
        {ZMQ_RECONNECT_IVL_MAX, RECONNECT_MS_MAX}, {ZMQ_HEARTBEAT_IVL, 5000}, {ZMQ_HEARTBEAT_TIMEOUT, 15000}, {ZMQ_IPV6, 1},
    };
    int64_t largest = WIRE_BYTES_MAX;
    fl_status st = FL_OK;
    for (size_t i = 0; st == FL_OK && i < sizeof options / sizeof *options; i++) st = set_int(link->socket, options[i].option, options[i].value, err);
    if (st != FL_OK) return st;
    if (zmq_setsockopt(link->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest) != 0) return zmq_failed(err, "set up the socket");
    if (zmq_socket_monitor(link->socket, MONITOR_ENDPOINT, ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(link->monitor, MONITOR_ENDPOINT) != 0) return zmq_failed(err, "watch the connection");
    if (zmq_connect(link->socket, endpoint) != 0)
        return fl_fail(err, FL_IO, "worker: connect to %.200s: %s", endpoint, zmq_strerror(zmq_errno()));
    return FL_OK;
}

fl_status coord_link_open(coord_link **out, const char *endpoint, fl_err *err)
{
    fl_status st = coord_link_check(endpoint, err);
    if (st != FL_OK) return st;
    coord_link *link = calloc(1, sizeof *link);
    if (!link) return fl_fail(err, FL_FULL, "worker: no memory for the connection");
    zmq_msg_init(&link->frame);
    link->context = zmq_ctx_new();
    link->socket = link->context ? zmq_socket(link->context, ZMQ_DEALER) : NULL;
    link->monitor = link->context ? zmq_socket(link->context, ZMQ_PAIR) : NULL;
    if (!link->socket || !link->monitor) st = zmq_failed(err, "make a socket");
    else st = set_up(link, endpoint, err);
    if (st == FL_OK) *out = link;
    else coord_link_close(link, 0);
    return st;
}

void coord_link_close(coord_link *link, int linger_ms)
{
    if (!link) return;
    zmq_msg_close(&link->frame);
    if (link->socket) {
        zmq_setsockopt(link->socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms);
        zmq_socket_monitor(link->socket, NULL, 0);
        zmq_close(link->socket);
    }
    if (link->monitor) {
        int none = 0;
        zmq_setsockopt(link->monitor, ZMQ_LINGER, &none, sizeof none);
        zmq_close(link->monitor);
    }
    if (link->context) zmq_ctx_term(link->context);
    free(link);
}

void *coord_link_socket(coord_link *link)
{
    return link->socket;
}

void *coord_link_monitor(coord_link *link)
{
    return link->monitor;
}

/* ---- connection ---- */

/* A monitor event is two frames: u16 event and u32 value, then the address. */
bool coord_link_is_new(coord_link *link)
{
    bool is_new = false;
    for (;;) {
        uint8_t event[64];
        int n = zmq_recv(link->monitor, event, sizeof event, ZMQ_DONTWAIT);
        if (n < 0 && zmq_errno() == EINTR) continue;
        if (n < 0) return is_new;
        int more = 0;
        size_t size = sizeof more;
        uint16_t number = 0;
        if (n >= 2) memcpy(&number, event, sizeof number);
        while (zmq_getsockopt(link->monitor, ZMQ_RCVMORE, &more, &size) == 0 && more)
            if (zmq_recv(link->monitor, event, sizeof event, ZMQ_DONTWAIT) < 0) break;
        link->is_up = number == ZMQ_EVENT_HANDSHAKE_SUCCEEDED;
        is_new |= link->is_up;
    }
}

bool coord_link_is_up(const coord_link *link)
{
    return link->is_up;
}

/* ---- messages ---- */

fl_status coord_link_send(coord_link *link, const wire_msg *msg, fl_err *err)
{
    fl_arena arena;
    wire_packing p;
    zmq_msg_t frame;
    int n = -1;
    fl_arena_init(&arena, 4096, 0);
    fl_status st = wire_pack_begin(&p, msg, &arena, err);
    if (st == FL_OK && zmq_msg_init_size(&frame, p.n_bytes) != 0) st = fl_fail(err, FL_FULL, "worker: no memory for a message of %zu bytes", p.n_bytes);
    if (st == FL_OK) {
        wire_pack(&p, msg, zmq_msg_data(&frame));
        do n = zmq_msg_send(&frame, link->socket, ZMQ_DONTWAIT); while (n < 0 && zmq_errno() == EINTR);
        if (n < 0) {
            st = zmq_errno() == EAGAIN ? FL_AGAIN : zmq_failed(err, "send to the coordinator");
            zmq_msg_close(&frame);
        }
    }
    fl_arena_fini(&arena);
    return st;
}

fl_status coord_link_recv(coord_link *link, wire_msg *msg, fl_arena *arena, fl_err *err)
{
    int n;
    zmq_msg_close(&link->frame);
    zmq_msg_init(&link->frame);
    do n = zmq_msg_recv(&link->frame, link->socket, ZMQ_DONTWAIT); while (n < 0 && zmq_errno() == EINTR);
    if (n < 0) return zmq_errno() == EAGAIN ? FL_AGAIN : zmq_failed(err, "read from the coordinator");
    return wire_unpack(msg, zmq_msg_data(&link->frame), zmq_msg_size(&link->frame), arena, err);
}
