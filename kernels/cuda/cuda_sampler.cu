/* cuda_sampler.cu - engine/sampler.h's chain on rows of logits that stay on the device: the same ids as on the CPU, bit for bit.
 *
 * A row is a block's. It is read once for its best logit (and its NaNs), and a second time for what the row asks:
 *   greedy              nothing more
 *   no top_k, no top_p  sums of weights over blocks of 256 ids; the draw's block is weighed again and walked
 *   top_k or top_p      the few logits that can matter: with k <= THREADS the k-th largest of the threads' own maxima is a bound that k logits at least reach; they
 *                       are gathered, sorted by (logit, id), weighed and cut. top_p alone also sums all weights, and takes a guess at the bound.
 * Where the gathered ones are too many or carry too little (equal logits, a flat distribution, a large k) a second kernel sorts the whole row.
 *
 * Bits     weights come from the CPU's exp, operation for operation; every sum runs in the CPU's order (in 16 lanes and a tree over blocks of 256 ids, one float after
 *          the other over blocks of 256 sorted entries, in double over blocks). Nothing is contracted and no other row is looked at.
 * Counts   counts [slots, n_vocab]: how often an id is in the slot's output, PROMPT_BIT when it is in its prompt. A chosen id is counted. */
#include "kernels/cuda/cuda_ops.h"

#include <stdlib.h>
#include <string.h>

#define THREADS 512                      /* two rows to a multiprocessor */
#define BLOCK 256                        /* of ids or sorted entries that are summed together */
#define LANES 16
#define CAPACITY 4096                    /* entries sorted in shared memory */
#define BLOCKS_MAX 4096                  /* blocks of 256 ids: a vocabulary of 1,048,576 */
#define GUESS 480                        /* top_p alone looks at what the GUESS-th best thread reaches */
#define SLOW_BLOCKS 16
#define PROMPT_BIT 0x80000000u

typedef unsigned long long entry;        /* order key << 32 | id: ascending entries are descending logits, then ascending ids */

/* What a row needs to know, in shared memory. */
typedef struct {
    entry sorted[CAPACITY];
    float weights[CAPACITY];             /* of sorted entries, or of a block of ids */
    float sums[BLOCKS_MAX];              /* of blocks */
    uint32_t keys[THREADS];              /* threads' maxima as order keys */
    float best_parts[THREADS / 32]; int32_t id_parts[THREADS / 32];
    float best, bound;
    double total, want, base;
    int32_t best_id, n, chosen, at, is_nan;
} row_state;

/* ---- one logit ---- */

typedef struct {
    const float *logits;                 /* of the row */
    const uint32_t *counts;              /* of its slot; NULL without penalties */
    const int32_t *barred; int32_t n_barred;
    float repetition, presence, frequency;
} row_logits;

static __device__ __forceinline__ float logit_adjust(const row_logits *r, float x, int32_t id)
{
    if (r->counts) {
        const uint32_t count = r->counts[id], n = count & ~PROMPT_BIT;
        if (count != 0 && r->repetition != 1.0f) x = x > 0.0f ? __fdiv_rn(x, r->repetition) : __fmul_rn(x, r->repetition);
        if (n > 0 && (r->frequency != 0.0f || r->presence != 0.0f)) x = __fsub_rn(__fsub_rn(x, __fmul_rn(r->frequency, static_cast<float>(n))), r->presence);
    }
    for (int32_t i = 0; i < r->n_barred; i++) if (r->barred[i] == id) x = -INFINITY;
    return x;
}

static __device__ __forceinline__ bool is_plain(const row_logits *r) { return !r->counts && r->n_barred == 0; }

static __device__ __forceinline__ float logit_at(const row_logits *r, int32_t id)
{
    const float x = r->logits[id];
    return is_plain(r) ? x : logit_adjust(r, x, id);
}

/* Four neighbours from i, a multiple of 4; -inf beyond the vocabulary. */
static __device__ __forceinline__ void logits_take(float (&v)[4], const row_logits *r, int32_t i, int32_t n_vocab)
{
    if (i + 4 <= n_vocab && reinterpret_cast<uintptr_t>(r->logits + i) % 16 == 0) {
        const float4 x = *reinterpret_cast<const float4 *>(r->logits + i);
        v[0] = x.x; v[1] = x.y; v[2] = x.z; v[3] = x.w;
    } else {
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = i + k < n_vocab ? r->logits[i + k] : -INFINITY;
    }
    if (is_plain(r)) return;
#pragma unroll
    for (int k = 0; k < 4; k++) if (i + k < n_vocab) v[k] = logit_adjust(r, v[k], i + k);
}

static __device__ __forceinline__ uint32_t order_key(float x)
{
    const uint32_t u = __float_as_uint(__fadd_rn(x, 0.0f));
    return u & 0x80000000u ? u : ~u & 0x7fffffffu;
}

static __device__ __forceinline__ float key_logit(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key : ~key & 0x7fffffffu); }

/* kernels/cpu/lanes_math.h's f_exp */
static __device__ __forceinline__ float own_exp(float x)
{
    x = fminf(89.0f, fmaxf(-104.0f, x));
    const float magic = 0x1.8p23f, shifted = __fmaf_rn(x, 0x1.715476p+0f, magic), n = __fsub_rn(shifted, magic);
    float r = __fmaf_rn(-n, 0x1.62e430p-1f, x);
    r = __fmaf_rn(-n, -0x1.05c610p-29f, r);
    float q = 0.0013814608f;
    q = __fmaf_rn(q, r, 0.008368711f);
    q = __fmaf_rn(q, r, 0.04166839f);
    q = __fmaf_rn(q, r, 0.16666521f);
    q = __fmaf_rn(q, r, 0.49999994f);
    float p = __fadd_rn(__fmaf_rn(__fmul_rn(r, r), q, r), 1.0f);
    const int32_t exponent = static_cast<int32_t>(__float_as_uint(shifted) - __float_as_uint(magic)), half = exponent >> 1, rest = exponent - half;
    p = __fmul_rn(p, __int_as_float((half + 127) << 23));
    return __fmul_rn(p, __int_as_float((rest + 127) << 23));
}

static __device__ __forceinline__ float weight_of(float best, float x, float temperature)
{
    return own_exp(-(x == best ? 0.0f : __fdiv_rn(__fsub_rn(best, x), temperature)));
}

/* ---- the best ---- */

static __device__ __forceinline__ bool is_better(float a, int32_t a_id, float b, int32_t b_id) { return a > b || (a == b && a_id < b_id); }

/* s->best, best_id, is_nan; s->keys: each thread's own maximum. */
static __device__ __noinline__ void find_best(row_state *s, const row_logits *r, int32_t n_vocab)
{
    float most = -INFINITY, v[4];
    int32_t id = INT32_MAX, is_nan = 0;
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < n_vocab; i += 4 * THREADS) {
        logits_take(v, r, i, n_vocab);
#pragma unroll
        for (int k = 0; k < 4; k++) {
            is_nan |= v[k] != v[k];
            if (v[k] > most) { most = v[k]; id = i + k; }
        }
    }
    s->keys[threadIdx.x] = order_key(most);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, most, lane);
        const int32_t other_id = __shfl_xor_sync(0xffffffffu, id, lane);
        if (is_better(other, other_id, most, id)) { most = other; id = other_id; }
    }
    if (threadIdx.x % 32 == 0) { s->best_parts[threadIdx.x / 32] = most; s->id_parts[threadIdx.x / 32] = id; }
    is_nan = __syncthreads_or(is_nan);
    if (threadIdx.x == 0) {
        for (int w = 1; w < THREADS / 32; w++)
            if (is_better(s->best_parts[w], s->id_parts[w], most, id)) { most = s->best_parts[w]; id = s->id_parts[w]; }
        s->best = most;
        s->best_id = id;
        s->is_nan = is_nan;
    }
    __syncthreads();
}

/* ---- sorting ---- */

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

/* The logit that `k` threads' maxima reach, k in 1 .. THREADS. */
static __device__ float reached_by(row_state *s, int32_t k)
{
    sort_shared(s->keys, THREADS);
    return key_logit(s->keys[k - 1]);
}

/* Collect what reaches s->bound: s->n of them, sorted when they fit. */
static __device__ __forceinline__ void collect(row_state *s, float x, int32_t id)
{
    if (!(x >= s->bound)) return;
    const int32_t at = atomicAdd(&s->n, 1);
    if (at < CAPACITY) s->sorted[at] = static_cast<entry>(order_key(x)) << 32 | static_cast<uint32_t>(id);
}

static __device__ void sort_collected(row_state *s)
{
    int32_t n = 1;
    __syncthreads();
    if (s->n > CAPACITY) return;
    while (n < s->n) n *= 2;
    for (int32_t i = s->n + threadIdx.x; i < n; i += THREADS) s->sorted[i] = ~0ull;
    __syncthreads();
    sort_shared(s->sorted, n);
}

/* ---- sums and cuts, as engine/sampler.c has them ---- */

/* Weights of the first n sorted entries and their blocks' sums. `weights` and `sums` may be shared or global memory. */
static __device__ __noinline__ void weigh_sorted(const entry *sorted, float *weights, float *sums, float best, float temperature, int32_t n)
{
    for (int32_t i = threadIdx.x; i < n; i += THREADS) weights[i] = weight_of(best, key_logit(static_cast<uint32_t>(sorted[i] >> 32)), temperature);
    __syncthreads();
    for (int32_t b = threadIdx.x; b < (n + BLOCK - 1) / BLOCK; b += THREADS) {
        float sum = 0.0f;
        for (int32_t j = b * BLOCK; j < n && j < (b + 1) * BLOCK; j++) sum = __fadd_rn(sum, weights[j]);
        sums[b] = sum;
    }
    __syncthreads();
}

/* One thread's: the sum over the blocks of n entries. */
static __device__ double sum_blocks(const float *sums, int32_t n)
{
    double total = 0.0;
    for (int32_t b = 0; b < (n + BLOCK - 1) / BLOCK; b++) total = __dadd_rn(total, static_cast<double>(sums[b]));
    return total;
}

/* One thread's: how many of the first n entries make up `want`, at least one; n + 1 when all do not. */
static __device__ int32_t prefix_of(const float *weights, const float *sums, int32_t n, double want)
{
    double base = 0.0;
    for (int32_t b = 0; b < (n + BLOCK - 1) / BLOCK; b++) {
        const double end = __dadd_rn(base, static_cast<double>(sums[b]));
        if (end >= want) {
            float sum = 0.0f;
            for (int32_t j = b * BLOCK; j < n && j < (b + 1) * BLOCK; j++) {
                sum = __fadd_rn(sum, weights[j]);
                if (__dadd_rn(base, static_cast<double>(sum)) >= want) return j + 1;
            }
        }
        base = end;
    }
    return n + 1;
}

/* One thread's: the block in which the running sum passes `target`, and the sum before it. */
static __device__ int32_t block_of(const float *sums, int32_t n_blocks, double target, double *before)
{
    double base = 0.0;
    int32_t b = 0;
    for (; b + 1 < n_blocks; b++) {
        const double end = __dadd_rn(base, static_cast<double>(sums[b]));
        if (end > target) break;
        base = end;
    }
    *before = base;
    return b;
}

/* One thread's: the first of entries begin .. end - 1 at which the sum from `sum` on passes `target`, else the last of any weight; -1 where none has one. */
static __device__ int32_t walk(const float *weights, int32_t begin, int32_t end, double sum, double target)
{
    int32_t last = -1;
    for (int32_t i = begin; i < end; i++) {
        if (weights[i] <= 0.0f) continue;
        last = i;
        sum = __dadd_rn(sum, static_cast<double>(weights[i]));
        if (sum > target) return i;
    }
    return last;
}

/* One thread's: the rank that u draws from n weighed entries, which are cut by top_p of `mass` (want > 0) and min_p first. */
static __device__ __noinline__ int32_t cut_and_draw(float *weights, float *sums, int32_t n, double want, float min_p, float u)
{
    if (want > 0.0) {
        const int32_t keep = prefix_of(weights, sums, n, want);
        n = keep < n ? keep : n;
    }
    while (n > 1 && weights[n - 1] < min_p) n--;
    const int32_t n_blocks = (n + BLOCK - 1) / BLOCK;
    float sum = 0.0f;
    for (int32_t j = (n_blocks - 1) * BLOCK; j < n; j++) sum = __fadd_rn(sum, weights[j]);
    sums[n_blocks - 1] = sum;                            /* the cut leaves less of the last block */
    double base;
    const double target = __dmul_rn(static_cast<double>(u), sum_blocks(sums, n));
    const int32_t b = block_of(sums, n_blocks, target, &base), end = (b + 1) * BLOCK < n ? (b + 1) * BLOCK : n;
    int32_t at = walk(weights, b * BLOCK, end, base, target);
    for (int32_t i = b * BLOCK - 1; at < 0; i--) if (weights[i] > 0.0f) at = i;
    return at;
}

/* ---- weights in id order ---- */

/* s->sums: of each block of 256 ids, in 16 lanes and a tree; what is below min_p weighs nothing. With `collects`, what reaches the bound is collected on the way. */
static __device__ __noinline__ void sum_ids(row_state *s, const row_logits *r, float temperature, float min_p, int32_t n_vocab, bool collects)
{
    const int32_t n_blocks = (n_vocab + BLOCK - 1) / BLOCK, lane = threadIdx.x % LANES;
    for (int32_t b = threadIdx.x / LANES; b < (n_blocks + 1) / 2 * 2; b += THREADS / LANES) {      /* whole warps: two blocks each */
        float x[BLOCK / LANES], sum = 0.0f;
#pragma unroll
        for (int k = 0; k < BLOCK / LANES; k++) {
            const int32_t id = b * BLOCK + k * LANES + lane;
            x[k] = id < n_vocab ? logit_at(r, id) : -INFINITY;
        }
#pragma unroll
        for (int k = 0; k < BLOCK / LANES; k++) {
            const int32_t id = b * BLOCK + k * LANES + lane;
            if (id >= n_vocab) continue;
            const float w = weight_of(s->best, x[k], temperature);
            sum = __fadd_rn(sum, w < min_p ? 0.0f : w);
            if (collects) collect(s, x[k], id);
        }
#pragma unroll
        for (int half = LANES / 2; half > 0; half /= 2) sum = __fadd_rn(sum, __shfl_down_sync(0xffffffffu, sum, half, LANES));
        if (lane == 0 && b < n_blocks) s->sums[b] = sum;
    }
    __syncthreads();
}

static __device__ int32_t draw_by_id(row_state *s, const row_logits *r, const ops_sampling *p, int32_t n_vocab)
{
    sum_ids(s, r, p->temperature, p->min_p, n_vocab, false);
    if (threadIdx.x == 0) {
        s->want = __dmul_rn(static_cast<double>(p->u), sum_blocks(s->sums, n_vocab));
        s->at = block_of(s->sums, (n_vocab + BLOCK - 1) / BLOCK, s->want, &s->base);
        s->chosen = -1;
    }
    __syncthreads();
    for (int32_t b = s->at; b >= 0; b--) {               /* further back only where rounding leaves the walk just short */
        const int32_t begin = b * BLOCK, end = begin + BLOCK < n_vocab ? begin + BLOCK : n_vocab;
        for (int32_t i = begin + threadIdx.x; i < end; i += THREADS) {
            const float w = weight_of(s->best, logit_at(r, i), p->temperature);
            s->weights[i - begin] = w < p->min_p ? 0.0f : w;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            const int32_t at = walk(s->weights, 0, end - begin, b == s->at ? s->base : 0.0, b == s->at ? s->want : INFINITY);
            if (at >= 0) s->chosen = begin + at;
        }
        __syncthreads();
        if (s->chosen >= 0) break;
    }
    return s->chosen;
}

/* ---- the kernels ---- */

static __device__ row_logits logits_of(const float *logits, const ops_sampling *p, const uint32_t *counts, const int32_t *barred, int32_t n_vocab)
{
    row_logits r;
    r.logits = logits + static_cast<size_t>(p->logits_row) * n_vocab;
    r.counts = counts && p->count_slot >= 0 ? counts + static_cast<size_t>(p->count_slot) * n_vocab : NULL;
    r.barred = barred + p->barred_begin;
    r.n_barred = p->n_barred;
    r.repetition = p->repetition_penalty;
    r.presence = p->presence_penalty;
    r.frequency = p->frequency_penalty;
    return r;
}

/* One thread's: the row's answer. */
static __device__ void give_id(int32_t *ids, uint32_t *counts, const ops_sampling *p, int32_t row, int32_t id, int32_t n_vocab)
{
    ids[row] = id;
    if (counts && p->count_slot >= 0 && p->is_counted && id >= 0) counts[static_cast<size_t>(p->count_slot) * n_vocab + id]++;
}

#define ID_SLOW (-2)                     /* for sample_whole to do */

static __global__ void __launch_bounds__(THREADS) sample_rows(int32_t *ids, const float *logits, const ops_sampling *rows, const int32_t *barred, uint32_t *counts, int32_t n_vocab)
{
    extern __shared__ __align__(16) unsigned char memory[];
    row_state *s = reinterpret_cast<row_state *>(memory);
    const ops_sampling *p = rows + blockIdx.x;
    const row_logits r = logits_of(logits, p, counts, barred, n_vocab);
    const bool cuts_k = p->top_k > 0 && p->top_k < n_vocab, cuts_p = p->top_p < 1.0f;
    find_best(s, &r, n_vocab);
    int32_t id = s->best_id;
    if (p->given_id >= 0) {
        id = s->is_nan ? -1 : p->given_id;
    } else if (s->is_nan || s->best == -INFINITY) {
        id = -1;
    } else if (p->temperature != 0.0f && !cuts_k && !cuts_p) {
        id = draw_by_id(s, &r, p, n_vocab);
    } else if (p->temperature != 0.0f && cuts_k && p->top_k > THREADS) {
        id = ID_SLOW;
    } else if (p->temperature != 0.0f) {
        const float bound = reached_by(s, cuts_k ? p->top_k : GUESS);
        if (threadIdx.x == 0) { s->n = 0; s->bound = bound; }
        __syncthreads();
        if (cuts_k) {
            float v[4];
            for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < n_vocab; i += 4 * THREADS) {
                logits_take(v, &r, i, n_vocab);
#pragma unroll
                for (int k = 0; k < 4; k++) if (i + k < n_vocab) collect(s, v[k], i + k);
            }
        } else {
            sum_ids(s, &r, p->temperature, 0.0f, n_vocab, true);
            if (threadIdx.x == 0) s->want = __dmul_rn(static_cast<double>(p->top_p), sum_blocks(s->sums, n_vocab));
        }
        sort_collected(s);
        const int32_t n = cuts_k ? p->top_k : s->n;
        if (s->n > CAPACITY) {
            id = ID_SLOW;
        } else {
            weigh_sorted(s->sorted, s->weights, s->sums, s->best, p->temperature, n);
            if (threadIdx.x == 0) {
                if (cuts_k) s->want = cuts_p ? __dmul_rn(static_cast<double>(p->top_p), sum_blocks(s->sums, n)) : 0.0;
                const bool reaches = cuts_k || prefix_of(s->weights, s->sums, n, s->want) <= n;
                s->chosen = reaches ? static_cast<int32_t>(static_cast<uint32_t>(s->sorted[cut_and_draw(s->weights, s->sums, n, s->want, p->min_p, p->u)])) : ID_SLOW;
            }
            __syncthreads();
            id = s->chosen;
        }
    }
    if (threadIdx.x == 0) {
        if (id == ID_SLOW) ids[blockIdx.x] = ID_SLOW;
        else give_id(ids, counts, p, blockIdx.x, id, n_vocab);
    }
}

/* Sort 2^k entries in global memory: pieces of CAPACITY in shared memory, strides beyond them in place. */
static __device__ __noinline__ void sort_whole(entry *a, int32_t n, entry *piece)
{
    for (int32_t size = CAPACITY; size <= n; size *= 2) {
        for (int32_t stride = size / 2; size > CAPACITY && stride >= CAPACITY; stride /= 2) {
            for (int32_t i = threadIdx.x; i < n / 2; i += THREADS) {
                const int32_t low = 2 * i - (i & (stride - 1)), high = low + stride;
                const entry x = a[low], y = a[high];
                if ((x > y) == ((low & size) == 0)) { a[low] = y; a[high] = x; }
            }
            __syncthreads();
        }
        for (int32_t begin = 0; begin < n; begin += CAPACITY) {
            for (int32_t i = threadIdx.x; i < CAPACITY; i += THREADS) piece[i] = a[begin + i];
            __syncthreads();
            for (int32_t level = size == CAPACITY ? 2 : CAPACITY; level <= CAPACITY; level *= 2)
                for (int32_t stride = level / 2; stride > 0; stride /= 2) {
                    for (int32_t i = threadIdx.x; i < CAPACITY / 2; i += THREADS) {
                        const int32_t low = 2 * i - (i & (stride - 1)), high = low + stride;
                        const entry x = piece[low], y = piece[high];
                        const bool ascends = level < CAPACITY ? (low & level) == 0 : ((begin + low) & size) == 0;
                        if ((x > y) == ascends) { piece[low] = y; piece[high] = x; }
                    }
                    __syncthreads();
                }
            for (int32_t i = threadIdx.x; i < CAPACITY; i += THREADS) a[begin + i] = piece[i];
            __syncthreads();
        }
    }
}

/* Rows that sample_rows left: the whole row in order. entries [gridDim.x, n_padded], weights [gridDim.x, n_padded]. */
static __global__ void __launch_bounds__(THREADS) sample_whole(int32_t *ids, const float *logits, const ops_sampling *rows, const int32_t *barred, uint32_t *counts, int32_t n_rows, int32_t n_vocab,
                                                               entry *entries, float *weights, int32_t n_padded)
{
    extern __shared__ __align__(16) unsigned char memory[];
    row_state *s = reinterpret_cast<row_state *>(memory);
    entries += static_cast<size_t>(blockIdx.x) * n_padded;
    weights += static_cast<size_t>(blockIdx.x) * n_padded;
    for (int32_t row = blockIdx.x; row < n_rows; row += gridDim.x) {
        if (ids[row] != ID_SLOW) continue;               /* each block sees its own rows only */
        const ops_sampling *p = rows + row;
        const row_logits r = logits_of(logits, p, counts, barred, n_vocab);
        const bool cuts_k = p->top_k > 0 && p->top_k < n_vocab, cuts_p = p->top_p < 1.0f;
        find_best(s, &r, n_vocab);
        if (!cuts_k) {
            sum_ids(s, &r, p->temperature, 0.0f, n_vocab, false);
            if (threadIdx.x == 0) s->want = __dmul_rn(static_cast<double>(p->top_p), sum_blocks(s->sums, n_vocab));
        }
        for (int32_t i = threadIdx.x; i < n_padded; i += THREADS) entries[i] = i < n_vocab ? static_cast<entry>(order_key(logit_at(&r, i))) << 32 | static_cast<uint32_t>(i) : ~0ull;
        __syncthreads();
        sort_whole(entries, n_padded, s->sorted);
        const int32_t n = cuts_k ? p->top_k : n_vocab;
        weigh_sorted(entries, weights, s->sums, s->best, p->temperature, n);
        if (threadIdx.x == 0) {
            if (cuts_k) s->want = cuts_p ? __dmul_rn(static_cast<double>(p->top_p), sum_blocks(s->sums, n)) : 0.0;
            give_id(ids, counts, p, row, static_cast<int32_t>(static_cast<uint32_t>(entries[cut_and_draw(weights, s->sums, n, s->want, p->min_p, p->u)])), n_vocab);
        }
        __syncthreads();
    }
}

/* Raw log-probabilities of the chosen ids and of the n_top best, n_top at most TOP_MAX. */
static __global__ void __launch_bounds__(THREADS) best_logprobs(float *logprobs, int32_t *top_ids, float *top_logprobs, const int32_t *ids, const ops_sampling *rows, const float *logits,
                                                                const float *lses, int32_t n_top, int32_t n_vocab)
{
    extern __shared__ __align__(16) unsigned char memory[];
    row_state *s = reinterpret_cast<row_state *>(memory);
    const int32_t row = blockIdx.x;
    const float lse = lses[rows[row].logits_row];
    row_logits r = {};
    r.logits = logits + static_cast<size_t>(rows[row].logits_row) * n_vocab;
    if (threadIdx.x == 0 && ids[row] >= 0) logprobs[row] = fmaxf(__fsub_rn(r.logits[ids[row]], lse), -9999.0f);
    if (n_top == 0) return;
    const int32_t k = n_top < n_vocab ? n_top : n_vocab;
    find_best(s, &r, n_vocab);
    const float bound = reached_by(s, k);
    if (threadIdx.x == 0) { s->n = 0; s->bound = bound; }
    __syncthreads();
    float v[4];
    for (int32_t i = static_cast<int32_t>(threadIdx.x) * 4; i < n_vocab; i += 4 * THREADS) {
        logits_take(v, &r, i, n_vocab);
#pragma unroll
        for (int j = 0; j < 4; j++) if (i + j < n_vocab) collect(s, v[j], i + j);
    }
    sort_collected(s);
    const bool fits = s->n <= CAPACITY;
    for (int32_t j = threadIdx.x; j < n_top; j += THREADS) {
        const int32_t id = fits && j < k ? static_cast<int32_t>(static_cast<uint32_t>(s->sorted[j])) : -1;
        top_ids[static_cast<size_t>(row) * n_top + j] = id;
        top_logprobs[static_cast<size_t>(row) * n_top + j] = id >= 0 ? fmaxf(__fsub_rn(r.logits[id], lse), -9999.0f) : -9999.0f;
    }
    __syncthreads();
    if (fits || threadIdx.x != 0) return;                /* more equal logits than fit: the lowest ids of the bound fill what the better ones leave */
    int32_t n = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        const float x = r.logits[i];
        int32_t *best = top_ids + static_cast<size_t>(row) * n_top, at;
        if (!(x >= bound) || (n == k && !(x > r.logits[best[n - 1]]))) continue;
        at = n < k ? n++ : n - 1;
        for (; at > 0 && x > r.logits[best[at - 1]]; at--) best[at] = best[at - 1];
        best[at] = i;
    }
    for (int32_t j = 0; j < n; j++)
        top_logprobs[static_cast<size_t>(row) * n_top + j] = fmaxf(__fsub_rn(r.logits[top_ids[static_cast<size_t>(row) * n_top + j]], lse), -9999.0f);
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
    entry *entries; float *weights; int32_t n_padded;                /* of sample_whole */
    int32_t *history, *history_staging[2]; int32_t history_turn;     /* [n_context] ids to count: on the device, and pinned */
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
    if (n_vocab > BLOCKS_MAX * BLOCK) return fl_fail(err, FL_UNSUPPORTED, "cuda: a vocabulary of %d tokens; the sampler takes at most %d", n_vocab, BLOCKS_MAX * BLOCK);
    sampler_close(o);
    cuda_sampler *s = static_cast<cuda_sampler *>(calloc(1, sizeof *s));
    if (!s) return fl_fail(err, FL_FULL, "cuda: no memory for the sampler");
    o->sampler = s;
    s->n_rows = n_rows;
    s->n_context = n_context;
    s->n_vocab = n_vocab;
    s->list_bytes = static_cast<size_t>(n_rows) * sizeof(ops_sampling) + static_cast<size_t>(n_barred) * sizeof(int32_t);
    s->n_padded = CAPACITY;
    while (s->n_padded < n_vocab) s->n_padded *= 2;
    cudaError_t e = cudaMalloc(&s->lists, s->list_bytes);
    const size_t history_bytes = static_cast<size_t>(n_context) * sizeof *s->history;
    for (int i = 0; i < 2 && e == cudaSuccess; i++) {
        if ((e = cudaMallocHost(&s->staging[i], s->list_bytes)) == cudaSuccess) e = cudaEventCreateWithFlags(&s->is_copied[i], cudaEventDisableTiming);
        if (e == cudaSuccess) e = cudaMallocHost(reinterpret_cast<void **>(&s->history_staging[i]), history_bytes);
        if (e == cudaSuccess) e = cudaEventCreateWithFlags(&s->is_history_copied[i], cudaEventDisableTiming);
    }
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&s->entries), static_cast<size_t>(SLOW_BLOCKS) * s->n_padded * sizeof(entry));
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&s->weights), static_cast<size_t>(SLOW_BLOCKS) * s->n_padded * sizeof(float));
    if (e == cudaSuccess) e = cudaMalloc(reinterpret_cast<void **>(&s->history), history_bytes);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(sample_rows, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(row_state));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(sample_whole, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(row_state));
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
    if (s->entries) cudaFree(s->entries);
    if (s->weights) cudaFree(s->weights);
    free(s);
    o->sampler = NULL;
}

/* The launches of cuda_sample depend on the number of rows alone. */
static uint32_t cuda_sample_begin(ops *table, const ops_sampling *rows, int32_t n_rows, const int32_t *barred, int32_t n_barred)
{
    ops_cuda *o = cuda_of(table);
    cuda_sampler *s = o->sampler;
    const size_t row_bytes = static_cast<size_t>(n_rows) * sizeof *rows, bytes = row_bytes + static_cast<size_t>(n_barred) * sizeof *barred;
    FL_ASSERT(s && n_rows <= s->n_rows && bytes <= s->list_bytes);
    s->n_begun = n_rows;
    if (n_rows == 0 || o->error != cudaSuccess) return 0;
    s->turn ^= 1;
    char *staging = static_cast<char *>(s->staging[s->turn]);
    if (!cuda_keep(o, cudaEventSynchronize(s->is_copied[s->turn]), "one of the step's kernels")) return 0;
    memcpy(staging, rows, row_bytes);
    if (n_barred > 0) memcpy(staging + row_bytes, barred, bytes - row_bytes);
    if (!cuda_keep(o, cudaMemcpyAsync(s->lists, staging, bytes, cudaMemcpyHostToDevice, o->stream), "a copy of the sampler's rows to the GPU")) return 0;
    cuda_keep(o, cudaEventRecord(s->is_copied[s->turn], o->stream), "a copy of the sampler's rows to the GPU");
    return 0;
}

static void cuda_sample(ops *table, int32_t *ids, const float *logits, int32_t n_rows, uint32_t *counts, int32_t n_vocab)
{
    ops_cuda *o = cuda_of(table);
    cuda_sampler *s = o->sampler;
    FL_ASSERT(s && n_rows == s->n_begun && n_vocab == s->n_vocab);
    const ops_sampling *device_rows = static_cast<const ops_sampling *>(s->lists);
    const int32_t *device_barred = reinterpret_cast<const int32_t *>(device_rows + n_rows);
    launch(o, "sample_rows", sample_rows, dim3(n_rows), dim3(THREADS), sizeof(row_state), ids, logits, device_rows, device_barred, counts, n_vocab);
    launch(o, "sample_whole", sample_whole, dim3(n_rows < SLOW_BLOCKS ? n_rows : SLOW_BLOCKS), dim3(THREADS), sizeof(row_state), ids, logits, device_rows, device_barred, counts, n_rows, n_vocab,
           s->entries, s->weights, s->n_padded);
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
    const int32_t turn = s->history_turn ^= 1;
    if (!cuda_keep(o, cudaEventSynchronize(s->is_history_copied[turn]), "one of the step's kernels")) return;
    memcpy(s->history_staging[turn], prompt, prompt_bytes);
    if (n_output > 0) memcpy(s->history_staging[turn] + n_prompt, output, output_bytes);
    if (!cuda_keep(o, cudaMemcpyAsync(s->history, s->history_staging[turn], prompt_bytes + output_bytes, cudaMemcpyHostToDevice, o->stream), "a copy of ids to count to the GPU")) return;
    cuda_keep(o, cudaEventRecord(s->is_history_copied[turn], o->stream), "a copy of ids to count to the GPU");
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
