/* lanes.h - f32x16: sixteen fp32 lanes, the one type the CPU kernels are written in.
 * Forms    LANES_AVX512 one register; LANES_AVX2 two; LANES_SCALAR an array. Each operation is one IEEE operation a lane
 *          (fused where it says fma), so the three forms give the same bits. LANES_ONE is the scalar form with a single
 *          lane: it makes fl_expf and fl_tanhf out of the same text as the lanes' own.
 * NaN      stays NaN in every form; its sign and payload are not promised.
 * Tails    f_take, f_take_w, f_put move the first `left` lanes when left < 16; missing lanes read as +0 and are not written. */
#ifndef KERNELS_CPU_LANES_H
#define KERNELS_CPU_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>
#include "kernels/ops.h"

#define INLINE static inline __attribute__((always_inline, unused))

INLINE float    float_of_bits(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }
INLINE uint32_t bits_of_float(float f) { uint32_t u; memcpy(&u, &f, sizeof u); return u; }

/* Exact: every f16 is an fp32. A subnormal is its integer times 2^-24. */
INLINE float float_of_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
    if (rest < 0x0400u) return float_of_bits(sign | bits_of_float((float)rest * 0x1p-24f));
    if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | rest << 13);
    return float_of_bits(sign | ((rest << 13) + 0x38000000u));
}

#if defined(LANES_AVX512)
#include <immintrin.h>
#define LANES 16
#define LANES_FORM(name) name##_avx512
typedef __m512 f32x16;
typedef __m512i u32x16;
typedef __mmask16 m16;

INLINE __mmask16 mask_first(int32_t left) { return (__mmask16)((1u << left) - 1u); }   /* 0 <= left < 16 */

INLINE f32x16 f_set(float v) { return _mm512_set1_ps(v); }
INLINE f32x16 f_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void   f_store(float *p, f32x16 v) { _mm512_storeu_ps(p, v); }
INLINE f32x16 f_load_first(const float *p, int32_t left) { return _mm512_maskz_loadu_ps(mask_first(left), p); }
INLINE void   f_store_first(float *p, f32x16 v, int32_t left) { _mm512_mask_storeu_ps(p, mask_first(left), v); }
INLINE f32x16 f_keep(f32x16 v) { return v; }
INLINE f32x16 f_add(f32x16 a, f32x16 b) { return _mm512_add_ps(a, b); }
INLINE f32x16 f_sub(f32x16 a, f32x16 b) { return _mm512_sub_ps(a, b); }
INLINE f32x16 f_mul(f32x16 a, f32x16 b) { return _mm512_mul_ps(a, b); }
INLINE f32x16 f_div(f32x16 a, f32x16 b) { return _mm512_div_ps(a, b); }
INLINE f32x16 f_fma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fmadd_ps(a, b, c); }     /* a b + c */
INLINE f32x16 f_fnma(f32x16 a, f32x16 b, f32x16 c) { return _mm512_fnmadd_ps(a, b, c); }   /* c - a b */
INLINE f32x16 f_max(f32x16 a, f32x16 b) { return _mm512_max_ps(a, b); }                    /* a > b ? a : b */
INLINE f32x16 f_min(f32x16 a, f32x16 b) { return _mm512_min_ps(a, b); }                    /* a < b ? a : b */
INLINE m16    f_less(f32x16 a, f32x16 b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE f32x16 f_pick(m16 m, f32x16 a, f32x16 b) { return _mm512_mask_blend_ps(m, b, a); }  /* m ? a : b */
INLINE u32x16 u_of(f32x16 v) { return _mm512_castps_si512(v); }
INLINE f32x16 f_of(u32x16 v) { return _mm512_castsi512_ps(v); }
INLINE u32x16 u_set(uint32_t v) { return _mm512_set1_epi32((int)v); }
INLINE u32x16 u_add(u32x16 a, u32x16 b) { return _mm512_add_epi32(a, b); }
INLINE u32x16 u_sub(u32x16 a, u32x16 b) { return _mm512_sub_epi32(a, b); }
INLINE u32x16 u_and(u32x16 a, u32x16 b) { return _mm512_and_si512(a, b); }
INLINE u32x16 u_or(u32x16 a, u32x16 b) { return _mm512_or_si512(a, b); }
INLINE u32x16 u_left23(u32x16 a) { return _mm512_slli_epi32(a, 23); }
INLINE u32x16 u_half(u32x16 a) { return _mm512_srai_epi32(a, 1); }                         /* signed a >> 1 */

INLINE f32x16 f_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE f32x16 f_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

INLINE f32x16 f_load_f32(const void *p) { return _mm512_loadu_ps(p); }

/* The tree of f_sum. Blocks are the four quarters of a register. */
INLINE f32x16 add_halves(f32x16 a, f32x16 b)     /* blocks a0+a2 a1+a3 b0+b2 b1+b3 */
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
INLINE f32x16 add_blocks(f32x16 a, f32x16 b)     /* blocks a0+a1 a2+a3 b0+b1 b2+b3 */
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}
INLINE f32x16 add_pairs_2(f32x16 a, f32x16 b)    /* in each block a0+a2 a1+a3 b0+b2 b1+b3 */
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x44), _mm512_shuffle_ps(a, b, 0xee));
}
INLINE f32x16 add_pairs_1(f32x16 a, f32x16 b)    /* in each block a0+a1 a2+a3 b0+b1 b2+b3 */
{
    return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}
INLINE float f_sum(f32x16 v)
{
    __m256 a = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
INLINE f32x16 four_sums(f32x16 a, f32x16 b, f32x16 c, f32x16 d) { return add_blocks(add_halves(a, b), add_halves(c, d)); }   /* block i: the four sums of +4 of i */
#define LANES_SUM_4
INLINE void f_sum_4(float *out, const f32x16 *v)
{
    f32x16 s = four_sums(v[0], v[1], v[2], v[3]);
    s = add_pairs_2(s, s);
    s = add_pairs_1(s, s);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, s)));     /* the storing form is a slow routine on Zen 4 */
}
#define LANES_SUM_16
INLINE void f_sum_16(float *out, const f32x16 *v)
{
    f32x16 a = add_pairs_2(four_sums(v[0], v[4], v[8], v[12]), four_sums(v[1], v[5], v[9], v[13]));
    f32x16 b = add_pairs_2(four_sums(v[2], v[6], v[10], v[14]), four_sums(v[3], v[7], v[11], v[15]));
    f_store(out, add_pairs_1(a, b));
}

#elif defined(LANES_AVX2)
#include <immintrin.h>
#define LANES 16
#define LANES_FORM(name) name##_avx2
typedef struct { __m256 a, b; } f32x16;        /* lanes 0-7, 8-15 */
typedef struct { __m256i a, b; } u32x16;
typedef f32x16 m16;

/* From lanes_mask + 16 - left, the first `left` words are set. */
static const int32_t lanes_mask[32] = { -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1 };
INLINE __m256i mask_a(int32_t left) { return _mm256_loadu_si256((const __m256i *)(lanes_mask + 16 - left)); }
INLINE __m256i mask_b(int32_t left) { return _mm256_loadu_si256((const __m256i *)(lanes_mask + 24 - left)); }

INLINE f32x16 f_set(float v) { return (f32x16){ _mm256_set1_ps(v), _mm256_set1_ps(v) }; }
INLINE f32x16 f_load(const float *p) { return (f32x16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) }; }
INLINE void   f_store(float *p, f32x16 v) { _mm256_storeu_ps(p, v.a); _mm256_storeu_ps(p + 8, v.b); }
INLINE f32x16 f_load_first(const float *p, int32_t left)
{
    return (f32x16){ _mm256_maskload_ps(p, mask_a(left)), left > 8 ? _mm256_maskload_ps(p + 8, mask_b(left)) : _mm256_setzero_ps() };
}
INLINE void f_store_first(float *p, f32x16 v, int32_t left)
{
    _mm256_maskstore_ps(p, mask_a(left), v.a);
    if (left > 8) _mm256_maskstore_ps(p + 8, mask_b(left), v.b);
}
/* Keeps v in registers: it is worth more than the memory operand that a compiler would repeat for each use. */
INLINE f32x16 f_keep(f32x16 v) { __asm__("" : "+x"(v.a), "+x"(v.b)); return v; }
INLINE f32x16 f_add(f32x16 a, f32x16 b) { return (f32x16){ _mm256_add_ps(a.a, b.a), _mm256_add_ps(a.b, b.b) }; }
INLINE f32x16 f_sub(f32x16 a, f32x16 b) { return (f32x16){ _mm256_sub_ps(a.a, b.a), _mm256_sub_ps(a.b, b.b) }; }
INLINE f32x16 f_mul(f32x16 a, f32x16 b) { return (f32x16){ _mm256_mul_ps(a.a, b.a), _mm256_mul_ps(a.b, b.b) }; }
INLINE f32x16 f_div(f32x16 a, f32x16 b) { return (f32x16){ _mm256_div_ps(a.a, b.a), _mm256_div_ps(a.b, b.b) }; }
INLINE f32x16 f_fma(f32x16 a, f32x16 b, f32x16 c) { return (f32x16){ _mm256_fmadd_ps(a.a, b.a, c.a), _mm256_fmadd_ps(a.b, b.b, c.b) }; }
INLINE f32x16 f_fnma(f32x16 a, f32x16 b, f32x16 c) { return (f32x16){ _mm256_fnmadd_ps(a.a, b.a, c.a), _mm256_fnmadd_ps(a.b, b.b, c.b) }; }
INLINE f32x16 f_max(f32x16 a, f32x16 b) { return (f32x16){ _mm256_max_ps(a.a, b.a), _mm256_max_ps(a.b, b.b) }; }
INLINE f32x16 f_min(f32x16 a, f32x16 b) { return (f32x16){ _mm256_min_ps(a.a, b.a), _mm256_min_ps(a.b, b.b) }; }
INLINE m16    f_less(f32x16 a, f32x16 b) { return (m16){ _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ), _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ) }; }
INLINE f32x16 f_pick(m16 m, f32x16 a, f32x16 b) { return (f32x16){ _mm256_blendv_ps(b.a, a.a, m.a), _mm256_blendv_ps(b.b, a.b, m.b) }; }
INLINE u32x16 u_of(f32x16 v) { return (u32x16){ _mm256_castps_si256(v.a), _mm256_castps_si256(v.b) }; }
INLINE f32x16 f_of(u32x16 v) { return (f32x16){ _mm256_castsi256_ps(v.a), _mm256_castsi256_ps(v.b) }; }
INLINE u32x16 u_set(uint32_t v) { return (u32x16){ _mm256_set1_epi32((int)v), _mm256_set1_epi32((int)v) }; }
INLINE u32x16 u_add(u32x16 a, u32x16 b) { return (u32x16){ _mm256_add_epi32(a.a, b.a), _mm256_add_epi32(a.b, b.b) }; }
INLINE u32x16 u_sub(u32x16 a, u32x16 b) { return (u32x16){ _mm256_sub_epi32(a.a, b.a), _mm256_sub_epi32(a.b, b.b) }; }
INLINE u32x16 u_and(u32x16 a, u32x16 b) { return (u32x16){ _mm256_and_si256(a.a, b.a), _mm256_and_si256(a.b, b.b) }; }
INLINE u32x16 u_or(u32x16 a, u32x16 b) { return (u32x16){ _mm256_or_si256(a.a, b.a), _mm256_or_si256(a.b, b.b) }; }
INLINE u32x16 u_left23(u32x16 a) { return (u32x16){ _mm256_slli_epi32(a.a, 23), _mm256_slli_epi32(a.b, 23) }; }
INLINE u32x16 u_half(u32x16 a) { return (u32x16){ _mm256_srai_epi32(a.a, 1), _mm256_srai_epi32(a.b, 1) }; }

INLINE __m256 bf16_half(const void *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
INLINE f32x16 f_load_bf16(const void *p) { return (f32x16){ bf16_half(p), bf16_half((const char *)p + 16) }; }
INLINE f32x16 f_load_f16(const void *p)
{
    return (f32x16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                     _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)((const char *)p + 16))) };
}

INLINE f32x16 f_load_f32(const void *p) { return f_load(p); }

/* The tree of f_sum. */
INLINE float f_sum(f32x16 v)
{
    __m256 a = _mm256_add_ps(v.a, v.b);
    __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    b = _mm_add_ps(b, _mm_movehl_ps(b, b));
    return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
}
INLINE __m256 two_sums(f32x16 x, f32x16 y)       /* halves: the four sums of +4 of x, of y */
{
    __m256 a = _mm256_add_ps(x.a, x.b), b = _mm256_add_ps(y.a, y.b);
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
}
#define LANES_SUM_4
INLINE void f_sum_4(float *out, const f32x16 *v)
{
    __m256 a = two_sums(v[0], v[2]), b = two_sums(v[1], v[3]);
    __m256 c = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));      /* halves: 0 0 1 1, 2 2 3 3 */
    __m128 x = _mm256_castps256_ps128(c), y = _mm256_extractf128_ps(c, 1);
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(x, y, 0x88), _mm_shuffle_ps(x, y, 0xdd)));
}

#else                                                                /* LANES_SCALAR, LANES_ONE */
#if defined(LANES_ONE)
#define LANES 1
#else
#define LANES 16
#define LANES_FORM(name) name##_scalar
#endif
typedef struct { float v[LANES]; } f32x16;
typedef struct { uint32_t v[LANES]; } u32x16;
typedef struct { uint32_t v[LANES]; } m16;
#define LANES_EACH for (int32_t l = 0; l < LANES; l++)

INLINE f32x16 f_set(float v) { f32x16 r; LANES_EACH r.v[l] = v; return r; }
INLINE f32x16 f_load(const float *p) { f32x16 r; memcpy(&r, p, sizeof r); return r; }
INLINE void   f_store(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }
INLINE f32x16 f_load_first(const float *p, int32_t left) { f32x16 r = { { 0 } }; memcpy(&r, p, sizeof *p * (size_t)left); return r; }
INLINE void   f_store_first(float *p, f32x16 v, int32_t left) { memcpy(p, &v, sizeof *p * (size_t)left); }
INLINE f32x16 f_keep(f32x16 v) { return v; }
INLINE f32x16 f_add(f32x16 a, f32x16 b) { LANES_EACH a.v[l] += b.v[l]; return a; }
INLINE f32x16 f_sub(f32x16 a, f32x16 b) { LANES_EACH a.v[l] -= b.v[l]; return a; }
INLINE f32x16 f_mul(f32x16 a, f32x16 b) { LANES_EACH a.v[l] *= b.v[l]; return a; }
INLINE f32x16 f_div(f32x16 a, f32x16 b) { LANES_EACH a.v[l] /= b.v[l]; return a; }
INLINE f32x16 f_fma(f32x16 a, f32x16 b, f32x16 c) { LANES_EACH c.v[l] = fmaf(a.v[l], b.v[l], c.v[l]); return c; }
INLINE f32x16 f_fnma(f32x16 a, f32x16 b, f32x16 c) { LANES_EACH c.v[l] = fmaf(-a.v[l], b.v[l], c.v[l]); return c; }
INLINE f32x16 f_max(f32x16 a, f32x16 b) { LANES_EACH b.v[l] = a.v[l] > b.v[l] ? a.v[l] : b.v[l]; return b; }
INLINE f32x16 f_min(f32x16 a, f32x16 b) { LANES_EACH b.v[l] = a.v[l] < b.v[l] ? a.v[l] : b.v[l]; return b; }
INLINE m16    f_less(f32x16 a, f32x16 b) { m16 m; LANES_EACH m.v[l] = a.v[l] < b.v[l]; return m; }
INLINE f32x16 f_pick(m16 m, f32x16 a, f32x16 b) { LANES_EACH b.v[l] = m.v[l] ? a.v[l] : b.v[l]; return b; }
INLINE u32x16 u_of(f32x16 v) { u32x16 r; LANES_EACH r.v[l] = bits_of_float(v.v[l]); return r; }
INLINE f32x16 f_of(u32x16 v) { f32x16 r; LANES_EACH r.v[l] = float_of_bits(v.v[l]); return r; }
INLINE u32x16 u_set(uint32_t v) { u32x16 r; LANES_EACH r.v[l] = v; return r; }
INLINE u32x16 u_add(u32x16 a, u32x16 b) { LANES_EACH a.v[l] += b.v[l]; return a; }
INLINE u32x16 u_sub(u32x16 a, u32x16 b) { LANES_EACH a.v[l] -= b.v[l]; return a; }
INLINE u32x16 u_and(u32x16 a, u32x16 b) { LANES_EACH a.v[l] &= b.v[l]; return a; }
INLINE u32x16 u_or(u32x16 a, u32x16 b) { LANES_EACH a.v[l] |= b.v[l]; return a; }
INLINE u32x16 u_left23(u32x16 a) { LANES_EACH a.v[l] <<= 23; return a; }
INLINE u32x16 u_half(u32x16 a) { LANES_EACH a.v[l] = (a.v[l] >> 1) | (a.v[l] & 0x80000000u); return a; }

#if !defined(LANES_ONE)
INLINE f32x16 f_load_bf16(const void *p)
{
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
    f32x16 r;
    LANES_EACH r.v[l] = float_of_bits((uint32_t)h[l] << 16);
    return r;
}
INLINE f32x16 f_load_f16(const void *p)
{
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
    f32x16 r;
    LANES_EACH r.v[l] = float_of_f16(h[l]);
    return r;
}
INLINE f32x16 f_load_f32(const void *p) { f32x16 r; memcpy(&r, p, sizeof r); return r; }

/* One fixed tree: lanes (0+8) (1+9) ..., then +4, +2, +1. */
INLINE float f_sum(f32x16 v)
{
    for (int32_t half = 8; half >= 1; half /= 2)
        for (int32_t l = 0; l < half; l++) v.v[l] += v.v[l + half];
    return v.v[0];
}
#endif
#endif

#if !defined(LANES_ONE)
INLINE f32x16 f_take(const float *p, int32_t left) { return left >= LANES ? f_load(p) : f_load_first(p, left); }
INLINE void f_put(float *p, f32x16 v, int32_t left)
{
    if (left >= LANES) f_store(p, v);
    else f_store_first(p, v, left);
}

INLINE size_t dtype_bytes(dtype t) { return t == DTYPE_F32 ? 4 : 2; }

/* Elements [at, at + 16) of stored weights as fp32. A mapped file's tensors are 2-byte aligned at best, so every load is an unaligned one. */
INLINE f32x16 f_load_w(const void *base, dtype t, size_t at)
{
    const char *p = (const char *)base + at * dtype_bytes(t);
    if (t == DTYPE_BF16) return f_load_bf16(p);
    if (t == DTYPE_F16) return f_load_f16(p);
    return f_load_f32(p);
}
INLINE f32x16 f_take_w(const void *base, dtype t, size_t at, int32_t left)
{
    if (left >= LANES) return f_load_w(base, t, at);
    char copy[LANES * sizeof(float)] = { 0 };
    memcpy(copy, (const char *)base + at * dtype_bytes(t), (size_t)left * dtype_bytes(t));
    return f_load_w(copy, t, 0);
}
/* One stored element as fp32. */
INLINE float f_one_w(const void *base, dtype t, size_t at)
{
    const char *p = (const char *)base + at * dtype_bytes(t);
    uint16_t h;
    uint32_t u;
    if (t == DTYPE_F32) { memcpy(&u, p, sizeof u); return float_of_bits(u); }
    memcpy(&h, p, sizeof h);
    return t == DTYPE_F16 ? float_of_f16(h) : float_of_bits((uint32_t)h << 16);
}

/* out[i] = f_sum(v[i]) for i < n, n known at compile time: many sums share their shuffles, each keeps its tree. */
INLINE void f_sums(float *out, const f32x16 *v, const int n)
{
    int i = 0;
#if defined(LANES_SUM_16)
    for (; i + 16 <= n; i += 16) f_sum_16(out + i, v + i);
#endif
#if defined(LANES_SUM_4)
    for (; i + 4 <= n; i += 4) f_sum_4(out + i, v + i);
#endif
    for (; i < n; i++) out[i] = f_sum(v[i]);
}

/* The greatest lane, by the same tree as f_sum; with a NaN among the lanes, any of them. */
INLINE float f_greatest(f32x16 v)
{
    float lanes[LANES];
    f_store(lanes, v);
    for (int32_t half = LANES / 2; half >= 1; half /= 2)
        for (int32_t l = 0; l < half; l++) lanes[l] = lanes[l] > lanes[l + half] ? lanes[l] : lanes[l + half];
    return lanes[0];
}
#endif

#endif
