/* tokenizer.h - tokenizer.json, or the vocabulary of a GGUF file (gguf_tokenizer.h): byte-level BPE with its normalizer, pre-tokenizer, added tokens and post-processor.
 * Source   Hugging Face tokenizers' file format; the ids equal that library's on every input.
 * Threads  a tokenizer is immutable after open; encode may be called from any thread. */
#ifndef ENGINE_TOKENIZER_H
#define ENGINE_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/detok.h"
#include "proto/status.h"

typedef struct tokenizer tokenizer;

/* Read `path` (a tokenizer.json). FL_NOT_FOUND without the file; FL_CORRUPT or FL_UNSUPPORTED with a sentence that names the part. */
fl_status tokenizer_open(tokenizer **out, const char *path, fl_err *err);

/* The tokenizer of the model directory or .gguf file `model`; fails likewise. */
fl_status tokenizer_open_model(tokenizer **out, const char *model, fl_err *err);
void      tokenizer_close(tokenizer *t);                                 /* accepts NULL */
int32_t   tokenizer_vocab(const tokenizer *t);                           /* largest id + 1 */

/* Encode valid UTF-8 of n_bytes, below 2^30. add_special: with the post-processor's tokens (text prompts); false for rendered chats. Added tokens in the text become their ids
 * either way. *ids is malloc'ed, the caller frees. */
fl_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, bool add_special, int32_t **ids, size_t *n_ids, fl_err *err);

/* The same for a text that is of use only with at most `most` ids. One that surely has more is left before its end where that saves time and memory: when a long word alone must have more (a
 * bound, so not every word that has), or when 4 * most ids are there. Then *is_more, and no ids; a function of text and tokenizer alone. */
fl_status tokenizer_encode_within(const tokenizer *t, const char *text, size_t n_bytes, bool add_special, uint32_t most, int32_t **ids, size_t *n_ids, bool *is_more, fl_err *err);

/* The id-to-bytes table of n_vocab ids (ids without a token have no bytes). The caller frees it. */
fl_status tokenizer_detok(const tokenizer *t, int32_t n_vocab, fl_detok **out, fl_err *err);

#endif
