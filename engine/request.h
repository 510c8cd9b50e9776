/* request.h - one live request of the engine: its prompt, its samples and what they have produced so far.
 * Life     request_make → prefill by `trunk` → step.c lets one sample go on in the trunk and forks the others → samples end one by one → request_free.
 * Threads  belongs to the engine thread. */
#ifndef ENGINE_REQUEST_H
#define ENGINE_REQUEST_H

#include "engine/engine.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/stop_match.h"

typedef struct request request;

typedef struct {
    uint32_t index;                  /* the sample's number within the row */
    bool is_over;                    /* finished, failed or cancelled */
    sequence *seq;                   /* owned, in the scheduler while not outside; NULL before the fork and when over */
    int32_t *ids, n_ids, capacity;   /* owned; generated so far */
    int32_t n_ahead, choice;         /* tokens chosen by the device in steps under way, behind ids; and the last one's place among the choices of its step */
    float *logprobs;                 /* owned [capacity]; NULL without logprobs, as the next two */
    int32_t *top_ids; float *top_logprobs;       /* owned [capacity * n_top] */
    stop_cursor cursor;
    fl_detok_place place;
    int64_t n_text_bytes;            /* of ids, specials skipped */
} sample;

struct request {
    uint64_t tag, number;            /* number: order of arrival */
    sampling sampling;
    int32_t *prompt, n_prompt;       /* owned */
    stop_match *stop;                /* owned, NULL without stop strings */
    int32_t *end_ids, n_end_ids, n_eos;          /* owned; the first n_eos end as EOS (none when ignore_eos), the rest as stop ids */
    sample *samples; uint32_t n_samples, n_live; /* owned */
    sequence *trunk;                 /* owned; computes the prompt; NULL once a sample goes on in it */
    float *prompt_logprobs; int32_t *prompt_top_ids; float *prompt_top_logprobs;     /* owned, as fl_result's; NULL unless asked for, or given away */
    bool is_failed;                  /* a row of logits was not a number */
    int32_t n_in_flight;             /* choices under way that name it; it is freed with the last of them */
    bool is_dropped;                 /* forgotten, and in no list: freed with its last choice */
    request *next, *previous;        /* in the engine's list, oldest first */
};

/* Copy `r`, checked against the model: FL_INVALID with the row error's sentence. */
fl_status request_make(request **out, const engine_request *r, const engine_info *info, uint64_t number, fl_err *err);
void      request_free(request *r);                      /* accepts NULL and half-built requests; its sequences must be outside */

sample *request_sample(request *r, uint32_t index);      /* NULL when it is not one of its samples */

/* A new sequence of the request, outside the scheduler; the caller owns it. NULL without memory. */
sequence *request_sequence(request *r, uint32_t sample_index);

/* A token that was chosen (-1: the logits are no numbers), with as many log-probabilities as were asked for; borrowed. */
typedef struct { int32_t id; float logprob; const int32_t *top_ids; const float *top_logprobs; } token_chosen;

/* Record the log-probability of prompt[position + 1] from the logits at `position`, or as it was computed. */
void request_prompt_logprob(request *r, int32_t position, const float *logits, int32_t n_vocab, float lse);
void request_prompt_chosen(request *r, int32_t position, const token_chosen *c);

/* What sample_next did. */
typedef enum { SAMPLE_GOES_ON, SAMPLE_ENDED, SAMPLE_IS_NAN } sample_fate;

/* Choose the sample's next token from raw logits (lse is used when logprobs are asked for) and judge every way to stop; on SAMPLE_ENDED the reason is in *result
 * (finish, stop_kind, stop_index, text_bytes). FL_FULL without memory. */
fl_status sample_next(sample_fate *fate, fl_result *result, request *r, sample *s, sampler *chain, const fl_detok *detok, const float *logits, int32_t n_vocab, float lse, fl_err *err);

/* The same for a token that was chosen elsewhere. */
fl_status sample_take(sample_fate *fate, fl_result *result, request *r, sample *s, const fl_detok *detok, const token_chosen *c, fl_err *err);

/* The finished sample as a result, whose reason is already in *result: its tokens move into it, and into sample 0's the prompt's log-probabilities. */
fl_status sample_result(fl_result *result, request *r, sample *s, fl_err *err);

#endif
