/* bytes.h - little-endian integers in byte arrays: the one form of numbers in our headers on the wire and on disk.
 * Threads  plain functions; any alignment. */
#ifndef FL_BYTES_H
#define FL_BYTES_H

#include <stdint.h>

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
