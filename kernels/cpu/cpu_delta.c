/* cpu_delta.c - the two recurrent pieces of a linear-attention layer: causal convolution and the gated delta rule.
 * Both step token by token, so a prompt's tokens and a generated token have the same bits: on the CPU prefill and decode form are one. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_math.h"

/* --- conv_silu: sixteen channels at a time; the last width - 1 inputs stay in registers from row to row --- */

typedef struct { float *y; const float *x; int32_t x_stride; const weight *w; float *state; int32_t n_channels, width; const ops_batch *b; } conv_arg;

static void conv_job(const void *arg, int32_t begin, int32_t end)
{
    const conv_arg *a = arg;
    const ops_batch *b = a->b;
    int32_t width = a->width, past = width - 1;
    for (int32_t block = begin; block < end; block++) {
        int32_t c0 = block * LANES, left = a->n_channels - c0 < LANES ? a->n_channels - c0 : LANES;
        float by_tap[OPS_CONV_WIDTH_MAX][LANES] = { { 0 } };             /* w and state lie channel by channel: turn them */
        for (int32_t c = 0; c < left; c++)
            for (int32_t t = 0; t < width; t++) by_tap[t][c] = f_one_w(a->w->data, a->w->type, (size_t)(c0 + c) * (size_t)width + (size_t)t);
        for (int32_t s = 0; s < b->n_seqs; s++) {
            if (b->row_begin[s] == b->row_begin[s + 1]) continue;
            float *state = a->state + ((size_t)b->state_slots[s] * (size_t)a->n_channels + (size_t)c0) * (size_t)past;
            float before[OPS_CONV_WIDTH_MAX][LANES] = { { 0 } };
            if (b->positions[b->row_begin[s]] > 0)
                for (int32_t c = 0; c < left; c++)
                    for (int32_t t = 0; t < past; t++) before[t][c] = state[c * past + t];
            f32x16 window[OPS_CONV_WIDTH_MAX];
            for (int32_t t = 0; t < past; t++) window[t] = f_load(before[t]);
            for (int32_t r = b->row_begin[s]; r < b->row_begin[s + 1]; r++) {
                window[past] = f_take(a->x + (size_t)r * (size_t)a->x_stride + c0, left);
                f32x16 sum = f_set(0.0f);
                for (int32_t t = 0; t < width; t++) sum = f_fma(f_load(by_tap[t]), window[t], sum);
                f_put(a->y + (size_t)r * (size_t)a->n_channels + c0, f_silu(sum), left);
                for (int32_t t = 0; t < past; t++) window[t] = window[t + 1];
            }
            for (int32_t t = 0; t < past; t++) f_store(before[t], window[t]);
            for (int32_t c = 0; c < left; c++)
                for (int32_t t = 0; t < past; t++) state[c * past + t] = before[t][c];
        }
    }
}

static void cpu_conv_silu(ops *o, float *y, const float *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width, const ops_batch *b)
{
    FL_ASSERT(width >= 1 && width <= OPS_CONV_WIDTH_MAX && (int64_t)w->n_rows * w->n_cols == (int64_t)n_channels * width);
    conv_arg a = { y, x, x_stride, w, state, n_channels, width, b };
    cpu_pool_run(((ops_cpu *)o)->pool, (n_channels + LANES - 1) / LANES, (double)(b->n_rows + b->n_seqs) * LANES * (width + 8), conv_job, &a);
}

/* --- gated_delta: one work item is a strip of 64 columns of one head's S in one sequence. A column of S never meets another one, and a strip of
 * [dk, 64] stays in the first-level cache for all rows of the sequence. Sums over dk run upwards with fused multiply-add. --- */

#define STRIP_VECTORS 4
#define STRIP (STRIP_VECTORS * LANES)

typedef struct {
    float *out; const float *qkv, *a, *b_gate; const weight *a_log, *dt_bias; float *state;
    int32_t n_k_heads, n_v_heads, dk, dv, n_strips; const ops_batch *b;
} delta_arg;

/* to = x scale / sqrt(sum x^2 + 1e-6) */
INLINE void l2_normalize(float *to, const float *x, int32_t n, float scale)
{
    f32x16 sum = f_set(0.0f);
    for (int32_t i = 0; i < n; i += LANES) {
        f32x16 v = f_take(x + i, n - i);
        sum = f_fma(v, v, sum);
    }
    f32x16 by = f_set(1.0f / sqrtf(f_sum(sum) + 1e-6f));
    for (int32_t i = 0; i < n; i += LANES) f_put(to + i, f_mul(f_mul(f_take(x + i, n - i), by), f_set(scale)), n - i);
}

static float softplus(float x)
{
    float tail = fl_log1pf(fl_expf(-fabsf(x)));
    return x > 0.0f ? x + tail : tail;                               /* NaN: tail is NaN */
}

static float sigmoid(float x) { return 1.0f / (1.0f + fl_expf(-x)); }

/* One token on `n` vectors of columns: S = S decay + k (beta (v - (S decay)^T k))^T, out = S^T q; S rows lie dv apart, the last vector has `left` columns. */
INLINE void delta_step(float *S, int32_t dk, int32_t dv, const float *q, const float *k, const float *v, float *out, float decay, float beta, const int n, int32_t left)
{
    f32x16 seen[STRIP_VECTORS], sum[STRIP_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) seen[j] = sum[j] = f_set(0.0f);
    f32x16 g = f_set(decay);
    for (int32_t i = 0; i < dk; i++) {
        float *row = S + (size_t)i * (size_t)dv;
        f32x16 ki = f_set(k[i]);
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            int32_t here = j == n - 1 ? left : LANES;
            seen[j] = f_fma(f_mul(f_take(row + j * LANES, here), g), ki, seen[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) seen[j] = f_mul(f_sub(f_take(v + j * LANES, j == n - 1 ? left : LANES), seen[j]), f_set(beta));
    for (int32_t i = 0; i < dk; i++) {
        float *row = S + (size_t)i * (size_t)dv;
        f32x16 ki = f_set(k[i]), qi = f_set(q[i]);
#pragma GCC unroll 4
        for (int j = 0; j < n; j++) {
            int32_t here = j == n - 1 ? left : LANES;
            f32x16 s = f_fma(ki, seen[j], f_mul(f_take(row + j * LANES, here), g));
            f_put(row + j * LANES, s, here);
            sum[j] = f_fma(s, qi, sum[j]);
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < n; j++) f_put(out + j * LANES, sum[j], j == n - 1 ? left : LANES);
}

static void delta_strip(const delta_arg *a, int32_t seq, int32_t head, int32_t strip)
{
    const ops_batch *b = a->b;
    int32_t dk = a->dk, dv = a->dv, c0 = strip * STRIP, columns = dv - c0 < STRIP ? dv - c0 : STRIP;
    int32_t n = (columns + LANES - 1) / LANES, left = columns - (n - 1) * LANES;
    size_t key_head = (size_t)(head / (a->n_v_heads / a->n_k_heads)), n_keys = (size_t)a->n_k_heads * (size_t)dk;
    size_t row_floats = 2 * n_keys + (size_t)a->n_v_heads * (size_t)dv;
    float *S = a->state + ((size_t)b->state_slots[seq] * (size_t)a->n_v_heads + (size_t)head) * (size_t)dk * (size_t)dv + c0;
    float rate = -fl_expf(f_one_w(a->a_log->data, a->a_log->type, (size_t)head));
    float bias = f_one_w(a->dt_bias->data, a->dt_bias->type, (size_t)head);
    float q_scale = 1.0f / sqrtf((float)dk);
    float q[OPS_DELTA_K_MAX], k[OPS_DELTA_K_MAX];

    if (b->row_begin[seq] == b->row_begin[seq + 1]) return;
    if (b->positions[b->row_begin[seq]] == 0)
        for (int32_t i = 0; i < dk; i++) memset(S + (size_t)i * (size_t)dv, 0, (size_t)columns * sizeof *S);
    for (int32_t r = b->row_begin[seq]; r < b->row_begin[seq + 1]; r++) {
        const float *row = a->qkv + (size_t)r * row_floats;
        size_t at = (size_t)r * (size_t)a->n_v_heads + (size_t)head;
        l2_normalize(q, row + key_head * (size_t)dk, dk, q_scale);
        l2_normalize(k, row + n_keys + key_head * (size_t)dk, dk, 1.0f);
        const float *v = row + 2 * n_keys + (size_t)head * (size_t)dv + c0;
        float *out = a->out + at * (size_t)dv + c0;
        float decay = fl_expf(rate * softplus(a->a[at] + bias)), beta = sigmoid(a->b_gate[at]);
        switch (n) {
        case 1: delta_step(S, dk, dv, q, k, v, out, decay, beta, 1, left); break;
        case 2: delta_step(S, dk, dv, q, k, v, out, decay, beta, 2, left); break;
        case 3: delta_step(S, dk, dv, q, k, v, out, decay, beta, 3, left); break;
        default: delta_step(S, dk, dv, q, k, v, out, decay, beta, 4, left); break;
        }
    }
}

static void delta_job(const void *arg, int32_t begin, int32_t end)
{
    const delta_arg *a = arg;
    for (int32_t item = begin; item < end; item++) {
        int32_t strip = item % a->n_strips, rest = item / a->n_strips;
        delta_strip(a, rest / a->n_v_heads, rest % a->n_v_heads, strip);
    }
}

static void cpu_gated_delta(ops *o, float *out, const float *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, float *state,
                            int32_t n_k_heads, int32_t n_v_heads, int32_t dk, int32_t dv, const ops_batch *b)
{
    FL_ASSERT(n_k_heads >= 1 && n_v_heads % n_k_heads == 0 && dk >= 1 && dk <= OPS_DELTA_K_MAX && dv >= 1);
    FL_ASSERT(a_log->n_rows * a_log->n_cols == n_v_heads && dt_bias->n_rows * dt_bias->n_cols == n_v_heads);
    delta_arg arg = { out, qkv, a, b_gate, a_log, dt_bias, state, n_k_heads, n_v_heads, dk, dv, (dv + STRIP - 1) / STRIP, b };
    if (b->n_rows == 0) return;
    int32_t n_items = b->n_seqs * n_v_heads * arg.n_strips;
    cpu_pool_run(((ops_cpu *)o)->pool, n_items, 4.0 * dk * dv * n_v_heads * b->n_rows / n_items, delta_job, &arg);
}

void LANES_FORM(delta_install)(ops *o)
{
    o->conv_silu = cpu_conv_silu;
    o->gated_delta = cpu_gated_delta;
}
