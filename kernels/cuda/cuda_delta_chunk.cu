/* cuda_delta_chunk.cu - prompts' gated delta rule on tensor cores, a chunk of 64 positions at a time (Yang et al. 2024, arXiv:2412.06464; the form with the inverse of a
 * unit triangular matrix). sm_80 and up, 16-bit activations, dk a multiple of 8 up to 128, dv a multiple of 8, and a GPU whose blocks can have the shared memory: with dk up to 64 it
 * is 161 KB (sm_80 and 9.0 have it, 8.6, 8.9 and 12.0 have 99 KB), above that 202 KB; elsewhere prompts go row by row. Within a chunk, with G_t the sum of log decays up to
 * row t, k and q normalized, S the state before the chunk:
 *
 *   A_ti = beta_t exp(G_t - G_i) k_t k_i  (i < t)      P_ti = exp(G_t - G_i) q_t k_i  (i <= t)      both, and the inverse T = (I + A)^-1, by delta_prepare: a block
 *                                                                                                   a chunk and head
 *   R_t  = beta_t (v_t - exp(G_t) S^T k_t)             by delta_chunks: a block has 16 or 32 columns of a head's state in registers and walks over the
 *   U    = T R                                         sequence's chunks
 *   out_t = exp(G_t) S^T q_t + sum_i P_ti U_i
 *   S    = exp(G_63) S + sum_i exp(G_63 - G_i) k_i U_i^T
 *
 * Sums     fp32 on tensor cores in steps of 16, ascending. k, q and v enter as they are stored; their norms are factors in fp32. What is fp32 (S, R, T, P, U) enters as
 *          the sum of two 16-bit values, high + low, and of their products all but low times low are kept: 16 bits of fraction with bf16. T: 16 x 16 blocks in fp32,
 *          forward substitution on the diagonal, the others by distance from it. S stays in fp32 from chunk to chunk.
 * Bits     A row's values depend on rows up to its own: those behind it in its chunk are multiplied by zeros (or are zeros: behind the last row of a prompt). Chunks begin at
 *          absolute positions, so how many come in a step changes nothing, nor does the number of columns of a block.
 * Memory   T, P and the factors of a launch's chunks lie in a scratch taken at install; a batch of more chunks takes several launches. */
#include "kernels/cuda/cuda_delta.h"

#include <stdlib.h>

#define ROWS OPS_BLOCK_TOKENS            /* of a chunk */
#define THREADS 256
#define SCRATCH_BYTES ((size_t)64 << 20)
#define SQUARE (ROWS + 8)                /* stride of a 64 x 64 matrix in shared memory: 16-byte pieces of 8 rows lie in different banks */

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#define HAS_MMA 0
#else
#define HAS_MMA 1
#endif

/* What delta_prepare gives for a chunk and head. Blocks above the diagonal are not written and not multiplied. */
template <typename T> struct chunk_parts {
    T inverse[2][ROWS][ROWS], mix[2][ROWS][ROWS];        /* T and P, high and low */
    float beta[ROWS];
    float k_in[ROWS], q_in[ROWS];        /* exp(G_t) over the lengths of k and q (q's scale in it) */
    float k_out[ROWS];                   /* exp(G_63 - G_t) over the length of k */
    float last[4];                       /* [0] exp(G_63) */
};

/* ---- tensor cores ---- */

template <typename T> static __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if HAS_MMA
    if constexpr (sizeof(T) == 2 && !std::is_same<T, __half>::value)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

#if HAS_MMA
static __device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }
#endif
static __device__ __forceinline__ void load_4(uint32_t (&v)[4], const void *row)
{
#if HAS_MMA
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
#endif
}
static __device__ __forceinline__ void load_4_turned(uint32_t (&v)[4], const void *row)
{
#if HAS_MMA
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(shared_address(row)) : "memory");
#endif
}

/* Left operand: rows row .. + 15, columns column .. + 15 of m. */
template <typename T> static __device__ __forceinline__ void left(uint32_t (&a)[4], const T *m, int stride, int row, int column)
{
    const int lane = threadIdx.x % 32;
    load_4(a, m + (row + lane % 16) * stride + column + lane / 16 * 8);
}
/* Left operand from the transpose of m: its rows are m's columns. */
template <typename T> static __device__ __forceinline__ void left_turned(uint32_t (&a)[4], const T *m, int stride, int row, int column)
{
    const int lane = threadIdx.x % 32;
    load_4_turned(a, m + (column + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8);
}
/* Right operands of two tiles of 8 columns: rows row .. + 15 of m, columns column .. + 15: b[0], b[1] and b[2], b[3]. */
template <typename T> static __device__ __forceinline__ void right(uint32_t (&b)[4], const T *m, int stride, int row, int column)
{
    const int lane = threadIdx.x % 32;
    load_4_turned(b, m + (row + lane % 16) * stride + column + lane / 16 * 8);
}
/* The same from the transpose of m: its columns are m's rows. */
template <typename T> static __device__ __forceinline__ void right_turned(uint32_t (&b)[4], const T *m, int stride, int row, int column)
{
    const int lane = threadIdx.x % 32;
    load_4(b, m + (column + lane / 16 * 8 + lane % 8) * stride + row + lane / 8 % 2 * 8);
}

template <typename T> static __device__ __forceinline__ T low_of(float v, T high) { return from_float<T>(v - to_float(high)); }

static __device__ __forceinline__ uint32_t side_by_side(__nv_bfloat16 x, __nv_bfloat16 y) { return (uint32_t)__bfloat16_as_ushort(y) << 16 | __bfloat16_as_ushort(x); }
static __device__ __forceinline__ uint32_t side_by_side(__half x, __half y) { return (uint32_t)__half_as_ushort(y) << 16 | __half_as_ushort(x); }

/* Two neighbouring values, 4-byte aligned, as high and low. Stored as words: nvcc 13.0 makes single bytes of a memcpy of two 16-bit floats and converts them to numbers. */
template <typename T> static __device__ __forceinline__ void put_split(T *high, T *low, float x, float y)
{
    const T hx = from_float<T>(x), hy = from_float<T>(y);
    *(uint32_t *)high = side_by_side(hx, hy);
    *(uint32_t *)low = side_by_side(low_of(x, hx), low_of(y, hy));
}

static __device__ __forceinline__ void copy_16(void *to, const void *from, bool is_there)
{
#if HAS_MMA
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(shared_address(to)), "l"(from), "r"(is_there ? 16 : 0) : "memory");
#endif
}
static __device__ __forceinline__ void copy_wait(void)
{
#if HAS_MMA
    asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

/* n_columns (a multiple of 8) of a chunk's rows; zeros behind the last row and behind n_there columns. */
template <typename T, int STRIDE> static __device__ void copy_rows(T *to, const T *from, size_t row_stride, int n_rows, int n_columns, int n_there)
{
    const int n_pieces = n_columns / 8;
    for (int i = threadIdx.x; i < ROWS * n_pieces; i += THREADS) {
        const int row = i / n_pieces, piece = i % n_pieces;
        const bool is_there = row < n_rows && piece * 8 < n_there;
        copy_16(to + row * STRIDE + piece * 8, is_there ? from + (size_t)row * row_stride + piece * 8 : from, is_there);
    }
}

/* ---- what a chunk is by itself ---- */

/* blocks: A, then scratch for its inverse, fp32 [64][65]. */
template <typename T, int DK> struct prepare_shared { T k[ROWS][DK + 8], q[ROWS][DK + 8]; float a[ROWS][ROWS + 1], t[ROWS][ROWS + 1], m[3][16][17], sum[ROWS], k_by[ROWS], q_by[ROWS], beta[ROWS]; };

/* t = (I + a)^-1 for a strictly lower a; blocks above the diagonal are left as they are. */
static __device__ void invert(float (&t)[ROWS][ROWS + 1], const float (&a)[ROWS][ROWS + 1], float (&m)[3][16][17])
{
    if (threadIdx.x < ROWS) {                            /* a thread: a column of a diagonal block */
        const int b = threadIdx.x / 16 * 16, c = threadIdx.x % 16;
        float x[16];
#pragma unroll
        for (int r = 0; r < 16; r++) {
            float sum = r == c ? 1.0f : 0.0f;
#pragma unroll
            for (int s = 0; s < r; s++) sum -= a[b + r][b + s] * x[s];
            x[r] = r < c ? 0.0f : sum;
            t[b + r][b + c] = x[r];
        }
    }
    __syncthreads();
    const int r = threadIdx.x / 16, c = threadIdx.x % 16;
    for (int distance = 1; distance < 4; distance++) {
        for (int i = distance; i < 4; i++) {
            float sum = 0.0f;
            for (int s = (i - distance) * 16; s < i * 16; s++) sum += a[i * 16 + r][s] * t[s][(i - distance) * 16 + c];
            m[i - distance][r][c] = sum;
        }
        __syncthreads();
        for (int i = distance; i < 4; i++) {
            float sum = 0.0f;
#pragma unroll
            for (int s = 0; s < 16; s++) sum -= t[i * 16 + r][i * 16 + s] * m[i - distance][s][c];
            t[i * 16 + r][(i - distance) * 16 + c] = sum;
        }
        __syncthreads();
    }
}

/* Block (x: value head, y: chunk of the launch). */
template <typename T, int DK> static __global__ void __launch_bounds__(THREADS) delta_prepare(delta_call<T> a, chunk_parts<T> *parts, int first_tile)
{
    extern __shared__ __align__(16) char raw[];
    prepare_shared<T, DK> &sh = *(prepare_shared<T, DK> *)raw;
    const int head = blockIdx.x, key_head = key_head_of(a, head), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const cuda_tile tile = a.batch.tiles[first_tile + blockIdx.y];
    const size_t dim = 2 * (size_t)a.n_k_heads * a.dk + (size_t)a.n_v_heads * a.dv;
    const T *q = a.qkv + (size_t)tile.row * dim + (size_t)key_head * a.dk, *k = q + (size_t)a.n_k_heads * a.dk;
    chunk_parts<T> &out = parts[(size_t)blockIdx.y * a.n_v_heads + head];
    copy_rows<T, DK + 8>(sh.k[0], k, dim, tile.n_rows, DK, a.dk);
    copy_rows<T, DK + 8>(sh.q[0], q, dim, tile.n_rows, DK, a.dk);
    if (threadIdx.x < ROWS) {
        const int t = threadIdx.x;
        const size_t at = (size_t)(tile.row + t) * a.n_v_heads + head;
        float sum = t < tile.n_rows ? -expf(a.a_log[head]) * softplus(a.a[at] + a.dt_bias[head]) : 0.0f;
        for (int step = 1; step < 32; step *= 2) {
            const float before = __shfl_up_sync(0xffffffffu, sum, step);
            if (lane >= step) sum += before;
        }
        sh.sum[t] = sum;
        sh.beta[t] = t < tile.n_rows ? sigmoid(a.b[at]) : 0.0f;
    }
    copy_wait();
    __syncthreads();
    float upper = 0.0f;
    if (threadIdx.x >= 32 && threadIdx.x < ROWS) upper = sh.sum[threadIdx.x] + sh.sum[31];
    const int row = threadIdx.x / 2 % ROWS;
    const T *of = threadIdx.x < 2 * ROWS ? sh.k[row] : sh.q[row];
    float squares = 0.0f;
    for (int i = threadIdx.x % 2; i < DK; i += 2) squares += to_float(of[i]) * to_float(of[i]);
    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
    const float by = 1.0f / sqrtf(squares + 1e-6f);
    if (threadIdx.x % 2 == 0) (threadIdx.x < 2 * ROWS ? sh.k_by : sh.q_by)[row] = threadIdx.x < 2 * ROWS ? by : by / sqrtf((float)a.dk);
    __syncthreads();
    if (threadIdx.x >= 32 && threadIdx.x < ROWS) sh.sum[threadIdx.x] = upper;
    __syncthreads();

    /* warps 0 .. 3: k k^T, 4 .. 7: q k^T, 16 rows each, the blocks up to the diagonal */
    const int row_tile = warp % 4;
    float d[8][4] = { { 0.0f } };
#pragma unroll
    for (int kk = 0; kk < DK / 16; kk++) {
        uint32_t x[4];
        left(x, warp < 4 ? sh.k[0] : sh.q[0], DK + 8, row_tile * 16, kk * 16);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            if (n > row_tile) break;
            uint32_t y[4];
            right_turned(y, sh.k[0], DK + 8, kk * 16, n * 16);
            mma<T>(d[2 * n], x, y[0], y[1]);
            mma<T>(d[2 * n + 1], x, y[2], y[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < 8; n++) {
        if (n / 2 > row_tile) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int t = row_tile * 16 + lane / 4 + half * 8, i = n * 8 + lane % 4 * 2;
            float v[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const bool is_seen = warp < 4 ? i + e < t : i + e <= t;
                v[e] = is_seen ? expf(sh.sum[t] - sh.sum[i + e]) * (warp < 4 ? sh.beta[t] * sh.k_by[t] : sh.q_by[t]) * sh.k_by[i + e] * d[n][half * 2 + e] : 0.0f;
            }
            if (warp < 4) {
                sh.a[t][i] = v[0];
                sh.a[t][i + 1] = v[1];
            } else put_split(&out.mix[0][t][i], &out.mix[1][t][i], v[0], v[1]);
        }
    }
    if (threadIdx.x < ROWS) {
        const int t = threadIdx.x;
        out.beta[t] = sh.beta[t];
        out.k_in[t] = expf(sh.sum[t]) * sh.k_by[t];
        out.q_in[t] = expf(sh.sum[t]) * sh.q_by[t];
        out.k_out[t] = expf(sh.sum[ROWS - 1] - sh.sum[t]) * sh.k_by[t];
        if (t < 4) out.last[t] = t == 0 ? expf(sh.sum[ROWS - 1]) : 0.0f;
    }
    __syncthreads();
    invert(sh.t, sh.a, sh.m);
    for (int i = threadIdx.x; i < ROWS * ROWS / 2; i += THREADS) {
        const int t = i / (ROWS / 2), c = i % (ROWS / 2) * 2;
        if (c / 16 <= t / 16) put_split(&out.inverse[0][t][c], &out.inverse[1][t][c], sh.t[t][c], sh.t[t][c + 1]);
    }
}

/* ---- from chunk to chunk ---- */

template <typename T, int DK, int COLUMNS> struct chunk_stage {
    T k[ROWS][DK + 8], q[ROWS][DK + 8], v[ROWS][COLUMNS + 8], inverse[2][ROWS][SQUARE], mix[2][ROWS][SQUARE];
    float beta[ROWS], k_in[ROWS], q_in[ROWS], k_out[ROWS], last[4];      /* as they lie in chunk_parts */
};
template <typename T, int DK, int COLUMNS> struct chunk_shared {
    chunk_stage<T, DK, COLUMNS> stages[2];
    T s[2][DK][COLUMNS + 8];             /* the state, high and low */
    T r[2][ROWS][COLUMNS + 8], u[2][ROWS][COLUMNS + 8], u_out[2][ROWS][COLUMNS + 8];     /* R, U, U by k_out */
};

template <typename T, int DK, int COLUMNS> static __device__ void start_stage(chunk_stage<T, DK, COLUMNS> &to, const delta_call<T> &a, const cuda_tile &tile, const chunk_parts<T> &parts,
                                                                              int head, int first_column)
{
    const size_t dim = 2 * (size_t)a.n_k_heads * a.dk + (size_t)a.n_v_heads * a.dv;
    const T *q = a.qkv + (size_t)tile.row * dim + (size_t)key_head_of(a, head) * a.dk, *k = q + (size_t)a.n_k_heads * a.dk;
    const T *v = a.qkv + (size_t)tile.row * dim + 2 * (size_t)a.n_k_heads * a.dk + (size_t)head * a.dv + first_column;
    copy_rows<T, DK + 8>(to.k[0], k, dim, tile.n_rows, DK, a.dk);
    copy_rows<T, DK + 8>(to.q[0], q, dim, tile.n_rows, DK, a.dk);
    copy_rows<T, COLUMNS + 8>(to.v[0], v, dim, tile.n_rows, COLUMNS, a.dv - first_column);
    for (int i = 0; i < 2; i++) {
        copy_rows<T, SQUARE>(to.inverse[i][0], parts.inverse[i][0], ROWS, ROWS, ROWS, ROWS);
        copy_rows<T, SQUARE>(to.mix[i][0], parts.mix[i][0], ROWS, ROWS, ROWS, ROWS);
    }
    if (threadIdx.x < (4 * ROWS + 4) / 4) copy_16(to.beta + threadIdx.x * 4, parts.beta + threadIdx.x * 4, true);
}

/* d[n] += (high + low of a's tile) (high + low of b's rows), without low times low. a's row tile and b's columns from first; kk: step of 16. */
template <typename T, int TILES> static __device__ __forceinline__ void multiply_split(float (&d)[TILES][4], const T *a_high, const T *a_low, const T *b_high, const T *b_low, int b_stride, int row,
                                                                                        int kk, int column)
{
    uint32_t ah[4], al[4];
    left(ah, a_high, SQUARE, row, kk * 16);
    left(al, a_low, SQUARE, row, kk * 16);
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        uint32_t bh[4], bl[4];
        right(bh, b_high, b_stride, kk * 16, column + n * 8);
        right(bl, b_low, b_stride, kk * 16, column + n * 8);
#pragma unroll
        for (int e = 0; e < 2; e++) {
            if (n + e >= TILES) break;
            mma<T>(d[n + e], ah, bh[2 * e], bh[2 * e + 1]);
            mma<T>(d[n + e], ah, bl[2 * e], bl[2 * e + 1]);
            mma<T>(d[n + e], al, bh[2 * e], bh[2 * e + 1]);
        }
    }
}

/* d[n] += a (high + low of b's rows), for a whole of d's columns; kk: step of 16. */
template <typename T, int TILES> static __device__ __forceinline__ void multiply_by_split(float (&d)[TILES][4], const uint32_t (&a)[4], const T *b_high, const T *b_low, int b_stride, int kk)
{
#pragma unroll
    for (int n = 0; n < TILES; n += 2) {
        uint32_t high[4], low[4];
        right(high, b_high, b_stride, kk * 16, n * 8);
        right(low, b_low, b_stride, kk * 16, n * 8);
        mma<T>(d[n], a, high[0], high[1]);
        mma<T>(d[n], a, low[0], low[1]);
        mma<T>(d[n + 1], a, high[2], high[3]);
        mma<T>(d[n + 1], a, low[2], low[3]);
    }
}

/* Block (x: columns of the state, y: value head, z: run). Warp w owns rows 16 w .. + 15 of the state; w mod 4 are 16 rows of the chunk: warps 0 .. 3 for k, 4 .. 7 for q. */
template <typename T, int DK, int COLUMNS> static __global__ void __launch_bounds__(THREADS, 1) delta_chunks(delta_call<T> a, const chunk_parts<T> *parts, int first_tile, int end_tile)
{
    extern __shared__ __align__(16) char raw[];
    chunk_shared<T, DK, COLUMNS> &sh = *(chunk_shared<T, DK, COLUMNS> *)raw;
    constexpr int TILES = COLUMNS / 8;
    const int head = blockIdx.y, warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4 * 2, row = warp % 4 * 16, first_column = blockIdx.x * COLUMNS;
    const cuda_run run = a.batch.prefills[blockIdx.z];
    const int from = max(run.tile, first_tile), to = min(run.tile + (run.n_rows + ROWS - 1) / ROWS, end_tile);
    if (from >= to) return;
    float *state = a.state + ((size_t)run.slot * a.n_v_heads + head) * ((size_t)a.dk * a.dv);
    const bool is_fresh = from == run.tile && run.position == 0;
    start_stage(sh.stages[0], a, a.batch.tiles[from], parts[(size_t)(from - first_tile) * a.n_v_heads + head], head, first_column);
    float S[TILES][4];
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = warp * 16 + g + e / 2 * 8, j = first_column + n * 8 + c + e % 2;
            S[n][e] = !is_fresh && i < a.dk && j < a.dv ? state[(size_t)i * a.dv + j] : 0.0f;
        }
    for (int at = from; at < to; at++) {
        chunk_stage<T, DK, COLUMNS> &st = sh.stages[(at - from) % 2];
        const cuda_tile tile = a.batch.tiles[at];
        if (warp * 16 < DK) {
#pragma unroll
            for (int n = 0; n < TILES; n++) {
                put_split(&sh.s[0][warp * 16 + g][n * 8 + c], &sh.s[1][warp * 16 + g][n * 8 + c], S[n][0], S[n][1]);
                put_split(&sh.s[0][warp * 16 + g + 8][n * 8 + c], &sh.s[1][warp * 16 + g + 8][n * 8 + c], S[n][2], S[n][3]);
            }
        }
        copy_wait();
        __syncthreads();
        if (at + 1 < to)
            start_stage(sh.stages[(at + 1 - from) % 2], a, a.batch.tiles[at + 1], parts[(size_t)(at + 1 - first_tile) * a.n_v_heads + head], head, first_column);

        float d[TILES][4] = { { 0.0f } };                /* S^T k or S^T q */
#pragma unroll
        for (int kk = 0; kk < DK / 16; kk++) {
            uint32_t x[4];
            left(x, warp < 4 ? st.k[0] : st.q[0], DK + 8, row, kk * 16);
            multiply_by_split<T, TILES>(d, x, sh.s[0][0], sh.s[1][0], COLUMNS + 8, kk);
        }
#pragma unroll
        for (int n = 0; n < TILES; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = row + g + half * 8;
                if (warp < 4) {
                    const float x = st.beta[t] * (to_float(st.v[t][n * 8 + c]) - st.k_in[t] * d[n][half * 2]);
                    const float y = st.beta[t] * (to_float(st.v[t][n * 8 + c + 1]) - st.k_in[t] * d[n][half * 2 + 1]);
                    put_split(&sh.r[0][t][n * 8 + c], &sh.r[1][t][n * 8 + c], x, y);
                } else {
                    d[n][half * 2] *= st.q_in[t];
                    d[n][half * 2 + 1] *= st.q_in[t];
                }
            }
        __syncthreads();

        float u[TILES / 2][4] = { { 0.0f } };            /* half of U's columns a warp */
        const int half_column = warp / 4 * (COLUMNS / 2);
        for (int kk = 0; kk <= row / 16; kk++) multiply_split<T, TILES / 2>(u, st.inverse[0][0], st.inverse[1][0], sh.r[0][0], sh.r[1][0], COLUMNS + 8, row, kk, half_column);
#pragma unroll
        for (int n = 0; n < TILES / 2; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int t = row + g + half * 8, j = half_column + n * 8 + c;
                put_split(&sh.u[0][t][j], &sh.u[1][t][j], u[n][half * 2], u[n][half * 2 + 1]);
                put_split(&sh.u_out[0][t][j], &sh.u_out[1][t][j], u[n][half * 2] * st.k_out[t], u[n][half * 2 + 1] * st.k_out[t]);
            }
        __syncthreads();

        if (warp >= 4) {
            for (int kk = 0; kk <= row / 16; kk++) multiply_split<T, TILES>(d, st.mix[0][0], st.mix[1][0], sh.u[0][0], sh.u[1][0], COLUMNS + 8, row, kk, 0);
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const int t = row + g + e / 2 * 8, j = first_column + n * 8 + c + e % 2;
                    if (t < tile.n_rows && j < a.dv) a.out[((size_t)(tile.row + t) * a.n_v_heads + head) * a.dv + j] = from_float<T>(d[n][e]);
                }
        }
        if (warp * 16 < DK) {
            const float last = st.last[0];
#pragma unroll
            for (int n = 0; n < TILES; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) S[n][e] *= last;
#pragma unroll
            for (int kk = 0; kk < ROWS / 16; kk++) {
                uint32_t x[4];
                left_turned(x, st.k[0], DK + 8, warp * 16, kk * 16);
                multiply_by_split<T, TILES>(S, x, sh.u_out[0][0], sh.u_out[1][0], COLUMNS + 8, kk);
            }
        }
    }
#pragma unroll
    for (int n = 0; n < TILES; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int i = warp * 16 + g + e / 2 * 8, j = first_column + n * 8 + c + e % 2;
            if (i < a.dk && j < a.dv) state[(size_t)i * a.dv + j] = S[n][e];
        }
}

/* ---- host ---- */

template <typename T, int DK, int COLUMNS> static void chunks_launch(ops_cuda *o, const delta_call<T> &a, const chunk_parts<T> *parts, int32_t first_tile, int32_t end_tile)
{
    launch(o, "delta_chunks", delta_chunks<T, DK, COLUMNS>, dim3((unsigned)((a.dv + COLUMNS - 1) / COLUMNS), (unsigned)a.n_v_heads, (unsigned)a.batch.n_prefills), THREADS,
           sizeof(chunk_shared<T, DK, COLUMNS>), a, parts, first_tile, end_tile);
}

template <typename T, int DK> static void chunk_run(ops_cuda *o, const delta_call<T> &a)
{
    chunk_parts<T> *parts = (chunk_parts<T> *)o->delta;
    const int32_t n_most = (int32_t)(SCRATCH_BYTES / sizeof(chunk_parts<T>)) / a.n_v_heads;
    FL_ASSERT(n_most >= 1 && (uintptr_t)a.qkv % 16 == 0);
    const bool is_wide = a.batch.n_prefills * a.n_v_heads * ((a.dv + 31) / 32) >= o->n_multiprocessors;
    for (int32_t first = 0; first < a.batch.n_tiles; first += n_most) {
        const int32_t end = first + n_most < a.batch.n_tiles ? first + n_most : a.batch.n_tiles;
        launch(o, "delta_prepare", delta_prepare<T, DK>, dim3((unsigned)a.n_v_heads, (unsigned)(end - first)), THREADS, sizeof(prepare_shared<T, DK>), a, parts, first);
        if (is_wide) chunks_launch<T, DK, 32>(o, a, parts, first, end);
        else chunks_launch<T, DK, 16>(o, a, parts, first, end);
    }
}

/* Of both forms of delta_chunks, so that how many prompts there are does not decide what is possible. */
template <typename T, int DK> static constexpr size_t chunk_shared_most(void)
{
    return sizeof(chunk_shared<T, DK, 32>) > sizeof(prepare_shared<T, DK>) ? sizeof(chunk_shared<T, DK, 32>) : sizeof(prepare_shared<T, DK>);
}
template <typename T> static bool chunk_fits(const ops_cuda *o, int dk) { return o->shared_most >= (dk <= 64 ? chunk_shared_most<T, 64>() : chunk_shared_most<T, 128>()); }

template <typename T> bool delta_chunk_takes(const ops_cuda *o, int dk, int dv) { return o->sm >= 80 && dk % 8 == 0 && dk <= 128 && dv % 8 == 0 && chunk_fits<T>(o, dk); }

template <typename T> void delta_chunk_run(ops_cuda *o, const delta_call<T> &a)
{
    if (a.dk <= 64) chunk_run<T, 64>(o, a);
    else chunk_run<T, 128>(o, a);
}

template <typename T, int DK> static cudaError_t chunk_allow(void)
{
    cudaError_t e = cudaFuncSetAttribute(delta_prepare<T, DK>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(prepare_shared<T, DK>));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(delta_chunks<T, DK, 16>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(chunk_shared<T, DK, 16>));
    if (e == cudaSuccess) e = cudaFuncSetAttribute(delta_chunks<T, DK, 32>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(chunk_shared<T, DK, 32>));
    return e;
}

template <typename T> fl_status delta_chunk_install(ops_cuda *o, fl_err *err)
{
    if (!delta_chunk_takes<T>(o, 8, 8)) return FL_OK;
    cudaError_t e = chunk_allow<T, 64>();
    if (e == cudaSuccess && chunk_fits<T>(o, 128)) e = chunk_allow<T, 128>();
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: the delta rule cannot have the shared memory it needs: %s", cudaGetErrorString(e));
    return o->table.take(&o->table, &o->delta, SCRATCH_BYTES, "chunks of the delta rule", err);
}

void delta_close(ops_cuda *o)
{
    o->table.give(&o->table, o->delta, SCRATCH_BYTES);
    o->delta = NULL;
}

template bool delta_chunk_takes<__nv_bfloat16>(const ops_cuda *, int, int);
template bool delta_chunk_takes<__half>(const ops_cuda *, int, int);
template void delta_chunk_run<__nv_bfloat16>(ops_cuda *, const delta_call<__nv_bfloat16> &);
template void delta_chunk_run<__half>(ops_cuda *, const delta_call<__half> &);
template fl_status delta_chunk_install<__nv_bfloat16>(ops_cuda *, fl_err *);
template fl_status delta_chunk_install<__half>(ops_cuda *, fl_err *);
