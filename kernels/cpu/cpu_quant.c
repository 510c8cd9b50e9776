/* cpu_quant.c - products of activations with quantized weights.
 *
 * A row of activations becomes blocks of 32 whole numbers -16256 .. 16256 with an fp32 scale (act_block): a function of the row alone, and fine enough that a model's logits are
 * those of fp32 activations to three digits (with 8 bits, as others do it, every tenth token that leads by little is another). A group of 16 or 32 weights meets them in whole
 * numbers, exactly: high bytes first, then the sum times 128 goes on with the low ones; then, groups ascending,
 *
 *        y = fma(sum q x, scale_w * scale_x, y)    and, where the format has a min,    y = fma(min_w, scale_x * sum x, y)
 *
 * so one sum belongs to one (weight row, token row) pair and is the same in every form, tile and split. An offset of the format is taken off as a whole number.
 *
 *                 k ->   unit of 32       Sixteen weight rows are a panel, one to a lane: no sum crosses lanes. PANELS panels of BLOCK_UNITS units are taken
 *         +-------+-------+---            apart once into bytes, four k of each row side by side as the dot instructions want them, small enough for the
 *   panel | 16x32 | 16x32 | ...           first-level cache, and meet TILE_X token rows at a time; y waits in memory between two blocks of k.
 *         +-------+-------+---
 *
 * The dot is u8 x s8: vpdpbusd where there is one (QUANT_VNNI), else vpmaddubsw, whose 16-bit sums hold 2 * 129 * 127: formats with greater numbers go through it
 * as magnitude times signed x, never above 2 * 128 * 127. A group's sum is below 2^28. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/quant_block.h"

#if defined(QUANT_VNNI) && defined(LANES_AVX512)
#define QUANT_FORM(name) name##_avx512vnni
#elif defined(QUANT_VNNI)
#define QUANT_FORM(name) name##_avxvnni
#else
#define QUANT_FORM(name) LANES_FORM(name)
#endif

#if defined(LANES_AVX512)
#define PANELS 2
#define TILE_X 4
#elif defined(LANES_AVX2)
#define PANELS 1
#define TILE_X 2
#else
#define PANELS 1
#define TILE_X 1
#endif
#define BLOCK_UNITS 20
#define STEPS 8                          /* of four k in a unit */

/* Sixteen rows by 32 k, four k of a row to a lane; scale and min of both halves where a group is 16. */
typedef struct { _Alignas(64) uint8_t q[STEPS][64]; float scale[2][16], min[2][16]; } panel_unit;

/* --- sixteen lanes of four bytes or of one int32 --- */

/* out[i]: the i-th four bytes of each sixteen of a, b, c and d, side by side. */
#define TURN_FOURS(out, vector, prefix, a, b, c, d)                                                                        \
    vector ab_lo = prefix##_unpacklo_epi32(a, b), ab_hi = prefix##_unpackhi_epi32(a, b);                                   \
    vector cd_lo = prefix##_unpacklo_epi32(c, d), cd_hi = prefix##_unpackhi_epi32(c, d);                                   \
    (out)[0] = prefix##_unpacklo_epi64(ab_lo, cd_lo);                                                                      \
    (out)[1] = prefix##_unpackhi_epi64(ab_lo, cd_lo);                                                                      \
    (out)[2] = prefix##_unpacklo_epi64(ab_hi, cd_hi);                                                                      \
    (out)[3] = prefix##_unpackhi_epi64(ab_hi, cd_hi);

#if defined(LANES_AVX512)
typedef __m512i b64;
INLINE b64 b_load(const void *p) { return _mm512_load_si512(p); }
INLINE void b_store(void *p, b64 v) { _mm512_store_si512(p, v); }
INLINE b64 b_low(b64 v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
INLINE b64 b_high(b64 v) { return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15)); }
INLINE b64 b_flip(b64 v) { return _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)); }
INLINE b64 b_look_up(b64 v, const uint8_t *table) { return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table)), v); }
INLINE b64 i_shifted(int32_t v, int bits) { return _mm512_slli_epi32(_mm512_set1_epi32(v), (unsigned)bits); }
INLINE b64 i_zero(void) { return _mm512_setzero_si512(); }
INLINE b64 i_go_on(b64 high, b64 low) { return _mm512_add_epi32(_mm512_slli_epi32(high, ACT_LOW_BITS), low); }
INLINE f32x16 f_of_i(b64 v) { return _mm512_cvtepi32_ps(v); }
INLINE b64 b_spread(const int8_t *p) { int32_t v; memcpy(&v, p, sizeof v); return _mm512_set1_epi32(v); }
INLINE b64 i_bits(b64 v, int from, int mask) { return _mm512_and_si512(_mm512_srli_epi32(v, (unsigned)from), _mm512_set1_epi32(mask)); }
INLINE b64 i_or_up(b64 a, b64 b, int bits) { return _mm512_or_si512(a, _mm512_slli_epi32(b, (unsigned)bits)); }
INLINE f32x16 f_low_f16(b64 v) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v)); }
INLINE f32x16 f_high_f16(b64 v) { return f_low_f16(_mm512_srli_epi32(v, 16)); }
INLINE b64 b_sixteenths(const uint8_t *const *p, size_t at, int first)
{
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)(p[first] + at)));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(p[first + 4] + at)), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(p[first + 8] + at)), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)(p[first + 12] + at)), 3);
}
/* Sixteen bytes of each of sixteen rows: out[i] has bytes 4 i .. 4 i + 3 of row l in lane l. */
INLINE void b_turn(b64 *out, const uint8_t *const *p, size_t at)
{
    __m512i a = b_sixteenths(p, at, 0), b = b_sixteenths(p, at, 1), c = b_sixteenths(p, at, 2), d = b_sixteenths(p, at, 3);
    TURN_FOURS(out, __m512i, _mm512, a, b, c, d)
}
#if defined(QUANT_VNNI)
#define DOT_TAKES_WIDE                   /* any u8 */
INLINE b64 i_dot(b64 sum, b64 w, b64 x, const bool is_wide) { (void)is_wide; return _mm512_dpbusd_epi32(sum, w, x); }
#else
INLINE b64 i_dot(b64 sum, b64 w, b64 x, const bool is_wide)
{
    if (is_wide) {
        __m512i s = b_flip(w);
        x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(s), _mm512_setzero_si512(), x);
        w = _mm512_abs_epi8(s);
    }
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(w, x), _mm512_set1_epi16(1)));
}
#endif

#elif defined(LANES_AVX2)
typedef u32x16 b64;
#define EACH_HALF(f, ...) (b64){ f((v).a, ##__VA_ARGS__), f((v).b, ##__VA_ARGS__) }
INLINE b64 b_load(const void *p) { return (b64){ _mm256_load_si256(p), _mm256_load_si256((const __m256i *)p + 1) }; }
INLINE void b_store(void *p, b64 v) { _mm256_store_si256(p, v.a); _mm256_store_si256((__m256i *)p + 1, v.b); }
INLINE __m256i half_low(__m256i v) { return _mm256_and_si256(v, _mm256_set1_epi8(15)); }
INLINE __m256i half_high(__m256i v) { return half_low(_mm256_srli_epi16(v, 4)); }
INLINE __m256i half_flip(__m256i v) { return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)); }
INLINE b64 b_low(b64 v) { return (b64){ half_low(v.a), half_low(v.b) }; }
INLINE b64 b_high(b64 v) { return (b64){ half_high(v.a), half_high(v.b) }; }
INLINE b64 b_flip(b64 v) { return (b64){ half_flip(v.a), half_flip(v.b) }; }
INLINE b64 b_look_up(b64 v, const uint8_t *table)
{
    __m256i t = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    return (b64){ _mm256_shuffle_epi8(t, v.a), _mm256_shuffle_epi8(t, v.b) };
}
INLINE b64 i_shifted(int32_t v, int bits) { __m256i s = _mm256_slli_epi32(_mm256_set1_epi32(v), bits); return (b64){ s, s }; }
INLINE b64 i_zero(void) { return (b64){ _mm256_setzero_si256(), _mm256_setzero_si256() }; }
INLINE __m256i half_go_on(__m256i high, __m256i low) { return _mm256_add_epi32(_mm256_slli_epi32(high, ACT_LOW_BITS), low); }
INLINE b64 i_go_on(b64 high, b64 low) { return (b64){ half_go_on(high.a, low.a), half_go_on(high.b, low.b) }; }
INLINE f32x16 f_of_i(b64 v) { return (f32x16){ _mm256_cvtepi32_ps(v.a), _mm256_cvtepi32_ps(v.b) }; }
INLINE b64 b_spread(const int8_t *p) { int32_t v; memcpy(&v, p, sizeof v); __m256i s = _mm256_set1_epi32(v); return (b64){ s, s }; }
INLINE __m256i half_bits(__m256i v, int from, int mask) { return _mm256_and_si256(_mm256_srli_epi32(v, from), _mm256_set1_epi32(mask)); }
INLINE b64 i_bits(b64 v, int from, int mask) { return (b64){ half_bits(v.a, from, mask), half_bits(v.b, from, mask) }; }
INLINE b64 i_or_up(b64 a, b64 b, int bits) { return (b64){ _mm256_or_si256(a.a, _mm256_slli_epi32(b.a, bits)), _mm256_or_si256(a.b, _mm256_slli_epi32(b.b, bits)) }; }
INLINE __m256 half_f16(__m256i v) { return _mm256_cvtph_ps(_mm_packus_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1))); }
INLINE f32x16 f_low_f16(b64 v) { return (f32x16){ half_f16(half_bits(v.a, 0, 0xffff)), half_f16(half_bits(v.b, 0, 0xffff)) }; }
INLINE f32x16 f_high_f16(b64 v) { return (f32x16){ half_f16(_mm256_srli_epi32(v.a, 16)), half_f16(_mm256_srli_epi32(v.b, 16)) }; }
INLINE __m256i two_sixteenths(const uint8_t *const *p, size_t at, int first)
{
    __m256i v = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(p[first] + at)));
    return _mm256_inserti128_si256(v, _mm_loadu_si128((const __m128i *)(const void *)(p[first + 4] + at)), 1);
}
INLINE void half_turn(__m256i *out, const uint8_t *const *p, size_t at)
{
    __m256i a = two_sixteenths(p, at, 0), b = two_sixteenths(p, at, 1), c = two_sixteenths(p, at, 2), d = two_sixteenths(p, at, 3);
    TURN_FOURS(out, __m256i, _mm256, a, b, c, d)
}
/* Sixteen bytes of each of sixteen rows: out[i] has bytes 4 i .. 4 i + 3 of row l in lane l. */
INLINE void b_turn(b64 *out, const uint8_t *const *p, size_t at)
{
    __m256i a[4], b[4];
    half_turn(a, p, at);
    half_turn(b, p + 8, at);
    for (int i = 0; i < 4; i++) out[i] = (b64){ a[i], b[i] };
}
#if defined(QUANT_VNNI)
#define DOT_TAKES_WIDE
INLINE b64 i_dot(b64 sum, b64 w, b64 x, const bool is_wide)
{
    (void)is_wide;
    return (b64){ _mm256_dpbusd_avx_epi32(sum.a, w.a, x.a), _mm256_dpbusd_avx_epi32(sum.b, w.b, x.b) };
}
#else
INLINE __m256i half_dot(__m256i sum, __m256i w, __m256i x, const bool is_wide)
{
    if (is_wide) {
        __m256i s = half_flip(w);
        x = _mm256_sign_epi8(x, s);
        w = _mm256_abs_epi8(s);
    }
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
INLINE b64 i_dot(b64 sum, b64 w, b64 x, const bool is_wide) { return (b64){ half_dot(sum.a, w.a, x.a, is_wide), half_dot(sum.b, w.b, x.b, is_wide) }; }
#endif

#else                                                                /* LANES_SCALAR */
typedef struct { uint8_t b[64]; } b64_bytes;
typedef union { b64_bytes b; int32_t i[16]; } b64;
INLINE b64 b_load(const void *p) { b64 v; memcpy(&v, p, sizeof v); return v; }
INLINE void b_store(void *p, b64 v) { memcpy(p, &v, sizeof v); }
INLINE b64 b_low(b64 v) { for (int i = 0; i < 64; i++) v.b.b[i] &= 15; return v; }
INLINE b64 b_high(b64 v) { for (int i = 0; i < 64; i++) v.b.b[i] >>= 4; return v; }
INLINE b64 b_flip(b64 v) { for (int i = 0; i < 64; i++) v.b.b[i] ^= 0x80; return v; }
INLINE b64 b_look_up(b64 v, const uint8_t *table) { for (int i = 0; i < 64; i++) v.b.b[i] = table[v.b.b[i]]; return v; }
INLINE b64 i_shifted(int32_t n, int bits) { b64 v; LANES_EACH v.i[l] = n * (1 << bits); return v; }
INLINE b64 i_zero(void) { return (b64){ .i = { 0 } }; }
INLINE b64 i_go_on(b64 high, b64 low) { LANES_EACH low.i[l] += high.i[l] * (1 << ACT_LOW_BITS); return low; }
INLINE b64 i_bits(b64 v, int from, int mask) { LANES_EACH v.i[l] = (int32_t)((uint32_t)v.i[l] >> from) & mask; return v; }
INLINE b64 i_or_up(b64 a, b64 b, int bits) { LANES_EACH a.i[l] |= (int32_t)((uint32_t)b.i[l] << bits); return a; }
INLINE f32x16 f_low_f16(b64 v) { f32x16 r; LANES_EACH r.v[l] = float_of_f16((uint16_t)v.i[l]); return r; }
INLINE f32x16 f_high_f16(b64 v) { f32x16 r; LANES_EACH r.v[l] = float_of_f16((uint16_t)((uint32_t)v.i[l] >> 16)); return r; }
INLINE f32x16 f_of_i(b64 v) { f32x16 r; LANES_EACH r.v[l] = (float)v.i[l]; return r; }
INLINE b64 b_spread(const int8_t *p) { b64 v; LANES_EACH memcpy(&v.i[l], p, 4); return v; }
INLINE void b_turn(b64 *out, const uint8_t *const *p, size_t at)
{
    for (int i = 0; i < 4; i++)
        LANES_EACH memcpy(&out[i].i[l], p[l] + at + 4 * i, 4);
}
#define DOT_TAKES_WIDE
INLINE b64 i_dot(b64 sum, b64 w, b64 x, const bool is_wide)
{
    (void)is_wide;
    LANES_EACH
        for (int j = 0; j < 4; j++) sum.i[l] += w.b.b[4 * l + j] * (int8_t)x.b.b[4 * l + j];
    return sum;
}
#endif

/* --- weights: units of a panel --- */

/* Nibbles of four times four bytes: the low ones are k 0 .. 15 of the unit, the high ones 16 .. 31. */
INLINE void put_nibbles(panel_unit *u, const b64 *v, const uint8_t *table)
{
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        b64 low = b_low(v[i]), high = b_high(v[i]);
        b_store(u->q[i], table ? b_look_up(low, table) : low);
        b_store(u->q[i + 4], table ? b_look_up(high, table) : high);
    }
}

INLINE void turn_nibbles(panel_unit *u, const uint8_t *const *p, size_t at, const uint8_t *table)
{
    b64 v[4];
    b_turn(v, p, at);
    put_nibbles(u, v, table);
}

INLINE void turn_bytes(panel_unit *u, const uint8_t *const *p, size_t at, const bool flip)
{
    b64 v[4];
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++) {
        b_turn(v, p, at + 16 * (size_t)half);
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) b_store(u->q[4 * half + i], flip ? b_flip(v[i]) : v[i]);
    }
}

/* The f16 at `at`, within sixteen bytes of the row. */
INLINE void take_scale(panel_unit *u, const uint8_t *const *p, size_t at)
{
    b64 v[4];
    b_turn(v, p, at);
    f_store(u->scale[0], f_low_f16(v[0]));
}

INLINE void put_q4_1(panel_unit *u, const b64 *v)        /* the five words of a block */
{
    f_store(u->scale[0], f_low_f16(v[0]));
    f_store(u->min[0], f_high_f16(v[0]));
    put_nibbles(u, v + 1, NULL);
}

/* Four blocks are five times sixteen bytes. */
INLINE void take_q4_1(panel_unit *u, size_t stride, const uint8_t *const *p, size_t at, int32_t n_units)
{
    b64 v[20];
    int32_t i = 0;
    for (; i + 4 <= n_units; i += 4, at += 80) {
#pragma GCC unroll 5
        for (int j = 0; j < 5; j++) b_turn(v + 4 * j, p, at + 16 * (size_t)j);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) put_q4_1(u + (size_t)(i + j) * stride, v + 5 * j);
    }
    for (; i < n_units; i++, at += 20) {
        b_turn(v, p, at);
        b_turn(v + 1, p, at + 4);
        put_q4_1(u + (size_t)i * stride, v);
    }
}

/* A block of q4_k: its first sixteen bytes are d, dmin and the scales (quant_k_scales), then 32 bytes for each two units. */
INLINE void take_q4_k(panel_unit *u, size_t stride, const uint8_t *const *p, size_t at)
{
    b64 head[4], v[8];
    b_turn(head, p, at);
    f32x16 d = f_low_f16(head[0]), dmin = f_mul(f_high_f16(head[0]), f_set(-1.0f));
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        f_store(u[(size_t)i * stride].scale[0], f_mul(d, f_of_i(i_bits(head[1], 8 * i, 63))));
        f_store(u[(size_t)i * stride].min[0], f_mul(dmin, f_of_i(i_bits(head[2], 8 * i, 63))));
        f_store(u[(size_t)(i + 4) * stride].scale[0], f_mul(d, f_of_i(i_or_up(i_bits(head[3], 8 * i, 15), i_bits(head[1], 8 * i + 6, 3), 4))));
        f_store(u[(size_t)(i + 4) * stride].min[0], f_mul(dmin, f_of_i(i_or_up(i_bits(head[3], 8 * i + 4, 15), i_bits(head[2], 8 * i + 6, 3), 4))));
    }
#pragma GCC unroll 4
    for (int part = 0; part < 4; part++) {
        panel_unit *low = u + (size_t)(2 * part) * stride, *high = low + stride;
        b_turn(v, p, at + 16 + 32 * (size_t)part);
        b_turn(v + 4, p, at + 32 + 32 * (size_t)part);
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            b_store(low->q[i], b_low(v[i]));
            b_store(high->q[i], b_high(v[i]));
        }
    }
}

/* Any format, one row after the other. A block is several units, from `u` on, `stride` apart. */
INLINE void take_slowly(panel_unit *u, size_t stride, const uint8_t *const *p, size_t at, const dtype type)
{
    const quant_format *f = &quant_formats[type];
    const int per_unit = 32 / f->group;
    uint8_t q[16][QUANT_VALUES_MAX];
    const uint8_t *rows[16];
    for (int l = 0; l < 16; l++) {
        float scale[QUANT_GROUPS_MAX] = { 0 }, min[QUANT_GROUPS_MAX] = { 0 };
        quant_take(q[l], scale, min, type, p[l] + at);
        rows[l] = q[l];
        for (int i = 0; i < f->values / 32; i++)
            for (int s = 0; s < per_unit; s++) {
                u[(size_t)i * stride].scale[s][l] = scale[i * per_unit + s];
                u[(size_t)i * stride].min[s][l] = min[i * per_unit + s];
            }
    }
    for (int i = 0; i < f->values / 32; i++) turn_bytes(u + (size_t)i * stride, rows, 32 * (size_t)i, false);
}

/* n_units units of the rows at p, from byte `at` of each: u[i * stride]. */
INLINE void take_panel(panel_unit *u, size_t stride, const uint8_t *const *p, size_t at, int32_t n_units, const dtype type)
{
    const quant_format *f = &quant_formats[type];
    if (type == DTYPE_Q4_1) { take_q4_1(u, stride, p, at, n_units); return; }
    for (int32_t i = 0; i < n_units; i += f->values / 32, u += (size_t)(f->values / 32) * stride, at += (size_t)f->bytes) {
        switch (type) {
        case DTYPE_Q8_0: take_scale(u, p, at); turn_bytes(u, p, at + 2, true); break;
        case DTYPE_Q4_0: take_scale(u, p, at); turn_nibbles(u, p, at + 2, NULL); break;
        case DTYPE_IQ4_NL: take_scale(u, p, at); turn_nibbles(u, p, at + 2, quant_iq4); break;
        case DTYPE_Q4_K: take_q4_k(u, stride, p, at); break;
        default: take_slowly(u, stride, p, at, type);
        }
    }
}

/* --- the tile --- */

/* T token rows against P panels over n_units units: y[t * y_stride + panel * 16 + lane], from zero where `first`, for the first n_w of P * 16 weight rows. */
INLINE void tile(float *y, size_t y_stride, int32_t n_w, const panel_unit *u, int32_t n_units, const act_block *const *x, size_t from, bool first, int offset_bits,
                 const int group, const bool has_min, const bool is_wide, const int P, const int T)
{
    f32x16 out[TILE_X * PANELS];
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) out[t * P + p] = first || n_w <= p * 16 ? f_set(0.0f) : f_take(y + (size_t)t * y_stride + p * 16, n_w - p * 16);
    for (int32_t i = 0; i < n_units; i++, u += P) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  /* at their -O1 gcc warns of it, where the loop has one turn */
#pragma GCC unroll 2
#endif
        for (int s = 0; s < 32 / group; s++) {
            b64 sum[TILE_X * PANELS];
#pragma GCC unroll 8
            for (int i_sum = 0; i_sum < T * P; i_sum++) sum[i_sum] = i_zero();
#pragma GCC unroll 2
            for (int part = 0; part < 2; part++) {
#pragma GCC unroll 8
                for (int t = 0; t < T && part == 1; t++) {
                    b64 begin = has_min || is_wide ? i_zero() : i_shifted(x[t][from + (size_t)i].minus[group == 32 ? 2 : s], offset_bits);
#pragma GCC unroll 2
                    for (int p = 0; p < P; p++) sum[t * P + p] = i_go_on(sum[t * P + p], begin);
                }
#pragma GCC unroll 8
                for (int k = s * group / 4; k < (s + 1) * group / 4; k++) {
                    b64 w[PANELS];
#pragma GCC unroll 2
                    for (int p = 0; p < P; p++) w[p] = b_load(u[p].q[k]);
#pragma GCC unroll 8
                    for (int t = 0; t < T; t++) {
                        b64 xv = b_spread(x[t][from + (size_t)i].q[part] + 4 * k);
#pragma GCC unroll 2
                        for (int p = 0; p < P; p++) sum[t * P + p] = i_dot(sum[t * P + p], w[p], xv, is_wide);
                    }
                }
            }
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) {
                const act_block *a = &x[t][from + (size_t)i];
                f32x16 scale = f_set(a->scale), total = f_set(a->sums[group == 32 ? 2 : s]);
#pragma GCC unroll 2
                for (int p = 0; p < P; p++) {
                    f32x16 v = f_fma(f_of_i(sum[t * P + p]), f_mul(f_load(u[p].scale[s]), scale), out[t * P + p]);
                    out[t * P + p] = has_min ? f_fma(f_load(u[p].min[s]), total, v) : v;
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 2
        for (int p = 0; p < P; p++) if (n_w > p * 16) f_put(y + (size_t)t * y_stride + p * 16, out[t * P + p], n_w - p * 16);
}

/* Weights that are needed next: n_rows pieces of n_lines cache lines, stride apart; and how far they were asked for. A row's piece of a block is too short for
 * the machine to notice the stream by itself. */
typedef struct { const uint8_t *p; size_t stride; int32_t n_rows, n_lines, row, line; } weights_ahead;

/* Ask for one of `parts` parts of them, or for what is left. */
INLINE void ahead_ask(weights_ahead *a, int32_t parts)
{
    for (int32_t n = (a->n_rows * a->n_lines + parts - 1) / parts; n > 0 && a->row < a->n_rows; n--) {
        __builtin_prefetch(a->p + (size_t)a->row * a->stride + 64 * (size_t)a->line, 0, 2);
        if (++a->line == a->n_lines) { a->line = 0; a->row++; }
    }
}

INLINE void tiles(float *y, size_t y_stride, int32_t n_w, const panel_unit *u, int32_t n_units, const act_block *const *x, int32_t n_x, size_t from, bool first, int offset_bits,
                  weights_ahead *ahead, const int group, const bool has_min, const bool is_wide)
{
    int32_t t = 0;
    for (; t + TILE_X <= n_x; t += TILE_X) {
        ahead_ask(ahead, n_x / TILE_X);
        tile(y + (size_t)t * y_stride, y_stride, n_w, u, n_units, x + t, from, first, offset_bits, group, has_min, is_wide, PANELS, TILE_X);
    }
    ahead_ask(ahead, 1);
#if TILE_X > 2
    for (; t + 2 <= n_x; t += 2) tile(y + (size_t)t * y_stride, y_stride, n_w, u, n_units, x + t, from, first, offset_bits, group, has_min, is_wide, PANELS, 2);
#endif
#if TILE_X > 1
    for (; t < n_x; t++) tile(y + (size_t)t * y_stride, y_stride, n_w, u, n_units, x + t, from, first, offset_bits, group, has_min, is_wide, PANELS, 1);
#endif
}

/* One instance of the tiles for each kind of format. */
typedef void tiles_kind(float *y, size_t y_stride, int32_t n_w, const panel_unit *u, int32_t n_units, const act_block *const *x, int32_t n_x, size_t from, bool first, int offset_bits,
                        weights_ahead *ahead);
#define TILES_KIND(name, group, has_min, is_wide) \
    static void name(float *y, size_t y_stride, int32_t n_w, const panel_unit *u, int32_t n_units, const act_block *const *x, int32_t n_x, size_t from, bool first, int offset_bits, \
                     weights_ahead *ahead) \
    { \
        tiles(y, y_stride, n_w, u, n_units, x, n_x, from, first, offset_bits, ahead, group, has_min, is_wide); \
    }
TILES_KIND(tiles_min_32, 32, true, false)
TILES_KIND(tiles_min_16, 16, true, false)
TILES_KIND(tiles_offset_32, 32, false, false)
TILES_KIND(tiles_offset_16, 16, false, false)
#if defined(DOT_TAKES_WIDE)
#define tiles_wide_32 tiles_offset_32
#else
TILES_KIND(tiles_wide_32, 32, false, true)
#endif

static tiles_kind *tiles_of(const quant_format *f)
{
    if (f->offset_bits < 0) return f->group == 32 ? tiles_min_32 : tiles_min_16;
    if (f->q_most > 127) return tiles_wide_32;
    return f->group == 32 ? tiles_offset_32 : tiles_offset_16;
}

INLINE void rows_of_type(float *y, size_t y_stride, const uint8_t *w, int32_t n_w, int32_t n_k, const act_block *const *x, int32_t n_x, const dtype type)
{
    const quant_format *f = &quant_formats[type];
    const int32_t n_units = n_k / 32, per_block = f->values / 32, n_blocks = (n_units + BLOCK_UNITS - 1) / BLOCK_UNITS;
    const int32_t block = (n_units / per_block + n_blocks - 1) / n_blocks * per_block;       /* whole blocks of the format: at most 4 units more than BLOCK_UNITS */
    const size_t row_bytes = (size_t)(n_k / f->values) * (size_t)f->bytes;
    tiles_kind *run = tiles_of(f);
    panel_unit units[(BLOCK_UNITS + 4) * PANELS];
    for (int32_t j = 0; j < n_w; j += 16 * PANELS)
        for (int32_t from = 0; from < n_units; from += block) {
            int32_t n = n_units - from < block ? n_units - from : block;
            for (int32_t p = 0; p < PANELS; p++) {
                const uint8_t *rows[16];                             /* beyond the last row: that one again, whose products are not stored */
                for (int32_t l = 0; l < 16; l++) rows[l] = w + (size_t)(j + p * 16 + l < n_w ? j + p * 16 + l : n_w - 1) * row_bytes;
                take_panel(units + p, PANELS, rows, (size_t)(from / per_block) * (size_t)f->bytes, n, type);
            }
            const bool is_last = from + n == n_units;                /* then the next panels' first block comes, else these panels' next one */
            const int32_t j_next = is_last ? j + 16 * PANELS : j, from_next = is_last ? 0 : from + n, n_next = n_units - from_next < block ? n_units - from_next : block;
            const size_t bytes = (size_t)(n_next / per_block) * (size_t)f->bytes;
            weights_ahead ahead = { .p = w + (size_t)j_next * row_bytes + (size_t)(from_next / per_block) * (size_t)f->bytes, .stride = row_bytes,
                                    .n_rows = n_w - j_next < 16 * PANELS ? n_w - j_next : 16 * PANELS, .n_lines = (int32_t)(bytes / 64 + 1) };
            run(y + j, y_stride, n_w - j, units, n, x, n_x, (size_t)from, from == 0, f->offset_bits, &ahead);
        }
}

static void dot_rows_quant(float *y, size_t y_stride, const void *w, dtype type, int32_t n_w, int32_t n_k, const act_block *const *x, int32_t n_x)
{
#define OF_TYPE(t) case t: rows_of_type(y, y_stride, w, n_w, n_k, x, n_x, t); break;
    switch (type) {
    OF_TYPE(DTYPE_Q8_0) OF_TYPE(DTYPE_Q4_0) OF_TYPE(DTYPE_Q4_1) OF_TYPE(DTYPE_Q5_0) OF_TYPE(DTYPE_Q5_1) OF_TYPE(DTYPE_Q2_K) OF_TYPE(DTYPE_Q3_K)
    OF_TYPE(DTYPE_Q4_K) OF_TYPE(DTYPE_Q5_K) OF_TYPE(DTYPE_Q6_K) OF_TYPE(DTYPE_IQ4_NL) OF_TYPE(DTYPE_IQ4_XS) OF_TYPE(DTYPE_MXFP4) OF_TYPE(DTYPE_NVFP4)
    case DTYPE_F32: case DTYPE_BF16: case DTYPE_F16: case DTYPE_COUNT: FL_ASSERT(dtype_is_quantized(type));
    }
#undef OF_TYPE
}

/* --- activations --- */

/* The greatest magnitude as bits: infinities and NaN are above all numbers. */
INLINE uint32_t most_bits(const float *x)
{
#if defined(LANES_AVX512)
    __m512i mask = _mm512_set1_epi32(0x7fffffff);
    return (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(_mm512_and_si512(u_of(f_load(x)), mask), _mm512_and_si512(u_of(f_load(x + 16)), mask)));
#elif defined(LANES_AVX2)
    __m256i mask = _mm256_set1_epi32(0x7fffffff);
    u32x16 a = u_of(f_load(x)), b = u_of(f_load(x + 16));
    __m256i m = _mm256_max_epi32(_mm256_max_epi32(_mm256_and_si256(a.a, mask), _mm256_and_si256(a.b, mask)), _mm256_max_epi32(_mm256_and_si256(b.a, mask), _mm256_and_si256(b.b, mask)));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    return (uint32_t)_mm_cvtsi128_si32(_mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
#else
    uint32_t most = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u = bits_of_float(x[i]) & 0x7fffffffu;
        if (u > most) most = u;
    }
    return most;
#endif
}

/* q = x * inverse to the nearest whole number, ties to even, in two bytes; the sums of both halves of 32. */
#if defined(LANES_SCALAR)
INLINE void round_32(act_block *out, int32_t *sums, const float *x, float inverse)
{
    for (int half = 0; half < 2; half++) {
        sums[half] = 0;
        for (int i = 16 * half; i < 16 * half + 16; i++) {
            int32_t q = (int32_t)lrintf(x[i] * inverse), high = (q + ACT_STEPS + (1 << (ACT_LOW_BITS - 1))) / (1 << ACT_LOW_BITS) - 127;      /* what is divided is positive */
            out->q[0][i] = (int8_t)high;
            out->q[1][i] = (int8_t)(q - high * (1 << ACT_LOW_BITS));
            sums[half] += q;
        }
    }
}
#else
#if defined(LANES_AVX512)
INLINE __m256i i16_of_f(f32x16 v) { return _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(v)); }
#else
INLINE __m256i i16_of_f(f32x16 v) { return _mm256_permute4x64_epi64(_mm256_packs_epi32(_mm256_cvtps_epi32(v.a), _mm256_cvtps_epi32(v.b)), 0xd8); }
#endif
INLINE __m256i high_of(__m256i q) { return _mm256_srai_epi16(_mm256_add_epi16(q, _mm256_set1_epi16(1 << (ACT_LOW_BITS - 1))), ACT_LOW_BITS); }
INLINE __m256i low_of(__m256i q, __m256i high) { return _mm256_sub_epi16(q, _mm256_slli_epi16(high, ACT_LOW_BITS)); }
INLINE void put_bytes(int8_t *to, __m256i a, __m256i b) { _mm256_store_si256((__m256i *)(void *)to, _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8)); }
INLINE void round_32(act_block *out, int32_t *sums, const float *x, float inverse)
{
    __m256i a = i16_of_f(f_mul(f_load(x), f_set(inverse))), b = i16_of_f(f_mul(f_load(x + 16), f_set(inverse))), a_high = high_of(a), b_high = high_of(b), one = _mm256_set1_epi16(1);
    put_bytes(out->q[0], a_high, b_high);
    put_bytes(out->q[1], low_of(a, a_high), low_of(b, b_high));
    __m256i s = _mm256_hadd_epi32(_mm256_madd_epi16(a, one), _mm256_madd_epi16(b, one));
    s = _mm256_hadd_epi32(s, s);
    __m128i both = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    sums[0] = _mm_cvtsi128_si32(both);
    sums[1] = _mm_extract_epi32(both, 1);
}
#endif

static void quantize_row(act_block *out, const float *x, int32_t n)
{
    for (int32_t i = 0; i < n; i += 32, x += 32, out++) {
        uint32_t bits = most_bits(x);
        float most = float_of_bits(bits);
        if (bits >= 0x7f800000u || most < ACT_LEAST) {               /* what is not finite makes the products NaN; what is next to nothing is nothing */
            *out = (act_block){ .scale = bits >= 0x7f800000u ? NAN : 0.0f };
            out->sums[0] = out->sums[1] = out->sums[2] = out->scale;
            continue;
        }
        float inverse = (float)ACT_STEPS / most;
        int32_t sums[2];
        round_32(out, sums, x, inverse);
        out->scale = most / (float)ACT_STEPS;
        out->minus[0] = -sums[0];
        out->minus[1] = -sums[1];
        out->minus[2] = -(sums[0] + sums[1]);
        for (int s = 0; s < 3; s++) out->sums[s] = out->scale * (float)-out->minus[s];
    }
}

void QUANT_FORM(quant_install)(ops_cpu *c)
{
    c->dot_rows_quant = dot_rows_quant;
    c->quantize_row = quantize_row;
}
