/* mutant_models.h - what the tests of damaged models share (mutated_models_test, mutated_gguf_test): counting, what must hold of each mutant, saying which one ended the test, and main.
 * A mutant is called by its number; `PROGRAM SEED NUMBER` makes one again, opens it and leaves it. */
#ifndef TESTS_MUTANT_MODELS_H
#define TESTS_MUTANT_MODELS_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>
#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/tokenizer.h"
#include "proto/log.h"
#include "tests/heap_watch.h"
#include "tests/mutate.h"

#define MUTANT_SECONDS_MAX 20

/* The test says what its mutants are: their word, the test's name, where the running one lies, and how one is made and opened. */
typedef struct { uint64_t n_opened, n_refused, n_nan, n_rendered; size_t heap_most; } mutant_tally;
typedef struct {
    const char *word, *program, *path;
    size_t n_mutants, n_opened_min;
    void (*open)(uint64_t number, mutant_tally *t);
} mutant_test;
static const mutant_test mutants;

static uint64_t mutant_seed, mutant_running;

/* Fails the test with the mutant's number in front. */
#define mutant_fail(format, ...) \
    fail_msg("%s %llu (seed %llu): " format, mutants.word, (unsigned long long)mutant_running, (unsigned long long)mutant_seed, __VA_ARGS__)

static inline void mutant_check_sentence(fl_status st, const fl_err *err)
{
    if (st == FL_OK || strlen(err->text) < 10) mutant_fail("%s with the sentence \"%s\"", fl_status_name(st), err->text);
}

/* Heap since heap_watch_begin. */
static inline void mutant_check_heap(mutant_tally *t, size_t most, size_t n_bytes)
{
    size_t peak = heap_watch_peak();
    if (peak > most) mutant_fail("it has %zu bytes and took %zu of heap", n_bytes, peak);
    if (peak > t->heap_most) t->heap_most = peak;
}

/* A prompt over two chunks, two samples, a few tokens. */
static inline void mutant_run(engine *e, mutant_tally *t)
{
    const engine_info *info = engine_describe(e);
    int32_t prompt[70], n_prompt = 70, n_events = 0;
    engine_event events[8];
    fl_err err = { 0 };
    if (info->context_max < n_prompt + 3) n_prompt = info->context_max - 3;
    if (n_prompt < 1) return;
    for (int32_t i = 0; i < n_prompt; i++) prompt[i] = (int32_t)((7 * i + 3) % info->n_vocab);
    engine_request r = { .tag = 1, .prompt = prompt, .n_prompt = n_prompt, .sample_hi = 2,
                         .sampling = { .temperature = info->temperature, .top_p = info->top_p, .top_k = info->top_k, .min_p = info->min_p, .repetition_penalty = info->repetition_penalty, .max_tokens = 3, .n_top = 2,
                                       .n_prompt_top = -1, .seed = 1 } };
    fl_status st = engine_add(e, &r, &err);
    if (st != FL_OK) mutant_fail("a plain request is refused: %s", err.text);
    while ((st = engine_step(e, events, 8, &n_events, &err)) == FL_OK)
        for (int32_t i = 0; i < n_events; i++) {
            t->n_nan += events[i].kind == ENGINE_FAILED;
            if (!events[i].result) continue;
            for (size_t k = 0; k < events[i].result->n_ids; k++) assert_in_range(events[i].result->ids[k], 0, info->n_vocab - 1);
            fl_result_free(events[i].result);
            free(events[i].result);
        }
    if (st != FL_AGAIN) mutant_fail("a step fails with %s", err.text);
}

/* Open it as an engine and run it. What the engine said is in *err. */
static inline fl_status mutant_open_engine(const char *path, int32_t context_max, mutant_tally *t, fl_err *err)
{
    engine *e = NULL;
    fl_status st = engine_open(&e, &(engine_options){ .model = path, .n_threads = 1, .batch_max = 2, .prefill_budget = 64, .context_max = context_max }, err);
    if (st == FL_OK) { t->n_opened++; mutant_run(e, t); }
    else { t->n_refused++; mutant_check_sentence(st, err); }
    engine_close(e);
    return st;
}

/* What opening a tokenizer gave: a sentence, or ids of its own for a text. Closes it. */
static inline void mutant_check_tokenizer(fl_status st, tokenizer *t, fl_err *err)
{
    static const char text[] = "Hello  world, it's 2024!\n\n\tdef f(x): return x ** 2  # \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80<s></s><|endoftext|> the and  the<|im_end|>\n\n<tool>xyz";
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (st == FL_OK) st = tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n_ids, err);
    if (st != FL_OK) mutant_check_sentence(st, err);
    for (size_t i = 0; st == FL_OK && i < n_ids; i++) assert_in_range(ids[i], 0, tokenizer_vocab(t) - 1);
    free(ids);
    tokenizer_close(t);
}

/* `inspect` says what the engine said. Values (a NaN among them, say) are for the engine alone, which reads them: `beyond` are parts of its sentences about those. */
static inline void mutant_check_inspect(const char *path, fl_status opened, const fl_err *said, const char *const *beyond)
{
    json_t *report = NULL;
    fl_err err = { 0 };
    fl_status st = inspect_model(&report, path, 2, 0, &err);
    if (st != FL_OK) mutant_check_sentence(st, &err);
    bool is_supported = json_is_true(json_object_get(report, "supported"));
    const char *problem = json_string_value(json_array_get(json_object_get(report, "problems"), 0));
    bool agree = opened == FL_OK ? is_supported : !is_supported || opened == FL_FULL;
    for (; opened != FL_OK && *beyond; beyond++) agree = agree || strstr(said->text, *beyond);
    if (st == FL_OK && !agree) mutant_fail("the engine says %s \"%s\", inspect \"%s\"", fl_status_name(opened), said->text, problem ? problem : "supported");
    json_decref(report);
}

/* ---- the test ---- */

static inline void mutants_do_no_harm(void **state)
{
    (void)state;
    mutant_tally t = { 0 };
    clock_t start = clock();
    for (uint64_t i = 0; i < mutants.n_mutants; i++) mutants.open(i, &t);
    print_message("%zu mutants: %llu opened and ran (%llu rows ended in NaN), %llu refused, %llu templates rendered; at most %.1f MB of heap; %.1f s of CPU time\n", mutants.n_mutants,
                  (unsigned long long)t.n_opened, (unsigned long long)t.n_nan, (unsigned long long)t.n_refused, (unsigned long long)t.n_rendered, (double)t.heap_most / 1e6,
                  (double)(clock() - start) / CLOCKS_PER_SEC);
    assert_true(t.n_opened > mutants.n_opened_min && t.n_refused > mutants.n_mutants / 4);           /* both ways are taken */
}

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));      /* there under a sanitizer, which reports signals itself */

static inline void mutant_say_where(void)
{
    char text[200];
    int n = snprintf(text, sizeof text, "\nended by %s %llu: make it again with %s %llu %llu\n", mutants.word, (unsigned long long)mutant_running, mutants.program, (unsigned long long)mutant_seed,
                     (unsigned long long)mutant_running);
    if (write(2, text, (size_t)n) < 0) _exit(3);
}

static inline void mutant_report_signal(int number)
{
    mutant_say_where();
    signal(number, SIG_DFL);
    raise(number);
}

static inline int mutants_main(int argc, char **argv, CMFixtureFunction setup, CMFixtureFunction teardown)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutants_do_no_harm) };
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    mutant_seed = argc > 2 ? strtoull(argv[1], NULL, 10) : given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    fl_log_set_level(FL_LOG_ERROR);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(mutant_say_where);
    else signal(SIGSEGV, mutant_report_signal), signal(SIGBUS, mutant_report_signal), signal(SIGFPE, mutant_report_signal);
    signal(SIGABRT, mutant_report_signal);
    signal(SIGALRM, mutant_report_signal);
    if (argc > 2) {                                      /* one mutant, which stays */
        mutant_tally t = { 0 };
        if (setup(NULL) != 0) return 1;
        mutants.open(strtoull(argv[2], NULL, 10), &t);
        printf("%s: %s, %.1f MB of heap\n", mutants.path, t.n_opened ? "opened" : "refused", (double)t.heap_most / 1e6);
        return 0;
    }
    printf("seed %llu\n", (unsigned long long)mutant_seed);
    return cmocka_run_group_tests(tests, setup, teardown);
}

#endif
