#include "proto/detok.h"

#include <lz4.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "proto/bytes.h"

#define MAGIC 0x31544454u                                /* "TDT1" */
enum { VERSION_PLAIN = 1, VERSION_FORM = 2 };
#define HEADER_BYTES 24
#define SUMMED_HEADER_BYTES 16
#define LZ4_RATIO_MAX 255
#define BLOB_BYTES_MAX (256u << 20)
#define SHORT_BYTES 16                                   /* most tokens are no longer: they are copied without a loop, so that many bytes may be read behind the last */

struct fl_detok {
    int32_t n_vocab;
    uint32_t *offsets;                                   /* owned [n_vocab + 1] into blob */
    uint8_t *bits;                                       /* owned [n_vocab] of FL_TOKEN_ */
    uint8_t *blob;                                       /* owned */
    fl_detok_form form;
    bool has_form;                                       /* the form, or bits beyond special */
    uint32_t *tight_offsets;                             /* owned [n_vocab + 1] into tight_blob: TIGHT ids without their spaces; NULL when there is none */
    uint8_t *tight_blob;                                 /* owned */
};

void fl_detok_free(fl_detok *table)
{
    if (!table) return;
    free(table->offsets);
    free(table->bits);
    free(table->blob);
    free(table->tight_offsets);
    free(table->tight_blob);
    free(table);
}

/* A table with room, offsets[0] = 0 and nothing else filled; NULL without memory. */
static fl_detok *detok_alloc(int32_t n_vocab, size_t blob_bytes)
{
    fl_detok *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    table->n_vocab = n_vocab;
    table->offsets = calloc((size_t)n_vocab + 1, sizeof *table->offsets);
    table->bits = calloc((size_t)n_vocab + 1, sizeof *table->bits);
    table->blob = malloc(blob_bytes + SHORT_BYTES);
    if (table->blob) memset(table->blob + blob_bytes, 0, SHORT_BYTES);
    if (table->offsets && table->bits && table->blob) return table;
    fl_detok_free(table);
    return NULL;
}

/* Check the form of a table that is otherwise filled, and lay out what TIGHT ids are at a text's beginning. */
static fl_status settle_form(fl_detok *table, fl_err *err)
{
    size_t n = (size_t)table->n_vocab, tight_bytes = 0;
    uint8_t all = 0;
    if (table->form.strip_max > 0 ? table->form.strip_byte == 0 || table->form.strip_byte >= 0x80 : table->form.strip_byte != 0)
        return fl_fail(err, FL_CORRUPT, "detok: a text's beginning cannot lose %u times the byte %u", table->form.strip_max, table->form.strip_byte);
    for (size_t i = 0; i < n; i++) {
        uint32_t n_bytes = table->offsets[i + 1] - table->offsets[i];
        all |= table->bits[i];
        if (table->bits[i] & FL_TOKEN_TIGHT) tight_bytes += n_bytes;
        if (table->bits[i] & FL_TOKEN_BYTE && n_bytes != 1) return fl_fail(err, FL_CORRUPT, "detok: the byte token %zu has %u bytes", i, n_bytes);
    }
    table->has_form = table->form.strip_max > 0 || (all & ~FL_TOKEN_SPECIAL) != 0;
    if (!(all & FL_TOKEN_TIGHT)) return FL_OK;
    table->tight_offsets = calloc(n + 1, sizeof *table->tight_offsets);
    table->tight_blob = malloc(tight_bytes + 1);
    if (!table->tight_offsets || !table->tight_blob) return fl_fail(err, FL_FULL, "detok: no memory for a table of %zu ids", n);
    uint32_t at = 0;
    for (size_t i = 0; i < n; i++) {
        for (uint32_t k = table->offsets[i]; table->bits[i] & FL_TOKEN_TIGHT && k < table->offsets[i + 1]; k++)
            if (table->blob[k] != ' ') table->tight_blob[at++] = table->blob[k];
        table->tight_offsets[i + 1] = at;
    }
    return FL_OK;
}

/* A table of `special` or of `bits`, whichever is not NULL. */
static fl_status make_table(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const bool *special, const uint8_t *bits, fl_detok_form form, fl_err *err)
{
    if (n_vocab < 0 || n_vocab > FL_VOCAB_MAX) return fl_fail(err, FL_INVALID, "detok: a vocabulary of %d ids, 0 to %d are possible", n_vocab, FL_VOCAB_MAX);
    for (int32_t i = 0; i < n_vocab; i++)
        if (offsets[i] > offsets[i + 1]) return fl_fail(err, FL_INVALID, "detok: the bytes of id %d end before they begin", i);
    uint32_t start = n_vocab ? offsets[0] : 0, blob_bytes = n_vocab ? offsets[n_vocab] - start : 0;
    if (blob_bytes > BLOB_BYTES_MAX) return fl_fail(err, FL_INVALID, "detok: %u bytes of tokens are more than the %u of a table", blob_bytes, BLOB_BYTES_MAX);
    fl_detok *table = detok_alloc(n_vocab, blob_bytes);
    if (!table) return fl_fail(err, FL_FULL, "detok: no memory for a table of %d ids", n_vocab);
    for (int32_t i = 0; i < n_vocab; i++) {
        table->offsets[i + 1] = offsets[i + 1] - start;
        table->bits[i] = special ? special[i] : bits[i];
    }
    if (blob_bytes) memcpy(table->blob, bytes + start, blob_bytes);
    table->form = form;
    fl_status st = settle_form(table, err);
    if (st != FL_OK) { fl_detok_free(table); return st; }
    *out = table;
    return FL_OK;
}

fl_status fl_detok_make(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const bool *special, fl_err *err)
{
    return make_table(out, n_vocab, bytes, offsets, special, NULL, (fl_detok_form){ 0, 0 }, err);
}

fl_status fl_detok_make_form(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const uint8_t *bits, fl_detok_form form, fl_err *err)
{
    return make_table(out, n_vocab, bytes, offsets, NULL, bits, form, err);
}

int32_t fl_detok_vocab(const fl_detok *table)
{
    return table->n_vocab;
}

const uint8_t *fl_detok_token(const fl_detok *table, int32_t id, bool skip_special, size_t *n_bytes)
{
    *n_bytes = 0;
    if (id < 0 || id >= table->n_vocab || (skip_special && table->bits[id] & FL_TOKEN_SPECIAL)) return table->blob;
    *n_bytes = table->offsets[id + 1] - table->offsets[id];
    return table->blob + table->offsets[id];
}

/* ---- wire form ---- */

static uint64_t table_checksum(const uint8_t *data, size_t n_bytes)
{
    return fl_checksum(0, (fl_bytes[]){ { data, SUMMED_HEADER_BYTES }, { data + HEADER_BYTES, n_bytes - HEADER_BYTES } }, 2);
}

/* Lengths and bytes as one piece of memory; *n_bytes is its size. NULL without memory. */
static uint8_t *table_raw(const fl_detok *table, size_t *n_bytes)
{
    size_t n_vocab = (size_t)table->n_vocab, blob_bytes = table->offsets[n_vocab];
    uint8_t *raw = malloc(n_vocab * FL_VARINT_BYTES_MAX + blob_bytes + 1), *end = raw;
    if (!raw) return NULL;
    for (size_t i = 0; i < n_vocab; i++)
        end = fl_put_varint(end, (table->offsets[i + 1] - table->offsets[i]) << (table->has_form ? FL_TOKEN_BITS : 1) | table->bits[i]);
    memcpy(end, table->blob, blob_bytes);
    *n_bytes = (size_t)(end - raw) + blob_bytes;
    return raw;
}

fl_status fl_detok_encode(const fl_detok *table, uint8_t **out, size_t *n_bytes, fl_err *err)
{
    size_t raw_bytes = 0;
    uint8_t *raw = table_raw(table, &raw_bytes);
    int capacity = LZ4_compressBound((int)raw_bytes);
    uint8_t *data = malloc(HEADER_BYTES + (size_t)capacity);
    if (!raw || !data) {
        free(raw);
        free(data);
        return fl_fail(err, FL_FULL, "detok: no memory to encode a table of %d ids", table->n_vocab);
    }
    int packed_bytes = LZ4_compress_default((const char *)raw, (char *)data + HEADER_BYTES, (int)raw_bytes, capacity);
    free(raw);
    FL_ASSERT(packed_bytes > 0);                         /* the bound suffices for every input */
    *n_bytes = HEADER_BYTES + (size_t)packed_bytes;
    fl_put_u32(data, MAGIC);
    fl_put_u16(data + 4, table->has_form ? VERSION_FORM : VERSION_PLAIN);
    data[6] = table->form.strip_max;
    data[7] = table->form.strip_byte;
    fl_put_u32(data + 8, (uint32_t)table->n_vocab);
    fl_put_u32(data + 12, (uint32_t)raw_bytes);
    fl_put_u64(data + SUMMED_HEADER_BYTES, table_checksum(data, *n_bytes));
    *out = data;
    return FL_OK;
}

/* What can be known without memory. */
static fl_status check_header(const uint8_t *data, size_t n_bytes, fl_err *err)
{
    if (n_bytes < HEADER_BYTES) return fl_fail(err, FL_CORRUPT, "detok: %zu bytes are less than a header", n_bytes);
    if (fl_get_u32(data) != MAGIC) return fl_fail(err, FL_CORRUPT, "detok: these bytes are not a table");
    unsigned version = fl_get_u16(data + 4);
    if (version != VERSION_PLAIN && version != VERSION_FORM) return fl_fail(err, FL_CORRUPT, "detok: version %u, this program reads %d and %d", version, VERSION_PLAIN, VERSION_FORM);
    uint32_t n_vocab = fl_get_u32(data + 8), raw_bytes = fl_get_u32(data + 12);
    size_t packed_bytes = n_bytes - HEADER_BYTES;
    if (version == VERSION_PLAIN && fl_get_u16(data + 6) != 0) return fl_fail(err, FL_CORRUPT, "detok: reserved header bits are set");
    if (n_vocab > FL_VOCAB_MAX || raw_bytes < n_vocab || raw_bytes > n_vocab * FL_VARINT_BYTES_MAX + BLOB_BYTES_MAX || (n_vocab == 0 && raw_bytes != 0))
        return fl_fail(err, FL_CORRUPT, "detok: %u ids cannot have %u bytes", n_vocab, raw_bytes);
    if (packed_bytes > INT32_MAX || raw_bytes > packed_bytes * LZ4_RATIO_MAX)
        return fl_fail(err, FL_CORRUPT, "detok: %zu bytes cannot unpack to %u", packed_bytes, raw_bytes);
    if (table_checksum(data, n_bytes) != fl_get_u64(data + SUMMED_HEADER_BYTES)) return fl_fail(err, FL_CORRUPT, "detok: wrong checksum");
    return FL_OK;
}

static fl_status read_table(fl_detok *table, const uint8_t *raw, size_t raw_bytes, fl_err *err)
{
    size_t at = 0;
    uint64_t total = 0;
    const int n_bits = table->has_form ? FL_TOKEN_BITS : 1;
    for (int32_t i = 0; i < table->n_vocab; i++) {
        uint64_t v = fl_get_varint(raw, raw_bytes, &at);
        if (v == FL_NO_VARINT || (total += v >> n_bits) > raw_bytes) return fl_fail(err, FL_CORRUPT, "detok: the length of id %d is broken", i);
        table->bits[i] = (uint8_t)(v & ((1u << n_bits) - 1));
        table->offsets[i + 1] = (uint32_t)total;
    }
    if (total != raw_bytes - at) return fl_fail(err, FL_CORRUPT, "detok: the lengths of the ids sum to %llu, %zu bytes are there", (unsigned long long)total, raw_bytes - at);
    if (total > BLOB_BYTES_MAX) return fl_fail(err, FL_CORRUPT, "detok: %llu bytes of tokens are more than the %u of a table", (unsigned long long)total, BLOB_BYTES_MAX);
    memcpy(table->blob, raw + at, (size_t)total);
    bool version_form = table->has_form;
    fl_status st = settle_form(table, err);
    if (st == FL_OK && table->has_form != version_form) st = fl_fail(err, FL_CORRUPT, "detok: a table without a form says that it has one");
    return st;
}

fl_status fl_detok_decode(fl_detok **out, const uint8_t *data, size_t n_bytes, fl_err *err)
{
    fl_status st = check_header(data, n_bytes, err);
    if (st != FL_OK) return st;
    int32_t n_vocab = (int32_t)fl_get_u32(data + 8);
    uint32_t raw_bytes = fl_get_u32(data + 12);
    uint8_t *raw = malloc((size_t)raw_bytes + 1);
    fl_detok *table = detok_alloc(n_vocab, raw_bytes - (uint32_t)n_vocab);
    if (!raw || !table) { st = fl_fail(err, FL_FULL, "detok: no memory for a table of %d ids", n_vocab); goto done; }
    table->has_form = fl_get_u16(data + 4) == VERSION_FORM;
    table->form = (fl_detok_form){ data[6], data[7] };
    int unpacked = LZ4_decompress_safe((const char *)data + HEADER_BYTES, (char *)raw, (int)(n_bytes - HEADER_BYTES), (int)raw_bytes);
    if (unpacked < 0 || (uint32_t)unpacked != raw_bytes) { st = fl_fail(err, FL_CORRUPT, "detok: the LZ4 data is broken"); goto done; }
    if ((st = read_table(table, raw, raw_bytes, err)) != FL_OK) goto done;
    *out = table;
    table = NULL;
done:
    free(raw);
    fl_detok_free(table);
    return st;
}

/* ---- text ---- */

const uint8_t *fl_detok_next(const fl_detok *table, fl_detok_place *place, int32_t id, size_t *n_bytes)
{
    const uint8_t *bytes = fl_detok_token(table, id, true, n_bytes);
    if (!table->has_form || *n_bytes == 0) return bytes;
    if (!place->has_token && table->bits[id] & FL_TOKEN_TIGHT) {
        bytes = table->tight_blob + table->tight_offsets[id];
        *n_bytes = table->tight_offsets[id + 1] - table->tight_offsets[id];
    }
    place->has_token = true;
    while (!place->has_text && *n_bytes > 0 && place->n_stripped < table->form.strip_max && bytes[0] == table->form.strip_byte) {
        place->n_stripped++;
        bytes++;
        --*n_bytes;
    }
    place->has_text = place->has_text || *n_bytes > 0 || place->n_stripped == table->form.strip_max;
    return bytes;
}

static bool is_byte_token(const fl_detok *table, int32_t id) { return id >= 0 && id < table->n_vocab && (table->bits[id] & (FL_TOKEN_BYTE | FL_TOKEN_SPECIAL)) == FL_TOKEN_BYTE; }
static bool is_skipped(const fl_detok *table, int32_t id)
{
    size_t n;
    fl_detok_token(table, id, true, &n);
    return n == 0;
}

/* The byte tokens from ids[begin] on, skipped ids between them included; at most `limit` bytes of them. *end is behind the last; false when they are not UTF-8 as a whole. */
static bool run_is_text(const fl_detok *table, const int32_t *ids, size_t n_ids, size_t begin, int64_t limit, size_t *end)
{
    uint8_t unit[4];
    size_t n_unit = 0;
    bool good = true;
    *end = begin;
    for (size_t i = begin; i < n_ids && limit > 0; i++) {
        if (!is_byte_token(table, ids[i])) {
            if (is_skipped(table, ids[i])) continue;
            break;
        }
        *end = i + 1;
        limit--;
        size_t n;
        unit[n_unit++] = *fl_detok_token(table, ids[i], true, &n);
        if (!good) { n_unit = 0; continue; }
        bool whole;
        size_t step = fl_utf8_step(unit, n_unit, &whole);
        if (whole) n_unit = 0;
        else if (step < n_unit || n_unit == 4 || unit[0] < 0xC2 || unit[0] > 0xF4) { good = false; n_unit = 0; }
    }
    return good && n_unit == 0;
}

typedef struct { uint8_t *bytes; size_t n, capacity; } text_out;         /* bytes owned */

static bool text_add(text_out *out, const void *bytes, size_t n)
{
    if (out->n + n > out->capacity) {
        size_t capacity = (out->n + n) * 2 + 64;
        uint8_t *grown = realloc(out->bytes, capacity);
        if (!grown) return false;
        out->bytes = grown;
        out->capacity = capacity;
    }
    if (n) memcpy(out->bytes + out->n, bytes, n);
    out->n += n;
    return true;
}

/* fl_detok_text of a table without a form: the ids' bytes, joined. */
static fl_status plain_text(const fl_detok *table, const int32_t *ids, size_t n_ids, int64_t limit, uint8_t **out, size_t *n_bytes, size_t *ends, fl_err *err)
{
    size_t capacity = n_ids * 6 + 64, at = 0;
    uint8_t *text = malloc(capacity);
    for (size_t i = 0; text && i < n_ids; i++) {
        uint32_t id = (uint32_t)ids[i];
        bool is_shown = id < (uint32_t)table->n_vocab && !(table->bits[id] & FL_TOKEN_SPECIAL);
        const uint8_t *token = table->blob + (is_shown ? table->offsets[id] : 0);
        size_t n = is_shown ? table->offsets[id + 1] - table->offsets[id] : 0;
        if (at + n + SHORT_BYTES > capacity) {
            capacity = (at + n) * 2 + 64;
            uint8_t *grown = realloc(text, capacity);
            if (!grown) free(text);
            if (!(text = grown)) break;
        }
        if (n <= SHORT_BYTES) memcpy(text + at, token, SHORT_BYTES);
        else memcpy(text + at, token, n);
        at += n;
        if (ends) ends[i] = at;
    }
    if (!text) return fl_fail(err, FL_FULL, "detok: no memory for the text of %zu ids", n_ids);
    if (limit > (int64_t)at) {
        free(text);
        return fl_fail(err, FL_CORRUPT, "detok: the ids have %zu bytes of text, and %lld are shown", at, (long long)limit);
    }
    size_t shown = limit >= 0 ? (size_t)limit : at;
    for (size_t i = n_ids; ends && i-- > 0 && ends[i] > shown; ) ends[i] = shown;
    *out = text;
    *n_bytes = shown;
    return FL_OK;
}

fl_status fl_detok_text(const fl_detok *table, const int32_t *ids, size_t n_ids, int64_t limit, uint8_t **out, size_t *n_bytes, size_t *ends, fl_err *err)
{
    if (!table->has_form) return plain_text(table, ids, n_ids, limit, out, n_bytes, ends, err);
    text_out text = { 0 };
    fl_detok_place place = { 0 };
    size_t run_end = 0;
    bool broken = false, ok = text_add(&text, NULL, 0);
    int64_t left = limit < 0 ? INT64_MAX : limit;
    for (size_t i = 0; i < n_ids && ok; i++) {
        size_t n;
        bool is_byte = table->has_form && is_byte_token(table, ids[i]);
        if (is_byte && i >= run_end) broken = !run_is_text(table, ids, n_ids, i, left, &run_end);
        const uint8_t *bytes = fl_detok_next(table, &place, ids[i], &n);
        if ((int64_t)n > left) n = (size_t)left;
        left -= (int64_t)n;
        ok = is_byte && broken && i < run_end ? text_add(&text, "\xEF\xBF\xBD", 3) : text_add(&text, bytes, n);
        if (ends) ends[i] = text.n;
    }
    if (!ok) { free(text.bytes); return fl_fail(err, FL_FULL, "detok: no memory for the text of %zu ids", n_ids); }
    if (limit > 0 && left > 0) {
        free(text.bytes);
        return fl_fail(err, FL_CORRUPT, "detok: the ids have %lld bytes of text, and %lld are shown", (long long)(limit - left), (long long)limit);
    }
    *out = text.bytes;
    *n_bytes = text.n;
    return FL_OK;
}

/* ---- UTF-8 ---- */

/* Bytes of the character or of the malformed maximal subpart at p[0 .. n), n >= 1; *good says which. Unicode 15, table 3-7: only
 * the second byte's range depends on the first. */
size_t fl_utf8_step(const uint8_t *p, size_t n, bool *good)
{
    uint8_t lead = p[0], low = 0x80, high = 0xBF;
    *good = lead < 0x80;
    if (lead < 0xC2 || lead > 0xF4) return 1;
    size_t want = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (lead == 0xE0) low = 0xA0;                        /* shorter forms exist below */
    if (lead == 0xED) high = 0x9F;                       /* surrogates above */
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;                       /* past U+10FFFF above */
    size_t at = 1;
    for (; at < want && at < n && p[at] >= low && p[at] <= high; at++) {
        low = 0x80;
        high = 0xBF;
    }
    *good = at == want;
    return at;
}

/* Behind the ASCII bytes from `at` on, in whole steps. */
static size_t skip_ascii(const uint8_t *bytes, size_t at, size_t n_bytes)
{
#ifdef __SSE2__
    while (n_bytes - at >= 16) {
        int mask = _mm_movemask_epi8(_mm_loadu_si128((const __m128i *)(bytes + at)));
        if (mask) return at + (size_t)__builtin_ctz((unsigned)mask);
        at += 16;
    }
#endif
    while (at < n_bytes && bytes[at] < 0x80) at++;
    return at;
}

bool fl_utf8_valid(const uint8_t *bytes, size_t n_bytes)
{
    bool good = true;
    for (size_t at = 0; good && (at = skip_ascii(bytes, at, n_bytes)) < n_bytes; ) at += fl_utf8_step(bytes + at, n_bytes - at, &good);
    return good;
}

fl_status fl_utf8_repair(const uint8_t *bytes, size_t n_bytes, char **out, size_t *out_bytes, bool *was_valid, fl_err *err)
{
    size_t total = 0, step;
    bool good, all_good = true;
    for (size_t at = 0; at < n_bytes; at += step) {
        step = fl_utf8_step(bytes + at, n_bytes - at, &good);
        total += good ? step : 3;
        all_good = all_good && good;
    }
    char *text = malloc(total + 1), *end = text;
    if (!text) return fl_fail(err, FL_FULL, "utf8: no memory for %zu bytes of text", total);
    for (size_t at = 0; at < n_bytes; at += step) {
        step = fl_utf8_step(bytes + at, n_bytes - at, &good);
        memcpy(end, good ? (const char *)bytes + at : "\xEF\xBF\xBD", good ? step : 3);
        end += good ? step : 3;
    }
    *end = '\0';
    *out = text;
    *out_bytes = total;
    if (was_valid) *was_valid = all_good;
    return FL_OK;
}
