#include "proto/json_scan.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif
#include "proto/detok.h"
#include "proto/status.h"

/* ---- sixteen bytes at a time ---- */

/* The first byte from `at` on that a string's content cannot just be passed over: its end, a backslash, a control character; `end` when there is none. */
static size_t skip_plain(const char *text, size_t at, size_t end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(0x1F);
    for (; end - at >= 16; at += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(text + at));
        __m128i found = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_cmpeq_epi8(v, slash)), _mm_cmpeq_epi8(_mm_min_epu8(v, control), v));
        int mask = _mm_movemask_epi8(found);
        if (mask) return at + (size_t)__builtin_ctz((unsigned)mask);
    }
#endif
    while (at < end && text[at] != '"' && text[at] != '\\' && (unsigned char)text[at] >= 0x20) at++;
    return at;
}

/* The next bracket, brace or quote; `end` when there is none. */
static size_t skip_to_structure(const char *text, size_t at, size_t end)
{
#ifdef __SSE2__
    const __m128i quote = _mm_set1_epi8('"'), open = _mm_set1_epi8('{'), shut = _mm_set1_epi8('}'), bit = _mm_set1_epi8(0x20);       /* [ and ] are { and } without this bit */
    for (; end - at >= 16; at += 16) {
        __m128i v = _mm_loadu_si128((const __m128i *)(text + at)), folded = _mm_or_si128(v, bit);
        int mask = _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(v, quote), _mm_or_si128(_mm_cmpeq_epi8(folded, open), _mm_cmpeq_epi8(folded, shut))));
        if (mask) return at + (size_t)__builtin_ctz((unsigned)mask);
    }
#endif
    while (at < end && text[at] != '"' && text[at] != '{' && text[at] != '}' && text[at] != '[' && text[at] != ']') at++;
    return at;
}

/* How many of the bytes from `at` on are ASCII, in whole steps; the caller looks at the rest. */
static size_t skip_ascii(const uint8_t *p, size_t at, size_t end)
{
#ifdef __SSE2__
    while (end - at >= 16 && _mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(p + at))) == 0) at += 16;
#endif
    uint64_t eight;
    while (end - at >= 8 && (memcpy(&eight, p + at, 8), (eight & 0x8080808080808080u) == 0)) at += 8;
    return at;
}

/* ---- UTF-8 ---- */

size_t fl_utf8_fault(const char *text, size_t n_bytes)
{
    const uint8_t *p = (const uint8_t *)text;
    size_t i = 0;
    bool good;
    while ((i = skip_ascii(p, i, n_bytes)) < n_bytes) {
        size_t n = fl_utf8_step(p + i, n_bytes - i, &good);
        if (!good) return i;
        i += n;
    }
    return n_bytes;
}

static size_t utf8_write(char *out, uint32_t c)
{
    if (c < 0x80) { out[0] = (char)c; return 1; }
    if (c < 0x800) { out[0] = (char)(0xC0 | c >> 6); out[1] = (char)(0x80 | (c & 0x3F)); return 2; }
    if (c < 0x10000) {
        out[0] = (char)(0xE0 | c >> 12); out[1] = (char)(0x80 | (c >> 6 & 0x3F)); out[2] = (char)(0x80 | (c & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | c >> 18); out[1] = (char)(0x80 | (c >> 12 & 0x3F));
    out[2] = (char)(0x80 | (c >> 6 & 0x3F)); out[3] = (char)(0x80 | (c & 0x3F));
    return 4;
}

/* ---- the check ---- */

typedef struct { uint64_t hash; size_t offset; } seen_key;

enum { KEYS_AT_HAND = 64 };              /* more are rare: only they take memory */

typedef struct {
    const char *text; size_t n, at;
    seen_key *keys; size_t n_keys, keys_capacity;        /* of all open objects, innermost last: at_hand, or owned */
    seen_key at_hand[KEYS_AT_HAND];
    fl_row_error code; size_t offset; char *why;
} scanner;

static bool __attribute__((format(printf, 4, 5))) scan_fail(scanner *s, fl_row_error code, size_t offset, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(s->why, FL_JSON_WHY_BYTES, format, args);
    va_end(args);
    s->code = code;
    s->offset = offset;
    return false;
}

/* "unexpected ..., where `expected` should be". The character is shown when it can be. */
static bool scan_unexpected(scanner *s, const char *expected)
{
    if (s->at >= s->n) return scan_fail(s, ROW_INVALID_JSON, s->n, "the JSON ends early: expected %s", expected);
    unsigned char c = (unsigned char)s->text[s->at];
    if (c > 0x20 && c < 0x7F) return scan_fail(s, ROW_INVALID_JSON, s->at, "the JSON has '%c' where it needs %s", c, expected);
    return scan_fail(s, ROW_INVALID_JSON, s->at, "the JSON has byte 0x%02X where it needs %s", c, expected);
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }
static void skip_space(const char *text, size_t n, size_t *at) { while (*at < n && is_space(text[*at])) ++*at; }

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/* Four hex digits at text[at..]; -1 when they are not there. */
static int32_t hex_quad(const char *text, size_t n, size_t at)
{
    if (n - at < 4 || at > n) return -1;
    int32_t value = 0;
    for (size_t i = 0; i < 4; i++) {
        int digit = hex_digit(text[at + i]);
        if (digit < 0) return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* The escape at text[at] == '\\'. Moves past it. */
static bool scan_escape(scanner *s)
{
    size_t start = s->at;
    char c = start + 1 < s->n ? s->text[start + 1] : '\0';
    if (c == '"' || c == '\\' || c == '/' || c == 'b' || c == 'f' || c == 'n' || c == 'r' || c == 't') { s->at += 2; return true; }
    if (c != 'u') return scan_fail(s, ROW_INVALID_JSON, start, "the JSON has a backslash that starts no escape");
    int32_t unit = hex_quad(s->text, s->n, start + 2);
    if (unit < 0) return scan_fail(s, ROW_INVALID_JSON, start, "the JSON has \\u without four hex digits");
    s->at += 6;
    if (unit < 0xD800 || unit > 0xDFFF) return true;
    if (unit < 0xDC00 && s->n - s->at >= 6 && s->text[s->at] == '\\' && s->text[s->at + 1] == 'u') {
        int32_t low = hex_quad(s->text, s->n, s->at + 2);
        if (low >= 0xDC00 && low <= 0xDFFF) { s->at += 6; return true; }
    }
    return scan_fail(s, ROW_INVALID_JSON, start, "the JSON has the escape \\u%04x, half of a surrogate pair", (unsigned)unit);
}

static bool scan_string(scanner *s)
{
    size_t start = s->at++;
    while ((s->at = skip_plain(s->text, s->at, s->n)) < s->n) {
        unsigned char c = (unsigned char)s->text[s->at];
        if (c == '"') { s->at++; return true; }
        if (c != '\\') return scan_fail(s, ROW_INVALID_JSON, s->at, "the JSON has the raw control character 0x%02X in a string: write it as \\u%04x", c, c);
        if (!scan_escape(s)) return false;
    }
    return scan_fail(s, ROW_INVALID_JSON, start, "the JSON has a string without an end");
}

static size_t scan_digits(scanner *s)
{
    size_t start = s->at;
    while (s->at < s->n && s->text[s->at] >= '0' && s->text[s->at] <= '9') s->at++;
    return s->at - start;
}

static bool scan_number(scanner *s)
{
    if (s->text[s->at] == '-') s->at++;
    bool zero = s->at < s->n && s->text[s->at] == '0';
    size_t first = s->at, digits = scan_digits(s);
    if (digits == 0) return scan_unexpected(s, "a digit");
    if (zero && digits > 1) return scan_fail(s, ROW_INVALID_JSON, first, "the JSON has a number with a leading zero");
    if (s->at < s->n && s->text[s->at] == '.') {
        s->at++;
        if (scan_digits(s) == 0) return scan_unexpected(s, "a digit after the point");
    }
    if (s->at < s->n && (s->text[s->at] == 'e' || s->text[s->at] == 'E')) {
        s->at++;
        if (s->at < s->n && (s->text[s->at] == '+' || s->text[s->at] == '-')) s->at++;
        if (scan_digits(s) == 0) return scan_unexpected(s, "a digit of the exponent");
    }
    return true;
}

static bool scan_word(scanner *s, const char *word)
{
    size_t n = strlen(word);
    if (s->n - s->at < n || memcmp(s->text + s->at, word, n) != 0) return scan_unexpected(s, "a value");
    s->at += n;
    return true;
}

/* A value that opens no level. */
static bool scan_scalar(scanner *s)
{
    if (s->at >= s->n) return scan_unexpected(s, "a value");
    switch (s->text[s->at]) {
    case '"': return scan_string(s);
    case 't': return scan_word(s, "true");
    case 'f': return scan_word(s, "false");
    case 'n': return scan_word(s, "null");
    case '-': case '0': case '1': case '2': case '3': case '4': case '5': case '6': case '7': case '8': case '9': return scan_number(s);
    default: return scan_unexpected(s, "a value");
    }
}

/* Next piece of a checked string's content: text[*at] up to `end` (the closing quote). Plain runs are returned as they are, an escape as its character in `buffer`. */
static const char *string_piece(const char *text, size_t *at, size_t end, char buffer[4], size_t *n)
{
    const char *start = text + *at;
    if (*start != '\\') {
        const char *slash = memchr(start, '\\', end - *at);
        *n = slash ? (size_t)(slash - start) : end - *at;
        *at += *n;
        return start;
    }
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    char c = start[1];
    if (c != 'u') {
        const char *named = strchr(from, c);
        buffer[0] = named ? to[named - from] : c;
        *n = 1;
        *at += 2;
        return buffer;
    }
    uint32_t unit = (uint32_t)hex_quad(text, end, *at + 2);
    *at += 6;
    if (unit >= 0xD800 && unit <= 0xDBFF) {
        uint32_t low = (uint32_t)hex_quad(text, end, *at + 2);
        unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
        *at += 6;
    }
    *n = utf8_write(buffer, unit);
    return buffer;
}

static uint64_t key_hash(const char *text, size_t start, size_t end)
{
    if (!memchr(text + start + 1, '\\', end - start - 2)) return XXH3_64bits(text + start + 1, end - start - 2);
    size_t n_bytes;
    fl_json key = { FL_JSON_STRING, start, end };
    char *plain = fl_json_string(text, key, &n_bytes);
    uint64_t hash = XXH3_64bits(plain, n_bytes);
    free(plain);
    return hash;
}

static bool keep_key(scanner *s, size_t start)
{
    if (s->n_keys == FL_JSON_KEYS_MAX)
        return scan_fail(s, ROW_LINE_TOO_LONG, start, "the JSON has objects of more than %u keys", FL_JSON_KEYS_MAX);
    if (s->n_keys == s->keys_capacity) {
        bool at_hand = s->keys == s->at_hand;
        s->keys_capacity *= 2;
        s->keys = realloc(at_hand ? NULL : s->keys, s->keys_capacity * sizeof *s->keys);
        FL_ASSERT(s->keys);
        if (at_hand) memcpy(s->keys, s->at_hand, sizeof s->at_hand);
    }
    s->keys[s->n_keys++] = (seen_key){ key_hash(s->text, start, s->at), start };
    return true;
}

static int key_order(const void *a, const void *b)
{
    const seen_key *x = a, *y = b;
    if (x->hash != y->hash) return x->hash < y->hash ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* At an object's end: the keys from `base` on are its own. The first repeat in the text is the one reported. */
static bool close_object(scanner *s, size_t base)
{
    size_t n = s->n_keys - base, twice = SIZE_MAX;
    seen_key *keys = s->keys + base;
    s->n_keys = base;
    if (n < 2) return true;
    if (n <= 16) {
        for (size_t i = 1; i < n && twice == SIZE_MAX; i++)
            for (size_t k = 0; k < i; k++) if (keys[k].hash == keys[i].hash) twice = keys[i].offset;
    } else {
        qsort(keys, n, sizeof *keys, key_order);
        for (size_t i = 1; i < n; i++)
            if (keys[i].hash == keys[i - 1].hash && keys[i].offset < twice) twice = keys[i].offset;
    }
    if (twice == SIZE_MAX) return true;
    size_t end = twice + 1;
    while (s->text[end] != '"') end += s->text[end] == '\\' ? 2 : 1;
    size_t shown = end - twice + 1 > 64 ? 64 : end - twice + 1;
    while (shown < end - twice + 1 && ((unsigned char)s->text[twice + shown] & 0xC0) == 0x80) shown--;
    return scan_fail(s, ROW_INVALID_JSON, twice, "the JSON has an object with the key %.*s twice", (int)shown, s->text + twice);
}

static bool scan_key(scanner *s)
{
    size_t start = s->at;
    if (s->at >= s->n || s->text[s->at] != '"') return scan_unexpected(s, "a key in double quotes");
    if (!scan_string(s) || !keep_key(s, start)) return false;
    skip_space(s->text, s->n, &s->at);
    if (s->at >= s->n || s->text[s->at] != ':') return scan_unexpected(s, "':'");
    s->at++;
    skip_space(s->text, s->n, &s->at);
    return true;
}

/* One value and everything in it, without recursion: a level is an entry of `base`, SIZE_MAX for an array. */
static bool scan_value(scanner *s)
{
    size_t base[FL_JSON_DEPTH_MAX];
    int depth = 0;
    for (;;) {
        char c = s->at < s->n ? s->text[s->at] : '\0';
        bool closed = true;
        if (c == '{' || c == '[') {
            if (depth == FL_JSON_DEPTH_MAX) return scan_fail(s, ROW_INVALID_JSON, s->at, "the JSON is nested more than %d levels deep", FL_JSON_DEPTH_MAX);
            base[depth++] = c == '{' ? s->n_keys : SIZE_MAX;
            s->at++;
            skip_space(s->text, s->n, &s->at);
            if (s->at < s->n && s->text[s->at] == (c == '{' ? '}' : ']')) { s->at++; depth--; }
            else { closed = false; if (c == '{' && !scan_key(s)) return false; }
        } else if (!scan_scalar(s)) {
            return false;
        }
        while (closed) {                                 /* a value has ended: go on in the level around it */
            if (depth == 0) return true;
            skip_space(s->text, s->n, &s->at);
            bool object = base[depth - 1] != SIZE_MAX;
            if (s->at < s->n && s->text[s->at] == ',') {
                s->at++;
                skip_space(s->text, s->n, &s->at);
                if (object && !scan_key(s)) return false;
                closed = false;
            } else if (s->at < s->n && s->text[s->at] == (object ? '}' : ']')) {
                s->at++;
                depth--;
                if (object && !close_object(s, base[depth])) return false;
            } else {
                return scan_unexpected(s, object ? "',' or '}'" : "',' or ']'");
            }
        }
    }
}

static fl_json_type type_at(char c)
{
    switch (c) {
    case '{': return FL_JSON_OBJECT;
    case '[': return FL_JSON_ARRAY;
    case '"': return FL_JSON_STRING;
    case 't': case 'f': return FL_JSON_BOOL;
    case 'n': return FL_JSON_NULL;
    default: return FL_JSON_NUMBER;
    }
}

fl_row_error fl_json_check(const char *text, size_t n_bytes, fl_json *value, size_t *offset, char why[FL_JSON_WHY_BYTES])
{
    *value = (fl_json){ FL_JSON_ABSENT, 0, 0 };
    *offset = 0;
    why[0] = '\0';
    size_t bad = fl_utf8_fault(text, n_bytes);
    if (bad < n_bytes) {
        *offset = bad;
        snprintf(why, FL_JSON_WHY_BYTES, "byte 0x%02X is not part of valid UTF-8", (unsigned char)text[bad]);
        return ROW_INVALID_UTF8;
    }
    scanner s;                                           /* at_hand stays as it is: clearing it would cost more than most lines */
    s.text = text;
    s.n = n_bytes;
    s.at = s.n_keys = s.offset = 0;
    s.keys = s.at_hand;
    s.keys_capacity = KEYS_AT_HAND;
    s.code = ROW_OK;
    s.why = why;
    skip_space(text, n_bytes, &s.at);
    size_t start = s.at;
    if (scan_value(&s)) {
        *value = (fl_json){ type_at(text[start]), start, s.at };
        skip_space(text, n_bytes, &s.at);
        if (s.at < n_bytes) scan_unexpected(&s, "its end");
    }
    if (s.keys != s.at_hand) free(s.keys);
    *offset = s.offset;
    return s.code;
}

/* ---- reading checked text ---- */

static size_t string_end(const char *text, size_t at, size_t end)        /* at the opening quote; past the closing one */
{
    for (at = skip_plain(text, at + 1, end); text[at] != '"'; at = skip_plain(text, at + 2, end)) {}
    return at + 1;
}

/* The value that begins at `at` inside text[.. end). */
static size_t value_end(const char *text, size_t at, size_t end)
{
    int depth = 0;
    switch (type_at(text[at])) {
    case FL_JSON_STRING: return string_end(text, at, end);
    case FL_JSON_ARRAY: case FL_JSON_OBJECT:
        do {
            at = skip_to_structure(text, at, end);
            if (text[at] == '"') { at = string_end(text, at, end); continue; }
            depth += text[at] == '{' || text[at] == '[' ? 1 : -1;
            at++;
        } while (depth > 0);
        return at;
    default:                                             /* members are always followed by one of these */
        while (text[at] != ',' && text[at] != '}' && text[at] != ']' && !is_space(text[at])) at++;
        return at;
    }
}

fl_json_walk fl_json_members(const char *text, fl_json container)
{
    FL_ASSERT(container.type == FL_JSON_ARRAY || container.type == FL_JSON_OBJECT);
    return (fl_json_walk){ text, container.start + 1, container.end, container.type == FL_JSON_OBJECT };
}

bool fl_json_next(fl_json_walk *walk, fl_json *key, fl_json *value)
{
    const char *text = walk->text;
    size_t at = walk->at;
    while (is_space(text[at]) || text[at] == ',') at++;
    if (text[at] == '}' || text[at] == ']') { walk->at = at; return false; }
    fl_json name = { FL_JSON_ABSENT, at, at };
    if (walk->is_object) {
        name = (fl_json){ FL_JSON_STRING, at, string_end(text, at, walk->end) };
        for (at = name.end; is_space(text[at]) || text[at] == ':'; at++) {}
    }
    if (key) *key = name;
    *value = (fl_json){ type_at(text[at]), at, value_end(text, at, walk->end) };
    walk->at = value->end;
    return true;
}

bool fl_json_is(const char *text, fl_json string, const char *literal)
{
    if (string.type != FL_JSON_STRING) return false;
    size_t at = string.start + 1, end = string.end - 1, left = strlen(literal), n;
    char buffer[4];
    if (end - at <= left) return end - at == left && memcmp(text + at, literal, left) == 0;          /* an escape would make it longer */
    while (at < end) {
        const char *piece = string_piece(text, &at, end, buffer, &n);
        if (n > left || memcmp(piece, literal, n) != 0) return false;
        literal += n;
        left -= n;
    }
    return left == 0;
}

bool fl_json_true(const char *text, fl_json boolean) { return boolean.type == FL_JSON_BOOL && text[boolean.start] == 't'; }

size_t fl_json_string_bytes(const char *text, fl_json string)
{
    size_t at = string.start + 1, end = string.end - 1, total = 0, n;
    char buffer[4];
    while (at < end) { string_piece(text, &at, end, buffer, &n); total += n; }
    return total;
}

char *fl_json_string(const char *text, fl_json string, size_t *n_bytes)
{
    FL_ASSERT(string.type == FL_JSON_STRING);
    size_t at = string.start + 1, end = string.end - 1, used = 0, n;
    char buffer[4], *out = malloc(end - at + 1);         /* an escape is never shorter than its character */
    FL_ASSERT(out);
    while (at < end) {
        const char *piece = string_piece(text, &at, end, buffer, &n);
        memcpy(out + used, piece, n);
        used += n;
    }
    out[used] = '\0';
    *n_bytes = used;
    return out;
}

bool fl_json_integer(const char *text, fl_json number, bool *negative, uint64_t *magnitude)
{
    size_t at = number.start;
    uint64_t sum = 0;
    *negative = text[at] == '-';
    if (*negative) at++;
    for (; at < number.end; at++) {
        if (text[at] < '0' || text[at] > '9') return false;
        uint64_t digit = (uint64_t)(text[at] - '0');
        if (sum > (UINT64_MAX - digit) / 10) return false;
        sum = sum * 10 + digit;
    }
    *magnitude = sum;
    return true;
}

double fl_json_double(const char *text, fl_json number)
{
    char small[64], *copy = small;                       /* strtod wants an end; the C locale is the only one this program uses */
    size_t n = number.end - number.start;
    if (n >= sizeof small) { copy = malloc(n + 1); FL_ASSERT(copy); }
    memcpy(copy, text + number.start, n);
    copy[n] = '\0';
    double value = strtod(copy, NULL);
    if (copy != small) free(copy);
    return value;
}
