/* An engine on a device of its own memory (far_ops.h) gives the bytes of one on the host, for models that use every operation, with preemptions to host memory and back, and takes no
 * memory of the device while it runs. */
#include "engine_rows.h"
#include "far_ops.h"
#include "random_model.h"

#define MODELS TESTS_DIR "/golden/models/"

static outcome expected, got;

static ops *open_far(void)
{
    far_ops *f = calloc(1, sizeof *f);
    fl_err err;
    assert_non_null(f);
    require(far_init(f, &err), &err);
    return &f->table;
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

/* 66 values of convolution state: an odd number of slots ends between two pieces of 16 bytes, which operations do not take for a state. */
static void odd_recurrent_states_begin_alike_in_any_batch(void **state)
{
    (void)state;
    random_model m = random_model_make("{\"model_type\":\"qwen3_5_text\",\"hidden_size\":16,\"num_hidden_layers\":4,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":16,"
                                       "\"linear_num_key_heads\":1,\"linear_num_value_heads\":3,\"linear_key_head_dim\":5,\"linear_value_head_dim\":4,\"linear_conv_kernel_dim\":4,\"vocab_size\":101,"
                                       "\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,\"eos_token_id\":7}");
    make_rows(99, 101);
    engine_options options = { .model = m.model, .n_threads = 1, .context_max = CONTEXT, .batch_max = 12, .ops = open_far() };
    run_rows(&expected, &options, false);
    options.batch_max = 5;
    options.kv_tokens = CONTEXT;
    options.ops = open_far();
    run_rows(&got, &options, false);
    check_same("odd recurrent states", &got, &expected);
    assert_true(got.stats.preemptions > 0);
    random_model_drop(&m);
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
    assert_string_equal(info->numerics, "far/3/f32/f32");
    engine_close(e);
    e = NULL;
    assert_int_equal(engine_open(&e, &(engine_options){ .model = MODELS "small_qwen3", .ops = open_far(), .kv_tokens = (int64_t)1 << 27 }, &err), FL_FULL);
    assert_non_null(strstr(err.text, "lower --max-context or --kv-tokens"));
    assert_null(e);
    assert_int_equal(engine_open(&e, &(engine_options){ .model = "random:1:qwen3-8b", .ops = open_far() }, &err), FL_FULL);
    assert_non_null(strstr(err.text, "use a larger GPU or a smaller model"));
}

static int32_t n_finished, n_finishes_left;

/* A kernel fails in a later step. */
static fl_status finish_or_fail(ops *o, fl_err *err)
{
    (void)o;
    return n_finished++ < n_finishes_left ? FL_OK : fl_fail(err, FL_GPU, "cuda: GPU 0 failed at attention: an illegal memory access was encountered");
}

static void failed_kernel_ends_the_engine_before_its_results_are_used(void **state)
{
    (void)state;
    make_rows(99, 256);
    rows[0].n_samples = 1;
    rows[0].n_stop_ids = 0;
    rows[0].sampling = (sampling){ .top_p = 1.0f, .repetition_penalty = 1.0f, .max_tokens = 60, .ignore_eos = true, .n_top = -1, .n_prompt_top = -1 };
    for (int32_t n = 0; n < 12; n++) {
        engine *e = NULL;
        engine_event events[8];
        int32_t n_events;
        fl_err err;
        fl_status st;
        ops *o = open_far();
        o->finish = finish_or_fail;
        n_finished = 0;
        n_finishes_left = INT32_MAX;
        require(engine_open(&e, &(engine_options){ .model = MODELS "small_qwen3", .ops = o, .context_max = CONTEXT, .prefill_budget = 64 }, &err), &err);
        n_finishes_left = n_finished + n;
        add_row(e, 0, 0, rows[0].n_samples);
        while ((st = engine_step(e, events, 8, &n_events, &err)) == FL_OK) assert_int_equal(n_events, 0);
        assert_int_equal(st, FL_GPU);
        assert_non_null(strstr(err.text, "failed at attention"));
        engine_close(e);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_finds_its_memory),
        cmocka_unit_test(odd_recurrent_states_begin_alike_in_any_batch),
        cmocka_unit_test(failed_kernel_ends_the_engine_before_its_results_are_used),
        cmocka_unit_test(default_pool_is_what_the_device_has_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
