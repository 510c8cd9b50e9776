/* delta_ref.c - definitions of the causal convolution and of the gated delta rule. */
#include "kernels/ops_ref.h"

#include <math.h>
#include <string.h>

void ref_conv_silu(double *y, const float *x, int32_t x_stride, const weight *w, double *state, int32_t n_channels, int32_t width, const ops_batch *b)
{
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t c = 0; c < n_channels; c++) {
            double *past = state + (size_t)b->state_slots[b->seq_of_row[r]] * (size_t)(width - 1) * (size_t)n_channels + c, sum = 0.0;
            double now = (double)x[(size_t)r * (size_t)x_stride + (size_t)c];
            for (int32_t t = 0; t < width; t++) {
                double *before = past + (size_t)t * (size_t)n_channels;          /* the input of width - 1 - t rows ago, for t < width - 1 */
                if (t < width - 1 && b->positions[r] == 0) *before = 0.0;
                sum += ref_weight(w, (size_t)c * (size_t)width + (size_t)t) * (t < width - 1 ? *before : now);
            }
            for (int32_t t = 0; t < width - 1; t++) past[(size_t)t * (size_t)n_channels] = t < width - 2 ? past[(size_t)(t + 1) * (size_t)n_channels] : now;
            y[(size_t)r * (size_t)n_channels + (size_t)c] = ref_silu(sum);
        }
}

static double inverse_length(const float *x, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return 1.0 / sqrt(sum + 1e-6);
}

void ref_gated_delta(double *out, const float *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, double *state, int32_t n_k_heads,
                     int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b)
{
    for (int32_t r = 0; r < b->n_rows; r++, qkv += 2 * n_k_heads * dk + n_v_heads * dv)
        for (int32_t h = 0; h < n_v_heads; h++, out += dv) {
            int32_t key_head = is_tiled ? h % n_k_heads : h / (n_v_heads / n_k_heads), at = r * n_v_heads + h;
            const float *q = qkv + key_head * dk, *k = qkv + (n_k_heads + key_head) * dk, *v = qkv + 2 * n_k_heads * dk + h * dv;
            double *S = state + ((size_t)b->state_slots[b->seq_of_row[r]] * (size_t)n_v_heads + (size_t)h) * (size_t)(dk * dv);
            double q_by = inverse_length(q, dk) / sqrt(dk), k_by = inverse_length(k, dk);
            double decay = exp(-exp(ref_weight(a_log, (size_t)h)) * log1p(exp((double)a[at] + ref_weight(dt_bias, (size_t)h)))), beta = ref_sigmoid((double)b_gate[at]);
            if (b->positions[r] == 0) memset(S, 0, (size_t)(dk * dv) * sizeof *S);
            for (int32_t j = 0; j < dv; j++) {
                double seen = 0.0;
                for (int32_t i = 0; i < dk; i++) seen += (S[i * dv + j] *= decay) * (double)k[i] * k_by;
                out[j] = 0.0;
                for (int32_t i = 0; i < dk; i++) {
                    S[i * dv + j] += (double)k[i] * k_by * beta * ((double)v[j] - seen);
                    out[j] += S[i * dv + j] * (double)q[i] * q_by;
                }
            }
        }
}
