/* cuda_delta.cu - the two recurrent pieces of a linear-attention layer: causal convolution, and the gated delta rule row by row, which is the decode form and, in fp32
 * mode and for sizes that the chunked form (cuda_delta_chunk.cu) does not take, also the prefill form.
 * conv_silu    x rows x_stride apart, y [n_rows, n_channels], w [n_channels, width] fp32, state [slot, width - 1, n_channels] fp32; width 1 .. 8. A sum runs
 *              over taps ascending, in prompts and decode alike. Prompts: one kernel for all outputs, then one that advances the states.
 * gated_delta  qkv [n_rows, 2 n_k_heads dk + n_v_heads dv], a, b [n_rows, n_v_heads] fp32, state [slot, n_v_heads, dk, dv] fp32, out [n_rows, n_v_heads dv];
 *              dk 1 .. 256. A block holds columns of one head's state in registers: warp w has the rows i = w mod 8, a lane 1 or 4 columns (4 in decode where dv is a multiple of 4).
 *              seen = decay (S^T k), out = decay (S^T q) + (k q) u with u = beta (v - seen), S = decay S + k u^T; sums over i: a warp's rows
 *              ascending, then the warps ascending.
 * Bits         A row's values come from its own inputs and the state before it, which is kept in fp32: how rows share calls changes nothing.
 * Reads        no state of a sequence whose first row is position 0. */
#include "kernels/cuda/cuda_delta.h"

#define CONV_ROWS 16                     /* of a prompt that a thread walks */
#define CONV_THREADS 128
#define WARPS 8                          /* of a block of the delta rule */

static __device__ __forceinline__ float silu(float v) { return v / (1.0f + expf(-v)); }

/* ---- conv_silu ---- */

template <typename T> struct conv_call {
    T *y; const T *x; const float *w; float *state; int32_t x_stride, n_channels, width;
    cuda_batch batch;
};

/* N neighbouring values, in one access: N is 4 where all of them lie well, else 1. A channel's sum is the same either way. */
template <typename T, int N> struct alignas(sizeof(T) * N) several { T v[N]; };
template <int N, typename T> static __device__ __forceinline__ void load_several(float (&to)[N], const T *from)
{
    const several<T, N> s = *(const several<T, N> *)from;
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = to_float(s.v[i]);
}
template <int N, typename T> static __device__ __forceinline__ void store_several(T *to, const float (&from)[N])
{
    several<T, N> s;
#pragma unroll
    for (int i = 0; i < N; i++) s.v[i] = from_float<T>(from[i]);
    *(several<T, N> *)to = s;
}

/* Inputs of the N_BEFORE rows before row `first` of the run (0: what the state holds, zeros at position 0), for channels c .. . Branches depend on the block alone, and all loads of
 * one are under way together. */
template <typename T, int N_BEFORE, int WIDTH, int N> static __device__ __forceinline__ void conv_before(float (*to)[N], const conv_call<T> &a, const cuda_run &run, int first, int c)
{
    if (first >= N_BEFORE) {
#pragma unroll
        for (int t = 0; t < N_BEFORE; t++) load_several<N>(to[t], a.x + (size_t)(run.row + first - N_BEFORE + t) * a.x_stride + c);
    } else if (first == 0 && run.position > 0) {
#pragma unroll
        for (int t = 0; t < N_BEFORE; t++) load_several<N>(to[t], a.state + ((size_t)run.slot * (WIDTH - 1) + t) * a.n_channels + c);
    } else {                                             /* fewer rows than taps: some of both */
#pragma unroll
        for (int t = 0; t < N_BEFORE; t++) {
            const int i = first - N_BEFORE + t;
            if (i >= 0) load_several<N>(to[t], a.x + (size_t)(run.row + i) * a.x_stride + c);
            else if (run.position > 0) load_several<N>(to[t], a.state + ((size_t)run.slot * (WIDTH - 1) + (WIDTH - 1 + i)) * a.n_channels + c);
            else {
#pragma unroll
                for (int e = 0; e < N; e++) to[t][e] = 0.0f;
            }
        }
    }
}

template <int WIDTH, int N> static __device__ __forceinline__ void conv_weights(float (&w)[WIDTH][N], const float *from, int c)
{
#pragma unroll
    for (int t = 0; t < WIDTH; t++)
#pragma unroll
        for (int e = 0; e < N; e++) w[t][e] = from[(size_t)(c + e) * WIDTH + t];
}

/* y = silu of the sum over taps, ascending; x holds the inputs of the taps. */
template <typename T, int WIDTH, int N> static __device__ __forceinline__ void conv_output(T *y, const float (&w)[WIDTH][N], const float (*x)[N])
{
    float sum[N];
#pragma unroll
    for (int e = 0; e < N; e++) {
        sum[e] = w[0][e] * x[0][e];
#pragma unroll
        for (int t = 1; t < WIDTH; t++) sum[e] = fmaf(w[t][e], x[t][e], sum[e]);
        sum[e] = silu(sum[e]);
    }
    store_several<N>(y, sum);
}

/* Block (x: channels, y: 16 rows of a prompt's run, z: run). The grid's y covers the longest run. */
template <typename T, int WIDTH, int N> static __global__ void __launch_bounds__(CONV_THREADS) conv_prefill(conv_call<T> a)
{
    const int c = (blockIdx.x * CONV_THREADS + threadIdx.x) * N, first = blockIdx.y * CONV_ROWS;
    const cuda_run run = a.batch.prefills[blockIdx.z];
    if (c >= a.n_channels || first >= run.n_rows) return;
    float w[WIDTH][N], x[CONV_ROWS + WIDTH - 1][N];
    conv_weights<WIDTH, N>(w, a.w, c);
    several<T, N> rows[CONV_ROWS];
#pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) rows[i] = *(const several<T, N> *)(a.x + (size_t)(run.row + min(first + i, run.n_rows - 1)) * a.x_stride + c);
    conv_before<T, WIDTH - 1, WIDTH, N>(x, a, run, first, c);
#pragma unroll
    for (int i = 0; i < CONV_ROWS; i++)
#pragma unroll
        for (int e = 0; e < N; e++) x[i + WIDTH - 1][e] = to_float(rows[i].v[e]);
#pragma unroll
    for (int i = 0; i < CONV_ROWS; i++) {
        if (first + i >= run.n_rows) break;
        conv_output<T, WIDTH, N>(a.y + (size_t)(run.row + first + i) * a.n_channels + c, w, x + i);
    }
}

/* After conv_prefill: the last width - 1 inputs of each run become the state. Block (x: channels, y: run). */
template <typename T, int WIDTH, int N> static __global__ void __launch_bounds__(CONV_THREADS) conv_advance(conv_call<T> a)
{
    const int c = (blockIdx.x * CONV_THREADS + threadIdx.x) * N;
    const cuda_run run = a.batch.prefills[blockIdx.y];
    if (c >= a.n_channels) return;
    float x[WIDTH][N];
    conv_before<T, WIDTH - 1, WIDTH, N>(x, a, run, run.n_rows, c);
#pragma unroll
    for (int t = 0; t < WIDTH - 1; t++) store_several<N>(a.state + ((size_t)run.slot * (WIDTH - 1) + t) * a.n_channels + c, x[t]);
}

/* Block (x: channels, y: decode row). */
template <typename T, int WIDTH, int N> static __global__ void __launch_bounds__(CONV_THREADS) conv_decode(conv_call<T> a)
{
    const int c = (blockIdx.x * CONV_THREADS + threadIdx.x) * N;
    const cuda_run run = a.batch.decodes[blockIdx.y];
    if (c >= a.n_channels) return;
    float w[WIDTH][N], x[WIDTH][N];
    conv_weights<WIDTH, N>(w, a.w, c);
    load_several<N>(x[WIDTH - 1], a.x + (size_t)run.row * a.x_stride + c);
    conv_before<T, WIDTH - 1, WIDTH, N>(x, a, run, 0, c);
    conv_output<T, WIDTH, N>(a.y + (size_t)run.row * a.n_channels + c, w, x);
#pragma unroll
    for (int t = 0; t < WIDTH - 1; t++) store_several<N>(a.state + ((size_t)run.slot * (WIDTH - 1) + t) * a.n_channels + c, x[t + 1]);
}

template <typename T, int WIDTH, int N> static void conv_launch(ops_cuda *o, const conv_call<T> &a, int32_t most_rows)
{
    const unsigned n_x = (unsigned)((a.n_channels / N + CONV_THREADS - 1) / CONV_THREADS);
    launch(o, "conv_prefill", conv_prefill<T, WIDTH, N>, dim3(n_x, (unsigned)((most_rows + CONV_ROWS - 1) / CONV_ROWS), (unsigned)a.batch.n_prefills), CONV_THREADS, 0, a);
    launch(o, "conv_advance", conv_advance<T, WIDTH, N>, dim3(n_x, (unsigned)a.batch.n_prefills), CONV_THREADS, 0, a);
    /* a row has little to load: many threads hide more than wide loads save */
    launch(o, "conv_decode", conv_decode<T, WIDTH, 1>, dim3((unsigned)((a.n_channels + CONV_THREADS - 1) / CONV_THREADS), (unsigned)a.batch.n_decodes), CONV_THREADS, 0, a);
}

template <typename T> static void cuda_conv_silu(ops *table, act *y, const act *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width,
                                                 const ops_batch *b)
{
    ops_cuda *o = cuda_of(table);
    FL_ASSERT(width >= 1 && width <= OPS_CONV_WIDTH_MAX && w->type == DTYPE_F32 && (const void *)y != (const void *)x && (uintptr_t)state % OPS_STATE_ALIGN == 0 &&
              b->n_rows == o->batch.n_rows);
    const conv_call<T> a = { (T *)y, (const T *)x, (const float *)w->data, state, x_stride, n_channels, width, o->batch };
    int32_t most_rows = 0;
    for (int32_t s = 0; s < b->n_seqs; s++)
        if (b->is_prefill[s] && b->row_begin[s + 1] - b->row_begin[s] > most_rows) most_rows = b->row_begin[s + 1] - b->row_begin[s];
    const size_t word = 4 * sizeof(T);
    const bool is_even = n_channels % 4 == 0 && x_stride % 4 == 0 && (uintptr_t)x % word == 0 && (uintptr_t)y % word == 0;
    switch (width) {
    case 1: conv_launch<T, 1, 1>(o, a, most_rows); break;
    case 2: conv_launch<T, 2, 1>(o, a, most_rows); break;
    case 3: conv_launch<T, 3, 1>(o, a, most_rows); break;
    case 4:                              /* the width of every model so far */
        if (is_even) conv_launch<T, 4, 4>(o, a, most_rows);
        else conv_launch<T, 4, 1>(o, a, most_rows);
        break;
    case 5: conv_launch<T, 5, 1>(o, a, most_rows); break;
    case 6: conv_launch<T, 6, 1>(o, a, most_rows); break;
    case 7: conv_launch<T, 7, 1>(o, a, most_rows); break;
    default: conv_launch<T, 8, 1>(o, a, most_rows); break;
    }
}

/* ---- gated_delta ---- */

/* Shared memory of a block: the token's normalized q and k, partial sums of the warps (lane by lane), norms. */
typedef struct { float q[OPS_DELTA_K_MAX], k[OPS_DELTA_K_MAX], seen[WARPS][128], out[WARPS][128], qq[WARPS], kk[WARPS], qk[WARPS]; } delta_shared;

static __device__ float warp_sum(float v)
{
    for (int k = 16; k > 0; k /= 2) v += __shfl_xor_sync(0xffffffffu, v, k);
    return v;
}

/* One token: S in registers (ROWS rows of the warp, COLUMNS columns of the lane) is advanced, its outputs are written. */
template <typename T, int ROWS, int COLUMNS> static __device__ void delta_step(float (&S)[ROWS][COLUMNS], delta_shared &sh, const delta_call<T> &a, int row, int head, int column)
{
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_head = key_head_of(a, head);
    const T *q = a.qkv + (size_t)row * (2 * a.n_k_heads * a.dk + a.n_v_heads * a.dv) + (size_t)key_head * a.dk, *k = q + (size_t)a.n_k_heads * a.dk;
    const T *v = a.qkv + (size_t)row * (2 * a.n_k_heads * a.dk + a.n_v_heads * a.dv) + 2 * (size_t)a.n_k_heads * a.dk + (size_t)head * a.dv;
    const int at = row * a.n_v_heads + head;
    const float decay = expf(-expf(a.a_log[head]) * softplus(a.a[at] + a.dt_bias[head])), beta = sigmoid(a.b[at]);
    const float q_i = (int)threadIdx.x < a.dk ? to_float(q[threadIdx.x]) : 0.0f, k_i = (int)threadIdx.x < a.dk ? to_float(k[threadIdx.x]) : 0.0f;
    float v_j[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) v_j[c] = column + c < a.dv ? to_float(v[column + c]) : 0.0f;
    const float qq = warp_sum(q_i * q_i), kk = warp_sum(k_i * k_i), qk = warp_sum(q_i * k_i);
    __syncthreads();                                     /* the token before is done with shared memory */
    sh.q[threadIdx.x] = q_i;
    sh.k[threadIdx.x] = k_i;
    if (lane == 0) {
        sh.qq[warp] = qq;
        sh.kk[warp] = kk;
        sh.qk[warp] = qk;
    }
    __syncthreads();
    float q_sum = 0.0f, k_sum = 0.0f, qk_sum = 0.0f;
    for (int w = 0; w < WARPS; w++) {
        q_sum += sh.qq[w];
        k_sum += sh.kk[w];
        qk_sum += sh.qk[w];
    }
    const float k_by = 1.0f / sqrtf(k_sum + 1e-6f), q_by = 1.0f / sqrtf(q_sum + 1e-6f) / sqrtf((float)a.dk);
    float seen[COLUMNS] = { 0.0f }, out[COLUMNS] = { 0.0f };
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float k_at = sh.k[(warp + i * WARPS) % OPS_DELTA_K_MAX], q_at = sh.q[(warp + i * WARPS) % OPS_DELTA_K_MAX];
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) {
            seen[c] = fmaf(S[i][c], k_at, seen[c]);
            out[c] = fmaf(S[i][c], q_at, out[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        sh.seen[warp][c * 32 + lane] = seen[c];
        sh.out[warp][c * 32 + lane] = out[c];
    }
    __syncthreads();
    float u[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; c++) {
        float all_seen = 0.0f;
        for (int w = 0; w < WARPS; w++) all_seen += sh.seen[w][c * 32 + lane];
        u[c] = beta * (v_j[c] - decay * k_by * all_seen);
        if (warp == c % WARPS && column + c < a.dv) {
            float all_out = 0.0f;
            for (int w = 0; w < WARPS; w++) all_out += sh.out[w][c * 32 + lane];
            a.out[((size_t)row * a.n_v_heads + head) * a.dv + column + c] = from_float<T>(q_by * (decay * all_out + k_by * qk_sum * u[c]));
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        const float k_at = sh.k[(warp + i * WARPS) % OPS_DELTA_K_MAX] * k_by;
#pragma unroll
        for (int c = 0; c < COLUMNS; c++) S[i][c] = fmaf(k_at, u[c], decay * S[i][c]);
    }
}

/* Rows and columns of the state at `at` that exist, to or from registers. */
template <int ROWS, int COLUMNS, bool STORE> static __device__ void delta_move(float (&S)[ROWS][COLUMNS], float *at, int dk, int dv, int column)
{
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (warp + i * WARPS >= dk || column >= dv) continue;
        float *p = at + (size_t)(warp + i * WARPS) * dv + column;
        if (COLUMNS == 4) {
            if (STORE) *(float4 *)p = make_float4(S[i][0], S[i][1 % COLUMNS], S[i][2 % COLUMNS], S[i][3 % COLUMNS]);
            else {
                const float4 f = *(const float4 *)p;
                S[i][0] = f.x;
                S[i][1 % COLUMNS] = f.y;
                S[i][2 % COLUMNS] = f.z;
                S[i][3 % COLUMNS] = f.w;
            }
        } else if (STORE) *p = S[i][0];
        else S[i][0] = *p;
    }
}

/* Block (x: columns, y: value head, z: run). All rows of the run, in order. */
template <typename T, int ROWS, int COLUMNS> static __global__ void __launch_bounds__(32 * WARPS) delta_run(delta_call<T> a, const cuda_run *runs)
{
    __shared__ delta_shared sh;
    const cuda_run run = runs[blockIdx.z];
    const int head = blockIdx.y, column = (blockIdx.x * 32 + threadIdx.x % 32) * COLUMNS;
    float *state = a.state + ((size_t)run.slot * a.n_v_heads + head) * ((size_t)a.dk * a.dv);
    float S[ROWS][COLUMNS] = { { 0.0f } };
    if (run.position > 0) delta_move<ROWS, COLUMNS, false>(S, state, a.dk, a.dv, column);
    for (int i = 0; i < run.n_rows; i++) delta_step<T, ROWS, COLUMNS>(S, sh, a, run.row + i, head, column);
    delta_move<ROWS, COLUMNS, true>(S, state, a.dk, a.dv, column);
}

template <typename T, int ROWS, int COLUMNS> static void delta_launch(ops_cuda *o, const delta_call<T> &a, const char *name, const cuda_run *runs, int32_t n_runs)
{
    launch(o, name, delta_run<T, ROWS, COLUMNS>, dim3((unsigned)((a.dv + 32 * COLUMNS - 1) / (32 * COLUMNS)), (unsigned)a.n_v_heads, (unsigned)n_runs), 32 * WARPS, 0, a, runs);
}

template <typename T, int COLUMNS> static void delta_runs(ops_cuda *o, const delta_call<T> &a, const char *name, const cuda_run *runs, int32_t n_runs)
{
    if (a.dk <= 4 * WARPS) delta_launch<T, 4, COLUMNS>(o, a, name, runs, n_runs);
    else if (a.dk <= 16 * WARPS) delta_launch<T, 16, COLUMNS>(o, a, name, runs, n_runs);
    else delta_launch<T, 32, COLUMNS>(o, a, name, runs, n_runs);
}

template <typename T> static void cuda_gated_delta(ops *table, act *out, const act *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias,
                                                   float *state, int32_t n_k_heads, int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b)
{
    ops_cuda *o = cuda_of(table);
    FL_ASSERT(n_k_heads >= 1 && n_v_heads % n_k_heads == 0 && dk >= 1 && dk <= OPS_DELTA_K_MAX && a_log->type == DTYPE_F32 && dt_bias->type == DTYPE_F32 &&
              (uintptr_t)state % OPS_STATE_ALIGN == 0 && b->n_rows == o->batch.n_rows);
    const delta_call<T> call = { (T *)out, (const T *)qkv, a, b_gate, (const float *)a_log->data, (const float *)dt_bias->data, state, n_k_heads, n_v_heads, is_tiled, dk, dv, o->batch };
    /* Few prompts: narrow blocks, so that there are more of them. Many decode rows: wide loads. */
    if (delta_chunk_takes<T>(o, dk, dv)) delta_chunk_run<T>(o, call);
    else delta_runs<T, 1>(o, call, "delta_prefill", o->batch.prefills, o->batch.n_prefills);
    if (dv % 4 == 0) delta_runs<T, 4>(o, call, "delta_decode", o->batch.decodes, o->batch.n_decodes);
    else delta_runs<T, 1>(o, call, "delta_decode", o->batch.decodes, o->batch.n_decodes);
}

template <typename T> fl_status delta_install(ops_cuda *o, fl_err *err)
{
    o->table.conv_silu = cuda_conv_silu<T>;
    o->table.gated_delta = cuda_gated_delta<T>;
    return delta_chunk_install<T>(o, err);
}

template fl_status delta_install<float>(ops_cuda *, fl_err *);
template fl_status delta_install<__nv_bfloat16>(ops_cuda *, fl_err *);
template fl_status delta_install<__half>(ops_cuda *, fl_err *);
