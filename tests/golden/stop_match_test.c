/* Stop strings across token borders and inside UTF-8 sequences: fixed cases with their expected cut, and random ones against a search that knows only the rule. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "engine/stop_match.h"

enum { STOPS_MAX = 8 };

static stop_match *make(const char *const *stops, size_t n)
{
    size_t bytes[STOPS_MAX];
    stop_match *m = NULL;
    for (size_t i = 0; i < n; i++) bytes[i] = strlen(stops[i]);
    assert_int_equal(stop_match_make(&m, stops, bytes, n, NULL), FL_OK);
    return m;
}

/* Feed text[0 .. n) cut into tokens of the sizes in `cuts` (its last size repeats); the index that fired, or -1. */
static int32_t feed(const stop_match *m, const char *text, size_t n, const size_t *cuts, size_t n_cuts, int64_t *kept)
{
    stop_cursor c = { 0 };
    size_t at = 0;
    for (size_t i = 0; at < n; i++) {
        size_t take = cuts[i < n_cuts ? i : n_cuts - 1];
        if (take > n - at) take = n - at;
        int32_t hit = stop_match_feed(m, &c, (const uint8_t *)text + at, take, kept);
        if (hit >= 0) return hit;
        at += take;
    }
    assert_int_equal(c.n_bytes, n);
    return -1;
}

static void fixed_cases_are_cut_where_expected(void **state)
{
    (void)state;
    static const struct { const char *stops[4]; const char *text; int32_t hit; int64_t kept; } cases[] = {
        { { "stop" }, "please stop now", 0, 7 },
        { { "stop" }, "sto", -1, 0 },
        { { "stop" }, "ststop", 0, 2 },
        { { "stop" }, "stop", 0, 0 },
        { { "aab" }, "aaab", 0, 1 },
        { { "abab" }, "abaabab", 0, 3 },
        { { "\n\n" }, "a\nb\n\nc", 0, 3 },
        { { "\n\n", "\n" }, "a\n\nb", 1, 1 },                            /* the stop that ends first wins, though the other began with it */
        { { "abcd", "bc" }, "xabcd", 1, 2 },
        { { "bc", "abc" }, "xabc", 1, 1 },                               /* both end there: the longest */
        { { "abc", "bc" }, "xabc", 0, 1 },
        { { "c", "bc", "abc" }, "xbc", 1, 1 },
        { { "x", "x" }, "ax", 0, 1 },                                    /* of equal stops the first */
        { { "she", "he", "hers" }, "ushers", 0, 1 },
        { { "he", "she", "hers" }, "ushers", 1, 1 },
        { { "\xE2\x82\xAC" }, "5\xE2\x82\xAC", 0, 1 },                   /* the euro sign, whole */
        { { "\x82\xAC" }, "5\xE2\x82\xAC", 0, 2 },                       /* its last bytes: a cut inside a sequence */
        { { "\xE2" }, "5\xE2\x82\xAC", 0, 1 },
        { { "\xF0\x9F\x98\x80" }, "\xF0\x9F\x98\x81\xF0\x9F\x98\x80", 0, 4 },
        { { "\xF0\x9F\x98\x80!" }, "hi \xF0\x9F\x98\x80\xF0\x9F\x98\x80!", 0, 7 },
        { { "<|im_end|>", "<|im" }, "a<|im_end|>", 1, 1 },
        { { "</s>" }, "<</s></s>", 0, 1 },
        { { "aaaa" }, "aaabaaaaa", 0, 4 },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        size_t n_stops = 0, n = strlen(cases[c].text);
        while (n_stops < 4 && cases[c].stops[n_stops]) n_stops++;
        stop_match *m = make(cases[c].stops, n_stops);
        for (size_t size = 1; size <= n; size++) {       /* every token size, so every border */
            for (size_t first = 1; first <= size; first++) {
                const size_t cuts[2] = { first, size };
                int64_t kept = 0;
                assert_int_equal(feed(m, cases[c].text, n, cuts, 2, &kept), cases[c].hit);
                assert_int_equal(kept, cases[c].kept);
            }
        }
        stop_match_free(m);
    }
}

/* The rule itself: the first end, there the longest stop, there the first in the list. */
static int32_t search(const char *const *stops, size_t n_stops, const char *text, size_t n, int64_t *kept)
{
    for (size_t end = 1; end <= n; end++) {
        int32_t best = -1;
        for (size_t i = 0; i < n_stops; i++) {
            size_t len = strlen(stops[i]);
            if (len > end || memcmp(text + end - len, stops[i], len) != 0) continue;
            if (best < 0 || len > strlen(stops[best])) best = (int32_t)i;
        }
        if (best >= 0) { *kept = (int64_t)(end - strlen(stops[best])); return best; }
    }
    return -1;
}

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*state >> 33);
}

static void random_cases_equal_a_plain_search(void **state)
{
    (void)state;
    /* Few letters, so that prefixes overlap; and the bytes of sequences of 2, 3 and 4, so that borders fall inside them. */
    static const char *const alphabets[] = { "ab", "abc\n", "\xC3\xA9\xA8", "\xE2\x82\xAC\xAD", "\xF0\x9F\x98\x80\x81" };
    uint64_t random = 20486;
    int hits = 0;
    for (int c = 0; c < 4000; c++) {
        const char *letters = alphabets[c % 5];
        size_t n_letters = strlen(letters), n_stops = 1 + next_random(&random) % 4, n = next_random(&random) % 60, cuts[16];
        char words[STOPS_MAX][16], text[64];
        const char *stops[STOPS_MAX];
        for (size_t i = 0; i < n_stops; i++) {
            size_t len = 1 + next_random(&random) % 6;
            for (size_t j = 0; j < len; j++) words[i][j] = letters[next_random(&random) % n_letters];
            words[i][len] = '\0';
            stops[i] = words[i];
        }
        for (size_t j = 0; j < n; j++) text[j] = letters[next_random(&random) % n_letters];
        for (size_t j = 0; j < 16; j++) cuts[j] = 1 + next_random(&random) % 5;
        int64_t kept = 0, want_kept = 0;
        stop_match *m = make(stops, n_stops);
        int32_t want = search(stops, n_stops, text, n, &want_kept);
        assert_int_equal(feed(m, text, n, cuts, 16, &kept), want);
        assert_int_equal(kept, want_kept);
        hits += want >= 0;
        stop_match_free(m);
    }
    assert_in_range(hits, 1000, 3900);                   /* both outcomes were met often */
}

static void samples_share_one_automaton(void **state)
{
    (void)state;
    const char *stops[] = { "end" };
    stop_match *m = make(stops, 1);
    stop_cursor a = { 0 }, b = { 0 };
    int64_t kept = 0;
    assert_int_equal(stop_match_feed(m, &a, (const uint8_t *)"en", 2, &kept), -1);
    assert_int_equal(stop_match_feed(m, &b, (const uint8_t *)"d", 1, &kept), -1);
    assert_int_equal(stop_match_feed(m, &b, (const uint8_t *)"", 0, &kept), -1);
    assert_int_equal(stop_match_feed(m, &a, (const uint8_t *)"d", 1, &kept), 0);
    assert_int_equal(kept, 0);
    stop_match_free(m);
}

static void no_stops_never_fire_and_empty_ones_are_refused(void **state)
{
    (void)state;
    stop_match *m = NULL;
    stop_cursor c = { 0 };
    int64_t kept = 0;
    assert_int_equal(stop_match_make(&m, NULL, NULL, 0, NULL), FL_OK);
    assert_int_equal(stop_match_feed(m, &c, (const uint8_t *)"abc", 3, &kept), -1);
    stop_match_free(m);
    const char *stops[] = { "a", "" };
    const size_t bytes[] = { 1, 0 };
    fl_err err = { 0 };
    assert_int_equal(stop_match_make(&m, stops, bytes, 2, &err), FL_INVALID);
    const char *zero[] = { "a\0b" };                     /* a stop may hold U+0000 */
    const size_t three[] = { 3 };
    assert_int_equal(stop_match_make(&m, zero, three, 1, NULL), FL_OK);
    c = (stop_cursor){ 0 };
    assert_int_equal(stop_match_feed(m, &c, (const uint8_t *)"xa\0b", 4, &kept), 0);
    assert_int_equal(kept, 1);
    stop_match_free(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fixed_cases_are_cut_where_expected),
        cmocka_unit_test(random_cases_equal_a_plain_search),
        cmocka_unit_test(samples_share_one_automaton),
        cmocka_unit_test(no_stops_never_fire_and_empty_ones_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
