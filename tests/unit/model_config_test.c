/* The forms config.json comes in, and the sentences for what it must not say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/model_config.h"
#include "kernels/ops.h"

#define SIZES "\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,\"max_position_embeddings\":4096"
#define LINEAR "\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_head_dim\":16,\"linear_value_head_dim\":16"
#define DENSE "\"model_type\":\"qwen3_5_text\"," SIZES "," LINEAR ",\"intermediate_size\":128"
#define MOE "\"model_type\":\"qwen3_5_moe\"," SIZES "," LINEAR ",\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"shared_expert_intermediate_size\":48"

static model_config read_config(const char *json, const char *generation)
{
    model_config c;
    fl_err err;
    if (model_config_parse(&c, json, strlen(json), generation, generation ? strlen(generation) : 0, &err) != FL_OK) fail_msg("%s", err.text);
    return c;
}

static void refuse(const char *json, const char *generation, fl_status want, const char *part)
{
    model_config c;
    fl_err err;
    fl_status got = model_config_parse(&c, json, strlen(json), generation, generation ? strlen(generation) : 0, &err);
    if (got == FL_OK) { model_config_fini(&c); fail_msg("accepted; wanted \"%s\"", part); }
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), err.text, part);
}

static void dense_text_model_is_read(void **state)
{
    (void)state;
    model_config c = read_config("{" DENSE ",\"tie_word_embeddings\":true,\"eos_token_id\":7}", NULL);
    assert_string_equal(c.architecture, "qwen3_5");
    assert_int_equal(c.moe.n_experts, 0);
    assert_int_equal(c.ff, 128);
    assert_true(c.tied_head);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 7);
    assert_int_equal(c.linear.conv_width, 4);
    assert_int_equal(c.context_max, 4096);
    assert_true(c.temperature == 1.0f && c.top_p == 1.0f && c.min_p == 0.0f && c.repetition_penalty == 1.0f && c.top_k == 0);
    model_config_fini(&c);
}

static void both_names_of_the_expert_count_are_read(void **state)
{
    (void)state;
    model_config a = read_config("{" MOE ",\"num_experts\":8}", NULL), b = read_config("{" MOE ",\"num_local_experts\":8}", NULL);
    assert_string_equal(a.architecture, "qwen3_5_moe");
    assert_int_equal(a.moe.n_experts, 8);
    assert_int_equal(b.moe.n_experts, 8);
    assert_int_equal(a.moe.shared_ff, 48);
    model_config_fini(&a);
    model_config_fini(&b);
}

static void nested_text_model_is_read(void **state)
{
    (void)state;
    model_config c = read_config("{\"model_type\":\"qwen3_5_moe\",\"vision_config\":{},\"tie_word_embeddings\":true,\"eos_token_id\":[1,2],\"text_config\":{\"model_type\":\"qwen3_5_moe_text\"," SIZES "," LINEAR
                                 ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32,\"eos_token_id\":null}}", NULL);
    assert_string_equal(c.architecture, "qwen3_5_moe");
    assert_true(c.tied_head);
    assert_int_equal(c.n_eos, 2);
    model_config_fini(&c);
}

static void layers_come_from_the_list_or_from_the_interval(void **state)
{
    (void)state;
    model_config c = read_config("{" DENSE ",\"full_attention_interval\":2}", NULL);
    assert_int_equal(c.layers[0].kind, LAYER_LINEAR_ATTENTION);
    assert_int_equal(c.layers[1].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.layers[3].kind, LAYER_FULL_ATTENTION);
    model_config_fini(&c);
    c = read_config("{" DENSE ",\"full_attention_interval\":2,\"layer_types\":[\"full_attention\",\"linear_attention\",\"linear_attention\",\"linear_attention\"]}", NULL);
    assert_int_equal(c.layers[0].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.layers[3].kind, LAYER_LINEAR_ATTENTION);
    model_config_fini(&c);
    c = read_config("{" DENSE "}", NULL);
    assert_int_equal(c.layers[2].kind, LAYER_LINEAR_ATTENTION);
    assert_int_equal(c.layers[3].kind, LAYER_FULL_ATTENTION);
    model_config_fini(&c);
    refuse("{" DENSE ",\"layer_types\":[\"full_attention\"]}", NULL, FL_CORRUPT, "layer_types must list num_hidden_layers");
    refuse("{" DENSE ",\"layer_types\":\"full_attention\"}", NULL, FL_CORRUPT, "layer_types must list num_hidden_layers");
    refuse("{" DENSE ",\"layer_types\":[\"full_attention\",\"linear_attention\",\"sliding_attention\",\"full_attention\"]}", NULL, FL_UNSUPPORTED, "sliding_attention");
}

static void check_rope(const char *fields, double theta, int32_t n_rot)
{
    char json[1024];
    snprintf(json, sizeof json, "{" DENSE "%s}", fields);
    model_config c = read_config(json, NULL);
    if (c.rope[0].theta != theta || c.rope[0].n_rot != n_rot) fail_msg("%s: theta %g, n_rot %d", fields, c.rope[0].theta, c.rope[0].n_rot);
    model_config_fini(&c);
}

static void rope_is_read_in_both_forms_and_the_inner_factor_wins(void **state)
{
    (void)state;
    check_rope("", 10000.0, 8);
    check_rope(",\"rope_theta\":500000,\"partial_rotary_factor\":0.5", 500000.0, 16);
    check_rope(",\"rope_theta\":5e5,\"rope_scaling\":{\"type\":\"default\"}", 5e5, 8);
    check_rope(",\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":1e7,\"partial_rotary_factor\":0.5},\"partial_rotary_factor\":0.25", 1e7, 16);
    check_rope(",\"rope_parameters\":{\"rope_theta\":1e7,\"mrope_section\":[2,1,1]},\"partial_rotary_factor\":1.0", 1e7, 32);
    refuse("{" DENSE ",\"rope_parameters\":{\"rope_type\":\"longrope\",\"factor\":4}}", NULL, FL_UNSUPPORTED, "rope_type \"longrope\" is not supported; default, linear, yarn and llama3 are");
    refuse("{" DENSE ",\"rope_parameters\":7}", NULL, FL_CORRUPT, "rope_parameters must be an object");
    refuse("{" DENSE ",\"partial_rotary_factor\":0.1}", NULL, FL_CORRUPT, "partial_rotary_factor times head_dim");
    refuse("{" DENSE ",\"rope_theta\":-1}", NULL, FL_CORRUPT, "rope_theta must be a number");
}

static void unknown_architecture_lists_the_known_ones(void **state)
{
    (void)state;
    refuse("{\"model_type\":\"mamba\"}", NULL, FL_UNSUPPORTED, "the architecture \"mamba\" is unknown; known ones are llama, qwen3, qwen3_moe, qwen3_5, qwen3_5_moe, laguna, gemma3");
    refuse("{\"model_type\":\"qwen3_5_mo\"}", NULL, FL_UNSUPPORTED, "unknown");
    refuse("{\"model_type\":\"_text\"}", NULL, FL_UNSUPPORTED, "unknown");
    refuse("{\"hidden_size\":64}", NULL, FL_CORRUPT, "model_type is missing");
}

static void sizes_outside_their_range_are_refused(void **state)
{
    (void)state;
    refuse("{\"model_type\":\"qwen3_5\",\"vocab_size\":0}", NULL, FL_CORRUPT, "vocab_size must be a whole number from 1");
    refuse("{\"model_type\":\"qwen3_5\",\"vocab_size\":99999999999}", NULL, FL_CORRUPT, "vocab_size");
    refuse("{\"model_type\":\"qwen3_5\",\"vocab_size\":\"256\"}", NULL, FL_CORRUPT, "vocab_size");
    refuse("{" DENSE ",\"rms_norm_eps\":-1}", NULL, FL_CORRUPT, "rms_norm_eps");
    refuse("{" DENSE ",\"rms_norm_eps\":\"x\"}", NULL, FL_CORRUPT, "rms_norm_eps");
    refuse("{" DENSE ",\"hidden_act\":\"gelu\"}", NULL, FL_UNSUPPORTED, "hidden_act");
    refuse("{" DENSE ",\"attention_bias\":1}", NULL, FL_CORRUPT, "attention_bias must be true or false");
    refuse("{" MOE ",\"num_experts\":1}", NULL, FL_CORRUPT, "num_experts_per_tok is larger");
    refuse("{" MOE ",\"num_local_experts\":0}", NULL, FL_CORRUPT, "num_local_experts must be a whole number from 1");
    refuse("{\"model_type\":\"qwen3_5\",\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":5,\"num_key_value_heads\":2,\"intermediate_size\":1}", NULL, FL_CORRUPT, "must be a multiple of num_key_value_heads");
    refuse("{\"model_type\":\"qwen3_5\"," SIZES ",\"intermediate_size\":1,\"linear_num_key_heads\":3,\"linear_num_value_heads\":4}", NULL, FL_CORRUPT, "linear_num_value_heads must be a multiple");
    refuse("{" DENSE ",\"eos_token_id\":-3}", NULL, FL_CORRUPT, "eos_token_id must be ids");
    refuse("{" DENSE ",\"eos_token_id\":[\"a\"]}", NULL, FL_CORRUPT, "eos_token_id must be ids");
    refuse("nonsense", NULL, FL_CORRUPT, "config.json: not JSON");
    refuse("[]", NULL, FL_CORRUPT, "not a JSON object");
    refuse("", NULL, FL_CORRUPT, "config.json: not JSON");
}

/* Each of these once passed the config and stopped the process in the first forward pass. */
static void sizes_beyond_the_kernels_are_refused(void **state)
{
    (void)state;
    static const char rest[] = "\"model_type\":\"qwen3_5\",\"vocab_size\":256,\"hidden_size\":64,\"num_hidden_layers\":4,\"num_attention_heads\":4,\"num_key_value_heads\":2,\"intermediate_size\":128";
    static const struct { const char *field; int largest; } sizes[] = {
        { "head_dim", OPS_HEAD_DIM_MAX }, { "linear_key_head_dim", OPS_DELTA_K_MAX }, { "linear_conv_kernel_dim", OPS_CONV_WIDTH_MAX },
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char json[512], part[96];
        snprintf(json, sizeof json, "{%s,\"%s\":%d}", rest, sizes[i].field, sizes[i].largest);
        model_config c = read_config(json, NULL);
        model_config_fini(&c);
        snprintf(json, sizeof json, "{%s,\"%s\":%d}", rest, sizes[i].field, 2 * sizes[i].largest);
        snprintf(part, sizeof part, "%s must be a whole number from 1 to %d", sizes[i].field, sizes[i].largest);
        refuse(json, NULL, FL_CORRUPT, part);
    }
}

static void generation_settings_replace_the_defaults(void **state)
{
    (void)state;
    model_config c = read_config("{" DENSE ",\"eos_token_id\":7}", "{\"eos_token_id\":[0,2],\"temperature\":0.7,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.1,\"repetition_penalty\":1.05,\"do_sample\":true}");
    assert_int_equal(c.n_eos, 2);
    assert_int_equal(c.eos_ids[1], 2);
    assert_true(c.temperature == 0.7f && c.top_p == 0.95f && c.min_p == 0.1f && c.repetition_penalty == 1.05f);
    assert_int_equal(c.top_k, 20);
    model_config_fini(&c);
    c = read_config("{" DENSE ",\"eos_token_id\":7}", "{\"eos_token_id\":null,\"top_k\":-1}");
    assert_int_equal(c.eos_ids[0], 7);
    assert_int_equal(c.top_k, 0);
    model_config_fini(&c);
    refuse("{" DENSE "}", "{\"temperature\":-1}", FL_CORRUPT, "generation_config.json: temperature");
    refuse("{" DENSE "}", "{\"top_p\":0}", FL_CORRUPT, "generation_config.json: top_p must be above 0");
    refuse("{" DENSE "}", "x", FL_CORRUPT, "generation_config.json: not JSON");
}

static void missing_folder_is_named(void **state)
{
    (void)state;
    model_config c;
    fl_err err;
    assert_int_equal(model_config_read(&c, "/nowhere/at/all", &err), FL_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/at/all has no config.json"));
    assert_int_equal(model_config_read(&c, TESTS_DIR "/CMakeLists.txt", &err), FL_NOT_FOUND);    /* a file where a folder belongs */
    assert_non_null(strstr(err.text, "CMakeLists.txt has no config.json; name a model directory"));
}

/* The reference's class for the family says what an absent field means: nested configs leave out what is equal to it. */
static void absent_fields_mean_what_the_reference_says(void **state)
{
    (void)state;
    model_config c = read_config("{\"model_type\":\"qwen3_5\"}", NULL);
    assert_int_equal(c.n_vocab, 248320);
    assert_int_equal(c.hidden, 4096);
    assert_int_equal(c.n_kv_heads, 4);
    assert_int_equal(c.ff, 12288);
    assert_int_equal(c.n_eos, 0);
    model_config_fini(&c);
    c = read_config("{\"model_type\":\"gemma3\",\"vision_config\":{},\"text_config\":{\"model_type\":\"gemma3_text\",\"hidden_size\":2560,\"intermediate_size\":10240,\"num_hidden_layers\":34,"
                    "\"rope_scaling\":{\"factor\":8.0,\"rope_type\":\"linear\"},\"sliding_window\":1024},\"eos_token_id\":[1,106]}", NULL);
    assert_int_equal(c.n_heads, 8);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.window, 1024);
    assert_int_equal(c.n_eos, 2);
    assert_true(c.tied_head);
    assert_int_equal(c.layers[4].kind, LAYER_SLIDING_ATTENTION);
    assert_int_equal(c.layers[5].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.rope[0].kind, ROPE_LINEAR);
    assert_true(c.rope[0].theta == 1e6 && c.rope[0].factor == 8.0);
    assert_int_equal(c.rope[1].kind, ROPE_DEFAULT);
    assert_true(c.rope[1].theta == 1e4 && c.attention_scale == 0.0625f);
    model_config_fini(&c);
    c = read_config("{\"model_type\":\"llama\",\"hidden_size\":64,\"num_attention_heads\":8}", NULL);
    assert_int_equal(c.n_kv_heads, 8);
    assert_int_equal(c.head_dim, 8);
    assert_int_equal(c.eos_ids[0], 2);
    model_config_fini(&c);
    c = read_config("{\"model_type\":\"llama\",\"eos_token_id\":null}", NULL);
    assert_int_equal(c.n_eos, 0);
    model_config_fini(&c);
    c = read_config("{\"model_type\":\"laguna\"}", NULL);
    assert_int_equal(c.rope[0].n_rot, 64);
    assert_int_equal(c.rope[1].n_rot, 128);
    assert_false(c.layers[0].is_mixture);
    assert_true(c.layers[1].is_mixture && c.gate_per_head);
    model_config_fini(&c);
}

#define LLAMA "\"model_type\":\"llama\"," SIZES ",\"intermediate_size\":128"
#define QWEN3 "\"model_type\":\"qwen3\"," SIZES ",\"intermediate_size\":128"
#define QWEN3_MOE "\"model_type\":\"qwen3_moe\"," SIZES ",\"intermediate_size\":128,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32"
#define LAGUNA "\"model_type\":\"laguna\"," SIZES ",\"intermediate_size\":128,\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":32"
#define GEMMA3 "\"model_type\":\"gemma3_text\"," SIZES ",\"intermediate_size\":128"

static void stretched_rotations_are_read_in_both_forms(void **state)
{
    (void)state;
    static const char *const llama3[] = {
        "{" LLAMA ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":512}}",
        "{" LLAMA ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":512}}",
    };
    for (int i = 0; i < 2; i++) {
        model_config c = read_config(llama3[i], NULL);
        const rope_config *r = &c.rope[0];
        assert_int_equal(r->kind, ROPE_LLAMA3);
        assert_true(r->theta == 5e5 && r->factor == 8.0 && r->low_factor == 1.0 && r->high_factor == 4.0 && r->original_context == 512.0);
        model_config_fini(&c);
    }
    model_config c = read_config("{" QWEN3 ",\"rope_theta\":1e6,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":4.0,\"original_max_position_embeddings\":1024}}", NULL);
    assert_int_equal(c.rope[0].kind, ROPE_YARN);
    assert_true(c.rope[0].beta_fast == 32.0 && c.rope[0].beta_slow == 1.0 && c.rope[0].truncate && c.rope[0].original_context == 1024.0);
    assert_true(rope_attention_factor(&c.rope[0]) == 1.13862944f);
    model_config_fini(&c);
    c = read_config("{" QWEN3 ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"attention_factor\":1.0,\"original_max_position_embeddings\":1024,\"beta_fast\":64}}", NULL);
    assert_true(c.rope[0].factor == 4.0 && c.rope[0].beta_fast == 64.0 && rope_attention_factor(&c.rope[0]) == 1.0f);    /* factor: context over the original one */
    model_config_fini(&c);
    refuse("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0}}", NULL, FL_CORRUPT, "low_freq_factor is missing");
    refuse("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\"}}", NULL, FL_CORRUPT, "factor is missing");
    refuse("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"llama3\",\"factor\":8.0,\"low_freq_factor\":4.0,\"high_freq_factor\":4.0}}", NULL, FL_CORRUPT, "high_freq_factor must be above");
    refuse("{" LLAMA ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":0}}", NULL, FL_CORRUPT, "factor must be a number from");
    refuse("{" LLAMA ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2}}", NULL, FL_UNSUPPORTED, "rope_type \"dynamic\"");
    refuse("{" QWEN3 ",\"rope_theta\":1,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}}", NULL, FL_CORRUPT, "rope_theta must be above 1");
    refuse("{" LLAMA ",\"partial_rotary_factor\":0.5,\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", NULL, FL_UNSUPPORTED, "partial_rotary_factor other than 1");
}

static void each_kind_of_layer_has_its_own_rotation(void **state)
{
    (void)state;
    model_config c = read_config("{" GEMMA3 ",\"rope_theta\":2e6,\"rope_local_base_freq\":3e4,\"sliding_window_pattern\":2,\"sliding_window\":9}", NULL);
    assert_true(c.rope[0].theta == 2e6 && c.rope[1].theta == 3e4);
    assert_int_equal(c.layers[0].kind, LAYER_SLIDING_ATTENTION);
    assert_int_equal(c.layers[1].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.window, 9);
    model_config_fini(&c);
    c = read_config("{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"linear\",\"factor\":8,\"rope_theta\":2e6},\"sliding_attention\":{\"rope_theta\":3e4}}}", NULL);
    assert_true(c.rope[0].theta == 2e6 && c.rope[0].kind == ROPE_LINEAR && c.rope[1].theta == 3e4 && c.rope[1].kind == ROPE_DEFAULT);
    model_config_fini(&c);
    c = read_config("{" LAGUNA ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"yarn\",\"factor\":32,\"rope_theta\":5e5,\"partial_rotary_factor\":0.5,\"original_max_position_embeddings\":256},"
                    "\"sliding_attention\":{\"rope_theta\":1e4,\"rope_type\":\"default\"}}}", NULL);
    assert_int_equal(c.rope[0].n_rot, 16);
    assert_int_equal(c.rope[1].n_rot, 32);
    assert_int_equal(c.rope[0].kind, ROPE_YARN);
    model_config_fini(&c);
    refuse("{" GEMMA3 ",\"rope_parameters\":{\"full_attention\":{},\"sliding_attention\":7}}", NULL, FL_CORRUPT, "sliding_attention must be an object");
}

static void layers_differ_as_the_config_says(void **state)
{
    (void)state;
    model_config c = read_config("{" LAGUNA ",\"num_attention_heads_per_layer\":[4,6,2,4],\"mlp_layer_types\":[\"sparse\",\"dense\",\"sparse\",\"sparse\"],\"gating\":\"per-element\","
                                 "\"layer_types\":[\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\"],\"moe_routed_scaling_factor\":2.5}", NULL);
    assert_int_equal(c.n_heads, 6);
    assert_int_equal(c.layers[2].n_heads, 2);
    assert_true(c.layers[0].is_mixture && !c.layers[1].is_mixture && !c.gate_per_head && c.moe.scale == 2.5f);
    assert_int_equal(c.window, 512);
    model_config_fini(&c);
    c = read_config("{" QWEN3_MOE ",\"decoder_sparse_step\":2,\"mlp_only_layers\":[3],\"use_sliding_window\":true,\"sliding_window\":7}", NULL);
    assert_true(!c.layers[0].is_mixture && c.layers[1].is_mixture && !c.layers[3].is_mixture && !c.moe.renormalize);
    assert_int_equal(c.layers[0].kind, LAYER_SLIDING_ATTENTION);
    assert_int_equal(c.window, 7);
    cache_needs needs = model_config_caches(&c);
    assert_int_equal(needs.kv_layers, 4);
    assert_int_equal(needs.kv_token_floats, 2 * 4 * 2 * 32);
    model_config_fini(&c);
    c = read_config("{" QWEN3 ",\"use_sliding_window\":true,\"sliding_window\":7,\"max_window_layers\":2}", NULL);
    assert_int_equal(c.layers[1].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.layers[2].kind, LAYER_SLIDING_ATTENTION);
    model_config_fini(&c);
    c = read_config("{" QWEN3 ",\"use_sliding_window\":false,\"sliding_window\":7,\"max_window_layers\":2}", NULL);
    assert_int_equal(c.layers[2].kind, LAYER_FULL_ATTENTION);
    assert_int_equal(c.window, 0);
    model_config_fini(&c);
    refuse("{" LAGUNA ",\"num_attention_heads_per_layer\":[4,6]}", NULL, FL_CORRUPT, "num_attention_heads_per_layer must list num_hidden_layers");
    refuse("{" LAGUNA ",\"num_attention_heads_per_layer\":[4,6,3,4]}", NULL, FL_CORRUPT, "must be multiples of num_key_value_heads");
    refuse("{" LAGUNA ",\"mlp_layer_types\":[\"dense\",\"moe\",\"sparse\",\"sparse\"]}", NULL, FL_CORRUPT, "mlp_layer_types must list dense or sparse");
    refuse("{" QWEN3 ",\"layer_types\":[\"full_attention\",\"full_attention\",\"sliding_attention\",\"full_attention\"]}", NULL, FL_CORRUPT, "sliding_window is off");
    refuse("{" QWEN3_MOE ",\"mlp_only_layers\":3}", NULL, FL_CORRUPT, "mlp_only_layers must be a list");
}

static void what_nothing_here_computes_is_refused_by_field_and_value(void **state)
{
    (void)state;
    refuse("{" LLAMA ",\"hidden_act\":\"relu2\"}", NULL, FL_UNSUPPORTED, "hidden_act \"relu2\" is not supported; silu is for this family");
    refuse("{" GEMMA3 ",\"hidden_activation\":\"gelu\"}", NULL, FL_UNSUPPORTED, "hidden_activation \"gelu\" is not supported; gelu_pytorch_tanh is");
    refuse("{" LAGUNA ",\"gating\":\"per-row\"}", NULL, FL_UNSUPPORTED, "gating \"per-row\" is not supported");
    refuse("{" LAGUNA ",\"gating\":false}", NULL, FL_UNSUPPORTED, "gating false is not supported");
    refuse("{" LAGUNA ",\"moe_apply_router_weight_on_input\":true}", NULL, FL_UNSUPPORTED, "moe_apply_router_weight_on_input true");
    refuse("{" GEMMA3 ",\"use_bidirectional_attention\":true}", NULL, FL_UNSUPPORTED, "use_bidirectional_attention true");
    refuse("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}}", NULL, FL_UNSUPPORTED, "quantization_config.quant_method \"gptq\" is not supported");
    refuse("{" LLAMA ",\"quantization_config\":{\"bits\":4}}", NULL, FL_UNSUPPORTED, "quantization_config.quant_method");
    refuse("{" LLAMA ",\"quantization_config\":7}", NULL, FL_UNSUPPORTED, "quantization_config.quant_method");
    refuse("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e5m2\"}}", NULL, FL_UNSUPPORTED, "quantization_config.fmt \"e5m2\"");
    refuse("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":[128]}}", NULL, FL_CORRUPT, "weight_block_size must be two sizes");
    refuse("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}}", NULL, FL_UNSUPPORTED, "quantization_config.format \"pack-quantized\"");
    refuse("{\"model_type\":\"deepseek_v3\",\"kv_lora_rank\":512}", NULL, FL_UNSUPPORTED, "the architecture \"deepseek_v3\" is unknown");
    refuse("{\"model_type\":\"gemma3\",\"vision_config\":{\"model_type\":\"siglip_vision_model\"}}", NULL, FL_UNSUPPORTED, "a vision_config but no text_config");
    model_config c = read_config("{" LLAMA ",\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\",\"activation_scheme\":\"dynamic\",\"weight_block_size\":[64,32]}}", NULL);
    assert_int_equal(c.fp8_block[0], 64);
    assert_int_equal(c.fp8_block[1], 32);
    model_config_fini(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_text_model_is_read),
        cmocka_unit_test(both_names_of_the_expert_count_are_read),
        cmocka_unit_test(nested_text_model_is_read),
        cmocka_unit_test(layers_come_from_the_list_or_from_the_interval),
        cmocka_unit_test(rope_is_read_in_both_forms_and_the_inner_factor_wins),
        cmocka_unit_test(absent_fields_mean_what_the_reference_says),
        cmocka_unit_test(stretched_rotations_are_read_in_both_forms),
        cmocka_unit_test(each_kind_of_layer_has_its_own_rotation),
        cmocka_unit_test(layers_differ_as_the_config_says),
        cmocka_unit_test(what_nothing_here_computes_is_refused_by_field_and_value),
        cmocka_unit_test(unknown_architecture_lists_the_known_ones),
        cmocka_unit_test(sizes_outside_their_range_are_refused),
        cmocka_unit_test(sizes_beyond_the_kernels_are_refused),
        cmocka_unit_test(generation_settings_replace_the_defaults),
        cmocka_unit_test(missing_folder_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
