/* ops_bits_test.c - what ops/DESIGN.md section 7 promises of the CPU kernels, over random sizes and inputs (with NaN, infinities, huge and subnormal values):
 * the scalar, AVX2 and AVX-512 forms give the same bits; 1, 2 and 3 threads give the same bits; a row computed alone, and a prompt's row computed as a
 * generated one, has the bits it has among others. A NaN equals a NaN.
 * OPS_BITS_SEED=N runs another set of cases. */
#include "tests/unit/ops_cases.h"

static uint64_t seed_of_run(void)
{
    const char *s = getenv("OPS_BITS_SEED");
    return s ? strtoull(s, NULL, 10) : 20250101u;
}

static void expect_same(const op_case *a, const op_case *b, const char *what, const case_kind *kind, uint64_t seed)
{
    assert_int_equal(a->n_out, b->n_out);
    for (size_t i = 0; i < a->n_out; i++)
        if (memcmp(&a->out[i], &b->out[i], sizeof *a->out) != 0 && !(isnan(a->out[i]) && isnan(b->out[i])))
            fail_msg("%s, seed %llu, %s: element %zu of %zu is %a or %a", kind->name, (unsigned long long)seed, what, i, a->n_out, a->out[i], b->out[i]);
}

/* Sanitized kernels are some twenty times slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHARE 4
#else
#define SHARE 1
#endif

static void over_cases(int32_t n_cases, void (*check)(const case_kind *kind, uint64_t seed, bool specials, bool large))
{
    print_message("seed %llu\n", (unsigned long long)seed_of_run());
    for (int32_t k = 0; k < CASE_KINDS; k++)
        for (int32_t i = 0; i < n_cases / SHARE; i++) check(&case_kinds[k], seed_of_run() + (uint64_t)i * 7919u, i % 2, i % 4 == 3);
}

static case_forms forms, forms_2, forms_3;

static void check_forms(const case_kind *kind, uint64_t seed, bool specials, bool large)
{
    op_case a = case_run(forms.forms[0], kind, seed, WHOLE, specials, large);
    for (int32_t f = 1; f < forms.n; f++) {
        op_case b = case_run(forms.forms[f], kind, seed, WHOLE, specials, large);
        expect_same(&a, &b, forms.forms[f]->name, kind, seed);
        free(b.out);
    }
    free(a.out);
}

static void check_rows(const case_kind *kind, uint64_t seed, bool specials, bool large)
{
    for (int32_t f = 0; f < forms.n; f++) {
        op_case a = case_run(forms.forms[f], kind, seed, WHOLE, specials, large), b = case_run(forms.forms[f], kind, seed, SPLIT, specials, large);
        expect_same(&a, &b, "row by row", kind, seed);
        free(a.out);
        free(b.out);
    }
}

static void check_threads(const case_kind *kind, uint64_t seed, bool specials, bool large)
{
    int32_t f = forms.n - 1;
    op_case a = case_run(forms.forms[f], kind, seed, WHOLE, specials, large), b = case_run(forms_2.forms[f], kind, seed, WHOLE, specials, large);
    op_case c = case_run(forms_3.forms[f], kind, seed, WHOLE, specials, large);
    expect_same(&a, &b, "2 threads", kind, seed);
    expect_same(&a, &c, "3 threads", kind, seed);
    free(a.out);
    free(b.out);
    free(c.out);
}

static void forms_give_the_same_bits(void **state) { (void)state; over_cases(60, check_forms); }
static void a_row_has_the_same_bits_alone_and_among_others(void **state) { (void)state; over_cases(24, check_rows); }
static void threads_give_the_same_bits(void **state) { (void)state; over_cases(24, check_threads); }

/* Every value of exp's and tanh's own text, in sixteen lanes and in one, over a sweep of all floats. */
static void lanes_and_scalar_math_agree(void **state)
{
    (void)state;
    enum { N = 4096 };
    static float x[N], one[N], y[N];
    for (int32_t i = 0; i < N; i++) one[i] = 1.0f;
    for (uint32_t round = 0; round < 256; round++) {
        for (uint32_t i = 0; i < N; i++) { uint32_t u = (round * N + i) * 4093u; memcpy(&x[i], &u, 4); }
        for (int32_t f = 0; f < forms.n; f++) {
            memcpy(y, one, sizeof y);
            forms.forms[f]->sigmoid_gate(forms.forms[f], y, x, N, N, 1, N, 1);
            for (int32_t i = 0; i < N; i++) {
                float want = 1.0f / (1.0f + fl_expf(-x[i]));
                if (memcmp(&want, &y[i], 4) != 0 && !(isnan(want) && isnan(y[i]))) fail_msg("%s: sigmoid(%a) is %a, scalar math says %a", forms.forms[f]->name, (double)x[i], (double)y[i], (double)want);
            }
        }
    }
}

static void digest_take(uint64_t *digest, double v)
{
    uint64_t u;
    memcpy(&u, &v, sizeof u);
    if (isnan(v)) u = 0x7ff8000000000000u;
    *digest = (*digest ^ u) * 0x100000001b3u;
    *digest ^= *digest >> 29;
}

/* One number for all results, and one for those of quantized weights: they are the same for every compiler, so they are written down here. A change of bits changes
 * them, and the numerics version with them. */
#define DIGEST_OF_ALL 0xb4b086cfd63bd60du
#define DIGEST_OF_QUANT 0x092327d5031ad874u

static uint64_t digest_of_kinds(int32_t from, int32_t to)
{
    uint64_t digest = 0xcbf29ce484222325u;
    for (int32_t k = from; k < to; k++)
        for (int32_t i = 0; i < 20; i++) {
            op_case a = case_run(forms.forms[forms.n - 1], &case_kinds[k], 4242u + (uint64_t)i, WHOLE, i % 2, i % 4 == 3);
            for (size_t j = 0; j < a.n_out; j++) digest_take(&digest, a.out[j]);
            free(a.out);
        }
    return digest;
}

static void all_results_have_the_digest_written_down(void **state)
{
    (void)state;
    uint64_t digest = digest_of_kinds(0, CASE_KINDS - QUANT_KINDS), quant = digest_of_kinds(CASE_KINDS - QUANT_KINDS, CASE_KINDS);
    for (uint32_t u = 0; u < 0x7f800000u; u += 1000003u) {
        float x;
        memcpy(&x, &u, 4);
        float values[] = { fl_expf(x), fl_expf(-x), fl_logf(x), fl_log1pf(x), fl_tanhf(x), fl_sinf(x), fl_cosf(x), fl_powf(x, 0.37f), fl_powf(1.7f, x) };
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) digest_take(&digest, (double)values[i]);
    }
    if (digest != DIGEST_OF_ALL || quant != DIGEST_OF_QUANT)
        fail_msg("the digest of all results is 0x%016llx, that of quantized weights 0x%016llx", (unsigned long long)digest, (unsigned long long)quant);
}

static int open_forms(void **state)
{
    (void)state;
    forms = case_forms_open(1);
    forms_2 = case_forms_open(2);
    forms_3 = case_forms_open(3);
    return 0;
}
static int close_forms(void **state)
{
    (void)state;
    case_forms_close(&forms);
    case_forms_close(&forms_2);
    case_forms_close(&forms_3);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms_give_the_same_bits),
        cmocka_unit_test(a_row_has_the_same_bits_alone_and_among_others),
        cmocka_unit_test(threads_give_the_same_bits),
        cmocka_unit_test(lanes_and_scalar_math_agree),
        cmocka_unit_test(all_results_have_the_digest_written_down),
    };
    return cmocka_run_group_tests(tests, open_forms, close_forms);
}
