/* The reference models (tests/golden/models) on a GPU. In fp32 they meet the rule of the CPU tests (golden_model.h), also from GGUF files, whose quantized weights are there what they mean. In 16 bits they are compared with our fp32 forward pass on the CPU,
 * teacher-forced on prompt and greedy ids: RMS error of the logits, mean error of log-probabilities and share of other expert sets at most 1.25 times what transformers' own bf16 run
 * has (bf16_reference.json; one H200, eager). And given the reference's router input, the experts are the reference's. */
#include "../golden/golden_model.h"
#include "gpu_open.h"
#include "engine/weight_files.h"
#include "kernels/encode.h"
#include "kernels/quant.h"

#define MODELS TESTS_DIR "/golden/models/"
#define GGUF_FILES TESTS_DIR "/golden/gguf/"
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

static void gguf_equals_its_checkpoint_in_fp32(void **state)
{
    static const char *const files[] = { "small_llama", "odd_llama", "small_qwen3", "small_qwen3_5_moe", "small_gemma3" };
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[600], dir[600];
        snprintf(file, sizeof file, GGUF_FILES "%s.gguf", files[i]);
        snprintf(dir, sizeof dir, MODELS "%s", files[i]);
        golden_check_form_on(file, dir, gpu_open(CUDA_F32));
    }
}

/* How far logits of a file of quantized weights are from transformers' with the dequantized ones. */
static double distance_of_quantized(golden_model *g, const json_t *c)
{
    const json_t *positions = json_object_get(c, "positions"), *wanted = json_object_get(c, "exact");
    double most = 0.0;
    size_t seen = 0;
    int32_t n_prompt, *prompt = golden_ids(json_object_get(c, "prompt"), &n_prompt);
    for (int32_t first = 0; first < n_prompt; first += OPS_BLOCK_TOKENS) {
        const int32_t n_rows = n_prompt - first < OPS_BLOCK_TOKENS ? n_prompt - first : OPS_BLOCK_TOKENS;
        golden_run(g, prompt + first, first, n_rows, true);
        for (size_t i = 0; i < json_array_size(positions); i++) {
            const int32_t at = (int32_t)golden_number(positions, (int32_t)i) - first;
            if (at < 0 || at >= n_rows) continue;
            for (int32_t k = 0; k < g->n_vocab; k++)
                most = fmax(most, fabs((double)g->logits[(size_t)at * (size_t)g->n_vocab + (size_t)k] - golden_number(json_array_get(wanted, i), k)));
            seen++;
        }
    }
    assert_true(seen > 0);
    assert_int_equal(seen, json_array_size(positions));
    free(prompt);
    return most;
}

static void gguf_of_every_type_equals_its_dequantized_self_in_fp32(void **state)
{
    static const char *const files[] = { "llama", "qwen3", "qwen3_5_moe", "gemma3" };
    json_t *root = json_load_file(GGUF_FILES "mixed.json", 0, NULL);
    (void)state;
    assert_non_null(root);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char file[600];
        golden_model g;
        snprintf(file, sizeof file, GGUF_FILES "%s_mixed.gguf", files[i]);
        golden_open_on(&g, file, gpu_open(CUDA_F32));
        const double most = distance_of_quantized(&g, json_object_get(root, files[i]));
        print_message("%s: logits within %.1e of transformers' with the dequantized weights\n", g.name, most);
        if (!(most <= GOLDEN_TOLERANCE)) fail_msg("%s: logits are off by %g", g.name, most);
        golden_close(&g);
    }
    json_decref(root);
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

/* ---- the router alone ---- */

/* `values` [n] on the device, as `type`. */
static void *put(golden_model *g, const float *values, dtype type, size_t n)
{
    const size_t bytes = n * (type == DTYPE_F32 ? 4 : 2);
    void *there = golden_memory(g, bytes), *host = malloc(bytes);
    assert_non_null(host);
    dtype_encode(host, type, values, n);
    g->o->upload(g->o, there, host, bytes);
    free(host);
    return there;
}

/* n values of the device's type, back on the host as fp32; the caller frees them. */
static float *get_rounded(golden_model *g, const void *there, size_t n)
{
    void *host = malloc(n * g->o->act_bytes);
    float *values = malloc(n * sizeof *values);
    assert_true(host && values);
    g->o->download(g->o, host, there, n * g->o->act_bytes);
    dtype_decode(values, g->o->act_type, host, (int32_t)n);
    free(host);
    return values;
}

/* A tensor of n values on the device, as `type`. */
static void *put_tensor(golden_model *g, dtype type, int32_t n, const char *format, int layer)
{
    char name[200];
    float *values = malloc((size_t)n * sizeof *values);
    snprintf(name, sizeof name, format, layer);
    const tensor *t = weight_files_find(model_weights(g->m), name, NULL);
    if (!t) fail_msg("%s: there is no %s", g->name, name);
    assert_non_null(values);
    dtype_decode(values, t->type, t->data, n);
    void *there = put(g, values, type, (size_t)n);
    free(values);
    return there;
}

static int n_rounded_away;               /* of one model: sets that differ by the rounding of the inputs alone */

/* The set that logits in double of the rounded input and weights give, by what the router orders by: logits, or sigmoids of capped logits and a bias. */
static void choose_exactly(int32_t *ids, const moe_config *moe, const float *x, const float *w, const float *bias, int32_t hidden)
{
    double *order = calloc((size_t)moe->n_experts, sizeof *order);
    assert_non_null(order);
    for (int32_t e = 0; e < moe->n_experts; e++) {
        double logit = 0.0;
        for (int32_t i = 0; i < hidden; i++) logit += (double)x[i] * (double)w[(size_t)e * (size_t)hidden + (size_t)i];
        if (bias && moe->router_softcap > 0.0f) logit = (double)moe->router_softcap * tanh(logit / (double)moe->router_softcap);
        order[e] = bias ? 1.0 / (1.0 + exp(-logit)) + (double)bias[e] : logit;
    }
    for (int32_t k = 0; k < moe->top_k; k++) {
        ids[k] = 0;
        for (int32_t e = 1; e < moe->n_experts; e++) if (order[e] > order[ids[k]]) ids[k] = e;
        order[ids[k]] = -INFINITY;
    }
    free(order);
}

/* What one layer's router chooses for the reference's input at the prompt's last position: in fp32 as the reference; in 16 bits the set that the input and the weights, once
 * they are rounded to 16 bits, give in double. How often that rounding alone makes another set than the reference's is counted and shown. */
static void check_router(golden_model *g, const json_t *layer)
{
    const model_config *c = model_describe(g->m);
    const moe_config *moe = &c->moe;
    const json_t *experts = json_object_get(layer, "experts"), *last = json_array_get(experts, json_array_size(experts) - 1), *in = json_object_get(layer, "gate_input_last");
    const int32_t n = moe->n_experts, i_layer = (int32_t)json_integer_value(json_object_get(layer, "layer"));
    const weight none = { 0 };
    weight bias = { 0 };
    float *input = calloc((size_t)c->hidden, sizeof *input);
    int32_t chosen[64], want[64];
    fl_err err;
    assert_true(input && moe->top_k <= 64 && json_array_size(in) == (size_t)c->hidden);
    for (int32_t i = 0; i < c->hidden; i++) input[i] = (float)golden_number(in, i);
    const weight router = { put_tensor(g, g->o->act_type, n * c->hidden, "model.layers.%d.mlp.gate.weight", i_layer), g->o->act_type, n, c->hidden };
    act *x = put(g, input, g->o->act_type, (size_t)c->hidden);
    float *logits = golden_memory(g, (size_t)n * sizeof(float)), *weights = golden_memory(g, (size_t)moe->top_k * sizeof(float));
    int32_t *ids = golden_memory(g, (size_t)moe->top_k * sizeof(int32_t));
    g->o->linear_f32(g->o, logits, x, &router, &none, 1);
    if (strcmp(c->architecture, "laguna") == 0) {
        bias = (weight){ put_tensor(g, DTYPE_F32, n, "model.layers.%d.mlp.experts.e_score_correction_bias", i_layer), DTYPE_F32, 1, n };
        if (moe->router_softcap > 0.0f) g->o->soft_cap(g->o, logits, moe->router_softcap, 1, n);
        g->o->moe_route_sigmoid(g->o, ids, weights, logits, &bias, moe->scale, 1, n, moe->top_k);
    } else {
        g->o->moe_route(g->o, ids, weights, logits, 1, n, moe->top_k, moe->renormalize);
    }
    g->o->download(g->o, chosen, ids, (size_t)moe->top_k * sizeof *chosen);
    golden_require(g->o->finish(g->o, &err), &err);
    for (int32_t k = 0; k < moe->top_k; k++) want[k] = (int32_t)golden_number(last, k);
    g->n_choices++;
    if (g->o->act_type != DTYPE_F32) {
        int32_t exact[64];
        float *w = get_rounded(g, router.data, (size_t)n * (size_t)c->hidden), *rounded = get_rounded(g, x, (size_t)c->hidden), *b = bias.data ? malloc((size_t)n * sizeof *b) : NULL;
        if (bias.data) g->o->download(g->o, b, bias.data, (size_t)n * sizeof *b);
        choose_exactly(exact, moe, rounded, w, b, c->hidden);
        n_rounded_away += set_differs(exact, want, moe->top_k);
        g->n_other_choices += set_differs(chosen, exact, moe->top_k);
        free(w);
        free(rounded);
        free(b);
    } else {
        g->n_other_choices += memcmp(chosen, want, (size_t)moe->top_k * sizeof *want) != 0;
    }
    free(input);
}

static void router_chooses_the_references_experts(void **state)
{
    static const char *const mixtures[] = { "small_qwen3_moe", "small_qwen3_5_moe", "small_laguna", "wide_qwen3_5_moe", "wide_laguna" };
    (void)state;
    for (int p = 0; p < 2; p++)
        for (size_t m = 0; m < sizeof mixtures / sizeof *mixtures; m++) {
            char dir[600];
            golden_model g;
            snprintf(dir, sizeof dir, "%s%s", MODELS, mixtures[m]);
            json_t *root = golden_load(dir);
            const json_t *cases = json_object_get(root, "cases");
            golden_open_on(&g, dir, gpu_open(p ? CUDA_16_BIT : CUDA_F32));
            for (size_t i = 0; i < json_array_size(cases); i++) {
                const json_t *routing = json_object_get(json_array_get(cases, i), "routing");
                for (size_t k = 0; k < json_array_size(routing); k++) check_router(&g, json_array_get(routing, k));
            }
            print_message("%s, %s: other experts for %zu of %zu router inputs of the reference; rounding them to 16 bits makes %d other sets\n", g.name, g.o->name, g.n_other_choices, g.n_choices,
                          n_rounded_away);
            n_rounded_away = 0;
            assert_int_equal(g.n_other_choices, 0);
            json_decref(root);
            golden_close(&g);
        }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest router = cmocka_unit_test(router_chooses_the_references_experts);
    const struct CMUnitTest ggufs[] = { cmocka_unit_test(gguf_equals_its_checkpoint_in_fp32), cmocka_unit_test(gguf_of_every_type_equals_its_dequantized_self_in_fp32) };
    struct CMUnitTest tests[2 * N_NAMES + 1];
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
    tests[2 * N_NAMES] = router;
    const char *only = argc > 1 ? argv[1] : "both";
    if (strcmp(only, "16bit") != 0) {
        failed += _cmocka_run_group_tests("fp32", tests, N_NAMES, NULL, NULL);
        failed += _cmocka_run_group_tests("GGUF files in fp32", ggufs, sizeof ggufs / sizeof *ggufs, NULL, NULL);
    }
    if (strcmp(only, "f32") != 0) failed += _cmocka_run_group_tests("16 bits, and routers", tests + N_NAMES, N_NAMES + 1, NULL, NULL);
    return failed > 0;
}
