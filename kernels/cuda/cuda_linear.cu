/* cuda_linear.cu - y = x w^T (+ bias). The arithmetic is cuda_product.cuh's; here are the forms for few and many rows and the choice among them. */
#include "kernels/cuda/cuda_cublas.h"
#include "kernels/cuda/cuda_product.cuh"

template <typename T> struct linear_arg {
    const T *w, *x; const float *bias;   /* [n_out, n_in], [n_rows, n_in], [n_out] or NULL */
    void *y;                             /* [n_rows, n_out] of T, or fp32 */
    int n_rows, n_out, n_in;
    bool is_f32, is_whole;               /* y is fp32; four results can be stored at once: n_out is a multiple of 4 and y is aligned */
};

template <typename F, typename T, typename Y> static __device__ __forceinline__ void linear_store(const linear_arg<T> &a, const float *sums, int n_begin, int m_begin)
{
    const int n_rows = min(F::BM, a.n_rows - m_begin);
    for (int i = threadIdx.x; i < n_rows * (F::BN / 4); i += F::THREADS) {
        const int m = i / (F::BN / 4), n = i % (F::BN / 4) * 4, left = a.n_out - n_begin - n;
        if (left <= 0) continue;
        const float4 four = *(const float4 *)(sums + m * F::SUM_STRIDE + n);
        float v[4] = { four.x, four.y, four.z, four.w };
        Y *y = (Y *)a.y + (size_t)(m_begin + m) * a.n_out + n_begin + n;
        if (a.bias)
#pragma unroll
            for (int c = 0; c < 4; c++) v[c] += c < left ? a.bias[n_begin + n + c] : 0.0f;
        if (a.is_whole) store_4(y, v);
        else
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < left) y[c] = from_float<Y>(v[c]);
    }
}

/* Blocks of one stretch of the weight are neighbours: it is read from memory once. */
template <typename F, bool IS_ALIGNED, typename T> static __global__ void __launch_bounds__(F::THREADS) linear_kernel(const linear_arg<T> a)
{
    extern __shared__ __align__(1024) char shared[];
    const int m_begin = blockIdx.x * F::BM, n_begin = blockIdx.y * F::BN;
    product<F, IS_ALIGNED, T>::tile(shared, [&](int n) { return a.w + (size_t)min(n_begin + n, a.n_out - 1) * a.n_in; },
                                    [&](int m) { return a.x + (size_t)min(m_begin + m, a.n_rows - 1) * a.n_in; }, a.n_in, a.n_rows - m_begin);
    if (a.is_f32) linear_store<F, T, float>(a, (const float *)shared, n_begin, m_begin);
    else linear_store<F, T, T>(a, (const float *)shared, n_begin, m_begin);
}

/* ---- forms ---- */

typedef product_form<32, 8, 16, 8, 128, 6, false, 4> form_8;         /* few rows: the weight is streamed, 40 KB in flight a block, and the warps that sum do nothing else */
typedef product_form<32, 16, 16, 16, 128, 6, false, 4> form_16;
typedef product_form<32, 32, 16, 32, 128, 5> form_32;
typedef product_form<32, 64, 16, 32, 128, 4> form_64_narrow;
typedef product_form<64, 64, 32, 32, 64, 6> form_64;
typedef product_form<128, 128, 64, 64, 64, 3> form_128;              /* many: 64 by 64 a warp, two blocks a multiprocessor */
typedef product_form<256, 128, 64, 64, 64, 4, true> form_wide;       /* the same on sm_90a */
typedef product_form<32, 32, 16, 16, 64, 2> form_any;                /* rows of any alignment, and GPUs without asynchronous copies */

template <typename F, bool IS_ALIGNED, typename T> static void linear_launch(ops_cuda *o, const linear_arg<T> &a)
{
    const dim3 grid((unsigned)((a.n_rows + F::BM - 1) / F::BM), (unsigned)((a.n_out + F::BN - 1) / F::BN));
    launch(o, "linear", linear_kernel<F, IS_ALIGNED, T>, grid, dim3(F::THREADS), F::SHARED_BYTES, a);
}

template <typename F> static int linear_blocks(int n_rows, int n_out) { return ((n_rows + F::BM - 1) / F::BM) * ((n_out + F::BN - 1) / F::BN); }

/* The largest tiles that still give every multiprocessor one. */
template <typename T> static void linear_run(ops_cuda *o, const linear_arg<T> &a)
{
    const bool aligned = a.n_in % 8 == 0 && is_aligned(a.w, 16) && is_aligned(a.x, 16);
    if (!aligned) linear_launch<form_any, false>(o, a);
    else if (o->sm < 80) linear_launch<form_any, true>(o, a);
    else if (a.n_rows <= 8) linear_launch<form_8, true>(o, a);
    else if (a.n_rows <= 16) linear_launch<form_16, true>(o, a);
    else if (a.n_rows <= 32) linear_launch<form_32, true>(o, a);
    else if (o->sm == 90 && linear_blocks<form_wide>(a.n_rows, a.n_out) >= o->n_multiprocessors / 2) linear_launch<form_wide, true>(o, a);
    else if (linear_blocks<form_128>(a.n_rows, a.n_out) >= o->n_multiprocessors) linear_launch<form_128, true>(o, a);
    else if (linear_blocks<form_64>(a.n_rows, a.n_out) >= o->n_multiprocessors) linear_launch<form_64, true>(o, a);
    else linear_launch<form_64_narrow, true>(o, a);
}
template <> void linear_run<float>(ops_cuda *o, const linear_arg<float> &a) { linear_launch<product_form_f32, true>(o, a); }

/* ---- the table's functions ---- */

template <typename T> static void linear_call(ops *table, void *y, const act *x, const weight *w, const weight *bias, int32_t n_rows, bool is_f32)
{
    const bool with_bias = bias && bias->data;
    FL_ASSERT(w->data && w->type == dtype_of<T>::value && w->n_rows >= 1 && w->n_cols >= 1 && n_rows >= 0 && is_aligned(w->data, sizeof(T)));
    FL_ASSERT(!with_bias || (bias->type == DTYPE_F32 && bias->n_cols == w->n_rows));
    if (n_rows == 0 || (!with_bias && cublas_linear(cuda_of(table), (const cublas *)cuda_of(table)->linear, y, x, w, n_rows, is_f32))) return;
    linear_arg<T> a = {};
    a.w = (const T *)w->data;
    a.x = (const T *)x;
    a.bias = with_bias ? (const float *)bias->data : NULL;
    a.y = y;
    a.n_rows = n_rows;
    a.n_out = w->n_rows;
    a.n_in = w->n_cols;
    a.is_f32 = is_f32;
    a.is_whole = w->n_rows % 4 == 0 && is_aligned(y, 4 * (is_f32 ? sizeof(float) : sizeof(T)));
    linear_run<T>(cuda_of(table), a);
}

template <typename T> static void cuda_linear(ops *o, act *y, const act *x, const weight *w, const weight *bias, int32_t n_rows)
{
    linear_call<T>(o, y, x, w, bias, n_rows, false);
}
template <typename T> static void cuda_linear_f32(ops *o, float *y, const act *x, const weight *w, const weight *bias, int32_t n_rows)
{
    linear_call<T>(o, y, x, w, bias, n_rows, true);
}

template <typename F, bool IS_ALIGNED, typename T> static cudaError_t linear_allow(void)
{
    static_assert(F::IS_WIDE || F::SHARED_BYTES <= SHARED_LEAST_80, "every GPU from sm_80 on has it");
    return cudaFuncSetAttribute(linear_kernel<F, IS_ALIGNED, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, F::SHARED_BYTES);
}

/* More than 48 KB of shared memory must be asked for. */
template <typename T> static cudaError_t linear_allow_all(const ops_cuda *o)
{
    cudaError_t e = cudaSuccess;
    if (o->sm < 80) return e;
    if (e == cudaSuccess) e = linear_allow<form_8, true, T>();
    if (e == cudaSuccess) e = linear_allow<form_16, true, T>();
    if (e == cudaSuccess) e = linear_allow<form_32, true, T>();
    if (e == cudaSuccess) e = linear_allow<form_64_narrow, true, T>();
    if (e == cudaSuccess) e = linear_allow<form_64, true, T>();
    if (e == cudaSuccess) e = linear_allow<form_128, true, T>();
    if (e == cudaSuccess && o->sm == 90) e = linear_allow<form_wide, true, T>();
    return e;
}
template <> cudaError_t linear_allow_all<float>(const ops_cuda *o) { (void)o; return cudaSuccess; }

/* cuBLASLt is opened here and not before: without this call, as in most tests, our own kernels serve everything. */
template <typename T> static fl_status cuda_prepare(ops *table, const ops_product *products, int32_t n, char *note, fl_err *err)
{
    ops_cuda *o = cuda_of(table);
    note[0] = '\0';
    linear_close(o);
    cublas *c = cublas_open(o, dtype_of<T>::value, note);
    if (c) cublas_prepare(o, c, products, n, note);
    o->linear = c;
    return table->finish(table, err);
}

template <typename T> fl_status linear_install(ops_cuda *o, fl_err *err)
{
    const cudaError_t e = linear_allow_all<T>(o);
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: GPU %d refuses the shared memory of products: %s", o->device, cudaGetErrorString(e));
    o->table.linear = cuda_linear<T>;
    o->table.linear_f32 = cuda_linear_f32<T>;
    o->table.prepare = cuda_prepare<T>;
    return FL_OK;
}
template fl_status linear_install<float>(ops_cuda *o, fl_err *err);
template fl_status linear_install<__nv_bfloat16>(ops_cuda *o, fl_err *err);
template fl_status linear_install<__half>(ops_cuda *o, fl_err *err);

void linear_close(ops_cuda *o)
{
    cublas_close((cublas *)o->linear);
    o->linear = NULL;
}
