/* token_decoder.h - the `decoder` of a tokenizer.json, as what each token becomes and what happens to the whole text (proto/detok.h's form).
 * Kinds    ByteLevel; or Replace, Strip, Metaspace, ByteFallback, Fuse and a Strip of the whole text's beginning, in the orders that the table can express.
 * Threads  immutable after open. */
#ifndef ENGINE_TOKEN_DECODER_H
#define ENGINE_TOKEN_DECODER_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/detok.h"
#include "proto/status.h"

typedef struct token_decoder token_decoder;

/* byte_level: the vocabulary is; then only ByteLevel can decode it. FL_UNSUPPORTED, FL_CORRUPT with the part's name. */
fl_status token_decoder_open(token_decoder **out, const json_t *description, bool byte_level, fl_err *err);
void      token_decoder_close(token_decoder *d);                         /* accepts NULL */
fl_detok_form token_decoder_form(const token_decoder *d);

/* What the token written as text[0 .. n_bytes) becomes: *out is malloc'ed, the caller frees; *bits of FL_TOKEN_ (SPECIAL left out). */
fl_status token_decoder_run(const token_decoder *d, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, uint8_t *bits, fl_err *err);

#endif
