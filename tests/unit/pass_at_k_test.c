#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/eval_report.h"
#include "coordinator/pass_at_k.h"

/* 1 - C(n-c, k) / C(n, k) with exact integers, as far as 64 bits hold them. */
static double exact(uint32_t n, uint32_t c, uint32_t k)
{
    uint64_t all = 1, none = 1;
    for (uint32_t i = 0; i < k; i++) all = all * (n - i) / (i + 1);
    if (n - c < k) return 1;
    for (uint32_t i = 0; i < k; i++) none = none * (n - c - i) / (i + 1);
    return (double)(all - none) / (double)all;
}

static void the_product_is_the_binomials(void **state)
{
    (void)state;
    for (uint32_t n = 1; n <= 40; n++)
        for (uint32_t c = 0; c <= n; c++)
            for (uint32_t k = 1; k <= n && k <= 12; k++) assert_true(fabs(pass_at_k((pass_count){ n, c }, k) - exact(n, c, k)) < 1e-12);
    assert_true(fabs(pass_at_k((pass_count){ 200, 13 }, 10) - 0.497551) < 5e-7);
    assert_true(pass_at_k((pass_count){ 1024, 0 }, 1024) == 0.0);
    assert_true(pass_at_k((pass_count){ 1024, 1 }, 1024) == 1.0);
}

static void a_task_without_k_failures_is_solved_whatever_the_rest_gives(void **state)
{
    (void)state;
    for (uint32_t c = 11; c <= 20; c++) assert_true(pass_at_k((pass_count){ 20, c }, 10) == 1.0);
    assert_true(pass_at_k((pass_count){ 20, 10 }, 10) < 1.0);
}

static void intervals_are_seeded_and_hold_the_mean(void **state)
{
    (void)state;
    pass_count counts[100];
    pass_interval a, b, one;
    fl_err err;
    for (uint32_t i = 0; i < 100; i++) counts[i] = (pass_count){ 20, i % 21 };
    assert_int_equal(pass_at_k_mean(counts, 100, 5, &a, &err), FL_OK);
    assert_int_equal(pass_at_k_mean(counts, 100, 5, &b, &err), FL_OK);
    assert_memory_equal(&a, &b, sizeof a);
    assert_true(a.low < a.mean && a.mean < a.high);
    assert_true(a.low > a.mean - 0.12 && a.high < a.mean + 0.12);        /* about two standard errors of 100 values below 1 */
    assert_int_equal(pass_at_k_mean(counts + 20, 1, 20, &one, &err), FL_OK);
    assert_true(one.mean == 1.0 && one.low == 1.0 && one.high == 1.0);
}

static void the_list_of_k_is_sorted_and_checked(void **state)
{
    (void)state;
    pass_ks ks;
    fl_err err;
    assert_int_equal(pass_ks_parse(&ks, "10,1,100", &err), FL_OK);
    assert_int_equal(ks.n, 3);
    assert_true(ks.v[0] == 1 && ks.v[1] == 10 && ks.v[2] == 100);
    static const char *const bad[] = { "", "0", "1,", ",1", "1,,2", "a", "1 ,2", "-1", "1,1", "1025", "1.5" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(pass_ks_parse(&ks, bad[i], &err), FL_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_product_is_the_binomials),
        cmocka_unit_test(a_task_without_k_failures_is_solved_whatever_the_rest_gives),
        cmocka_unit_test(intervals_are_seeded_and_hold_the_mean),
        cmocka_unit_test(the_list_of_k_is_sorted_and_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
