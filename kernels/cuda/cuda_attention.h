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

/* [rows of this launch, n_splits, n_heads, 4 + head_dim]: m (of scaled scores), l, o of a split. Splits a row does not see are not written; a row that sees one split
 * has its result without them, to the same bits. */
typedef struct { float *at; int32_t n_splits, first_row; } attention_partial;

static __device__ __forceinline__ float *attention_partial_at(const attention_partial &p, int row, int split, int head, int n_heads, int head_dim)
{
    return p.at + (((size_t)row * p.n_splits + split) * n_heads + head) * (size_t)(ATTENTION_PARTIAL_HEAD + head_dim);
}

/* The splits that a decode row sees. */
template <typename T> static __device__ __forceinline__ int first_split(const attention_call<T> &a, const cuda_run &run)
{
    return (a.window > 0 ? max(run.position + 1 - a.window, 0) : 0) / ATTENTION_SPLIT;
}
static __device__ __forceinline__ int last_split(const cuda_run &run) { return run.position / ATTENTION_SPLIT; }

/* The forms on tensor cores. `takes` depends on the GPU and the model alone, so a model's rows always take the same form. */
template <typename T> bool attention_wgmma_takes(const ops_cuda *o, int head_dim);              /* cuda_attention_wgmma.cu: prompts */
template <typename T> void attention_wgmma_run(ops_cuda *o, const attention_call<T> &a);
template <typename T> cudaError_t attention_wgmma_install(void);
template <typename T> bool attention_decode_takes(const ops_cuda *o, int head_dim);             /* cuda_attention_decode.cu: decode rows, n_rows from partial.first_row */
template <typename T> void attention_decode_run(ops_cuda *o, const attention_call<T> &a, const attention_partial &partial, int n_rows);

/* fp32 mode has no such forms. */
template <> inline bool attention_wgmma_takes<float>(const ops_cuda *, int) { return false; }
template <> inline void attention_wgmma_run<float>(ops_cuda *, const attention_call<float> &) {}
template <> inline cudaError_t attention_wgmma_install<float>(void) { return cudaSuccess; }
template <> inline bool attention_decode_takes<float>(const ops_cuda *, int) { return false; }
template <> inline void attention_decode_run<float>(ops_cuda *, const attention_call<float> &, const attention_partial &, int) {}

#endif
