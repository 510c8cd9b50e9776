/* F8_E4M3 values, and scales of every shape that checkpoints hold them in. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/fp8.h"

static void values_are_those_of_the_format(void **state)
{
    (void)state;
    assert_true(fp8_value(0x00) == 0.0f && !signbit(fp8_value(0x00)) && signbit(fp8_value(0x80)));
    assert_true(fp8_value(0x01) == 0x1p-9f);             /* the least subnormal */
    assert_true(fp8_value(0x07) == 0x1.cp-7f);
    assert_true(fp8_value(0x08) == 0x1p-6f);             /* the least normal */
    assert_true(fp8_value(0x38) == 1.0f && fp8_value(0xB8) == -1.0f);
    assert_true(fp8_value(0x7E) == 448.0f && fp8_value(0xFE) == -448.0f);
    assert_true(isnan(fp8_value(0x7F)) && isnan(fp8_value(0xFF)));
    for (int i = 1; i < 0x7F; i++) assert_true(fp8_value((uint8_t)i) > fp8_value((uint8_t)(i - 1)));
}

#define ROWS 5
#define COLS 6

typedef struct { float scale[32]; int32_t n_dims; int64_t shape[3]; int32_t n; } scale_case;

static tensor matrix(const uint8_t *data, size_t n_bytes) { return (tensor){ .name = "w", .file = "a.safetensors", .dtype_name = "F8_E4M3", .is_fp8 = true, .data = data, .n_bytes = n_bytes }; }

static tensor scales(const scale_case *c)
{
    tensor t = { .name = "w_scale", .file = "b.safetensors", .dtype_name = "F32", .is_weight = true, .type = DTYPE_F32, .n_dims = c->n_dims, .data = (const uint8_t *)c->scale, .n_bytes = 4 };
    for (int32_t i = 0; i < c->n_dims; i++) { t.shape[i] = c->shape[i]; t.n_bytes *= (uint64_t)c->shape[i]; }
    return t;
}

static const int32_t block[2] = { 2, 4 };

/* Every value is 1.0, so the result is the scale that met it. */
static void expand(float *out, const scale_case *c)
{
    uint8_t ones[3 * ROWS * COLS];
    fl_err err;
    memset(ones, 0x38, sizeof ones);
    tensor t = matrix(ones, (size_t)(c->n * ROWS * COLS)), s = scales(c);
    if (fp8_expand(out, &t, &s, c->n, ROWS, COLS, block, &err) != FL_OK) fail_msg("%s", err.text);
}

static void scales_of_every_shape_are_met_by_their_values(void **state)
{
    (void)state;
    float out[3 * ROWS * COLS];
    expand(out, &(scale_case){ .scale = { 3 }, .n = 2 });                                /* one for all */
    for (int i = 0; i < 2 * ROWS * COLS; i++) assert_true(out[i] == 3.0f);
    expand(out, &(scale_case){ .scale = { 1, 2, 3, 4, 5 }, .n_dims = 2, .shape = { 5, 1 }, .n = 1 });    /* one a row */
    for (int i = 0; i < ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i / COLS));
    expand(out, &(scale_case){ .scale = { 1, 2, 3, 4, 5 }, .n_dims = 1, .shape = { 5 }, .n = 1 });
    for (int i = 0; i < ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i / COLS));
    expand(out, &(scale_case){ .scale = { 1, 2, 3, 4, 5, 6 }, .n_dims = 2, .shape = { 3, 2 }, .n = 1 });  /* blocks of 2 by 4, the last ones cut */
    for (int i = 0; i < ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i / COLS / 2 * 2 + i % COLS / 4));
    expand(out, &(scale_case){ .scale = { 1, 2, 3 }, .n_dims = 3, .shape = { 3, 1, 1 }, .n = 3 });        /* one a matrix */
    for (int i = 0; i < 3 * ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i / (ROWS * COLS)));
    expand(out, &(scale_case){ .scale = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12 }, .n_dims = 3, .shape = { 2, 3, 2 }, .n = 2 });
    for (int i = 0; i < 2 * ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i / (ROWS * COLS) * 6 + i / COLS % ROWS / 2 * 2 + i % COLS / 4));
    expand(out, &(scale_case){ .scale = { 1, 2, 3 }, .n_dims = 2, .shape = { 1, 3 }, .n = 1 });           /* no block of the config, but a whole number of columns */
    for (int i = 0; i < ROWS * COLS; i++) assert_true(out[i] == (float)(1 + i % COLS / 2));
}

static void refuse(const scale_case *c, uint8_t value, const char *part)
{
    uint8_t values[3 * ROWS * COLS];
    float out[3 * ROWS * COLS];
    fl_err err;
    memset(values, value, sizeof values);
    tensor t = matrix(values, (size_t)(c->n * ROWS * COLS)), s = scales(c);
    assert_int_equal(fp8_expand(out, &t, &s, c->n, ROWS, COLS, block, &err), FL_CORRUPT);
    if (!strstr(err.text, part)) fail_msg("\"%s\"; wanted \"%s\"", err.text, part);
}

static void scales_that_do_not_fit_are_refused_by_name(void **state)
{
    (void)state;
    refuse(&(scale_case){ .scale = { 1 }, .n_dims = 2, .shape = { 4, 1 }, .n = 1 }, 0x38, "b.safetensors: tensor w_scale holds 4 scales");
    refuse(&(scale_case){ .scale = { 1 }, .n_dims = 2, .shape = { 3, 4 }, .n = 1 }, 0x38, "holds 12 scales");
    refuse(&(scale_case){ .scale = { 1 }, .n_dims = 1, .shape = { 0 }, .n = 1 }, 0x38, "holds 0 scales");
    refuse(&(scale_case){ .scale = { 1 }, .n_dims = 2, .shape = { 5, 1 }, .n = 2 }, 0x38, "holds 5 scales");
    refuse(&(scale_case){ .scale = { 1 }, .n = 1 }, 0x7F, "a.safetensors: tensor w has a NaN");
    refuse(&(scale_case){ .scale = { NAN }, .n = 1 }, 0x38, "b.safetensors: tensor w_scale has a NaN");
    refuse(&(scale_case){ .scale = { 3e38f }, .n = 1 }, 0x7E, "a.safetensors: tensor w times its scales is beyond fp32");
}

static void scales_in_half_precision_are_read(void **state)
{
    (void)state;
    static const struct { dtype type; uint16_t bits; float value; } cases[] = {
        { DTYPE_BF16, 0x3FC0, 1.5f }, { DTYPE_F16, 0x3E00, 1.5f }, { DTYPE_F16, 0x0001, 0x1p-24f }, { DTYPE_F16, 0xBC00, -1.0f },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t one = 0x38;
        float out;
        fl_err err;
        tensor t = matrix(&one, 1), s = { .name = "s", .file = "f", .dtype_name = "16", .is_weight = true, .type = cases[i].type, .data = (const uint8_t *)&cases[i].bits, .n_bytes = 2 };
        assert_int_equal(fp8_expand(&out, &t, &s, 1, 1, 1, block, &err), FL_OK);
        assert_true(out == cases[i].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_format),
        cmocka_unit_test(scales_of_every_shape_are_met_by_their_values),
        cmocka_unit_test(scales_that_do_not_fit_are_refused_by_name),
        cmocka_unit_test(scales_in_half_precision_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
