/* qwen3.c - the forward pass of qwen3 and qwen3_moe (Qwen3 technical report 2025, arXiv:2505.09388): attention whose query and key heads are normed before
 * they turn, then a SwiGLU MLP, or in qwen3_moe's mixture layers experts chosen by a softmax router. Layers may slide. */
#include "engine/models/parts.h"

typedef struct {
    weight input_norm, post_norm;        /* [hidden] */
    attention_weights attention;
    mlp_weights mlp;                     /* dense layers */
    expert_weights experts;              /* mixture layers */
} layer_weights;

static fl_status qwen3_bind(void **out, const bind_context *c, fl_err *err)
{
    const model_config *m = c->config;
    layer_weights *layers = fl_arena_take(c->arena, (size_t)m->n_layers * sizeof *layers);
    if (!layers) return fl_fail(err, FL_FULL, "model: no memory for the views of %d layers", m->n_layers);
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < m->n_layers; i++) {
        layer_weights *w = &layers[i];
        st = bind_small(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
        if (st == FL_OK) st = bind_attention(&w->attention, c, i, m->n_heads * m->head_dim, true, err);
        if (st == FL_OK) st = m->layers[i].is_mixture ? bind_experts(&w->experts, c, i, err) : bind_mlp(&w->mlp, c, i, "mlp", m->ff, err);
    }
    *out = layers;
    return st;
}

static void qwen3_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const layer_weights *layers = v->weights;
    const weight none = { 0 };
    layer_scratch *s = v->scratch;
    int32_t n_mixtures = 0;              /* so far */
    (void)states;

    o->embed(o, x, v->embed, 1.0f, b);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_weights *w = &layers[i];
        const ops_kv layer_kv = kv_cache_layer(kv, i);
        /* attention */
        if (i == 0) o->rms_norm(o, s->h, x, &w->input_norm, 0.0f, m->norm_eps, b->n_rows, m->hidden);
        else o->add_rms_norm(o, s->h, x, s->d, &w->input_norm, 0.0f, m->norm_eps, b->n_rows, m->hidden);
        run_attention(v, s, &w->attention, &m->layers[i], 0.0f, &layer_kv, b);
        o->linear(o, s->d, s->mixed, &w->attention.o, &w->attention.o_bias, b->n_rows);
        /* MLP or experts */
        o->add_rms_norm(o, s->h, x, s->d, &w->post_norm, 0.0f, m->norm_eps, b->n_rows, m->hidden);
        if (!m->layers[i].is_mixture) { run_swiglu(o, s, s->d, &w->mlp, m->ff, b->n_rows); continue; }
        int32_t *ids = v->routing_ids[n_mixtures];
        float *weights = v->routing_weights[n_mixtures++];
        o->linear_f32(o, s->router, s->h, &w->experts.router, &none, b->n_rows);
        o->moe_route(o, ids, weights, s->router, b->n_rows, m->moe.n_experts, m->moe.top_k, m->moe.renormalize);
        run_experts(v, s, &w->experts, ids, weights, b->n_rows);
    }
    o->add(o, x, s->d, b->n_rows, m->hidden);
}

const model_family qwen3_family = { "qwen3", sizeof(layer_scratch), qwen3_bind, plan_layers, qwen3_forward };
const model_family qwen3_moe_family = { "qwen3_moe", sizeof(layer_scratch), qwen3_bind, plan_layers, qwen3_forward };
