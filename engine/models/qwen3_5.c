/* qwen3_5.c - the forward pass of qwen3_5 (dense) and qwen3_5_moe: gated DeltaNet layers (Yang et al. 2024, arXiv:2412.06464) with a full-attention layer
 * between them, each followed by a SwiGLU MLP or by a mixture of experts beside one shared expert.
 *
 *        x ── norm ── DeltaNet | attention ──(+)── norm ── MLP | experts + sigmoid(g) * shared ──(+)── next layer
 *
 * Norm weights are stored as w - 1 (norm_add 1), but for the gated norm of DeltaNet. Each attention head's query is followed by its output gate in
 * q_proj's rows, so query head h starts at h * 2 * head_dim and its gate head_dim later. */
#include "engine/model_family.h"

#include <stdlib.h>

typedef struct {
    weight q, k, v, o;                   /* q [n_heads * 2 * head_dim, hidden]: query and gate, head by head */
    weight q_bias, k_bias, v_bias, o_bias;       /* absent unless attention_bias */
    weight q_norm, k_norm;               /* [head_dim] */
} attention_weights;

typedef struct {
    weight qkv, z, a, b, out;            /* qkv [2 * n_k_heads * k_dim + n_v_heads * v_dim, hidden] */
    weight conv, a_log, dt_bias, norm;   /* conv [channels, width], a_log and dt_bias [n_v_heads], norm [v_dim] */
} delta_weights;

typedef struct { weight gate, up, down; } mlp_weights;

typedef struct {
    weight input_norm, post_norm;        /* [hidden] */
    attention_weights attention;         /* full attention layers */
    delta_weights delta;                 /* linear attention layers */
    mlp_weights mlp;                     /* the dense MLP, or the shared expert */
    weight router, shared_gate;          /* mixture layers: [n_experts, hidden], [1, hidden] */
    weight *expert_gate, *expert_up, *expert_down;       /* mixture layers: [n_experts] matrices */
} layer_weights;

typedef struct { layer_weights *layers; } qwen_weights;

/* Activations, [n_rows_max, ...] each. Buffers of layer kinds that never run at the same time are kept apart: they are small beside the KV pool. */
typedef struct {
    float *h, *d;                        /* [hidden]: normed input of a sublayer, and its output */
    float *q, *k, *v, *mixed;            /* [n_heads * 2 * head_dim], [n_kv_heads * head_dim] twice, [n_heads * head_dim] */
    float *qkv, *conv, *z, *core, *a, *b;    /* [channels] twice, [n_v_heads * v_dim] twice, [n_v_heads] twice */
    float *gate, *up;                    /* [ff or shared_ff] */
    float *router, *shared, *shared_gate;    /* [n_experts], [hidden], [1] */
    void *experts;                       /* moe_scratch_bytes */
} qwen_scratch;

static int32_t delta_channels(const linear_config *l) { return 2 * l->n_k_heads * l->k_dim + l->n_v_heads * l->v_dim; }
static int32_t mlp_width(const model_config *c) { return c->moe.n_experts ? c->moe.shared_ff : c->ff; }

/* ---- weights ---- */

static fl_status bind_attention(attention_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const model_config *m = c->config;
    const int32_t q_rows = m->n_heads * 2 * m->head_dim, kv_rows = m->n_kv_heads * m->head_dim, out = m->n_heads * m->head_dim;
    fl_status st = bind_weight(&w->q, c, q_rows, m->hidden, err, "layers.%d.self_attn.q_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->k, c, kv_rows, m->hidden, err, "layers.%d.self_attn.k_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->v, c, kv_rows, m->hidden, err, "layers.%d.self_attn.v_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->o, c, m->hidden, out, err, "layers.%d.self_attn.o_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->q_norm, c, 1, m->head_dim, err, "layers.%d.self_attn.q_norm.weight", i);
    if (st == FL_OK) st = bind_weight(&w->k_norm, c, 1, m->head_dim, err, "layers.%d.self_attn.k_norm.weight", i);
    if (st != FL_OK || !m->attention_bias) return st;
    st = bind_weight(&w->q_bias, c, 1, q_rows, err, "layers.%d.self_attn.q_proj.bias", i);
    if (st == FL_OK) st = bind_weight(&w->k_bias, c, 1, kv_rows, err, "layers.%d.self_attn.k_proj.bias", i);
    if (st == FL_OK) st = bind_weight(&w->v_bias, c, 1, kv_rows, err, "layers.%d.self_attn.v_proj.bias", i);
    if (st == FL_OK) st = bind_weight(&w->o_bias, c, 1, m->hidden, err, "layers.%d.self_attn.o_proj.bias", i);
    return st;
}

static fl_status bind_delta(delta_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const linear_config *l = &c->config->linear;
    const int32_t hidden = c->config->hidden, channels = delta_channels(l), values = l->n_v_heads * l->v_dim;
    fl_status st = bind_weight(&w->qkv, c, channels, hidden, err, "layers.%d.linear_attn.in_proj_qkv.weight", i);
    if (st == FL_OK) st = bind_weight(&w->z, c, values, hidden, err, "layers.%d.linear_attn.in_proj_z.weight", i);
    if (st == FL_OK) st = bind_weight(&w->a, c, l->n_v_heads, hidden, err, "layers.%d.linear_attn.in_proj_a.weight", i);
    if (st == FL_OK) st = bind_weight(&w->b, c, l->n_v_heads, hidden, err, "layers.%d.linear_attn.in_proj_b.weight", i);
    if (st == FL_OK) st = bind_weight(&w->out, c, hidden, values, err, "layers.%d.linear_attn.out_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->conv, c, channels, l->conv_width, err, "layers.%d.linear_attn.conv1d.weight", i);
    if (st == FL_OK) st = bind_weight(&w->a_log, c, 1, l->n_v_heads, err, "layers.%d.linear_attn.A_log", i);
    if (st == FL_OK) st = bind_weight(&w->dt_bias, c, 1, l->n_v_heads, err, "layers.%d.linear_attn.dt_bias", i);
    if (st == FL_OK) st = bind_weight(&w->norm, c, 1, l->v_dim, err, "layers.%d.linear_attn.norm.weight", i);
    return st;
}

static fl_status bind_mlp(mlp_weights *w, const bind_context *c, int32_t i, const char *part, int32_t ff, fl_err *err)
{
    const int32_t hidden = c->config->hidden;
    fl_status st = bind_weight(&w->gate, c, ff, hidden, err, "layers.%d.%s.gate_proj.weight", i, part);
    if (st == FL_OK) st = bind_weight(&w->up, c, ff, hidden, err, "layers.%d.%s.up_proj.weight", i, part);
    if (st == FL_OK) st = bind_weight(&w->down, c, hidden, ff, err, "layers.%d.%s.down_proj.weight", i, part);
    return st;
}

/* Experts come as three tensors each, or fused: gate above up in gate_up_proj [n_experts, 2 * ff, hidden], and down_proj [n_experts, hidden, ff]. */
static fl_status bind_experts(layer_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const model_config *m = c->config;
    const int32_t n = m->moe.n_experts, ff = m->moe.ff;
    weight *views = fl_arena_take(c->arena, 4 * (size_t)n * sizeof *views);
    if (!views) return fl_fail(err, FL_FULL, "model: no memory for the views of %d experts", n);
    w->expert_gate = views;
    w->expert_up = views + n;
    w->expert_down = views + 2 * n;
    weight *fused = views + 3 * n;
    fl_status st = FL_OK;
    if (bind_has(c, "layers.%d.mlp.experts.gate_up_proj", i)) {
        st = bind_stack(fused, c, n, 2 * ff, m->hidden, err, "layers.%d.mlp.experts.gate_up_proj", i);
        if (st == FL_OK) st = bind_stack(w->expert_down, c, n, m->hidden, ff, err, "layers.%d.mlp.experts.down_proj", i);
        for (int32_t e = 0; st == FL_OK && e < n; e++) {
            w->expert_gate[e] = weight_rows(&fused[e], 0, ff);
            w->expert_up[e] = weight_rows(&fused[e], ff, ff);
        }
        return st;
    }
    for (int32_t e = 0; st == FL_OK && e < n; e++) {
        st = bind_weight(&w->expert_gate[e], c, ff, m->hidden, err, "layers.%d.mlp.experts.%d.gate_proj.weight", i, e);
        if (st == FL_OK) st = bind_weight(&w->expert_up[e], c, ff, m->hidden, err, "layers.%d.mlp.experts.%d.up_proj.weight", i, e);
        if (st == FL_OK) st = bind_weight(&w->expert_down[e], c, m->hidden, ff, err, "layers.%d.mlp.experts.%d.down_proj.weight", i, e);
    }
    return st;
}

static fl_status bind_layer(layer_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const model_config *m = c->config;
    fl_status st = bind_weight(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
    if (st == FL_OK) st = bind_weight(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
    if (st == FL_OK) st = m->layers[i] == LAYER_FULL_ATTENTION ? bind_attention(&w->attention, c, i, err) : bind_delta(&w->delta, c, i, err);
    if (st != FL_OK || m->moe.n_experts == 0) return st == FL_OK ? bind_mlp(&w->mlp, c, i, "mlp", m->ff, err) : st;
    st = bind_weight(&w->router, c, m->moe.n_experts, m->hidden, err, "layers.%d.mlp.gate.weight", i);
    if (st == FL_OK) st = bind_experts(w, c, i, err);
    if (st == FL_OK) st = bind_mlp(&w->mlp, c, i, "mlp.shared_expert", m->moe.shared_ff, err);
    if (st == FL_OK) st = bind_weight(&w->shared_gate, c, 1, m->hidden, err, "layers.%d.mlp.shared_expert_gate.weight", i);
    return st;
}

static fl_status qwen_bind(void **out, const bind_context *c, fl_err *err)
{
    qwen_weights *w = fl_arena_take(c->arena, sizeof *w);
    if (w) w->layers = fl_arena_take(c->arena, (size_t)c->config->n_layers * sizeof *w->layers);
    if (!w || !w->layers) return fl_fail(err, FL_FULL, "model: no memory for the views of %d layers", c->config->n_layers);
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < c->config->n_layers; i++) st = bind_layer(&w->layers[i], c, i, err);
    *out = w;
    return st;
}

/* ---- activations ---- */

static float *take_rows(fl_arena *arena, int32_t n_rows, int32_t dim, bool *is_full)
{
    float *rows = fl_arena_take(arena, (size_t)n_rows * (size_t)dim * sizeof(float));
    if (!rows && dim > 0) *is_full = true;
    return rows;
}

static fl_status qwen_plan(void **out, const model_config *m, const ops *o, int32_t n_rows, fl_arena *arena, fl_err *err)
{
    bool is_full = false;
    const linear_config *l = &m->linear;
    qwen_scratch *s = fl_arena_take(arena, sizeof *s);
    if (!s) return fl_fail(err, FL_FULL, "model: no memory for activations");
    s->h = take_rows(arena, n_rows, m->hidden, &is_full);
    s->d = take_rows(arena, n_rows, m->hidden, &is_full);
    s->q = take_rows(arena, n_rows, m->n_heads * 2 * m->head_dim, &is_full);
    s->k = take_rows(arena, n_rows, m->n_kv_heads * m->head_dim, &is_full);
    s->v = take_rows(arena, n_rows, m->n_kv_heads * m->head_dim, &is_full);
    s->mixed = take_rows(arena, n_rows, m->n_heads * m->head_dim, &is_full);
    s->qkv = take_rows(arena, n_rows, delta_channels(l), &is_full);
    s->conv = take_rows(arena, n_rows, delta_channels(l), &is_full);
    s->z = take_rows(arena, n_rows, l->n_v_heads * l->v_dim, &is_full);
    s->core = take_rows(arena, n_rows, l->n_v_heads * l->v_dim, &is_full);
    s->a = take_rows(arena, n_rows, l->n_v_heads, &is_full);
    s->b = take_rows(arena, n_rows, l->n_v_heads, &is_full);
    s->gate = take_rows(arena, n_rows, mlp_width(m), &is_full);
    s->up = take_rows(arena, n_rows, mlp_width(m), &is_full);
    if (m->moe.n_experts) {
        s->router = take_rows(arena, n_rows, m->moe.n_experts, &is_full);
        s->shared = take_rows(arena, n_rows, m->hidden, &is_full);
        s->shared_gate = take_rows(arena, n_rows, 1, &is_full);
        size_t bytes = o->moe_scratch_bytes(o, n_rows, m->hidden, m->moe.ff, m->moe.n_experts, m->moe.top_k);
        s->experts = fl_arena_take(arena, bytes ? bytes : 1);
        if (!s->experts) is_full = true;
    }
    if (is_full) return fl_fail(err, FL_FULL, "model: no memory for the activations of %d rows; lower the batch limit or the prefill budget", n_rows);
    *out = s;
    return FL_OK;
}

/* ---- forward ---- */

/* d = attention(h) */
static void run_attention(const family_view *v, qwen_scratch *s, const attention_weights *w, const ops_kv *kv, const ops_batch *b)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const int32_t n = b->n_rows, hd = m->head_dim, q_stride = m->n_heads * 2 * hd, kv_stride = m->n_kv_heads * hd;
    o->linear(o, s->q, s->h, &w->q, &w->q_bias, n);
    o->linear(o, s->k, s->h, &w->k, &w->k_bias, n);
    o->linear(o, s->v, s->h, &w->v, &w->v_bias, n);
    o->head_norm_rope(o, s->q, q_stride, 2 * hd, m->n_heads, hd, &w->q_norm, 1.0f, m->norm_eps, v->rope, b);
    o->head_norm_rope(o, s->k, kv_stride, hd, m->n_kv_heads, hd, &w->k_norm, 1.0f, m->norm_eps, v->rope, b);
    o->kv_write(o, kv, s->k, kv_stride, s->v, kv_stride, b);
    o->attention(o, s->mixed, s->q, q_stride, 2 * hd, m->n_heads, kv, v->attention_scale, 0, b);
    o->sigmoid_gate(o, s->mixed, s->q + hd, q_stride, 2 * hd, m->n_heads, hd, n);
    o->linear(o, s->d, s->mixed, &w->o, &w->o_bias, n);
}

/* d = gated_delta_net(h) */
static void run_delta(const family_view *v, qwen_scratch *s, const delta_weights *w, float *delta_state, float *conv_state, const ops_batch *b)
{
    ops *o = v->o;
    const linear_config *l = &v->config->linear;
    const weight none = { 0 };
    const int32_t n = b->n_rows, channels = delta_channels(l);
    o->linear(o, s->qkv, s->h, &w->qkv, &none, n);
    o->linear(o, s->z, s->h, &w->z, &none, n);
    o->linear(o, s->a, s->h, &w->a, &none, n);
    o->linear(o, s->b, s->h, &w->b, &none, n);
    o->conv_silu(o, s->conv, s->qkv, channels, &w->conv, conv_state, channels, l->conv_width, b);
    o->gated_delta(o, s->core, s->conv, s->a, s->b, &w->a_log, &w->dt_bias, delta_state, l->n_k_heads, l->n_v_heads, l->k_dim, l->v_dim, b);
    o->gated_rms_norm(o, s->core, s->z, &w->norm, v->config->norm_eps, n, l->n_v_heads, l->v_dim);
    o->linear(o, s->d, s->core, &w->out, &none, n);
}

/* y = mlp(h), of width ff */
static void run_mlp(ops *o, qwen_scratch *s, float *y, const mlp_weights *w, int32_t ff, int32_t n_rows)
{
    const weight none = { 0 };
    o->linear(o, s->gate, s->h, &w->gate, &none, n_rows);
    o->linear(o, s->up, s->h, &w->up, &none, n_rows);
    o->swiglu(o, s->gate, s->gate, s->up, n_rows, ff);
    o->linear(o, y, s->gate, &w->down, &none, n_rows);
}

/* d = experts(h) + sigmoid(shared_gate h) * shared(h) */
static void run_experts(const family_view *v, qwen_scratch *s, const layer_weights *w, int32_t *ids, float *weights, int32_t n)
{
    ops *o = v->o;
    const moe_config *moe = &v->config->moe;
    const weight none = { 0 };
    o->linear(o, s->router, s->h, &w->router, &none, n);
    o->moe_route(o, ids, weights, s->router, n, moe->n_experts, moe->top_k, true);
    o->moe_experts(o, s->d, s->h, ids, weights, w->expert_gate, w->expert_up, w->expert_down, n, moe->n_experts, moe->top_k, s->experts);
    run_mlp(o, s, s->shared, &w->mlp, moe->shared_ff, n);
    o->linear(o, s->shared_gate, s->h, &w->shared_gate, &none, n);
    o->add_sigmoid_scaled(o, s->d, s->shared, s->shared_gate, n, v->config->hidden);
}

static void qwen_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const qwen_weights *weights = v->weights;
    qwen_scratch *s = v->scratch;
    int32_t n_full = 0, n_linear = 0;    /* layers of each kind so far: their index in the caches */

    o->embed(o, x, v->embed, b->ids, b->n_rows);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_weights *w = &weights->layers[i];
        /* token mixer */
        if (i == 0) o->rms_norm(o, s->h, x, &w->input_norm, 1.0f, m->norm_eps, b->n_rows, m->hidden);
        else o->add_rms_norm(o, s->h, x, s->d, &w->input_norm, 1.0f, m->norm_eps, b->n_rows, m->hidden);
        if (m->layers[i] == LAYER_FULL_ATTENTION) {
            const ops_kv layer_kv = kv_cache_layer(kv, n_full++);
            run_attention(v, s, &w->attention, &layer_kv, b);
        } else {
            run_delta(v, s, &w->delta, state_pool_delta(states, n_linear), state_pool_conv(states, n_linear), b);
            n_linear++;
        }
        /* MLP or experts */
        o->add_rms_norm(o, s->h, x, s->d, &w->post_norm, 1.0f, m->norm_eps, b->n_rows, m->hidden);
        if (m->moe.n_experts) run_experts(v, s, w, v->routing_ids[i], v->routing_weights[i], b->n_rows);
        else run_mlp(o, s, s->d, &w->mlp, m->ff, b->n_rows);
    }
    o->add(o, x, s->d, b->n_rows, m->hidden);
}

static int32_t qwen_moe_layers(const model_config *m) { return m->moe.n_experts ? m->n_layers : 0; }

const model_family qwen3_5_family = { "qwen3_5", 1.0f, qwen_bind, qwen_plan, qwen_moe_layers, qwen_forward };
const model_family qwen3_5_moe_family = { "qwen3_5_moe", 1.0f, qwen_bind, qwen_plan, qwen_moe_layers, qwen_forward };
