/* Every decoder and loader of foreign bytes that has a fuzz target (tests/fuzz/fuzz_NAME.c, linked in here) takes 10,000 mutations of its corpus. The target asserts what
 * holds for any input: a good read that keeps the header's promises, or an error with a sentence. Here the heap is watched as well: no input of n bytes may take more
 * than the target's `fixed + per_byte * n` bytes at once. The seed is printed; TOKENFLEET_TEST_SEED gives another; `mutated_test NAME SEED NUMBER` runs one input again. */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>
#include "proto/log.h"
#include "proto/status.h"
#include "tests/heap_watch.h"
#include "tests/mutate.h"

#define INPUTS 10000
#define SAMPLES_MAX 256

/* FUZZ_TARGETS is X(name) for each fuzz_NAME.c that there is. */
#define X(name) int fuzz_##name(const uint8_t *data, size_t n_bytes);
FUZZ_TARGETS
#undef X

/* What an input of n bytes warrants, harness included (it copies the input, and reads back what it wrote). */
static const struct { const char *name; size_t fixed, per_byte; const char *why; } bounds[] = {
    { "code_extract", 4 << 10, 4, "a copy, and the completion twice" },
    { "detok", 64 << 10, 4000, "LZ4 makes at most 255 bytes of one, and each of those at most an id of 5 bytes in the table, twice for the comparison" },
    { "frame", 4 << 10, 2, "a copy" },
    { "gguf", 64 << 10, 400, "an index entry of 56 bytes a key and 150 a tensor, the forms of config.json and tokenizer.json as trees" },
    { "grade_line", 64 << 10, 40, "places for 1,024 samples, the task's texts, and 16 bytes a key" },
    { "ingest", 8 << 20, 40, "blocks and a run of ids, whatever the job (ingest.h)" },
    { "journal", 8 << 20, 400, "SQLite's page cache of 2 MB each for the maker and for us, a value as it is (at most 1 MB), 16 bytes an item of a lease" },
    { "job_row", 64 << 10, 40, "four bytes an id, and 16 bytes a key" },
    { "ledger", 5 << 20, 8, "a segment as it is, the state of 8 rows, a window of 1 MB to read and 2 MB of blocks to look up (ledger_lookup.h)" },
    { "model_config", 64 << 10, 400, "jansson's tree, and 4 bytes a layer of at most 4,096" },
    { "packed", 64 << 10, 100, "as wire, and 16 bytes a part, each of which takes four in the message" },
    { "result", 64 << 10, 4000, "LZ4 makes at most 255 bytes of one, and each of those an id of 4 bytes, twice for the comparison" },
    { "rows_idx", 128 << 10, 4, "a copy, and a page of lines" },
    { "safetensors", 64 << 10, 400, "jansson's tree, and a tensor of 150 bytes" },
    { "token_block", 64 << 10, 4000, "as result" },
    { "tokenizer", 12 << 20, 400, "tables of all characters (5.5 MB), jansson's tree, 18 bytes an id and at most 65,536 + 16 a token of them, the regular expression" },
    { "wire", 64 << 10, 100, "a list entry is one byte in the message and 8 in the arena, which rounds up to 64 a list" },
};

typedef struct { const char *name; int (*run)(const uint8_t *, size_t); } target;
static const target targets[] = {
#define X(name) { #name, fuzz_##name },
    FUZZ_TARGETS
#undef X
};
enum { N_TARGETS = sizeof targets / sizeof *targets };

static uint64_t seed;
static const char *running;              /* what a crash reports */
static uint64_t running_number;

void __sanitizer_set_death_callback(void (*callback)(void)) __attribute__((weak));      /* there under a sanitizer, which reports signals itself */

static void say_where(void)
{
    char text[200];
    int n = snprintf(text, sizeof text, "\nended by input %llu of %s: run it again with mutated_test %s %llu %llu\n", (unsigned long long)running_number, running, running,
                     (unsigned long long)seed, (unsigned long long)running_number);
    if (write(2, text, (size_t)n) < 0) _exit(3);
}

static void report_crash(int number)
{
    say_where();
    signal(number, SIG_DFL);
    raise(number);
}

static size_t load_samples(const char *name, mutate_sample *samples)
{
    char path[512];
    size_t n = 0;
    struct dirent **entries = NULL;
    snprintf(path, sizeof path, "%s/fuzz/corpus/%s", TESTS_DIR, name);
    int n_entries = scandir(path, &entries, NULL, alphasort);
    if (n_entries < 0) fail_msg("there is no %s", path);
    for (int i = 0; i < n_entries; i++) {
        struct stat info;
        snprintf(path, sizeof path, "%s/fuzz/corpus/%s/%s", TESTS_DIR, name, entries[i]->d_name);
        free(entries[i]);
        if (stat(path, &info) != 0 || !S_ISREG(info.st_mode) || n == SAMPLES_MAX) continue;
        FILE *f = fopen(path, "rb");
        assert_non_null(f);
        samples[n].data = malloc((size_t)info.st_size + 1);
        assert_non_null(samples[n].data);
        samples[n].n_bytes = fread(samples[n].data, 1, (size_t)info.st_size, f);
        fclose(f);
        n++;
    }
    free(entries);
    return n;
}

/* Run inputs first .. last - 1 of a target, each in memory of its own size, so that a sanitizer sees a read past its end. */
static void run_inputs(const target *t, uint64_t first, uint64_t last)
{
    static mutate_sample samples[SAMPLES_MAX];
    static uint8_t room[MUTATE_BYTES_MAX];
    size_t fixed = 0, per_byte = 0, n_samples = load_samples(t->name, samples), most = 0, most_bytes = 0;
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (strcmp(bounds[i].name, t->name) == 0) { fixed = bounds[i].fixed; per_byte = bounds[i].per_byte; }
    if (!fixed) fail_msg("fuzz_%s has no bound of memory: add one to `bounds`", t->name);
    assert_true(n_samples > 0);
    clock_t start = clock();
    running = t->name;
    for (running_number = first; running_number < last; running_number++) {
        mutate_sample made = { room, 0 };
        mutate_make(&made, samples, n_samples, seed, running_number);
        uint8_t *exact = malloc(made.n_bytes ? made.n_bytes : 1);
        assert_non_null(exact);
        memcpy(exact, made.data, made.n_bytes);
        heap_watch_begin();
        t->run(exact, made.n_bytes);
        size_t peak = heap_watch_peak();
        if (peak > fixed + per_byte * made.n_bytes)
            fail_msg("input %llu of %s (seed %llu) has %zu bytes and took %zu of memory, above %zu + %zu a byte", (unsigned long long)running_number, t->name, (unsigned long long)seed,
                     made.n_bytes, peak, fixed, per_byte);
        if (peak > most) { most = peak; most_bytes = made.n_bytes; }
        free(exact);
    }
    print_message("%s: %llu inputs from %zu samples, at most %zu bytes of memory (an input of %zu), %.1f s\n", t->name, (unsigned long long)(last - first), n_samples, most, most_bytes,
                  (double)(clock() - start) / CLOCKS_PER_SEC);
    for (size_t i = 0; i < n_samples; i++) free(samples[i].data);
}

static void mutated_inputs_do_no_harm(void **state)
{
    run_inputs(*state, 0, INPUTS);
}

int main(int argc, char **argv)
{
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    seed = given ? strtoull(given, NULL, 10) : (uint64_t)time(NULL);
    fl_log_set_level(FL_LOG_ERROR);
    if (__sanitizer_set_death_callback) __sanitizer_set_death_callback(say_where);
    else signal(SIGSEGV, report_crash), signal(SIGBUS, report_crash);
    signal(SIGABRT, report_crash);
    struct CMUnitTest tests[N_TARGETS];
    size_t n = 0;
    for (size_t i = 0; i < N_TARGETS; i++) {
        if (argc > 3 && strcmp(argv[1], targets[i].name) == 0) {
            seed = strtoull(argv[2], NULL, 10);
            run_inputs(&targets[i], strtoull(argv[3], NULL, 10), strtoull(argv[3], NULL, 10) + 1);
            return 0;
        }
        if (argc > 1 && strcmp(argv[1], targets[i].name) != 0) continue;
        tests[n++] = (struct CMUnitTest){ targets[i].name, mutated_inputs_do_no_harm, NULL, NULL, (void *)&targets[i] };
    }
    printf("seed %llu\n", (unsigned long long)seed);
    return _cmocka_run_group_tests("mutated inputs", tests, n, NULL, NULL);
}
