/* The sampler chain against transformers' logits processors (sampler_vectors.bin, made by make_sampler_vectors.py), Philox against its published answers, draws against
 * their distribution, and large vocabularies against a plain sort. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/sampler.h"

static const sampling PLAIN = { .temperature = 1, .top_p = 1, .repetition_penalty = 1, .seed = 20486, .id_hash = 0x123456789ABCDEFull };

static sampler *open_sampler(int32_t n_vocab)
{
    sampler *s = NULL;
    assert_int_equal(sampler_open(&s, n_vocab, NULL), FL_OK);
    return s;
}

/* Three uniforms of Philox, summed and scaled: what make_sampler_vectors.py computes. */
static void make_logits(float *x, int32_t n, uint32_t seed, float scale)
{
    for (int32_t i = 0; i < n; i++) {
        const uint32_t counter[4] = { (uint32_t)i, 0, 0, 0 }, key[2] = { seed, 20486 };
        uint32_t w[4];
        philox4x32(w, counter, key);
        float u0 = (float)(w[0] >> 8) * 0x1p-24f, u1 = (float)(w[1] >> 8) * 0x1p-24f, u2 = (float)(w[2] >> 8) * 0x1p-24f;
        x[i] = (((u0 + u1) + u2) - 1.5f) * scale;
    }
}

/* ---- Philox ---- */

static void philox_gives_the_published_answers(void **state)
{
    (void)state;
    /* Random123's kat_vectors for philox4x32, 10 rounds. */
    static const struct { uint32_t counter[4], key[2], want[4]; } known[] = {
        { { 0, 0, 0, 0 }, { 0, 0 }, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
        { { 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff }, { 0xffffffff, 0xffffffff }, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
        { { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344 }, { 0xa4093822, 0x299f31d0 }, { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } },
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t got[4];
        philox4x32(got, known[i].counter, known[i].key);
        assert_memory_equal(got, known[i].want, sizeof got);
    }
}

static void uniform_is_built_as_the_design_says(void **state)
{
    (void)state;
    const uint32_t counter[4] = { 7, 3, 0x89ABCDEF, 0x01234567 }, key[2] = { 0x33445566, 0x00001122 };
    uint32_t w[4];
    philox4x32(w, counter, key);
    assert_true(sampler_uniform(0x112233445566ull, 0x0123456789ABCDEFull, 3, 7) == (float)(w[0] >> 8) * 0x1p-24f);
    for (uint32_t i = 0; i < 1000; i++) {
        float u = sampler_uniform(i, i * 77, i, i);
        assert_true(u >= 0.0f && u < 1.0f);
    }
}

/* ---- vectors ---- */

typedef struct { const uint8_t *at, *end; } reader;
static void take(reader *r, void *out, size_t n)
{
    assert_true((size_t)(r->end - r->at) >= n);
    memcpy(out, r->at, n);
    r->at += n;
}

typedef struct {
    uint32_t seed;
    uint16_t n_vocab, n_prompt, n_output, zero;
    float scale, temperature, top_p, min_p, repetition, presence, frequency;
    int32_t top_k;
} vector_head;

static void check_vector(reader *r, uint32_t index)
{
    vector_head v;
    uint16_t ids16[64];
    int32_t ids[64];
    take(r, &v, sizeof v);
    assert_true(v.n_prompt + v.n_output <= 64);
    take(r, ids16, (size_t)(v.n_prompt + v.n_output) * 2);
    for (int i = 0; i < v.n_prompt + v.n_output; i++) ids[i] = ids16[i];
    float *want = malloc(v.n_vocab * sizeof *want), *logits = malloc(v.n_vocab * sizeof *logits);
    take(r, want, v.n_vocab * sizeof *want);
    make_logits(logits, v.n_vocab, v.seed, v.scale);
    sampling p = PLAIN;
    p.temperature = v.temperature; p.top_p = v.top_p; p.min_p = v.min_p; p.top_k = v.top_k;
    p.repetition_penalty = v.repetition; p.presence_penalty = v.presence; p.frequency_penalty = v.frequency;
    sampler_history h = { .prompt = ids, .n_prompt = v.n_prompt, .output = ids + v.n_prompt, .n_output = v.n_output };
    sampler *s = open_sampler(v.n_vocab);
    int32_t id = sampler_next(s, logits, &p, &h);
    assert_true(id >= 0 && id < v.n_vocab);
    const float *got = sampler_probabilities(s);
    int bits = 8;
    while (1 << bits < v.n_vocab) bits++;
    double half_unit = ldexp(1.0, bits - 54);
    for (int32_t i = 0; i < v.n_vocab; i++) {
        bool is_nothing = got[i] == 0.0f && (double)want[i] <= half_unit;        /* a weight below half a unit (sampler.h); a probability is no larger than a weight */
        if (fabsf(got[i] - want[i]) > 1e-5f || (!is_nothing && (got[i] > 0) != (want[i] > 0)))
            fail_msg("case %u, token %d of %d: %.9g instead of %.9g", index, i, v.n_vocab, (double)got[i], (double)want[i]);
    }
    assert_true(got[id] > 0.0f);
    sampler_close(s);
    free(want);
    free(logits);
}

static void chain_equals_transformers_processors(void **state)
{
    (void)state;
    FILE *f = fopen(TESTS_DIR "/golden/sampler_vectors.bin", "rb");
    assert_non_null(f);
    size_t capacity = 4 << 20;
    uint8_t *bytes = malloc(capacity);
    size_t n = fread(bytes, 1, capacity, f);
    fclose(f);
    reader r = { bytes, bytes + n };
    char magic[4];
    uint32_t n_cases;
    take(&r, magic, 4);
    assert_memory_equal(magic, "SMP1", 4);
    take(&r, &n_cases, 4);
    assert_int_equal(n_cases, 1600);
    for (uint32_t i = 0; i < n_cases; i++) check_vector(&r, i);
    assert_true(r.at == r.end);
    free(bytes);
}

/* ---- edges ---- */

static int32_t next_of(const float *logits, int32_t n, sampling p)
{
    sampler *s = open_sampler(n);
    sampler_history h = { 0 };
    int32_t id = sampler_next(s, logits, &p, &h);
    sampler_close(s);
    return id;
}

static void ties_go_to_the_lowest_id(void **state)
{
    (void)state;
    float x[600];
    for (int i = 0; i < 600; i++) x[i] = i % 3 == 1 ? 2.0f : -1.0f;
    sampling p = PLAIN;
    p.temperature = 0;
    assert_int_equal(next_of(x, 600, p), 1);
    x[7] = -0.0f; x[3] = 0.0f;
    for (int i = 0; i < 600; i++) if (x[i] > 1) x[i] = -1;
    assert_int_equal(next_of(x, 600, p), 3);             /* -0 and +0 are equal */
    /* top_k among equals keeps the lowest ids, across the sizes of every sort */
    static const int32_t sizes[] = { 5, 48, 49, 300, 600 };
    for (size_t c = 0; c < 5; c++) {
        int32_t n = sizes[c], k = n / 2;
        for (int i = 0; i < n; i++) x[i] = i % 2 ? 0.0f : -0.0f;
        sampler *s = open_sampler(n);
        sampler_history h = { 0 };
        p = PLAIN;
        p.top_k = k;
        assert_true(sampler_next(s, x, &p, &h) < k);
        const float *q = sampler_probabilities(s);
        for (int i = 0; i < n; i++) assert_true((q[i] > 0) == (i < k));
        p.top_k = 0;
        p.top_p = 0.5f;
        sampler_next(s, x, &p, &h);
        q = sampler_probabilities(s);
        for (int i = 0; i < n; i++) assert_true((q[i] > 0) == (2 * i < n));
        sampler_close(s);
    }
}

static void nan_and_all_minus_infinity_are_refused(void **state)
{
    (void)state;
    static const sampling kinds[] = {
        { .temperature = 0, .top_p = 1, .repetition_penalty = 1 }, { .temperature = 1, .top_p = 1, .repetition_penalty = 1 },
        { .temperature = 1, .top_p = .5f, .repetition_penalty = 1 }, { .temperature = 1, .top_p = 1, .top_k = 3, .min_p = .1f, .repetition_penalty = 1 },
    };
    for (int at = 0; at < 40; at += 13) {
        for (size_t k = 0; k < 4; k++) {
            float x[40];
            for (int i = 0; i < 40; i++) x[i] = -INFINITY;
            assert_int_equal(next_of(x, 40, kinds[k]), -1);
            x[at] = -3e38f;
            assert_int_equal(next_of(x, 40, kinds[k]), at);              /* the only one */
            x[(at + 1) % 40] = NAN;
            assert_int_equal(next_of(x, 40, kinds[k]), -1);
            x[(at + 1) % 40] = INFINITY;
            assert_int_equal(next_of(x, 40, kinds[k]), (at + 1) % 40);
        }
    }
}

static void end_ids_wait_for_min_tokens(void **state)
{
    (void)state;
    float x[10] = { 0, 9, 8, 0, 0, 0, 0, 0, 0, 0 };
    const int32_t ends[] = { 1, 2 }, output[] = { 5, 5, 5 };
    sampling p = PLAIN;
    p.temperature = 0;
    p.min_tokens = 3;
    sampler *s = open_sampler(10);
    for (int32_t n = 0; n <= 3; n++) {
        sampler_history h = { .output = output, .n_output = n, .end_ids = ends, .n_end_ids = 2 };
        assert_int_equal(sampler_next(s, x, &p, &h), n < 3 ? 0 : 1);
    }
    assert_true(x[1] == 9.0f && x[2] == 8.0f);           /* the caller's logits are not changed */
    sampler_close(s);
}

static void extreme_temperatures_stay_finite(void **state)
{
    (void)state;
    float x[300];
    make_logits(x, 300, 5, 40);
    int32_t best = 0;
    for (int i = 1; i < 300; i++) if (x[i] > x[best]) best = i;
    sampling p = PLAIN;
    static const float temperatures[] = { 1e-38f, 1e-6f, 1e-3f };
    for (size_t t = 0; t < 3; t++) {
        for (int mode = 0; mode < 3; mode++) {
            p.temperature = temperatures[t];
            p.top_p = mode == 1 ? 0.9f : 1;
            p.top_k = mode == 2 ? 5 : 0;
            assert_int_equal(next_of(x, 300, p), best);
        }
    }
    p = PLAIN;
    p.temperature = 100;
    p.top_p = 0.99999994f;
    assert_true(next_of(x, 300, p) >= 0);
}

/* ---- draws ---- */

/* The draw is the inverse of the cumulative distribution, in id order, or by falling logit when top_k or top_p sorts. */
static void draw_inverts_the_distribution(void **state)
{
    (void)state;
    enum { N = 700 };
    float x[N];
    sampler *s = open_sampler(N);
    for (uint32_t c = 0; c < 400; c++) {
        make_logits(x, N, c, 8);
        sampling p = PLAIN;
        p.seed = c;
        if (c % 4 == 1) p.top_p = 0.8f;
        if (c % 4 == 2) p.top_k = 300;
        if (c % 4 == 3) p.min_p = 0.02f;
        sampler_history h = { .sample = c };
        int32_t id = sampler_next(s, x, &p, &h);
        const float *q = sampler_probabilities(s);
        double u = (double)sampler_uniform(p.seed, p.id_hash, c, 0), below = 0;
        bool sorted = c % 4 == 1 || c % 4 == 2;
        for (int32_t i = 0; i < N; i++) {
            bool before = sorted ? x[i] > x[id] || (x[i] == x[id] && i < id) : i < id;
            if (before) below += (double)q[i];
        }
        assert_true(q[id] > 0.0f && u >= below - 1e-5 && u <= below + (double)q[id] + 1e-5);
    }
    sampler_close(s);
}

static void draw_depends_on_nothing_before_it(void **state)
{
    (void)state;
    enum { N = 900 };
    float x[N], other[N];
    int32_t ids[20];
    make_logits(x, N, 1, 9);
    make_logits(other, N, 2, 30);
    for (int i = 0; i < 20; i++) ids[i] = i * 31 % N;
    sampler *used = open_sampler(N);
    for (uint32_t c = 0; c < 200; c++) {
        sampling p = PLAIN, q = PLAIN;
        p.top_p = c & 1 ? 0.9f : 1;
        p.top_k = c & 2 ? 40 : 0;
        p.min_p = c & 4 ? 0.05f : 0;
        p.repetition_penalty = c & 8 ? 1.3f : 1;
        p.presence_penalty = c & 16 ? 0.5f : 0;
        q.top_p = 0.3f;
        q.frequency_penalty = 1;
        sampler_history h = { .prompt = ids, .n_prompt = 9, .output = ids + 5, .n_output = 15, .sample = c };
        sampler *fresh = open_sampler(N);
        sampler_next(used, other, c % 3 ? &q : &p, &h);
        assert_int_equal(sampler_next(used, x, &p, &h), sampler_next(fresh, x, &p, &h));
        const float *a = sampler_probabilities(used), *b = sampler_probabilities(fresh);
        assert_memory_equal(a, b, N * sizeof(float));
        sampler_close(fresh);
    }
    sampler_close(used);
}

/* L1 distance below 0.03 between 120,000 draws and the probabilities, which are computed here by a plain sort in double. */
static void draws_follow_the_distribution(void **state)
{
    (void)state;
    enum { N = 48, DRAWS = 120000 };
    static const struct { const char *name; float top_p; int32_t top_k; float min_p; } kinds[] = {
        { "plain", 1, 0, 0 }, { "top_p 0.9", 0.9f, 0, 0 }, { "top_k 12", 1, 12, 0 }, { "min_p 0.1", 1, 0, 0.1f },
    };
    float x[N];
    make_logits(x, N, 99, 5);
    sampler *s = open_sampler(N);
    for (size_t k = 0; k < 4; k++) {
        int order[N];
        double p[N], total = 0, kept = 0, l1 = 0;
        for (int i = 0; i < N; i++) {
            int j = i;
            for (; j > 0 && x[order[j - 1]] < x[i]; j--) order[j] = order[j - 1];
            order[j] = i;
            total += p[i] = exp((double)x[i]);
        }
        double best = p[order[0]], cumulative = 0;
        for (int r = 0; r < N; r++) {
            int i = order[r];
            bool keep = (kinds[k].top_k == 0 || r < kinds[k].top_k) && (r == 0 || cumulative < (double)kinds[k].top_p * total) && p[i] >= (double)kinds[k].min_p * best;
            cumulative += p[i];
            if (!keep) p[i] = 0;
            kept += p[i];
        }
        int count[N] = { 0 };
        sampling chain = PLAIN;
        chain.top_p = kinds[k].top_p; chain.top_k = kinds[k].top_k; chain.min_p = kinds[k].min_p;
        for (uint32_t d = 0; d < DRAWS; d++) {
            chain.seed = d / 1000;                       /* seeds, samples and row ids all vary */
            chain.id_hash = d % 10 * 0x9E3779B97F4A7C15ull;
            sampler_history h = { .sample = d % 1000 / 10 };
            int32_t id = sampler_next(s, x, &chain, &h);
            assert_in_range(id, 0, N - 1);
            count[id]++;
        }
        for (int i = 0; i < N; i++) l1 += fabs((double)count[i] / DRAWS - p[i] / kept);
        print_message("%s: L1 %.4f\n", kinds[k].name, l1);
        assert_true(l1 < 0.03);
    }
    sampler_close(s);
}

/* ---- large vocabularies ---- */

static const float *sort_logits;
static int by_logit(const void *a, const void *b)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (sort_logits[i] != sort_logits[j]) return sort_logits[i] > sort_logits[j] ? -1 : 1;
    return (i > j) - (i < j);
}

/* Kept sets as a full sort has them. Where the cut hangs on rounding (mass within 1e-6 of top_p) one token may differ. */
static void large_vocabularies_equal_a_full_sort(void **state)
{
    (void)state;
    static const struct { int32_t n; float scale, temperature, top_p; int32_t top_k; float min_p; } cases[] = {
        { 151936, 12, 1, 0.9f, 0, 0 }, { 151936, 12, 1, 1, 50, 0 }, { 151936, 6, 2, 0.95f, 0, 0 }, { 151936, 12, 1, 0.9f, 40000, 0 }, { 151936, 12, 0.7f, 0.8f, 20, 0.05f },
        { 60000, 0.01f, 1, 0.5f, 0, 0 }, { 60000, 30, 1, 0.999f, 0, 0.001f }, { 4097, 3, 1, 0.9999f, 0, 0 }, { 257, 3, 1, 0.9f, 256, 0 }, { 151936, 12, 1, 1, 0, 0.01f },
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int32_t n = cases[c].n;
        float *x = malloc((size_t)n * sizeof *x);
        int32_t *order = malloc((size_t)n * sizeof *order);
        make_logits(x, n, (uint32_t)c, cases[c].scale);
        for (int32_t i = 0; i < n; i++) order[i] = i;
        sort_logits = x;
        qsort(order, (size_t)n, sizeof *order, by_logit);
        double best = (double)x[order[0]], t = (double)cases[c].temperature, total = 0, cumulative = 0, margin = 1;
        int32_t limit = cases[c].top_k > 0 && cases[c].top_k < n ? cases[c].top_k : n, keep = 0;
        for (int32_t r = 0; r < limit; r++) total += exp(((double)x[order[r]] - best) / t);
        while (keep < limit && (cases[c].top_p >= 1 || cumulative < (double)cases[c].top_p * total)) {
            cumulative += exp(((double)x[order[keep++]] - best) / t);
            double away = fabs(cumulative / total - (double)cases[c].top_p);
            margin = away < margin ? away : margin;
        }
        while (keep > 1 && exp(((double)x[order[keep - 1]] - best) / t) < (double)cases[c].min_p) keep--;
        sampling p = PLAIN;
        p.temperature = cases[c].temperature; p.top_p = cases[c].top_p; p.top_k = cases[c].top_k; p.min_p = cases[c].min_p;
        sampler *s = open_sampler(n);
        sampler_history h = { 0 };
        assert_true(sampler_next(s, x, &p, &h) >= 0);
        const float *q = sampler_probabilities(s);
        int32_t got = 0, wrong = 0;
        double sum = 0;
        for (int32_t r = 0; r < n; r++) {
            got += q[order[r]] > 0;
            wrong += (q[order[r]] > 0) != (r < keep);
            sum += (double)q[order[r]];
        }
        if (wrong > (margin < 1e-6 ? 1 + n / 10000 : 0)) fail_msg("case %zu: %d kept instead of %d, margin %g", c, got, keep, margin);
        assert_true(fabs(sum - 1) < 1e-5);
        sampler_close(s);
        free(x);
        free(order);
    }
}

/* ---- logprobs ---- */

static void logprobs_are_raw_clamped_and_tie_to_the_lowest_id(void **state)
{
    (void)state;
    const float x[8] = { 1, 5, 5, -2, -20000, -INFINITY, 5, 0 };
    const float lse = 6.11f;
    float lp, top[10];
    int32_t ids[10];
    logprobs_of(x, 8, lse, 3, 4, &lp, ids, top);
    assert_true(lp == -2 - lse);
    const int32_t want[4] = { 1, 2, 6, 0 };
    assert_memory_equal(ids, want, sizeof want);
    for (int i = 0; i < 4; i++) assert_true(top[i] == x[want[i]] - lse);
    logprobs_of(x, 8, lse, 5, 0, &lp, NULL, NULL);
    assert_true(lp == -9999.0f);
    logprobs_of(x, 8, lse, 4, 10, &lp, ids, top);        /* more than the vocabulary has */
    assert_true(lp == -9999.0f);
    const int32_t all[10] = { 1, 2, 6, 0, 7, 3, 4, 5, -1, -1 };
    assert_memory_equal(ids, all, sizeof all);
    for (int i = 6; i < 10; i++) assert_true(top[i] == -9999.0f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_answers),
        cmocka_unit_test(uniform_is_built_as_the_design_says),
        cmocka_unit_test(chain_equals_transformers_processors),
        cmocka_unit_test(ties_go_to_the_lowest_id),
        cmocka_unit_test(nan_and_all_minus_infinity_are_refused),
        cmocka_unit_test(end_ids_wait_for_min_tokens),
        cmocka_unit_test(extreme_temperatures_stay_finite),
        cmocka_unit_test(draw_inverts_the_distribution),
        cmocka_unit_test(draw_depends_on_nothing_before_it),
        cmocka_unit_test(draws_follow_the_distribution),
        cmocka_unit_test(large_vocabularies_equal_a_full_sort),
        cmocka_unit_test(logprobs_are_raw_clamped_and_tie_to_the_lowest_id),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
