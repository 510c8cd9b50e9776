/* llama.c - the forward pass of llama: attention and a SwiGLU MLP behind a norm each (Touvron et al. 2023, arXiv:2302.13971), with biases where the config
 * says so. */
#include "engine/models/parts.h"

typedef struct {
    weight input_norm, post_norm;        /* [hidden] */
    attention_weights attention;
    mlp_weights mlp;
} layer_weights;

static fl_status llama_bind(void **out, const bind_context *c, fl_err *err)
{
    const model_config *m = c->config;
    layer_weights *layers = fl_arena_take(c->arena, (size_t)m->n_layers * sizeof *layers);
    if (!layers) return fl_fail(err, FL_FULL, "model: no memory for the views of %d layers", m->n_layers);
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < m->n_layers; i++) {
        layer_weights *w = &layers[i];
        st = bind_small(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
        if (st == FL_OK) st = bind_attention(&w->attention, c, i, m->n_heads * m->head_dim, false, err);
        if (st == FL_OK) st = bind_mlp(&w->mlp, c, i, "mlp", m->ff, err);
    }
    *out = layers;
    return st;
}

static void llama_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const layer_weights *layers = v->weights;
    layer_scratch *s = v->scratch;
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
        /* MLP */
        o->add_rms_norm(o, s->h, x, s->d, &w->post_norm, 0.0f, m->norm_eps, b->n_rows, m->hidden);
        run_swiglu(o, s, s->d, &w->mlp, m->ff, b->n_rows);
    }
    o->add(o, x, s->d, b->n_rows, m->hidden);
}

const model_family llama_family = { "llama", sizeof(layer_scratch), llama_bind, plan_layers, llama_forward };
