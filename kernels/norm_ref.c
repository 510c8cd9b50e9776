/* norm_ref.c - definitions of the norms and of rotary embedding. */
#include "kernels/ops_ref.h"

#include <math.h>

static double scale_of(const float *x, int32_t dim, double eps)
{
    double sum = 0.0;
    for (int32_t i = 0; i < dim; i++) sum += (double)x[i] * (double)x[i];
    return 1.0 / sqrt(sum / dim + eps);
}

void ref_rms_norm(double *y, const float *x, const weight *w, double w_add, double eps, int32_t n_rows, int32_t dim)
{
    for (int32_t r = 0; r < n_rows; r++, x += dim, y += dim)
        for (int32_t i = 0; i < dim; i++) y[i] = (double)x[i] * scale_of(x, dim, eps) * (ref_weight(w, (size_t)i) + w_add);
}

void ref_gated_rms_norm(double *y, const float *x, const float *z, const weight *w, double eps, int32_t n_rows, int32_t n_heads, int32_t dim)
{
    ref_rms_norm(y, x, w, 0.0, eps, n_rows * n_heads, dim);
    for (size_t i = 0; i < (size_t)n_rows * (size_t)n_heads * (size_t)dim; i++) y[i] *= ref_silu((double)z[i]);
}

void ref_head_norm_rope(double *y, const float *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, double w_add, double eps,
                        const ops_rope *rope, const ops_batch *b)
{
    int32_t half = rope->n_rot / 2;
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t h = 0; h < n_heads; h++, y += head_dim) {
            const float *head = x + (size_t)r * (size_t)x_stride + (size_t)h * (size_t)head_stride;
            if (w && w->data) ref_rms_norm(y, head, w, w_add, eps, 1, head_dim);
            else for (int32_t i = 0; i < head_dim; i++) y[i] = (double)head[i];
            for (int32_t i = 0; i < half; i++) {
                double c = (double)rope->cos[(size_t)b->positions[r] * (size_t)half + (size_t)i], s = (double)rope->sin[(size_t)b->positions[r] * (size_t)half + (size_t)i];
                double lo = y[i], hi = y[i + half];
                y[i] = lo * c - hi * s;
                y[i + half] = hi * c + lo * s;
            }
        }
}
