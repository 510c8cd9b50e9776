/* child_link.h - the worker's hold on its engine process: starting it, speaking with it without ever blocking, and saying how it ended.
 * Sends    are queued and written when the socket takes them; the queue is bounded by what the coordinator grants. It outlives the
 *          process: what is queued while none runs goes to the next one.
 * stderr   of the process comes through a pipe: passed on to our own, its last lines kept as its last words.
 * Life     the process dies with this one (PR_SET_PDEATHSIG), so the thread that starts it must live as long as the program.
 * Grading  a worker that grades has its grading process (grade_child.h) in the engine's place; all of this holds for it.
 * Threads  belongs to the worker's one thread. */
#ifndef WORKER_CHILD_LINK_H
#define WORKER_CHILD_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "proto/wire.h"
#include "worker/worker_options.h"

typedef struct child_link child_link;

fl_status child_link_open(child_link **out, const worker_options *options, fl_err *err);
void      child_link_close(child_link *link);            /* kills and reaps a process that still runs; accepts NULL */

fl_status child_link_start(child_link *link, fl_err *err);           /* none may run */
bool      child_link_runs(const child_link *link);
void      child_link_kill(child_link *link);             /* SIGKILL; its end is then seen by child_link_recv */

/* Call about each second while it runs and owes something. When `n_tokens` (all that it computed) stands still for limit_ms, it is ended (true, once). The end is evidence only when it
 * computed meanwhile (HUNG_CPU_PART): one that was stopped, or waited for a disk, did not hang by itself. */
void child_link_note_progress(child_link *link, int64_t now_ms);      /* it moved, or has nothing to do */
bool child_link_end_hung(child_link *link, int64_t now_ms, int64_t limit_ms);

/* Queue one message. */
fl_status child_link_send(child_link *link, const wire_msg *msg, fl_err *err);
void      child_link_clear(child_link *link);            /* forget what is queued */
bool      child_link_has_queued(const child_link *link);
fl_status child_link_flush(child_link *link, fl_err *err);           /* write what the socket takes now */

/* For poll: -1 when no process runs. */
int child_link_fd(const child_link *link);
int child_link_stderr_fd(const child_link *link);

/* Read what is there, then take messages one at a time. FL_AGAIN: none is whole yet. FL_CLOSED: the process ended (or its stream is broken, and then it was
 * killed); child_link_reap comes next. `msg` borrows from the link until its next call. */
fl_status child_link_recv(child_link *link, wire_msg *msg, fl_arena *arena, fl_err *err);
void      child_link_read_stderr(child_link *link);

typedef struct {
    int signal_number;               /* 0 when it exited by itself */
    int exit_status;
    bool is_evidence;                /* it ended itself (DESIGN.md section 6): whatever it did alone is to blame */
    char sentence[160];              /* "the engine process was ended by SIGSEGV" */
    char words[301];                 /* the end of what it printed, "" when nothing: with the sentence in front it is a message's text (HANDBACK) */
    char last_line[480];             /* its last line alone */
} child_end;

/* After FL_CLOSED: wait for the process, which is no more. Its descriptors are closed and half messages forgotten. */
void child_link_reap(child_link *link, child_end *end);

#endif
