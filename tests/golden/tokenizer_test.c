/* Ids and decoded text equal the reference library's (tokenizer_vectors.json, made by make_tokenizer_vectors.py). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "engine/tokenizer.h"

static json_t *vectors, *demo;

static int load_files(void **state)
{
    (void)state;
    vectors = json_load_file(TESTS_DIR "/golden/tokenizer_vectors.json", JSON_ALLOW_NUL, NULL);
    demo = json_load_file(OPS_DIR "/demo_model/tokenizer.json", 0, NULL);
    return vectors && demo ? 0 : -1;
}

static int free_files(void **state)
{
    (void)state;
    json_decref(vectors);
    json_decref(demo);
    return 0;
}

/* The demo tokenizer with the parts that `patch` names replaced; of `model` only the keys it names. */
static tokenizer *open_patched(json_t *patch)
{
    char path[] = "/tmp/tokenizer_test.XXXXXX";
    json_t *changed = json_deep_copy(demo), *value;
    const char *key;
    json_object_foreach(patch, key, value) {
        if (strcmp(key, "model") == 0) json_object_update(json_object_get(changed, "model"), value);
        else json_object_set(changed, key, value);
    }
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(json_dumpfd(changed, fd, JSON_COMPACT), 0);
    close(fd);
    json_decref(changed);
    tokenizer *t = NULL;
    fl_err err = { 0 };
    fl_status st = tokenizer_open(&t, path, &err);
    unlink(path);
    if (st != FL_OK) fail_msg("%s", err.text);
    return t;
}

static void check_text(const tokenizer *t, const char *variant, size_t index, const json_t *text, const json_t *want, bool add_special)
{
    int32_t *ids = NULL;
    size_t n = 0;
    fl_err err = { 0 };
    if (tokenizer_encode(t, json_string_value(text), json_string_length(text), add_special, &ids, &n, &err) != FL_OK) fail_msg("%s, text %zu: %s", variant, index, err.text);
    for (size_t i = 0; i < n || i < json_array_size(want); i++) {
        if (i >= n || i >= json_array_size(want) || json_integer_value(json_array_get(want, i)) != ids[i])
            fail_msg("%s, text %zu (%s): id %zu is %d instead of %lld", variant, index, json_string_value(text), i, i < n ? ids[i] : -1,
                     i < json_array_size(want) ? (long long)json_integer_value(json_array_get(want, i)) : -1LL);
    }
    free(ids);
}

static void ids_equal_the_reference(void **state)
{
    (void)state;
    size_t v, i, n_texts = 0;
    json_t *variant, *text;
    json_array_foreach(json_object_get(vectors, "variants"), v, variant) {
        tokenizer *t = open_patched(json_object_get(variant, "patch"));
        json_array_foreach(json_object_get(variant, "texts"), i, text) {
            check_text(t, json_string_value(json_object_get(variant, "name")), i, text, json_array_get(json_object_get(variant, "ids"), i), json_is_true(json_object_get(variant, "add_special")));
            n_texts++;
        }
        tokenizer_close(t);
    }
    assert_true(n_texts >= 4000);
}

static void decoded_text_equals_the_reference(void **state)
{
    (void)state;
    tokenizer *t = open_patched(json_object_get(vectors, "decode_patch"));
    fl_detok *table = NULL;
    assert_int_equal(tokenizer_detok(t, 1100, &table, NULL), FL_OK);
    size_t c;
    json_t *one;
    json_array_foreach(json_object_get(vectors, "decode"), c, one) {
        const json_t *list = json_object_get(one, "ids"), *want = json_object_get(one, "text");
        int32_t ids[32];
        size_t n = json_array_size(list), n_bytes = 0, n_text = 0;
        uint8_t *bytes = NULL;
        char *text = NULL;
        for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
        assert_int_equal(fl_detok_text(table, ids, n, -1, &bytes, &n_bytes, NULL, NULL), FL_OK);
        assert_int_equal(fl_utf8_repair(bytes, n_bytes, &text, &n_text, NULL, NULL), FL_OK);
        if (n_text != json_string_length(want) || memcmp(text, json_string_value(want), n_text) != 0) fail_msg("case %zu: \"%s\" instead of \"%s\"", c, text, json_string_value(want));
        free(bytes);
        free(text);
    }
    assert_true(c >= 400);
    fl_detok_free(table);
    tokenizer_close(t);
}

/* What is encoded comes back: no byte of a text is lost, in any variant that keeps all bytes. */
static void demo_texts_survive_the_round_trip(void **state)
{
    (void)state;
    tokenizer *t = open_patched(NULL);
    fl_detok *table = NULL;
    assert_int_equal(tokenizer_detok(t, tokenizer_vocab(t), &table, NULL), FL_OK);
    size_t i;
    json_t *text;
    json_array_foreach(json_object_get(json_array_get(json_object_get(vectors, "variants"), 0), "texts"), i, text) {
        int32_t *ids = NULL;
        size_t n = 0, at = 0, n_bytes;
        assert_int_equal(tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids, &n, NULL), FL_OK);
        for (size_t k = 0; k < n; k++) {
            const uint8_t *bytes = fl_detok_token(table, ids[k], false, &n_bytes);
            assert_true(at + n_bytes <= json_string_length(text));
            assert_memory_equal(bytes, json_string_value(text) + at, n_bytes);
            at += n_bytes;
        }
        assert_int_equal(at, json_string_length(text));
        free(ids);
    }
    fl_detok_free(table);
    tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_equal_the_reference),
        cmocka_unit_test(decoded_text_equals_the_reference),
        cmocka_unit_test(demo_texts_survive_the_round_trip),
    };
    return cmocka_run_group_tests(tests, load_files, free_files);
}
