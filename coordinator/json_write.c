#include "coordinator/json_write.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include "proto/detok.h"

void json_out_fini(json_out *out)
{
    free(out->data);
    *out = (json_out){ 0 };
}

void json_out_reset(json_out *out, size_t n_bytes)
{
    out->n_bytes = n_bytes;
    out->failed = out->needs_comma = false;
}

static bool grow(json_out *out, size_t n_bytes)
{
    size_t capacity = out->capacity ? out->capacity : 1024;
    while (capacity - out->n_bytes < n_bytes) capacity *= 2;
    char *data = realloc(out->data, capacity);
    if (!data) { out->failed = true; return false; }
    out->data = data;
    out->capacity = capacity;
    return true;
}

static inline char *make_room(json_out *out, size_t n_bytes)
{
    if (out->failed || (out->capacity - out->n_bytes < n_bytes && !grow(out, n_bytes))) return NULL;
    return out->data + out->n_bytes;
}

static inline void put(json_out *out, const void *bytes, size_t n_bytes)
{
    char *to = make_room(out, n_bytes);
    if (!to) return;
    memcpy(to, bytes, n_bytes);
    out->n_bytes += n_bytes;
}

static void begin_value(json_out *out)
{
    if (out->needs_comma) put(out, ",", 1);
    out->needs_comma = true;
}

void json_out_begin(json_out *out, char bracket)
{
    begin_value(out);
    put(out, &bracket, 1);
    out->needs_comma = false;
}

void json_out_end(json_out *out, char bracket)
{
    put(out, &bracket, 1);
    out->needs_comma = true;
}

void json_out_line_end(json_out *out)
{
    put(out, "\n", 1);
    out->needs_comma = false;
}

void json_out_null(json_out *out)
{
    begin_value(out);
    put(out, "null", 4);
}

void json_out_bool(json_out *out, bool value)
{
    begin_value(out);
    put(out, value ? "true" : "false", value ? 4 : 5);
}

void json_out_raw(json_out *out, const char *json, size_t n_bytes)
{
    begin_value(out);
    put(out, json, n_bytes);
}

static void put_number(json_out *out, const char *text)
{
    begin_value(out);
    put(out, text, strlen(text));
}

static void put_digits(json_out *out, uint64_t value, bool is_negative)
{
    char text[24], *at = text + sizeof text;
    do *--at = (char)('0' + value % 10); while ((value /= 10) > 0);
    if (is_negative) *--at = '-';
    begin_value(out);
    put(out, at, (size_t)(text + sizeof text - at));
}

void json_out_u64(json_out *out, uint64_t value) { put_digits(out, value, false); }
void json_out_i64(json_out *out, int64_t value) { put_digits(out, value < 0 ? -(uint64_t)value : (uint64_t)value, value < 0); }

/* The shortest form for 0.0001 <= |value| < 100000, which most log-probabilities are; 0: it is for the slow way. value * 10^shift is exact: 24 bits times 5^12 of 28
 * fit a double, so the digits are rounded as printf rounds them; and the quotient is the decimal rounded once, so it reads back as strtof reads it unless it
 * lies in the middle between two floats. */
static size_t short_float(char text[32], float value)
{
    static const double tens[] = { 1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12 };
    double v = fabs((double)value);
    if (!(v >= 1e-4 && v < 1e5)) return 0;
    int magnitude = v >= 1 ? (v >= 100 ? (v >= 10000 ? 4 : v >= 1000 ? 3 : 2) : v >= 10 ? 1 : 0) : v >= 0.01 ? (v >= 0.1 ? -1 : -2) : v >= 0.001 ? -3 : -4;
    for (int shift = 5 - magnitude; shift <= 8 - magnitude; shift++) {
        double rounded = (v * tens[shift] + 0x1p52) - 0x1p52, back = rounded / tens[shift];      /* to the nearest integer, halves to the even one */
        uint64_t bits;
        memcpy(&bits, &back, sizeof bits);
        if ((bits & 0x1FFFFFFF) == 0x10000000) return 0;
        if ((float)back != (float)v) continue;
        uint64_t digits = (uint64_t)rounded;
        for (; shift > 0 && digits % 10 == 0; shift--) digits /= 10;
        char *at = text + 32;
        for (int i = 0; i < shift; i++, digits /= 10) *--at = (char)('0' + digits % 10);
        if (shift) *--at = '.';
        do *--at = (char)('0' + digits % 10); while ((digits /= 10) > 0);
        if (value < 0) *--at = '-';
        size_t n = (size_t)(text + 32 - at);
        memmove(text, at, n);
        return n;
    }
    return 0;
}

void json_out_float(json_out *out, float value)
{
    char text[32];
    if (!isfinite(value)) { json_out_null(out); return; }
    size_t n = short_float(text, value);
    if (n) {
        begin_value(out);
        put(out, text, n);
        return;
    }
    for (int digits = fabsf(value) < FLT_MIN ? 1 : 6; digits <= 9; digits++) {       /* %g drops zeros, so 6 digits are no longer than fewer; 9 always suffice */
        snprintf(text, sizeof text, "%.*g", digits, (double)value);
        if (strtof(text, NULL) == value) break;
    }
    put_number(out, text);
}

/* ---- strings ---- */

static void put_escape(json_out *out, unsigned code)
{
    char text[8];
    const char *named = code == '"' ? "\\\"" : code == '\\' ? "\\\\" : code == '\n' ? "\\n" : code == '\r' ? "\\r" : code == '\t' ? "\\t" : NULL;
    if (!named) { snprintf(text, sizeof text, "\\u%04x", code & 0xFFFF); named = text; }
    put(out, named, strlen(named));
}

/* Does this byte stop a plain run: escaped, or not ASCII? */
static bool is_plain(uint8_t c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; }

/* Put the plain bytes from p[at] on; returns the place behind them. Sixteen at a time: all of them are copied, only the plain ones count. */
static size_t put_plain(json_out *out, const uint8_t *p, size_t at, size_t n)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), last = _mm_set1_epi8(0x7E), space = _mm_set1_epi8(0x20);
    while (n - at >= 16) {
        char *to = make_room(out, 16);
        if (!to) return n;
        __m128i v = _mm_loadu_si128((const __m128i *)(p + at));
        __m128i outside = _mm_or_si128(_mm_cmplt_epi8(v, space), _mm_cmpgt_epi8(v, last));       /* signed: from 0x80 on it is below */
        int mask = _mm_movemask_epi8(_mm_or_si128(outside, _mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash))));
        _mm_storeu_si128((__m128i *)to, v);
        size_t n_plain = mask ? (size_t)__builtin_ctz((unsigned)mask) : 16;
        out->n_bytes += n_plain;
        at += n_plain;
        if (mask) return at;
    }
#endif
    size_t run = at;
    while (run < n && is_plain(p[run])) run++;
    put(out, p + at, run - at);
    return run;
}

static void put_string(json_out *out, const uint8_t *p, size_t n)
{
    put(out, "\"", 1);
    make_room(out, n + 1);                               /* mostly all that it takes */
    for (size_t at = 0; at < n;) {
        at = put_plain(out, p, at, n);
        if (at == n) break;
        if (p[at] < 0x80) { put_escape(out, p[at++]); continue; }
        bool good;
        size_t step = fl_utf8_step(p + at, n - at, &good);
        if (!good) put(out, "\xEF\xBF\xBD", 3);
        else if (step == 3 && p[at] == 0xE2 && p[at + 1] == 0x80 && (p[at + 2] == 0xA8 || p[at + 2] == 0xA9)) put_escape(out, 0x2000u | (p[at + 2] & 0x3F));
        else put(out, p + at, step);
        at += step;
    }
    put(out, "\"", 1);
}

void json_out_bytes(json_out *out, const void *bytes, size_t n_bytes)
{
    begin_value(out);
    put_string(out, bytes, n_bytes);
}

void json_out_string(json_out *out, const char *text) { json_out_bytes(out, text, strlen(text)); }

void json_out_key_bytes(json_out *out, const void *key, size_t n_bytes)
{
    begin_value(out);
    put_string(out, key, n_bytes);
    put(out, ":", 1);
    out->needs_comma = false;
}

void json_out_key(json_out *out, const char *key)
{
    size_t n = strlen(key);
    char *to = make_room(out, n + 4);
    if (!to) return;
    char *at = to;
    if (out->needs_comma) *at++ = ',';
    *at++ = '"';
    memcpy(at, key, n);
    at += n;
    *at++ = '"';
    *at++ = ':';
    out->n_bytes += (size_t)(at - to);
    out->needs_comma = false;
}

void json_out_base64(json_out *out, const void *bytes, size_t n_bytes)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *p = bytes;
    begin_value(out);
    put(out, "\"", 1);
    char *to = make_room(out, n_bytes / 3 * 4 + 4);
    if (!to) return;
    for (size_t i = 0; i < n_bytes; i += 3) {
        size_t n = n_bytes - i < 3 ? n_bytes - i : 3;
        uint32_t three = (uint32_t)p[i] << 16 | (n > 1 ? (uint32_t)p[i + 1] << 8 : 0) | (n > 2 ? p[i + 2] : 0);
        *to++ = digits[three >> 18];
        *to++ = digits[three >> 12 & 63];
        *to++ = n > 1 ? digits[three >> 6 & 63] : '=';
        *to++ = n > 2 ? digits[three & 63] : '=';
    }
    out->n_bytes = (size_t)(to - out->data);
    put(out, "\"", 1);
}
