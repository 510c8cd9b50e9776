/* Each name that tokenizer.ggml.pre can have cuts texts as the tokenizer.json of the models it stands for does: 1,000 of the families' texts (tokenizers/, made by
 * make_tokenizer_families.py), word by word. `default` is no model's; what it makes of a text stands here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <cmocka.h>
#include "engine/gguf.h"
#include "engine/gguf_tokenizer.h"
#include "engine/pretokenize.h"

#define FOLDER TESTS_DIR "/golden/tokenizers/"
enum { N_TEXTS = 1000, TEXTS_BYTES_MAX = 16 << 20, WORDS_BYTES_MAX = 1 << 16 };

/* nfc, ignore_merges: what else the name decides. */
static const struct { const char *name, *like; bool nfc, ignore_merges; } names[] = {
    { "gpt-2", "gpt2", false, false },      { "gpt2", "gpt2", false, false },        { "mpt", "gpt2", false, false },         { "olmo", "gpt2", false, false },
    { "smollm", "smollm2", false, false },  { "starcoder", "smollm2", false, false }, { "refact", "smollm2", false, false },  { "codeshell", "smollm2", false, false },
    { "llama-bpe", "llama3", false, true }, { "llama3", "llama3", false, true },     { "llama-v3", "llama3", false, true },   { "falcon3", "llama3", false, true },
    { "pixtral", "llama3", false, true },   { "lfm2", "llama3", false, true },       { "dbrx", "llama3", false, false },      { "smaug-bpe", "llama3", false, false },
    { "qwen2", "qwen2", true, false },      { "deepseek-r1-qwen", "qwen2", true, false }, { "qwen35", "qwen3_5", true, false }, { "laguna", "laguna", false, false },
    { "gpt-4o", "o200k", false, false },    { "llama4", "o200k", false, false },     { "tekken", "tekken", false, true },     { "deepseek-v3", "deepseek", false, false },
};
enum { N_NAMES = sizeof names / sizeof *names };

static uint8_t *texts;                   /* owned; n (u32) and bytes of each */

static int load_texts(void **state)
{
    (void)state;
    uint8_t *packed = malloc(TEXTS_BYTES_MAX);
    FILE *f = fopen(FOLDER "texts.gz", "rbe");
    texts = malloc(TEXTS_BYTES_MAX);
    if (!packed || !f || !texts) return -1;
    const size_t n = fread(packed, 1, TEXTS_BYTES_MAX, f);
    uLongf n_texts = TEXTS_BYTES_MAX;
    fclose(f);
    const int st = uncompress(texts, &n_texts, packed, n);
    free(packed);
    return st == Z_OK ? 0 : -1;
}

static int drop_texts(void **state)
{
    (void)state;
    free(texts);
    return 0;
}

/* ---- a file with nothing but a vocabulary ---- */

typedef struct { _Alignas(8) uint8_t bytes[1024]; size_t n; } file;
static void put(file *f, const void *data, size_t n) { assert_true(f->n + n <= sizeof f->bytes); memcpy(f->bytes + f->n, data, n); f->n += n; }
static void put_u32(file *f, uint32_t v) { put(f, &v, sizeof v); }
static void put_u64(file *f, uint64_t v) { put(f, &v, sizeof v); }
static void put_text(file *f, const char *text) { put_u64(f, strlen(text)); put(f, text, strlen(text)); }
static void put_string(file *f, const char *key, const char *text) { put_text(f, key); put_u32(f, GGUF_STRING); put_text(f, text); }
static void put_strings(file *f, const char *key, const char *const *list, uint64_t n)
{
    put_text(f, key);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, GGUF_STRING);
    put_u64(f, n);
    for (uint64_t i = 0; i < n; i++) put_text(f, list[i]);
}

/* The tokenizer.json of a vocabulary of three tokens whose pre-tokenizer has this name. */
static fl_status make_form(json_t **out, const char *name, fl_err *err)
{
    static const char *const tokens[] = { "a", "b", "ab" }, *const merges[] = { "a b" };
    file f = { .n = 0 };
    gguf *g = NULL;
    put(&f, "GGUF", 4);
    put_u32(&f, 3);
    put_u64(&f, 0);
    put_u64(&f, 5);
    put_string(&f, "general.architecture", "llama");
    put_string(&f, "tokenizer.ggml.model", "gpt2");
    put_string(&f, "tokenizer.ggml.pre", name);
    put_strings(&f, "tokenizer.ggml.tokens", tokens, 3);
    put_strings(&f, "tokenizer.ggml.merges", merges, 1);
    fl_status st = gguf_open_bytes(&g, "x.gguf", f.bytes, f.n, err);
    if (st == FL_OK) st = gguf_tokenizer_make(out, g, err);
    gguf_close(g);
    return st;
}

/* ---- words ---- */

typedef struct { uint8_t bytes[WORDS_BYTES_MAX]; size_t n; } word_list;

static fl_status add_word(void *context, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    word_list *w = context;
    if (w->n + n_bytes + 1 > sizeof w->bytes) return fl_fail(err, FL_FULL, "too many words for this test");
    memcpy(w->bytes + w->n, bytes, n_bytes);
    w->n += n_bytes;
    w->bytes[w->n++] = '|';
    return FL_OK;
}

static pretokenizer *pretokenizer_of(const json_t *tokenizer)
{
    pretokenizer *p = NULL;
    fl_err err;
    if (pretokenizer_open(&p, json_object_get(tokenizer, "pre_tokenizer"), &err) != FL_OK) fail_msg("%s", err.text);
    return p;
}

static void cut(word_list *w, const pretokenizer *p, const uint8_t *text, size_t n)
{
    pretokenize_run *run = NULL;
    fl_err err;
    w->n = 0;
    if (pretokenize_begin(&run, p, &err) != FL_OK || pretokenize_text(run, text, n, true, add_word, w, &err) != FL_OK) fail_msg("%s", err.text);
    pretokenize_end(run);
}

static bool has_nfc(const json_t *tokenizer)
{
    const char *type = json_string_value(json_object_get(json_object_get(tokenizer, "normalizer"), "type"));
    return type && strcmp(type, "NFC") == 0;
}

static void each_name_cuts_as_its_models_do(void **state)
{
    static word_list ours, theirs;
    (void)state;
    for (size_t i = 0; i < N_NAMES; i++) {
        char path[512];
        json_error_t where;
        fl_err err;
        json_t *form = NULL, *like;
        snprintf(path, sizeof path, FOLDER "%s.json", names[i].like);
        like = json_load_file(path, 0, &where);
        assert_non_null(like);
        if (make_form(&form, names[i].name, &err) != FL_OK) fail_msg("%s", err.text);
        assert_int_equal(has_nfc(form), names[i].nfc);
        assert_int_equal(json_is_true(json_object_get(json_object_get(form, "model"), "ignore_merges")), names[i].ignore_merges);
        pretokenizer *cuts = pretokenizer_of(form), *cuts_like = pretokenizer_of(like);
        const uint8_t *at = texts;
        for (int k = 0; k < N_TEXTS; k++) {
            uint32_t n;
            memcpy(&n, at, sizeof n);
            cut(&ours, cuts, at + 4, n);
            cut(&theirs, cuts_like, at + 4, n);
            if (ours.n != theirs.n || memcmp(ours.bytes, theirs.bytes, ours.n) != 0)
                fail_msg("%s cuts text %d into\n%.*s\n%s.json into\n%.*s", names[i].name, k, (int)ours.n, (const char *)ours.bytes, names[i].like, (int)theirs.n, (const char *)theirs.bytes);
            at += 4 + n;
        }
        pretokenizer_close(cuts);
        pretokenizer_close(cuts_like);
        json_decref(form);
        json_decref(like);
    }
}

static void default_cuts_signs_apart_first_and_digits_in_threes(void **state)
{
    static const char text[] = "It's 12345 a+b, x!", wanted[] = "It|'|s| |123|45| a|+|b|,| x|!|";
    static word_list words;
    json_t *form = NULL;
    fl_err err;
    (void)state;
    if (make_form(&form, "default", &err) != FL_OK) fail_msg("%s", err.text);
    pretokenizer *p = pretokenizer_of(form);
    cut(&words, p, (const uint8_t *)text, sizeof text - 1);
    pretokenizer_close(p);
    if (words.n != sizeof wanted - 1 || memcmp(words.bytes, wanted, words.n) != 0) fail_msg("%.*s", (int)words.n, (const char *)words.bytes);
    json_decref(form);
}

static void unknown_name_is_refused_with_the_known_ones(void **state)
{
    json_t *form = NULL;
    fl_err err;
    (void)state;
    assert_int_equal(make_form(&form, "chameleon", &err), FL_UNSUPPORTED);
    assert_null(form);
    assert_non_null(strstr(err.text, "pre-tokenizer chameleon (tokenizer.ggml.pre) is not supported; known are default, gpt-2"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_name_cuts_as_its_models_do),
        cmocka_unit_test(default_cuts_signs_apart_first_and_digits_in_threes),
        cmocka_unit_test(unknown_name_is_refused_with_the_known_ones),
    };
    return cmocka_run_group_tests(tests, load_texts, drop_texts);
}
