/* laguna.c - the forward pass of laguna: full and sliding layers with numbers of query heads of their own, attention behind a softplus gate (one a head or one
 * an element), and behind a dense first layer experts chosen by a sigmoid router beside one shared expert.
 *
 *        x ── norm ── attention * softplus(g) ──(+)── norm ── MLP | scale * experts + shared ──(+)── next layer
 *
 * The router's bias counts when experts are chosen and not in their weights; the scale of the routed sum is part of the weights. */
#include "engine/models/parts.h"

typedef struct {
    weight input_norm, post_norm;        /* [hidden] */
    attention_weights attention;
    weight attention_gate;               /* [n_heads or n_heads * head_dim, hidden] */
    mlp_weights mlp;                     /* the dense MLP, or the shared expert */
    expert_weights experts;              /* mixture layers */
    weight router_bias;                  /* mixture layers: [n_experts] */
} layer_weights;

typedef struct {
    layer_scratch layer;
    float *attention_gate;               /* [n_heads or n_heads * head_dim] */
    act *shared;                         /* [hidden] */
} laguna_scratch;

static int32_t gate_width(const model_config *m, int32_t n_heads) { return m->gate_per_head ? n_heads : n_heads * m->head_dim; }

/* Checkpoints name the shared expert and the router's bias in two ways. */
static fl_status bind_mixture(layer_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const moe_config *moe = &c->config->moe;
    const char *shared = bind_has(c, "layers.%d.mlp.shared_experts.gate_proj.weight", i) ? "mlp.shared_experts" : "mlp.shared_expert";
    const char *bias = bind_has(c, "layers.%d.mlp.gate.e_score_correction_bias", i) ? "gate" : "experts";
    fl_status st = bind_experts(&w->experts, c, i, err);
    if (st == FL_OK) st = bind_small(&w->router_bias, c, 1, moe->n_experts, err, "layers.%d.mlp.%s.e_score_correction_bias", i, bias);
    if (st == FL_OK) st = bind_mlp(&w->mlp, c, i, shared, moe->shared_ff, err);
    return st;
}

static fl_status laguna_bind(void **out, const bind_context *c, fl_err *err)
{
    const model_config *m = c->config;
    layer_weights *layers = fl_arena_take(c->arena, (size_t)m->n_layers * sizeof *layers);
    if (!layers) return fl_fail(err, FL_FULL, "model: no memory for the views of %d layers", m->n_layers);
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < m->n_layers; i++) {
        layer_weights *w = &layers[i];
        const int32_t n_heads = m->layers[i].n_heads;
        st = bind_small(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
        if (st == FL_OK) st = bind_attention(&w->attention, c, i, n_heads * m->head_dim, true, err);
        if (st == FL_OK) st = bind_gate(&w->attention_gate, c, gate_width(m, n_heads), m->hidden, err, "layers.%d.self_attn.g_proj.weight", i);
        if (st == FL_OK) st = m->layers[i].is_mixture ? bind_mixture(w, c, i, err) : bind_mlp(&w->mlp, c, i, "mlp", m->ff, err);
    }
    *out = layers;
    return st;
}

static void laguna_plan(void *scratch, const model_config *m, const ops *o, int32_t n_rows, scratch_space *space)
{
    laguna_scratch *s = scratch;
    take_layer_scratch(&s->layer, m, o, n_rows, m->n_heads * m->head_dim, space);
    s->attention_gate = take_floats(space, n_rows, gate_width(m, m->n_heads));
    s->shared = take_acts(space, o, n_rows, m->hidden);
}

/* d = scale * experts(h) + shared(h) */
static void run_mixture(const family_view *v, laguna_scratch *scratch, const layer_weights *w, int32_t *ids, float *weights, int32_t n)
{
    ops *o = v->o;
    const moe_config *moe = &v->config->moe;
    const weight none = { 0 };
    layer_scratch *s = &scratch->layer;
    o->linear_f32(o, s->router, s->h, &w->experts.router, &none, n);
    if (moe->router_softcap > 0.0f) o->soft_cap(o, s->router, moe->router_softcap, n, moe->n_experts);
    o->moe_route_sigmoid(o, ids, weights, s->router, &w->router_bias, moe->scale, n, moe->n_experts, moe->top_k);
    run_experts(v, s, &w->experts, ids, weights, n);
    run_swiglu(o, s, scratch->shared, &w->mlp, moe->shared_ff, n);
    o->act_add(o, s->d, scratch->shared, n, v->config->hidden);
}

static void laguna_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const layer_weights *layers = v->weights;
    const weight none = { 0 };
    const int32_t n = b->n_rows;
    laguna_scratch *scratch = v->scratch;
    layer_scratch *s = &scratch->layer;
    int32_t n_mixtures = 0;              /* so far */
    (void)states;

    o->embed(o, x, v->embed, 1.0f, b);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_weights *w = &layers[i];
        const layer_config *layer = &m->layers[i];
        const ops_kv layer_kv = kv_cache_layer(kv, i);
        /* attention and its gate */
        if (i == 0) o->rms_norm(o, s->h, x, &w->input_norm, 0.0f, m->norm_eps, n, m->hidden);
        else o->add_rms_norm(o, s->h, x, s->d, &w->input_norm, 0.0f, m->norm_eps, n, m->hidden);
        run_attention(v, s, &w->attention, layer, 0.0f, &layer_kv, b);
        o->linear_f32(o, scratch->attention_gate, s->h, &w->attention_gate, &none, n);
        o->softplus_gate(o, s->mixed, scratch->attention_gate, m->gate_per_head, layer->n_heads, m->head_dim, n);
        o->linear(o, s->d, s->mixed, &w->attention.o, &w->attention.o_bias, n);
        /* MLP or experts */
        o->add_rms_norm(o, s->h, x, s->d, &w->post_norm, 0.0f, m->norm_eps, n, m->hidden);
        if (!layer->is_mixture) { run_swiglu(o, s, s->d, &w->mlp, m->ff, n); continue; }
        run_mixture(v, scratch, w, v->routing_ids[n_mixtures], v->routing_weights[n_mixtures], n);
        n_mixtures++;
    }
    o->add(o, x, s->d, n, m->hidden);
}

const model_family laguna_family = { "laguna", sizeof(laguna_scratch), laguna_bind, laguna_plan, laguna_forward };
