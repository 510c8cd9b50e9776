/* cuda_router.cu - moe_route and moe_route_sigmoid: which experts a row takes. One warp a row; a row's sums run in an order that n_experts alone decides. */
#include "kernels/cuda/cuda_ops.h"

/* A score and its expert as one number, so that the greatest one is the choice: the greater score, of equals the lowest id. NaN is below every number and above
 * what was taken (0). */
static __device__ __forceinline__ uint64_t router_key(float score, int expert)
{
    const uint32_t bits = __float_as_uint(score + 0.0f);             /* -0 is 0 */
    const uint32_t order = isnan(score) ? 1u : bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)order << 32 | (uint32_t)(0x7fffffff - expert);
}
static __device__ __forceinline__ int router_expert(uint64_t key) { return 0x7fffffff - (int)(uint32_t)key; }

static __device__ __forceinline__ uint64_t warp_most(uint64_t v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) {
        const uint64_t other = __shfl_xor_sync(0xffffffffu, v, i);
        v = other > v ? other : v;
    }
    return v;
}
static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int i = 16; i > 0; i /= 2) v += __shfl_xor_sync(0xffffffffu, v, i);
    return v;
}

/* The next choice among `scores` (this warp's, in shared memory; what is taken is marked in `taken`). As the definition walks: the first expert that is left stays
 * when it is NaN, since nothing is greater; else a NaN is never chosen while a number is left. */
static __device__ int router_choose(const float *scores, uint8_t *taken, int n_experts)
{
    const int lane = threadIdx.x % 32;
    uint64_t most = 0, first = 0;                                    /* first: the lowest expert that is left, NaN or not */
    for (int e = lane; e < n_experts; e += 32) {
        if (taken[e]) continue;
        const uint64_t key = router_key(scores[e], e);
        if (first == 0) first = (uint64_t)(uint32_t)(0x7fffffff - e) << 1 | (key >> 32 == 1);
        most = key > most ? key : most;
    }
    most = warp_most(most);
    first = warp_most(first);
    const int chosen = first & 1 ? 0x7fffffff - (int)(first >> 1) : router_expert(most);
    __syncwarp();
    if (lane == 0) taken[chosen] = 1;
    __syncwarp();
    return chosen;
}

typedef struct {
    int32_t *ids; float *weights; const float *logits, *bias;
    float scale;
    int32_t n_rows, n_experts, top_k;
    bool renormalize, is_sigmoid;
} router_arg;

static __global__ void router_kernel(const router_arg a)
{
    extern __shared__ float shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n_warps = blockDim.x / 32;
    const int row = blockIdx.x * n_warps + warp, n = a.n_experts;
    if (row >= a.n_rows) return;                                     /* a whole warp: nobody waits for it */
    float *scores = shared + warp * n;
    uint8_t *taken = (uint8_t *)(shared + n_warps * n) + warp * n;
    const float *x = a.logits + (size_t)row * n;
    int32_t *ids = a.ids + (size_t)row * a.top_k;
    float *weights = a.weights + (size_t)row * a.top_k;

    float most = -INFINITY, total = 0.0f;
    for (int e = lane; e < n; e += 32) {
        scores[e] = a.is_sigmoid ? 1.0f / (1.0f + expf(-x[e])) + a.bias[e] : x[e];
        taken[e] = 0;
        most = fmaxf(most, x[e]);
    }
    if (!a.is_sigmoid) {
#pragma unroll
        for (int i = 16; i > 0; i /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, i));
        for (int e = lane; e < n; e += 32) total += expf(x[e] - most);
        total = warp_sum(total);
    }
    __syncwarp();
    float chosen = 0.0f;
    for (int s = 0; s < a.top_k; s++) {
        const int e = router_choose(scores, taken, n);
        const float p = a.is_sigmoid ? 1.0f / (1.0f + expf(-x[e])) : expf(x[e] - most) / total;
        chosen += p;
        if (lane == 0) {
            ids[s] = e;
            weights[s] = p;
        }
    }
    if (lane == 0 && (a.is_sigmoid || a.renormalize))
        for (int s = 0; s < a.top_k; s++) weights[s] = a.is_sigmoid ? weights[s] / chosen * a.scale : weights[s] / chosen;
}

static void router_run(ops_cuda *o, const char *name, const router_arg &a)
{
    FL_ASSERT(a.n_experts >= 1 && a.n_experts <= OPS_EXPERTS_MAX && a.top_k >= 1 && a.top_k <= a.n_experts && a.n_rows >= 0);
    const unsigned n_warps = a.n_experts <= 2048 ? 4 : 2;            /* 5 bytes an expert: 40 KB at most */
    launch(o, name, router_kernel, dim3(((unsigned)a.n_rows + n_warps - 1) / n_warps), dim3(32 * n_warps), n_warps * (size_t)a.n_experts * 5, a);
}

static void cuda_moe_route(ops *o, int32_t *ids, float *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize)
{
    const router_arg a = { ids, weights, logits, NULL, 1.0f, n_rows, n_experts, top_k, renormalize, false };
    router_run(cuda_of(o), "moe_route", a);
}

static void cuda_moe_route_sigmoid(ops *o, int32_t *ids, float *weights, const float *logits, const weight *bias, float scale, int32_t n_rows, int32_t n_experts, int32_t top_k)
{
    FL_ASSERT(bias->data && bias->type == DTYPE_F32 && bias->n_cols == n_experts);
    const router_arg a = { ids, weights, logits, (const float *)bias->data, scale, n_rows, n_experts, top_k, true, true };
    router_run(cuda_of(o), "moe_route_sigmoid", a);
}

void router_install(ops_cuda *o)
{
    o->table.moe_route = cuda_moe_route;
    o->table.moe_route_sigmoid = cuda_moe_route_sigmoid;
}
