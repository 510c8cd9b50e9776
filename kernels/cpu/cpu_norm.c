/* cpu_norm.c - root-mean-square norms (Zhang & Sennrich 2019, arXiv:1910.07467) and rotary embedding (Su et al. 2021, arXiv:2104.09864). */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_math.h"

#define NORM_WORK 4.0                    /* an element is about this many multiply-adds */

/* 1 / sqrt(mean(x^2) + eps) */
INLINE float norm_scale(const float *x, int32_t dim, float eps)
{
    f32x16 sum = f_set(0.0f);
    for (int32_t i = 0; i < dim; i += LANES) {
        f32x16 v = f_take(x + i, dim - i);
        sum = f_fma(v, v, sum);
    }
    return 1.0f / sqrtf(f_sum(sum) / (float)dim + eps);
}

/* y = x scale (w + w_add); y may be x */
INLINE void norm_apply(float *y, const float *x, float scale, const weight *w, float w_add, int32_t dim)
{
    for (int32_t i = 0; i < dim; i += LANES) {
        int32_t left = dim - i;
        f32x16 g = f_add(f_take_w(w->data, w->type, (size_t)i, left), f_set(w_add));
        f_put(y + i, f_mul(f_mul(f_take(x + i, left), f_set(scale)), g), left);
    }
}

typedef struct { float *y, *x_sum; const float *x, *d; const weight *w; float w_add, eps; int32_t dim; } norm_arg;

static void norm_job(const void *arg, int32_t begin, int32_t end)
{
    const norm_arg *a = arg;
    for (int32_t r = begin; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->dim;
        if (a->d)
            for (int32_t i = 0; i < a->dim; i += LANES) {
                int32_t left = a->dim - i;
                f_put(a->x_sum + at + i, f_add(f_take(a->x_sum + at + i, left), f_take(a->d + at + i, left)), left);
            }
        norm_apply(a->y + at, a->x + at, norm_scale(a->x + at, a->dim, a->eps), a->w, a->w_add, a->dim);
    }
}

static void cpu_rms_norm(ops *o, float *y, const float *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    FL_ASSERT(w->data && w->n_rows * w->n_cols == dim);
    norm_arg a = { y, NULL, x, NULL, w, w_add, eps, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, NORM_WORK * dim, norm_job, &a);
}

static void cpu_add_rms_norm(ops *o, float *y, float *x, const float *d, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim)
{
    FL_ASSERT(w->data && w->n_rows * w->n_cols == dim);
    norm_arg a = { y, x, x, d, w, w_add, eps, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, NORM_WORK * dim, norm_job, &a);
}

typedef struct { float *x; const float *z; const weight *w; float eps; int32_t n_heads, dim; } gated_norm_arg;

static void gated_norm_job(const void *arg, int32_t begin, int32_t end)
{
    const gated_norm_arg *a = arg;
    for (int32_t h = begin * a->n_heads; h < end * a->n_heads; h++) {
        float *x = a->x + (size_t)h * (size_t)a->dim;
        const float *z = a->z + (size_t)h * (size_t)a->dim;
        norm_apply(x, x, norm_scale(x, a->dim, a->eps), a->w, 0.0f, a->dim);
        for (int32_t i = 0; i < a->dim; i += LANES) {
            int32_t left = a->dim - i;
            f_put(x + i, f_mul(f_take(x + i, left), f_silu(f_take(z + i, left))), left);
        }
    }
}

static void cpu_gated_rms_norm(ops *o, float *x, const float *z, const weight *w, float eps, int32_t n_rows, int32_t n_heads, int32_t dim)
{
    FL_ASSERT(w->data && w->n_rows * w->n_cols == dim);
    gated_norm_arg a = { x, z, w, eps, n_heads, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, 3 * NORM_WORK * n_heads * dim, gated_norm_job, &a);
}

typedef struct { float *x; int32_t x_stride, head_stride, n_heads, head_dim; const weight *w; float w_add, eps; const ops_rope *rope; const int32_t *positions; } rope_arg;

static void rope_job(const void *arg, int32_t begin, int32_t end)
{
    const rope_arg *a = arg;
    int32_t half = a->rope->n_rot / 2;
    for (int32_t r = begin; r < end; r++) {
        FL_ASSERT(a->positions[r] >= 0 && a->positions[r] < a->rope->n_positions);
        const float *cos_row = a->rope->cos + (size_t)a->positions[r] * (size_t)half;
        const float *sin_row = a->rope->sin + (size_t)a->positions[r] * (size_t)half;
        for (int32_t h = 0; h < a->n_heads; h++) {
            float *x = a->x + (size_t)r * (size_t)a->x_stride + (size_t)h * (size_t)a->head_stride;
            if (a->w) norm_apply(x, x, norm_scale(x, a->head_dim, a->eps), a->w, a->w_add, a->head_dim);
            for (int32_t i = 0; i < half; i += LANES) {
                int32_t left = half - i;
                f32x16 lo = f_take(x + i, left), hi = f_take(x + half + i, left);
                f32x16 c = f_take(cos_row + i, left), s = f_take(sin_row + i, left);
                f_put(x + i, f_fnma(hi, s, f_mul(lo, c)), left);
                f_put(x + half + i, f_fma(lo, s, f_mul(hi, c)), left);
            }
        }
    }
}

static void cpu_head_norm_rope(ops *o, float *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, float w_add, float eps,
                               const ops_rope *rope, const ops_batch *b)
{
    if (w && !w->data) w = NULL;
    FL_ASSERT(!w || w->n_rows * w->n_cols == head_dim);
    FL_ASSERT(rope->n_rot >= 0 && rope->n_rot % 2 == 0 && rope->n_rot <= head_dim);
    rope_arg a = { x, x_stride, head_stride, n_heads, head_dim, w, w_add, eps, rope, b->positions };
    cpu_pool_run(((ops_cpu *)o)->pool, b->n_rows, 2 * NORM_WORK * n_heads * head_dim, rope_job, &a);
}

void LANES_FORM(norm_install)(ops *o)
{
    o->rms_norm = cpu_rms_norm;
    o->act_rms_norm = cpu_rms_norm;
    o->add_rms_norm = cpu_add_rms_norm;
    o->gated_rms_norm = cpu_gated_rms_norm;
    o->head_norm_rope = cpu_head_norm_rope;
}
