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
    size_t n_channels = (size_t)a->n_channels;
    int32_t width = a->width, past = width - 1;
    for (int32_t block = begin; block < end; block++) {
        int32_t c0 = block * LANES, left = a->n_channels - c0 < LANES ? a->n_channels - c0 : LANES;
        float by_tap[OPS_CONV_WIDTH_MAX][LANES] = { { 0 } };             /* w lies channel by channel: turn it */
        for (int32_t c = 0; c < left; c++)
            for (int32_t t = 0; t < width; t++) by_tap[t][c] = f_one_w(a->w->data, a->w->type, (size_t)(c0 + c) * (size_t)width + (size_t)t);
        for (int32_t s = 0; s < b->n_seqs; s++) {
            if (b->row_begin[s] == b->row_begin[s + 1]) continue;
            float *state = a->state + (size_t)b->state_slots[s] * (size_t)past * n_channels + c0;
            bool fresh = b->positions[b->row_begin[s]] == 0;
            f32x16 window[OPS_CONV_WIDTH_MAX];
            for (int32_t t = 0; t < past; t++) window[t] = fresh ? f_set(0.0f) : f_take(state + (size_t)t * n_channels, left);
            for (int32_t r = b->row_begin[s]; r < b->row_begin[s + 1]; r++) {
                window[past] = f_take(a->x + (size_t)r * (size_t)a->x_stride + c0, left);
                f32x16 sum = f_set(0.0f);
                for (int32_t t = 0; t < width; t++) sum = f_fma(f_load(by_tap[t]), window[t], sum);
                f_put(a->y + (size_t)r * n_channels + c0, f_silu(sum), left);
                for (int32_t t = 0; t < past; t++) window[t] = window[t + 1];
            }
            for (int32_t t = 0; t < past; t++) f_put(state + (size_t)t * n_channels, window[t], left);
        }
    }
}

static void cpu_conv_silu(ops *o, float *y, const float *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width, const ops_batch *b)
{
    FL_ASSERT(width >= 1 && width <= OPS_CONV_WIDTH_MAX && (int64_t)w->n_rows * w->n_cols == (int64_t)n_channels * width && (uintptr_t)state % OPS_STATE_ALIGN == 0);
    conv_arg a = { y, x, x_stride, w, state, n_channels, width, b };
    cpu_pool_run(((ops_cpu *)o)->pool, (n_channels + LANES - 1) / LANES, (double)(b->n_rows + b->n_seqs) * LANES * (2 * width + 8), conv_job, &a);
}

/* --- gated_delta: S is walked in strips of 64 columns of one head. A column of S never meets another one, and a strip of [dk, 64] stays in the
 * first-level cache for all rows of the sequence. Sums over dk run upwards with fused multiply-add. A work item is some heads of one sequence: one head,
 * or sixteen where there are many sequences, whose decay and beta are then computed together. --- */

#if defined(LANES_SCALAR)
#define STRIP_VECTORS 1
#else
#define STRIP_VECTORS 4
#endif
#define STRIP (STRIP_VECTORS * LANES)
#define GATE_ROWS OPS_BLOCK_TOKENS       /* rows of a sequence whose decay and beta are held at a time */
#define MANY_SEQS 16

typedef struct {
    float *out; const float *qkv, *a, *b_gate; const weight *a_log, *dt_bias; float *state;
    int32_t n_k_heads, n_v_heads; bool is_tiled; int32_t dk, dv, heads_per_item, n_head_items; const ops_batch *b;
} delta_arg;

typedef struct { float decay[GATE_ROWS][LANES], beta[GATE_ROWS][LANES]; } delta_gates;

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

/* decay = exp(-exp(a_log) softplus(a + dt_bias)) and beta = sigmoid(b) of heads [head, head + n) for rows [r0, r1). */
static void gates_fill(delta_gates *g, const delta_arg *a, int32_t head, int32_t n, int32_t r0, int32_t r1)
{
    f32x16 rate = f_exp(f_take_w(a->a_log->data, a->a_log->type, (size_t)head, n));
    f32x16 bias = f_take_w(a->dt_bias->data, a->dt_bias->type, (size_t)head, n);
    for (int32_t r = r0; r < r1; r++) {
        size_t at = (size_t)r * (size_t)a->n_v_heads + (size_t)head;
        f_store(g->decay[r - r0], f_exp(f_neg(f_mul(rate, f_softplus(f_add(f_take(a->a + at, n), bias))))));
        f_store(g->beta[r - r0], f_sigmoid(f_take(a->b_gate + at, n)));
    }
}

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

/* Rows [r0, r1) of one sequence through one strip of one head. `lane` is the head's in gates. */
static void delta_strip(const delta_arg *a, float *S, int32_t head, int32_t lane, int32_t c0, int32_t r0, int32_t r1, const delta_gates *gates)
{
    int32_t dk = a->dk, dv = a->dv, columns = dv - c0 < STRIP ? dv - c0 : STRIP, n = (columns + LANES - 1) / LANES, left = columns - (n - 1) * LANES;
    size_t key_head = (size_t)(a->is_tiled ? head % a->n_k_heads : head / (a->n_v_heads / a->n_k_heads)), n_keys = (size_t)a->n_k_heads * (size_t)dk;
    size_t row_floats = 2 * n_keys + (size_t)a->n_v_heads * (size_t)dv;
    float q_scale = 1.0f / sqrtf((float)dk);
    float q[OPS_DELTA_K_MAX], k[OPS_DELTA_K_MAX];
    for (int32_t r = r0; r < r1; r++) {
        const float *row = a->qkv + (size_t)r * row_floats;
        l2_normalize(q, row + key_head * (size_t)dk, dk, q_scale);
        l2_normalize(k, row + n_keys + key_head * (size_t)dk, dk, 1.0f);
        const float *v = row + 2 * n_keys + (size_t)head * (size_t)dv + c0;
        float *out = a->out + ((size_t)r * (size_t)a->n_v_heads + (size_t)head) * (size_t)dv + c0;
        float decay = gates->decay[r - r0][lane], beta = gates->beta[r - r0][lane];
        switch (n) {
        case 1: delta_step(S + c0, dk, dv, q, k, v, out, decay, beta, 1, left); break;
#if STRIP_VECTORS > 1
        case 2: delta_step(S + c0, dk, dv, q, k, v, out, decay, beta, 2, left); break;
        case 3: delta_step(S + c0, dk, dv, q, k, v, out, decay, beta, 3, left); break;
        default: delta_step(S + c0, dk, dv, q, k, v, out, decay, beta, 4, left); break;
#endif
        }
    }
}

static void delta_job(const void *arg, int32_t begin, int32_t end)
{
    const delta_arg *a = arg;
    const ops_batch *b = a->b;
    size_t head_floats = (size_t)a->dk * (size_t)a->dv;
    delta_gates gates;
    for (int32_t item = begin; item < end; item++) {
        int32_t seq = item / a->n_head_items, first = item % a->n_head_items * a->heads_per_item, last = b->row_begin[seq + 1];
        int32_t n_heads = a->n_v_heads - first < a->heads_per_item ? a->n_v_heads - first : a->heads_per_item;
        float *S = a->state + ((size_t)b->state_slots[seq] * (size_t)a->n_v_heads + (size_t)first) * head_floats;
        if (b->row_begin[seq] == last) continue;
        if (b->positions[b->row_begin[seq]] == 0) memset(S, 0, (size_t)n_heads * head_floats * sizeof *S);
        for (int32_t r = b->row_begin[seq]; r < last; r += GATE_ROWS) {
            int32_t r1 = r + GATE_ROWS < last ? r + GATE_ROWS : last;
            gates_fill(&gates, a, first, n_heads, r, r1);
            for (int32_t h = 0; h < n_heads; h++)
                for (int32_t c = 0; c < a->dv; c += STRIP) delta_strip(a, S + (size_t)h * head_floats, first + h, h, c, r, r1, &gates);
        }
    }
}

static void cpu_gated_delta(ops *o, float *out, const float *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, float *state,
                            int32_t n_k_heads, int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b)
{
    FL_ASSERT(n_k_heads >= 1 && n_v_heads % n_k_heads == 0 && dk >= 1 && dk <= OPS_DELTA_K_MAX && dv >= 1 && (uintptr_t)state % OPS_STATE_ALIGN == 0);
    FL_ASSERT(a_log->n_rows * a_log->n_cols == n_v_heads && dt_bias->n_rows * dt_bias->n_cols == n_v_heads);
    delta_arg arg = { out, qkv, a, b_gate, a_log, dt_bias, state, n_k_heads, n_v_heads, is_tiled, dk, dv, b->n_seqs >= MANY_SEQS ? LANES : 1, 0, b };
    arg.n_head_items = (n_v_heads + arg.heads_per_item - 1) / arg.heads_per_item;
    if (b->n_rows == 0) return;
    int32_t n_items = b->n_seqs * arg.n_head_items;
    cpu_pool_run(((ops_cpu *)o)->pool, n_items, 4.0 * dk * dv * n_v_heads * b->n_rows / n_items, delta_job, &arg);
}

void LANES_FORM(delta_install)(ops *o)
{
    o->conv_silu = cpu_conv_silu;
    o->gated_delta = cpu_gated_delta;
}
