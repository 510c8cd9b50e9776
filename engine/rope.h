/* rope.h - the inverse frequencies of rotary position embedding (Su et al. 2021, arXiv:2104.09864) and of its stretched forms: linear (positions divided by
 * a factor), yarn (Peng et al. 2023, arXiv:2309.00071: slow turns divided, fast ones kept, a ramp between) and llama3 (likewise by wavelength).
 * Bits     double arithmetic of + - * / only, rounded to fp32 where the reference rounds, so every machine gets the same table. */
#ifndef ENGINE_ROPE_H
#define ENGINE_ROPE_H

#include <stdbool.h>
#include <stdint.h>

typedef enum { ROPE_DEFAULT, ROPE_LINEAR, ROPE_YARN, ROPE_LLAMA3 } rope_kind;

typedef struct {
    rope_kind kind;
    int32_t n_rot;                   /* rotated part of head_dim, even */
    double theta;                    /* >= 1; above 1 for yarn */
    double factor;                   /* linear, yarn, llama3: > 0 */
    double original_context;         /* yarn, llama3: positions of the first training, >= 1 */
    double beta_fast, beta_slow;     /* yarn: turns over the original context above which a pair is kept, below which it is divided */
    bool   truncate;                 /* yarn: the ramp begins and ends at whole pairs */
    double attention_factor;         /* yarn: of cos and sin; 0 = 0.1 ln(factor) + 1 */
    const float *factors;            /* borrowed [n_rot / 2]: what each frequency is divided by after all that, each > 0; NULL = nothing */
    double low_factor, high_factor;  /* llama3: original_context / wavelength below which a pair is divided, above which it is kept; high > low > 0 */
} rope_config;

/* inv_freq[i], i < n_rot / 2, turns pair i by position * inv_freq[i]. */
void rope_inv_freq(float *inv_freq, const rope_config *rope);

/* What cos and sin are multiplied by: 1 but for yarn. */
float rope_attention_factor(const rope_config *rope);

/* 0.1 mscale ln(scale) + 1, and 1 where scale <= 1: yarn's growth of attention with its factor. */
double rope_mscale(double scale, double mscale);

#endif
