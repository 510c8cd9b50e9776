#include "coordinator/client.h"

#include <stdlib.h>
#include <string.h>
#include <zmq.h>
#include "coordinator/transport.h"
#include "proto/clock.h"

#define EVENTS_ENDPOINT "inproc://events"

struct client {
    void *context, *socket;              /* owned */
    void *events;                        /* owned; tells when the connection is lost: a request that was on its way is lost with it */
    char *endpoint;                      /* owned */
    uint64_t number;
    fl_arena arena;
};

fl_status client_open(client **out, const char *endpoint, fl_err *err)
{
    int linger = 0;
    int64_t largest = WIRE_BYTES_MAX;
    fl_status st = transport_check_endpoint(endpoint, err);
    if (st != FL_OK) return st;
    client *c = calloc(1, sizeof *c);
    if (!c) return fl_fail(err, FL_FULL, "no memory for a client");
    fl_arena_init(&c->arena, 64 * 1024, 0);
    c->endpoint = strdup(endpoint);
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    c->events = c->context ? zmq_socket(c->context, ZMQ_PAIR) : NULL;
    if (!c->endpoint || !c->socket || !c->events || zmq_setsockopt(c->socket, ZMQ_LINGER, &linger, sizeof linger) != 0 ||
        zmq_setsockopt(c->socket, ZMQ_MAXMSGSIZE, &largest, sizeof largest) != 0 || zmq_socket_monitor(c->socket, EVENTS_ENDPOINT, ZMQ_EVENT_DISCONNECTED) != 0 ||
        zmq_connect(c->events, EVENTS_ENDPOINT) != 0) {
        st = fl_fail(err, FL_FULL, "no socket for a client: %s", zmq_strerror(zmq_errno()));
    }
    if (st == FL_OK && zmq_connect(c->socket, endpoint) != 0) st = fl_fail(err, FL_IO, "cannot connect to %s: %s", endpoint, zmq_strerror(zmq_errno()));
    if (st == FL_OK) {
        *out = c;
        c = NULL;
    }
    client_close(c);
    return st;
}

void client_close(client *c)
{
    if (!c) return;
    if (c->socket) zmq_close(c->socket);
    if (c->events) zmq_close(c->events);
    if (c->context) zmq_ctx_term(c->context);
    fl_arena_fini(&c->arena);
    free(c->endpoint);
    free(c);
}

/* Take the events that are there: was the connection lost? */
static bool was_lost(client *c)
{
    bool lost = false;
    zmq_msg_t frame;
    zmq_msg_init(&frame);
    while (zmq_msg_recv(&frame, c->events, ZMQ_DONTWAIT) >= 0) lost = true;
    zmq_msg_close(&frame);
    return lost;
}

static fl_status send_request(client *c, const wire_msg *msg, fl_err *err)
{
    wire_packing p;
    zmq_msg_t frame;
    fl_status st = wire_pack_begin(&p, msg, &c->arena, err);
    if (st != FL_OK) return st;
    if (zmq_msg_init_size(&frame, p.n_bytes) != 0) return fl_fail(err, FL_FULL, "no memory to ask %s", c->endpoint);
    wire_pack(&p, msg, zmq_msg_data(&frame));
    if (zmq_msg_send(&frame, c->socket, ZMQ_DONTWAIT) >= 0) return FL_OK;
    st = fl_fail(err, FL_IO, "cannot send to %s: %s", c->endpoint, zmq_strerror(zmq_errno()));
    zmq_msg_close(&frame);
    return st;
}

/* Take over what a reply to `number` says; FL_AGAIN: it is another one's. */
static fl_status read_reply(client *c, zmq_msg_t *frame, uint64_t number, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err)
{
    wire_msg msg;
    json_error_t where;
    fl_status st = wire_unpack(&msg, zmq_msg_data(frame), zmq_msg_size(frame), &c->arena, err);
    if (st != FL_OK || msg.type != WIRE_REPLY) return fl_fail(err, FL_CORRUPT, "%s does not answer like a tokenfleet coordinator of this release", c->endpoint);
    if (msg.reply.number != number) return FL_AGAIN;
    json_t *json = json_loadb(msg.reply.json.p ? msg.reply.json.p : "", msg.reply.json.n, 0, &where);
    if (msg.reply.status != FL_OK) {
        const char *sentence = json_string_value(json_object_get(json, "error"));
        st = fl_fail(err, msg.reply.status < FL_STATUS_COUNT ? (fl_status)msg.reply.status : FL_IO, "%s", sentence ? sentence : "the coordinator refuses without a word");
        json_decref(json);
        return st;
    }
    if (!json_is_object(json)) {
        json_decref(json);
        return fl_fail(err, FL_CORRUPT, "%s answers without an object", c->endpoint);
    }
    if (part_out) {
        fl_bytes part = msg.n_parts ? msg.parts[0] : (fl_bytes){ 0 };
        *part_out = NULL;
        *part_bytes = part.bytes;
        if (msg.n_parts && !(*part_out = malloc(part.bytes ? part.bytes : 1))) {
            json_decref(json);
            return fl_fail(err, FL_FULL, "no memory for %zu bytes", part.bytes);
        }
        if (part.bytes) memcpy(*part_out, part.data, part.bytes);
    }
    *reply = json;
    return FL_OK;
}

static fl_status wait_reply(client *c, uint64_t number, int timeout_ms, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err)
{
    int64_t until = fl_boot_ms() + timeout_ms;
    for (int64_t left; (left = until - fl_boot_ms()) > 0; ) {
        zmq_pollitem_t items[] = { { .socket = c->socket, .events = ZMQ_POLLIN }, { .socket = c->events, .events = ZMQ_POLLIN } };
        zmq_msg_t frame;
        int n = zmq_poll(items, 2, left);
        if (n < 0 && zmq_errno() == EINTR) return fl_fail(err, FL_AGAIN, "interrupted while waiting for %s", c->endpoint);
        if (n <= 0) continue;
        zmq_msg_init(&frame);
        bool came = zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) >= 0;
        if (!came && was_lost(c)) {
            return fl_fail(err, FL_TIMEOUT, "the coordinator at %s ended before it answered; when it is back, `tokenfleet list` shows what was done", c->endpoint);
        }
        if (!came) continue;
        fl_status st = read_reply(c, &frame, number, reply, part_out, part_bytes, err);
        zmq_msg_close(&frame);
        if (st != FL_AGAIN || err->code == FL_AGAIN) return st;
    }
    return fl_fail(err, FL_TIMEOUT, "no coordinator answers at %s within %d s; is it running there?", c->endpoint, timeout_ms / 1000);
}

fl_status client_ask(client *c, const char *verb, json_t *args, const fl_bytes *part, uint64_t *number, fl_err *err)
{
    char *text = args ? json_dumps(args, JSON_COMPACT) : strdup("{}");
    json_decref(args);
    if (!text) return fl_fail(err, FL_INVALID, "an argument of '%s' is no text in UTF-8", verb);
    fl_arena_reset(&c->arena);
    wire_msg msg = { .type = WIRE_REQUEST, .n_parts = part ? 1 : 0, .parts = part,
                     .request = { .number = ++c->number, .verb = wire_text(verb), .args = wire_text(text) } };
    fl_status st = send_request(c, &msg, err);
    *number = c->number;
    free(text);
    return st;
}

fl_status client_answer(client *c, uint64_t number, int timeout_ms, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err)
{
    fl_arena_reset(&c->arena);
    err->code = FL_OK;
    return wait_reply(c, number, timeout_ms, reply, part_out, part_bytes, err);
}

fl_status client_call(client *c, const char *verb, json_t *args, const fl_bytes *part, int timeout_ms, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err)
{
    uint64_t number;
    was_lost(c);                                         /* a connection of before: this request goes out on the next one */
    fl_status st = client_ask(c, verb, args, part, &number, err);
    return st == FL_OK ? client_answer(c, number, timeout_ms, reply, part_out, part_bytes, err) : st;
}
