/* rows_ref.c - definitions: stored weights, and the operations that work element by element. */
#include "kernels/ops_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/quant.h"

static double value_of_f16(uint16_t h)
{
    int exponent = h >> 10 & 31, fraction = h & 1023;
    double v = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return h & 0x8000 ? -v : v;
}

double ref_weight(const weight *w, size_t at)
{
    uint16_t h;
    uint32_t u;
    float f;
    if (w->type == DTYPE_F32) {
        memcpy(&f, (const char *)w->data + 4 * at, sizeof f);
        return (double)f;
    }
    memcpy(&h, (const char *)w->data + 2 * at, sizeof h);
    if (w->type == DTYPE_F16) return value_of_f16(h);
    u = (uint32_t)h << 16;
    memcpy(&f, &u, sizeof f);
    return (double)f;
}

void ref_row(double *y, const weight *w, int32_t row)
{
    size_t n = (size_t)w->n_cols;
    if (!dtype_is_quantized(w->type)) {
        for (size_t i = 0; i < n; i++) y[i] = ref_weight(w, (size_t)row * n + i);
        return;
    }
    float *values = malloc(n * sizeof *values);
    FL_ASSERT(values);
    dtype_decode(values, w->type, (const char *)w->data + (size_t)row * dtype_row_bytes(w->type, w->n_cols), w->n_cols);
    for (size_t i = 0; i < n; i++) y[i] = (double)values[i];
    free(values);
}

double ref_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
double ref_silu(double x) { return x / (1.0 + exp(-x)); }

void ref_embed(double *y, const weight *table, double scale, const int32_t *ids, int32_t n_rows)
{
    size_t dim = (size_t)table->n_cols;
    for (size_t r = 0; r < (size_t)n_rows; r++) {
        ref_row(y + r * dim, table, ids[r]);
        for (size_t i = 0; i < dim; i++) y[r * dim + i] *= scale;
    }
}

void ref_sigmoid_gate(double *y, const float *x, const float *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    for (int32_t r = 0; r < n_rows; r++)
        for (int32_t h = 0; h < n_heads; h++)
            for (int32_t i = 0; i < head_dim; i++) {
                size_t at = ((size_t)r * (size_t)n_heads + (size_t)h) * (size_t)head_dim + (size_t)i;
                y[at] = (double)x[at] * ref_sigmoid((double)gate[(size_t)r * (size_t)gate_stride + (size_t)h * (size_t)gate_head_stride + (size_t)i]);
            }
}

void ref_softplus_gate(double *y, const float *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    for (size_t i = 0; i < (size_t)n_rows * (size_t)n_heads * (size_t)head_dim; i++) {
        double g = (double)gate[gate_per_head ? i / (size_t)head_dim : i];
        y[i] = (double)x[i] * (g > 40.0 ? g : log1p(exp(g)));
    }
}

void ref_swiglu(double *y, const float *gate, const float *up, int32_t n_rows, int32_t dim)
{
    for (size_t i = 0; i < (size_t)n_rows * (size_t)dim; i++) y[i] = ref_silu((double)gate[i]) * (double)up[i];
}

void ref_geglu(double *y, const float *gate, const float *up, int32_t n_rows, int32_t dim)
{
    for (size_t i = 0; i < (size_t)n_rows * (size_t)dim; i++) {
        double g = (double)gate[i];
        y[i] = 0.5 * g * (1.0 + tanh(0.79788456080286535588 * (g + 0.044715 * g * g * g))) * (double)up[i];
    }
}

void ref_soft_cap(double *y, const float *x, double cap, int32_t n_rows, int32_t dim)
{
    for (size_t i = 0; i < (size_t)n_rows * (size_t)dim; i++) y[i] = cap * tanh((double)x[i] / cap);
}

void ref_add_sigmoid_scaled(double *out, const float *x, const float *y, const float *g, int32_t n_rows, int32_t dim)
{
    for (size_t r = 0; r < (size_t)n_rows; r++)
        for (size_t i = r * (size_t)dim; i < (r + 1) * (size_t)dim; i++) out[i] = (double)x[i] + (double)y[i] * ref_sigmoid((double)g[r]);
}

void ref_log_sum_exp(double *lse, const float *logits, int32_t n_rows, int32_t n_vocab)
{
    for (int32_t r = 0; r < n_rows; r++) {
        const float *x = logits + (size_t)r * (size_t)n_vocab;
        double most = -INFINITY, sum = 0.0;
        for (int32_t i = 0; i < n_vocab; i++) most = fmax(most, (double)x[i]);
        for (int32_t i = 0; i < n_vocab; i++) sum += exp((double)x[i] - most);
        lse[r] = most + log(sum);
    }
}
