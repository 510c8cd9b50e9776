/* cuda_norm.cu - RMS norms: of a row, of a sum, of a head with its rotation, of a gated head. Definitions: kernels/norm_ref.c, rows_ref.c.
 * A row is a block's (cuda_group.h says in which order it sums), a head is a warp's. Sums and products in fp32, one rounding to the activation's type.
 * Weights are vectors, fp32 on the device. */
#include "kernels/cuda/cuda_group.h"

#define ROW_WARPS 8
#define ROW_THREADS (32 * ROW_WARPS)
#define HEAD_WARPS 4

/* ---- rows ---- */

/* y = norm(x), after x += d where d is given. X: float (the residual stream) or T. */
template <typename T, typename X, bool ADDS>
static __global__ void __launch_bounds__(ROW_THREADS) norm_rows(T *y, X *x, const T *d, const float *w, float w_add, float eps, int32_t dim)
{
    x += static_cast<size_t>(blockIdx.x) * dim;
    y += static_cast<size_t>(blockIdx.x) * dim;
    if (ADDS) d += static_cast<size_t>(blockIdx.x) * dim;
    float sum = 0.0f;
    for (int32_t i = threadIdx.x * GROUP; i < dim; i += ROW_THREADS * GROUP) {
        float v[GROUP], more[GROUP];
        group_take(v, x + i, dim - i);
        if (ADDS) {
            group_take(more, d + i, dim - i);
#pragma unroll
            for (int k = 0; k < GROUP; k++) v[k] += more[k];
            group_give(x + i, v, dim - i);
        }
#pragma unroll
        for (int k = 0; k < GROUP; k++) sum = fmaf(v[k], v[k], sum);
    }
    const float scale = rsqrtf(block_sum<ROW_WARPS>(sum) / static_cast<float>(dim) + eps);
    for (int32_t i = threadIdx.x * GROUP; i < dim; i += ROW_THREADS * GROUP) {
        float v[GROUP], g[GROUP];
        group_take(v, x + i, dim - i);
        group_take(g, w + i, dim - i);
#pragma unroll
        for (int k = 0; k < GROUP; k++) v[k] = v[k] * scale * (g[k] + w_add);
        group_give(y + i, v, dim - i);
    }
}

static const float *norm_weight(const weight *w, int32_t dim)
{
    FL_ASSERT(w->data && w->type == DTYPE_F32 && w->n_rows * w->n_cols == dim);
    return static_cast<const float *>(w->data);
}

template <typename T> static void cuda_rms_norm(ops *o, act *y, const float *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    launch(cuda_of(o), "rms_norm", norm_rows<T, float, false>, dim3(n_rows), dim3(ROW_THREADS), 0, reinterpret_cast<T *>(y), const_cast<float *>(x), nullptr, norm_weight(w, dim), w_add, eps, dim);
}

template <typename T> static void cuda_act_rms_norm(ops *o, act *y, const act *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    launch(cuda_of(o), "act_rms_norm", norm_rows<T, T, false>, dim3(n_rows), dim3(ROW_THREADS), 0, reinterpret_cast<T *>(y), reinterpret_cast<T *>(const_cast<act *>(x)), nullptr,
           norm_weight(w, dim), w_add, eps, dim);
}

template <typename T> static void cuda_add_rms_norm(ops *o, act *y, float *x, const act *d, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    launch(cuda_of(o), "add_rms_norm", norm_rows<T, float, true>, dim3(n_rows), dim3(ROW_THREADS), 0, reinterpret_cast<T *>(y), x, reinterpret_cast<const T *>(d), norm_weight(w, dim),
           w_add, eps, dim);
}

/* ---- heads ---- */

#define HEAD_EACH (OPS_HEAD_DIM_MAX / 32) /* a lane's values of a head of attention, all on their way at once */

/* v[j] = p[lane + 32 j] up to dim, zeros behind it */
template <int EACH, typename T> static __device__ __forceinline__ void head_take(float (&v)[EACH], const T *p, int32_t dim)
{
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int32_t i = static_cast<int32_t>(threadIdx.x) % 32 + 32 * j;
        v[j] = i < dim ? to_float(p[i]) : 0.0f;
    }
}

/* What a warp makes of one head: its scale, from lanes that add up their values in order. */
template <int EACH> static __device__ __forceinline__ float head_scale(const float (&v)[EACH], int32_t dim, float eps)
{
    float sum = 0.0f;
#pragma unroll
    for (int j = 0; j < EACH; j++) sum = fmaf(v[j], v[j], sum);
    return rsqrtf(warp_sum(sum) / static_cast<float>(dim) + eps);
}

template <typename T>
static __global__ void __launch_bounds__(32 * HEAD_WARPS) norm_rope_heads(T *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const float *w, float w_add, float eps,
                                                                          const float *cosines, const float *sines, int32_t n_rot, const int32_t *positions, int32_t n_rows)
{
    __shared__ float heads[HEAD_WARPS][OPS_HEAD_DIM_MAX];
    const int32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, half = n_rot / 2;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * HEAD_WARPS + warp;
    if (at >= static_cast<int64_t>(n_rows) * n_heads) return;
    const int32_t row = static_cast<int32_t>(at / n_heads), h = static_cast<int32_t>(at % n_heads);
    x += static_cast<size_t>(row) * x_stride + static_cast<size_t>(h) * head_stride;
    const float *c = cosines + static_cast<size_t>(positions[row]) * half, *s = sines + static_cast<size_t>(positions[row]) * half;
    float v[HEAD_EACH], by[HEAD_EACH], cosine[HEAD_EACH], sine[HEAD_EACH];
    head_take(v, x, head_dim);
    if (w) head_take(by, w, head_dim);
#pragma unroll
    for (int j = 0; j < HEAD_EACH; j++) {
        const int32_t i = lane + 32 * j, turn = i < half ? i : i - half;
        cosine[j] = i < n_rot ? c[turn] : 0.0f;
        sine[j] = i < n_rot ? s[turn] : 0.0f;
    }
    const float scale = w ? head_scale(v, head_dim, eps) : 1.0f;
#pragma unroll
    for (int j = 0; j < HEAD_EACH; j++) {
        if (w) v[j] = v[j] * scale * (by[j] + w_add);
        heads[warp][lane + 32 * j] = v[j];
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < HEAD_EACH; j++) {
        const int32_t i = lane + 32 * j;
        if (i >= head_dim) break;
        if (i < half) v[j] = v[j] * cosine[j] - heads[warp][i + half] * sine[j];
        else if (i < n_rot) v[j] = v[j] * cosine[j] + heads[warp][i - half] * sine[j];
        x[i] = from_float<T>(v[j]);
    }
}

template <typename T> static void cuda_head_norm_rope(ops *o, act *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, float w_add, float eps,
                                                      const ops_rope *rope, const ops_batch *b)
{
    FL_ASSERT(head_dim <= OPS_HEAD_DIM_MAX && rope->n_rot >= 0 && rope->n_rot % 2 == 0 && rope->n_rot <= head_dim);
    const int64_t n_heads_all = static_cast<int64_t>(b->n_rows) * n_heads;
    launch(cuda_of(o), "head_norm_rope", norm_rope_heads<T>, dim3(static_cast<unsigned>((n_heads_all + HEAD_WARPS - 1) / HEAD_WARPS)), dim3(32 * HEAD_WARPS), 0, reinterpret_cast<T *>(x),
           x_stride, head_stride, n_heads, head_dim, w && w->data ? norm_weight(w, head_dim) : nullptr, w_add, eps, rope->cos, rope->sin, rope->n_rot, cuda_of(o)->batch.positions, b->n_rows);
}

/* Heads of at most 32 * EACH values. */
template <typename T, int EACH>
static __global__ void __launch_bounds__(32 * HEAD_WARPS) gated_norm_heads(T *x, const T *z, const float *w, float eps, int64_t n_heads, int32_t dim)
{
    const int64_t at = static_cast<int64_t>(blockIdx.x) * HEAD_WARPS + threadIdx.x / 32;
    if (at >= n_heads) return;
    x += at * dim;
    z += at * dim;
    float v[EACH], gate[EACH], by[EACH];
    head_take(v, x, dim);
    head_take(gate, z, dim);
    head_take(by, w, dim);
    const float scale = head_scale(v, dim, eps);
#pragma unroll
    for (int j = 0; j < EACH; j++) {
        const int32_t i = static_cast<int32_t>(threadIdx.x) % 32 + 32 * j;
        if (i < dim) x[i] = from_float<T>(v[j] * scale * by[j] * gate_silu(gate[j]));
    }
}

template <typename T> static void cuda_gated_rms_norm(ops *o, act *x, const act *z, const weight *w, float eps, int32_t n_rows, int32_t n_heads, int32_t dim)
{
    const int64_t n_heads_all = static_cast<int64_t>(n_rows) * n_heads;
    FL_ASSERT(dim <= 512);                               /* engine/model_config.c's largest */
    launch(cuda_of(o), "gated_rms_norm", dim <= 128 ? gated_norm_heads<T, 4> : gated_norm_heads<T, 16>, dim3(static_cast<unsigned>((n_heads_all + HEAD_WARPS - 1) / HEAD_WARPS)), dim3(32 * HEAD_WARPS), 0, reinterpret_cast<T *>(x),
           reinterpret_cast<const T *>(z), norm_weight(w, dim), eps, n_heads_all, dim);
}

template <typename T> fl_status norm_install(ops_cuda *o, fl_err *err)
{
    (void)err;
    o->table.rms_norm = cuda_rms_norm<T>;
    o->table.act_rms_norm = cuda_act_rms_norm<T>;
    o->table.add_rms_norm = cuda_add_rms_norm<T>;
    o->table.head_norm_rope = cuda_head_norm_rope<T>;
    o->table.gated_rms_norm = cuda_gated_rms_norm<T>;
    return FL_OK;
}

template fl_status norm_install<float>(ops_cuda *, fl_err *);
template fl_status norm_install<__nv_bfloat16>(ops_cuda *, fl_err *);
template fl_status norm_install<__half>(ops_cuda *, fl_err *);
