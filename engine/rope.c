#include "engine/rope.h"

#include <math.h>

static const double ln2 = 0x1.62e42fefa39efp-1;

/* ln(x), x >= 1, error near 1e-16: x = m 2^e with m near 1, then 2 atanh((m - 1) / (m + 1)) as a series whose terms shrink by 34. */
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

void rope_inv_freq(float *inv_freq, double theta, int32_t n_rot)
{
    double log_theta = natural_log((double)(float)theta);
    for (int32_t i = 0; i < n_rot / 2; i++) {
        float exponent = (float)(2 * i) / (float)n_rot;
        inv_freq[i] = 1.0f / (float)exponential((double)exponent * log_theta);
    }
}
