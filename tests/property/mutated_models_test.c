/* 10,000 model directories with one or two things wrong in them (fewer under a sanitizer), opened as a worker opens a model: engine, tokenizer, chat templates, a few tokens
 * when it opens, and `inspect`, which must say the same. Each is an error with a sentence or a good load; never a crash, a hang (20 s), or heap beyond what its files warrant.
 * The mutants: config.json, generation_config.json, tokenizer.json, tokenizer_config.json, chat_template.jinja, the header, data, shards and index of the weights; bytes of them as
 * in mutated_test, JSON that stays JSON with hostile values, and weight files that are whole but not the config's. The seed is printed; TOKENFLEET_TEST_SEED gives another;
 * `mutated_models_test SEED NUMBER` makes and opens one directory again. */
#include <math.h>
#include <sys/stat.h>
#include "engine/chat_template.h"
#include "tests/mutant_models.h"

#if defined(__SANITIZE_ADDRESS__)
#define MUTANTS 2000
#else
#define MUTANTS 10000
#endif
#define HELPERS_EVERY 40                 /* a mutant of the templates is rendered, which starts a Python, so often */
#define HEAP_FIXED (24u << 20)           /* a config's buffer of 16 MB before it is cut to its size; later the tokenizer's tables of all characters, and the engine's own rows */
#define HEAP_JSON_BYTE 400               /* trees and vocabularies, as in mutated_test */
#define HEAP_WEIGHT_BYTE 8               /* F8_E4M3 as fp32 */

static const char *const models[] = { "small_llama", "small_qwen3", "small_qwen3_moe", "small_qwen3_5", "small_qwen3_5_moe", "small_laguna", "small_gemma3", "odd_f8", "odd_f8_moe", "odd_fused",
                                      "odd_three" };
static const char *const tokenizers[] = { "qwen2", "llama3", "gpt2", "gemma3", "llama2", "laguna", "smollm2", "spaces_first", "tekken", "phi3", "qwen3_5" };
enum { N_MODELS = sizeof models / sizeof *models, N_TOKENIZERS = sizeof tokenizers / sizeof *tokenizers };
static const char tokenizer_config[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"special\": true}, \"model_max_length\": 100, \"chat_template\": [{\"name\": \"default\", \"template\": "
    "\"{% for m in messages %}{{ bos_token }}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}\"}, {\"name\": \"tool_use\", \"template\": \"{{ tools | tojson }}\"}]}";
static const char jinja[] = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";
static const char generation[] = "{\"eos_token_id\": [1, 2], \"temperature\": 0.6, \"top_p\": 0.95, \"top_k\": 20, \"min_p\": 0.0, \"repetition_penalty\": 1.05}";

typedef enum { CONFIG, GENERATION, WEIGHTS, WEIGHTS_2, INDEX, TOKENIZER, TOKENIZER_CONFIG, JINJA, N_FILES } file_kind;
static const char *const file_names[N_FILES] = { "config.json", "generation_config.json", "model-1.safetensors", "model-2.safetensors", "model.safetensors.index.json", "tokenizer.json",
                                                 "tokenizer_config.json", "chat_template.jinja" };
/* A directory in memory; a file without data is not there. data is owned. */
typedef struct { mutate_sample files[N_FILES]; bool is_single; } directory;      /* is_single: WEIGHTS is model.safetensors */

static directory pristine[N_MODELS];
static char folder[64];

/* ---- files ---- */

static mutate_sample copy_bytes(const void *data, size_t n_bytes)
{
    mutate_sample s = { malloc(n_bytes + 1), n_bytes };
    assert_non_null(s.data);
    memcpy(s.data, data, n_bytes);
    return s;
}

static mutate_sample read_sample(const char *path)
{
    FILE *file = fopen(path, "rbe");
    struct stat info;
    if (!file || fstat(fileno(file), &info) != 0) fail_msg("cannot read %s", path);
    mutate_sample s = { malloc((size_t)info.st_size + 1), (size_t)info.st_size };
    assert_non_null(s.data);
    assert_int_equal(fread(s.data, 1, s.n_bytes, file), s.n_bytes);
    fclose(file);
    return s;
}

static void put(directory *d, file_kind kind, mutate_sample s)
{
    free(d->files[kind].data);
    d->files[kind] = s;
}

static void put_json(directory *d, file_kind kind, const json_t *json)
{
    char *text = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT);
    assert_non_null(text);
    put(d, kind, (mutate_sample){ (uint8_t *)text, strlen(text) });
}

static void directory_fini(directory *d) { for (int i = 0; i < N_FILES; i++) put(d, (file_kind)i, (mutate_sample){ 0 }); }

static const char *name_of(const directory *d, file_kind kind) { return kind == WEIGHTS && d->is_single ? "model.safetensors" : file_names[kind]; }

static void write_directory(const directory *d)
{
    char path[160];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    unlink(path);
    for (int i = 0; i < N_FILES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, file_names[i]);
        unlink(path);
        if (!d->files[i].data) continue;
        snprintf(path, sizeof path, "%s/%s", folder, name_of(d, (file_kind)i));
        FILE *file = fopen(path, "wbe");
        assert_non_null(file);
        assert_int_equal(fwrite(d->files[i].data, 1, d->files[i].n_bytes, file), d->files[i].n_bytes);
        assert_int_equal(fclose(file), 0);
    }
}

static void load_pristine(void)
{
    char path[512];
    for (int i = 0; i < N_MODELS; i++) {
        directory *d = &pristine[i];
        d->is_single = true;
        snprintf(path, sizeof path, TESTS_DIR "/golden/models/%s/config.json", models[i]);
        put(d, CONFIG, read_sample(path));
        snprintf(path, sizeof path, TESTS_DIR "/golden/models/%s/model.safetensors", models[i]);
        put(d, WEIGHTS, read_sample(path));
        snprintf(path, sizeof path, TESTS_DIR "/golden/tokenizers/%s.json", tokenizers[i % N_TOKENIZERS]);
        put(d, TOKENIZER, read_sample(path));
        put(d, GENERATION, copy_bytes(generation, sizeof generation - 1));
        put(d, TOKENIZER_CONFIG, copy_bytes(tokenizer_config, sizeof tokenizer_config - 1));
        if (i % 2) put(d, JINJA, copy_bytes(jinja, sizeof jinja - 1));
    }
}

/* ---- JSON that stays JSON ---- */

static json_t *nested(int depth)
{
    json_t *list = json_array();
    for (int i = 0; i < depth; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, list);
        list = outer;
    }
    return list;
}

static json_t *hostile_value(mutate_random *r)
{
    static const json_int_t integers[] = { 0, 1, -1, 2, 3, 5, 7, 8, 16, 63, 64, 65, 127, 128, 255, 256, 257, 511, 512, 1023, 1024, 1025, 4096, 65535, 65536, 1 << 20, 1 << 24, 1000000000, INT32_MAX,
                                           (json_int_t)INT32_MAX + 1, 1ll << 32, 1ll << 40, INT64_MAX, INT64_MIN, INT64_MIN + 1 };
    static const double reals[] = { 0.0, -0.0, 0.5, 0.25, -1.5, 1e-300, 1e300, 1e38, 1e39, 1e-38, 4.9e-324, 1.0, 2.0, 1e6, 1e12, 1e15, 3.0000001 };
    static const char *const words[] = { "", "x", "default", "linear", "yarn", "llama3", "longrope", "dynamic", "full_attention", "sliding_attention", "linear_attention", "sparse", "dense", "silu", "gelu",
                                         "gelu_pytorch_tanh", "llama", "qwen3", "qwen3_moe", "qwen3_5_text", "qwen3_5_moe", "laguna", "gemma3", "gemma3_text", "per-head", "per-element", "fp8",
                                         "compressed-tensors", "BF16", "F16", "F32", "F64", "I8", "BOOL", "F8_E4M3", "F8_E5M2", "model.safetensors", "model-1.safetensors", "../../etc/passwd", "/dev/zero",
                                         "ByteLevel", "Split", "Sequence", "NFC", "Replace", "Prepend", "Metaspace", "TemplateProcessing", "BPE", "(a*)*$", "[^\\p{L}]{1,65535}", "\xe2\x96\x81", "\xf0\x9f\x98\x80",
                                         "{% for x in range(10**9) %}{{ x }}{% endfor %}", "{{ messages[99] }}", "{% bad", "lm_head.weight", "model.norm.weight" };
    switch (mutate_below(r, 12)) {
    case 0: case 1: case 2: case 3: return json_integer(integers[mutate_below(r, sizeof integers / sizeof *integers)]);
    case 4: case 5: return json_real(reals[mutate_below(r, sizeof reals / sizeof *reals)]);
    case 6: case 7: return json_string(words[mutate_below(r, sizeof words / sizeof *words)]);
    case 8: return json_boolean(mutate_below(r, 2));
    case 9: return json_null();
    case 10: return mutate_below(r, 2) ? nested((int)mutate_below(r, 2000)) : json_array();
    default: return json_object();
    }
}

/* A value near the old one: sizes that are nearly right get furthest. The first and the last wrap, since an earlier mutation may have put them there. */
static json_t *near_value(const json_t *old, mutate_random *r)
{
    json_int_t v = json_integer_value(old), changed[] = { (json_int_t)((uint64_t)v + 1), (json_int_t)((uint64_t)v - 1), 2 * (v & 0xffffffff), v / 2, -(v & 0xffffffff), v ^ 1, v & ~(json_int_t)7 };
    if (json_is_integer(old)) return json_integer(changed[mutate_below(r, 7)]);
    if (json_is_real(old)) return json_real(json_real_value(old) * (mutate_below(r, 2) ? 1e3 : 1e-3));
    if (json_is_boolean(old)) return json_boolean(!json_is_true(old));
    return hostile_value(r);
}

/* One value of the tree, each with the same chance. */
typedef struct { json_t *parent; char key[128]; size_t index, n_seen; } slot;

static void visit(json_t *value, slot *s, mutate_random *r)
{
    const char *key;
    json_t *child;
    size_t i;
    json_object_foreach(value, key, child) {
        if (mutate_below(r, ++s->n_seen) == 0) { s->parent = value; snprintf(s->key, sizeof s->key, "%s", key); }
        if (json_is_object(child) || json_is_array(child)) visit(child, s, r);
    }
    json_array_foreach(value, i, child) {
        if (mutate_below(r, ++s->n_seen) == 0) { s->parent = value; s->index = i; }
        if (json_is_object(child) || json_is_array(child)) visit(child, s, r);
    }
}

static json_t *slot_value(const slot *s) { return json_is_object(s->parent) ? json_object_get(s->parent, s->key) : json_array_get(s->parent, s->index); }

static void slot_set(const slot *s, json_t *value)
{
    if (json_is_object(s->parent)) json_object_set_new(s->parent, s->key, value);
    else json_array_set_new(s->parent, s->index, value);
}

/* Fields that mean something, where they may not have been. */
static void add_field(json_t *root, mutate_random *r)
{
    static const char *const fields[] = {
        "{\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 1000000.0, \"original_max_position_embeddings\": 1}}",
        "{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 1, \"high_freq_factor\": 1.0000001, \"original_max_position_embeddings\": 1}}",
        "{\"rope_parameters\": {\"full_attention\": {}, \"sliding_attention\": {\"rope_type\": \"linear\"}}}",
        "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [1, 1]}}", "{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [1048576, 1048576]}}",
        "{\"use_sliding_window\": true, \"sliding_window\": 1, \"max_window_layers\": 0}", "{\"max_position_embeddings\": 16777216}", "{\"max_position_embeddings\": 1}", "{\"attention_bias\": true}",
        "{\"tie_word_embeddings\": false}", "{\"tie_word_embeddings\": true}", "{\"mlp_bias\": true}", "{\"num_experts\": 4096, \"num_experts_per_tok\": 64}", "{\"num_experts_per_tok\": 1}",
        "{\"eos_token_id\": [2147483647, 0]}", "{\"text_config\": {\"model_type\": \"llama\"}}", "{\"text_config\": {}, \"vision_config\": {}}", "{\"layer_types\": []}", "{\"head_dim\": 256}",
        "{\"partial_rotary_factor\": 1.0}", "{\"partial_rotary_factor\": 1e-9}", "{\"mlp_only_layers\": [0, 1, 2, 3]}", "{\"decoder_sparse_step\": 2}", "{\"final_logit_softcapping\": 1e-30}",
        "{\"query_pre_attn_scalar\": 1e-6}", "{\"rms_norm_eps\": 0}", "{\"linear_conv_kernel_dim\": 1}", "{\"linear_conv_kernel_dim\": 8}", "{\"num_hidden_layers\": 1}", "{\"num_hidden_layers\": 1024}",
        "{\"vocab_size\": 1}", "{\"vocab_size\": 4194304}", "{\"hidden_size\": 65536}", "{\"num_key_value_heads\": 1}", "{\"moe_router_logit_softcapping\": 1e-38}", "{\"temperature\": 0, \"top_k\": 1}",
    };
    json_t *more = json_loads(fields[mutate_below(r, sizeof fields / sizeof *fields)], 0, NULL);
    assert_non_null(more);
    json_object_update(json_is_object(json_object_get(root, "text_config")) && mutate_below(r, 2) ? json_object_get(root, "text_config") : root, more);
    json_decref(more);
}

static void change_tree(json_t *root, mutate_random *r)
{
    slot s = { 0 }, other = { 0 };
    visit(root, &s, r);
    if (!s.parent) return;
    switch (mutate_below(r, 9)) {
    case 0: case 1: slot_set(&s, hostile_value(r)); break;
    case 2: case 3: slot_set(&s, near_value(slot_value(&s), r)); break;
    case 4:
        if (json_is_object(s.parent)) json_object_del(s.parent, s.key);
        else json_array_remove(s.parent, s.index);
        break;
    case 5:                                                                                  /* another value of the tree, of whatever type */
        visit(root, &other, r);
        slot_set(&s, json_deep_copy(slot_value(&other)));
        break;
    case 6:
        if (json_is_array(s.parent)) json_array_insert_new(s.parent, s.index, json_deep_copy(slot_value(&s)));
        else json_object_set_new(s.parent, "another", json_deep_copy(slot_value(&s)));
        break;
    default: add_field(root, r); break;
    }
}

/* A key twice in the outermost object. */
static void double_key(directory *d, file_kind kind, mutate_random *r)
{
    json_t *root = json_loadb((const char *)d->files[kind].data, d->files[kind].n_bytes, JSON_ALLOW_NUL, NULL), *value = hostile_value(r);
    slot s = { 0 };
    visit(root, &s, r);
    char *text = json_is_object(root) && s.parent == root ? json_dumps(value, JSON_ENCODE_ANY) : NULL;
    if (text) {
        size_t n = d->files[kind].n_bytes + strlen(text) + sizeof s.key + 16;
        char *made = malloc(n);
        const char *brace = memchr(d->files[kind].data, '{', d->files[kind].n_bytes);
        assert_true(made && brace);
        size_t begin = (size_t)(brace + 1 - (const char *)d->files[kind].data);
        int used = snprintf(made, n, "{\"%s\": %s,", s.key, text);
        memcpy(made + used, brace + 1, d->files[kind].n_bytes - begin);
        put(d, kind, (mutate_sample){ (uint8_t *)made, (size_t)used + d->files[kind].n_bytes - begin });
    }
    free(text);
    json_decref(value);
    json_decref(root);
}

static void change_json(directory *d, file_kind kind, mutate_random *r)
{
    json_t *root = json_loadb((const char *)d->files[kind].data, d->files[kind].n_bytes, JSON_ALLOW_NUL, NULL);
    assert_non_null(root);
    for (size_t n = 1 + mutate_below(r, 2); n > 0; n--) change_tree(root, r);
    put_json(d, kind, root);
    json_decref(root);
}

/* Bytes, as in mutated_test; a large file keeps what lies behind the first 60 kB. */
static void change_bytes(directory *d, file_kind kind, mutate_random *r)
{
    mutate_sample *s = &d->files[kind], head = { malloc(MUTATE_BYTES_MAX), 0 };
    size_t n_head = s->n_bytes < 60 * 1024 ? s->n_bytes : 60 * 1024, n_tail = s->n_bytes - n_head;
    assert_non_null(head.data);
    memcpy(head.data, s->data, n_head);
    head.n_bytes = n_head;
    for (size_t n = 1 + mutate_below(r, 3); n > 0; n--) mutate_step(&head, &pristine[mutate_below(r, N_MODELS)].files[CONFIG], r);
    uint8_t *made = malloc(head.n_bytes + n_tail + 1);
    assert_non_null(made);
    memcpy(made, head.data, head.n_bytes);
    memcpy(made + head.n_bytes, s->data + n_head, n_tail);
    free(head.data);
    put(d, kind, (mutate_sample){ made, head.n_bytes + n_tail });
}

/* ---- weights ---- */

/* A weight file taken apart: header (owned) and data (borrowed). */
typedef struct { json_t *header; const uint8_t *data; size_t n_bytes; } weight_parts;

static weight_parts take_apart(const mutate_sample *s)
{
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | s->data[i];
    weight_parts p = { json_loadb((const char *)s->data + 8, (size_t)n, 0, NULL), s->data + 8 + n, s->n_bytes - 8 - (size_t)n };
    assert_non_null(p.header);
    return p;
}

/* A file of a header that lies, over data as it is. */
static mutate_sample put_together(const json_t *header, const uint8_t *data, size_t n_bytes)
{
    char *text = json_dumps(header, JSON_COMPACT | JSON_ENCODE_ANY);
    assert_non_null(text);
    size_t n = strlen(text), padded = (n + 7) / 8 * 8;
    mutate_sample s = { malloc(8 + padded + n_bytes + 1), 8 + padded + n_bytes };
    assert_non_null(s.data);
    for (int i = 0; i < 8; i++) s.data[i] = (uint8_t)((uint64_t)padded >> 8 * i);
    memset(s.data + 8, ' ', padded);
    memcpy(s.data + 8, text, n);
    memcpy(s.data + 8 + padded, data, n_bytes);
    free(text);
    return s;
}

static size_t value_bytes(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "I32") == 0 ? 4 : strcmp(dtype, "F64") == 0 || strcmp(dtype, "I64") == 0 ? 8 : strcmp(dtype, "BF16") == 0 || strcmp(dtype, "F16") == 0 ? 2 : 1;
}

/* A file that is whole: the tensors for which `keep` holds, laid out anew in order of their width, each with the bytes that its shape and dtype need (its own, again and again). */
static mutate_sample lay_out(const weight_parts *p, const char *skip_from, bool behind)
{
    json_t *header = json_object(), *entry;
    size_t capacity = 64, at = 0;
    uint8_t *data = malloc(capacity);
    const char *name;
    assert_non_null(data);
    for (size_t width = 8; width > 0; width /= 2)
        json_object_foreach(p->header, name, entry) {
            const char *dtype = json_string_value(json_object_get(entry, "dtype"));
            if (!dtype || value_bytes(dtype) != width || (skip_from && (strcmp(name, skip_from) >= 0) != behind)) continue;
            const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
            size_t n = width, begin = (size_t)json_integer_value(json_array_get(offsets, 0)), end = (size_t)json_integer_value(json_array_get(offsets, 1));
            for (size_t i = 0; i < json_array_size(shape); i++) n *= (size_t)json_integer_value(json_array_get(shape, i));
            if (n > 1 << 22) n = 0;                                                          /* a shape that lies stays a lie */
            if (at + n > capacity) {
                capacity = 2 * (at + n);
                data = realloc(data, capacity);
                assert_non_null(data);
            }
            for (size_t i = 0; i < n; i++) data[at + i] = end > begin && end <= p->n_bytes ? p->data[begin + i % (end - begin)] : 0;
            json_object_set_new(header, name, json_pack("{s:s,s:O,s:[I,I]}", "dtype", dtype, "shape", shape, "data_offsets", (json_int_t)at, (json_int_t)(at + n)));
            at += n;
        }
    mutate_sample s = put_together(header, data, at);
    json_decref(header);
    free(data);
    return s;
}

static const char *random_tensor(const json_t *header, mutate_random *r)
{
    const char *name, *chosen = NULL;
    json_t *entry;
    size_t n = 0;
    json_object_foreach((json_t *)header, name, entry) if (strcmp(name, "__metadata__") != 0 && mutate_below(r, ++n) == 0) chosen = name;
    return chosen;
}

static json_t *random_shape(const json_t *old, mutate_random *r)
{
    static const json_int_t sizes[] = { 0, 1, 2, 3, 16, 32, 64, 65, 128, 256, 1000 };
    json_t *shape = json_deep_copy(old);
    switch (mutate_below(r, 5)) {
    case 0: json_array_insert_new(shape, mutate_below(r, json_array_size(shape) + 1), json_integer(1)); break;
    case 1: json_array_remove(shape, 0); break;
    case 2:                                                                                  /* transposed */
        if (json_array_size(shape) > 1) {
            json_array_append(shape, json_array_get(shape, 0));
            json_array_remove(shape, 0);
        }
        break;
    default: if (json_array_size(shape) > 0) json_array_set_new(shape, mutate_below(r, json_array_size(shape)), json_integer(sizes[mutate_below(r, 11)])); break;
    }
    return shape;
}

/* One tensor is another's, gone, or of another shape or dtype, in a file that is whole. */
static void change_tensor(directory *d, mutate_random *r)
{
    static const char *const dtypes[] = { "BF16", "F16", "F32", "F8_E4M3", "I32", "F64", "BOOL", "F8_E5M2", "I64" };
    weight_parts p = take_apart(&d->files[WEIGHTS]);
    for (size_t n = 1 + mutate_below(r, 2); n > 0; n--) {
        const char *name = random_tensor(p.header, r);
        if (!name) break;
        json_t *entry = json_object_get(p.header, name);
        char longer[300];
        switch (mutate_below(r, 5)) {
        case 0: json_object_set_new(entry, "shape", random_shape(json_object_get(entry, "shape"), r)); break;
        case 1: json_object_set_new(entry, "dtype", json_string(dtypes[mutate_below(r, 9)])); break;
        case 2: json_object_del(p.header, name); break;
        case 3: json_object_set(p.header, random_tensor(p.header, r), entry); break;
        default:
            snprintf(longer, sizeof longer, "%s%s", name, mutate_below(r, 2) ? "_scale_inv" : "_scale");
            json_object_set(p.header, longer, json_object_get(p.header, random_tensor(p.header, r)));
            break;
        }
    }
    put(d, WEIGHTS, lay_out(&p, NULL, false));
    json_decref(p.header);
}

static void change_header(directory *d, mutate_random *r)
{
    weight_parts p = take_apart(&d->files[WEIGHTS]);
    for (size_t n = 1 + mutate_below(r, 2); n > 0; n--) change_tree(p.header, r);
    put(d, WEIGHTS, put_together(p.header, p.data, p.n_bytes));
    json_decref(p.header);
}

/* Values become NaN, infinite or large; or the file is cut or grows. */
static void change_data(directory *d, mutate_random *r)
{
    mutate_sample *s = &d->files[WEIGHTS];
    size_t at = mutate_below(r, s->n_bytes);
    switch (mutate_below(r, 4)) {
    case 0: s->n_bytes = at; break;
    case 1: for (size_t i = 0; i < 16 && at + i < s->n_bytes; i++) s->data[at + i] = 0xff; break;
    case 2: for (size_t n = 1 + mutate_below(r, 200); n > 0; n--) s->data[mutate_below(r, s->n_bytes)] ^= (uint8_t)(1u << mutate_below(r, 8)); break;
    default: {
        mutate_sample more = { malloc(s->n_bytes + 100), s->n_bytes + mutate_below(r, 99) + 1 };
        assert_non_null(more.data);
        memcpy(more.data, s->data, s->n_bytes);
        memset(more.data + s->n_bytes, 0, more.n_bytes - s->n_bytes);
        put(d, WEIGHTS, more);
    }
    }
}

/* Two shards and their index; then one of the three is not as it should be. */
static void change_shards(directory *d, mutate_random *r)
{
    weight_parts p = take_apart(&d->files[WEIGHTS]);
    const char *cut = random_tensor(p.header, r), *name;
    json_t *map = json_object(), *entry, *index;
    json_object_foreach(p.header, name, entry) if (strcmp(name, "__metadata__") != 0) json_object_set_new(map, name, json_string(file_names[strcmp(name, cut) >= 0 ? WEIGHTS_2 : WEIGHTS]));
    mutate_sample first = lay_out(&p, cut, false), second = lay_out(&p, cut, true);
    index = json_pack("{s:{s:i},s:o}", "metadata", "total_size", 1, "weight_map", map);
    d->is_single = false;
    switch (mutate_below(r, 8)) {
    case 0: free(second.data); second = (mutate_sample){ 0 }; break;                         /* a shard is missing */
    case 1: free(second.data); second = lay_out(&p, NULL, false); break;                     /* tensors in both */
    case 2: free(second.data); second = copy_bytes(first.data, first.n_bytes); break;
    case 3: case 4: case 5: change_tree(index, r); break;
    case 6: second.n_bytes = mutate_below(r, second.n_bytes); break;
    default: break;                                                                          /* as it should be */
    }
    put(d, WEIGHTS, first);
    put(d, WEIGHTS_2, second);
    put_json(d, INDEX, index);
    json_decref(index);
    json_decref(p.header);
    if (mutate_below(r, 8) == 0) change_bytes(d, INDEX, r);
}

/* ---- mutants ---- */

/* Make directory `number`. Returns whether its chat templates are what was changed. */
static bool make_mutant(directory *d, uint64_t number)
{
    mutate_random r = { mutant_seed ^ number * 0xD1342543DE82EF95u };
    const directory *from = &pristine[number % N_MODELS];
    *d = (directory){ .is_single = true };
    for (int i = 0; i < N_FILES; i++) if (from->files[i].data) d->files[i] = copy_bytes(from->files[i].data, from->files[i].n_bytes);
    if (number < N_MODELS) return true;                  /* the first ones are good */
    switch (mutate_below(&r, 20)) {
    case 0: case 1: case 2: case 3: case 4: change_json(d, CONFIG, &r); break;
    case 5: if (mutate_below(&r, 3)) change_bytes(d, CONFIG, &r); else double_key(d, CONFIG, &r); break;
    case 6: case 7: case 8: change_tensor(d, &r); break;
    case 9: case 10: change_header(d, &r); break;
    case 11: change_bytes(d, WEIGHTS, &r); break;
    case 12: change_data(d, &r); break;
    case 13: change_shards(d, &r); break;
    case 14: change_json(d, TOKENIZER, &r); break;
    case 15: change_bytes(d, TOKENIZER, &r); break;
    case 16: if (mutate_below(&r, 2)) change_json(d, GENERATION, &r); else change_bytes(d, GENERATION, &r); break;
    case 17: if (mutate_below(&r, 2)) change_json(d, TOKENIZER_CONFIG, &r); else change_bytes(d, TOKENIZER_CONFIG, &r); return true;
    case 18: if (d->files[JINJA].data) change_bytes(d, JINJA, &r); else change_json(d, TOKENIZER_CONFIG, &r); return true;
    default: put(d, (file_kind)mutate_below(&r, N_FILES), (mutate_sample){ 0 }); break;      /* a file is missing */
    }
    return false;
}

/* ---- opening ---- */

static void open_tokenizer(void)
{
    char path[160];
    tokenizer *t = NULL;
    fl_err err = { 0 };
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    fl_status st = tokenizer_open(&t, path, &err);
    mutant_check_tokenizer(st, t, &err);
}

static void open_templates(bool render, mutant_tally *t)
{
    static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"add_generation_prompt\": true}";
    json_t *names = NULL;
    chat_template *c = NULL;
    char *text = NULL;
    size_t n_bytes = 0;
    fl_err err = { 0 };
    fl_status st = chat_template_names(&names, folder, &err);
    if (st != FL_OK) mutant_check_sentence(st, &err);
    json_decref(names);
    if (!render) return;
    fl_status opened = chat_template_open(&c, folder, &err);
    if (opened == FL_IO) return;                         /* no Python or no Jinja2 here */
    if (opened != st) mutant_fail("the templates' names say %s, opening says %s", fl_status_name(st), fl_status_name(opened));
    if (opened == FL_OK && (st = chat_template_render(c, request, sizeof request - 1, 0, &text, &n_bytes, &err)) != FL_OK) mutant_check_sentence(st, &err);
    t->n_rendered++;
    free(text);
    chat_template_close(c);
}

static void open_mutant(uint64_t number, mutant_tally *t)
{
    static const char *const beyond_inspect[] = { "NaN", "beyond fp32", NULL };
    directory d;
    fl_err err = { 0 };
    size_t json_bytes = 0, weight_bytes = 0;
    mutant_running = number;
    bool is_template = make_mutant(&d, number);
    write_directory(&d);
    for (int i = 0; i < N_FILES; i++) *(i == WEIGHTS || i == WEIGHTS_2 ? &weight_bytes : &json_bytes) += d.files[i].n_bytes;
    directory_fini(&d);
    alarm(MUTANT_SECONDS_MAX);
    heap_watch_begin();
    fl_status st = mutant_open_engine(folder, number % 3 ? 128 : 0, t, &err);
    open_tokenizer();
    open_templates(is_template && number % HELPERS_EVERY < 3, t);
    mutant_check_inspect(folder, st, &err, beyond_inspect);
    mutant_check_heap(t, HEAP_FIXED + HEAP_JSON_BYTE * json_bytes + HEAP_WEIGHT_BYTE * weight_bytes, json_bytes + weight_bytes);
    alarm(0);
}

static const mutant_test mutants = { "directory", "mutated_models_test", folder, MUTANTS, MUTANTS / 10, open_mutant };

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/mutated_models_test.XXXXXX");
    load_pristine();
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    write_directory(&(directory){ .is_single = true });
    for (int i = 0; i < N_MODELS; i++) directory_fini(&pristine[i]);
    return rmdir(folder);
}

int main(int argc, char **argv) { return mutants_main(argc, argv, make_folder, remove_folder); }
