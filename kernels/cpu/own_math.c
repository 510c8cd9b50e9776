/* own_math.c - the scalar math of ops.h. exp and tanh are the lanes' own text with one lane. The others compute in double, where a polynomial of
 * moderate length is far below fp32's rounding, and round once at the end. Only fma, sqrt and rint-like exact operations are taken from the compiler. */
#define LANES_ONE
#include "kernels/cpu/lanes_math.h"

float fl_expf(float x) { return f_exp(f_set(x)).v[0]; }
float fl_tanhf(float x) { return f_tanh(f_set(x)).v[0]; }

static double   double_of_bits(uint64_t u) { double d; memcpy(&d, &u, sizeof d); return d; }
static uint64_t bits_of_double(double d) { uint64_t u; memcpy(&u, &d, sizeof u); return u; }

#define ROUND_MAGIC 0x1.8p52             /* d + it - it rounds d to an integer, |d| < 2^51 */
#define LN2 0x1.62e42fefa39efp-1

/* log of a positive normal double: u = 2^e m, m in [sqrt 1/2, sqrt 2), log m = 2 atanh(f), f = (m - 1) / (m + 1), |f| <= 0.1716. */
static double log_double(double u)
{
    uint64_t bits = bits_of_double(u) - 0x3fe6a09e667f3bcdull;       /* sqrt 1/2: the exponent field is then e */
    int32_t e = (int32_t)((int64_t)bits >> 52);
    double m = double_of_bits((bits & 0x000fffffffffffffull) + 0x3fe6a09e667f3bcdull);
    double f = (m - 1.0) / (m + 1.0), z = f * f;
    double s = 1.0 / 19;
    s = fma(s, z, 1.0 / 17);
    s = fma(s, z, 1.0 / 15);
    s = fma(s, z, 1.0 / 13);
    s = fma(s, z, 1.0 / 11);
    s = fma(s, z, 1.0 / 9);
    s = fma(s, z, 1.0 / 7);
    s = fma(s, z, 1.0 / 5);
    s = fma(s, z, 1.0 / 3);
    s = fma(s * z, f, f);
    return fma((double)e, LN2, 2.0 * s);
}

float fl_logf(float x)
{
    if (!(x > 0.0f)) return x == 0.0f ? -INFINITY : x < 0.0f ? NAN : x;
    if (x == INFINITY) return x;
    return (float)log_double((double)x);
}

float fl_log1pf(float x)
{
    if (!(x > -1.0f)) return x == -1.0f ? -INFINITY : x < -1.0f ? NAN : x;
    if (x == INFINITY) return x;
    double d = (double)x;
    if (fabsf(x) < 0x1p-12f) return (float)(d * fma(d, fma(d, fma(d, -0.25, 1.0 / 3), -0.5), 1.0));
    return (float)log_double(1.0 + d);
}

/* e^d for |d| < 700: Taylor to degree 12 on |r| <= ln 2 / 2. */
static double exp_double(double d)
{
    double n = d * 0x1.71547652b82fep+0 + ROUND_MAGIC - ROUND_MAGIC, r = fma(-n, LN2, d);
    double p = 1.0 / 479001600;
    p = fma(p, r, 1.0 / 39916800);
    p = fma(p, r, 1.0 / 3628800);
    p = fma(p, r, 1.0 / 362880);
    p = fma(p, r, 1.0 / 40320);
    p = fma(p, r, 1.0 / 5040);
    p = fma(p, r, 1.0 / 720);
    p = fma(p, r, 1.0 / 120);
    p = fma(p, r, 1.0 / 24);
    p = fma(p, r, 1.0 / 6);
    p = fma(p, r, 0.5);
    p = fma(p, r, 1.0);
    p = fma(p, r, 1.0);
    return p * double_of_bits((uint64_t)((int64_t)n + 1023) << 52);
}

/* 0: not an integer, 1: odd, 2: even */
static int integer_kind(float y)
{
    float a = fabsf(y);
    if (a >= 0x1p24f) return 2;
    int32_t whole = (int32_t)a;
    return (float)whole != a ? 0 : whole % 2 ? 1 : 2;
}

/* C17 annex F.10.4.4 for the special cases. */
float fl_powf(float x, float y)
{
    if (x == 1.0f || y == 0.0f) return 1.0f;
    if (x != x || y != y) return x + y;
    float a = fabsf(x);
    if (fabsf(y) == INFINITY) return a == 1.0f ? 1.0f : (a > 1.0f) == (y > 0.0f) ? INFINITY : 0.0f;
    int kind = integer_kind(y);
    float sign = signbit(x) && kind == 1 ? -1.0f : 1.0f;
    if (a == 0.0f || a == INFINITY) return sign * ((a == 0.0f) == (y < 0.0f) ? INFINITY : 0.0f);
    if (x < 0.0f && kind == 0) return NAN;
    double exponent = (double)y * log_double((double)a);
    if (exponent > 100.0) return sign * INFINITY;
    if (exponent < -120.0) return sign * 0.0f;
    return (float)((double)sign * exp_double(exponent));
}

/* --- sin and cos: x = n pi/2 + r, |r| <= pi/4 --- */

/* 2/pi in words of 32 bits after the point. */
static const uint32_t two_over_pi[] = { 0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041, 0xfe5163ab };

/* |x| >= 2^28 (Payne & Hanek 1983): |x| = m 2^s with m an integer below 2^24. Bits of 2/pi worth 2^2 and more in 2^s 2/pi give whole turns and are left
 * out; the next 96 decide. */
static double reduce_large(float x, uint32_t *quadrant)
{
    uint32_t bits = bits_of_float(fabsf(x)), m = (bits & 0x7fffffu) | 0x800000u, s = (bits >> 23) - 150u;      /* 5 .. 104 */
    uint32_t word = (s - 2) / 32, shift = (s - 2) % 32, w[3];
    for (uint32_t i = 0; i < 3; i++)
        w[i] = shift ? two_over_pi[word + i] << shift | two_over_pi[word + i + 1] >> (32 - shift) : two_over_pi[word + i];
    unsigned __int128 turns = (unsigned __int128)m * (((unsigned __int128)w[0] << 64) | ((uint64_t)w[1] << 32) | w[2]);
    turns = (turns << 32) + ((unsigned __int128)1 << 125);           /* two whole bits on top; half a quadrant more rounds to the nearest */
    *quadrant = (uint32_t)(turns >> 126);
    uint64_t fraction = (uint64_t)(turns >> 62);                     /* of a quadrant, plus a half */
    double r = ((double)(int64_t)(fraction - (1ull << 63))) * 0x1p-64 * 0x1.921fb54442d18p+0;
    if (x > 0.0f) return r;
    *quadrant = (0u - *quadrant) & 3u;
    return -r;
}

static double reduce(float x, uint32_t *quadrant)
{
    if (fabsf(x) >= 0x1p28f) return reduce_large(x, quadrant);
    double d = (double)x, n = d * 0x1.45f306dc9c883p-1 + ROUND_MAGIC - ROUND_MAGIC;
    *quadrant = (uint32_t)(int64_t)n & 3u;
    return fma(-n, 0x1.1a62633145c07p-54, fma(-n, 0x1.921fb54442d18p+0, d));       /* the inner one is exact: a multiple of 2^-52 below 1 */
}

static double sin_quarter(double r)
{
    double z = r * r, p = 1.0 / 6227020800;
    p = fma(p, z, -1.0 / 39916800);
    p = fma(p, z, 1.0 / 362880);
    p = fma(p, z, -1.0 / 5040);
    p = fma(p, z, 1.0 / 120);
    p = fma(p, z, -1.0 / 6);
    return fma(p * z, r, r);
}

static double cos_quarter(double r)
{
    double z = r * r, p = -1.0 / 87178291200;
    p = fma(p, z, 1.0 / 479001600);
    p = fma(p, z, -1.0 / 3628800);
    p = fma(p, z, 1.0 / 40320);
    p = fma(p, z, -1.0 / 720);
    p = fma(p, z, 1.0 / 24);
    p = fma(p, z, -0.5);
    return fma(p, z, 1.0);
}

static float sin_from_quadrant(double r, uint32_t quadrant)
{
    double v = quadrant & 1u ? cos_quarter(r) : sin_quarter(r);
    return (float)(quadrant & 2u ? -v : v);
}

float fl_sinf(float x)
{
    uint32_t quadrant;
    if (!(fabsf(x) < INFINITY)) return x - x;
    if (x == 0.0f) return x;
    double r = reduce(x, &quadrant);
    return sin_from_quadrant(r, quadrant);
}

float fl_cosf(float x)
{
    uint32_t quadrant;
    if (!(fabsf(x) < INFINITY)) return x - x;
    double r = reduce(x, &quadrant);
    return sin_from_quadrant(r, quadrant + 1u);
}

void rope_fill(float *cos_table, float *sin_table, const float *inv_freq, int32_t n_rot, int32_t first, int32_t n_positions, float scale)
{
    int32_t half = n_rot / 2;
    for (int32_t p = 0; p < n_positions; p++)
        for (int32_t i = 0; i < half; i++) {
            float angle = (float)(first + p) * inv_freq[i];
            size_t at = (size_t)p * (size_t)half + (size_t)i;
            cos_table[at] = fl_cosf(angle) * scale;
            sin_table[at] = fl_sinf(angle) * scale;
        }
}
