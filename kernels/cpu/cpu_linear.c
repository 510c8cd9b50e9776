/* cpu_linear.c - products of activations with stored weights.
 *
 * One (weight row, token row) pair owns sixteen accumulators, lane l summing k = l mod 16 upwards, whatever else is computed beside it. A register
 * tile holds R weight rows by T token rows of such pairs: each weight vector is converted once for T rows and each activation vector read once for R.
 * How pairs are grouped into tiles therefore changes speed and never bits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"

#if defined(LANES_AVX512)                /* 32 registers of 16 lanes */
#define TILE_W 4
#define TILE_X 4
#define TILE_W_ONE 8                     /* weight rows beside one token row: enough sums in flight to hide the latency of fma */
#elif defined(LANES_AVX2)                /* 16 registers of 8 */
#define TILE_W 2
#define TILE_X 3
#define TILE_W_ONE 4
#else
#define TILE_W 1
#define TILE_X 1
#define TILE_W_ONE 1
#endif

/* y[t * y_stride + r] = dot(w row r, x[t]); r < R, t < T, both known at compile time. */
INLINE void tile(float *y, size_t y_stride, const char *w, dtype type, int32_t n_k, const float *const *x, const int R, const int T)
{
    f32x16 sum[TILE_W_ONE > TILE_W ? TILE_W_ONE : TILE_W][TILE_X];
    size_t row_bytes = (size_t)n_k * dtype_bytes(type);
#pragma GCC unroll 8
    for (int r = 0; r < R; r++)
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) sum[r][t] = f_set(0.0f);

    int32_t k = 0;
    for (; k + LANES <= n_k; k += LANES) {
        f32x16 wv[TILE_W_ONE > TILE_W ? TILE_W_ONE : TILE_W];
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) wv[r] = f_load_w(w + (size_t)r * row_bytes, type, (size_t)k);
#pragma GCC unroll 8
        for (int t = 0; t < T; t++) {
            f32x16 xv = f_load(x[t] + k);
#pragma GCC unroll 8
            for (int r = 0; r < R; r++) sum[r][t] = f_fma(wv[r], xv, sum[r][t]);
        }
    }
    if (k < n_k) {
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) {
            f32x16 wv = f_take_w(w + (size_t)r * row_bytes, type, (size_t)k, n_k - k);
#pragma GCC unroll 8
            for (int t = 0; t < T; t++) sum[r][t] = f_fma(wv, f_take(x[t] + k, n_k - k), sum[r][t]);
        }
    }
#pragma GCC unroll 8
    for (int t = 0; t < T; t++)
#pragma GCC unroll 8
        for (int r = 0; r < R; r++) y[(size_t)t * y_stride + (size_t)r] = f_sum(sum[r][t]);
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
    int32_t j = 0;
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
    }
}

/* --- linear --- */

#define LINEAR_X_ROWS 64                 /* token rows a weight strip meets while it is in the first-level cache */

typedef struct { float *y; const float *x; const weight *w, *bias; int32_t n_rows; } linear_arg;

static void linear_job(const void *arg, int32_t begin, int32_t end)
{
    const linear_arg *a = arg;
    const weight *w = a->w;
    size_t n_out = (size_t)w->n_rows;
    const char *rows = (const char *)w->data + (size_t)begin * (size_t)w->n_cols * dtype_bytes(w->type);
    for (int32_t r = 0; r < a->n_rows; r += LINEAR_X_ROWS) {
        const float *x[LINEAR_X_ROWS];
        int32_t n = a->n_rows - r < LINEAR_X_ROWS ? a->n_rows - r : LINEAR_X_ROWS;
        for (int32_t i = 0; i < n; i++) x[i] = a->x + (size_t)(r + i) * (size_t)w->n_cols;
        float *y = a->y + (size_t)r * n_out + begin;
        LANES_FORM(dot_rows)(y, n_out, rows, w->type, end - begin, w->n_cols, x, n);
        if (!a->bias) continue;
        for (int32_t i = 0; i < n; i++) {
            float *yr = y + (size_t)i * n_out;
            for (int32_t j = 0; j < end - begin; j += LANES) {
                int32_t left = end - begin - j;
                f_put(yr + j, f_add(f_take(yr + j, left), f_take_w(a->bias->data, a->bias->type, (size_t)(begin + j), left)), left);
            }
        }
    }
}

static void cpu_linear(ops *o, float *y, const float *x, const weight *w, const weight *bias, int32_t n_rows)
{
    FL_ASSERT(n_rows >= 0 && w->data && w->n_rows >= 1 && w->n_cols >= 1);
    if (bias && !bias->data) bias = NULL;
    FL_ASSERT(!bias || bias->n_cols * bias->n_rows == w->n_rows);
    linear_arg a = { y, x, w, bias, n_rows };
    if (n_rows > 0) cpu_pool_run(((ops_cpu *)o)->pool, w->n_rows, (double)w->n_cols * n_rows, linear_job, &a);
}

void LANES_FORM(linear_install)(ops *o) { o->linear = cpu_linear; }
