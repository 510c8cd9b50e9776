#include "worker/bench_model.h"

#include <math.h>
#include <stdlib.h>

/* ---- the model ---- */

static fl_status take_lists(bench_model *b, fl_err *err)
{
    const size_t rows = (size_t)b->n_rows_max, seqs = (size_t)b->n_seqs;
    b->ids = calloc(rows, sizeof *b->ids);
    b->ids_from = calloc(rows, sizeof *b->ids_from);
    b->positions = calloc(rows, sizeof *b->positions);
    b->seq_of_row = calloc(rows, sizeof *b->seq_of_row);
    b->logit_rows = calloc(rows, sizeof *b->logit_rows);
    b->row_begin = calloc(seqs + 1, sizeof *b->row_begin);
    b->slots = calloc(seqs, sizeof *b->slots);
    b->is_prefill = calloc(seqs, sizeof *b->is_prefill);
    b->tables = calloc(seqs, sizeof *b->tables);
    b->blocks = calloc(seqs * (size_t)b->stride, sizeof *b->blocks);
    b->row = calloc((size_t)model_describe(b->m)->n_vocab, sizeof *b->row);
    bool ok = b->ids && b->ids_from && b->positions && b->seq_of_row && b->logit_rows && b->row_begin && b->slots && b->is_prefill && b->tables && b->blocks && b->row;
    return ok ? FL_OK : fl_fail(err, FL_FULL, "no memory for steps of %d rows", b->n_rows_max);
}

static fl_status place_sequences(bench_model *b, fl_err *err)
{
    fl_status st = FL_OK;
    for (int32_t i = 0; st == FL_OK && i < b->n_seqs; i++) {
        st = kv_cache_reserve(b->kv, &b->tables[i], b->stride, err);
        b->slots[i] = state_pool_take(b->states);
        for (int32_t k = 0; st == FL_OK && k < b->stride; k++) b->blocks[(size_t)i * (size_t)b->stride + (size_t)k] = b->tables[i].blocks[k];
    }
    return st;
}

fl_status bench_model_open(bench_model *b, const char *path, ops *o, int32_t n_seqs, int32_t context, int32_t n_rows_max, int32_t n_logits_max, fl_err *err)
{
    void *hidden = NULL, *logits = NULL, *chosen = NULL;
    *b = (bench_model){ .o = o, .n_seqs = n_seqs, .context = context, .n_rows_max = n_rows_max, .stride = kv_blocks_of(context), .n_logits_max = n_logits_max };
    fl_status st = model_open(&b->m, path, o, n_rows_max, context, err);
    if (st != FL_OK) return st;
    const model_config *c = model_describe(b->m);
    const cache_needs needs = model_config_caches(c);
    const ops_limits limits = { n_rows_max, n_seqs, n_logits_max, b->stride, c->n_heads, c->head_dim };
    if (model_context(b->m) < context) return fl_fail(err, FL_INVALID, "the model's context is %d, below the %d that are asked for", model_context(b->m), context);
    if ((st = model_prepare(b->m, n_logits_max, err)) != FL_OK) return st;
    st = kv_cache_open(&b->kv, o, needs.kv_layers, c->n_kv_heads, c->head_dim, n_seqs * b->stride, err);
    if (st == FL_OK) st = state_pool_open(&b->states, o, needs.state_layers, needs.delta_floats, needs.conv_floats, n_seqs, err);
    if (st == FL_OK) st = take_lists(b, err);
    if (st == FL_OK) st = place_sequences(b, err);
    if (st == FL_OK) st = o->take(o, &hidden, (size_t)n_logits_max * (size_t)c->hidden * o->act_bytes, "the rows that logits are made from", err);
    b->hidden = hidden;
    if (st == FL_OK) st = o->take(o, &logits, (size_t)n_logits_max * (size_t)c->n_vocab * sizeof(float), "logits", err);
    b->logits = logits;
    if (st == FL_OK) st = o->take(o, &chosen, (size_t)n_rows_max * sizeof *b->chosen, "chosen ids", err);
    b->chosen = chosen;
    if (st == FL_OK) st = o->reserve(o, &limits, err);
    return st == FL_OK ? o->finish(o, err) : st;
}

void bench_model_close(bench_model *b)
{
    if (!b->o) return;
    if (b->hidden) b->o->give(b->o, b->hidden, (size_t)b->n_logits_max * (size_t)model_describe(b->m)->hidden * b->o->act_bytes);
    if (b->logits) b->o->give(b->o, b->logits, (size_t)b->n_logits_max * (size_t)model_describe(b->m)->n_vocab * sizeof(float));
    if (b->chosen) b->o->give(b->o, b->chosen, (size_t)b->n_rows_max * sizeof *b->chosen);
    for (int32_t i = 0; b->tables && i < b->n_seqs; i++) {
        if (b->tables[i].n_blocks == 0) continue;
        kv_cache_release(b->kv, &b->tables[i], 0);
        state_pool_give(b->states, b->slots[i]);
    }
    kv_cache_close(b->kv);
    state_pool_close(b->states);
    model_close(b->m);
    b->o->close(b->o);
    free(b->ids); free(b->ids_from); free(b->positions); free(b->seq_of_row); free(b->logit_rows); free(b->row_begin);
    free(b->slots); free(b->is_prefill); free(b->tables); free(b->blocks); free(b->row);
    *b = (bench_model){ 0 };
}

static ops_batch batch_of(const bench_model *b, int32_t n_rows, int32_t n_seqs, int32_t n_logits)
{
    return (ops_batch){ .n_rows = n_rows, .n_seqs = n_seqs, .ids = b->ids, .positions = b->positions, .seq_of_row = b->seq_of_row, .row_begin = b->row_begin,
                              .is_prefill = b->is_prefill, .state_slots = b->slots, .block_tables = b->blocks, .table_stride = b->stride, .logit_rows = b->logit_rows, .n_logits = n_logits };
}

static void run_batch(bench_model *b, const ops_batch *batch)
{
    model_run(b->m, batch, b->kv, b->states, b->hidden);
    if (batch->n_logits > 0) model_logits(b->m, b->hidden, batch->n_logits, b->logits);
}

void bench_prefill_step(bench_model *b, const int32_t *ids, int32_t first, int32_t n, bool is_last)
{
    FL_ASSERT(n <= b->n_rows_max && first + n <= b->context);
    for (int32_t i = 0; i < n; i++) {
        b->ids[i] = ids[first + i];
        b->positions[i] = first + i;
        b->seq_of_row[i] = 0;
    }
    b->row_begin[0] = 0;
    b->row_begin[1] = n;
    b->is_prefill[0] = true;
    b->logit_rows[0] = n - 1;
    const ops_batch batch = batch_of(b, n, 1, is_last);
    model_begin(b->m, &batch);
    run_batch(b, &batch);
}

void bench_decode_step(bench_model *b, int32_t n, int32_t position)
{
    FL_ASSERT(n <= b->n_seqs && n <= b->n_rows_max && n <= b->n_logits_max && position < b->context);
    for (int32_t i = 0; i < n; i++) {
        b->ids[i] = (position * 31 + i * 7) % model_describe(b->m)->n_vocab;
        b->ids_from[i] = -1;
        b->positions[i] = position;
        b->seq_of_row[i] = b->logit_rows[i] = b->row_begin[i] = i;
        b->is_prefill[i] = false;
    }
    b->row_begin[n] = n;
    ops_batch batch = batch_of(b, n, n, n);
    batch.ids_from = b->ids_from;
    batch.chosen = b->chosen;
    batch.reach = b->context;
    model_begin(b->m, &batch);
    while (!b->o->replay || !b->o->replay(b->o, (uint64_t)n)) {
        char note[OPS_NOTE_BYTES];
        run_batch(b, &batch);
        if (!b->o->replay || b->o->record_end(b->o, note)) break;
    }
}

fl_status bench_read_logits(bench_model *b, int32_t index, int32_t *argmax, fl_err *err)
{
    const int32_t n_vocab = model_describe(b->m)->n_vocab;
    b->o->download(b->o, b->row, b->logits + (size_t)index * (size_t)n_vocab, (size_t)n_vocab * sizeof *b->row);
    *argmax = 0;
    for (int32_t i = 1; i < n_vocab; i++) if (b->row[i] > b->row[*argmax]) *argmax = i;
    return b->o->finish(b->o, err);
}

/* ---- what a step costs ---- */

/* Weights that one token is multiplied with in one layer, but for its routed experts. */
static double layer_weights(const model_config *c, const layer_config *layer)
{
    const linear_config *l = &c->linear;
    const double hidden = c->hidden, hd = c->head_dim;
    double n;
    if (layer->kind == LAYER_LINEAR_ATTENTION) n = hidden * (2.0 * l->n_k_heads * l->k_dim + 3.0 * l->n_v_heads * l->v_dim + 2.0 * l->n_v_heads);
    else n = hidden * hd * ((l->n_k_heads > 0 ? 3.0 : 2.0) * layer->n_heads + 2.0 * c->n_kv_heads);      /* DeltaNet families have a gate beside each query */
    return n + (layer->is_mixture ? hidden * (c->moe.n_experts + 3.0 * c->moe.shared_ff) : 3.0 * hidden * c->ff);
}

double bench_prefill_flop(const model_config *c, int32_t n)
{
    double weights = 0, scores = 0;
    for (int32_t i = 0; i < c->n_layers; i++) {
        const layer_config *layer = &c->layers[i];
        weights += layer_weights(c, layer) + (layer->is_mixture ? 3.0 * c->hidden * c->moe.ff * c->moe.top_k : 0);
        if (layer->kind == LAYER_LINEAR_ATTENTION) continue;
        const double seen = layer->kind == LAYER_SLIDING_ATTENTION && c->window < n ? c->window : n / 2.0;
        scores += 2.0 * layer->n_heads * c->head_dim * seen;
    }
    return 2.0 * n * (weights + scores) + 2.0 * c->hidden * c->n_vocab;
}

double bench_weight_bytes(const model_config *c, size_t value_bytes, double n)
{
    double weights = (double)c->hidden * c->n_vocab;
    for (int32_t i = 0; i < c->n_layers; i++) {
        weights += layer_weights(c, &c->layers[i]);
        if (!c->layers[i].is_mixture) continue;
        const double chosen = c->moe.n_experts * (1.0 - pow(1.0 - (double)c->moe.top_k / c->moe.n_experts, n));
        weights += 3.0 * c->hidden * c->moe.ff * chosen;
    }
    return weights * (double)value_bytes;
}

double bench_token_bytes(const model_config *c, size_t value_bytes, double context)
{
    const cache_needs needs = model_config_caches(c);
    const double state = 2.0 * (double)needs.state_layers * (double)(needs.delta_floats + needs.conv_floats) * sizeof(float);
    return (double)needs.kv_token_floats * context * (double)value_bytes + state + 4.0 * c->n_vocab;
}
