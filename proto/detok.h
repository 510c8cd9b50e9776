/* detok.h - from token ids to text with an id-to-bytes table, so that the coordinator writes text without a tokenizer.
 * Source   equals transformers' decode(ids, skip_special_tokens=True), which leaves clean_up_tokenization_spaces aside for BPE: bytes of the non-special ids, joined, then
 *          UTF-8 with each malformed maximal subpart replaced by U+FFFD.
 * Form     what decoders of character vocabularies add to that (fl_detok_form). A run of byte tokens (<0x00> to <0xFF>, skipped ids within it do not count) that is not UTF-8 as
 *          a whole becomes one U+FFFD for each of its bytes; the text's first ids may lose spaces.
 * Layout   of the encoded table (little-endian): u32 magic "TDT1", u16 version, u8 strip_max, u8 strip_byte, u32 n_vocab, u32 raw bytes, u64 XXH3-64 over all the rest, then
 *          LZ4 of the raw bytes: n_vocab x LEB128, then the bytes of each id. Version 1 has no form: both strip bytes are zero and a number is length * 2 + special bit.
 *          Version 2: it is length * 8 + the FL_TOKEN_ bits.
 * Threads  a table is immutable after it is made; any thread may read it. */
#ifndef FL_DETOK_H
#define FL_DETOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FL_VOCAB_MAX (1 << 22)

typedef struct fl_detok fl_detok;

/* Make a table of n_vocab ids from `bytes[offsets[i] .. offsets[i+1])` and special[i] (copied). n_vocab 0 is a model without
 * tokenizer: every id gives empty text. */
fl_status fl_detok_make(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const bool *special, fl_err *err);

/* Bits of an id. */
enum {
    FL_TOKEN_SPECIAL = 1,                /* skipped */
    FL_TOKEN_BYTE = 2,                   /* a byte token; it has one byte */
    FL_TOKEN_TIGHT = 4,                  /* loses its spaces when it is the text's first */
    FL_TOKEN_BITS = 3,
};
typedef struct { uint8_t strip_max, strip_byte; } fl_detok_form;         /* a text loses up to strip_max of its first bytes while they are strip_byte (ASCII) */
fl_status fl_detok_make_form(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const uint8_t *bits, fl_detok_form form, fl_err *err);
void      fl_detok_free(fl_detok *table);                        /* accepts NULL */
int32_t   fl_detok_vocab(const fl_detok *table);

/* The bytes of one id, borrowed; *n_bytes is 0 for a special id when skip_special, and for ids outside the table. */
const uint8_t *fl_detok_token(const fl_detok *table, int32_t id, bool skip_special, size_t *n_bytes);

/* Wire form. encode: *out is malloc'ed, the caller frees. decode checks everything before it allocates. */
fl_status fl_detok_encode(const fl_detok *table, uint8_t **out, size_t *n_bytes, fl_err *err);
fl_status fl_detok_decode(fl_detok **out, const uint8_t *data, size_t n_bytes, fl_err *err);

/* A sequence's place in its text; zero-initialized before its first id. */
typedef struct { bool has_token, has_text; uint8_t n_stripped; } fl_detok_place;

/* The bytes that `id` adds at this place, specials skipped, byte tokens as their bytes; borrowed from the table. */
const uint8_t *fl_detok_next(const fl_detok *table, fl_detok_place *place, int32_t id, size_t *n_bytes);

/* What fl_detok_next gives for the ids, joined and cut to the first `limit` bytes (-1: all; FL_CORRUPT when there are fewer), with broken runs of byte tokens replaced; not yet
 * repaired UTF-8. *out is malloc'ed, the caller frees. ends (NULL allowed) [n_ids] receives the text's bytes up to and with each id. */
fl_status fl_detok_text(const fl_detok *table, const int32_t *ids, size_t n_ids, int64_t limit, uint8_t **out, size_t *n_bytes, size_t *ends, fl_err *err);

/* Valid UTF-8 from any bytes, each malformed maximal subpart as one U+FFFD (as Python's errors="replace"). `*out` malloc'ed
 * and NUL-terminated. *was_valid (NULL allowed) says whether nothing had to be replaced. */
fl_status fl_utf8_repair(const uint8_t *bytes, size_t n_bytes, char **out, size_t *out_bytes, bool *was_valid, fl_err *err);

/* Bytes of the unit at p (n >= 1): a well-formed sequence (*good), or a malformed maximal subpart. */
size_t    fl_utf8_step(const uint8_t *p, size_t n, bool *good);
bool      fl_utf8_valid(const uint8_t *bytes, size_t n_bytes);

#endif
