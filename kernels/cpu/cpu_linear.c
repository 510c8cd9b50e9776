/* cpu_linear.c - products of activations with stored weights.
 *
 * One (weight row, token row) pair owns sixteen accumulators, lane l summing k = l mod 16 upwards, whatever else is computed beside it. A register
 * tile holds R weight rows by T token rows of such pairs: each weight vector is converted once for T rows and each activation vector read once for R.
 *
 *             k ->                        With many token rows and a long k, a panel of PANEL_W weight rows goes through k in blocks of
 *        +---------+---------+---         BLOCK_K, so that both the panel's and a tile's part of a block lie in the first-level cache:
 *   R w  | block 0 | block 1 | ...        pairs wait in memory between blocks, all sixteen lanes of them, which changes no bit.
 *        +---------+---------+---
 *   T x  |         |         |            How pairs are grouped into tiles and k into blocks changes speed and never bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/quant.h"

#if defined(LANES_AVX512)                /* 32 registers of 16 lanes */
#define TILE_W 4
#define TILE_X 4
#define TILE_W_ONE 8                     /* weight rows beside one token row: enough sums in flight to hide the latency of fma */
#elif defined(LANES_AVX2)                /* 16 registers of 8 */
#define TILE_W 2
#define TILE_X 2
#define TILE_W_ONE 4
#else
#define TILE_W 1
#define TILE_X 1
#define TILE_W_ONE 1
#endif
#define TILE_MOST (TILE_W * TILE_X > TILE_W_ONE ? TILE_W * TILE_X : TILE_W_ONE)

#define PANEL_W 16
#define PANEL_X 64
#define BLOCK_K 512                      /* a multiple of 16: lanes stay where they are */

/* Pairs of one tile summed over k in [from, to), from a multiple of 16: sum[t * R + r] for w row r, x[t]; R and T known at compile time. Only the last
 * call of a row may end at a k that is no multiple of 16. */
INLINE void tile_sum(f32x16 *sum, const char *w, size_t row_bytes, dtype type, int32_t from, int32_t to, const float *const *x, const int R, const int T)
{
    int32_t k = from;
    for (; k + LANES <= to; k += LANES) {
        f32x16 wv[TILE_W > TILE_W_ONE ? TILE_W : TILE_W_ONE];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) wv[r] = f_load_w(w + (size_t)r * row_bytes, type, (size_t)k);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            f32x16 xv = f_keep(f_load(x[t] + k));
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sum[t * R + r] = f_fma(wv[r], xv, sum[t * R + r]);
        }
    }
    if (k < to) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            f32x16 wv = f_take_w(w + (size_t)r * row_bytes, type, (size_t)k, to - k);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) sum[t * R + r] = f_fma(wv, f_take(x[t] + k, to - k), sum[t * R + r]);
        }
    }
}

INLINE void tile_give(float *y, size_t y_stride, const f32x16 *sum, const int R, const int T)
{
    float out[TILE_MOST];
    f_sums(out, sum, R * T);
#pragma GCC unroll 8
    for (int t = 0; t < T; t++) memcpy(y + (size_t)t * y_stride, out + t * R, (size_t)R * sizeof *y);
}

/* y[t * y_stride + r] = dot(w row r, x[t]) */
INLINE void tile(float *y, size_t y_stride, const char *w, dtype type, int32_t n_k, const float *const *x, const int R, const int T)
{
    f32x16 sum[TILE_MOST];
#pragma GCC unroll 16
    for (int i = 0; i < R * T; i++) sum[i] = f_set(0.0f);
    tile_sum(sum, w, (size_t)n_k * dtype_bytes(type), type, 0, n_k, x, R, T);
    tile_give(y, y_stride, sum, R, T);
}

/* PANEL_W weight rows against n_x token rows, n_x <= PANEL_X and a multiple of TILE_X. */
INLINE void panel(float *y, size_t y_stride, const char *w, dtype type, int32_t n_k, const float *const *x, int32_t n_x)
{
    float waiting[PANEL_W * PANEL_X * LANES];                        /* sums between two blocks */
    size_t row_bytes = (size_t)n_k * dtype_bytes(type);
    for (int32_t from = 0; from < n_k; from += BLOCK_K) {
        int32_t to = from + BLOCK_K < n_k ? from + BLOCK_K : n_k;
        float *at = waiting;
        for (int32_t t = 0; t < n_x; t += TILE_X)
            for (int32_t j = 0; j < PANEL_W; j += TILE_W, at += TILE_W * TILE_X * LANES) {
                f32x16 sum[TILE_MOST];
#pragma GCC unroll 16
                for (int i = 0; i < TILE_W * TILE_X; i++) sum[i] = from ? f_load(at + i * LANES) : f_set(0.0f);
                tile_sum(sum, w + (size_t)j * row_bytes, row_bytes, type, from, to, x + t, TILE_W, TILE_X);
                if (to == n_k) { tile_give(y + (size_t)t * y_stride + j, y_stride, sum, TILE_W, TILE_X); continue; }
#pragma GCC unroll 16
                for (int i = 0; i < TILE_W * TILE_X; i++) f_store(at + i * LANES, sum[i]);
            }
    }
}

/* R weight rows against all token rows. */
INLINE void strip(float *y, size_t y_stride, const char *w, dtype type, int32_t n_k, const float *const *x, int32_t n_x, const int R)
{
    int32_t t = 0;
    for (; t + TILE_X <= n_x; t += TILE_X) tile(y + (size_t)t * y_stride, y_stride, w, type, n_k, x + t, R, TILE_X);
#if TILE_X > 2
    for (; t + 2 <= n_x; t += 2) tile(y + (size_t)t * y_stride, y_stride, w, type, n_k, x + t, R, 2);
#endif
#if TILE_X > 1
    for (; t < n_x; t++) tile(y + (size_t)t * y_stride, y_stride, w, type, n_k, x + t, R, 1);
#endif
}

INLINE void rows_of_type(float *y, size_t y_stride, const char *w, dtype type, int32_t n_w, int32_t n_k, const float *const *x, int32_t n_x)
{
    size_t row_bytes = (size_t)n_k * dtype_bytes(type);
    int32_t j = 0, in_panels = n_k > BLOCK_K && n_x >= 2 * TILE_X ? n_x - n_x % TILE_X : 0;
    for (; in_panels && j + PANEL_W <= n_w; j += PANEL_W) {
        for (int32_t t = 0; t < in_panels; t += PANEL_X) {
            int32_t n = in_panels - t < PANEL_X ? in_panels - t : PANEL_X;
            panel(y + (size_t)t * y_stride + j, y_stride, w + (size_t)j * row_bytes, type, n_k, x + t, n);
        }
        for (int32_t i = 0; i < PANEL_W && in_panels < n_x; i += TILE_W)
            strip(y + (size_t)in_panels * y_stride + j + i, y_stride, w + (size_t)(j + i) * row_bytes, type, n_k, x + in_panels, n_x - in_panels, TILE_W);
    }
    if (n_x == 1)
        for (; j + TILE_W_ONE <= n_w; j += TILE_W_ONE) tile(y + j, y_stride, w + (size_t)j * row_bytes, type, n_k, x, TILE_W_ONE, 1);
    for (; j + TILE_W <= n_w; j += TILE_W) strip(y + j, y_stride, w + (size_t)j * row_bytes, type, n_k, x, n_x, TILE_W);
    for (; j < n_w; j++) strip(y + j, y_stride, w + (size_t)j * row_bytes, type, n_k, x, n_x, 1);
}

void LANES_FORM(dot_rows)(float *y, size_t y_stride, const void *w, dtype type, int32_t n_w, int32_t n_k, const float *const *x, int32_t n_x)
{
    switch (type) {
    case DTYPE_BF16: rows_of_type(y, y_stride, w, DTYPE_BF16, n_w, n_k, x, n_x); break;
    case DTYPE_F16:  rows_of_type(y, y_stride, w, DTYPE_F16, n_w, n_k, x, n_x); break;
    case DTYPE_F32:  rows_of_type(y, y_stride, w, DTYPE_F32, n_w, n_k, x, n_x); break;
    default: FL_ASSERT(type <= DTYPE_F16);
    }
}

/* --- linear --- */

typedef struct { float *y; const float *x; const weight *w, *bias; int32_t n_rows; } linear_arg;

static void add_bias(float *y, size_t y_stride, const weight *bias, int32_t begin, int32_t end, int32_t n)
{
    if (!bias) return;
    for (int32_t i = 0; i < n; i++) {
        float *yr = y + (size_t)i * y_stride;
        for (int32_t j = 0; j < end - begin; j += LANES) {
            int32_t left = end - begin - j;
            f_put(yr + j, f_add(f_take(yr + j, left), f_take_w(bias->data, bias->type, (size_t)(begin + j), left)), left);
        }
    }
}

static void linear_job(const void *arg, int32_t begin, int32_t end)
{
    const linear_arg *a = arg;
    const weight *w = a->w;
    begin *= PANEL_W;                                                /* an item is PANEL_W output rows */
    end = end * PANEL_W < w->n_rows ? end * PANEL_W : w->n_rows;
    size_t n_out = (size_t)w->n_rows;
    const char *rows = (const char *)w->data + (size_t)begin * (size_t)w->n_cols * dtype_bytes(w->type);
    for (int32_t r = 0; r < a->n_rows; r += PANEL_X) {
        const float *x[PANEL_X];
        int32_t n = a->n_rows - r < PANEL_X ? a->n_rows - r : PANEL_X;
        for (int32_t i = 0; i < n; i++) x[i] = a->x + (size_t)(r + i) * (size_t)w->n_cols;
        float *y = a->y + (size_t)r * n_out + begin;
        LANES_FORM(dot_rows)(y, n_out, rows, w->type, end - begin, w->n_cols, x, n);
        add_bias(y, n_out, a->bias, begin, end, n);
    }
}

/* --- linear with quantized weights: activations into whole numbers first --- */

#define QUANT_ITEM 32                    /* output rows */

typedef struct { ops_cpu *c; float *y; const float *x; const weight *w, *bias; int32_t n_rows; bool is_own; } quant_arg;

static void quantize_rows(const quant_arg *a, act_block *to, int32_t begin, int32_t end)
{
    size_t n_k = (size_t)a->w->n_cols;
    for (int32_t r = begin; r < end; r++) a->c->quantize_row(to + (size_t)r * (n_k / 32), a->x + (size_t)r * n_k, a->w->n_cols);
}

static void quantize_job(const void *arg, int32_t begin, int32_t end)
{
    const quant_arg *a = arg;
    quantize_rows(a, a->c->room, begin, end);
}

/* The running thread's own activations, quantized with its first job of this linear. */
static const act_block *own_blocks(const quant_arg *a)
{
    ops_cpu *c = a->c;
    int32_t index = cpu_pool_index();
    act_block *own = c->room + (size_t)(ROOM_ROWS + index * OWN_ROWS) * (size_t)(c->room_cols / 32);
    if (c->own[index].of_linear != c->n_linears) quantize_rows(a, own, 0, a->n_rows);
    c->own[index].of_linear = c->n_linears;
    return own;
}

static void quant_job(const void *arg, int32_t begin, int32_t end)
{
    const quant_arg *a = arg;
    const weight *w = a->w;
    const act_block *x[ROOM_ROWS], *blocks = a->is_own ? own_blocks(a) : a->c->room;
    begin *= QUANT_ITEM;
    end = end * QUANT_ITEM < w->n_rows ? end * QUANT_ITEM : w->n_rows;
    for (int32_t i = 0; i < a->n_rows; i++) x[i] = blocks + (size_t)i * (size_t)(w->n_cols / 32);
    const char *rows = (const char *)w->data + (size_t)begin * dtype_row_bytes(w->type, w->n_cols);
    a->c->dot_rows_quant(a->y + begin, (size_t)w->n_rows, rows, w->type, end - begin, w->n_cols, x, a->n_rows);
    add_bias(a->y + begin, (size_t)w->n_rows, a->bias, begin, end, a->n_rows);
}

static void linear_quant(ops_cpu *c, float *y, const float *x, const weight *w, const weight *bias, int32_t n_rows)
{
    FL_ASSERT(w->n_cols <= c->room_cols);
    for (int32_t r = 0; r < n_rows; r += ROOM_ROWS) {
        quant_arg a = { c, y + (size_t)r * (size_t)w->n_rows, x + (size_t)r * (size_t)w->n_cols, w, bias, n_rows - r < ROOM_ROWS ? n_rows - r : ROOM_ROWS, false };
        c->n_linears++;
        a.is_own = a.n_rows <= OWN_ROWS && c->n_threads <= OWN_THREADS;
        if (!a.is_own) cpu_pool_run(c->pool, a.n_rows, QUANTIZE_WORK * w->n_cols, quantize_job, &a);
        cpu_pool_run(c->pool, (w->n_rows + QUANT_ITEM - 1) / QUANT_ITEM, QUANT_WORK * QUANT_ITEM * w->n_cols * (TAKE_WORK + a.n_rows), quant_job, &a);
    }
}

static void cpu_linear(ops *o, float *y, const float *x, const weight *w, const weight *bias, int32_t n_rows)
{
    FL_ASSERT(n_rows >= 0 && w->data && w->n_rows >= 1 && w->n_cols >= 1);
    if (bias && !bias->data) bias = NULL;
    FL_ASSERT(!bias || bias->n_cols * bias->n_rows == w->n_rows);
    if (dtype_is_quantized(w->type)) { linear_quant((ops_cpu *)o, y, x, w, bias, n_rows); return; }
    linear_arg a = { y, x, w, bias, n_rows };
    if (n_rows > 0) cpu_pool_run(((ops_cpu *)o)->pool, (w->n_rows + PANEL_W - 1) / PANEL_W, (double)PANEL_W * w->n_cols * n_rows, linear_job, &a);
}

void LANES_FORM(linear_install)(ops *o) { o->linear = o->linear_f32 = cpu_linear; }
