/* fingerprint.h - what pins a model: XXH3-128 over its json and jinja files, all tensor headers and a page of every tensor (ops/DESIGN.md section 7).
 * Threads  plain functions. */
#ifndef ENGINE_FINGERPRINT_H
#define ENGINE_FINGERPRINT_H

#include "engine/weight_files.h"
#include "proto/status.h"

#define FINGERPRINT_BYTES 33             /* 32 hex digits and NUL */

/* Of a model directory at `path` the files whose names end in .json or .jinja (by name, its size and its bytes, in order of names; not of folders below); then the header
 * of each weight file (a GGUF file's metadata is in it), then the first 4,096 bytes of each tensor in order of names. */
fl_status model_fingerprint(char out[FINGERPRINT_BYTES], const char *path, const weight_files *weights, fl_err *err);

#endif
