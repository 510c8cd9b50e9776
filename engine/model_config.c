#include "engine/model_config.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "proto/detok.h"

#define CONFIG_BYTES_MAX (16u << 20)

/* What a family has and what its absent fields mean. A new family is a line here and a file in models/. */
typedef struct {
    const char *name;
    bool has_linear_layers, has_experts;
    double partial_rotary;               /* when no config field says it */
    int32_t head_dim;                    /* likewise */
} family_traits;

static const family_traits families[] = {
    { "qwen3_5",     true, false, 0.25, 256 },
    { "qwen3_5_moe", true, true,  0.25, 256 },
};
#define N_FAMILIES (sizeof families / sizeof *families)

/* Reading fields of one object; the first failure is kept, so a reader lists its fields and looks once. */
typedef struct { const json_t *object; const char *file; fl_status status; fl_err *err; } field_reader;

static void refuse(field_reader *r, fl_status code, const char *field, const char *problem)
{
    if (r->status == FL_OK) r->status = fl_fail(r->err, code, "%s: %s %s", r->file, field, problem);
}

static const json_t *get(const field_reader *r, const char *field)
{
    const json_t *value = json_object_get(r->object, field);
    return json_is_null(value) ? NULL : value;
}

/* An integer in lo .. hi; an absent one is `absent`, or refused when that is negative. */
static int32_t read_size(field_reader *r, const char *field, int32_t lo, int32_t hi, int32_t absent)
{
    const json_t *value = get(r, field);
    if (!value && absent >= 0) return absent;
    if (!value) { refuse(r, FL_CORRUPT, field, "is missing"); return lo; }
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

static fl_status refuse_family(const char *model_type, fl_err *err)
{
    char known[256];
    size_t used = 0;
    for (size_t i = 0; i < N_FAMILIES; i++) used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", families[i].name);
    return fl_fail(err, FL_UNSUPPORTED, "config.json: the architecture \"%.64s\" is unknown; known ones are %s", model_type, known);
}

/* ---- parts ---- */

/* rope_scaling with rope_theta beside it (transformers 4; it wins where both stand, as there), else rope_parameters (5). The inner partial_rotary_factor wins over the one at top level. */
static void read_rope(model_config *c, field_reader *r, const family_traits *family)
{
    const json_t *outer = get(r, "rope_scaling");
    if (!outer) outer = get(r, "rope_parameters");
    if (outer && !json_is_object(outer)) refuse(r, FL_CORRUPT, "rope_parameters", "must be an object");
    field_reader inner = { outer, r->file, r->status, r->err };

    const json_t *type = get(&inner, "rope_type");
    if (!type) type = get(&inner, "type");
    const char *type_name = json_string_value(type);
    if (type && (!type_name || (strcmp(type_name, "default") != 0 && strcmp(type_name, "mrope") != 0)) && inner.status == FL_OK)
        inner.status = fl_fail(r->err, FL_UNSUPPORTED, "%s: rope_type \"%.64s\" is unknown for this family; known is default", r->file, type_name ? type_name : "");

    double theta = read_number(&inner, "rope_theta", 1.0, 1e12, 0.0);
    c->rope_theta = theta > 0.0 ? theta : read_number(r, "rope_theta", 1.0, 1e12, 10000.0);
    double partial = read_number(&inner, "partial_rotary_factor", 0.0, 1.0, -1.0);
    if (partial < 0.0) partial = read_number(r, "partial_rotary_factor", 0.0, 1.0, family->partial_rotary);
    c->n_rot = (int32_t)((double)c->head_dim * partial);
    if (r->status == FL_OK) r->status = inner.status;
    if (c->n_rot < 2 || c->n_rot % 2 != 0) refuse(r, FL_CORRUPT, "partial_rotary_factor", "times head_dim must be an even number of 2 or more");
}

static void read_linear(model_config *c, field_reader *r)
{
    c->linear.n_k_heads = read_size(r, "linear_num_key_heads", 1, 1024, 16);
    c->linear.n_v_heads = read_size(r, "linear_num_value_heads", 1, 1024, 32);
    c->linear.k_dim = read_size(r, "linear_key_head_dim", 1, OPS_DELTA_K_MAX, 128);
    c->linear.v_dim = read_size(r, "linear_value_head_dim", 1, 512, 128);
    c->linear.conv_width = read_size(r, "linear_conv_kernel_dim", 1, OPS_CONV_WIDTH_MAX, 4);
    if (c->linear.n_v_heads % c->linear.n_k_heads != 0) refuse(r, FL_CORRUPT, "linear_num_value_heads", "must be a multiple of linear_num_key_heads");
}

static void read_moe(model_config *c, field_reader *r)
{
    const char *count = get(r, "num_experts") ? "num_experts" : "num_local_experts";
    c->moe.n_experts = read_size(r, count, 1, OPS_EXPERTS_MAX, -1);
    c->moe.top_k = read_size(r, "num_experts_per_tok", 1, 64, -1);
    c->moe.ff = read_size(r, "moe_intermediate_size", 1, 1 << 16, -1);
    c->moe.shared_ff = read_size(r, "shared_expert_intermediate_size", 1, 1 << 16, 512);
    if (c->moe.top_k > c->moe.n_experts) refuse(r, FL_CORRUPT, "num_experts_per_tok", "is larger than the number of experts");
}

static void read_layers(model_config *c, field_reader *r, const family_traits *family)
{
    const json_t *types = get(r, "layer_types");
    int32_t interval = read_size(r, "full_attention_interval", 1, 4096, 4);
    c->layers = calloc((size_t)c->n_layers, sizeof *c->layers);
    if (!c->layers) { refuse(r, FL_FULL, "num_hidden_layers", "needs more memory than there is"); return; }
    if (types && json_array_size(types) != (size_t)c->n_layers) { refuse(r, FL_CORRUPT, "layer_types", "must list num_hidden_layers entries"); return; }
    for (int32_t i = 0; i < c->n_layers; i++) {
        const char *type = types ? json_string_value(json_array_get(types, (size_t)i))
                                 : family->has_linear_layers && (i + 1) % interval != 0 ? "linear_attention" : "full_attention";
        if (type && strcmp(type, "full_attention") == 0) c->layers[i] = LAYER_FULL_ATTENTION;
        else if (type && strcmp(type, "linear_attention") == 0 && family->has_linear_layers) c->layers[i] = LAYER_LINEAR_ATTENTION;
        else if (r->status == FL_OK)
            r->status = fl_fail(r->err, FL_UNSUPPORTED, "%s: layer_types holds \"%.64s\", which this family does not have", r->file, type ? type : "");
    }
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

static void read_model(model_config *c, field_reader *r, const field_reader *top, const family_traits *family)
{
    c->n_vocab = read_size(r, "vocab_size", 1, FL_VOCAB_MAX, -1);
    c->hidden = read_size(r, "hidden_size", 1, 1 << 16, -1);
    c->n_layers = read_size(r, "num_hidden_layers", 1, 1024, -1);
    c->n_heads = read_size(r, "num_attention_heads", 1, 1024, -1);
    c->n_kv_heads = read_size(r, "num_key_value_heads", 1, 1024, -1);
    c->head_dim = read_size(r, "head_dim", 1, OPS_HEAD_DIM_MAX, family->head_dim);
    c->norm_eps = (float)read_number(r, "rms_norm_eps", 0.0, 1.0, 1e-6);
    c->context_max = read_size(r, "max_position_embeddings", 1, 1 << 24, 32768);
    c->attention_bias = read_flag(r, "attention_bias", false);
    c->tied_head = read_flag(r, "tie_word_embeddings", false);
    if (top->object != r->object && get(top, "tie_word_embeddings")) {
        field_reader outer = *top;
        c->tied_head = read_flag(&outer, "tie_word_embeddings", false);
        if (r->status == FL_OK) r->status = outer.status;
    }
    if (c->n_heads % c->n_kv_heads != 0) refuse(r, FL_CORRUPT, "num_attention_heads", "must be a multiple of num_key_value_heads");
    const json_t *act = get(r, "hidden_act");
    if (act && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0)) refuse(r, FL_UNSUPPORTED, "hidden_act", "is not silu, the only one this family has");

    if (r->status == FL_OK) read_rope(c, r, family);
    if (r->status == FL_OK && family->has_linear_layers) read_linear(c, r);
    if (r->status == FL_OK && family->has_experts) read_moe(c, r);
    if (r->status == FL_OK && !family->has_experts) c->ff = read_size(r, "intermediate_size", 1, 1 << 20, -1);
    if (r->status == FL_OK) read_layers(c, r, family);
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

/* An object from text; NULL with the sentence when it is none. */
static json_t *load_object(const char *file, const char *json, size_t n_bytes, fl_err *err)
{
    json_error_t where;
    json_t *object = json_loadb(json, n_bytes, 0, &where);
    if (!object) { fl_fail(err, FL_CORRUPT, "%s: not JSON: %s (line %d)", file, where.text, where.line); return NULL; }
    if (!json_is_object(object)) { json_decref(object); fl_fail(err, FL_CORRUPT, "%s: not a JSON object", file); return NULL; }
    return object;
}

fl_status model_config_parse(model_config *config, const char *json, size_t json_bytes, const char *generation, size_t generation_bytes, fl_err *err)
{
    fl_status status = FL_OK;
    model_config c = { 0 };
    json_t *root = NULL, *settings = NULL;
    if (!(root = load_object("config.json", json, json_bytes, err))) { status = FL_CORRUPT; goto done; }
    if (generation && !(settings = load_object("generation_config.json", generation, generation_bytes, err))) { status = FL_CORRUPT; goto done; }

    const json_t *text = json_object_get(root, "text_config");
    field_reader top = { root, "config.json", FL_OK, err };
    field_reader model = { json_is_object(text) ? text : root, "config.json", FL_OK, err };
    const char *type = json_string_value(get(&model, "model_type"));
    if (!type) type = json_string_value(get(&top, "model_type"));
    if (!type) { status = fl_fail(err, FL_CORRUPT, "config.json: model_type is missing"); goto done; }
    const family_traits *family = find_family(type);
    if (!family) { status = refuse_family(type, err); goto done; }
    snprintf(c.architecture, sizeof c.architecture, "%s", family->name);

    if (model.object != root) read_eos(&c, &top);
    if (top.status == FL_OK) read_model(&c, &model, &top, family);
    if ((status = top.status) != FL_OK || (status = model.status) != FL_OK) goto done;
    field_reader defaults = { settings, "generation_config.json", FL_OK, err };
    read_generation(&c, &defaults);
    if ((status = defaults.status) != FL_OK) goto done;
    *config = c;
    c.layers = NULL;                                     /* ownership moved to the caller */
done:
    json_decref(root);
    json_decref(settings);
    model_config_fini(&c);
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
    if (!file && (errno == ENOENT || errno == ENOTDIR)) { status = fl_fail(err, FL_NOT_FOUND, "%s has no %s; name a model directory", model_dir, name); goto done; }
    if (!file) { status = fl_fail_errno(err, errno, "cannot open %s", path); goto done; }
    bytes = malloc(CONFIG_BYTES_MAX);
    if (!bytes) { status = fl_fail(err, FL_FULL, "no memory to read %s", path); goto done; }
    size_t n = fread(bytes, 1, CONFIG_BYTES_MAX, file);
    if (ferror(file)) { status = fl_fail_errno(err, errno, "cannot read %s", path); goto done; }
    if (n == CONFIG_BYTES_MAX) { status = fl_fail(err, FL_CORRUPT, "%s: %u bytes or more are no config", path, CONFIG_BYTES_MAX); goto done; }
    *text = bytes;
    *n_bytes = n;
    bytes = NULL;
done:
    if (file) fclose(file);
    free(bytes);
    return status;
}

fl_status model_config_read(model_config *config, const char *model_dir, fl_err *err)
{
    char *json = NULL, *generation = NULL;
    size_t json_bytes = 0, generation_bytes = 0;
    fl_status status = read_text(&json, &json_bytes, model_dir, "config.json", err);
    if (status == FL_OK) {
        status = read_text(&generation, &generation_bytes, model_dir, "generation_config.json", err);
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
    config->layers = NULL;
}
