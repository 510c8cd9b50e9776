/* cpu_attention.c - softmax attention over paged keys and values.
 *
 * A query meets the KV in tiles of 64 at absolute positions. Within a tile: scores (dot products), their maximum m, p = exp(score - m), l = sum p
 * (lane j mod 16, then the tree), o = sum p v with positions ascending. Tiles are merged in ascending order as in online softmax (Milakov &
 * Gimelshein 2018, arXiv:1805.02867): M = max(m, m'), o = o exp(m - M) + o' exp(m' - M), l likewise. All of it depends on the query and its own
 * positions alone, so a prompt's row and a generated row have the same bits: on the CPU prefill and decode form are one.
 *
 * Up to 16 queries that share a sequence and a KV head go through a tile together and share its loads. Their ranges may differ (the diagonal of a
 * prompt, a window): scores outside a query's own range are dropped unread, and p v outside the range they share is done query by query. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_math.h"

#define QUERIES 16
#define ITEM_ROWS 8                      /* rows of the batch a work item covers, for one KV head */
#define TILE OPS_BLOCK_TOKENS

#if defined(LANES_AVX512)                /* p v: queries by vectors held in registers */
#define PV_Q 4
#define PV_D 4
#elif defined(LANES_AVX2)
#define PV_Q 2
#define PV_D 2
#else
#define PV_Q 1
#define PV_D 1
#endif

typedef struct {
    float *out; const float *q; int32_t q_stride, q_head_stride, n_heads; const ops_kv *kv; float scale; int32_t window, n_row_items; const ops_batch *b;
} attention_arg;

typedef struct {                         /* queries under way: one sequence, one KV head */
    int32_t n;
    const float *q[QUERIES];
    float *out[QUERIES];
    int32_t lo[QUERIES], hi[QUERIES];    /* positions [lo, hi) each may see */
    float m[QUERIES], l[QUERIES];
    float o[QUERIES][OPS_HEAD_DIM_MAX];
} query_set;

/* o[i] += sum over j in [lo, hi) of p[i][j] v[j], for Q queries and D vectors of columns from d0, the last one with `left` columns. */
INLINE void pv(float (*o)[OPS_HEAD_DIM_MAX], const float (*p)[TILE], const float *v, int32_t head_dim, int32_t lo, int32_t hi, int32_t d0, const int Q, const int D, int32_t left)
{
    f32x16 sum[PV_Q][PV_D];
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) sum[i][d] = f_load(o[i] + d0 + d * LANES);
    for (int32_t j = lo; j < hi; j++) {
        f32x16 vj[PV_D];
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) vj[d] = f_take(v + (size_t)j * (size_t)head_dim + d0 + d * LANES, d == D - 1 ? left : LANES);
#pragma GCC unroll 4
        for (int i = 0; i < Q; i++) {
            f32x16 pj = f_set(p[i][j]);
#pragma GCC unroll 4
            for (int d = 0; d < D; d++) sum[i][d] = f_fma(pj, vj[d], sum[i][d]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < Q; i++)
#pragma GCC unroll 4
        for (int d = 0; d < D; d++) f_store(o[i] + d0 + d * LANES, sum[i][d]);
}

INLINE void pv_columns(float (*o)[OPS_HEAD_DIM_MAX], const float (*p)[TILE], const float *v, int32_t head_dim, int32_t lo, int32_t hi, const int Q)
{
    if (lo >= hi) return;
    int32_t d = 0;
    for (; d + PV_D * LANES <= head_dim; d += PV_D * LANES) pv(o, p, v, head_dim, lo, hi, d, Q, PV_D, LANES);
#if PV_D > 2
    for (; d + 2 * LANES <= head_dim; d += 2 * LANES) pv(o, p, v, head_dim, lo, hi, d, Q, 2, LANES);
#endif
    for (; d < head_dim; d += LANES) pv(o, p, v, head_dim, lo, hi, d, Q, 1, head_dim - d);
}

static void pv_group(float (*o)[OPS_HEAD_DIM_MAX], const float (*p)[TILE], const float *v, int32_t head_dim, int32_t lo, int32_t hi, int32_t n)
{
    switch (n) {
    case 1: pv_columns(o, p, v, head_dim, lo, hi, 1); break;
#if PV_Q > 2
    case 2: pv_columns(o, p, v, head_dim, lo, hi, 2); break;
#endif
    default: pv_columns(o, p, v, head_dim, lo, hi, PV_Q); break;
    }
}

/* Queries [0, n) with ranges lo[i], hi[i] in the tile: the range they all share together, what lies before and after it one by one. */
static void pv_tile(float (*o)[OPS_HEAD_DIM_MAX], const float (*p)[TILE], const float *v, int32_t head_dim, const int32_t *lo, const int32_t *hi, int32_t n)
{
    for (int32_t i = 0, group; i < n; i += group) {
        int32_t from = lo[i], to = hi[i];
        group = n - i >= PV_Q ? PV_Q : n - i >= 2 && PV_Q > 2 ? 2 : 1;
        for (int32_t g = 1; g < group; g++) {
            if (lo[i + g] > from) from = lo[i + g];
            if (hi[i + g] < to) to = hi[i + g];
        }
        if (from >= to) group = 1, from = lo[i], to = hi[i];
        for (int32_t g = 0; g < group; g++) pv_group(o + i + g, p + i + g, v, head_dim, lo[i + g], from, 1);
        pv_group(o + i, p + i, v, head_dim, from, to, group);
        for (int32_t g = 0; g < group; g++) pv_group(o + i + g, p + i + g, v, head_dim, to, hi[i + g], 1);
    }
}

/* s [64] holds scores in [lo, hi): become p there and 0 elsewhere; *m and *l are the tile's. */
INLINE void softmax_tile(float *s, int32_t lo, int32_t hi, float scale, float *m, float *l)
{
    for (int32_t j = 0; j < lo; j++) s[j] = -INFINITY;
    for (int32_t j = hi; j < TILE; j++) s[j] = -INFINITY;
    f32x16 top = f_set(-INFINITY), sum = f_set(0.0f);
    for (int32_t j = 0; j < TILE; j += LANES) {
        f32x16 v = f_mul(f_load(s + j), f_set(scale));
        f_store(s + j, v);
        top = f_max(v, top);
    }
    *m = f_greatest(top);
    for (int32_t j = 0; j < TILE; j += LANES) {
        f32x16 e = f_exp(f_sub(f_load(s + j), f_set(*m)));
        f_store(s + j, e);
        sum = f_add(sum, e);
    }
    *l = f_sum(sum);
}

static void merge(query_set *s, int32_t i, const float *o, float m, float l, int32_t head_dim)
{
    float most = s->m[i] > m ? s->m[i] : m, old = fl_expf(s->m[i] - most), new = fl_expf(m - most);
    s->m[i] = most;
    s->l[i] = fmaf(s->l[i], old, l * new);
    for (int32_t d = 0; d < head_dim; d += LANES)
        f_store(s->o[i] + d, f_fma(f_load(s->o[i] + d), f_set(old), f_mul(f_load(o + d), f_set(new))));
}

/* Ask for n floats that are needed after what is computed now: a generated token waits for memory more than for sums. */
INLINE void ask_for(const float *p, size_t n)
{
    for (size_t i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 2);
}

/* next_k: the keys of the tile after this one, or NULL. */
static void attend_tile(const attention_arg *a, query_set *s, const float *k, const float *v, const float *next_k, int32_t start)
{
    int32_t head_dim = a->kv->head_dim, first = TILE, last = 0, n = 0;
    int32_t who[QUERIES], lo[QUERIES], hi[QUERIES];
    const float *q[QUERIES];
    float p[QUERIES][TILE], o[QUERIES][OPS_HEAD_DIM_MAX], m[QUERIES], l[QUERIES];
    for (int32_t i = 0; i < s->n; i++) {
        int32_t from = s->lo[i] > start ? s->lo[i] - start : 0, to = s->hi[i] < start + TILE ? s->hi[i] - start : TILE;
        if (from >= to) continue;
        who[n] = i; lo[n] = from; hi[n] = to; q[n] = s->q[i];
        n++;
        if (from < first) first = from;
        if (to > last) last = to;
    }
    if (n == 0) return;
    const size_t o_bytes = (size_t)(head_dim + LANES - 1) / LANES * LANES * sizeof o[0][0];
    ask_for(v + (size_t)first * (size_t)head_dim, (size_t)(last - first) * (size_t)head_dim);
    LANES_FORM(dot_rows)(p[0] + first, TILE, k + (size_t)first * (size_t)head_dim, DTYPE_F32, last - first, head_dim, q, n);
    if (next_k) ask_for(next_k, (size_t)TILE * (size_t)head_dim);
    for (int32_t i = 0; i < n; i++) {
        softmax_tile(p[i], lo[i], hi[i], a->scale, &m[i], &l[i]);
        memset(o[i], 0, o_bytes);
    }
    pv_tile(o, p, v, head_dim, lo, hi, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t w = who[i];
        if (start + lo[i] > s->lo[w]) { merge(s, w, o[i], m[i], l[i], head_dim); continue; }
        s->m[w] = m[i];                                              /* its first tile */
        s->l[w] = l[i];
        memcpy(s->o[w], o[i], o_bytes);
    }
}

static void attend(const attention_arg *a, query_set *s, int32_t seq, int32_t kv_head)
{
    const ops_batch *b = a->b;
    int32_t head_dim = a->kv->head_dim, first = s->lo[0], last = s->hi[0];
    for (int32_t i = 1; i < s->n; i++) {
        if (s->lo[i] < first) first = s->lo[i];
        if (s->hi[i] > last) last = s->hi[i];
    }
    const int32_t *blocks = b->block_tables + (size_t)seq * (size_t)b->table_stride;
    const size_t head_floats = (size_t)TILE * (size_t)head_dim, block_floats = (size_t)a->kv->n_kv_heads * head_floats, head_at = (size_t)kv_head * head_floats;
    for (int32_t t = first / TILE; t * TILE < last; t++) {
        size_t at = (size_t)blocks[t] * block_floats + head_at;
        const float *next_k = (t + 1) * TILE < last ? a->kv->k + (size_t)blocks[t + 1] * block_floats + head_at : NULL;
        attend_tile(a, s, a->kv->k + at, a->kv->v + at, next_k, t * TILE);
    }
    for (int32_t i = 0; i < s->n; i++)
        for (int32_t d = 0; d < head_dim; d += LANES) f_put(s->out[i] + d, f_div(f_load(s->o[i] + d), f_set(s->l[i])), head_dim - d);
    s->n = 0;
}

static void attention_job(const void *arg, int32_t begin, int32_t end)
{
    const attention_arg *a = arg;
    const ops_batch *b = a->b;
    int32_t head_dim = a->kv->head_dim, group = a->n_heads / a->kv->n_kv_heads;
    query_set s;
    s.n = 0;
    for (int32_t item = begin; item < end; item++) {
        int32_t kv_head = item / a->n_row_items, r0 = item % a->n_row_items * ITEM_ROWS;
        int32_t r1 = r0 + ITEM_ROWS < b->n_rows ? r0 + ITEM_ROWS : b->n_rows;
        for (int32_t r = r0; r < r1; r++) {
            int32_t position = b->positions[r];
            if (s.n > 0 && b->seq_of_row[r] != b->seq_of_row[r - 1]) attend(a, &s, b->seq_of_row[r - 1], kv_head);
            for (int32_t g = 0; g < group; g++) {
                int32_t head = kv_head * group + g;
                if (s.n == QUERIES) attend(a, &s, b->seq_of_row[r], kv_head);
                s.q[s.n] = a->q + (size_t)r * (size_t)a->q_stride + (size_t)head * (size_t)a->q_head_stride;
                s.out[s.n] = a->out + ((size_t)r * (size_t)a->n_heads + (size_t)head) * (size_t)head_dim;
                s.lo[s.n] = a->window > 0 && position + 1 > a->window ? position + 1 - a->window : 0;
                s.hi[s.n] = position + 1;
                s.n++;
            }
        }
        if (s.n > 0) attend(a, &s, b->seq_of_row[r1 - 1], kv_head);
    }
}

static void cpu_attention(ops *o, float *out, const float *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, float scale, int32_t window,
                          const ops_batch *b)
{
    FL_ASSERT(kv->n_kv_heads >= 1 && n_heads % kv->n_kv_heads == 0 && kv->head_dim >= 1 && kv->head_dim <= OPS_HEAD_DIM_MAX);
    if (b->n_rows == 0) return;
    attention_arg a = { out, q, q_stride, q_head_stride, n_heads, kv, scale, window, (b->n_rows + ITEM_ROWS - 1) / ITEM_ROWS, b };
    double seen = 0.0;
    for (int32_t r = 0; r < b->n_rows; r++) seen += b->positions[r] + 1;
    int32_t n_items = a.n_row_items * kv->n_kv_heads;
    cpu_pool_run(((ops_cpu *)o)->pool, n_items, 2.0 * seen * kv->head_dim * n_heads / n_items, attention_job, &a);
}

void LANES_FORM(attention_install)(ops *o) { o->attention = cpu_attention; }
