/* The reference models (tests/golden/models) on a GPU. In fp32 they meet the rule of the CPU tests (golden_model.h). In 16 bits they are compared with our fp32 forward pass on the CPU,
 * teacher-forced on prompt and greedy ids: RMS error of the logits, mean error of log-probabilities and share of other expert sets at most 1.25 times what transformers' own bf16 run
 * has (bf16_reference.json; one H200, eager). And given the reference's router input, the experts are the reference's. */
#include "../golden/golden_model.h"
#include "gpu_open.h"

#define MODELS TESTS_DIR "/golden/models/"
#define FACTOR 1.25

static const char *const names[] = { "small_llama", "small_qwen3", "small_qwen3_moe", "small_qwen3_5", "small_qwen3_5_moe", "small_laguna", "small_gemma3", "wide_llama", "wide_qwen3",
                                     "wide_qwen3_5", "wide_qwen3_5_moe", "wide_laguna", "wide_gemma3", "odd_f8", "odd_f8_moe", "odd_fused", "odd_gemma3", "odd_laguna", "odd_llama",
                                     "odd_qwen3", "odd_qwen3_moe", "odd_three", "odd_whole" };
enum { N_NAMES = sizeof names / sizeof *names };

static void model_meets_the_cpu_rule_in_fp32(void **state)
{
    char dir[600];
    snprintf(dir, sizeof dir, "%s%s", MODELS, (const char *)*state);
    golden_check_model_on(dir, gpu_open(CUDA_F32));
}

typedef struct { double squares, n_logits, most, logprobs, n_logprobs; size_t n_sets, n_other_sets, n_sure, n_other_argmax; } errors;

static bool set_differs(const int32_t *a, const int32_t *b, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        bool is_there = false;
        for (int32_t k = 0; k < n; k++) is_there |= a[i] == b[k];
        if (!is_there) return true;
    }
    return false;
}

/* Rows first .. first + n - 1, just computed on both. */
static void count_errors(errors *e, golden_model *got, golden_model *want, const int32_t *ids, int32_t n_ids, int32_t first, int32_t n)
{
    const size_t n_vocab = (size_t)want->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        const float *a = got->logits + (size_t)i * n_vocab, *b = want->logits + (size_t)i * n_vocab;
        const int32_t best = golden_argmax(b, want->n_vocab);
        float second = -INFINITY;
        for (size_t k = 0; k < n_vocab; k++) {
            const double off = fabs((double)a[k] - (double)b[k]);
            e->squares += off * off;
            e->n_logits++;
            e->most = fmax(e->most, off);
            if ((int32_t)k != best && b[k] > second) second = b[k];
        }
        if (b[best] - second > 0.05f) {
            e->n_sure++;
            e->n_other_argmax += golden_argmax(a, want->n_vocab) != best;
        }
        if (first + i + 1 < n_ids) {
            const int32_t next = ids[first + i + 1];
            e->logprobs += fabs((double)(a[next] - got->lse[i]) - (double)(b[next] - want->lse[i]));
            e->n_logprobs++;
        }
    }
    const model_config *c = model_describe(want->m);
    for (int32_t layer = 0, at = 0; layer < c->n_layers; layer++) {
        if (!c->layers[layer].is_mixture) continue;
        const model_routing a = golden_routing(got, at, n), b = golden_routing(want, at, n);
        at++;
        for (int32_t i = 0; i < n; i++) e->n_other_sets += set_differs(a.ids + i * a.top_k, b.ids + i * b.top_k, a.top_k);
        e->n_sets += (size_t)n;
    }
}

static void compare_case(errors *e, golden_model *got, golden_model *want, const json_t *c)
{
    int32_t n_prompt, n_greedy;
    int32_t *prompt = golden_ids(json_object_get(c, "prompt"), &n_prompt), *greedy = golden_ids(json_object_get(c, "greedy"), &n_greedy);
    int32_t n_ids = n_prompt + n_greedy, *ids = calloc((size_t)n_ids, sizeof *ids);
    assert_non_null(ids);
    memcpy(ids, prompt, (size_t)n_prompt * sizeof *ids);
    memcpy(ids + n_prompt, greedy, (size_t)n_greedy * sizeof *ids);
    for (int32_t first = 0, n; first < n_ids; first += n) {
        const int32_t left = n_prompt - first;
        n = left <= 0 ? 1 : left < OPS_BLOCK_TOKENS ? left : OPS_BLOCK_TOKENS;
        golden_run(got, ids + first, first, n, left > 0);
        golden_run(want, ids + first, first, n, left > 0);
        count_errors(e, got, want, ids, n_ids, first, n);
    }
    free(prompt);
    free(greedy);
    free(ids);
}

static void model_is_as_near_in_16_bits_as_transformers(void **state)
{
    char dir[600];
    const char *name = *state;
    golden_model got, want;
    errors e = { 0 };
    ops *cpu = NULL;
    fl_err err;
    json_t *references = json_load_file(TESTS_DIR "/golden/bf16_reference.json", 0, NULL), *reference = json_object_get(references, name);
    snprintf(dir, sizeof dir, "%s%s", MODELS, name);
    json_t *root = golden_load(dir);
    const json_t *cases = json_object_get(root, "cases");
    golden_require(ops_cpu_open(&cpu, 0, &err), &err);
    golden_open_on(&want, dir, cpu);
    golden_open_on(&got, dir, gpu_open(CUDA_16_BIT));
    for (size_t i = 0; i < json_array_size(cases); i++) compare_case(&e, &got, &want, json_array_get(cases, i));
    golden_close(&got);
    golden_close(&want);
    json_decref(root);
    const double rms = sqrt(e.squares / e.n_logits), logprob = e.logprobs / e.n_logprobs, share = e.n_sets ? (double)e.n_other_sets / (double)e.n_sets : 0;
    print_message("%s: RMS of logits %.5f, most %.3f, log-probabilities %.5f, other expert sets %zu of %zu, other argmax %zu of %zu\n", name, rms, e.most, logprob, e.n_other_sets, e.n_sets,
                  e.n_other_argmax, e.n_sure);
    if (reference) {                                     /* the odd ones have none: they are only run */
        const json_t *sets = json_object_get(reference, "expert_sets_differ");
        const double all = golden_number(sets, 1), allowed = all > 0 ? golden_number(sets, 0) / all : 0;
        const double rms_most = json_number_value(json_object_get(reference, "rms_logit_error")), logprob_most = json_number_value(json_object_get(reference, "mean_abs_logprob_error"));
        print_message("%s: of transformers' %.2f, %.2f and %.2f times\n", name, rms / rms_most, logprob / logprob_most, allowed > 0 ? share / allowed : 0.0);
        if (all > 0) assert_int_equal(e.n_sets, (size_t)all);
        if (rms > FACTOR * rms_most || logprob > FACTOR * logprob_most || share > FACTOR * allowed) fail_msg("%s: more than %.2f times transformers' error", name, FACTOR);
    }
    assert_true(rms < 0.5);
    json_decref(references);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[2 * N_NAMES];
    char titles[2 * N_NAMES][80];
    int failed = 0;
    ops *o = gpu_open(CUDA_F32);                         /* without one this ends the test as skipped */
    o->close(o);
    for (int i = 0; i < N_NAMES; i++) {
        snprintf(titles[i], sizeof titles[i], "%s_meets_the_cpu_rule_in_fp32", names[i]);
        snprintf(titles[N_NAMES + i], sizeof titles[i], "%s_is_as_near_in_16_bits_as_transformers", names[i]);
        tests[i] = (struct CMUnitTest){ titles[i], model_meets_the_cpu_rule_in_fp32, NULL, NULL, (void *)names[i] };
        tests[N_NAMES + i] = (struct CMUnitTest){ titles[N_NAMES + i], model_is_as_near_in_16_bits_as_transformers, NULL, NULL, (void *)names[i] };
    }
    const char *only = argc > 1 ? argv[1] : "both";
    if (strcmp(only, "16bit") != 0) failed += _cmocka_run_group_tests("fp32", tests, N_NAMES, NULL, NULL);
    if (strcmp(only, "f32") != 0) failed += _cmocka_run_group_tests("16 bits", tests + N_NAMES, N_NAMES, NULL, NULL);
    return failed > 0;
}
