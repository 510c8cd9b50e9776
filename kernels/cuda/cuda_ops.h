/* cuda_ops.h - what the CUDA kernels share: the object behind `ops`, the step's batch on the device, launching, and the types of activations.
 * Files    one family of kernels a file; each defines its install function, which fills its entries of the table for one activation type.
 * Order    every kernel and copy goes to one stream, so calls happen in the order they were made. Nothing is allocated between two calls of begin() but graphs, a bounded number.
 * Graphs   a step of decode rows is recorded (cuda_graph.cu): between replay() and record_end() an op only launches, with arguments that are equal whenever the key is. So no
 *          waiting, no copy from the host's memory, no event, and no choice of the host's by anything but sizes, pointers and what is in the key.
 * Errors   launch() remembers the first error and the kernel's name and launches nothing after it; finish() tells (FL_GPU).
 * Bits     no floating-point atomics; a grid may depend on the batch, what one row's sum is made of may not (kernels/ops.h, ops/DESIGN.md section 7).
 * Threads  as ops.h: one engine thread. */
#ifndef KERNELS_CUDA_CUDA_OPS_H
#define KERNELS_CUDA_CUDA_OPS_H

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

extern "C" {
#include "kernels/ops.h"
}

/* One chunk of a prompt: at most 64 rows of one sequence from an absolute position that is a multiple of 64. */
typedef struct { int32_t row, n_rows, seq, position; } cuda_tile;

/* Rows of one sequence in this step; of a prompt, tile is the first of its tiles. */
typedef struct { int32_t row, n_rows, seq, slot, position, tile; } cuda_run;

/* A batch as kernels see it: the arrays of ops_batch and lists made from them, all in device memory. Passed to kernels by value. */
typedef struct {
    int32_t n_rows, n_seqs, n_logits, table_stride;
    int32_t n_tiles, n_prefills, n_decodes;
    int32_t most_context;                /* positions that the longest decode row attends to, itself among them; or ops_batch's reach */
    const int32_t *ids, *positions, *seq_of_row, *logit_rows;
    const int32_t *ids_from, *chosen;    /* [n_rows] or NULL: see ops_batch */
    const int32_t *block_tables;         /* [n_seqs, table_stride] */
    const cuda_tile *tiles;              /* [n_tiles] of all prompts, in row order */
    const cuda_run *prefills;            /* [n_prefills] */
    const cuda_run *decodes;             /* [n_decodes] n_rows is 1 */
} cuda_batch;

#define SHARED_LEAST ((size_t)64 << 10)  /* that any GPU gives a block that asks for it: sm_75 */
#define SHARED_LEAST_80 ((size_t)99 << 10)   /* that sm_80 and up do */

struct cuda_sampler;
struct cuda_graphs;
typedef struct {
    ops table;                           /* first: an ops * is an ops_cuda * */
    int device, sm, n_multiprocessors;
    size_t shared_most;                  /* bytes of shared memory that a block can ask for: 64 KB on sm_75, 99 KB on sm_86, 8.9 and 12.0, 163 KB on sm_80, 227 KB on sm_90 and 10.0 */
    cudaStream_t stream;
    cudaError_t error; const char *failed;       /* the first error and the kernel or copy it was seen at */
    bool is_synchronous;                 /* TOKENFLEET_CUDA_SYNC=1: wait after every launch, so that an error names its kernel */
    cuda_batch batch;                    /* of the last begin() */
    void *staging[2]; void *lists; size_t list_bytes; int32_t turn;      /* owned: pinned, twice; their copy on the device */
    cudaEvent_t is_copied[2];            /* the staging buffer may be written again */
    cudaEvent_t is_uploaded[2];          /* begin_upload of a turn is done */
    cudaEvent_t is_downloaded[2];        /* begin_download of a turn is done, as the next with its time */
    cudaEvent_t is_begun[2];             /* the work before begin() is done; by the turn of `staging` */
    int32_t begun_turn[2];               /* of begin_download's turn: which of is_begun its step has, -1 = its time is counted already */
    bool is_counted; double busy_seconds;
    struct cuda_graphs *graphs;          /* owned by cuda_graph.cu; NULL where nothing is recorded */
    char numerics[160];                  /* table.numerics: "sm90", then what products add */
    struct cuda_sampler *sampler;        /* owned by cuda_sampler.cu; NULL before sampler_reserve */
    void *linear, *moe, *attention, *delta;  /* owned by the files of those names: opened by their install, freed by their close */
} ops_cuda;

static inline ops_cuda *cuda_of(ops *o) { return (ops_cuda *)o; }

/* After every launch and copy: keep the first error with the name of what it was seen at. True while all is well. */
bool cuda_check(ops_cuda *o, const char *name);

/* The same for a call of the runtime, whose result is `e`. */
bool cuda_keep(ops_cuda *o, cudaError_t e, const char *name);

/* kernel<<<grid, block, shared>>>(...) on the stream; nothing after an error. */
template <typename... Parameters, typename... Arguments>
static inline void launch(ops_cuda *o, const char *name, void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, Arguments... arguments)
{
    if (o->error != cudaSuccess || grid.x == 0 || grid.y == 0 || grid.z == 0) return;
    kernel<<<grid, block, shared_bytes, o->stream>>>(static_cast<Parameters>(arguments)...);
    cuda_check(o, name);
}

/* Values of the types that activations and weights have, as fp32 and back (to the nearest, ties to even). */
static __device__ __forceinline__ float to_float(float v) { return v; }
static __device__ __forceinline__ float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }
static __device__ __forceinline__ float to_float(__half v) { return __half2float(v); }
template <typename T> static __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) { return v; }
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16_rn(v); }
template <> __device__ __forceinline__ __half from_float<__half>(float v) { return __float2half_rn(v); }

/* Each fills its part of o->table for activations of type T. Those that own memory have a close, which accepts what was never opened. */
template <typename T> fl_status rows_install(ops_cuda *o, fl_err *err);          /* cuda_rows.cu: embed, gather, add, act_add, gates, swiglu, geglu, soft_cap, kv_write, log_sum_exp */
template <typename T> fl_status norm_install(ops_cuda *o, fl_err *err);          /* cuda_norm.cu: rms_norm, act_rms_norm, add_rms_norm, gated_rms_norm, head_norm_rope */
template <typename T> fl_status linear_install(ops_cuda *o, fl_err *err);        /* cuda_linear.cu: linear, linear_f32 */
template <typename T> fl_status attention_install(ops_cuda *o, fl_err *err);     /* cuda_attention.cu */
template <typename T> fl_status delta_install(ops_cuda *o, fl_err *err);         /* cuda_delta.cu: conv_silu, gated_delta */
template <typename T> fl_status moe_install(ops_cuda *o, fl_err *err);           /* cuda_moe.cu: moe_experts, moe_scratch_bytes, and the router */
void router_install(ops_cuda *o);                                                /* cuda_router.cu: moe_route, moe_route_sigmoid; called by moe_install */
void sampler_install(ops_cuda *o);                                               /* cuda_sampler.cu */
void sampler_close(ops_cuda *o);
fl_status graphs_install(ops_cuda *o, fl_err *err);                              /* cuda_graph.cu: replay, record_end, where TOKENFLEET_GRAPHS and TOKENFLEET_CUDA_SYNC let it */
void graphs_forget(ops_cuda *o);         /* what was recorded: memory that it names has moved */
void graphs_close(ops_cuda *o);
void linear_close(ops_cuda *o);
fl_status attention_reserve(ops_cuda *o, const ops_limits *limits, fl_err *err);         /* FL_UNSUPPORTED for contexts whose decode rows have no room */
void attention_close(ops_cuda *o);
void delta_close(ops_cuda *o);
void moe_close(ops_cuda *o);

#endif
