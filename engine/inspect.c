#include "engine/inspect.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "engine/chat_template.h"
#include "engine/fingerprint.h"
#include "engine/gguf_tokenizer.h"
#include "engine/gguf_type.h"
#include "engine/memory_plan.h"
#include "engine/tokenizer.h"
#include "proto/detok.h"

#define CONTEXT_DEFAULT 4096

/* What is being put together. */
typedef struct {
    const char *dir;
    json_t *out, *problems, *notes;      /* owned */
    model *m;                            /* owned; NULL when the engine refuses the directory */
    model_config config;                 /* owned; read apart when it does */
    weight_files *weights;               /* owned; likewise */
    bool has_config, has_weights;
} inspection;

static void set(json_t *object, const char *key, json_t *value) { json_object_set_new(object, key, value); }
static void set_int(json_t *object, const char *key, int64_t value) { set(object, key, json_integer(value)); }
static void set_float(json_t *object, const char *key, double value) { set(object, key, json_real(value)); }

/* The fp32 value as people wrote it: 0.95, not 0.949999988. */
static void set_short(json_t *object, const char *key, float value)
{
    char text[32];
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    set_float(object, key, strtod(text, NULL));
}

/* A sentence once, whoever says it again. */
static void say(json_t *list, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void say(json_t *list, const char *format, ...)
{
    char text[600];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    char *whole = NULL;                                  /* a name in a sentence may have been cut inside a character */
    size_t n_bytes = 0;
    bool is_new = fl_utf8_repair((const uint8_t *)text, strlen(text), &whole, &n_bytes, NULL, NULL) == FL_OK;
    for (size_t i = 0; i < json_array_size(list); i++) is_new &= strcmp(json_string_value(json_array_get(list, i)), whole) != 0;
    if (is_new) json_array_append_new(list, json_stringn(whole, n_bytes));
    free(whole);
}

/* ---- config ---- */

static const model_config *config_of(const inspection *it) { return it->m ? model_describe(it->m) : it->has_config ? &it->config : NULL; }
static const weight_files *weights_of(const inspection *it) { return it->m ? model_weights(it->m) : it->has_weights ? it->weights : NULL; }

static const gguf *gguf_of(const inspection *it) { return weights_of(it) ? weight_files_gguf(weights_of(it)) : NULL; }

static void add_layers(json_t *out, const model_config *c)
{
    static const char *const kinds[] = { "full_attention", "sliding_attention", "linear_attention" };
    int32_t count[3] = { 0 }, mixtures = 0;
    bool is_alike = true;
    json_t *layers = json_object(), *heads = json_array();
    for (int32_t i = 0; i < c->n_layers; i++) {
        count[c->layers[i].kind]++;
        mixtures += c->layers[i].is_mixture;
        is_alike &= c->layers[i].n_heads == c->layers[0].n_heads;
        json_array_append_new(heads, json_integer(c->layers[i].n_heads));
    }
    set_int(layers, "count", c->n_layers);
    for (int i = 0; i < 3; i++) if (count[i]) set_int(layers, kinds[i], count[i]);
    if (mixtures) set_int(layers, "mixture", mixtures);
    if (mixtures < c->n_layers) set_int(layers, "dense", c->n_layers - mixtures);
    set(out, "layers", layers);
    set_int(out, "heads", c->n_heads);
    if (is_alike) json_decref(heads);
    else set(out, "heads_per_layer", heads);
}

static json_t *rope_form(const rope_config *r)
{
    static const char *const kinds[] = { [ROPE_DEFAULT] = "default", [ROPE_LINEAR] = "linear", [ROPE_YARN] = "yarn", [ROPE_LLAMA3] = "llama3" };
    json_t *form = json_object();
    set(form, "type", json_string(kinds[r->kind]));
    set_float(form, "theta", r->theta);
    set_int(form, "rotated", r->n_rot);
    if (r->kind != ROPE_DEFAULT) set_float(form, "factor", r->factor);
    if (r->kind == ROPE_YARN || r->kind == ROPE_LLAMA3) set_float(form, "original_context", r->original_context);
    if (r->kind == ROPE_YARN) set_short(form, "attention_factor", rope_attention_factor(r));
    if (r->kind == ROPE_LLAMA3) {
        set_float(form, "low_freq_factor", r->low_factor);
        set_float(form, "high_freq_factor", r->high_factor);
    }
    return form;
}

static void add_ropes(json_t *out, const model_config *c)
{
    static const char *const kinds[] = { "full_attention", "sliding_attention" };
    json_t *rope = json_object();
    for (int which = 0; which < 2; which++)
        for (int32_t i = 0; i < c->n_layers; i++)
            if (c->layers[i].kind == (which ? LAYER_SLIDING_ATTENTION : LAYER_FULL_ATTENTION)) { set(rope, kinds[which], rope_form(&c->rope[which])); break; }
    set(out, "rope", rope);
}

static void add_generation(json_t *out, const model_config *c)
{
    json_t *generation = json_object(), *ids = json_array();
    for (int32_t i = 0; i < c->n_eos; i++) json_array_append_new(ids, json_integer(c->eos_ids[i]));
    set(generation, "end_ids", ids);
    set_short(generation, "temperature", c->temperature);
    set_short(generation, "top_p", c->top_p);
    set_int(generation, "top_k", c->top_k);
    set_short(generation, "min_p", c->min_p);
    set_short(generation, "repetition_penalty", c->repetition_penalty);
    set(out, "generation", generation);
}

static void add_config(inspection *it)
{
    const model_config *c = config_of(it);
    json_t *out = it->out;
    set(out, "architecture", json_string(c->architecture));
    add_layers(out, c);
    set_int(out, "hidden_size", c->hidden);
    set_int(out, "kv_heads", c->n_kv_heads);
    set_int(out, "head_dim", c->head_dim);
    if (c->ff) set_int(out, "intermediate_size", c->ff);
    if (c->window) set_int(out, "sliding_window", c->window);
    if (c->linear.n_k_heads)
        set(out, "linear_attention", json_pack("{s:i,s:i,s:i,s:i,s:i}", "key_heads", c->linear.n_k_heads, "value_heads", c->linear.n_v_heads, "key_dim", c->linear.k_dim,
                                               "value_dim", c->linear.v_dim, "conv_width", c->linear.conv_width));
    if (c->moe.n_experts)
        set(out, "experts", json_pack("{s:i,s:i,s:i,s:i}", "count", c->moe.n_experts, "per_token", c->moe.top_k, "intermediate_size", c->moe.ff, "shared_intermediate_size", c->moe.shared_ff));
    set_int(out, "vocabulary", c->n_vocab);
    set_int(out, "context", c->context_max);
    set(out, "tied_head", json_boolean(c->tied_head));
    set(out, "attention_bias", json_boolean(c->attention_bias));
    add_ropes(out, c);
    add_generation(out, c);
}

/* A JSON file of the directory, or what a GGUF file has instead; NULL when it is absent or none. */
static json_t *load_json(const inspection *it, const char *name)
{
    json_t *made = NULL;
    if (gguf_of(it)) {
        if (strcmp(name, "tokenizer.json") == 0) gguf_tokenizer_make(&made, gguf_of(it), NULL);
        if (strcmp(name, "tokenizer_config.json") == 0) gguf_tokenizer_config_make(&made, gguf_of(it), NULL);
        return made;
    }
    char path[4096];
    struct stat info;
    if (snprintf(path, sizeof path, "%s/%s", it->dir, name) >= (int)sizeof path || stat(path, &info) != 0 || !S_ISREG(info.st_mode)) return NULL;
    return json_load_file(path, JSON_ALLOW_NUL, NULL);
}

/* What config.json says of an architecture that the engine does not know or does not take: its plain fields as they stand. */
static void add_raw_config(inspection *it)
{
    static const char *const fields[] = { "model_type", "architectures", "num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                                          "num_experts", "num_local_experts", "num_experts_per_tok", "vocab_size", "max_position_embeddings", "torch_dtype", "dtype", "tie_word_embeddings",
                                          "quantization_config" };
    json_t *root = load_json(it, "config.json"), *text = json_object_get(root, "text_config"), *said = json_object();
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        json_t *value = json_object_get(text, fields[i]) ? json_object_get(text, fields[i]) : json_object_get(root, fields[i]);
        if (value && !json_is_null(value)) json_object_set(said, fields[i], value);
    }
    if (json_object_size(said) > 0) json_object_set(it->out, "config", said);
    json_decref(said);
    json_decref(root);
}

/* ---- weights ---- */

/* counts[name] = {tensors, parameters, bytes}, grown by one tensor. */
static void count_tensor(json_t *counts, const char *name, const tensor *t)
{
    json_t *entry = json_object_get(counts, name);
    json_int_t n_values = 1;
    for (int32_t i = 0; i < t->n_dims; i++) n_values *= t->shape[i];
    if (!entry) {
        entry = json_object();
        set(counts, name, entry);
    }
    set_int(entry, "tensors", json_integer_value(json_object_get(entry, "tensors")) + 1);
    set_int(entry, "parameters", json_integer_value(json_object_get(entry, "parameters")) + n_values);
    set_int(entry, "bytes", json_integer_value(json_object_get(entry, "bytes")) + (json_int_t)t->n_bytes);
}

static void add_gguf(inspection *it, const gguf *g)
{
    int64_t number = -1;
    const char *name;
    size_t n = 0;
    json_t *out = json_object();
    set_int(out, "version", gguf_version(g));
    if (gguf_text(g, "general.name", &name, &n, NULL) == FL_OK) set(out, "name", json_stringn(name, n));
    if (gguf_int(g, "general.file_type", 0, INT32_MAX, &number, NULL) == FL_OK) set(out, "file_type", json_string(gguf_file_type_tag(number)));
    set_int(out, "keys", (int64_t)gguf_field_count(g));
    set(it->out, "gguf", out);
}

static void add_weights(inspection *it)
{
    const weight_files *st = weights_of(it);
    json_t *weights = json_object(), *dtypes = json_object(), *files = json_object(), *all = json_object();
    for (size_t i = 0; i < weight_files_count(st); i++) {
        const tensor *t = weight_files_at(st, i);
        count_tensor(dtypes, t->dtype_name, t);
        count_tensor(files, t->file, t);
        count_tensor(all, "all", t);
    }
    json_object_update(weights, json_object_get(all, "all"));
    set(weights, "dtypes", dtypes);
    set(weights, "files", files);
    set(it->out, "weights", weights);
    json_decref(all);

    if (weight_files_gguf(st)) add_gguf(it, weight_files_gguf(st));

    char fingerprint[FINGERPRINT_BYTES];
    fl_err err = { 0 };
    if (model_fingerprint(fingerprint, it->dir, st, &err) == FL_OK) set(it->out, "fingerprint", json_string(fingerprint));
    else say(it->problems, "%s", err.text);
}

/* ---- tokenizer and chat templates ---- */

/* "NFC", or the kinds of a sequence: "Split, ByteLevel". */
static json_t *kinds_of(const json_t *part, const char *list_name)
{
    char text[200] = "";
    size_t used = 0;
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *list = json_object_get(part, list_name);
    if (!type) return json_null();
    if (strcmp(type, "Sequence") != 0) return json_string(type);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *kind = json_string_value(json_object_get(json_array_get(list, i), "type"));
        if (used < sizeof text) used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "", kind ? kind : "?");
    }
    return json_string(text);
}

/* bos_token and so on of tokenizer_config.json: a string, or an object with `content`. */
static json_t *named_tokens(const inspection *it)
{
    static const char *const names[] = { "bos_token", "eos_token", "pad_token", "unk_token" };
    json_t *config = load_json(it, "tokenizer_config.json"), *tokens = json_object();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        json_t *token = json_object_get(config, names[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token)) json_object_set(tokens, names[i], token);
    }
    json_decref(config);
    return tokens;
}

static void describe_tokenizer(inspection *it, const tokenizer *t)
{
    json_t *root = load_json(it, "tokenizer.json"), *bpe_part = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens"), *out = json_object();
    size_t n_special = 0;
    for (size_t i = 0; i < json_array_size(added); i++) n_special += json_is_true(json_object_get(json_array_get(added, i), "special"));
    const char *kind = json_string_value(json_object_get(bpe_part, "type"));
    set(out, "model", kind ? json_string(kind) : json_null());
    set(out, "byte_fallback", json_boolean(json_is_true(json_object_get(bpe_part, "byte_fallback"))));
    set(out, "normalizer", kinds_of(json_object_get(root, "normalizer"), "normalizers"));
    set(out, "pre_tokenizer", kinds_of(json_object_get(root, "pre_tokenizer"), "pretokenizers"));
    set(out, "post_processor", kinds_of(json_object_get(root, "post_processor"), "processors"));
    if (t) set_int(out, "vocabulary", tokenizer_vocab(t));
    set_int(out, "added_tokens", (int64_t)json_array_size(added));
    set_int(out, "special_tokens", (int64_t)n_special);
    set(out, "named_tokens", named_tokens(it));
    set(it->out, "tokenizer", out);
    json_decref(root);
}

static void add_tokenizer(inspection *it)
{
    tokenizer *t = NULL;
    fl_err err = { 0 };
    const model_config *c = config_of(it);
    fl_status st = tokenizer_open_model(&t, it->dir, &err);
    if (st == FL_NOT_FOUND) {
        set(it->out, "tokenizer", json_null());
        say(it->notes, "there is no %s: only rows of token ids run, and their text is empty", gguf_of(it) ? "tokenizer" : "tokenizer.json");
        return;
    }
    if (st != FL_OK) say(it->problems, "%s", err.text);
    describe_tokenizer(it, t);
    json_t *open = gguf_of(it) ? gguf_tokenizer_notes(gguf_of(it)) : NULL;
    for (size_t i = 0; i < json_array_size(open); i++) say(it->notes, "%s", json_string_value(json_array_get(open, i)));
    json_decref(open);
    if (t && c && tokenizer_vocab(t) > c->n_vocab)
        say(it->notes, "the tokenizer has %d ids, the model %d: a text that needs one of the others is a row error", tokenizer_vocab(t), c->n_vocab);
    tokenizer_close(t);
}

static void add_templates(inspection *it)
{
    json_t *names = NULL;
    fl_err err = { 0 };
    fl_status st = chat_template_names(&names, it->dir, &err);
    set(it->out, "chat_templates", st == FL_OK ? names : json_array());
    if (st == FL_NOT_FOUND) say(it->notes, "there is no chat template: rows with messages are row errors");
    else if (st != FL_OK) say(it->notes, "%s: rows with messages are row errors", err.text);
}

/* ---- memory ---- */

static fl_status add_memory(inspection *it, int32_t n_sequences, int32_t context, fl_err *err)
{
    const int32_t most = model_describe(it->m)->context_max, wanted = context > 0 ? context : CONTEXT_DEFAULT, tokens = wanted < most ? wanted : most;
    const engine_options options = { .batch_max = n_sequences, .context_max = tokens, .kv_tokens = (int64_t)n_sequences * kv_blocks_of(tokens) * OPS_BLOCK_TOKENS };
    memory_plan p;
    ops *o = NULL;
    fl_status st = ops_cpu_open(&o, 1, err);
    if (st != FL_OK) return st;
    st = memory_plan_make(&p, it->m, o, &options, err);
    o->close(o);
    if (st != FL_OK) return st;
    if (context > most) say(it->notes, "the model's context is %d tokens: memory is for that, not for %d", most, context);

    json_t *memory = json_object();
    set_int(memory, "sequences", n_sequences);
    set_int(memory, "tokens_each", tokens);
    set_int(memory, "weights_mapped", (int64_t)p.mapped);
    set_int(memory, "weights_expanded", (int64_t)p.expanded);
    set_int(memory, "tables", (int64_t)p.tables);
    set_int(memory, "activations", (int64_t)p.activations);
    set_int(memory, "logits", (int64_t)p.logits);
    set_int(memory, "kv_each", (int64_t)p.sequence_kv);
    set_int(memory, "kv", (int64_t)p.kv);
    set_int(memory, "state_each", (int64_t)p.sequence_state);
    set_int(memory, "states", (int64_t)p.states);
    set_int(memory, "total", (int64_t)(p.mapped + memory_plan_taken(&p)));
    set_int(memory, "machine", (int64_t)memory_plan_machine());
    set(it->out, "memory", memory);
    if (memory_plan_check(&p, NULL) != FL_OK)
        say(it->notes, "%d sequences of %d tokens take %.2f GB beside the mapped weights, and this machine has %.2f GB", n_sequences, tokens, (double)memory_plan_taken(&p) / 1e9,
            (double)memory_plan_machine() / 1e9);
    return FL_OK;
}

/* ---- all of it ---- */

static fl_status check_directory(const char *dir, fl_err *err)
{
    struct stat info;
    if (stat(dir, &info) != 0 && errno == ENOENT) return fl_fail(err, FL_NOT_FOUND, "there is no %s; name a model directory or a .gguf file", dir);
    if (stat(dir, &info) != 0) return fl_fail_errno(err, errno, "cannot look at %s", dir);
    if (!S_ISDIR(info.st_mode) && !gguf_is_path(dir)) return fl_fail(err, FL_INVALID, "%s is a file; name the directory that holds config.json and the weights, or a .gguf file", dir);
    return FL_OK;
}

/* Open it as the engine does; where that is refused, what is there is read apart. FL_NOT_FOUND: there is nothing of a model. */
static fl_status open_parts(inspection *it, fl_err *err)
{
    fl_err refused = { 0 }, no_weights = { 0 }, no_config = { 0 };
    if (model_map(&it->m, it->dir, &refused) == FL_OK) return FL_OK;
    fl_status config = model_config_read(&it->config, it->dir, &no_config), weights = weight_files_open(&it->weights, it->dir, &no_weights);
    it->has_config = config == FL_OK;
    it->has_weights = weights == FL_OK;
    if (config == FL_NOT_FOUND && weights == FL_NOT_FOUND && !gguf_is_path(it->dir))
        return fl_fail(err, FL_NOT_FOUND, "%s has neither a config.json nor weights in safetensors files; name a model directory or a .gguf file", it->dir);
    say(it->problems, "%s", refused.text);
    if (config != FL_OK) say(it->problems, "%s", no_config.text);
    if (weights != FL_OK) say(it->problems, "%s", no_weights.text);
    return FL_OK;
}

fl_status inspect_model(json_t **out, const char *model_dir, int32_t n_sequences, int32_t context, fl_err *err)
{
    inspection it = { .dir = model_dir, .out = json_object(), .problems = json_array(), .notes = json_array() };
    fl_status st = it.out && it.problems && it.notes ? FL_OK : fl_fail(err, FL_FULL, "inspect: no memory");
    if (st == FL_OK) st = check_directory(model_dir, err);
    if (st == FL_OK) st = open_parts(&it, err);
    if (st != FL_OK) goto done;

    if (config_of(&it)) add_config(&it);
    else add_raw_config(&it);
    if (weights_of(&it)) add_weights(&it);
    if (gguf_is_path(it.dir) && !weights_of(&it)) {      /* nobody can read the file: its problems say why */
        set(it.out, "tokenizer", json_null());
        set(it.out, "chat_templates", json_array());
    } else {
        add_tokenizer(&it);
        add_templates(&it);
    }
    if (it.m && (st = add_memory(&it, n_sequences, context, err)) != FL_OK) goto done;
    set(it.out, "supported", json_boolean(json_array_size(it.problems) == 0));
    json_object_set(it.out, "problems", it.problems);
    json_object_set(it.out, "notes", it.notes);
    *out = json_incref(it.out);
done:
    model_close(it.m);
    model_config_fini(&it.config);
    weight_files_close(it.weights);
    json_decref(it.out);
    json_decref(it.problems);
    json_decref(it.notes);
    return st;
}
