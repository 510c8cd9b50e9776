/* row_request_test.c - what a line becomes: resolved sampling, the prompt's ids, and the reasons for which a row is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "worker/row_request.h"

#define DEMO OPS_DIR "/demo_model"

/* A model whose generation_config.json gives every field a value of its own. */
static const engine_info INFO = { .name = "m", .n_vocab = 1024, .context_model = 200, .context_max = 200, .temperature = 0.75f, .top_p = 0.5f, .min_p = 0.125f, .repetition_penalty = 1.5f,
                                  .top_k = 33, .has_tokenizer = true };
static const job_settings JOB_SETTINGS = { .job = 1, .seed = 99, .now_s = 1700000000 };

static row_maker *open_demo(void)
{
    row_maker *maker = NULL;
    fl_err err = { 0 };
    if (row_maker_open(&maker, DEMO, &INFO, &err) != FL_OK) fail_msg("%s", err.text);
    return maker;
}

static row_request make(row_maker *maker, const job_settings *job, const char *line)
{
    row_request request = { 0 };
    row_refusal refusal = { 0 };
    fl_err err = { 0 };
    fl_status st = row_request_make(maker, job, line, strlen(line), 5, &request, &refusal, &err);
    if (st != FL_OK) fail_msg("%s: %s%s", line, refusal.text, err.text);
    return request;
}

/* The row is refused with `code` and a sentence that holds `words`. */
static void refused(row_maker *maker, const char *line, fl_row_error code, const char *words)
{
    row_request request = { 0 };
    row_refusal refusal = { 0 };
    fl_err err = { 0 };
    assert_int_equal(row_request_make(maker, &JOB_SETTINGS, line, strlen(line), 5, &request, &refusal, &err), FL_INVALID);
    assert_int_equal(refusal.code, code);
    if (!strstr(refusal.text, words)) fail_msg("'%s' is not in: %s", words, refusal.text);
    assert_null(request.prompt);
}

static void absent_fields_come_from_the_model_then_from_openai(void **state)
{
    (void)state;
    row_maker *maker = open_demo();
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": [1, 2, 3]}");
    assert_true(r.sampling.temperature == 0.75f && r.sampling.top_p == 0.5f && r.sampling.min_p == 0.125f && r.sampling.repetition_penalty == 1.5f);
    assert_int_equal(r.sampling.top_k, 33);
    assert_int_equal(r.sampling.max_tokens, 16);
    assert_int_equal(r.sampling.min_tokens, 0);
    assert_true(r.sampling.presence_penalty == 0 && r.sampling.frequency_penalty == 0);
    assert_int_equal(r.sampling.n_top, -1);
    assert_int_equal(r.sampling.n_prompt_top, -1);
    assert_int_equal(r.sampling.seed, 99);
    assert_int_equal(r.sampling.id_hash, XXH3_64bits("row-5", 5));
    assert_false(r.wants_prompt);
    row_request_free(&r);
    row_maker_close(maker);
}

static void given_fields_win_also_when_they_are_zero(void **state)
{
    (void)state;
    row_maker *maker = open_demo();
    row_request r = make(maker, &JOB_SETTINGS, "{\"custom_id\": \"x\", \"prompt\": [1], \"temperature\": 0, \"top_p\": 1, \"top_k\": 0, \"min_p\": 0, \"repetition_penalty\": 1, "
                         "\"max_tokens\": 7, \"min_tokens\": 2, \"seed\": 0, \"ignore_eos\": true, \"presence_penalty\": 1.5, \"frequency_penalty\": -1}");
    assert_true(r.sampling.temperature == 0 && r.sampling.top_p == 1 && r.sampling.min_p == 0 && r.sampling.repetition_penalty == 1);
    assert_int_equal(r.sampling.top_k, 0);
    assert_int_equal(r.sampling.max_tokens, 7);
    assert_int_equal(r.sampling.min_tokens, 2);
    assert_int_equal(r.sampling.seed, 0);
    assert_true(r.sampling.ignore_eos);
    assert_true(r.sampling.presence_penalty == 1.5f && r.sampling.frequency_penalty == -1.0f);
    assert_int_equal(r.sampling.id_hash, XXH3_64bits("x", 1));
    row_request_free(&r);
    row_maker_close(maker);
}

static void set_defaults_of_the_job_stand_between(void **state)
{
    (void)state;
    char defaults[] = "{\"temperature\": 0.25, \"max_tokens\": 3}";
    job_settings job = JOB_SETTINGS;
    job.defaults = defaults;
    row_maker *maker = open_demo();
    row_request r = make(maker, &job, "{\"prompt\": [1], \"max_tokens\": 5}");
    assert_true(r.sampling.temperature == 0.25f);
    assert_int_equal(r.sampling.max_tokens, 5);
    row_request_free(&r);
    row_maker_close(maker);
}

static void text_becomes_the_tokenizers_ids(void **state)
{
    (void)state;
    static const int32_t want[] = {284, 425, 531, 71, 307, 507, 282, 265, 285, 298, 270, 949, 323, 482, 286};   /* MiniEval/0 of reference_greedy.jsonl */
    row_maker *maker = open_demo();
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": \"def calc_mean(arr):\\n    \\\"\\\"\\\"Return the average of arr.\\\"\\\"\\\"\\n\"}");
    assert_int_equal(r.n_prompt, sizeof want / sizeof *want);
    assert_memory_equal(r.prompt, want, sizeof want);
    row_request_free(&r);
    row_maker_close(maker);
}

static void a_chat_is_rendered_and_may_fill_the_context(void **state)
{
    (void)state;
    row_maker *maker = open_demo();
    row_request chat = make(maker, &JOB_SETTINGS, "{\"messages\": [{\"role\": \"user\", \"content\": \"hello\"}]}");
    row_request text = make(maker, &JOB_SETTINGS, "{\"prompt\": \"<|im_start|>user\\nhello<|im_end|>\\n<|im_start|>assistant\\n\"}");
    assert_int_equal(chat.n_prompt, text.n_prompt);
    assert_memory_equal(chat.prompt, text.prompt, (size_t)text.n_prompt * sizeof *text.prompt);
    assert_int_equal(chat.sampling.max_tokens, 200 - chat.n_prompt);
    row_request_free(&chat);
    row_request_free(&text);
    row_maker_close(maker);
}

static void logprobs_of_the_prompt_are_asked_for(void **state)
{
    (void)state;
    row_maker *maker = open_demo();
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": [1, 2], \"prompt_logprobs\": 1, \"echo\": true, \"logprobs\": 3, \"n\": 4}");
    assert_int_equal(r.sampling.n_top, 3);
    assert_int_equal(r.sampling.n_prompt_top, 3);        /* the larger of both */
    assert_true(r.wants_prompt);
    engine_request e = row_request_samples(&r, 7, 0, 2);
    assert_int_equal(e.tag, 7);
    assert_int_equal(e.sampling.n_prompt_top, 3);
    e = row_request_samples(&r, 8, 2, 4);
    assert_int_equal(e.sample_lo, 2);
    assert_int_equal(e.sample_hi, 4);
    row_request_free(&r);
    r = make(maker, &JOB_SETTINGS, "{\"prompt\": [1, 2], \"echo\": true}");
    assert_int_equal(r.sampling.n_prompt_top, -1);
    assert_true(r.wants_prompt);
    row_request_free(&r);
    row_maker_close(maker);
}

static void stop_ids_the_model_does_not_have_are_left_out(void **state)
{
    (void)state;
    row_maker *maker = open_demo();
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": [1], \"stop_token_ids\": [5000, 7, 1024, 1023], \"stop\": [\"x\", \"yz\"]}");
    engine_request e = row_request_samples(&r, 1, 0, 1);
    assert_int_equal(e.n_stop_ids, 2);
    assert_int_equal(e.stop_ids[0], 7);
    assert_int_equal(e.stop_ids[1], 1023);
    assert_int_equal(e.n_stop, 2);
    assert_memory_equal(e.stop[1], "yz", 2);
    row_request_free(&r);
    row_maker_close(maker);
}

static void rows_that_cannot_be_served_are_refused_with_their_numbers(void **state)
{
    (void)state;
    char line[4096];
    row_maker *maker = open_demo();
    refused(maker, "{\"prompt\": [1, 2}", ROW_INVALID_JSON, "");
    refused(maker, "{\"prompt\": [1, 1024]}", ROW_INVALID_REQUEST, "1024 at position 1");
    refused(maker, "{\"prompt\": \"\"}", ROW_INVALID_REQUEST, "empty");
    refused(maker, "{\"prompt\": [1, 2, 3], \"max_tokens\": 198}", ROW_CONTEXT_OVERFLOW, "201");
    refused(maker, "{\"prompt\": [1], \"min_tokens\": 17}", ROW_INVALID_REQUEST, "min_tokens");
    size_t n = (size_t)snprintf(line, sizeof line, "{\"messages\": [{\"role\": \"user\", \"content\": \"");
    for (int i = 0; i < 400; i++) n += (size_t)snprintf(line + n, sizeof line - n, "%d ", i % 10);
    snprintf(line + n, sizeof line - n, "\"}]}");
    refused(maker, line, ROW_CONTEXT_OVERFLOW, "200");
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": [1, 2, 3], \"max_tokens\": 197}");      /* just fits */
    assert_int_equal(r.sampling.max_tokens, 197);
    row_request_free(&r);
    row_maker_close(maker);
}

static void the_jobs_context_decides_what_is_an_error_and_the_workers_what_has_room(void **state)
{
    (void)state;
    job_settings job = JOB_SETTINGS;
    row_request r = { 0 };
    row_refusal refusal = { 0 };
    fl_err err = { 0 };
    row_maker *maker = NULL;
    engine_info info = INFO;
    info.context_model = 1000;
    assert_int_equal(row_maker_open(&maker, DEMO, &info, &err), FL_OK);
    const char *line = "{\"prompt\": [1, 2, 3], \"max_tokens\": 300}";
    job.max_context = 100;
    assert_int_equal(row_request_make(maker, &job, line, strlen(line), 1, &r, &refusal, &err), FL_INVALID);
    assert_int_equal(refusal.code, ROW_CONTEXT_OVERFLOW);
    for (uint32_t most = 0; most <= 1000; most += 1000) {        /* 0: the model's, which is not the worker's */
        job.max_context = most;
        assert_int_equal(row_request_make(maker, &job, line, strlen(line), 1, &r, &refusal, &err), FL_FULL);
        assert_non_null(strstr(err.text, "303"));
    }
    job.max_context = 5000;                              /* more than the model can do: no worker would ever have the room */
    line = "{\"prompt\": [1, 2, 3], \"max_tokens\": 998}";
    assert_int_equal(row_request_make(maker, &job, line, strlen(line), 1, &r, &refusal, &err), FL_INVALID);
    assert_int_equal(refusal.code, ROW_CONTEXT_OVERFLOW);
    job.max_context = 100;
    r = make(maker, &job, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}");
    assert_int_equal(r.sampling.max_tokens, 100 - r.n_prompt);
    row_request_free(&r);
    row_maker_close(maker);
}

static void a_model_without_tokenizer_takes_ids_only(void **state)
{
    (void)state;
    char folder[] = "/tmp/row-request-test-XXXXXX";
    engine_info info = INFO;
    row_maker *maker = NULL;
    fl_err err = { 0 };
    assert_non_null(mkdtemp(folder));
    info.has_tokenizer = false;
    if (row_maker_open(&maker, folder, &info, &err) != FL_OK) fail_msg("%s", err.text);
    refused(maker, "{\"prompt\": \"text\"}", ROW_NO_TOKENIZER, "tokenizer");
    refused(maker, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", ROW_NO_TOKENIZER, "tokenizer");
    row_request r = make(maker, &JOB_SETTINGS, "{\"prompt\": [4, 5]}");
    assert_int_equal(r.n_prompt, 2);
    row_request_free(&r);
    row_maker_close(maker);
    rmdir(folder);
}

static void a_chat_without_template_is_a_template_error(void **state)
{
    (void)state;
    char folder[] = "/tmp/row-request-test-XXXXXX", path[80], command[300];
    row_maker *maker = NULL;
    fl_err err = { 0 };
    assert_non_null(mkdtemp(folder));
    snprintf(command, sizeof command, "cp %s/tokenizer.json %s/", DEMO, folder);
    assert_int_equal(system(command), 0);
    if (row_maker_open(&maker, folder, &INFO, &err) != FL_OK) fail_msg("%s", err.text);
    refused(maker, "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", ROW_TEMPLATE_ERROR, "template");
    row_maker_close(maker);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    unlink(path);
    rmdir(folder);
}

/* Files that every worker of the fleet has alike: a row error, and so without the folder's name. */
static void a_template_file_that_cannot_be_read_is_a_template_error(void **state)
{
    (void)state;
    static const struct { const char *file, *text, *says; } cases[] = {
        { "tokenizer_config.json", "{\"chat_template\": ", "tokenizer_config.json is not a JSON object" },
        { "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}]}", "`default`" },
        { "tokenizer_config.json", "{\"chat_template\": [5]}", "entry 0 of chat_template" },
        { "special_tokens_map.json", "[]", "special_tokens_map.json is not a JSON object" },
        { "chat_template.jinja", "caf\xE9", "chat_template.jinja is not UTF-8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char folder[] = "/tmp/row-request-test-XXXXXX", path[120], command[300];
        const char *chat = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}";
        row_maker *maker = NULL;
        row_request request = { 0 };
        row_refusal refusal = { 0 };
        fl_err err = { 0 };
        assert_non_null(mkdtemp(folder));
        snprintf(command, sizeof command, "cp %s/tokenizer.json %s/", DEMO, folder);
        assert_int_equal(system(command), 0);
        snprintf(path, sizeof path, "%s/%s", folder, cases[i].file);
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fputs(cases[i].text, file);
        fclose(file);
        if (row_maker_open(&maker, folder, &INFO, &err) != FL_OK) fail_msg("%s", err.text);
        refused(maker, chat, ROW_TEMPLATE_ERROR, cases[i].says);
        assert_int_equal(row_request_make(maker, &JOB_SETTINGS, chat, strlen(chat), 5, &request, &refusal, &err), FL_INVALID);
        assert_null(strstr(refusal.text, folder));
        request = make(maker, &JOB_SETTINGS, "{\"prompt\": \"text\"}");
        row_request_free(&request);
        row_maker_close(maker);
        unlink(path);
        snprintf(path, sizeof path, "%s/tokenizer.json", folder);
        unlink(path);
        rmdir(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_fields_come_from_the_model_then_from_openai),
        cmocka_unit_test(given_fields_win_also_when_they_are_zero),
        cmocka_unit_test(set_defaults_of_the_job_stand_between),
        cmocka_unit_test(text_becomes_the_tokenizers_ids),
        cmocka_unit_test(a_chat_is_rendered_and_may_fill_the_context),
        cmocka_unit_test(logprobs_of_the_prompt_are_asked_for),
        cmocka_unit_test(stop_ids_the_model_does_not_have_are_left_out),
        cmocka_unit_test(rows_that_cannot_be_served_are_refused_with_their_numbers),
        cmocka_unit_test(the_jobs_context_decides_what_is_an_error_and_the_workers_what_has_room),
        cmocka_unit_test(a_model_without_tokenizer_takes_ids_only),
        cmocka_unit_test(a_chat_without_template_is_a_template_error),
        cmocka_unit_test(a_template_file_that_cannot_be_read_is_a_template_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
