/* bench_rows_test.c - the rows of `bench job` are those that Python draws: values printed by Python 3.11's random. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
#include "worker/bench_rows.h"

/* random.seed(s); [randint(0, 10**9) for _ in range(3)], then randint(5, 5), randint(-3, 3) */
static void randint_draws_what_python_draws(void **state)
{
    static const struct { uint32_t seed; int32_t want[5]; } vectors[] = { { 0u, { 906691059, 413653999, 813847339, 5, -3 } }, { 1u, { 144272509, 611178002, 909925047, 5, -1 } }, { 20240611u, { 652657865, 879343959, 827756926, 5, -1 } }, { 4294967295u, { 682209858, 665256253, 218184272, 5, 1 } } };
    (void)state;
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        python_random r;
        python_random_init(&r, vectors[i].seed);
        for (int k = 0; k < 3; k++) assert_int_equal(python_random_int(&r, 0, 1000000000), vectors[i].want[k]);
        assert_int_equal(python_random_int(&r, 5, 5), vectors[i].want[3]);
        assert_int_equal(python_random_int(&r, -3, 3), vectors[i].want[4]);
    }
}

static void the_rows_are_nano_vllms(void **state)
{
    static const int32_t first[] = { 6311, 6890, 663, 4242, 8376, 7961 }, last[] = { 6642, 9046, 1958 }, outputs[] = { 845, 312, 607, 843, 500, 882 };
    bench_rows rows;
    fl_err err;
    (void)state;
    assert_int_equal(bench_rows_make(&rows, 256, 0, 0, &err), FL_OK);
    assert_int_equal(rows.n_prompt_tokens, 142827);
    assert_int_equal(rows.n_output_tokens, 133966);
    assert_int_equal(rows.n_longest, 2011);
    assert_int_equal(rows.n_prompt[0], 964);
    assert_memory_equal(rows.ids, first, sizeof first);
    assert_memory_equal(rows.ids + rows.n_prompt_tokens - 3, last, sizeof last);
    assert_memory_equal(rows.n_output, outputs, sizeof outputs);
    assert_int_equal(rows.n_output[255], 312);
    bench_rows_free(&rows);
}

static void fixed_lengths_draw_ids_alone(void **state)
{
    bench_rows rows;
    fl_err err;
    (void)state;
    assert_int_equal(bench_rows_make(&rows, 3, 5, 7, &err), FL_OK);
    assert_int_equal(rows.n_prompt_tokens, 15);
    assert_int_equal(rows.n_output_tokens, 21);
    assert_int_equal(rows.n_longest, 12);
    static const int32_t ids[] = { 6311, 6890, 663, 4242, 8376, 7961, 6634, 4969, 7808, 5866, 9558, 3578, 8268, 2281, 4617 };
    assert_memory_equal(rows.ids, ids, sizeof ids);
    bench_rows_fit(&rows, 100);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) assert_int_equal(rows.ids[i], ids[i] % 100);
    bench_rows_free(&rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(randint_draws_what_python_draws),
        cmocka_unit_test(the_rows_are_nano_vllms),
        cmocka_unit_test(fixed_lengths_draw_ids_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
