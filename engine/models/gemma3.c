/* gemma3.c - the forward pass of gemma3's text model (Gemma 3 technical report 2025, arXiv:2503.19786): sliding layers with a full one between them, each kind
 * turned by its own table; every sublayer normed on its way in and on its way out; a GeGLU MLP.
 *
 *        sqrt(hidden) embed ── norm ── attention ── norm ──(+)── norm ── MLP ── norm ──(+)── next layer
 *
 * Checkpoints store norm weights as w - 1, GGUF files as w (norm_add). */
#include "engine/models/parts.h"

#include <math.h>

typedef struct {
    weight input_norm, attention_norm, pre_norm, post_norm;      /* [hidden]: in and out of attention, in and out of the MLP */
    attention_weights attention;
    mlp_weights mlp;
} layer_weights;

static fl_status gemma3_bind(void **out, const bind_context *c, fl_err *err)
{
    const model_config *m = c->config;
    layer_weights *layers = fl_arena_take(c->arena, (size_t)m->n_layers * sizeof *layers);
    if (!layers) return fl_fail(err, FL_FULL, "model: no memory for the views of %d layers", m->n_layers);
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < m->n_layers; i++) {
        layer_weights *w = &layers[i];
        st = bind_small(&w->input_norm, c, 1, m->hidden, err, "layers.%d.input_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->attention_norm, c, 1, m->hidden, err, "layers.%d.post_attention_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->pre_norm, c, 1, m->hidden, err, "layers.%d.pre_feedforward_layernorm.weight", i);
        if (st == FL_OK) st = bind_small(&w->post_norm, c, 1, m->hidden, err, "layers.%d.post_feedforward_layernorm.weight", i);
        if (st == FL_OK) st = bind_attention(&w->attention, c, i, m->n_heads * m->head_dim, true, err);
        if (st == FL_OK) st = bind_mlp(&w->mlp, c, i, "mlp", m->ff, err);
    }
    *out = layers;
    return st;
}

static void gemma3_forward(const family_view *v, const ops_batch *b, kv_cache *kv, state_pool *states, float *x)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const layer_weights *layers = v->weights;
    const weight none = { 0 };
    const int32_t n = b->n_rows;
    layer_scratch *s = v->scratch;
    (void)states;

    o->embed(o, x, v->embed, (float)sqrt((double)m->hidden), b);
    for (int32_t i = 0; i < m->n_layers; i++) {
        const layer_weights *w = &layers[i];
        const ops_kv layer_kv = kv_cache_layer(kv, i);
        /* attention */
        if (i == 0) o->rms_norm(o, s->h, x, &w->input_norm, m->norm_add, m->norm_eps, n, m->hidden);
        else o->add_rms_norm(o, s->h, x, s->d, &w->input_norm, m->norm_add, m->norm_eps, n, m->hidden);
        run_attention(v, s, &w->attention, &m->layers[i], m->norm_add, &layer_kv, b);
        o->linear(o, s->d, s->mixed, &w->attention.o, &w->attention.o_bias, n);
        o->act_rms_norm(o, s->d, s->d, &w->attention_norm, m->norm_add, m->norm_eps, n, m->hidden);
        /* MLP */
        o->add_rms_norm(o, s->h, x, s->d, &w->pre_norm, m->norm_add, m->norm_eps, n, m->hidden);
        o->linear(o, s->gate, s->h, &w->mlp.gate, &none, n);
        o->linear(o, s->up, s->h, &w->mlp.up, &none, n);
        o->geglu(o, s->gate, s->gate, s->up, n, m->ff);
        o->linear(o, s->d, s->gate, &w->mlp.down, &none, n);
        o->act_rms_norm(o, s->d, s->d, &w->post_norm, m->norm_add, m->norm_eps, n, m->hidden);
    }
    o->add(o, x, s->d, n, m->hidden);
}

const model_family gemma3_family = { "gemma3", sizeof(layer_scratch), gemma3_bind, plan_layers, gemma3_forward };
