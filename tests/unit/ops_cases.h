/* ops_cases.h - random cases of every operation of kernels/ops.h, for the tests that compare an implementation with the reference (ops_cpu_test), with
 * another one, or with itself (ops_bits_test).
 * A case is a seed. case_run builds its inputs from the seed alone and gives what the operation gives, as doubles (every fp32 is one), in one of three ways:
 *   WHOLE  all rows in one call.   SPLIT  row by row, each in a call of its own, prompts as if generated.   REFERENCE  kernels/NAME_ref.c.
 * Buffers lie between NaNs of a known pattern: reading beyond one shows in the result, writing beyond one fails. Stored weights begin at an address that is
 * only 2-byte aligned. */
#ifndef TESTS_UNIT_OPS_CASES_H
#define TESTS_UNIT_OPS_CASES_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/encode.h"
#include "kernels/ops.h"
#include "kernels/ops_ref.h"
#include "kernels/quant.h"

typedef enum { WHOLE, SPLIT, REFERENCE } case_way;

#define GUARD 64
#define GUARD_BITS 0x7fc0deadu
#define CASE_BUFFERS 32

typedef struct {
    uint64_t random;
    case_way way;
    bool specials;                       /* strew NaN, infinities, huge and subnormal values over the inputs */
    bool large;                          /* sizes at which threads take part */
    dtype rounds;                        /* all values are ones that this type can hold (DTYPE_F32: any) */
    char *buffers[CASE_BUFFERS]; size_t buffer_bytes[CASE_BUFFERS]; int32_t n_buffers;
    double *out; size_t n_out;           /* owned by the caller of case_run */
    double tolerance;                    /* against the reference, relative to max(1, |want|) */
} op_case;

static uint64_t case_bits(op_case *c)
{
    uint64_t z = c->random += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static int32_t case_in(op_case *c, int32_t lo, int32_t hi) { return lo + (int32_t)(case_bits(c) % (uint64_t)(hi - lo + 1)); }

static float case_round(float f, dtype type)
{
    uint32_t stored;
    dtype_encode(&stored, type, &f, 1);
    dtype_decode(&f, type, &stored, 1);
    return f;
}

static float case_float(op_case *c, float reach)
{
    static const float odd[] = { INFINITY, -INFINITY, NAN, 3e38f, -1e30f, 1e-40f, -1e-44f, 0.0f, -0.0f };
    uint64_t u = case_bits(c);
    if (c->specials && u % 67 == 0) return odd[(u >> 32) % (sizeof odd / sizeof *odd)];
    return case_round(((float)(u >> 40) * 0x1p-23f - 1.0f) * reach, c->rounds);
}

/* `bytes` of memory between guards, all of it the guard's NaN. */
static void *case_buffer(op_case *c, size_t bytes, size_t misalign)
{
    assert_true(c->n_buffers < CASE_BUFFERS);
    size_t all = bytes + 2 * GUARD + misalign;
    char *p = malloc(all + 4);
    assert_non_null(p);
    uint32_t guard = GUARD_BITS;
    for (size_t i = 0; i < all; i += 4) memcpy(p + i, &guard, 4);
    c->buffers[c->n_buffers] = p;
    c->buffer_bytes[c->n_buffers++] = bytes + misalign;
    return p + GUARD + misalign;
}
static void case_end(op_case *c)
{
    for (int32_t i = 0; i < c->n_buffers; i++) {
        const char *p = c->buffers[i];
        size_t end = GUARD + c->buffer_bytes[i];
        uint32_t guard = GUARD_BITS;
        for (size_t j = 0; j < GUARD; j++) {
            assert_int_equal(p[j], ((const char *)&guard)[j % 4]);
            assert_int_equal(p[end + j], ((const char *)&guard)[(end + j) % 4]);
        }
        free(c->buffers[i]);
    }
    c->n_buffers = 0;
}

static float *case_blank(op_case *c, size_t n) { return case_buffer(c, n * sizeof(float), 0); }
static float *case_floats(op_case *c, size_t n, float reach)
{
    float *p = case_blank(c, n);
    for (size_t i = 0; i < n; i++) p[i] = case_float(c, reach);
    return p;
}
/* fp32 to the nearest f16, for values in reach of it. */
static uint16_t f16_of(float f)
{
    if (isnan(f)) return 0x7e00;
    uint16_t sign = signbit(f) ? 0x8000 : 0;
    double a = fabs((double)f);
    if (a >= 65504.0) return (uint16_t)(sign | (isinf(f) ? 0x7c00 : 0x7bff));
    int e = 0;
    frexp(a, &e);
    if (e < -13) return (uint16_t)(sign | (uint16_t)rint(a * 0x1p24));
    return (uint16_t)(sign | (uint16_t)(rint(ldexp(a, 11 - e)) + (e + 13) * 1024));
}
static weight case_weight(op_case *c, int32_t n_rows, int32_t n_cols, float reach)
{
    dtype type = (dtype)case_in(c, 0, 2);
    size_t n = (size_t)n_rows * (size_t)n_cols, size = type == DTYPE_F32 ? 4 : 2;
    char *p = case_buffer(c, n * size, 2);
    for (size_t i = 0; i < n; i++) {
        float f = case_float(c, reach);
        uint32_t u;
        memcpy(&u, &f, 4);
        uint16_t h = type == DTYPE_F16 ? f16_of(f) : (uint16_t)(isnan(f) ? 0x7fc0 : u >> 16);
        memcpy(p + i * size, type == DTYPE_F32 ? (void *)&f : (void *)&h, size);
    }
    return (weight){ p, type, n_rows, n_cols };
}

/* A quantized matrix of random numbers whose scales are small; with specials some blocks are random bytes altogether. */
static weight case_quant(op_case *c, dtype type, int32_t n_rows, int32_t n_cols)
{
    static const struct { dtype type; int16_t at[4]; bool is_f16; } scales[] = {
        { DTYPE_Q8_0, { 0 }, true }, { DTYPE_Q4_0, { 0 }, true }, { DTYPE_Q4_1, { 0, 2 }, true }, { DTYPE_Q5_0, { 0 }, true }, { DTYPE_Q5_1, { 0, 2 }, true }, { DTYPE_Q2_K, { 80, 82 }, true },
        { DTYPE_Q3_K, { 108 }, true }, { DTYPE_Q4_K, { 0, 2 }, true }, { DTYPE_Q5_K, { 0, 2 }, true }, { DTYPE_Q6_K, { 208 }, true }, { DTYPE_IQ4_NL, { 0 }, true }, { DTYPE_IQ4_XS, { 0 }, true },
        { DTYPE_MXFP4, { 0 }, false }, { DTYPE_NVFP4, { 0, 1, 2, 3 }, false },
    };
    size_t bytes = dtype_row_bytes(type, n_cols) * (size_t)n_rows, block = (size_t)dtype_block_bytes(type);
    uint8_t *p = case_buffer(c, bytes, (size_t)case_in(c, 0, 3));
    for (size_t i = 0; i < bytes; i++) p[i] = (uint8_t)case_bits(c);
    for (uint8_t *b = p; b < p + bytes; b += block) {
        if (c->specials && case_in(c, 0, 40) == 0) continue;
        for (int32_t i = 0; i < 4; i++) {
            int32_t at = scales[type - DTYPE_Q8_0].at[i];
            assert_int_equal(scales[type - DTYPE_Q8_0].type, type);
            if (i > 0 && at == 0) break;
            if (scales[type - DTYPE_Q8_0].is_f16) { uint16_t h = f16_of(case_float(c, 0x1p-10f)); memcpy(b + at, &h, 2); }
            else b[at] = (uint8_t)(type == DTYPE_MXFP4 ? case_in(c, 110, 122) : case_in(c, 1, 40));
        }
    }
    return (weight){ p, type, n_rows, n_cols };
}
static dtype case_quant_type(op_case *c) { return (dtype)case_in(c, DTYPE_Q8_0, DTYPE_COUNT - 1); }

/* Whole blocks of each of the types, up to about `most` columns. */
static int32_t case_quant_cols(op_case *c, const dtype *types, int32_t n_types, int32_t most)
{
    int32_t block = 32;
    for (int32_t i = 0; i < n_types; i++) block = block > dtype_block_values(types[i]) ? block : dtype_block_values(types[i]);
    return block * case_in(c, 1, most > block ? most / block : 1);
}

/* --- batches --- */

typedef struct { int32_t ids[320], positions[320], seq_of_row[320], row_begin[6], state_slots[5], tables[5 * 8], logit_rows[1]; bool is_prefill[5]; ops_batch b; } case_batch;
#define CASE_BLOCKS 40                   /* blocks, and more than the state slots, of any batch */
#define CASE_SLOTS 9

static void case_batch_make(op_case *c, case_batch *cb, int32_t most_seqs, int32_t most_rows)
{
    int32_t n_seqs = case_in(c, c->large ? 2 : 0, most_seqs), blocks[CASE_BLOCKS], slots[CASE_SLOTS], used = 0, r = 0;
    for (int32_t i = 0; i < CASE_BLOCKS; i++) blocks[i] = i;
    for (int32_t i = CASE_BLOCKS - 1; i > 0; i--) { int32_t j = case_in(c, 0, i), t = blocks[i]; blocks[i] = blocks[j]; blocks[j] = t; }
    for (int32_t i = 0; i < CASE_SLOTS; i++) slots[i] = i;
    for (int32_t i = CASE_SLOTS - 1; i > 0; i--) { int32_t j = case_in(c, 0, i), t = slots[i]; slots[i] = slots[j]; slots[j] = t; }
    for (int32_t s = 0; s < n_seqs; s++) {
        bool prefill = cb->is_prefill[s] = case_in(c, 0, 2) > 0;
        int32_t n = prefill ? case_in(c, 1, most_rows) : 1, first = prefill ? 64 * case_in(c, 0, 4) : case_in(c, 0, 330);
        if (prefill && c->large) n = most_rows;
        cb->row_begin[s] = r;
        cb->state_slots[s] = slots[s];
        for (int32_t i = 0; i < 8; i++) cb->tables[s * 8 + i] = i <= (first + n - 1) / 64 ? blocks[used++] : -1;
        for (int32_t i = 0; i < n; i++, r++) { cb->positions[r] = first + i; cb->seq_of_row[r] = s; cb->ids[r] = 0; }
    }
    cb->row_begin[n_seqs] = r;
    cb->b = (ops_batch){ .n_rows = r, .n_seqs = n_seqs, .ids = cb->ids, .positions = cb->positions, .seq_of_row = cb->seq_of_row, .row_begin = cb->row_begin, .is_prefill = cb->is_prefill,
                           .state_slots = cb->state_slots, .block_tables = cb->tables, .table_stride = 8, .logit_rows = cb->logit_rows };
}

/* Row r alone, as a generated token. */
static ops_batch case_row(const ops_batch *b, int32_t r)
{
    static const int32_t zero[2] = { 0, 1 };
    static const bool decode = false;
    int32_t s = b->seq_of_row[r];
    return (ops_batch){ .n_rows = 1, .n_seqs = 1, .ids = b->ids + r, .positions = b->positions + r, .seq_of_row = zero, .row_begin = zero, .is_prefill = &decode, .state_slots = b->state_slots + s,
                        .block_tables = b->block_tables + s * b->table_stride, .table_stride = b->table_stride };
}

/* --- results --- */

static double *case_out(op_case *c, size_t n)
{
    c->out = realloc(c->out, (c->n_out + n + 1) * sizeof *c->out);
    assert_non_null(c->out);
    c->n_out += n;
    return c->out + c->n_out - n;
}
static void case_give(op_case *c, const float *v, size_t n)
{
    double *out = case_out(c, n);
    for (size_t i = 0; i < n; i++) out[i] = (double)v[i];
}

/* Rows in a call: all of them, or one. */
#define EACH_CALL(c, n_rows, r, n) for (int32_t r = 0, n = (c)->way == SPLIT && (n_rows) > 0 ? 1 : (n_rows); r < (n_rows) || (r == 0 && (n_rows) == 0); r += n > 0 ? n : 1)

static int32_t case_dim(op_case *c, int32_t most) { return case_in(c, 0, 3) ? case_in(c, 1, most) : 16 * case_in(c, 1, most / 16); }
static int32_t case_rows(op_case *c) { return c->large ? case_in(c, 40, 90) : case_in(c, 0, 9); }

/* --- the operations --- */

static void case_embed(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 200), ids[100];
    weight table = case_weight(c, 17, dim, 2.0f);
    for (int32_t i = 0; i < n_rows; i++) ids[i] = case_in(c, 0, 16);
    float scale = case_in(c, 0, 1) ? 1.0f : case_in(c, 0, 1) ? 8.0f : 11.3137083f;
    c->tolerance = scale == 11.3137083f ? 1e-6 : 0.0;
    if (c->way == REFERENCE) { ref_embed(case_out(c, (size_t)n_rows * (size_t)dim), &table, (double)scale, ids, n_rows); return; }
    float *y = case_blank(c, (size_t)(n_rows * dim));
    EACH_CALL(c, n_rows, r, n) {
        const ops_batch b = { .n_rows = n, .ids = ids + r };
        o->begin(o, &b);
        o->embed(o, y + r * dim, &table, scale, &b);
    }
    case_give(c, y, (size_t)(n_rows * dim));
}

static void case_rms_norm(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, c->large ? 2000 : 300), n_all = n_rows * dim;
    bool in_place = case_in(c, 0, 1);
    float w_add = (float)case_in(c, 0, 1);
    weight w = case_weight(c, 1, dim, 1.0f);
    float *x = case_floats(c, (size_t)n_all, 3.0f), *y = in_place ? x : case_blank(c, (size_t)n_all);
    if (c->way == REFERENCE) { ref_rms_norm(case_out(c, (size_t)n_all), x, &w, (double)w_add, (double)1e-6f, n_rows, dim); return; }
    EACH_CALL(c, n_rows, r, n) (in_place ? o->act_rms_norm : o->rms_norm)(o, y + r * dim, x + r * dim, &w, w_add, 1e-6f, n, dim);
    case_give(c, y, (size_t)n_all);
}

static void case_add_rms_norm(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 300), n_all = n_rows * dim;
    weight w = case_weight(c, 1, dim, 1.0f);
    float *x = case_floats(c, (size_t)n_all, 3.0f), *d = case_floats(c, (size_t)n_all, 3.0f), *y = case_blank(c, (size_t)n_all);
    if (c->way == REFERENCE) {
        double *out = case_out(c, 2 * (size_t)n_all);
        for (int32_t i = 0; i < n_all; i++) { x[i] += d[i]; out[n_all + i] = (double)x[i]; }
        ref_rms_norm(out, x, &w, 1.0, (double)1e-5f, n_rows, dim);
        return;
    }
    EACH_CALL(c, n_rows, r, n) o->add_rms_norm(o, y + r * dim, x + r * dim, d + r * dim, &w, 1.0f, 1e-5f, n, dim);
    case_give(c, y, (size_t)n_all);
    case_give(c, x, (size_t)n_all);
}

static void case_add(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 100), n_all = n_rows * dim;
    float *x = case_floats(c, (size_t)n_all, 3.0f), *d = case_floats(c, (size_t)n_all, 3.0f);
    c->tolerance = 0.0;
    if (c->way == REFERENCE)
        for (int32_t i = 0; i < n_all; i++) x[i] += d[i];
    else EACH_CALL(c, n_rows, r, n) o->add(o, x + r * dim, d + r * dim, n, dim);
    case_give(c, x, (size_t)n_all);
}

static void case_linear(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_in = case_dim(c, 400), n_out = case_in(c, 1, c->large ? 150 : 40);
    weight w = case_weight(c, n_out, n_in, 1.0f), bias = case_weight(c, 1, n_out, 1.0f);
    bool with_bias = case_in(c, 0, 1);
    float *x = case_floats(c, (size_t)(n_rows * n_in), 1.0f), *y = case_blank(c, (size_t)(n_rows * n_out));
    if (c->way == REFERENCE) { ref_linear(case_out(c, (size_t)(n_rows * n_out)), x, &w, with_bias ? &bias : NULL, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) o->linear(o, y + r * n_out, x + r * n_in, &w, with_bias ? &bias : NULL, n);
    case_give(c, y, (size_t)(n_rows * n_out));
}

static void case_gather(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 100), rows[100];
    float *x = case_floats(c, (size_t)(12 * dim), 3.0f), *y = case_blank(c, (size_t)(n_rows * dim));
    for (int32_t i = 0; i < n_rows; i++) rows[i] = case_in(c, 0, 11);
    c->tolerance = 0.0;
    if (c->way == REFERENCE)
        for (int32_t i = 0; i < n_rows * dim; i++) y[i] = x[rows[i / dim] * dim + i % dim];
    else EACH_CALL(c, n_rows, r, n) {
        const ops_batch b = { .n_rows = 12, .logit_rows = rows + r, .n_logits = n };
        o->begin(o, &b);
        o->gather(o, y + r * dim, x, dim, &b);
    }
    case_give(c, y, (size_t)(n_rows * dim));
}

static void case_head_norm_rope(ops *o, op_case *c)
{
    case_batch cb;
    case_batch_make(c, &cb, 4, 64);
    int32_t n_heads = case_in(c, 1, 5), head_dim = 2 * case_in(c, 1, 70), n_rot = 2 * case_in(c, 0, head_dim / 2), gap = case_in(c, 0, 7);
    int32_t head_stride = head_dim + gap, stride = n_heads * head_stride + gap, n_rows = cb.b.n_rows;
    float inv_freq[70];
    for (int32_t i = 0; i < n_rot / 2; i++) inv_freq[i] = fl_powf(10000.0f, -2.0f * (float)i / (float)n_rot);
    float *cos_table = case_blank(c, (size_t)(400 * n_rot / 2)), *sin_table = case_blank(c, (size_t)(400 * n_rot / 2));
    rope_fill(cos_table, sin_table, inv_freq, n_rot, 0, 400, 1.0f);
    ops_rope rope = { cos_table, sin_table, n_rot, 400 };
    weight w = case_weight(c, 1, head_dim, 1.0f);
    if (case_in(c, 0, 2) == 0) w.data = NULL;
    float *x = case_floats(c, (size_t)(n_rows * stride), 2.0f);
    if (c->way == REFERENCE) { ref_head_norm_rope(case_out(c, (size_t)(n_rows * n_heads * head_dim)), x, stride, head_stride, n_heads, head_dim, &w, 1.0, (double)1e-6f, &rope, &cb.b); return; }
    EACH_CALL(c, n_rows, r, n) {
        ops_batch b = c->way == SPLIT && n_rows > 0 ? case_row(&cb.b, r) : cb.b;
        o->begin(o, &b);
        o->head_norm_rope(o, x + r * stride, stride, head_stride, n_heads, head_dim, &w, 1.0f, 1e-6f, &rope, &b);
    }
    for (int32_t h = 0; h < n_rows * n_heads; h++) case_give(c, x + h / n_heads * stride + h % n_heads * head_stride, (size_t)head_dim);
}

static void case_kv_write(ops *o, op_case *c)
{
    case_batch cb;
    case_batch_make(c, &cb, 4, 64);
    int32_t n_heads = case_in(c, 1, 3), head_dim = case_dim(c, 64), stride = n_heads * head_dim + case_in(c, 0, 5), n_rows = cb.b.n_rows;
    size_t n_kv = (size_t)CASE_BLOCKS * 64 * (size_t)(n_heads * head_dim);
    float *k = case_floats(c, (size_t)(n_rows * stride), 1.0f), *v = case_floats(c, (size_t)(n_rows * stride), 1.0f);
    ops_kv kv = { case_blank(c, n_kv), case_blank(c, n_kv), n_heads, head_dim };
    c->tolerance = 0.0;
    if (c->way == REFERENCE) {
        for (int32_t r = 0; r < n_rows; r++)
            for (int32_t i = 0; i < n_heads * head_dim; i++) {
                int32_t block = cb.tables[cb.seq_of_row[r] * 8 + cb.positions[r] / 64];
                int32_t at = ((block * n_heads + i / head_dim) * 64 + cb.positions[r] % 64) * head_dim + i % head_dim;
                kv.k[at] = k[r * stride + i];
                kv.v[at] = v[r * stride + i];
            }
    } else EACH_CALL(c, n_rows, r, n) {
        ops_batch b = c->way == SPLIT && n_rows > 0 ? case_row(&cb.b, r) : cb.b;
        o->begin(o, &b);
        o->kv_write(o, &kv, k + r * stride, stride, v + r * stride, stride, &b);
    }
    case_give(c, kv.k, n_kv);
    case_give(c, kv.v, n_kv);
}

static void case_attention(ops *o, op_case *c)
{
    case_batch cb;
    case_batch_make(c, &cb, 4, c->large ? 64 : 20);
    int32_t n_kv_heads = case_in(c, 1, 2), group = case_in(c, 1, 5), n_heads = n_kv_heads * group, head_dim = case_in(c, 0, 5) ? case_dim(c, 96) : 256;
    int32_t gap = case_in(c, 0, 3), head_stride = head_dim + gap, stride = n_heads * head_stride + gap, n_rows = cb.b.n_rows, window = case_in(c, 0, 2) ? 0 : case_in(c, 1, 200);
    float scale = 1.0f / sqrtf((float)head_dim);
    size_t n_kv = (size_t)CASE_BLOCKS * 64 * (size_t)(n_kv_heads * head_dim), n_out = (size_t)(n_rows * n_heads * head_dim);
    ops_kv kv = { case_blank(c, n_kv), case_blank(c, n_kv), n_kv_heads, head_dim };      /* positions nobody wrote stay NaN */
    for (int32_t s = 0; s < cb.b.n_seqs; s++)
        for (int32_t p = 0; p <= cb.positions[cb.row_begin[s + 1] - 1]; p++)
            for (int32_t i = 0; i < n_kv_heads * head_dim; i++) {
                int32_t at = ((cb.tables[s * 8 + p / 64] * n_kv_heads + i / head_dim) * 64 + p % 64) * head_dim + i % head_dim;
                kv.k[at] = case_float(c, 3.0f);
                kv.v[at] = case_float(c, 1.0f);
            }
    float *q = case_floats(c, (size_t)(n_rows * stride), 3.0f), *y = case_blank(c, n_out);
    if (c->way == REFERENCE) { ref_attention(case_out(c, n_out), q, stride, head_stride, n_heads, &kv, (double)scale, window, &cb.b); return; }
    EACH_CALL(c, n_rows, r, n) {
        ops_batch b = c->way == SPLIT && n_rows > 0 ? case_row(&cb.b, r) : cb.b;
        o->begin(o, &b);
        o->attention(o, y + r * n_heads * head_dim, q + r * stride, stride, head_stride, n_heads, &kv, scale, window, &b);
    }
    case_give(c, y, n_out);
}

static void case_sigmoid_gate(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_heads = case_in(c, 1, 6), head_dim = case_dim(c, 100), gap = case_in(c, 0, 9), dim = n_heads * head_dim;
    int32_t head_stride = head_dim + gap, stride = n_heads * head_stride + gap;
    float *x = case_floats(c, (size_t)(n_rows * dim), 3.0f), *gate = case_floats(c, (size_t)(n_rows * stride), 9.0f);
    if (c->way == REFERENCE) { ref_sigmoid_gate(case_out(c, (size_t)(n_rows * dim)), x, gate, stride, head_stride, n_heads, head_dim, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) o->sigmoid_gate(o, x + r * dim, gate + r * stride, stride, head_stride, n_heads, head_dim, n);
    case_give(c, x, (size_t)(n_rows * dim));
}

static void case_conv_silu(ops *o, op_case *c)
{
    case_batch cb;
    case_batch_make(c, &cb, 4, 64);
    int32_t n_channels = case_dim(c, c->large ? 300 : 70), width = case_in(c, 1, 5), stride = n_channels + case_in(c, 0, 5), n_rows = cb.b.n_rows;
    size_t n_state = (size_t)(CASE_SLOTS * n_channels * (width - 1)), n_out = (size_t)(n_rows * n_channels);
    weight w = case_weight(c, n_channels, width, 1.0f);
    float *x = case_floats(c, (size_t)(n_rows * stride), 2.0f), *state = case_floats(c, n_state, 2.0f), *y = case_blank(c, n_out);
    if (c->way == REFERENCE) {
        double *out = case_out(c, n_out + n_state), *advanced = out + n_out;
        for (size_t i = 0; i < n_state; i++) advanced[i] = (double)state[i];
        ref_conv_silu(out, x, stride, &w, advanced, n_channels, width, &cb.b);
        return;
    }
    EACH_CALL(c, n_rows, r, n) {
        ops_batch b = c->way == SPLIT && n_rows > 0 ? case_row(&cb.b, r) : cb.b;
        o->begin(o, &b);
        o->conv_silu(o, y + r * n_channels, x + r * stride, stride, &w, state, n_channels, width, &b);
    }
    case_give(c, y, n_out);
    case_give(c, state, n_state);
}

static void case_gated_delta(ops *o, op_case *c)
{
    case_batch cb;
    case_batch_make(c, &cb, 3, c->large ? 64 : 12);
    int32_t n_k = case_in(c, 1, 3), n_v = n_k * case_in(c, 1, 3), dk = case_dim(c, 48), dv = case_dim(c, 150), n_rows = cb.b.n_rows, dim = 2 * n_k * dk + n_v * dv;
    if (case_in(c, 0, 5) == 0) dk = 16 * case_in(c, 8, 16), dv = 16, dim = 2 * n_k * dk + n_v * dv;
    size_t n_state = (size_t)(CASE_SLOTS * n_v * dk * dv), n_out = (size_t)(n_rows * n_v * dv);
    const bool is_tiled = case_in(c, 0, 2) == 0;
    weight a_log = case_weight(c, 1, n_v, 1.0f), dt_bias = case_weight(c, 1, n_v, 1.0f);
    float *qkv = case_floats(c, (size_t)(n_rows * dim), 1.0f), *a = case_floats(c, (size_t)(n_rows * n_v), 3.0f), *beta = case_floats(c, (size_t)(n_rows * n_v), 3.0f);
    float *state = case_floats(c, n_state, 0.5f), *y = case_blank(c, n_out);
    if (c->way == REFERENCE) {
        double *out = case_out(c, n_out + n_state), *advanced = out + n_out;
        for (size_t i = 0; i < n_state; i++) advanced[i] = (double)state[i];
        ref_gated_delta(out, qkv, a, beta, &a_log, &dt_bias, advanced, n_k, n_v, is_tiled, dk, dv, &cb.b);
        return;
    }
    EACH_CALL(c, n_rows, r, n) {
        ops_batch b = c->way == SPLIT && n_rows > 0 ? case_row(&cb.b, r) : cb.b;
        o->begin(o, &b);
        o->gated_delta(o, y + r * n_v * dv, qkv + r * dim, a + r * n_v, beta + r * n_v, &a_log, &dt_bias, state, n_k, n_v, is_tiled, dk, dv, &b);
    }
    case_give(c, y, n_out);
    case_give(c, state, n_state);
}

static void case_gated_rms_norm(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_heads = case_in(c, 1, 4), dim = case_dim(c, 140), row = n_heads * dim;
    weight w = case_weight(c, 1, dim, 1.0f);
    float *x = case_floats(c, (size_t)(n_rows * row), 3.0f), *z = case_floats(c, (size_t)(n_rows * row), 3.0f);
    if (c->way == REFERENCE) { ref_gated_rms_norm(case_out(c, (size_t)(n_rows * row)), x, z, &w, (double)1e-6f, n_rows, n_heads, dim); return; }
    EACH_CALL(c, n_rows, r, n) o->gated_rms_norm(o, x + r * row, z + r * row, &w, 1e-6f, n, n_heads, dim);
    case_give(c, x, (size_t)(n_rows * row));
}

static void case_swiglu(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 600), n_all = n_rows * dim;
    float *gate = case_floats(c, (size_t)n_all, 9.0f), *up = case_floats(c, (size_t)n_all, 3.0f), *y = case_in(c, 0, 1) ? gate : case_blank(c, (size_t)n_all);
    if (c->way == REFERENCE) { ref_swiglu(case_out(c, (size_t)n_all), gate, up, n_rows, dim); return; }
    EACH_CALL(c, n_rows, r, n) o->swiglu(o, y + r * dim, gate + r * dim, up + r * dim, n, dim);
    case_give(c, y, (size_t)n_all);
}

/* Logits of a random order with steps that no rounding can turn, so that the reference chooses the same; some of them equal. */
static void case_moe_route(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_experts = case_in(c, 1, 200), top_k = case_in(c, 1, n_experts < 10 ? n_experts : 10), ids[1000];
    bool renormalize = case_in(c, 0, 1);
    float *x = case_floats(c, (size_t)(n_rows * n_experts), 4.0f), *weights = case_blank(c, (size_t)(n_rows * top_k));
    for (int32_t i = 0; i < n_rows * n_experts; i++) x[i] = isfinite(x[i]) && fabsf(x[i]) < 10.0f ? rintf(x[i] * 16.0f) / 16.0f : x[i];
    if (c->way == REFERENCE) {
        double *out = case_out(c, 2 * (size_t)(n_rows * top_k));
        ref_moe_route(ids, out, x, n_rows, n_experts, top_k, renormalize);
        for (int32_t i = 0; i < n_rows * top_k; i++) out[n_rows * top_k + i] = ids[i];
        return;
    }
    EACH_CALL(c, n_rows, r, n) o->moe_route(o, ids + r * top_k, weights + r * top_k, x + r * n_experts, n, n_experts, top_k, renormalize);
    case_give(c, weights, (size_t)(n_rows * top_k));
    double *out = case_out(c, (size_t)(n_rows * top_k));
    for (int32_t i = 0; i < n_rows * top_k; i++) out[i] = ids[i];
}

static void case_moe_experts(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 100), ff = case_dim(c, 70), n_experts = case_in(c, 1, 9), top_k = case_in(c, 1, n_experts < 4 ? n_experts : 4), ids[400];
    weight gate[9], up[9], down[9];
    for (int32_t e = 0; e < n_experts; e++) {
        gate[e] = case_weight(c, ff, dim, 0.5f);
        up[e] = case_weight(c, ff, dim, 0.5f);
        down[e] = case_weight(c, dim, ff, 0.5f);
    }
    for (int32_t i = 0; i < n_rows * top_k; i++) ids[i] = (case_in(c, 0, n_experts - 1));
    float *x = case_floats(c, (size_t)(n_rows * dim), 1.0f), *weights = case_floats(c, (size_t)(n_rows * top_k), 1.0f), *y = case_blank(c, (size_t)(n_rows * dim));
    c->tolerance = 1e-4;
    if (c->way == REFERENCE) { ref_moe_experts(case_out(c, (size_t)(n_rows * dim)), x, ids, weights, gate, up, down, n_rows, top_k); return; }
    void *scratch = case_buffer(c, o->moe_scratch_bytes(o, n_rows, dim, ff, n_experts, top_k), 0);
    EACH_CALL(c, n_rows, r, n) o->moe_experts(o, y + r * dim, x + r * dim, ids + r * top_k, weights + r * top_k, gate, up, down, n, n_experts, top_k, scratch);
    case_give(c, y, (size_t)(n_rows * dim));
}

static void case_add_sigmoid_scaled(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 200), n_all = n_rows * dim;
    float *x = case_floats(c, (size_t)n_all, 3.0f), *y = case_floats(c, (size_t)n_all, 3.0f), *g = case_floats(c, (size_t)n_rows, 5.0f);
    if (c->way == REFERENCE) { ref_add_sigmoid_scaled(case_out(c, (size_t)n_all), x, y, g, n_rows, dim); return; }
    EACH_CALL(c, n_rows, r, n) o->add_sigmoid_scaled(o, x + r * dim, y + r * dim, g + r, n, dim);
    case_give(c, x, (size_t)n_all);
}

static void case_log_sum_exp(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_vocab = case_dim(c, c->large ? 3000 : 500);
    float *x = case_floats(c, (size_t)(n_rows * n_vocab), 20.0f), *lse = case_blank(c, (size_t)n_rows);
    if (c->way == REFERENCE) { ref_log_sum_exp(case_out(c, (size_t)n_rows), x, n_rows, n_vocab); return; }
    EACH_CALL(c, n_rows, r, n) o->log_sum_exp(o, lse + r, x + r * n_vocab, n, n_vocab);
    case_give(c, lse, (size_t)n_rows);
}

static void case_softplus_gate(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_heads = case_in(c, 1, 6), head_dim = case_dim(c, 100), dim = n_heads * head_dim;
    bool gate_per_head = case_in(c, 0, 1);
    int32_t stride = gate_per_head ? n_heads : dim;
    float *x = case_floats(c, (size_t)(n_rows * dim), 3.0f), *gate = case_floats(c, (size_t)(n_rows * stride), 30.0f);
    if (c->way == REFERENCE) { ref_softplus_gate(case_out(c, (size_t)(n_rows * dim)), x, gate, gate_per_head, n_heads, head_dim, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) o->softplus_gate(o, x + r * dim, gate + r * stride, gate_per_head, n_heads, head_dim, n);
    case_give(c, x, (size_t)(n_rows * dim));
}

static void case_geglu(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 600), n_all = n_rows * dim;
    float *gate = case_floats(c, (size_t)n_all, 9.0f), *up = case_floats(c, (size_t)n_all, 3.0f), *y = case_in(c, 0, 1) ? gate : case_blank(c, (size_t)n_all);
    if (c->way == REFERENCE) { ref_geglu(case_out(c, (size_t)n_all), gate, up, n_rows, dim); return; }
    EACH_CALL(c, n_rows, r, n) o->geglu(o, y + r * dim, gate + r * dim, up + r * dim, n, dim);
    case_give(c, y, (size_t)n_all);
}

static void case_soft_cap(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), dim = case_dim(c, 300);
    float cap = (float)case_in(c, 1, 60) * 0.5f, *x = case_floats(c, (size_t)(n_rows * dim), 40.0f);
    if (c->way == REFERENCE) { ref_soft_cap(case_out(c, (size_t)(n_rows * dim)), x, (double)cap, n_rows, dim); return; }
    EACH_CALL(c, n_rows, r, n) o->soft_cap(o, x + r * dim, cap, n, dim);
    case_give(c, x, (size_t)(n_rows * dim));
}

/* Logits whose sigmoids lie apart and biases that are multiples of what those never differ by, so that no rounding turns the order; some of them equal. */
static void case_moe_route_sigmoid(ops *o, op_case *c)
{
    int32_t n_rows = case_rows(c), n_experts = case_in(c, 1, 200), top_k = case_in(c, 1, n_experts < 10 ? n_experts : 10), ids[1000];
    float scale = (float)case_in(c, 1, 5) * 0.5f, *x = case_floats(c, (size_t)(n_rows * n_experts), 4.0f), *weights = case_blank(c, (size_t)(n_rows * top_k));
    weight bias = case_weight(c, 1, n_experts, 1.0f);
    for (int32_t i = 0; i < n_rows * n_experts; i++) x[i] = isfinite(x[i]) && fabsf(x[i]) < 10.0f ? rintf(x[i] * 2.0f) / 2.0f : x[i];
    if (!c->specials && bias.type == DTYPE_F32) {
        float *b = case_floats(c, (size_t)n_experts, 4.0f);
        for (int32_t i = 0; i < n_experts; i++) b[i] = rintf(b[i]) * 2.0f;
        bias.data = b;
    } else if (!c->specials) {
        float *b = case_blank(c, (size_t)n_experts);
        for (int32_t i = 0; i < n_experts; i++) b[i] = 0.0f;
        bias = (weight){ b, DTYPE_F32, 1, n_experts };
    }
    if (c->way == REFERENCE) {
        double *out = case_out(c, 2 * (size_t)(n_rows * top_k));
        ref_moe_route_sigmoid(ids, out, x, &bias, (double)scale, n_rows, n_experts, top_k);
        for (int32_t i = 0; i < n_rows * top_k; i++) out[n_rows * top_k + i] = ids[i];
        return;
    }
    EACH_CALL(c, n_rows, r, n) o->moe_route_sigmoid(o, ids + r * top_k, weights + r * top_k, x + r * n_experts, &bias, scale, n, n_experts, top_k);
    case_give(c, weights, (size_t)(n_rows * top_k));
    double *out = case_out(c, (size_t)(n_rows * top_k));
    for (int32_t i = 0; i < n_rows * top_k; i++) out[i] = ids[i];
}

static void case_quant_embed(ops *o, op_case *c)
{
    dtype type = case_quant_type(c);
    int32_t n_rows = case_rows(c), dim = case_quant_cols(c, &type, 1, 600), ids[100];
    weight table = case_quant(c, type, 7, dim);
    float scale = case_in(c, 0, 1) ? 1.0f : 8.0f, *y = case_blank(c, (size_t)(n_rows * dim));
    for (int32_t i = 0; i < n_rows; i++) ids[i] = case_in(c, 0, 6);
    c->tolerance = 0.0;
    if (c->way == REFERENCE) { ref_embed(case_out(c, (size_t)(n_rows * dim)), &table, (double)scale, ids, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) {
        const ops_batch b = { .n_rows = n, .ids = ids + r };
        o->begin(o, &b);
        o->embed(o, y + r * dim, &table, scale, &b);
    }
    case_give(c, y, (size_t)(n_rows * dim));
}

static void case_quant_linear(ops *o, op_case *c)
{
    dtype type = case_quant_type(c);
    int32_t n_rows = c->large && case_in(c, 0, 5) == 0 ? case_in(c, 250, 300) : case_rows(c), n_in = case_quant_cols(c, &type, 1, c->large ? 2600 : 1300), n_out = case_in(c, 1, c->large ? 150 : 70);
    weight w = case_quant(c, type, n_out, n_in), bias = case_weight(c, 1, n_out, 1.0f);
    bool with_bias = case_in(c, 0, 1);
    float *x = case_floats(c, (size_t)(n_rows * n_in), 1.0f), *y = case_blank(c, (size_t)(n_rows * n_out));
    if (!c->specials && n_rows > 0) memset(x, 0, 32 * sizeof *x);
    if (c->way == REFERENCE) { ref_linear(case_out(c, (size_t)(n_rows * n_out)), x, &w, with_bias ? &bias : NULL, n_rows); return; }
    EACH_CALL(c, n_rows, r, n) o->linear(o, y + r * n_out, x + r * n_in, &w, with_bias ? &bias : NULL, n);
    case_give(c, y, (size_t)(n_rows * n_out));
}

static void case_quant_moe_experts(ops *o, op_case *c)
{
    dtype types[3] = { case_quant_type(c), case_quant_type(c), case_quant_type(c) };
    int32_t n_rows = case_rows(c), dim = case_quant_cols(c, types, 2, 100), ff = case_quant_cols(c, types + 2, 1, 100), n_experts = case_in(c, 1, 5), top_k = case_in(c, 1, n_experts < 4 ? n_experts : 4), ids[400];
    bool plain_down = case_in(c, 0, 3) == 0;
    weight gate[5], up[5], down[5];
    for (int32_t e = 0; e < n_experts; e++) {
        gate[e] = case_quant(c, types[0], ff, dim);
        up[e] = case_quant(c, types[1], ff, dim);
        down[e] = plain_down ? case_weight(c, dim, ff, 0.5f) : case_quant(c, types[2], dim, ff);
    }
    for (int32_t i = 0; i < n_rows * top_k; i++) ids[i] = case_in(c, 0, n_experts - 1);
    float *x = case_floats(c, (size_t)(n_rows * dim), 1.0f), *weights = case_floats(c, (size_t)(n_rows * top_k), 1.0f), *y = case_blank(c, (size_t)(n_rows * dim));
    c->tolerance = 2e-4;                 /* a hidden value between two whole numbers may be rounded to the other one */
    if (c->way == REFERENCE) { ref_moe_experts(case_out(c, (size_t)(n_rows * dim)), x, ids, weights, gate, up, down, n_rows, top_k); return; }
    void *scratch = case_buffer(c, o->moe_scratch_bytes(o, n_rows, dim, ff, n_experts, top_k), 0);
    EACH_CALL(c, n_rows, r, n) o->moe_experts(o, y + r * dim, x + r * dim, ids + r * top_k, weights + r * top_k, gate, up, down, n, n_experts, top_k, scratch);
    case_give(c, y, (size_t)(n_rows * dim));
}

typedef struct { const char *name; void (*run)(ops *o, op_case *c); } case_kind;
static const case_kind case_kinds[] = {
    { "embed", case_embed }, { "rms_norm", case_rms_norm }, { "add_rms_norm", case_add_rms_norm }, { "add", case_add }, { "linear", case_linear },
    { "gather", case_gather }, { "head_norm_rope", case_head_norm_rope }, { "kv_write", case_kv_write }, { "attention", case_attention },
    { "sigmoid_gate", case_sigmoid_gate }, { "conv_silu", case_conv_silu }, { "gated_delta", case_gated_delta }, { "gated_rms_norm", case_gated_rms_norm },
    { "swiglu", case_swiglu }, { "moe_route", case_moe_route }, { "moe_experts", case_moe_experts }, { "add_sigmoid_scaled", case_add_sigmoid_scaled },
    { "log_sum_exp", case_log_sum_exp }, { "softplus_gate", case_softplus_gate }, { "geglu", case_geglu }, { "soft_cap", case_soft_cap },
    { "moe_route_sigmoid", case_moe_route_sigmoid },
    { "quant_embed", case_quant_embed }, { "quant_linear", case_quant_linear }, { "quant_moe_experts", case_quant_moe_experts },
};
enum { CASE_KINDS = sizeof case_kinds / sizeof *case_kinds, QUANT_KINDS = 3 };            /* the last ones */

/* A case of values that `rounds` can hold. The caller frees the result's `out`. */
static op_case case_run_rounded(ops *o, const case_kind *kind, uint64_t seed, case_way way, bool specials, bool large, dtype rounds)
{
    op_case c = { .random = seed, .way = way, .specials = specials, .large = large, .rounds = rounds, .tolerance = 3e-5 };
    kind->run(o, &c);
    case_end(&c);
    return c;
}

__attribute__((unused)) static op_case case_run(ops *o, const case_kind *kind, uint64_t seed, case_way way, bool specials, bool large)
{
    return case_run_rounded(o, kind, seed, way, specials, large, DTYPE_F32);
}

/* --- the forms of the CPU kernels that run here --- */

#define CASE_FORMS 5
#define CASE_QUANT_COLS 3000
typedef struct { ops *forms[CASE_FORMS]; int32_t n; } case_forms;
__attribute__((unused)) static case_forms case_forms_open(int32_t n_threads)
{
    static const char *const names[CASE_FORMS] = { "scalar", "avx2", "avxvnni", "avx512", "avx512vnni" };
    static bool was_said = false;
    case_forms f = { { NULL }, 0 };
    for (int32_t i = 0; i < CASE_FORMS; i++) {
        fl_err err;
        setenv("TOKENFLEET_KERNELS", names[i], 1);
        if (ops_cpu_open(&f.forms[f.n], n_threads, &err) == FL_OK) {
            ops *o = f.forms[f.n++];
            assert_int_equal(o->quant_room(o, CASE_QUANT_COLS, &err), FL_OK);
        }
        else if (!was_said) print_message("[ NOTE     ] %s\n", err.text);
    }
    was_said = true;
    unsetenv("TOKENFLEET_KERNELS");
    assert_true(f.n > 0);
    return f;
}
__attribute__((unused)) static void case_forms_close(case_forms *f)
{
    for (int32_t i = 0; i < f->n; i++) f->forms[i]->close(f->forms[i]);
}

#endif
