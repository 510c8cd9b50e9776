/* sampler_gpu_test.c - the sampler on the GPU chooses the ids that engine/sampler.c chooses, bit for bit: any parameters, vocabularies of 1 to 248,320, equal logits, infinities,
 * NaNs, penalties; its draws follow the analytic distribution (L1 below 0.03 at 120,000 draws, probabilities within 1e-3 where u is swept evenly). */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include "engine/sampler.h"
#include "tests/gpu/gpu_open.h"

#define ROWS_MAX 512
#define N_HISTORY 64
#define N_DRAWS 120000

static ops *o;
static int32_t n_passed, n_failed;
static uint64_t state = 88172645463325252u;

static uint64_t bits(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state * 0x2545f4914f6cdd1du; }
static int32_t in(int32_t lo, int32_t hi) { return lo + (int32_t)((bits() >> 20) % (uint64_t)(hi - lo + 1)); }
static float unit(void) { return (float)(bits() >> 40) * 0x1p-24f; }

static void *take(size_t n_bytes)
{
    fl_err err = { 0 };
    void *memory = NULL;
    if (o->take(o, &memory, n_bytes, "a test", &err) == FL_OK) return memory;
    printf("failed: %s\n", err.text);
    exit(1);
}
static void require(fl_status st, const fl_err *err)
{
    if (st == FL_OK) return;
    printf("failed: %s\n", err->text);
    exit(1);
}
static void report(bool passed, const char *what)
{
    *(passed ? &n_passed : &n_failed) += 1;
    printf("%s %s\n", passed ? "PASS" : "FAIL", what);
}

/* ---- against the CPU ---- */

typedef enum { FLAT, PEAKED, EQUAL, INFINITE, STEPS, NARROW, N_KINDS } logit_kind;

static void fill_logits(float *x, int32_t n, logit_kind kind)
{
    for (int32_t i = 0; i < n; i++) {
        const float u = unit();
        x[i] = kind == FLAT ? 12.0f * u - 6.0f : kind == PEAKED ? -4.0f * logf(u + 1e-9f) : kind == EQUAL ? 1.5f : kind == STEPS ? floorf(8.0f * u) * 0.5f - 1.0f : kind == NARROW ? 0.05f * u * u : in(0, 3) ? -INFINITY : 4.0f * u;
        if (kind == INFINITE && in(0, 4000) == 0) x[i] = INFINITY;
    }
    if (kind != EQUAL && in(0, 15) == 0) x[in(0, n - 1)] = NAN;
    if (kind == INFINITE && in(0, 7) == 0) for (int32_t i = 0; i < n; i++) x[i] = -INFINITY;
}

static sampling random_sampling(int32_t n_vocab)
{
    sampling p = { .temperature = in(0, 4) ? 0.2f + 2.0f * unit() : 0.0f, .top_p = in(0, 1) ? 1.0f : 0.05f + 0.94f * unit(), .top_k = in(0, 2) ? in(1, 60) : in(0, 3) ? 0 : in(1, n_vocab),
                   .min_p = in(0, 2) ? 0.0f : 0.3f * unit(), .repetition_penalty = 1.0f, .seed = bits(), .id_hash = bits() };
    if (in(0, 2) == 0) p.repetition_penalty = 0.7f + unit();
    if (in(0, 2) == 0) p.presence_penalty = 2.0f * unit() - 1.0f;
    if (in(0, 2) == 0) p.frequency_penalty = 2.0f * unit() - 1.0f;
    return p;
}

/* Rows of random logits and parameters, each with a history; twice, so that what is chosen counts the second time. */
static bool rows_agree(int32_t n_vocab, int32_t n_rows, logit_kind kind)
{
    fl_err err = { 0 };
    const size_t n_all = (size_t)n_vocab * (size_t)n_rows;
    sampler *chain = NULL;
    float *logits = malloc(n_all * sizeof *logits), *device_logits = take(n_all * sizeof *logits);
    uint32_t *counts = take(n_all * sizeof *counts);
    int32_t *ids = take((size_t)n_rows * 4), got[ROWS_MAX], prompts[ROWS_MAX][N_HISTORY], outputs[ROWS_MAX][N_HISTORY + 2], n_prompt[ROWS_MAX], n_output[ROWS_MAX];
    int32_t barred[2 * ROWS_MAX];
    ops_sampling rows[ROWS_MAX];
    sampling p[ROWS_MAX];
    bool agree = true;
    require(sampler_open(&chain, n_vocab, &err), &err);
    require(o->sampler_reserve(o, n_rows, 2 * n_rows, 3 * N_HISTORY, n_vocab, &err), &err);
    for (int32_t r = 0; r < n_rows; r++) {
        fill_logits(logits + (size_t)r * (size_t)n_vocab, n_vocab, kind);
        p[r] = random_sampling(n_vocab);
        n_prompt[r] = in(1, N_HISTORY);
        n_output[r] = in(0, N_HISTORY - 1);
        for (int32_t i = 0; i < N_HISTORY; i++) { prompts[r][i] = in(0, n_vocab - 1); outputs[r][i] = in(0, in(0, 1) ? n_vocab - 1 : n_vocab < 8 ? n_vocab - 1 : 7); }
        p[r].min_tokens = in(0, 3) ? 0 : N_HISTORY + 5;
        barred[2 * r] = in(0, n_vocab - 1);
        barred[2 * r + 1] = in(0, n_vocab - 1);
        o->count_ids(o, counts + (size_t)r * (size_t)n_vocab, prompts[r], n_prompt[r], outputs[r], n_output[r], n_vocab);
    }
    o->upload(o, device_logits, logits, n_all * sizeof *logits);
    for (int turn = 0; turn < 2; turn++) {
        for (int32_t r = 0; r < n_rows; r++)
            rows[r] = (ops_sampling){ p[r].temperature, p[r].top_p, p[r].min_p, p[r].repetition_penalty, p[r].presence_penalty, p[r].frequency_penalty,
                                      sampler_uniform(p[r].seed, p[r].id_hash, 3, (uint32_t)n_output[r]), p[r].top_k, r, r, true, -1, 2 * r, p[r].min_tokens > 0 ? 2 : 0 };
        o->sample_begin(o, rows, n_rows, barred, 2 * n_rows);
        o->sample(o, ids, device_logits, n_rows, counts, n_vocab);
        o->download(o, got, ids, (size_t)n_rows * 4);
        require(o->finish(o, &err), &err);
        for (int32_t r = 0; r < n_rows; r++) {
            const sampler_history h = { prompts[r], n_prompt[r], outputs[r], n_output[r], barred + 2 * r, 2, 3 };
            const int32_t want = sampler_next(chain, logits + (size_t)r * (size_t)n_vocab, &p[r], &h);
            if (want != got[r] && agree)
                printf("  vocabulary %d, logits of kind %d, row %d of %d, turn %d: %d, not %d (temperature %g top_k %d top_p %g min_p %g penalties %g %g %g)\n", n_vocab, kind, r, n_rows, turn, got[r], want,
                       (double)p[r].temperature, p[r].top_k, (double)p[r].top_p, (double)p[r].min_p, (double)p[r].repetition_penalty, (double)p[r].presence_penalty, (double)p[r].frequency_penalty);
            agree &= want == got[r];
            if (got[r] >= 0) outputs[r][n_output[r]++] = got[r];
        }
    }
    sampler_close(chain);
    free(logits);
    o->give(o, device_logits, n_all * sizeof *logits);
    o->give(o, counts, n_all * sizeof *counts);
    o->give(o, ids, (size_t)n_rows * 4);
    return agree;
}

/* Log-probabilities and the best ids, with ties beyond what fits in shared memory. */
static bool logprobs_agree(int32_t n_vocab, int32_t n_top, logit_kind kind)
{
    fl_err err = { 0 };
    float *logits = malloc((size_t)n_vocab * sizeof *logits), *device_logits = take((size_t)n_vocab * sizeof *logits), *device = take(4096), lse, chosen, want_chosen, got[64], want[64];
    int32_t *ids = take(4096), id = in(0, n_vocab - 1), got_ids[64], want_ids[64];
    do fill_logits(logits, n_vocab, kind); while (kind == INFINITE && logits[id] != logits[id]);
    for (int32_t i = 0; i < n_vocab; i++) if (logits[i] != logits[i]) logits[i] = 0.0f;
    require(o->sampler_reserve(o, 1, 1, 1, n_vocab, &err), &err);
    o->upload(o, device_logits, logits, (size_t)n_vocab * sizeof *logits);
    const ops_sampling row = { .count_slot = -1, .given_id = id };
    o->sample_begin(o, &row, 1, NULL, 0);
    o->sample(o, ids, device_logits, 1, NULL, n_vocab);
    o->log_sum_exp(o, device, device_logits, 1, n_vocab);
    o->sample_logprobs(o, device + 1, ids + 1, device + 2, ids, device_logits, device, n_top, 1, n_vocab);
    o->download(o, &lse, device, 4);
    o->download(o, &chosen, device + 1, 4);
    o->download(o, got, device + 2, (size_t)n_top * 4);
    o->download(o, got_ids, ids + 1, (size_t)n_top * 4);
    require(o->finish(o, &err), &err);
    logprobs_of(logits, n_vocab, lse, id, n_top, &want_chosen, want_ids, want);
    const bool agree = (chosen == want_chosen || (chosen != chosen && want_chosen != want_chosen) || (chosen == -9999.0f && want_chosen == -9999.0f)) &&
                       memcmp(got_ids, want_ids, (size_t)n_top * 4) == 0 && (kind == INFINITE || memcmp(got, want, (size_t)n_top * 4) == 0);
    if (!agree) printf("  vocabulary %d, kind %d, %d best: chosen %g not %g, first id %d not %d, first %g not %g\n", n_vocab, kind, n_top, (double)chosen, (double)want_chosen, n_top ? got_ids[0] : 0,
                       n_top ? want_ids[0] : 0, n_top ? (double)got[0] : 0.0, n_top ? (double)want[0] : 0.0);
    o->give(o, device_logits, (size_t)n_vocab * sizeof *logits);
    o->give(o, device, 4096);
    o->give(o, ids, 4096);
    free(logits);
    return agree;
}

/* The best of rows without numbers are no ids, whatever a row before them left in shared memory. */
static bool nothing_has_no_best(int32_t n_vocab)
{
    enum { N_TOP = 20, ROWS = 2 * 132 };                 /* more blocks than multiprocessors */
    static int32_t got_ids[ROWS * N_TOP], got[ROWS];
    static ops_sampling rows[ROWS];
    fl_err err = { 0 };
    const size_t n_bytes = (size_t)ROWS * (size_t)n_vocab * sizeof(float), top_bytes = sizeof got_ids;
    float *logits = malloc(n_bytes), *device_logits = take(n_bytes), *lse = take(ROWS * 4), *logprobs = take(ROWS * 4), *tops = take(top_bytes);
    int32_t *ids = take(ROWS * 4), *top_ids = take(top_bytes);
    bool agree = true;
    require(o->sampler_reserve(o, ROWS, 1, 1, n_vocab, &err), &err);
    for (int turn = 0; turn < 2; turn++) {               /* first rows that sort many entries, then rows of which only 0 to 3 are numbers */
        for (size_t i = 0; i < n_bytes / sizeof *logits; i++) logits[i] = turn == 0 ? 0.01f * unit() : NAN;
        for (int32_t r = 0; r < ROWS; r++) {
            rows[r] = (ops_sampling){ .temperature = turn == 0 ? 1.0f : 0.0f, .top_p = 0.9f, .repetition_penalty = 1.0f, .u = unit(), .logits_row = r, .count_slot = -1, .given_id = -1 };
            for (int32_t k = 0; turn == 1 && k < r % 4; k++) logits[(size_t)r * (size_t)n_vocab + (size_t)in(0, n_vocab - 1)] = 1.0f;
        }
        o->upload(o, device_logits, logits, n_bytes);
        o->sample_begin(o, rows, ROWS, NULL, 0);
        o->sample(o, ids, device_logits, ROWS, NULL, n_vocab);
        o->log_sum_exp(o, lse, device_logits, ROWS, n_vocab);
        o->sample_logprobs(o, logprobs, top_ids, tops, ids, device_logits, lse, N_TOP, ROWS, n_vocab);
        o->download(o, got, ids, sizeof got);
        o->download(o, got_ids, top_ids, top_bytes);
        require(o->finish(o, &err), &err);
        for (int32_t r = 0; turn == 1 && r < ROWS; r++) {
            agree &= got[r] == -1;
            for (int32_t j = r % 4; j < N_TOP; j++) agree &= got_ids[r * N_TOP + j] == -1;
        }
    }
    free(logits);
    o->give(o, device_logits, n_bytes);
    o->give(o, lse, ROWS * 4);
    o->give(o, logprobs, ROWS * 4);
    o->give(o, tops, top_bytes);
    o->give(o, ids, ROWS * 4);
    o->give(o, top_ids, top_bytes);
    return agree;
}

/* ---- against the analytic distribution ---- */

/* What the chain should draw, in double: temperature, then top_k, top_p over what is left, min_p. */
static void analytic(double *out, const float *logits, int32_t n, const sampling *p)
{
    int32_t order[512];
    double sum = 0, kept = 0;
    for (int32_t i = 0; i < n; i++) order[i] = i;
    for (int32_t i = 1; i < n; i++)
        for (int32_t j = i; j > 0 && logits[order[j]] > logits[order[j - 1]]; j--) { int32_t t = order[j]; order[j] = order[j - 1]; order[j - 1] = t; }
    const int32_t k = p->top_k > 0 && p->top_k < n ? p->top_k : n;
    double w[512];
    for (int32_t i = 0; i < k; i++) sum += w[i] = exp(((double)logits[order[i]] - (double)logits[order[0]]) / (double)p->temperature);
    int32_t keep = 0;
    for (double mass = 0; keep < k && (keep == 0 || mass < (double)p->top_p * sum); keep++) mass += w[keep];
    if (p->top_p >= 1.0f) keep = k;
    while (keep > 1 && w[keep - 1] < (double)p->min_p) keep--;
    for (int32_t i = 0; i < keep; i++) kept += w[i];
    for (int32_t i = 0; i < n; i++) out[i] = 0;
    for (int32_t i = 0; i < keep; i++) out[order[i]] = w[i] / kept;
}

/* L1 of n_draws draws (Philox's, or u swept evenly) against the analytic distribution. */
static double distance_of(int32_t n_vocab, const sampling *p, bool sweeps, double *most)
{
    fl_err err = { 0 };
    enum { ROWS = 400 };
    static int32_t got[ROWS];
    static ops_sampling rows[ROWS];
    float *logits = malloc((size_t)ROWS * (size_t)n_vocab * sizeof *logits), *device = take((size_t)ROWS * (size_t)n_vocab * sizeof *logits);
    int32_t *ids = take(ROWS * 4), histogram[512] = { 0 }, n_valid = 0;
    double want[512], l1 = 0;
    for (int32_t i = 0; i < n_vocab; i++) logits[i] = 12.0f * unit() - 6.0f;
    for (int32_t r = 1; r < ROWS; r++) memcpy(logits + (size_t)r * (size_t)n_vocab, logits, (size_t)n_vocab * sizeof *logits);
    o->upload(o, device, logits, (size_t)ROWS * (size_t)n_vocab * sizeof *logits);
    require(o->sampler_reserve(o, ROWS, 1, 1, n_vocab, &err), &err);
    for (int32_t begin = 0; begin < N_DRAWS; begin += ROWS) {
        for (int32_t r = 0; r < ROWS; r++)
            rows[r] = (ops_sampling){ p->temperature, p->top_p, p->min_p, 1.0f, 0.0f, 0.0f, sweeps ? ((float)(begin + r) + 0.5f) / (float)N_DRAWS : sampler_uniform(1234, 99, 0, (uint32_t)(begin + r)), p->top_k, r, -1, false, -1, 0, 0 };
        o->sample_begin(o, rows, ROWS, NULL, 0);
        o->sample(o, ids, device, ROWS, NULL, n_vocab);
        o->download(o, got, ids, sizeof got);
        for (int32_t r = 0; r < ROWS; r++) if (got[r] >= 0 && got[r] < n_vocab) { histogram[got[r]]++; n_valid++; }
    }
    require(o->finish(o, &err), &err);
    analytic(want, logits, n_vocab, p);
    *most = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const double off = n_valid ? fabs((double)histogram[i] / n_valid - want[i]) : 1e9;
        l1 += off;
        if (off > *most) *most = off;
    }
    free(logits);
    o->give(o, device, (size_t)ROWS * (size_t)n_vocab * sizeof *logits);
    o->give(o, ids, ROWS * 4);
    return l1;
}

/* With an argument a short form, for the sanitizer. */
int main(int argc, char **argv)
{
    const bool is_short = argc > 1;
    (void)argv;
    static const int32_t vocabularies[] = { 1, 2, 24, 257, 511, 2048, 5001, 32000, 151936, 248320 };
    static const char *const kind_names[] = { "flat", "peaked", "equal", "infinite", "steps", "narrow" };
    static const struct { const char *name; int32_t n_vocab; sampling p; } draws[] = {
        { "temperature 1", 24, { .temperature = 1.0f, .top_p = 1.0f } },   { "top_p 0.9", 48, { .temperature = 1.0f, .top_p = 0.9f } },
        { "top_k 10", 48, { .temperature = 1.0f, .top_p = 1.0f, .top_k = 10 } }, { "min_p 0.1", 48, { .temperature = 1.0f, .top_p = 1.0f, .min_p = 0.1f } },
        { "all of them", 300, { .temperature = 0.8f, .top_p = 0.95f, .top_k = 40, .min_p = 0.02f } },
    };
    char text[160];
    o = gpu_open(CUDA_16_BIT);
    for (size_t v = 0; v < sizeof vocabularies / sizeof *vocabularies && !(is_short && vocabularies[v] > 6000); v++)
        for (logit_kind kind = FLAT; kind < N_KINDS; kind++) {
            const int32_t n_vocab = vocabularies[v];
            bool agree = true;
            for (int32_t i = 0; i < (n_vocab > 100000 || is_short ? 1 : 4); i++) agree &= rows_agree(n_vocab, n_vocab > 100000 ? 24 : is_short ? 6 : in(1, 40), kind);
            snprintf(text, sizeof text, "ids of %d %s logits are the CPU's", n_vocab, kind_names[kind]);
            report(agree, text);
            agree = true;
            for (int32_t n_top = 0; n_top <= 20; n_top += 5) agree &= logprobs_agree(n_vocab, n_top, kind);
            snprintf(text, sizeof text, "log-probabilities of %d %s logits are the CPU's", n_vocab, kind_names[kind]);
            report(agree, text);
        }
    report(nothing_has_no_best(2048) && nothing_has_no_best(32000), "rows that are no numbers have no best ids");
    for (size_t i = 0; i < sizeof draws / sizeof *draws && !is_short; i++) {
        double most, l1 = distance_of(draws[i].n_vocab, &draws[i].p, false, &most);
        snprintf(text, sizeof text, "%s: L1 of %d draws %.4f (below 0.03)", draws[i].name, N_DRAWS, l1);
        report(l1 < 0.03, text);
        l1 = distance_of(draws[i].n_vocab, &draws[i].p, true, &most);
        snprintf(text, sizeof text, "%s: probabilities off by %.2g at most (within 1e-3)", draws[i].name, most);
        report(most < 1e-3, text);
    }
    o->close(o);
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}
