/* cuda_moe.cu - the experts of a mixture: grouped products over the rows that chose each expert.
 *
 * A pair is a row and one of its slots, numbered row * top_k + slot. Four kernels:
 *   sort      one block an expert: the numbers of its pairs, ascending, from `begin[e]` on in `order`. No atomics: everybody counts for himself.
 *   tiles     the list of (expert, stretch of its pairs), a stretch at most a product tile's rows.
 *   products  hidden = silu(gate x) * (up x), rows of gate and up side by side in one tile, in order of `order`; then part[pair] = down hidden.
 *   combine   y[row] = sum of weight * part over its slots, in slot order.
 * Bits       an element's arithmetic is cuda_product.cuh's whatever the tile, so who else chose an expert changes nothing. hidden and part are activations: rounded
 *            to 16 bits outside of fp32 mode. */
#include "kernels/cuda/cuda_product.cuh"

typedef struct { int32_t expert, begin, n; } moe_tile;               /* pairs order[begin .. begin + n) */

/* ---- sort ---- */

static __global__ void __launch_bounds__(1024) moe_sort_kernel(int32_t *order, int32_t *begin, const int32_t *ids, int n_pairs)
{
    __shared__ int before[32], equal[32];                            /* of each warp */
    const int expert = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_warps = blockDim.x / 32;
    const int span = (n_pairs + n_warps * 32 - 1) / (n_warps * 32) * 32, from = warp * span, to = min(from + span, n_pairs);
    int n_before = 0, n_equal = 0;
    for (int i = from + lane; i < to; i += 32) {
        n_before += ids[i] < expert;
        n_equal += ids[i] == expert;
    }
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        n_before += __shfl_xor_sync(0xffffffffu, n_before, i);
        n_equal += __shfl_xor_sync(0xffffffffu, n_equal, i);
    }
    if (lane == 0) {
        before[warp] = n_before;
        equal[warp] = n_equal;
    }
    __syncthreads();
    int first = 0, at = 0, n = 0;
    for (int i = 0; i < n_warps; i++) {
        first += before[i];
        at += i < warp ? equal[i] : 0;
        n += equal[i];
    }
    if (threadIdx.x == 0) {
        begin[expert] = first;
        if (expert == (int)gridDim.x - 1) begin[expert + 1] = first + n;
    }
    at += first;
    for (int i = from; i < to; i += 32) {
        const bool is_mine = i + lane < to && ids[i + lane] == expert;
        const unsigned all = __ballot_sync(0xffffffffu, is_mine);
        if (is_mine) order[at + __popc(all & ((1u << lane) - 1))] = i + lane;
        at += __popc(all);
    }
}

/* ---- tiles ---- */

#define TILES_THREADS 1024

/* One block; n_tiles[0] gets the number of tiles. */
static __global__ void __launch_bounds__(TILES_THREADS) moe_tiles_kernel(moe_tile *tiles, int32_t *n_tiles, const int32_t *begin, int n_experts, int tile_rows)
{
    __shared__ int totals[32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int each = (n_experts + TILES_THREADS - 1) / TILES_THREADS, from = threadIdx.x * each, to = min(from + each, n_experts);
    int n = 0;
    for (int e = from; e < to; e++) n += (begin[e + 1] - begin[e] + tile_rows - 1) / tile_rows;
    int at = n;                                                      /* becomes the sum up to this thread's last */
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        const int other = __shfl_up_sync(0xffffffffu, at, i);
        at += lane >= i ? other : 0;
    }
    if (lane == 31) totals[warp] = at;
    __syncthreads();
    for (int i = 0; i < warp; i++) at += totals[i];
    if (threadIdx.x == TILES_THREADS - 1) *n_tiles = at;
    at -= n;
    for (int e = from; e < to; e++)
        for (int i = begin[e]; i < begin[e + 1]; i += tile_rows, at++) {
            const moe_tile tile = { e, i, min(tile_rows, begin[e + 1] - i) };
            tiles[at] = tile;
        }
}

/* ---- products ---- */

template <typename T> struct moe_arg {
    const T *gate, *up, *down; size_t gate_stride, up_stride, down_stride;       /* expert e's matrix is e * stride elements behind */
    const T *x; const float *weights; T *y;
    T *hidden, *part;                    /* [n_pairs, ff] in order of `order`, [n_pairs, dim] in order of pairs */
    int32_t *order, *begin, *n_tiles; moe_tile *tiles;
    int dim, ff, top_k, n_rows, n_experts;
};

/* Within a tile of gate and up, 16 rows of gate are followed by the same 16 of up. */
static __device__ __forceinline__ int gated_row(int j) { return j / 16 * 32 + j % 16; }

template <typename F, bool IS_ALIGNED, typename T> static __global__ void __launch_bounds__(F::THREADS) moe_hidden_kernel(const moe_arg<T> a)
{
    extern __shared__ __align__(1024) char shared[];
    if ((int)blockIdx.y >= *a.n_tiles) return;
    const moe_tile tile = a.tiles[blockIdx.y];
    const int j_begin = blockIdx.x * (F::BN / 2);
    const T *gate = a.gate + tile.expert * a.gate_stride, *up = a.up + tile.expert * a.up_stride;
    product<F, IS_ALIGNED, T>::tile(shared, [&](int n) { return (n / 16 % 2 ? up : gate) + (size_t)min(j_begin + n / 32 * 16 + n % 16, a.ff - 1) * a.dim; },
                                    [&](int m) { return a.x + (size_t)(a.order[tile.begin + min(m, tile.n - 1)] / a.top_k) * a.dim; }, a.dim, tile.n);
    const float *sums = (const float *)shared;
    for (int i = threadIdx.x; i < tile.n * (F::BN / 8); i += F::THREADS) {
        const int m = i / (F::BN / 8), j = i % (F::BN / 8) * 4, left = a.ff - j_begin - j;
        if (left <= 0) continue;
        const float *g = sums + m * F::SUM_STRIDE + gated_row(j), *u = g + 16;
        T *to = a.hidden + (size_t)(tile.begin + m) * a.ff + j_begin + j;
        float v[4];
#pragma unroll
        for (int c = 0; c < 4; c++) v[c] = g[c] / (1.0f + expf(-g[c])) * u[c];
        if (a.ff % 4 == 0) store_4(to, v);
        else
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < left) to[c] = from_float<T>(v[c]);
    }
}

template <typename F, bool IS_ALIGNED, typename T> static __global__ void __launch_bounds__(F::THREADS) moe_down_kernel(const moe_arg<T> a)
{
    extern __shared__ __align__(1024) char shared[];
    if ((int)blockIdx.y >= *a.n_tiles) return;
    const moe_tile tile = a.tiles[blockIdx.y];
    const int n_begin = blockIdx.x * F::BN;
    const T *down = a.down + tile.expert * a.down_stride;
    product<F, IS_ALIGNED, T>::tile(shared, [&](int n) { return down + (size_t)min(n_begin + n, a.dim - 1) * a.ff; },
                                    [&](int m) { return a.hidden + (size_t)(tile.begin + min(m, tile.n - 1)) * a.ff; }, a.ff, tile.n);
    const float *sums = (const float *)shared;
    for (int i = threadIdx.x; i < tile.n * (F::BN / 4); i += F::THREADS) {
        const int m = i / (F::BN / 4), n = i % (F::BN / 4) * 4, left = a.dim - n_begin - n;
        if (left <= 0) continue;
        const float4 four = *(const float4 *)(sums + m * F::SUM_STRIDE + n);
        const float v[4] = { four.x, four.y, four.z, four.w };
        T *to = a.part + (size_t)a.order[tile.begin + m] * a.dim + n_begin + n;
        if (a.dim % 4 == 0) store_4(to, v);
        else
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < left) to[c] = from_float<T>(v[c]);
    }
}

/* ---- combine ---- */

/* One value, or four at once. */
template <int WIDTH, typename T> static __device__ __forceinline__ void load_values(float v[WIDTH], const T *p)
{
    struct alignas(WIDTH * sizeof(T)) piece { T t[WIDTH]; };
    const piece x = *(const piece *)p;
#pragma unroll
    for (int c = 0; c < WIDTH; c++) v[c] = to_float(x.t[c]);
}

/* WIDTH neighbours a thread: 4 where dim is a multiple of it, else 1. */
template <int WIDTH, typename T> static __global__ void moe_combine_kernel(const moe_arg<T> a)
{
    const unsigned n_each = (unsigned)a.dim / WIDTH, column = (blockIdx.y * blockDim.x + threadIdx.x) * WIDTH, row = blockIdx.x;
    if (column / WIDTH >= n_each) return;
    const T *part = a.part + (size_t)row * a.top_k * a.dim + column;
    const float *weights = a.weights + (size_t)row * a.top_k;
    float sum[WIDTH] = {};
    for (int s = 0; s < a.top_k; s++) {
        const float weight = weights[s];
        float v[WIDTH];
        load_values<WIDTH>(v, part + (size_t)s * a.dim);
#pragma unroll
        for (int c = 0; c < WIDTH; c++) sum[c] = fmaf(v[c], weight, sum[c]);
    }
    T *y = a.y + (size_t)row * a.dim + column;
    if constexpr (WIDTH == 4) store_4(y, sum);
    else *y = from_float<T>(sum[0]);
}

/* ---- forms ---- */

typedef product_form<64, 8, 16, 8, 128, 4> moe_form_8;               /* few rows an expert: its weights are streamed */
typedef product_form<64, 16, 16, 16, 128, 4> moe_form_16;
typedef product_form<64, 32, 16, 32, 128, 4> moe_form_32;
typedef product_form<128, 64, 32, 64, 64, 4> moe_form_64;
typedef product_form<128, 128, 64, 64, 64, 3> moe_form_128;
typedef product_form<256, 128, 64, 64, 64, 4, true> moe_form_wide;    /* the same on sm_90a */
typedef product_form<32, 32, 16, 16, 64, 2> moe_form_any;            /* rows of any alignment, and GPUs without asynchronous copies */
#define MOE_TILE_ROWS_LEAST 8

static int moe_tiles_most(int n_pairs, int n_experts, int tile_rows)
{
    const int64_t most = (int64_t)n_experts + n_pairs / tile_rows;
    return most < n_pairs ? (int)most : n_pairs;
}

template <typename F, bool IS_ALIGNED, typename T> static void moe_products(ops_cuda *o, const moe_arg<T> &a)
{
    const unsigned n_tiles = (unsigned)moe_tiles_most(a.n_rows * a.top_k, a.n_experts, F::BM);
    FL_ASSERT(n_tiles <= 65535);
    launch(o, "moe_experts (tiles)", moe_tiles_kernel, dim3(1), dim3(TILES_THREADS), 0, a.tiles, a.n_tiles, (const int32_t *)a.begin, a.n_experts, F::BM);
    launch(o, "moe_experts (gate, up)", moe_hidden_kernel<F, IS_ALIGNED, T>, dim3((unsigned)(a.ff + F::BN / 2 - 1) / (F::BN / 2), n_tiles), dim3(F::THREADS), F::SHARED_BYTES, a);
    launch(o, "moe_experts (down)", moe_down_kernel<F, IS_ALIGNED, T>, dim3((unsigned)(a.dim + F::BN - 1) / F::BN, n_tiles), dim3(F::THREADS), F::SHARED_BYTES, a);
}

/* Tiles that hold most experts' rows: by their mean number, since the host does not know more. */
template <typename T> static void moe_run(ops_cuda *o, const moe_arg<T> &a)
{
    const int64_t pairs_each = (int64_t)a.n_rows * a.top_k / a.n_experts;
    const bool aligned = a.dim % 8 == 0 && a.ff % 8 == 0 && a.gate_stride % 8 == 0 && a.up_stride % 8 == 0 && a.down_stride % 8 == 0 &&
                         is_aligned(a.gate, 16) && is_aligned(a.up, 16) && is_aligned(a.down, 16) && is_aligned(a.x, 16);
    if (!aligned) moe_products<moe_form_any, false>(o, a);
    else if (o->sm < 80) moe_products<moe_form_any, true>(o, a);
    else if (pairs_each <= 4) moe_products<moe_form_8, true>(o, a);
    else if (pairs_each <= 10) moe_products<moe_form_16, true>(o, a);
    else if (pairs_each <= 24) moe_products<moe_form_32, true>(o, a);
    else if (pairs_each <= 40) moe_products<moe_form_64, true>(o, a);
    else if (o->sm != 90) moe_products<moe_form_128, true>(o, a);
    else moe_products<moe_form_wide, true>(o, a);
}
template <> void moe_run<float>(ops_cuda *o, const moe_arg<float> &a) { moe_products<product_form_f32, true>(o, a); }

/* ---- the table's functions ---- */

/* Hands out pieces of scratch; with base NULL it only counts. */
typedef struct { char *base; size_t used; } moe_cut;
static void *moe_cut_take(moe_cut *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + 255) / 256 * 256;
    return p;
}

template <typename T> static size_t moe_layout(moe_arg<T> *a, void *scratch, int n_rows, int dim, int ff, int n_experts, int top_k)
{
    moe_cut c = { (char *)scratch, 0 };
    const size_t n_pairs = (size_t)n_rows * (size_t)top_k;
    a->hidden = (T *)moe_cut_take(&c, n_pairs * (size_t)ff * sizeof(T));
    a->part = (T *)moe_cut_take(&c, n_pairs * (size_t)dim * sizeof(T));
    a->order = (int32_t *)moe_cut_take(&c, n_pairs * sizeof(int32_t));
    a->begin = (int32_t *)moe_cut_take(&c, ((size_t)n_experts + 1) * sizeof(int32_t));
    a->n_tiles = (int32_t *)moe_cut_take(&c, sizeof(int32_t));
    a->tiles = (moe_tile *)moe_cut_take(&c, (size_t)moe_tiles_most((int)n_pairs, n_experts, MOE_TILE_ROWS_LEAST) * sizeof(moe_tile));
    return c.used;
}

template <typename T> static size_t cuda_moe_scratch_bytes(const ops *o, int32_t n_rows, int32_t dim, int32_t ff, int32_t n_experts, int32_t top_k)
{
    (void)o;
    moe_arg<T> a = {};
    return moe_layout<T>(&a, NULL, n_rows, dim, ff, n_experts, top_k);
}

/* Elements between one expert's matrix and the next one's. */
template <typename T> static size_t moe_stride(const weight *w, int32_t n_experts, int32_t n_rows, int32_t n_cols)
{
    const ptrdiff_t bytes = n_experts > 1 ? (const char *)w[1].data - (const char *)w[0].data : 0;
    for (int32_t e = 0; e < n_experts; e++)
        FL_ASSERT(w[e].type == dtype_of<T>::value && w[e].n_rows == n_rows && w[e].n_cols == n_cols && (const char *)w[e].data == (const char *)w[0].data + e * bytes);
    FL_ASSERT(bytes >= 0 && (size_t)bytes % sizeof(T) == 0 && is_aligned(w[0].data, sizeof(T)));
    return (size_t)bytes / sizeof(T);
}

template <typename T> static void cuda_moe_experts(ops *table, act *y, const act *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down,
                                                   int32_t n_rows, int32_t n_experts, int32_t top_k, void *scratch)
{
    ops_cuda *o = cuda_of(table);
    FL_ASSERT(n_rows >= 0 && top_k >= 1 && n_experts >= 1 && n_experts <= OPS_EXPERTS_MAX && (int64_t)n_rows * top_k <= INT32_MAX);
    if (n_rows == 0) return;
    FL_ASSERT(is_aligned(scratch, 16));
    moe_arg<T> a = {};
    a.dim = gate[0].n_cols;
    a.ff = gate[0].n_rows;
    moe_layout<T>(&a, scratch, n_rows, a.dim, a.ff, n_experts, top_k);
    a.gate = (const T *)gate[0].data;
    a.up = (const T *)up[0].data;
    a.down = (const T *)down[0].data;
    a.gate_stride = moe_stride<T>(gate, n_experts, a.ff, a.dim);
    a.up_stride = moe_stride<T>(up, n_experts, a.ff, a.dim);
    a.down_stride = moe_stride<T>(down, n_experts, a.dim, a.ff);
    a.x = (const T *)x;
    a.weights = weights;
    a.y = (T *)y;
    a.top_k = top_k;
    a.n_rows = n_rows;
    a.n_experts = n_experts;
    const int n_pairs = n_rows * top_k;
    launch(o, "moe_experts (sort)", moe_sort_kernel, dim3((unsigned)n_experts), dim3(n_pairs > 4096 ? 1024 : n_pairs > 1024 ? 256 : 64), 0, a.order, a.begin, ids, n_pairs);
    moe_run<T>(o, a);
    const bool is_whole = a.dim % 4 == 0 && is_aligned(y, 4 * sizeof(T));
    const unsigned n_each = (unsigned)a.dim / (is_whole ? 4 : 1);
    launch(o, "moe_experts (combine)", is_whole ? moe_combine_kernel<4, T> : moe_combine_kernel<1, T>, dim3((unsigned)n_rows, (n_each + 255) / 256), dim3(256), 0, a);
}

template <typename F, bool IS_ALIGNED, typename T> static cudaError_t moe_allow(void)
{
    static_assert(F::IS_WIDE || F::SHARED_BYTES <= SHARED_LEAST_80, "every GPU from sm_80 on has it");
    const cudaError_t e = cudaFuncSetAttribute(moe_hidden_kernel<F, IS_ALIGNED, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES);
    return e != cudaSuccess ? e : cudaFuncSetAttribute(moe_down_kernel<F, IS_ALIGNED, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES);
}

/* More than 48 KB of shared memory must be asked for. */
template <typename T> static cudaError_t moe_allow_all(const ops_cuda *o)
{
    cudaError_t e = cudaSuccess;
    if (o->sm < 80) return e;
    if (e == cudaSuccess) e = moe_allow<moe_form_8, true, T>();
    if (e == cudaSuccess) e = moe_allow<moe_form_16, true, T>();
    if (e == cudaSuccess) e = moe_allow<moe_form_32, true, T>();
    if (e == cudaSuccess) e = moe_allow<moe_form_64, true, T>();
    if (e == cudaSuccess) e = moe_allow<moe_form_128, true, T>();
    if (e == cudaSuccess && o->sm == 90) e = moe_allow<moe_form_wide, true, T>();
    return e;
}
template <> cudaError_t moe_allow_all<float>(const ops_cuda *o) { (void)o; return cudaSuccess; }

template <typename T> fl_status moe_install(ops_cuda *o, fl_err *err)
{
    const cudaError_t e = moe_allow_all<T>(o);
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: GPU %d refuses the shared memory of the experts' products: %s", o->device, cudaGetErrorString(e));
    router_install(o);
    o->table.moe_experts = cuda_moe_experts<T>;
    o->table.moe_scratch_bytes = cuda_moe_scratch_bytes<T>;
    return FL_OK;
}
template fl_status moe_install<float>(ops_cuda *o, fl_err *err);
template fl_status moe_install<__nv_bfloat16>(ops_cuda *o, fl_err *err);
template fl_status moe_install<__half>(ops_cuda *o, fl_err *err);

void moe_close(ops_cuda *o) { (void)o; }
