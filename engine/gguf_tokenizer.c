#include "engine/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/unicode.h"
#include "proto/detok.h"

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5, BYTE = 6 };
#define MODEL_KEY "tokenizer.ggml.model"
enum { PIECE_BYTES_MAX = 1024 };         /* the longest of Gemma's 262,144 has 93 */

typedef struct {
    const gguf *g;
    json_t *vocab, *added;               /* owned until they are part of the result */
    uint32_t *types; size_t n_types;     /* owned; absent: all are normal */
    size_t n_tokens;
} vocabulary;

static fl_status no_memory(fl_err *err) { return fl_fail(err, FL_FULL, "gguf: no memory for the tokenizer"); }

/* ---- tokens ---- */

static uint32_t type_of(const vocabulary *v, size_t id) { return v->types ? v->types[id] : NORMAL; }

static fl_status add_token(vocabulary *v, size_t id, const char *text, size_t n, fl_err *err)
{
    const uint32_t type = type_of(v, id);
    if (n == 0) return FL_OK;                            /* an id without a token */
    if (!fl_utf8_valid((const uint8_t *)text, n)) return fl_fail(err, FL_CORRUPT, "%s: token %zu of tokenizer.ggml.tokens is not UTF-8", gguf_name(v->g), id);
    if (json_object_getn(v->vocab, text, n)) return fl_fail(err, FL_CORRUPT, "%s: tokens %lld and %zu of tokenizer.ggml.tokens are the same", gguf_name(v->g),
                                                            (long long)json_integer_value(json_object_getn(v->vocab, text, n)), id);
    if (json_object_setn_new(v->vocab, text, n, json_integer((json_int_t)id)) != 0) return no_memory(err);
    if (type != CONTROL && type != UNKNOWN && type != USER_DEFINED) return FL_OK;
    json_t *added = json_pack("{s:I,s:s%,s:b,s:b}", "id", (json_int_t)id, "content", text, n, "special", type != USER_DEFINED, "normalized", 0);
    return added && json_array_append_new(v->added, added) == 0 ? FL_OK : no_memory(err);
}

static fl_status read_vocabulary(vocabulary *v, fl_err *err)
{
    gguf_strings tokens;
    const char *text;
    size_t n;
    fl_status st = gguf_strings_begin(&tokens, v->g, "tokenizer.ggml.tokens", err);
    if (st == FL_NOT_FOUND) return fl_fail(err, FL_CORRUPT, "%s: key tokenizer.ggml.tokens is missing, but there is a tokenizer.ggml.model", gguf_name(v->g));
    if (st != FL_OK) return st;
    if (tokens.left == 0 || tokens.left > FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "%s: tokenizer.ggml.tokens has %llu tokens; 1 to %d are allowed", gguf_name(v->g), (unsigned long long)tokens.left, FL_VOCAB_MAX);
    v->n_tokens = (size_t)tokens.left;
    st = gguf_u32_array(v->g, "tokenizer.ggml.token_type", v->n_tokens, &v->types, &v->n_types, err);
    if (st != FL_OK && st != FL_NOT_FOUND) return st;
    v->vocab = json_object();
    v->added = json_array();
    st = v->vocab && v->added ? FL_OK : no_memory(err);
    for (size_t id = 0; st == FL_OK && gguf_strings_next(&tokens, &text, &n); id++) st = add_token(v, id, text, n, err);
    return st;
}

/* The token that a key names by its id; NULL where there is none. */
static fl_status token_named(const gguf *g, const char *key, int64_t *id, const char **text, size_t *n_bytes, fl_err *err)
{
    gguf_strings tokens;
    *text = NULL;
    fl_status st = gguf_int(g, key, -1, UINT32_MAX, id, err);
    if (st == FL_NOT_FOUND) return FL_OK;
    if (st != FL_OK) return st;
    if (*id == -1 || *id == UINT32_MAX) return FL_OK;    /* stands for none */
    if (gguf_strings_begin(&tokens, g, "tokenizer.ggml.tokens", NULL) != FL_OK || (uint64_t)*id >= tokens.left)
        return fl_fail(err, FL_CORRUPT, "%s: key %s is %lld, which is no id of tokenizer.ggml.tokens; write the key anew or convert the model again", gguf_name(g), key, (long long)*id);
    for (int64_t i = 0; i <= *id; i++) gguf_strings_next(&tokens, text, n_bytes);
    return FL_OK;
}

/* ---- pre-tokenizers ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define ENGLISH_ENDS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define MIXED_UPPER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+"
#define MIXED_LOWER "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*"

/* The patterns that cut a text, one behind the other; `words` cuts what they leave as GPT-2 does. */
typedef struct { const char *patterns[4]; bool words, digits, nfc, ignore_merges, add_bos; } pre_form;

static const pre_form
    form_default = { .patterns = { "[\\p{P}\\$\\+<=>\\^~\\|]+", ENGLISH_ENDS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)", "\\p{N}+", "[0-9][0-9][0-9]" } },
    form_gpt2 = { .words = true },
    form_digits = { .words = true, .digits = true },
    form_llama3 = { .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES }, .ignore_merges = true, .add_bos = true },
    form_dbrx = { .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    form_qwen2 = { .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES }, .nfc = true },
    form_qwen35 = { .patterns = { CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES }, .nfc = true },
    form_laguna = { .patterns = { "[^\\n]+|[\\n]+", CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" SPACES } },
    form_gpt4o = { .patterns = { MIXED_UPPER CONTRACTIONS "?|" MIXED_LOWER CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES } },
    form_tekken = { .patterns = { MIXED_UPPER "|" MIXED_LOWER "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES }, .ignore_merges = true, .add_bos = true },
    form_deepseek3 = { .patterns = { "\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
                                     "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES } };

static const struct { const char *name; const pre_form *form; } pre_tokenizers[] = {
    { "default", &form_default }, { "gpt-2", &form_gpt2 }, { "gpt2", &form_gpt2 }, { "mpt", &form_gpt2 }, { "olmo", &form_gpt2 }, { "smollm", &form_digits }, { "starcoder", &form_digits },
    { "refact", &form_digits }, { "codeshell", &form_digits }, { "llama-bpe", &form_llama3 }, { "llama3", &form_llama3 }, { "llama-v3", &form_llama3 }, { "falcon3", &form_llama3 },
    { "pixtral", &form_llama3 }, { "lfm2", &form_llama3 }, { "dbrx", &form_dbrx }, { "smaug-bpe", &form_dbrx }, { "qwen2", &form_qwen2 }, { "deepseek-r1-qwen", &form_qwen2 },
    { "qwen35", &form_qwen35 }, { "laguna", &form_laguna }, { "gpt-4o", &form_gpt4o }, { "llama4", &form_gpt4o }, { "tekken", &form_tekken }, { "deepseek-v3", &form_deepseek3 },
};
enum { N_PRE = sizeof pre_tokenizers / sizeof *pre_tokenizers };

static fl_status find_form(const pre_form **form, const gguf *g, fl_err *err)
{
    char known[320];
    const char *name = "default";
    size_t n = strlen(name), used = 0;
    fl_status st = gguf_text(g, "tokenizer.ggml.pre", &name, &n, err);
    if (st != FL_OK && st != FL_NOT_FOUND) return st;
    if (n == 0) n = strlen(name = "default");
    for (size_t i = 0; i < N_PRE; i++)
        if (strlen(pre_tokenizers[i].name) == n && memcmp(pre_tokenizers[i].name, name, n) == 0) { *form = pre_tokenizers[i].form; return FL_OK; }
    for (size_t i = 0; i < N_PRE && used < sizeof known; i++) used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", pre_tokenizers[i].name);
    return fl_fail(err, FL_UNSUPPORTED, "%s: the pre-tokenizer %.*s (tokenizer.ggml.pre) is not supported; known are %s", gguf_name(g), (int)(n < 60 ? n : 60), name, known);
}

static json_t *byte_level(bool words) { return json_pack("{s:s,s:b,s:b,s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1, "use_regex", words); }

static json_t *split_by(const char *pattern) { return json_pack("{s:s,s:{s:s},s:s,s:b}", "type", "Split", "pattern", "Regex", pattern, "behavior", "Isolated", "invert", 0); }

static json_t *cut_by(const pre_form *form)
{
    json_t *list = json_array();
    if (form->digits) json_array_append_new(list, json_pack("{s:s,s:b}", "type", "Digits", "individual_digits", 1));
    for (size_t i = 0; i < sizeof form->patterns / sizeof *form->patterns && form->patterns[i]; i++) json_array_append_new(list, split_by(form->patterns[i]));
    json_array_append_new(list, byte_level(form->words));
    return json_pack("{s:s,s:o}", "type", "Sequence", "pretokenizers", list);
}

/* ---- what stands around a text ---- */

/* The token of `key` in front of or behind each text, where `flag` says so. */
static fl_status add_end(json_t *single, json_t *specials, const gguf *g, const char *flag, bool absent, const char *key, fl_err *err)
{
    const char *text;
    size_t n;
    int64_t id;
    bool is_on = absent;
    fl_status st = gguf_flag(g, flag, &is_on, err);
    if (st != FL_OK && st != FL_NOT_FOUND) return st;
    if (!is_on) return FL_OK;
    if ((st = token_named(g, key, &id, &text, &n, err)) != FL_OK || !text) return st;
    int failed = json_array_append_new(single, json_pack("{s:{s:s,s:i}}", "SpecialToken", "id", key, "type_id", 0));
    failed |= json_object_set_new(specials, key, json_pack("{s:s,s:[I]}", "id", key, "ids", (json_int_t)id));
    return failed ? no_memory(err) : FL_OK;
}

static fl_status make_post(json_t **out, const gguf *g, bool add_bos, fl_err *err)
{
    json_t *single = json_array(), *specials = json_object();
    fl_status st = single && specials ? FL_OK : no_memory(err);
    if (st == FL_OK) st = add_end(single, specials, g, "tokenizer.ggml.add_bos_token", add_bos, "tokenizer.ggml.bos_token_id", err);
    if (st == FL_OK && json_array_append_new(single, json_pack("{s:{s:s,s:i}}", "Sequence", "id", "A", "type_id", 0)) != 0) st = no_memory(err);
    if (st == FL_OK) st = add_end(single, specials, g, "tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id", err);
    if (st == FL_OK && !(*out = json_pack("{s:s,s:O,s:O}", "type", "TemplateProcessing", "single", single, "special_tokens", specials))) st = no_memory(err);
    json_decref(single);
    json_decref(specials);
    return st;
}

/* ---- the two models ---- */

static fl_status make_byte_level(json_t **out, vocabulary *v, fl_err *err)
{
    const pre_form *form = NULL;
    gguf_strings merges;
    const char *text;
    size_t n;
    json_t *list = NULL, *post = NULL, *normalizer = NULL;
    fl_status st = find_form(&form, v->g, err);
    if (st == FL_OK) st = gguf_strings_begin(&merges, v->g, "tokenizer.ggml.merges", err);
    if (st == FL_OK && merges.left > 2 * (uint64_t)FL_VOCAB_MAX) st = fl_fail(err, FL_CORRUPT, "%s: tokenizer.ggml.merges has %llu merges", gguf_name(v->g), (unsigned long long)merges.left);
    if (st == FL_OK) st = make_post(&post, v->g, form->add_bos, err);
    if (st == FL_OK && !(list = json_array())) st = no_memory(err);
    for (size_t i = 0; st == FL_OK && gguf_strings_next(&merges, &text, &n); i++)
        if (json_array_append_new(list, json_stringn(text, n)) != 0) st = fl_fail(err, FL_CORRUPT, "%s: merge %zu of tokenizer.ggml.merges is not UTF-8", gguf_name(v->g), i);
    if (st == FL_OK) {
        normalizer = form->nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
        *out = json_pack("{s:O,s:O,s:o,s:o,s:o,s:{s:s,s:b,s:O,s:O}}", "added_tokens", v->added, "post_processor", post, "normalizer", normalizer, "pre_tokenizer", cut_by(form), "decoder", byte_level(false),
                         "model", "type", "BPE", "ignore_merges", form->ignore_merges, "vocab", v->vocab, "merges", list);
        if (!*out) st = no_memory(err);
    }
    json_decref(list);
    json_decref(post);
    return st == FL_NOT_FOUND ? fl_fail(err, FL_CORRUPT, "%s: key tokenizer.ggml.merges is missing, which a vocabulary of model gpt2 needs", gguf_name(v->g)) : st;
}

typedef struct { float score; uint32_t id; const char *text; size_t n_bytes; } piece;

static int compare_pieces(const void *a, const void *b)
{
    const piece *x = a, *y = b;
    if (x->score != y->score) return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The normal pieces, best first. *out is malloc'ed. */
static fl_status sort_pieces(piece **out, size_t *n_out, const vocabulary *v, fl_err *err)
{
    gguf_strings tokens;
    const gguf_field *scores = gguf_find(v->g, "tokenizer.ggml.scores");
    if (!scores || scores->kind != GGUF_ARRAY || scores->element != GGUF_F32 || scores->count != v->n_tokens)
        return fl_fail(err, FL_CORRUPT, "%s: key tokenizer.ggml.scores must be an array of %zu f32 values, one a token", gguf_name(v->g), v->n_tokens);
    fl_status st = gguf_strings_begin(&tokens, v->g, "tokenizer.ggml.tokens", err);
    piece *pieces = st == FL_OK ? malloc(v->n_tokens * sizeof *pieces) : NULL;
    if (st != FL_OK) return st;
    if (!pieces) return no_memory(err);
    size_t n = 0;
    for (size_t id = 0; id < v->n_tokens; id++) {
        piece *p = &pieces[n];
        p->id = (uint32_t)id;
        gguf_strings_next(&tokens, &p->text, &p->n_bytes);
        memcpy(&p->score, scores->data + 4 * id, sizeof p->score);
        if (p->score != p->score) { free(pieces); return fl_fail(err, FL_CORRUPT, "%s: score %zu of tokenizer.ggml.scores is NaN", gguf_name(v->g), id); }
        n += type_of(v, id) == NORMAL;
    }
    qsort(pieces, n, sizeof *pieces, compare_pieces);
    *out = pieces;
    *n_out = n;
    return FL_OK;
}

/* Each way in which a piece falls into two tokens is a merge; to look at all ways takes the square of its length. */
static fl_status add_merges(json_t *list, const vocabulary *v, const piece *p, fl_err *err)
{
    const char *gap = memchr(p->text, ' ', p->n_bytes);
    if (p->n_bytes > PIECE_BYTES_MAX)
        return fl_fail(err, FL_UNSUPPORTED, "%s: token %u of tokenizer.ggml.tokens has %zu bytes; normal ones of up to %d are supported", gguf_name(v->g), p->id, p->n_bytes, PIECE_BYTES_MAX);
    for (size_t i = 0; i < p->n_bytes;) {
        utf8_next((const uint8_t *)p->text, &i);
        if (i >= p->n_bytes || !json_object_getn(v->vocab, p->text, i) || !json_object_getn(v->vocab, p->text + i, p->n_bytes - i)) continue;
        json_t *merge = gap ? json_pack("[s%,s%]", p->text, i, p->text + i, p->n_bytes - i) : json_sprintf("%.*s %.*s", (int)i, p->text, (int)(p->n_bytes - i), p->text + i);
        if (json_array_append_new(list, merge) != 0) return no_memory(err);
        if (json_array_size(list) > 2 * (size_t)FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "%s: the pieces of tokenizer.ggml.tokens fall apart in more than %d ways", gguf_name(v->g), 2 * FL_VOCAB_MAX);
    }
    return FL_OK;
}

static json_t *replace_by(const char *pattern, const char *content) { return json_pack("{s:s,s:{s:s},s:s}", "type", "Replace", "pattern", "String", pattern, "content", content); }

static fl_status make_pieces(json_t **out, vocabulary *v, fl_err *err)
{
    static const char space_mark[] = "\xe2\x96\x81";
    const char *unknown = NULL;
    size_t n_unknown = 0, n = 0;
    int64_t unknown_id;
    bool prefix = true;
    piece *pieces = NULL;
    json_t *list = json_array(), *post = NULL, *normalizers = json_array(), *decoders = json_array();
    fl_status st = list && normalizers && decoders ? FL_OK : no_memory(err);
    if (st == FL_OK) st = token_named(v->g, "tokenizer.ggml.unknown_token_id", &unknown_id, &unknown, &n_unknown, err);
    if (st == FL_OK) st = gguf_flag(v->g, "tokenizer.ggml.add_space_prefix", &prefix, err);
    if (st == FL_OK || st == FL_NOT_FOUND) st = make_post(&post, v->g, true, err);
    if (st == FL_OK) st = sort_pieces(&pieces, &n, v, err);
    for (size_t i = 0; st == FL_OK && i < n; i++) if (pieces[i].n_bytes > 0) st = add_merges(list, v, &pieces[i], err);
    if (st == FL_OK) {
        if (prefix) json_array_append_new(normalizers, json_pack("{s:s,s:s}", "type", "Prepend", "prepend", space_mark));
        json_array_append_new(normalizers, replace_by(" ", space_mark));
        json_array_append_new(decoders, replace_by(space_mark, " "));
        json_array_append_new(decoders, json_pack("{s:s}", "type", "ByteFallback"));
        json_array_append_new(decoders, json_pack("{s:s}", "type", "Fuse"));
        if (prefix) json_array_append_new(decoders, json_pack("{s:s,s:s,s:i,s:i}", "type", "Strip", "content", " ", "start", 1, "stop", 0));
        *out = json_pack("{s:O,s:O,s:{s:s,s:O},s:n,s:{s:s,s:O},s:{s:s,s:b,s:b,s:O,s:O,s:o}}", "added_tokens", v->added, "post_processor", post, "normalizer", "type", "Sequence", "normalizers", normalizers,
                         "pre_tokenizer", "decoder", "type", "Sequence", "decoders", decoders, "model", "type", "BPE", "byte_fallback", 1, "fuse_unk", 1, "vocab", v->vocab, "merges", list,
                         "unk_token", unknown ? json_stringn(unknown, n_unknown) : json_null());
        if (!*out) st = no_memory(err);
    }
    free(pieces);
    json_decref(list);
    json_decref(post);
    json_decref(normalizers);
    json_decref(decoders);
    return st;
}

fl_status gguf_tokenizer_make(json_t **out, const gguf *g, fl_err *err)
{
    const char *model;
    size_t n;
    vocabulary v = { .g = g };
    fl_status st = gguf_text(g, MODEL_KEY, &model, &n, err);
    if (st == FL_NOT_FOUND || gguf_text_is(g, MODEL_KEY, "none") || gguf_text_is(g, MODEL_KEY, "no_vocab")) return fl_fail(err, FL_NOT_FOUND, "%s: the file has no tokenizer (key tokenizer.ggml.model)", gguf_name(g));
    if (st != FL_OK) return st;
    const bool is_bytes = gguf_text_is(g, MODEL_KEY, "gpt2"), is_pieces = gguf_text_is(g, MODEL_KEY, "llama");
    if (!is_bytes && !is_pieces)
        return fl_fail(err, FL_UNSUPPORTED, "%s: tokenizers of model %.*s (tokenizer.ggml.model) are not supported; gpt2 and llama are", gguf_name(g), (int)(n < 60 ? n : 60), model);
    st = read_vocabulary(&v, err);
    if (st == FL_OK) st = is_bytes ? make_byte_level(out, &v, err) : make_pieces(out, &v, err);
    json_decref(v.vocab);
    json_decref(v.added);
    free(v.types);
    return st;
}

json_t *gguf_tokenizer_notes(const gguf *g)
{
    static const char *const ends[] = { "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id" };
    json_t *notes = json_array();
    const char *text;
    size_t n = 0;
    int64_t id;
    if (!gguf_find(g, MODEL_KEY)) return notes;
    if (gguf_text_is(g, MODEL_KEY, "gpt2") && (gguf_text(g, "tokenizer.ggml.pre", &text, &n, NULL) != FL_OK || n == 0))
        json_array_append_new(notes, json_string("key tokenizer.ggml.pre is missing: texts are cut into words as llama.cpp's `default` does, which may be another way than the model was trained with; convert the model again"));
    if (!gguf_find(g, "tokenizer.ggml.token_type"))
        json_array_append_new(notes, json_string("key tokenizer.ggml.token_type is missing: words such as <|im_start|> in a text or a chat are read letter by letter; convert the model again"));
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (token_named(g, ends[i], &id, &text, &n, NULL) != FL_OK) json_array_append_new(notes, json_sprintf("key %s names no token, so it ends no completion", ends[i]));
    return notes;
}

/* ---- chat templates ---- */

/* tokenizer.chat_template.NAME; `list` gets {name, template}. */
static fl_status add_named(json_t *list, const gguf *g, fl_err *err)
{
    static const char prefix[] = "tokenizer.chat_template.";
    const size_t skip = sizeof prefix - 1;
    fl_status st = FL_OK;
    for (size_t i = 0; st == FL_OK && i < gguf_field_count(g); i++) {
        const gguf_field *f = gguf_field_at(g, i);
        if (f->key_bytes <= skip || memcmp(f->key, prefix, skip) != 0) continue;
        if (f->kind != GGUF_STRING || !fl_utf8_valid(f->data, f->n_bytes)) { st = fl_fail(err, FL_CORRUPT, "%s: key %.*s is no string of UTF-8", gguf_name(g), (int)f->key_bytes, f->key); break; }
        if (json_array_append_new(list, json_pack("{s:s%,s:s%}", "name", f->key + skip, f->key_bytes - skip, "template", (const char *)f->data, f->n_bytes)) != 0) st = no_memory(err);
    }
    return st;
}

static fl_status add_templates(json_t *config, const gguf *g, fl_err *err)
{
    const char *text;
    size_t n;
    json_t *list = json_array();
    fl_status st = list ? add_named(list, g, err) : no_memory(err), found = st == FL_OK ? gguf_text(g, "tokenizer.chat_template", &text, &n, err) : st;
    if (found != FL_OK && found != FL_NOT_FOUND) st = found;
    if (found == FL_OK && json_array_size(list) == 0) json_object_set_new(config, "chat_template", json_stringn(text, n));
    else if (found == FL_OK) json_array_append_new(list, json_pack("{s:s,s:s%}", "name", "default", "template", text, n));
    if (st == FL_OK && json_array_size(list) > 0) json_object_set(config, "chat_template", list);
    json_decref(list);
    return st;
}

fl_status gguf_tokenizer_config_make(json_t **out, const gguf *g, fl_err *err)
{
    /* Templates begin and end texts; the other two are there by name only, and files of models that were trained with a token more name one that is not there. */
    static const struct { const char *key, *field; bool is_needed; } named[] = {
        { "tokenizer.ggml.bos_token_id", "bos_token", true }, { "tokenizer.ggml.eos_token_id", "eos_token", true },
        { "tokenizer.ggml.unknown_token_id", "unk_token", false }, { "tokenizer.ggml.padding_token_id", "pad_token", false },
    };
    json_t *config = json_object();
    fl_status st = config ? add_templates(config, g, err) : no_memory(err);
    for (size_t i = 0; st == FL_OK && i < sizeof named / sizeof *named; i++) {
        const char *text;
        size_t n;
        int64_t id;
        st = token_named(g, named[i].key, &id, &text, &n, named[i].is_needed ? err : NULL);
        if (!named[i].is_needed) st = FL_OK;
        if (st == FL_OK && text) json_object_set_new(config, named[i].field, json_stringn(text, n));
    }
    if (st == FL_OK) *out = config;
    else json_decref(config);
    return st;
}
