/* Rates over the last while. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "coordinator/pace.h"

static void rates_run_over_the_ring_and_forget_what_is_older(void **state)
{
    (void)state;
    pace p = { 0 };
    double a, b;
    pace_rates(&p, 5000, 100, 10, &a, &b);
    assert_true(a == 0 && b == 0);
    pace_note(&p, 1000, 1000, 0, 0);
    pace_note(&p, 1500, 1000, 7, 7);                     /* too soon: the first note stays the last */
    pace_rates(&p, 3000, 100, 10, &a, &b);
    assert_true(a == 50 && b == 5);
    for (int64_t at = 2000; at <= 40000; at += 1000) pace_note(&p, at, 1000, at < 20000 ? (uint64_t)at : 20000, 0);
    pace_rates(&p, 40000, 20000, 0, &a, &b);
    assert_true(a == 0 && b == 0);                       /* nothing came in the last 16 s */
    pace_rates(&p, 40000, 20150, 15, &a, &b);
    assert_true(a == 10 && b == 1);
}

static void a_counter_that_began_anew_has_no_rate(void **state)
{
    (void)state;
    pace p = { 0 };
    double a, b;
    pace_note(&p, 0, 1000, 500, 500);
    pace_rates(&p, 1000, 3, 600, &a, &b);
    assert_true(a == 0 && b == 100);
    pace_rates(&p, 0, 900, 900, &a, &b);                 /* no time has gone by */
    assert_true(a == 0 && b == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(rates_run_over_the_ring_and_forget_what_is_older), cmocka_unit_test(a_counter_that_began_anew_has_no_rate) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
