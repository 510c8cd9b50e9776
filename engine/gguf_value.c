/* gguf_value.c - gguf.h's typed readers: a value is what was asked for, or a sentence says what it is. */
#include "engine/gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/detok.h"

static const char *const kind_words[GGUF_KINDS] = { "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64" };
static const int kind_bytes[GGUF_KINDS] = { 1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8 };

static fl_status refuse_absent(const gguf *g, const char *key, fl_err *err) { return fl_fail(err, FL_NOT_FOUND, "%s: key %s is missing", gguf_name(g), key); }

static fl_status refuse_kind(const gguf *g, const gguf_field *f, const char *wanted, fl_err *err)
{
    if (f->kind == GGUF_ARRAY)
        return fl_fail(err, FL_CORRUPT, "%s: key %.*s is an array of %llu %s values, but %s is wanted", gguf_name(g), (int)f->key_bytes, f->key, (unsigned long long)f->count, kind_words[f->element], wanted);
    return fl_fail(err, FL_CORRUPT, "%s: key %.*s is a %s, but %s is wanted", gguf_name(g), (int)f->key_bytes, f->key, kind_words[f->kind], wanted);
}

static uint64_t word_at(const uint8_t *p, int n_bytes)
{
    uint64_t v = 0;
    for (int i = n_bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

/* A whole number as sign and size; false for other kinds. */
static bool whole_at(const uint8_t *p, gguf_kind kind, bool *is_negative, uint64_t *size)
{
    const int n = kind_bytes[kind];
    *is_negative = false;
    switch (kind) {
    case GGUF_U8: case GGUF_U16: case GGUF_U32: case GGUF_U64: *size = word_at(p, n); return true;
    case GGUF_I8: case GGUF_I16: case GGUF_I32: case GGUF_I64: {
        uint64_t v = word_at(p, n);
        *is_negative = v >> (8 * n - 1);
        if (*is_negative && n < 8) v |= UINT64_MAX << (8 * n);
        *size = *is_negative ? (uint64_t)0 - v : v;
        return true;
    }
    default: return false;
    }
}

fl_status gguf_int(const gguf *g, const char *key, int64_t lo, int64_t hi, int64_t *out, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    bool is_negative;
    uint64_t size;
    if (!f) return refuse_absent(g, key, err);
    if (!whole_at(f->data, f->kind, &is_negative, &size)) return refuse_kind(g, f, "a whole number", err);
    const bool fits = is_negative ? size <= (uint64_t)1 << 63 : size <= INT64_MAX;
    const int64_t v = is_negative ? (int64_t)((uint64_t)0 - size) : (int64_t)size;
    if (!fits || v < lo || v > hi)
        return fl_fail(err, FL_CORRUPT, "%s: key %s is %s%llu; a whole number from %lld to %lld is wanted", gguf_name(g), key, is_negative ? "-" : "", (unsigned long long)size, (long long)lo, (long long)hi);
    *out = v;
    return FL_OK;
}

fl_status gguf_number(const gguf *g, const char *key, double *out, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    bool is_negative;
    uint64_t size;
    double v;
    if (!f) return refuse_absent(g, key, err);
    if (f->kind == GGUF_F32) {
        float single;
        memcpy(&single, f->data, sizeof single);
        v = (double)single;
    } else if (f->kind == GGUF_F64) {
        memcpy(&v, f->data, sizeof v);
    } else if (whole_at(f->data, f->kind, &is_negative, &size)) {
        v = is_negative ? -(double)size : (double)size;
    } else {
        return refuse_kind(g, f, "a number", err);
    }
    if (!isfinite(v)) return fl_fail(err, FL_CORRUPT, "%s: key %s is NaN or infinite", gguf_name(g), key);
    *out = v;
    return FL_OK;
}

fl_status gguf_flag(const gguf *g, const char *key, bool *out, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    bool is_negative;
    uint64_t size;
    if (!f) return refuse_absent(g, key, err);
    if (f->kind == GGUF_BOOL) size = f->data[0];
    else if (!whole_at(f->data, f->kind, &is_negative, &size)) return refuse_kind(g, f, "true or false", err);
    if (size > 1) return fl_fail(err, FL_CORRUPT, "%s: key %s is %llu, which is neither true nor false", gguf_name(g), key, (unsigned long long)size);
    *out = size == 1;
    return FL_OK;
}

fl_status gguf_text(const gguf *g, const char *key, const char **text, size_t *n_bytes, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    if (!f) return refuse_absent(g, key, err);
    if (f->kind != GGUF_STRING) return refuse_kind(g, f, "a string", err);
    if (!fl_utf8_valid(f->data, f->n_bytes) || memchr(f->data, '\0', f->n_bytes)) return fl_fail(err, FL_CORRUPT, "%s: the string of key %s is not UTF-8 text", gguf_name(g), key);
    *text = (const char *)f->data;
    *n_bytes = f->n_bytes;
    return FL_OK;
}

bool gguf_text_is(const gguf *g, const char *key, const char *wanted)
{
    const char *text;
    size_t n;
    return gguf_text(g, key, &text, &n, NULL) == FL_OK && strlen(wanted) == n && memcmp(text, wanted, n) == 0;
}

fl_status gguf_u32_array(const gguf *g, const char *key, size_t n_want, uint32_t **out, size_t *n, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    if (!f) return refuse_absent(g, key, err);
    if (f->kind != GGUF_ARRAY) return refuse_kind(g, f, "an array of whole numbers", err);
    bool is_negative;
    uint64_t size;
    const uint8_t zero[8] = { 0 };
    if (f->element != GGUF_BOOL && !whole_at(zero, f->element, &is_negative, &size)) return refuse_kind(g, f, "an array of whole numbers", err);
    if (n_want > 0 && f->count != n_want)
        return fl_fail(err, FL_CORRUPT, "%s: key %s has %llu entries, but %zu are wanted", gguf_name(g), key, (unsigned long long)f->count, n_want);
    uint32_t *values = malloc((size_t)f->count * sizeof *values + 1);    /* at most 4 bytes for each byte of the file */
    if (!values) return fl_fail(err, FL_FULL, "gguf: no memory for the %llu entries of %s", (unsigned long long)f->count, key);
    for (size_t i = 0; i < f->count; i++) {
        const uint8_t *at = f->data + i * (size_t)kind_bytes[f->element];
        if (f->element == GGUF_BOOL) { is_negative = false; size = at[0]; }
        else whole_at(at, f->element, &is_negative, &size);
        const uint64_t most = f->element == GGUF_BOOL ? 1 : UINT32_MAX;
        if (is_negative || size > most) {
            free(values);
            return fl_fail(err, FL_CORRUPT, "%s: entry %zu of key %s is %s%llu, which is not 0 to %llu", gguf_name(g), i, key, is_negative ? "-" : "", (unsigned long long)size, (unsigned long long)most);
        }
        values[i] = (uint32_t)size;
    }
    *out = values;
    *n = (size_t)f->count;
    return FL_OK;
}

fl_status gguf_strings_begin(gguf_strings *s, const gguf *g, const char *key, fl_err *err)
{
    const gguf_field *f = gguf_find(g, key);
    if (!f) return refuse_absent(g, key, err);
    if (f->kind != GGUF_ARRAY || f->element != GGUF_STRING) return refuse_kind(g, f, "an array of strings", err);
    *s = (gguf_strings){ f->data, f->count };
    return FL_OK;
}

bool gguf_strings_next(gguf_strings *s, const char **text, size_t *n_bytes)
{
    if (s->left == 0) return false;
    *n_bytes = (size_t)word_at(s->at, 8);                /* inside the file: gguf_open looked */
    *text = (const char *)s->at + 8;
    s->at += 8 + *n_bytes;
    s->left--;
    return true;
}
