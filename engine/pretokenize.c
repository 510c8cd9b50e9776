#include "engine/pretokenize.h"
#include "engine/pattern.h"
#include "engine/unicode.h"

#include <stdlib.h>
#include <string.h>

enum { STEPS_MAX = 16 };

/* What becomes of the matches of a step's pattern and of the text between them. */
typedef enum { SPLIT_ISOLATED, SPLIT_REMOVED, SPLIT_CONTIGUOUS, SPLIT_MERGED_WITH_PREVIOUS, SPLIT_MERGED_WITH_NEXT } split_behavior;

/* What is put before a piece that does not begin with it. */
typedef enum { PREFIX_NEVER, PREFIX_FIRST, PREFIX_ALWAYS } prefix_rule;

enum { MARK_BYTES_MAX = 4 };

typedef struct {
    pattern *pattern;                    /* owned; NULL cuts nothing */
    split_behavior behavior;
    bool invert;
    prefix_rule prefix;
    uint8_t mark[MARK_BYTES_MAX]; size_t mark_bytes;     /* the prefix: a space or Metaspace's character */
    bool marks_spaces;                   /* spaces become marks (Metaspace) */
} step;

struct pretokenizer { step steps[STEPS_MAX]; size_t n_steps; bool byte_level; };

typedef struct { size_t begin, end; bool is_match; } cut;

/* One step's scratch in a run. */
typedef struct {
    pattern_finder *finder;              /* owned */
    uint8_t *marked; size_t marked_capacity;             /* owned; the piece with its prefix and marks */
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
    if (!json_is_false(json_object_get(d, "add_prefix_space"))) s->prefix = PREFIX_ALWAYS;
    s->mark[0] = ' ';
    s->mark_bytes = 1;
    if (json_is_false(json_object_get(d, "use_regex"))) return FL_OK;
    return pattern_compile(&s->pattern, GPT2_REGEX, sizeof GPT2_REGEX - 1, err);
}

static fl_status read_metaspace(step *s, const json_t *d, fl_err *err)
{
    static const char *const schemes[] = { [PREFIX_NEVER] = "never", [PREFIX_FIRST] = "first", [PREFIX_ALWAYS] = "always" };
    const json_t *mark = json_object_get(d, "replacement"), *scheme = json_object_get(d, "prepend_scheme");
    size_t n = json_string_length(mark), i = 0;
    if (n > 0) utf8_next((const uint8_t *)json_string_value(mark), &i);
    if (n == 0 || i != n) return fl_fail(err, FL_CORRUPT, "tokenizer: the replacement of a Metaspace pre-tokenizer is not one character");
    memcpy(s->mark, json_string_value(mark), n);
    s->mark_bytes = n;
    s->marks_spaces = true;
    int found = scheme ? -1 : PREFIX_ALWAYS;
    for (int k = 0; k < 3 && json_is_string(scheme); k++) {
        if (strcmp(json_string_value(scheme), schemes[k]) == 0) found = k;
    }
    if (found < 0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the prepend_scheme of a Metaspace pre-tokenizer is not always, first or never");
    if (json_is_false(json_object_get(d, "add_prefix_space"))) found = PREFIX_NEVER;     /* the older form of the setting */
    s->prefix = (prefix_rule)found;
    if (json_is_false(json_object_get(d, "split"))) return FL_OK;
    s->behavior = SPLIT_MERGED_WITH_NEXT;
    return pattern_compile_literal(&s->pattern, json_string_value(mark), n, err);
}

static fl_status read_steps(pretokenizer *p, const json_t *d, int depth, fl_err *err)
{
    const char *type = json_string_value(json_object_get(d, "type"));
    if (type && strcmp(type, "Sequence") == 0 && depth < 4) {
        const json_t *list = json_object_get(d, "pretokenizers");
        if (!json_is_array(list)) return fl_fail(err, FL_CORRUPT, "tokenizer: pre_tokenizer.pretokenizers is not an array");
        for (size_t i = 0; i < json_array_size(list); i++) {
            fl_status st = read_steps(p, json_array_get(list, i), depth + 1, err);
            if (st != FL_OK) return st;
        }
        return FL_OK;
    }
    if (p->byte_level) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: a pre-tokenizer behind ByteLevel is not served");
    if (p->n_steps == STEPS_MAX) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: more than %d pre-tokenizers", STEPS_MAX);
    step *s = &p->steps[p->n_steps++];
    if (type && strcmp(type, "Split") == 0) return read_split(s, d, err);
    if (type && strcmp(type, "Digits") == 0) {
        s->behavior = json_is_true(json_object_get(d, "individual_digits")) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS;
        return pattern_compile(&s->pattern, unicode_numeric(), strlen(unicode_numeric()), err);
    }
    if (type && strcmp(type, "ByteLevel") == 0) {
        p->byte_level = true;
        return read_byte_level(s, d, err);
    }
    if (type && strcmp(type, "Metaspace") == 0) return read_metaspace(s, d, err);
    return fl_fail(err, FL_UNSUPPORTED, "tokenizer: the pre-tokenizer %.40s is not served (ByteLevel, Metaspace, Split, Digits and Sequence are)", type ? type : "(none)");
}

fl_status pretokenizer_open(pretokenizer **out, const json_t *description, fl_err *err)
{
    pretokenizer *p = calloc(1, sizeof *p);
    if (!p) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    fl_status st = description && !json_is_null(description) ? read_steps(p, description, 0, err) : FL_OK;
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

bool pretokenizer_is_byte_level(const pretokenizer *p) { return p->byte_level; }

bool pretokenizer_knows_first(const pretokenizer *p)
{
    for (size_t i = 0; i < p->n_steps; i++) {
        if (p->steps[i].prefix == PREFIX_FIRST) return true;
    }
    return false;
}

/* ---- running ---- */

static fl_status run_step(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, bool is_first, fl_err *err);

static fl_status reserve(uint8_t **buffer, size_t *capacity, size_t want, fl_err *err)
{
    if (want <= *capacity) return FL_OK;
    free(*buffer);
    *buffer = malloc(want * 2);
    *capacity = *buffer ? want * 2 : 0;
    return *buffer ? FL_OK : fl_fail(err, FL_FULL, "tokenizer: no memory for a text of %zu bytes", want);
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

/* A piece that a step is cutting. */
typedef struct { pretokenize_run *run; size_t step; const uint8_t *text; bool is_first; } cutting;

/* Hand text[begin .. end) to the next step, or keep it until the behavior can be applied. */
static fl_status take_piece(void *context, size_t begin, size_t end, bool is_match, fl_err *err)
{
    const cutting *c = context;
    const step *s = &c->run->pretokenizer->steps[c->step];
    if (s->behavior != SPLIT_ISOLATED) return add_cut(&c->run->levels[c->step], begin, end, is_match != s->invert, err);
    return begin < end ? run_step(c->run, c->step + 1, c->text + begin, end - begin, c->is_first && begin == 0, err) : FL_OK;
}

static fl_status cut_text(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, bool is_first, fl_err *err)
{
    const step *s = &r->pretokenizer->steps[i];
    level *l = &r->levels[i];
    cutting c = { r, i, text, is_first };
    fl_status st = l->finder ? FL_OK : pattern_finder_open(&l->finder, s->pattern, err);
    if (st != FL_OK) return st;
    l->n_cuts = 0;
    if ((st = pattern_cut(l->finder, text, n_bytes, take_piece, &c, err)) != FL_OK || s->behavior == SPLIT_ISOLATED) return st;
    apply_behavior(l, s->behavior);
    for (size_t k = 0; k < l->n_cuts && st == FL_OK; k++) {
        const cut *piece = &l->cuts[k];
        if (piece->begin < piece->end) st = run_step(r, i + 1, text + piece->begin, piece->end - piece->begin, is_first && piece->begin == 0, err);
    }
    return st;
}

/* The piece with marks for spaces and with the prefix, where it lacks it, in the level's buffer. */
static fl_status mark_text(level *l, const step *s, const uint8_t **text, size_t *n_bytes, bool is_first, fl_err *err)
{
    size_t spaces = 0, n = 0, m = s->mark_bytes;
    for (size_t k = 0; s->marks_spaces && k < *n_bytes; k++) spaces += (*text)[k] == ' ';
    bool has_mark = (*n_bytes >= m && memcmp(*text, s->mark, m) == 0) || (s->marks_spaces && (*text)[0] == ' ');
    bool prefix = !has_mark && (s->prefix == PREFIX_ALWAYS || (s->prefix == PREFIX_FIRST && is_first));
    if (!prefix && spaces == 0) return FL_OK;
    fl_status st = reserve(&l->marked, &l->marked_capacity, *n_bytes + m * (spaces + 1), err);
    if (st != FL_OK) return st;
    if (prefix) { memcpy(l->marked, s->mark, m); n = m; }
    if (spaces == 0) {
        memcpy(l->marked + n, *text, *n_bytes);
        n += *n_bytes;
    } else {
        for (size_t k = 0; k < *n_bytes; k++) {
            if ((*text)[k] != ' ') { l->marked[n++] = (*text)[k]; continue; }
            memcpy(l->marked + n, s->mark, m);
            n += m;
        }
    }
    *text = l->marked;
    *n_bytes = n;
    return FL_OK;
}

/* Steps i and on, on one non-empty piece. */
static fl_status run_step(pretokenize_run *r, size_t i, const uint8_t *text, size_t n_bytes, bool is_first, fl_err *err)
{
    if (i == r->pretokenizer->n_steps) return r->word(r->context, text, n_bytes, err);
    const step *s = &r->pretokenizer->steps[i];
    fl_status st = s->mark_bytes > 0 ? mark_text(&r->levels[i], s, &text, &n_bytes, is_first, err) : FL_OK;
    if (st != FL_OK) return st;
    return s->pattern ? cut_text(r, i, text, n_bytes, is_first, err) : run_step(r, i + 1, text, n_bytes, is_first, err);
}

fl_status pretokenize_begin(pretokenize_run **out, const pretokenizer *p, fl_err *err)
{
    pretokenize_run *r = calloc(1, sizeof *r);
    if (!r) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    r->pretokenizer = p;
    *out = r;
    return FL_OK;
}

fl_status pretokenize_text(pretokenize_run *r, const uint8_t *text, size_t n_bytes, bool is_first, pretokenize_word word, void *context, fl_err *err)
{
    r->word = word;
    r->context = context;
    return n_bytes > 0 ? run_step(r, 0, text, n_bytes, is_first, err) : FL_OK;
}

void pretokenize_end(pretokenize_run *r)
{
    if (!r) return;
    for (size_t i = 0; i < STEPS_MAX; i++) {
        pattern_finder_close(r->levels[i].finder);
        free(r->levels[i].marked);
        free(r->levels[i].cuts);
    }
    free(r);
}
