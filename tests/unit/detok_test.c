#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lz4.h>
#include <stdio.h>

#include "proto/bytes.h"
#include "proto/detok.h"

/* Six ids: "a", the two halves of U+00E9, a special, an empty one, and one of 300 bytes. */
enum { N_VOCAB = 6 };

static fl_detok *a_table(void)
{
    static uint8_t bytes[2 + 1 + 2 + 5 + 300];
    memcpy(bytes, "..a\xC3\xA9<eos>", 10);
    memset(bytes + 10, 'z', 300);
    const uint32_t offsets[N_VOCAB + 1] = { 2, 3, 4, 5, 10, 10, 310 };
    const bool special[N_VOCAB] = { false, false, false, true, false, false };
    fl_detok *table = NULL;
    fl_err err;
    assert_int_equal(fl_detok_make(&table, N_VOCAB, bytes, offsets, special, &err), FL_OK);
    return table;
}

static void assert_tables_equal(const fl_detok *a, const fl_detok *b)
{
    assert_int_equal(fl_detok_vocab(a), fl_detok_vocab(b));
    for (int32_t id = -1; id <= fl_detok_vocab(a); id++)
        for (int skip = 0; skip < 2; skip++) {
            size_t n_a, n_b;
            const uint8_t *p_a = fl_detok_token(a, id, skip, &n_a), *p_b = fl_detok_token(b, id, skip, &n_b);
            assert_int_equal(n_a, n_b);
            assert_memory_equal(p_a, p_b, n_a);
        }
}

static void ids_become_the_bytes_of_their_tokens_without_specials(void **state)
{
    (void)state;
    fl_detok *table = a_table();
    const int32_t ids[] = { 0, 1, 2, 3, 4, -1, N_VOCAB, INT32_MAX, INT32_MIN, 0 };
    uint8_t *bytes;
    size_t n;
    assert_int_equal(fl_detok_text(table, ids, 10, -1, &bytes, &n, NULL, NULL), FL_OK);
    assert_int_equal(n, 4);
    assert_memory_equal(bytes, "a\xC3\xA9""a", 4);
    free(bytes);
    assert_int_equal(fl_detok_text(table, NULL, 0, -1, &bytes, &n, NULL, NULL), FL_OK);
    assert_int_equal(n, 0);
    free(bytes);
    assert_memory_equal(fl_detok_token(table, 3, false, &n), "<eos>", 5);
    assert_int_equal(n, 5);
    fl_detok_token(table, 3, true, &n);
    assert_int_equal(n, 0);
    fl_detok_token(table, N_VOCAB, false, &n);
    assert_int_equal(n, 0);
    fl_detok_free(table);
    fl_detok_free(NULL);
}

static void a_text_is_cut_where_it_is_shown_and_each_id_has_its_end(void **state)
{
    (void)state;
    fl_detok *table = a_table();
    const int32_t ids[] = { 0, 5, 3, 1, 2, -1, 6, 4, 0 };
    const size_t all[] = { 1, 301, 301, 302, 303, 303, 303, 303, 304 };
    for (int64_t limit = -1; limit <= 304; limit++) {
        uint8_t *text = NULL;
        size_t n = 0, ends[9], shown = limit < 0 ? 304 : (size_t)limit;
        fl_err err;
        assert_int_equal(fl_detok_text(table, ids, 9, limit, &text, &n, ends, &err), FL_OK);
        assert_int_equal(n, shown);
        for (size_t i = 0; i < 9; i++) assert_int_equal(ends[i], all[i] < shown ? all[i] : shown);
        for (size_t i = 1; i < n && i < 301; i++) assert_int_equal(text[i], 'z');
        if (n == 304) assert_memory_equal(text + 301, "\xC3\xA9" "a", 3);
        free(text);
    }
    uint8_t *text = NULL;
    size_t n;
    assert_int_equal(fl_detok_text(table, ids, 9, 305, &text, &n, NULL, NULL), FL_CORRUPT);
    fl_detok_free(table);
}

static void a_table_comes_back_from_its_wire_form(void **state)
{
    (void)state;
    fl_detok *table = a_table(), *got = NULL;
    uint8_t *data, *again;
    size_t n, n_again;
    assert_int_equal(fl_detok_encode(table, &data, &n, NULL), FL_OK);
    assert_memory_equal(data, "TDT1\x01\x00\x00\x00\x06\x00\x00\x00", 12);
    assert_int_equal(fl_detok_decode(&got, data, n, NULL), FL_OK);
    assert_tables_equal(table, got);
    assert_int_equal(fl_detok_encode(got, &again, &n_again, NULL), FL_OK);
    assert_int_equal(n, n_again);
    assert_memory_equal(data, again, n);
    free(data);
    free(again);
    fl_detok_free(table);
    fl_detok_free(got);
}

/* Six ids: " a", the byte tokens 0xC3, 0xA9 and 0x20, a special, " b c". */
enum { FORM_VOCAB = 6 };

static fl_detok *a_form(void)
{
    static const uint8_t bytes[] = " a\xC3\xA9 <s> b c";
    const uint32_t offsets[FORM_VOCAB + 1] = { 0, 2, 3, 4, 5, 8, 12 };
    const uint8_t bits[FORM_VOCAB] = { 0, FL_TOKEN_BYTE, FL_TOKEN_BYTE, FL_TOKEN_BYTE, FL_TOKEN_SPECIAL, FL_TOKEN_TIGHT };
    fl_detok *made = NULL, *table = NULL;
    uint8_t *wire;
    size_t n;
    assert_int_equal(fl_detok_make_form(&made, FORM_VOCAB, bytes, offsets, bits, (fl_detok_form){ 1, ' ' }, NULL), FL_OK);
    assert_int_equal(fl_detok_encode(made, &wire, &n, NULL), FL_OK);
    assert_int_equal(fl_get_u16(wire + 4), 2);
    assert_int_equal(fl_detok_decode(&table, wire, n, NULL), FL_OK);
    assert_tables_equal(made, table);
    fl_detok_free(made);
    free(wire);
    return table;
}

static void text_is(const fl_detok *table, const int32_t *ids, size_t n_ids, int64_t limit, const char *want)
{
    uint8_t *text = NULL;
    size_t n = 0;
    assert_int_equal(fl_detok_text(table, ids, n_ids, limit, &text, &n, NULL, NULL), FL_OK);
    assert_int_equal(n, strlen(want));
    assert_memory_equal(text, want, n);
    free(text);
}

static void runs_of_byte_tokens_are_text_as_a_whole_or_not_at_all(void **state)
{
    (void)state;
    fl_detok *table = a_form();
    text_is(table, (int32_t[]){ 0, 1, 2, 0 }, 4, -1, "a\xC3\xA9 a");
    text_is(table, (int32_t[]){ 0, 1, 4, 2 }, 4, -1, "a\xC3\xA9");                      /* a skipped id does not end a run */
    text_is(table, (int32_t[]){ 0, 1, 0, 2 }, 4, -1, "a\xEF\xBF\xBD a\xEF\xBF\xBD");
    text_is(table, (int32_t[]){ 0, 1, 2, 1 }, 4, -1, "a\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
    text_is(table, (int32_t[]){ 0, 1, 2, 1 }, 4, 3, "a\xC3\xA9");                        /* what is not shown breaks nothing */
    text_is(table, (int32_t[]){ 0, 1, 2, 1 }, 4, 2, "a\xEF\xBF\xBD");
    fl_detok_free(table);
}

static void a_texts_beginning_loses_its_spaces(void **state)
{
    (void)state;
    fl_detok *table = a_form();
    fl_detok_place place = { 0 };
    size_t n;
    text_is(table, (int32_t[]){ 0, 0 }, 2, -1, "a a");
    text_is(table, (int32_t[]){ 4, 5, 5 }, 3, -1, "bc b c");                              /* the first id that is shown is tight */
    text_is(table, (int32_t[]){ 3, 0 }, 2, -1, " a");                                     /* one space only */
    text_is(table, (int32_t[]){ 3, 1 }, 2, -1, "\xEF\xBF\xBD\xEF\xBF\xBD");              /* a broken run has no space to lose */
    assert_memory_equal(fl_detok_next(table, &place, 0, &n), "a", 1);
    assert_int_equal(n, 1);
    assert_memory_equal(fl_detok_next(table, &place, 0, &n), " a", 2);
    assert_int_equal(n, 2);
    fl_detok_free(table);
}

static void impossible_forms_are_refused(void **state)
{
    (void)state;
    fl_detok *table = NULL;
    fl_err err = { 0 };
    const uint32_t offsets[2] = { 0, 2 };
    const uint8_t byte = FL_TOKEN_BYTE, none = 0;
    assert_int_equal(fl_detok_make_form(&table, 1, (const uint8_t *)"ab", offsets, &byte, (fl_detok_form){ 0, 0 }, &err), FL_CORRUPT);
    assert_int_equal(fl_detok_make_form(&table, 1, (const uint8_t *)"ab", offsets, &none, (fl_detok_form){ 1, 0xE2 }, &err), FL_CORRUPT);
    assert_int_equal(fl_detok_make_form(&table, 1, (const uint8_t *)"ab", offsets, &none, (fl_detok_form){ 0, ' ' }, &err), FL_CORRUPT);
    assert_null(table);
}

static void a_model_without_tokenizer_gives_empty_text(void **state)
{
    (void)state;
    fl_detok *table = NULL, *got = NULL;
    uint8_t *data, *bytes;
    size_t n;
    assert_int_equal(fl_detok_make(&table, 0, NULL, NULL, NULL, NULL), FL_OK);
    assert_int_equal(fl_detok_encode(table, &data, &n, NULL), FL_OK);
    assert_int_equal(fl_detok_decode(&got, data, n, NULL), FL_OK);
    assert_int_equal(fl_detok_vocab(got), 0);
    assert_int_equal(fl_detok_text(got, (int32_t[]){ 0, 5 }, 2, -1, &bytes, &n, NULL, NULL), FL_OK);
    assert_int_equal(n, 0);
    free(bytes);
    free(data);
    fl_detok_free(table);
    fl_detok_free(got);
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    fl_detok *table = NULL;
    const bool special[2] = { false, false };
    assert_int_equal(fl_detok_make(&table, 2, (const uint8_t *)"ab", (uint32_t[]){ 0, 2, 1 }, special, NULL), FL_INVALID);
    assert_int_equal(fl_detok_make(&table, -1, NULL, NULL, NULL, NULL), FL_INVALID);
    assert_int_equal(fl_detok_make(&table, FL_VOCAB_MAX + 1, NULL, NULL, NULL, NULL), FL_INVALID);
    assert_null(table);
}

static void every_cut_and_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    fl_detok *table = a_table(), *got = NULL;
    uint8_t *data;
    size_t n;
    assert_int_equal(fl_detok_encode(table, &data, &n, NULL), FL_OK);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact + 1, data, cut);
        assert_int_equal(fl_detok_decode(&got, exact + 1, cut, NULL), FL_CORRUPT);
        free(exact);
    }
    for (size_t i = 0; i < n * 8; i++) {
        data[i / 8] ^= (uint8_t)(1 << i % 8);
        assert_int_equal(fl_detok_decode(&got, data, n, NULL), FL_CORRUPT);
        data[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_null(got);
    free(data);
    fl_detok_free(table);
}

/* A table with a right checksum around whatever is given. */
static fl_status decode_forged(uint32_t n_vocab, uint32_t raw_bytes, const void *raw, int n_raw)
{
    uint8_t data[512];
    memcpy(data, "TDT1\x01\x00\x00\x00", 8);
    fl_put_u32(data + 8, n_vocab);
    fl_put_u32(data + 12, raw_bytes);
    size_t packed = (size_t)LZ4_compress_default(raw, (char *)data + 24, n_raw, (int)sizeof data - 24);
    fl_put_u64(data + 16, fl_checksum(0, (fl_bytes[]){ { data, 16 }, { data + 24, packed } }, 2));
    fl_detok *table = NULL;
    fl_status st = fl_detok_decode(&table, data, 24 + packed, NULL);
    assert_true((st == FL_OK) == (table != NULL));
    fl_detok_free(table);
    return st;
}

static void hostile_tables_with_a_right_checksum_are_refused(void **state)
{
    (void)state;
    assert_int_equal(decode_forged(2, 5, "\x02\x05" "abc", 5), FL_OK);               /* 1 byte, and 2 bytes of a special */
    assert_int_equal(decode_forged(2, 6, "\x02\x05" "abcd", 6), FL_CORRUPT);         /* a byte too many */
    assert_int_equal(decode_forged(2, 4, "\x02\x05" "ab", 4), FL_CORRUPT);           /* one too few */
    assert_int_equal(decode_forged(2, 6, "\x82\x00\x05" "abc", 6), FL_CORRUPT);      /* a length in a longer form */
    assert_int_equal(decode_forged(2, 7, "\xff\xff\xff\xff\x0f\x02" "a", 7), FL_CORRUPT);
    assert_int_equal(decode_forged(3, 2, "\x00\x00", 2), FL_CORRUPT);                /* lengths missing */
    assert_int_equal(decode_forged(2, 2, "\x80\x80", 2), FL_CORRUPT);                /* lengths that do not end */
    assert_int_equal(decode_forged(0, 1, "\x00", 1), FL_CORRUPT);
    assert_int_equal(decode_forged(FL_VOCAB_MAX + 1, FL_VOCAB_MAX + 1, "\x00", 1), FL_CORRUPT);
    assert_int_equal(decode_forged(FL_VOCAB_MAX, FL_VOCAB_MAX, "\x00", 1), FL_CORRUPT);   /* past LZ4's ratio */
    assert_int_equal(decode_forged(1, UINT32_MAX, "\x00", 1), FL_CORRUPT);
}

/* ---- UTF-8 ---- */

static size_t from_hex(const char *hex, uint8_t *out)
{
    if (strcmp(hex, "-") == 0) return 0;
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        unsigned byte;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return n;
}

static void repaired_text_equals_pythons_replace(void **state)
{
    (void)state;
    FILE *file = fopen(TESTS_DIR "/unit/data/utf8_vectors.txt", "r");
    assert_non_null(file);
    char in_hex[256], want_hex[512];
    int n_cases = 0;
    while (fscanf(file, "%255s %511s", in_hex, want_hex) == 2) {
        uint8_t in[128], want[256];
        size_t n_in = from_hex(in_hex, in), n_want = from_hex(want_hex, want), n_got = 0;
        char *got = NULL;
        bool was_valid;
        assert_int_equal(fl_utf8_repair(in, n_in, &got, &n_got, &was_valid, NULL), FL_OK);
        if (n_got != n_want || memcmp(got, want, n_want) != 0) fail_msg("bytes %s are not repaired to %s", in_hex, want_hex);
        assert_int_equal(got[n_got], 0);
        assert_int_equal(was_valid, n_in == n_want && memcmp(in, want, n_in) == 0);
        assert_int_equal(fl_utf8_valid(in, n_in), was_valid);
        assert_true(fl_utf8_valid((uint8_t *)got, n_got));
        free(got);
        n_cases++;
    }
    fclose(file);
    assert_int_equal(n_cases, 1390);
}

static void valid_text_keeps_its_bytes_nul_included(void **state)
{
    (void)state;
    const char text[] = "a\0\xC3\xA9\xF0\x9F\x98\x80";
    char *got;
    size_t n;
    assert_int_equal(fl_utf8_repair((const uint8_t *)text, sizeof text - 1, &got, &n, NULL, NULL), FL_OK);
    assert_int_equal(n, sizeof text - 1);
    assert_memory_equal(got, text, sizeof text);
    free(got);
    assert_true(fl_utf8_valid(NULL, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_become_the_bytes_of_their_tokens_without_specials),
        cmocka_unit_test(a_text_is_cut_where_it_is_shown_and_each_id_has_its_end),
        cmocka_unit_test(a_table_comes_back_from_its_wire_form),
        cmocka_unit_test(runs_of_byte_tokens_are_text_as_a_whole_or_not_at_all),
        cmocka_unit_test(a_texts_beginning_loses_its_spaces),
        cmocka_unit_test(impossible_forms_are_refused),
        cmocka_unit_test(a_model_without_tokenizer_gives_empty_text),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused),
        cmocka_unit_test(hostile_tables_with_a_right_checksum_are_refused),
        cmocka_unit_test(repaired_text_equals_pythons_replace),
        cmocka_unit_test(valid_text_keeps_its_bytes_nul_included),
    };
    return cmocka_run_group_tests_name("detok", tests, NULL, NULL);
}
