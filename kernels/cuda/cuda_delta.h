/* cuda_delta.h - what the forms of the gated delta rule share: the call's arguments, gates in fp32. */
#ifndef KERNELS_CUDA_DELTA_H
#define KERNELS_CUDA_DELTA_H

#include "kernels/cuda/cuda_ops.h"

#include <type_traits>

template <typename T> struct delta_call {
    T *out; const T *qkv; const float *a, *b, *a_log, *dt_bias; float *state; int32_t n_k_heads, n_v_heads; bool is_tiled; int32_t dk, dv;
    cuda_batch batch;
};

template <typename T> static __device__ __forceinline__ int key_head_of(const delta_call<T> &a, int head) { return a.is_tiled ? head % a.n_k_heads : head / (a.n_v_heads / a.n_k_heads); }

static __device__ __forceinline__ float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }
static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

/* cuda_delta_chunk.cu: prompts in chunks on tensor cores. `takes` depends on the GPU (its instructions, the shared memory of a block) and the model alone. */
template <typename T> bool delta_chunk_takes(const ops_cuda *o, int dk, int dv);
template <typename T> void delta_chunk_run(ops_cuda *o, const delta_call<T> &a);
template <typename T> fl_status delta_chunk_install(ops_cuda *o, fl_err *err);

/* fp32 mode goes row by row. */
template <> inline bool delta_chunk_takes<float>(const ops_cuda *, int, int) { return false; }
template <> inline void delta_chunk_run<float>(ops_cuda *, const delta_call<float> &) {}
template <> inline fl_status delta_chunk_install<float>(ops_cuda *, fl_err *) { return FL_OK; }

#endif
