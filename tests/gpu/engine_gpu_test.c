/* What a request yields on a GPU depends on the request and the model alone: on a model of each family, and one of quantized weights, the same bytes for every batch limit, prefill budget and KV pool, for samples
 * together or apart in any order of arrival, with steps recorded as graphs and without; in 16 bits and in fp32. */
#include "../property/engine_rows.h"
#include "gpu_open.h"

#define MODELS TESTS_DIR "/golden/models/"

static const char *const names[] = { "demo", "small_llama", "small_qwen3", "small_qwen3_moe", "small_qwen3_5", "small_qwen3_5_moe", "small_laguna", "small_gemma3", "wide_llama", "wide_qwen3",
                                     "wide_qwen3_5", "wide_qwen3_5_moe", "wide_laguna", "wide_gemma3", "../gguf/qwen3_5_moe_mixed.gguf" };
enum { N_NAMES = sizeof names / sizeof *names };
static cuda_precision precision;
static outcome expected;

static void check_setting(const char *model, const char *what, engine_options options, bool is_split)
{
    outcome got;
    char name[200];
    snprintf(name, sizeof name, "%s, %s", model, what);
    options.ops = gpu_open(precision);
    run_rows(&got, &options, is_split);
    check_same(name, &got, &expected);
}

static void results_depend_on_the_request_alone(void **state)
{
    char path[600];
    const char *name = *state;
    const bool is_demo = strcmp(name, "demo") == 0, is_gguf = strstr(name, ".gguf") != NULL;
    snprintf(path, sizeof path, "%s%s", is_demo ? OPS_DIR "/demo_model" : MODELS, is_demo ? "" : name);
    make_rows(20240611, is_demo ? 1024 : is_gguf ? 64 : 256);
    const engine_options plain = { .model = path, .context_max = CONTEXT, .kv_tokens = 64 * CONTEXT };
    engine_options o = plain;
    setenv("TOKENFLEET_GRAPHS", "0", 1);
    o.ops = gpu_open(precision);
    assert_null(o.ops->replay);
    run_rows(&expected, &o, false);
    unsetenv("TOKENFLEET_GRAPHS");
    check_setting(name, "with graphs", plain, false);
    o = plain; o.batch_max = 1;                                             check_setting(name, "batch 1", o, false);
    o.batch_max = 7; o.prefill_budget = 64;                                 check_setting(name, "batch 7, budget 64", o, false);
    o.batch_max = 64; o.prefill_budget = 512;                               check_setting(name, "batch 64, budget 512", o, true);
    o = plain; o.kv_tokens = 2 * CONTEXT; o.prefill_budget = 128;           check_setting(name, "pool for two, budget 128", o, false);
    o.kv_tokens = CONTEXT; o.batch_max = 16;                                check_setting(name, "pool for one, split, youngest first", o, true);
}

int main(int argc, char **argv)
{
    struct CMUnitTest tests[N_NAMES];
    int failed = 0;
    gpu_open(CUDA_F32);                                  /* without one this ends the test as skipped */
    for (int i = 0; i < N_NAMES; i++) tests[i] = (struct CMUnitTest){ names[i], results_depend_on_the_request_alone, NULL, NULL, (void *)names[i] };
    for (int p = 0; p < 2; p++) {
        precision = p ? CUDA_F32 : CUDA_16_BIT;
        if (argc > 1 && strcmp(argv[1], p ? "f32" : "16bit") != 0) continue;
        failed += _cmocka_run_group_tests(p ? "fp32" : "16 bits", tests, N_NAMES, NULL, NULL);
    }
    return failed > 0;
}
