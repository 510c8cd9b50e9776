/* qwen3_5.c - the forward pass of qwen3_5 (dense) and qwen3_5_moe: gated DeltaNet layers (Yang et al. 2024, arXiv:2412.06464) with a full-attention layer
 * between them, each followed by a SwiGLU MLP or by a mixture of experts beside one shared expert.
 *
 *        x ── norm ── DeltaNet | attention ──(+)── norm ── MLP | experts + sigmoid(g) * shared ──(+)── next layer
 *
 * Checkpoints store norm weights as w - 1 (norm_add), but for the gated norm of DeltaNet; GGUF files as w, and DeltaNet's value heads in another order (linear_config). Each attention head's query is followed by its output gate in
 * q_proj's rows, so query head h starts at h * 2 * head_dim and its gate head_dim later. */
#include "engine/models/parts.h"

typedef struct {
    weight qkv, z, a, b, out;            /* qkv [2 * n_k_heads * k_dim + n_v_heads * v_dim, hidden] */
    weight conv, a_log, dt_bias, norm;   /* conv [channels, width], a_log and dt_bias [n_v_heads], norm [v_dim] */
} delta_weights;

typedef struct {
    weight input_norm, post_norm;        /* [hidden] */
    attention_weights attention;         /* full attention layers; q [n_heads * 2 * head_dim, hidden]: query and gate, head by head */
    delta_weights delta;                 /* linear attention layers */
    mlp_weights mlp;                     /* the dense MLP, or the shared expert */
    expert_weights experts;              /* mixture layers */
    weight shared_gate;                  /* mixture layers: [1, hidden] */
} layer_weights;

typedef struct { layer_weights *layers; } qwen_weights;

typedef struct {
    layer_scratch layer;                 /* q is n_heads * 2 * head_dim wide */
    act *qkv, *conv, *z, *core;          /* [channels] twice, [n_v_heads * v_dim] twice */
    float *a, *b;                        /* [n_v_heads] */
    act *shared; float *shared_gate;     /* [hidden], [1] */
} qwen_scratch;

static int32_t delta_channels(const linear_config *l) { return 2 * l->n_k_heads * l->k_dim + l->n_v_heads * l->v_dim; }

/* ---- weights ---- */

static fl_status bind_delta(delta_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const linear_config *l = &c->config->linear;
    const int32_t hidden = c->config->hidden, channels = delta_channels(l), values = l->n_v_heads * l->v_dim;
    fl_status st = bind_weight(&w->qkv, c, channels, hidden, err, "layers.%d.linear_attn.in_proj_qkv.weight", i);
    if (st == FL_OK) st = bind_weight(&w->z, c, values, hidden, err, "layers.%d.linear_attn.in_proj_z.weight", i);
    if (st == FL_OK) st = bind_gate(&w->a, c, l->n_v_heads, hidden, err, "layers.%d.linear_attn.in_proj_a.weight", i);
    if (st == FL_OK) st = bind_gate(&w->b, c, l->n_v_heads, hidden, err, "layers.%d.linear_attn.in_proj_b.weight", i);
    if (st == FL_OK) st = bind_weight(&w->out, c, hidden, values, err, "layers.%d.linear_attn.out_proj.weight", i);
    if (st == FL_OK) st = bind_small(&w->conv, c, channels, l->conv_width, err, "layers.%d.linear_attn.conv1d.weight", i);
    if (st == FL_OK) st = bind_small(&w->a_log, c, 1, l->n_v_heads, err, "layers.%d.linear_attn.A_log", i);
    if (st == FL_OK) st = bind_small(&w->dt_bias, c, 1, l->n_v_heads, err, "layers.%d.linear_attn.dt_bias", i);
    if (st == FL_OK) st = bind_small(&w->norm, c, 1, l->v_dim, err, "layers.%d.linear_attn.norm.weight", i);
    return st;
}

static fl_status bind_layer(layer_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const model_config *m = c->config;
    fl_status st = bind_small(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
    if (st == FL_OK) st = bind_small(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
    if (st == FL_OK) st = m->layers[i].kind == LAYER_FULL_ATTENTION ? bind_attention(&w->attention, c, i, m->n_heads * 2 * m->head_dim, true, err) : bind_delta(&w->delta, c, i, err);
    if (st != FL_OK || !m->layers[i].is_mixture) return st == FL_OK ? bind_mlp(&w->mlp, c, i, "mlp", m->ff, err) : st;
    st = bind_experts(&w->experts, c, i, err);
    if (st == FL_OK) st = bind_mlp(&w->mlp, c, i, "mlp.shared_expert", m->moe.shared_ff, err);
    if (st == FL_OK) st = bind_gate(&w->shared_gate, c, 1, m->hidden, err, "layers.%d.mlp.shared_expert_gate.weight", i);
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

static void qwen_plan(void *scratch, const model_config *m, const ops *o, int32_t n_rows, scratch_space *space)
{
    const linear_config *l = &m->linear;
    qwen_scratch *s = scratch;
    take_layer_scratch(&s->layer, m, o, n_rows, m->n_heads * 2 * m->head_dim, space);
    s->qkv = take_acts(space, o, n_rows, delta_channels(l));
    s->conv = take_acts(space, o, n_rows, delta_channels(l));
    s->z = take_acts(space, o, n_rows, l->n_v_heads * l->v_dim);
    s->core = take_acts(space, o, n_rows, l->n_v_heads * l->v_dim);
    s->a = take_floats(space, n_rows, l->n_v_heads);
    s->b = take_floats(space, n_rows, l->n_v_heads);
    s->shared = take_acts(space, o, n_rows, m->hidden);
    s->shared_gate = take_floats(space, n_rows, 1);
}

/* ---- forward ---- */

/* d = attention(h) */
static void run_gated_attention(const family_view *v, layer_scratch *s, const attention_weights *w, const ops_kv *kv, const ops_batch *b)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const int32_t n = b->n_rows, hd = m->head_dim, q_stride = m->n_heads * 2 * hd, kv_stride = m->n_kv_heads * hd;
    o->linear(o, s->q, s->h, &w->q, &w->q_bias, n);
    o->linear(o, s->k, s->h, &w->k, &w->k_bias, n);
    o->linear(o, s->v, s->h, &w->v, &w->v_bias, n);
    o->head_norm_rope(o, s->q, q_stride, 2 * hd, m->n_heads, hd, &w->q_norm, m->norm_add, m->norm_eps, &v->rope[0], b);
    o->head_norm_rope(o, s->k, kv_stride, hd, m->n_kv_heads, hd, &w->k_norm, m->norm_add, m->norm_eps, &v->rope[0], b);
    o->kv_write(o, kv, s->k, kv_stride, s->v, kv_stride, b);
    o->attention(o, s->mixed, s->q, q_stride, 2 * hd, m->n_heads, kv, m->attention_scale, 0, b);
    o->sigmoid_gate(o, s->mixed, act_at(o, s->q, (size_t)hd), q_stride, 2 * hd, m->n_heads, hd, n);
    o->linear(o, s->d, s->mixed, &w->o, &w->o_bias, n);
}

/* d = gated_delta_net(h) */
static void run_delta(const family_view *v, qwen_scratch *s, const delta_weights *w, float *delta_state, float *conv_state, const ops_batch *b)
{
    ops *o = v->o;
    const linear_config *l = &v->config->linear;
    const weight none = { 0 };
    const int32_t n = b->n_rows, channels = delta_channels(l);
    o->linear(o, s->qkv, s->layer.h, &w->qkv, &none, n);
    o->linear(o, s->z, s->layer.h, &w->z, &none, n);
    o->linear_f32(o, s->a, s->layer.h, &w->a, &none, n);
    o->linear_f32(o, s->b, s->layer.h, &w->b, &none, n);
    o->conv_silu(o, s->conv, s->qkv, channels, &w->conv, conv_state, channels, l->conv_width, b);
    o->gated_delta(o, s->core, s->conv, s->a, s->b, &w->a_log, &w->dt_bias, delta_state, l->n_k_heads, l->n_v_heads, l->is_tiled, l->k_dim, l->v_dim, b);
    o->gated_rms_norm(o, s->core, s->z, &w->norm, v->config->norm_eps, n, l->n_v_heads, l->v_dim);
    o->linear(o, s->layer.d, s->core, &w->out, &none, n);
}

/* d = experts(h) + sigmoid(shared_gate h) * shared(h) */
static void run_mixture(const family_view *v, qwen_scratch *scratch, const layer_weights *w, int32_t *ids, float *weights, int32_t n)
{
    ops *o = v->o;
    const moe_config *moe = &v->config->moe;
    const weight none = { 0 };
    layer_scratch *s = &scratch->layer;
    o->linear_f32(o, s->router, s->h, &w->experts.router, &none, n);
    o->moe_route(o, ids, weights, s->router, n, moe->n_experts, moe->top_k, moe->renormalize);
    run_experts(v, s, &w->experts, ids, weights, n);
    run_swiglu(o, s, scratch->shared, &w->mlp, moe->shared_ff, n);
    o->linear_f32(o, scratch->shared_gate, s->h, &w->shared_gate, &none, n);
    o->add_sigmoid_scaled(o, s->d, scratch->shared, scratch->shared_gate, n, v->config->hidden);
}

static void qwen_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const qwen_weights *weights = v->weights;
    qwen_scratch *scratch = v->scratch;
    layer_scratch *s = &scratch->layer;
    int32_t n_full = 0, n_linear = 0;    /* layers of each kind so far: their index in the caches */

    o->embed(o, x, v->embed, 1.0f, b);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_weights *w = &weights->layers[i];
        /* token mixer */
        if (i == 0) o->rms_norm(o, s->h, x, &w->input_norm, m->norm_add, m->norm_eps, b->n_rows, m->hidden);
        else o->add_rms_norm(o, s->h, x, s->d, &w->input_norm, m->norm_add, m->norm_eps, b->n_rows, m->hidden);
        if (m->layers[i].kind == LAYER_FULL_ATTENTION) {
            const ops_kv layer_kv = kv_cache_layer(kv, n_full++);
            run_gated_attention(v, s, &w->attention, &layer_kv, b);
        } else {
            run_delta(v, scratch, &w->delta, state_pool_delta(states, n_linear), state_pool_conv(states, n_linear), b);
            n_linear++;
        }
        /* MLP, or experts in every layer */
        o->add_rms_norm(o, s->h, x, s->d, &w->post_norm, m->norm_add, m->norm_eps, b->n_rows, m->hidden);
        if (m->layers[i].is_mixture) run_mixture(v, scratch, w, v->routing_ids[i], v->routing_weights[i], b->n_rows);
        else run_swiglu(o, s, s->d, &w->mlp, m->ff, b->n_rows);
    }
    o->add(o, x, s->d, b->n_rows, m->hidden);
}

const model_family qwen3_5_family = { "qwen3_5", sizeof(qwen_scratch), qwen_bind, qwen_plan, qwen_forward };
const model_family qwen3_5_moe_family = { "qwen3_5_moe", sizeof(qwen_scratch), qwen_bind, qwen_plan, qwen_forward };
