/* cuda_code_test.c - a GPU is refused where the code that it would run lacks what the kernels are written for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include "kernels/cuda/cuda_code.h"

static void code_that_was_built_for_the_gpu_serves(void **state)
{
    static const int32_t built[][2] = { { 75, 750 }, { 80, 800 }, { 86, 860 }, { 89, 890 }, { 90, CUDA_CODE_90A }, { 100, 1000 }, { 120, 1200 } };
    (void)state;
    for (size_t i = 0; i < sizeof built / sizeof *built; i++) assert_null(cuda_code_missing(built[i][0], built[i][1]));
}

static void older_code_serves_where_it_is_the_same_kernels(void **state)
{
    (void)state;
    assert_null(cuda_code_missing(89, 800));
    assert_null(cuda_code_missing(120, 800));
    assert_null(cuda_code_missing(103, 1000));
}

static void hopper_needs_its_own_instructions(void **state)
{
    (void)state;
    assert_string_equal(cuda_code_missing(90, 900), "90a");
    assert_string_equal(cuda_code_missing(90, 800), "90a");
    assert_string_equal(cuda_code_missing(90, 750), "90a");
}

static void sixteen_bit_kernels_need_code_from_ampere_on(void **state)
{
    (void)state;
    assert_string_equal(cuda_code_missing(80, 750), "80");
    assert_string_equal(cuda_code_missing(120, 750), "80");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_that_was_built_for_the_gpu_serves),
        cmocka_unit_test(older_code_serves_where_it_is_the_same_kernels),
        cmocka_unit_test(hopper_needs_its_own_instructions),
        cmocka_unit_test(sixteen_bit_kernels_need_code_from_ampere_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
