/* ops_gpu_test.c - every CUDA operation against its reference in scalar double, in fp32 and in the GPU's 16-bit type: random odd sizes, NaN-filled padding, prompts and
 * generated rows mixed (WHOLE), and row by row in decode form (SPLIT). Inputs are values that the type can hold, so a difference is the kernel's.
 *   ops_gpu_test [f32|16bit] [OPERATION] [CASES]   prints a line an operation, and the first three differences of each. */
#include "tests/unit/ops_cases.h"
#include "tests/gpu/gpu_open.h"
#include "tests/gpu/ops_shadow.h"

#define N_DIFFERENCES 3

/* The operations that the CPU has under one name. */
static void case_act_add(ops *o, op_case *c)
{
    const int32_t n_rows = case_rows(c), dim = case_dim(c, 100), n_all = n_rows * dim;
    float *x = case_floats(c, (size_t)n_all, 3.0f), *d = case_floats(c, (size_t)n_all, 3.0f);
    if (c->way == REFERENCE)
        for (int32_t i = 0; i < n_all; i++) x[i] += d[i];
    else EACH_CALL(c, n_rows, r, n) o->act_add(o, x + r * dim, d + r * dim, n, dim);
    case_give(c, x, (size_t)n_all);
}

static void case_linear_f32(ops *o, op_case *c)
{
    const int32_t n_rows = case_rows(c), n_in = case_dim(c, 400), n_out = case_in(c, 1, c->large ? 150 : 40);
    const weight w = case_weight(c, n_out, n_in, 1.0f);
    float *x = case_floats(c, (size_t)(n_rows * n_in), 1.0f), *y = case_blank(c, (size_t)(n_rows * n_out));
    if (c->way == REFERENCE) { ref_linear(case_out(c, (size_t)(n_rows * n_out)), x, &w, NULL, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) o->linear_f32(o, y + r * n_out, x + r * n_in, &w, NULL, n);
    case_give(c, y, (size_t)(n_rows * n_out));
}
static const case_kind more_kinds[] = { { "act_add", case_act_add }, { "linear_f32", case_linear_f32 } };

/* What a result in 16 bits may differ by, relative to max(1, |want|): a rounding of the result, and of what the operation keeps in 16 bits on its way
 * (probabilities, an expert's hidden values, parts of a chunk). fp32 results of fp32 arithmetic have the fp32 rule. */
typedef struct { const char *name; double tolerance; } rule;
static const rule rules_16[] = {
    { "embed", 1e-6 }, { "gather", 0 }, { "add", 1e-6 }, { "linear_f32", 3e-5 }, { "soft_cap", 3e-5 }, { "log_sum_exp", 3e-5 }, { "moe_route", 3e-5 }, { "moe_route_sigmoid", 3e-5 }, { "kv_write", 0 },
    { "attention", 1.2e-2 }, { "moe_experts", 8e-2 }, { "gated_delta", 2e-2 },         /* hidden values of an expert reach 25 here and nearly cancel */
};
static double tolerance_of(const char *name, dtype type, double of_case)
{
    if (type == DTYPE_F32) return of_case > 0 ? fmax(of_case, 3e-5) : 1e-6;
    for (size_t i = 0; i < sizeof rules_16 / sizeof *rules_16; i++) if (strcmp(rules_16[i].name, name) == 0) return rules_16[i].tolerance;
    return type == DTYPE_BF16 ? 5e-3 : 7e-4;
}

/* On a device no product's weights are quantized: they are decoded when they are loaded. */
static bool is_of_the_host(const char *name) { return strcmp(name, "quant_linear") == 0 || strcmp(name, "quant_moe_experts") == 0; }

static bool compare(ops *shadow, const case_kind *kind, uint64_t seed, case_way way, bool large, dtype type, int32_t *n_shown, double *most)
{
    op_case want = case_run_rounded(shadow, kind, seed, REFERENCE, false, large, type), got = case_run_rounded(shadow, kind, seed, way, false, large, type);
    const double tolerance = tolerance_of(kind->name, type, want.tolerance);
    size_t n_bad = 0, first = 0;
    double worst = 0;
    if (got.n_out != want.n_out) abort();
    for (size_t i = 0; i < want.n_out; i++) {
        const double error = fabs(got.out[i] - want.out[i]) / fmax(1.0, fabs(want.out[i]));
        const bool fits = isnan(want.out[i]) ? isnan(got.out[i]) : error <= tolerance;
        if (!isnan(error) && error > worst) worst = error;
        if (!fits && n_bad++ == 0) first = i;
    }
    if (worst > *most) *most = worst;
    if (n_bad > 0 && (*n_shown)++ < N_DIFFERENCES)
        printf("  %s seed %llu %s%s: %zu of %zu values differ, the first at %zu is %.8g, not %.8g (at most %.3g, %.3g allowed)\n", kind->name, (unsigned long long)seed,
               way == WHOLE ? "whole" : "split", large ? " large" : "", n_bad, want.n_out, first, got.out[first], want.out[first], worst, tolerance);
    free(want.out);
    free(got.out);
    return n_bad == 0;
}

static bool run_kind(ops *shadow, const case_kind *kind, dtype type, int32_t n_cases)
{
    int32_t n_bad = 0, n_shown = 0;
    double most = 0;
    for (int32_t i = 0; i < n_cases; i++)
        for (case_way way = WHOLE; way <= SPLIT; way++) n_bad += !compare(shadow, kind, (uint64_t)i * 1000003u + 17u, way, i % 8 == 7, type, &n_shown, &most);
    printf("%s %s %s: %d cases, %d differ, error at most %.3g\n", n_bad ? "FAIL" : "PASS", shadow->name, kind->name, 2 * n_cases, n_bad, most);
    fflush(stdout);
    return n_bad == 0;
}

int main(int argc, char **argv)
{
    const char *only = argc > 2 ? argv[2] : "";
    const int32_t n_cases = argc > 3 ? atoi(argv[3]) : 40;
    int32_t n_passed = 0, n_failed = 0;
    for (int p = 0; p < 2; p++) {
        if (argc > 1 && strcmp(argv[1], p ? "16bit" : "f32") != 0) continue;
        ops *o = gpu_open(p ? CUDA_16_BIT : CUDA_F32);
        const dtype type = o->act_type;
        ops *shadow = shadow_open(o, type, true);
        for (size_t k = 0; k < CASE_KINDS + sizeof more_kinds / sizeof *more_kinds; k++) {
            const case_kind *kind = k < CASE_KINDS ? &case_kinds[k] : &more_kinds[k - CASE_KINDS];
            if (is_of_the_host(kind->name) || (*only && strcmp(only, kind->name) != 0)) continue;
            *(run_kind(shadow, kind, type, n_cases) ? &n_passed : &n_failed) += 1;
        }
        shadow->close(shadow);
        o->close(o);
    }
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
