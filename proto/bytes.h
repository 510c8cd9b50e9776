/* bytes.h - pieces of memory, their checksum, little-endian integers and varints: what all our headers on the wire and on disk are made of.
 * Threads  plain functions; any alignment. */
#ifndef FL_BYTES_H
#define FL_BYTES_H

#include <stddef.h>
#include <stdint.h>

typedef struct { const void *data; size_t bytes; } fl_bytes;

/* XXH3-64 with `seed` over the pieces as if they lay back to back. */
uint64_t fl_checksum(uint64_t seed, const fl_bytes *pieces, int n_pieces);

/* As a string of at most capacity - 1 bytes, cut where it is longer. */
void fl_bytes_text(char *out, size_t capacity, fl_bytes bytes);

/* LEB128 of 32 bits: seven bits a byte, low ones first, the top bit set on all but the last byte. put returns the end of what
 * it wrote; get takes only the shortest form at data[*at .. n_bytes), so a number has one encoding, and gives FL_NO_VARINT otherwise. */
#define FL_VARINT_BYTES_MAX 5
#define FL_NO_VARINT UINT64_MAX
uint8_t *fl_put_varint(uint8_t *out, uint32_t v);
uint64_t fl_get_varint(const uint8_t *data, size_t n_bytes, size_t *at);

static inline void fl_put_u16(uint8_t *out, uint16_t v)
{
    out[0] = (uint8_t)v;
    out[1] = (uint8_t)(v >> 8);
}

static inline void fl_put_u32(uint8_t *out, uint32_t v)
{
    for (int i = 0; i < 4; i++) out[i] = (uint8_t)(v >> (8 * i));
}

static inline void fl_put_u64(uint8_t *out, uint64_t v)
{
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(v >> (8 * i));
}

static inline uint16_t fl_get_u16(const uint8_t *in)
{
    return (uint16_t)(in[0] | in[1] << 8);
}

static inline uint32_t fl_get_u32(const uint8_t *in)
{
    uint32_t v = 0;
    for (int i = 0; i < 4; i++) v |= (uint32_t)in[i] << (8 * i);
    return v;
}

static inline uint64_t fl_get_u64(const uint8_t *in)
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) v |= (uint64_t)in[i] << (8 * i);
    return v;
}

#endif
