/* 10,000 GGUF files with one or two things wrong in them (fewer under a sanitizer), opened as a worker opens a model: engine, tokenizer, chat templates, a few tokens when it opens, and
 * `inspect`, which must agree. Each is an error with a sentence or a good load; never a crash, a hang (20 s), or heap beyond what the file warrants.
 * The seeds are fuzz_gguf's: three small models with vocabularies. The seed of the mutations is printed; TOKENFLEET_TEST_SEED gives another; `mutated_gguf_test SEED NUMBER` makes one
 * file again, opens it and leaves it. */
#include "engine/chat_template.h"
#include "tests/mutant_models.h"

#if defined(__SANITIZE_ADDRESS__)
#define MUTANTS 1500
#else
#define MUTANTS 10000
#endif
#define HEAP_FIXED (32u << 20)           /* the tokenizer's tables of all characters twice, and the engine's own rows */
#define HEAP_BYTE 800                    /* trees and vocabularies of the engine's tokenizer and of inspect's, as in mutated_models_test */

static const char *const seeds[] = { "llama", "gemma3", "qwen3_5_moe" };
enum { N_SEEDS = sizeof seeds / sizeof *seeds };
static mutate_sample pristine[N_SEEDS];
static char path[64];

/* Apart, since gcc takes mutate_replace's sizes for negative where it sees through all of it. */
static __attribute__((noinline)) void mutate_whole(mutate_sample *s, uint64_t number) { mutate_make(s, pristine, N_SEEDS, mutant_seed, number); }

static void make_file(uint64_t number, size_t *n_bytes)
{
    mutate_sample s = { malloc(2 * MUTATE_BYTES_MAX), 0 };
    assert_non_null(s.data);
    if (number < N_SEEDS) { memcpy(s.data, pristine[number].data, pristine[number].n_bytes); s.n_bytes = pristine[number].n_bytes; }      /* the first ones are good */
    else if (number % 2) mutate_whole(&s, number);
    else {                                               /* a byte or a count of the header, so that what lies behind it stays where it was */
        mutate_random r = { mutant_seed ^ number * 0x9E3779B97F4A7C15u };
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

static void open_mutant(uint64_t number, mutant_tally *t)
{
    static const char *const beyond_inspect[] = { "NaN", "decay", NULL };
    tokenizer *words = NULL;
    json_t *names = NULL;
    fl_err err = { 0 }, said = { 0 };
    size_t n_bytes;
    mutant_running = number;
    make_file(number, &n_bytes);
    alarm(MUTANT_SECONDS_MAX);
    heap_watch_begin();
    fl_status opened = mutant_open_engine(path, 96, t, &said), st = tokenizer_open_model(&words, path, &err);
    if (number < N_SEEDS && opened != FL_OK) fail_msg("the good file %s is refused: %s", seeds[number], said.text);
    mutant_check_tokenizer(st, words, &err);
    if ((st = chat_template_names(&names, path, &err)) != FL_OK) mutant_check_sentence(st, &err);
    json_decref(names);
    mutant_check_inspect(path, opened, &said, beyond_inspect);
    mutant_check_heap(t, HEAP_FIXED + HEAP_BYTE * n_bytes, n_bytes);
    alarm(0);
}

static const mutant_test mutants = { "file", "mutated_gguf_test", path, MUTANTS, MUTANTS / 20, open_mutant };

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

int main(int argc, char **argv) { return mutants_main(argc, argv, load_seeds, remove_file); }
