/* inspect.h - what a model directory holds and whether this engine runs it, as one JSON object, without reading a weight (a page of each tensor for the fingerprint).
 * Fields   architecture, layers, sizes, experts, rope, weights, tokenizer, chat_templates, generation, fingerprint, memory (bytes): each as far as its file could be read.
 *          `problems`: why the engine refuses to open it, in its own sentences; `notes`: what works only in part; `supported`: there is no problem.
 * Threads  plain functions. */
#ifndef ENGINE_INSPECT_H
#define ENGINE_INSPECT_H

#include <jansson.h>
#include <stdint.h>
#include "proto/status.h"

/* Memory is for n_sequences (1 .. 4096) of `context` tokens (0 = 4096, or the model's where that is less). FL_NOT_FOUND or FL_INVALID when `model_dir` is no model directory at
 * all, FL_INVALID when so much cannot be planned, FL_FULL without memory; otherwise *out is the caller's. */
fl_status inspect_model(json_t **out, const char *model_dir, int32_t n_sequences, int32_t context, fl_err *err);

#endif
