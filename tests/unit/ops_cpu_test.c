/* ops_cpu_test.c - every CPU operation, in every form this CPU has, against its reference: random odd sizes, NaN-filled padding, no rows; and opening. */
#include "tests/unit/ops_cases.h"

static void compare_with_reference(const case_kind *kind, int32_t n_cases)
{
    case_forms f = case_forms_open(1);
    for (int32_t i = 0; i < n_cases; i++) {
        uint64_t seed = (uint64_t)i * 1000003u + 17u;
        op_case want = case_run(f.forms[0], kind, seed, REFERENCE, false, false);
        for (int32_t form = 0; form < f.n; form++) {
            op_case got = case_run(f.forms[form], kind, seed, WHOLE, false, false);
            assert_int_equal(got.n_out, want.n_out);
            for (size_t j = 0; j < want.n_out; j++) {
                bool fits = isnan(want.out[j]) ? isnan(got.out[j]) : fabs(got.out[j] - want.out[j]) <= want.tolerance * fmax(1.0, fabs(want.out[j]));
                if (!fits) fail_msg("%s %s, seed %llu: element %zu of %zu is %.9g, the reference says %.9g", f.forms[form]->name, kind->name, (unsigned long long)seed, j, want.n_out, got.out[j], want.out[j]);
            }
            free(got.out);
        }
        free(want.out);
    }
    case_forms_close(&f);
}

static void every_operation_agrees_with_its_reference(void **state)
{
    (void)state;
    for (int32_t k = 0; k < CASE_KINDS; k++) compare_with_reference(&case_kinds[k], 60);
}

static void a_nan_stays_in_its_own_row(void **state)
{
    (void)state;
    case_forms f = case_forms_open(1);
    for (int32_t form = 0; form < f.n; form++) {
        ops *o = f.forms[form];
        float w[3 * 20], x[2 * 20], y[2 * 3];
        for (int32_t i = 0; i < 60; i++) w[i] = 1.0f;
        for (int32_t i = 0; i < 40; i++) x[i] = i == 37 ? NAN : 1.0f;
        weight wt = { w, DTYPE_F32, 3, 20 };
        o->linear(o, y, x, &wt, NULL, 2);
        for (int32_t i = 0; i < 3; i++) { assert_true(y[i] == 20.0f); assert_true(isnan(y[3 + i])); }
    }
    case_forms_close(&f);
}

static void router_ties_go_to_the_lowest_id_and_nan_gives_distinct_ids(void **state)
{
    (void)state;
    case_forms f = case_forms_open(1);
    for (int32_t form = 0; form < f.n; form++) {
        ops *o = f.forms[form];
        float logits[3][5] = { { 1, 2, 2, 2, 0 }, { NAN, 1, 2, 3, 4 }, { 0, 0, INFINITY, 0, 0 } }, weights[9];
        int32_t ids[9];
        o->moe_route(o, ids, weights, logits[0], 3, 5, 3, true);
        assert_int_equal(ids[0], 1); assert_int_equal(ids[1], 2); assert_int_equal(ids[2], 3);
        assert_true(weights[0] == weights[2]);
        for (int32_t r = 1; r < 3; r++) {
            const int32_t *row = ids + 3 * r;
            for (int32_t i = 0; i < 3; i++) assert_in_range(row[i], 0, 4);
            assert_true(row[0] != row[1] && row[1] != row[2] && row[0] != row[2]);
            assert_true(isnan(weights[3 * r]));
        }
    }
    case_forms_close(&f);
}

static void log_sum_exp_of_infinities_is_infinite(void **state)
{
    (void)state;
    case_forms f = case_forms_open(1);
    for (int32_t form = 0; form < f.n; form++) {
        ops *o = f.forms[form];
        float x[3][2] = { { -INFINITY, -INFINITY }, { 1.0f, INFINITY }, { -INFINITY, 5.0f } }, lse[3];
        o->log_sum_exp(o, lse, x[0], 3, 2);
        assert_true(lse[0] == -INFINITY && lse[1] == INFINITY && lse[2] == 5.0f);
    }
    case_forms_close(&f);
}

static void form_is_chosen_by_the_environment(void **state)
{
    (void)state;
    ops *o = NULL;
    fl_err err;
    setenv("TOKENFLEET_KERNELS", "scalar", 1);
    assert_int_equal(ops_cpu_open(&o, 1, &err), FL_OK);
    assert_string_equal(o->name, "cpu-scalar");
    o->close(o);
    setenv("TOKENFLEET_KERNELS", "fastest", 1);
    assert_int_equal(ops_cpu_open(&o, 1, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "fastest"));
    unsetenv("TOKENFLEET_KERNELS");
    assert_int_equal(ops_cpu_open(&o, 0, &err), FL_OK);              /* all cores */
    o->close(o);
    assert_int_equal(ops_cpu_open(&o, -1, &err), FL_INVALID);
    assert_int_equal(ops_cpu_open(&o, 1 << 20, &err), FL_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_agrees_with_its_reference),
        cmocka_unit_test(a_nan_stays_in_its_own_row),
        cmocka_unit_test(router_ties_go_to_the_lowest_id_and_nan_gives_distinct_ids),
        cmocka_unit_test(log_sum_exp_of_infinities_is_infinite),
        cmocka_unit_test(form_is_chosen_by_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
