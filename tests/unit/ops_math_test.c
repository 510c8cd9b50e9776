/* ops_math_test.c - the own scalar math of kernels/ops.h against long double libm: below 2 ulp over its whole domain, IEEE specials exact. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/ops.h"

static float float_of_bits(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }

/* Distance of `got` from the true value in units of the last place of the true value. */
static double ulps(float got, long double want)
{
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want) ? 0.0 : INFINITY;
    if (isinf(got)) return isinf(want) ? ((got > 0) == (want > 0) ? 0.0 : INFINITY) : (fabsl(want) >= 0x1.ffffffp127L ? 0.0 : INFINITY);
    if (isinf(want)) return INFINITY;
    int e = 0;
    frexpl(want, &e);
    if (e < -125) e = -125;                                          /* subnormals share one last place */
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, e - 24));
}

typedef struct { double worst; float at; } worst_ulp;
static void worst_take(worst_ulp *w, float x, float got, long double want)
{
    double u = ulps(got, want);
    if (u > w->worst) { w->worst = u; w->at = x; }
}

/* Every `step`-th float of both signs, from zero through subnormals to infinity. */
static void sweep(const char *name, float (*f)(float), long double (*reference)(long double), uint32_t step, double bound)
{
    worst_ulp w = { 0.0, 0.0f };
    for (uint64_t u = 0; u < 0x7f800000u; u += step) {
        float x = float_of_bits((uint32_t)u);
        worst_take(&w, x, f(x), reference((long double)x));
        worst_take(&w, -x, f(-x), reference(-(long double)x));
    }
    print_message("%s: worst %.3f ulp at %a\n", name, w.worst, (double)w.at);
    assert_true(w.worst < bound);
}

static void exp_is_below_one_ulp(void **state) { (void)state; sweep("exp", fl_expf, expl, 2003, 1.0); }
static void log_is_rounded_once(void **state) { (void)state; sweep("log", fl_logf, logl, 2003, 0.501); }
static void log1p_is_rounded_once(void **state) { (void)state; sweep("log1p", fl_log1pf, log1pl, 2003, 0.501); }
static void tanh_is_below_two_ulp(void **state) { (void)state; sweep("tanh", fl_tanhf, tanhl, 2003, 2.0); }
static void sin_is_rounded_once_however_large_the_argument(void **state) { (void)state; sweep("sin", fl_sinf, sinl, 2003, 0.501); }
static void cos_is_rounded_once_however_large_the_argument(void **state) { (void)state; sweep("cos", fl_cosf, cosl, 2003, 0.501); }

/* Dense where functions are steep or pass through zero: near 1 for log, near multiples of pi/2, at the borders of exp. */
static void dense_neighbourhoods_keep_their_bounds(void **state)
{
    (void)state;
    worst_ulp log_w = { 0 }, sin_w = { 0 }, exp_w = { 0 }, tanh_w = { 0 };
    for (int32_t i = -200000; i <= 200000; i++) {
        float one = float_of_bits((uint32_t)(0x3f800000 + i));
        worst_take(&log_w, one, fl_logf(one), logl((long double)one));
        float border = -87.0f - (float)i * 0x1p-13f;                 /* about -111 .. -62: normal, subnormal, zero */
        worst_take(&exp_w, border, fl_expf(border), expl((long double)border));
        border = 88.0f + (float)i * 0x1p-17f;
        worst_take(&exp_w, border, fl_expf(border), expl((long double)border));
        float near = 0.625f + (float)i * 0x1p-24f;
        worst_take(&tanh_w, near, fl_tanhf(near), tanhl((long double)near));
    }
    for (int32_t n = 1; n < 300000; n++) {
        float x = (float)((double)n * 1.5707963267948966);           /* the float nearest to n pi/2 */
        worst_take(&sin_w, x, fl_sinf(x), sinl((long double)x));
        worst_take(&sin_w, x, fl_cosf(x), cosl((long double)x));
    }
    print_message("dense: log %.3f, exp %.3f, tanh %.3f, sin/cos %.3f ulp\n", log_w.worst, exp_w.worst, tanh_w.worst, sin_w.worst);
    assert_true(log_w.worst < 0.501 && sin_w.worst < 0.501 && exp_w.worst < 1.0 && tanh_w.worst < 2.0);
}

static void pow_is_rounded_once(void **state)
{
    (void)state;
    worst_ulp w = { 0 };
    uint64_t s = 12345;
    for (int32_t i = 0; i < 1000000; i++) {
        s = s * 6364136223846793005u + 1442695040888963407u;
        float x = float_of_bits((uint32_t)(s >> 33) % 0x7f800000u);
        float y = (float)((double)(int32_t)(s >> 20) * 0x1p-31 * (i % 3 == 0 ? 2.0 : i % 3 == 1 ? 40.0 : 0.01));
        worst_take(&w, x, fl_powf(x, y), powl((long double)x, (long double)y));
        if (i % 4 == 0) worst_take(&w, -x, fl_powf(-x, rintf(y)), powl(-(long double)x, (long double)rintf(y)));
    }
    for (int32_t i = 0; i < 256; i++) {                              /* inverse frequencies of rotary embeddings */
        float y = -2.0f * (float)i / 256.0f;
        worst_take(&w, y, fl_powf(1e6f, y), powl(1e6L, (long double)y));
        worst_take(&w, y, fl_powf(10000.0f, y), powl(10000.0L, (long double)y));
    }
    print_message("pow: worst %.3f ulp at %a\n", w.worst, (double)w.at);
    assert_true(w.worst < 0.501);
}

static void same(float got, float want)
{
    if (isnan(want)) { assert_true(isnan(got)); return; }
    assert_memory_equal(&got, &want, sizeof got);
}

static void specials_follow_ieee(void **state)
{
    (void)state;
    float inf = INFINITY, nan_ = NAN;
    same(fl_expf(inf), inf); same(fl_expf(-inf), 0.0f); same(fl_expf(nan_), nan_); same(fl_expf(0.0f), 1.0f); same(fl_expf(-0.0f), 1.0f);
    same(fl_expf(88.8f), inf); same(fl_expf(-104.0f), 0.0f);
    same(fl_logf(0.0f), -inf); same(fl_logf(-0.0f), -inf); same(fl_logf(-1.0f), nan_); same(fl_logf(inf), inf); same(fl_logf(-inf), nan_); same(fl_logf(nan_), nan_); same(fl_logf(1.0f), 0.0f);
    same(fl_log1pf(-1.0f), -inf); same(fl_log1pf(-2.0f), nan_); same(fl_log1pf(inf), inf); same(fl_log1pf(0.0f), 0.0f); same(fl_log1pf(-0.0f), -0.0f); same(fl_log1pf(nan_), nan_);
    same(fl_tanhf(inf), 1.0f); same(fl_tanhf(-inf), -1.0f); same(fl_tanhf(0.0f), 0.0f); same(fl_tanhf(-0.0f), -0.0f); same(fl_tanhf(nan_), nan_);
    same(fl_sinf(0.0f), 0.0f); same(fl_sinf(-0.0f), -0.0f); same(fl_sinf(inf), nan_); same(fl_sinf(nan_), nan_);
    same(fl_cosf(0.0f), 1.0f); same(fl_cosf(-inf), nan_); same(fl_cosf(nan_), nan_);
}

/* libm's powf is exact on these cases of C17 annex F. */
static void pow_has_the_special_cases_of_annex_f(void **state)
{
    (void)state;
    float values[] = { 0.0f, -0.0f, 1.0f, -1.0f, 2.0f, -2.0f, 3.0f, -3.0f, 0.5f, -0.5f, 2.5f, -2.5f, INFINITY, -INFINITY, NAN, 0x1p24f, 0x1.000002p24f, -0x1.fffffep23f, 1e30f, -1e30f, 1e-40f };
    int32_t n = (int32_t)(sizeof values / sizeof *values);
    for (int32_t i = 0; i < n; i++)
        for (int32_t j = 0; j < n; j++) {
            float want = powf(values[i], values[j]), got = fl_powf(values[i], values[j]);
            if (isfinite(want) && want != 0.0f) assert_true(ulps(got, (long double)want) <= 1.0);
            else same(got, want);
        }
}

static void rope_tables_hold_cos_and_sin_of_the_fp32_angle(void **state)
{
    (void)state;
    float inv_freq[3] = { 1.0f, 0.1f, 0.0123f }, c[30], s[30];
    rope_fill(c, s, inv_freq, 6, 0, 4, 0.5f);
    rope_fill(c + 12, s + 12, inv_freq, 6, 4, 6, 0.5f);
    for (int32_t p = 0; p < 10; p++)
        for (int32_t i = 0; i < 3; i++) {
            float angle = (float)p * inv_freq[i];
            same(c[p * 3 + i], fl_cosf(angle) * 0.5f);
            same(s[p * 3 + i], fl_sinf(angle) * 0.5f);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_is_below_one_ulp),
        cmocka_unit_test(log_is_rounded_once),
        cmocka_unit_test(log1p_is_rounded_once),
        cmocka_unit_test(tanh_is_below_two_ulp),
        cmocka_unit_test(sin_is_rounded_once_however_large_the_argument),
        cmocka_unit_test(cos_is_rounded_once_however_large_the_argument),
        cmocka_unit_test(dense_neighbourhoods_keep_their_bounds),
        cmocka_unit_test(pow_is_rounded_once),
        cmocka_unit_test(specials_follow_ieee),
        cmocka_unit_test(pow_has_the_special_cases_of_annex_f),
        cmocka_unit_test(rope_tables_hold_cos_and_sin_of_the_fp32_angle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
