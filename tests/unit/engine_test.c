/* The engine's edges: what it refuses, how requests end, cancelling, and a row whose logits are no numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/engine.h"
#include "engine/safetensors.h"

#define DEMO OPS_DIR "/demo_model"
#define SMALL TESTS_DIR "/golden/models/small_qwen3_5_moe"

static const int32_t prompt[] = { 284, 425, 531, 71, 307, 507, 282, 265, 285, 298, 270, 949, 323, 482, 286 };

static engine *open_engine(const engine_options *options)
{
    engine *e = NULL;
    fl_err err;
    if (engine_open(&e, options, &err) != FL_OK) fail_msg("%s", err.text);
    return e;
}

static void refuse_open(engine_options options, fl_status want, const char *part)
{
    engine *e = NULL;
    fl_err err;
    fl_status got = engine_open(&e, &options, &err);
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), got == FL_OK ? "" : err.text, part);
}

static engine_request make_request(uint64_t tag, int32_t max_tokens)
{
    return (engine_request){ .tag = tag, .prompt = prompt, .n_prompt = 15, .sample_hi = 1,
                             .sampling = { .top_p = 1, .repetition_penalty = 1, .max_tokens = max_tokens, .n_top = -1, .n_prompt_top = -1 } };
}

static void add(engine *e, engine_request r)
{
    fl_err err;
    if (engine_add(e, &r, &err) != FL_OK) fail_msg("%s", err.text);
}

static void refuse_add(engine *e, engine_request r, const char *part)
{
    fl_err err;
    fl_status got = engine_add(e, &r, &err);
    if (got != FL_INVALID || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), got == FL_OK ? "" : err.text, part);
}

/* All events until nothing is left to do, `capacity` at a time. */
static int32_t run(engine *e, engine_event *events, int32_t events_max, int32_t capacity)
{
    int32_t n = 0, more;
    fl_err err;
    fl_status st;
    while ((st = engine_step(e, events + n, events_max - n < capacity ? events_max - n : capacity, &more, &err)) == FL_OK) {
        assert_true(more <= capacity);
        n += more;
    }
    if (st != FL_AGAIN) fail_msg("%s", err.text);
    return n;
}

static void free_events(engine_event *events, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        if (events[i].result) fl_result_free(events[i].result);
        free(events[i].result);
    }
}

static void bad_options_are_refused_with_a_sentence(void **state)
{
    (void)state;
    refuse_open((engine_options){ .model = "/nowhere" }, FL_NOT_FOUND, "/nowhere has no config.json");
    refuse_open((engine_options){ .model = DEMO, .batch_max = 5000 }, FL_INVALID, "batch limit");
    refuse_open((engine_options){ .model = DEMO, .batch_max = -1 }, FL_INVALID, "batch limit");
    refuse_open((engine_options){ .model = DEMO, .prefill_budget = -1 }, FL_INVALID, "prefill budget");
    refuse_open((engine_options){ .model = DEMO, .context_max = -1 }, FL_INVALID, "context");
    refuse_open((engine_options){ .model = DEMO, .kv_tokens = 8191 }, FL_INVALID, "does not hold one full context of 8192");
    refuse_open((engine_options){ .model = DEMO, .context_max = 100, .kv_tokens = 100 }, FL_INVALID, "ask for 128 or more");
}

static void description_names_the_model(void **state)
{
    (void)state;
    engine *e = open_engine(&(engine_options){ .model = DEMO "/", .n_threads = 1 }), *other = open_engine(&(engine_options){ .model = SMALL, .n_threads = 1, .context_max = 100 });
    const engine_info *i = engine_describe(e);
    assert_string_equal(i->name, "demo_model");
    assert_string_equal(i->architecture, "qwen3_5_moe");
    assert_string_equal(i->numerics, "cpu/3/bf16/f32");
    assert_int_equal(strlen(i->fingerprint), 32);
    assert_string_not_equal(i->fingerprint, engine_describe(other)->fingerprint);
    assert_int_equal(i->n_vocab, 1024);
    assert_int_equal(i->context_max, 8192);
    assert_int_equal(i->n_eos, 2);
    assert_true(i->temperature == 0.7f && i->top_p == 0.95f && i->top_k == 0);
    assert_true(i->has_tokenizer);
    assert_int_equal(fl_detok_vocab(engine_detok(e)), 1024);
    assert_true(i->kv_tokens >= 8192);
    assert_int_equal(engine_describe(other)->context_max, 100);
    assert_false(engine_describe(other)->has_tokenizer);
    assert_int_equal(fl_detok_vocab(engine_detok(other)), 0);
    engine_close(e);
    engine_close(other);
}

static void bad_requests_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const int32_t outside[] = { 3, 1024 }, negative[] = { -1 };
    engine *e = open_engine(&(engine_options){ .model = DEMO, .n_threads = 1, .context_max = 64 });
    engine_request r = make_request(1, 50);
    refuse_add(e, r, "15 prompt tokens and max_tokens 50 are more than the context of 64");
    r.sampling.max_tokens = INT32_MAX;
    refuse_add(e, r, "more than the context of 64");
    r = make_request(1, 4);
    r.prompt = outside; r.n_prompt = 2;
    refuse_add(e, r, "prompt token 1 is 1024, outside the model's vocabulary of 1024");
    r.prompt = negative; r.n_prompt = 1;
    refuse_add(e, r, "prompt token 0 is -1");
    r.n_prompt = 0;
    refuse_add(e, r, "no tokens");
    r = make_request(1, 4);
    r.sample_hi = 0;
    refuse_add(e, r, "no range");
    r = make_request(1, 4);
    r.sampling.min_tokens = 5;
    refuse_add(e, r, "min_tokens 5 and max_tokens 4");
    r = make_request(1, 4);
    r.sampling.temperature = -1;
    refuse_add(e, r, "temperature");
    r = make_request(1, 49);
    r.sampling.ignore_eos = true;                        /* exactly full */
    add(e, r);
    engine_event events[1];
    assert_int_equal(run(e, events, 1, 1), 1);
    assert_int_equal(events[0].result->n_ids, 49);
    assert_int_equal(events[0].result->finish, FL_FINISH_LENGTH);
    assert_int_equal(events[0].result->text_bytes, -1);
    free_events(events, 1);
    engine_close(e);
}

static void every_way_to_stop_is_told_apart(void **state)
{
    (void)state;
    engine *e = open_engine(&(engine_options){ .model = DEMO, .n_threads = 1 });
    engine_event events[8];
    engine_request r = make_request(0, 64);              /* "    return sum(arr) / len(arr)\n" and the end token */
    add(e, r);
    assert_int_equal(run(e, events, 8, 8), 1);
    const fl_result *whole = events[0].result;
    assert_int_equal(whole->stop_kind, FL_STOP_EOS);
    assert_int_equal(whole->stop_index, 0);
    assert_int_equal(whole->n_ids, 10);
    assert_int_equal(whole->text_bytes, 31);
    assert_null(whole->prompt_ids);

    const char *stop[] = { "zzz", "arr) / l" };
    const size_t stop_bytes[] = { 3, 8 };
    const int32_t stop_ids[] = { 99999, whole->ids[4] };
    r.tag = 1; r.stop = stop; r.stop_bytes = stop_bytes; r.n_stop = 2;
    add(e, r);
    r = make_request(2, 64);
    r.stop_ids = stop_ids; r.n_stop_ids = 2;
    add(e, r);
    r = make_request(3, 64);
    r.sampling.ignore_eos = true;
    add(e, r);
    r = make_request(4, 5);
    r.sampling.n_top = 2;
    r.sampling.n_prompt_top = 1;
    add(e, r);
    r = make_request(5, 0);
    r.sampling.n_prompt_top = 0;
    r.sample_hi = 2;
    add(e, r);
    engine_event more[8];
    assert_int_equal(run(e, more, 8, 1), 6);
    for (int i = 0; i < 6; i++) {
        const fl_result *g = more[i].result;
        if (more[i].tag == 1) {
            assert_int_equal(g->stop_kind, FL_STOP_STRING);
            assert_int_equal(g->stop_index, 1);
            assert_int_equal(g->text_bytes, 15);         /* "    return sum(" */
        } else if (more[i].tag == 2) {
            assert_int_equal(g->stop_kind, FL_STOP_ID);
            assert_int_equal(g->stop_index, whole->ids[4]);
            assert_int_equal(g->n_ids, 5);
            assert_true(g->text_bytes > 0 && g->text_bytes < 31);
        } else if (more[i].tag == 3) {
            assert_int_equal(g->n_ids, 64);
            assert_int_equal(g->finish, FL_FINISH_LENGTH);
        } else if (more[i].tag == 4) {
            assert_int_equal(g->n_ids, 5);
            for (int k = 0; k < 5; k++) { assert_int_equal(g->top_ids[2 * k], g->ids[k]); assert_true(g->logprobs[k] == g->top_logprobs[2 * k] && g->logprobs[k] <= 0); }
            assert_memory_equal(g->prompt_ids, prompt, sizeof prompt);
            for (int k = 0; k < 14; k++) assert_true(g->prompt_logprobs[k] <= g->prompt_top_logprobs[k]);
        } else {
            assert_int_equal(more[i].tag, 5);
            assert_int_equal(g->n_ids, 0);
            assert_int_equal(g->n_prompt, 15);
            assert_int_equal(g->n_prompt_top, more[i].sample == 0 ? 0 : -1);         /* sample 0 carries them for all */
            if (more[i].sample > 0) { assert_null(g->prompt_logprobs); assert_null(g->prompt_ids); continue; }
            for (int k = 0; k < 14; k++) assert_true(g->prompt_logprobs[k] < 0 && g->prompt_logprobs[k] > -100);
        }
    }
    free_events(more, 6);
    free_events(events, 1);
    engine_close(e);
}

/* A stop string counts when its last byte comes after the first min_tokens tokens, wherever it began; the first "arr" is the fourth token. */
static void stop_strings_wait_for_min_tokens(void **state)
{
    (void)state;
    static const struct { const char *stop; int32_t min_tokens; int64_t text_bytes; } cases[] = {
        { "arr", 0, 15 }, { "arr", 3, 15 }, { "arr", 4, 26 }, { "arr) / l", 4, 15 }, { " ", 4, 19 }, { "arr", 8, 31 },
    };
    engine *e = open_engine(&(engine_options){ .model = DEMO, .n_threads = 1 });
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_request r = make_request(i, 64);          /* "    return sum(arr) / len(arr)\n" and the end token */
        engine_event event;
        const size_t stop_bytes = strlen(cases[i].stop);
        r.sampling.min_tokens = cases[i].min_tokens;
        r.stop = &cases[i].stop; r.stop_bytes = &stop_bytes; r.n_stop = 1;
        add(e, r);
        assert_int_equal(run(e, &event, 1, 1), 1);
        assert_int_equal(event.result->text_bytes, cases[i].text_bytes);
        assert_int_equal(event.result->stop_kind, cases[i].text_bytes == 31 ? FL_STOP_EOS : FL_STOP_STRING);
        assert_true(event.result->n_ids > (size_t)cases[i].min_tokens);
        free_events(&event, 1);
    }
    engine_close(e);
}

static void cancelled_samples_are_never_heard_of_again(void **state)
{
    (void)state;
    engine *e = open_engine(&(engine_options){ .model = DEMO, .n_threads = 1, .batch_max = 4 });
    engine_event events[16];
    int32_t n;
    fl_err err;
    engine_request r = make_request(7, 30);
    r.sample_hi = 4;
    r.sampling.ignore_eos = true;
    r.sampling.temperature = 1;
    add(e, r);
    engine_cancel(e, 7, 0);                              /* before its prompt is computed */
    engine_cancel(e, 8, UINT32_MAX);                     /* nobody */
    for (int i = 0; i < 3; i++) assert_int_equal(engine_step(e, events, 16, &n, &err), FL_OK);
    engine_cancel(e, 7, 2);
    engine_cancel(e, 7, 2);
    r = make_request(9, 30);
    add(e, r);
    engine_cancel(e, 9, UINT32_MAX);
    r = make_request(10, 4);
    r.sample_hi = 3;
    r.sampling.ignore_eos = true;
    add(e, r);
    n = run(e, events, 16, 1);
    assert_int_equal(n, 5);
    for (int i = 0; i < n; i++) assert_true((events[i].tag == 7 && (events[i].sample == 1 || events[i].sample == 3)) || events[i].tag == 10);
    free_events(events, n);
    engine_stats stats = engine_read_stats(e);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.kv_tokens_used, 0);

    add(e, make_request(11, 2));                         /* finished, but its event is still with the engine */
    assert_int_equal(engine_step(e, events, 0, &n, &err), FL_OK);
    assert_int_equal(engine_step(e, events, 0, &n, &err), FL_OK);
    assert_int_equal(n, 0);
    engine_cancel(e, 11, UINT32_MAX);
    assert_int_equal(run(e, events, 16, 16), 0);
    add(e, make_request(12, 2));                         /* closing with work in it frees all */
    assert_int_equal(engine_step(e, events, 0, &n, &err), FL_OK);
    engine_close(e);
}

/* ---- a model that has no numbers for one token ---- */

#define BAD_TOKEN 77
#define BAD_DIM 5

static void store(uint8_t *at, float value)              /* bf16, cut off */
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    at[0] = (uint8_t)(bits >> 16);
    at[1] = (uint8_t)(bits >> 24);
}

/* One dimension of the residual that only BAD_TOKEN uses and no layer writes; the head turns it into minus infinity for every id. */
static void poison(uint8_t *bytes, size_t n_bytes)
{
    safetensors *st = NULL;
    fl_err err;
    if (safetensors_open_bytes(&st, "model.safetensors", bytes, n_bytes, &err) != FL_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const tensor *t = safetensors_at(st, i);
        uint8_t *data = bytes + (t->data - bytes);
        bool is_output = strstr(t->name, "out_proj.") || strstr(t->name, "o_proj.") || strstr(t->name, "down_proj.");
        for (int64_t k = 0; is_output && k < t->shape[1]; k++) store(data + 2 * (BAD_DIM * t->shape[1] + k), 0.0f);
        if (strcmp(t->name, "model.embed_tokens.weight") == 0)
            for (int64_t id = 0; id < t->shape[0]; id++) store(data + 2 * (id * t->shape[1] + BAD_DIM), id == BAD_TOKEN ? 100.0f : 0.0f);
        if (strcmp(t->name, "lm_head.weight") == 0)
            for (int64_t id = 0; id < t->shape[0]; id++) store(data + 2 * (id * t->shape[1] + BAD_DIM), -3e38f);
    }
    safetensors_close(st);
}

static uint8_t *read_file(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "re");
    assert_non_null(file);
    uint8_t *bytes = malloc(1 << 20);
    assert_non_null(bytes);
    *n_bytes = fread(bytes, 1, 1 << 20, file);
    fclose(file);
    return bytes;
}

static void write_file(const char *path, const uint8_t *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

/* A copy of the small mixture in a new folder, its weights edited. */
typedef struct { char dir[32], config[64], weights[64]; uint8_t *bytes; size_t n_bytes; } model_copy;

static model_copy copy_model(void)
{
    model_copy m = { .dir = "/tmp/engine_test.XXXXXX" };
    assert_non_null(mkdtemp(m.dir));
    snprintf(m.config, sizeof m.config, "%s/config.json", m.dir);
    snprintf(m.weights, sizeof m.weights, "%s/model.safetensors", m.dir);
    m.bytes = read_file(SMALL "/config.json", &m.n_bytes);
    write_file(m.config, m.bytes, m.n_bytes);
    free(m.bytes);
    m.bytes = read_file(SMALL "/model.safetensors", &m.n_bytes);
    return m;
}

static void drop_copy(model_copy *m)
{
    free(m->bytes);
    unlink(m->config);
    unlink(m->weights);
    rmdir(m->dir);
}

/* Replace the first `old` in the header by `new`, which is as long. */
static void edit_header(model_copy *m, const char *old, const char *new)
{
    uint8_t *at = memmem(m->bytes, m->n_bytes, old, strlen(old));
    assert_non_null(at);
    assert_int_equal(strlen(old), strlen(new));
    memcpy(at, new, strlen(new));
}

static void damaged_weights_are_refused_by_name(void **state)
{
    (void)state;
    static const struct { const char *old, *new; fl_status status; const char *part; } edits[] = {
        { "model.layers.2.mlp.gate.weight", "model.layers.2.mlp.gone.weight", FL_NOT_FOUND, "tensor model.layers.2.mlp.gate.weight, which config.json asks for, is missing" },
        { "\"model.norm.weight\":{\"dtype\":\"BF16\"", "\"model.norm.weight\":{\"dtype\":\"I16\" ", FL_UNSUPPORTED, "tensor model.norm.weight has dtype I16" },
        { "\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[256,64]", "\"lm_head.weight\":{\"dtype\":\"BF16\",\"shape\":[64,256]", FL_CORRUPT, "tensor lm_head.weight has shape [64, 256], config.json asks for [256, 64]" },
    };
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        model_copy m = copy_model();
        edit_header(&m, edits[i].old, edits[i].new);
        write_file(m.weights, m.bytes, m.n_bytes);
        refuse_open((engine_options){ .model = m.dir }, edits[i].status, edits[i].part);
        drop_copy(&m);
    }
    model_copy m = copy_model();
    memset(m.bytes + m.n_bytes - 2, 0xFF, 2);            /* the last value of the last tensor in the file */
    write_file(m.weights, m.bytes, m.n_bytes);
    refuse_open((engine_options){ .model = m.dir }, FL_CORRUPT, "tensor model.norm.weight has a NaN or infinite value at index 63");
    write_file(m.weights, m.bytes, m.n_bytes - 1);
    refuse_open((engine_options){ .model = m.dir }, FL_CORRUPT, "truncated");
    unlink(m.weights);
    refuse_open((engine_options){ .model = m.dir }, FL_NOT_FOUND, "neither model.safetensors nor model.safetensors.index.json");
    drop_copy(&m);
}

static void row_without_numbers_fails_alone(void **state)
{
    (void)state;
    static const int32_t bad[] = { 3, 9, BAD_TOKEN }, good[] = { 3, 9, 12 };
    model_copy m = copy_model();
    poison(m.bytes, m.n_bytes);
    write_file(m.weights, m.bytes, m.n_bytes);

    engine *e = open_engine(&(engine_options){ .model = m.dir, .n_threads = 1 });
    engine_event events[8];
    engine_request r = make_request(1, 6);
    r.n_prompt = 3;
    r.prompt = good;
    add(e, r);
    r.tag = 2; r.prompt = bad; r.sample_hi = 3;
    add(e, r);
    r.tag = 3; r.prompt = good; r.sample_hi = 1;
    add(e, r);
    int32_t n = run(e, events, 8, 8), n_good = 0, n_failed = 0;
    for (int32_t i = 0; i < n; i++) {
        if (events[i].kind == ENGINE_FINISHED) { assert_int_not_equal(events[i].tag, 2); assert_int_equal(events[i].result->n_ids, 6); n_good++; continue; }
        assert_int_equal(events[i].tag, 2);
        assert_int_equal(events[i].error, ROW_NAN_LOGITS);
        assert_non_null(strstr(events[i].text, "not numbers"));
        n_failed++;
    }
    assert_int_equal(n_good, 2);
    assert_int_equal(n_failed, 1);
    assert_int_equal(engine_read_stats(e).kv_tokens_used, 0);
    free_events(events, n);

    r.tag = 4; r.prompt = bad; r.sample_hi = 3;
    add(e, r);
    assert_int_equal(engine_step(e, events, 0, &n, &(fl_err){ 0 }), FL_OK);
    engine_cancel(e, 4, 1);                              /* its failure is not handed out yet, and the other two wait for it */
    n = run(e, events, 8, 8);
    assert_int_equal(n, 1);
    assert_int_equal(events[0].kind, ENGINE_FAILED);
    r.tag = 5;
    add(e, r);
    assert_int_equal(engine_step(e, events, 0, &n, &(fl_err){ 0 }), FL_OK);
    engine_cancel(e, 5, UINT32_MAX);
    assert_int_equal(run(e, events, 8, 8), 0);
    engine_close(e);
    drop_copy(&m);
}

/* "store/1f3a" may be what "models/small" points to; the user asked for "small". */
static void model_is_named_as_the_user_calls_it(void **state)
{
    (void)state;
    char dir[] = "/tmp/engine_name.XXXXXX", link[64], path[80], before[4096];
    assert_non_null(mkdtemp(dir));
    snprintf(link, sizeof link, "%s/my_model", dir);
    assert_int_equal(symlink(SMALL, link), 0);
    assert_non_null(getcwd(before, sizeof before));
    static const struct { const char *behind, *name; } paths[] = { { "", "my_model" }, { "//", "my_model" }, { "/.", "small_qwen3_5_moe" } };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
        snprintf(path, sizeof path, "%s%s", link, paths[i].behind);
        engine *e = open_engine(&(engine_options){ .model = path, .n_threads = 1, .context_max = 64 });
        assert_string_equal(engine_describe(e)->name, paths[i].name);
        engine_close(e);
    }
    assert_int_equal(chdir(SMALL), 0);
    engine *e = open_engine(&(engine_options){ .model = ".", .n_threads = 1, .context_max = 64 });
    assert_string_equal(engine_describe(e)->name, "small_qwen3_5_moe");
    engine_close(e);
    assert_int_equal(chdir(before), 0);
    unlink(link);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_options_are_refused_with_a_sentence),
        cmocka_unit_test(damaged_weights_are_refused_by_name),
        cmocka_unit_test(description_names_the_model),
        cmocka_unit_test(bad_requests_are_refused_with_a_sentence),
        cmocka_unit_test(every_way_to_stop_is_told_apart),
        cmocka_unit_test(stop_strings_wait_for_min_tokens),
        cmocka_unit_test(cancelled_samples_are_never_heard_of_again),
        cmocka_unit_test(row_without_numbers_fails_alone),
        cmocka_unit_test(model_is_named_as_the_user_calls_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
