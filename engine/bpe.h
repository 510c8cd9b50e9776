/* bpe.h - byte-pair encoding: the vocabulary and merges of a tokenizer.json's `model`.
 * Forms    byte-level: a word is bytes, tokens are written in the byte alphabet. Of characters: a word is UTF-8; a character without a token becomes the tokens <0x00> to <0xFF>
 *          of its bytes (byte_fallback), else the unk_token (a run of them one with fuse_unk), else nothing.
 * Order    the pair with the lowest rank merges first, of equal ones the leftmost (Sennrich et al. 2016, arXiv:1508.07909).
 * Threads  immutable after bpe_open; a scratch belongs to one call. */
#ifndef ENGINE_BPE_H
#define ENGINE_BPE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct bpe bpe;

typedef struct { int32_t *ids; size_t n, capacity; } id_list;          /* ids owned */
fl_status id_list_add(id_list *list, int32_t id, fl_err *err);

typedef struct { void *memory; size_t n_bytes; } bpe_scratch;          /* memory owned; zero-initialized */

/* FL_CORRUPT or FL_UNSUPPORTED with the part's name. `model` is borrowed during the call. */
fl_status bpe_open(bpe **out, const json_t *model, bool byte_level, fl_err *err);
void      bpe_close(bpe *b);                     /* accepts NULL */
int32_t   bpe_vocab(const bpe *b);               /* largest id + 1 */

/* A token: the bytes it stands for when byte-level (one that is not written in the byte alphabet stands for its own UTF-8), its own UTF-8 otherwise; *n_bytes 0 for an id
 * without a token. */
const uint8_t *bpe_token(const bpe *b, int32_t id, size_t *n_bytes);

/* As many tokens at least has any pre-token (or several) of these bytes. A bound, found in one pass without memory. */
size_t bpe_least_tokens(const bpe *b, const uint8_t *bytes, size_t n_bytes);

/* Append the ids of one pre-token of n_bytes (>= 1, below 2^31). Takes 28 bytes of scratch a byte. */
fl_status bpe_encode(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err);

/* Bytes of a token written in the byte alphabet (GPT-2's: printable bytes as themselves, the rest from U+0100 on); false when a character is not of it. `out` has room
 * for n_bytes. */
bool byte_alphabet_decode(const char *token, size_t n_bytes, uint8_t *out, size_t *out_bytes);

#endif
