/* pretokenize.h - the `pre_tokenizer` of a tokenizer.json: cuts a normalized text into the words that BPE works on.
 * Kinds    ByteLevel (the last), before it any number of Split and Digits; alone or in a Sequence.
 * Threads  immutable after open; a run has its own scratch. */
#ifndef ENGINE_PRETOKENIZE_H
#define ENGINE_PRETOKENIZE_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct pretokenizer pretokenizer;
typedef struct pretokenize_run pretokenize_run;  /* scratch for the texts of one encode */

/* Called with each word (n_bytes >= 1) in order; a failure stops the run and is returned. */
typedef fl_status (*pretokenize_word)(void *context, const uint8_t *bytes, size_t n_bytes, fl_err *err);

fl_status pretokenizer_open(pretokenizer **out, const json_t *description, fl_err *err);
void      pretokenizer_close(pretokenizer *p);   /* accepts NULL */

fl_status pretokenize_begin(pretokenize_run **out, const pretokenizer *p, fl_err *err);
fl_status pretokenize_text(pretokenize_run *r, const uint8_t *text, size_t n_bytes, pretokenize_word word, void *context, fl_err *err);
void      pretokenize_end(pretokenize_run *r);   /* accepts NULL */

#endif
