/* cuda_attention.h - what the forms of attention share: the call's arguments and where partial results of decode rows lie. */
#ifndef KERNELS_CUDA_ATTENTION_H
#define KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/cuda_ops.h"

#define ATTENTION_SPLIT 256              /* positions a decode block walks */
#define ATTENTION_PARTIAL_HEAD 4         /* floats before o: m, l, unused */
#define ATTENTION_SCRATCH_BYTES ((size_t)128 << 20)

template <typename T> struct attention_call {
    T *out; const T *q, *k, *v; int32_t q_stride, q_head_stride, n_heads, n_kv_heads, head_dim, window; float scale;
    cuda_batch batch;
};

/* [rows of this launch, n_splits, n_heads, 4 + head_dim]: m (of scaled scores), l, o of a split. Splits a row does not see are not written. */
typedef struct { float *at; int32_t n_splits, first_row; } attention_partial;

static __device__ __forceinline__ float *attention_partial_at(const attention_partial &p, int row, int split, int head, int n_heads, int head_dim)
{
    return p.at + (((size_t)row * p.n_splits + split) * n_heads + head) * (size_t)(ATTENTION_PARTIAL_HEAD + head_dim);
}

#endif
