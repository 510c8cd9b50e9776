/* linear_ref.c - definition of linear. */
#include "kernels/ops_ref.h"

void ref_linear(double *y, const float *x, const weight *w, const weight *bias, int32_t n_rows)
{
    size_t n_out = (size_t)w->n_rows, n_in = (size_t)w->n_cols;
    for (size_t r = 0; r < (size_t)n_rows; r++)
        for (size_t j = 0; j < n_out; j++) {
            double sum = bias && bias->data ? ref_weight(bias, j) : 0.0;
            for (size_t k = 0; k < n_in; k++) sum += (double)x[r * n_in + k] * ref_weight(w, j * n_in + k);
            y[r * n_out + j] = sum;
        }
}
