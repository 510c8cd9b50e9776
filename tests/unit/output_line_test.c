/* The bytes of OUT and ERR: golden lines for every form, floats that read back equal, valid JSON whatever the bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "coordinator/output_line.h"
#include "proto/json_scan.h"

static const char *const tokens[] = { "<|end|>", "Hel", "lo", " w", "\xC3\xB6", "rld", "\n\n", "\xE2\x82", "\xAC", "\"", "\xE2\x80\xA8", "lo", "token_id:11", "", "\xF0\x9F\x98\x80", "\xFF" };
enum { END = 0, HEL, LO, W, OE, RLD, FEEDS, EURO_1, EURO_2, QUOTE, SEPARATOR, LO_AGAIN, NAMED_ID, NOTHING, SMILE, BROKEN, N_TOKENS };

static const output_job job = {
    .content_hash = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 }, .created = 0, .model = "demo", .seed = 18446744073709551615u,
    .fingerprint = "00ff", .numerics = "cpu/1/bf16/f32",
};

static fl_detok *make_table(void)
{
    uint8_t bytes[256];
    uint32_t offsets[N_TOKENS + 1] = { 0 };
    bool special[N_TOKENS] = { true };
    fl_detok *table;
    for (int i = 0; i < N_TOKENS; i++) {
        memcpy(bytes + offsets[i], tokens[i], strlen(tokens[i]));
        offsets[i + 1] = offsets[i] + (uint32_t)strlen(tokens[i]);
    }
    assert_int_equal(fl_detok_make(&table, N_TOKENS, bytes, offsets, special, NULL), FL_OK);
    return table;
}

static void write_row(json_out *out, const char *line, const fl_result *results, const fl_detok *table)
{
    fl_row row;
    fl_row_fault fault;
    fl_err err;
    if (fl_row_parse(&row, line, strlen(line), 7, NULL, &fault) != ROW_OK) fail_msg("%s", fault.text);
    if (output_line_write(out, &job, &row, results, NULL, table, &err) != FL_OK) fail_msg("%s: %s", line, err.text);
    fl_row_free(&row);
}

/* A result says what differs from a plain one. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Winitializer-overrides"
#else
#pragma GCC diagnostic ignored "-Woverride-init"
#endif
#define RESULT(...) (fl_result){ .n_top = -1, .n_prompt_top = -1, .text_bytes = -1, .stop_index = -1, __VA_ARGS__ }
#define IDS(...) .ids = (int32_t[]){ __VA_ARGS__ }, .n_ids = sizeof((int32_t[]){ __VA_ARGS__ }) / sizeof(int32_t)
#define ENDED .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_EOS, .stop_index = END

static void write_all_forms(json_out *out, const fl_detok *table)
{
    /* one sample that ends, text in all its parts */
    write_row(out, "{\"prompt\":\"Hi\"}", &RESULT(.n_prompt = 3, IDS(HEL, LO, W, OE, RLD, QUOTE, SEPARATOR, END), ENDED), table);

    /* two samples, an own model and seed; the second stops at a string whose tokens the text does not show */
    fl_result two[] = { RESULT(.n_prompt = 3, IDS(HEL, EURO_1, EURO_2)),
                        RESULT(.n_prompt = 3, IDS(HEL, LO, FEEDS), .text_bytes = 5, .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_STRING, .stop_index = 1) };
    write_row(out, "{\"custom_id\":\"two \\u2028\\u0000\",\"prompt\":\"Hi\",\"n\":2,\"model\":\"my/model\",\"seed\":5,\"stop\":[\"x\",\"\\n\\n\"]}", two, table);

    /* text that is no UTF-8: repaired, and its bytes beside it */
    write_row(out, "{\"custom_id\":\"bytes\",\"prompt\":\"Hi\",\"stop_token_ids\":[2]}",
              &RESULT(.n_prompt = 1, IDS(EURO_1, HEL, BROKEN, LO), .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_ID, .stop_index = LO), table);

    /* completion logprobs: equal texts of two ids, a token without bytes, a chosen token outside the best, an end token */
    write_row(out, "{\"custom_id\":\"lp\",\"prompt\":\"Hi\",\"logprobs\":2}",
              &RESULT(.n_prompt = 2, IDS(LO_AGAIN, EURO_1, EURO_2, SMILE, NOTHING, END), ENDED, .n_top = 2,
                      .logprobs = (float[]){ -0.1f, -1e-7f, -9999.0f, -12.345678f, -3.0f, 0.0f },
                      .top_ids = (int32_t[]){ LO, LO_AGAIN, EURO_1, BROKEN, HEL, W, SMILE, OE, NOTHING, LO, END, -1 },
                      .top_logprobs = (float[]){ -0.05f, -0.1f, -1e-7f, -2.0f, -1.5f, -1.75f, -12.345678f, -13.0f, -3.0f, -4.0f, 0.0f, -9999.0f }), table);

    /* echo with logprobs, prompt logprobs and ids */
    fl_result echoed[] = { RESULT(.n_prompt = 3, IDS(W, OE), .n_top = 1, .logprobs = (float[]){ -1.0f, -2.0f }, .top_ids = (int32_t[]){ W, LO }, .top_logprobs = (float[]){ -1.0f, -0.5f },
                                  .prompt_ids = (int32_t[]){ END, HEL, LO }, .n_prompt_top = 1, .prompt_logprobs = (float[]){ -3.5f, -0.25f },
                                  .prompt_top_ids = (int32_t[]){ W, LO }, .prompt_top_logprobs = (float[]){ -0.5f, -0.25f }),
                           RESULT(.n_prompt = 3, IDS(RLD), .n_top = 1, .logprobs = (float[]){ -4.0f }, .top_ids = (int32_t[]){ W }, .top_logprobs = (float[]){ -1.0f }) };
    write_row(out, "{\"custom_id\":\"echo\",\"prompt\":\"Hello\",\"n\":2,\"echo\":true,\"logprobs\":1,\"prompt_logprobs\":0,\"return_token_ids\":true}", echoed, table);

    /* the prompt alone, from ids whose last character ends in the completion of another row */
    write_row(out, "{\"custom_id\":\"prompt\",\"prompt\":[1,7],\"max_tokens\":0,\"echo\":true,\"prompt_logprobs\":1}",
              &RESULT(.n_prompt = 2, .prompt_ids = (int32_t[]){ HEL, EURO_1 }, .n_prompt_top = 1, .prompt_logprobs = (float[]){ -1.0f }, .prompt_top_ids = (int32_t[]){ QUOTE },
                      .prompt_top_logprobs = (float[]){ -0.5f }), table);
    write_row(out, "{\"custom_id\":\"joined\",\"prompt\":[1,7],\"echo\":true,\"return_token_ids\":true}",
              &RESULT(.n_prompt = 2, IDS(EURO_2), .prompt_ids = (int32_t[]){ HEL, EURO_1 }), table);

    /* chats */
    write_row(out, "{\"custom_id\":\"chat\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}}",
              &RESULT(.n_prompt = 9, IDS(HEL, LO, END), ENDED), table);
    write_row(out, "{\"custom_id\":\"chat lp\",\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"logprobs\":true,\"top_logprobs\":1,\"prompt_logprobs\":0,\"return_token_ids\":true}",
              &RESULT(.n_prompt = 2, IDS(EURO_1, NOTHING), .n_top = 1, .logprobs = (float[]){ -0.5f, -0.75f }, .top_ids = (int32_t[]){ HEL, NOTHING },
                      .top_logprobs = (float[]){ -0.25f, -0.75f }, .prompt_ids = (int32_t[]){ END, HEL }, .n_prompt_top = 0, .prompt_logprobs = (float[]){ -1.0f }), table);

    /* errors */
    fl_err err;
    output_error error = { "row-7", 5, ROW_INVALID_UTF8, "byte 0xFF is not part of valid UTF-8", 36, 7, 12345678901u };
    assert_int_equal(output_error_write(out, &job, &error, &err), FL_OK);
    error = (output_error){ "a\0\xFF\xE2\x80\xA9\x7F", 7, ROW_NAN_LOGITS, "any \xC3 \x01 bytes", 13, 1, 0 };
    assert_int_equal(output_error_write(out, &job, &error, &err), FL_OK);
}

static void all_forms_equal_the_golden_lines(void **state)
{
    (void)state;
    fl_detok *table = make_table();
    json_out out = { 0 };
    write_all_forms(&out, table);
    char *golden = calloc(1, 1 << 20);
    assert_non_null(golden);
    FILE *f = fopen(TESTS_DIR "/golden/output_lines.jsonl", "rb");
    size_t n = f ? fread(golden, 1, (1 << 20) - 1, f) : 0;
    if (f) fclose(f);
    if (n != out.n_bytes || memcmp(golden, out.data, n) != 0) {
        f = fopen("output_lines.actual.jsonl", "wb");
        if (f) { fwrite(out.data, 1, out.n_bytes, f); fclose(f); }
        fail_msg("the lines differ from tests/golden/output_lines.jsonl; the actual ones are in output_lines.actual.jsonl");
    }
    free(golden);
    json_out_fini(&out);
    fl_detok_free(table);
}

static void every_line_is_json_of_one_line(void **state)
{
    (void)state;
    fl_detok *table = make_table();
    json_out out = { 0 };
    write_all_forms(&out, table);
    int n_lines = 0;
    for (char *line = out.data, *end; line < out.data + out.n_bytes; line = end + 1, n_lines++) {
        fl_json value;
        size_t offset;
        char why[FL_JSON_WHY_BYTES];
        end = memchr(line, '\n', (size_t)(out.data + out.n_bytes - line));
        assert_non_null(end);
        if (fl_json_check(line, (size_t)(end - line), &value, &offset, why) != ROW_OK) fail_msg("line %d, byte %zu: %s", n_lines, offset, why);
        assert_null(memmem(line, (size_t)(end - line), "\xE2\x80\xA8", 3));
    }
    assert_int_equal(n_lines, 11);
    json_out_fini(&out);
    fl_detok_free(table);
}

static void a_line_does_not_depend_on_what_was_written_before(void **state)
{
    (void)state;
    fl_detok *table = make_table();
    json_out once = { 0 }, twice = { 0 };
    write_all_forms(&once, table);
    write_all_forms(&twice, table);
    write_all_forms(&twice, table);
    assert_int_equal(twice.n_bytes, 2 * once.n_bytes);
    assert_memory_equal(twice.data + once.n_bytes, once.data, once.n_bytes);
    json_out_fini(&once);
    json_out_fini(&twice);
    fl_detok_free(table);
}

static void results_that_lack_what_the_row_asks_are_corrupt(void **state)
{
    (void)state;
    static const char *lines[] = {
        "{\"prompt\":\"Hi\",\"logprobs\":0}", "{\"prompt\":\"Hi\",\"prompt_logprobs\":0}", "{\"prompt\":\"Hi\",\"return_token_ids\":true}",
        "{\"prompt\":\"Hi\",\"echo\":true,\"logprobs\":0}", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"logprobs\":true}",
    };
    fl_detok *table = make_table();
    json_out out = { 0 };
    json_out_string(&out, "kept");
    size_t before = out.n_bytes;
    fl_result bare[] = { RESULT(.n_prompt = 3, IDS(HEL)), RESULT(.n_prompt = 3, IDS(HEL), .text_bytes = 4),
                         RESULT(.n_prompt = 3, IDS(HEL), .finish = FL_FINISH_STOP, .stop_kind = FL_STOP_STRING, .stop_index = 0) };
    fl_err err;
    for (size_t i = 0; i < sizeof lines / sizeof *lines + 2; i++) {
        size_t line = i < sizeof lines / sizeof *lines ? i : 0;
        const char *text = i < sizeof lines / sizeof *lines ? lines[line] : "{\"prompt\":\"Hi\"}";
        const fl_result *result = i < sizeof lines / sizeof *lines ? &bare[0] : &bare[1 + i - sizeof lines / sizeof *lines];
        fl_row row;
        fl_row_fault fault;
        assert_int_equal(fl_row_parse(&row, text, strlen(text), 1, NULL, &fault), ROW_OK);
        assert_int_equal(output_line_write(&out, &job, &row, result, NULL, table, &err), FL_CORRUPT);
        assert_true(strlen(err.text) > 20);
        assert_int_equal(out.n_bytes, before);
        fl_row_free(&row);
    }
    json_out_fini(&out);
    fl_detok_free(table);
}

static void models_without_tokenizer_give_empty_text(void **state)
{
    (void)state;
    fl_detok *table;
    json_out out = { 0 };
    assert_int_equal(fl_detok_make(&table, 0, NULL, NULL, NULL, NULL), FL_OK);
    write_row(&out, "{\"prompt\":[1,2],\"return_token_ids\":true,\"logprobs\":0,\"echo\":true}",
              &RESULT(.n_prompt = 2, IDS(5, 6), .n_top = 0, .logprobs = (float[]){ -1.0f, -2.0f }, .prompt_ids = (int32_t[]){ 1, 2 }, .n_prompt_top = 0,
                      .prompt_logprobs = (float[]){ -3.0f }), table);
    out.data[out.n_bytes - 1] = '\0';
    assert_non_null(strstr(out.data, "\"text\":\"\""));
    assert_non_null(strstr(out.data, "\"tokens\":[\"token_id:1\",\"token_id:2\",\"token_id:5\",\"token_id:6\"]"));
    assert_non_null(strstr(out.data, "\"text_offset\":[0,0,0,0]"));
    assert_non_null(strstr(out.data, "\"top_logprobs\":[null,{\"token_id:2\":-3},{\"token_id:5\":-1},{\"token_id:6\":-2}]"));
    json_out_fini(&out);
    fl_detok_free(table);
}

static void floats_read_back_equal_for_random_bit_patterns(void **state)
{
    (void)state;
    json_out out = { 0 };
    uint32_t bits = 1;
    char text[32];
    for (int i = 0; i < 200000; i++) {
        bits = bits * 1664525u + 1013904223u;
        uint32_t mixed = bits ^ bits >> 15;
        float value, back;
        memcpy(&value, &mixed, 4);
        json_out_reset(&out, 0);
        json_out_float(&out, value);
        assert_true(out.n_bytes < 20);
        memcpy(text, out.data, out.n_bytes);
        text[out.n_bytes] = '\0';
        if (!isfinite(value)) { assert_string_equal(text, "null"); continue; }
        back = strtof(text, NULL);
        if (memcmp(&back, &value, 4) != 0) fail_msg("%08x is written as %s", mixed, text);
        fl_json json;
        size_t offset;
        char why[FL_JSON_WHY_BYTES];
        assert_int_equal(fl_json_check(text, strlen(text), &json, &offset, why), ROW_OK);
        if (i % 16 == 0) {            /* no shorter one reads back equal */
            char shorter[400];
            int digits = 0;                              /* leading zeros do not count */
            for (char *c = text; *c && *c != 'e'; c++) digits += *c >= '0' + (digits == 0) && *c <= '9';
            snprintf(shorter, sizeof shorter, "%.*g", digits - 1, (double)value);
            if (digits > 1) assert_true(strtof(shorter, NULL) != value);
        }
    }
    static const struct { float value; const char *text; } known[] = {
        { 0.0f, "0" }, { -0.0f, "-0" }, { 0.1f, "0.1" }, { -9999.0f, "-9999" }, { 1e-45f, "1e-45" }, { 3.4028235e38f, "3.4028235e+38" }, { 16777216.0f, "16777216" }, { 1.0f / 3, "0.33333334" },
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        json_out_reset(&out, 0);
        json_out_float(&out, known[i].value);
        assert_int_equal(out.n_bytes, strlen(known[i].text));
        assert_memory_equal(out.data, known[i].text, out.n_bytes);
    }
    json_out_fini(&out);
}

/* The definition: %g with the fewest digits that read back equal, from 6 on. */
static void by_definition(char text[32], float value)
{
    for (int digits = fabsf(value) < FLT_MIN ? 1 : 6; digits <= 9; digits++) {
        snprintf(text, 32, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
}

static void assert_float(json_out *out, float value)
{
    char text[32];
    by_definition(text, value);
    json_out_reset(out, 0);
    json_out_float(out, value);
    if (out->n_bytes != strlen(text) || memcmp(out->data, text, out->n_bytes) != 0) fail_msg("%a is written as %.*s and not as %s", (double)value, (int)out->n_bytes, out->data, text);
}

static void floats_equal_the_definition(void **state)
{
    (void)state;
    json_out out = { 0 };
    uint32_t x = 3;
    for (int i = 0; i < 300000; i++) {                   /* as log-probabilities are: 2^-14 to 2^17 of both signs, many with few digits */
        x = x * 1664525u + 1013904223u;
        uint32_t mixed = x ^ x >> 13, bits = (mixed & 0x807FFFFF) | (113 + (mixed >> 23 & 31)) << 23;
        float value;
        memcpy(&value, &bits, sizeof value);
        assert_float(&out, i % 3 == 0 ? value : i % 3 == 1 ? (float)(int32_t)(mixed % 2000000) / 64.0f : -(float)(mixed % 100000) / 1000.0f);
    }
    for (float value = 1e-5f; value < 2e6f; value *= 10) {
        float below = value, above = value;
        for (int i = 0; i < 50; i++, below = nextafterf(below, 0), above = nextafterf(above, INFINITY)) {
            assert_float(&out, below);
            assert_float(&out, above);
        }
    }
    json_out_fini(&out);
}

static void any_bytes_become_a_valid_string(void **state)
{
    (void)state;
    json_out out = { 0 };
    uint32_t x = 7;
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[24];
        for (size_t k = 0; k < sizeof bytes; k++) { x = x * 1664525u + 1013904223u; bytes[k] = (uint8_t)(x >> 24 & 1 ? x >> 16 | 0x80 : x >> 17); }
        json_out_reset(&out, 0);
        json_out_bytes(&out, bytes, sizeof bytes);
        fl_json json;
        size_t offset, n;
        char why[FL_JSON_WHY_BYTES];
        assert_int_equal(fl_json_check(out.data, out.n_bytes, &json, &offset, why), ROW_OK);
        char *repaired, *back = fl_json_string(out.data, json, &n);
        size_t n_repaired;
        assert_int_equal(fl_utf8_repair(bytes, sizeof bytes, &repaired, &n_repaired, NULL, NULL), FL_OK);
        assert_int_equal(n, n_repaired);
        assert_memory_equal(back, repaired, n);
        free(back);
        free(repaired);
    }
    json_out_fini(&out);
}

/* What json_write.h says, a character at a time. */
static size_t string_by_definition(char *out, const uint8_t *p, size_t n)
{
    char *to = out;
    *to++ = '"';
    for (size_t at = 0; at < n; ) {
        bool good;
        size_t step = fl_utf8_step(p + at, n - at, &good);
        uint32_t c = p[at];
        const char *named = c == '"' ? "\\\"" : c == '\\' ? "\\\\" : c == '\n' ? "\\n" : c == '\r' ? "\\r" : c == '\t' ? "\\t" : NULL;
        if (named) to = stpcpy(to, named);
        else if (c < 0x20 || c == 0x7F) to += sprintf(to, "\\u%04x", c);
        else if (!good) to = stpcpy(to, "\xEF\xBF\xBD");
        else if (step == 3 && memcmp(p + at, "\xE2\x80\xA8", 3) == 0) to = stpcpy(to, "\\u2028");
        else if (step == 3 && memcmp(p + at, "\xE2\x80\xA9", 3) == 0) to = stpcpy(to, "\\u2029");
        else { memcpy(to, p + at, step); to += step; }
        at += step;
    }
    *to++ = '"';
    return (size_t)(to - out);
}

static uint32_t random_bits(uint32_t *x)
{
    *x = *x * 1664525u + 1013904223u;
    return *x >> 8;
}

static void strings_equal_the_definition_whatever_is_where(void **state)
{
    (void)state;
    static const char *const pieces[] = { "a", "plain words ", "\"", "\\", "\n", "\t", "\x01", "\x7F", "~", "\xC3\xA9", "\xE2\x80\xA8", "\xE2\x80\xA9", "\xE2\x80", "\xF0\x9F\x98\x80", "\xFF", "\xC0" };
    uint32_t seed = 20;
    for (int round = 0; round < 20000; round++) {
        uint8_t bytes[160];
        char expected[1200];
        size_t n = 0, n_pieces = random_bits(&seed) % 30;
        for (size_t i = 0; i < n_pieces; i++) {
            const char *piece = pieces[random_bits(&seed) % 3 ? random_bits(&seed) % 2 : random_bits(&seed) % 16];
            if (n + strlen(piece) > sizeof bytes) break;
            memcpy(bytes + n, piece, strlen(piece));
            n += strlen(piece);
        }
        json_out out = { 0 };
        json_out_bytes(&out, bytes, n);
        size_t n_expected = string_by_definition(expected, bytes, n);
        assert_int_equal(out.n_bytes, n_expected);
        assert_memory_equal(out.data, expected, n_expected);
        json_out_fini(&out);
    }
}

static void base64_is_padded(void **state)
{
    (void)state;
    static const struct { const char *in, *out; } cases[] = { { "", "\"\"" }, { "f", "\"Zg==\"" }, { "fo", "\"Zm8=\"" }, { "foo", "\"Zm9v\"" }, { "foob", "\"Zm9vYg==\"" }, { "\xFF\xFE\xFD", "\"//79\"" } };
    json_out out = { 0 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_out_reset(&out, 0);
        json_out_base64(&out, cases[i].in, strlen(cases[i].in));
        assert_int_equal(out.n_bytes, strlen(cases[i].out));
        assert_memory_equal(out.data, cases[i].out, out.n_bytes);
    }
    json_out_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_forms_equal_the_golden_lines),
        cmocka_unit_test(every_line_is_json_of_one_line),
        cmocka_unit_test(a_line_does_not_depend_on_what_was_written_before),
        cmocka_unit_test(results_that_lack_what_the_row_asks_are_corrupt),
        cmocka_unit_test(models_without_tokenizer_give_empty_text),
        cmocka_unit_test(floats_read_back_equal_for_random_bit_patterns),
        cmocka_unit_test(floats_equal_the_definition),
        cmocka_unit_test(any_bytes_become_a_valid_string),
        cmocka_unit_test(strings_equal_the_definition_whatever_is_where),
        cmocka_unit_test(base64_is_padded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
