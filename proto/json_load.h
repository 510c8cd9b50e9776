/* json_load.h - libjansson's reader, with a lack of memory told apart from damage. By itself it calls both invalid, and where it cannot grow a buffer it goes on with an altered value.
 * Limit    where a buffer cannot grow inside a string with escapes, libjansson 2.14 ends the process by an assertion; a line in the log says before it that memory was lacking.
 * Threads  any; libjansson's allocator is replaced by one that notes a failure for its thread, before main. */
#ifndef FL_JSON_LOAD_H
#define FL_JSON_LOAD_H

#include <jansson.h>
#include <stddef.h>
#include "proto/status.h"

/* json_loadb of n_bytes with its flags. FL_OK: *out is the caller's. FL_CORRUPT: "WHAT: not JSON: ... (line N)". FL_FULL: no memory. *out is NULL then. */
fl_status fl_json_load(json_t **out, const char *what, const char *text, size_t n_bytes, size_t flags, fl_err *err);

#endif
