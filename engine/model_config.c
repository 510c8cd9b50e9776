#include "engine/model_config.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/gguf_config.h"
#include "kernels/ops.h"
#include "proto/json_load.h"
#include "proto/detok.h"

#define CONFIG_BYTES_MAX (16u << 20)

/* What a family has, and what its absent fields mean (the reference's configuration class). A new family is a line here and a file in models/. */
typedef struct {
    const char *name;
    bool has_linear, has_sliding, has_experts;
    bool rotates_part;                   /* partial_rotary_factor counts */
    bool has_two_ropes;                  /* gemma3: flat fields speak of the full layers, rope_local_base_freq of the sliding ones */
    const char *activation_field, *activation;
    int32_t n_vocab, hidden, ff, n_layers, n_heads;
    int32_t n_kv_heads;                  /* 0 = n_heads */
    int32_t head_dim;                    /* 0 = hidden / n_heads */
    int32_t context_max, window;
    int32_t n_experts, top_k, expert_ff, shared_ff;
    double  theta[2], partial_rotary;    /* of full and of sliding layers; of both */
    bool    tied_head;
    int32_t eos_id;                      /* -1 = none */
} family_traits;

static const family_traits families[] = {
    { .name = "llama", .activation_field = "hidden_act", .activation = "silu", .n_vocab = 32000, .hidden = 4096, .ff = 11008, .n_layers = 32, .n_heads = 32,
      .context_max = 2048, .theta = { 1e4, 1e4 }, .partial_rotary = 1.0, .eos_id = 2 },
    { .name = "qwen3", .has_sliding = true, .activation_field = "hidden_act", .activation = "silu", .n_vocab = 151936, .hidden = 4096, .ff = 22016, .n_layers = 32,
      .n_heads = 32, .n_kv_heads = 32, .head_dim = 128, .context_max = 32768, .window = 4096, .theta = { 1e4, 1e4 }, .partial_rotary = 1.0, .eos_id = -1 },
    { .name = "qwen3_moe", .has_sliding = true, .has_experts = true, .activation_field = "hidden_act", .activation = "silu", .n_vocab = 151936, .hidden = 2048,
      .ff = 6144, .n_layers = 24, .n_heads = 32, .n_kv_heads = 4, .context_max = 32768, .window = 4096, .n_experts = 128, .top_k = 8, .expert_ff = 768,
      .theta = { 1e4, 1e4 }, .partial_rotary = 1.0, .eos_id = -1 },
    { .name = "qwen3_5", .has_linear = true, .rotates_part = true, .activation_field = "hidden_act", .activation = "silu", .n_vocab = 248320, .hidden = 4096,
      .ff = 12288, .n_layers = 32, .n_heads = 16, .n_kv_heads = 4, .head_dim = 256, .context_max = 32768, .theta = { 1e4, 1e4 }, .partial_rotary = 0.25, .eos_id = -1 },
    { .name = "qwen3_5_moe", .has_linear = true, .has_experts = true, .rotates_part = true, .activation_field = "hidden_act", .activation = "silu",
      .n_vocab = 248320, .hidden = 2048, .n_layers = 40, .n_heads = 16, .n_kv_heads = 2, .head_dim = 256, .context_max = 32768, .n_experts = 256, .top_k = 8,
      .expert_ff = 512, .shared_ff = 512, .theta = { 1e4, 1e4 }, .partial_rotary = 0.25, .eos_id = -1 },
    { .name = "laguna", .has_sliding = true, .has_experts = true, .rotates_part = true, .activation_field = "hidden_act", .activation = "silu", .n_vocab = 100352,
      .hidden = 2048, .ff = 8192, .n_layers = 40, .n_heads = 48, .n_kv_heads = 8, .head_dim = 128, .context_max = 131072, .window = 512, .n_experts = 256,
      .top_k = 8, .expert_ff = 512, .shared_ff = 512, .theta = { 5e5, 1e4 }, .partial_rotary = 1.0, .eos_id = -1 },
    { .name = "gemma3", .has_sliding = true, .has_two_ropes = true, .activation_field = "hidden_activation", .activation = "gelu_pytorch_tanh", .n_vocab = 262208,
      .hidden = 2304, .ff = 9216, .n_layers = 26, .n_heads = 8, .n_kv_heads = 4, .head_dim = 256, .context_max = 131072, .window = 4096,
      .theta = { 1e6, 1e4 }, .partial_rotary = 1.0, .tied_head = true, .eos_id = 1 },
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* Reading fields of one object; the first failure is kept, so a reader lists its fields and looks once. */
typedef struct { const json_t *object; const char *file; fl_status status; fl_err *err; } field_reader;

static bool is_family(const family_traits *family, const char *name) { return strcmp(family->name, name) == 0; }

static void refuse(field_reader *r, fl_status code, const char *field, const char *problem)
{
    if (r->status == FL_OK) r->status = fl_fail(r->err, code, "%s: %s %s", r->file, field, problem);
}

/* The field's value is one nothing here computes; `known` says which ones are. */
static void refuse_value(field_reader *r, const char *field, const json_t *value, const char *known)
{
    if (r->status != FL_OK) return;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    r->status = fl_fail(r->err, FL_UNSUPPORTED, "%s: %s %.64s is not supported; %s", r->file, field, text ? text : "of that form", known);
    free(text);
}

static const json_t *get(const field_reader *r, const char *field)
{
    const json_t *value = json_object_get(r->object, field);
    return json_is_null(value) ? NULL : value;
}

/* An integer in lo .. hi; an absent one is `absent`. */
static int32_t read_size(field_reader *r, const char *field, int32_t lo, int32_t hi, int32_t absent)
{
    const json_t *value = get(r, field);
    if (!value) return absent;
    json_int_t v = json_integer_value(value);
    if (json_is_integer(value) && v >= lo && v <= hi) return (int32_t)v;
    if (r->status == FL_OK) r->status = fl_fail(r->err, FL_CORRUPT, "%s: %s must be a whole number from %d to %d", r->file, field, lo, hi);
    return lo;
}

/* A finite number in lo .. hi (fp32's range at most); absent gives `absent`. */
static double read_number(field_reader *r, const char *field, double lo, double hi, double absent)
{
    const json_t *value = get(r, field);
    if (!value) return absent;
    double v = json_number_value(value);
    if (json_is_number(value) && v >= lo && v <= hi) return v;
    if (r->status == FL_OK) r->status = fl_fail(r->err, FL_CORRUPT, "%s: %s must be a number from %g to %g", r->file, field, lo, hi);
    return absent;
}

static bool read_flag(field_reader *r, const char *field, bool absent)
{
    const json_t *value = get(r, field);
    if (!value) return absent;
    if (!json_is_boolean(value)) refuse(r, FL_CORRUPT, field, "must be true or false");
    return json_is_true(value);
}

/* ---- architecture ---- */

/* "qwen3_5_moe_text" and "qwen3_5_moe" are one family. */
static const family_traits *find_family(const char *model_type)
{
    size_t n = strlen(model_type);
    if (n > 5 && strcmp(model_type + n - 5, "_text") == 0) n -= 5;
    for (size_t i = 0; i < N_FAMILIES; i++)
        if (strlen(families[i].name) == n && strncmp(families[i].name, model_type, n) == 0) return &families[i];
    return NULL;
}

static fl_status refuse_family(const char *file, const char *model_type, fl_err *err)
{
    char known[256];
    size_t used = 0;
    for (size_t i = 0; i < N_FAMILIES; i++) used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i].name);
    return fl_fail(err, FL_UNSUPPORTED, "%s: the architecture \"%.64s\" is unknown; known ones are %s", file, model_type, known);
}

/* ---- rotation ---- */

static const char *const rope_keys[2] = { "full_attention", "sliding_attention" };

/* The object under `field`, or the one of layers of kind `which` inside it where it holds one a layer type. NULL when absent. */
static json_t *rope_object(field_reader *r, const char *field, int which, bool *is_nested)
{
    json_t *object = json_object_get(r->object, field);
    *is_nested = false;
    if (!object || json_is_null(object)) return NULL;
    if (!json_is_object(object)) { refuse(r, FL_CORRUPT, field, "must be an object"); return NULL; }
    for (int i = 0; i < 2; i++) *is_nested |= json_is_object(json_object_get(object, rope_keys[i]));
    if (!*is_nested) return object;
    json_t *inner = json_object_get(object, rope_keys[which]);
    if (inner && !json_is_null(inner) && !json_is_object(inner)) { refuse(r, FL_CORRUPT, rope_keys[which], "must be an object"); return NULL; }
    return inner;
}

static void read_yarn(rope_config *rope, field_reader *in)
{
    rope->beta_fast = read_number(in, "beta_fast", 0.0, 1e6, 32.0);
    rope->beta_slow = read_number(in, "beta_slow", 0.0, 1e6, 1.0);
    if (rope->beta_fast == 0.0) rope->beta_fast = 32.0;  /* as the reference reads a zero */
    if (rope->beta_slow == 0.0) rope->beta_slow = 1.0;
    rope->attention_factor = read_number(in, "attention_factor", 1e-6, 1e6, 0.0);
    double mscale = read_number(in, "mscale", 0.0, 1e6, 0.0), all_dim = read_number(in, "mscale_all_dim", 0.0, 1e6, 0.0);
    if (rope->attention_factor == 0.0 && mscale > 0.0 && all_dim > 0.0) rope->attention_factor = rope_mscale(rope->factor, mscale) / rope_mscale(rope->factor, all_dim);
    if (rope->theta <= 1.0) refuse(in, FL_CORRUPT, "rope_theta", "must be above 1 for yarn");
}

static void read_llama3(rope_config *rope, field_reader *in)
{
    static const char *const required[] = { "low_freq_factor", "high_freq_factor" };
    for (int i = 0; i < 2; i++) if (!get(in, required[i])) refuse(in, FL_CORRUPT, required[i], "is missing, which rope_type llama3 needs");
    rope->low_factor = read_number(in, "low_freq_factor", 1e-6, 1e6, 1.0);
    rope->high_factor = read_number(in, "high_freq_factor", 1e-6, 1e6, 4.0);
    if (in->status == FL_OK && rope->high_factor <= rope->low_factor) refuse(in, FL_CORRUPT, "high_freq_factor", "must be above low_freq_factor");
}

/* `in` reads the object that speaks of the layers' rotation, r the whole config. */
static void read_rope_form(model_config *c, rope_config *rope, field_reader *in, field_reader *r, bool is_nested)
{
    static const struct { const char *name; rope_kind kind; } kinds[] = {
        { "default", ROPE_DEFAULT }, { "mrope", ROPE_DEFAULT }, { "linear", ROPE_LINEAR }, { "yarn", ROPE_YARN }, { "llama3", ROPE_LLAMA3 },
    };
    const json_t *type = get(in, "rope_type");
    if (!type) type = get(in, "type");
    const char *name = type ? json_string_value(type) : "default";
    bool is_known = false;
    for (size_t i = 0; name && i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(kinds[i].name, name) == 0) { rope->kind = kinds[i].kind; is_known = true; }
    if (!is_known) refuse_value(in, "rope_type", type, "default, linear, yarn and llama3 are");
    if (!is_known || rope->kind == ROPE_DEFAULT) return;

    const field_reader *original = !is_nested && get(r, "original_max_position_embeddings") ? r : in;
    field_reader from = { original->object, in->file, in->status, in->err };
    rope->original_context = read_number(&from, "original_max_position_embeddings", 1.0, 1 << 30, (double)c->context_max);
    in->status = from.status;
    bool has_factor = get(in, "factor") != NULL;
    rope->factor = read_number(in, "factor", 1e-3, 1e6, (double)c->context_max / rope->original_context);
    if (!has_factor && rope->kind != ROPE_YARN) refuse(in, FL_CORRUPT, "factor", "is missing, which rope_type linear and llama3 need");
    rope->truncate = is_nested || read_flag(in, "truncate", true);
    if (rope->kind == ROPE_YARN) read_yarn(rope, in);
    if (rope->kind == ROPE_LLAMA3) read_llama3(rope, in);
}

/* rope_scaling with rope_theta beside it (transformers 4; it wins where both stand, as there), else rope_parameters (5), for all layers or one a layer type. What
 * stands inside wins over what stands at top level. gemma3's rope_scaling speaks of the full layers alone and adds to rope_parameters. */
static void read_rope(model_config *c, field_reader *r, const family_traits *family, int which)
{
    bool is_nested, is_inner_nested;
    rope_config *rope = &c->rope[which];
    json_t *scaling = rope_object(r, "rope_scaling", which, &is_nested), *parameters = rope_object(r, "rope_parameters", which, &is_inner_nested);
    if (family->has_two_ropes && which == 1 && !is_nested) scaling = NULL;
    if (family->has_two_ropes && which == 1 && !is_inner_nested) parameters = NULL;
    if (!scaling) is_nested = is_inner_nested;
    json_t *merged = json_object();
    if (!merged) { refuse(r, FL_FULL, "rope_parameters", "needs more memory than there is"); return; }
    if (scaling) json_object_update_missing(merged, scaling);
    if (parameters && (!scaling || family->has_two_ropes)) json_object_update_missing(merged, parameters);
    field_reader in = { merged, r->file, r->status, r->err };
    bool is_said = json_object_size(merged) > 0;

    double theta = read_number(&in, "rope_theta", 1.0, 1e12, 0.0);
    const char *outer_theta = family->has_two_ropes && which == 1 ? "rope_local_base_freq" : "rope_theta";
    rope->theta = theta > 0.0 ? theta : read_number(r, outer_theta, 1.0, 1e12, family->theta[which]);
    double partial = read_number(&in, "partial_rotary_factor", 0.0, 1.0, -1.0);
    double absent = is_family(family, "laguna") && !is_said && which == 0 ? 0.5 : family->partial_rotary;
    if (partial < 0.0) partial = read_number(r, "partial_rotary_factor", 0.0, 1.0, absent);
    read_rope_form(c, rope, &in, r, is_nested);
    if (!family->rotates_part && rope->kind == ROPE_DEFAULT) partial = 1.0;      /* as the reference, which does not look at it */
    if (!family->rotates_part && partial != 1.0) refuse(&in, FL_UNSUPPORTED, "partial_rotary_factor", "other than 1 is not supported for this family");
    rope->n_rot = (int32_t)((double)c->head_dim * partial);
    if (r->status == FL_OK) r->status = in.status;
    if (rope->n_rot < 2 || rope->n_rot % 2 != 0) refuse(r, FL_CORRUPT, "partial_rotary_factor", "times head_dim must be an even number of 2 or more");
    json_decref(merged);
}

/* ---- parts ---- */

static void read_linear(model_config *c, field_reader *r)
{
    c->linear.n_k_heads = read_size(r, "linear_num_key_heads", 1, 1024, 16);
    c->linear.n_v_heads = read_size(r, "linear_num_value_heads", 1, 1024, 32);
    c->linear.k_dim = read_size(r, "linear_key_head_dim", 1, OPS_DELTA_K_MAX, 128);
    c->linear.v_dim = read_size(r, "linear_value_head_dim", 1, 512, 128);
    c->linear.conv_width = read_size(r, "linear_conv_kernel_dim", 1, OPS_CONV_WIDTH_MAX, 4);
    if (c->linear.n_v_heads % c->linear.n_k_heads != 0) refuse(r, FL_CORRUPT, "linear_num_value_heads", "must be a multiple of linear_num_key_heads");
}

static void read_moe(model_config *c, field_reader *r, const family_traits *family)
{
    const char *count = get(r, "num_experts") ? "num_experts" : "num_local_experts";
    bool is_laguna = is_family(family, "laguna");
    c->moe.n_experts = read_size(r, count, is_family(family, "qwen3_moe") ? 0 : 1, OPS_EXPERTS_MAX, family->n_experts);
    c->moe.top_k = read_size(r, "num_experts_per_tok", 1, 64, family->top_k);
    c->moe.ff = read_size(r, "moe_intermediate_size", 1, 1 << 16, family->expert_ff);
    if (family->shared_ff) c->moe.shared_ff = read_size(r, "shared_expert_intermediate_size", 1, 1 << 16, family->shared_ff);
    c->moe.renormalize = is_family(family, "qwen3_moe") ? read_flag(r, "norm_topk_prob", false) : true;
    c->moe.scale = is_laguna ? (float)read_number(r, "moe_routed_scaling_factor", -1e6, 1e6, 1.0) : 1.0f;
    c->moe.router_softcap = is_laguna ? (float)read_number(r, "moe_router_logit_softcapping", 0.0, 1e6, 0.0) : 0.0f;
    if (is_laguna && read_flag(r, "moe_apply_router_weight_on_input", false))
        refuse(r, FL_UNSUPPORTED, "moe_apply_router_weight_on_input", "true is not supported; the reference does not compute it either");
    if (c->moe.n_experts > 0 && c->moe.top_k > c->moe.n_experts) refuse(r, FL_CORRUPT, "num_experts_per_tok", "is larger than the number of experts");
}

/* The list under `field` with one entry a layer, or NULL when it is absent. */
static const json_t *layer_list(const model_config *c, field_reader *r, const char *field)
{
    const json_t *list = get(r, field);
    if (list && json_array_size(list) != (size_t)c->n_layers) { refuse(r, FL_CORRUPT, field, "must list num_hidden_layers entries"); return NULL; }
    return list;
}

static layer_kind absent_kind(const family_traits *family, int32_t i, int32_t pattern, bool slides, int32_t first_sliding)
{
    if (family->has_linear) return (i + 1) % pattern != 0 ? LAYER_LINEAR_ATTENTION : LAYER_FULL_ATTENTION;
    if (family->has_two_ropes) return (i + 1) % pattern != 0 ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION;
    return slides && i >= first_sliding ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION;
}

/* Each layer's kind. qwen3 and qwen3_moe slide only where use_sliding_window says so: qwen3 from layer max_window_layers on, qwen3_moe as a whole. */
static void read_kinds(model_config *c, field_reader *r, const family_traits *family)
{
    const json_t *types = is_family(family, "qwen3_moe") ? NULL : layer_list(c, r, "layer_types");
    bool is_qwen3 = is_family(family, "qwen3") || is_family(family, "qwen3_moe"), is_any_sliding = false;
    bool slides = is_qwen3 && read_flag(r, "use_sliding_window", false) && !json_is_null(json_object_get(r->object, "sliding_window"));
    int32_t first_sliding = is_family(family, "qwen3") ? read_size(r, "max_window_layers", 0, 4096, 28) : 0;
    int32_t pattern = read_size(r, family->has_linear ? "full_attention_interval" : "sliding_window_pattern", 1, 4096, family->has_linear ? 4 : 6);
    for (int32_t i = 0; i < c->n_layers && r->status == FL_OK; i++) {
        const json_t *entry = json_array_get(types, (size_t)i);
        const char *type = json_string_value(entry);
        layer_config *layer = &c->layers[i];
        layer->kind = absent_kind(family, i, pattern, slides, first_sliding);
        if (types && type && strcmp(type, "full_attention") == 0) layer->kind = LAYER_FULL_ATTENTION;
        else if (types && type && strcmp(type, "linear_attention") == 0 && family->has_linear) layer->kind = LAYER_LINEAR_ATTENTION;
        else if (types && type && strcmp(type, "sliding_attention") == 0 && family->has_sliding) layer->kind = LAYER_SLIDING_ATTENTION;
        else if (types) refuse_value(r, "an entry of layer_types,", entry, "this family does not have such layers");
        is_any_sliding |= layer->kind == LAYER_SLIDING_ATTENTION;
    }
    if (is_any_sliding) c->window = read_size(r, "sliding_window", 1, 1 << 24, family->window);
    if (is_any_sliding && is_qwen3 && !slides) refuse(r, FL_CORRUPT, "sliding_window", "is off, but layer_types has sliding layers");
}

static void read_heads(model_config *c, field_reader *r)
{
    const json_t *heads = layer_list(c, r, "num_attention_heads_per_layer");
    int32_t most = heads ? 0 : c->n_heads;
    for (int32_t i = 0; i < c->n_layers && r->status == FL_OK; i++) {
        json_int_t n = heads ? json_integer_value(json_array_get(heads, (size_t)i)) : c->n_heads;
        if (n < 1 || n > 1024 || n % c->n_kv_heads != 0) refuse(r, FL_CORRUPT, "num_attention_heads_per_layer", "must be multiples of num_key_value_heads, at most 1024");
        else c->layers[i].n_heads = (int32_t)n;
        if (c->layers[i].n_heads > most) most = c->layers[i].n_heads;
    }
    c->n_heads = most;
}

/* Which layers are mixtures: all, or as mlp_layer_types (laguna; the first is dense where it is absent) or decoder_sparse_step and mlp_only_layers (qwen3_moe) say. */
static void read_mixtures(model_config *c, field_reader *r, const family_traits *family)
{
    const bool is_laguna = is_family(family, "laguna"), is_qwen3_moe = is_family(family, "qwen3_moe");
    const json_t *types = is_laguna ? layer_list(c, r, "mlp_layer_types") : NULL, *dense = is_qwen3_moe ? get(r, "mlp_only_layers") : NULL;
    int32_t step = is_qwen3_moe ? read_size(r, "decoder_sparse_step", 1, 4096, 1) : 1;
    if (dense && !json_is_array(dense)) refuse(r, FL_CORRUPT, "mlp_only_layers", "must be a list of layer numbers");
    for (int32_t i = 0; i < c->n_layers && r->status == FL_OK; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool is_mixture = c->moe.n_experts > 0 && (i + 1) % step == 0 && !(is_laguna && i == 0);
        if (types && (!type || (strcmp(type, "dense") != 0 && strcmp(type, "sparse") != 0))) refuse(r, FL_CORRUPT, "mlp_layer_types", "must list dense or sparse");
        else if (types) is_mixture = strcmp(type, "sparse") == 0;
        for (size_t k = 0; k < json_array_size(dense); k++) is_mixture &= json_integer_value(json_array_get(dense, k)) != i;
        c->layers[i].is_mixture = is_mixture;
    }
}

static void read_layers(model_config *c, field_reader *r, const family_traits *family)
{
    bool is_any_mixture = false, is_any_dense = false;
    c->layers = calloc((size_t)c->n_layers, sizeof *c->layers);
    if (!c->layers) { refuse(r, FL_FULL, "num_hidden_layers", "needs more memory than there is"); return; }
    read_kinds(c, r, family);
    if (is_family(family, "laguna")) read_heads(c, r);
    else for (int32_t i = 0; i < c->n_layers; i++) c->layers[i].n_heads = c->n_heads;
    if (family->has_experts) read_moe(c, r, family);
    if (family->has_experts) read_mixtures(c, r, family);
    for (int32_t i = 0; i < c->n_layers; i++) *(c->layers[i].is_mixture ? &is_any_mixture : &is_any_dense) = true;
    if (!is_any_mixture) c->moe = (moe_config){ 0 };
    if (is_any_dense) c->ff = read_size(r, "intermediate_size", 1, 1 << 20, family->ff);
}

/* F8_E4M3 weights come with scales; other quantizations are refused here, by name, before a tensor of theirs is met. */
static void read_quantization(model_config *c, field_reader *r)
{
    const json_t *q = get(r, "quantization_config");
    c->fp8_block[0] = c->fp8_block[1] = 128;
    if (!q) return;
    field_reader in = { q, r->file, r->status, r->err };
    const json_t *method = get(&in, "quant_method"), *format = get(&in, "format"), *fmt = get(&in, "fmt"), *block = get(&in, "weight_block_size");
    const char *name = json_string_value(method), *format_name = json_string_value(format), *fmt_name = json_string_value(fmt);
    if (name && strcmp(name, "compressed-tensors") == 0) {
        if (!format_name || strcmp(format_name, "float-quantized") != 0) refuse_value(&in, "quantization_config.format", format, "float-quantized is");
    } else if (!name || strcmp(name, "fp8") != 0) {
        refuse_value(&in, "quantization_config.quant_method", method, "fp8 and compressed-tensors are; name the unquantized model");
    }
    if (fmt && (!fmt_name || strcmp(fmt_name, "e4m3") != 0)) refuse_value(&in, "quantization_config.fmt", fmt, "e4m3 is");
    for (size_t i = 0; block && i < 2; i++) {
        const json_t *size = json_array_get(block, i);
        if (json_array_size(block) != 2 || !json_is_integer(size) || json_integer_value(size) < 1 || json_integer_value(size) > 1 << 20) {
            refuse(&in, FL_CORRUPT, "quantization_config.weight_block_size", "must be two sizes of 1 to 1048576");
            break;
        }
        c->fp8_block[i] = (int32_t)json_integer_value(size);
    }
    r->status = in.status;
}

static void read_eos(model_config *c, field_reader *r)
{
    const json_t *value = get(r, "eos_token_id");
    if (!value) return;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    if (n > EOS_IDS_MAX) { refuse(r, FL_CORRUPT, "eos_token_id", "lists more than 64 ids"); return; }
    c->n_eos = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX) { refuse(r, FL_CORRUPT, "eos_token_id", "must be ids"); return; }
        c->eos_ids[c->n_eos++] = (int32_t)json_integer_value(id);
    }
}

/* ---- documents ---- */

static void read_attention(model_config *c, field_reader *r, const family_traits *family)
{
    c->n_heads = read_size(r, "num_attention_heads", 1, 1024, family->n_heads);
    c->n_kv_heads = read_size(r, "num_key_value_heads", 1, 1024, family->n_kv_heads ? family->n_kv_heads : c->n_heads);
    c->head_dim = read_size(r, "head_dim", 1, OPS_HEAD_DIM_MAX, family->head_dim ? family->head_dim : c->hidden / c->n_heads);
    c->attention_bias = read_flag(r, "attention_bias", false);
    if (c->n_heads % c->n_kv_heads != 0) refuse(r, FL_CORRUPT, "num_attention_heads", "must be a multiple of num_key_value_heads");
    if (c->head_dim < 1 || c->head_dim > OPS_HEAD_DIM_MAX) refuse(r, FL_CORRUPT, "hidden_size", "over num_attention_heads is no head size the kernels have (1 to 256)");
    double scalar = c->head_dim;
    if (is_family(family, "gemma3")) {
        /* attn_logit_softcapping is not read: the reference's attention does not apply it either */
        scalar = read_number(r, "query_pre_attn_scalar", 1e-6, 1e9, 256.0);
        c->logit_softcap = (float)read_number(r, "final_logit_softcapping", 0.0, 1e6, 0.0);
        if (read_flag(r, "use_bidirectional_attention", false)) refuse(r, FL_UNSUPPORTED, "use_bidirectional_attention", "true is not supported: this engine generates text");
    }
    c->attention_scale = (float)(1.0 / sqrt(scalar));
    c->norm_add = family->has_linear || is_family(family, "gemma3") ? 1.0f : 0.0f;
    if (!is_family(family, "laguna")) return;
    const json_t *gating = get(r, "gating");
    const char *grain = json_string_value(gating);
    c->gate_per_head = !gating || json_is_true(gating) || (grain && strcmp(grain, "per-head") == 0);
    if (!c->gate_per_head && !(grain && strcmp(grain, "per-element") == 0)) refuse_value(r, "gating", gating, "true, \"per-head\" and \"per-element\" are");
}

static void read_model(model_config *c, field_reader *r, const field_reader *top, const family_traits *family)
{
    c->n_vocab = read_size(r, "vocab_size", 1, FL_VOCAB_MAX, family->n_vocab);
    c->hidden = read_size(r, "hidden_size", 1, 1 << 16, family->hidden);
    c->n_layers = read_size(r, "num_hidden_layers", 1, 1024, family->n_layers);
    c->norm_eps = (float)read_number(r, "rms_norm_eps", 0.0, 1.0, 1e-6);
    c->context_max = read_size(r, "max_position_embeddings", 1, 1 << 24, family->context_max);
    c->mlp_bias = is_family(family, "llama") && read_flag(r, "mlp_bias", false);
    c->tied_head = read_flag(r, "tie_word_embeddings", family->tied_head);
    if (top->object != r->object && get(top, "tie_word_embeddings")) {
        field_reader outer = *top;
        c->tied_head = read_flag(&outer, "tie_word_embeddings", family->tied_head);
        if (r->status == FL_OK) r->status = outer.status;
    }
    const json_t *activation = get(r, family->activation_field);
    const char *act_name = json_string_value(activation);
    if (activation && (!act_name || strcmp(act_name, family->activation) != 0)) {
        char known[64];
        snprintf(known, sizeof known, "%s is for this family", family->activation);
        refuse_value(r, family->activation_field, activation, known);
    }
    if (r->status == FL_OK) read_attention(c, r, family);
    if (r->status == FL_OK && family->has_linear) read_linear(c, r);
    if (r->status == FL_OK) read_layers(c, r, family);
    for (int i = 0; i < 2; i++) if (r->status == FL_OK) read_rope(c, r, family, i);
    if (r->status == FL_OK) read_eos(c, r);
}

static void read_generation(model_config *c, field_reader *r)
{
    c->temperature = (float)read_number(r, "temperature", 0.0, 100.0, 1.0);
    c->top_p = (float)read_number(r, "top_p", 0.0, 1.0, 1.0);
    c->min_p = (float)read_number(r, "min_p", 0.0, 1.0, 0.0);
    c->repetition_penalty = (float)read_number(r, "repetition_penalty", 1e-6, 100.0, 1.0);
    c->top_k = read_size(r, "top_k", -1, INT32_MAX, 0);
    if (c->top_k < 0) c->top_k = 0;
    if (c->top_p <= 0.0f) refuse(r, FL_CORRUPT, "top_p", "must be above 0");
    read_eos(c, r);
}

/* An object from text. */
static fl_status load_object(json_t **object, const char *file, const char *json, size_t n_bytes, fl_err *err)
{
    fl_status status = fl_json_load(object, file, json, n_bytes, 0, err);
    if (status != FL_OK || json_is_object(*object)) return status;
    json_decref(*object);
    *object = NULL;
    return fl_fail(err, FL_CORRUPT, "%s: not a JSON object", file);
}

fl_status model_config_make(model_config *config, const json_t *root, const json_t *generation, const char *root_name, const char *generation_name, fl_err *err)
{
    fl_status status = FL_OK;
    model_config c = { 0 };
    const json_t *text = json_object_get(root, "text_config");
    if (!json_is_object(text) && json_is_object(json_object_get(root, "vision_config"))) {
        status = fl_fail(err, FL_UNSUPPORTED, "%s: there is a vision_config but no text_config; a model without a text part cannot generate text", root_name);
        goto done;
    }
    field_reader top = { root, root_name, FL_OK, err };
    field_reader model = { json_is_object(text) ? text : root, root_name, FL_OK, err };
    const char *type = json_string_value(get(&model, "model_type"));
    if (!type) type = json_string_value(get(&top, "model_type"));
    if (!type) { status = fl_fail(err, FL_CORRUPT, "%s: model_type is missing", root_name); goto done; }
    const family_traits *family = find_family(type);
    if (!family) { status = refuse_family(root_name, type, err); goto done; }
    snprintf(c.architecture, sizeof c.architecture, "%s", family->name);

    bool says_eos = json_object_get(root, "eos_token_id") || json_object_get(model.object, "eos_token_id");
    if (!says_eos && family->eos_id >= 0) c.eos_ids[c.n_eos++] = family->eos_id;
    read_quantization(&c, get(&top, "quantization_config") ? &top : &model);
    if (model.object != root) read_eos(&c, &top);
    if (top.status == FL_OK && model.status == FL_OK) read_model(&c, &model, &top, family);
    if ((status = top.status) != FL_OK || (status = model.status) != FL_OK) goto done;
    field_reader defaults = { generation, generation_name, FL_OK, err };
    read_generation(&c, &defaults);
    if ((status = defaults.status) != FL_OK) goto done;
    *config = c;
    c.layers = NULL;                                     /* ownership moved to the caller */
done:
    model_config_fini(&c);
    return status;
}

fl_status model_config_parse(model_config *config, const char *json, size_t json_bytes, const char *generation, size_t generation_bytes, fl_err *err)
{
    static const char root_name[] = "config.json", generation_name[] = "generation_config.json";
    json_t *root = NULL, *settings = NULL;
    fl_status status = load_object(&root, root_name, json, json_bytes, err);
    if (status == FL_OK && generation) status = load_object(&settings, generation_name, generation, generation_bytes, err);
    if (status == FL_OK) status = model_config_make(config, root, settings, root_name, generation_name, err);
    json_decref(root);
    json_decref(settings);
    return status;
}

/* The whole file; *text is malloc'ed. FL_NOT_FOUND when there is none. */
static fl_status read_text(char **text, size_t *n_bytes, const char *model_dir, const char *name, fl_err *err)
{
    fl_status status = FL_OK;
    char path[4096];
    char *bytes = NULL;
    FILE *file = NULL;
    if (snprintf(path, sizeof path, "%s/%s", model_dir, name) >= (int)sizeof path) return fl_fail(err, FL_INVALID, "the path of %s is too long", name);
    file = fopen(path, "rbe");
    if (!file && (errno == ENOENT || errno == ENOTDIR)) { status = fl_fail(err, FL_NOT_FOUND, "%s has no %s; name a model directory or a .gguf file", model_dir, name); goto done; }
    if (!file) { status = fl_fail_errno(err, errno, "cannot open %s", path); goto done; }
    bytes = malloc(CONFIG_BYTES_MAX);
    if (!bytes) { status = fl_fail(err, FL_FULL, "no memory to read %s", path); goto done; }
    size_t n = fread(bytes, 1, CONFIG_BYTES_MAX, file);
    if (ferror(file)) { status = fl_fail_errno(err, errno, "cannot read %s", path); goto done; }
    if (n == CONFIG_BYTES_MAX) { status = fl_fail(err, FL_CORRUPT, "%s: %u bytes or more are no config", path, CONFIG_BYTES_MAX); goto done; }
    char *cut = realloc(bytes, n + 1);                   /* the next file's buffer need not come on top of this one */
    *text = cut ? cut : bytes;
    *n_bytes = n;
    bytes = NULL;
done:
    if (file) fclose(file);
    free(bytes);
    return status;
}

static fl_status read_gguf(model_config *config, const char *path, fl_err *err)
{
    gguf *g = NULL;
    fl_status status = gguf_open(&g, path, err);
    if (status == FL_OK) status = gguf_config_read(config, g, err);
    gguf_close(g);
    return status;
}

fl_status model_config_read(model_config *config, const char *path, fl_err *err)
{
    if (gguf_is_path(path)) return read_gguf(config, path, err);
    char *json = NULL, *generation = NULL;
    size_t json_bytes = 0, generation_bytes = 0;
    fl_status status = read_text(&json, &json_bytes, path, "config.json", err);
    if (status == FL_OK) {
        status = read_text(&generation, &generation_bytes, path, "generation_config.json", err);
        if (status == FL_NOT_FOUND) status = FL_OK;      /* optional: OpenAI's defaults then */
    }
    if (status == FL_OK) status = model_config_parse(config, json, json_bytes, generation, generation_bytes, err);
    free(json);
    free(generation);
    return status;
}

void model_config_fini(model_config *config)
{
    free(config->layers);
    free(config->rope_factors);
    config->layers = NULL;
    config->rope_factors = NULL;
}

cache_needs model_config_caches(const model_config *c)
{
    const linear_config *l = &c->linear;
    cache_needs needs = { 0 };
    for (int32_t i = 0; i < c->n_layers; i++) (*(c->layers[i].kind == LAYER_LINEAR_ATTENTION ? &needs.state_layers : &needs.kv_layers))++;
    needs.kv_token_floats = 2 * (size_t)needs.kv_layers * (size_t)c->n_kv_heads * (size_t)c->head_dim;
    if (needs.state_layers == 0) return needs;
    const size_t channels = 2 * (size_t)l->n_k_heads * (size_t)l->k_dim + (size_t)l->n_v_heads * (size_t)l->v_dim;
    needs.delta_floats = (size_t)l->n_v_heads * (size_t)l->k_dim * (size_t)l->v_dim;
    needs.conv_floats = channels * (size_t)(l->conv_width - 1);
    return needs;
}
