/* ops_shadow_test.c - tests/gpu/ops_shadow.h, over which GPU tests run, gives what the table below it gives: here the CPU's, bit for bit. */
#include "tests/unit/ops_cases.h"
#include "tests/gpu/ops_shadow.h"

static void every_operation_is_the_inner_ones(void **state)
{
    (void)state;
    case_forms f = case_forms_open(1);
    ops *o = f.forms[f.n - 1], *shadow = shadow_open(o, DTYPE_F32, false);
    for (int32_t k = 0; k < CASE_KINDS; k++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            const case_way way = seed % 3 == 0 ? SPLIT : WHOLE;
            op_case want = case_run(o, &case_kinds[k], seed, way, seed % 2, seed % 8 == 0), got = case_run(shadow, &case_kinds[k], seed, way, seed % 2, seed % 8 == 0);
            assert_int_equal(got.n_out, want.n_out);
            for (size_t i = 0; i < want.n_out; i++)
                if (!(got.out[i] == want.out[i] || (isnan(got.out[i]) && isnan(want.out[i]))))
                    fail_msg("%s, seed %llu: value %zu of %zu is %.9g, not %.9g", case_kinds[k].name, (unsigned long long)seed, i, want.n_out, got.out[i], want.out[i]);
            free(want.out);
            free(got.out);
        }
    shadow->close(shadow);
    case_forms_close(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_operation_is_the_inner_ones) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
