#include "engine/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *gguf, *family; } families[] = {
    { "llama", "llama" }, { "qwen3", "qwen3" }, { "qwen3moe", "qwen3_moe" }, { "qwen35", "qwen3_5" }, { "qwen35moe", "qwen3_5_moe" }, { "gemma3", "gemma3" }, { "laguna", "laguna" },
};

const char *gguf_family(const char *architecture, size_t n_bytes)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strlen(families[i].gguf) == n_bytes && memcmp(families[i].gguf, architecture, n_bytes) == 0) return families[i].family;
    return NULL;
}

typedef struct { const char *name, *gguf, *family; gguf_change change; } name_pair;      /* family NULL = any; the first that fits counts */

static const name_pair tops[] = {
    { "model.embed_tokens.weight", "token_embd.weight", NULL, GGUF_AS_IS }, { "model.norm.weight", "output_norm.weight", NULL, GGUF_AS_IS }, { "lm_head.weight", "output.weight", NULL, GGUF_AS_IS },
};

/* Behind "model.layers.N." and behind "blk.N.". */
static const name_pair layers[] = {
    { "input_layernorm.weight", "attn_norm.weight", NULL, GGUF_AS_IS },
    { "post_attention_layernorm.weight", "post_attention_norm.weight", "gemma3", GGUF_AS_IS },
    { "post_attention_layernorm.weight", "post_attention_norm.weight", "qwen3_5", GGUF_AS_IS },
    { "post_attention_layernorm.weight", "post_attention_norm.weight", "qwen3_5_moe", GGUF_AS_IS },
    { "post_attention_layernorm.weight", "ffn_norm.weight", NULL, GGUF_AS_IS },
    { "pre_feedforward_layernorm.weight", "ffn_norm.weight", NULL, GGUF_AS_IS },
    { "post_feedforward_layernorm.weight", "post_ffw_norm.weight", NULL, GGUF_AS_IS },
    /* attention */
    { "self_attn.q_proj.weight", "attn_q.weight", "llama", GGUF_TURNED_QUERIES },
    { "self_attn.k_proj.weight", "attn_k.weight", "llama", GGUF_TURNED_KEYS },
    { "self_attn.q_proj.bias", "attn_q.bias", "llama", GGUF_TURNED_QUERIES },
    { "self_attn.k_proj.bias", "attn_k.bias", "llama", GGUF_TURNED_KEYS },
    { "self_attn.q_proj.weight", "attn_q.weight", NULL, GGUF_AS_IS },
    { "self_attn.k_proj.weight", "attn_k.weight", NULL, GGUF_AS_IS },
    { "self_attn.v_proj.weight", "attn_v.weight", NULL, GGUF_AS_IS },
    { "self_attn.o_proj.weight", "attn_output.weight", NULL, GGUF_AS_IS },
    { "self_attn.q_proj.bias", "attn_q.bias", NULL, GGUF_AS_IS },
    { "self_attn.k_proj.bias", "attn_k.bias", NULL, GGUF_AS_IS },
    { "self_attn.v_proj.bias", "attn_v.bias", NULL, GGUF_AS_IS },
    { "self_attn.o_proj.bias", "attn_output.bias", NULL, GGUF_AS_IS },
    { "self_attn.q_norm.weight", "attn_q_norm.weight", NULL, GGUF_AS_IS },
    { "self_attn.k_norm.weight", "attn_k_norm.weight", NULL, GGUF_AS_IS },
    { "self_attn.g_proj.weight", "attn_gate.weight", NULL, GGUF_AS_IS },
    /* gated DeltaNet */
    { "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", NULL, GGUF_AS_IS },
    { "linear_attn.in_proj_z.weight", "attn_gate.weight", NULL, GGUF_AS_IS },
    { "linear_attn.in_proj_a.weight", "ssm_alpha.weight", NULL, GGUF_AS_IS },
    { "linear_attn.in_proj_b.weight", "ssm_beta.weight", NULL, GGUF_AS_IS },
    { "linear_attn.conv1d.weight", "ssm_conv1d.weight", NULL, GGUF_AS_IS },
    { "linear_attn.A_log", "ssm_a", NULL, GGUF_DECAY },
    { "linear_attn.dt_bias", "ssm_dt.bias", NULL, GGUF_AS_IS },
    { "linear_attn.norm.weight", "ssm_norm.weight", NULL, GGUF_AS_IS },
    { "linear_attn.out_proj.weight", "ssm_out.weight", NULL, GGUF_AS_IS },
    /* MLP and experts */
    { "mlp.gate_proj.weight", "ffn_gate.weight", NULL, GGUF_AS_IS },
    { "mlp.up_proj.weight", "ffn_up.weight", NULL, GGUF_AS_IS },
    { "mlp.down_proj.weight", "ffn_down.weight", NULL, GGUF_AS_IS },
    { "mlp.gate_proj.bias", "ffn_gate.bias", NULL, GGUF_AS_IS },
    { "mlp.up_proj.bias", "ffn_up.bias", NULL, GGUF_AS_IS },
    { "mlp.down_proj.bias", "ffn_down.bias", NULL, GGUF_AS_IS },
    { "mlp.gate.weight", "ffn_gate_inp.weight", NULL, GGUF_AS_IS },
    { "mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight", NULL, GGUF_AS_IS },
    { "mlp.experts.gate_proj", "ffn_gate_exps.weight", NULL, GGUF_AS_IS },
    { "mlp.experts.up_proj", "ffn_up_exps.weight", NULL, GGUF_AS_IS },
    { "mlp.experts.down_proj", "ffn_down_exps.weight", NULL, GGUF_AS_IS },
    { "mlp.gate.e_score_correction_bias", "exp_probs_b.bias", NULL, GGUF_AS_IS },
    { "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight", NULL, GGUF_AS_IS },
    { "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight", NULL, GGUF_AS_IS },
    { "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight", NULL, GGUF_AS_IS },
    { "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", NULL, GGUF_AS_IS },
};

static const name_pair *find_pair(const name_pair *pairs, size_t n, const char *family, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(pairs[i].name, name) == 0 && (!pairs[i].family || strcmp(pairs[i].family, family) == 0)) return &pairs[i];
    return NULL;
}

bool gguf_tensor_name(char *out, size_t capacity, gguf_change *change, const char *family, const char *name)
{
    static const char prefix[] = "model.layers.";
    char *end = NULL;
    long number = strncmp(name, prefix, sizeof prefix - 1) == 0 ? strtol(name + sizeof prefix - 1, &end, 10) : -1;
    const bool is_layer = number >= 0 && *end == '.';
    const name_pair *pair = is_layer ? find_pair(layers, sizeof layers / sizeof *layers, family, end + 1) : find_pair(tops, sizeof tops / sizeof *tops, family, name);
    if (!pair) return false;
    *change = pair->change;
    int n = is_layer ? snprintf(out, capacity, "blk.%ld.%s", number, pair->gguf) : snprintf(out, capacity, "%s", pair->gguf);
    return n > 0 && (size_t)n < capacity;
}
