/* child_loop.h - the loop of the processes behind a worker, which own an engine (engine_child.h) or grade (grade_child.h): messages of the starter in, work, beats out, until STOP, the end of
 * the stream or a failure. What differs between them is a child_kind.
 * Signals  SIGINT and SIGTERM are ignored: Ctrl-C reaches the whole terminal group, and who ends, and when, is the starter's decision, told by STOP or the end of the stream.
 * Threads  all of it on the thread that calls. */
#ifndef WORKER_CHILD_LOOP_H
#define WORKER_CHILD_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include "proto/arena.h"
#include "proto/wire.h"
#include "worker/worker_options.h"

/* One kind of child. `child` is the caller's; all functions are called with it. A function that fails ends the loop. */
typedef struct {
    const char *process_name, *log_name, *called;                /* "tokenfleet-eng", "engine", "an engine process" */
    fl_status (*open)(void *child, const worker_options *options, fl_err *err);          /* what it serves with; a failure is one of this machine or of what was asked */
    fl_status (*greet)(void *child, fl_err *err);                                        /* HELLO, and what goes with it */
    fl_status (*hear_job)(void *child, const wire_job *m, fl_err *err);
    fl_status (*hear_grant)(void *child, const wire_msg *m, fl_arena *arena, fl_err *err);       /* the lines lie in the arena until the next message */
    void      (*hear_revoke)(void *child, const wire_revoke *m);
    bool      (*is_busy)(const void *child);                     /* it owes something: it beats, and a drain waits for it */
    void      (*count)(void *child, wire_beat *beat);            /* the numbers of a beat; draining is filled in after it */
    int       (*wake)(const void *child, int64_t now_ms, int64_t *until_ms);     /* what else is slept on (-1: nothing); may make until_ms earlier: the sleep ends then, INT64_MAX never */
    fl_status (*work)(void *child, int64_t now_ms, fl_err *err); /* what is due, at most one step of it */
    int       (*failed)(fl_status st, const fl_err *err);        /* says on stderr why it stops; the exit status */
    void      (*close)(void *child);                             /* also after a failed open */
} child_kind;

/* Serve on options->serve_fd until it ends; returns the exit status. */
int child_loop_main(const child_kind *kind, void *child, const worker_options *options);

#endif
