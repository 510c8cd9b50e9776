/* gpu_case.h - what the bit tests and benches of single kernels on the GPU share: values that depend on what they are of and not on where they lie,
 * activations of each type, PASS and FAIL lines.
 * Errors   a failing call of CUDA ends the program: nothing after it could be trusted. */
#ifndef TESTS_GPU_GPU_CASE_H
#define TESTS_GPU_GPU_CASE_H

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/cuda_module.h"
extern "C" {
#include "kernels/ops_ref.h"
}

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static int n_passed, n_failed;

/* One line a case; what was seen is printed with failures only. */
static void case_result(bool is_good, const char *name, const char *seen)
{
    if (is_good) n_passed++;
    else n_failed++;
    if (is_good) printf("PASS %s\n", name);
    else printf("FAIL %s: %s\n", name, seen);
    fflush(stdout);
}
static int case_end(void)
{
    printf("%d passed, %d failed\n", n_passed, n_failed);
    return n_failed > 0;
}

static void must(fl_status st, const fl_err &err)
{
    if (st == FL_OK) return;
    printf("FAIL %s\n", err.text);
    exit(1);
}

/* ---- values ---- */

static uint64_t mix(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}
static uint64_t key_of(uint64_t a, uint64_t b, uint64_t c, uint64_t d) { return mix(mix(mix(mix(a) ^ b) ^ c) ^ d); }
/* In (-reach, reach), the same for the same key. */
static float value_of(uint64_t key, float reach) { return ((float)(mix(key) >> 40) * 0x1p-23f - 1.0f) * reach; }

/* ---- activations: an element type by its name ---- */

typedef enum { ACT_F32, ACT_BF16, ACT_F16 } act_type;
static const char *act_name(act_type t) { return t == ACT_F32 ? "f32" : t == ACT_BF16 ? "bf16" : "f16"; }
static size_t act_size(act_type t) { return t == ACT_F32 ? 4 : 2; }
static float act_round(act_type t, float v) { return t == ACT_F32 ? v : t == ACT_BF16 ? __bfloat162float(__float2bfloat16_rn(v)) : __half2float(__float2half_rn(v)); }

/* Device memory of n activations with the values of `from`. */
static act *act_put(ops *o, act_type t, const std::vector<float> &from)
{
    std::vector<uint16_t> half(t == ACT_F32 ? 0 : from.size());
    for (size_t i = 0; i < half.size(); i++) {
        const __nv_bfloat16 b = __float2bfloat16_rn(from[i]);
        const __half h = __float2half_rn(from[i]);
        memcpy(&half[i], t == ACT_BF16 ? (const void *)&b : (const void *)&h, 2);
    }
    void *p = NULL;
    fl_err err;
    must(o->take(o, &p, from.size() * act_size(t) + 256, "a test", &err), err);
    o->upload(o, p, t == ACT_F32 ? (const void *)from.data() : (const void *)half.data(), from.size() * act_size(t));
    return (act *)p;
}
static std::vector<float> act_get(ops *o, act_type t, const act *from, size_t n)
{
    std::vector<float> to(n);
    std::vector<uint16_t> half(t == ACT_F32 ? 0 : n);
    o->download(o, t == ACT_F32 ? (void *)to.data() : (void *)half.data(), from, n * act_size(t));
    for (size_t i = 0; i < half.size(); i++) {
        __nv_bfloat16 b;
        __half h;
        memcpy(&b, &half[i], 2);
        memcpy(&h, &half[i], 2);
        to[i] = t == ACT_BF16 ? __bfloat162float(b) : __half2float(h);
    }
    return to;
}
static float *floats_put(ops *o, const std::vector<float> &from) { return (float *)act_put(o, ACT_F32, from); }

/* ---- an ops whose attention, delta, products and experts are of type t, also where the GPU would choose another ---- */

static ops *case_open(act_type t)
{
    ops *o = NULL;
    fl_err err;
    const fl_status st = cuda_ops_open(&o, 0, t == ACT_F32 ? CUDA_F32 : CUDA_16_BIT, &err);
    if (st == FL_NOT_FOUND) {
        printf("skipped: %s\n", err.text);
        exit(77);
    }
    must(st, err);
    if (t == ACT_F16) {
        attention_close(cuda_of(o));
        delta_close(cuda_of(o));
        must(attention_install<__half>(cuda_of(o), &err), err);
        must(delta_install<__half>(cuda_of(o), &err), err);
        must(linear_install<__half>(cuda_of(o), &err), err);
        must(moe_install<__half>(cuda_of(o), &err), err);
    }
    return o;
}

/* ---- a step: rows of some sequences ---- */

typedef struct { int32_t id, first, n_rows; bool is_prefill; int32_t slot; } piece;      /* id names the sequence: its values depend on it */

struct step_batch {
    std::vector<int32_t> ids, positions, seq_of_row, row_begin, slots, tables;
    std::vector<char> is_prefill;
    ops_batch b;
};

/* Block j of sequence id lies where `place` says. */
template <typename Place> static void step_make(step_batch &s, const std::vector<piece> &pieces, int32_t table_stride, Place place)
{
    s = step_batch();
    for (size_t i = 0; i < pieces.size(); i++) {
        const piece &p = pieces[i];
        s.row_begin.push_back((int32_t)s.positions.size());
        s.slots.push_back(p.slot);
        s.is_prefill.push_back(p.is_prefill);
        for (int32_t j = 0; j < table_stride; j++) s.tables.push_back(j * OPS_BLOCK_TOKENS < p.first + p.n_rows ? place(p.id, j) : -1);
        for (int32_t r = 0; r < p.n_rows; r++) {
            s.ids.push_back(0);
            s.positions.push_back(p.first + r);
            s.seq_of_row.push_back((int32_t)i);
        }
    }
    s.row_begin.push_back((int32_t)s.positions.size());
    s.b = ops_batch();
    s.b.n_rows = (int32_t)s.positions.size();
    s.b.n_seqs = (int32_t)pieces.size();
    s.b.ids = s.ids.data();
    s.b.positions = s.positions.data();
    s.b.seq_of_row = s.seq_of_row.data();
    s.b.row_begin = s.row_begin.data();
    s.b.is_prefill = (const bool *)s.is_prefill.data();
    s.b.state_slots = s.slots.data();
    s.b.block_tables = s.tables.data();
    s.b.table_stride = table_stride;
}

/* Where two lists of values differ, in their bits (NaNs of the same bits are equal). True when they are the same. */
static bool same_bits(const std::vector<float> &a, const std::vector<float> &b, char *seen, size_t n_seen)
{
    if (a.size() != b.size()) { snprintf(seen, n_seen, "%zu values against %zu", a.size(), b.size()); return false; }
    size_t n = 0, at = 0;
    for (size_t i = 0; i < a.size(); i++)
        if (memcmp(&a[i], &b[i], 4) != 0 && n++ == 0) at = i;
    if (n > 0) snprintf(seen, n_seen, "%zu of %zu values differ, first [%zu]: %.9g against %.9g", n, a.size(), at, (double)a[at], (double)b[at]);
    return n == 0;
}

/* |got - want| <= tolerance * max(1, |want|) everywhere and ||got - want|| <= tolerance / 4 * ||want||; no NaN unless wanted. */
static bool near_reference(const std::vector<float> &got, const std::vector<double> &want, double tolerance, char *seen, size_t n_seen)
{
    double worst = -1.0, error = 0.0, norm = 0.0;
    size_t at = 0;
    for (size_t i = 0; i < want.size(); i++) {
        const double d = fabs((double)got[i] - want[i]), relative = isfinite((double)got[i]) ? d / fmax(1.0, fabs(want[i])) : INFINITY;
        if (relative > worst) { worst = relative; at = i; }
        error += d * d;
        norm += want[i] * want[i];
    }
    const double whole = norm > 0.0 ? sqrt(error / norm) : 0.0;
    snprintf(seen, n_seen, "worst [%zu of %zu]: %.9g, want %.9g; %.3g of the norm", at, want.size(), want.empty() ? 0.0 : (double)got[at], want.empty() ? 0.0 : want[at], whole);
    return !(worst > tolerance) && whole <= tolerance;
}

#endif
