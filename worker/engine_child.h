/* engine_child.h - the process that owns the engine: `tokenfleet-worker --serve FD`. It speaks wire.h with whoever started it (the worker's
 * parent process, or a command of tokenfleet) over one end of a socket pair, so a crash of the engine never takes the leases with it.
 * Says     HELLO (model, numerics id, credits; worker 0) and DETOK at once; then RESULT in pieces of at most ENGINE_CHILD_PIECE_BYTES,
 *          ROW_ERROR once a granted row, HANDBACK with WIRE_HAND_NO_ROOM for rows it has no room for, BEAT about each second while it works and when
 *          it falls idle.
 * Takes    JOB (once a job; the first one counts), GRANT, REVOKE, STOP: drain 1 finishes what was granted, drain 0 forgets it; both then exit.
 * Ends     exit status 0 after STOP or at the end of the stream; 3 when the model cannot be opened, 5 when a memory limit of this
 *          process (ulimit) refused it memory, 6 when a kernel failed on the GPU (named in the sentence; the process cannot use it any more), and 1 when the engine failed otherwise, each with one
 *          sentence on stderr.
 * Memory   the engine's plan, plus lines and token ids of the rows granted: what the starter grants bounds it.
 * Threads  the engine thread (this one), one that prepares rows (row_prep.h), and the engine's own. */
#ifndef WORKER_ENGINE_CHILD_H
#define WORKER_ENGINE_CHILD_H

#include <stdint.h>
#include "worker/worker_options.h"

#define ENGINE_CHILD_PIECE_BYTES (4u * 1024 * 1024)
#define ENGINE_CHILD_CREDIT_BYTES (32u * 1024 * 1024)    /* results that its starter keeps unanswered at most */

/* Serve on options->serve_fd until it ends; returns the exit status. */
int engine_child_main(const worker_options *options);

#endif
