#include "proto/token_block.h"

#include <lz4.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"

#define TOKEN_MAGIC 0x31425454u                          /* "TTB1" */
#define FLOAT_MAGIC 0x31424654u                          /* "TFB1" */
#define VERSION 1
#define FLAG_LZ4 1
#define SUMMED_HEADER_BYTES 24
#define COUNT_MAX (LZ4_MAX_INPUT_SIZE / FL_VARINT_BYTES_MAX)
#define CHECK_ROOM_BYTES 16384                          /* of a block that is only checked, on the stack */
#define LZ4_RATIO_MAX 255                                /* one more byte of a length adds at most 255 bytes of output */

static uint64_t block_checksum(const uint8_t *header, const uint8_t *packed, size_t packed_bytes)
{
    return fl_checksum(0, (fl_bytes[]){ { header, SUMMED_HEADER_BYTES }, { packed, packed_bytes } }, 2);
}

/* ---- encode ---- */

/* Header and packed bytes from the raw ones. LZ4 is used only where it is smaller than the raw bytes, whatever room `out`
 * has, so the bytes are a function of the entries. */
static size_t pack_block(uint8_t *out, uint32_t magic, size_t count, const uint8_t *raw, size_t raw_bytes)
{
    uint8_t *packed = out + FL_BLOCK_HEADER_BYTES;
    int lz4_bytes = raw_bytes > 1 ? LZ4_compress_default((const char *)raw, (char *)packed, (int)raw_bytes, (int)raw_bytes - 1) : 0;
    size_t packed_bytes = lz4_bytes > 0 ? (size_t)lz4_bytes : raw_bytes;
    if (lz4_bytes <= 0 && raw_bytes) memcpy(packed, raw, raw_bytes);
    fl_put_u32(out, magic);
    fl_put_u16(out + 4, VERSION);
    fl_put_u16(out + 6, lz4_bytes > 0 ? FLAG_LZ4 : 0);
    fl_put_u32(out + 8, (uint32_t)count);
    fl_put_u32(out + 12, (uint32_t)raw_bytes);
    fl_put_u32(out + 16, (uint32_t)packed_bytes);
    fl_put_u32(out + 20, 0);
    fl_put_u64(out + SUMMED_HEADER_BYTES, block_checksum(out, packed, packed_bytes));
    return FL_BLOCK_HEADER_BYTES + packed_bytes;
}

size_t fl_token_block_bound(size_t n)
{
    return FL_BLOCK_HEADER_BYTES + n * FL_VARINT_BYTES_MAX;
}

size_t fl_float_block_bound(size_t n)
{
    return FL_BLOCK_HEADER_BYTES + n * sizeof(float);
}

static fl_status check_room(size_t capacity, size_t n, size_t bound, fl_err *err)
{
    if (n > COUNT_MAX) return fl_fail(err, FL_INVALID, "block: %zu entries are more than the %d a block may hold", n, COUNT_MAX);
    if (capacity < bound) return fl_fail(err, FL_INVALID, "block: room for %zu bytes, %zu entries may need %zu", capacity, n, bound);
    return FL_OK;
}

fl_status fl_token_block_encode(uint8_t *out, size_t capacity, size_t *out_bytes, const int32_t *ids, size_t n, fl_err *err)
{
    fl_status st = check_room(capacity, n, fl_token_block_bound(n), err);
    if (st != FL_OK) return st;
    uint8_t *raw = malloc(n * FL_VARINT_BYTES_MAX + 1), *end = raw;
    if (!raw) return fl_fail(err, FL_FULL, "token block: no memory for %zu ids", n);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0) { st = fl_fail(err, FL_INVALID, "token block: id %d at %zu is negative", ids[i], i); goto done; }
        end = fl_put_varint(end, (uint32_t)ids[i]);
    }
    *out_bytes = pack_block(out, TOKEN_MAGIC, n, raw, (size_t)(end - raw));
done:
    free(raw);
    return st;
}

fl_status fl_float_block_encode(uint8_t *out, size_t capacity, size_t *out_bytes, const float *values, size_t n, fl_err *err)
{
    fl_status st = check_room(capacity, n, fl_float_block_bound(n), err);
    if (st != FL_OK) return st;
    uint8_t *planes = malloc(n * sizeof(float) + 1);
    if (!planes) return fl_fail(err, FL_FULL, "float block: no memory for %zu values", n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        for (size_t plane = 0; plane < 4; plane++) planes[plane * n + i] = (uint8_t)(bits >> (8 * plane));
    }
    *out_bytes = pack_block(out, FLOAT_MAGIC, n, planes, n * sizeof(float));
    free(planes);
    return FL_OK;
}

/* ---- decode ---- */

typedef struct { uint32_t count, raw_bytes, packed_bytes; bool lz4; const uint8_t *packed; } block;

/* Everything that can be known without memory: magic, version, sizes against each other, the limit and the bytes there, checksum. */
static fl_status open_block(block *b, const char *name, uint32_t magic, size_t entry_min, size_t entry_max, const uint8_t *data, size_t n_bytes,
                            size_t count_max, fl_err *err)
{
    if (n_bytes < FL_BLOCK_HEADER_BYTES) return fl_fail(err, FL_CORRUPT, "%s block: %zu bytes are less than a header", name, n_bytes);
    if (fl_get_u32(data) != magic) return fl_fail(err, FL_CORRUPT, "%s block: these bytes do not begin one", name);
    if (fl_get_u16(data + 4) != VERSION)
        return fl_fail(err, FL_CORRUPT, "%s block: version %u, this program reads %d", name, fl_get_u16(data + 4), VERSION);
    uint16_t flags = fl_get_u16(data + 6);
    *b = (block){ fl_get_u32(data + 8), fl_get_u32(data + 12), fl_get_u32(data + 16), flags == FLAG_LZ4, data + FL_BLOCK_HEADER_BYTES };
    if (flags & ~FLAG_LZ4 || fl_get_u32(data + 20) != 0) return fl_fail(err, FL_CORRUPT, "%s block: reserved header bits are set", name);
    if (b->count > count_max) return fl_fail(err, FL_CORRUPT, "%s block: %u entries, at most %zu belong here", name, b->count, count_max);
    if (b->count > COUNT_MAX || b->raw_bytes < entry_min * b->count || b->raw_bytes > entry_max * b->count)
        return fl_fail(err, FL_CORRUPT, "%s block: %u entries cannot have %u bytes", name, b->count, b->raw_bytes);
    if (b->packed_bytes > n_bytes - FL_BLOCK_HEADER_BYTES)
        return fl_fail(err, FL_CORRUPT, "%s block: %u bytes announced, %zu left", name, b->packed_bytes, n_bytes - FL_BLOCK_HEADER_BYTES);
    bool sizes_fit = b->lz4 ? b->packed_bytes < b->raw_bytes && b->raw_bytes <= (uint64_t)b->packed_bytes * LZ4_RATIO_MAX : b->packed_bytes == b->raw_bytes;
    if (!sizes_fit) return fl_fail(err, FL_CORRUPT, "%s block: %u bytes cannot unpack to %u", name, b->packed_bytes, b->raw_bytes);
    if (block_checksum(data, b->packed, b->packed_bytes) != fl_get_u64(data + SUMMED_HEADER_BYTES))
        return fl_fail(err, FL_CORRUPT, "%s block of %u entries: wrong checksum", name, b->count);
    return FL_OK;
}

/* The raw bytes: where they are stored, or unpacked into *owned (freed by the caller). */
static fl_status block_raw(const block *b, const char *name, const uint8_t **raw, uint8_t **owned, fl_err *err)
{
    *raw = b->packed;
    if (!b->lz4) return FL_OK;
    *owned = malloc(b->raw_bytes);
    if (!*owned) return fl_fail(err, FL_FULL, "%s block: no memory for %u bytes", name, b->raw_bytes);
    int n = LZ4_decompress_safe((const char *)b->packed, (char *)*owned, (int)b->packed_bytes, (int)b->raw_bytes);
    if (n < 0 || (uint32_t)n != b->raw_bytes) return fl_fail(err, FL_CORRUPT, "%s block: the LZ4 data is broken", name);
    *raw = *owned;
    return FL_OK;
}

/* fl_get_varint. The ids of well-formed text are mostly of one to three bytes: those are read without a loop. */
static inline uint64_t next_id(const uint8_t *raw, size_t n_bytes, size_t *at)
{
    const uint8_t *b = raw + *at;
    if (n_bytes - *at < 3) return fl_get_varint(raw, n_bytes, at);
    if (b[0] < 0x80) {
        *at += 1;
        return b[0];
    }
    if (b[1] < 0x80) {
        *at += 2;
        return b[1] ? (b[0] & 0x7Fu) | (uint32_t)b[1] << 7 : FL_NO_VARINT;
    }
    if (b[2] < 0x80) {
        *at += 3;
        return b[2] ? (b[0] & 0x7Fu) | (b[1] & 0x7Fu) << 7 | (uint32_t)b[2] << 14 : FL_NO_VARINT;
    }
    return fl_get_varint(raw, n_bytes, at);
}

fl_status fl_token_block_decode(int32_t **out, size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, fl_err *err)
{
    block b;
    const uint8_t *raw;
    uint8_t *owned = NULL;
    int32_t *ids = NULL;
    size_t at = 0;
    fl_status st = open_block(&b, "token", TOKEN_MAGIC, 1, FL_VARINT_BYTES_MAX, data, n_bytes, count_max, err);
    if (st != FL_OK) return st;
    if ((st = block_raw(&b, "token", &raw, &owned, err)) != FL_OK) goto done;
    if (b.count && !(ids = malloc(b.count * sizeof *ids))) { st = fl_fail(err, FL_FULL, "token block: no memory for %u ids", b.count); goto done; }
    for (size_t i = 0; i < b.count; i++) {
        uint64_t id = next_id(raw, b.raw_bytes, &at);
        if (id > INT32_MAX) { st = fl_fail(err, FL_CORRUPT, "token block: id %zu is no id", i); goto done; }
        ids[i] = (int32_t)id;
    }
    if (at != b.raw_bytes) { st = fl_fail(err, FL_CORRUPT, "token block: bytes are left after the last id"); goto done; }
    *out = ids;
    ids = NULL;
    *n = b.count;
    *used = FL_BLOCK_HEADER_BYTES + (size_t)b.packed_bytes;
done:
    free(owned);
    free(ids);
    return st;
}

/* False: a number that is not in its shortest form, or not below n_ids. */
static bool ids_are_good(const uint8_t *raw, size_t n_bytes, size_t count, uint32_t n_ids)
{
    size_t at = 0;
    for (size_t i = 0; i < count; i++)
        if (next_id(raw, n_bytes, &at) >= n_ids) return false;
    return at == n_bytes;
}

fl_status fl_token_block_check(size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, uint32_t n_ids, fl_err *err)
{
    block b;
    uint8_t room[CHECK_ROOM_BYTES], *owned = NULL;
    const uint8_t *raw;
    fl_status st = open_block(&b, "token", TOKEN_MAGIC, 1, FL_VARINT_BYTES_MAX, data, n_bytes, count_max, err);
    if (st != FL_OK) return st;
    if (b.lz4 && b.raw_bytes <= sizeof room) {
        int got = LZ4_decompress_safe((const char *)b.packed, (char *)room, (int)b.packed_bytes, (int)b.raw_bytes);
        if (got < 0 || (uint32_t)got != b.raw_bytes) return fl_fail(err, FL_CORRUPT, "token block: the LZ4 data is broken");
        raw = room;
    } else if ((st = block_raw(&b, "token", &raw, &owned, err)) != FL_OK) {
        free(owned);
        return st;
    }
    bool good = ids_are_good(raw, b.raw_bytes, b.count, n_ids);
    free(owned);
    if (!good) return fl_fail(err, FL_CORRUPT, "token block: an id is malformed or not below %u", n_ids);
    *n = b.count;
    *used = FL_BLOCK_HEADER_BYTES + (size_t)b.packed_bytes;
    return FL_OK;
}

fl_status fl_float_block_decode(float **out, size_t *n, size_t *used, const uint8_t *data, size_t n_bytes, size_t count_max, fl_err *err)
{
    block b;
    const uint8_t *raw;
    uint8_t *owned = NULL;
    float *values = NULL;
    fl_status st = open_block(&b, "float", FLOAT_MAGIC, sizeof(float), sizeof(float), data, n_bytes, count_max, err);
    if (st != FL_OK) return st;
    if ((st = block_raw(&b, "float", &raw, &owned, err)) != FL_OK) goto done;
    if (b.count && !(values = malloc(b.count * sizeof *values))) { st = fl_fail(err, FL_FULL, "float block: no memory for %u values", b.count); goto done; }
    for (size_t i = 0; i < b.count; i++) {
        uint32_t bits = 0;
        for (size_t plane = 0; plane < 4; plane++) bits |= (uint32_t)raw[plane * b.count + i] << (8 * plane);
        memcpy(&values[i], &bits, sizeof bits);
    }
    *out = values;
    values = NULL;
    *n = b.count;
    *used = FL_BLOCK_HEADER_BYTES + (size_t)b.packed_bytes;
done:
    free(owned);
    free(values);
    return st;
}
