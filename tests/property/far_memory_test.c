/* An engine on a device of its own memory (far_ops.h) gives the bytes of one on the host, for models that use every operation, with preemptions to host memory and back, and takes no
 * memory of the device while it runs. */
#include "engine_rows.h"
#include "far_ops.h"

#define MODELS TESTS_DIR "/golden/models/"

static outcome expected, got;

static ops *open_far(void)
{
    ops *o = NULL;
    fl_err err;
    require(far_open(&o, &err), &err);
    return o;
}

static void check_model(const char *path, int32_t n_vocab)
{
    engine_options options = { .model = path, .n_threads = 1, .context_max = CONTEXT };
    make_rows(99, n_vocab);
    run_rows(&expected, &options, false);
    options.kv_tokens = 3 * CONTEXT;
    options.prefill_budget = 256;
    options.batch_max = 12;
    options.ops = open_far();
    run_rows(&got, &options, false);
    check_same(strrchr(path, '/') + 1, &got, &expected);
    assert_true(got.stats.preemptions > 0);
}

static void every_operation_finds_its_memory(void **state)
{
    (void)state;
    check_model(MODELS "small_qwen3_5_moe", 256);
    check_model(MODELS "small_laguna", 256);
    check_model(MODELS "small_gemma3", 256);
    check_model(MODELS "odd_llama", 103);
    check_model(MODELS "odd_f8_moe", 100);
    check_model(MODELS "odd_gemma3", 97);
}

static void default_pool_is_what_the_device_has_left(void **state)
{
    (void)state;
    engine *e = NULL;
    fl_err err;
    require(engine_open(&e, &(engine_options){ .model = MODELS "small_qwen3", .ops = open_far() }, &err), &err);
    const engine_info *info = engine_describe(e);
    assert_int_equal(info->batch_max, 256);
    assert_true(info->kv_tokens >= info->context_max && info->kv_tokens <= 256 * (int64_t)info->context_max);
    assert_string_equal(info->numerics, "far/1/f32/f32");
    engine_close(e);
    e = NULL;
    assert_int_equal(engine_open(&e, &(engine_options){ .model = MODELS "small_qwen3", .ops = open_far(), .kv_tokens = (int64_t)1 << 27 }, &err), FL_FULL);
    assert_non_null(strstr(err.text, "lower --max-context or --kv-tokens"));
    assert_null(e);
    assert_int_equal(engine_open(&e, &(engine_options){ .model = "random:1:qwen3-8b", .ops = open_far() }, &err), FL_FULL);
    assert_non_null(strstr(err.text, "use a larger GPU or a smaller model"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_finds_its_memory),
        cmocka_unit_test(default_pool_is_what_the_device_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
