/* ops_ref.h - the definition of each operation of ops.h, in scalar double, as plainly as it can be said. For tests only.
 * Shapes   as in ops.h; results are double and never in place (states excepted: they are advanced in double, laid out as in ops.h).
 * The reference keeps no lanes, tiles or order: an implementation is compared with it within a tolerance, and with other implementations bit for bit. */
#ifndef KERNELS_OPS_REF_H
#define KERNELS_OPS_REF_H

#include "kernels/ops.h"

double ref_weight(const weight *w, size_t at);           /* element `at` of the stored matrix, read row by row; not quantized */
void ref_row(double *y, const weight *w, int32_t row);   /* a row of a matrix of any type */
void ref_activations(double *y, const float *x, const weight *w);        /* a row as products with w see it */
double ref_sigmoid(double x);
double ref_silu(double x);

/* rows_ref.c */
void ref_embed(double *y, const weight *table, double scale, const int32_t *ids, int32_t n_rows);
void ref_sigmoid_gate(double *y, const float *x, const float *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows);
void ref_softplus_gate(double *y, const float *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows);
void ref_swiglu(double *y, const float *gate, const float *up, int32_t n_rows, int32_t dim);
void ref_geglu(double *y, const float *gate, const float *up, int32_t n_rows, int32_t dim);
void ref_soft_cap(double *y, const float *x, double cap, int32_t n_rows, int32_t dim);
void ref_add_sigmoid_scaled(double *out, const float *x, const float *y, const float *g, int32_t n_rows, int32_t dim);
void ref_log_sum_exp(double *lse, const float *logits, int32_t n_rows, int32_t n_vocab);

/* linear_ref.c */
void ref_linear(double *y, const float *x, const weight *w, const weight *bias, int32_t n_rows);

/* norm_ref.c */
void ref_rms_norm(double *y, const float *x, const weight *w, double w_add, double eps, int32_t n_rows, int32_t dim);
void ref_gated_rms_norm(double *y, const float *x, const float *z, const weight *w, double eps, int32_t n_rows, int32_t n_heads, int32_t dim);
/* y [n_rows, n_heads, head_dim], x as in ops.h */
void ref_head_norm_rope(double *y, const float *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, double w_add, double eps,
                        const ops_rope *rope, const ops_batch *b);

/* attention_ref.c: over kv as written */
void ref_attention(double *out, const float *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, double scale, int32_t window, const ops_batch *b);

/* delta_ref.c */
void ref_conv_silu(double *y, const float *x, int32_t x_stride, const weight *w, double *state, int32_t n_channels, int32_t width, const ops_batch *b);
void ref_gated_delta(double *out, const float *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, double *state, int32_t n_k_heads,
                     int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b);

/* moe_ref.c */
void ref_moe_route(int32_t *ids, double *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize);
void ref_moe_route_sigmoid(int32_t *ids, double *weights, const float *logits, const weight *bias, double scale, int32_t n_rows, int32_t n_experts, int32_t top_k);
void ref_moe_experts(double *y, const float *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down, int32_t n_rows, int32_t top_k);

#endif
