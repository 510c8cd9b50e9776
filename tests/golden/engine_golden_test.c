/* The engine as its users drive it: greedy ids and prompt log-probabilities of the reference models, and the demo model's reference completions. */
#include "golden_model.h"

#define MODELS TESTS_DIR "/golden/models/"
#define DEMO OPS_DIR "/demo_model"
#define REQUESTS_MAX 512

static sampling greedy_sampling(int32_t max_tokens)
{
    return (sampling){ .top_p = 1.0f, .repetition_penalty = 1.0f, .max_tokens = max_tokens, .n_top = -1, .n_prompt_top = -1 };
}

static engine *open_engine(const char *dir)
{
    engine *e = NULL;
    fl_err err;
    golden_require(engine_open(&e, &(engine_options){ .model = dir, .n_threads = 1 }, &err), &err);
    return e;
}

/* Run until nothing is left; results[tag] of sample 0. */
static void run_all(engine *e, fl_result **results)
{
    engine_event events[16];
    fl_err err;
    fl_status st;
    int32_t n;
    while ((st = engine_step(e, events, 16, &n, &err)) == FL_OK)
        for (int32_t i = 0; i < n; i++) {
            if (events[i].kind != ENGINE_FINISHED) fail_msg("request %d failed: %s", (int)events[i].tag, events[i].text);
            results[events[i].tag] = events[i].result;
        }
    if (st != FL_AGAIN) fail_msg("%s", err.text);
}

static void free_results(fl_result **results)
{
    for (int i = 0; i < REQUESTS_MAX; i++) {
        if (results[i]) fl_result_free(results[i]);
        free(results[i]);
    }
}

static void check_answer(const char *name, const json_t *c, const fl_result *r)
{
    int32_t n_greedy, n_prompt = (int32_t)json_array_size(json_object_get(c, "prompt"));
    int32_t *greedy = golden_ids(json_object_get(c, "greedy"), &n_greedy);
    assert_int_equal(r->n_ids, n_greedy);
    int32_t same = 0;
    while (same < n_greedy && r->ids[same] == greedy[same]) same++;
    double margin = same < n_greedy ? golden_number(json_object_get(c, "greedy_margin"), same) : 0.0;    /* behind a tie the texts may differ */
    if (margin > GOLDEN_TOLERANCE)
        fail_msg("%s, prompt of %d: token %d is %d, the reference %d with margin %g", name, n_prompt, same, r->ids[same], greedy[same], margin);
    for (int32_t i = 0; i + 1 < n_prompt; i++) {
        double want = golden_number(json_object_get(c, "prompt_logprobs"), i);
        if (fabs((double)r->prompt_logprobs[i] - want) > GOLDEN_TOLERANCE) fail_msg("%s, prompt of %d: log-probability %d is %g, the reference %g", name, n_prompt, i, (double)r->prompt_logprobs[i], want);
    }
    free(greedy);
}

static void all_cases_of_a_model_run_together_and_equal_the_reference(void **state)
{
    (void)state;
    static const char *const models[] = { "small_qwen3_5", "small_qwen3_5_moe", "wide_qwen3_5", "wide_qwen3_5_moe", "odd_three", "odd_whole", "odd_fused",
                                          "small_llama", "small_qwen3", "small_qwen3_moe", "small_laguna", "small_gemma3", "wide_llama", "wide_qwen3", "wide_laguna", "wide_gemma3" };
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        char dir[512];
        fl_result *results[REQUESTS_MAX] = { 0 };
        fl_err err;
        snprintf(dir, sizeof dir, "%s%s", MODELS, models[m]);
        json_t *root = golden_load(dir), *cases = json_object_get(root, "cases");
        engine *e = open_engine(dir);
        assert_false(engine_describe(e)->has_tokenizer);
        assert_string_equal(engine_describe(e)->name, models[m]);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *c = json_array_get(cases, i);
            engine_request r = { .tag = i, .sample_hi = 1, .sampling = greedy_sampling((int32_t)json_array_size(json_object_get(c, "greedy"))) };
            r.sampling.n_prompt_top = 0;
            int32_t *prompt = golden_ids(json_object_get(c, "prompt"), &r.n_prompt);
            r.prompt = prompt;
            golden_require(engine_add(e, &r, &err), &err);
            free(prompt);
        }
        run_all(e, results);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            assert_non_null(results[i]);
            check_answer(models[m], json_array_get(cases, i), results[i]);
        }
        free_results(results);
        engine_close(e);
        json_decref(root);
    }
}

static void demo_model_gives_the_reference_completions(void **state)
{
    (void)state;
    fl_result *results[REQUESTS_MAX] = { 0 };
    json_t *tasks[REQUESTS_MAX];
    uint64_t n = 0;
    char *line = NULL;
    size_t capacity = 0;
    fl_err err;
    engine *e = open_engine(DEMO);
    FILE *file = fopen(DEMO "/reference_greedy.jsonl", "re");
    assert_non_null(file);
    for (; getline(&line, &capacity, file) > 0; n++) {
        assert_true(n < REQUESTS_MAX);
        tasks[n] = json_loads(line, 0, NULL);
        engine_request r = { .tag = n, .sample_hi = 1, .sampling = greedy_sampling(128) };
        int32_t *prompt = golden_ids(json_object_get(tasks[n], "prompt_ids"), &r.n_prompt);
        r.prompt = prompt;
        golden_require(engine_add(e, &r, &err), &err);
        free(prompt);
    }
    fclose(file);
    free(line);
    run_all(e, results);
    for (uint64_t i = 0; i < n; i++) {
        int32_t n_ids;
        int32_t *want = golden_ids(json_object_get(tasks[i], "greedy_ids"), &n_ids);
        const fl_result *r = results[i];
        assert_non_null(r);
        assert_int_equal(r->stop_kind, FL_STOP_EOS);
        if (r->n_ids != (size_t)n_ids + 1 || memcmp(r->ids, want, (size_t)n_ids * sizeof *want) != 0)
            fail_msg("%s: %zu ids, the reference has %d and an end token; or one differs", json_string_value(json_object_get(tasks[i], "task_id")), r->n_ids, n_ids);
        free(want);
        json_decref(tasks[i]);
    }
    print_message("%d of %d completions are the reference's\n", (int)n, (int)n);
    assert_int_equal(n, 200);
    free_results(results);
    engine_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_cases_of_a_model_run_together_and_equal_the_reference),
        cmocka_unit_test(demo_model_gives_the_reference_completions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
