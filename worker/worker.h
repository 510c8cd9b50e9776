/* worker.h - the parent process of tokenfleet-worker: it holds the leases, its engine child (engine_child.h) does the work, so whatever happens to the engine the
 * coordinator is told. One loop over the coordinator's socket, the child's socket and stderr, and signals; nothing in it blocks.
 * Results  go from the child into the outbox and stay there until the coordinator answers them; a full outbox stops the reading of the child.
 * Contact  HELLO on each new connection, after three silent heartbeats and when the coordinator asks for it, with the leases still held; leases that WELCOME does not name are dropped. A heartbeat
 *          each WELCOME.beat_ms, whatever the engine does.
 * Engine   when the child ends, all it owed is handed back with how it ended, and it is started again after a pause that doubles up to 10 s.
 * Drain    SIGTERM, SIGINT or STOP: take nothing new, finish what was granted, after 20 s (or at a second signal) hand the rest back; empty the outbox, BYE, exit 0.
 * Grading  with the role grade the child is a grade_child.h, which makes verdicts; nothing else differs.
 * Threads  one. */
#ifndef WORKER_WORKER_H
#define WORKER_WORKER_H

#include "worker/worker_options.h"

/* Run until drained. Returns the exit status: 0 drained; 2 a refused endpoint; 3 the model cannot be opened, the engine does not stay up, or this machine
 * failed; with one sentence on stderr. */
int worker_main(const worker_options *options);

#endif
