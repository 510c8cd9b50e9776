#include "proto/bytes.h"

#define XXH_STATIC_LINKING_ONLY                          /* the state on the stack: no allocation a checksum */
#include <string.h>
#include <xxhash.h>

uint64_t fl_checksum(uint64_t seed, const fl_bytes *pieces, int n_pieces)
{
    XXH3_state_t state;
    XXH3_INITSTATE(&state);
    XXH3_64bits_reset_withSeed(&state, seed);
    for (int i = 0; i < n_pieces; i++)
        if (pieces[i].bytes) XXH3_64bits_update(&state, pieces[i].data, pieces[i].bytes);
    return XXH3_64bits_digest(&state);
}

void fl_bytes_text(char *out, size_t capacity, fl_bytes bytes)
{
    size_t n = bytes.bytes < capacity - 1 ? bytes.bytes : capacity - 1;
    if (n) memcpy(out, bytes.data, n);
    out[n] = '\0';
}

uint8_t *fl_put_varint(uint8_t *out, uint32_t v)
{
    for (; v >= 0x80; v >>= 7) *out++ = (uint8_t)(v | 0x80);
    *out++ = (uint8_t)v;
    return out;
}

uint64_t fl_get_varint(const uint8_t *data, size_t n_bytes, size_t *at)
{
    uint64_t v = 0;
    for (int shift = 0; shift < 7 * FL_VARINT_BYTES_MAX && *at < n_bytes; shift += 7) {
        uint8_t byte = data[(*at)++];
        v |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) return (byte == 0 && shift > 0) || v > UINT32_MAX ? FL_NO_VARINT : v;
    }
    return FL_NO_VARINT;
}
