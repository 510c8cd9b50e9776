#include "engine/gguf_config.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/gguf_names.h"

/* A config.json in the making; the first failure is kept, so a maker lists its fields and looks once. */
typedef struct {
    const gguf *g;
    char arch[64], key[160];
    const char *family;
    json_t *out;                         /* borrowed */
    int64_t n_blocks, n_layers, n_heads, head_dim;       /* blocks: layers, and heads that guess further tokens behind them */
    fl_status status;
    fl_err *err;
} maker;

static bool is_family(const maker *m, const char *name) { return strcmp(m->family, name) == 0; }
static bool is_qwen3_5(const maker *m) { return is_family(m, "qwen3_5") || is_family(m, "qwen3_5_moe"); }

static void refuse(maker *m, fl_status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void refuse(maker *m, fl_status code, const char *format, ...)
{
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (m->status == FL_OK) m->status = fl_fail(m->err, code, "%s: %s", gguf_name(m->g), text);
}

static void set(maker *m, const char *field, json_t *value)
{
    if (!value || json_object_set_new(m->out, field, value) != 0) refuse(m, FL_FULL, "no memory for %s", field);
}

/* "llama." + name */
static const char *key_of(maker *m, const char *name)
{
    snprintf(m->key, sizeof m->key, "%s.%s", m->arch, name);
    return m->key;
}

/* Keep what a reader said; an absent key is no failure. */
static bool judge(maker *m, fl_status st)
{
    if (st == FL_OK || st == FL_NOT_FOUND) return st == FL_OK;
    m->status = st;
    return false;
}

/* Each returns whether the key is there; after a failure they do nothing. */
static bool read_int(maker *m, const char *name, int64_t *out)
{
    fl_err quiet = { 0 };
    if (m->status != FL_OK) return false;
    fl_status st = gguf_int(m->g, key_of(m, name), 0, INT32_MAX, out, &quiet);
    if (st != FL_OK && st != FL_NOT_FOUND && m->err) *m->err = quiet;
    return judge(m, st);
}

static bool read_number(maker *m, const char *name, double *out)
{
    fl_err quiet = { 0 };
    if (m->status != FL_OK) return false;
    fl_status st = gguf_number(m->g, key_of(m, name), out, &quiet);
    if (st != FL_OK && st != FL_NOT_FOUND && m->err) *m->err = quiet;
    return judge(m, st);
}

static void need(maker *m, const char *name) { refuse(m, FL_NOT_FOUND, "key %s is missing, which a model of this architecture needs", key_of(m, name)); }

/* The key's value as a field; absent: the field is left out. */
static bool copy_int(maker *m, const char *name, const char *field)
{
    int64_t v;
    bool is_there = read_int(m, name, &v);
    if (is_there) set(m, field, json_integer(v));
    return is_there;
}

static bool copy_number(maker *m, const char *name, const char *field)
{
    double v;
    bool is_there = read_number(m, name, &v);
    if (is_there) set(m, field, json_real(v));
    return is_there;
}

static void need_int(maker *m, const char *name, const char *field) { if (!copy_int(m, name, field)) need(m, name); }

/* A value for all layers, or an array of one a block, which is malloc'ed into *list. Returns whether the key is there. */
static bool read_layer_ints(maker *m, const char *name, int64_t *one, uint32_t **list)
{
    size_t n;
    const gguf_field *f = gguf_find(m->g, key_of(m, name));
    *list = NULL;
    if (m->status != FL_OK || !f) return false;
    if (f->kind != GGUF_ARRAY) return read_int(m, name, one);
    m->status = gguf_u32_array(m->g, m->key, (size_t)m->n_blocks, list, &n, m->err);
    return m->status == FL_OK;
}

/* The same where the layers must be alike. */
static bool read_alike(maker *m, const char *name, int64_t *out)
{
    uint32_t *list;
    bool is_there = read_layer_ints(m, name, out, &list);
    for (int64_t i = 0; list && i < m->n_layers; i++)
        if (list[i] != list[0]) { refuse(m, FL_UNSUPPORTED, "key %s differs between layers, which this architecture is not supported with", key_of(m, name)); break; }
    if (list) *out = list[0];
    free(list);
    return is_there && m->status == FL_OK;
}

/* ---- parts ---- */

static void make_sizes(maker *m)
{
    int64_t n_next = 0, ff = 0;
    const tensor *embed = gguf_tensor_find(m->g, "token_embd.weight");
    if (gguf_tensor_count(m->g) == 0) { refuse(m, FL_UNSUPPORTED, "the file holds a vocabulary and no weights; name the file of a whole model"); return; }
    if (!embed || embed->n_dims != 2) { refuse(m, FL_CORRUPT, "tensor token_embd.weight is missing or no matrix; name the file of a whole language model"); return; }
    if (!read_int(m, "block_count", &m->n_blocks)) { need(m, "block_count"); return; }
    read_int(m, "nextn_predict_layers", &n_next);
    m->n_layers = m->n_blocks - n_next;
    if (m->n_layers < 1 || m->n_layers > 1024) { refuse(m, FL_CORRUPT, "there are %lld layers; 1 to 1024 are allowed", (long long)m->n_layers); return; }
    set(m, "num_hidden_layers", json_integer(m->n_layers));
    set(m, "vocab_size", json_integer(embed->shape[0]));
    need_int(m, "embedding_length", "hidden_size");
    need_int(m, "context_length", "max_position_embeddings");
    if (read_alike(m, "feed_forward_length", &ff)) set(m, "intermediate_size", json_integer(ff));
    else if (!is_family(m, "qwen3_5_moe")) need(m, "feed_forward_length");
    if (!copy_number(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps")) need(m, "attention.layer_norm_rms_epsilon");
    set(m, "tie_word_embeddings", json_boolean(!gguf_tensor_find(m->g, "output.weight")));
}

static void make_attention(maker *m)
{
    int64_t n_kv = 0, hidden = json_integer_value(json_object_get(m->out, "hidden_size")), value_dim = 0;
    uint32_t *heads;
    if (!read_layer_ints(m, "attention.head_count", &m->n_heads, &heads)) need(m, "attention.head_count");
    if (heads) {
        json_t *list = json_array();
        for (int64_t i = 0; i < m->n_layers; i++) {
            json_array_append_new(list, json_integer(heads[i]));
            if (!is_family(m, "laguna") && heads[i] != heads[0]) refuse(m, FL_UNSUPPORTED, "key %s differs between layers, which this architecture is not supported with", key_of(m, "attention.head_count"));
        }
        m->n_heads = heads[0];
        set(m, "num_attention_heads_per_layer", list);
        free(heads);
    }
    if (m->status != FL_OK) return;
    set(m, "num_attention_heads", json_integer(m->n_heads));
    set(m, "num_key_value_heads", json_integer(read_alike(m, "attention.head_count_kv", &n_kv) ? n_kv : m->n_heads));
    if (!read_int(m, "attention.key_length", &m->head_dim)) m->head_dim = m->n_heads > 0 ? hidden / m->n_heads : 0;
    if (read_int(m, "attention.value_length", &value_dim) && value_dim != m->head_dim)
        refuse(m, FL_UNSUPPORTED, "keys have %lld and values %lld elements a head (%s), which is not supported", (long long)m->head_dim, (long long)value_dim, m->key);
    set(m, "head_dim", json_integer(m->head_dim));
    set(m, "attention_bias", json_boolean(gguf_tensor_find(m->g, "blk.0.attn_q.bias") != NULL));
    set(m, "mlp_bias", json_boolean(gguf_tensor_find(m->g, "blk.0.ffn_gate.bias") != NULL));
    if (!is_family(m, "gemma3")) return;
    set(m, "query_pre_attn_scalar", json_integer(m->n_layers == 62 && m->n_heads > 0 ? hidden / m->n_heads : m->head_dim));      /* 62 layers: the 27B model */
    copy_number(m, "final_logit_softcapping", "final_logit_softcapping");
}

static json_t *rope_form(maker *m)
{
    json_t *form = json_object();
    const char *type = "linear";                         /* what ggml's own reader takes a factor for that has no type */
    size_t n = strlen(type);
    double v, factor = 1.0;
    if (m->status == FL_OK && gguf_find(m->g, key_of(m, "rope.scaling.type"))) m->status = gguf_text(m->g, m->key, &type, &n, m->err);
    const bool has_factor = read_number(m, "rope.scaling.factor", &factor) || read_number(m, "rope.scale_linear", &factor);      /* the second as old converters wrote it */
    const bool is_linear = n == 6 && memcmp(type, "linear", n) == 0, is_none = n == 4 && memcmp(type, "none", n) == 0;
    if (m->status != FL_OK || is_none || (is_linear && (factor == 1.0 || factor == 0.0))) return form;       /* 0 stands for no factor */
    json_object_set_new(form, "rope_type", json_stringn(type, n));
    if (has_factor) json_object_set_new(form, "factor", json_real(factor));
    static const struct { const char *name, *field; } fields[] = {
        { "rope.scaling.original_context_length", "original_max_position_embeddings" }, { "rope.scaling.yarn_beta_fast", "beta_fast" },
        { "rope.scaling.yarn_beta_slow", "beta_slow" }, { "rope.scaling.yarn_attn_factor", "attention_factor" },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) if (read_number(m, fields[i].name, &v)) json_object_set_new(form, fields[i].field, json_real(v));
    return form;
}

static void make_rope(maker *m)
{
    double theta = 1e4, theta_swa = 0.0;
    read_number(m, "rope.freq_base", &theta);
    const bool has_swa = read_number(m, "rope.freq_base_swa", &theta_swa);
    json_t *form = rope_form(m);
    if (is_family(m, "laguna")) {
        json_object_set_new(form, "rope_theta", json_real(theta));
        set(m, "rope_parameters", json_pack("{s:o, s:{s:f}}", "full_attention", form, "sliding_attention", "rope_theta", has_swa ? theta_swa : theta));
        return;
    }
    set(m, "rope_theta", json_real(theta));
    if (is_family(m, "gemma3")) set(m, "rope_local_base_freq", json_real(has_swa ? theta_swa : 1e4));
    if (json_object_size(form) > 0) set(m, "rope_scaling", form);
    else json_decref(form);
}

/* Which layers slide: a period (its last layer is full, or laguna's first) or a flag a layer. */
static void make_kinds(maker *m)
{
    int64_t period = is_family(m, "laguna") ? 4 : 6, interval = 4;
    uint32_t *list = NULL;
    if (is_qwen3_5(m)) {
        read_layer_ints(m, "attention.recurrent_layers", &interval, &list);
        read_int(m, "full_attention_interval", &interval);
        if (!list) { set(m, "full_attention_interval", json_integer(interval)); return; }
    }
    const bool slides = is_family(m, "gemma3") || is_family(m, "laguna");
    if (!slides && !list) return;
    if (slides && copy_int(m, "attention.sliding_window", "sliding_window")) read_layer_ints(m, "attention.sliding_window_pattern", &period, &list);
    const bool has_window = json_integer_value(json_object_get(m->out, "sliding_window")) > 0;
    json_t *types = json_array();
    for (int64_t i = 0; i < m->n_layers; i++) {
        const bool by_period = period > 0 && (is_family(m, "laguna") ? i % period != 0 : (i + 1) % period != 0), is_other = list ? list[i] != 0 : by_period;
        json_array_append_new(types, json_string(!is_other || (slides && !has_window) ? "full_attention" : slides ? "sliding_attention" : "linear_attention"));
    }
    set(m, "layer_types", types);
    free(list);
}

static void make_linear(maker *m)
{
    int64_t inner = 0, n_v = 0;
    need_int(m, "ssm.conv_kernel", "linear_conv_kernel_dim");
    need_int(m, "ssm.state_size", "linear_key_head_dim");
    need_int(m, "ssm.group_count", "linear_num_key_heads");
    if (!read_int(m, "ssm.time_step_rank", &n_v)) need(m, "ssm.time_step_rank");
    if (!read_int(m, "ssm.inner_size", &inner)) need(m, "ssm.inner_size");
    if (m->status == FL_OK && (n_v < 1 || inner % n_v != 0)) refuse(m, FL_CORRUPT, "ssm.inner_size %lld is no multiple of ssm.time_step_rank %lld", (long long)inner, (long long)n_v);
    if (m->status != FL_OK) return;
    set(m, "linear_num_value_heads", json_integer(n_v));
    set(m, "linear_value_head_dim", json_integer(inner / n_v));
}

static void make_experts(maker *m)
{
    int64_t count = 0, ff = 0, shared = 0, gating = 0, n_dense = 0;
    const bool is_laguna = is_family(m, "laguna"), is_mixture = is_laguna || is_family(m, "qwen3_moe") || is_family(m, "qwen3_5_moe");
    const bool has = read_int(m, "expert_count", &count);
    if (!is_mixture) {
        if (has && count > 0) refuse(m, FL_UNSUPPORTED, "key %s is %lld: models of this architecture are supported without experts only", key_of(m, "expert_count"), (long long)count);
        return;
    }
    if (!has) need(m, "expert_count");
    set(m, "num_experts", json_integer(count));
    need_int(m, "expert_used_count", "num_experts_per_tok");
    if (!read_alike(m, "expert_feed_forward_length", &ff)) need(m, "expert_feed_forward_length");
    set(m, "moe_intermediate_size", json_integer(ff));
    if (!is_family(m, "qwen3_moe")) set(m, "shared_expert_intermediate_size", json_integer(read_int(m, "expert_shared_feed_forward_length", &shared) ? shared : ff));
    set(m, "norm_topk_prob", json_true());
    if (read_int(m, "expert_gating_func", &gating) && gating != 0 && gating != (is_laguna ? 2 : 1)) refuse(m, FL_UNSUPPORTED, "key %s is %lld, which is not supported for this architecture", key_of(m, "expert_gating_func"), (long long)gating);
    if (!is_laguna) return;
    copy_number(m, "expert_weights_scale", "moe_routed_scaling_factor");
    read_int(m, "leading_dense_block_count", &n_dense);
    json_t *types = json_array();
    for (int64_t i = 0; i < m->n_layers; i++) json_array_append_new(types, json_string(i < n_dense ? "dense" : "sparse"));
    set(m, "mlp_layer_types", types);
    const tensor *gate = gguf_tensor_find(m->g, "blk.0.attn_gate.weight");
    set(m, "gating", json_string(gate && gate->shape[0] == m->n_heads ? "per-head" : "per-element"));
}

/* An id that a key names. eos must be one of the vocabulary, which without a tokenizer is the embedding's; of the others one that is not there is left out, since llama.cpp's converter wrote
 * CodeLlama's eot into every llama file for a while in 2024. */
static void add_end(maker *m, json_t *ids, const char *key, bool is_eos)
{
    fl_err why = { 0 };
    gguf_strings tokens;
    int64_t id, n = json_integer_value(json_object_get(m->out, "vocab_size"));
    if (m->status != FL_OK) return;
    fl_status st = gguf_int(m->g, key, -1, UINT32_MAX, &id, &why);
    if (st == FL_NOT_FOUND) return;
    if (gguf_strings_begin(&tokens, m->g, "tokenizer.ggml.tokens", NULL) == FL_OK) n = (int64_t)tokens.left;
    if (st != FL_OK) m->status = fl_fail(m->err, st, "%s", why.text);
    else if (id == -1 || id == UINT32_MAX) return;       /* stands for none */
    else if (id < n) json_array_append_new(ids, json_integer(id));
    else if (is_eos) refuse(m, FL_CORRUPT, "key %s is %lld, and there are %lld tokens, so no completion would end; write the key anew or convert the model again", key, (long long)id, (long long)n);
}

/* Tokens that end a completion: those that keys name, and those that are called so in vocabularies whose keys name one end where the model has several. */
static void make_ends(maker *m)
{
    static const char *const keys[] = { "tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    static const char *const words[] = { "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>" };
    enum { CONTROL = 3, USER_DEFINED = 4 };              /* old converters took all added tokens for the second */
    json_t *ids = json_array();
    uint32_t *types = NULL;
    size_t n_types = 0, n;
    const char *text;
    gguf_strings tokens;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) add_end(m, ids, keys[i], i == 0);
    if (m->status == FL_OK && gguf_u32_array(m->g, "tokenizer.ggml.token_type", 0, &types, &n_types, NULL) == FL_OK && gguf_strings_begin(&tokens, m->g, "tokenizer.ggml.tokens", NULL) == FL_OK)
        for (size_t id = 0; id < n_types && gguf_strings_next(&tokens, &text, &n); id++)
            for (size_t k = 0; (types[id] == CONTROL || types[id] == USER_DEFINED) && k < sizeof words / sizeof *words; k++) {
                bool is_new = strlen(words[k]) == n && memcmp(words[k], text, n) == 0 && json_array_size(ids) < EOS_IDS_MAX;
                for (size_t i = 0; i < json_array_size(ids); i++) is_new &= json_integer_value(json_array_get(ids, i)) != (json_int_t)id;
                if (is_new) json_array_append_new(ids, json_integer((json_int_t)id));
            }
    free(types);
    set(m, "eos_token_id", ids);
}

/* generation_config.json's fields, where the file has them. */
static void make_generation(maker *m, json_t *out)
{
    static const struct { const char *key, *field; } numbers[] = { { "temp", "temperature" }, { "top_p", "top_p" }, { "min_p", "min_p" }, { "penalty_repeat", "repetition_penalty" } };
    json_t *config = m->out;
    m->out = out;
    snprintf(m->arch, sizeof m->arch, "general.sampling");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) copy_number(m, numbers[i].key, numbers[i].field);
    int64_t top_k;
    fl_status st = m->status == FL_OK ? gguf_int(m->g, "general.sampling.top_k", -1, INT32_MAX, &top_k, m->err) : m->status;      /* -1 and 0: all */
    if (st == FL_OK) set(m, "top_k", json_integer(top_k));
    else if (st != FL_NOT_FOUND) m->status = st;
    m->out = config;
}

/* ---- what config.json has no words for ---- */

static void take_rotated(maker *m, model_config *c, const char *name, int which)
{
    int64_t n_rot;
    if (!read_int(m, name, &n_rot)) return;
    if (n_rot == c->rope[which].n_rot) return;
    if (!is_qwen3_5(m) && !is_family(m, "laguna")) refuse(m, FL_UNSUPPORTED, "key %s is %lld of %d: part of a head turns, which is not supported for this architecture", m->key, (long long)n_rot, c->head_dim);
    else if (n_rot < 2 || n_rot % 2 != 0 || n_rot > c->head_dim) refuse(m, FL_CORRUPT, "key %s is %lld; an even number from 2 to %d is wanted", m->key, (long long)n_rot, c->head_dim);
    else c->rope[which].n_rot = (int32_t)n_rot;
}

/* rope_freqs.weight: llama 3's stretched rotation as a divisor of each frequency. */
static void take_factors(maker *m, model_config *c)
{
    const tensor *t = gguf_tensor_find(m->g, "rope_freqs.weight");
    const int32_t n = c->rope[0].n_rot / 2;
    if (gguf_tensor_find(m->g, "rope_factors_long.weight")) refuse(m, FL_UNSUPPORTED, "tensor rope_factors_long.weight: rotation of the kind longrope is not supported");
    if (!t || m->status != FL_OK) return;
    if (t->n_dims != 1 || t->shape[0] != n || !t->is_weight || t->type != DTYPE_F32) { refuse(m, FL_CORRUPT, "tensor rope_freqs.weight must be %d F32 values", n); return; }
    if (!(c->rope_factors = malloc((size_t)n * sizeof(float)))) { refuse(m, FL_FULL, "no memory for rope_freqs.weight"); return; }
    memcpy(c->rope_factors, t->data, (size_t)n * sizeof(float));
    for (int32_t i = 0; i < n; i++)
        if (!(c->rope_factors[i] >= 1e-6f && c->rope_factors[i] <= 1e6f)) { refuse(m, FL_CORRUPT, "value %d of tensor rope_freqs.weight is %g, which divides no frequency", i, (double)c->rope_factors[i]); return; }
    c->rope[0].factors = c->rope_factors;
}

static void finish(maker *m, model_config *c)
{
    take_rotated(m, c, "rope.dimension_count", 0);
    if (is_family(m, "laguna")) take_rotated(m, c, "rope.dimension_count_swa", 1);
    if (is_family(m, "llama")) take_factors(m, c);
    c->norm_add = 0.0f;
    c->linear.is_tiled = c->linear.n_v_heads != c->linear.n_k_heads;
}

/* Files that go with a model and are none. */
static fl_status refuse_beside(maker *m)
{
    static const struct { const char *type, *architecture, *words; } kinds[] = {
        { "adapter", "adapter", "a LoRA adapter, which is not supported by itself: merge it into its model (llama-export-lora) and name the result" },
        { "mmproj", "clip", "the part of a model that sees or hears (mmproj); name the file of its language model" },
        { "imatrix", "imatrix", "an importance matrix, which only quantizing needs; name the file of a model" },
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (gguf_text_is(m->g, "general.type", kinds[i].type) || gguf_text_is(m->g, "general.architecture", kinds[i].architecture))
            return fl_fail(m->err, FL_UNSUPPORTED, "%s: the file is %s", gguf_name(m->g), kinds[i].words);
    return FL_OK;
}

static fl_status find_architecture(maker *m)
{
    const char *text;
    size_t n;
    fl_status st = refuse_beside(m);
    if (st == FL_OK) st = gguf_text(m->g, "general.architecture", &text, &n, m->err);
    if (st != FL_OK) return st;
    m->family = gguf_family(text, n);
    if (!m->family)
        return fl_fail(m->err, FL_UNSUPPORTED, "%s: the architecture %.*s is not supported; llama, qwen3, qwen3moe, qwen35, qwen35moe, gemma3 and laguna are", gguf_name(m->g), (int)(n < 60 ? n : 60), text);
    snprintf(m->arch, sizeof m->arch, "%.*s", (int)n, text);
    return FL_OK;
}

/* ---- what is left over ---- */

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/* Tensors that a file may hold beside the language model: a reranker's head, parts that see and hear, factors of weights and of activations (weight_files_factors), the rotation
 * (take_factors; attn_rot_embd as old converters wrote it), and blocks that guess further tokens. */
static bool is_beside(const gguf *g, const char *name, int32_t n_layers)
{
    const char *text;
    char key[96];
    size_t n;
    long block = -1;
    int64_t n_next = 0;
    static const char *const begins[] = { "cls.", "v.", "mm.", "a." }, *const ends[] = { ".scale", ".input_scale", ".attn_rot_embd.weight" };
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++) if (strncmp(name, begins[i], strlen(begins[i])) == 0) return true;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) if (ends_in(name, ends[i])) return true;
    if (strcmp(name, "rope_freqs.weight") == 0) return gguf_text_is(g, "general.architecture", "llama");
    if (strncmp(name, "blk.", 4) == 0) block = strtol(name + 4, NULL, 10);
    if (block < n_layers || gguf_text(g, "general.architecture", &text, &n, NULL) != FL_OK) return false;
    snprintf(key, sizeof key, "%.*s.nextn_predict_layers", (int)(n < 60 ? n : 60), text);
    return gguf_int(g, key, 0, INT32_MAX, &n_next, NULL) == FL_OK && block < n_layers + n_next;
}

fl_status gguf_config_check_rest(const gguf *g, int32_t n_layers, const bool *is_used, fl_err *err)
{
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        if (is_used[i] || is_beside(g, t->name, n_layers)) continue;
        return fl_fail(err, FL_UNSUPPORTED, "%s: nothing here computes with tensor %s, so this variant of the architecture is not supported; name another model", t->file, t->name);
    }
    return FL_OK;
}

fl_status gguf_config_read(model_config *config, const gguf *g, fl_err *err)
{
    char what[200];
    model_config c = { 0 };
    json_t *root = json_object(), *generation = json_object();
    maker m = { .g = g, .out = root, .status = FL_OK, .err = err };
    if (!root || !generation) m.status = fl_fail(err, FL_FULL, "gguf: no memory for a config");
    else m.status = find_architecture(&m);
    if (m.status == FL_OK) {
        char arch[sizeof m.arch];
        memcpy(arch, m.arch, sizeof arch);
        set(&m, "model_type", json_string(m.family));
        make_sizes(&m);
        if (m.status == FL_OK) make_attention(&m);
        if (m.status == FL_OK) make_rope(&m);
        if (m.status == FL_OK) make_kinds(&m);
        if (m.status == FL_OK && is_qwen3_5(&m)) make_linear(&m);
        if (m.status == FL_OK) make_experts(&m);
        if (m.status == FL_OK) make_ends(&m);
        if (m.status == FL_OK) make_generation(&m, generation);
        memcpy(m.arch, arch, sizeof arch);
    }
    snprintf(what, sizeof what, "%.120s as a config.json", gguf_name(g));
    if (m.status == FL_OK) m.status = model_config_make(&c, root, generation, what, what, err);
    if (m.status == FL_OK) finish(&m, &c);
    if (m.status == FL_OK) *config = c;
    else model_config_fini(&c);
    json_decref(root);
    json_decref(generation);
    return m.status;
}
