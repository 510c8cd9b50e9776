/* cuda_rows.cu - element by element: embed, gather, add, gates, writing KV; and the log-sum-exp of a row of logits. Definitions: kernels/rows_ref.c.
 * Arithmetic in fp32, one rounding to the activation's type. A thread has a group of eight neighbours of one row (cuda_group.h). */
#include "kernels/cuda/cuda_group.h"

#define THREADS 256
#define LSE_WARPS 32

/* Groups of rows of dim values: group g of row r is thread r * groups + g's. False beyond the last. */
static __device__ __forceinline__ bool group_of_thread(int64_t n_rows, int32_t dim, int64_t *row, int32_t *i)
{
    const int32_t groups = (dim + GROUP - 1) / GROUP;
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    *row = at / groups;
    *i = static_cast<int32_t>(at % groups) * GROUP;
    return *row < n_rows;
}

static dim3 group_grid(int64_t n_rows, int32_t dim) { return dim3(static_cast<unsigned>((n_rows * ((dim + GROUP - 1) / GROUP) + THREADS - 1) / THREADS)); }

template <typename F, typename... Parameters> static void launch_groups(ops *o, const char *name, F kernel, int64_t n_rows, int32_t dim, Parameters... parameters)
{
    launch(cuda_of(o), name, kernel, group_grid(n_rows, dim), dim3(THREADS), 0, parameters..., n_rows, dim);
}

/* ---- rows by index ---- */

/* from: where the id of a row is one that sample() chose, its place among the chosen ones, else -1; NULL = nowhere. */
template <typename T>
static __global__ void embed_rows(float *y, const T *table, float scale, const int32_t *ids, const int32_t *from, const int32_t *chosen, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    const int32_t id = from && from[r] >= 0 ? max(chosen[from[r]], 0) : ids[r];
    float v[GROUP];
    group_take(v, table + static_cast<size_t>(id) * dim + i, dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] *= scale;
    group_give(y + r * dim + i, v, dim - i);
}

template <typename T> static void cuda_embed(ops *o, float *y, const weight *table, float scale, const ops_batch *b)
{
    FL_ASSERT(b->ids && table->data);
    const cuda_batch *d = &cuda_of(o)->batch;
    launch_groups(o, "embed", embed_rows<T>, b->n_rows, table->n_cols, y, static_cast<const T *>(table->data), scale, d->ids, d->ids_from, d->chosen);
}

static __global__ void gather_rows(float *y, const float *x, const int32_t *rows, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    float v[GROUP];
    group_take(v, x + static_cast<size_t>(rows[r]) * dim + i, dim - i);
    group_give(y + r * dim + i, v, dim - i);
}

static void cuda_gather(ops *o, float *y, const float *x, int32_t dim, const ops_batch *b)
{
    launch_groups(o, "gather", gather_rows, b->n_logits, dim, y, x, cuda_of(o)->batch.logit_rows);
}

/* ---- sums and gates ---- */

template <typename X, typename T> static __global__ void add_rows(X *x, const T *d, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    float v[GROUP], more[GROUP];
    group_take(v, x + r * dim + i, dim - i);
    group_take(more, d + r * dim + i, dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] += more[k];
    group_give(x + r * dim + i, v, dim - i);
}

template <typename T> static void cuda_add(ops *o, float *x, const act *d, int32_t n_rows, int32_t dim)
{
    launch_groups(o, "add", add_rows<float, T>, n_rows, dim, x, reinterpret_cast<const T *>(d));
}

template <typename T> static void cuda_act_add(ops *o, act *x, const act *d, int32_t n_rows, int32_t dim)
{
    launch_groups(o, "act_add", add_rows<T, T>, n_rows, dim, reinterpret_cast<T *>(x), reinterpret_cast<const T *>(d));
}

/* x += y * sigmoid(g) */
template <typename T> static __global__ void add_scaled_rows(T *x, const T *y, const float *g, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    const float scale = gate_sigmoid(g[r]);
    float v[GROUP], more[GROUP];
    group_take(v, x + r * dim + i, dim - i);
    group_take(more, y + r * dim + i, dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] = fmaf(more[k], scale, v[k]);
    group_give(x + r * dim + i, v, dim - i);
}

template <typename T> static void cuda_add_sigmoid_scaled(ops *o, act *x, const act *y, const float *g, int32_t n_rows, int32_t dim)
{
    launch_groups(o, "add_sigmoid_scaled", add_scaled_rows<T>, n_rows, dim, reinterpret_cast<T *>(x), reinterpret_cast<const T *>(y), g);
}

/* A "row" is a head: x [n_rows, n_heads, head_dim] closely packed, gates strided. */
template <typename T>
static __global__ void sigmoid_gate_heads(T *x, const T *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int64_t n_all, int32_t head_dim)
{
    int64_t h;
    int32_t i;
    if (!group_of_thread(n_all, head_dim, &h, &i)) return;
    float v[GROUP], g[GROUP];
    group_take(v, x + h * head_dim + i, head_dim - i);
    group_take(g, gate + h / n_heads * gate_stride + h % n_heads * gate_head_stride + i, head_dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] *= gate_sigmoid(g[k]);
    group_give(x + h * head_dim + i, v, head_dim - i);
}

template <typename T> static void cuda_sigmoid_gate(ops *o, act *x, const act *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    launch_groups(o, "sigmoid_gate", sigmoid_gate_heads<T>, static_cast<int64_t>(n_rows) * n_heads, head_dim, reinterpret_cast<T *>(x), reinterpret_cast<const T *>(gate), gate_stride,
                     gate_head_stride, n_heads);
}

template <typename T> static __global__ void softplus_gate_heads(T *x, const float *gate, bool gate_per_head, int64_t n_all, int32_t head_dim)
{
    int64_t h;
    int32_t i;
    if (!group_of_thread(n_all, head_dim, &h, &i)) return;
    float v[GROUP], g[GROUP];
    group_take(v, x + h * head_dim + i, head_dim - i);
    if (!gate_per_head) group_take(g, gate + h * head_dim + i, head_dim - i);
    const float one = gate_per_head ? gate_softplus(gate[h]) : 0.0f;
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] *= gate_per_head ? one : gate_softplus(g[k]);
    group_give(x + h * head_dim + i, v, head_dim - i);
}

template <typename T> static void cuda_softplus_gate(ops *o, act *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    launch_groups(o, "softplus_gate", softplus_gate_heads<T>, static_cast<int64_t>(n_rows) * n_heads, head_dim, reinterpret_cast<T *>(x), gate, gate_per_head);
}

/* gelu in the tanh form, as ops.h says */
static __device__ __forceinline__ float gate_gelu(float v)
{
    const float inner = v * 0x1.988454p-1f * fmaf(v * v, 0.044715f, 1.0f);
    return fmaf(0.5f * v, tanhf(inner), 0.5f * v);
}

template <typename T, bool GELU> static __global__ void glu_rows(T *y, const T *gate, const T *up, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    float v[GROUP], u[GROUP];
    group_take(v, gate + r * dim + i, dim - i);
    group_take(u, up + r * dim + i, dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] = (GELU ? gate_gelu(v[k]) : gate_silu(v[k])) * u[k];
    group_give(y + r * dim + i, v, dim - i);
}

template <typename T> static void cuda_swiglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim)
{
    launch_groups(o, "swiglu", glu_rows<T, false>, n_rows, dim, reinterpret_cast<T *>(y), reinterpret_cast<const T *>(gate), reinterpret_cast<const T *>(up));
}

template <typename T> static void cuda_geglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim)
{
    launch_groups(o, "geglu", glu_rows<T, true>, n_rows, dim, reinterpret_cast<T *>(y), reinterpret_cast<const T *>(gate), reinterpret_cast<const T *>(up));
}

static __global__ void cap_rows(float *x, float cap, int64_t n_rows, int32_t dim)
{
    int64_t r;
    int32_t i;
    if (!group_of_thread(n_rows, dim, &r, &i)) return;
    float v[GROUP];
    group_take(v, x + r * dim + i, dim - i);
#pragma unroll
    for (int k = 0; k < GROUP; k++) v[k] = tanhf(v[k] / cap) * cap;
    group_give(x + r * dim + i, v, dim - i);
}

static void cuda_soft_cap(ops *o, float *x, float cap, int32_t n_rows, int32_t dim)
{
    FL_ASSERT(cap > 0.0f);
    launch_groups(o, "soft_cap", cap_rows, n_rows, dim, x, cap);
}

/* ---- KV ---- */

/* A "row" is one head of one token row. */
template <typename T>
static __global__ void write_heads(T *k_pool, T *v_pool, const T *k, int32_t k_stride, const T *v, int32_t v_stride, int32_t n_kv_heads, const int32_t *positions, const int32_t *seq_of_row,
                                   const int32_t *tables, int32_t table_stride, int64_t n_all, int32_t head_dim)
{
    int64_t at;
    int32_t i;
    if (!group_of_thread(n_all, head_dim, &at, &i)) return;
    const int64_t r = at / n_kv_heads;
    const int32_t h = static_cast<int32_t>(at % n_kv_heads), position = positions[r];
    const int32_t block = tables[static_cast<size_t>(seq_of_row[r]) * table_stride + position / OPS_BLOCK_TOKENS];
    const size_t to = ((static_cast<size_t>(block) * n_kv_heads + h) * OPS_BLOCK_TOKENS + position % OPS_BLOCK_TOKENS) * head_dim + i;
    float x[GROUP];                                      /* through fp32 and back no bit changes */
    group_take(x, k + r * k_stride + h * head_dim + i, head_dim - i);
    group_give(k_pool + to, x, head_dim - i);
    group_take(x, v + r * v_stride + h * head_dim + i, head_dim - i);
    group_give(v_pool + to, x, head_dim - i);
}

template <typename T> static void cuda_kv_write(ops *o, const ops_kv *kv, const act *k, int32_t k_stride, const act *v, int32_t v_stride, const ops_batch *b)
{
    const cuda_batch *d = &cuda_of(o)->batch;
    launch_groups(o, "kv_write", write_heads<T>, static_cast<int64_t>(b->n_rows) * kv->n_kv_heads, kv->head_dim, reinterpret_cast<T *>(kv->k), reinterpret_cast<T *>(kv->v),
                     reinterpret_cast<const T *>(k), k_stride, reinterpret_cast<const T *>(v), v_stride, kv->n_kv_heads, d->positions, d->seq_of_row, d->block_tables, d->table_stride);
}

/* ---- log-sum-exp: the maximum, then the sum of exp(x - max) ---- */

static __global__ void __launch_bounds__(32 * LSE_WARPS) lse_rows(float *lse, const float *logits, int32_t n_vocab)
{
    const float *x = logits + static_cast<size_t>(blockIdx.x) * n_vocab;
    float most = -INFINITY, sum = 0.0f, v[GROUP];
    for (int32_t i = threadIdx.x * GROUP; i < n_vocab; i += 32 * LSE_WARPS * GROUP) {
        group_take(v, x + i, n_vocab - i);
#pragma unroll
        for (int k = 0; k < GROUP; k++) if (i + k < n_vocab) most = fmaxf(most, v[k]);
    }
    most = block_max<LSE_WARPS>(most);
    if (fabsf(most) == INFINITY) most = 0.0f;            /* then the sum itself is 0 or inf, and so is the answer */
    for (int32_t i = threadIdx.x * GROUP; i < n_vocab; i += 32 * LSE_WARPS * GROUP) {
        group_take(v, x + i, n_vocab - i);
#pragma unroll
        for (int k = 0; k < GROUP; k++) if (i + k < n_vocab) sum += expf(v[k] - most);
    }
    sum = block_sum<LSE_WARPS>(sum);
    if (threadIdx.x == 0) lse[blockIdx.x] = most + logf(sum);
}

static void cuda_log_sum_exp(ops *o, float *lse, const float *logits, int32_t n_rows, int32_t n_vocab)
{
    launch(cuda_of(o), "log_sum_exp", lse_rows, dim3(n_rows), dim3(32 * LSE_WARPS), 0, lse, logits, n_vocab);
}

template <typename T> fl_status rows_install(ops_cuda *o, fl_err *err)
{
    (void)err;
    o->table.embed = cuda_embed<T>;
    o->table.gather = cuda_gather;
    o->table.add = cuda_add<T>;
    o->table.act_add = cuda_act_add<T>;
    o->table.add_sigmoid_scaled = cuda_add_sigmoid_scaled<T>;
    o->table.sigmoid_gate = cuda_sigmoid_gate<T>;
    o->table.softplus_gate = cuda_softplus_gate<T>;
    o->table.swiglu = cuda_swiglu<T>;
    o->table.geglu = cuda_geglu<T>;
    o->table.soft_cap = cuda_soft_cap;
    o->table.kv_write = cuda_kv_write<T>;
    o->table.log_sum_exp = cuda_log_sum_exp;
    return FL_OK;
}

template fl_status rows_install<float>(ops_cuda *, fl_err *);
template fl_status rows_install<__nv_bfloat16>(ops_cuda *, fl_err *);
template fl_status rows_install<__half>(ops_cuda *, fl_err *);
