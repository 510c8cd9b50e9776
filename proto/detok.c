#include "proto/detok.h"

#include <lz4.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"

#define MAGIC 0x31544454u                                /* "TDT1" */
#define VERSION 1
#define HEADER_BYTES 24
#define SUMMED_HEADER_BYTES 16
#define LZ4_RATIO_MAX 255
#define BLOB_BYTES_MAX (256u << 20)

struct fl_detok {
    int32_t n_vocab;
    uint32_t *offsets;                                   /* owned [n_vocab + 1] into blob */
    bool *special;                                       /* owned [n_vocab] */
    uint8_t *blob;                                       /* owned */
};

void fl_detok_free(fl_detok *table)
{
    if (!table) return;
    free(table->offsets);
    free(table->special);
    free(table->blob);
    free(table);
}

/* A table with room, offsets[0] = 0 and nothing else filled; NULL without memory. */
static fl_detok *detok_alloc(int32_t n_vocab, size_t blob_bytes)
{
    fl_detok *table = calloc(1, sizeof *table);
    if (!table) return NULL;
    table->n_vocab = n_vocab;
    table->offsets = calloc((size_t)n_vocab + 1, sizeof *table->offsets);
    table->special = calloc((size_t)n_vocab + 1, sizeof *table->special);
    table->blob = malloc(blob_bytes + 1);
    if (table->offsets && table->special && table->blob) return table;
    fl_detok_free(table);
    return NULL;
}

fl_status fl_detok_make(fl_detok **out, int32_t n_vocab, const uint8_t *bytes, const uint32_t *offsets, const bool *special, fl_err *err)
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
        table->special[i] = special[i];
    }
    if (blob_bytes) memcpy(table->blob, bytes + start, blob_bytes);
    *out = table;
    return FL_OK;
}

int32_t fl_detok_vocab(const fl_detok *table)
{
    return table->n_vocab;
}

const uint8_t *fl_detok_token(const fl_detok *table, int32_t id, bool skip_special, size_t *n_bytes)
{
    *n_bytes = 0;
    if (id < 0 || id >= table->n_vocab || (skip_special && table->special[id])) return table->blob;
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
        end = fl_put_varint(end, (table->offsets[i + 1] - table->offsets[i]) * 2 + table->special[i]);
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
    fl_put_u16(data + 4, VERSION);
    fl_put_u16(data + 6, 0);
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
    if (fl_get_u16(data + 4) != VERSION) return fl_fail(err, FL_CORRUPT, "detok: version %u, this program reads %d", fl_get_u16(data + 4), VERSION);
    uint32_t n_vocab = fl_get_u32(data + 8), raw_bytes = fl_get_u32(data + 12);
    size_t packed_bytes = n_bytes - HEADER_BYTES;
    if (fl_get_u16(data + 6) != 0) return fl_fail(err, FL_CORRUPT, "detok: reserved header bits are set");
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
    for (int32_t i = 0; i < table->n_vocab; i++) {
        uint64_t v = fl_get_varint(raw, raw_bytes, &at);     /* length * 2 + special */
        if (v == FL_NO_VARINT || (total += v >> 1) > raw_bytes) return fl_fail(err, FL_CORRUPT, "detok: the length of id %d is broken", i);
        table->special[i] = v & 1;
        table->offsets[i + 1] = (uint32_t)total;
    }
    if (total != raw_bytes - at) return fl_fail(err, FL_CORRUPT, "detok: the lengths of the ids sum to %llu, %zu bytes are there", (unsigned long long)total, raw_bytes - at);
    if (total > BLOB_BYTES_MAX) return fl_fail(err, FL_CORRUPT, "detok: %llu bytes of tokens are more than the %u of a table", (unsigned long long)total, BLOB_BYTES_MAX);
    memcpy(table->blob, raw + at, (size_t)total);
    return FL_OK;
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

fl_status fl_detok_bytes(const fl_detok *table, const int32_t *ids, size_t n_ids, uint8_t **out, size_t *n_bytes, fl_err *err)
{
    size_t total = 0, n;
    for (size_t i = 0; i < n_ids; i++) {
        fl_detok_token(table, ids[i], true, &n);
        total += n;
    }
    uint8_t *bytes = malloc(total + 1), *end = bytes;
    if (!bytes) return fl_fail(err, FL_FULL, "detok: no memory for %zu bytes of text", total);
    for (size_t i = 0; i < n_ids; i++) {
        const uint8_t *token = fl_detok_token(table, ids[i], true, &n);
        memcpy(end, token, n);
        end += n;
    }
    *out = bytes;
    *n_bytes = total;
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

bool fl_utf8_valid(const uint8_t *bytes, size_t n_bytes)
{
    bool good = true;
    for (size_t at = 0; at < n_bytes && good;) at += fl_utf8_step(bytes + at, n_bytes - at, &good);
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
