/* moe_ref.c - definitions of the router and of the experts. */
#include "kernels/ops_ref.h"

#include <math.h>

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

static double row_dot(const weight *w, int32_t row, const float *x)
{
    double sum = 0.0;
    for (int32_t k = 0; k < w->n_cols; k++) sum += ref_weight(w, (size_t)row * (size_t)w->n_cols + (size_t)k) * (double)x[k];
    return sum;
}

void ref_moe_experts(double *y, const float *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down, int32_t n_rows, int32_t top_k)
{
    int32_t dim = gate[0].n_cols, ff = gate[0].n_rows;
    for (int32_t r = 0; r < n_rows; r++, x += dim, y += dim, ids += top_k, weights += top_k) {
        for (int32_t i = 0; i < dim; i++) y[i] = 0.0;
        for (int32_t s = 0; s < top_k; s++)
            for (int32_t j = 0; j < ff; j++) {
                double hidden = ref_silu(row_dot(&gate[ids[s]], j, x)) * row_dot(&up[ids[s]], j, x);
                for (int32_t i = 0; i < dim; i++) y[i] += (double)weights[s] * hidden * ref_weight(&down[ids[s]], (size_t)i * (size_t)ff + (size_t)j);
            }
    }
}
