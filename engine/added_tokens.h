/* added_tokens.h - the added tokens of a tokenizer.json: whole strings that are cut out of a text before (or, when `normalized`, after) normalization.
 * Rule     leftmost, of several the longest; single_word refuses matches beside a word character; lstrip and rstrip take the white space around.
 * Ids      a token of the vocabulary keeps its id; others are numbered on from it in file order, as the reference does, whatever the file says.
 * Threads  immutable after added_tokens_open. */
#ifndef ENGINE_ADDED_TOKENS_H
#define ENGINE_ADDED_TOKENS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/normalize.h"
#include "proto/status.h"

typedef struct added_tokens added_tokens;

/* A part of a text: an added token, or text (id -1). */
typedef struct { size_t begin, end; int32_t id; } text_part;
typedef struct { text_part *parts; size_t n, capacity, most; } text_parts;   /* parts owned; most: 0 = any number */

/* `list` is the file's added_tokens (NULL = none), `vocab` the model's; both borrowed during the call. */
fl_status added_tokens_open(added_tokens **out, const json_t *list, json_t *vocab, const normalizer *normalize, fl_err *err);
void      added_tokens_close(added_tokens *a);   /* accepts NULL */

/* Append the parts of n_bytes of valid UTF-8; `normalized` selects the tokens that are looked for in normalized text. FL_CLOSED: there are more than parts->most. */
fl_status added_tokens_split(const added_tokens *a, bool normalized, const uint8_t *text, size_t n_bytes, text_parts *parts, fl_err *err);

int32_t added_tokens_vocab(const added_tokens *a);                     /* largest id + 1, 0 when there is none */
size_t  added_tokens_count(const added_tokens *a);
/* The i-th entry: its id, the text it is decoded from and whether decoding skips it. A later entry of the same id replaces an earlier one. As in the reference, a `normalized`
 * token is decoded from its normalized content, and is skipped only when that is the content of a special token. */
int32_t added_tokens_entry(const added_tokens *a, size_t i, const uint8_t **text, size_t *n_bytes, bool *skipped);

#endif
