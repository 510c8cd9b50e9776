/* cuda_product.cuh - the arithmetic of every product of our own: a tile of y = x w^T, for cuda_linear.cu and cuda_moe.cu.
 *
 * Bits     an element is one chain: acc = 0, then for k = 0, 16, 32 ... one m16n8k16 matrix instruction with fp32 accumulation over k .. k + 15 (zeros beyond
 *          the end). The weight is always the operand of 16 rows, the activations the one of 8. So the forms below, which differ in how many rows of each a block
 *          takes, how warps share them and how far ahead memory is read, give the same bits; which form serves a call is a question of speed only.
 *          fp32 (a debug mode): fmaf over ascending k, one thread an element.
 * Memory   both operands go through shared memory, `STAGES` steps of `BK` columns deep (cp.async). 16-byte pieces lie at piece ^ (row & 7), so that the eight rows
 *          a matrix load reads lie in different banks. At the end the sums lie in the same memory as fp32 [BM][BN + 4]: the caller writes them out from there.
 * Edges    rows beyond the operands' ends are copies of a valid row (the caller gives their address and drops their sums); columns beyond the end are zeros.
 *          Operands whose rows are not 16-byte aligned are read element by element (IS_ALIGNED false): slower, the same bits. */
#ifndef KERNELS_CUDA_CUDA_PRODUCT_CUH
#define KERNELS_CUDA_CUDA_PRODUCT_CUH

#include "kernels/cuda/cuda_ops.h"

/* A block computes BN rows of the weight by BM rows of activations; a warp TN by TM of them. */
template <int BN_, int BM_, int TN_, int TM_, int BK_, int STAGES_, bool IS_WIDE_ = false, int LOADERS_ = 0> struct product_form {
    static constexpr int BN = BN_, BM = BM_, TN = TN_, TM = TM_, BK = BK_, STAGES = STAGES_;
    static constexpr bool IS_WIDE = IS_WIDE_;                        /* on sm_90a two groups of four warps take the wide instructions (wgmma), 64 weight rows each time */
    static constexpr int LOADERS = LOADERS_;                         /* warps that only fetch; 0: all do */
    static constexpr int WARPS_N = BN / TN, WARPS_M = BM / TM, THREADS = 32 * (WARPS_N * WARPS_M + LOADERS);
    static constexpr int STAGE_BYTES = (BN + BM) * BK * 2, SUM_STRIDE = BN + 4, SUM_BYTES = BM * SUM_STRIDE * 4;
    static constexpr int SHARED_BYTES = STAGES * STAGE_BYTES > SUM_BYTES ? STAGES * STAGE_BYTES : SUM_BYTES;
};
/* fp32: 4 by 4 elements a thread. */
typedef product_form<64, 64, 16, 32, 16, 2> product_form_f32;        /* 256 threads */

static __device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* 16 bytes to shared memory, zeros where `is_there` is false; done after copies_wait. */
static __device__ __forceinline__ void copy_16(void *to, const void *from, bool is_there)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(is_there ? 16 : 0) : "memory");
#else
    *(uint4 *)to = is_there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
#endif
}
static __device__ __forceinline__ void copies_commit(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int PENDING> static __device__ __forceinline__ void copies_wait(void)
{
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

/* Eight values from an address of any alignment, zeros from column n_in on. */
template <typename T> static __device__ __forceinline__ void copy_single(T *to, const T *row, int k, int n_in)
{
    uint4 piece;
    T *v = (T *)&piece;
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = k + i < n_in ? row[k + i] : from_float<T>(0.0f);
    *(uint4 *)to = piece;
}

static __device__ __forceinline__ void load_matrices_4(uint32_t r[4], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(p)) : "memory");
}
static __device__ __forceinline__ void load_matrices_2(uint32_t r[2], const void *p)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(p)) : "memory");
}

/* c += a b: the one instruction that sums */
static __device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
    (void)c; (void)a; (void)b;
    __trap();                                                        /* cuda_open.cu opens bf16 from sm_80 on */
#endif
}
static __device__ __forceinline__ void multiply_add(float c[4], const uint32_t a[4], const uint32_t b[2], __half)
{
#if __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
#pragma unroll
    for (int i = 0; i < 2; i++)
        asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
                     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a[2 * i]), "r"(a[2 * i + 1]), "r"(b[i]));
#endif
}

/* Element of a stage: row, column (a multiple of 8). */
template <typename F, typename T> static __device__ __forceinline__ T *staged(T *base, int row, int column)
{
    return base + row * F::BK + ((column / 8) ^ (row & 7)) * 8;
}

/* A thread's part of a step: 8 columns, k on, of rows row, row + STEP ..., which begin at `from`; in the stage they are column on. */
template <typename F, bool IS_ALIGNED, int STEP, int COPIES, typename T> static __device__ __forceinline__ void fetch_rows(T *stage, const T *const (&from)[COPIES], int row, int column, int k, int n_in)
{
#pragma unroll
    for (int i = 0; i < COPIES; i++) {
        T *to = staged<F>(stage, row + i * STEP, column);
        if (IS_ALIGNED) copy_16(to, k < n_in ? from[i] + k : from[i], k < n_in);
        else copy_single(to, from[i], k, n_in);
    }
}

/* All products of a tile into `sums` (fp32 [BM][SUM_STRIDE], sums[m * SUM_STRIDE + n]), which is the shared memory given; every thread of the block calls it, and
 * may read sums when it returns. w_row(n), x_row(m): address of the tile's rows, valid for all of them; only the sums of the first n_rows of x are wanted. */
template <typename F, bool IS_ALIGNED, typename T, typename W_ROW, typename X_ROW>
static __device__ __forceinline__ void product_tile(char *shared, W_ROW w_row, X_ROW x_row, int n_in, int n_rows)
{
    constexpr int PIECES = F::BK / 8;                                /* of a row */
    constexpr int FETCHERS = F::LOADERS ? F::LOADERS * 32 : F::THREADS;      /* threads, the block's last */
    constexpr int STEP = FETCHERS / PIECES;                          /* rows that they fetch at once */
    constexpr int W_COPIES = (F::BN + STEP - 1) / STEP, X_COPIES = (F::BM + STEP - 1) / STEP;
    constexpr int AHEAD = F::TN == 16 && F::TM <= 16 ? F::BK / 16 : 1;       /* few sums a warp: the next matrices are on their way while it waits for the chain */
    static_assert(FETCHERS % PIECES == 0 && F::BN % STEP == 0 && (F::BM % STEP == 0 || F::BM < STEP), "each copy is a whole step of rows");
    const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
    const bool is_fetching = thread >= F::THREADS - FETCHERS, is_summing = warp < F::WARPS_N * F::WARPS_M;
    const int fetcher = is_fetching ? thread - (F::THREADS - FETCHERS) : 0, piece = fetcher % PIECES, row = fetcher / PIECES;
    const int n0 = warp % F::WARPS_N * F::TN, m0 = warp / F::WARPS_N * F::TM;

    const T *from_w[W_COPIES], *from_x[X_COPIES];
#pragma unroll
    for (int i = 0; i < W_COPIES; i++) from_w[i] = w_row(row + i * STEP);
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) from_x[i] = x_row(F::BM < STEP && row >= F::BM ? 0 : row + i * STEP);

    const auto fetch = [&](int step) {
        T *stage = (T *)(shared + step % F::STAGES * F::STAGE_BYTES);
        const int k = step * F::BK + piece * 8;
        fetch_rows<F, IS_ALIGNED, STEP>(stage, from_w, row, piece * 8, k, n_in);
        if (F::BM >= STEP || row < F::BM) fetch_rows<F, IS_ALIGNED, STEP>(stage + F::BN * F::BK, from_x, row, piece * 8, k, n_in);
    };

    float sum[F::TN / 16][F::TM / 8][4];
#pragma unroll
    for (int i = 0; i < F::TN / 16; i++)
#pragma unroll
        for (int j = 0; j < F::TM / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) sum[i][j][c] = 0.0f;

    const int n_steps = (n_in + F::BK - 1) / F::BK;
#pragma unroll
    for (int s = 0; s < F::STAGES - 1; s++) {
        if (is_fetching && s < n_steps) fetch(s);
        copies_commit();
    }
    for (int step = 0; step < n_steps; step++) {
        copies_wait<F::STAGES - 2>();
        __syncthreads();                                             /* step's data are here; everybody is done with the stage that is fetched next */
        if (is_fetching && step + F::STAGES - 1 < n_steps) fetch(step + F::STAGES - 1);
        copies_commit();
        const T *stage = (const T *)(shared + step % F::STAGES * F::STAGE_BYTES), *stage_x = stage + F::BN * F::BK;
        if (!is_summing || m0 >= n_rows) continue;                   /* whole warps */
#pragma unroll
        for (int from = 0; from < F::BK; from += 16 * AHEAD) {
            uint32_t a[AHEAD][F::TN / 16][4], b[AHEAD][F::TM / 8][2];
#pragma unroll
            for (int s = 0; s < AHEAD; s++) {
                const int k = from + 16 * s;
#pragma unroll
                for (int i = 0; i < F::TN / 16; i++) load_matrices_4(a[s][i], staged<F>(stage, n0 + i * 16 + lane % 16, k + lane / 16 * 8));
                if (F::TM == 8) load_matrices_2(b[s][0], staged<F>(stage_x, m0 + lane % 8, k + lane / 8 % 2 * 8));
                else {
#pragma unroll
                    for (int j = 0; j + 1 < F::TM / 8; j += 2) {
                        uint32_t pair[4];
                        load_matrices_4(pair, staged<F>(stage_x, m0 + j * 8 + lane % 8 + lane / 16 * 8, k + lane / 8 % 2 * 8));
                        b[s][j][0] = pair[0]; b[s][j][1] = pair[1];
                        b[s][j + 1][0] = pair[2]; b[s][j + 1][1] = pair[3];
                    }
                }
            }
#pragma unroll
            for (int s = 0; s < AHEAD; s++)
#pragma unroll
                for (int i = 0; i < F::TN / 16; i++)
#pragma unroll
                    for (int j = 0; j < F::TM / 8; j++) multiply_add(sum[i][j], a[s][i], b[s][j], T());
        }
    }
    copies_wait<0>();
    __syncthreads();
    float *sums = (float *)shared;
#pragma unroll
    for (int i = 0; i < F::TN / 16 && is_summing; i++)
#pragma unroll
        for (int j = 0; j < F::TM / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                sums[(m0 + j * 8 + lane % 4 * 2 + c % 2) * F::SUM_STRIDE + n0 + i * 16 + lane / 4 + c / 2 * 8] = sum[i][j][c];
    __syncthreads();
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
/* d += w x: 64 rows of the weight by 64 or 128 of activations, both from shared memory as `staged` lays them out (rows of 128 bytes, 128-byte swizzle). */
#define SUMS_8(i) "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define SUMS_32(i) SUMS_8(i), SUMS_8((i) + 8), SUMS_8((i) + 16), SUMS_8((i) + 24)
#define NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64 NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define WIDE_MULTIPLY_ADD(T, type, n_sums, shape, names, operands, ...)                                                                                   \
    static __device__ __forceinline__ void wide_multiply_add(float (&d)[n_sums], uint64_t w, uint64_t x, T)                                               \
    {                                                                                                                                                     \
        asm volatile("wgmma.mma_async.sync.aligned." shape ".f32." type "." type " {" names "}, " operands ", 1, 1, 1, 0, 0;" : __VA_ARGS__ : "l"(w), "l"(x)); \
    }
WIDE_MULTIPLY_ADD(__nv_bfloat16, "bf16", 32, "m64n64k16", NAMES_32, "%32, %33", SUMS_32(0))
WIDE_MULTIPLY_ADD(__half, "f16", 32, "m64n64k16", NAMES_32, "%32, %33", SUMS_32(0))
WIDE_MULTIPLY_ADD(__nv_bfloat16, "bf16", 64, "m64n128k16", NAMES_64, "%64, %65", SUMS_32(0), SUMS_32(32))
WIDE_MULTIPLY_ADD(__half, "f16", 64, "m64n128k16", NAMES_64, "%64, %65", SUMS_32(0), SUMS_32(32))

/* Shared memory as these instructions address it: 8 rows of 128 bytes are followed by the next 8. `p` is 1,024-byte aligned but for a column's offset. */
static __device__ __forceinline__ uint64_t wide_operand(const void *p)
{
    return (uint64_t)(shared_address(p) >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

/* product_tile with the wide instructions, for tiles of at most ROWS rows of x. */
template <typename F, int ROWS, typename T, typename W_ROW, typename X_ROW>
static __device__ __forceinline__ void product_tile_wide(char *shared, W_ROW w_row, X_ROW x_row, int n_in)
{
    constexpr int STEP = F::THREADS / 8, W_COPIES = F::BN / STEP, X_COPIES = ROWS / STEP, BLOCKS = F::BN / 128;      /* BLOCKS of 64 weight rows a group */
    static_assert(F::BK == 64 && F::THREADS == 256 && F::BN % 128 == 0 && ROWS % STEP == 0, "two groups of four warps; a row of a stage is 128 bytes");
    const int thread = threadIdx.x, lane = thread % 32, group = thread / 128, piece = thread % 8, row = thread / 8;

    const T *from_w[W_COPIES], *from_x[X_COPIES];
#pragma unroll
    for (int i = 0; i < W_COPIES; i++) from_w[i] = w_row(row + i * STEP);
#pragma unroll
    for (int i = 0; i < X_COPIES; i++) from_x[i] = x_row(row + i * STEP);
    const auto fetch = [&](int step) {
        T *stage = (T *)(shared + step % F::STAGES * F::STAGE_BYTES);
        const int k = step * F::BK + piece * 8;
        fetch_rows<F, true, STEP>(stage, from_w, row, piece * 8, k, n_in);
        fetch_rows<F, true, STEP>(stage + F::BN * F::BK, from_x, row, piece * 8, k, n_in);
    };

    float sum[BLOCKS][ROWS / 2];
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) sum[i][j] = 0.0f;
    const int n_steps = (n_in + F::BK - 1) / F::BK;
#pragma unroll
    for (int s = 0; s < F::STAGES - 2; s++) {
        if (s < n_steps) fetch(s);
        copies_commit();
    }
    for (int step = 0; step < n_steps; step++) {
        copies_wait<F::STAGES - 3>();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();                                             /* step's data are here; step - 2's instructions are done in both groups */
        if (step + F::STAGES - 2 < n_steps) fetch(step + F::STAGES - 2);
        copies_commit();
        const T *stage = (const T *)(shared + step % F::STAGES * F::STAGE_BYTES), *stage_x = stage + F::BN * F::BK;
#pragma unroll
        for (int i = 0; i < BLOCKS; i++)
#pragma unroll
            for (int j = 0; j < ROWS / 2; j++) asm volatile("" : "+f"(sum[i][j]) :: "memory");
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (int k = 0; k < F::BK; k += 16)
#pragma unroll
            for (int i = 0; i < BLOCKS; i++) wide_multiply_add(sum[i], wide_operand(stage + (group * BLOCKS + i) * 64 * F::BK + k), wide_operand(stage_x + k), T());
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int j = 0; j < ROWS / 2; j++) asm volatile("" : "+f"(sum[i][j]) :: "memory");
    copies_wait<0>();
    __syncthreads();
    float *sums = (float *)shared;
    const int n0 = group * BLOCKS * 64 + thread / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < BLOCKS; i++)
#pragma unroll
        for (int j = 0; j < ROWS / 8; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) sums[(j * 8 + lane % 4 * 2 + c % 2) * F::SUM_STRIDE + n0 + i * 64 + c / 2 * 8] = sum[i][j * 4 + c];
    __syncthreads();
}
#endif

/* The same in fp32. */
template <typename W_ROW, typename X_ROW> static __device__ __forceinline__ void product_tile_f32(char *shared, W_ROW w_row, X_ROW x_row, int n_in)
{
    typedef product_form_f32 F;
    constexpr int STRIDE = 68;
    float *stage = (float *)shared, *stage_x = stage + F::BK * STRIDE;       /* [BK][STRIDE] each: column by column */
    const int thread = threadIdx.x, column = thread % F::BK, row = thread / F::BK;
    const int n0 = thread % 16 * 4, m0 = thread / 16 * 4;
    float sum[4][4] = {};
    for (int k = 0; k < n_in; k += F::BK) {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 64; i += 16) {
            stage[column * STRIDE + row + i] = k + column < n_in ? w_row(row + i)[k + column] : 0.0f;
            stage_x[column * STRIDE + row + i] = k + column < n_in ? x_row(row + i)[k + column] : 0.0f;
        }
        __syncthreads();
        for (int c = 0; c < F::BK && k + c < n_in; c++) {
            const float4 w = *(const float4 *)(stage + c * STRIDE + n0), x = *(const float4 *)(stage_x + c * STRIDE + m0);
            const float wn[4] = { w.x, w.y, w.z, w.w }, xm[4] = { x.x, x.y, x.z, x.w };
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) sum[i][j] = fmaf(wn[i], xm[j], sum[i][j]);
        }
    }
    __syncthreads();
    float *sums = (float *)shared;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[(m0 + j) * F::SUM_STRIDE + n0 + i] = sum[i][j];
    __syncthreads();
}

/* One name for both. */
template <typename F, bool IS_ALIGNED, typename T> struct product {
    template <typename W_ROW, typename X_ROW> static __device__ __forceinline__ void tile(char *shared, W_ROW w_row, X_ROW x_row, int n_in, int n_rows)
    {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
        if constexpr (F::IS_WIDE && IS_ALIGNED) {
            if (n_rows <= 64) product_tile_wide<F, 64, T>(shared, w_row, x_row, n_in);
            else product_tile_wide<F, F::BM, T>(shared, w_row, x_row, n_in);
            return;
        }
#endif
        product_tile<F, IS_ALIGNED, T>(shared, w_row, x_row, n_in, n_rows);
    }
};
template <typename F, bool IS_ALIGNED> struct product<F, IS_ALIGNED, float> {
    template <typename W_ROW, typename X_ROW> static __device__ __forceinline__ void tile(char *shared, W_ROW w_row, X_ROW x_row, int n_in, int n_rows)
    {
        (void)n_rows;
        product_tile_f32(shared, w_row, x_row, n_in);
    }
};

/* Four neighbours of a row of results; `p` is 4 values aligned. */
static __device__ __forceinline__ void store_4(float *p, const float v[4]) { *(float4 *)p = make_float4(v[0], v[1], v[2], v[3]); }
static __device__ __forceinline__ void store_4(__nv_bfloat16 *p, const float v[4])
{
    __nv_bfloat162 pair[2] = { __floats2bfloat162_rn(v[0], v[1]), __floats2bfloat162_rn(v[2], v[3]) };
    *(uint2 *)p = *(const uint2 *)pair;
}
static __device__ __forceinline__ void store_4(__half *p, const float v[4])
{
    __half2 pair[2] = { __floats2half2_rn(v[0], v[1]), __floats2half2_rn(v[2], v[3]) };
    *(uint2 *)p = *(const uint2 *)pair;
}

static inline bool is_aligned(const void *p, size_t bytes) { return (uintptr_t)p % bytes == 0; }

template <typename T> struct dtype_of;
template <> struct dtype_of<float> { static constexpr dtype value = DTYPE_F32; };
template <> struct dtype_of<__nv_bfloat16> { static constexpr dtype value = DTYPE_BF16; };
template <> struct dtype_of<__half> { static constexpr dtype value = DTYPE_F16; };

#endif
