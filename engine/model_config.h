/* model_config.h - what config.json and generation_config.json say, in one form, every size range-checked.
 * Source   transformers 5.17 (rope_parameters, where the inner partial_rotary_factor wins) and 4 (rope_theta, rope_scaling, partial_rotary_factor at top level);
 *          a text model nested in text_config; layer_types or full_attention_interval; num_experts or num_local_experts.
 * Bounds   each size lies in the range its reader names, which the kernels have too (ops.h), so products of two sizes fit int32_t and of three int64_t.
 * Threads  immutable after it was read. */
#ifndef ENGINE_MODEL_CONFIG_H
#define ENGINE_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define EOS_IDS_MAX 64

typedef enum { LAYER_FULL_ATTENTION, LAYER_LINEAR_ATTENTION } layer_kind;

/* Gated DeltaNet layers; n_k_heads 0 = the model has none. */
typedef struct { int32_t n_k_heads, n_v_heads, k_dim, v_dim, conv_width; } linear_config;

/* Mixture of experts; n_experts 0 = dense. */
typedef struct { int32_t n_experts, top_k, ff, shared_ff; } moe_config;

typedef struct {
    char architecture[32];           /* "qwen3_5_moe": the family, without _text */
    int32_t n_vocab, hidden, n_layers, n_heads, n_kv_heads, head_dim;
    int32_t n_rot;                   /* rotated part of head_dim, even */
    double rope_theta;
    float norm_eps;
    int32_t ff;                      /* of a dense MLP; 0 when every layer is a mixture */
    bool attention_bias, tied_head;
    int32_t context_max;             /* max_position_embeddings */
    linear_config linear;
    moe_config moe;
    layer_kind *layers;              /* owned [n_layers] */
    int32_t eos_ids[EOS_IDS_MAX]; int32_t n_eos;         /* generation_config.json's, else config.json's */
    float temperature, top_p, min_p, repetition_penalty; int32_t top_k;  /* generation_config.json; OpenAI's defaults where absent, top_k 0 = off */
} model_config;

/* Read model_dir/config.json and, when there, generation_config.json. FL_NOT_FOUND without config.json; FL_UNSUPPORTED for an architecture, activation or
 * rope type nothing here computes; FL_CORRUPT for a field outside its range. On failure *config is untouched. */
fl_status model_config_read(model_config *config, const char *model_dir, fl_err *err);

/* The same from JSON text; generation may be NULL. */
fl_status model_config_parse(model_config *config, const char *json, size_t json_bytes, const char *generation, size_t generation_bytes, fl_err *err);
void      model_config_fini(model_config *config);       /* accepts a zeroed config */

#endif
