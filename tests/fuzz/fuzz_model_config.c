/* fuzz_model_config.c - config.json up to the first NUL byte, generation_config.json behind it. What is accepted lies in the ranges the forward pass counts on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    model_config c;
    fl_err err = { 0 };
    const uint8_t *nul = n_bytes ? memchr(data, 0, n_bytes) : NULL;
    size_t n_config = nul ? (size_t)(nul - data) : n_bytes;
    const char *generation = nul ? (const char *)nul + 1 : NULL;
    if (model_config_parse(&c, (const char *)data, n_config, generation, nul ? n_bytes - n_config - 1 : 0, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return 0;
    }
    FL_ASSERT(c.n_vocab > 0 && c.hidden > 0 && c.n_layers > 0 && c.context_max > 0);
    FL_ASSERT(c.n_heads % c.n_kv_heads == 0 && c.n_rot >= 2 && c.n_rot % 2 == 0 && c.n_rot <= c.head_dim);
    FL_ASSERT(isfinite(c.rope_theta) && c.rope_theta >= 1.0 && isfinite(c.norm_eps) && c.norm_eps >= 0.0f);
    FL_ASSERT(c.linear.n_v_heads % c.linear.n_k_heads == 0 && c.linear.conv_width >= 1);
    FL_ASSERT(c.moe.n_experts > 0 ? c.moe.top_k <= c.moe.n_experts && c.moe.ff > 0 && c.moe.shared_ff > 0 : c.ff > 0);
    FL_ASSERT(c.temperature >= 0.0f && c.top_p > 0.0f && c.top_p <= 1.0f && c.min_p >= 0.0f && c.repetition_penalty > 0.0f && c.top_k >= 0);
    FL_ASSERT(c.n_eos >= 0 && c.n_eos <= EOS_IDS_MAX);
    for (int32_t i = 0; i < c.n_layers; i++) FL_ASSERT(c.layers[i] == LAYER_FULL_ATTENTION || c.layers[i] == LAYER_LINEAR_ATTENTION);
    model_config_fini(&c);
    return 0;
}
