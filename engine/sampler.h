/* sampler.h - the sampler chain on one row of logits, on the CPU.
 * Chain    repetition penalty (each distinct id of prompt and output once: logit > 0 ? logit / r : logit * r), frequency and presence (output), min_tokens
 *          (end ids to -inf), then greedy when temperature is 0; else / temperature, top_k, top_p, min_p (that order, each as transformers'
 *          logits processors keep tokens: at least one; top_k keeps ties of the k-th to the lowest ids; top_p the smallest descending prefix with
 *          cumulative >= p; min_p relative to the best), one draw by inverse CDF.
 * Ties     always to the lowest id.
 * Weights  w = exp(-(best - logit) / temperature), rounded to a whole number of 2^(bits - 53), where bits is the least number, 8 at least, for which the vocabulary has no more
 *          than 2^bits ids: so every sum of weights is exact, whatever its order, and what weighs less than half a unit (2^-36 of the best for 150,000 to 262,144 ids; u has 24 bits) is
 *          never drawn. A draw takes the first token at which the running sum passes u times the sum of what is kept: in sorted order when top_k or top_p is on, else in id order.
 * Random   Philox4x32-10 (Salmon et al. 2011): key = seed, counter = (index of the token, sample, low and high word of id_hash), u = (word 0 >> 8) * 2^-24.
 * Threads  a sampler belongs to one thread; it allocates only in sampler_open. */
#ifndef ENGINE_SAMPLER_H
#define ENGINE_SAMPLER_H

#include "engine/sampling.h"
#include "kernels/ops.h"
#include "proto/status.h"

typedef struct sampler sampler;      /* scratch for n_vocab logits */

fl_status sampler_open(sampler **out, int32_t n_vocab, fl_err *err);
void      sampler_close(sampler *s);

/* What the penalties need to know of one sequence. */
typedef struct {
    const int32_t *prompt; int32_t n_prompt;
    const int32_t *output; int32_t n_output;             /* tokens generated so far = index of the next token */
    const int32_t *end_ids; int32_t n_end_ids;           /* eos ids and stop ids, for min_tokens */
    uint32_t sample;
} sampler_history;

/* Choose the next id from raw logits [n_vocab] (not changed). -1 when a logit is NaN or none is above -inf. */
int32_t sampler_next(sampler *s, const float *logits, const sampling *p, const sampler_history *h);

/* The same with its uniform given. */
int32_t sampler_choose(sampler *s, const float *logits, const sampling *p, const sampler_history *h, float u);

/* The probabilities of sampler_next's last draw, for tests: [n_vocab] after the whole chain. */
const float *sampler_probabilities(const sampler *s);

/* Raw log-probability of `id`, and the n_top best (descending, ties to the lowest id; id -1 past the vocabulary's end), clamped to -9999. lse from
 * ops->log_sum_exp. */
void logprobs_of(const float *logits, int32_t n_vocab, float lse, int32_t id, int32_t n_top, float *logprob, int32_t *top_ids, float *top_logprobs);

/* Philox4x32-10, and the uniform of ops/DESIGN.md section 7. */
void  philox4x32(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);
float sampler_uniform(uint64_t seed, uint64_t id_hash, uint32_t sample, uint32_t token_index);

#endif
