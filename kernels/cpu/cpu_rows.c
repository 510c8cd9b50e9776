/* cpu_rows.c - element by element: embed, gather, add, gates, writing KV; and the log-sum-exp of a row of logits. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_math.h"
#include "kernels/quant.h"

#define EXP_WORK 8.0                     /* an exp is about this many multiply-adds */

static void cpu_embed(ops *o, float *y, const weight *table, float scale, const ops_batch *b)
{
    (void)o;
    int32_t dim = table->n_cols;
    for (int32_t r = 0; r < b->n_rows; r++) {
        FL_ASSERT(b->ids[r] >= 0 && b->ids[r] < table->n_rows);
        float *to = y + (size_t)r * (size_t)dim;
        dtype_decode(to, table->type, (const char *)table->data + (size_t)b->ids[r] * dtype_row_bytes(table->type, dim), dim);
        for (int32_t i = 0; i < dim; i += LANES) f_put(to + i, f_mul(f_take(to + i, dim - i), f_set(scale)), dim - i);
    }
}

static void cpu_gather(ops *o, float *y, const float *x, int32_t dim, const ops_batch *b)
{
    (void)o;
    for (int32_t i = 0; i < b->n_logits; i++) memcpy(y + (size_t)i * (size_t)dim, x + (size_t)b->logit_rows[i] * (size_t)dim, (size_t)dim * sizeof *y);
}

static void cpu_add(ops *o, float *x, const float *d, int32_t n_rows, int32_t dim)
{
    (void)o;
    size_t n = (size_t)n_rows * (size_t)dim;
    for (size_t i = 0; i < n; i += LANES) {
        int32_t left = n - i < LANES ? (int32_t)(n - i) : LANES;
        f_put(x + i, f_add(f_take(x + i, left), f_take(d + i, left)), left);
    }
}

typedef struct { float *x; const float *gate; int32_t gate_stride, gate_head_stride, n_heads, head_dim; } gate_arg;

static void gate_job(const void *arg, int32_t begin, int32_t end)
{
    const gate_arg *a = arg;
    for (int32_t r = begin; r < end; r++)
        for (int32_t h = 0; h < a->n_heads; h++) {
            float *x = a->x + ((size_t)r * (size_t)a->n_heads + (size_t)h) * (size_t)a->head_dim;
            const float *g = a->gate + (size_t)r * (size_t)a->gate_stride + (size_t)h * (size_t)a->gate_head_stride;
            for (int32_t i = 0; i < a->head_dim; i += LANES) {
                int32_t left = a->head_dim - i;
                f_put(x + i, f_mul(f_take(x + i, left), f_sigmoid(f_take(g + i, left))), left);
            }
        }
}

static void cpu_sigmoid_gate(ops *o, float *x, const float *gate, int32_t gate_stride, int32_t gate_head_stride, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    gate_arg a = { x, gate, gate_stride, gate_head_stride, n_heads, head_dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * n_heads * head_dim, gate_job, &a);
}

typedef struct { float *x; const float *gate; bool gate_per_head; int32_t n_heads, head_dim; } softplus_arg;

static void softplus_job(const void *arg, int32_t begin, int32_t end)
{
    const softplus_arg *a = arg;
    for (size_t h = (size_t)begin * (size_t)a->n_heads; h < (size_t)end * (size_t)a->n_heads; h++) {
        float *x = a->x + h * (size_t)a->head_dim;
        const float *g = a->gate + (a->gate_per_head ? h : h * (size_t)a->head_dim);
        f32x16 one = f_softplus(f_set(a->gate_per_head ? *g : 0.0f));
        for (int32_t i = 0; i < a->head_dim; i += LANES) {
            int32_t left = a->head_dim - i;
            f_put(x + i, f_mul(f_take(x + i, left), a->gate_per_head ? one : f_softplus(f_take(g + i, left))), left);
        }
    }
}

static void cpu_softplus_gate(ops *o, float *x, const float *gate, bool gate_per_head, int32_t n_heads, int32_t head_dim, int32_t n_rows)
{
    softplus_arg a = { x, gate, gate_per_head, n_heads, head_dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * n_heads * head_dim, softplus_job, &a);
}

typedef struct { float *y; const float *gate, *up; int32_t dim; } swiglu_arg;

static void swiglu_job(const void *arg, int32_t begin, int32_t end)
{
    const swiglu_arg *a = arg;
    for (int32_t r = begin; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->dim;
        for (int32_t i = 0; i < a->dim; i += LANES, at += LANES) {
            int32_t left = a->dim - i;
            f_put(a->y + at, f_mul(f_silu(f_take(a->gate + at, left)), f_take(a->up + at, left)), left);
        }
    }
}

static void cpu_swiglu(ops *o, float *y, const float *gate, const float *up, int32_t n_rows, int32_t dim)
{
    swiglu_arg a = { y, gate, up, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * dim, swiglu_job, &a);
}

static void geglu_job(const void *arg, int32_t begin, int32_t end)
{
    const swiglu_arg *a = arg;
    for (int32_t r = begin; r < end; r++) {
        size_t at = (size_t)r * (size_t)a->dim;
        for (int32_t i = 0; i < a->dim; i += LANES, at += LANES) {
            int32_t left = a->dim - i;
            f32x16 v = f_take(a->gate + at, left), half = f_mul(v, f_set(0.5f));
            f32x16 inner = f_mul(f_mul(v, f_set(0x1.988454p-1f)), f_fma(f_mul(v, v), f_set(0.044715f), f_set(1.0f)));      /* sqrt(2 / pi) v (1 + 0.044715 v^2) */
            f_put(a->y + at, f_mul(f_fma(half, f_tanh(inner), half), f_take(a->up + at, left)), left);
        }
    }
}

static void cpu_geglu(ops *o, float *y, const float *gate, const float *up, int32_t n_rows, int32_t dim)
{
    swiglu_arg a = { y, gate, up, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * dim, geglu_job, &a);
}

typedef struct { float *x, cap; int32_t dim; } cap_arg;

static void cap_job(const void *arg, int32_t begin, int32_t end)
{
    const cap_arg *a = arg;
    for (int32_t r = begin; r < end; r++)
        for (int32_t i = 0; i < a->dim; i += LANES) {
            int32_t left = a->dim - i;
            float *x = a->x + (size_t)r * (size_t)a->dim + i;
            f_put(x, f_mul(f_tanh(f_div(f_take(x, left), f_set(a->cap))), f_set(a->cap)), left);
        }
}

static void cpu_soft_cap(ops *o, float *x, float cap, int32_t n_rows, int32_t dim)
{
    FL_ASSERT(cap > 0.0f);
    cap_arg a = { x, cap, dim };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * dim, cap_job, &a);
}

static void cpu_add_sigmoid_scaled(ops *o, float *x, const float *y, const float *g, int32_t n_rows, int32_t dim)
{
    (void)o;
    for (int32_t r = 0; r < n_rows; r++) {
        f32x16 s = f_sigmoid(f_set(g[r]));
        size_t at = (size_t)r * (size_t)dim;
        for (int32_t i = 0; i < dim; i += LANES, at += LANES) {
            int32_t left = dim - i;
            f_put(x + at, f_fma(f_take(y + at, left), s, f_take(x + at, left)), left);
        }
    }
}

static void cpu_kv_write(ops *o, const ops_kv *kv, const float *k, int32_t k_stride, const float *v, int32_t v_stride, const ops_batch *b)
{
    (void)o;
    size_t head_dim = (size_t)kv->head_dim, bytes = head_dim * sizeof *k;
    for (int32_t r = 0; r < b->n_rows; r++) {
        int32_t position = b->positions[r];
        int32_t block = b->block_tables[(size_t)b->seq_of_row[r] * (size_t)b->table_stride + (size_t)(position / OPS_BLOCK_TOKENS)];
        for (int32_t h = 0; h < kv->n_kv_heads; h++) {
            size_t to = (((size_t)block * (size_t)kv->n_kv_heads + (size_t)h) * OPS_BLOCK_TOKENS + (size_t)(position % OPS_BLOCK_TOKENS)) * head_dim;
            memcpy(kv->k + to, k + (size_t)r * (size_t)k_stride + (size_t)h * head_dim, bytes);
            memcpy(kv->v + to, v + (size_t)r * (size_t)v_stride + (size_t)h * head_dim, bytes);
        }
    }
}

/* --- log-sum-exp: the maximum, then the sum of exp(x - max) --- */

typedef struct { float *lse; const float *logits; int32_t n_vocab; } lse_arg;

static void lse_job(const void *arg, int32_t begin, int32_t end)
{
    const lse_arg *a = arg;
    for (int32_t r = begin; r < end; r++) {
        const float *x = a->logits + (size_t)r * (size_t)a->n_vocab;
        f32x16 top = f_set(-INFINITY), sum = f_set(0.0f);
        int32_t whole = a->n_vocab - a->n_vocab % LANES;
        for (int32_t i = 0; i < whole; i += LANES) top = f_max(f_load(x + i), top);
        float most = f_greatest(top);
        for (int32_t i = whole; i < a->n_vocab; i++) most = x[i] > most ? x[i] : most;
        if (fabsf(most) == INFINITY) most = 0.0f;                    /* then the sum itself is 0 or inf, and so is the answer */
        f32x16 shift = f_set(most);
        for (int32_t i = 0; i < whole; i += LANES) sum = f_add(sum, f_exp(f_sub(f_load(x + i), shift)));
        if (whole < a->n_vocab) {                                    /* missing lanes are exp(-inf) = 0 */
            float last[LANES];
            f_store(last, f_set(-INFINITY));
            memcpy(last, x + whole, (size_t)(a->n_vocab - whole) * sizeof *x);
            sum = f_add(sum, f_exp(f_sub(f_load(last), shift)));
        }
        a->lse[r] = most + fl_logf(f_sum(sum));
    }
}

static void cpu_log_sum_exp(ops *o, float *lse, const float *logits, int32_t n_rows, int32_t n_vocab)
{
    lse_arg a = { lse, logits, n_vocab };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, EXP_WORK * n_vocab, lse_job, &a);
}

void LANES_FORM(rows_install)(ops *o)
{
    o->embed = cpu_embed;
    o->gather = cpu_gather;
    o->add = cpu_add;
    o->act_add = cpu_add;
    o->sigmoid_gate = cpu_sigmoid_gate;
    o->softplus_gate = cpu_softplus_gate;
    o->swiglu = cpu_swiglu;
    o->geglu = cpu_geglu;
    o->soft_cap = cpu_soft_cap;
    o->add_sigmoid_scaled = cpu_add_sigmoid_scaled;
    o->kv_write = cpu_kv_write;
    o->log_sum_exp = cpu_log_sum_exp;
}
