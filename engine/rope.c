#include "engine/rope.h"

#include <math.h>
#include "kernels/ops.h"

static const double ln2 = 0x1.62e42fefa39efp-1;
static const double two_pi = 0x1.921fb54442d18p+2;

/* ln(x), x > 0, error near 1e-16: x = m 2^e with m near 1, then 2 atanh((m - 1) / (m + 1)) as a series whose terms shrink by 34. */
static double natural_log(double x)
{
    int e;
    double m = frexp(x, &e);
    if (m < 0x1.6a09e667f3bcdp-1) { m *= 2.0; e--; }     /* m in [sqrt(1/2), sqrt(2)) */
    double s = (m - 1.0) / (m + 1.0), s2 = s * s, sum = 0.0;
    for (int k = 14; k >= 0; k--) sum = sum * s2 + 1.0 / (2 * k + 1);
    return 2.0 * s * sum + e * ln2;
}

/* e^y, 0 <= y < 700: Taylor on the rest after powers of two, |rest| <= ln2 / 2. */
static double exponential(double y)
{
    double k = floor(y / ln2 + 0.5), r = y - k * ln2, sum = 1.0;
    for (int i = 20; i >= 1; i--) sum = 1.0 + sum * r / i;
    return ldexp(sum, (int)k);
}

double rope_mscale(double scale, double mscale) { return scale <= 1.0 ? 1.0 : 0.1 * mscale * natural_log(scale) + 1.0; }

float rope_attention_factor(const rope_config *rope)
{
    if (rope->kind != ROPE_YARN) return 1.0f;
    return (float)(rope->attention_factor > 0.0 ? rope->attention_factor : rope_mscale(rope->factor, 1.0));
}

/* The pair that turns `n_turns` times over the original context. */
static double yarn_pair(const rope_config *r, double n_turns)
{
    return (r->n_rot * natural_log(r->original_context / (n_turns * two_pi))) / (2.0 * natural_log(r->theta));
}

/* Pairs before `low` keep their frequency, pairs from `high` on are divided, those between go from one to the other in a straight line. */
static void stretch_yarn(float *inv_freq, const float *turn, const rope_config *r)
{
    double low = yarn_pair(r, r->beta_fast), high = yarn_pair(r, r->beta_slow);
    if (r->truncate) { low = floor(low); high = ceil(high); }
    if (low < 0.0) low = 0.0;
    if (high > r->n_rot - 1) high = r->n_rot - 1;
    if (low == high) high += 0.001;
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float kept = 1.0f - (ramp < 0.0f ? 0.0f : ramp > 1.0f ? 1.0f : ramp);
        float divided = 1.0f / ((float)r->factor * turn[i]);
        inv_freq[i] = divided * (1.0f - kept) + inv_freq[i] * kept;
    }
}

static void stretch_llama3(float *inv_freq, const rope_config *r)
{
    const float longest = (float)(r->original_context / r->low_factor), shortest = (float)(r->original_context / r->high_factor), factor = (float)r->factor;
    for (int32_t i = 0; i < r->n_rot / 2; i++) {
        float wavelength = (float)two_pi / inv_freq[i];
        if (wavelength > longest) { inv_freq[i] = inv_freq[i] / factor; continue; }
        if (wavelength < shortest) continue;
        float kept = ((float)r->original_context / wavelength - (float)r->low_factor) / (float)(r->high_factor - r->low_factor);
        inv_freq[i] = (1.0f - kept) * inv_freq[i] / factor + kept * inv_freq[i];
    }
}

void rope_inv_freq(float *inv_freq, const rope_config *rope)
{
    float turn[OPS_HEAD_DIM_MAX / 2];    /* theta^(2 i / n_rot): the reciprocal of a plain frequency */
    const double log_theta = natural_log((double)(float)rope->theta);
    const int32_t half = rope->n_rot / 2;
    FL_ASSERT(half <= OPS_HEAD_DIM_MAX / 2);
    for (int32_t i = 0; i < half; i++) {
        float exponent = (float)(2 * i) / (float)rope->n_rot;
        turn[i] = (float)exponential((double)exponent * log_theta);
        inv_freq[i] = 1.0f / turn[i];
    }
    switch (rope->kind) {
    case ROPE_DEFAULT: break;
    case ROPE_LINEAR: for (int32_t i = 0; i < half; i++) inv_freq[i] = inv_freq[i] / (float)rope->factor; break;
    case ROPE_YARN: stretch_yarn(inv_freq, turn, rope); break;
    case ROPE_LLAMA3: stretch_llama3(inv_freq, rope); break;
    }
    for (int32_t i = 0; rope->factors && i < half; i++) inv_freq[i] = inv_freq[i] / rope->factors[i];
}
