#include "engine/models/parts.h"

/* ---- weights ---- */

fl_status bind_attention(attention_weights *w, const bind_context *c, int32_t i, int32_t q_rows, bool has_norms, fl_err *err)
{
    const model_config *m = c->config;
    const int32_t kv_rows = m->n_kv_heads * m->head_dim, out = m->layers[i].n_heads * m->head_dim;
    fl_status st = bind_weight(&w->q, c, q_rows, m->hidden, err, "layers.%d.self_attn.q_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->k, c, kv_rows, m->hidden, err, "layers.%d.self_attn.k_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->v, c, kv_rows, m->hidden, err, "layers.%d.self_attn.v_proj.weight", i);
    if (st == FL_OK) st = bind_weight(&w->o, c, m->hidden, out, err, "layers.%d.self_attn.o_proj.weight", i);
    if (st == FL_OK && has_norms) st = bind_small(&w->q_norm, c, 1, m->head_dim, err, "layers.%d.self_attn.q_norm.weight", i);
    if (st == FL_OK && has_norms) st = bind_small(&w->k_norm, c, 1, m->head_dim, err, "layers.%d.self_attn.k_norm.weight", i);
    if (st != FL_OK || !m->attention_bias) return st;
    st = bind_small(&w->q_bias, c, 1, q_rows, err, "layers.%d.self_attn.q_proj.bias", i);
    if (st == FL_OK) st = bind_small(&w->k_bias, c, 1, kv_rows, err, "layers.%d.self_attn.k_proj.bias", i);
    if (st == FL_OK) st = bind_small(&w->v_bias, c, 1, kv_rows, err, "layers.%d.self_attn.v_proj.bias", i);
    if (st == FL_OK) st = bind_small(&w->o_bias, c, 1, m->hidden, err, "layers.%d.self_attn.o_proj.bias", i);
    return st;
}

fl_status bind_mlp(mlp_weights *w, const bind_context *c, int32_t i, const char *part, int32_t ff, fl_err *err)
{
    const int32_t hidden = c->config->hidden;
    fl_status st = bind_weight(&w->gate, c, ff, hidden, err, "layers.%d.%s.gate_proj.weight", i, part);
    if (st == FL_OK) st = bind_weight(&w->up, c, ff, hidden, err, "layers.%d.%s.up_proj.weight", i, part);
    if (st == FL_OK) st = bind_weight(&w->down, c, hidden, ff, err, "layers.%d.%s.down_proj.weight", i, part);
    if (st != FL_OK || !c->config->mlp_bias) return st;
    st = bind_small(&w->gate_bias, c, 1, ff, err, "layers.%d.%s.gate_proj.bias", i, part);
    if (st == FL_OK) st = bind_small(&w->up_bias, c, 1, ff, err, "layers.%d.%s.up_proj.bias", i, part);
    if (st == FL_OK) st = bind_small(&w->down_bias, c, 1, hidden, err, "layers.%d.%s.down_proj.bias", i, part);
    return st;
}

fl_status bind_experts(expert_weights *w, const bind_context *c, int32_t i, fl_err *err)
{
    const model_config *m = c->config;
    const int32_t n = m->moe.n_experts, ff = m->moe.ff;
    fl_status st = bind_gate(&w->router, c, n, m->hidden, err, "layers.%d.mlp.gate.weight", i);
    if (st != FL_OK) return st;
    weight *views = fl_arena_take(c->arena, 4 * (size_t)n * sizeof *views);
    if (!views) return fl_fail(err, FL_FULL, "model: no memory for the views of %d experts", n);
    w->gate = views;
    w->up = views + n;
    w->down = views + 2 * n;
    weight *fused = views + 3 * n;
    if (bind_has(c, "layers.%d.mlp.experts.gate_up_proj", i)) {
        st = bind_stack(fused, c, n, 2 * ff, m->hidden, err, "layers.%d.mlp.experts.gate_up_proj", i);
        if (st == FL_OK) st = bind_stack(w->down, c, n, m->hidden, ff, err, "layers.%d.mlp.experts.down_proj", i);
        for (int32_t e = 0; st == FL_OK && e < n; e++) {
            w->gate[e] = weight_rows(&fused[e], 0, ff);
            w->up[e] = weight_rows(&fused[e], ff, ff);
        }
        return st;
    }
    if (bind_has(c, "layers.%d.mlp.experts.gate_proj", i)) {
        st = bind_stack(w->gate, c, n, ff, m->hidden, err, "layers.%d.mlp.experts.gate_proj", i);
        if (st == FL_OK) st = bind_stack(w->up, c, n, ff, m->hidden, err, "layers.%d.mlp.experts.up_proj", i);
        return st == FL_OK ? bind_stack(w->down, c, n, m->hidden, ff, err, "layers.%d.mlp.experts.down_proj", i) : st;
    }
    for (int32_t e = 0; st == FL_OK && e < n; e++) {
        st = bind_matrix(&w->gate[e], c, ff, m->hidden, err, "layers.%d.mlp.experts.%d.gate_proj.weight", i, e);
        if (st == FL_OK) st = bind_matrix(&w->up[e], c, ff, m->hidden, err, "layers.%d.mlp.experts.%d.up_proj.weight", i, e);
        if (st == FL_OK) st = bind_matrix(&w->down[e], c, m->hidden, ff, err, "layers.%d.mlp.experts.%d.down_proj.weight", i, e);
    }
    return st;
}

/* ---- activations ---- */

act *take_acts(scratch_space *space, const ops *o, int32_t n_rows, int32_t dim)
{
    return dim == 0 ? NULL : scratch_take(space, (size_t)n_rows * (size_t)dim * o->act_bytes);
}

float *take_floats(scratch_space *space, int32_t n_rows, int32_t dim)
{
    return dim == 0 ? NULL : scratch_take(space, (size_t)n_rows * (size_t)dim * sizeof(float));
}

void take_layer_scratch(layer_scratch *s, const model_config *m, const ops *o, int32_t n_rows, int32_t q_width, scratch_space *space)
{
    const int32_t widest = m->ff > m->moe.shared_ff ? m->ff : m->moe.shared_ff;
    s->h = take_acts(space, o, n_rows, m->hidden);
    s->d = take_acts(space, o, n_rows, m->hidden);
    s->q = take_acts(space, o, n_rows, q_width);
    s->k = take_acts(space, o, n_rows, m->n_kv_heads * m->head_dim);
    s->v = take_acts(space, o, n_rows, m->n_kv_heads * m->head_dim);
    s->mixed = take_acts(space, o, n_rows, m->n_heads * m->head_dim);
    s->gate = take_acts(space, o, n_rows, widest);
    s->up = take_acts(space, o, n_rows, widest);
    s->router = take_floats(space, n_rows, m->moe.n_experts);
    if (m->moe.n_experts > 0) s->experts = scratch_take(space, o->moe_scratch_bytes(o, n_rows, m->hidden, m->moe.ff, m->moe.n_experts, m->moe.top_k));
}

void plan_layers(void *scratch, const model_config *m, const ops *o, int32_t n_rows, scratch_space *space)
{
    take_layer_scratch(scratch, m, o, n_rows, m->n_heads * m->head_dim, space);
}

/* ---- forward ---- */

void run_attention(const family_view *v, layer_scratch *s, const attention_weights *w, const layer_config *layer, float norm_add, const ops_kv *kv, const ops_batch *b)
{
    ops *o = v->o;
    const model_config *m = v->config;
    const bool slides = layer->kind == LAYER_SLIDING_ATTENTION;
    const ops_rope *rope = &v->rope[slides];
    const int32_t n = b->n_rows, hd = m->head_dim, q_stride = layer->n_heads * hd, kv_stride = m->n_kv_heads * hd;
    o->linear(o, s->q, s->h, &w->q, &w->q_bias, n);
    o->linear(o, s->k, s->h, &w->k, &w->k_bias, n);
    o->linear(o, s->v, s->h, &w->v, &w->v_bias, n);
    o->head_norm_rope(o, s->q, q_stride, hd, layer->n_heads, hd, &w->q_norm, norm_add, m->norm_eps, rope, b);
    o->head_norm_rope(o, s->k, kv_stride, hd, m->n_kv_heads, hd, &w->k_norm, norm_add, m->norm_eps, rope, b);
    o->kv_write(o, kv, s->k, kv_stride, s->v, kv_stride, b);
    o->attention(o, s->mixed, s->q, q_stride, hd, layer->n_heads, kv, m->attention_scale, slides ? m->window : 0, b);
}

void run_swiglu(ops *o, layer_scratch *s, act *y, const mlp_weights *w, int32_t ff, int32_t n_rows)
{
    o->linear(o, s->gate, s->h, &w->gate, &w->gate_bias, n_rows);
    o->linear(o, s->up, s->h, &w->up, &w->up_bias, n_rows);
    o->swiglu(o, s->gate, s->gate, s->up, n_rows, ff);
    o->linear(o, y, s->gate, &w->down, &w->down_bias, n_rows);
}

void run_experts(const family_view *v, layer_scratch *s, const expert_weights *w, const int32_t *ids, const float *weights, int32_t n_rows)
{
    const moe_config *moe = &v->config->moe;
    v->o->moe_experts(v->o, s->d, s->h, ids, weights, w->gate, w->up, w->down, n_rows, moe->n_experts, moe->top_k, s->experts);
}
