/* Values on their way to a device: nearest, ties to even, and back the same. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/encode.h"
#include "kernels/quant.h"

static void every_16_bit_value_comes_back_as_it_was(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const dtype type = t ? DTYPE_F16 : DTYPE_BF16;
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t stored = (uint16_t)i, back;
            float value;
            dtype_decode(&value, type, &stored, 1);
            dtype_encode(&back, type, &value, 1);
            if (isnan(value)) { dtype_decode(&value, type, &back, 1); assert_true(isnan(value)); }
            else assert_int_equal(back, stored);
            assert_int_equal(dtype_is_finite(&stored, type, 1), isfinite(value) != 0);
        }
    }
}

/* Between two neighbours: below the middle down, above it up, on it to the even one. */
static void value_between_two_goes_to_the_nearest_and_a_tie_to_the_even_one(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++) {
        const dtype type = t ? DTYPE_F16 : DTYPE_BF16;
        const uint32_t end = t ? 0x7bff : 0x7f7f;
        for (uint32_t i = 0; i < end; i++) {
            uint16_t pair[2] = { (uint16_t)i, (uint16_t)(i + 1) }, got[3];
            float v[2], between[3];
            dtype_decode(&v[0], type, &pair[0], 1);
            dtype_decode(&v[1], type, &pair[1], 1);
            between[1] = (float)(((double)v[0] + (double)v[1]) / 2);
            between[0] = nextafterf(between[1], 0.0f);
            between[2] = nextafterf(between[1], INFINITY);
            dtype_encode(got, type, between, 3);
            assert_int_equal(got[0], pair[0]);
            assert_int_equal(got[1], pair[i % 2]);
            assert_int_equal(got[2], pair[1]);
        }
    }
}

static void values_beyond_f16_become_infinite(void **state)
{
    (void)state;
    const float in[] = { 65519.9f, 65520.0f, -1e30f, INFINITY, 1e-9f };
    uint16_t out[5];
    dtype_encode(out, DTYPE_F16, in, 5);
    assert_int_equal(out[0], 0x7bff);
    assert_int_equal(out[1], 0x7c00);
    assert_int_equal(out[2], 0xfc00);
    assert_int_equal(out[3], 0x7c00);
    assert_int_equal(out[4], 0);
    assert_false(dtype_is_finite(out, DTYPE_F16, 5));
}

static void random_values_fill_their_range(void **state)
{
    (void)state;
    double sum = 0, squares = 0;
    float least = 1, most = -1;
    enum { N = 100000 };
    for (uint64_t i = 0; i < N; i++) {
        float v = random_value(7, i);
        sum += (double)v;
        squares += (double)v * (double)v;
        least = fminf(least, v);
        most = fmaxf(most, v);
    }
    assert_true(fabs(sum / N) < 0.01 && fabs(squares / N - 1.0 / 3) < 0.01);
    assert_true(least >= -1 && least < -0.999f && most < 1 && most > 0.999f);
    assert_true(random_value(7, 0) != random_value(8, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_16_bit_value_comes_back_as_it_was),
        cmocka_unit_test(value_between_two_goes_to_the_nearest_and_a_tie_to_the_even_one),
        cmocka_unit_test(values_beyond_f16_become_infinite),
        cmocka_unit_test(random_values_fill_their_range),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
