/* model_config.h - what config.json and generation_config.json, or a GGUF file's metadata (gguf_config.h), say, in one form, every size range-checked.
 * Source   transformers 5.17 (rope_parameters, one for all layers or one a layer type, where the inner partial_rotary_factor wins) and 4 (rope_theta,
 *          rope_scaling with rope_type or type, rope_local_base_freq, partial_rotary_factor at top level); a text model nested in text_config;
 *          layer_types, full_attention_interval or sliding_window_pattern; num_experts or num_local_experts. An absent field means what the reference's
 *          class for that family says (the table in model_config.c): checkpoints leave out fields that are equal to it.
 * Bounds   each size lies in the range its reader names, which the kernels have too (ops.h), so products of two sizes fit int32_t and of three int64_t.
 * Threads  immutable after it was read. */
#ifndef ENGINE_MODEL_CONFIG_H
#define ENGINE_MODEL_CONFIG_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/rope.h"
#include "proto/status.h"

#define EOS_IDS_MAX 64

typedef enum { LAYER_FULL_ATTENTION, LAYER_SLIDING_ATTENTION, LAYER_LINEAR_ATTENTION } layer_kind;

typedef struct {
    layer_kind kind;
    int32_t n_heads;                 /* query heads of an attention layer */
    bool is_mixture;                 /* experts instead of one MLP */
} layer_config;

/* Gated DeltaNet layers; n_k_heads 0 = the model has none. */
typedef struct {
    int32_t n_k_heads, n_v_heads, k_dim, v_dim, conv_width;
    bool is_tiled;                   /* the order of value heads: h uses key head h mod n_k_heads (GGUF), else h / (n_v_heads / n_k_heads) */
} linear_config;

/* Mixture of experts; n_experts 0 = dense. */
typedef struct {
    int32_t n_experts, top_k, ff;
    int32_t shared_ff;               /* 0 = no shared expert */
    bool renormalize;                /* the chosen experts' weights sum to 1 */
    float scale;                     /* of the routed experts' sum */
    float router_softcap;            /* 0 = none */
} moe_config;

typedef struct {
    char architecture[32];           /* "qwen3_5_moe": the family, without _text */
    int32_t n_vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim;    /* n_heads: the most of any layer */
    int32_t window;                  /* positions a sliding layer sees, its own among them; 0 = no layer slides */
    rope_config rope[2];             /* of full-attention and of sliding layers */
    float attention_scale;           /* of q k^T: head_dim^-1/2, or query_pre_attn_scalar^-1/2 */
    float logit_softcap;             /* of the logits; 0 = none */
    float norm_eps;
    float norm_add;                  /* to the weights of norms: 1 where they are stored as w - 1 */
    int32_t ff;                      /* of a dense MLP; 0 when every layer is a mixture */
    bool attention_bias, mlp_bias, tied_head;
    bool gate_per_head;              /* laguna: one attention gate a head, else one an element */
    int32_t context_max;             /* max_position_embeddings */
    int32_t fp8_block[2];            /* rows and columns that share a scale of F8_E4M3 weights, where their scales are blocks */
    linear_config linear;
    moe_config moe;
    layer_config *layers;            /* owned [n_layers] */
    float *rope_factors;             /* owned; rope[].factors points to it; NULL without */
    int32_t eos_ids[EOS_IDS_MAX]; int32_t n_eos;         /* generation_config.json's, else config.json's */
    float temperature, top_p, min_p, repetition_penalty; int32_t top_k;  /* generation_config.json; OpenAI's defaults where absent, top_k 0 = off */
} model_config;

/* What a sequence needs of the caches (kv_cache.h, state_pool.h). Sliding layers keep all their positions, as full ones do. */
typedef struct {
    int32_t kv_layers, state_layers; /* attention layers; DeltaNet layers */
    size_t kv_token_floats;          /* keys and values of one position over all attention layers */
    size_t delta_floats, conv_floats;    /* of one DeltaNet layer */
} cache_needs;
cache_needs model_config_caches(const model_config *config);

/* Read path/config.json and, when there, generation_config.json, or the .gguf file at `path`. FL_NOT_FOUND without config.json; FL_UNSUPPORTED, naming field and value, for an
 * architecture, activation, rope type or quantization nothing here computes; FL_CORRUPT for a field outside its range. On failure *config is untouched. */
fl_status model_config_read(model_config *config, const char *path, fl_err *err);

/* The same from JSON text; generation may be NULL. */
fl_status model_config_parse(model_config *config, const char *json, size_t json_bytes, const char *generation, size_t generation_bytes, fl_err *err);

/* The same from two objects, borrowed; generation may be NULL. The names are what sentences call them. */
fl_status model_config_make(model_config *config, const json_t *root, const json_t *generation, const char *root_name, const char *generation_name, fl_err *err);
void      model_config_fini(model_config *config);       /* accepts a zeroed config */

#endif
