#include "engine/nfc.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Below U+0300 every character is in form C and combines with nothing before it. */
static size_t inert_prefix(const uint8_t *text, size_t n_bytes)
{
    size_t i = 0;
    while (i < n_bytes && text[i] < 0xCC) i++;           /* 0xCC 0x80 is U+0300; continuation bytes are below too */
    return i;
}

/* Append the normal form of text[0 .. n_bytes), which holds no young character. */
static fl_status append_normal(const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *n_out, size_t *capacity, fl_err *err)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t n = 0;
    if (n_bytes > 0) {
        n = utf8proc_map(text, (utf8proc_ssize_t)n_bytes, &normal, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (n < 0) return fl_fail(err, n == UTF8PROC_ERROR_NOMEM ? FL_FULL : FL_INVALID, "tokenizer: normalization failed: %s", utf8proc_errmsg(n));
    }
    size_t want = *n_out + (size_t)n + 4;                /* 4: the young character that may follow */
    if (want > *capacity) {
        uint8_t *grown = realloc(*out, want * 2);
        if (!grown) { free(normal); return fl_fail(err, FL_FULL, "tokenizer: no memory to normalize a text"); }
        *out = grown;
        *capacity = want * 2;
    }
    if (n > 0) memcpy(*out + *n_out, normal, (size_t)n);
    *n_out += (size_t)n;
    free(normal);
    return FL_OK;
}

fl_status nfc_normalize(const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err)
{
    *out = NULL;
    if (inert_prefix(text, n_bytes) == n_bytes) return FL_OK;
    uint8_t *made = NULL;
    size_t n = 0, capacity = 0, begin = 0;
    fl_status st = FL_OK;
    /* A young character neither moves nor combines for the reference, so the text falls apart at it. */
    for (size_t i = 0; i < n_bytes && st == FL_OK;) {
        size_t at = i;
        if (text[i] < 0x80) { i++; continue; }
        if (!unicode_is_young(utf8_next(text, &i))) continue;
        st = append_normal(text + begin, at - begin, &made, &n, &capacity, err);
        if (st != FL_OK) break;
        memcpy(made + n, text + at, i - at);
        n += i - at;
        begin = i;
    }
    if (st == FL_OK) st = append_normal(text + begin, n_bytes - begin, &made, &n, &capacity, err);
    if (st != FL_OK) { free(made); return st; }
    *out = made;
    *out_bytes = n;
    return FL_OK;
}
