/* raw text ─▶ added tokens ─▶ normalizer ─▶ normalized added tokens ─▶ pre-tokenizer ─▶ BPE ─▶ (post-processor's tokens around it) */
#include "engine/tokenizer.h"
#include "proto/json_load.h"
#include "engine/added_tokens.h"
#include "engine/bpe.h"
#include "engine/gguf_tokenizer.h"
#include "engine/normalize.h"
#include "engine/pretokenize.h"
#include "engine/token_decoder.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 512 << 20, SPECIALS_MAX = 64, SEQUENCE_DEPTH_MAX = 4 };

struct tokenizer {
    bpe *bpe;                            /* owned */
    added_tokens *added;                 /* owned */
    normalizer *normalizer;              /* owned */
    pretokenizer *pretokenizer;          /* owned */
    token_decoder *decoder;              /* owned */
    int32_t before[SPECIALS_MAX], after[SPECIALS_MAX];   /* the post-processor's tokens */
    int32_t n_before, n_after;
    int32_t n_vocab;
};

/* ---- reading the file ---- */

static fl_status read_file(const char *path, char **text, size_t *n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    struct stat info;
    char *made = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) return fl_fail(err, FL_NOT_FOUND, "tokenizer: there is no %s", path);
    if (fd < 0) return fl_fail_errno(err, errno, "tokenizer: cannot open %s", path);
    if (fstat(fd, &info) != 0) { st = fl_fail_errno(err, errno, "tokenizer: cannot read %s", path); goto done; }
    if (!S_ISREG(info.st_mode)) { st = fl_fail(err, FL_CORRUPT, "tokenizer: %s is not a file", path); goto done; }
    if (info.st_size > FILE_BYTES_MAX) { st = fl_fail(err, FL_CORRUPT, "tokenizer: %s has %lld bytes, above the limit of %d", path, (long long)info.st_size, FILE_BYTES_MAX); goto done; }
    made = malloc((size_t)info.st_size + 1);
    if (!made) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for the %lld bytes of %s", (long long)info.st_size, path); goto done; }
    size_t n = 0;
    while (n < (size_t)info.st_size) {
        ssize_t got = read(fd, made + n, (size_t)info.st_size - n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) { st = fl_fail_errno(err, errno, "tokenizer: cannot read %s", path); goto done; }
        if (got == 0) break;
        n += (size_t)got;
    }
    *text = made;
    *n_bytes = n;
    made = NULL;
done:
    free(made);
    close(fd);
    return st;
}

/* The ids of a template's special token. */
static fl_status add_special(tokenizer *t, const json_t *template, const json_t *piece, bool after, fl_err *err)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = name ? json_object_get(json_object_get(json_object_get(template, "special_tokens"), name), "ids") : NULL;
    if (!json_is_array(ids)) return fl_fail(err, FL_CORRUPT, "tokenizer: the post-processor's special token \"%.60s\" has no ids", name ? name : "(none)");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int32_t *n = after ? &t->n_after : &t->n_before;
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= t->n_vocab)
            return fl_fail(err, FL_CORRUPT, "tokenizer: the post-processor's special token \"%.60s\" has an id outside the vocabulary of %d", name, t->n_vocab);
        if (*n == SPECIALS_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the post-processor adds more than %d tokens", SPECIALS_MAX);
        (after ? t->after : t->before)[(*n)++] = (int32_t)json_integer_value(id);
    }
    return FL_OK;
}

static fl_status read_template(tokenizer *t, const json_t *d, fl_err *err)
{
    const json_t *single = json_object_get(d, "single");
    if (!json_is_array(single)) return fl_fail(err, FL_CORRUPT, "tokenizer: the post-processor's `single` is not an array");
    if (t->n_before > 0 || t->n_after > 0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: two template post-processors are not served");
    int n_texts = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i), *special = json_object_get(piece, "SpecialToken"), *text = json_object_get(piece, "Sequence");
        fl_status st = FL_OK;
        if (special) st = add_special(t, d, special, n_texts > 0, err);
        else if (text && strcmp(json_is_string(json_object_get(text, "id")) ? json_string_value(json_object_get(text, "id")) : "", "A") == 0) n_texts++;
        else st = fl_fail(err, FL_UNSUPPORTED, "tokenizer: piece %zu of the post-processor's template is neither a special token nor the text", i);
        if (st != FL_OK) return st;
    }
    if (n_texts != 1) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the post-processor's template holds the text %d times", n_texts);
    return FL_OK;
}

static fl_status read_post_processor(tokenizer *t, const json_t *d, int depth, fl_err *err)
{
    if (!d || json_is_null(d)) return FL_OK;
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "ByteLevel") == 0) return FL_OK;             /* it moves offsets only */
    if (type && strcmp(type, "TemplateProcessing") == 0) return read_template(t, d, err);
    const json_t *list = json_object_get(d, "processors");
    if (!type || strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth == SEQUENCE_DEPTH_MAX)
        return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the post-processor %.40s is not served (ByteLevel, TemplateProcessing and Sequence are)", type ? type : "(none)");
    for (size_t i = 0; i < json_array_size(list); i++) {
        fl_status st = read_post_processor(t, json_array_get(list, i), depth + 1, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static fl_status build(tokenizer *t, const json_t *root, fl_err *err)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model)) return fl_fail(err, FL_CORRUPT, "tokenizer: the file has no `model`");
    fl_status st = normalizer_open(&t->normalizer, json_object_get(root, "normalizer"), err);
    if (st != FL_OK) return st;
    if ((st = pretokenizer_open(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), err)) != FL_OK) return st;
    if (pretokenizer_knows_first(t->pretokenizer) && normalizer_removes(t->normalizer))
        return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a Metaspace pre-tokenizer with prepend_scheme first is not served behind a normalizer that removes characters");
    bool byte_level = pretokenizer_is_byte_level(t->pretokenizer);
    if ((st = token_decoder_open(&t->decoder, json_object_get(root, "decoder"), byte_level, err)) != FL_OK) return st;
    if ((st = bpe_open(&t->bpe, model, byte_level, err)) != FL_OK) return st;
    if ((st = added_tokens_open(&t->added, json_object_get(root, "added_tokens"), json_object_get(model, "vocab"), t->normalizer, err)) != FL_OK) return st;
    t->n_vocab = bpe_vocab(t->bpe) > added_tokens_vocab(t->added) ? bpe_vocab(t->bpe) : added_tokens_vocab(t->added);
    return read_post_processor(t, json_object_get(root, "post_processor"), 0, err);
}

static fl_status open_root(tokenizer **out, const json_t *root, fl_err *err)
{
    tokenizer *t = calloc(1, sizeof *t);
    if (!t) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    fl_status st = build(t, root, err);
    if (st == FL_OK) *out = t;
    else tokenizer_close(t);
    return st;
}

static fl_status open_gguf(tokenizer **out, const char *path, fl_err *err)
{
    gguf *g = NULL;
    json_t *root = NULL;
    fl_status st = gguf_open(&g, path, err);
    if (st == FL_OK) st = gguf_tokenizer_make(&root, g, err);
    gguf_close(g);
    if (st == FL_OK) st = open_root(out, root, err);
    json_decref(root);
    return st;
}

fl_status tokenizer_open_model(tokenizer **out, const char *model, fl_err *err)
{
    char path[4096];
    if (gguf_is_path(model)) return open_gguf(out, model, err);
    if (snprintf(path, sizeof path, "%s/tokenizer.json", model) >= (int)sizeof path) return fl_fail(err, FL_INVALID, "tokenizer: the model's path is too long");
    return tokenizer_open(out, path, err);
}

fl_status tokenizer_open(tokenizer **out, const char *path, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    char what[200];
    json_t *root = NULL;
    fl_status st = read_file(path, &text, &n_bytes, err);
    if (st != FL_OK) return st;
    snprintf(what, sizeof what, "tokenizer: %s", path);
    st = fl_json_load(&root, what, text, n_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, err);
    free(text);
    if (st == FL_OK) st = open_root(out, root, err);
    json_decref(root);
    return st;
}

void tokenizer_close(tokenizer *t)
{
    if (!t) return;
    bpe_close(t->bpe);
    added_tokens_close(t->added);
    normalizer_close(t->normalizer);
    pretokenizer_close(t->pretokenizer);
    token_decoder_close(t->decoder);
    free(t);
}

int32_t tokenizer_vocab(const tokenizer *t) { return t->n_vocab; }

/* ---- encoding ---- */

typedef struct {
    const tokenizer *t;
    pretokenize_run *run;                /* owned */
    bpe_scratch scratch;                 /* owned */
    id_list ids;                         /* owned until encode hands it over */
    uint64_t most;                       /* ids that are of use */
} encoding;

enum { LONG_WORD_BYTES = 1 << 16, SURELY_MORE = 4 };

/* FL_CLOSED: the text surely has more ids than are of use. */
static fl_status check_most(const encoding *e, const uint8_t *word, size_t n_bytes)
{
    if (e->ids.n > SURELY_MORE * e->most) return FL_CLOSED;
    return n_bytes > LONG_WORD_BYTES && e->ids.n + bpe_least_tokens(e->t->bpe, word, n_bytes) > e->most ? FL_CLOSED : FL_OK;
}

/* Of the parts of a text every second one at least is an added token. */
static text_parts parts_within(const encoding *e) { return (text_parts){ .most = 2 * SURELY_MORE * e->most + 2 }; }

static fl_status encode_word(void *context, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    encoding *e = context;
    fl_status st = check_most(e, bytes, n_bytes);
    return st != FL_OK ? st : bpe_encode(e->t->bpe, &e->scratch, bytes, n_bytes, &e->ids, err);
}

/* A text without raw added tokens, after normalization. */
static fl_status encode_normal(encoding *e, const uint8_t *text, size_t n_bytes, bool is_first, fl_err *err)
{
    text_parts parts = parts_within(e);
    fl_status st = added_tokens_split(e->t->added, true, text, n_bytes, &parts, err);
    for (size_t i = 0; i < parts.n && st == FL_OK; i++) {
        const text_part *p = &parts.parts[i];
        if (p->id >= 0) st = id_list_add(&e->ids, p->id, err);
        else st = pretokenize_text(e->run, text + p->begin, p->end - p->begin, is_first && p->begin == 0, encode_word, e, err);
    }
    free(parts.parts);
    return st;
}

static fl_status encode_raw(encoding *e, const uint8_t *text, size_t n_bytes, bool is_first, fl_err *err)
{
    uint8_t *normal = NULL;
    size_t n = 0;
    fl_status st = normalizer_run(e->t->normalizer, text, n_bytes, &normal, &n, err);
    if (st == FL_OK) st = encode_normal(e, normal ? normal : text, n, is_first, err);
    free(normal);
    return st;
}

fl_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, bool add_special, int32_t **ids, size_t *n_ids, fl_err *err)
{
    bool is_more;
    return tokenizer_encode_within(t, text, n_bytes, add_special, UINT32_MAX, ids, n_ids, &is_more, err);
}

fl_status tokenizer_encode_within(const tokenizer *t, const char *text, size_t n_bytes, bool add_special, uint32_t most, int32_t **ids, size_t *n_ids, bool *is_more, fl_err *err)
{
    if (n_bytes > INT32_MAX / 2) return fl_fail(err, FL_INVALID, "tokenizer: a text of %zu bytes is above the limit of %d", n_bytes, INT32_MAX / 2);
    if (!fl_utf8_valid((const uint8_t *)text, n_bytes)) return fl_fail(err, FL_INVALID, "tokenizer: the text is not valid UTF-8");
    encoding e = { .t = t, .most = most };
    text_parts parts = parts_within(&e);
    fl_status st = pretokenize_begin(&e.run, t->pretokenizer, err);
    for (int32_t i = 0; add_special && i < t->n_before && st == FL_OK; i++) st = id_list_add(&e.ids, t->before[i], err);
    if (st == FL_OK) st = added_tokens_split(t->added, false, (const uint8_t *)text, n_bytes, &parts, err);
    for (size_t i = 0; i < parts.n && st == FL_OK; i++) {
        const text_part *p = &parts.parts[i];
        st = p->id >= 0 ? id_list_add(&e.ids, p->id, err) : encode_raw(&e, (const uint8_t *)text + p->begin, p->end - p->begin, p->begin == 0, err);
    }
    for (int32_t i = 0; add_special && i < t->n_after && st == FL_OK; i++) st = id_list_add(&e.ids, t->after[i], err);
    *is_more = st == FL_CLOSED;
    if (*is_more) {
        e.ids.n = 0;
        st = FL_OK;
    }
    if (st == FL_OK && !e.ids.ids) {                     /* no ids: still something to free */
        st = id_list_add(&e.ids, 0, err);
        e.ids.n = 0;
    }
    if (st == FL_OK) {
        *ids = e.ids.ids;
        *n_ids = e.ids.n;
        e.ids.ids = NULL;
    }
    free(e.ids.ids);
    free(e.scratch.memory);
    free(parts.parts);
    pretokenize_end(e.run);
    return st;
}

/* ---- decoding ---- */

/* The text of every id: pieces[id], NULL for an id without a token. A byte-level vocabulary holds its tokens decoded; added tokens are written out. */
typedef struct { uint8_t **pieces; size_t *n_bytes; uint8_t *bits; uint32_t *offsets; uint8_t *bytes; } detok_parts;

static fl_status gather_vocabulary(const tokenizer *t, int32_t n_vocab, detok_parts *d, fl_err *err)
{
    for (int32_t id = 0; id < n_vocab; id++) {
        size_t n;
        const uint8_t *token = bpe_token(t->bpe, id, &n);
        if (n == 0) continue;
        if (!pretokenizer_is_byte_level(t->pretokenizer)) {
            fl_status st = token_decoder_run(t->decoder, token, n, &d->pieces[id], &d->n_bytes[id], &d->bits[id], err);
            if (st != FL_OK) return st;
            continue;
        }
        d->pieces[id] = malloc(n);
        if (!d->pieces[id]) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
        memcpy(d->pieces[id], token, n);
        d->n_bytes[id] = n;
    }
    return FL_OK;
}

static fl_status gather_added(const tokenizer *t, int32_t n_vocab, detok_parts *d, fl_err *err)
{
    for (size_t i = 0; i < added_tokens_count(t->added); i++) {
        const uint8_t *content;
        size_t n;
        bool special;
        int32_t id = added_tokens_entry(t->added, i, &content, &n, &special);
        if (id >= n_vocab) continue;
        free(d->pieces[id]);
        d->pieces[id] = NULL;
        fl_status st = token_decoder_run(t->decoder, content, n, &d->pieces[id], &d->n_bytes[id], &d->bits[id], err);
        if (st != FL_OK) return st;
        if (special) d->bits[id] |= FL_TOKEN_SPECIAL;
    }
    return FL_OK;
}

static fl_status lay_out(int32_t n_vocab, detok_parts *d, fl_err *err)
{
    size_t total = 0;
    for (int32_t id = 0; id < n_vocab; id++) total += d->n_bytes[id];
    if (total > UINT32_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the tokens have %zu bytes of text together", total);
    d->bytes = malloc(total + 1);
    if (!d->bytes) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
    uint32_t at = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        d->offsets[id] = at;
        if (d->n_bytes[id] > 0) memcpy(d->bytes + at, d->pieces[id], d->n_bytes[id]);
        at += (uint32_t)d->n_bytes[id];
    }
    d->offsets[n_vocab] = at;
    return FL_OK;
}

fl_status tokenizer_detok(const tokenizer *t, int32_t n_vocab, fl_detok **out, fl_err *err)
{
    if (n_vocab < 0 || n_vocab > FL_VOCAB_MAX) return fl_fail(err, FL_INVALID, "tokenizer: a table of %d ids", n_vocab);
    size_t n = (size_t)n_vocab;
    detok_parts d = { calloc(n + 1, sizeof(uint8_t *)), calloc(n + 1, sizeof(size_t)), calloc(n + 1, 1), calloc(n + 1, sizeof(uint32_t)), NULL };
    fl_status st;
    if (!d.pieces || !d.n_bytes || !d.bits || !d.offsets) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for the text of %d tokens", n_vocab); goto done; }
    if ((st = gather_vocabulary(t, n_vocab, &d, err)) != FL_OK) goto done;
    if ((st = gather_added(t, n_vocab, &d, err)) != FL_OK) goto done;
    if ((st = lay_out(n_vocab, &d, err)) != FL_OK) goto done;
    st = fl_detok_make_form(out, n_vocab, d.bytes, d.offsets, d.bits, token_decoder_form(t->decoder), err);
done:
    for (size_t i = 0; d.pieces && i < n; i++) free(d.pieces[i]);
    free(d.pieces);
    free(d.n_bytes);
    free(d.bits);
    free(d.offsets);
    free(d.bytes);
    return st;
}
