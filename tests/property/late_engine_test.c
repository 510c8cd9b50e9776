/* The engine one step behind a device that chooses tokens itself (late_ops.h) gives the bytes of the engine on the CPU, which waits for every step: over settings, with preemptions, forks,
 * cancels, rows without numbers, failing devices and any order of calls; and calls that could be replayed are the same calls each time. Prints its seed; TOKENFLEET_TEST_SEED replays another. */
#include "engine_rows.h"
#include "late_ops.h"
#include "random_model.h"

#define DEMO OPS_DIR "/demo_model"
#define MODELS TESTS_DIR "/golden/models/"

static outcome expected, got;
static uint64_t first_seed = 20261130;

static late_ops *open_late(bool replays)
{
    fl_err err;
    late_ops *l = late_open(replays, &err);
    if (!l) fail_msg("%s", err.text);
    return l;
}

/* n_same of the device, which run_rows closes with the engine. */
static uint64_t n_same;
static void close_counted(ops *o) { n_same = late_of(o)->n_same; late_close(o); }

static void check_setting(const char *name, engine_options options, bool is_split, bool replays, bool fails_to_record)
{
    late_ops *l = open_late(replays);
    l->fails_to_record = fails_to_record;
    l->far.table.close = close_counted;
    options.ops = &l->far.table;
    run_rows(&got, &options, is_split);
    check_same(name, &got, &expected);
    assert_true(!replays || n_same > got.stats.steps / 3);
    assert_true(got.stats.step_s >= got.stats.wait_s);
}

static void results_are_those_of_an_engine_that_waits(void **state)
{
    (void)state;
    engine_options plain = { .model = DEMO, .n_threads = 1, .context_max = CONTEXT }, o = plain;
    make_rows(first_seed, 1024);
    run_rows(&expected, &plain, false);
    o.batch_max = 24;                                                        check_setting("late", o, false, true, false);
    o.batch_max = 7; o.prefill_budget = 64;                                  check_setting("late, batch 7, budget 64, a recording fails", o, true, true, true);
    o = plain; o.batch_max = 16; o.prefill_budget = 128;
    o.kv_tokens = CONTEXT;                                                   check_setting("late, pool for one, split, youngest first", o, true, false, false);
    assert_true(got.stats.preemptions > 0);
}

static void recurrent_and_mixed_models_are_the_same(void **state)
{
    static const char *const names[] = { "small_qwen3_5_moe", "small_laguna" };
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        char path[300];
        snprintf(path, sizeof path, MODELS "%s", names[i]);
        const engine_options options = { .model = path, .n_threads = 1, .context_max = CONTEXT, .batch_max = 12, .prefill_budget = 256, .kv_tokens = 3 * CONTEXT };
        make_rows(first_seed + i, 256);
        run_rows(&expected, &options, false);
        check_setting(names[i], options, false, true, i == 0);
        assert_true(got.stats.preemptions > 0);
    }
}

/* ---- requests that are cancelled, and rows without numbers ---- */

typedef struct { bool is_cancelled[N_REQUESTS][SAMPLES_MAX], is_failed[N_REQUESTS]; } fates;

static void cancel_somebody(engine *e, fates *f, int n_added)
{
    const int index = between(0, n_added - 1);
    const uint32_t k = chance(50) ? UINT32_MAX : (uint32_t)between(0, (int32_t)rows[index].n_samples - 1);
    engine_cancel(e, (uint64_t)index * SAMPLES_MAX, k);
    for (uint32_t i = 0; i < rows[index].n_samples; i++) if (k == UINT32_MAX || k == i) f->is_cancelled[index][i] = true;
}

/* Run the rows, a few added before each step, with cancels in between or tokens that are none; what is heard of is what was expected. */
static void run_disturbed(late_ops *l, engine_options options, bool cancels)
{
    engine *e = NULL;
    engine_event events[3];
    fl_err err;
    fl_status st;
    fates f = { 0 };
    int32_t n, n_results = 0, n_failures = 0;
    int next = 0;
    memset(&got, 0, sizeof got);
    options.ops = &l->far.table;
    require(engine_open(&e, &options, &err), &err);
    for (;;) {
        for (int k = 0; next < N_REQUESTS && k < 3; k++, next++) add_row(e, next, 0, rows[next].n_samples);
        if (cancels && chance(40)) cancel_somebody(e, &f, next);
        if ((st = engine_step(e, events, 3, &n, &err)) != FL_OK) break;
        for (int32_t i = 0; i < n; i++) {
            const size_t index = events[i].tag / SAMPLES_MAX;
            if (events[i].kind == ENGINE_FAILED) {
                assert_true(l->nan_every > 0 && !f.is_failed[index]);
                f.is_failed[index] = true;
                n_failures++;
                continue;
            }
            assert_false(f.is_cancelled[index][events[i].sample] || f.is_failed[index]);
            keep_result(&got, &events[i]);
            assert_true(XXH128_isEqual(got.hash[index][events[i].sample], expected.hash[index][events[i].sample]));
            n_results++;
        }
    }
    if (st != FL_AGAIN) fail_msg("%s", err.text);
    for (int i = 0; i < N_REQUESTS; i++)
        for (uint32_t k = 0; k < rows[i].n_samples; k++) assert_true(f.is_failed[i] || f.is_cancelled[i][k] || got.hash[i][k].low64 != 0);
    const engine_stats stats = engine_read_stats(e);
    assert_int_equal(stats.running + stats.waiting, 0);
    assert_int_equal(stats.kv_tokens_used, 0);
    engine_close(e);
    print_message("%d results, %d failures, %llu preemptions\n", n_results, n_failures, (unsigned long long)stats.preemptions);
    assert_true(n_results > 3 && (n_failures > 0) == !cancels);
}

static void cancelled_and_failed_rows_disturb_nobody(void **state)
{
    (void)state;
    engine_options options = { .model = MODELS "small_qwen3_5_moe", .n_threads = 1, .context_max = CONTEXT, .batch_max = 9, .prefill_budget = 128 };
    make_rows(first_seed + 7, 256);
    run_rows(&expected, &options, false);
    options.kv_tokens = 2 * CONTEXT;
    for (int i = 0; i < 4; i++) run_disturbed(open_late(i % 2), options, true);
    for (int i = 0; i < 2; i++) {
        late_ops *l = open_late(i % 2);
        l->nan_every = (uint64_t)between(150, 250);
        run_disturbed(l, options, false);
    }
}

static void failing_device_ends_the_engine_wherever_it_fails(void **state)
{
    (void)state;
    make_rows(first_seed + 11, 256);
    for (int64_t n = 0; n < 24; n += 1 + n / 3) {
        late_ops *l = open_late(n % 2);
        engine *e = NULL;
        engine_event events[8];
        int32_t n_events;
        fl_err err;
        fl_status st;
        require(engine_open(&e, &(engine_options){ .model = MODELS "small_qwen3", .ops = &l->far.table, .context_max = CONTEXT, .batch_max = 8, .prefill_budget = 64 }, &err), &err);
        l->n_waits_left = n;
        for (int i = 0; i < 6; i++) add_row(e, i, 0, rows[i].n_samples);
        while ((st = engine_step(e, events, 8, &n_events, &err)) == FL_OK)
            for (int32_t i = 0; i < n_events; i++) { if (events[i].result) fl_result_free(events[i].result); free(events[i].result); }
        assert_int_equal(st, FL_GPU);
        assert_non_null(strstr(err.text, "failed at attention"));
        engine_close(e);
    }
}

/* ---- any order of calls ---- */

enum { N_HOSTILE = 16, CALLS_MAX = 4000 };

/* What the caller knows of a row that it added: its samples that are still owed. */
typedef struct { bool is_live; uint64_t tag; uint32_t lo, hi; bool is_owed[SAMPLES_MAX]; } added_row;

static added_row added[N_HOSTILE];
static uint64_t n_tags, n_checked, n_failed;

static bool owes_any(const added_row *a)
{
    bool any = false;
    for (uint32_t k = a->lo; k < a->hi; k++) any |= a->is_owed[k];
    return any;
}

/* Add a row that is not live, whole or some of its samples, under a new tag or at once again under the tag that it had: steps that name the old request may be under way. */
static void hostile_add(engine *e, int index)
{
    const row *r = &rows[index];
    added_row *a = &added[index];
    fl_err err;
    if (a->is_live) return;
    if (a->tag == 0 || chance(50)) a->tag = ++n_tags;
    a->lo = chance(60) ? 0 : (uint32_t)between(0, (int32_t)r->n_samples - 1);
    a->hi = chance(60) ? r->n_samples : (uint32_t)between((int32_t)a->lo + 1, (int32_t)r->n_samples);
    a->is_live = true;
    for (uint32_t k = a->lo; k < a->hi; k++) a->is_owed[k] = true;
    const engine_request request = { .tag = a->tag, .prompt = r->prompt, .n_prompt = r->n_prompt, .sample_lo = a->lo, .sample_hi = a->hi, .sampling = r->sampling, .stop = r->stop,
                                     .stop_bytes = r->stop_bytes, .n_stop = r->n_stop, .stop_ids = r->stop_ids, .n_stop_ids = r->n_stop_ids };
    require(engine_add(e, &request, &err), &err);
}

/* Cancel a whole row, one of its samples, one that is over already or none of its own, or nobody. */
static void hostile_cancel(engine *e, int index)
{
    added_row *a = &added[index];
    const uint32_t k = chance(50) ? UINT32_MAX : (uint32_t)between(0, SAMPLES_MAX);
    if (chance(10)) engine_cancel(e, n_tags + 99, k);
    if (!a->is_live) return;
    engine_cancel(e, a->tag, k);
    for (uint32_t i = a->lo; i < a->hi; i++) if (k == UINT32_MAX || k == i) a->is_owed[i] = false;
    a->is_live = owes_any(a);
}

static void check_event(const late_ops *l, engine_event *event)
{
    uint8_t *bytes;
    size_t n_bytes;
    fl_err err;
    int index = 0;
    while (index < N_HOSTILE && !(added[index].is_live && added[index].tag == event->tag)) index++;
    assert_true(index < N_HOSTILE);                      /* nobody hears of what was cancelled */
    added_row *a = &added[index];
    if (event->kind == ENGINE_FAILED) {
        assert_true(l->nan_every > 0);
        a->is_live = false;
        n_failed++;
        return;
    }
    assert_true(event->sample >= a->lo && event->sample < a->hi && a->is_owed[event->sample]);
    a->is_owed[event->sample] = false;
    a->is_live = owes_any(a);
    require(fl_result_encode(event->result, &bytes, &n_bytes, &err), &err);
    assert_true(XXH128_isEqual(XXH3_128bits(bytes, n_bytes), expected.hash[index][event->sample]));
    n_checked++;
    free(bytes);
    fl_result_free(event->result);
    free(event->result);
}

/* Rows that come, go and come again between steps, until all are through or, `breaks_off`, an engine closes over what is under way. */
static void run_hostile(late_ops *l, engine_options options, bool breaks_off)
{
    engine *e = NULL;
    engine_event events[8];
    fl_err err;
    fl_status st = FL_OK;
    int32_t n, n_adds = 3 * N_HOSTILE;
    memset(added, 0, sizeof added);
    options.ops = &l->far.table;
    require(engine_open(&e, &options, &err), &err);
    if (chance(20)) l->n_host_left = between(0, 12);
    const bool has_host = l->n_host_left < 0;
    for (int32_t calls = 0; calls < (breaks_off ? between(2, 60) : CALLS_MAX); calls++) {
        for (; n_adds > 0 && chance(40); n_adds--) hostile_add(e, between(0, N_HOSTILE - 1));
        while (chance(25)) hostile_cancel(e, between(0, N_HOSTILE - 1));
        st = engine_step(e, events, chance(10) ? 0 : between(1, 8), &n, &err);
        if (st == FL_AGAIN && n_adds == 0) break;
        if (st != FL_OK && st != FL_AGAIN) break;
        for (int32_t i = 0; i < n; i++) check_event(l, &events[i]);
    }
    if (st == FL_FULL && !has_host) assert_non_null(strstr(err.text, "no pinned memory"));
    else if (!breaks_off) assert_int_equal(st, FL_AGAIN);
    if (st == FL_AGAIN && !breaks_off) {
        const engine_stats stats = engine_read_stats(e);
        assert_int_equal(stats.running + stats.waiting, 0);
        assert_int_equal(stats.kv_tokens_used, 0);
        for (int i = 0; i < N_HOSTILE; i++) assert_false(added[i].is_live);
    }
    engine_close(e);
}

static void any_order_of_calls_gives_the_same_bytes_or_none(void **state)
{
    static const char *const names[] = { DEMO, MODELS "small_qwen3_5_moe" };
    static const int n_rounds[] = { 6, 18 };
    (void)state;
    for (int m = 0; m < 2; m++) {
        engine_options options = { .model = names[m], .n_threads = 1, .context_max = CONTEXT };
        make_rows(first_seed + 23 + (uint64_t)m, m ? 256 : 1024);
        for (int i = 0; i < N_REQUESTS; i++) {
            if (rows[i].sampling.max_tokens > 24) rows[i].sampling.max_tokens = between(1, 24);
            if (rows[i].sampling.min_tokens > rows[i].sampling.max_tokens) rows[i].sampling.min_tokens = rows[i].sampling.max_tokens;
        }
        run_rows(&expected, &options, false);
        n_checked = n_failed = 0;
        for (int i = 0; i < n_rounds[m]; i++) {
            late_ops *l = open_late(i % 2);
            options.batch_max = between(1, 9);
            options.prefill_budget = 64 * between(1, 4);
            options.kv_tokens = (int64_t)CONTEXT + 64 * between(0, 12);
            l->fails_to_record = chance(30);
            if (chance(30)) l->nan_every = (uint64_t)between(5, 60);
            run_hostile(l, options, i % 3 == 2);
        }
        print_message("%s: %llu results as expected, %llu rows without numbers\n", names[m], (unsigned long long)n_checked, (unsigned long long)n_failed);
        assert_true(n_checked > (uint64_t)n_rounds[m]);
    }
}

/* ---- steps that are taken apart ---- */

/* 64 prompt positions and 6 first tokens are more than the 65 rows that a batch of one has room for. */
static void step_without_room_runs_in_pieces(void **state)
{
    (void)state;
    make_rows(first_seed + 13, 1024);
    for (int i = 0; i < N_REQUESTS; i++) {
        rows[i].n_samples = SAMPLES_MAX;
        rows[i].n_prompt = i % 2 ? 64 : 128;
        for (int32_t k = 0; k < rows[i].n_prompt; k++) rows[i].prompt[k] = between(0, 1023);
        rows[i].sampling.n_prompt_top = i % 3;
        rows[i].sampling.max_tokens = between(1, 4);
        rows[i].sampling.min_tokens = 0;
    }
    engine_options options = { .model = DEMO, .n_threads = 1, .context_max = 192, .batch_max = 1, .prefill_budget = 64 };
    run_rows(&expected, &options, false);
    check_setting("late, more choices than room", options, false, false, false);
}

/* The 230 logits rows of one prompt's log-probabilities are more than the 223 of this vocabulary that are computed at a time. */
static void logits_beyond_their_memory_are_computed_in_pieces(void **state)
{
    (void)state;
    random_model m = random_model_make("{\"model_type\":\"qwen3\",\"hidden_size\":16,\"num_hidden_layers\":1,\"num_attention_heads\":1,\"num_key_value_heads\":1,\"head_dim\":16,\"intermediate_size\":16,"
                                       "\"vocab_size\":300000,\"max_position_embeddings\":512,\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":true,\"eos_token_id\":7}");
    make_rows(first_seed + 17, 512);
    for (int i = 0; i < N_REQUESTS; i++) {
        rows[i].n_samples = 1;
        rows[i].n_prompt = i == 3 ? 230 : between(1, 9);
        rows[i].sampling = (sampling){ .temperature = 1, .top_p = 1, .repetition_penalty = 1, .max_tokens = 1 + i % 2, .n_top = -1, .n_prompt_top = i == 3 ? 2 : -1, .seed = 1, .id_hash = (uint64_t)i };
        for (int32_t k = 0; k < rows[i].n_prompt; k++) rows[i].prompt[k] = between(0, 299999);
    }
    engine_options options = { .model = m.model, .n_threads = 1, .context_max = 256, .batch_max = 6, .prefill_budget = 256 };
    far_ops *far = calloc(1, sizeof *far);               /* random weights are fp32 there, too */
    fl_err err;
    assert_non_null(far);
    require(far_init(far, &err), &err);
    options.ops = &far->table;
    run_rows(&expected, &options, false);
    check_setting("late, a large vocabulary", options, false, false, false);
    random_model_drop(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_those_of_an_engine_that_waits),
        cmocka_unit_test(recurrent_and_mixed_models_are_the_same),
        cmocka_unit_test(cancelled_and_failed_rows_disturb_nobody),
        cmocka_unit_test(failing_device_ends_the_engine_wherever_it_fails),
        cmocka_unit_test(any_order_of_calls_gives_the_same_bytes_or_none),
        cmocka_unit_test(step_without_room_runs_in_pieces),
        cmocka_unit_test(logits_beyond_their_memory_are_computed_in_pieces),
    };
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    if (given) first_seed = strtoull(given, NULL, 10);
    print_message("seed %llu\n", (unsigned long long)first_seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
