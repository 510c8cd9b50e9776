/* transport.h - the coordinator's one socket: a ZeroMQ ROUTER on which workers and clients speak wire.h.
 * Rules    a send never blocks: a peer that is gone (FL_CLOSED) or whose queue is full (FL_AGAIN) is an ordinary answer. How much a worker may have
 *          under way is settled by the protocol's credits; the queue limit only bounds memory. Nothing is dropped silently
 *          (ROUTER_MANDATORY). A frame above WIRE_BYTES_MAX_UP ends the peer's connection inside libzmq.
 * Threads  a socket lives and dies on one thread. */
#ifndef COORDINATOR_TRANSPORT_H
#define COORDINATOR_TRANSPORT_H

#include <stdbool.h>
#include <stdint.h>
#include "coordinator/queue_figures.h"
#include "proto/wire.h"

typedef struct transport transport;

/* Who is at the other end of one connection; new with each reconnect. `n` 0 is nobody. */
#define TRANSPORT_PEER_BYTES_MAX 32
typedef struct { uint8_t n; uint8_t bytes[TRANSPORT_PEER_BYTES_MAX]; } transport_peer;
bool transport_peer_equal(const transport_peer *a, const transport_peer *b);

/* Refuse an endpoint that is neither ipc:// nor tcp:// on loopback (FL_INVALID, with the sentence), or is malformed. */
fl_status transport_check_endpoint(const char *endpoint, fl_err *err);

/* Bind `endpoint` (checked as above) and allow as many open files as the system lets us. FL_CONFLICT: in use. */
fl_status transport_open(transport **out, const char *endpoint, fl_err *err);
void      transport_close(transport *t);                 /* accepts NULL; what was sent gets up to a second to leave */
const char *transport_endpoint(const transport *t);      /* where it is bound, port 0 resolved */

/* Wait until a message can be read, at most timeout_ms. *ready false after the time or a signal. */
fl_status transport_wait(transport *t, int timeout_ms, bool *ready, fl_err *err);

/* Read one message; it borrows from the transport until the next call and from `arena`. FL_AGAIN: none there. FL_CORRUPT: `from` sent
 * something that is no message of ours; the next one may be read. */
fl_status transport_recv(transport *t, transport_peer *from, wire_msg *msg, fl_arena *arena, fl_err *err);

/* FL_CLOSED: the peer is gone. FL_AGAIN: its queue is full (TRANSPORT_UNSENT_BYTES_MAX, or 4,096 messages); nothing was sent. */
#define TRANSPORT_UNSENT_BYTES_MAX (96u << 20)           /* all lines that a worker may hold (COORD_LINE_BYTES) and plenty of answers; one message goes beyond it */
fl_status transport_send(transport *t, const transport_peer *to, const wire_msg *msg, fl_err *err);

/* Bytes of messages to the peer that its connection has not taken. */
size_t transport_unsent(const transport *t, const transport_peer *to);

queue_figures transport_queue(const transport *t);       /* unsent bytes to one peer: the one with the most of them now, and so far */

#endif
