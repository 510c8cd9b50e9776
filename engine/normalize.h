/* normalize.h - the `normalizer` of a tokenizer.json: what happens to a text before it is cut into words.
 * Kinds    NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace (a string or a regular expression); alone or in a Sequence.
 * Threads  immutable after open. */
#ifndef ENGINE_NORMALIZE_H
#define ENGINE_NORMALIZE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct normalizer normalizer;

/* `description` NULL or null changes nothing. FL_UNSUPPORTED, FL_CORRUPT with the part's name. */
fl_status normalizer_open(normalizer **out, const json_t *description, fl_err *err);
void      normalizer_close(normalizer *n);       /* accepts NULL */

/* Normalize n_bytes of valid UTF-8. *out is NULL when nothing changed, else malloc'ed and the caller frees. */
fl_status normalizer_run(const normalizer *n, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err);

/* Whether it may remove a text's first characters, so that the text's beginning is no longer the original's. */
bool      normalizer_removes(const normalizer *n);

#endif
