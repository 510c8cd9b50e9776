/* The chain works on distances d = (max - logit) / temperature >= 0 and weights w = exp(-d), so the best token weighs exactly 1,
 * nothing overflows, and min_p compares w with min_p itself. Logits keep their order, which is what the sorts use.
 *
 *   logits ─▶ penalties (only when asked: a copy) ─▶ best, NaN check
 *      temperature 0 ─▶ the best
 *      no top_k, no top_p ─▶ weights in id order, sums of blocks of 256 ids, draw
 *      else ─▶ the few that can matter, by a histogram of d; radix sort; weights in sorted order; cut; draw
 *
 * Sums: weights are rounded to whole numbers of 2^(bits - 53), where a vocabulary has at most 2^bits ids, so each sum of them is a double and exact, in
 * any order: a GPU adds them as integers. A draw finds its block of 256 by the blocks' sums, then walks the block. Every step is a function of the logits and
 * the parameters alone. */
#include "engine/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 256, LANES = 16, RADIX = 256, INSERTION_MAX = 48 };
#define BUCKET_SHIFT 20                  /* a bucket is the exponent and 3 bits of the mantissa of d: within 12.5% of each other */
#define N_BUCKETS ((0x7F800000u >> BUCKET_SHIFT) + 1)

typedef enum { LAST_NONE, LAST_GREEDY, LAST_IDS, LAST_SORTED } last_kind;

struct sampler {
    int32_t n_vocab;
    float *adjusted;                     /* owned [n_vocab] logits after penalties */
    float *weights;                      /* owned [n_vocab] by id or by rank */
    double grid;                         /* adding it to a weight rounds it */
    double *block_ends;                  /* owned [n_blocks] running sum at each block's end */
    uint64_t *sorted, *spare;            /* owned [n_vocab] order key << 32 | id */
    uint32_t *seen;                      /* owned [n_vocab] the call that met this id */
    uint32_t call;
    uint32_t *bucket_count;              /* owned [N_BUCKETS] */
    double *bucket_mass;                 /* owned [N_BUCKETS] */
    float *probabilities;                /* owned [n_vocab], filled when asked */
    last_kind last;                      /* what the last draw left for sampler_probabilities */
    int32_t last_n, last_best;
    double last_total;
};

/* 1.5 * 2^52 of the units that weights are whole numbers of. Fewer than 8 bits would leave a weight of 1 no room below the next power of two. */
static double grid_of(int32_t n_vocab)
{
    int bits = 8;
    while ((int64_t)1 << bits < n_vocab) bits++;
    return ldexp(1.5, bits - 1);
}

fl_status sampler_open(sampler **out, int32_t n_vocab, fl_err *err)
{
    if (n_vocab < 1) return fl_fail(err, FL_INVALID, "sampler: a vocabulary of %d tokens", n_vocab);
    size_t n = (size_t)n_vocab, n_blocks = (n + BLOCK - 1) / BLOCK;
    sampler *s = calloc(1, sizeof *s);
    if (!s) return fl_fail(err, FL_FULL, "sampler: no memory");
    s->n_vocab = n_vocab;
    s->grid = grid_of(n_vocab);
    s->adjusted = malloc(n * sizeof *s->adjusted);
    s->weights = malloc(n * sizeof *s->weights);
    s->block_ends = malloc(n_blocks * sizeof *s->block_ends);
    s->sorted = malloc(n * sizeof *s->sorted);
    s->spare = malloc(n * sizeof *s->spare);
    s->seen = calloc(n, sizeof *s->seen);
    s->bucket_count = malloc(N_BUCKETS * sizeof *s->bucket_count);
    s->bucket_mass = malloc(N_BUCKETS * sizeof *s->bucket_mass);
    s->probabilities = calloc(n, sizeof *s->probabilities);
    if (!s->adjusted || !s->weights || !s->block_ends || !s->sorted || !s->spare || !s->seen || !s->bucket_count || !s->bucket_mass ||
        !s->probabilities) {
        sampler_close(s);
        return fl_fail(err, FL_FULL, "sampler: no memory for %d tokens", n_vocab);
    }
    *out = s;
    return FL_OK;
}

void sampler_close(sampler *s)
{
    if (!s) return;
    free(s->adjusted);
    free(s->weights);
    free(s->block_ends);
    free(s->sorted);
    free(s->spare);
    free(s->seen);
    free(s->bucket_count);
    free(s->bucket_mass);
    free(s->probabilities);
    free(s);
}

/* ---- penalties ---- */

/* A new mark for `seen`: ids that carry it were met in this pass. */
static uint32_t next_call(sampler *s)
{
    if (++s->call == 0) {
        memset(s->seen, 0, (size_t)s->n_vocab * sizeof *s->seen);
        s->call = 1;
    }
    return s->call;
}

static void penalize_repetition(sampler *s, float *x, float penalty, const int32_t *ids, int32_t n, uint32_t call)
{
    for (int32_t i = 0; i < n; i++) {
        int32_t id = ids[i];
        FL_ASSERT(id >= 0 && id < s->n_vocab);
        if (s->seen[id] == call) continue;
        s->seen[id] = call;
        x[id] = x[id] > 0.0f ? x[id] / penalty : x[id] * penalty;
    }
}

/* logit - frequency * count - presence. The counts live in `weights`' memory while this runs. */
static void penalize_output(sampler *s, float *x, const sampling *p, const sampler_history *h)
{
    float *count = s->weights;
    uint32_t call = next_call(s);
    for (int32_t i = 0; i < h->n_output; i++) {
        int32_t id = h->output[i];
        FL_ASSERT(id >= 0 && id < s->n_vocab);
        if (s->seen[id] != call) { s->seen[id] = call; count[id] = 0.0f; }
        count[id] += 1.0f;
    }
    call = next_call(s);
    for (int32_t i = 0; i < h->n_output; i++) {
        int32_t id = h->output[i];
        if (s->seen[id] == call) continue;
        s->seen[id] = call;
        x[id] = (x[id] - p->frequency_penalty * count[id]) - p->presence_penalty;
    }
}

/* The logits the rest of the chain works on: the caller's own, or a changed copy. */
static const float *adjust(sampler *s, const float *logits, const sampling *p, const sampler_history *h)
{
    bool repetition = p->repetition_penalty != 1.0f && h->n_prompt + (int64_t)h->n_output > 0;
    bool output = (p->frequency_penalty != 0.0f || p->presence_penalty != 0.0f) && h->n_output > 0;
    bool bar_end = h->n_output < p->min_tokens && h->n_end_ids > 0;
    if (!repetition && !output && !bar_end) return logits;
    float *x = s->adjusted;
    memcpy(x, logits, (size_t)s->n_vocab * sizeof *x);
    if (repetition) {
        uint32_t call = next_call(s);
        penalize_repetition(s, x, p->repetition_penalty, h->prompt, h->n_prompt, call);
        penalize_repetition(s, x, p->repetition_penalty, h->output, h->n_output, call);
    }
    if (output) penalize_output(s, x, p, h);
    if (bar_end) {
        for (int32_t i = 0; i < h->n_end_ids; i++) {
            if (h->end_ids[i] >= 0 && h->end_ids[i] < s->n_vocab) x[h->end_ids[i]] = -INFINITY;
        }
    }
    return x;
}

/* The best logit's lowest id, or -1 when a logit is NaN or none is above -inf. */
static int32_t best_of(const float *x, int32_t n)
{
    float lane_max[LANES];
    int32_t lane_nan[LANES] = { 0 };
    for (int l = 0; l < LANES; l++) lane_max[l] = -INFINITY;
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) {
            float v = x[i + l];
            lane_max[l] = v > lane_max[l] ? v : lane_max[l];
            lane_nan[l] |= v != v;
        }
    }
    for (int l = 0; i < n; i++, l++) {
        lane_max[l] = x[i] > lane_max[l] ? x[i] : lane_max[l];
        lane_nan[l] |= x[i] != x[i];
    }
    float best = -INFINITY;
    for (int l = 0; l < LANES; l++) {
        if (lane_nan[l]) return -1;
        best = lane_max[l] > best ? lane_max[l] : best;
    }
    if (best == -INFINITY) return -1;
    i = 0;
    while (x[i] != best) i++;
    return i;
}

/* ---- weights and draws ---- */

/* d >= 0; +inf logits are at distance 0 of each other. */
static float distance(float best, float x, float temperature)
{
    return x == best ? 0.0f : (best - x) / temperature;
}

static float weight_at(const sampler *s, float d) { return (float)(((double)fl_expf(-d) + s->grid) - s->grid); }

/* Fill block_ends from the first n weights and return the total. */
static double sum_blocks(sampler *s, int32_t n)
{
    double total = 0.0;
    for (int32_t i = 0, b = 0; i < n; i += BLOCK, b++) {
        double lane[LANES] = { 0 };
        int32_t j = i, end = n - i < BLOCK ? n : i + BLOCK;
        for (; j + LANES <= end; j += LANES) {
            for (int l = 0; l < LANES; l++) lane[l] += (double)s->weights[j + l];
        }
        for (int l = 0; j < end; j++, l++) lane[l] += (double)s->weights[j];
        for (int l = 0; l < LANES; l++) total += lane[l];
        s->block_ends[b] = total;
    }
    return total;
}

/* Index of the first of n weights at which the running sum passes u * total: below total, so there is one, and its weight is above zero. */
static int32_t draw(const sampler *s, int32_t n, double total, float u)
{
    double target = (double)u * total;
    int32_t b = 0;
    while (s->block_ends[b] <= target) b++;
    double sum = b > 0 ? s->block_ends[b - 1] : 0.0;
    for (int32_t i = b * BLOCK; i < n; i++) {
        sum += (double)s->weights[i];
        if (sum > target) return i;
    }
    FL_ASSERT(false);
    return -1;
}

/* Temperature and min_p only. */
static int32_t draw_by_id(sampler *s, const float *x, float best, const sampling *p, float u)
{
    for (int32_t i = 0; i < s->n_vocab; i++) {
        float w = weight_at(s, distance(best, x[i], p->temperature));
        s->weights[i] = w < p->min_p ? 0.0f : w;
    }
    double total = sum_blocks(s, s->n_vocab);
    s->last = LAST_IDS;
    s->last_n = s->n_vocab;
    s->last_total = total;
    return draw(s, s->n_vocab, total, u);
}

/* ---- sorting what can matter ---- */

static uint32_t float_bits(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

static uint32_t bucket_of(float d) { return float_bits(d) >> BUCKET_SHIFT; }

/* Ascending keys are descending logits; -0 and +0 are one value. */
static uint32_t order_key(float x)
{
    uint32_t u = float_bits(x + 0.0f);
    return u & 0x80000000u ? u : ~u & 0x7FFFFFFFu;
}

/* Sort n entries by their key; entries of one key stay in the order they lie in, which is by id. */
static void sort_entries(sampler *s, int32_t n)
{
    uint64_t *a = s->sorted;
    if (n <= INSERTION_MAX) {
        for (int32_t i = 1; i < n; i++) {
            uint64_t v = a[i];
            int32_t j = i;
            for (; j > 0 && a[j - 1] > v; j--) a[j] = a[j - 1];
            a[j] = v;
        }
        return;
    }
    uint32_t counts[4][RADIX];
    memset(counts, 0, sizeof counts);
    for (int32_t i = 0; i < n; i++) {
        for (int pass = 0; pass < 4; pass++) counts[pass][a[i] >> (32 + 8 * pass) & 255]++;
    }
    for (int pass = 0; pass < 4; pass++) {
        int shift = 32 + 8 * pass;
        if (counts[pass][a[0] >> shift & 255] == (uint32_t)n) continue;       /* all alike in this digit */
        uint32_t at = 0;
        for (int digit = 0; digit < RADIX; digit++) {
            uint32_t count = counts[pass][digit];
            counts[pass][digit] = at;
            at += count;
        }
        for (int32_t i = 0; i < n; i++) s->spare[counts[pass][a[i] >> shift & 255]++] = a[i];
        s->sorted = s->spare;
        s->spare = a;
        a = s->sorted;
    }
}

/* Gather the entries whose distance lies in the buckets up to `last_bucket`, in id order, and sort them. */
static int32_t gather(sampler *s, const float *x, float best, float temperature, uint32_t last_bucket)
{
    int32_t n = 0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        if (bucket_of(distance(best, x[i], temperature)) > last_bucket) continue;
        s->sorted[n++] = (uint64_t)order_key(x[i]) << 32 | (uint32_t)i;
    }
    sort_entries(s, n);
    return n;
}

/* The first `n` sorted entries' weights by rank. */
static void weigh_sorted(sampler *s, const float *x, float best, float temperature, int32_t n)
{
    for (int32_t i = 0; i < n; i++) s->weights[i] = weight_at(s, distance(best, x[(uint32_t)s->sorted[i]], temperature));
}

/* How many of the first n weights make up `want`, which all of them do. */
static int32_t prefix_of(const sampler *s, int32_t n, double want)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)s->weights[i];
        if (sum >= want) return i + 1;
    }
    return n;
}

/* Sort at least the k best. */
static int32_t gather_top_k(sampler *s, const float *x, float best, float temperature, int32_t k)
{
    memset(s->bucket_count, 0, N_BUCKETS * sizeof *s->bucket_count);
    for (int32_t i = 0; i < s->n_vocab; i++) s->bucket_count[bucket_of(distance(best, x[i], temperature))]++;
    uint32_t bucket = 0;
    for (int64_t n = s->bucket_count[0]; n < k; n += s->bucket_count[bucket]) bucket++;
    gather(s, x, best, temperature, bucket);
    return k;
}

/* Sort at least the entries that reach top_p of the whole mass, by the buckets' masses; returns how many reach it. */
static int32_t gather_top_p(sampler *s, const float *x, float best, const sampling *p)
{
    double total = 0.0;
    for (uint32_t b = 0; b < N_BUCKETS; b++) s->bucket_mass[b] = 0.0;
    for (int32_t i = 0; i < s->n_vocab; i++) {
        float d = distance(best, x[i], p->temperature);
        s->bucket_mass[bucket_of(d)] += (double)weight_at(s, d);
    }
    for (uint32_t b = 0; b < N_BUCKETS; b++) total += s->bucket_mass[b];
    double want = (double)p->top_p * total, mass = s->bucket_mass[0];
    uint32_t bucket = 0;
    while (mass < want) mass += s->bucket_mass[++bucket];
    int32_t n = gather(s, x, best, p->temperature, bucket);
    weigh_sorted(s, x, best, p->temperature, n);
    return prefix_of(s, n, want);
}

/* top_k or top_p, with min_p. */
static int32_t draw_sorted(sampler *s, const float *x, float best, const sampling *p, float u)
{
    int32_t n;
    bool cut_k = p->top_k > 0 && p->top_k < s->n_vocab, cut_p = p->top_p < 1.0f;
    if (cut_k) {
        n = gather_top_k(s, x, best, p->temperature, p->top_k);
        weigh_sorted(s, x, best, p->temperature, n);
        if (cut_p) n = prefix_of(s, n, (double)p->top_p * sum_blocks(s, n));
    } else {
        n = gather_top_p(s, x, best, p);
    }
    while (n > 1 && s->weights[n - 1] < p->min_p) n--;
    double total = sum_blocks(s, n);
    s->last = LAST_SORTED;
    s->last_n = n;
    s->last_total = total;
    return (int32_t)(uint32_t)s->sorted[draw(s, n, total, u)];
}

int32_t sampler_choose(sampler *s, const float *logits, const sampling *p, const sampler_history *h, float u)
{
    s->last = LAST_NONE;
    const float *x = adjust(s, logits, p, h);
    int32_t best = best_of(x, s->n_vocab);
    if (best < 0) return -1;
    if (p->temperature == 0.0f) {
        s->last = LAST_GREEDY;
        s->last_best = best;
        return best;
    }
    bool sorted = (p->top_k > 0 && p->top_k < s->n_vocab) || p->top_p < 1.0f;
    return sorted ? draw_sorted(s, x, x[best], p, u) : draw_by_id(s, x, x[best], p, u);
}

int32_t sampler_next(sampler *s, const float *logits, const sampling *p, const sampler_history *h)
{
    return sampler_choose(s, logits, p, h, sampler_uniform(p->seed, p->id_hash, h->sample, (uint32_t)h->n_output));
}

const float *sampler_probabilities(const sampler *s)
{
    float *out = s->probabilities;
    memset(out, 0, (size_t)s->n_vocab * sizeof *out);
    if (s->last == LAST_GREEDY) out[s->last_best] = 1.0f;
    for (int32_t i = 0; (s->last == LAST_IDS || s->last == LAST_SORTED) && i < s->last_n; i++) {
        int32_t id = s->last == LAST_IDS ? i : (int32_t)(uint32_t)s->sorted[i];
        out[id] = (float)((double)s->weights[i] / s->last_total);
    }
    return out;
}

/* ---- logprobs ---- */

static float clamp_logprob(float v) { return v >= -9999.0f ? v : -9999.0f; }

void logprobs_of(const float *logits, int32_t n_vocab, float lse, int32_t id, int32_t n_top, float *logprob, int32_t *top_ids, float *top_logprobs)
{
    FL_ASSERT(id >= 0 && id < n_vocab);
    *logprob = clamp_logprob(logits[id] - lse);
    int32_t n = 0;                                       /* top_ids[0 .. n) are the best so far, descending, ties by id */
    for (int32_t i = 0; i < n_vocab && n_top > 0; i++) {
        if (n == n_top && !(logits[i] > logits[top_ids[n - 1]])) continue;
        int32_t at = n < n_top ? n++ : n - 1;
        for (; at > 0 && logits[i] > logits[top_ids[at - 1]]; at--) top_ids[at] = top_ids[at - 1];
        top_ids[at] = i;
    }
    for (int32_t i = 0; i < n_top; i++) {
        if (i >= n) top_ids[i] = -1;
        top_logprobs[i] = i < n ? clamp_logprob(logits[top_ids[i]] - lse) : -9999.0f;
    }
}
