/* cuda_attention_decode.cu - decode rows' attention on tensor cores (sm_80 and up, 16-bit activations, head_dim a multiple of 8), one pass over the KV at the
 * memory's rate. Everything is turned on its side, so that up to 8 heads of a group are the 8 columns of mma.m16n8k16:
 *
 *   S^T [16 keys, 8 heads]      = K [16, head_dim] Q^T      in steps of 16 columns
 *   O^T [16 columns, 8 heads]  += V^T [16, 16 keys] P^T
 *
 * Loads    Keys and values go from global memory to registers, 16 bytes a lane, in the order in which an operand wants them: a sum over k may take its
 *          terms in any order that both operands share, and rows of a result may be named anew. With g = lane / 4, c = lane mod 4:
 *          - keys: row g (and g + 8) of the 16, columns 32 j + 8 c .. + 7: k-steps 2 j and 2 j + 1 take four of the eight each; Q is read likewise.
 *          - values: rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9, columns 64 i + 8 g .. + 7: rows g and g + 8 of tile (i, j) are columns 64 i + 8 g + 2 j and + 1.
 * Sums     A block has a split of 256 positions at an absolute position, a warp 64 of them (a KV block), 16 at a time, ascending (online softmax); P is rounded
 *          to the activation's type. The warps are merged in ascending order, the splits by attention_merge (cuda_attention.cu). Heads beyond 8 of a group are
 *          other blocks; their bits do not depend on that.
 * Reads    no key or value outside the row's range: they count as zeros. */
#include "kernels/cuda/cuda_attention.h"

#define WARPS 4
#define HEADS 8
#define KEYS 16

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_MMA 0
#else
#define HAS_MMA 1
#endif

template <typename T> struct warp_products;
template <> struct warp_products<__nv_bfloat16> {
    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
    {
#if HAS_MMA
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
    }
    static __device__ __forceinline__ uint32_t pair(float x, float y) { const __nv_bfloat162 v = __floats2bfloat162_rn(x, y); return *(const uint32_t *)&v; }
};
template <> struct warp_products<__half> {
    static __device__ __forceinline__ void mma(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1)
    {
#if HAS_MMA
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#endif
    }
    static __device__ __forceinline__ uint32_t pair(float x, float y) { const __half2 v = __floats2half2_rn(x, y); return *(const uint32_t *)&v; }
};

/* An 8x8 matrix of 16-bit values, one row a quad of lanes, turned. */
static __device__ __forceinline__ uint32_t turn(uint32_t v)
{
#if HAS_MMA
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(v) : "r"(v));
#endif
    return v;
}

static __device__ __forceinline__ uint4 load_16(const void *p, bool is_there) { return is_there ? __ldg((const uint4 *)p) : make_uint4(0, 0, 0, 0); }
static __device__ __forceinline__ uint32_t word(const uint4 &v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/* Values 16-bit: 0 or 1 of two words side by side. */
static __device__ __forceinline__ uint32_t lows(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
static __device__ __forceinline__ uint32_t highs(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/* Keys of 16 positions: k[j][0] of row g, k[j][1] of row g + 8. Values: v[i][0..3] of rows 2 c, 2 c + 1, 2 c + 8, 2 c + 9. lo <= row < hi are read. */
template <typename T, int HD> static __device__ __forceinline__ void load_keys(uint4 (&k)[HD / 32][2], const T *rows, int head_dim, int lo, int hi)
{
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < HD / 32; j++)
#pragma unroll
        for (int r = 0; r < 2; r++) k[j][r] = load_16(rows + (size_t)(g + r * 8) * head_dim + j * 32 + c * 8, g + r * 8 >= lo && g + r * 8 < hi && j * 32 + c * 8 < head_dim);
}
template <typename T, int HD> static __device__ __forceinline__ void load_values(uint4 (&v)[(HD + 63) / 64][4], const T *rows, int head_dim, int lo, int hi)
{
    const int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < (HD + 63) / 64; i++)
#pragma unroll
        for (int r = 0; r < 4; r++) {
            const int row = c * 2 + r % 2 + r / 2 * 8;
            v[i][r] = load_16(rows + (size_t)row * head_dim + i * 64 + g * 8, row >= lo && row < hi && i * 64 + g * 8 < head_dim);
        }
}

/* Q^T as the right operand: lane (g, c) has head g, the columns that its keys have. What is not there is read elsewhere and becomes zeros. */
template <bool ALIGNED, typename T, int HD> static __device__ __forceinline__ void load_queries(uint32_t (&q)[HD / 32][4], const T *head, int head_dim, bool is_there)
{
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < HD / 32; j++) {
        const bool is_here = is_there && j * 32 + c * 8 < head_dim;
        const T *at = head + (is_here ? j * 32 + c * 8 : 0);
        uint4 v = make_uint4(0, 0, 0, 0);
        if constexpr (ALIGNED) v = *(const uint4 *)at;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t pair = ALIGNED ? word(v, i) : (uint32_t)*(const uint16_t *)(at + 2 * i + 1) << 16 | *(const uint16_t *)(at + 2 * i);
            q[j][i] = is_here ? pair : 0;
        }
    }
}

/* m, l of heads 2 c and 2 c + 1 (the same in all g), O^T of columns (i, j): o[i * 4 + j][0, 1] columns 64 i + 8 g + 2 j, [2, 3] the next one. */
template <int HD> struct head_sums { float m[2], l[2], o[(HD + 63) / 64 * 4][4]; };

/* 16 positions. load_next() may load the next keys into k, which are on their way while the values are waited for. */
template <typename T, int HD, typename F> static __device__ __forceinline__ void attend_16(head_sums<HD> &w, const uint32_t (&q)[HD / 32][4], const uint4 (&k)[HD / 32][2],
                                                                                           const uint4 (&v)[(HD + 63) / 64][4], float by, int lo, int hi, F load_next)
{
    const int g = threadIdx.x % 32 / 4;
    float s[4] = { 0.0f, 0.0f, 0.0f, 0.0f };
#pragma unroll
    for (int j = 0; j < HD / 32; j++)
#pragma unroll
        for (int half = 0; half < 2; half++)
            warp_products<T>::mma(s, word(k[j][0], half * 2), word(k[j][1], half * 2), word(k[j][0], half * 2 + 1), word(k[j][1], half * 2 + 1), q[j][half * 2], q[j][half * 2 + 1]);
    load_next();
    float rescale[2], p[4];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const bool is_seen[2] = { g >= lo && g < hi, g + 8 >= lo && g + 8 < hi };
        float most = fmaxf(is_seen[0] ? s[h] : -INFINITY, is_seen[1] ? s[2 + h] : -INFINITY);
        for (int x = 4; x < 32; x *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, x));
        most = fmaxf(most, w.m[h]);
        const bool is_blind = most == -INFINITY;
        const float base = is_blind ? 0.0f : most;
        rescale[h] = is_blind ? 1.0f : exp2f((w.m[h] - most) * by);
        p[h] = is_seen[0] ? exp2f((s[h] - base) * by) : 0.0f;
        p[2 + h] = is_seen[1] ? exp2f((s[2 + h] - base) * by) : 0.0f;
        w.m[h] = most;
        w.l[h] = w.l[h] * rescale[h] + (p[h] + p[2 + h]);            /* of this lane's keys; lanes are summed at the end */
    }
    const uint32_t p0 = turn(warp_products<T>::pair(p[0], p[1])), p1 = turn(warp_products<T>::pair(p[2], p[3]));
#pragma unroll
    for (int i = 0; i < (HD + 63) / 64; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            float (&o)[4] = w.o[i * 4 + j];
            o[0] *= rescale[0];
            o[1] *= rescale[1];
            o[2] *= rescale[0];
            o[3] *= rescale[1];
            warp_products<T>::mma(o, lows(word(v[i][0], j), word(v[i][1], j)), highs(word(v[i][0], j), word(v[i][1], j)), lows(word(v[i][2], j), word(v[i][3], j)),
                             highs(word(v[i][2], j), word(v[i][3], j)), p0, p1);
        }
}

/* Block (x: split, y: KV head and 8 of its heads, z: decode row). */
template <typename T, int HD> static __global__ void __launch_bounds__(32 * WARPS) attention_decode_mma(attention_call<T> a, attention_partial partial)
{
    __shared__ float heads[WARPS][HEADS][2];
    __shared__ float columns[WARPS][HD][HEADS + 1];
    const int group = a.n_heads / a.n_kv_heads, n_parts = (group + HEADS - 1) / HEADS, kv_head = blockIdx.y / n_parts, member = blockIdx.y % n_parts * HEADS;
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    const cuda_run run = a.batch.decodes[partial.first_row + blockIdx.z];
    const int first = a.window > 0 ? max(run.position + 1 - a.window, 0) : 0, split = (int)blockIdx.x * ATTENTION_SPLIT;
    if (split > run.position || split + ATTENTION_SPLIT <= first) return;
    const float by = a.scale * 1.4426950408889634f;
    head_sums<HD> w;
    w.m[0] = w.m[1] = -INFINITY;
    w.l[0] = w.l[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < (HD + 63) / 64 * 4; i++) w.o[i][0] = w.o[i][1] = w.o[i][2] = w.o[i][3] = 0.0f;

    const int begin = split + warp * OPS_BLOCK_TOKENS, lo = max(begin, first / KEYS * KEYS), hi = min(begin + OPS_BLOCK_TOKENS, run.position + 1);
    if (lo < hi) {
        uint32_t q[HD / 32][4];
        const bool is_there = member + g < group;
        const T *head = a.q + (size_t)run.row * a.q_stride + (size_t)(kv_head * group + (is_there ? member + g : 0)) * a.q_head_stride;
        if ((uintptr_t)a.q % 16 == 0 && a.q_stride % 8 == 0 && a.q_head_stride % 8 == 0) load_queries<true, T, HD>(q, head, a.head_dim, is_there);
        else load_queries<false, T, HD>(q, head, a.head_dim, is_there);
        const size_t block = (size_t)a.batch.block_tables[(size_t)run.seq * a.batch.table_stride + begin / OPS_BLOCK_TOKENS];
        const size_t at = (block * a.n_kv_heads + kv_head) * OPS_BLOCK_TOKENS * (size_t)a.head_dim;
        uint4 k[HD / 32][2], v[(HD + 63) / 64][4];
        load_keys<T, HD>(k, a.k + at + (size_t)(lo - begin) * a.head_dim, a.head_dim, first - lo, hi - lo);
        for (int t = lo; t < hi; t += KEYS) {
            load_values<T, HD>(v, a.v + at + (size_t)(t - begin) * a.head_dim, a.head_dim, first - t, hi - t);
            attend_16<T, HD>(w, q, k, v, by, first - t, hi - t, [&] {
                if (t + KEYS < hi) load_keys<T, HD>(k, a.k + at + (size_t)(t + KEYS - begin) * a.head_dim, a.head_dim, first - t - KEYS, hi - t - KEYS);
            });
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float l = w.l[h];
        for (int x = 4; x < 32; x *= 2) l += __shfl_xor_sync(0xffffffffu, l, x);
        if (g == 0) {
            heads[warp][c * 2 + h][0] = w.m[h];
            heads[warp][c * 2 + h][1] = l;
        }
    }
#pragma unroll
    for (int i = 0; i < (HD + 63) / 64 * 4; i++)
#pragma unroll
        for (int x = 0; x < 4; x++) {
            const int column = i / 4 * 64 + g * 8 + i % 4 * 2 + x / 2;
            if (column < HD) columns[warp][column][c * 2 + x % 2] = w.o[i][x];
        }
    __syncthreads();

    /* The warps in ascending order. A warp that saw nothing has m = -infinity: it counts nothing. Maxima of scores become maxima of scaled scores. */
    const bool is_whole = first_split(a, run) == last_split(run);
    for (int i = threadIdx.x; i < min(HEADS, group - member) * a.head_dim; i += 32 * WARPS) {
        const int head = i / a.head_dim, d = i % a.head_dim;
        float most = -INFINITY, l = 0.0f, o = 0.0f;
#pragma unroll
        for (int x = 0; x < WARPS; x++) most = fmaxf(most, heads[x][head][0]);
#pragma unroll
        for (int x = 0; x < WARPS; x++) {
            if (heads[x][head][0] == -INFINITY && heads[x][head][1] == 0.0f) continue;
            const float times = exp2f((heads[x][head][0] - most) * by);
            l += heads[x][head][1] * times;
            o += columns[x][d][head] * times;
        }
        if (is_whole) {
            a.out[((size_t)run.row * a.n_heads + kv_head * group + member + head) * a.head_dim + d] = from_float<T>(o / l);
            continue;
        }
        float *out = attention_partial_at(partial, blockIdx.z, blockIdx.x, kv_head * group + member + head, a.n_heads, a.head_dim);
        if (d == 0) {
            out[0] = most * a.scale;
            out[1] = l;
        }
        out[ATTENTION_PARTIAL_HEAD + d] = o;
    }
}

template <typename T, int HD> static void decode_launch(ops_cuda *o, const attention_call<T> &a, const attention_partial &partial, int n_rows)
{
    const int group = a.n_heads / a.n_kv_heads, n_parts = (group + HEADS - 1) / HEADS;
    launch(o, "attention_decode_mma", attention_decode_mma<T, HD>, dim3((unsigned)partial.n_splits, (unsigned)(a.n_kv_heads * n_parts), (unsigned)n_rows), 32 * WARPS, 0, a, partial);
}

template <typename T> bool attention_decode_takes(const ops_cuda *o, int head_dim) { return o->sm >= 80 && head_dim % 8 == 0; }

template <typename T> void attention_decode_run(ops_cuda *o, const attention_call<T> &a, const attention_partial &partial, int n_rows)
{
    FL_ASSERT((uintptr_t)a.k % 16 == 0 && (uintptr_t)a.v % 16 == 0);
    if (a.head_dim <= 32) decode_launch<T, 32>(o, a, partial, n_rows);
    else if (a.head_dim <= 64) decode_launch<T, 64>(o, a, partial, n_rows);
    else if (a.head_dim <= 96) decode_launch<T, 96>(o, a, partial, n_rows);
    else if (a.head_dim <= 128) decode_launch<T, 128>(o, a, partial, n_rows);
    else decode_launch<T, 256>(o, a, partial, n_rows);
}

template bool attention_decode_takes<__nv_bfloat16>(const ops_cuda *, int);
template bool attention_decode_takes<__half>(const ops_cuda *, int);
template void attention_decode_run<__nv_bfloat16>(ops_cuda *, const attention_call<__nv_bfloat16> &, const attention_partial &, int);
template void attention_decode_run<__half>(ops_cuda *, const attention_call<__half> &, const attention_partial &, int);
