/* cuda_sampler.cu - engine/sampler.h's chain on rows of logits that stay on the device: the same ids as on the CPU, bit for bit.
 *
 * A row is a block's. It is read once for its best and least logit (and its NaNs), and then for what it asks:
 *   greedy              nothing more
 *   no top_k, no top_p  once: sums of weights over chunks of ids; the draw's chunk is weighed again
 *   top_k <= THREADS    once: the k-th largest of the threads' own maxima is a bound that k logits at least reach; they are gathered, sorted by (logit, id) and weighed
 *   else                twice: entries and weights in BUCKETS of distance from the best say in which bucket the last one that is kept and the chosen one lie; these buckets are
 *                       gathered, sorted and weighed
 * Where the gathered ones are too many (equal logits) the row is read five times for each question: place_of goes down the digits of (logit, id).
 *
 * Bits     weights come from the CPU's exp and division, and are whole numbers of units (engine/sampler.h), so their sums are exact in any order. Nothing is contracted and no
 *          other row is looked at.
 * Counts   counts [slots, n_vocab]: how often an id is in the slot's output, PROMPT_BIT when it is in its prompt. A chosen id is counted. */
#include "kernels/cuda/cuda_ops.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 512                      /* two rows to a multiprocessor */
#define WARPS (THREADS / 32)
#define EACH 16                          /* logits of a thread that are on their way together: four times four neighbours */
#define CHUNK (32 * EACH)                /* ids of a warp's turn */
#define CAPACITY 2048                    /* entries sorted in shared memory */
#define BUCKETS 2048
#define ID_BITS 20
#define VOCAB_MAX (1 << ID_BITS)
#define DIGIT_BITS 11
#define PROMPT_BIT 0x80000000u
#define HISTORY_LEAST (1 << 19)          /* ids on their way to be counted */
static_assert(VOCAB_MAX / CHUNK <= BUCKETS && 1 << DIGIT_BITS == BUCKETS, "chunks and digits have the buckets' room");

typedef unsigned long long entry;        /* order key << 32 | id: ascending entries are descending logits, then ascending ids */
typedef unsigned long long units;        /* of weight */

/* What a row needs to know, in shared memory. */
typedef struct {
    entry sorted[CAPACITY];
    units sums[CAPACITY];                /* of all entries up to a sorted one, itself among them */
    units mass[BUCKETS + 1];             /* a bucket's (or chunk's) weight; then that of all before it */
    uint32_t n_in[BUCKETS + 1];          /* its entries, likewise; before that, the threads' maxima as order keys */
    units parts[WARPS];
    float best_parts[WARPS], least_parts[WARPS]; int32_t id_parts[WARPS];
    float best, least, bound;
    units kept, above;
    int32_t best_id, n, chosen, is_nan;
} row_state;
static_assert(sizeof(row_state) <= SHARED_LEAST, "every GPU has it");

/* ---- one logit ---- */

typedef struct {
    const float *logits;                 /* of the row */
    const uint32_t *counts;              /* of its slot; NULL without penalties */
    const int32_t *barred; int32_t n_barred, n_vocab;
    float repetition, presence, frequency;
    bool is_even;                        /* four neighbours can be read at once */
} row_logits;

static __device__ __forceinline__ float logit_adjust(const row_logits *r, float x, uint32_t count)
{
    const uint32_t n = count & ~PROMPT_BIT;
    if (count != 0 && r->repetition != 1.0f) x = x > 0.0f ? __fdiv_rn(x, r->repetition) : __fmul_rn(x, r->repetition);
    if (n > 0 && (r->frequency != 0.0f || r->presence != 0.0f)) x = __fsub_rn(__fsub_rn(x, __fmul_rn(r->frequency, static_cast<float>(n))), r->presence);
    return x;
}

static __device__ __forceinline__ int32_t id_of(int32_t first, int i) { return first + i / 4 * 128 + i % 4; }

/* A thread's logits: v[i] is that of id_of(first, i), first a multiple of 4; -inf beyond the vocabulary. */
static __device__ __forceinline__ void logits_take(float (&v)[EACH], const row_logits *r, int32_t first)
{
    uint4 counts[EACH / 4];
    if (r->is_even) {
#pragma unroll
        for (int j = 0; j < EACH / 4; j++) {
            const int32_t id = first + j * 128;
            const float4 x = id < r->n_vocab ? *reinterpret_cast<const float4 *>(r->logits + id) : make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
            v[4 * j] = x.x; v[4 * j + 1] = x.y; v[4 * j + 2] = x.z; v[4 * j + 3] = x.w;
            if (r->counts) counts[j] = id < r->n_vocab ? *reinterpret_cast<const uint4 *>(r->counts + id) : make_uint4(0, 0, 0, 0);
        }
    } else {
#pragma unroll
        for (int i = 0; i < EACH; i++) v[i] = id_of(first, i) < r->n_vocab ? r->logits[id_of(first, i)] : -INFINITY;
#pragma unroll
        for (int j = 0; j < EACH / 4; j++) {
            if (!r->counts) break;
            uint32_t c[4];
#pragma unroll
            for (int k = 0; k < 4; k++) c[k] = first + j * 128 + k < r->n_vocab ? r->counts[first + j * 128 + k] : 0;
            counts[j] = make_uint4(c[0], c[1], c[2], c[3]);
        }
    }
    if (r->counts) {
#pragma unroll
        for (int j = 0; j < EACH / 4; j++) {
            if ((counts[j].x | counts[j].y | counts[j].z | counts[j].w) == 0) continue;
            v[4 * j] = logit_adjust(r, v[4 * j], counts[j].x);
            v[4 * j + 1] = logit_adjust(r, v[4 * j + 1], counts[j].y);
            v[4 * j + 2] = logit_adjust(r, v[4 * j + 2], counts[j].z);
            v[4 * j + 3] = logit_adjust(r, v[4 * j + 3], counts[j].w);
        }
    }
    for (int32_t b = 0; b < r->n_barred; b++)
#pragma unroll
        for (int i = 0; i < EACH; i++) if (r->barred[b] == id_of(first, i)) v[i] = -INFINITY;
}

static __device__ float logit_at(const row_logits *r, int32_t id)
{
    float x = r->logits[id];
    if (r->counts) x = logit_adjust(r, x, r->counts[id]);
    for (int32_t b = 0; b < r->n_barred; b++) if (r->barred[b] == id) x = -INFINITY;
    return x;
}

/* use(v, first) for all of the row, by whole warps. */
template <typename F> static __device__ __forceinline__ void each_logits(const row_logits *r, F use)
{
    for (int32_t chunk = static_cast<int32_t>(threadIdx.x) / 32 * CHUNK; chunk < r->n_vocab; chunk += THREADS * EACH) {
        const int32_t first = chunk + static_cast<int32_t>(threadIdx.x) % 32 * 4;
        float v[EACH];
        logits_take(v, r, first);
        use(v, first);
    }
}

static __device__ __forceinline__ uint32_t order_key(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

static __device__ __forceinline__ float key_logit(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu); }
static __device__ __forceinline__ entry entry_of(float x, int32_t id) { return static_cast<entry>(order_key(x)) << 32 | static_cast<uint32_t>(id); }
static __device__ __forceinline__ float entry_logit(entry e) { return key_logit(static_cast<uint32_t>(e >> 32)); }

/* ---- distances and weights ---- */

/* What makes a weight of a logit. Distances are taken between logits times `by`, and divided by `temperature`, which is the row's times `by`: a power of two that keeps all
 * steps of the division exact where a temperature is tiny. No distance is above FAR, where a weight is 0. */
typedef struct {
    float best, by, temperature, over, most; /* over = 1 / temperature, most = FAR * temperature */
    double grid; units grid_bits;        /* adding it rounds to units: it is 1.5 * 2^52 of them */
    units least_kept;                    /* what min_p leaves weighs as many units at least */
    float scale;                         /* of buckets */
} row_scale;

#define FAR 128.0f

static __device__ __forceinline__ row_scale scale_of(const row_state *s, const ops_sampling *p, int32_t n_vocab)
{
    row_scale c;
    const int bits = max(8, 32 - __clz(n_vocab - 1));
    c.best = s->best;
    c.by = p->temperature < 0x1p-60f ? 0x1p80f : 1.0f;
    c.temperature = __fmul_rn(p->temperature, c.by);
    c.over = __frcp_rn(c.temperature);
    c.most = __fmul_rn(FAR, c.temperature);
    c.grid = __hiloint2double((1023 + bits - 1) << 20 | 1 << 19, 0);
    c.grid_bits = static_cast<units>(__double_as_longlong(c.grid));
    c.least_kept = static_cast<units>(ceil(__dmul_rn(static_cast<double>(p->min_p), __hiloint2double((1023 + 53 - bits) << 20, 0))));
    c.scale = 0.0f;
    return c;
}

/* (best - x) / temperature, to the nearest: the last step of a division whose quotient is next to right already rounds right (Markstein 1990). */
static __device__ __forceinline__ float distance_of(const row_scale *c, float x)
{
    const float a = x == c->best ? 0.0f : fminf(__fmul_rn(__fsub_rn(c->best, x), c->by), c->most);
    float q = __fmul_rn(a, c->over);
    q = __fmaf_rn(__fmaf_rn(-q, c->temperature, a), c->over, q);
    return __fmaf_rn(__fmaf_rn(-q, c->temperature, a), c->over, q);
}

/* exp(-distance) in units: kernels/cpu/lanes_math.h's f_exp, whose 2^n is applied to a result that is 2^64 times as large, so that one step does. */
static __device__ __forceinline__ units weight_at(const row_scale *c, float distance)
{
    const float magic = 0x1.8p23f + 64.0f, shifted = __fmaf_rn(-distance, 0x1.715476p+0f, magic), n = __fsub_rn(shifted, magic);
    float r = __fmaf_rn(-n, 0x1.62e430p-1f, -distance);
    r = __fmaf_rn(-n, -0x1.05c610p-29f, r);
    float q = 0.0013814608f;
    q = __fmaf_rn(q, r, 0.008368711f);
    q = __fmaf_rn(q, r, 0.04166839f);
    q = __fmaf_rn(q, r, 0.16666521f);
    q = __fmaf_rn(q, r, 0.49999994f);
    const float e = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), q, r), 1.0f), w = __uint_as_float(__float_as_uint(e) + (__float_as_uint(shifted) << 23));
    return static_cast<units>(__double_as_longlong(__fma_rn(static_cast<double>(w), 0x1p-64, c->grid))) - c->grid_bits;
}

static __device__ __forceinline__ units weight_of(const row_scale *c, float x) { return weight_at(c, distance_of(c, x)); }

/* ---- the best ---- */

static __device__ __forceinline__ bool is_better(float a, int32_t a_id, float b, int32_t b_id) { return a > b || (a == b && a_id < b_id); }

/* s->best, best_id, is_nan; s->least above -inf; s->n_in: each thread's own maximum. */
static __device__ __noinline__ void find_best(row_state *s, const row_logits r)
{
    float most = -INFINITY, least = INFINITY;
    int32_t id = INT32_MAX, is_nan = 0;
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            is_nan |= v[i] != v[i];
            if (v[i] > most) { most = v[i]; id = id_of(first, i); }
            least = fminf(least, v[i] == -INFINITY ? INFINITY : v[i]);
        }
    });
    s->n_in[threadIdx.x] = order_key(most);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, lane);
        const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, lane);
        least = fminf(least, __shfl_xor_sync(0xffffffffu, least, lane));
        if (is_better(other, other_id, most, id)) { most = other; id = other_id; }
    }
    if (threadIdx.x % 32 == 0) { s->best_parts[threadIdx.x / 32] = most; s->id_parts[threadIdx.x / 32] = id; s->least_parts[threadIdx.x / 32] = least; }
    is_nan = __syncthreads_or(is_nan);
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) {
            if (is_better(s->best_parts[w], s->id_parts[w], most, id)) { most = s->best_parts[w]; id = s->id_parts[w]; }
            least = fminf(least, s->least_parts[w]);
        }
        s->best = most;
        s->least = least;
        s->best_id = id;
        s->is_nan = is_nan;
    }
    __syncthreads();
}

/* ---- sums and sorting ---- */

/* The sum of v over the threads before this one, and over all. */
static __device__ __noinline__ units sum_before(row_state *s, units v, units *all)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    units sum = v, before = 0, total = 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        const units other = __shfl_up_sync(0xffffffffu, sum, step);
        if (lane >= step) sum += other;
    }
    if (lane == 31) s->parts[warp] = sum;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < WARPS; w++) {
        const units part = s->parts[w];
        before += w < warp ? part : 0;
        total += part;
    }
    __syncthreads();
    *all = total;
    return before + sum - v;
}

/* Sort n elements, a power of two, in shared memory: a bitonic network (Batcher 1968). */
template <typename E> static __device__ __noinline__ void sort_shared(E *a, int32_t n)
{
    for (int32_t size = 2; size <= n; size *= 2)
        for (int32_t stride = size / 2; stride > 0; stride /= 2) {
            for (int32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                const int32_t low = 2 * i - (i & (stride - 1)), high = low + stride;
                const E x = a[low], y = a[high];
                if ((x > y) == ((low & size) == 0)) { a[low] = y; a[high] = x; }
            }
            __syncthreads();
        }
}

/* Begin to collect what reaches s->bound: the logit that `k` threads' maxima reach, k in 1 .. THREADS. */
static __device__ void bound_by(row_state *s, int32_t k)
{
    sort_shared(s->n_in, THREADS);
    if (threadIdx.x == 0) { s->n = 0; s->bound = key_logit(s->n_in[k - 1]); }
    __syncthreads();
}

static __device__ __forceinline__ void collect(row_state *s, float x, int32_t id)
{
    const int32_t at = atomicAdd(&s->n, 1);
    if (at < CAPACITY) s->sorted[at] = entry_of(x, id);
}

/* Sort what was collected; false when it does not fit. */
static __device__ bool sort_collected(row_state *s)
{
    int32_t n = 1;
    __syncthreads();
    if (s->n > CAPACITY) return false;
    while (n < s->n) n *= 2;
    for (int32_t i = s->n + threadIdx.x; i < n; i += THREADS) s->sorted[i] = ~0ull;
    __syncthreads();
    sort_shared(s->sorted, n);
    return true;
}

/* ---- buckets ---- */

static __device__ __forceinline__ int32_t bucket_of(const row_scale *c, float distance) { return min(static_cast<int32_t>(__fmul_rn(distance, c->scale)), BUCKETS - 1); }

static __device__ void clear_buckets(row_state *s)
{
    for (int32_t b = threadIdx.x; b <= BUCKETS; b += THREADS) { s->mass[b] = 0; s->n_in[b] = 0; }
    __syncthreads();
}

/* An entry of weight w. Memory has no atomic sum of 64 bits: the low half says when it ran over. */
static __device__ __forceinline__ void put_in_bucket(row_state *s, int32_t b, units w)
{
    uint32_t *half = reinterpret_cast<uint32_t *>(&s->mass[b]);
    const uint32_t low = static_cast<uint32_t>(w), before = atomicAdd(half, low), high = static_cast<uint32_t>(w >> 32) + (before + low < before);
    if (high > 0) atomicAdd(half + 1, high);
    atomicAdd(&s->n_in[b], 1u);
}

/* mass and n_in become sums of the buckets before; [BUCKETS] of all. */
static __device__ __noinline__ void sum_buckets(row_state *s)
{
    const int32_t begin = threadIdx.x * (BUCKETS / THREADS);
    units mass = 0, n = 0, all_mass, all_n;
    __syncthreads();
    for (int32_t b = begin; b < begin + BUCKETS / THREADS; b++) { mass += s->mass[b]; n += s->n_in[b]; }
    mass = sum_before(s, mass, &all_mass);
    n = sum_before(s, n, &all_n);
    for (int32_t b = begin; b < begin + BUCKETS / THREADS; b++) {
        const units own_mass = s->mass[b];
        const uint32_t own_n = s->n_in[b];
        s->mass[b] = mass;
        s->n_in[b] = static_cast<uint32_t>(n);
        mass += own_mass;
        n += own_n;
    }
    if (threadIdx.x == 0) { s->mass[BUCKETS] = all_mass; s->n_in[BUCKETS] = static_cast<uint32_t>(all_n); }
    __syncthreads();
}

/* The first entry that is asked for: at which the sum of weights reaches, or passes, a value; or the n-th one. */
typedef enum { MASS_REACHES, MASS_PASSES, IS_NTH } question_kind;
typedef struct { question_kind kind; double value; uint32_t n; } question;

static __device__ __forceinline__ bool is_answered(const question *q, units mass, uint32_t n)
{
    return q->kind == IS_NTH ? n >= q->n : q->kind == MASS_REACHES ? static_cast<double>(mass) >= q->value : static_cast<double>(mass) > q->value;
}

/* The bucket in which it lies, when what lies before all buckets weighs `mass` and is n entries. */
static __device__ int32_t bucket_with(const row_state *s, const question *q, units mass, uint32_t n)
{
    int32_t low = 0, high = BUCKETS - 1;
    while (low < high) {
        const int32_t middle = (low + high) / 2;
        if (is_answered(q, mass + s->mass[middle + 1], n + s->n_in[middle + 1])) high = middle;
        else low = middle + 1;
    }
    return low;
}

/* Weights by distance: s->mass, n_in; s->above: the weight of what min_p leaves. */
static __device__ __noinline__ void fill_buckets(row_state *s, const row_logits r, const row_scale c)
{
    units above = 0, all;
    clear_buckets(s);
    each_logits(&r, [&](const float (&v)[EACH], int32_t) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float distance = distance_of(&c, v[i]);
            const units w = weight_at(&c, distance);
            if (w == 0) continue;
            put_in_bucket(s, bucket_of(&c, distance), w);
            if (w >= c.least_kept) above += w;
        }
    });
    sum_before(s, above, &all);
    if (threadIdx.x == 0) s->above = all;
    sum_buckets(s);
}

/* ---- draws ---- */

static __device__ int32_t draw_by_id(row_state *s, const row_logits r, const row_scale c, float u)
{
    clear_buckets(s);
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
        units sum = 0;
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const units w = weight_of(&c, v[i]);
            sum += w < c.least_kept ? 0 : w;
        }
#pragma unroll
        for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
        if (threadIdx.x % 32 == 0) s->mass[first / CHUNK] = sum;
    });
    sum_buckets(s);
    const question q = { MASS_PASSES, __dmul_rn(static_cast<double>(u), static_cast<double>(s->mass[BUCKETS])), 0 };
    const int32_t chunk = bucket_with(s, &q, 0, 0), id = chunk * CHUNK + static_cast<int32_t>(threadIdx.x);
    static_assert(CHUNK == THREADS, "an id a thread");
    units w = id < r.n_vocab ? weight_of(&c, logit_at(&r, id)) : 0, all;
    if (w < c.least_kept) w = 0;
    const units before = s->mass[chunk] + sum_before(s, w, &all);
    if (!is_answered(&q, before, 0) && is_answered(&q, before + w, 0)) s->chosen = id;
    __syncthreads();
    return s->chosen;
}

/* Draw from what was collected and sorted: all of some buckets, or, where the row has no buckets, all down to some logit. k: how many are kept, 0 for all. */
static __device__ __noinline__ int32_t draw_sorted(row_state *s, const row_scale c, const ops_sampling *p, uint32_t k, bool has_buckets)
{
    const int32_t n = s->n, each = (n + THREADS - 1) / THREADS, begin = min(static_cast<int32_t>(threadIdx.x) * each, n), end = min(begin + each, n);
    units sum = 0, before = 0, all;
    uint32_t rank = 0, rank_before = 0;
    for (int turn = 0; turn < 2; turn++) {               /* sums of this thread's entries; then of all up to each */
        sum = before;
        rank = rank_before;
        for (int32_t i = begin; i < end; i++) {
            const float distance = distance_of(&c, entry_logit(s->sorted[i]));
            if (has_buckets) {                           /* buckets that were not collected lie between */
                const int32_t b = bucket_of(&c, distance), last = i > 0 ? bucket_of(&c, distance_of(&c, entry_logit(s->sorted[i - 1]))) : -1;
                if (b != last) {
                    sum += s->mass[b] - s->mass[last + 1];
                    rank += s->n_in[b] - s->n_in[last + 1];
                }
            }
            sum += weight_at(&c, distance);
            rank++;
            if (turn == 0) continue;
            s->sums[i] = sum;
            if (rank == k) s->kept = sum;
        }
        if (turn == 1) break;
        units all_ranks;
        before = sum_before(s, sum, &all);
        rank_before = static_cast<uint32_t>(sum_before(s, rank, &all_ranks));
        if (threadIdx.x == 0) {
            s->kept = has_buckets ? s->mass[BUCKETS] : all;
            if (!has_buckets) s->above = all;
        }
        __syncthreads();
    }
    __syncthreads();
    const question last = { MASS_REACHES, __dmul_rn(static_cast<double>(p->top_p), static_cast<double>(s->kept)), 0 };
    __syncthreads();
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const units w = weight_of(&c, entry_logit(s->sorted[i])), with = s->sums[i];
        if (p->top_p < 1.0f && is_answered(&last, with, 0) && !is_answered(&last, with - w, 0)) s->kept = with;
        if (!has_buckets && w < c.least_kept && (i == 0 || weight_of(&c, entry_logit(s->sorted[i - 1])) >= c.least_kept)) s->above = with - w;
    }
    __syncthreads();
    const units kept = s->kept < s->above ? s->kept : s->above;
    const question draw = { MASS_PASSES, __dmul_rn(static_cast<double>(p->u), static_cast<double>(kept)), 0 };
    for (int32_t i = threadIdx.x; i < n; i += THREADS) {
        const units with = s->sums[i];
        if (is_answered(&draw, with, 0) && !is_answered(&draw, with - weight_of(&c, entry_logit(s->sorted[i])), 0)) s->chosen = static_cast<int32_t>(static_cast<uint32_t>(s->sorted[i]));
    }
    __syncthreads();
    return s->chosen;
}

/* The entry itself: its id, and the weight of all up to it in `with`. Digit by digit of key and id, from the highest. */
static __device__ __noinline__ int32_t place_of(row_state *s, const row_logits r, const row_scale c, question q, units *with)
{
    units mass = 0;
    uint32_t n = 0;
    entry found = 0;                                     /* the digits so far */
    for (int top = 32 + ID_BITS; top > 0;) {
        const int bits = min(top, DIGIT_BITS), shift = top - bits;
        clear_buckets(s);
        each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
            for (int i = 0; i < EACH; i++) {
                const entry place = static_cast<entry>(order_key(v[i])) << ID_BITS | static_cast<uint32_t>(id_of(first, i));
                if (place >> top != found) continue;
                const units w = weight_of(&c, v[i]);
                if (w > 0) put_in_bucket(s, static_cast<int32_t>(place >> shift) & ((1 << bits) - 1), w);
            }
        });
        sum_buckets(s);
        const int32_t digit = bucket_with(s, &q, mass, n);
        found = found << bits | static_cast<entry>(digit);
        *with = mass + s->mass[digit + 1];
        mass += s->mass[digit];
        n += s->n_in[digit];
        top = shift;
        __syncthreads();
    }
    return static_cast<int32_t>(found & (VOCAB_MAX - 1));
}

/* Top_k or top_p of a row, however many entries they keep; k = 0 keeps all. */
static __device__ __noinline__ int32_t draw_by_bucket(row_state *s, const row_logits r, row_scale c, const ops_sampling *p, uint32_t k)
{
    const float reach = distance_of(&c, s->least), seen = 26.0f;      /* what is farther than `seen` and weighs something shares the last bucket */
    c.scale = reach > 0.0f ? __fdiv_rn(BUCKETS - 1, fminf(reach, seen)) : 0.0f;
    fill_buckets(s, r, c);
    const units all = s->mass[BUCKETS], above = s->above;
    const bool cuts_k = k > 0 && k < s->n_in[BUCKETS], cuts_p = p->top_p < 1.0f;
    question q = { IS_NTH, 0.0, k };
    const double top_p = static_cast<double>(p->top_p), u = static_cast<double>(p->u);

    /* Buckets of the k-th, of the last that is kept, of the chosen one: first and last bucket in which it may lie. */
    int32_t wanted[3][2] = { { BUCKETS, BUCKETS }, { BUCKETS, BUCKETS }, { 0, 0 } };
    if (cuts_k) wanted[0][0] = wanted[0][1] = bucket_with(s, &q, 0, 0);
    for (int i = 0; i < 2; i++) {
        units kept = cuts_k ? s->mass[wanted[0][i] + i] : all;
        q.kind = MASS_REACHES;
        q.value = __dmul_rn(top_p, static_cast<double>(kept));
        if (cuts_p) {
            wanted[1][i] = bucket_with(s, &q, 0, 0);
            kept = s->mass[wanted[1][i] + i];
        }
        q.kind = MASS_PASSES;
        q.value = __dmul_rn(u, static_cast<double>(kept < above ? kept : above));
        wanted[2][i] = bucket_with(s, &q, 0, 0);
    }
    if (threadIdx.x == 0) s->n = 0;
    __syncthreads();
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const float distance = distance_of(&c, v[i]);
            const int32_t b = bucket_of(&c, distance);
            if ((b >= wanted[0][0] && b <= wanted[0][1]) || (b >= wanted[1][0] && b <= wanted[1][1]) || (b >= wanted[2][0] && b <= wanted[2][1]))
                if (weight_at(&c, distance) > 0) collect(s, v[i], id_of(first, i));
        }
    });
    if (sort_collected(s)) return draw_sorted(s, c, p, cuts_k ? k : 0, true);

    units kept = all;
    q.kind = IS_NTH;
    if (cuts_k) place_of(s, r, c, q, &kept);
    q.kind = MASS_REACHES;
    q.value = __dmul_rn(top_p, static_cast<double>(kept));
    if (cuts_p) place_of(s, r, c, q, &kept);
    q.kind = MASS_PASSES;
    q.value = __dmul_rn(u, static_cast<double>(kept < above ? kept : above));
    return place_of(s, r, c, q, &kept);
}

/* top_k of at most THREADS. */
static __device__ int32_t draw_of_best(row_state *s, const row_logits r, row_scale c, const ops_sampling *p)
{
    bound_by(s, p->top_k);
    const float bound = s->bound;
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
#pragma unroll
        for (int i = 0; i < EACH; i++) if (v[i] >= bound && v[i] > -INFINITY) collect(s, v[i], id_of(first, i));
    });
    if (!sort_collected(s)) return draw_by_bucket(s, r, c, p, static_cast<uint32_t>(p->top_k));
    if (threadIdx.x == 0 && s->n > p->top_k) s->n = p->top_k;
    __syncthreads();
    return draw_sorted(s, c, p, 0, false);
}

/* ---- the kernels ---- */

static __device__ row_logits raw_logits(const float *logits, int32_t row, int32_t n_vocab)
{
    row_logits r = {};
    r.logits = logits + static_cast<size_t>(row) * n_vocab;
    r.n_vocab = n_vocab;
    r.is_even = n_vocab % 4 == 0 && reinterpret_cast<uintptr_t>(logits) % 16 == 0;
    return r;
}

/* With the row's penalties and barred ids. */
static __device__ row_logits logits_of(const float *logits, const ops_sampling *p, const uint32_t *counts, const int32_t *barred, int32_t n_vocab)
{
    row_logits r = raw_logits(logits, p->logits_row, n_vocab);
    r.barred = barred + p->barred_begin;
    r.n_barred = p->n_barred;
    if (!counts || p->count_slot < 0) return r;
    r.counts = counts + static_cast<size_t>(p->count_slot) * n_vocab;
    r.repetition = p->repetition_penalty;
    r.presence = p->presence_penalty;
    r.frequency = p->frequency_penalty;
    r.is_even &= reinterpret_cast<uintptr_t>(counts) % 16 == 0;
    return r;
}

/* One thread's: the row's answer. */
static __device__ void give_id(int32_t *ids, uint32_t *counts, const ops_sampling *p, int32_t row, int32_t id, int32_t n_vocab)
{
    ids[row] = id;
    if (counts && p->count_slot >= 0 && p->is_counted && id >= 0) counts[static_cast<size_t>(p->count_slot) * n_vocab + id]++;
}

static __global__ void __launch_bounds__(THREADS, 2) sample_rows(int32_t *ids, const float *logits, const ops_sampling *rows, const int32_t *barred, uint32_t *counts, int32_t n_vocab)
{
    extern __shared__ __align__(16) unsigned char memory[];
    row_state *s = reinterpret_cast<row_state *>(memory);
    const ops_sampling *p = rows + blockIdx.x;
    const row_logits r = logits_of(logits, p, counts, barred, n_vocab);
    const bool cuts_k = p->top_k > 0 && p->top_k < n_vocab, cuts_p = p->top_p < 1.0f;
    find_best(s, r);
    int32_t id = s->best_id;
    if (p->given_id >= 0) id = s->is_nan ? -1 : p->given_id;
    else if (s->is_nan || s->best == -INFINITY) id = -1;
    else if (p->temperature != 0.0f) {
        const row_scale c = scale_of(s, p, n_vocab);
        if (!cuts_k && !cuts_p) id = draw_by_id(s, r, c, p->u);
        else if (cuts_k && p->top_k <= THREADS) id = draw_of_best(s, r, c, p);
        else id = draw_by_bucket(s, r, c, p, cuts_k ? static_cast<uint32_t>(p->top_k) : 0);
    }
    if (threadIdx.x == 0) give_id(ids, counts, p, blockIdx.x, id, n_vocab);
}

/* The entry that follows `last` in order. */
static __device__ __noinline__ entry entry_behind(row_state *s, const row_logits r, entry last)
{
    entry next = ~0ull;
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const entry e = entry_of(v[i], id_of(first, i));
            if (e > last && e < next && id_of(first, i) < r.n_vocab) next = e;
        }
    });
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) next = min(next, __shfl_xor_sync(0xffffffffu, next, lane));
    if (threadIdx.x % 32 == 0) s->parts[threadIdx.x / 32] = next;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) next = min(next, s->parts[w]);
    __syncthreads();
    return next;
}

/* Raw log-probabilities of the chosen ids and of the n_top best, n_top at most THREADS. A row with NaNs, whose id is -1, may have fewer entries than that: the rest is no id. */
static __global__ void __launch_bounds__(THREADS) best_logprobs(float *logprobs, int32_t *top_ids, float *top_logprobs, const int32_t *ids, const ops_sampling *rows, const float *logits,
                                                                const float *lses, int32_t n_top, int32_t n_vocab)
{
    extern __shared__ __align__(16) unsigned char memory[];
    row_state *s = reinterpret_cast<row_state *>(memory);
    const int32_t row = blockIdx.x;
    const float lse = lses[rows[row].logits_row];
    const row_logits r = raw_logits(logits, rows[row].logits_row, n_vocab);
    if (threadIdx.x == 0 && ids[row] >= 0) logprobs[row] = fmaxf(__fsub_rn(r.logits[ids[row]], lse), -9999.0f);
    if (n_top == 0) return;
    const int32_t k = n_top < n_vocab ? n_top : n_vocab;
    find_best(s, r);
    bound_by(s, k);
    const float bound = s->bound;
    each_logits(&r, [&](const float (&v)[EACH], int32_t first) {
#pragma unroll
        for (int i = 0; i < EACH; i++) if (v[i] >= bound && id_of(first, i) < n_vocab) collect(s, v[i], id_of(first, i));
    });
    const bool fits = sort_collected(s);
    for (int32_t j = threadIdx.x; j < n_top; j += THREADS) {
        const int32_t id = fits && j < min(k, s->n) ? static_cast<int32_t>(static_cast<uint32_t>(s->sorted[j])) : -1;
        top_ids[static_cast<size_t>(row) * n_top + j] = id;
        top_logprobs[static_cast<size_t>(row) * n_top + j] = id >= 0 ? fmaxf(__fsub_rn(r.logits[id], lse), -9999.0f) : -9999.0f;
    }
    __syncthreads();
    entry last = 0;
    for (int32_t j = 0; j < k && !fits; j++) {           /* more equal logits than fit: one after the other */
        last = entry_behind(s, r, last);
        const int32_t id = static_cast<int32_t>(static_cast<uint32_t>(last));
        if (threadIdx.x != 0) continue;
        top_ids[static_cast<size_t>(row) * n_top + j] = id;
        top_logprobs[static_cast<size_t>(row) * n_top + j] = fmaxf(__fsub_rn(r.logits[id], lse), -9999.0f);
    }
}

/* ids of a prompt (PROMPT_BIT) or of an output that was made before */
static __global__ void count_ids(uint32_t *counts, const int32_t *ids, int32_t n, bool is_prompt)
{
    const int32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (is_prompt) atomicOr(&counts[ids[i]], PROMPT_BIT);
    else atomicAdd(&counts[ids[i]], 1u);
}

/* ---- host ---- */

struct cuda_sampler {
    void *staging[2], *lists; size_t list_bytes; int32_t turn;       /* rows and barred ids: pinned, twice, and on the device */
    cudaEvent_t is_copied[2];
    int32_t *history;                                                /* [n_context] ids to count */
    int32_t *history_staging[2], history_turn, n_history, n_history_max;     /* pinned, twice, [n_history_max]: many sequences' one after the other, n_history ids of this turn's so far */
    cudaEvent_t is_history_copied[2];
    int32_t n_rows, n_context, n_vocab, n_begun;
};

static fl_status sampler_fail(ops_cuda *o, cudaError_t e, fl_err *err)
{
    return fl_fail(err, e == cudaErrorMemoryAllocation ? FL_FULL : FL_GPU, "cuda: GPU %d has no memory for the sampler: %s", o->device, cudaGetErrorString(e));
}

static fl_status cuda_sampler_reserve(ops *table, int32_t n_rows, int32_t n_barred, int32_t n_context, int32_t n_vocab, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    if (n_vocab > VOCAB_MAX) return fl_fail(err, FL_UNSUPPORTED, "cuda: a vocabulary of %d tokens; the sampler takes at most %d", n_vocab, VOCAB_MAX);
    sampler_close(o);
    cuda_sampler *s = static_cast<cuda_sampler *>(calloc(1, sizeof *s));
    if (!s) return fl_fail(err, FL_FULL, "cuda: no memory for the sampler");
    o->sampler = s;
    s->n_rows = n_rows;
    s->n_context = n_context;
    s->n_vocab = n_vocab;
    s->list_bytes = static_cast<size_t>(n_rows) * sizeof(ops_sampling) + static_cast<size_t>(n_barred) * sizeof(int32_t);
    cudaError_t e = cudaMalloc(&s->lists, s->list_bytes);
    s->n_history_max = n_context > HISTORY_LEAST ? n_context : HISTORY_LEAST;
    const size_t history_bytes = static_cast<size_t>(s->n_history_max) * sizeof *s->history;
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        if ((e = cudaMallocHost(&s->staging[i], s->list_bytes)) == cudaSuccess) e = cudaEventCreateWithFlags(&s->is_copied[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaMallocHost(reinterpret_cast<void **>(&s->history_staging[i]), history_bytes);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&s->is_history_copied[i], cudaEventDisableTiming);
    }
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&s->history), history_bytes);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(sample_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(row_state));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(best_logprobs, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(row_state));
    return e == cudaSuccess ? FL_OK : sampler_fail(o, e, err);
}

void sampler_close(ops_cuda *o)
{
    cuda_sampler *s = o->sampler;
    if (!s) return;
    for (int i = 0; i < 2; i++) {
        if (s->staging[i]) cudaFreeHost(s->staging[i]);
        if (s->is_copied[i]) cudaEventDestroy(s->is_copied[i]);
        if (s->history_staging[i]) cudaFreeHost(s->history_staging[i]);
        if (s->is_history_copied[i]) cudaEventDestroy(s->is_history_copied[i]);
    }
    if (s->lists) cudaFree(s->lists);
    if (s->history) cudaFree(s->history);
    free(s);
    o->sampler = NULL;
}

static void cuda_sample_begin(ops *table, const ops_sampling *rows, int32_t n_rows, const int32_t *barred, int32_t n_barred)
{
    ops_cuda *o = cuda_of(table);
    cuda_sampler *s = o->sampler;
    const size_t row_bytes = static_cast<size_t>(n_rows) * sizeof *rows, bytes = row_bytes + static_cast<size_t>(n_barred) * sizeof *barred;
    FL_ASSERT(s && n_rows <= s->n_rows && bytes <= s->list_bytes);
    s->n_begun = n_rows;
    if (n_rows == 0 || o->error != cudaSuccess) return;
    s->turn ^= 1;
    char *staging = static_cast<char *>(s->staging[s->turn]);
    if (!cuda_keep(o, cudaEventSynchronize(s->is_copied[s->turn]), "one of the step's kernels")) return;
    memcpy(staging, rows, row_bytes);
    if (n_barred > 0) memcpy(staging + row_bytes, barred, bytes - row_bytes);
    if (!cuda_keep(o, cudaMemcpyAsync(s->lists, staging, bytes, cudaMemcpyHostToDevice, o->stream), "a copy of the sampler's rows to the GPU")) return;
    cuda_keep(o, cudaEventRecord(s->is_copied[s->turn], o->stream), "a copy of the sampler's rows to the GPU");
}

static void cuda_sample(ops *table, int32_t *ids, const float *logits, int32_t n_rows, uint32_t *counts, int32_t n_vocab)
{
    ops_cuda *o = cuda_of(table);
    cuda_sampler *s = o->sampler;
    FL_ASSERT(s && n_rows == s->n_begun && n_vocab == s->n_vocab);
    const ops_sampling *device_rows = static_cast<const ops_sampling *>(s->lists);
    const int32_t *device_barred = reinterpret_cast<const int32_t *>(device_rows + n_rows);
    launch(o, "sample_rows", sample_rows, dim3(n_rows), dim3(THREADS), sizeof(row_state), ids, logits, device_rows, device_barred, counts, n_vocab);
}

static void cuda_sample_logprobs(ops *table, float *logprobs, int32_t *top_ids, float *top_logprobs, const int32_t *ids, const float *logits, const float *lse, int32_t n_top, int32_t n_rows,
                                 int32_t n_vocab)
{
    FL_ASSERT(n_top >= 0 && n_top <= THREADS);
    ops_cuda *o = cuda_of(table);
    launch(o, "best_logprobs", best_logprobs, dim3(n_rows), dim3(THREADS), sizeof(row_state), logprobs, top_ids, top_logprobs, ids, static_cast<const ops_sampling *>(o->sampler->lists), logits, lse,
           n_top, n_vocab);
}

static void cuda_count_ids(ops *table, uint32_t *counts, const int32_t *prompt, int32_t n_prompt, const int32_t *output, int32_t n_output, int32_t n_vocab)
{
    ops_cuda *o = cuda_of(table);
    cuda_sampler *s = o->sampler;
    FL_ASSERT(s && static_cast<int64_t>(n_prompt) + n_output <= s->n_context && n_vocab == s->n_vocab);
    const size_t prompt_bytes = static_cast<size_t>(n_prompt) * sizeof *prompt, output_bytes = static_cast<size_t>(n_output) * sizeof *output;
    if (!cuda_keep(o, cudaMemsetAsync(counts, 0, static_cast<size_t>(n_vocab) * sizeof *counts, o->stream), "clearing counts")) return;
    if (s->n_history + n_prompt + n_output > s->n_history_max) {         /* a sequence's copy is waited for only when the memory comes round again */
        s->history_turn ^= 1;
        s->n_history = 0;
        if (!cuda_keep(o, cudaEventSynchronize(s->is_history_copied[s->history_turn]), "one of the step's kernels")) return;
    }
    int32_t *staging = s->history_staging[s->history_turn] + s->n_history;
    memcpy(staging, prompt, prompt_bytes);
    if (n_output > 0) memcpy(staging + n_prompt, output, output_bytes);
    s->n_history += n_prompt + n_output;
    if (!cuda_keep(o, cudaMemcpyAsync(s->history, staging, prompt_bytes + output_bytes, cudaMemcpyHostToDevice, o->stream), "a copy of ids to count to the GPU")) return;
    cuda_keep(o, cudaEventRecord(s->is_history_copied[s->history_turn], o->stream), "a copy of ids to count to the GPU");
    launch(o, "count_ids", count_ids, dim3((n_prompt + 255) / 256), dim3(256), 0, counts, s->history, n_prompt, true);
    launch(o, "count_ids", count_ids, dim3((n_output + 255) / 256), dim3(256), 0, counts, s->history + n_prompt, n_output, false);
}

void sampler_install(ops_cuda *o)
{
    o->table.sampler_reserve = cuda_sampler_reserve;
    o->table.sample_begin = cuda_sample_begin;
    o->table.sample = cuda_sample;
    o->table.sample_logprobs = cuda_sample_logprobs;
    o->table.count_ids = cuda_count_ids;
}
