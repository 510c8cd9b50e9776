/* attention_ref.c - definition of attention. */
#include "kernels/ops_ref.h"

#include <math.h>

static size_t kv_at(const ops_kv *kv, const ops_batch *b, int32_t row, int32_t head, int32_t position)
{
    size_t block = (size_t)b->block_tables[b->seq_of_row[row] * b->table_stride + position / OPS_BLOCK_TOKENS];
    return ((block * (size_t)kv->n_kv_heads + (size_t)head) * OPS_BLOCK_TOKENS + (size_t)(position % OPS_BLOCK_TOKENS)) * (size_t)kv->head_dim;
}

static double score(const float *q, const float *k, int32_t n, double scale)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++) sum += (double)q[i] * (double)k[i];
    return sum * scale;
}

void ref_attention(double *out, const float *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, double scale, int32_t window, const ops_batch *b)
{
    for (int32_t r = 0; r < b->n_rows; r++)
        for (int32_t h = 0; h < n_heads; h++, out += kv->head_dim) {
            const float *head = q + (size_t)r * (size_t)q_stride + (size_t)h * (size_t)q_head_stride;
            int32_t kv_head = h / (n_heads / kv->n_kv_heads), last = b->positions[r], first = window > 0 && last + 1 > window ? last + 1 - window : 0;
            double most = -INFINITY, sum = 0.0;
            for (int32_t d = 0; d < kv->head_dim; d++) out[d] = 0.0;
            for (int32_t p = first; p <= last; p++) most = fmax(most, score(head, kv->k + kv_at(kv, b, r, kv_head, p), kv->head_dim, scale));
            for (int32_t p = first; p <= last; p++) {
                double e = exp(score(head, kv->k + kv_at(kv, b, r, kv_head, p), kv->head_dim, scale) - most);
                sum += e;
                for (int32_t d = 0; d < kv->head_dim; d++) out[d] += e * (double)kv->v[kv_at(kv, b, r, kv_head, p) + (size_t)d];
            }
            for (int32_t d = 0; d < kv->head_dim; d++) out[d] /= sum;
        }
}
