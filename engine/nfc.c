#include "engine/nfc.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Below U+0300 every character is in form C and combines with nothing before it; in the other forms only ASCII is. */
static size_t inert_prefix(unicode_form form, const uint8_t *text, size_t n_bytes)
{
    size_t i = 0;
    uint8_t first = form == UNICODE_NFC ? 0xCC : 0x80;   /* 0xCC 0x80 is U+0300; continuation bytes are below too */
    while (i < n_bytes && text[i] < first) i++;
    return i;
}

static utf8proc_option_t options_of(unicode_form form)
{
    static const int options[] = { [UNICODE_NFC] = UTF8PROC_COMPOSE, [UNICODE_NFD] = UTF8PROC_DECOMPOSE,
                                   [UNICODE_NFKC] = UTF8PROC_COMPOSE | UTF8PROC_COMPAT, [UNICODE_NFKD] = UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT };
    return (utf8proc_option_t)(UTF8PROC_STABLE | options[form]);
}

#define RUN_SHORT 32

static uint8_t class_of(int32_t c) { return (uint8_t)utf8proc_get_property(c)->combining_class; }

/* Canonical order: the marks of a run by combining class, those of one class as they came. `spare` has room for a run above RUN_SHORT. */
static void order_run(int32_t *run, size_t n, int32_t *spare)
{
    if (n <= RUN_SHORT) {
        for (size_t i = 1; i < n; i++) {
            int32_t c = run[i];
            size_t j = i;
            for (; j > 0 && class_of(run[j - 1]) > class_of(c); j--) run[j] = run[j - 1];
            run[j] = c;
        }
        return;
    }
    size_t at[257] = { 0 };
    for (size_t i = 0; i < n; i++) at[class_of(run[i]) + 1]++;
    for (int k = 0; k < 256; k++) at[k + 1] += at[k];
    for (size_t i = 0; i < n; i++) spare[at[class_of(run[i])]++] = run[i];
    memcpy(run, spare, n * sizeof *run);
}

static fl_status order_marks(int32_t *c, size_t n, fl_err *err)
{
    int32_t *spare = NULL;
    size_t room = RUN_SHORT;
    for (size_t i = 0; i < n; i++) {
        size_t begin = i;
        while (i < n && class_of(c[i]) > 0) i++;
        if (i - begin > room) {
            free(spare);
            room = 2 * (i - begin);
            if (!(spare = malloc(room * sizeof *spare))) return fl_fail(err, FL_FULL, "tokenizer: no memory to normalize a text");
        }
        if (i - begin > 1) order_run(c + begin, i - begin, spare);
    }
    free(spare);
    return FL_OK;
}

/* The decomposed characters of text[0 .. n_bytes), ordered, at *out (malloc'ed, a byte more than they need: utf8proc encodes in place). utf8proc_map does the same
 * but orders marks by swapping neighbours: a megabyte of them took ten minutes. */
static fl_status decompose(utf8proc_option_t options, const uint8_t *text, size_t n_bytes, int32_t **out, size_t *n_out, fl_err *err)
{
    size_t n = 0, capacity = n_bytes + 32;
    int32_t *made = malloc(capacity * sizeof *made + 1);
    for (size_t i = 0; made && i < n_bytes;) {
        int32_t c = (int32_t)utf8_next(text, &i);
        utf8proc_ssize_t more = utf8proc_decompose_char(c, made + n, (utf8proc_ssize_t)(capacity - n), options, NULL);
        if (more < 0) { free(made); return fl_fail(err, FL_INVALID, "tokenizer: normalization failed: %s", utf8proc_errmsg(more)); }
        if ((size_t)more > capacity - n) {               /* nothing is sure to be written: again with more room */
            capacity = 2 * capacity + (size_t)more;
            int32_t *grown = realloc(made, capacity * sizeof *made + 1);
            if (!grown) { free(made); made = NULL; break; }
            made = grown;
            utf8proc_decompose_char(c, made + n, (utf8proc_ssize_t)(capacity - n), options, NULL);
        }
        n += (size_t)more;
    }
    if (!made) return fl_fail(err, FL_FULL, "tokenizer: no memory to normalize a text");
    fl_status st = order_marks(made, n, err);
    if (st != FL_OK) { free(made); return st; }
    *out = made;
    *n_out = n;
    return FL_OK;
}

/* Append the normal form of text[0 .. n_bytes), which holds no young character. */
static fl_status append_normal(utf8proc_option_t options, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *n_out, size_t *capacity, fl_err *err)
{
    int32_t *characters = NULL;
    size_t n_characters = 0;
    fl_status st = decompose(options, text, n_bytes, &characters, &n_characters, err);
    if (st != FL_OK) return st;
    utf8proc_ssize_t n = utf8proc_reencode(characters, (utf8proc_ssize_t)n_characters, options);
    if (n < 0) { st = fl_fail(err, FL_INVALID, "tokenizer: normalization failed: %s", utf8proc_errmsg(n)); goto done; }
    size_t want = *n_out + (size_t)n + 4;                /* 4: the young character that may follow */
    if (want > *capacity) {
        uint8_t *grown = realloc(*out, want * 2);
        if (!grown) { st = fl_fail(err, FL_FULL, "tokenizer: no memory to normalize a text"); goto done; }
        *out = grown;
        *capacity = want * 2;
    }
    if (n > 0) memcpy(*out + *n_out, characters, (size_t)n);
    *n_out += (size_t)n;
done:
    free(characters);
    return st;
}

fl_status nfc_normalize(unicode_form form, const uint8_t *text, size_t n_bytes, uint8_t **out, size_t *out_bytes, fl_err *err)
{
    *out = NULL;
    if (inert_prefix(form, text, n_bytes) == n_bytes) return FL_OK;
    utf8proc_option_t options = options_of(form);
    uint8_t *made = NULL;
    size_t n = 0, capacity = 0, begin = 0;
    fl_status st = FL_OK;
    /* A young character neither moves nor combines for the reference, so the text falls apart at it. */
    for (size_t i = 0; i < n_bytes && st == FL_OK;) {
        size_t at = i;
        if (text[i] < 0x80) { i++; continue; }
        if (!unicode_is_young(utf8_next(text, &i), form != UNICODE_NFC)) continue;
        st = append_normal(options, text + begin, at - begin, &made, &n, &capacity, err);
        if (st != FL_OK) break;
        memcpy(made + n, text + at, i - at);
        n += i - at;
        begin = i;
    }
    if (st == FL_OK) st = append_normal(options, text + begin, n_bytes - begin, &made, &n, &capacity, err);
    if (st != FL_OK) { free(made); return st; }
    *out = made;
    *out_bytes = n;
    return FL_OK;
}
