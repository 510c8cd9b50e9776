/* engine_peer.h - an engine, or a grader, of our own for a moment: `tokenfleet-worker --serve FD` beside this binary, asked over a socket pair (wire.h).
 * Threads  belongs to the thread that made it. */
#ifndef COORDINATOR_ENGINE_PEER_H
#define COORDINATOR_ENGINE_PEER_H

#include <stdint.h>
#include "proto/arena.h"
#include "proto/detok.h"
#include "proto/status.h"
#include "proto/wire.h"

typedef struct engine_peer engine_peer;

/* What the engine said of itself; strings are owned by the peer. */
typedef struct { const char *model, *fingerprint, *numerics; int32_t n_vocab; const fl_detok *detok; } engine_peer_info;

/* Start it on `model` (a path or "demo") with n_threads (0 = all cores) and wait until it has opened the model. A failure carries the engine's own sentence. */
fl_status engine_peer_open(engine_peer **out, const char *model, uint64_t n_threads, fl_err *err);
/* The same with one that grades n_slots samples at a time (0 = as many as there are cores) and says why beside each verdict; *credit: samples it wants to hold. */
fl_status engine_peer_open_grader(engine_peer **out, uint64_t n_slots, uint64_t *credit, fl_err *err);
const engine_peer_info *engine_peer_describe(const engine_peer *p);

/* Send one message; wait for the next one that is no heartbeat (it lives until the next call). FL_CLOSED when the engine ended, with its last words. */
fl_status engine_peer_send(engine_peer *p, const wire_msg *msg, fl_err *err);
fl_status engine_peer_recv(engine_peer *p, wire_msg *msg, fl_err *err);

/* End it and wait for it. Accepts NULL. */
void engine_peer_close(engine_peer *p);

#endif
