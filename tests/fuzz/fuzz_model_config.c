/* fuzz_model_config.c - config.json up to the first NUL byte, generation_config.json behind it. What is accepted lies in the ranges the forward pass counts on. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/model_config.h"
#include "kernels/ops.h"

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
    FL_ASSERT(isfinite(c.norm_eps) && c.norm_eps >= 0.0f && isfinite(c.attention_scale) && c.attention_scale > 0.0f && c.logit_softcap >= 0.0f);
    FL_ASSERT(c.fp8_block[0] > 0 && c.fp8_block[1] > 0);
    for (int i = 0; i < 2; i++) {
        float inv_freq[OPS_HEAD_DIM_MAX / 2];
        const rope_config *r = &c.rope[i];
        FL_ASSERT(r->n_rot >= 2 && r->n_rot % 2 == 0 && r->n_rot <= c.head_dim && c.head_dim <= OPS_HEAD_DIM_MAX);
        FL_ASSERT(isfinite(r->theta) && r->theta >= 1.0);
        rope_inv_freq(inv_freq, r);
        for (int32_t k = 0; k < r->n_rot / 2; k++) FL_ASSERT(isfinite(inv_freq[k]));
        FL_ASSERT(isfinite(rope_attention_factor(r)));
    }
    bool has_dense = false, has_mixture = false, has_linear = false, has_sliding = false;
    for (int32_t i = 0; i < c.n_layers; i++) {
        const layer_config *l = &c.layers[i];
        FL_ASSERT(l->n_heads >= 1 && l->n_heads <= c.n_heads && l->n_heads % c.n_kv_heads == 0);
        has_linear |= l->kind == LAYER_LINEAR_ATTENTION;
        has_sliding |= l->kind == LAYER_SLIDING_ATTENTION;
        *(l->is_mixture ? &has_mixture : &has_dense) = true;
    }
    FL_ASSERT(!has_linear || (c.linear.n_v_heads % c.linear.n_k_heads == 0 && c.linear.conv_width >= 1));
    FL_ASSERT(!has_sliding || c.window > 0);
    FL_ASSERT(!has_dense || c.ff > 0);
    FL_ASSERT(!has_mixture || (c.moe.n_experts > 0 && c.moe.top_k >= 1 && c.moe.top_k <= c.moe.n_experts && c.moe.ff > 0 && isfinite(c.moe.scale)));
    FL_ASSERT(c.temperature >= 0.0f && c.top_p > 0.0f && c.top_p <= 1.0f && c.min_p >= 0.0f && c.repetition_penalty > 0.0f && c.top_k >= 0);
    FL_ASSERT(c.n_eos >= 0 && c.n_eos <= EOS_IDS_MAX);
    model_config_fini(&c);
    return 0;
}
