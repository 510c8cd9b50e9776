/* quant_block.h - each quantized block taken apart: whole numbers, and a scale and min for each group of them. quant.c makes values of it, the CPU kernels
 * products; it is compiled with each, so that each may use the instructions it has.
 * A block is  q [values], each 0 .. 255, in the order of the row; scale and min [values / group]: value = scale * (q - offset) where the format has an offset,
 *             else scale * q + min. Whole numbers and single fp32 products only, so every compiler gives the same bits. */
#ifndef KERNELS_QUANT_BLOCK_H
#define KERNELS_QUANT_BLOCK_H

#include <math.h>
#include <string.h>
#include "kernels/quant.h"

#define QUANT_VALUES_MAX 256             /* of a block */
#define QUANT_GROUPS_MAX 16
#define BLOCK_INLINE static inline __attribute__((always_inline, unused))

typedef struct {
    int16_t values, bytes;               /* of a block */
    int8_t group;                        /* values that share a scale: 32 or 16 */
    int8_t offset_bits;                  /* offset is 1 << offset_bits; -1: the format has a min */
    uint8_t q_most;                      /* no q is greater */
} quant_format;

static const quant_format quant_formats[DTYPE_COUNT] __attribute__((unused)) = {
    [DTYPE_Q8_0]   = {  32,  34, 32,  7, 255 },      /* d f16; q - 128 as int8 */
    [DTYPE_Q4_0]   = {  32,  18, 32,  3,  15 },      /* d f16; 16 bytes: value i low, value i + 16 high */
    [DTYPE_Q4_1]   = {  32,  20, 32, -1,  15 },      /* d, m f16; as q4_0 */
    [DTYPE_Q5_0]   = {  32,  22, 32,  4,  31 },      /* d f16; 32 fifth bits; as q4_0 */
    [DTYPE_Q5_1]   = {  32,  24, 32, -1,  31 },      /* d, m f16; 32 fifth bits; as q4_0 */
    [DTYPE_Q2_K]   = { 256,  84, 16, -1,   3 },      /* 16 bytes of scale (low) and min (high); 64 of 2-bit values; d, dmin f16 */
    [DTYPE_Q3_K]   = { 256, 110, 16,  2,   7 },      /* 32 bytes of third bits; 64 of 2-bit values; 12 of 6-bit scales; d f16 */
    [DTYPE_Q4_K]   = { 256, 144, 32, -1,  15 },      /* d, dmin f16; 12 bytes of 6-bit scales and mins; 128 of 4-bit values */
    [DTYPE_Q5_K]   = { 256, 176, 32, -1,  31 },      /* d, dmin f16; 12 bytes of scales and mins; 32 of fifth bits; 128 of 4-bit values */
    [DTYPE_Q6_K]   = { 256, 210, 16,  5,  63 },      /* 128 bytes of low 4 bits; 64 of high 2 bits; 16 scales int8; d f16 */
    [DTYPE_IQ4_NL] = {  32,  18, 32,  7, 255 },      /* as q4_0, each number the index of one of 16 values */
    [DTYPE_IQ4_XS] = { 256, 136, 32,  7, 255 },      /* d f16; scale bits; 128 bytes of indices */
    [DTYPE_MXFP4]  = {  32,  17, 32,  4,  28 },      /* exponent of the scale; as q4_0, each number an e2m1 */
    [DTYPE_NVFP4]  = {  64,  36, 16,  4,  28 },      /* 4 scales e4m3 without sign; 4 times 8 bytes: value i low, value i + 8 high */
};

/* Doubled e2m1 values + 16; the 16 values of iq4 + 128. */
static const uint8_t quant_e2m1[16] __attribute__((unused)) = { 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4 };
static const uint8_t quant_iq4[16] __attribute__((unused)) = { 1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241 };

BLOCK_INLINE float quant_f32_of_bits(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }
BLOCK_INLINE float quant_f16(const uint8_t *p)
{
    uint32_t h = (uint32_t)p[0] | (uint32_t)p[1] << 8, sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest < 0x0400u) return h & 0x8000u ? -((float)rest * 0x1p-24f) : (float)rest * 0x1p-24f;
    if (rest >= 0x7c00u) return quant_f32_of_bits(sign | 0x7f800000u | rest << 13);
    return quant_f32_of_bits(sign | ((rest << 13) + 0x38000000u));
}

/* Half of 2^(e - 127): mxfp4's values are doubled. */
BLOCK_INLINE float quant_e8m0_half(uint8_t e) { return quant_f32_of_bits(e < 2 ? 0x00200000u << e : (uint32_t)(e - 1) << 23); }

/* Half of an e4m3 without sign; 0 and 0x7f are 0. Bit 7 is no part of it but for telling 0 and 0x7f apart. */
BLOCK_INLINE float quant_ue4m3_half(uint8_t x)
{
    uint32_t e = x >> 3 & 15u, m = x & 7u;
    if (x == 0 || x == 0x7f) return 0.0f;
    return e == 0 ? (float)m * 0x1p-10f : quant_f32_of_bits((e + 119u) << 23 | m << 20);
}

/* n bytes into 2 n values: low nibbles, then high nibbles. */
BLOCK_INLINE void quant_nibbles(uint8_t *q, const uint8_t *p, const int n)
{
    for (int i = 0; i < n; i++) { q[i] = p[i] & 15; q[i + n] = p[i] >> 4; }
}
BLOCK_INLINE void quant_fifth_bits(uint8_t *q, const uint8_t *p)
{
    uint32_t bits;
    memcpy(&bits, p, sizeof bits);
    for (int i = 0; i < 32; i++) q[i] = (uint8_t)(q[i] | (bits >> i & 1u) << 4);
}
BLOCK_INLINE void quant_look_up(uint8_t *q, const int n, const uint8_t *table)
{
    for (int i = 0; i < n; i++) q[i] = table[q[i]];
}

/* The eight 6-bit scales and mins of q4_k and q5_k: four in the low bits of bytes 0-3 and 4-7; of the others four bits in bytes 8-11, two above the first four. */
BLOCK_INLINE void quant_k_scales(float *scale, float *min, const uint8_t *p)
{
    float d = quant_f16(p), dmin = quant_f16(p + 2);
    const uint8_t *s = p + 4;
    for (int i = 0; i < 4; i++) {
        scale[i] = d * (float)(s[i] & 63);
        min[i] = -(dmin * (float)(s[i + 4] & 63));
        scale[i + 4] = d * (float)((s[i + 8] & 15) | (s[i] >> 2 & 0x30));
        min[i + 4] = -(dmin * (float)(s[i + 8] >> 4 | (s[i + 4] >> 2 & 0x30)));
    }
}

BLOCK_INLINE void quant_q2_k(uint8_t *q, float *scale, float *min, const uint8_t *p)
{
    float d = quant_f16(p + 80), dmin = quant_f16(p + 82);
    for (int i = 0; i < 16; i++) {
        scale[i] = d * (float)(p[i] & 15);
        min[i] = -(dmin * (float)(p[i] >> 4));
    }
    for (int half = 0; half < 2; half++)
        for (int part = 0; part < 4; part++)
            for (int i = 0; i < 32; i++) q[half * 128 + part * 32 + i] = p[16 + half * 32 + i] >> (2 * part) & 3;
}

BLOCK_INLINE void quant_q3_k(uint8_t *q, float *scale, const uint8_t *p)
{
    const uint8_t *s = p + 96;
    float d = quant_f16(p + 108);
    for (int i = 0; i < 16; i++) {
        int low = i < 8 ? s[i] & 15 : s[i - 8] >> 4, high = s[8 + i % 4] >> (2 * (i / 4)) & 3;
        scale[i] = d * (float)((low | high << 4) - 32);
    }
    for (int half = 0; half < 2; half++)
        for (int part = 0; part < 4; part++)
            for (int i = 0; i < 32; i++)
                q[half * 128 + part * 32 + i] = (uint8_t)((p[32 + half * 32 + i] >> (2 * part) & 3) | (p[i] >> (half * 4 + part) & 1) << 2);
}

BLOCK_INLINE void quant_q4_k(uint8_t *q, const uint8_t *p)
{
    for (int part = 0; part < 4; part++) quant_nibbles(q + part * 64, p + 16 + part * 32, 32);
}

BLOCK_INLINE void quant_q5_k(uint8_t *q, const uint8_t *p)
{
    for (int part = 0; part < 4; part++) quant_nibbles(q + part * 64, p + 48 + part * 32, 32);
    for (int part = 0; part < 8; part++)
        for (int i = 0; i < 32; i++) q[part * 32 + i] = (uint8_t)(q[part * 32 + i] | (p[16 + i] >> part & 1) << 4);
}

BLOCK_INLINE void quant_q6_k(uint8_t *q, float *scale, const uint8_t *p)
{
    float d = quant_f16(p + 208);
    for (int i = 0; i < 16; i++) scale[i] = d * (float)(int8_t)p[192 + i];
    for (int half = 0; half < 2; half++) {
        quant_nibbles(q + half * 128, p + half * 64, 64);
        for (int part = 0; part < 4; part++)
            for (int i = 0; i < 32; i++)
                q[half * 128 + part * 32 + i] = (uint8_t)(q[half * 128 + part * 32 + i] | (p[128 + half * 32 + i] >> (2 * part) & 3) << 4);
    }
}

BLOCK_INLINE void quant_iq4_xs(uint8_t *q, float *scale, const uint8_t *p)
{
    float d = quant_f16(p);
    for (int g = 0; g < 8; g++) {
        int low = p[4 + g / 2] >> (4 * (g & 1)) & 15, high = (p[2] | p[3] << 8) >> (2 * g) & 3;
        scale[g] = d * (float)((low | high << 4) - 32);
        quant_nibbles(q + g * 32, p + 8 + g * 16, 16);
    }
    quant_look_up(q, 256, quant_iq4);
}

BLOCK_INLINE void quant_nvfp4(uint8_t *q, float *scale, const uint8_t *p)
{
    for (int g = 0; g < 4; g++) {
        scale[g] = quant_ue4m3_half(p[g]);
        quant_nibbles(q + g * 16, p + 4 + g * 8, 8);
    }
    quant_look_up(q, 64, quant_e2m1);
}

/* Take one block apart; `type` known at compile time where speed counts. min is written where the format has one. */
BLOCK_INLINE void quant_take(uint8_t *q, float *scale, float *min, const dtype type, const uint8_t *p)
{
    switch (type) {
    case DTYPE_Q8_0:
        scale[0] = quant_f16(p);
        for (int i = 0; i < 32; i++) q[i] = p[2 + i] ^ 0x80;
        break;
    case DTYPE_Q4_0: scale[0] = quant_f16(p); quant_nibbles(q, p + 2, 16); break;
    case DTYPE_Q4_1: scale[0] = quant_f16(p); min[0] = quant_f16(p + 2); quant_nibbles(q, p + 4, 16); break;
    case DTYPE_Q5_0: scale[0] = quant_f16(p); quant_nibbles(q, p + 6, 16); quant_fifth_bits(q, p + 2); break;
    case DTYPE_Q5_1: scale[0] = quant_f16(p); min[0] = quant_f16(p + 2); quant_nibbles(q, p + 8, 16); quant_fifth_bits(q, p + 4); break;
    case DTYPE_Q2_K: quant_q2_k(q, scale, min, p); break;
    case DTYPE_Q3_K: quant_q3_k(q, scale, p); break;
    case DTYPE_Q4_K: quant_k_scales(scale, min, p); quant_q4_k(q, p); break;
    case DTYPE_Q5_K: quant_k_scales(scale, min, p); quant_q5_k(q, p); break;
    case DTYPE_Q6_K: quant_q6_k(q, scale, p); break;
    case DTYPE_IQ4_NL: scale[0] = quant_f16(p); quant_nibbles(q, p + 2, 16); quant_look_up(q, 32, quant_iq4); break;
    case DTYPE_IQ4_XS: quant_iq4_xs(q, scale, p); break;
    case DTYPE_MXFP4: scale[0] = quant_e8m0_half(p[0]); quant_nibbles(q, p + 1, 16); quant_look_up(q, 32, quant_e2m1); break;
    case DTYPE_NVFP4: quant_nvfp4(q, scale, p); break;
    case DTYPE_F32: case DTYPE_BF16: case DTYPE_F16: case DTYPE_COUNT: FL_ASSERT(dtype_is_quantized(type));
    }
}

#endif
