/* lanes_math.h - exp, tanh, softplus, sigmoid and silu of sixteen lanes. Errors: exp and tanh below 2 ulp (tests/unit/ops_math_test.c).
 * Included after lanes.h; fl_expf and fl_tanhf are these with one lane, so they give the lanes' bits. */
#ifndef KERNELS_CPU_LANES_MATH_H
#define KERNELS_CPU_LANES_MATH_H

#include "kernels/cpu/lanes.h"

#if defined(LANES_SCALAR)                /* sixteen scalar exps in a row, in every loop, would only make compiling slow */
#define MATH static __attribute__((noinline, unused))
#else
#define MATH INLINE
#endif

/* e^x = 2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2. Below -104 and above 89 the result is 0 and inf already, so x is clamped there first (a NaN
 * passes: f_max and f_min return their second operand). 2^n is applied in two halves, so that n = 128 and subnormal results need no branch. */
MATH f32x16 f_exp(f32x16 x)
{
    x = f_min(f_set(89.0f), f_max(f_set(-104.0f), x));
    f32x16 magic = f_set(0x1.8p23f);                                 /* adding it rounds to an integer, which is then in the low bits */
    f32x16 shifted = f_fma(x, f_set(0x1.715476p+0f), magic);
    f32x16 n = f_sub(shifted, magic);
    f32x16 r = f_fnma(n, f_set(0x1.62e430p-1f), x);                  /* exact: a multiple of 2^-25 below 2^-1 */
    r = f_fnma(n, f_set(-0x1.05c610p-29f), r);
    f32x16 q = f_set(0.0013814608f);
    q = f_fma(q, r, f_set(0.008368711f));
    q = f_fma(q, r, f_set(0.04166839f));
    q = f_fma(q, r, f_set(0.16666521f));
    q = f_fma(q, r, f_set(0.49999994f));
    f32x16 p = f_add(f_fma(f_mul(r, r), q, r), f_set(1.0f));
    u32x16 exponent = u_sub(u_of(shifted), u_of(magic));
    u32x16 half = u_half(exponent), rest = u_sub(exponent, half);
    p = f_mul(p, f_of(u_left23(u_add(half, u_set(127)))));
    return f_mul(p, f_of(u_left23(u_add(rest, u_set(127)))));
}

/* Below 0.625 an odd polynomial; from there 1 - 2 / (e^2|x| + 1) with the sign put back. */
MATH f32x16 f_tanh(f32x16 x)
{
    u32x16 sign = u_and(u_of(x), u_set(0x80000000u));
    f32x16 a = f_of(u_and(u_of(x), u_set(0x7fffffffu)));
    f32x16 z = f_mul(x, x);
    f32x16 p = f_set(0.002147537f);
    p = f_fma(p, z, f_set(-0.008182674f));
    p = f_fma(p, z, f_set(0.021702968f));
    p = f_fma(p, z, f_set(-0.053947203f));
    p = f_fma(p, z, f_set(0.1333321f));
    p = f_fma(p, z, f_set(-0.3333333f));
    f32x16 small = f_fma(f_mul(z, p), a, a);
    f32x16 large = f_sub(f_set(1.0f), f_div(f_set(2.0f), f_add(f_exp(f_add(a, a)), f_set(1.0f))));
    return f_of(u_or(u_of(f_pick(f_less(a, f_set(0.625f)), small, large)), sign));
}

/* log(1 + e^x) = max(x, 0) + log(1 + u), u = e^-|x| in [0, 1]; log(1 + u) = 2 atanh(s), s = u / (2 + u) <= 1/3. */
MATH f32x16 f_softplus(f32x16 x)
{
    f32x16 u = f_exp(f_of(u_or(u_of(x), u_set(0x80000000u))));
    f32x16 s = f_div(u, f_add(u, f_set(2.0f))), z = f_mul(s, s);
    f32x16 p = f_set(0.24300937f);
    p = f_fma(p, z, f_set(0.21427657f));
    p = f_fma(p, z, f_set(0.28616884f));
    p = f_fma(p, z, f_set(0.39998877f));
    p = f_fma(p, z, f_set(0.66666675f));
    return f_add(f_max(x, f_set(0.0f)), f_fma(f_mul(s, z), p, f_add(s, s)));
}

INLINE f32x16 f_neg(f32x16 x) { return f_sub(f_set(-0.0f), x); }
MATH f32x16 f_sigmoid(f32x16 x) { return f_div(f_set(1.0f), f_add(f_set(1.0f), f_exp(f_neg(x)))); }
MATH f32x16 f_silu(f32x16 x) { return f_div(x, f_add(f_set(1.0f), f_exp(f_neg(x)))); }

#endif
