/* ops.h - the operations a model's forward pass is written in. kernels/cpu and kernels/cuda implement the same table; the
 * definition of each is kernels/NAME_ref.c in scalar double.
 * Shapes   row-major [n_rows, dim]; weights are as stored (bf16, f16, f32). Pointers are memory of the ops' device, but for the arrays of an ops_batch,
 *          which are the host's: begin() takes them to the device. y may be x only where a comment says so.
 * Types    float: fp32 everywhere: the residual stream x, logits, gates of a head, routing weights, states. act: fp32 on the CPU and in CUDA's fp32 mode, else
 *          bf16 or f16: what goes into and comes out of products, and KV. The engine sizes it with act_bytes, moves along it with act_at and never looks at it.
 * Bits     ops/DESIGN.md section 7: a row's result depends on that row, its sequence's KV and state, and nothing else: no lanes,
 *          tiles or splits depend on n_rows or on other rows. On the CPU lane l of 16 sums k = l mod 16 in ascending order
 *          with fused multiply-add, then one fixed tree: (0+8),(1+9).. -> 8, +4, +2, +1.
 * Errors   a call outside its domain is a broken assumption of the engine and asserts; sizes were checked when the model was opened.
 * Threads  one engine thread calls; an implementation may spread output rows over its own pool, never a reduction. */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define OPS_BLOCK_TOKENS 64              /* tokens in a KV block = attention tile = prefill chunk */

/* The largest sizes the kernels take; a model beyond them is refused when its config is read. */
#define OPS_HEAD_DIM_MAX 256             /* attention */
#define OPS_DELTA_K_MAX 256              /* gated_delta's dk */
#define OPS_CONV_WIDTH_MAX 8             /* conv_silu */
#define OPS_EXPERTS_MAX 4096             /* moe_route */

#define OPS_STATE_ALIGN 16               /* bytes: where a layer's recurrent states begin in memory */

#define OPS_NOTE_BYTES 240               /* prepare, record_end */

/* How stored weights are encoded. The first three hold a value an element; of the others (kernels/quant.h) a row is blocks of 32 to 256 values. */
typedef enum {
    DTYPE_F32, DTYPE_BF16, DTYPE_F16,
    DTYPE_Q8_0, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K, DTYPE_IQ4_NL, DTYPE_IQ4_XS, DTYPE_MXFP4, DTYPE_NVFP4,
    DTYPE_COUNT
} dtype;

/* An element of an activation. On CUDA only the ops know its true type: see Types. */
typedef float act;

/* A weight matrix [n_rows, n_cols] or vector (n_rows 1), borrowed from the model; data NULL = absent. Rows lie dtype_row_bytes(type, n_cols) apart; quantized
 * ones are whole blocks (n_cols a multiple of dtype_block_values), of any alignment; the others are 2-byte aligned at least. */
typedef struct { const void *data; dtype type; int32_t n_rows, n_cols; } weight;

/* The rows of one engine step. Rows of one sequence are consecutive, in position order. A sequence's rows this step are
 * either prompt chunks (the first position is a multiple of 64; all chunks but the last of the prompt are whole) or one decode row. */
typedef struct {
    int32_t n_rows;                      /* token rows in x */
    int32_t n_seqs;
    const int32_t *ids;                  /* [n_rows] token ids */
    const int32_t *ids_from;             /* [n_rows] where >= 0, the row's id is chosen[ids_from] instead, which only the device knows yet (0 for a chosen -1); NULL = of no row */
    const int32_t *chosen;               /* the device's memory: ids that sample() chose before */
    const int32_t *positions;            /* [n_rows] absolute */
    const int32_t *seq_of_row;           /* [n_rows] */
    const int32_t *row_begin;            /* [n_seqs + 1] first row of each sequence */
    const bool    *is_prefill;           /* [n_seqs] prefill form or decode form */
    const int32_t *state_slots;          /* [n_seqs] recurrent-state slot */
    const int32_t *block_tables;         /* [n_seqs, table_stride] KV block of each 64 positions */
    int32_t table_stride;
    int32_t reach;                       /* no decode row attends to more positions: the sizes of launches depend on it, no bits do. 0 = what `positions` say */
    const int32_t *logit_rows;           /* [n_logits] the rows whose logits are wanted, ascending */
    int32_t n_logits;
} ops_batch;

/* KV of one layer: k, v [n_blocks, n_kv_heads, 64, head_dim]. */
typedef struct { act *k, *v; int32_t n_kv_heads, head_dim; } ops_kv;

/* Rotary embedding: cos, sin [n_positions, n_rot / 2] (rope_fill); the first n_rot of head_dim turn, in halves (x[i], x[i + n_rot/2]). */
typedef struct { const float *cos, *sin; int32_t n_rot, n_positions; } ops_rope;

/* The largest batches to come, and what they attend with. */
typedef struct {
    int32_t n_rows, n_seqs, n_logits;    /* of one step */
    int32_t seq_blocks;                  /* KV blocks of one sequence: table_stride at most */
    int32_t n_heads, head_dim;           /* of attention; 0 without any */
} ops_limits;

/* A product that calls will make: of linear, or of linear_f32; n_rows at most. */
typedef struct { weight w; bool is_f32; int32_t n_rows; } ops_product;

/* How one row's next token is chosen: the chain of engine/sampler.h. */
typedef struct {
    float temperature, top_p, min_p;     /* 0 = greedy; 1 = off; 0 = off */
    float repetition_penalty, presence_penalty, frequency_penalty;       /* 1, 0, 0 = off */
    float u;                             /* the draw's uniform */
    int32_t top_k;                       /* <= 0 = off */
    int32_t logits_row;                  /* of the logits: several rows may choose from one */
    int32_t count_slot; bool is_counted; /* of `counts`, -1 = no penalties; the chosen id is counted there */
    int32_t given_id;                    /* chosen already, where only its log-probability is wanted; else -1 */
    int32_t barred_begin, n_barred;      /* ids that may not be chosen, in `barred` */
} ops_sampling;

typedef struct ops ops;
struct ops {
    const char *name;                    /* "cpu-avx512", "cpu-avx2", "cpu-scalar", "cuda-bf16", "cuda-f16", "cuda-f32" */
    const char *numerics;                /* what decides bits here, for the numerics id: "cpu", "sm90-..."; final after reserve() */

    dtype  act_type;                     /* of activations, KV and, on a device, weight matrices: DTYPE_F32, DTYPE_BF16 or DTYPE_F16 */
    size_t act_bytes;                    /* of one act */
    bool   is_host;                      /* the device is the host: its memory may be read and written in place, and weights stay where and as they are mapped */

    /* Memory of the device: zeroed, 256-byte aligned; FL_FULL, naming `what`. On the CPU only used pages are touched. */
    fl_status (*take)(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err);
    void (*give)(ops *o, void *memory, size_t n_bytes);      /* accepts NULL */
    /* What the device has free and in all; zeros where that is the machine's memory. */
    void (*measure)(ops *o, uint64_t *free_bytes, uint64_t *all_bytes);
    /* Memory of the host that copies to and from the device run at full speed with; not zeroed. */
    fl_status (*take_host)(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err);
    void (*give_host)(ops *o, void *memory, size_t n_bytes); /* accepts NULL */
    /* Copies between host and device, in order with the calls around them. The host's memory may be changed when upload returns, and has the bytes when download does. */
    void (*upload)(ops *o, void *to, const void *from, size_t n_bytes);
    void (*download)(ops *o, void *to, const void *from, size_t n_bytes);
    /* The same of n_rows pieces of n_bytes, which lie to_stride and from_stride apart. */
    void (*upload_rows)(ops *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows);
    void (*download_rows)(ops *o, void *to, size_t to_stride, const void *from, size_t from_stride, size_t n_bytes, size_t n_rows);
    /* As upload, but `from` (memory of take_host) must stay as it is until wait_upload() of the same turn, 0 or 1: two buffers that are filled while the other travels. */
    void (*begin_upload)(ops *o, void *to, const void *from, size_t n_bytes, int turn);
    void (*wait_upload)(ops *o, int turn);
    /* Copies whose bytes are in `to` (memory of take_host) after wait_download() of the same turn, 0 or 1: a step's results leave while the next one runs. All that were begun
     * for a turn are waited for together. FL_GPU as finish(), of what came before them. */
    void (*begin_download)(ops *o, void *to, const void *from, size_t n_bytes, int turn);
    fl_status (*wait_download)(ops *o, int turn, fl_err *err);
    /* Seconds that the device worked, from a begin() to the first wait_download() for what came after it, of all steps so far. NULL where it is not measured. */
    double (*busy_seconds)(const ops *o);
    /* From device to device. */
    void (*copy)(ops *o, void *to, const void *from, size_t n_bytes);
    /* to[i] = middle + reach * r(seed, i), i < n: r in -1 .. 1 is random_value() below. type is F32, BF16 or F16. */
    void (*fill_random)(ops *o, void *to, dtype type, size_t n, uint64_t seed, float middle, float reach);
    /* The model's products without bias, to find the fastest kernels for them; results have the same bits without this call, and take longer. Once,
     * after the weights lie on the device and while it has memory for the results of one product, twice. note [OPS_NOTE_BYTES]: a line for the log, or empty. */
    fl_status (*prepare)(ops *o, const ops_product *products, int32_t n, char *note, fl_err *err);
    /* Take all that calls on batches within `limits` will need, now: none takes memory later, but recordings (replay), which are bounded. Once, after the weights lie on the device.
     * FL_FULL without that memory; FL_UNSUPPORTED for contexts that an operation has no room for at all. Each says what to lower. */
    fl_status (*reserve)(ops *o, const ops_limits *limits, fl_err *err);
    /* Waits for all calls so far. FL_GPU, naming the kernel, when one failed: then the device cannot be used by this process any more. */
    fl_status (*finish)(ops *o, fl_err *err);

    /* Room for products with quantized weights of at most n_cols columns, quant_room_bytes of it: once, before the first of them. FL_FULL without memory. */
    fl_status (*quant_room)(ops *o, int32_t n_cols, fl_err *err);
    size_t (*quant_room_bytes)(const ops *o, int32_t n_cols);

    /* The batch that the calls up to the next begin() are about; its arrays are borrowed until then. */
    void (*begin)(ops *o, const ops_batch *b);

    /* Work that comes again and again, launched at once (a CUDA graph). NULL where that gains nothing or TOKENFLEET_GRAPHS is 0: then calls are just made. Else
     *
     *     o->begin(o, &b); o->sample_begin(...);       the lists: outside
     *     while (!o->replay(o, key)) {
     *         ...calls...
     *         if (o->record_end(o, note)) break;
     *     }
     *
     * replay() true: the calls that were recorded under `key` are made, with what lists now hold. False: they are to be made, up to record_end(); the first time for a key they are
     * just made, the second time recorded. record_end() true: they are made; false: they are to be made again. note [OPS_NOTE_BYTES]: a line for the log, or empty.
     * For one key the calls must be the same, with the same arguments: a batch of the same numbers of rows, sequences and logits, the same table_stride and reach, of decode rows
     * alone, with ids_from; whatever else decides calls (n_top) belongs into the key. Among them no upload, download, take or finish. Recordings are
     * bounded; the one that was not used for longest goes. */
    bool (*replay)(ops *o, uint64_t key);
    bool (*record_end)(ops *o, char *note);

    /* y[r] = table[b.ids[r]] * scale, or of the chosen id (ids_from) */
    void (*embed)(ops *o, float *y, const weight *table, float scale, const ops_batch *b);
    /* y = x * (w + w_add) / sqrt(mean(x^2) + eps), row by row of `dim`; w_add is 0 or 1 */
    void (*rms_norm)(ops *o, act *y, const float *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim);
    /* the same of activations; y may be x */
    void (*act_rms_norm)(ops *o, act *y, const act *x, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim);
    /* x += d, then y = rms_norm(x) */
    void (*add_rms_norm)(ops *o, act *y, float *x, const act *d, const weight *w, float w_add, float eps, int32_t n_rows, int32_t dim);
    /* x += d */
    void (*add)(ops *o, float *x, const act *d, int32_t n_rows, int32_t dim);
    void (*act_add)(ops *o, act *x, const act *d, int32_t n_rows, int32_t dim);
    /* y [n_rows, w.n_rows] = x [n_rows, w.n_cols] w^T (+ bias where bias.data). With quantized weights x is rounded to whole numbers of 15 bits first, 32 of
     * a row to a scale, on the CPU: see linear_ref.c */
    void (*linear)(ops *o, act *y, const act *x, const weight *w, const weight *bias, int32_t n_rows);
    /* the same with fp32 results: logits, gates of a head */
    void (*linear_f32)(ops *o, float *y, const act *x, const weight *w, const weight *bias, int32_t n_rows);
    /* y[i] = x[b.logit_rows[i]] */
    void (*gather)(ops *o, float *y, const float *x, int32_t dim, const ops_batch *b);
    /* per head of head_dim: x = rope(rms_norm(x)); heads lie x_stride floats a row apart, head_stride a head apart; w may be absent (no norm) */
    void (*head_norm_rope)(ops *o, act *x, int32_t x_stride, int32_t head_stride, int32_t n_heads, int32_t head_dim, const weight *w, float w_add, float eps,
                           const ops_rope *rope, const ops_batch *b);
    /* write k, v [n_rows, n_kv_heads * head_dim] (row strides given) into the sequences' blocks at their positions */
    void (*kv_write)(ops *o, const ops_kv *kv, const act *k, int32_t k_stride, const act *v, int32_t v_stride, const ops_batch *b);
    /* out [n_rows, n_heads * head_dim] = softmax(scale q k^T) v over the positions <= own (and > own - window when window > 0), after kv_write;
     * KV tiles of 64 at absolute positions, merged in ascending order (online softmax) */
    void (*attention)(ops *o, act *out, const act *q, int32_t q_stride, int32_t q_head_stride, int32_t n_heads, const ops_kv *kv, float scale, int32_t window, const ops_batch *b);
    /* x[r, h, i] *= sigmoid(gate[r, h, i]); gate heads lie gate_head_stride apart */
    void (*sigmoid_gate)(ops *o, act *x, const act *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows);
    /* x[r, h, i] *= softplus(g): g = gate[r, h] with gate_per_head, else gate[r, h, i]. gate [n_rows, n_heads] or [n_rows, n_heads * head_dim] */
    void (*softplus_gate)(ops *o, act *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows);
    /* y = silu(causal_conv1d(x)) over n_channels with kernel width `width` (w [n_channels, width]); state [slot, width - 1, n_channels] holds the inputs
     * before the first row (zeros at position 0: the op clears it itself) and is advanced. It begins at a multiple of OPS_STATE_ALIGN, so that n_channels and width
     * alone decide how it is read; y may not be x */
    void (*conv_silu)(ops *o, act *y, const act *x, int32_t x_stride, const weight *w, float *state, int32_t n_channels, int32_t width, const ops_batch *b);
    /* Gated delta rule (Yang et al. 2024, arXiv:2412.06464). qkv [n_rows, 2 * n_k_heads * dk + n_v_heads * dv] after conv: q and k are l2-normalized per
     * head (x / sqrt(sum x^2 + 1e-6)), q scaled by dk^-1/2, value head h uses key head h / (n_v_heads / n_k_heads), or h mod n_k_heads with is_tiled; decay = exp(-exp(a_log) *
     * softplus(a + dt_bias)), beta = sigmoid(b); per step S = S * decay; S += k (beta (v - S^T k))^T; out = S^T q. state [slot, n_v_heads, dk, dv] fp32,
     * cleared by the op at position 0; it begins at a multiple of OPS_STATE_ALIGN, so that dv alone decides how it is read: a form that reads more at a time has
     * other last bits, and where a state lies must not choose it. a, b [n_rows, n_v_heads]; out [n_rows, n_v_heads * dv]. Prefill and decode form. */
    void (*gated_delta)(ops *o, act *out, const act *qkv, const float *a, const float *b_gate, const weight *a_log, const weight *dt_bias, float *state,
                        int32_t n_k_heads, int32_t n_v_heads, bool is_tiled, int32_t dk, int32_t dv, const ops_batch *b);
    /* x [n_rows, n_heads, dim] = w * x / sqrt(mean(x^2) + eps) * silu(z), head by head, in place */
    void (*gated_rms_norm)(ops *o, act *x, const act *z, const weight *w, float eps, int32_t n_rows, int32_t n_heads, int32_t dim);
    /* y[r, i] = silu(gate[r, i]) * up[r, i]; y may be gate */
    void (*swiglu)(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim);
    /* y[r, i] = gelu(gate[r, i]) * up[r, i], gelu(v) = v / 2 * (1 + tanh(sqrt(2 / pi) (v + 0.044715 v^3))) (Hendrycks & Gimpel 2016, arXiv:1606.08415); y may be gate */
    void (*geglu)(ops *o, act *y, const act *gate, const act *up, int32_t n_rows, int32_t dim);
    /* x = cap * tanh(x / cap), cap > 0 */
    void (*soft_cap)(ops *o, float *x, float cap, int32_t n_rows, int32_t dim);
    /* router: softmax over n_experts logits, top_k by probability (ties to the lowest id) in descending order; weights = probabilities, divided by
     * their sum when `renormalize`. ids, weights [n_rows, top_k] */
    void (*moe_route)(ops *o, int32_t *ids, float *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize);
    /* router of the other kind: p = sigmoid(logits); top_k by p + bias (ties to the lowest id) in descending order of that sum; weights = p without the
     * bias, divided by the sum of the chosen ones, times scale. bias [n_experts]. ids, weights [n_rows, top_k] */
    void (*moe_route_sigmoid)(ops *o, int32_t *ids, float *weights, const float *logits, const weight *bias, float scale, int32_t n_rows, int32_t n_experts, int32_t top_k);
    /* y[r] = sum over slots s, in slot order, of weights[r, s] * down[e](silu(gate[e] x[r]) * up[e] x[r]), e = ids[r, s]. gate, up, down: [n_experts] matrices.
     * scratch: moe_scratch_bytes() */
    void (*moe_experts)(ops *o, act *y, const act *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down,
                        int32_t n_rows, int32_t n_experts, int32_t top_k, void *scratch);
    /* x[r] += y[r] * sigmoid(g[r]) : the shared expert behind its gate, g [n_rows] */
    void (*add_sigmoid_scaled)(ops *o, act *x, const act *y, const float *g, int32_t n_rows, int32_t dim);
    /* lp[r] : log-sum-exp of a row of logits, max first, lanes of 16 then the tree; raw_logprob = logit - lse */
    void (*log_sum_exp)(ops *o, float *lse, const float *logits, int32_t n_rows, int32_t n_vocab);

    /* Choosing tokens on the device; NULL on the CPU, where the engine runs the chain itself. For at most so many rows and barred ids in a call, and contexts of n_context. */
    fl_status (*sampler_reserve)(ops *o, int32_t n_rows, int32_t n_barred, int32_t n_context, int32_t n_vocab, fl_err *err);
    /* The rows that the calls up to the next sample_begin() choose for: rows and barred are the host's, free to change when this returns. sample()'s launches depend on
     * its arguments alone. */
    void (*sample_begin)(ops *o, const ops_sampling *rows, int32_t n_rows, const int32_t *barred, int32_t n_barred);
    /* ids [n_rows] = the ids that engine/sampler.h's chain chooses from logits [.., n_vocab] (bit for bit), -1 where a logit is NaN or none is above -inf (of a given id: only for NaN). n_rows is
     * sample_begin()'s; counts [slots, n_vocab] (count_ids); NULL without penalties. */
    void (*sample)(ops *o, int32_t *ids, const float *logits, int32_t n_rows, uint32_t *counts, int32_t n_vocab);
    /* For the rows of sample(): logprobs [n_rows] of ids, and the n_top best [n_rows, n_top], as logprobs_of() of engine/sampler.h; no logprob for an id of -1.
     * lse is of the logits' rows. */
    void (*sample_logprobs)(ops *o, float *logprobs, int32_t *top_ids, float *top_logprobs, const int32_t *ids, const float *logits, const float *lse, int32_t n_top, int32_t n_rows,
                            int32_t n_vocab);
    /* A slot's counts [n_vocab] made anew from the ids of its prompt and of what it has generated, which are the host's. */
    void (*count_ids)(ops *o, uint32_t *counts, const int32_t *prompt, int32_t n_prompt, const int32_t *output, int32_t n_output, int32_t n_vocab);

    size_t (*moe_scratch_bytes)(const ops *o, int32_t n_rows, int32_t dim, int32_t ff, int32_t n_experts, int32_t top_k);
    void (*close)(ops *o);
};

/* Open the CPU implementation. n_threads >= 1 (0 = all cores this process may run on). The form is the best this CPU has, or what TOKENFLEET_KERNELS
 * says: scalar | avx2 | avxvnni | avx512 | avx512vnni (another value, or a form this CPU lacks, is FL_INVALID with a sentence). FL_UNSUPPORTED below AVX2 + FMA. */
fl_status ops_cpu_open(ops **out, int32_t n_threads, fl_err *err);

/* Fill cos, sin [n_positions, n_rot / 2] of positions first .. first + n_positions - 1 from inv_freq [n_rot / 2] (double math, own cos and sin): angle = position * inv_freq, in
 * fp32 product as the reference does. */
void rope_fill(float *cos_table, float *sin_table, const float *inv_freq, int32_t n_rot, int32_t first, int32_t n_positions, float scale);

/* The element `n` behind p. */
static inline act *act_at(const ops *o, act *p, size_t n) { return (act *)((char *)p + n * o->act_bytes); }

/* The i-th value of a stream, uniform in -1 .. 1, the same on every device (an integer hash: two rounds of splitmix64). */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline float random_value(uint64_t seed, uint64_t i)
{
    uint64_t z = seed + i * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (float)(int32_t)(z >> 40) * 0x1p-23f - 1.0f;
}

/* Own math, the same bits in every form and compiler: fp32, error below 2 ulp on their whole domain, IEEE specials. */
float fl_expf(float x);
float fl_logf(float x);
float fl_log1pf(float x);
float fl_tanhf(float x);
float fl_powf(float x, float y);
float fl_sinf(float x);
float fl_cosf(float x);

#endif
