/* cuda_attention.cu - softmax attention over paged keys and values: the entry of the table, the merge of splits, and a form on CUDA cores for fp32 mode and for what
 * the forms on tensor cores (cuda_attention_wgmma.cu, cuda_attention_decode.cu) do not take: other GPUs, head_dim not a multiple of 8.
 * Shapes   q [n_rows] heads q_head_stride apart, rows q_stride apart; k, v [n_blocks, n_kv_heads, 64, head_dim]; out [n_rows, n_heads, head_dim].
 *          head_dim 1 .. 256; n_heads a multiple of n_kv_heads.
 * Sums     Queries meet keys in tiles of 32 at absolute positions, ascending, as in online softmax (Milakov & Gimelshein 2018, arXiv:1805.02867). In a tile:
 *          scores are sums over d ascending, the sum of p is lanes of 16 then a tree, p v runs over positions ascending. A tile in which a query sees
 *          nothing changes none of its values.
 *          A prompt's row walks from its first position to its own. A decode row's positions are cut into splits of 256 at absolute positions; their
 *          results are merged in ascending order by a second kernel.
 * Reads    of a query: its own q, and keys and values of its sequence up to the end of its prompt chunk (what it may not see counts nothing, but
 *          a NaN there is not kept from it in the form on tensor cores). Unwritten positions are not read.
 * Memory   partial results of decode rows lie in a scratch taken at install; a batch of more goes in groups of rows, one launch each. It holds one row of any context that reserve takes. */
#include "kernels/cuda/cuda_attention.h"

#include <stdlib.h>

#define LANES 16                         /* threads of a query */
#define QUERIES 16                       /* queries of a block */
#define KEYS 32                          /* a tile */
#define O_PER_LANE (OPS_HEAD_DIM_MAX / LANES)

typedef struct { float m, l, o[O_PER_LANE]; } query_sum;     /* maximum, sum of p, this lane's columns lane + 16 i of p v */

static __device__ float lanes_max(float v)
{
    for (int k = LANES / 2; k > 0; k /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, k));
    return v;
}

static __device__ float lanes_sum(float v)
{
    for (int k = LANES / 2; k > 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
    return v;
}

/* Positions [from, from + KEYS) of x into tile [KEYS, stride]; zeros from `to` on. */
template <typename T> static __device__ void load_tile(float *tile, int stride, const T *x, const attention_call<T> &a, int seq, int kv_head, int from, int to)
{
    const size_t block = (size_t)a.batch.block_tables[(size_t)seq * a.batch.table_stride + from / OPS_BLOCK_TOKENS];
    const T *rows = x + ((block * a.n_kv_heads + kv_head) * OPS_BLOCK_TOKENS + from % OPS_BLOCK_TOKENS) * (size_t)a.head_dim;
    for (int j = threadIdx.x / 32; j < KEYS; j += LANES * QUERIES / 32)
        for (int d = threadIdx.x % 32; d < a.head_dim; d += 32) tile[j * stride + d] = from + j < to ? to_float(rows[j * a.head_dim + d]) : 0.0f;
}

/* This thread's query, q_row in shared memory, sees positions first .. last of the block's range [from, to); from is a multiple of KEYS. */
template <typename T> static __device__ void attend(query_sum &s, const attention_call<T> &a, const float *q_row, float *p_row, float *tile, int stride, int seq, int kv_head,
                                                    int from, int to, int first, int last)
{
    const int lane = threadIdx.x % LANES;
    for (int t = from; t < to; t += KEYS) {
        __syncthreads();
        load_tile(tile, stride, a.k, a, seq, kv_head, t, to);
        __syncthreads();
        float score[KEYS / LANES], most = -INFINITY, sum = 0.0f;
        for (int i = 0; i < KEYS / LANES; i++) {
            const float *key = tile + (lane + i * LANES) * stride;
            const int position = t + lane + i * LANES;
            float dot = 0.0f;
            for (int d = 0; d < a.head_dim; d++) dot += q_row[d] * key[d];
            score[i] = position >= first && position <= last ? dot * a.scale : -INFINITY;
            most = fmaxf(most, score[i]);
        }
        most = fmaxf(s.m, lanes_max(most));
        const float old = most == -INFINITY ? 1.0f : expf(s.m - most);
        for (int i = 0; i < KEYS / LANES; i++) {
            const float p = score[i] == -INFINITY ? 0.0f : expf(score[i] - most);
            p_row[lane + i * LANES] = p;
            sum += p;
        }
        s.m = most;
        s.l = s.l * old + lanes_sum(sum);
        __syncthreads();
        load_tile(tile, stride, a.v, a, seq, kv_head, t, to);
        __syncthreads();
        const int lo = max(first - t, 0), hi = min(last - t + 1, KEYS);
#pragma unroll
        for (int i = 0; i < O_PER_LANE; i++)
            if (lane + i * LANES < a.head_dim) {
                float o = s.o[i] * old;
                for (int j = lo; j < hi; j++) o += p_row[j] * tile[j * stride + lane + i * LANES];
                s.o[i] = o;
            }
    }
}

/* Shared memory of a block: queries, probabilities, a tile. */
static constexpr int row_stride(int head_dim) { return head_dim | 1; }
static constexpr size_t shared_bytes(int head_dim) { return ((size_t)(QUERIES + KEYS) * (size_t)row_stride(head_dim) + QUERIES * KEYS) * sizeof(float); }

static_assert(shared_bytes(OPS_HEAD_DIM_MAX) <= SHARED_LEAST, "every GPU has it");

template <typename T> static __device__ void load_query(float *q_row, const attention_call<T> &a, int row, int head, bool is_there)
{
    for (int d = threadIdx.x % LANES; d < a.head_dim; d += LANES)
        q_row[d] = is_there ? to_float(a.q[(size_t)row * a.q_stride + (size_t)head * a.q_head_stride + d]) : 0.0f;
}

/* Block (x: 16 rows of a prompt tile, y: head). */
template <typename T> static __global__ void __launch_bounds__(LANES * QUERIES) attention_prefill(attention_call<T> a)
{
    extern __shared__ float shared[];
    const int stride = a.head_dim | 1, i = threadIdx.x / LANES, head = blockIdx.y;
    const int part = blockIdx.x % (OPS_BLOCK_TOKENS / QUERIES) * QUERIES;
    const cuda_tile tile = a.batch.tiles[blockIdx.x / (OPS_BLOCK_TOKENS / QUERIES)];
    if (part >= tile.n_rows) return;
    float *q_row = shared + i * stride, *p_row = shared + (QUERIES + KEYS) * stride + i * KEYS;
    const bool is_there = part + i < tile.n_rows;
    const int row = tile.row + part + i, position = tile.position + part + i;
    const int to = tile.position + min(part + QUERIES, tile.n_rows), from = a.window > 0 ? max(tile.position + part + 1 - a.window, 0) / KEYS * KEYS : 0;
    query_sum s = { -INFINITY, 0.0f, { 0.0f } };
    load_query(q_row, a, row, head, is_there);
    attend(s, a, q_row, p_row, shared + QUERIES * stride, stride, tile.seq, head / (a.n_heads / a.n_kv_heads), from, to, a.window > 0 ? max(position + 1 - a.window, 0) : 0,
           position);
    if (!is_there) return;
#pragma unroll
    for (int c = 0; c < O_PER_LANE; c++) {
        const int d = threadIdx.x % LANES + c * LANES;
        if (d < a.head_dim) a.out[((size_t)row * a.n_heads + head) * a.head_dim + d] = from_float<T>(s.o[c] / s.l);
    }
}

/* Block (x: split, y: decode row, z: 16 heads of a group). */
template <typename T> static __global__ void __launch_bounds__(LANES * QUERIES) attention_decode(attention_call<T> a, attention_partial partial)
{
    extern __shared__ float shared[];
    const int group = a.n_heads / a.n_kv_heads, n_parts = (group + QUERIES - 1) / QUERIES;
    const int stride = a.head_dim | 1, i = threadIdx.x / LANES, kv_head = blockIdx.z / n_parts, member = blockIdx.z % n_parts * QUERIES + i, head = kv_head * group + member;
    const cuda_run run = a.batch.decodes[partial.first_row + blockIdx.y];
    const int first = a.window > 0 ? max(run.position + 1 - a.window, 0) : 0, begin = (int)blockIdx.x * ATTENTION_SPLIT, end = min(begin + ATTENTION_SPLIT, run.position + 1);
    if (end <= first || begin >= end) return;
    float *q_row = shared + i * stride, *p_row = shared + (QUERIES + KEYS) * stride + i * KEYS;
    query_sum s = { -INFINITY, 0.0f, { 0.0f } };
    load_query(q_row, a, run.row, head, member < group);
    attend(s, a, q_row, p_row, shared + QUERIES * stride, stride, run.seq, kv_head, max(begin, first / KEYS * KEYS), end, first, run.position);
    if (member >= group) return;
    const bool is_whole = first_split(a, run) == last_split(run);
    float *out = attention_partial_at(partial, blockIdx.y, blockIdx.x, head, a.n_heads, a.head_dim);
    if (threadIdx.x % LANES == 0 && !is_whole) {
        out[0] = s.m;
        out[1] = s.l;
    }
#pragma unroll
    for (int c = 0; c < O_PER_LANE; c++) {
        const int d = threadIdx.x % LANES + c * LANES;
        if (d >= a.head_dim) break;
        if (is_whole) a.out[((size_t)run.row * a.n_heads + head) * a.head_dim + d] = from_float<T>(s.o[c] / s.l);
        else out[ATTENTION_PARTIAL_HEAD + d] = s.o[c];
    }
}

#define MERGED 4                         /* splits whose results are on their way together */

/* Block (x: head, y: decode row): its splits in ascending order, when there are several. */
template <typename T> static __global__ void attention_merge(attention_call<T> a, attention_partial partial)
{
    const int head = blockIdx.x;
    const cuda_run run = a.batch.decodes[partial.first_row + blockIdx.y];
    const int first = first_split(a, run), last = last_split(run);
    if (first == last) return;
    for (int d = threadIdx.x; d < a.head_dim; d += blockDim.x) {
        float m[MERGED], l[MERGED], o[MERGED], most = -INFINITY, all_l = 0.0f, all_o = 0.0f;
        const auto take = [&](int from) {                /* the last one again where there are no more */
#pragma unroll
            for (int i = 0; i < MERGED; i++) {
                const float *p = attention_partial_at(partial, blockIdx.y, min(from + i, last), head, a.n_heads, a.head_dim);
                m[i] = p[0];
                l[i] = p[1];
                o[i] = p[ATTENTION_PARTIAL_HEAD + d];
            }
        };
        for (int s = last - (last - first) % MERGED; s >= first; s -= MERGED) {      /* ends with the first ones, which are summed first */
            take(s);
#pragma unroll
            for (int i = 0; i < MERGED; i++) most = fmaxf(most, m[i]);
        }
        for (int s = first; s <= last; s += MERGED) {
            if (s > first) take(s);
#pragma unroll
            for (int i = 0; i < MERGED; i++) {
                if (s + i > last) break;
                const float by = expf(m[i] - most);
                all_l += l[i] * by;
                all_o += o[i] * by;
            }
        }
        a.out[((size_t)run.row * a.n_heads + head) * a.head_dim + d] = from_float<T>(all_o / all_l);
    }
}

/* ---- host ---- */

typedef struct { float *partials; size_t n_partials; } attention_state;

/* Of a decode row: floats of partial results. */
static size_t partial_floats(int64_t n_splits, int32_t n_heads, int32_t head_dim) { return (size_t)n_splits * (size_t)n_heads * (size_t)(head_dim + ATTENTION_PARTIAL_HEAD); }

fl_status attention_reserve(ops_cuda *o, const ops_limits *limits, fl_err *err)
{
    const attention_state *state = (const attention_state *)o->attention;
    const int64_t context = (int64_t)limits->seq_blocks * OPS_BLOCK_TOKENS, n_splits = (context + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT;
    if (limits->n_heads == 0 || partial_floats(n_splits, limits->n_heads, limits->head_dim) <= state->n_partials) return FL_OK;
    const size_t most = state->n_partials / partial_floats(1, limits->n_heads, limits->head_dim) * ATTENTION_SPLIT;
    return fl_fail(err, FL_UNSUPPORTED, "cuda: with %d heads of %d values a row can have %zu tokens on a GPU, not %lld; lower --max-context", limits->n_heads, limits->head_dim, most,
                   (long long)context);
}

template <typename T> static void cuda_attention(ops *table, act *out, const act *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, float scale,
                                                 int32_t window, const ops_batch *b)
{
    ops_cuda *o = cuda_of(table);
    const attention_state *state = (const attention_state *)o->attention;
    FL_ASSERT(kv->n_kv_heads >= 1 && n_heads % kv->n_kv_heads == 0 && kv->head_dim >= 1 && kv->head_dim <= OPS_HEAD_DIM_MAX && b->n_rows == o->batch.n_rows);
    const attention_call<T> a = { (T *)out, (const T *)q, (const T *)kv->k, (const T *)kv->v, q_stride, q_head_stride, n_heads, kv->n_kv_heads, kv->head_dim, window, scale,
                                  o->batch };
    const size_t shared = shared_bytes(kv->head_dim);
    if (attention_wgmma_takes<T>(o, kv->head_dim)) attention_wgmma_run<T>(o, a);
    else
        launch(o, "attention_prefill", attention_prefill<T>, dim3((unsigned)(o->batch.n_tiles * (OPS_BLOCK_TOKENS / QUERIES)), (unsigned)n_heads), LANES * QUERIES, shared, a);

    const int32_t n_splits = (o->batch.most_context + ATTENTION_SPLIT - 1) / ATTENTION_SPLIT, n_parts = (n_heads / kv->n_kv_heads + QUERIES - 1) / QUERIES;
    const size_t row_floats = partial_floats(n_splits, n_heads, kv->head_dim);
    FL_ASSERT(row_floats <= state->n_partials);          /* attention_reserve has seen to it */
    for (int32_t first = 0, n; first < o->batch.n_decodes; first += n) {
        n = (int32_t)(state->n_partials / row_floats < 65535 ? state->n_partials / row_floats : 65535);
        if (n > o->batch.n_decodes - first) n = o->batch.n_decodes - first;
        const attention_partial partial = { state->partials, n_splits, first };
        if (attention_decode_takes<T>(o, kv->head_dim)) attention_decode_run<T>(o, a, partial, n);
        else launch(o, "attention_decode", attention_decode<T>, dim3((unsigned)n_splits, (unsigned)n, (unsigned)(kv->n_kv_heads * n_parts)), LANES * QUERIES, shared, a, partial);
        if (n_splits > 1) launch(o, "attention_merge", attention_merge<T>, dim3((unsigned)n_heads, (unsigned)n), kv->head_dim <= 64 ? 64 : kv->head_dim <= 128 ? 128 : 256, 0, a, partial);
    }
}

template <typename T> fl_status attention_install(ops_cuda *o, fl_err *err)
{
    attention_state *state = (attention_state *)calloc(1, sizeof *state);
    if (!state) return fl_fail(err, FL_FULL, "cuda: no memory for the attention's state");
    o->attention = state;
    o->table.attention = cuda_attention<T>;
    state->n_partials = ATTENTION_SCRATCH_BYTES / sizeof(float);
    void *partials = NULL;
    fl_status st = o->table.take(&o->table, &partials, ATTENTION_SCRATCH_BYTES, "partial results of attention", err);
    if (st != FL_OK) return st;
    state->partials = (float *)partials;
    cudaError_t e = cudaFuncSetAttribute(attention_prefill<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes(OPS_HEAD_DIM_MAX));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(attention_decode<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes(OPS_HEAD_DIM_MAX));
    if (e == cudaSuccess && o->sm == 90) e = attention_wgmma_install<T>();
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: attention cannot have the shared memory it needs: %s", cudaGetErrorString(e));
    return FL_OK;
}

void attention_close(ops_cuda *o)
{
    attention_state *state = (attention_state *)o->attention;
    if (!state) return;
    o->table.give(&o->table, state->partials, ATTENTION_SCRATCH_BYTES);
    free(state);
    o->attention = NULL;
}

template fl_status attention_install<float>(ops_cuda *, fl_err *);
template fl_status attention_install<__nv_bfloat16>(ops_cuda *, fl_err *);
template fl_status attention_install<__half>(ops_cuda *, fl_err *);
