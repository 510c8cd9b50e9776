/* How decode steps are padded: few sizes, never smaller than the step or larger than the batch limit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include "engine/step_lists.h"

static void steps_are_padded_to_few_sizes(void **state)
{
    (void)state;
    static const int32_t sizes[] = { 1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256, 320, 384, 448, 512, 640 };
    for (size_t i = 0, n = 1; i < sizeof sizes / sizeof *sizes; i++)
        for (; n <= (size_t)sizes[i]; n++) assert_int_equal(step_rows_padded((int32_t)n, 4096), sizes[i]);
}

static void batch_limit_is_a_size_of_its_own(void **state)
{
    (void)state;
    for (int32_t most = 1; most <= 300; most++)
        for (int32_t n = 1; n <= most; n++) {
            const int32_t padded = step_rows_padded(n, most);
            assert_true(padded >= n && padded <= most);
            assert_true(padded == most || padded == step_rows_padded(n, 4096));
        }
    assert_int_equal(step_rows_padded(99, 100), 100);
    assert_int_equal(step_rows_padded(4096, 4096), 4096);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(steps_are_padded_to_few_sizes), cmocka_unit_test(batch_limit_is_a_size_of_its_own) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
