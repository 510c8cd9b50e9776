/* far_ops.h - the CPU's operations on a device whose memory the host cannot touch: what take() gives lies in a range without access, and each call is passed on with the addresses
 * of the range that really holds the bytes. So a host that reads a result without download(), or hands an operation its own memory, ends here as it would on a GPU: by SIGSEGV or
 * by an assertion. Weights are converted to fp32, as a GPU's debug mode does. */
#ifndef TESTS_PROPERTY_FAR_OPS_H
#define TESTS_PROPERTY_FAR_OPS_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "kernels/ops.h"

#define FAR_BYTES ((size_t)1 << 32)
#define FAR_EXPERTS 512

typedef struct {
    ops table;                           /* first */
    ops *cpu;                            /* owned */
    char *far, *near;                    /* owned ranges of FAR_BYTES: without access, and with the bytes */
    size_t n_taken;
    bool is_reserved, is_busy[2];
    ops_limits limits;                   /* reserve()'s */
    weight experts[3][FAR_EXPERTS];
    uint64_t calls;                      /* a hash of the addresses that operations were given so far */
} far_ops;

static far_ops *far_of(ops *o) { return (far_ops *)o; }

/* Device memory as the CPU sees it. */
static void *near_of(ops *o, const void *p)
{
    far_ops *f = far_of(o);
    if (!p) return NULL;
    FL_ASSERT((const char *)p >= f->far && (const char *)p < f->far + f->n_taken);
    f->calls = (f->calls ^ (uint64_t)((const char *)p - f->far)) * 0x9e3779b97f4a7c15u;
    return f->near + ((const char *)p - f->far);
}

/* The host's own. */
static void check_host(ops *o, const void *p)
{
    far_ops *f = far_of(o);
    FL_ASSERT((const char *)p < f->far || (const char *)p >= f->far + FAR_BYTES);
}

static weight near_weight(ops *o, const weight *w) { return (weight){ near_of(o, w->data), w->type, w->n_rows, w->n_cols }; }
static ops_kv near_kv(ops *o, const ops_kv *kv) { return (ops_kv){ near_of(o, kv->k), near_of(o, kv->v), kv->n_kv_heads, kv->head_dim }; }

#define CPU far_of(o)->cpu
#define N(p) near_of(o, p)
#define W(name) const weight near_##name = near_weight(o, name)

static fl_status far_take(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    far_ops *f = far_of(o);
    *out = NULL;
    FL_ASSERT(!f->is_reserved);                          /* nothing is taken while steps run */
    if (n_bytes == 0) return FL_OK;
    if (n_bytes > FAR_BYTES - f->n_taken) return fl_fail(err, FL_FULL, "far: no memory for %s", what);
    *out = f->far + f->n_taken;
    f->n_taken += (n_bytes + 255) / 256 * 256;
    return FL_OK;
}
static void far_give(ops *o, void *memory, size_t n_bytes) { (void)n_bytes; N(memory); }
static void far_measure(ops *o, uint64_t *free_bytes, uint64_t *all_bytes) { *free_bytes = FAR_BYTES - far_of(o)->n_taken; *all_bytes = FAR_BYTES; }
static fl_status far_take_host(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err) { return CPU->take_host(CPU, out, n_bytes, what, err); }
static void far_give_host(ops *o, void *memory, size_t n_bytes) { CPU->give_host(CPU, memory, n_bytes); }
static void far_upload_rows(ops *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows)
{
    check_host(o, from);
    for (size_t i = 0; i < n_rows; i++) memcpy((char *)N(to) + i * to_stride, (const char *)from + i * from_stride, n_bytes);
}
static void far_download_rows(ops *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows)
{
    check_host(o, to);
    for (size_t i = 0; i < n_rows; i++) memcpy((char *)to + i * to_stride, (const char *)N(from) + i * from_stride, n_bytes);
}
static void far_upload(ops *o, void *to, const void *from, size_t n_bytes) { far_upload_rows(o, to, 0, from, 0, n_bytes, n_bytes > 0); }
static void far_download(ops *o, void *to, const void *from, size_t n_bytes) { far_download_rows(o, to, 0, from, 0, n_bytes, n_bytes > 0); }
static void far_begin_upload(ops *o, void *to, const void *from, size_t n_bytes, int turn)
{
    FL_ASSERT(!far_of(o)->is_busy[turn]);
    far_of(o)->is_busy[turn] = true;
    far_upload(o, to, from, n_bytes);
}
static void far_wait_upload(ops *o, int turn) { far_of(o)->is_busy[turn] = false; }
static void far_copy(ops *o, void *to, const void *from, size_t n_bytes) { memcpy(N(to), N(from), n_bytes); }
static void far_fill_random(ops *o, void *to, dtype type, size_t n, uint64_t stream, float middle, float reach) { CPU->fill_random(CPU, N(to), type, n, stream, middle, reach); }
static fl_status far_prepare(ops *o, const ops_product *products, int32_t n, char *note, fl_err *err)
{
    (void)note;
    (void)err;
    for (int32_t i = 0; i < n; i++) N(products[i].w.data);
    return FL_OK;
}
static fl_status far_reserve(ops *o, const ops_limits *limits, fl_err *err) 
{
    far_of(o)->is_reserved = true;
    far_of(o)->limits = *limits;
    return CPU->reserve(CPU, limits, err);
}
static fl_status far_finish(ops *o, fl_err *err) { return CPU->finish(CPU, err); }
static void far_begin(ops *o, const ops_batch *b)
{
    const ops_limits *most = &far_of(o)->limits;
    FL_ASSERT(b->n_rows <= most->n_rows && b->n_seqs <= most->n_seqs && b->n_logits <= most->n_logits && b->table_stride <= most->seq_blocks && b->reach <= most->seq_blocks * OPS_BLOCK_TOKENS);
    CPU->begin(CPU, b);
}
static void far_embed(ops *o, float *y, const weight *table, float scale, const ops_batch *b) { W(table); CPU->embed(CPU, N(y), &near_table, scale, b); }
static void far_rms_norm(ops *o, act *y, const float *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim) { W(w); CPU->rms_norm(CPU, N(y), N(x), &near_w, w_add, eps, n_rows, dim); }
static void far_act_rms_norm(ops *o, act *y, const act *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    W(w);
    CPU->act_rms_norm(CPU, N(y), N(x), &near_w, w_add, eps, n_rows, dim);
}
static void far_add_rms_norm(ops *o, act *y, float *x, const act *d, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    W(w);
    CPU->add_rms_norm(CPU, N(y), N(x), N(d), &near_w, w_add, eps, n_rows, dim);
}
static void far_add(ops *o, float *x, const act *d, int32_t n_rows, int32_t dim) { CPU->add(CPU, N(x), N(d), n_rows, dim); }
static void far_act_add(ops *o, act *x, const act *d, int32_t n_rows, int32_t dim) { CPU->act_add(CPU, N(x), N(d), n_rows, dim); }
static void far_linear(ops *o, act *y, const act *x, const weight *w, const weight *bias, int32_t n_rows) { W(w); W(bias); CPU->linear(CPU, N(y), N(x), &near_w, &near_bias, n_rows); }
static void far_linear_f32(ops *o, float *y, const act *x, const weight *w, const weight *bias, int32_t n_rows) { W(w); W(bias); CPU->linear_f32(CPU, N(y), N(x), &near_w, &near_bias, n_rows); }
static void far_gather(ops *o, float *y, const float *x, int32_t dim, const ops_batch *b) { CPU->gather(CPU, N(y), N(x), dim, b); }
static void far_head_norm_rope(ops *o, act *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, float w_add, float eps, const ops_rope *rope, const ops_batch *b)
{
    W(w);
    const ops_rope near_rope = { N(rope->cos), N(rope->sin), rope->n_rot, rope->n_positions };
    CPU->head_norm_rope(CPU, N(x), x_stride, head_stride, n_heads, head_dim, &near_w, w_add, eps, &near_rope, b);
}
static void far_kv_write(ops *o, const ops_kv *kv, const act *k, int32_t k_stride, const act *v, int32_t v_stride, const ops_batch *b)
{
    const ops_kv near = near_kv(o, kv);
    CPU->kv_write(CPU, &near, N(k), k_stride, N(v), v_stride, b);
}
static void far_attention(ops *o, act *out, const act *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, float scale, int32_t window, const ops_batch *b)
{
    const ops_kv near = near_kv(o, kv);
    FL_ASSERT(n_heads <= far_of(o)->limits.n_heads && kv->head_dim <= far_of(o)->limits.head_dim);
    CPU->attention(CPU, N(out), N(q), q_stride, q_head_stride, n_heads, &near, scale, window, b);
}
static void far_sigmoid_gate(ops *o, act *x, const act *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    CPU->sigmoid_gate(CPU, N(x), N(gate), gate_stride, gate_head_stride, n_heads, head_dim, n_rows);
}
static void far_softplus_gate(ops *o, act *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    CPU->softplus_gate(CPU, N(x), N(gate), gate_per_head, n_heads, head_dim, n_rows);
}
static void far_conv_silu(ops *o, act *y, const act *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width, const ops_batch *b)
{
    W(w);
    CPU->conv_silu(CPU, N(y), N(x), x_stride, &near_w, N(state), n_channels, width, b);
}
static void far_gated_delta(ops *o, act *out, const act *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, float *state, int32_t n_k_heads, int32_t n_v_heads,
                            bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b)
{
    W(a_log);
    W(dt_bias);
    CPU->gated_delta(CPU, N(out), N(qkv), N(a), N(b_gate), &near_a_log, &near_dt_bias, N(state), n_k_heads, n_v_heads, is_tiled, dk, dv, b);
}
static void far_gated_rms_norm(ops *o, act *x, const act *z, const weight *w, float eps, int32_t n_rows, int32_t n_heads, int32_t dim)
{
    W(w);
    CPU->gated_rms_norm(CPU, N(x), N(z), &near_w, eps, n_rows, n_heads, dim);
}
static void far_swiglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim) { CPU->swiglu(CPU, N(y), N(gate), N(up), n_rows, dim); }
static void far_geglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim) { CPU->geglu(CPU, N(y), N(gate), N(up), n_rows, dim); }
static void far_soft_cap(ops *o, float *x, float cap, int32_t n_rows, int32_t dim) { CPU->soft_cap(CPU, N(x), cap, n_rows, dim); }
static void far_moe_route(ops *o, int32_t *ids, float *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize)
{
    CPU->moe_route(CPU, N(ids), N(weights), N(logits), n_rows, n_experts, top_k, renormalize);
}
static void far_moe_route_sigmoid(ops *o, int32_t *ids, float *weights, const float *logits, const weight *bias, float scale, int32_t n_rows, int32_t n_experts, int32_t top_k)
{
    W(bias);
    CPU->moe_route_sigmoid(CPU, N(ids), N(weights), N(logits), &near_bias, scale, n_rows, n_experts, top_k);
}
static void far_moe_experts(ops *o, act *y, const act *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down, int32_t n_rows, int32_t n_experts,
                            int32_t top_k, void *scratch)
{
    const weight *from[3] = { gate, up, down };
    far_ops *f = far_of(o);
    FL_ASSERT(n_experts <= FAR_EXPERTS);
    for (int k = 0; k < 3; k++)
        for (int32_t e = 0; e < n_experts; e++) {
            f->experts[k][e] = near_weight(o, &from[k][e]);      /* equally far apart, as kernels of a device want them */
            FL_ASSERT(e == 0 || (const char *)from[k][e].data - (const char *)from[k][0].data == e * ((const char *)from[k][1].data - (const char *)from[k][0].data));
        }
    CPU->moe_experts(CPU, N(y), N(x), N(ids), N(weights), f->experts[0], f->experts[1], f->experts[2], n_rows, n_experts, top_k, N(scratch));
}
static void far_add_sigmoid_scaled(ops *o, act *x, const act *y, const float *g, int32_t n_rows, int32_t dim) { CPU->add_sigmoid_scaled(CPU, N(x), N(y), N(g), n_rows, dim); }
static void far_log_sum_exp(ops *o, float *lse, const float *logits, int32_t n_rows, int32_t n_vocab) { CPU->log_sum_exp(CPU, N(lse), N(logits), n_rows, n_vocab); }
static size_t far_moe_scratch_bytes(const ops *o, int32_t n_rows, int32_t dim, int32_t ff, int32_t n_experts, int32_t top_k)
{
    const ops *cpu = ((const far_ops *)o)->cpu;
    return cpu->moe_scratch_bytes(cpu, n_rows, dim, ff, n_experts, top_k);
}
#undef CPU
#undef N
#undef W

static void far_close(ops *o)
{
    far_ops *f = far_of(o);
    munmap(f->far, FAR_BYTES);
    munmap(f->near, FAR_BYTES);
    f->cpu->close(f->cpu);
    free(f);
}

/* f is zeroed memory of malloc; its close frees it. */
static fl_status far_init(far_ops *f, fl_err *err)
{
    fl_status st = ops_cpu_open(&f->cpu, 1, err);
    if (st != FL_OK) return st;
    f->far = mmap(NULL, FAR_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    f->near = mmap(NULL, FAR_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    FL_ASSERT(f->far != MAP_FAILED && f->near != MAP_FAILED);
    f->table = (ops){
        .name = "far", .numerics = "far", .act_type = DTYPE_F32, .act_bytes = sizeof(act), .take = far_take, .give = far_give, .measure = far_measure, .take_host = far_take_host,
        .give_host = far_give_host, .upload = far_upload, .download = far_download, .upload_rows = far_upload_rows, .download_rows = far_download_rows, .begin_upload = far_begin_upload,
        .wait_upload = far_wait_upload, .copy = far_copy, .fill_random = far_fill_random, .prepare = far_prepare, .reserve = far_reserve, .finish = far_finish, .begin = far_begin,
        .embed = far_embed, .rms_norm = far_rms_norm, .act_rms_norm = far_act_rms_norm, .add_rms_norm = far_add_rms_norm, .add = far_add, .act_add = far_act_add, .linear = far_linear,
        .linear_f32 = far_linear_f32, .gather = far_gather, .head_norm_rope = far_head_norm_rope, .kv_write = far_kv_write, .attention = far_attention, .sigmoid_gate = far_sigmoid_gate,
        .softplus_gate = far_softplus_gate, .conv_silu = far_conv_silu, .gated_delta = far_gated_delta, .gated_rms_norm = far_gated_rms_norm, .swiglu = far_swiglu, .geglu = far_geglu,
        .soft_cap = far_soft_cap, .moe_route = far_moe_route, .moe_route_sigmoid = far_moe_route_sigmoid, .moe_experts = far_moe_experts, .add_sigmoid_scaled = far_add_sigmoid_scaled,
        .log_sum_exp = far_log_sum_exp, .moe_scratch_bytes = far_moe_scratch_bytes, .close = far_close };
    return FL_OK;
}

#endif
