/* Two passes of one parser: the first collects the leaf sets, the second writes the byte pattern. Between them every run of characters gets the signature of
 * the leaves it lies in, and every signature a symbol. */
#include "engine/pattern.h"
#include "engine/unicode.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAVES_MAX = 64, DEPTH_MAX = 64, REPEAT_MAX = 1000, REGEX_BYTES_MAX = 1 << 16, CUTS_MAX = 8192 };

typedef enum { LEAF_PROPERTY, LEAF_RANGES } leaf_kind;
typedef struct {
    leaf_kind kind;
    uint32_t bits;                       /* LEAF_PROPERTY */
    unicode_range one;                   /* LEAF_RANGES: this, or the table */
    const unicode_range *table; size_t n_table;
} leaf;
typedef struct { uint64_t word[4]; } set;        /* of symbols */

struct pattern {
    pcre2_code *code;                    /* owned */
    uint8_t *symbol_of;                  /* owned [UNICODE_END] */
};

typedef struct {
    const uint8_t *s;
    size_t n, i;
    int depth;
    bool fold;                           /* under (?i) */
    bool writing;                        /* second pass */
    uint32_t previous_folded;            /* the literal before this one under (?i), for pairs that fold together */
    leaf leaves[LEAVES_MAX];
    size_t n_leaves;
    set leaf_sets[LEAVES_MAX];           /* second pass */
    set all;
    char *out;
    size_t out_n, out_capacity;
    fl_err *err;
} parser;

static fl_status refuse(parser *p, const char *what)
{
    return fl_fail(p->err, FL_UNSUPPORTED, "tokenizer: the regular expression's %s at byte %zu is not known here", what, p->i);
}

/* ---- sets ---- */

static void set_add(set *s, uint32_t symbol) { s->word[symbol / 64] |= 1ull << symbol % 64; }
static bool set_has(const set *s, uint32_t symbol) { return s->word[symbol / 64] >> symbol % 64 & 1; }
static void set_unite(set *s, const set *t) { for (int i = 0; i < 4; i++) s->word[i] |= t->word[i]; }
static void set_intersect(set *s, const set *t) { for (int i = 0; i < 4; i++) s->word[i] &= t->word[i]; }
static void set_invert(set *s) { for (int i = 0; i < 4; i++) s->word[i] = ~s->word[i]; }

static fl_status add_leaf(parser *p, const leaf *l, set *into)
{
    size_t i = 0;
    while (i < p->n_leaves && !(p->leaves[i].kind == l->kind && p->leaves[i].bits == l->bits && p->leaves[i].table == l->table &&
                                p->leaves[i].one.first == l->one.first && p->leaves[i].one.last == l->one.last)) i++;
    if (i == p->n_leaves) {
        FL_ASSERT(!p->writing);
        if (i == LEAVES_MAX) return refuse(p, "number of different character sets (more than 64)");
        p->leaves[p->n_leaves++] = *l;
    }
    if (p->writing) set_unite(into, &p->leaf_sets[i]);
    return FL_OK;
}

static fl_status add_range(parser *p, uint32_t first, uint32_t last, set *into)
{
    for (uint32_t c = first; c <= last && c < 128; c++) set_add(into, c);
    if (last < 128) return FL_OK;
    leaf l = { .kind = LEAF_RANGES, .one = { first < 128 ? 128 : first, last } };
    return add_leaf(p, &l, into);
}

/* One character, with its case variants under (?i): of ASCII letters these are the other case, and the long s and the Kelvin sign. */
static fl_status add_character(parser *p, uint32_t c, set *into)
{
    fl_status st = add_range(p, c, c, into);
    if (st != FL_OK || !p->fold) return st;
    if (c >= 128) return refuse(p, "case-insensitive match of a character beyond ASCII");
    uint32_t lower = c | 0x20;
    if (lower < 'a' || lower > 'z') return FL_OK;
    set_add(into, c ^ 0x20);
    if (lower == 's') return add_range(p, 0x17F, 0x17F, into);
    if (lower == 'k') return add_range(p, 0x212A, 0x212A, into);
    return FL_OK;
}

static fl_status add_property(parser *p, uint32_t bits, set *into)
{
    leaf l = { .kind = LEAF_PROPERTY, .bits = bits };
    return add_leaf(p, &l, into);
}

static fl_status add_table(parser *p, const unicode_range *table, size_t count, set *into)
{
    leaf l = { .kind = LEAF_RANGES, .table = table, .n_table = count };
    return add_leaf(p, &l, into);
}

/* \s \d \w and their negations. */
static fl_status add_shorthand(parser *p, uint8_t letter, set *into)
{
    set s = { { 0 } };
    fl_status st;
    size_t count;
    switch (letter | 0x20) {
    case 's': {
        const unicode_range *r = unicode_space(&count);
        st = add_table(p, r, count, &s);
        break;
    }
    case 'd':
        st = add_property(p, unicode_property("Nd", 2), &s);
        break;
    default: {
        const unicode_range *r = unicode_word_rest(&count);
        st = add_property(p, unicode_property("L", 1) | unicode_property("M", 1) | unicode_property("Nd", 2) | unicode_property("Nl", 2) | unicode_property("Pc", 2), &s);
        if (st == FL_OK) st = add_table(p, r, count, &s);
    }
    }
    if (!(letter & 0x20)) set_invert(&s);
    set_unite(into, &s);
    return st;
}

/* p->i is behind "\p" or "\P". */
static fl_status add_braced_property(parser *p, bool negated, set *into)
{
    if (p->i >= p->n || p->s[p->i] != '{') return refuse(p, "\\p without braces");
    size_t begin = ++p->i;
    while (p->i < p->n && p->s[p->i] != '}') p->i++;
    if (p->i == p->n) return refuse(p, "unclosed \\p{");
    size_t n = p->i++ - begin;
    const char *name = (const char *)p->s + begin;
    if (n > 0 && name[0] == '^') { negated = !negated; name++; n--; }
    set s = { { 0 } };
    size_t count;
    uint32_t bits = unicode_property(name, n);
    const unicode_range *script = unicode_script(name, n, &count);
    if (!bits && !script)
        return fl_fail(p->err, FL_UNSUPPORTED, "tokenizer: the property \\p{%.*s} of the regular expression is not known here", (int)(n < 40 ? n : 40), name);
    fl_status st = bits ? add_property(p, bits, &s) : add_table(p, script, count, &s);
    if (negated) set_invert(&s);
    set_unite(into, &s);
    return st;
}

/* ---- output ---- */

static fl_status put(parser *p, const char *text)
{
    if (!p->writing) return FL_OK;
    size_t n = strlen(text);
    if (p->out_n + n + 1 > p->out_capacity) {
        size_t capacity = (p->out_n + n + 1) * 2;
        char *out = realloc(p->out, capacity);
        if (!out) return fl_fail(p->err, FL_FULL, "tokenizer: no memory for a regular expression");
        p->out = out;
        p->out_capacity = capacity;
    }
    memcpy(p->out + p->out_n, text, n + 1);
    p->out_n += n;
    return FL_OK;
}

static fl_status put_set(parser *p, const set *s)
{
    char text[16];
    bool any = false;
    fl_status st = put(p, "[");
    for (uint32_t a = 0; st == FL_OK && a < 256; a++) {
        if (!set_has(s, a)) continue;
        uint32_t b = a;
        while (b < 255 && set_has(s, b + 1)) b++;
        snprintf(text, sizeof text, "\\x%02x-\\x%02x", (unsigned)a, (unsigned)b);
        if (!any && p->writing) any = true;
        st = put(p, text);
        a = b;
    }
    if (st != FL_OK) return st;
    if (p->writing && !any) { p->out_n--; return put(p, "(?!)"); }            /* a set without characters matches nothing */
    return put(p, "]");
}

/* ---- parser ---- */

static int hex_digit(uint8_t c)
{
    if (c >= '0' && c <= '9') return c - '0';
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A character's escape, p->i behind the backslash. *is_set when it is a set, which is added to `into`; else *c. */
static fl_status parse_escape(parser *p, set *into, bool *is_set, uint32_t *c)
{
    *is_set = false;
    if (p->i >= p->n) return refuse(p, "trailing backslash");
    uint8_t e = p->s[p->i++];
    switch (e) {
    case 'n': *c = '\n'; return FL_OK;
    case 'r': *c = '\r'; return FL_OK;
    case 't': *c = '\t'; return FL_OK;
    case 'f': *c = '\f'; return FL_OK;
    case 'v': *c = '\v'; return FL_OK;
    case 'a': *c = '\a'; return FL_OK;
    case 'e': *c = 0x1B; return FL_OK;
    case 's': case 'S': case 'd': case 'D': case 'w': case 'W': *is_set = true; return add_shorthand(p, e, into);
    case 'p': case 'P': *is_set = true; return add_braced_property(p, e == 'P', into);
    case 'x': case 'u': {
        bool braced = e == 'x' && p->i < p->n && p->s[p->i] == '{';
        size_t digits = 0, want = braced ? 6 : e == 'x' ? 2 : 4;
        if (braced) p->i++;
        uint32_t v = 0;
        while (digits < want && p->i < p->n && hex_digit(p->s[p->i]) >= 0) { v = v * 16 + (uint32_t)hex_digit(p->s[p->i++]); digits++; }
        bool whole = braced ? digits > 0 && p->i < p->n && p->s[p->i] == '}' : digits == want;
        if (braced && whole) p->i++;
        if (!whole || v >= UNICODE_END || (v >= 0xD800 && v < 0xE000) || (e == 'x' && !braced && v >= 128)) return refuse(p, "hexadecimal escape");
        *c = v;
        return FL_OK;
    }
    default:
        if (e >= 128 || (e >= '0' && e <= '9') || ((e | 0x20) >= 'a' && (e | 0x20) <= 'z')) return refuse(p, "escape");
        *c = e;
        return FL_OK;
    }
}

static fl_status parse_class(parser *p, set *out);

/* One item of a class: a set, or a character that may begin a range. */
static fl_status parse_class_item(parser *p, set *into)
{
    uint32_t first, last;
    bool is_set;
    fl_status st;
    if (p->s[p->i] == '[') {
        if (p->i + 1 < p->n && p->s[p->i + 1] == ':') return refuse(p, "POSIX class");
        set inner = { { 0 } };
        p->i++;
        if ((st = parse_class(p, &inner)) != FL_OK) return st;
        set_unite(into, &inner);
        return FL_OK;
    }
    if (p->s[p->i] == '\\') {
        p->i++;
        if ((st = parse_escape(p, into, &is_set, &first)) != FL_OK || is_set) return st;
    } else {
        first = utf8_next(p->s, &p->i);
    }
    if (p->i + 1 >= p->n || p->s[p->i] != '-' || p->s[p->i + 1] == ']') return add_character(p, first, into);
    p->i++;
    if (p->s[p->i] == '[') return refuse(p, "range to a class");
    if (p->s[p->i] == '\\') {
        p->i++;
        if ((st = parse_escape(p, into, &is_set, &last)) != FL_OK) return st;
        if (is_set) return refuse(p, "range to a set");
    } else {
        last = utf8_next(p->s, &p->i);
    }
    if (last < first) return refuse(p, "reversed range");
    if (!p->fold) return add_range(p, first, last, into);
    if (last >= 128) return refuse(p, "case-insensitive range beyond ASCII");
    for (uint32_t c = first; c <= last; c++) {
        if ((st = add_character(p, c, into)) != FL_OK) return st;
    }
    return FL_OK;
}

/* p->i is behind the '['; ends behind the ']'. */
static fl_status parse_class(parser *p, set *out)
{
    if (++p->depth > DEPTH_MAX) return refuse(p, "nesting deeper than 64");
    bool negated = p->i < p->n && p->s[p->i] == '^';
    if (negated) p->i++;
    set whole = { { 0 } }, part = { { 0 } };
    bool intersecting = false, first = true;
    for (;; first = false) {
        if (p->i >= p->n) return refuse(p, "unclosed class");
        if (p->s[p->i] == ']' && !first) { p->i++; break; }
        if (p->s[p->i] == ']') return refuse(p, "class that begins with ]");
        if (p->s[p->i] == '&' && p->i + 1 < p->n && p->s[p->i + 1] == '&') {
            p->i += 2;
            if (intersecting) set_intersect(&whole, &part);
            else whole = part;
            intersecting = true;
            part = (set){ { 0 } };
            continue;
        }
        fl_status st = parse_class_item(p, &part);
        if (st != FL_OK) return st;
    }
    if (intersecting) set_intersect(&whole, &part);
    else whole = part;
    if (negated) set_invert(&whole);
    set_unite(out, &whole);
    p->depth--;
    return FL_OK;
}

/* "{n,m}" at p->i, when it is one: *n_bytes of it, else 0. */
static fl_status measure_braces(parser *p, size_t *n_bytes, uint32_t *low, int64_t *high)
{
    size_t i = p->i + 1, digits = 0;
    uint32_t value[2] = { 0, 0 };
    size_t given[2] = { 0, 0 };
    int part = 0;
    *n_bytes = 0;
    for (; i < p->n && p->s[i] != '}'; i++) {
        if (p->s[i] == ',' && part == 0) { part = 1; digits = 0; continue; }
        if (p->s[i] < '0' || p->s[i] > '9') return FL_OK;
        if (++digits > 5) return refuse(p, "repeat count");
        value[part] = value[part] * 10 + (p->s[i] - '0');
        given[part] = digits;
    }
    if (i >= p->n || (given[0] == 0 && given[1] == 0)) return FL_OK;
    if (value[0] > REPEAT_MAX || value[1] > REPEAT_MAX) return refuse(p, "repeat count above 1000");
    *low = value[0];
    *high = part == 0 ? (int64_t)value[0] : given[1] ? (int64_t)value[1] : -1;
    if (*high >= 0 && *high < (int64_t)*low) return refuse(p, "repeat with its bounds reversed");
    *n_bytes = i + 1 - p->i;
    return FL_OK;
}

static fl_status parse_quantifier(parser *p)
{
    if (p->i >= p->n) return FL_OK;
    uint8_t q = p->s[p->i];
    char text[32];
    if (q == '{') {
        size_t n_bytes;
        uint32_t low;
        int64_t high;
        fl_status st = measure_braces(p, &n_bytes, &low, &high);
        if (st != FL_OK || n_bytes == 0) return st;
        p->i += n_bytes;
        if (high < 0) snprintf(text, sizeof text, "{%u,}", (unsigned)low);
        else snprintf(text, sizeof text, "{%u,%d}", (unsigned)low, (int)high);
        if ((st = put(p, text)) != FL_OK) return st;
        if (p->i < p->n && p->s[p->i] == '?') {
            if (high == (int64_t)low) return refuse(p, "{n}?");
            p->i++;
            if ((st = put(p, "?")) != FL_OK) return st;
        }
    } else if (q == '*' || q == '+' || q == '?') {
        p->i++;
        size_t n = 0;
        text[n++] = (char)q;
        if (p->i < p->n && (p->s[p->i] == '?' || p->s[p->i] == '+')) text[n++] = (char)p->s[p->i++];
        text[n] = '\0';
        fl_status st = put(p, text);
        if (st != FL_OK) return st;
    } else {
        return FL_OK;
    }
    if (p->i < p->n && (p->s[p->i] == '*' || p->s[p->i] == '+' || p->s[p->i] == '?')) return refuse(p, "quantifier on a quantifier");
    return FL_OK;
}

/* Pairs of letters that have one-character fold partners (as in the ligature fi) would need them to match too. */
static bool folds_together(uint32_t a, uint32_t b)
{
    a |= 0x20;
    b |= 0x20;
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static fl_status put_character(parser *p, uint32_t c)
{
    if (p->fold && folds_together(p->previous_folded, c)) return refuse(p, "case-insensitive ss, st, ff, fi or fl");
    p->previous_folded = p->fold ? c : 0;
    set s = { { 0 } };
    fl_status st = add_character(p, c, &s);
    return st == FL_OK ? put_set(p, &s) : st;
}

static fl_status parse_alternatives(parser *p, bool inside);

/* p->i is behind the '('. *assertion: no quantifier may follow. */
static fl_status parse_group(parser *p, bool *assertion, bool *quantifiable)
{
    static const struct { const char *text; bool assertion; } heads[] = {
        { "?:", false }, { "?>", false }, { "?=", true }, { "?!", true }, { "?<=", true }, { "?<!", true },
    };
    *assertion = false;
    *quantifiable = true;
    bool outer_fold = p->fold;
    fl_status st = FL_OK;
    if (p->i < p->n && p->s[p->i] == '?') {
        size_t h = 0, n_heads = sizeof heads / sizeof *heads;
        while (h < n_heads && (p->n - p->i < strlen(heads[h].text) || memcmp(p->s + p->i, heads[h].text, strlen(heads[h].text)) != 0)) h++;
        if (h < n_heads) {
            p->i += strlen(heads[h].text);
            *assertion = heads[h].assertion;
            if ((st = put(p, "(")) != FL_OK || (st = put(p, heads[h].text)) != FL_OK) return st;
        } else {
            size_t i = p->i + 1;
            bool off = i < p->n && p->s[i] == '-';
            if (off) i++;
            if (i + 1 >= p->n || p->s[i] != 'i' || (p->s[i + 1] != ':' && p->s[i + 1] != ')')) return refuse(p, "kind of group");
            p->fold = !off;
            p->previous_folded = 0;
            p->i = i + 2;
            if (p->s[i + 1] == ')') {
                if (i - off != 2) return refuse(p, "(?i) behind the beginning");     /* there it would also group what follows */
                *quantifiable = false;
                return FL_OK;
            }
            if ((st = put(p, "(?:")) != FL_OK) return st;
        }
    } else if ((st = put(p, "(?:")) != FL_OK) {
        return st;
    }
    if ((st = parse_alternatives(p, true)) != FL_OK) return st;
    p->fold = outer_fold;
    p->previous_folded = 0;
    return put(p, ")");
}

static fl_status parse_atom(parser *p, bool *quantifiable)
{
    uint8_t c = p->s[p->i];
    set s = { { 0 } };
    fl_status st;
    bool is_set, assertion = false;
    *quantifiable = true;
    uint32_t previous = p->previous_folded;
    p->previous_folded = 0;
    switch (c) {
    case '(':
        p->i++;
        st = parse_group(p, &assertion, quantifiable);
        if (assertion) *quantifiable = false;
        return st;
    case '[':
        p->i++;
        st = parse_class(p, &s);
        return st == FL_OK ? put_set(p, &s) : st;
    case '.':
        p->i++;
        set_add(&s, '\n');
        set_invert(&s);
        return put_set(p, &s);
    case '^': case '$':
        return refuse(p, "line anchor");
    case '*': case '+': case '?':
        return refuse(p, "quantifier without something to repeat");
    case '\\': {
        uint32_t literal;
        p->i++;
        if ((st = parse_escape(p, &s, &is_set, &literal)) != FL_OK) return st;
        if (is_set) return put_set(p, &s);
        p->previous_folded = previous;
        return put_character(p, literal);
    }
    default:
        p->previous_folded = previous;
        return put_character(p, utf8_next(p->s, &p->i));
    }
}

/* Alternatives up to the end or, inside a group, behind its ')'. */
static fl_status parse_alternatives(parser *p, bool inside)
{
    if (++p->depth > DEPTH_MAX) return refuse(p, "nesting deeper than 64");
    for (;;) {
        fl_status st;
        if (p->i >= p->n) {
            if (inside) return refuse(p, "unclosed group");
            break;
        }
        if (p->s[p->i] == ')') {
            if (!inside) return refuse(p, "unopened group");
            p->i++;
            break;
        }
        if (p->s[p->i] == '|') {
            p->i++;
            p->previous_folded = 0;
            if ((st = put(p, "|")) != FL_OK) return st;
            continue;
        }
        bool quantifiable;
        size_t before = p->i;
        if ((st = parse_atom(p, &quantifiable)) != FL_OK) return st;
        if (!quantifiable && p->i < p->n && (p->s[p->i] == '*' || p->s[p->i] == '+' || p->s[p->i] == '?' || p->s[p->i] == '{')) return refuse(p, "quantifier on an assertion");
        FL_ASSERT(p->i > before);
        if (quantifiable && (st = parse_quantifier(p)) != FL_OK) return st;
    }
    p->depth--;
    return FL_OK;
}

/* ---- symbols ---- */

static bool leaf_has(const leaf *l, uint32_t c, uint32_t category_bit)
{
    if (l->kind == LEAF_PROPERTY) return (l->bits & category_bit) != 0;
    if (!l->table) return c >= l->one.first && c <= l->one.last;
    for (size_t i = 0; i < l->n_table; i++) {
        if (c >= l->table[i].first && c <= l->table[i].last) return true;
    }
    return false;
}

static int compare_cuts(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* Every code point where membership in a leaf may change, ascending, ending with UNICODE_END. */
static size_t list_cuts(const parser *p, uint32_t *cuts)
{
    size_t n = 0;
    for (size_t i = 0; i < unicode_run_count(); i++) cuts[n++] = unicode_run_first(i);
    for (uint32_t c = 0; c < 128; c++) cuts[n++] = c;
    for (size_t i = 0; i < p->n_leaves; i++) {
        const leaf *l = &p->leaves[i];
        if (l->kind == LEAF_PROPERTY) continue;
        const unicode_range *r = l->table ? l->table : &l->one;
        size_t n_ranges = l->table ? l->n_table : 1;
        for (size_t j = 0; j < n_ranges; j++) { cuts[n++] = r[j].first; cuts[n++] = r[j].last + 1; }
    }
    cuts[n++] = 128;
    cuts[n++] = UNICODE_END;
    FL_ASSERT(n <= CUTS_MAX);
    qsort(cuts, n, sizeof *cuts, compare_cuts);
    return n;
}

/* Give every character its symbol and every leaf its set of symbols. */
static fl_status assign_symbols(parser *p, uint8_t *symbol_of)
{
    uint32_t *cuts = malloc(CUTS_MAX * sizeof *cuts);
    if (!cuts) return fl_fail(p->err, FL_FULL, "tokenizer: no memory for a regular expression");
    size_t n_cuts = list_cuts(p, cuts), run = 0;
    uint64_t signatures[128];
    uint32_t n_signatures = 0;
    fl_status st = FL_OK;
    for (size_t k = 0; k + 1 < n_cuts; k++) {
        uint32_t c = cuts[k], end = cuts[k + 1];
        if (c == end) continue;
        while (run + 1 < unicode_run_count() && unicode_run_first(run + 1) <= c) run++;
        uint64_t signature = 0;
        for (size_t i = 0; i < p->n_leaves; i++) {
            if (leaf_has(&p->leaves[i], c, unicode_run_bit(run))) signature |= 1ull << i;
        }
        uint32_t symbol = c;
        if (c >= 128) {
            uint32_t j = 0;
            while (j < n_signatures && signatures[j] != signature) j++;
            if (j == 128) { st = refuse(p, "number of kinds of characters (more than 128)"); break; }
            if (j == n_signatures) signatures[n_signatures++] = signature;
            symbol = 128 + j;
        }
        memset(symbol_of + c, (int)symbol, end - c);
        for (size_t i = 0; i < p->n_leaves; i++) {
            if (signature >> i & 1) set_add(&p->leaf_sets[i], symbol);
        }
    }
    free(cuts);
    return st;
}

static fl_status compile_bytes(pattern *out, parser *p)
{
    int code;
    PCRE2_SIZE at;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return fl_fail(p->err, FL_FULL, "tokenizer: no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    out->code = pcre2_compile((PCRE2_SPTR)(p->out ? p->out : ""), p->out_n, PCRE2_NEVER_UTF | PCRE2_NO_AUTO_CAPTURE, &code, &at, context);
    pcre2_compile_context_free(context);
    if (!out->code) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        return fl_fail(p->err, FL_UNSUPPORTED, "tokenizer: the regular expression cannot be compiled: %s", why);
    }
    pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE);    /* where there is no JIT the interpreter gives the same matches */
    return FL_OK;
}

fl_status pattern_compile(pattern **out, const char *regex, size_t n_bytes, fl_err *err)
{
    if (n_bytes > REGEX_BYTES_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a regular expression of %zu bytes is above the limit of %d", n_bytes, REGEX_BYTES_MAX);
    fl_status st;
    pattern *made = calloc(1, sizeof *made);
    parser *p = calloc(1, sizeof *p);
    if (!made || !p || !(made->symbol_of = malloc(UNICODE_END))) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for a regular expression"); goto done; }
    *p = (parser){ .s = (const uint8_t *)regex, .n = n_bytes, .err = err };
    if ((st = parse_alternatives(p, false)) != FL_OK) goto done;
    if ((st = assign_symbols(p, made->symbol_of)) != FL_OK) goto done;
    p->i = 0;
    p->depth = 0;
    p->fold = false;
    p->previous_folded = 0;
    p->writing = true;
    if ((st = parse_alternatives(p, false)) != FL_OK) goto done;
    if ((st = compile_bytes(made, p)) != FL_OK) goto done;
    *out = made;
    made = NULL;
done:
    if (p) free(p->out);
    free(p);
    pattern_free(made);
    return st;
}

fl_status pattern_compile_literal(pattern **out, const char *text, size_t n_bytes, fl_err *err)
{
    if (n_bytes > REGEX_BYTES_MAX / 2) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a split string of %zu bytes is above the limit of %d", n_bytes, REGEX_BYTES_MAX / 2);
    char *quoted = malloc(2 * n_bytes + 1);
    if (!quoted) return fl_fail(err, FL_FULL, "tokenizer: no memory for a split string");
    size_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint8_t c = (uint8_t)text[i];
        bool plain = c >= 128 || c <= ' ' || (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z');
        if (!plain) quoted[n++] = '\\';
        quoted[n++] = text[i];
    }
    fl_status st = pattern_compile(out, quoted, n, err);
    free(quoted);
    return st;
}

void pattern_free(pattern *p)
{
    if (!p) return;
    pcre2_code_free(p->code);
    free(p->symbol_of);
    free(p);
}

/* ---- matching ---- */

struct pattern_finder {
    const pattern *pattern;              /* borrowed */
    pcre2_match_data *data;              /* owned */
    pcre2_match_context *context;        /* owned, NULL until a match needs a larger stack */
    pcre2_jit_stack *stack;              /* owned, likewise */
    uint8_t *symbols; size_t symbols_capacity;           /* owned */
};

fl_status pattern_finder_open(pattern_finder **out, const pattern *p, fl_err *err)
{
    pattern_finder *f = calloc(1, sizeof *f);
    if (f) {
        f->pattern = p;
        f->data = pcre2_match_data_create(1, NULL);
    }
    if (!f || !f->data) {
        free(f);
        return fl_fail(err, FL_FULL, "tokenizer: no memory for a match");
    }
    *out = f;
    return FL_OK;
}

void pattern_finder_close(pattern_finder *f)
{
    if (!f) return;
    pcre2_match_data_free(f->data);
    pcre2_match_context_free(f->context);
    pcre2_jit_stack_free(f->stack);
    free(f->symbols);
    free(f);
}

static bool grow_stack(pattern_finder *f)
{
    f->context = pcre2_match_context_create(NULL);
    f->stack = pcre2_jit_stack_create((size_t)1 << 20, (size_t)256 << 20, NULL);
    if (!f->context || !f->stack) return false;
    pcre2_jit_stack_assign(f->context, NULL, f->stack);
    return true;
}

/* The next match in symbols[0 .. n) at or after `from`. */
static fl_status find_next(pattern_finder *f, const uint8_t *symbols, size_t n, size_t from, bool *found, size_t *begin, size_t *end, fl_err *err)
{
    int rc = pcre2_match(f->pattern->code, symbols, n, from, PCRE2_NO_UTF_CHECK, f->data, f->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !f->context) {
        if (!grow_stack(f)) return fl_fail(err, FL_FULL, "tokenizer: no memory for a match's stack");
        rc = pcre2_match(f->pattern->code, symbols, n, from, PCRE2_NO_UTF_CHECK, f->data, f->context);
    }
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(f->data);
        *begin = ends[0];
        *end = ends[1];
        return FL_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH) return FL_OK;
    char why[128] = "";
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
    return fl_fail(err, FL_INVALID, "tokenizer: the pre-tokenizer's regular expression gives up on this text: %s", why);
}

/* Write the symbols of n_bytes of valid UTF-8; room for n_bytes. Returns their number: one a character. */
static size_t symbols_of(const pattern *p, const uint8_t *text, size_t n_bytes, uint8_t *symbols)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        if (text[i] < 0x80) symbols[n++] = text[i++];
        else symbols[n++] = p->symbol_of[utf8_next(text, &i)];
    }
    return n;
}

/* A place in a text, in bytes and in characters; a symbol is a character. */
typedef struct { size_t byte, symbol; } place;

static void advance_to(place *at, const uint8_t *text, size_t symbol)
{
    for (; at->symbol < symbol; at->symbol++) {
        uint8_t b = text[at->byte];
        at->byte += b < 0x80 ? 1 : b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    }
}

static fl_status reserve_symbols(pattern_finder *f, size_t n_bytes, fl_err *err)
{
    if (n_bytes <= f->symbols_capacity) return FL_OK;
    free(f->symbols);
    f->symbols = malloc(n_bytes * 2);
    f->symbols_capacity = f->symbols ? n_bytes * 2 : 0;
    return f->symbols ? FL_OK : fl_fail(err, FL_FULL, "tokenizer: no memory for a text of %zu bytes", n_bytes);
}

fl_status pattern_cut(pattern_finder *f, const uint8_t *text, size_t n_bytes, pattern_piece piece, void *context, fl_err *err)
{
    fl_status st = reserve_symbols(f, n_bytes, err);
    if (st != FL_OK) return st;
    size_t n = symbols_of(f->pattern, text, n_bytes, f->symbols), from = 0;
    place last = { 0, 0 };                               /* end of the last match */
    bool any = false;
    while (from <= n) {
        bool found = false;
        size_t begin = 0, end = 0;
        if ((st = find_next(f, f->symbols, n, from, &found, &begin, &end, err)) != FL_OK) return st;
        if (!found) break;
        if (begin == end && any && end == last.symbol) { from = end + 1; continue; }      /* an empty match behind a match does not count */
        place at = last;
        advance_to(&at, text, begin);
        if (at.byte > last.byte && (st = piece(context, last.byte, at.byte, false, err)) != FL_OK) return st;
        place stop = at;
        advance_to(&stop, text, end);
        if ((st = piece(context, at.byte, stop.byte, true, err)) != FL_OK) return st;
        last = stop;
        any = true;
        from = end;
    }
    return last.byte < n_bytes ? piece(context, last.byte, n_bytes, false, err) : FL_OK;
}
