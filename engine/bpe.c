/* Two hash tables, both open-addressed and filled at open: token bytes → id, and pair of ids → (rank, merged id).
 *
 * Most pre-tokens are whole tokens. Which tokens their own merges rebuild is found out once at open (`rebuilt`), so that encoding such a pre-token is one lookup. The others
 * merge: short ones by scanning an array for the lowest rank, long ones with a heap over a linked list, so a megabyte without a split costs n log n.
 *
 * A tokenizer of characters often has no pre-tokens: the whole text is one word. No merge can ever reach across two neighbours that stand side by side in no merged token
 * (in practice: a letter and the mark of the space behind it), so the word falls apart there without changing an id, and its pieces are encoded like pre-tokens.
 *
 * How many tokens a text has at least is known before any of that: a token of k bytes that holds the byte b shows that the longest token with b, of longest[b] bytes, has k or more, so the
 * bytes of any token have a sum of 1 / longest[b] of at most 1, and a text has at least as many tokens as its bytes' sum. (No text has fewer tokens than bytes / longest token, but 128 spaces
 * are a token in many vocabularies where no word has more than 30 bytes.) */
#include "engine/bpe.h"
#include "engine/unicode.h"
#include "proto/detok.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { SHARE_BITS = 32, PAIR_BITS_SHIFT = 3 };                           /* 8 bits for each of the table's slots: a sixteenth or less of the bits is set */
enum { VOCAB_GAPS = 16, VOCAB_GAPS_FREE = 1 << 16 };                   /* ids without a token: up to 15 for each that has one, and these */
enum { SHORT_MAX = 48, REBUILT_MAX = 256, TOKEN_BYTES_MAX = 1 << 16, NO_RANK = -1 };

typedef struct { uint64_t key; int32_t rank, id; } merge_slot;           /* key 0 = empty; else left id + 1 << 32 | right id + 1 */

struct bpe {
    int32_t n_vocab, n_tokens;
    uint8_t *bytes;                      /* owned; all tokens, back to back */
    uint32_t *begin;                     /* owned [n_vocab + 1] */
    uint8_t *kind;                       /* owned [n_vocab] of TOKEN_ */
    int32_t *word_slots;                 /* owned [word_mask + 1] id, -1 = empty */
    uint32_t word_mask;
    merge_slot *merges;                  /* owned [merge_mask + 1] */
    uint64_t merge_mask;
    uint64_t *pair_bits;                 /* owned; the pairs of `merges`, hashed */
    bool ignore_merges;
    uint64_t share[256];                 /* 2^SHARE_BITS / longest[b], rounded down; 0 where no bound can be given */
    int32_t byte_ids[256];               /* byte-level: of the byte itself; else of its fallback token. -1 = none */
    /* of characters only: */
    int32_t *character_ids;              /* owned [UNICODE_END] id + 1, 0 = none; NULL when byte-level */
    uint64_t *neighbours;                /* owned [NEIGHBOUR_BITS / 64]; hashed pairs of characters that stand side by side in a merged token */
    int32_t unk_id;                      /* -1 = unknown characters are dropped */
    bool byte_fallback, fuse_unk;
};
enum { TOKEN_NONE, TOKEN_OTHER, TOKEN_WORD, TOKEN_REBUILT };            /* OTHER: byte-level, and not of the byte alphabet */
enum { NEIGHBOUR_BITS = 1 << 23 };

fl_status id_list_add(id_list *list, int32_t id, fl_err *err)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids) return fl_fail(err, FL_FULL, "tokenizer: no memory for %zu ids", capacity);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return FL_OK;
}

/* ---- the byte alphabet ---- */

static bool is_printable_byte(uint32_t b) { return (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF); }

/* The byte of a character of the alphabet, -1 for others: bytes that are not printable are numbered from U+0100 in their order. */
static int byte_of_character(uint32_t c)
{
    if (c < 256) return is_printable_byte(c) ? (int)c : -1;
    uint32_t at = c - 256;
    if (at < 0x21) return (int)at;
    at -= 0x21;
    if (at < 0x22) return (int)(at + 0x7F);
    return at == 0x22 ? 0xAD : -1;
}

bool byte_alphabet_decode(const char *token, size_t n_bytes, uint8_t *out, size_t *out_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes;) {
        int b = byte_of_character(utf8_next((const uint8_t *)token, &i));
        if (b < 0) return false;
        out[n++] = (uint8_t)b;
    }
    *out_bytes = n;
    return true;
}

/* ---- lookups ---- */

const uint8_t *bpe_token(const bpe *b, int32_t id, size_t *n_bytes)
{
    *n_bytes = 0;
    if (id < 0 || id >= b->n_vocab) return b->bytes;
    *n_bytes = b->begin[id + 1] - b->begin[id];
    return b->bytes + b->begin[id];
}

static int32_t find_word(const bpe *b, const uint8_t *bytes, size_t n_bytes)
{
    for (uint32_t at = (uint32_t)XXH3_64bits(bytes, n_bytes) & b->word_mask; b->word_slots[at] >= 0; at = (at + 1) & b->word_mask) {
        size_t n;
        const uint8_t *token = bpe_token(b, b->word_slots[at], &n);
        if (n == n_bytes && memcmp(token, bytes, n) == 0) return b->word_slots[at];
    }
    return -1;
}

static uint64_t pair_key(int32_t left, int32_t right) { return (uint64_t)(uint32_t)(left + 1) << 32 | (uint32_t)(right + 1); }
static uint64_t pair_hash(uint64_t key) { key *= 0x9E3779B97F4A7C15ull; return key ^ key >> 32; }

/* Most pairs merge to nothing, which a bit says without a visit to the table: it fits the cache, the table does not. */
static uint64_t pair_bit(const bpe *b, uint64_t hash) { return hash >> 20 & (b->merge_mask << PAIR_BITS_SHIFT | ((1u << PAIR_BITS_SHIFT) - 1)); }

static const merge_slot *find_merge(const bpe *b, int32_t left, int32_t right)
{
    uint64_t key = pair_key(left, right), hash = pair_hash(key), bit = pair_bit(b, hash), at = hash & b->merge_mask;
    if (!(b->pair_bits[bit / 64] >> bit % 64 & 1)) return NULL;
    while (b->merges[at].key != 0 && b->merges[at].key != key) at = (at + 1) & b->merge_mask;
    return b->merges[at].key == key ? &b->merges[at] : NULL;
}

/* ---- merging ---- */

/* ids[0 .. n) of a short pre-token are merged in place; returns how many are left. */
static int32_t merge_short(const bpe *b, int32_t *ids, int32_t n)
{
    int32_t rank[SHORT_MAX], merged[SHORT_MAX];
    for (int32_t i = 0; i + 1 < n; i++) {
        const merge_slot *m = find_merge(b, ids[i], ids[i + 1]);
        rank[i] = m ? m->rank : NO_RANK;
        merged[i] = m ? m->id : 0;
    }
    for (;;) {
        int32_t best = -1;
        for (int32_t i = 0; i + 1 < n; i++) {
            if (rank[i] != NO_RANK && (best < 0 || rank[i] < rank[best])) best = i;
        }
        if (best < 0) return n;
        ids[best] = merged[best];
        for (int32_t i = best + 1; i + 1 < n; i++) { ids[i] = ids[i + 1]; rank[i] = rank[i + 1]; merged[i] = merged[i + 1]; }
        n--;
        for (int32_t i = best > 0 ? best - 1 : 0; i <= best && i + 1 < n; i++) {
            const merge_slot *m = find_merge(b, ids[i], ids[i + 1]);
            rank[i] = m ? m->rank : NO_RANK;
            merged[i] = m ? m->id : 0;
        }
    }
}

/* The symbols of a long pre-token, linked; a symbol that was merged into the one before it has id -1. The heap holds rank << 32 | place: the pair that begins at `place` had that rank when it
 * was pushed, and an entry whose pair has changed is skipped. */
typedef struct { int32_t id, before, after; } link;
typedef struct {
    link *links;
    uint64_t *heap; size_t n_heap, heap_capacity;
    uint64_t *sorted; size_t n_sorted, at_sorted;        /* the first pairs of a very long word, sorted at once; the heap then holds only what merges make, and stays small */
} chain;

/* Four children a node: half the levels of two, and a node's children share a cache line or two; in a word of a megabyte it is the levels that cost. */
enum { HEAP_WIDTH = 4 };

static void heap_push(chain *c, uint64_t v)
{
    FL_ASSERT(c->n_heap < c->heap_capacity);
    size_t i = c->n_heap++;
    while (i > 0 && c->heap[(i - 1) / HEAP_WIDTH] > v) { c->heap[i] = c->heap[(i - 1) / HEAP_WIDTH]; i = (i - 1) / HEAP_WIDTH; }
    c->heap[i] = v;
}

/* Let v sink from place i to where it belongs. */
static void heap_sink(chain *c, size_t i, uint64_t v)
{
    uint64_t *heap = c->heap;
    for (;;) {
        size_t child = HEAP_WIDTH * i + 1, least = child;
        if (child + HEAP_WIDTH <= c->n_heap) {
            size_t left = child + (heap[child + 1] < heap[child]), right = child + 2 + (heap[child + 3] < heap[child + 2]);
            least = heap[right] < heap[left] ? right : left;
        } else if (child < c->n_heap) {
            for (size_t k = child + 1; k < c->n_heap; k++) least = heap[k] < heap[least] ? k : least;
        } else {
            break;
        }
        if (heap[least] >= v) break;
        heap[i] = heap[least];
        i = least;
    }
    heap[i] = v;
}

static uint64_t heap_pop(chain *c)
{
    uint64_t top = c->heap[0], v = c->heap[--c->n_heap];
    heap_sink(c, 0, v);
    return top;
}

/* What the symbol at `at` and the next one would merge to; NULL: nothing. */
static const merge_slot *chain_pair(const bpe *b, const chain *c, int32_t at)
{
    const link *l = &c->links[at];
    return l->id >= 0 && l->after >= 0 ? find_merge(b, l->id, c->links[l->after].id) : NULL;
}

/* Of the heap's entries keep those that still say what their pair is: at most one a symbol. */
static void heap_sweep(const bpe *b, chain *c)
{
    size_t n = 0;
    for (size_t i = 0; i < c->n_heap; i++) {
        const merge_slot *m = chain_pair(b, c, (int32_t)(uint32_t)c->heap[i]);
        if (m && m->rank == (int32_t)(c->heap[i] >> 32)) c->heap[n++] = c->heap[i];
    }
    c->n_heap = n;
    for (size_t i = n / HEAP_WIDTH + 1; i-- > 0;) if (i < n) heap_sink(c, i, c->heap[i]);
}

static void chain_rank(const bpe *b, chain *c, int32_t at)
{
    const merge_slot *m = chain_pair(b, c, at);
    if (!m) return;
    if (c->n_heap == c->heap_capacity) heap_sweep(b, c);
    heap_push(c, (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)at);
}

enum { SORT_LEAST = 4096, DIGIT_BITS = 12, DIGITS = 1 << DIGIT_BITS };

/* Sort entries by rank (below 2^24: two digits); they come by place, and keep that order. */
static void sort_entries(uint64_t *entries, uint64_t *spare, size_t n)
{
    for (int digit = 0; digit < 2; digit++) {
        int shift = 32 + digit * DIGIT_BITS;
        uint32_t begin[DIGITS + 1] = { 0 };
        for (size_t i = 0; i < n; i++) begin[(entries[i] >> shift & (DIGITS - 1)) + 1]++;
        for (int d = 0; d < DIGITS; d++) begin[d + 1] += begin[d];
        for (size_t i = 0; i < n; i++) spare[begin[entries[i] >> shift & (DIGITS - 1)]++] = entries[i];
        uint64_t *other = entries;
        entries = spare;
        spare = other;
    }
}

static void first_pairs(const bpe *b, chain *c, int32_t n)
{
    _Static_assert(2 * FL_VOCAB_MAX <= 1 << 2 * DIGIT_BITS, "a rank has two digits");
    if (n < SORT_LEAST) {
        for (int32_t i = 0; i < n; i++) chain_rank(b, c, i);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        const merge_slot *m = chain_pair(b, c, i);
        if (m) c->sorted[c->n_sorted++] = (uint64_t)(uint32_t)m->rank << 32 | (uint32_t)i;
    }
    sort_entries(c->sorted, c->heap, c->n_sorted);
}

static bool next_pair(chain *c, uint64_t *entry)
{
    bool is_sorted = c->at_sorted < c->n_sorted;
    if (!is_sorted && c->n_heap == 0) return false;
    *entry = is_sorted && (c->n_heap == 0 || c->sorted[c->at_sorted] < c->heap[0]) ? c->sorted[c->at_sorted++] : heap_pop(c);
    return true;
}

static void merge_long(const bpe *b, chain *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) { c->links[i].before = i - 1; c->links[i].after = i + 1 < n ? i + 1 : -1; }
    first_pairs(b, c, n);
    for (uint64_t top; next_pair(c, &top);) {
        int32_t at = (int32_t)(uint32_t)top;
        const merge_slot *m = chain_pair(b, c, at);
        if (!m || m->rank != (int32_t)(top >> 32)) continue;
        link *l = &c->links[at], *gone = &c->links[l->after];
        l->id = m->id;
        l->after = gone->after;
        gone->id = -1;
        if (l->after >= 0) c->links[l->after].before = at;
        chain_rank(b, c, at);
        if (l->before >= 0) chain_rank(b, c, l->before);
    }
}

/* ---- encoding ---- */

/* A character of the vocabulary is its token, others are what byte_fallback and unk_token make of them. A pending unknown is written in front of the next known character, not of
 * the next fallback bytes: so does the reference. Writes at most n_bytes ids. */
static int32_t character_symbols(const bpe *b, const uint8_t *bytes, size_t n_bytes, int32_t *ids)
{
    int32_t n = 0;
    bool pending = false;
    for (size_t i = 0; i < n_bytes;) {
        size_t begin = i;
        int32_t id = b->character_ids[utf8_next(bytes, &i)] - 1;
        if (id >= 0) {
            if (pending) ids[n++] = b->unk_id;
            pending = false;
            ids[n++] = id;
            continue;
        }
        bool falls_back = b->byte_fallback;
        for (size_t k = begin; falls_back && k < i; k++) falls_back = b->byte_ids[bytes[k]] >= 0;
        if (falls_back) {
            for (size_t k = begin; k < i; k++) ids[n++] = b->byte_ids[bytes[k]];
        } else if (b->unk_id >= 0) {
            if (pending && !b->fuse_unk) ids[n++] = b->unk_id;
            pending = true;
        }
    }
    if (pending) ids[n++] = b->unk_id;
    return n;
}

/* The ids that a word's merging starts from. */
static int32_t word_symbols(const bpe *b, const uint8_t *bytes, size_t n_bytes, int32_t *ids)
{
    if (b->character_ids) return character_symbols(b, bytes, n_bytes, ids);
    int32_t n = 0;
    for (size_t i = 0; i < n_bytes; i++) {
        if (b->byte_ids[bytes[i]] >= 0) ids[n++] = b->byte_ids[bytes[i]];
    }
    return n;
}

static fl_status add_ids(id_list *out, const int32_t *ids, int32_t n, fl_err *err)
{
    fl_status st = FL_OK;
    for (int32_t i = 0; i < n && st == FL_OK; i++) st = id_list_add(out, ids[i], err);
    return st;
}

/* A sweep of the heap leaves at most one entry a symbol, since a pair never comes back to its place (symbols only grow), and a merge takes one entry, pushes at most two and ends one symbol:
 * with room for two entries a symbol (one, where the first pairs are sorted apart) sweeps are few. 28 bytes a byte of the word. */
static fl_status encode_long(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err)
{
    size_t links_bytes = (n_bytes * sizeof(link) + 7) & ~(size_t)7, want = links_bytes + 2 * n_bytes * sizeof(uint64_t);
    if (want > scratch->n_bytes) {
        free(scratch->memory);
        *scratch = (bpe_scratch){ .memory = malloc(want), .n_bytes = want };
        if (!scratch->memory) { scratch->n_bytes = 0; return fl_fail(err, FL_FULL, "tokenizer: no memory for a word of %zu bytes", n_bytes); }
    }
    chain c = { .links = scratch->memory, .heap = (uint64_t *)((uint8_t *)scratch->memory + links_bytes), .heap_capacity = 2 * n_bytes };
    int32_t *ids = (int32_t *)c.heap, n = word_symbols(b, bytes, n_bytes, ids);          /* the heap is still empty */
    for (int32_t i = 0; i < n; i++) c.links[i].id = ids[i];
    if (n == 0) return FL_OK;
    if (n >= SORT_LEAST) {
        c.sorted = c.heap + n_bytes;
        c.heap_capacity = n_bytes;
    }
    merge_long(b, &c, n);
    fl_status st = FL_OK;
    for (int32_t at = 0; at >= 0 && st == FL_OK; at = c.links[at].after) st = id_list_add(out, c.links[at].id, err);
    return st;
}

static fl_status encode_by_merges(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err)
{
    if (n_bytes > SHORT_MAX) return encode_long(b, scratch, bytes, n_bytes, out, err);
    int32_t ids[SHORT_MAX], n = word_symbols(b, bytes, n_bytes, ids);
    return add_ids(out, ids, merge_short(b, ids, n), err);
}

static fl_status encode_piece(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err)
{
    int32_t id = find_word(b, bytes, n_bytes);
    return id >= 0 && b->kind[id] == TOKEN_REBUILT ? id_list_add(out, id, err) : encode_by_merges(b, scratch, bytes, n_bytes, out, err);
}

static uint32_t neighbour_bit(uint32_t left, uint32_t right) { return (uint32_t)(((uint64_t)left << 21 | right) * 0x9E3779B97F4A7C15ull >> 41); }
static bool may_join(const bpe *b, uint32_t left, uint32_t right)
{
    uint32_t bit = neighbour_bit(left, right);
    return b->neighbours[bit / 64] >> bit % 64 & 1;
}

/* A word of characters falls apart between two known characters that no merge joins. */
static fl_status encode_characters(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err)
{
    size_t begin = 0, i = 0;
    uint32_t left = utf8_next(bytes, &i);
    while (i < n_bytes) {
        size_t at = i;
        uint32_t right = utf8_next(bytes, &i);
        if (!may_join(b, left, right) && b->character_ids[left] != 0 && b->character_ids[right] != 0) {
            fl_status st = encode_piece(b, scratch, bytes + begin, at - begin, out, err);
            if (st != FL_OK) return st;
            begin = at;
        }
        left = right;
    }
    return encode_piece(b, scratch, bytes + begin, n_bytes - begin, out, err);
}

size_t bpe_least_tokens(const bpe *b, const uint8_t *bytes, size_t n_bytes)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < n_bytes; i++) sum += b->share[bytes[i]];
    return (size_t)(sum >> SHARE_BITS);
}

fl_status bpe_encode(const bpe *b, bpe_scratch *scratch, const uint8_t *bytes, size_t n_bytes, id_list *out, fl_err *err)
{
    if (b->ignore_merges) {
        int32_t id = find_word(b, bytes, n_bytes);
        if (id >= 0) return id_list_add(out, id, err);
    }
    return b->character_ids ? encode_characters(b, scratch, bytes, n_bytes, out, err) : encode_piece(b, scratch, bytes, n_bytes, out, err);
}

/* ---- opening ---- */

/* Check every entry and find the largest id and the bytes of all tokens. */
static fl_status measure_vocab(bpe *b, json_t *vocab, size_t *n_bytes, fl_err *err)
{
    size_t count = json_object_size(vocab);
    if (count == 0 || count > FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "tokenizer: a vocabulary of %zu tokens (1 to %d are served)", count, FL_VOCAB_MAX);
    *n_bytes = 0;
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        size_t n = json_object_iter_key_len(it);
        json_t *id = json_object_iter_value(it);
        if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= FL_VOCAB_MAX)
            return fl_fail(err, FL_CORRUPT, "tokenizer: the id of token \"%.60s\" is not a number from 0 to %d", json_object_iter_key(it), FL_VOCAB_MAX - 1);
        if (n > TOKEN_BYTES_MAX) return fl_fail(err, FL_CORRUPT, "tokenizer: token %d has %zu bytes, above the limit of %d", (int)json_integer_value(id), n, TOKEN_BYTES_MAX);
        if (json_integer_value(id) >= b->n_vocab) b->n_vocab = (int32_t)json_integer_value(id) + 1;
        *n_bytes += n;
    }
    if ((size_t)b->n_vocab > VOCAB_GAPS * count + VOCAB_GAPS_FREE)       /* the tables have an entry an id */
        return fl_fail(err, FL_CORRUPT, "tokenizer: the largest id is %d in a vocabulary of %zu tokens", b->n_vocab - 1, count);
    if (*n_bytes > UINT32_MAX / 2) return fl_fail(err, FL_CORRUPT, "tokenizer: the vocabulary's tokens have %zu bytes together", *n_bytes);
    b->n_tokens = (int32_t)count;
    return FL_OK;
}

static uint64_t table_size(uint64_t entries)
{
    uint64_t size = 16;
    while (size < entries * 2) size *= 2;
    return size;
}

static fl_status alloc_tables(bpe *b, size_t n_bytes, size_t n_merges, bool byte_level, fl_err *err)
{
    size_t n = (size_t)b->n_vocab, words = table_size((uint64_t)b->n_tokens), merges = table_size(n_merges);
    b->bytes = malloc(n_bytes + 1);
    b->begin = calloc(n + 1, sizeof *b->begin);
    b->kind = calloc(n, sizeof *b->kind);
    b->word_slots = malloc(words * sizeof *b->word_slots);
    b->merges = calloc(merges, sizeof *b->merges);
    b->pair_bits = calloc((merges << PAIR_BITS_SHIFT) / 64, sizeof *b->pair_bits);
    bool complete = b->bytes && b->begin && b->kind && b->word_slots && b->merges && b->pair_bits;
    if (!byte_level) {
        b->character_ids = calloc(UNICODE_END, sizeof *b->character_ids);
        b->neighbours = calloc(NEIGHBOUR_BITS / 64, sizeof *b->neighbours);
        complete = complete && b->character_ids && b->neighbours;
    }
    if (!complete) return fl_fail(err, FL_FULL, "tokenizer: no memory for %d tokens", b->n_vocab);
    for (size_t i = 0; i < words; i++) b->word_slots[i] = -1;
    b->word_mask = (uint32_t)(words - 1);
    b->merge_mask = merges - 1;
    return FL_OK;
}

/* Lay the tokens' bytes out by id. `entries` [n_vocab], zeroed, receives the place of each id in the JSON object. */
static fl_status fill_tokens(bpe *b, json_t *vocab, void **entries, fl_err *err)
{
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        int32_t id = (int32_t)json_integer_value(json_object_iter_value(it));
        if (entries[id])
            return fl_fail(err, FL_CORRUPT, "tokenizer: tokens \"%.60s\" and \"%.60s\" have the same id %d", json_object_iter_key(entries[id]), json_object_iter_key(it), id);
        entries[id] = it;
    }
    uint32_t at = 0;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        b->begin[id] = at;
        if (!entries[id]) continue;
        const char *key = json_object_iter_key(entries[id]);
        size_t n = json_object_iter_key_len(entries[id]), n_bytes;
        if (!b->character_ids && byte_alphabet_decode(key, n, b->bytes + at, &n_bytes)) {
            b->kind[id] = TOKEN_WORD;
            at += (uint32_t)n_bytes;
        } else {
            b->kind[id] = b->character_ids ? TOKEN_WORD : TOKEN_OTHER;
            memcpy(b->bytes + at, key, n);
            at += (uint32_t)n;
        }
    }
    b->begin[b->n_vocab] = at;
    return FL_OK;
}

/* The byte of a fallback token <0x00> to <0xFF>, -1 for others. */
static int fallback_byte(const uint8_t *token, size_t n)
{
    if (n != 6 || memcmp(token, "<0x", 3) != 0 || token[5] != '>') return -1;
    int v = 0;
    for (int i = 3; i < 5; i++) {
        uint8_t c = token[i];
        if (c >= '0' && c <= '9') v = v * 16 + (c - '0');
        else if (c >= 'A' && c <= 'F') v = v * 16 + (c - 'A' + 10);
        else return -1;
    }
    return v;
}

/* What a token alone stands for: a byte, a character or a fallback byte. */
static void index_symbol(bpe *b, int32_t id, const uint8_t *token, size_t n)
{
    if (!b->character_ids) {
        if (n == 1) b->byte_ids[token[0]] = id;
        return;
    }
    size_t i = 0;
    uint32_t c = utf8_next(token, &i);
    if (i == n) b->character_ids[c] = id + 1;
    int byte = fallback_byte(token, n);
    if (byte >= 0) b->byte_ids[byte] = id;
}

/* The longest token with each byte, and of all. In a vocabulary of characters a byte of a character without a token of its own may be any part of a token (of fallback tokens that
 * were merged, whose own text is longer than the bytes they stand for), or none at all (an unknown character that is dropped or fused). */
static void measure_bytes(bpe *b)
{
    size_t longest[256] = { 0 }, longest_token = 1;
    bool all_fall_back = b->byte_fallback;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        size_t n;
        const uint8_t *token = bpe_token(b, id, &n);
        if (b->kind[id] != TOKEN_WORD && b->kind[id] != TOKEN_REBUILT) continue;
        if (n > longest_token) longest_token = n;
        for (size_t i = 0; i < n; i++)
            if (n > longest[token[i]]) longest[token[i]] = n;
    }
    for (int i = 0; i < 256; i++) all_fall_back &= b->byte_ids[i] >= 0;
    for (int i = 0; i < 256; i++) {
        bool is_symbol = b->character_ids ? i < 0x80 && b->character_ids[i] != 0 : b->byte_ids[i] >= 0;
        size_t most = is_symbol ? longest[i] : b->character_ids && all_fall_back ? longest_token : 0;
        b->share[i] = most ? ((uint64_t)1 << SHARE_BITS) / most : 0;
    }
}

static void index_tokens(bpe *b)
{
    for (int i = 0; i < 256; i++) b->byte_ids[i] = -1;
    for (int32_t id = 0; id < b->n_vocab; id++) {
        size_t n;
        const uint8_t *token = bpe_token(b, id, &n);
        if (b->kind[id] != TOKEN_WORD || n == 0) continue;
        uint32_t at = (uint32_t)XXH3_64bits(token, n) & b->word_mask;
        while (b->word_slots[at] >= 0) at = (at + 1) & b->word_mask;
        b->word_slots[at] = id;
        index_symbol(b, id, token, n);
    }
}

/* Note which characters stand side by side in the token that a merge makes. */
static void note_neighbours(bpe *b, int32_t id)
{
    size_t n, i = 0;
    const uint8_t *token = bpe_token(b, id, &n);
    for (uint32_t left = n > 0 ? utf8_next(token, &i) : 0; i < n;) {
        uint32_t right = utf8_next(token, &i), bit = neighbour_bit(left, right);
        b->neighbours[bit / 64] |= 1ull << bit % 64;
        left = right;
    }
}

/* The id of a merge's part. */
static fl_status part_id(json_t *vocab, const char *text, size_t n, size_t rank, int32_t *id, fl_err *err)
{
    json_t *v = json_object_getn(vocab, text, n);
    if (!v) return fl_fail(err, FL_CORRUPT, "tokenizer: merge %zu names \"%.*s\", which is no token of the vocabulary", rank, (int)(n < 60 ? n : 60), text);
    *id = (int32_t)json_integer_value(v);
    return FL_OK;
}

/* A merge's two parts: ["a", "b"] or "a b". */
static fl_status split_merge(json_t *merge, size_t rank, const char *part[2], size_t n[2], fl_err *err)
{
    if (json_is_array(merge) && json_array_size(merge) == 2 && json_is_string(json_array_get(merge, 0)) && json_is_string(json_array_get(merge, 1))) {
        for (size_t i = 0; i < 2; i++) { part[i] = json_string_value(json_array_get(merge, i)); n[i] = json_string_length(json_array_get(merge, i)); }
        return FL_OK;
    }
    const char *text = json_string_value(merge);
    const char *space = text ? memchr(text, ' ', json_string_length(merge)) : NULL;
    if (!space || memchr(space + 1, ' ', json_string_length(merge) - (size_t)(space + 1 - text)))
        return fl_fail(err, FL_CORRUPT, "tokenizer: merge %zu is not two tokens (\"a b\" or [\"a\", \"b\"])", rank);
    part[0] = text;
    n[0] = (size_t)(space - text);
    part[1] = space + 1;
    n[1] = json_string_length(merge) - n[0] - 1;
    return FL_OK;
}

static fl_status fill_merges(bpe *b, json_t *vocab, json_t *merges, fl_err *err)
{
    char joined[2 * TOKEN_BYTES_MAX];
    for (size_t rank = 0; rank < json_array_size(merges); rank++) {
        const char *part[2];
        size_t n[2];
        int32_t left = -1, right = -1, whole = -1;
        fl_status st = split_merge(json_array_get(merges, rank), rank, part, n, err);
        if (st != FL_OK) return st;
        if (n[0] == 0 || n[1] == 0) return fl_fail(err, FL_CORRUPT, "tokenizer: merge %zu has an empty part", rank);
        if ((st = part_id(vocab, part[0], n[0], rank, &left, err)) != FL_OK || (st = part_id(vocab, part[1], n[1], rank, &right, err)) != FL_OK) return st;
        memcpy(joined, part[0], n[0]);
        memcpy(joined + n[0], part[1], n[1]);
        if ((st = part_id(vocab, joined, n[0] + n[1], rank, &whole, err)) != FL_OK) return st;
        uint64_t key = pair_key(left, right), at = pair_hash(key) & b->merge_mask;
        while (b->merges[at].key != 0 && b->merges[at].key != key) at = (at + 1) & b->merge_mask;
        uint64_t bit = pair_bit(b, pair_hash(key));
        b->pair_bits[bit / 64] |= 1ull << bit % 64;
        b->merges[at] = (merge_slot){ .key = key, .rank = (int32_t)rank, .id = whole };       /* of equal merges the last counts */
        if (b->neighbours) note_neighbours(b, whole);
    }
    return FL_OK;
}

/* Mark the tokens that merging their own bytes gives back. */
static fl_status mark_rebuilt(bpe *b, fl_err *err)
{
    id_list ids = { 0 };
    bpe_scratch scratch = { 0 };
    fl_status st = FL_OK;
    for (int32_t id = 0; id < b->n_vocab && st == FL_OK; id++) {
        size_t n;
        const uint8_t *token = bpe_token(b, id, &n);
        if (b->kind[id] != TOKEN_WORD || n == 0 || n > REBUILT_MAX) continue;
        ids.n = 0;
        st = encode_by_merges(b, &scratch, token, n, &ids, err);
        if (st == FL_OK && ids.n == 1 && ids.ids[0] == id) b->kind[id] = TOKEN_REBUILT;
    }
    free(ids.ids);
    free(scratch.memory);
    return st;
}

/* What becomes of characters without a token. */
static fl_status read_unknown(bpe *b, const json_t *model, json_t *vocab, fl_err *err)
{
    const json_t *unk = json_object_get(model, "unk_token");
    b->byte_fallback = json_is_true(json_object_get(model, "byte_fallback"));
    b->fuse_unk = json_is_true(json_object_get(model, "fuse_unk"));
    b->unk_id = -1;
    int n_bytes = 0;
    for (int i = 0; i < 256; i++) n_bytes += b->byte_ids[i] >= 0;
    if (n_bytes == 256 && (!b->character_ids || b->byte_fallback)) return FL_OK;         /* nothing is ever unknown */
    if (!b->character_ids) {
        if (b->byte_fallback) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: model.byte_fallback is not served with a byte-level vocabulary that lacks bytes");
        return json_is_string(unk) ? fl_fail(err, FL_UNSUPPORTED, "tokenizer: model.unk_token is not served with a byte-level vocabulary that lacks bytes") : FL_OK;
    }
    if (!json_is_string(unk)) return FL_OK;
    const json_t *id = json_object_getn(vocab, json_string_value(unk), json_string_length(unk));
    if (!id) return fl_fail(err, FL_CORRUPT, "tokenizer: model.unk_token \"%.60s\" is no token of the vocabulary", json_string_value(unk));
    b->unk_id = (int32_t)json_integer_value(id);
    return FL_OK;
}

/* Every setting that changes ids is known here or refused. */
static fl_status check_settings(const json_t *model, fl_err *err)
{
    const char *type = json_string_value(json_object_get(model, "type"));
    if (!type || strcmp(type, "BPE") != 0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: models of type %.40s are not served, only BPE", type ? type : "(none)");
    static const char *const affixes[] = { "continuing_subword_prefix", "end_of_word_suffix" };
    for (size_t i = 0; i < 2; i++) {
        const char *affix = json_string_value(json_object_get(model, affixes[i]));
        if (affix && affix[0] != '\0') return fl_fail(err, FL_UNSUPPORTED, "tokenizer: model.%s is not served", affixes[i]);
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (json_is_number(dropout) && json_number_value(dropout) != 0.0) return fl_fail(err, FL_UNSUPPORTED, "tokenizer: model.dropout is not served: it would make ids random");
    return FL_OK;
}

fl_status bpe_open(bpe **out, const json_t *model, bool byte_level, fl_err *err)
{
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    fl_status st = check_settings(model, err);
    if (st != FL_OK) return st;
    if (!json_is_object(vocab)) return fl_fail(err, FL_CORRUPT, "tokenizer: model.vocab is not an object");
    if (!json_is_array(merges)) return fl_fail(err, FL_CORRUPT, "tokenizer: model.merges is not an array");
    if (json_array_size(merges) > 2 * (size_t)FL_VOCAB_MAX) return fl_fail(err, FL_CORRUPT, "tokenizer: %zu merges are more than %d", json_array_size(merges), 2 * FL_VOCAB_MAX);
    bpe *b = calloc(1, sizeof *b);
    if (!b) return fl_fail(err, FL_FULL, "tokenizer: no memory");
    size_t n_bytes = 0;
    void **entries = NULL;
    if ((st = measure_vocab(b, vocab, &n_bytes, err)) != FL_OK) goto done;
    if ((st = alloc_tables(b, n_bytes, json_array_size(merges), byte_level, err)) != FL_OK) goto done;
    entries = calloc((size_t)b->n_vocab, sizeof *entries);
    if (!entries) { st = fl_fail(err, FL_FULL, "tokenizer: no memory for %d tokens", b->n_vocab); goto done; }
    if ((st = fill_tokens(b, vocab, entries, err)) != FL_OK) goto done;
    index_tokens(b);
    b->ignore_merges = json_is_true(json_object_get(model, "ignore_merges"));
    if ((st = read_unknown(b, model, vocab, err)) != FL_OK) goto done;
    measure_bytes(b);
    if ((st = fill_merges(b, vocab, merges, err)) != FL_OK) goto done;
    if ((st = mark_rebuilt(b, err)) != FL_OK) goto done;
    *out = b;
    b = NULL;
done:
    free(entries);
    bpe_close(b);
    return st;
}

void bpe_close(bpe *b)
{
    if (!b) return;
    free(b->bytes);
    free(b->begin);
    free(b->kind);
    free(b->word_slots);
    free(b->merges);
    free(b->pair_bits);
    free(b->character_ids);
    free(b->neighbours);
    free(b);
}

int32_t bpe_vocab(const bpe *b) { return b->n_vocab; }
