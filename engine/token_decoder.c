#include "engine/token_decoder.h"
#include "engine/bpe.h"
#include "engine/normalize.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 16, DEPTH_MAX = 4, CHARACTER_BYTES_MAX = 4 };

typedef enum { STEP_REPLACE, STEP_STRIP, STEP_METASPACE } step_kind;

typedef struct {
    step_kind kind;
    normalizer *replace;                 /* owned: a Replace does to a token what the normalizer of that name does to a text */
    uint8_t character[CHARACTER_BYTES_MAX]; size_t character_bytes;      /* STRIP, METASPACE */
    size_t n_strip;
} step;

/* How far the description has been read: steps see tokens, then runs of byte tokens as one, then the whole text. */
typedef enum { STAGE_TOKENS, STAGE_RUNS, STAGE_TEXT } read_stage;

struct token_decoder {
    step steps[STEPS_MAX]; size_t n_steps;
    read_stage stage;
    bool byte_level, byte_fallback, tight;       /* tight: the first token loses what Metaspace made spaces */
    fl_detok_form form;
};

/* ---- reading the description ---- */

static fl_status read_character(step *s, const json_t *text, const char *what, fl_err *err)
{
    size_t n = json_string_length(text), i = 0;
    if (n > 0) utf8_next((const uint8_t *)json_string_value(text), &i);
    if (n == 0 || i != n) return fl_fail(err, FL_CORRUPT, "tokenizer: the decoder's %s is not one character", what);
    memcpy(s->character, json_string_value(text), n);
    s->character_bytes = n;
    return FL_OK;
}

static fl_status misplaced(const char *type, fl_err *err)
{
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the decoder %s is not served at its place in the Sequence", type);
}

/* Off the text's beginning when the tokens are already fused, else off each token's. */
static fl_status read_strip(token_decoder *d, const json_t *j, step *s, fl_err *err)
{
    json_int_t start = json_integer_value(json_object_get(j, "start")), stop = json_integer_value(json_object_get(j, "stop"));
    *s = (step){ .kind = STEP_STRIP };
    fl_status st = read_character(s, json_object_get(j, "content"), "Strip.content", err);
    if (st != FL_OK) return st;
    if (start < 0 || start > UINT8_MAX || stop != 0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the decoder Strip is served with stop 0 and a start from 0 to %d", UINT8_MAX);
    s->n_strip = (size_t)start;
    if (d->stage == STAGE_TOKENS && !d->tight) { d->n_steps++; return FL_OK; }
    if (d->stage != STAGE_TEXT || d->form.strip_max > 0) return misplaced("Strip", err);
    if (start == 0) return FL_OK;
    if (s->character_bytes != 1 || s->character[0] == 0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the decoder Strip is served for characters of ASCII");
    d->form = (fl_detok_form){ (uint8_t)start, s->character[0] };
    return FL_OK;
}

static fl_status read_metaspace(token_decoder *d, const json_t *j, step *s, fl_err *err)
{
    const json_t *scheme = json_object_get(j, "prepend_scheme");
    if (d->stage != STAGE_TOKENS || d->tight) return misplaced("Metaspace", err);
    *s = (step){ .kind = STEP_METASPACE };
    fl_status st = read_character(s, json_object_get(j, "replacement"), "Metaspace.replacement", err);
    if (st != FL_OK) return st;
    const char *name = json_string_value(scheme);
    if (scheme && (!name || (strcmp(name, "always") != 0 && strcmp(name, "first") != 0 && strcmp(name, "never") != 0)))
        return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the prepend_scheme of a Metaspace decoder is not always, first or never");
    d->tight = !(name && strcmp(name, "never") == 0) && !json_is_false(json_object_get(j, "add_prefix_space"));
    d->n_steps++;
    return FL_OK;
}

static fl_status read_steps(token_decoder *d, const json_t *j, int depth, fl_err *err)
{
    const char *type = json_string_value(json_object_get(j, "type"));
    const json_t *list = json_object_get(j, "decoders");
    if (!type) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a file without a decoder is not served");
    if (strcmp(type, "Sequence") == 0 && json_is_array(list) && depth < DEPTH_MAX) {
        for (size_t i = 0; i < json_array_size(list); i++) {
            fl_status st = read_steps(d, json_array_get(list, i), depth + 1, err);
            if (st != FL_OK) return st;
        }
        return FL_OK;
    }
    if (d->n_steps == STEPS_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: more than %d decoders", STEPS_MAX);
    step *s = &d->steps[d->n_steps];
    if (strcmp(type, "Fuse") == 0) { d->stage = STAGE_TEXT; return FL_OK; }
    if (strcmp(type, "Strip") == 0) return read_strip(d, j, s, err);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(d, j, s, err);
    if (strcmp(type, "ByteLevel") == 0) {
        if (d->stage != STAGE_TOKENS || d->tight) return misplaced(type, err);
        d->byte_level = true;
        d->stage = STAGE_TEXT;
        return FL_OK;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        if (d->stage != STAGE_TOKENS) return misplaced(type, err);
        d->byte_fallback = true;
        d->stage = STAGE_RUNS;
        return FL_OK;
    }
    if (strcmp(type, "Replace") == 0) {
        if (d->stage != STAGE_TOKENS || d->tight) return misplaced(type, err);
        *s = (step){ .kind = STEP_REPLACE };
        fl_status st = normalizer_open(&s->replace, j, err);
        if (st == FL_OK) d->n_steps++;
        return st;
    }
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the decoder %.40s is not served (ByteLevel, ByteFallback, Fuse, Metaspace, Replace, Strip and Sequence are)", type);
}

fl_status token_decoder_open(token_decoder **out, const json_t *description, bool byte_level, fl_err *err)
{
    token_decoder *d = calloc(1, sizeof *d);
    if (!d) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    fl_status st = read_steps(d, description, 0, err);
    if (st == FL_OK && byte_level && (!d->byte_level || d->n_steps > 0))
        st = fl_fail(err, FL_UNSUPPORTED, "tokenizer: the vocabulary is byte-level, and its decoder is not ByteLevel alone");
    if (st != FL_OK) { token_decoder_close(d); return st; }
    *out = d;
    return FL_OK;
}

void token_decoder_close(token_decoder *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->n_steps; i++) normalizer_close(d->steps[i].replace);
    free(d);
}

fl_detok_form token_decoder_form(const token_decoder *d) { return d->form; }

/* ---- running ---- */

static void run_strip(const step *s, uint8_t *text, size_t *n)
{
    size_t at = 0;
    for (size_t i = 0; i < s->n_strip && *n - at >= s->character_bytes && memcmp(text + at, s->character, s->character_bytes) == 0; i++) at += s->character_bytes;
    memmove(text, text + at, *n - at);
    *n -= at;
}

/* Marks become spaces, in place. */
static fl_status run_metaspace(const token_decoder *d, const step *s, uint8_t *text, size_t *n, uint8_t *bits, fl_err *err)
{
    size_t out = 0, n_marks = 0;
    bool spaces = memchr(text, ' ', *n) != NULL;
    for (size_t i = 0; i < *n;) {
        if (*n - i >= s->character_bytes && memcmp(text + i, s->character, s->character_bytes) == 0) {
            text[out++] = ' ';
            i += s->character_bytes;
            n_marks++;
        } else {
            text[out++] = text[i++];
        }
    }
    *n = out;
    if (!d->tight || n_marks == 0) return FL_OK;
    if (spaces) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a token that holds spaces and Metaspace's characters is not served: \"%.*s\"", (int)(out < 40 ? out : 40), (const char *)text);
    *bits |= FL_TOKEN_TIGHT;
    return FL_OK;
}

static fl_status run_replace(const step *s, uint8_t **text, size_t *n, fl_err *err)
{
    uint8_t *replaced = NULL;
    size_t n_replaced = 0;
    fl_status st = normalizer_run(s->replace, *text, *n, &replaced, &n_replaced, err);
    if (st != FL_OK || !replaced) return st;
    free(*text);
    *text = replaced;
    *n = n_replaced;
    return FL_OK;
}

static int hex_value(uint8_t c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* "<0x41>" becomes its byte; the reference's number reader takes a plus sign, too. */
static void run_byte_fallback(uint8_t *text, size_t *n, uint8_t *bits)
{
    if (*n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return;
    int high = text[3] == '+' ? 0 : hex_value(text[3]), low = hex_value(text[4]);
    if (high < 0 || low < 0) return;
    text[0] = (uint8_t)(high * 16 + low);
    *n = 1;
    *bits |= FL_TOKEN_BYTE;
}

static fl_status run_byte_level(uint8_t *text, size_t *n, fl_err *err)
{
    uint8_t *decoded = malloc(*n + 1);
    size_t n_decoded;
    if (!decoded) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
    if (byte_alphabet_decode((const char *)text, *n, decoded, &n_decoded)) {     /* others stand for themselves */
        memcpy(text, decoded, n_decoded);
        *n = n_decoded;
    }
    free(decoded);
    return FL_OK;
}

fl_status token_decoder_run(const token_decoder *d, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, uint8_t *bits, fl_err *err)
{
    uint8_t *now = malloc(n_bytes + 1);
    size_t n = n_bytes;
    fl_status st = FL_OK;
    if (!now) return fl_fail(err, FL_FULL, "tokenizer: no memory for the text of the tokens");
    memcpy(now, text, n);
    *bits = 0;
    for (size_t i = 0; i < d->n_steps && st == FL_OK; i++) {
        const step *s = &d->steps[i];
        if (s->kind == STEP_REPLACE) st = run_replace(s, &now, &n, err);
        else if (s->kind == STEP_STRIP) run_strip(s, now, &n);
        else st = run_metaspace(d, s, now, &n, bits, err);
    }
    if (d->byte_fallback) run_byte_fallback(now, &n, bits);
    if (st == FL_OK && d->byte_level) st = run_byte_level(now, &n, err);
    if (st != FL_OK) { free(now); return st; }
    *out = now;
    *out_bytes = n;
    return FL_OK;
}
