/* client.h - asking a coordinator (service.h) over its socket: one request, one reply.
 * Threads  a client belongs to one thread. */
#ifndef COORDINATOR_CLIENT_H
#define COORDINATOR_CLIENT_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/frame.h"
#include "proto/status.h"

typedef struct client client;

/* Connecting cannot fail for want of a peer: the first call tells. FL_INVALID: no endpoint of ours (transport_check_endpoint). */
fl_status client_open(client **out, const char *endpoint, fl_err *err);
void      client_close(client *c);                       /* accepts NULL */

/* Ask. args is consumed (NULL = none); part may be NULL. FL_OK: *reply (the caller owns it) and, where part_out is given, the reply's part (malloc'ed,
 * NULL when there is none). FL_TIMEOUT: no answer in timeout_ms, or the coordinator ended meanwhile. Other failures are the coordinator's own, with its
 * sentence. */
fl_status client_call(client *c, const char *verb, json_t *args, const fl_bytes *part, int timeout_ms, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err);

/* The same in two steps, so that several requests are under way: ask sends, answer waits for the reply with that number. Answers come in the order of the requests and
 * must be waited for in it. */
fl_status client_ask(client *c, const char *verb, json_t *args, const fl_bytes *part, uint64_t *number, fl_err *err);
fl_status client_answer(client *c, uint64_t number, int timeout_ms, json_t **reply, uint8_t **part_out, size_t *part_bytes, fl_err *err);

#endif
