/* linear_ref.c - definition of linear. Quantized weights meet activations rounded to whole numbers, as ops.h says of the CPU. */
#include "kernels/ops_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/quant.h"

/* In fp32: which whole number is nearest is part of the definition. */
void ref_activations(double *y, const float *x, const weight *w)
{
    for (int32_t i = 0; i < w->n_cols; i++) y[i] = (double)x[i];
    if (!dtype_is_quantized(w->type)) return;
    for (int32_t g = 0; g < w->n_cols; g += 32) {
        float most = 0.0f;
        bool is_finite = true;
        for (int32_t i = g; i < g + 32; i++) {
            is_finite &= isfinite(x[i]) != 0;
            most = fmaxf(most, fabsf(x[i]));
        }
        for (int32_t i = g; i < g + 32; i++) {
            float inverse = 16256.0f / most, q = rintf(x[i] * inverse);
            y[i] = !is_finite ? NAN : most < 0x1p-100f ? 0.0 : (double)q * (double)(most / 16256.0f);
        }
    }
}

void ref_linear(double *y, const float *x, const weight *w, const weight *bias, int32_t n_rows)
{
    size_t n_out = (size_t)w->n_rows, n_in = (size_t)w->n_cols;
    double *row = malloc(n_in * sizeof *row), *rounded = malloc(((size_t)n_rows * n_in + 1) * sizeof *rounded);
    FL_ASSERT(row && rounded);
    for (size_t r = 0; r < (size_t)n_rows; r++) ref_activations(rounded + r * n_in, x + r * n_in, w);
    for (size_t j = 0; j < n_out; j++) {
        ref_row(row, w, (int32_t)j);
        for (size_t r = 0; r < (size_t)n_rows; r++) {
            double sum = bias && bias->data ? ref_weight(bias, j) : 0.0;
            for (size_t k = 0; k < n_in; k++) sum += rounded[r * n_in + k] * row[k];
            y[r * n_out + j] = sum;
        }
    }
    free(rounded);
    free(row);
}
