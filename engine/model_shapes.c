#include "engine/model_shapes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QWEN35 "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"vocab_size\":248320,\"max_position_embeddings\":262144,\"head_dim\":256,\"linear_conv_kernel_dim\":4," \
    "\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,\"full_attention_interval\":4,\"attention_bias\":false,\"eos_token_id\":null," \
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000.0,\"partial_rotary_factor\":0.25,\"mrope_interleaved\":true,\"mrope_section\":[11,11,10]},"
#define QWEN3 "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"vocab_size\":151936,\"max_position_embeddings\":40960,\"head_dim\":128,\"num_key_value_heads\":8,\"attention_bias\":false," \
    "\"eos_token_id\":null,\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1000000.0},"
#define TEN(x) x "," x "," x "," x "," x "," x "," x "," x "," x "," x
#define LAGUNA_KINDS "\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\""
#define LAGUNA_SPARSE "\"sparse\",\"sparse\",\"sparse\""

/* Sizes as published with each model. */
static const struct { const char *name, *config; } shapes[] = {
    { "qwen3.5-0.8b", "{\"model_type\":\"qwen3_5_text\"," QWEN35 "\"hidden_size\":1024,\"intermediate_size\":3584,\"num_hidden_layers\":24,\"num_attention_heads\":8,"
                      "\"num_key_value_heads\":2,\"linear_num_value_heads\":16,\"tie_word_embeddings\":true}" },
    { "qwen3-0.6b", "{\"model_type\":\"qwen3\"," QWEN3 "\"hidden_size\":1024,\"intermediate_size\":3072,\"num_hidden_layers\":28,\"num_attention_heads\":16,\"tie_word_embeddings\":true}" },
    { "qwen3-8b", "{\"model_type\":\"qwen3\"," QWEN3 "\"hidden_size\":4096,\"intermediate_size\":12288,\"num_hidden_layers\":36,\"num_attention_heads\":32,\"tie_word_embeddings\":false}" },
    { "qwen3.5-35b-a3b", "{\"model_type\":\"qwen3_5_moe_text\"," QWEN35 "\"hidden_size\":2048,\"num_hidden_layers\":40,\"num_attention_heads\":16,\"num_key_value_heads\":2,"
                         "\"linear_num_value_heads\":32,\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,"
                         "\"tie_word_embeddings\":false}" },
    { "laguna-xs.2", "{\"model_type\":\"laguna\",\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"vocab_size\":100352,\"max_position_embeddings\":131072,\"head_dim\":128,\"hidden_size\":2048,"
                     "\"num_key_value_heads\":8,\"num_hidden_layers\":40,\"intermediate_size\":8192,\"num_attention_heads\":48,\"num_attention_heads_per_layer\":[" TEN("48,64,64,64") "],"
                     "\"layer_types\":[" TEN(LAGUNA_KINDS) "],\"mlp_layer_types\":[\"dense\"," LAGUNA_SPARSE "," LAGUNA_SPARSE "," LAGUNA_SPARSE "," TEN(LAGUNA_SPARSE) "],"
                     "\"sliding_window\":512,\"gating\":\"per-head\",\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,"
                     "\"moe_routed_scaling_factor\":2.5,\"moe_router_logit_softcapping\":0.0,\"attention_bias\":false,\"eos_token_id\":null,\"tie_word_embeddings\":false,\"rope_parameters\":{"
                     "\"full_attention\":{\"rope_type\":\"yarn\",\"rope_theta\":500000.0,\"factor\":32.0,\"original_max_position_embeddings\":4096,\"beta_fast\":64.0,\"beta_slow\":1.0,"
                     "\"partial_rotary_factor\":0.5},\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":10000.0,\"partial_rotary_factor\":1.0}}}" },
};

fl_status model_path_split(const char *path, char *dir, size_t capacity, const char **config, uint64_t *seed, bool *is_random, fl_err *err)
{
    static const char prefix[] = "random:";
    const char *rest = path;
    *config = NULL;
    *seed = 0;
    *is_random = strncmp(path, prefix, sizeof prefix - 1) == 0;
    if (*is_random) {
        char *end;
        errno = 0;
        rest = path + sizeof prefix - 1;
        *seed = strtoull(rest, &end, 10);
        if (*rest < '0' || *rest > '9' || *end != ':' || !end[1] || errno)
            return fl_fail(err, FL_INVALID, "model: %.80s has not the form random:SEED:CONFIG_DIR, such as random:1:qwen3-0.6b; shapes known by name are %s", path, MODEL_SHAPE_NAMES);
        rest = end + 1;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) if (strcmp(rest, shapes[i].name) == 0) *config = shapes[i].config;
    }
    if (snprintf(dir, capacity, "%s", rest) >= (int)capacity) return fl_fail(err, FL_INVALID, "model: the path has more than %zu bytes", capacity - 1);
    return FL_OK;
}
