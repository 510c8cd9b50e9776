/* raw text ─▶ added tokens ─▶ NFC ─▶ normalized added tokens ─▶ pre-tokenizer ─▶ BPE ─▶ (post-processor's tokens around it) */
#include "engine/tokenizer.h"
#include "engine/added_tokens.h"
#include "engine/bpe.h"
#include "engine/nfc.h"
#include "engine/pretokenize.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES_MAX = 512 << 20, SPECIALS_MAX = 64, SEQUENCE_DEPTH_MAX = 4 };

struct tokenizer {
    bpe *bpe;                            /* owned */
    added_tokens *added;                 /* owned */
    pretokenizer *pretokenizer;          /* owned */
    bool nfc;
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

static fl_status read_normalizer(tokenizer *t, const json_t *d, int depth, fl_err *err)
{
    if (!d || json_is_null(d)) return FL_OK;
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "NFC") == 0) { t->nfc = true; return FL_OK; }
    const json_t *list = json_object_get(d, "normalizers");
    if (!type || strcmp(type, "Sequence") != 0 || !json_is_array(list) || depth == SEQUENCE_DEPTH_MAX)
        return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the normalizer %.40s is not served (NFC and none are)", type ? type : "(none)");
    for (size_t i = 0; i < json_array_size(list); i++) {
        fl_status st = read_normalizer(t, json_array_get(list, i), depth + 1, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static fl_status check_decoder(const json_t *d, int depth, fl_err *err)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "ByteLevel") == 0) return FL_OK;
    const json_t *list = json_object_get(d, "decoders");
    if (type && strcmp(type, "Sequence") == 0 && json_array_size(list) == 1 && depth < SEQUENCE_DEPTH_MAX) return check_decoder(json_array_get(list, 0), depth + 1, err);
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the decoder %.40s is not served (ByteLevel is)", type ? type : "(none)");
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
    fl_status st = read_normalizer(t, json_object_get(root, "normalizer"), 0, err);
    if (st != FL_OK) return st;
    if ((st = pretokenizer_open(&t->pretokenizer, json_object_get(root, "pre_tokenizer"), err)) != FL_OK) return st;
    if ((st = check_decoder(json_object_get(root, "decoder"), 0, err)) != FL_OK) return st;
    if ((st = bpe_open(&t->bpe, model, err)) != FL_OK) return st;
    if ((st = added_tokens_open(&t->added, json_object_get(root, "added_tokens"), json_object_get(model, "vocab"), t->nfc, err)) != FL_OK) return st;
    t->n_vocab = bpe_vocab(t->bpe) > added_tokens_vocab(t->added) ? bpe_vocab(t->bpe) : added_tokens_vocab(t->added);
    return read_post_processor(t, json_object_get(root, "post_processor"), 0, err);
}

fl_status tokenizer_open(tokenizer **out, const char *path, fl_err *err)
{
    char *text = NULL;
    size_t n_bytes = 0;
    json_error_t at;
    json_t *root = NULL;
    fl_status st = read_file(path, &text, &n_bytes, err);
    if (st != FL_OK) return st;
    tokenizer *t = calloc(1, sizeof *t);
    if (!t) { st = fl_fail(err, FL_FULL, "tokenizer: no memory"); goto done; }
    root = json_loadb(text, n_bytes, JSON_ALLOW_NUL | JSON_REJECT_DUPLICATES, &at);
    free(text);
    text = NULL;
    if (!root) { st = fl_fail(err, FL_CORRUPT, "tokenizer: %s is not JSON: line %d: %s", path, at.line, at.text); goto done; }
    if ((st = build(t, root, err)) != FL_OK) goto done;
    *out = t;
    t = NULL;
done:
    free(text);
    json_decref(root);
    tokenizer_close(t);
    return st;
}

void tokenizer_close(tokenizer *t)
{
    if (!t) return;
    bpe_close(t->bpe);
    added_tokens_close(t->added);
    pretokenizer_close(t->pretokenizer);
    free(t);
}

int32_t tokenizer_vocab(const tokenizer *t) { return t->n_vocab; }

/* ---- encoding ---- */

typedef struct {
    const tokenizer *t;
    pretokenize_run *run;                /* owned */
    bpe_scratch scratch;                 /* owned */
    id_list ids;                         /* owned until encode hands it over */
} encoding;

static fl_status encode_word(void *context, const uint8_t *bytes, size_t n_bytes, fl_err *err)
{
    encoding *e = context;
    return bpe_encode(e->t->bpe, &e->scratch, bytes, n_bytes, &e->ids, err);
}

/* A text without raw added tokens, after normalization. */
static fl_status encode_normal(encoding *e, const uint8_t *text, size_t n_bytes, fl_err *err)
{
    text_parts parts = { 0 };
    fl_status st = added_tokens_split(e->t->added, true, text, n_bytes, &parts, err);
    for (size_t i = 0; i < parts.n && st == FL_OK; i++) {
        const text_part *p = &parts.parts[i];
        st = p->id >= 0 ? id_list_add(&e->ids, p->id, err) : pretokenize_text(e->run, text + p->begin, p->end - p->begin, encode_word, e, err);
    }
    free(parts.parts);
    return st;
}

static fl_status encode_raw(encoding *e, const uint8_t *text, size_t n_bytes, fl_err *err)
{
    uint8_t *normal = NULL;
    size_t n = 0;
    fl_status st = e->t->nfc ? nfc_normalize(text, n_bytes, &normal, &n, err) : FL_OK;
    if (st == FL_OK) st = normal ? encode_normal(e, normal, n, err) : encode_normal(e, text, n_bytes, err);
    free(normal);
    return st;
}

fl_status tokenizer_encode(const tokenizer *t, const char *text, size_t n_bytes, bool add_special, int32_t **ids, size_t *n_ids, fl_err *err)
{
    if (n_bytes > INT32_MAX / 2) return fl_fail(err, FL_INVALID, "tokenizer: a text of %zu bytes is above the limit of %d", n_bytes, INT32_MAX / 2);
    if (!fl_utf8_valid((const uint8_t *)text, n_bytes)) return fl_fail(err, FL_INVALID, "tokenizer: the text is not valid UTF-8");
    encoding e = { .t = t };
    text_parts parts = { 0 };
    fl_status st = pretokenize_begin(&e.run, t->pretokenizer, err);
    for (int32_t i = 0; add_special && i < t->n_before && st == FL_OK; i++) st = id_list_add(&e.ids, t->before[i], err);
    if (st == FL_OK) st = added_tokens_split(t->added, false, (const uint8_t *)text, n_bytes, &parts, err);
    for (size_t i = 0; i < parts.n && st == FL_OK; i++) {
        const text_part *p = &parts.parts[i];
        st = p->id >= 0 ? id_list_add(&e.ids, p->id, err) : encode_raw(&e, (const uint8_t *)text + p->begin, p->end - p->begin, err);
    }
    for (int32_t i = 0; add_special && i < t->n_after && st == FL_OK; i++) st = id_list_add(&e.ids, t->after[i], err);
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

/* What the reference's ByteLevel decoder makes of an added token: its bytes when it is written in the byte alphabet, else its UTF-8. */
static fl_status decode_added(const uint8_t *content, size_t n, uint8_t **out, size_t *n_out, fl_err *err)
{
    uint8_t *bytes = malloc(n + 1);
    if (!bytes) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
    if (!byte_alphabet_decode((const char *)content, n, bytes, n_out)) {
        memcpy(bytes, content, n);
        *n_out = n;
    }
    free(*out);
    *out = bytes;
    return FL_OK;
}

typedef struct { uint8_t **added; size_t *added_bytes; bool *special; uint32_t *offsets; uint8_t *bytes; } detok_parts;

static fl_status gather_added(const tokenizer *t, int32_t n_vocab, detok_parts *d, fl_err *err)
{
    for (size_t i = 0; i < added_tokens_count(t->added); i++) {
        const uint8_t *content;
        size_t n;
        bool special;
        int32_t id = added_tokens_entry(t->added, i, &content, &n, &special);
        if (id >= n_vocab) continue;
        d->special[id] = special;
        fl_status st = decode_added(content, n, &d->added[id], &d->added_bytes[id], err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static const uint8_t *token_bytes(const tokenizer *t, const detok_parts *d, int32_t id, size_t *n)
{
    if (!d->added[id]) return bpe_token(t->bpe, id, n);
    *n = d->added_bytes[id];
    return d->added[id];
}

static fl_status lay_out(const tokenizer *t, int32_t n_vocab, detok_parts *d, fl_err *err)
{
    size_t total = 0, n;
    for (int32_t id = 0; id < n_vocab; id++) { token_bytes(t, d, id, &n); total += n; }
    if (total > UINT32_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the tokens have %zu bytes of text together", total);
    d->bytes = malloc(total + 1);
    if (!d->bytes) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
    uint32_t at = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        const uint8_t *bytes = token_bytes(t, d, id, &n);
        d->offsets[id] = at;
        memcpy(d->bytes + at, bytes, n);
        at += (uint32_t)n;
    }
    d->offsets[n_vocab] = at;
    return FL_OK;
}

fl_status tokenizer_detok(const tokenizer *t, int32_t n_vocab, fl_detok **out, fl_err *err)
{
    if (n_vocab < 0 || n_vocab > FL_VOCAB_MAX) return fl_fail(err, FL_INVALID, "tokenizer: a table of %d ids", n_vocab);
    size_t n = (size_t)n_vocab;
    detok_parts d = { calloc(n + 1, sizeof(uint8_t *)), calloc(n + 1, sizeof(size_t)), calloc(n + 1, sizeof(bool)), calloc(n + 1, sizeof(uint32_t)), NULL };
    fl_status st;
    if (!d.added || !d.added_bytes || !d.special || !d.offsets) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for the text of %d tokens", n_vocab); goto done; }
    if ((st = gather_added(t, n_vocab, &d, err)) != FL_OK) goto done;
    if ((st = lay_out(t, n_vocab, &d, err)) != FL_OK) goto done;
    st = fl_detok_make(out, n_vocab, d.bytes, d.offsets, d.special, err);
done:
    for (size_t i = 0; d.added && i < n; i++) free(d.added[i]);
    free(d.added);
    free(d.added_bytes);
    free(d.special);
    free(d.offsets);
    free(d.bytes);
    return st;
}
