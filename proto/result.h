/* result.h - what one (row, sample) produced: the body that travels from the engine to the ledger unchanged and from which
 * the output line is a pure function. Nothing volatile is in it.
 * Layout   a msgpack map with integer keys, ascending, zero values left out: 0 version (1), 1 finish, 2 stop_kind, 3 stop_index
 *          + 1, 4 n_prompt, 5 n_ids, 6 text_bytes + 1, 7 n_top + 1, 8 n_prompt_top + 1, 9 prompt ids follow. Then blocks (token_block.h),
 *          back to back, those that there are: ids; logprobs; top_ids + 1 and top_logprobs (n_top > 0); prompt_ids; prompt_logprobs;
 *          prompt_top_ids + 1 and prompt_top_logprobs. So equal results have equal bytes (under one release of liblz4).
 * Bounds   counts are checked against the bytes that remain; ids against n_vocab; log-probabilities are finite and not below -9999.
 * Threads  plain functions; a result belongs to its caller. */
#ifndef FL_RESULT_H
#define FL_RESULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FL_RESULT_TOKENS_MAX (1 << 24)           /* n_prompt and n_ids */

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

/* *out is malloc'ed; the caller frees. FL_INVALID, with the reason, when the result breaks a rule above: finish is STOP exactly when
 * stop_kind is not NONE, an array that n_top and n_prompt_top ask for is missing, a value is out of range. */
fl_status fl_result_encode(const fl_result *result, uint8_t **out, size_t *n_bytes, fl_err *err);

/* FL_CORRUPT when the body is malformed or holds an id outside 0 .. n_vocab-1. Free with fl_result_free. Arrays
 * without entries are NULL. */
fl_status fl_result_decode(fl_result *result, const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err);

/* Would fl_result_decode take this body? The same rules, without building the arrays of ids: what the coordinator asks of every result. */
fl_status fl_result_check(const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err);
void      fl_result_free(fl_result *result);             /* frees the owned arrays; accepts a zeroed result */

#endif
