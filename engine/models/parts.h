/* parts.h - what families compute in the same way, said once: projections, a gated MLP, experts, attention with rotated queries and keys, and the
 * activations for them. A family's own file says in which order, with which norms, gates and routers.
 * Threads  the engine's, like the forward pass.
 * Errors   bind_* return what bind_weight does (model_family.h), naming file and tensor; FL_FULL without memory. */
#ifndef ENGINE_MODELS_PARTS_H
#define ENGINE_MODELS_PARTS_H

#include "engine/model_family.h"

typedef struct {
    weight q, k, v, o;                   /* [n_heads * head_dim, hidden] (or what the family puts there), [n_kv_heads * head_dim, hidden] twice, [hidden, n_heads * head_dim] */
    weight q_bias, k_bias, v_bias, o_bias;       /* absent unless attention_bias */
    weight q_norm, k_norm;               /* [head_dim]; absent in llama */
} attention_weights;

typedef struct {
    weight gate, up, down;               /* [ff, hidden] twice, [hidden, ff] */
    weight gate_bias, up_bias, down_bias;        /* absent unless mlp_bias */
} mlp_weights;

typedef struct {
    weight router;                       /* [n_experts, hidden] */
    weight *gate, *up, *down;            /* [n_experts] matrices [ff, hidden] twice, [hidden, ff] */
} expert_weights;

/* Layer i's self_attn with q_rows rows of q_proj; q_norm and k_norm where has_norms. */
fl_status bind_attention(attention_weights *w, const bind_context *c, int32_t i, int32_t q_rows, bool has_norms, fl_err *err);

/* layers.i.PART.{gate,up,down}_proj of width ff. */
fl_status bind_mlp(mlp_weights *w, const bind_context *c, int32_t i, const char *part, int32_t ff, fl_err *err);

/* Layer i's mlp.gate and mlp.experts: three tensors an expert, or stacks of all experts (gate_proj, up_proj, down_proj), or fused: gate above up in
 * gate_up_proj [n_experts, 2 * ff, hidden], and down_proj. */
fl_status bind_experts(expert_weights *w, const bind_context *c, int32_t i, fl_err *err);

/* Activations, [n_rows_max, ...] each. Buffers that are never in use at the same time are kept apart: they are small beside the KV pool. */
typedef struct {
    act *h, *d;                          /* [hidden]: normed input of a sublayer, and its output */
    act *q, *k, *v, *mixed;              /* [q_width], [n_kv_heads * head_dim] twice, [n_heads * head_dim] */
    act *gate, *up;                      /* [the widest MLP] */
    float *router;                       /* [n_experts] */
    void *experts;                       /* moe_scratch_bytes */
} layer_scratch;

/* n_rows rows of dim values; NULL for dim 0. */
act   *take_acts(scratch_space *space, const ops *o, int32_t n_rows, int32_t dim);
float *take_floats(scratch_space *space, int32_t n_rows, int32_t dim);

/* A family whose activations are these alone has this plan. */
void plan_layers(void *scratch, const model_config *m, const ops *o, int32_t n_rows, scratch_space *space);
void take_layer_scratch(layer_scratch *s, const model_config *m, const ops *o, int32_t n_rows, int32_t q_width, scratch_space *space);

/* s->mixed = attention(s->h) before o_proj: project, norm heads (w + norm_add; llama has no such norm), rotate as layers of this kind do, write the KV, attend
 * within the layer's window. */
void run_attention(const family_view *v, layer_scratch *s, const attention_weights *w, const layer_config *layer, float norm_add, const ops_kv *kv, const ops_batch *b);

/* y = down(silu(gate s->h) * up s->h), of width ff */
void run_swiglu(ops *o, layer_scratch *s, act *y, const mlp_weights *w, int32_t ff, int32_t n_rows);

/* s->d = the experts of ids and weights of s->h */
void run_experts(const family_view *v, layer_scratch *s, const expert_weights *w, const int32_t *ids, const float *weights, int32_t n_rows);

#endif
