/* moe_ref.c - definitions of the router and of the experts. */
#include "kernels/ops_ref.h"

#include <math.h>
#include <stdlib.h>
#include "kernels/quant.h"

void ref_moe_route(int32_t *ids, double *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize)
{
    for (int32_t r = 0; r < n_rows; r++, logits += n_experts, ids += top_k, weights += top_k) {
        double total, chosen = 0.0;
        ref_log_sum_exp(&total, logits, 1, n_experts);
        for (int32_t s = 0; s < top_k; s++) {
            ids[s] = -1;
            for (int32_t e = 0; e < n_experts; e++) {
                bool taken = false;
                for (int32_t t = 0; t < s; t++) taken |= ids[t] == e;
                if (!taken && (ids[s] < 0 || logits[e] > logits[ids[s]])) ids[s] = e;
            }
            chosen += weights[s] = exp((double)logits[ids[s]] - total);
        }
        for (int32_t s = 0; s < top_k && renormalize; s++) weights[s] /= chosen;
    }
}

void ref_moe_route_sigmoid(int32_t *ids, double *weights, const float *logits, const weight *bias, double scale, int32_t n_rows, int32_t n_experts, int32_t top_k)
{
    for (int32_t r = 0; r < n_rows; r++, logits += n_experts, ids += top_k, weights += top_k) {
        double chosen = 0.0;
        for (int32_t s = 0; s < top_k; s++) {
            double most = 0.0;
            ids[s] = -1;
            for (int32_t e = 0; e < n_experts; e++) {
                bool taken = false;
                double score = ref_sigmoid((double)logits[e]) + ref_weight(bias, (size_t)e);
                for (int32_t t = 0; t < s; t++) taken |= ids[t] == e;
                if (!taken && (ids[s] < 0 || score > most)) { ids[s] = e; most = score; }
            }
            chosen += weights[s] = ref_sigmoid((double)logits[ids[s]]);
        }
        for (int32_t s = 0; s < top_k; s++) weights[s] = weights[s] / chosen * scale;
    }
}

/* y [w.n_rows] = w x */
static void products(double *y, const weight *w, const double *x)
{
    double *row = malloc((size_t)w->n_cols * sizeof *row);
    FL_ASSERT(row);
    for (int32_t j = 0; j < w->n_rows; j++) {
        ref_row(row, w, j);
        y[j] = 0.0;
        for (int32_t k = 0; k < w->n_cols; k++) y[j] += row[k] * x[k];
    }
    free(row);
}

void ref_moe_experts(double *y, const float *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down, int32_t n_rows, int32_t top_k)
{
    size_t dim = (size_t)gate[0].n_cols, ff = (size_t)gate[0].n_rows;
    double *in = malloc(dim * sizeof *in), *opened = malloc(ff * sizeof *opened), *hidden = malloc(ff * sizeof *hidden), *out = malloc(dim * sizeof *out);
    float *narrow = malloc(ff * sizeof *narrow);
    FL_ASSERT(in && opened && hidden && out && narrow);
    for (int32_t r = 0; r < n_rows; r++, x += dim, y += dim, ids += top_k, weights += top_k) {
        for (size_t i = 0; i < dim; i++) y[i] = 0.0;
        for (int32_t s = 0; s < top_k; s++) {
            ref_activations(in, x, &gate[ids[s]]);
            products(opened, &gate[ids[s]], in);
            ref_activations(in, x, &up[ids[s]]);
            products(hidden, &up[ids[s]], in);
            for (size_t j = 0; j < ff; j++) narrow[j] = (float)(hidden[j] *= ref_silu(opened[j]));
            if (dtype_is_quantized(down[ids[s]].type)) ref_activations(hidden, narrow, &down[ids[s]]);
            products(out, &down[ids[s]], hidden);
            for (size_t i = 0; i < dim; i++) y[i] += (double)weights[s] * out[i];
        }
    }
    free(in);
    free(opened);
    free(hidden);
    free(out);
    free(narrow);
}
