/* grade_child.h - the process that grades: `tokenfleet-worker --roles grade --serve FD`. It speaks wire.h with whoever started it, as engine_child.h does: the worker's parent
 * process, or `tokenfleet grade`.
 * Says     HELLO (grades 1, credit_tokens in samples) once sandboxes start here; then a RESULT a sample, a verdict (proto/verdict.h); ROW_ERROR for a row whose `grade` is not
 *          good; BEAT about each second while it works and when it falls idle (decode_tokens counts verdicts).
 * Takes    JOB (nothing in it matters here), GRANT of grade rows with graders' lines (proto/grade_line.h), REVOKE, STOP: drain 1 finishes what was granted, drain 0 forgets it.
 * Note     asked for details (`--details`), a verdict is followed by one line of text in the same part: why, for people. Workers of a fleet never send it: it may differ from run to run.
 * Ends     as engine_child.h: 0 after STOP or at the end of the stream, 3 when this machine cannot grade, 1 when it failed, with one sentence on stderr.
 * Memory   the lines granted, each once, and what the grader copies of the samples in flight.
 * Threads  one. */
#ifndef WORKER_GRADE_CHILD_H
#define WORKER_GRADE_CHILD_H

#include "worker/worker_options.h"

/* Serve on options->serve_fd until it ends; returns the exit status. */
int grade_child_main(const worker_options *options);

#endif
