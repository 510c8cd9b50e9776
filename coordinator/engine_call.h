/* engine_call.h - one question to the engine: `tokenfleet-worker` beside this binary, run to its end.
 * Threads  plain functions. */
#ifndef COORDINATOR_ENGINE_CALL_H
#define COORDINATOR_ENGINE_CALL_H

#include "proto/status.h"

/* Run it with `arguments` (NULL at their end, its path not among them). *text is its standard output, malloc'ed and NUL-terminated. When it fails, its own last sentence: FL_INVALID for
 * what the user typed, FL_CLOSED for the rest. */
fl_status engine_call(const char *const *arguments, char **text, fl_err *err);

#endif
