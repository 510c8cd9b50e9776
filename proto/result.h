/* result.h - what one (row, sample) produced: the body that travels from the engine to the ledger unchanged and from which
 * the output line is a pure function. Nothing volatile is in it.
 * Layout   a msgpack map with integer keys (version first), then token and float blocks (token_block.h), back to back.
 * Bounds   counts are checked against the bytes that remain; ids against n_vocab.
 * Threads  plain functions; a result belongs to its caller. */
#ifndef FL_RESULT_H
#define FL_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef enum { FL_FINISH_LENGTH = 0, FL_FINISH_STOP = 1 } fl_finish;
typedef enum { FL_STOP_NONE = 0, FL_STOP_EOS = 1, FL_STOP_ID = 2, FL_STOP_STRING = 3 } fl_stop_kind;

typedef struct {
    fl_finish finish;
    fl_stop_kind stop_kind;
    int32_t stop_index;              /* EOS, ID: the token id; STRING: index into the row's `stop`; else -1 */
    int32_t n_prompt;                /* prompt tokens */
    int32_t *ids; size_t n_ids;      /* owned; generated ids incl. an end token and a stop string's tokens */
    int64_t text_bytes;              /* how many bytes of the ids' text (specials skipped) the user sees: a stop string and what
                                        follows is cut; -1 = all of it */
    int32_t n_top;                   /* alternatives per position, -1 = no logprobs, 0 = the chosen token's only */
    float *logprobs;                 /* owned [n_ids], raw-logit log-probabilities, never below -9999 */
    int32_t *top_ids;                /* owned [n_ids * n_top], descending; -1 past the vocabulary's end */
    float *top_logprobs;             /* owned [n_ids * n_top] */
    int32_t *prompt_ids;             /* owned [n_prompt]; NULL unless echo, return_token_ids or prompt_logprobs asks */
    int32_t n_prompt_top;            /* as n_top, for the prompt */
    float *prompt_logprobs;          /* owned [n_prompt - 1]: of prompt[i + 1] given prompt[..i] */
    int32_t *prompt_top_ids;         /* owned [(n_prompt - 1) * n_prompt_top] */
    float *prompt_top_logprobs;
} fl_result;

/* *out is malloc'ed; the caller frees. Deterministic bytes. */
fl_status fl_result_encode(const fl_result *result, uint8_t **out, size_t *n_bytes, fl_err *err);

/* FL_CORRUPT when the body is malformed or holds an id outside 0 .. n_vocab-1. Free with fl_result_free. */
fl_status fl_result_decode(fl_result *result, const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err);
void      fl_result_free(fl_result *result);             /* frees the owned arrays; accepts a zeroed result */

#endif
