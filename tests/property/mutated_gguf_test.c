/* 10,000 GGUF files with one or two things wrong in them (fewer under a sanitizer), opened as a worker opens a model: engine, tokenizer, chat templates, a few tokens when it opens, and
 * `inspect`, which must agree. Each is an error with a sentence or a good load; never a crash, a hang (20 s), or heap beyond what the file warrants.
 * The seeds are fuzz_gguf's: three small models with vocabularies. The seed of the mutations is printed; TOKENFLEET_TEST_SEED gives another; `mutated_gguf_test SEED NUMBER` makes one
 * file again, opens it and leaves it. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/chat_template.h"
#include "engine/engine.h"
#include "engine/inspect.h"
#include "engine/tokenizer.h"
#include "proto/log.h"
#include "tests/heap_watch.h"
#include "tests/mutate.h"

#if defined(__SANITIZE_ADDRESS__)
#define MUTANTS 1500
#else
#define MUTANTS 10000
#endif
#define MUTANT_SECONDS_MAX 20
#define HEAP_FIXED (32u << 20)           /* the tokenizer's tables of all characters twice, and the engine's own rows */
#define HEAP_BYTE 800                    /* trees and vocabularies of the engine's tokenizer and of inspect's, as in mutated_models_test */

static const char *const seeds[] = { "llama", "gemma3", "qwen3_5_moe" };
enum { N_SEEDS = sizeof seeds / sizeof *seeds };
static mutate_sample pristine[N_SEEDS];
static char path[64];
static uint64_t seed, running;

/* Apart, since gcc takes mutate_replace's sizes for negative where it sees through all of it. */
static __attribute__((noinline)) void mutate_whole(mutate_sample *s, uint64_t number) { mutate_make(s, pristine, N_SEEDS, seed, number); }

static void make_file(uint64_t number, size_t *n_bytes)
{
    mutate_sample s = { malloc(2 * MUTATE_BYTES_MAX), 0 };
    assert_non_null(s.data);
    if (number < N_SEEDS) { memcpy(s.data, pristine[number].data, pristine[number].n_bytes); s.n_bytes = pristine[number].n_bytes; }      /* the first ones are good */
    else if (number % 2) mutate_whole(&s, number);
    else {                                               /* a byte or a count of the header, so that what lies behind it stays where it was */
        mutate_random r = { seed ^ number * 0x9E3779B97F4A7C15u };
        const mutate_sample *from = &pristine[mutate_below(&r, N_SEEDS)];
        memcpy(s.data, from->data, from->n_bytes);
        s.n_bytes = from->n_bytes;
        for (size_t i = 0, n = 1 + mutate_below(&r, 2); i < n; i++) {
            static const uint8_t values[] = { 0, 1, 2, 3, 7, 8, 12, 16, 31, 32, 64, 127, 128, 255 };
            const size_t at = 4 + mutate_below(&r, from->n_bytes / 3);
            s.data[at] = (uint8_t)(mutate_below(&r, 2) ? values[mutate_below(&r, sizeof values)] : s.data[at] ^ 1u << mutate_below(&r, 8));
        }
    }
    FILE *file = fopen(path, "wbe");
    assert_non_null(file);
    assert_int_equal(fwrite(s.data, 1, s.n_bytes, file), s.n_bytes);
    assert_int_equal(fclose(file), 0);
    *n_bytes = s.n_bytes;
    free(s.data);
}

typedef struct { uint64_t n_opened, n_refused, n_nan; size_t heap_most; } tally;

static void check_sentence(fl_status st, const fl_err *err)
{
    if (st == FL_OK || strlen(err->text) < 10) fail_msg("file %llu (seed %llu): %s with the sentence \"%s\"", (unsigned long long)running, (unsigned long long)seed, fl_status_name(st), err->text);
}

static void run_engine(engine *e, tally *t)
{
    const engine_info *info = engine_describe(e);
    int32_t prompt[66], n_prompt = 66, n_events = 0;
    engine_event events[8];
    fl_err err = { 0 };
    if (info->context_max < n_prompt + 2) n_prompt = info->context_max - 2;
    if (n_prompt < 1) return;
    for (int32_t i = 0; i < n_prompt; i++) prompt[i] = (7 * i + 3) % info->n_vocab;
    engine_request r = { .tag = 1, .prompt = prompt, .n_prompt = n_prompt, .sample_hi = 1, .sampling = { .temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f, .max_tokens = 2, .n_top = -1, .n_prompt_top = -1 } };
    fl_status st = engine_add(e, &r, &err);
    if (st != FL_OK) fail_msg("file %llu (seed %llu): a plain request is refused: %s", (unsigned long long)running, (unsigned long long)seed, err.text);
    while ((st = engine_step(e, events, 8, &n_events, &err)) == FL_OK)
        for (int32_t i = 0; i < n_events; i++) {
            t->n_nan += events[i].kind == ENGINE_FAILED;
            if (!events[i].result) continue;
            fl_result_free(events[i].result);
            free(events[i].result);
        }
    if (st != FL_AGAIN) fail_msg("file %llu (seed %llu): a step fails with %s", (unsigned long long)running, (unsigned long long)seed, err.text);
}

static void open_rest(fl_status opened, const fl_err *said)
{
    static const char text[] = "the and  the<|im_end|>\n\n<tool>xyz \xe4\xbd\xa0\xf0\x9f\x98\x80";
    tokenizer *t = NULL;
    json_t *names = NULL, *report = NULL;
    fl_err err = { 0 };
    int32_t *ids = NULL;
    size_t n_ids = 0;
    fl_status st = tokenizer_open_model(&t, path, &err);
    if (st == FL_OK) st = tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n_ids, &err);
    if (st != FL_OK) check_sentence(st, &err);
    for (size_t i = 0; st == FL_OK && i < n_ids; i++) assert_in_range(ids[i], 0, tokenizer_vocab(t) - 1);
    free(ids);
    tokenizer_close(t);
    st = chat_template_names(&names, path, &err);
    if (st != FL_OK) check_sentence(st, &err);
    json_decref(names);
    st = inspect_model(&report, path, 2, 0, &err);
    if (st != FL_OK) check_sentence(st, &err);
    const bool is_supported = json_is_true(json_object_get(report, "supported"));
    const bool agree = opened == FL_OK ? is_supported : !is_supported || opened == FL_FULL || strstr(said->text, "NaN") || strstr(said->text, "decay");
    if (st == FL_OK && !agree) fail_msg("file %llu (seed %llu): the engine says %s \"%s\", inspect does not", (unsigned long long)running, (unsigned long long)seed, fl_status_name(opened), said->text);
    json_decref(report);
}

static void open_mutant(uint64_t number, tally *t)
{
    fl_err err = { 0 };
    engine *e = NULL;
    size_t n_bytes;
    running = number;
    make_file(number, &n_bytes);
    alarm(MUTANT_SECONDS_MAX);
    heap_watch_begin();
    fl_status st = engine_open(&e, &(engine_options){ .model = path, .n_threads = 1, .batch_max = 2, .prefill_budget = 64, .context_max = 96 }, &err);
    if (st == FL_OK) { t->n_opened++; run_engine(e, t); }
    else { t->n_refused++; check_sentence(st, &err); }
    if (number < N_SEEDS && st != FL_OK) fail_msg("the good file %s is refused: %s", seeds[number], err.text);
    engine_close(e);
    open_rest(st, &err);
    size_t peak = heap_watch_peak();
    alarm(0);
    if (peak > HEAP_FIXED + HEAP_BYTE * n_bytes) fail_msg("file %llu (seed %llu) has %zu bytes and took %zu of heap", (unsigned long long)number, (unsigned long long)seed, n_bytes, peak);
    if (peak > t->heap_most) t->heap_most = peak;
}

static void mutated_files_do_no_harm(void **state)
{
    (void)state;
    tally t = { 0 };
    clock_t start = clock();
    for (uint64_t i = 0; i < MUTANTS; i++) open_mutant(i, &t);
    print_message("%d files: %llu opened and ran (%llu rows ended in NaN), %llu refused; at most %.1f MB of heap; %.1f s of CPU time\n", MUTANTS, (unsigned long long)t.n_opened, (unsigned long long)t.n_nan,
                  (unsigned long long)t.n_refused, (double)t.heap_most / 1e6, (double)(clock() - start) / CLOCKS_PER_SEC);
    assert_true(t.n_opened > MUTANTS / 20 && t.n_refused > MUTANTS / 4);                     /* both ways are taken */
}

static void report_signal(int number)
{
    char text[200];
    int n = snprintf(text, sizeof text, "\nended by file %llu: make it again with mutated_gguf_test %llu %llu\n", (unsigned long long)running, (unsigned long long)seed, (unsigned long long)running);
    if (write(2, text, (size_t)n) < 0) _exit(3);
    signal(number, SIG_DFL);
    raise(number);
}

static int load_seeds(void **state)
{
    char name[512];
    (void)state;
    for (int i = 0; i < N_SEEDS; i++) {
        snprintf(name, sizeof name, TESTS_DIR "/fuzz/corpus/gguf/%s.gguf", seeds[i]);
        FILE *file = fopen(name, "rbe");
        if (!file) return -1;
        pristine[i].data = malloc(MUTATE_BYTES_MAX);
        if (pristine[i].data) pristine[i].n_bytes = fread(pristine[i].data, 1, MUTATE_BYTES_MAX, file);
        fclose(file);
    }
    snprintf(path, sizeof path, "/tmp/mutated_gguf_test.%d.gguf", (int)getpid());
    return 0;
}

static int remove_file(void **state)
{
    (void)state;
    for (int i = 0; i < N_SEEDS; i++) free(pristine[i].data);
    return unlink(path);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(mutated_files_do_no_harm) };
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    seed = argc > 2 ? strtoull(argv[1], NULL, 10) : given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    fl_log_set_level(FL_LOG_ERROR);
    signal(SIGSEGV, report_signal), signal(SIGBUS, report_signal), signal(SIGFPE, report_signal), signal(SIGABRT, report_signal), signal(SIGALRM, report_signal);
    if (argc > 2) {
        tally t = { 0 };
        if (load_seeds(NULL) != 0) return 1;
        open_mutant(strtoull(argv[2], NULL, 10), &t);
        printf("%s: %s, %.1f MB of heap\n", path, t.n_opened ? "opened" : "refused", (double)t.heap_most / 1e6);
        return 0;
    }
    printf("seed %llu\n", (unsigned long long)seed);
    return cmocka_run_group_tests(tests, load_seeds, remove_file);
}
