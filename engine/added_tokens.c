#include "engine/added_tokens.h"
#include "engine/unicode.h"
#include "proto/detok.h"

#include <stdlib.h>
#include <string.h>

/* A byte trie with child lists; node 0 is the root, whose children are in a table. */
typedef struct { uint32_t child, sibling; int32_t entry; uint8_t byte; } trie_node;
typedef struct { trie_node *nodes; uint32_t n, capacity, first[256]; } trie;

typedef struct {
    uint8_t *content; size_t n_bytes;    /* owned */
    uint8_t *normal; size_t normal_bytes;        /* owned; NULL when it is the content */
    int32_t id;
    bool special, single_word, lstrip, rstrip, normalized;
    size_t rules;                        /* the last entry with this id: its single_word, lstrip and rstrip hold */
} entry;

struct added_tokens {
    entry *entries; size_t n;            /* owned */
    trie by_content;                     /* every entry, for looking up names */
    trie raw, normal;                    /* what is looked for in raw and in normalized text */
    int32_t n_vocab;
};

/* ---- trie ---- */

static uint32_t trie_child(const trie *t, uint32_t at, uint8_t byte)
{
    if (at == 0) return t->first[byte];
    uint32_t c = t->nodes[at].child;
    while (c != 0 && t->nodes[c].byte != byte) c = t->nodes[c].sibling;
    return c;
}

/* Keep the first entry of equal strings; *at_entry is the one that stands there afterwards. */
static fl_status trie_add(trie *t, const uint8_t *bytes, size_t n_bytes, int32_t index, int32_t *at_entry, fl_err *err)
{
    if (t->n + n_bytes + 1 > t->capacity) {
        size_t capacity = (t->n + n_bytes + 1) * 2;
        trie_node *nodes = capacity > UINT32_MAX / 2 ? NULL : realloc(t->nodes, capacity * sizeof *nodes);
        if (!nodes) return fl_fail(err, FL_FULL, "tokenizer: no memory for the added tokens");
        if (t->n == 0) nodes[t->n++] = (trie_node){ .entry = -1 };
        t->nodes = nodes;
        t->capacity = (uint32_t)capacity;
    }
    uint32_t at = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        uint32_t next = trie_child(t, at, bytes[i]);
        if (next == 0) {
            next = t->n++;
            t->nodes[next] = (trie_node){ .byte = bytes[i], .entry = -1 };
            if (at == 0) {
                t->first[bytes[i]] = next;
            } else {
                t->nodes[next].sibling = t->nodes[at].child;
                t->nodes[at].child = next;
            }
        }
        at = next;
    }
    if (t->nodes[at].entry < 0) t->nodes[at].entry = index;
    *at_entry = t->nodes[at].entry;
    return FL_OK;
}

/* The longest entry that begins at text[0]; -1 when none does. */
static int32_t trie_longest(const trie *t, const uint8_t *text, size_t n_bytes, size_t *n_matched)
{
    int32_t best = -1;
    uint32_t at = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        at = trie_child(t, at, text[i]);
        if (at == 0) break;
        if (t->nodes[at].entry >= 0) { best = t->nodes[at].entry; *n_matched = i + 1; }
    }
    return best;
}

/* ---- splitting ---- */

static fl_status add_part(text_parts *p, size_t begin, size_t end, int32_t id, fl_err *err)
{
    if (p->most > 0 && p->n >= p->most) return FL_CLOSED;
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 16;
        text_part *parts = realloc(p->parts, capacity * sizeof *parts);
        if (!parts) return fl_fail(err, FL_FULL, "tokenizer: no memory for a text's parts");
        p->parts = parts;
        p->capacity = capacity;
    }
    p->parts[p->n++] = (text_part){ begin, end, id };
    return FL_OK;
}

/* The character that ends at text[end], end > 0. */
static uint32_t character_before(const uint8_t *text, size_t end, size_t *begin)
{
    size_t i = end - 1;
    while (i > 0 && (text[i] & 0xC0) == 0x80) i--;
    *begin = i;
    return utf8_next(text, &i);
}

static bool word_before(const uint8_t *text, size_t at)
{
    size_t begin;
    return at > 0 && unicode_is_added_word(character_before(text, at, &begin));
}

static bool word_after(const uint8_t *text, size_t n_bytes, size_t at)
{
    return at < n_bytes && unicode_is_added_word(utf8_next(text, &at));
}

static size_t skip_space_left(const uint8_t *text, size_t at)
{
    size_t begin;
    while (at > 0 && unicode_is_space(character_before(text, at, &begin))) at = begin;
    return at;
}

static size_t skip_space_right(const uint8_t *text, size_t n_bytes, size_t at)
{
    for (size_t next = at; next < n_bytes && unicode_is_space(utf8_next(text, &next));) at = next;
    return at;
}

fl_status added_tokens_split(const added_tokens *a, bool normalized, const uint8_t *text, size_t n_bytes, text_parts *parts, fl_err *err)
{
    const trie *t = normalized ? &a->normal : &a->raw;
    fl_status st = FL_OK;
    size_t done = 0;                                     /* text before it is in parts */
    for (size_t i = 0; t->n > 0 && i < n_bytes;) {
        size_t n_matched = 0;
        int32_t found = t->first[text[i]] == 0 ? -1 : trie_longest(t, text + i, n_bytes - i, &n_matched);
        if (found < 0) { i++; continue; }
        size_t begin = i, end = i + n_matched;
        i = end;
        const entry *rules = &a->entries[a->entries[found].rules];
        if (rules->single_word && (word_before(text, begin) || word_after(text, n_bytes, end))) continue;
        if (rules->lstrip) {
            begin = skip_space_left(text, begin);
            if (begin < done) begin = done;
        }
        if (rules->rstrip) end = skip_space_right(text, n_bytes, end);
        if (done < begin && (st = add_part(parts, done, begin, -1, err)) != FL_OK) return st;
        if ((st = add_part(parts, begin, end, rules->id, err)) != FL_OK) return st;
        done = end;
    }
    return done < n_bytes ? add_part(parts, done, n_bytes, -1, err) : FL_OK;
}

/* ---- opening ---- */

static bool flag(const json_t *token, const char *name) { return json_is_true(json_object_get(token, name)); }

static fl_status number_entry(added_tokens *a, size_t i, json_t *vocab, int64_t *next_id, fl_err *err)
{
    entry *e = &a->entries[i];
    int32_t first;
    fl_status st = trie_add(&a->by_content, e->content, e->n_bytes, (int32_t)i, &first, err);
    if (st != FL_OK) return st;
    json_t *known = json_object_getn(vocab, (const char *)e->content, e->n_bytes);
    int64_t id = first != (int32_t)i ? a->entries[first].id : known ? json_integer_value(known) : *next_id;
    if (id >= FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "tokenizer: the added token \"%.60s\" would get id %lld, above the limit of %d", (const char *)e->content, (long long)id, FL_VOCAB_MAX);
    e->id = (int32_t)id;
    if (id >= *next_id) *next_id = id + 1;
    if (id >= a->n_vocab) a->n_vocab = (int32_t)id + 1;
    return FL_OK;
}

static fl_status read_entry(added_tokens *a, const json_t *token, size_t place, fl_err *err)
{
    const json_t *content = json_object_get(token, "content");
    if (!json_is_string(content)) return fl_fail(err, FL_CORRUPT, "tokenizer: added token %zu has no content", place);
    size_t n = json_string_length(content);
    if (n == 0) return FL_OK;                            /* the reference ignores it too */
    entry *e = &a->entries[a->n];
    *e = (entry){ .n_bytes = n, .special = flag(token, "special"), .single_word = flag(token, "single_word"), .lstrip = flag(token, "lstrip"),
                  .rstrip = flag(token, "rstrip"), .normalized = flag(token, "normalized") };
    e->content = malloc(n + 1);
    if (!e->content) return fl_fail(err, FL_FULL, "tokenizer: no memory for the added tokens");
    memcpy(e->content, json_string_value(content), n + 1);
    a->n++;
    return FL_OK;
}

static int compare_ids(const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->id != y->id) return x->id < y->id ? -1 : 1;
    return (x > y) - (x < y);
}

/* Each entry follows the rules of the last one with its id, and is special when one of them is. */
static fl_status link_rules(added_tokens *a, fl_err *err)
{
    entry **order = malloc((a->n + 1) * sizeof(entry *));
    if (!order) return fl_fail(err, FL_FULL, "tokenizer: no memory for the added tokens");
    for (size_t i = 0; i < a->n; i++) order[i] = &a->entries[i];
    qsort(order, a->n, sizeof(entry *), compare_ids);
    for (size_t i = 0; i < a->n;) {
        size_t j = i;
        bool special = false;
        while (j < a->n && order[j]->id == order[i]->id) special |= order[j++]->special;
        for (size_t k = i; k < j; k++) { order[k]->rules = (size_t)(order[j - 1] - a->entries); order[k]->special = special; }
        i = j;
    }
    free(order);
    return FL_OK;
}

static fl_status add_to_trie(added_tokens *a, size_t i, const normalizer *normalize, fl_err *err)
{
    entry *e = &a->entries[i];
    int32_t first;
    fl_status st = e->normalized ? normalizer_run(normalize, e->content, e->n_bytes, &e->normal, &e->normal_bytes, err) : FL_OK;
    if (st != FL_OK) return st;
    size_t n = e->normal ? e->normal_bytes : e->n_bytes;
    if (n == 0) return FL_OK;                            /* nothing of it is left to be found */
    return trie_add(e->normalized ? &a->normal : &a->raw, e->normal ? e->normal : e->content, n, (int32_t)i, &first, err);
}

fl_status added_tokens_open(added_tokens **out, const json_t *list, json_t *vocab, const normalizer *normalize, fl_err *err)
{
    size_t n = json_is_array(list) ? json_array_size(list) : 0;
    if (list && !json_is_array(list) && !json_is_null(list)) return fl_fail(err, FL_CORRUPT, "tokenizer: added_tokens is not an array");
    if (n > FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "tokenizer: %zu added tokens are more than %d", n, FL_VOCAB_MAX);
    fl_status st = FL_OK;
    added_tokens *a = calloc(1, sizeof *a);
    if (!a) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    a->entries = calloc(n + 1, sizeof *a->entries);
    if (!a->entries) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for %zu added tokens", n); goto done; }
    for (size_t i = 0; i < n; i++) {
        if ((st = read_entry(a, json_array_get(list, i), i, err)) != FL_OK) goto done;
    }
    int64_t next_id = (int64_t)json_object_size(vocab);
    for (size_t i = 0; i < a->n; i++) {
        if ((st = number_entry(a, i, vocab, &next_id, err)) != FL_OK) goto done;
    }
    if ((st = link_rules(a, err)) != FL_OK) goto done;
    for (size_t i = 0; i < a->n; i++) {
        if ((st = add_to_trie(a, i, normalize, err)) != FL_OK) goto done;
    }
    *out = a;
    a = NULL;
done:
    added_tokens_close(a);
    return st;
}

void added_tokens_close(added_tokens *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->n; i++) { free(a->entries[i].content); free(a->entries[i].normal); }
    free(a->entries);
    free(a->by_content.nodes);
    free(a->raw.nodes);
    free(a->normal.nodes);
    free(a);
}

int32_t added_tokens_vocab(const added_tokens *a) { return a->n_vocab; }
size_t added_tokens_count(const added_tokens *a) { return a->n; }

int32_t added_tokens_entry(const added_tokens *a, size_t i, const uint8_t **text, size_t *n_bytes, bool *skipped)
{
    const entry *e = &a->entries[i];
    *text = e->normal ? e->normal : e->content;
    *n_bytes = e->normal ? e->normal_bytes : e->n_bytes;
    size_t n_matched = 0;
    int32_t same = trie_longest(&a->by_content, *text, *n_bytes, &n_matched);
    *skipped = same >= 0 && n_matched == *n_bytes && a->entries[same].special;
    return e->id;
}
