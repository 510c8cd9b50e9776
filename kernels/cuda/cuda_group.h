/* cuda_group.h - eight neighbouring values of a row as fp32: how row-wise kernels read and write, whatever the type and the alignment; and the sums of a block.
 * Group g of a row belongs to thread g mod (threads of the block), ascending; a thread adds its values in order, then the warp's tree (xor 16, 8, 4, 2, 1), then
 * the warps in order. So a sum's order follows from the row's length and the block's size alone. */
#ifndef KERNELS_CUDA_CUDA_GROUP_H
#define KERNELS_CUDA_CUDA_GROUP_H

#include "kernels/cuda/cuda_ops.h"

#define GROUP 8

template <typename T> struct alignas(16) group_part { T v[16 / sizeof(T)]; };

/* v[i] = p[i] for i < left, 0 behind it */
template <typename T> static __device__ __forceinline__ void group_take(float (&v)[GROUP], const T *p, int left)
{
    constexpr int n = 16 / sizeof(T);
    if (left >= GROUP && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
#pragma unroll
        for (int k = 0; k < GROUP; k += n) {
            const group_part<T> part = *reinterpret_cast<const group_part<T> *>(p + k);
#pragma unroll
            for (int i = 0; i < n; i++) v[k + i] = to_float(part.v[i]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) v[i] = i < left ? to_float(p[i]) : 0.0f;
}

/* p[i] = v[i] for i < left */
template <typename T> static __device__ __forceinline__ void group_give(T *p, const float (&v)[GROUP], int left)
{
    constexpr int n = 16 / sizeof(T);
    if (left >= GROUP && reinterpret_cast<uintptr_t>(p) % 16 == 0) {
#pragma unroll
        for (int k = 0; k < GROUP; k += n) {
            group_part<T> part;
#pragma unroll
            for (int i = 0; i < n; i++) part.v[i] = from_float<T>(v[k + i]);
            *reinterpret_cast<group_part<T> *>(p + k) = part;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < GROUP; i++) if (i < left) p[i] = from_float<T>(v[i]);
}

static __device__ __forceinline__ float warp_sum(float v)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v += __shfl_xor_sync(0xffffffffu, v, lane);
    return v;
}

static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
    return v;
}

/* The sum over a block of WARPS warps, known to every thread; may be called again at once. */
template <int WARPS> static __device__ __forceinline__ float block_sum(float v)
{
    __shared__ float parts[WARPS];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += parts[w];
    __syncthreads();
    return sum;
}

template <int WARPS> static __device__ __forceinline__ float block_max(float v)
{
    __shared__ float parts[WARPS];
    v = warp_max(v);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
    __syncthreads();
    float most = parts[0];
#pragma unroll
    for (int w = 1; w < WARPS; w++) most = fmaxf(most, parts[w]);
    __syncthreads();
    return most;
}

/* Gates, in fp32 with the toolkit's functions of full precision. */
static __device__ __forceinline__ float gate_sigmoid(float v) { return 1.0f / (1.0f + expf(-v)); }
static __device__ __forceinline__ float gate_silu(float v) { return v / (1.0f + expf(-v)); }
static __device__ __forceinline__ float gate_softplus(float v) { return v > 20.0f ? v : log1pf(expf(v)); }

#endif
