/* ops_shadow.h - an ops table whose arguments lie in host memory as fp32: each call uploads what the operation reads, calls another table's operation on its device,
 * waits and downloads what it may have written. So tests/unit/ops_cases.h runs against a GPU, in any type of activations. Weights go up as the engine takes
 * them there: on a GPU matrices in the activations' type and vectors in fp32, experts equally spaced; on the CPU as they are.
 * Sizes   follow from the arguments: strided rows up to the last value of the last row, KV up to the last block that the batch names, states up to its last slot.
 * Errors  a call that fails ends the program with the sentence: a device that failed cannot be asked again. */
#ifndef TESTS_GPU_OPS_SHADOW_H
#define TESTS_GPU_OPS_SHADOW_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/encode.h"
#include "kernels/ops.h"
#include "kernels/quant.h"

typedef enum { SHADOW_FLOAT, SHADOW_ACT, SHADOW_INT } shadow_kind;
#define SHADOW_SPANS 64
#define SHADOW_TAKE_BYTES ((size_t)1 << 30)

typedef struct { void *host, *device; size_t n; shadow_kind kind; bool is_out; } shadow_span;

typedef struct {
    ops table;                           /* first: an ops * is a shadow_ops * */
    ops *inner;                          /* borrowed */
    dtype type;                          /* of inner's activations */
    bool is_gpu;
    shadow_span spans[SHADOW_SPANS]; int32_t n_spans;        /* of the call in progress */
    uint8_t *memory; size_t n_bytes, capacity;               /* owned on the device; a call starts it over */
} shadow_ops;

static void shadow_require(fl_status st, const fl_err *err)
{
    if (st == FL_OK) return;
    fprintf(stderr, "shadow: %s\n", err->text);
    exit(1);
}

/* ---- fp32 to the device's type and back ---- */

static void *shadow_place(shadow_ops *s, size_t n_bytes)
{
    uint8_t *at = s->memory + s->n_bytes;
    s->n_bytes += (n_bytes + 255) / 256 * 256 + 256;
    if (s->n_bytes <= s->capacity) return at;
    fprintf(stderr, "shadow: a case takes more than %zu bytes\n", s->capacity);
    exit(1);
}

static void shadow_send(shadow_ops *s, void *to, const float *from, size_t n, dtype type)
{
    if (type == DTYPE_F32) { s->inner->upload(s->inner, to, from, n * sizeof *from); return; }
    uint16_t *narrow = malloc(n * sizeof *narrow + 1);
    dtype_encode(narrow, type, from, n);
    s->inner->upload(s->inner, to, narrow, n * sizeof *narrow);
    free(narrow);
}

static void shadow_fetch(shadow_ops *s, const shadow_span *span)
{
    if (span->kind != SHADOW_ACT || s->type == DTYPE_F32) { s->inner->download(s->inner, span->host, span->device, span->n * 4); return; }
    uint16_t *narrow = malloc(span->n * sizeof *narrow + 1);
    s->inner->download(s->inner, narrow, span->device, span->n * sizeof *narrow);
    dtype_decode(span->host, s->type, narrow, (int32_t)span->n);
    free(narrow);
}

/* ---- one call's arguments ---- */

/* n values at `host` on the device; the same place when the call named it already. */
static void *shadow_span_of(ops *o, const void *host, size_t n, shadow_kind kind, bool is_out)
{
    shadow_ops *s = (shadow_ops *)o;
    for (int32_t i = 0; i < s->n_spans; i++)
        if (s->spans[i].host == host && s->spans[i].n >= n) {
            s->spans[i].is_out |= is_out;
            return s->spans[i].device;
        }
    const size_t value_bytes = kind == SHADOW_ACT && s->type != DTYPE_F32 ? 2 : 4;
    const shadow_span span = { (void *)(uintptr_t)host, shadow_place(s, n * value_bytes), n, kind, is_out };
    if (s->n_spans == SHADOW_SPANS) abort();
    if (kind == SHADOW_INT) s->inner->upload(s->inner, span.device, host, n * 4);
    else shadow_send(s, span.device, host, n, kind == SHADOW_ACT ? s->type : DTYPE_F32);
    s->spans[s->n_spans++] = span;
    return span.device;
}
static act     *in_acts(ops *o, const float *p, size_t n)    { return shadow_span_of(o, p, n, SHADOW_ACT, false); }
static act     *out_acts(ops *o, float *p, size_t n)         { return shadow_span_of(o, p, n, SHADOW_ACT, true); }
static float   *in_floats(ops *o, const float *p, size_t n)  { return shadow_span_of(o, p, n, SHADOW_FLOAT, false); }
static float   *out_floats(ops *o, float *p, size_t n)       { return shadow_span_of(o, p, n, SHADOW_FLOAT, true); }
static int32_t *in_ints(ops *o, const int32_t *p, size_t n)  { return shadow_span_of(o, p, n, SHADOW_INT, false); }
static int32_t *out_ints(ops *o, int32_t *p, size_t n)       { return shadow_span_of(o, p, n, SHADOW_INT, true); }

static size_t size_2(int32_t a, int32_t b) { return (size_t)a * (size_t)b; }

/* Values of n_rows rows `stride` apart whose last value is the width-th of the last row. */
static size_t strided(int32_t n_rows, int32_t stride, int32_t width) { return n_rows > 0 ? size_2(n_rows - 1, stride) + (size_t)width : 0; }

static ops *shadow_begin(ops *o)
{
    shadow_ops *s = (shadow_ops *)o;
    s->n_spans = 0;
    s->n_bytes = 0;
    return s->inner;
}

static void shadow_end(ops *o)
{
    shadow_ops *s = (shadow_ops *)o;
    fl_err err = { 0 };
    shadow_require(s->inner->finish(s->inner, &err), &err);
    for (int32_t i = 0; i < s->n_spans; i++) if (s->spans[i].is_out) shadow_fetch(s, &s->spans[i]);
}

/* n matrices, equally spaced on the device. */
static void shadow_weights(ops *o, weight *out, const weight *w, int32_t n, bool is_vector)
{
    shadow_ops *s = (shadow_ops *)o;
    const size_t n_values = size_2(w->n_rows, w->n_cols), spacing = (n_values * 4 + 255) / 256 * 256;
    uint8_t *at = shadow_place(s, (size_t)n * spacing);
    float *values = malloc(n_values * sizeof *values + 1);
    for (int32_t i = 0; i < n; i++, at += spacing) {
        const size_t row_bytes = w[i].data ? dtype_row_bytes(w[i].type, w[i].n_cols) : 0;
        out[i] = w[i];
        if (!w[i].data) continue;
        out[i].data = at;
        if (!s->is_gpu) { s->inner->upload(s->inner, at, w[i].data, (size_t)w[i].n_rows * row_bytes); continue; }
        for (int32_t r = 0; r < w[i].n_rows; r++) dtype_decode(values + size_2(r, w[i].n_cols), w[i].type, (const uint8_t *)w[i].data + (size_t)r * row_bytes, w[i].n_cols);
        out[i].type = is_vector ? DTYPE_F32 : s->type;
        shadow_send(s, at, values, n_values, out[i].type);
    }
    free(values);
}
static weight shadow_weight(ops *o, const weight *w, bool is_vector)
{
    weight out = { 0 };
    if (w) shadow_weights(o, &out, w, 1, is_vector);
    return out;
}

static ops_kv shadow_kv(ops *o, const ops_kv *kv, const ops_batch *b, bool is_out)
{
    int32_t n_blocks = 0;
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t i = 0; i <= b->positions[r] / OPS_BLOCK_TOKENS; i++) {
            const int32_t block = b->block_tables[size_2(b->seq_of_row[r], b->table_stride) + (size_t)i];
            if (block >= n_blocks) n_blocks = block + 1;
        }
    const size_t n = size_2(n_blocks, kv->n_kv_heads) * size_2(OPS_BLOCK_TOKENS, kv->head_dim);
    ops_kv out = *kv;
    out.k = is_out ? out_acts(o, kv->k, n) : in_acts(o, kv->k, n);
    out.v = is_out ? out_acts(o, kv->v, n) : in_acts(o, kv->v, n);
    return out;
}

static int32_t shadow_slots(const ops_batch *b)
{
    int32_t n = 0;
    for (int32_t i = 0; i < b->n_seqs; i++) if (b->state_slots[i] >= n) n = b->state_slots[i] + 1;
    return n;
}

/* ---- the operations ---- */

static void shadow_batch(ops *o, const ops_batch *b)
{
    ops *in = ((shadow_ops *)o)->inner;
    in->begin(in, b);
}

static void shadow_embed(ops *o, float *y, const weight *table, float scale, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const weight w = shadow_weight(o, table, false);
    in->embed(in, out_floats(o, y, size_2(b->n_rows, table->n_cols)), &w, scale, b);
    shadow_end(o);
}

static void shadow_act_rms_norm(ops *o, act *y, const act *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const weight up = shadow_weight(o, w, true);
    act *to = out_acts(o, y, size_2(n_rows, dim));
    in->act_rms_norm(in, to, in_acts(o, x, size_2(n_rows, dim)), &up, w_add, eps, n_rows, dim);
    shadow_end(o);
}

static void shadow_rms_norm(ops *o, act *y, const float *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const weight up = shadow_weight(o, w, true);
    const float *from = in_floats(o, x, size_2(n_rows, dim));
    in->rms_norm(in, out_acts(o, y, size_2(n_rows, dim)), from, &up, w_add, eps, n_rows, dim);
    shadow_end(o);
}

static void shadow_add_rms_norm(ops *o, act *y, float *x, const act *d, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, dim);
    const weight up = shadow_weight(o, w, true);
    in->add_rms_norm(in, out_acts(o, y, n), out_floats(o, x, n), in_acts(o, d, n), &up, w_add, eps, n_rows, dim);
    shadow_end(o);
}

static void shadow_add(ops *o, float *x, const act *d, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    in->add(in, out_floats(o, x, size_2(n_rows, dim)), in_acts(o, d, size_2(n_rows, dim)), n_rows, dim);
    shadow_end(o);
}

static void shadow_act_add(ops *o, act *x, const act *d, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    in->act_add(in, out_acts(o, x, size_2(n_rows, dim)), in_acts(o, d, size_2(n_rows, dim)), n_rows, dim);
    shadow_end(o);
}

static void shadow_linear(ops *o, act *y, const act *x, const weight *w, const weight *bias, int32_t n_rows)
{
    ops *in = shadow_begin(o);
    const weight up = shadow_weight(o, w, false), up_bias = shadow_weight(o, bias, true);
    in->linear(in, out_acts(o, y, size_2(n_rows, w->n_rows)), in_acts(o, x, size_2(n_rows, w->n_cols)), &up, &up_bias, n_rows);
    shadow_end(o);
}

static void shadow_linear_f32(ops *o, float *y, const act *x, const weight *w, const weight *bias, int32_t n_rows)
{
    ops *in = shadow_begin(o);
    const weight up = shadow_weight(o, w, false), up_bias = shadow_weight(o, bias, true);
    in->linear_f32(in, out_floats(o, y, size_2(n_rows, w->n_rows)), in_acts(o, x, size_2(n_rows, w->n_cols)), &up, &up_bias, n_rows);
    shadow_end(o);
}

static void shadow_gather(ops *o, float *y, const float *x, int32_t dim, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    in->gather(in, out_floats(o, y, size_2(b->n_logits, dim)), in_floats(o, x, size_2(b->n_rows, dim)), dim, b);
    shadow_end(o);
}

static void shadow_head_norm_rope(ops *o, act *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, float w_add, float eps, const ops_rope *rope,
                                  const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const size_t n_table = size_2(rope->n_positions, rope->n_rot / 2);
    const weight up = shadow_weight(o, w, true);
    const ops_rope table = { in_floats(o, rope->cos, n_table), in_floats(o, rope->sin, n_table), rope->n_rot, rope->n_positions };
    in->head_norm_rope(in, out_acts(o, x, strided(b->n_rows, x_stride, (n_heads - 1) * head_stride + head_dim)), x_stride, head_stride, n_heads, head_dim, &up, w_add, eps, &table, b);
    shadow_end(o);
}

static void shadow_kv_write(ops *o, const ops_kv *kv, const act *k, int32_t k_stride, const act *v, int32_t v_stride, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const int32_t width = kv->n_kv_heads * kv->head_dim;
    const ops_kv up = shadow_kv(o, kv, b, true);
    in->kv_write(in, &up, in_acts(o, k, strided(b->n_rows, k_stride, width)), k_stride, in_acts(o, v, strided(b->n_rows, v_stride, width)), v_stride, b);
    shadow_end(o);
}

static void shadow_attention(ops *o, act *out, const act *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, float scale, int32_t window, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const ops_kv up = shadow_kv(o, kv, b, false);
    const act *q_up = in_acts(o, q, strided(b->n_rows, q_stride, (n_heads - 1) * q_head_stride + kv->head_dim));
    in->attention(in, out_acts(o, out, size_2(b->n_rows, n_heads * kv->head_dim)), q_up, q_stride, q_head_stride, n_heads, &up, scale, window, b);
    shadow_end(o);
}

static void shadow_sigmoid_gate(ops *o, act *x, const act *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    ops *in = shadow_begin(o);
    const act *gate_up = in_acts(o, gate, strided(n_rows, gate_stride, (n_heads - 1) * gate_head_stride + head_dim));
    in->sigmoid_gate(in, out_acts(o, x, size_2(n_rows, n_heads * head_dim)), gate_up, gate_stride, gate_head_stride, n_heads, head_dim, n_rows);
    shadow_end(o);
}

static void shadow_softplus_gate(ops *o, act *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    ops *in = shadow_begin(o);
    const float *gate_up = in_floats(o, gate, size_2(n_rows, gate_per_head ? n_heads : n_heads * head_dim));
    in->softplus_gate(in, out_acts(o, x, size_2(n_rows, n_heads * head_dim)), gate_up, gate_per_head, n_heads, head_dim, n_rows);
    shadow_end(o);
}

static void shadow_conv_silu(ops *o, act *y, const act *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const weight up = shadow_weight(o, w, true);
    const act *x_up = in_acts(o, x, strided(b->n_rows, x_stride, n_channels));
    float *states = out_floats(o, state, size_2(shadow_slots(b), n_channels * (width - 1)));
    in->conv_silu(in, out_acts(o, y, size_2(b->n_rows, n_channels)), x_up, x_stride, &up, states, n_channels, width, b);
    shadow_end(o);
}

static void shadow_gated_delta(ops *o, act *out, const act *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, float *state, int32_t n_k_heads,
                               int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b)
{
    ops *in = shadow_begin(o);
    const weight a_log_up = shadow_weight(o, a_log, true), dt_bias_up = shadow_weight(o, dt_bias, true);
    const act *qkv_up = in_acts(o, qkv, size_2(b->n_rows, 2 * n_k_heads * dk + n_v_heads * dv));
    const float *a_up = in_floats(o, a, size_2(b->n_rows, n_v_heads)), *b_up = in_floats(o, b_gate, size_2(b->n_rows, n_v_heads));
    float *states = out_floats(o, state, size_2(shadow_slots(b), n_v_heads * dk * dv));
    in->gated_delta(in, out_acts(o, out, size_2(b->n_rows, n_v_heads * dv)), qkv_up, a_up, b_up, &a_log_up, &dt_bias_up, states, n_k_heads, n_v_heads, is_tiled, dk, dv, b);
    shadow_end(o);
}

static void shadow_gated_rms_norm(ops *o, act *x, const act *z, const weight *w, float eps, int32_t n_rows, int32_t n_heads, int32_t dim)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, n_heads * dim);
    const weight up = shadow_weight(o, w, true);
    in->gated_rms_norm(in, out_acts(o, x, n), in_acts(o, z, n), &up, eps, n_rows, n_heads, dim);
    shadow_end(o);
}

static void shadow_swiglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, dim);
    in->swiglu(in, out_acts(o, y, n), in_acts(o, gate, n), in_acts(o, up, n), n_rows, dim);
    shadow_end(o);
}

static void shadow_geglu(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, dim);
    in->geglu(in, out_acts(o, y, n), in_acts(o, gate, n), in_acts(o, up, n), n_rows, dim);
    shadow_end(o);
}

static void shadow_soft_cap(ops *o, float *x, float cap, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    in->soft_cap(in, out_floats(o, x, size_2(n_rows, dim)), cap, n_rows, dim);
    shadow_end(o);
}

static void shadow_moe_route(ops *o, int32_t *ids, float *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, top_k);
    const float *up = in_floats(o, logits, size_2(n_rows, n_experts));
    in->moe_route(in, out_ints(o, ids, n), out_floats(o, weights, n), up, n_rows, n_experts, top_k, renormalize);
    shadow_end(o);
}

static void shadow_moe_route_sigmoid(ops *o, int32_t *ids, float *weights, const float *logits, const weight *bias, float scale, int32_t n_rows, int32_t n_experts, int32_t top_k)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, top_k);
    const weight up_bias = shadow_weight(o, bias, true);
    const float *up = in_floats(o, logits, size_2(n_rows, n_experts));
    in->moe_route_sigmoid(in, out_ints(o, ids, n), out_floats(o, weights, n), up, &up_bias, scale, n_rows, n_experts, top_k);
    shadow_end(o);
}

static void shadow_moe_experts(ops *o, act *y, const act *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down, int32_t n_rows,
                               int32_t n_experts, int32_t top_k, void *scratch)
{
    ops *in = shadow_begin(o);
    (void)scratch;                                       /* the host's */
    const size_t n = size_2(n_rows, top_k);
    const int32_t dim = gate->n_cols, ff = gate->n_rows;
    weight *views = calloc(3 * (size_t)n_experts, sizeof *views), *up_views = views + n_experts, *down_views = up_views + n_experts;
    shadow_weights(o, views, gate, n_experts, false);
    shadow_weights(o, up_views, up, n_experts, false);
    shadow_weights(o, down_views, down, n_experts, false);
    void *device_scratch = shadow_place((shadow_ops *)o, in->moe_scratch_bytes(in, n_rows, dim, ff, n_experts, top_k));
    const act *x_up = in_acts(o, x, size_2(n_rows, dim));
    in->moe_experts(in, out_acts(o, y, size_2(n_rows, dim)), x_up, in_ints(o, ids, n), in_floats(o, weights, n), views, up_views, down_views, n_rows, n_experts, top_k, device_scratch);
    shadow_end(o);
    free(views);
}

static void shadow_add_sigmoid_scaled(ops *o, act *x, const act *y, const float *g, int32_t n_rows, int32_t dim)
{
    ops *in = shadow_begin(o);
    const size_t n = size_2(n_rows, dim);
    in->add_sigmoid_scaled(in, out_acts(o, x, n), in_acts(o, y, n), in_floats(o, g, (size_t)n_rows), n_rows, dim);
    shadow_end(o);
}

static void shadow_log_sum_exp(ops *o, float *lse, const float *logits, int32_t n_rows, int32_t n_vocab)
{
    ops *in = shadow_begin(o);
    in->log_sum_exp(in, out_floats(o, lse, (size_t)n_rows), in_floats(o, logits, size_2(n_rows, n_vocab)), n_rows, n_vocab);
    shadow_end(o);
}

static size_t shadow_scratch_bytes(const ops *o, int32_t n_rows, int32_t dim, int32_t ff, int32_t n_experts, int32_t top_k)
{
    const ops *in = ((const shadow_ops *)o)->inner;
    return in->moe_scratch_bytes(in, n_rows, dim, ff, n_experts, top_k);
}

static void shadow_close(ops *o)
{
    shadow_ops *s = (shadow_ops *)o;
    s->inner->give(s->inner, s->memory, s->capacity);
    free(s);
}

/* `inner` is borrowed and outlives it; `type` is that of its activations. */
static ops *shadow_open(ops *inner, dtype type, bool is_gpu)
{
    shadow_ops *s = calloc(1, sizeof *s);
    fl_err err = { 0 };
    if (!s) abort();
    *s = (shadow_ops){ .inner = inner, .type = type, .is_gpu = is_gpu, .capacity = SHADOW_TAKE_BYTES };
    void *memory = NULL;
    shadow_require(inner->take(inner, &memory, s->capacity, "the shadow's arguments", &err), &err);
    s->memory = memory;
    s->table = (ops){ .name = inner->name, .act_bytes = sizeof(float), .begin = shadow_batch, .embed = shadow_embed, .rms_norm = shadow_rms_norm, .act_rms_norm = shadow_act_rms_norm,
                      .add_rms_norm = shadow_add_rms_norm, .add = shadow_add, .act_add = shadow_act_add, .linear = shadow_linear, .linear_f32 = shadow_linear_f32, .gather = shadow_gather,
                      .head_norm_rope = shadow_head_norm_rope, .kv_write = shadow_kv_write, .attention = shadow_attention, .sigmoid_gate = shadow_sigmoid_gate,
                      .softplus_gate = shadow_softplus_gate, .conv_silu = shadow_conv_silu, .gated_delta = shadow_gated_delta, .gated_rms_norm = shadow_gated_rms_norm,
                      .swiglu = shadow_swiglu, .geglu = shadow_geglu, .soft_cap = shadow_soft_cap, .moe_route = shadow_moe_route, .moe_route_sigmoid = shadow_moe_route_sigmoid,
                      .moe_experts = shadow_moe_experts, .add_sigmoid_scaled = shadow_add_sigmoid_scaled, .log_sum_exp = shadow_log_sum_exp,
                      .moe_scratch_bytes = shadow_scratch_bytes, .close = shadow_close };
    return &s->table;
}

#endif
