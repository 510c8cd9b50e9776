#include "engine/pretokenize.h"
#include "engine/pattern.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 16 };

/* What becomes of the matches of a step's pattern and of the text between them. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT } split_behavior;

typedef struct {
    pattern *pattern;                    /* owned; NULL cuts nothing */
    split_behavior behavior;
    bool invert;
    bool prefix_space;                   /* put a space before a text that lacks one */
} step;

struct pretokenizer { step steps[STEPS_MAX]; size_t n_steps; };

typedef struct { size_t begin, end; bool is_match; } cut;

/* One step's scratch in a run. */
typedef struct {
    pattern_finder *finder;              /* owned */
    uint8_t *symbols; size_t symbols_capacity;           /* owned */
    uint8_t *prefixed; size_t prefixed_capacity;         /* owned */
    cut *cuts; size_t n_cuts, cuts_capacity;             /* owned */
} level;

struct pretokenize_run {
    const pretokenizer *pretokenizer;    /* borrowed */
    level levels[STEPS_MAX];
    pretokenize_word word; void *context;
};

static const char GPT2_REGEX[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- reading the description ---- */

static fl_status read_behavior(const json_t *d, split_behavior *out, fl_err *err)
{
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext" };
    const char *name = json_string_value(json_object_get(d, "behavior"));
    for (int i = 0; name && i < 5; i++) {
        if (strcmp(name, names[i]) == 0) { *out = (split_behavior)i; return FL_OK; }
    }
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the split behavior \"%.40s\" is not known here", name ? name : "(none)");
}

static fl_status read_split(step *s, const json_t *d, fl_err *err)
{
    const json_t *given = json_object_get(d, "pattern");
    const json_t *regex = json_object_get(given, "Regex"), *text = json_object_get(given, "String");
    fl_status st = read_behavior(d, &s->behavior, err);
    if (st != FL_OK) return st;
    s->invert = json_is_true(json_object_get(d, "invert"));
    if (json_is_string(regex)) return pattern_compile(&s->pattern, json_string_value(regex), json_string_length(regex), err);
    if (json_is_string(text)) return pattern_compile_literal(&s->pattern, json_string_value(text), json_string_length(text), err);
    return fl_fail(err, FL_CORRUPT, "tokenizer: a Split pre-tokenizer has neither pattern.Regex nor pattern.String");
}

static fl_status read_byte_level(step *s, const json_t *d, fl_err *err)
{
    s->prefix_space = !json_is_false(json_object_get(d, "add_prefix_space"));
    if (json_is_false(json_object_get(d, "use_regex"))) return FL_OK;
    return pattern_compile(&s->pattern, GPT2_REGEX, sizeof GPT2_REGEX - 1, err);
}

static fl_status read_steps(pretokenizer *p, const json_t *d, int depth, bool *byte_level, fl_err *err)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(d, "pretokenizers");
        if (!json_is_array(list)) return fl_fail(err, FL_CORRUPT, "tokenizer: pre_tokenizer.pretokenizers is not an array");
        for (size_t i = 0; i < json_array_size(list); i++) {
            fl_status st = read_steps(p, json_array_get(list, i), depth + 1, byte_level, err);
            if (st != FL_OK) return st;
        }
        return FL_OK;
    }
    if (*byte_level) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a pre-tokenizer behind ByteLevel is not served");
    if (p->n_steps == STEPS_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: more than %d pre-tokenizers", STEPS_MAX);
    step *s = &p->steps[p->n_steps++];
    if (type && strcmp(type, "Split") == 0) return read_split(s, d, err);
    if (type && strcmp(type, "Digits") == 0) {
        s->behavior = json_is_true(json_object_get(d, "individual_digits")) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return pattern_compile(&s->pattern, "\\p{N}", 5, err);
    }
    if (type && strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        return read_byte_level(s, d, err);
    }
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the pre-tokenizer %.40s is not served (ByteLevel, Split, Digits and Sequence are)", type ? type : "(none)");
}

fl_status pretokenizer_open(pretokenizer **out, const json_t *description, fl_err *err)
{
    pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    bool byte_level = false;
    fl_status st = read_steps(p, description, 0, &byte_level, err);
    if (st == FL_OK && !byte_level) st = fl_fail(err, FL_UNSUPPORTED, "tokenizer: only byte-level tokenizers are served, and this one has no ByteLevel pre-tokenizer");
    if (st != FL_OK) { pretokenizer_close(p); return st; }
    *out = p;
    return FL_OK;
}

void pretokenizer_close(pretokenizer *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->n_steps; i++) pattern_free(p->steps[i].pattern);
    free(p);
}

/* ---- running ---- */

static fl_status run_step(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, fl_err *err);

static fl_status reserve(uint8_t **buffer, size_t *capacity, size_t want, fl_err *err)
{
    if (want <= *capacity) return FL_OK;
    free(*buffer);
    *buffer = malloc(want * 2);
    *capacity = *buffer ? want * 2 : 0;
    return *buffer ? FL_OK : fl_fail(err, FL_FULL, "tokenizer: no memory for a text of %zu bytes", want);
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

static fl_status add_cut(level *l, size_t begin, size_t end, bool is_match, fl_err *err)
{
    if (l->n_cuts == l->cuts_capacity) {
        size_t capacity = l->cuts_capacity ? l->cuts_capacity * 2 : 64;
        cut *cuts = realloc(l->cuts, capacity * sizeof *cuts);
        if (!cuts) return fl_fail(err, FL_FULL, "tokenizer: no memory for %zu pieces", capacity);
        l->cuts = cuts;
        l->cuts_capacity = capacity;
    }
    l->cuts[l->n_cuts++] = (cut){ begin, end, is_match };
    return FL_OK;
}

/* Join the cuts as the behavior says, in place. */
static void apply_behavior(level *l, split_behavior behavior)
{
    cut *c = l->cuts;
    size_t n = l->n_cuts, kept = 0;
    bool previous = false;
    switch (behavior) {
    case SPLIT_ISOLATED:
        return;
    case SPLIT_REMOVED:
        for (size_t i = 0; i < n; i++) { if (!c[i].is_match) c[kept++] = c[i]; }
        break;
    case SPLIT_CONTIGUOUS:
        for (size_t i = 0; i < n; i++) {
            if (kept > 0 && c[kept - 1].is_match == c[i].is_match) c[kept - 1].end = c[i].end;
            else c[kept++] = c[i];
        }
        break;
    case SPLIT_MERGED_WITH_PREVIOUS:
        for (size_t i = 0; i < n; i++) {
            cut now = c[i];
            if (now.is_match && !previous && kept > 0) c[kept - 1].end = now.end;
            else c[kept++] = now;
            previous = now.is_match;
        }
        break;
    case SPLIT_MERGED_WITH_NEXT:
        kept = n;                                        /* from the end; the kept ones gather in c[kept .. n) */
        for (size_t i = n; i-- > 0;) {
            cut now = c[i];
            if (now.is_match && !previous && kept < n) c[kept].begin = now.begin;
            else c[--kept] = now;
            previous = now.is_match;
        }
        memmove(c, c + kept, (n - kept) * sizeof *c);
        l->n_cuts = n - kept;
        return;
    }
    l->n_cuts = kept;
}

/* Hand text[begin .. end) to the next step, or keep it until the behavior can be applied. */
static fl_status emit(pretokenize_run *r, size_t i, const uint8_t *text, size_t begin, size_t end, bool is_match, fl_err *err)
{
    const step *s = &r->pretokenizer->steps[i];
    if (s->behavior != SPLIT_ISOLATED) return add_cut(&r->levels[i], begin, end, is_match != s->invert, err);
    return begin < end ? run_step(r, i + 1, text + begin, end - begin, err) : FL_OK;
}

static fl_status cut_text(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, fl_err *err)
{
    const step *s = &r->pretokenizer->steps[i];
    level *l = &r->levels[i];
    fl_status st = l->finder ? FL_OK : pattern_finder_open(&l->finder, s->pattern, err);
    if (st != FL_OK || (st = reserve(&l->symbols, &l->symbols_capacity, n_bytes, err)) != FL_OK) return st;
    size_t n = pattern_symbols(s->pattern, text, n_bytes, l->symbols), from = 0;
    l->n_cuts = 0;
    place last = { 0, 0 };                               /* end of the last match */
    bool any = false;
    while (from <= n) {
        bool found;
        size_t begin, end;
        if ((st = pattern_next(l->finder, l->symbols, n, from, &found, &begin, &end, err)) != FL_OK) return st;
        if (!found) break;
        if (begin == end && any && end == last.symbol) { from = end + 1; continue; }      /* an empty match behind a match does not count */
        place at = last;
        advance_to(&at, text, begin);
        if (at.byte > last.byte && (st = emit(r, i, text, last.byte, at.byte, false, err)) != FL_OK) return st;
        place stop = at;
        advance_to(&stop, text, end);
        if ((st = emit(r, i, text, at.byte, stop.byte, true, err)) != FL_OK) return st;
        last = stop;
        any = true;
        from = end;
    }
    if (last.byte < n_bytes && (st = emit(r, i, text, last.byte, n_bytes, false, err)) != FL_OK) return st;
    if (s->behavior == SPLIT_ISOLATED) return FL_OK;
    apply_behavior(l, s->behavior);
    for (size_t k = 0; k < l->n_cuts && st == FL_OK; k++) {
        if (l->cuts[k].begin < l->cuts[k].end) st = run_step(r, i + 1, text + l->cuts[k].begin, l->cuts[k].end - l->cuts[k].begin, err);
    }
    return st;
}

/* Steps i and on, on one non-empty piece. */
static fl_status run_step(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, fl_err *err)
{
    if (i == r->pretokenizer->n_steps) return r->word(r->context, text, n_bytes, err);
    const step *s = &r->pretokenizer->steps[i];
    level *l = &r->levels[i];
    if (s->prefix_space && text[0] != ' ') {
        fl_status st = reserve(&l->prefixed, &l->prefixed_capacity, n_bytes + 1, err);
        if (st != FL_OK) return st;
        l->prefixed[0] = ' ';
        memcpy(l->prefixed + 1, text, n_bytes++);
        text = l->prefixed;
    }
    return s->pattern ? cut_text(r, i, text, n_bytes, err) : run_step(r, i + 1, text, n_bytes, err);
}

fl_status pretokenize_begin(pretokenize_run **out, const pretokenizer *p, fl_err *err)
{
    pretokenize_run *r = calloc(1, sizeof *r);
    if (!r) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    r->pretokenizer = p;
    *out = r;
    return FL_OK;
}

fl_status pretokenize_text(pretokenize_run *r, const uint8_t *text, size_t n_bytes, pretokenize_word word, void *context, fl_err *err)
{
    r->word = word;
    r->context = context;
    return n_bytes > 0 ? run_step(r, 0, text, n_bytes, err) : FL_OK;
}

void pretokenize_end(pretokenize_run *r)
{
    if (!r) return;
    for (size_t i = 0; i < STEPS_MAX; i++) {
        pattern_finder_close(r->levels[i].finder);
        free(r->levels[i].symbols);
        free(r->levels[i].prefixed);
        free(r->levels[i].cuts);
    }
    free(r);
}
