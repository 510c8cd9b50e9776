/* json_scan against jansson on mutated documents: both accept the same texts and read the same values, but for what jansson cannot hold (integers beyond 64
 * bits, reals beyond the range, U+0000 in keys) and what it reads as an end (a raw NUL byte). The seed is printed; give it as the first argument to run it again. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include <jansson.h>
#include "proto/job_row.h"
#include "proto/json_scan.h"

static uint64_t seed;
static uint32_t draw(uint32_t below)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % below;
}

static const char *const documents[] = {
    "{\"a\":[1,-2,3.5e-3,0,-0.0,1E+2],\"b\":{\"c\":null,\"d\":true,\"e\":false},\"f\":\"x\\u00e9\\ud83d\\ude00\\n\\\"\\\\\\/\"}",
    "[[],{},[[]],[{}],\"\",\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"]",
    " { \"k\" : [ 1 , 2 ] ,\t\"\\u006b2\" : { \"k\" : \"\\u0000\" } }\r\n",
    "{\"aa\":1,\"ab\":2,\"ba\":3,\"bb\":4,\"a\":5,\"b\":6,\"\":7,\"c\":8,\"d\":9,\"e\":10,\"f\":11,\"g\":12,\"h\":13,\"i\":14,\"j\":15,\"k\":16,\"l\":17,\"m\":18}",
    "{\"a\":18446744073709551615,\"b\":-9223372036854775808,\"c\":1e308,\"d\":123456789012345678}",
    "\"\\ud800\\udc00\\udbff\\udfff\"", "-0", "true", "[1e5,1.0,0.1]",
    ("{\"messages\":[{\"role\":\"user\",\"content\":\"a text of more than sixteen bytes, {[with]} \\\"marks\\\" in it\\n\"},{\"role\":\"assistant\",\"content\":\"\xC3\xA9\xC3\xA9\xE2\x82\xAC and sixteen more bytes\"}],"
     "\"chat_template_kwargs\":{\"a long name of a key\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]],\"b\":{}},\"max_tokens\":16,                   \"temperature\" : 0.7 }"),
};
static const char *const pieces[] = {
    "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud83d", "\\ude00", "\\u0000", "0", "1", "-", ".", "e", "+", "null", "true", "\"a\":", "\"b\":1,", " ", "\n", "\xC3", "\xA9",
    "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x1F", "\x7F", "9999999999", "E-5", "[[[[", "]]]]", "{\"a\":{\"a\":", "\\n", "/*", "NaN",
    "fifteen bytes..", "sixteen bytes...", "seventeen bytes..", "                 ", "\"a string of thirty-two bytes....\"", "\"\\\\\\\\\\\\\\\\\\\\\\\\\"",
};

static size_t mutate(char *text, size_t n, size_t capacity)
{
    for (uint32_t i = 0, n_changes = draw(4); i < n_changes; i++) {
        size_t at = n ? draw((uint32_t)n + 1) : 0;
        uint32_t kind = draw(4);
        if (kind == 0 && n > 0) {                        /* cut some bytes */
            size_t cut = 1 + draw(4);
            if (at + cut > n) cut = n - at;
            memmove(text + at, text + at + cut, n - at - cut);
            n -= cut;
        } else if (kind == 1 && at < n) {                /* flip a bit */
            text[at] = (char)(text[at] ^ 1 << draw(8));
        } else {                                         /* put a piece in */
            const char *piece = pieces[draw(sizeof pieces / sizeof *pieces)];
            size_t bytes = strlen(piece);
            if (n + bytes > capacity) continue;
            memmove(text + at + bytes, text + at, n - at);
            memcpy(text + at, piece, bytes);
            n += bytes;
        }
    }
    return n;
}

static void same_value(const char *text, fl_json ours, json_t *theirs)
{
    fl_json key, value;
    size_t n, count = 0;
    char *string;
    switch (ours.type) {
    case FL_JSON_NULL: assert_true(json_is_null(theirs)); return;
    case FL_JSON_BOOL: assert_true(json_is_boolean(theirs) && json_is_true(theirs) == fl_json_true(text, ours)); return;
    case FL_JSON_STRING:
        assert_true(json_is_string(theirs));
        string = fl_json_string(text, ours, &n);
        assert_int_equal(n, json_string_length(theirs));
        assert_int_equal(n, fl_json_string_bytes(text, ours));
        assert_memory_equal(string, json_string_value(theirs), n + 1);
        free(string);
        return;
    case FL_JSON_NUMBER: {
        bool negative;
        uint64_t magnitude;
        assert_true(json_is_number(theirs));
        assert_int_equal(fl_json_integer(text, ours, &negative, &magnitude), json_is_integer(theirs));
        if (json_is_integer(theirs)) assert_true((negative ? 0 - magnitude : magnitude) == (uint64_t)json_integer_value(theirs));
        else assert_true(fl_json_double(text, ours) == json_real_value(theirs));
        return;
    }
    case FL_JSON_ARRAY:
        assert_true(json_is_array(theirs));
        for (fl_json_walk walk = fl_json_members(text, ours); fl_json_next(&walk, &key, &value); count++) {
            assert_int_equal(key.type, FL_JSON_ABSENT);
            same_value(text, value, json_array_get(theirs, count));
        }
        assert_int_equal(count, json_array_size(theirs));
        return;
    case FL_JSON_OBJECT:
        assert_true(json_is_object(theirs));
        for (fl_json_walk walk = fl_json_members(text, ours); fl_json_next(&walk, &key, &value); count++) {
            string = fl_json_string(text, key, &n);
            assert_true(fl_json_is(text, key, string));
            same_value(text, value, json_object_get(theirs, string));
            free(string);
        }
        assert_int_equal(count, json_object_size(theirs));
        return;
    default: fail();
    }
}

static void texts_are_accepted_and_read_as_jansson_does(void **state)
{
    (void)state;
    uint32_t n_accepted = 0;
    for (int i = 0; i < 200000; i++) {
        char text[1024], why[FL_JSON_WHY_BYTES];
        const char *document = documents[draw(sizeof documents / sizeof *documents)];
        size_t n = strlen(document), offset;
        memcpy(text, document, n);
        n = mutate(text, n, sizeof text);
        char *exact = malloc(n ? n : 1);                 /* so that a read past the end is seen */
        assert_non_null(exact);
        memcpy(exact, text, n);
        fl_json value;
        json_error_t error;
        fl_row_error code = fl_json_check(exact, n, &value, &offset, why);
        json_t *theirs = json_loadb(exact, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY, &error);
        enum json_error_code reason = theirs ? json_error_unknown : json_error_code(&error);
        bool excused = memchr(exact, 0, n) ? code != ROW_OK : !theirs && (reason == json_error_numeric_overflow || reason == json_error_null_byte_in_key);
        assert_true(offset <= n);
        if (!excused && (code == ROW_OK) != (theirs != NULL))
            fail_msg("%.*s\n  ours: %d %s\n  jansson: %s", (int)n, exact, code, why, theirs ? "accepted" : error.text);
        if (code != ROW_OK) assert_true(why[0] != '\0');
        if (code == ROW_OK && theirs) same_value(exact, value, theirs);
        n_accepted += code == ROW_OK;
        json_decref(theirs);
        free(exact);
    }
    assert_true(n_accepted > 40000);
}

/* A list that holds nothing but token ids, as jansson reads it. */
static bool is_ids(const json_t *list)
{
    if (!json_is_array(list) || json_array_size(list) == 0) return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (!json_is_integer(item) || json_integer_value(item) < 0 || json_integer_value(item) > INT32_MAX) return false;
    }
    return true;
}

static void prompts_of_ids_are_read_as_jansson_does(void **state)
{
    (void)state;
    static const char *const lists[] = { "{\"prompt\":[1,2,3]}", "{\"prompt\":[ 2147483647 , 0,\t17 ,5,1234567890 ]}", "{\"prompt\":[7],\"n\":1}", "{\"prompt\":[-0,10,200,3000,40000,500000]}" };
    uint32_t n_lists = 0;
    for (int i = 0; i < 100000; i++) {
        char text[1024];
        const char *list = lists[draw(sizeof lists / sizeof *lists)];
        size_t n = strlen(list);
        memcpy(text, list, n);
        n = mutate(text, n, sizeof text);
        char *exact = malloc(n ? n : 1);
        assert_non_null(exact);
        memcpy(exact, text, n);
        fl_row row;
        fl_row_fault fault;
        json_error_t error;
        fl_row_error code = fl_row_parse(&row, exact, n, 1, NULL, &fault);
        json_t *theirs = json_loadb(exact, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
        const json_t *prompt = json_object_get(theirs, "prompt");
        bool excused = !theirs && (json_error_code(&error) == json_error_numeric_overflow || json_error_code(&error) == json_error_null_byte_in_key);
        if (code == ROW_OK && row.prompt_kind == ROW_PROMPT_IDS && !excused) {
            if (!is_ids(prompt)) fail_msg("%.*s\n  ours: %zu ids\n  jansson: %s", (int)n, exact, row.n_ids, theirs ? "something else" : error.text);
            assert_int_equal(row.n_ids, json_array_size(prompt));
            for (size_t k = 0; k < row.n_ids; k++) assert_int_equal(row.ids[k], json_integer_value(json_array_get(prompt, k)));
            n_lists++;
        } else if (theirs && json_object_size(theirs) == 1 && is_ids(prompt) && !memchr(exact, 0, n)) {
            fail_msg("%.*s\n  ours: %d %s\n  jansson: a list of ids", (int)n, exact, code, fault.text);
        }
        fl_row_free(&row);
        json_decref(theirs);
        free(exact);
    }
    assert_true(n_lists > 20000);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)seed);
    const struct CMUnitTest tests[] = { cmocka_unit_test(texts_are_accepted_and_read_as_jansson_does), cmocka_unit_test(prompts_of_ids_are_read_as_jansson_does) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
