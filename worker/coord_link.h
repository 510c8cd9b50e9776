/* coord_link.h - the worker's one socket: a ZeroMQ DEALER that is connected to the coordinator's ROUTER and speaks wire.h.
 * Rules    a send never blocks and is never queued for a connection that does not exist yet: while the coordinator is away every send says FL_AGAIN, and
 *          when it is back coord_link_is_new says so, because then HELLO comes before everything else.
 * Threads  a socket lives and dies on one thread. */
#ifndef WORKER_COORD_LINK_H
#define WORKER_COORD_LINK_H

#include <stdbool.h>
#include "proto/wire.h"

typedef struct coord_link coord_link;

/* FL_INVALID with a sentence: not ipc://PATH or tcp://HOST:PORT, or a host off loopback (traffic between machines needs keys, which this release does not have). */
fl_status coord_link_check(const char *endpoint, fl_err *err);

/* Connect; the coordinator need not be there yet. */
fl_status coord_link_open(coord_link **out, const char *endpoint, fl_err *err);
void      coord_link_close(coord_link *link, int linger_ms);         /* what was sent gets so long to leave; accepts NULL */

/* For zmq_poll: the socket itself, and the one that reports connections (readable: call coord_link_is_new). */
void *coord_link_socket(coord_link *link);
void *coord_link_monitor(coord_link *link);

bool coord_link_is_new(coord_link *link);                /* a connection was made since the last call */
bool coord_link_is_up(const coord_link *link);           /* as of the last coord_link_is_new */

fl_status coord_link_send(coord_link *link, const wire_msg *msg, fl_err *err);       /* FL_AGAIN: not connected, or its queue is full */

/* FL_AGAIN: nothing there. FL_CORRUPT: what came is no message of ours; the next may be read. `msg` borrows from the link until the next call, and from `arena`. */
fl_status coord_link_recv(coord_link *link, wire_msg *msg, fl_arena *arena, fl_err *err);

#endif
