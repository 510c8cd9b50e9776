#include "engine/normalize.h"
#include "engine/nfc.h"
#include "engine/pattern.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 16, DEPTH_MAX = 4 };

typedef enum { STEP_FORM, STEP_LOWER, STEP_STRIP, STEP_PREPEND, STEP_REPLACE, STEP_REPLACE_REGEX } step_kind;

typedef struct {
    step_kind kind;
    unicode_form form;
    bool left, right;                    /* STRIP */
    uint8_t *find; size_t find_bytes;    /* REPLACE; owned */
    uint8_t *put; size_t put_bytes;      /* PREPEND, REPLACE; owned */
    pattern *pattern;                    /* REPLACE_REGEX; owned */
} step;

struct normalizer { step steps[STEPS_MAX]; size_t n_steps; };

/* ---- reading the description ---- */

static fl_status copy_text(uint8_t **out, size_t *n_bytes, const json_t *text, const char *what, fl_err *err)
{
    if (!json_is_string(text)) return fl_fail(err, FL_CORRUPT, "tokenizer: the normalizer's %s is not a string", what);
    *n_bytes = json_string_length(text);
    *out = malloc(*n_bytes + 1);
    if (!*out) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    memcpy(*out, json_string_value(text), *n_bytes);
    return FL_OK;
}

static fl_status read_replace(step *s, const json_t *d, fl_err *err)
{
    const json_t *given = json_object_get(d, "pattern"), *regex = json_object_get(given, "Regex"), *text = json_object_get(given, "String");
    fl_status st = copy_text(&s->put, &s->put_bytes, json_object_get(d, "content"), "Replace.content", err);
    if (st != FL_OK) return st;
    if (json_is_string(regex)) {
        s->kind = STEP_REPLACE_REGEX;
        return pattern_compile(&s->pattern, json_string_value(regex), json_string_length(regex), err);
    }
    s->kind = STEP_REPLACE;
    if ((st = copy_text(&s->find, &s->find_bytes, text, "Replace.pattern", err)) != FL_OK) return st;
    return s->find_bytes > 0 ? FL_OK : fl_fail(err, FL_UNSUPPORTED, "tokenizer: the normalizer Replace of an empty string is not served");
}

static fl_status read_steps(normalizer *n, const json_t *d, int depth, fl_err *err)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "Sequence") == 0 && depth < DEPTH_MAX) {
        const json_t *list = json_object_get(d, "normalizers");
        if (!json_is_array(list)) return fl_fail(err, FL_CORRUPT, "tokenizer: normalizer.normalizers is not an array");
        for (size_t i = 0; i < json_array_size(list); i++) {
            fl_status st = read_steps(n, json_array_get(list, i), depth + 1, err);
            if (st != FL_OK) return st;
        }
        return FL_OK;
    }
    if (n->n_steps == STEPS_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: more than %d normalizers", STEPS_MAX);
    step *s = &n->steps[n->n_steps++];
    static const char *const forms[] = { [UNICODE_NFC] = "NFC", [UNICODE_NFD] = "NFD", [UNICODE_NFKC] = "NFKC", [UNICODE_NFKD] = "NFKD" };
    for (int i = 0; type && i < 4; i++) {
        if (strcmp(type, forms[i]) == 0) { *s = (step){ .kind = STEP_FORM, .form = (unicode_form)i }; return FL_OK; }
    }
    if (type && strcmp(type, "Lowercase") == 0) { *s = (step){ .kind = STEP_LOWER }; return FL_OK; }
    if (type && strcmp(type, "Strip") == 0) {
        *s = (step){ .kind = STEP_STRIP, .left = json_is_true(json_object_get(d, "strip_left")), .right = json_is_true(json_object_get(d, "strip_right")) };
        return FL_OK;
    }
    if (type && strcmp(type, "Prepend") == 0) {
        *s = (step){ .kind = STEP_PREPEND };
        return copy_text(&s->put, &s->put_bytes, json_object_get(d, "prepend"), "Prepend.prepend", err);
    }
    if (type && strcmp(type, "Replace") == 0) return read_replace(s, d, err);
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the normalizer %.40s is not served (NFC, NFD, NFKC, NFKD, Lowercase, Strip, Prepend, Replace and Sequence are)", type ? type : "(none)");
}

fl_status normalizer_open(normalizer **out, const json_t *description, fl_err *err)
{
    normalizer *n = calloc(1, sizeof *n);
    if (!n) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    fl_status st = description && !json_is_null(description) ? read_steps(n, description, 0, err) : FL_OK;
    if (st != FL_OK) { normalizer_close(n); return st; }
    *out = n;
    return FL_OK;
}

void normalizer_close(normalizer *n)
{
    if (!n) return;
    for (size_t i = 0; i < n->n_steps; i++) {
        free(n->steps[i].find);
        free(n->steps[i].put);
        pattern_free(n->steps[i].pattern);
    }
    free(n);
}

bool normalizer_removes(const normalizer *n)
{
    for (size_t i = 0; i < n->n_steps; i++) {
        const step *s = &n->steps[i];
        if (s->kind == STEP_STRIP || ((s->kind == STEP_REPLACE || s->kind == STEP_REPLACE_REGEX) && s->put_bytes == 0)) return true;
    }
    return false;
}

/* ---- running ---- */

typedef struct { uint8_t *bytes; size_t n, capacity; } growing;          /* bytes owned */

static fl_status add_bytes(growing *g, const uint8_t *bytes, size_t n, fl_err *err)
{
    if (!g->bytes || g->n + n > g->capacity) {           /* also for nothing: an empty text is not the old one */
        size_t capacity = (g->n + n) * 2 + 16;
        uint8_t *grown = realloc(g->bytes, capacity);
        if (!grown) return fl_fail(err, FL_FULL, "tokenizer: no memory to normalize a text of %zu bytes", g->n + n);
        g->bytes = grown;
        g->capacity = capacity;
    }
    if (n > 0) memcpy(g->bytes + g->n, bytes, n);
    g->n += n;
    return FL_OK;
}

static fl_status run_lower(const uint8_t *text, size_t n_bytes, growing *g, fl_err *err)
{
    fl_status st = add_bytes(g, NULL, 0, err);
    for (size_t i = 0; i < n_bytes && st == FL_OK;) {
        uint32_t lower[2];
        uint8_t bytes[8];
        size_t count = unicode_lower(utf8_next(text, &i), lower), n = utf8_put(bytes, lower[0]);
        if (count == 2) n += utf8_put(bytes + n, lower[1]);
        st = add_bytes(g, bytes, n, err);
    }
    return st;
}

static fl_status run_strip(const step *s, const uint8_t *text, size_t n_bytes, growing *g, fl_err *err)
{
    size_t begin = 0, end = n_bytes;
    for (size_t next = 0; s->left && next < n_bytes && unicode_is_space(utf8_next(text, &next));) begin = next;
    while (s->right && end > begin) {
        size_t at = end - 1, behind;
        while (at > begin && (text[at] & 0xC0) == 0x80) at--;
        behind = at;
        if (!unicode_is_space(utf8_next(text, &behind))) break;
        end = at;
    }
    return add_bytes(g, text + begin, end - begin, err);
}

static fl_status run_replace(const step *s, const uint8_t *text, size_t n_bytes, growing *g, fl_err *err)
{
    fl_status st = add_bytes(g, NULL, 0, err);
    for (size_t at = 0; st == FL_OK;) {
        const uint8_t *found = memmem(text + at, n_bytes - at, s->find, s->find_bytes);
        size_t end = found ? (size_t)(found - text) : n_bytes;
        if ((st = add_bytes(g, text + at, end - at, err)) != FL_OK || !found) break;
        st = add_bytes(g, s->put, s->put_bytes, err);
        at = end + s->find_bytes;
    }
    return st;
}

typedef struct { const step *step; const uint8_t *text; growing *out; } replacing;

static fl_status replace_piece(void *context, size_t begin, size_t end, bool is_match, fl_err *err)
{
    replacing *r = context;
    return is_match ? add_bytes(r->out, r->step->put, r->step->put_bytes, err) : add_bytes(r->out, r->text + begin, end - begin, err);
}

static fl_status run_replace_regex(const step *s, const uint8_t *text, size_t n_bytes, growing *g, fl_err *err)
{
    pattern_finder *finder = NULL;
    replacing r = { s, text, g };
    fl_status st = add_bytes(g, NULL, 0, err);
    if (st == FL_OK) st = pattern_finder_open(&finder, s->pattern, err);
    if (st == FL_OK) st = pattern_cut(finder, text, n_bytes, replace_piece, &r, err);
    pattern_finder_close(finder);
    return st;
}

/* g->bytes stays NULL when the step changes nothing. */
static fl_status run_step(const step *s, const uint8_t *text, size_t n_bytes, growing *g, fl_err *err)
{
    fl_status st = FL_OK;
    switch (s->kind) {
    case STEP_FORM: return nfc_normalize(s->form, text, n_bytes, &g->bytes, &g->n, err);
    case STEP_LOWER: return run_lower(text, n_bytes, g, err);
    case STEP_STRIP: return run_strip(s, text, n_bytes, g, err);
    case STEP_PREPEND:
        if (n_bytes == 0) return FL_OK;                  /* as the reference: an empty text stays empty */
        st = add_bytes(g, s->put, s->put_bytes, err);
        return st == FL_OK ? add_bytes(g, text, n_bytes, err) : st;
    case STEP_REPLACE:
        return memmem(text, n_bytes, s->find, s->find_bytes) ? run_replace(s, text, n_bytes, g, err) : FL_OK;
    case STEP_REPLACE_REGEX: return run_replace_regex(s, text, n_bytes, g, err);
    }
    return FL_OK;
}

fl_status normalizer_run(const normalizer *n, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err)
{
    uint8_t *now = NULL;                                 /* the text as it is, NULL = the given one */
    size_t now_bytes = n_bytes;
    for (size_t i = 0; i < n->n_steps; i++) {
        growing g = { 0 };
        fl_status st = run_step(&n->steps[i], now ? now : text, now_bytes, &g, err);
        if (st != FL_OK) {
            free(g.bytes);
            free(now);
            return st;
        }
        if (!g.bytes) continue;
        free(now);
        now = g.bytes;
        now_bytes = g.n;
    }
    *out = now;
    *out_bytes = now_bytes;
    return FL_OK;
}
