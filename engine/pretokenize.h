/* pretokenize.h - the `pre_tokenizer` of a tokenizer.json: cuts a normalized text into the words that BPE works on.
 * Kinds    ByteLevel (only as the last one), Metaspace, Split, Digits; alone or in a Sequence; or none, which leaves the text whole.
 * Threads  immutable after open; a run has its own scratch. */
#ifndef ENGINE_PRETOKENIZE_H
#define ENGINE_PRETOKENIZE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct pretokenizer pretokenizer;
typedef struct pretokenize_run pretokenize_run;  /* scratch for the texts of one encode */

/* Called with each word (n_bytes >= 1) in order; a failure stops the run and is returned. */
typedef fl_status (*pretokenize_word)(void *context, const uint8_t *bytes, size_t n_bytes, fl_err *err);

/* `description` NULL or null is none. */
fl_status pretokenizer_open(pretokenizer **out, const json_t *description, fl_err *err);
void      pretokenizer_close(pretokenizer *p);   /* accepts NULL */
bool      pretokenizer_is_byte_level(const pretokenizer *p);             /* words are bytes in the byte alphabet, not characters */
bool      pretokenizer_knows_first(const pretokenizer *p);               /* the text's beginning is treated apart */

fl_status pretokenize_begin(pretokenize_run **out, const pretokenizer *p, fl_err *err);
/* is_first: the text begins where the user's text began. */
fl_status pretokenize_text(pretokenize_run *r, const uint8_t *text, size_t n_bytes, bool is_first, pretokenize_word word, void *context, fl_err *err);
void      pretokenize_end(pretokenize_run *r);   /* accepts NULL */

#endif
