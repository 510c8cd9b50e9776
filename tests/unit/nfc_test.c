/* Normal form C: the same as utf8proc's own on texts where that is quick, and quick where that is not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utf8proc.h>
#include "engine/nfc.h"

/* Starters, marks of several classes, a mark that is two (U+0344), starters that decompose into marks (U+0F73, U+0F81), Hangul. */
static const char *const pieces[] = { "a", "e", "\u00e9", "\u1ec7", "\u0301", "\u0316", "\u0327", "\u0344", "\u0345", "\u05b0", "\u0f73", "\u0f81", "\u1112", "\u1161", "\u11ab", "\ud55c", "\u0340", "\u2126" };
enum { N_PIECES = sizeof pieces / sizeof *pieces };

static void random_texts_are_as_utf8proc_has_them(void **state)
{
    (void)state;
    uint32_t random = 12345;
    for (int round = 0; round < 3000; round++) {
        char text[1024] = "";
        random = random * 1664525u + 1013904223u;
        int n = (int)(random >> 16) % 120, first = round % 2 ? 4 : 0, count = round % 2 ? 8 : N_PIECES;    /* every other text is long runs of marks */
        for (int i = 0; i < n; i++) {
            random = random * 1664525u + 1013904223u;
            strcat(text, pieces[first + (int)(random >> 16) % count]);
        }
        utf8proc_uint8_t *want = utf8proc_NFC((const utf8proc_uint8_t *)text);
        uint8_t *got = NULL;
        size_t n_bytes = 0;
        assert_non_null(want);
        assert_int_equal(nfc_normalize(UNICODE_NFC, (const uint8_t *)text, strlen(text), &got, &n_bytes, NULL), FL_OK);
        if (!got) assert_string_equal(text, (const char *)want);
        else if (n_bytes != strlen((const char *)want) || memcmp(got, want, n_bytes) != 0) fail_msg("round %d: \"%s\" became \"%.*s\"", round, text, (int)n_bytes, (const char *)got);
        free(got);
        free(want);
    }
}

/* A row may be anything. Swapping neighbours took 7 s of CPU time for these 100 KB, and four times that for twice as much. */
static void unordered_marks_take_linear_time(void **state)
{
    (void)state;
    static const char *const pairs[] = { "\u0301\u0316", "\u0f73\u0f73" };
    for (int k = 0; k < 2; k++) {
        enum { BYTES = 100000 };
        char *text = malloc(BYTES + 8);
        uint8_t *got = NULL;
        size_t n = 0, n_pair = strlen(pairs[k]), n_bytes = 0;
        assert_non_null(text);
        for (; n < BYTES; n += n_pair) memcpy(text + n, pairs[k], n_pair);
        clock_t begin = clock();
        assert_int_equal(nfc_normalize(UNICODE_NFC, (const uint8_t *)text, n, &got, &n_bytes, NULL), FL_OK);
        assert_true(clock() - begin < CLOCKS_PER_SEC);
        assert_true(n_bytes >= n);
        free(got);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_texts_are_as_utf8proc_has_them),
        cmocka_unit_test(unordered_marks_take_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
