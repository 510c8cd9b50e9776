/* stub_fleet.h - many stub workers (stub_worker.h) on one thread, each with a DEALER socket and an identity of its own, as real workers have.
 * Threads  the caller's, and libzmq's one I/O thread. Call it in a process of its own, so that its CPU time stands apart. */
#ifndef COORDINATOR_STUB_FLEET_H
#define COORDINATOR_STUB_FLEET_H

#include "coordinator/stub_worker.h"

#define STUB_FILES_A_WORKER 3            /* descriptors that one of them takes: its socket's event, its connection, room for a reconnect */

/* Connect n_workers to `endpoint` and serve until `stop_fd` can be read or its other end is closed; then every worker hands back what it holds and says
 * good-bye. FL_IO, FL_FULL: no socket or memory. FL_CORRUPT: the coordinator broke the protocol. */
fl_status stub_fleet_run(const char *endpoint, uint32_t n_workers, const stub_options *options, int stop_fd, fl_err *err);

#endif
