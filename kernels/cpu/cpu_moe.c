/* cpu_moe.c - mixture of experts: the router, and the experts' gated products.
 *
 * (row, slot) pairs are sorted by expert, so that an expert's weights are read once for all its rows; every pair is computed on its own (dot_rows) and
 * a row adds its pairs in slot order, so who else chose an expert changes nothing. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/lanes.h"
#include "kernels/cpu/lanes_math.h"
#include "kernels/quant.h"

/* --- moe_route, moe_route_sigmoid --- */

/* The top_k greatest scores, greatest first, ties to the lowest id. NaN beats nothing and is beaten by nothing: ids stay distinct. */
static void choose(int32_t *ids, const float *score, int32_t n_experts, int32_t top_k)
{
    bool taken[OPS_EXPERTS_MAX];
    memset(taken, 0, (size_t)n_experts * sizeof *taken);
    for (int32_t s = 0; s < top_k; s++) {
        int32_t best = -1;
        for (int32_t e = 0; e < n_experts; e++)
            if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
        taken[best] = true;
        ids[s] = best;
    }
}

typedef struct { int32_t *ids; float *weights; const float *logits; int32_t n_experts, top_k; bool renormalize; } route_arg;

static void route_row(const route_arg *a, int32_t r)
{
    const float *x = a->logits + (size_t)r * (size_t)a->n_experts;
    int32_t *ids = a->ids + (size_t)r * (size_t)a->top_k;
    float *weights = a->weights + (size_t)r * (size_t)a->top_k;
    float p[OPS_EXPERTS_MAX];
    float most = -INFINITY;
    for (int32_t e = 0; e < a->n_experts; e++) most = x[e] > most ? x[e] : most;
    f32x16 sum = f_set(0.0f);
    for (int32_t e = 0; e < a->n_experts; e += LANES) {
        int32_t left = a->n_experts - e;
        f_put(p + e, f_exp(f_sub(f_take(x + e, left), f_set(most))), left);
        sum = f_add(sum, f_take(p + e, left));
    }
    f32x16 total = f_set(f_sum(sum));
    for (int32_t e = 0; e < a->n_experts; e += LANES) f_put(p + e, f_div(f_take(p + e, a->n_experts - e), total), a->n_experts - e);

    choose(ids, p, a->n_experts, a->top_k);
    float chosen = 0.0f;
    for (int32_t s = 0; s < a->top_k; s++) chosen += weights[s] = p[ids[s]];
    if (a->renormalize)
        for (int32_t s = 0; s < a->top_k; s++) weights[s] /= chosen;
}

static void route_job(const void *arg, int32_t begin, int32_t end)
{
    for (int32_t r = begin; r < end; r++) route_row(arg, r);
}

static void cpu_moe_route(ops *o, int32_t *ids, float *weights, const float *logits, int32_t n_rows, int32_t n_experts, int32_t top_k, bool renormalize)
{
    FL_ASSERT(n_experts >= 1 && n_experts <= OPS_EXPERTS_MAX && top_k >= 1 && top_k <= n_experts);
    route_arg a = { ids, weights, logits, n_experts, top_k, renormalize };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, (double)n_experts * (8 + top_k), route_job, &a);
}

typedef struct { int32_t *ids; float *weights; const float *logits; const weight *bias; float scale; int32_t n_experts, top_k; } sigmoid_arg;

static void sigmoid_row(const sigmoid_arg *a, int32_t r)
{
    const float *x = a->logits + (size_t)r * (size_t)a->n_experts;
    int32_t *ids = a->ids + (size_t)r * (size_t)a->top_k;
    float *weights = a->weights + (size_t)r * (size_t)a->top_k;
    float p[OPS_EXPERTS_MAX], score[OPS_EXPERTS_MAX];
    for (int32_t e = 0; e < a->n_experts; e += LANES) {
        int32_t left = a->n_experts - e;
        f32x16 v = f_sigmoid(f_take(x + e, left));
        f_put(p + e, v, left);
        f_put(score + e, f_add(v, f_take_w(a->bias->data, a->bias->type, (size_t)e, left)), left);
    }
    choose(ids, score, a->n_experts, a->top_k);
    float chosen = 0.0f;
    for (int32_t s = 0; s < a->top_k; s++) chosen += weights[s] = p[ids[s]];
    for (int32_t s = 0; s < a->top_k; s++) weights[s] = weights[s] / chosen * a->scale;
}

static void sigmoid_job(const void *arg, int32_t begin, int32_t end)
{
    for (int32_t r = begin; r < end; r++) sigmoid_row(arg, r);
}

static void cpu_moe_route_sigmoid(ops *o, int32_t *ids, float *weights, const float *logits, const weight *bias, float scale, int32_t n_rows, int32_t n_experts, int32_t top_k)
{
    FL_ASSERT(n_experts >= 1 && n_experts <= OPS_EXPERTS_MAX && top_k >= 1 && top_k <= n_experts && bias->data);
    sigmoid_arg a = { ids, weights, logits, bias, scale, n_experts, top_k };
    cpu_pool_run(((ops_cpu *)o)->pool, n_rows, (double)n_experts * (8 + top_k), sigmoid_job, &a);
}

/* --- moe_experts --- */

#define STRIP 32                         /* output columns of a work item */
#define PAIRS 64                         /* pairs of an expert computed at a time */

typedef struct {
    const ops_cpu *c;
    float *y; const float *x, *weights; const weight *gate, *up, *down;
    int32_t dim, ff, top_k, n_active, n_strips;
    float *hidden, *hidden_up, *part;    /* [n_pairs, ff], [n_pairs, ff], [n_pairs, dim], pairs in order of expert */
    act_block *x_blocks, *hidden_blocks; /* [n_rows, dim / 32], [n_pairs, ff / 32]: the same as whole numbers, where weights are quantized */
    int32_t *begin;                      /* [n_experts + 1] first pair of each expert */
    int32_t *active;                     /* [n_active] experts that have pairs */
    int32_t *row_of_pair;                /* [n_pairs] */
    int32_t *pair_of_slot;               /* [n_rows, top_k] */
} experts_arg;

/* y[i * y_stride + c] = dot(w row j + c, what pair p + i gives) for c < n: its row of x, or its hidden row. */
static void strip_products(const experts_arg *a, float *y, size_t y_stride, const weight *w, int32_t j, int32_t n, int32_t p, int32_t n_pairs, bool of_hidden)
{
    const char *rows = (const char *)w->data + (size_t)j * dtype_row_bytes(w->type, w->n_cols);
    const size_t n_k = (size_t)w->n_cols;
    const float *x[PAIRS];
    const act_block *blocks[PAIRS];
    for (int32_t i = 0; i < n_pairs; i++) {
        size_t at = (size_t)(of_hidden ? p + i : a->row_of_pair[p + i]);
        x[i] = (of_hidden ? a->hidden : a->x) + at * n_k;
        blocks[i] = (of_hidden ? a->hidden_blocks : a->x_blocks) + at * (n_k / 32);
    }
    if (dtype_is_quantized(w->type)) a->c->dot_rows_quant(y, y_stride, rows, w->type, n, w->n_cols, blocks, n_pairs);
    else LANES_FORM(dot_rows)(y, y_stride, rows, w->type, n, w->n_cols, x, n_pairs);
}

/* hidden = silu(gate x) * (up x), for one strip of ff of one expert */
static void hidden_job(const void *arg, int32_t begin, int32_t end)
{
    const experts_arg *a = arg;
    for (int32_t item = begin; item < end; item++) {
        int32_t e = a->active[item / a->n_strips], j = item % a->n_strips * STRIP, n = a->ff - j < STRIP ? a->ff - j : STRIP;
        for (int32_t p = a->begin[e]; p < a->begin[e + 1]; p += PAIRS) {
            int32_t n_pairs = a->begin[e + 1] - p < PAIRS ? a->begin[e + 1] - p : PAIRS;
            size_t to = (size_t)p * (size_t)a->ff + (size_t)j;
            strip_products(a, a->hidden + to, (size_t)a->ff, &a->gate[e], j, n, p, n_pairs, false);
            strip_products(a, a->hidden_up + to, (size_t)a->ff, &a->up[e], j, n, p, n_pairs, false);
            for (int32_t i = 0; i < n_pairs; i++, to += (size_t)a->ff)
                for (int32_t c = 0; c < n; c += LANES) {
                    float *h = a->hidden + to + c;
                    f_put(h, f_mul(f_silu(f_take(h, n - c)), f_take(a->hidden_up + to + c, n - c)), n - c);
                }
        }
    }
}

/* part = down hidden, for one strip of dim of one expert */
static void down_job(const void *arg, int32_t begin, int32_t end)
{
    const experts_arg *a = arg;
    for (int32_t item = begin; item < end; item++) {
        int32_t e = a->active[item / a->n_strips], j = item % a->n_strips * STRIP, n = a->dim - j < STRIP ? a->dim - j : STRIP;
        for (int32_t p = a->begin[e]; p < a->begin[e + 1]; p += PAIRS) {
            int32_t n_pairs = a->begin[e + 1] - p < PAIRS ? a->begin[e + 1] - p : PAIRS;
            strip_products(a, a->part + (size_t)p * (size_t)a->dim + j, (size_t)a->dim, &a->down[e], j, n, p, n_pairs, true);
        }
    }
}

/* Rows of x, or of the hidden of pairs, as whole numbers for quantized weights. */
static void x_blocks_job(const void *arg, int32_t begin, int32_t end)
{
    const experts_arg *a = arg;
    for (int32_t r = begin; r < end; r++) a->c->quantize_row(a->x_blocks + (size_t)r * (size_t)(a->dim / 32), a->x + (size_t)r * (size_t)a->dim, a->dim);
}
static void hidden_blocks_job(const void *arg, int32_t begin, int32_t end)
{
    const experts_arg *a = arg;
    for (int32_t p = begin; p < end; p++) a->c->quantize_row(a->hidden_blocks + (size_t)p * (size_t)(a->ff / 32), a->hidden + (size_t)p * (size_t)a->ff, a->ff);
}

static void combine_job(const void *arg, int32_t begin, int32_t end)
{
    const experts_arg *a = arg;
    for (int32_t r = begin; r < end; r++) {
        const int32_t *pairs = a->pair_of_slot + (size_t)r * (size_t)a->top_k;
        const float *weights = a->weights + (size_t)r * (size_t)a->top_k;
        for (int32_t i = 0; i < a->dim; i += LANES) {
            f32x16 sum = f_set(0.0f);
            for (int32_t s = 0; s < a->top_k; s++)
                sum = f_fma(f_take(a->part + (size_t)pairs[s] * (size_t)a->dim + i, a->dim - i), f_set(weights[s]), sum);
            f_put(a->y + (size_t)r * (size_t)a->dim + i, sum, a->dim - i);
        }
    }
}

/* Sort pairs by expert, keeping row order, with the counts of `ids`. */
static void pairs_sort(experts_arg *a, const int32_t *ids, int32_t n_rows, int32_t n_experts)
{
    int32_t n_pairs = n_rows * a->top_k, at = 0;
    memset(a->begin, 0, ((size_t)n_experts + 1) * sizeof *a->begin);
    for (int32_t i = 0; i < n_pairs; i++) {
        FL_ASSERT(ids[i] >= 0 && ids[i] < n_experts);
        a->begin[ids[i]]++;
    }
    for (int32_t e = 0; e < n_experts; e++) {                        /* counts become first pairs */
        int32_t count = a->begin[e];
        if (count > 0) a->active[a->n_active++] = e;
        a->begin[e] = at;
        at += count;
    }
    for (int32_t i = 0; i < n_pairs; i++) {                          /* begin[e] walks to the expert's end */
        int32_t pair = a->begin[ids[i]]++;
        a->row_of_pair[pair] = i / a->top_k;
        a->pair_of_slot[i] = pair;
    }
    for (int32_t e = n_experts; e > 0; e--) a->begin[e] = a->begin[e - 1];
    a->begin[0] = 0;
}

/* Hands out pieces of scratch; with base NULL it only counts, so the size and the layout cannot drift apart. */
typedef struct { char *base; size_t used; } cut;
static void *cut_take(cut *c, size_t bytes)
{
    void *p = c->base ? c->base + c->used : NULL;
    c->used += (bytes + 63) / 64 * 64;
    return p;
}

static size_t scratch_layout(experts_arg *a, void *scratch, int32_t n_rows, int32_t n_experts)
{
    cut c = { scratch, 63 };                                         /* room to begin at a multiple of 64 */
    if (scratch) c.used = (64 - (uintptr_t)scratch % 64) % 64;
    size_t n_pairs = (size_t)n_rows * (size_t)a->top_k;
    a->hidden = cut_take(&c, n_pairs * (size_t)a->ff * sizeof(float));
    a->hidden_up = cut_take(&c, n_pairs * (size_t)a->ff * sizeof(float));
    a->part = cut_take(&c, n_pairs * (size_t)a->dim * sizeof(float));
    a->x_blocks = cut_take(&c, (size_t)n_rows * (size_t)(a->dim / 32) * sizeof *a->x_blocks);
    a->hidden_blocks = cut_take(&c, n_pairs * (size_t)(a->ff / 32) * sizeof *a->hidden_blocks);
    a->begin = cut_take(&c, ((size_t)n_experts + 1) * sizeof(int32_t));
    a->active = cut_take(&c, (size_t)n_experts * sizeof(int32_t));
    a->row_of_pair = cut_take(&c, n_pairs * sizeof(int32_t));
    a->pair_of_slot = cut_take(&c, n_pairs * sizeof(int32_t));
    return c.used;
}

static size_t cpu_moe_scratch_bytes(const ops *o, int32_t n_rows, int32_t dim, int32_t ff, int32_t n_experts, int32_t top_k)
{
    (void)o;
    experts_arg a = { .dim = dim, .ff = ff, .top_k = top_k };
    return scratch_layout(&a, NULL, n_rows, n_experts);
}

static void cpu_moe_experts(ops *o, float *y, const float *x, const int32_t *ids, const float *weights, const weight *gate, const weight *up, const weight *down,
                            int32_t n_rows, int32_t n_experts, int32_t top_k, void *scratch)
{
    cpu_pool *pool = ((ops_cpu *)o)->pool;
    experts_arg a = { .c = (ops_cpu *)o, .y = y, .x = x, .weights = weights, .gate = gate, .up = up, .down = down, .dim = gate[0].n_cols, .ff = gate[0].n_rows, .top_k = top_k };
    FL_ASSERT(n_rows >= 0 && top_k >= 1 && up[0].n_rows == a.ff && up[0].n_cols == a.dim && down[0].n_rows == a.dim && down[0].n_cols == a.ff);
    if (n_rows == 0) return;
    FL_ASSERT((uintptr_t)scratch % sizeof(float) == 0);
    scratch_layout(&a, scratch, n_rows, n_experts);
    pairs_sort(&a, ids, n_rows, n_experts);
    double pairs_each = (double)n_rows * top_k / a.n_active;
    bool quant_in = false, quant_down = false;                       /* in any expert that is met */
    for (int32_t i = 0; i < a.n_active; i++) {
        quant_in |= dtype_is_quantized(gate[a.active[i]].type) || dtype_is_quantized(up[a.active[i]].type);
        quant_down |= dtype_is_quantized(down[a.active[i]].type);
    }
    if (quant_in) cpu_pool_run(pool, n_rows, QUANTIZE_WORK * a.dim, x_blocks_job, &a);
    a.n_strips = (a.ff + STRIP - 1) / STRIP;
    cpu_pool_run(pool, a.n_active * a.n_strips, 2.0 * pairs_each * a.ff * a.dim / a.n_strips, hidden_job, &a);
    if (quant_down) cpu_pool_run(pool, n_rows * top_k, QUANTIZE_WORK * a.ff, hidden_blocks_job, &a);
    a.n_strips = (a.dim + STRIP - 1) / STRIP;
    cpu_pool_run(pool, a.n_active * a.n_strips, pairs_each * a.ff * a.dim / a.n_strips, down_job, &a);
    cpu_pool_run(pool, n_rows, (double)top_k * a.dim, combine_job, &a);
}

void LANES_FORM(moe_install)(ops *o)
{
    o->moe_route = cpu_moe_route;
    o->moe_route_sigmoid = cpu_moe_route_sigmoid;
    o->moe_experts = cpu_moe_experts;
    o->moe_scratch_bytes = cpu_moe_scratch_bytes;
}
