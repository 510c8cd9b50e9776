/* sampling.h - how the next token is chosen, with every absent field resolved. One per request. */
#ifndef ENGINE_SAMPLING_H
#define ENGINE_SAMPLING_H

#include <stdbool.h>
#include <stdint.h>

#define SAMPLING_TOP_MAX 20              /* log-probabilities beside the chosen one (ops/JOBS.md) */

typedef struct {
    float temperature;               /* 0 = greedy */
    float top_p;                     /* (0, 1]; 1 = off */
    int32_t top_k;                   /* <= 0 = off */
    float min_p;                     /* 0 = off */
    float repetition_penalty;        /* 1 = off; prompt and output */
    float presence_penalty, frequency_penalty;   /* 0 = off; output only */
    int32_t max_tokens;              /* >= 0; 0 computes the prompt only */
    int32_t min_tokens;              /* end ids are not chosen before so many tokens */
    bool ignore_eos;
    int32_t n_top;                   /* -1 no logprobs, 0 the chosen token's, k > 0 also the k best */
    int32_t n_prompt_top;            /* likewise for the prompt */
    uint64_t seed;                   /* the row's, else the job's */
    uint64_t id_hash;                /* XXH3-64(custom_id) */
} sampling;

#endif
