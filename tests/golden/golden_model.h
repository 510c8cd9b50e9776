/* golden_model.h - one reference model (config, weights, golden.json from transformers) against our forward pass and our engine.
 * Bounds   fp32 against fp32 with other orders of summation: logits and log-probabilities within 1e-3; a greedy id may differ where the reference's top two
 *          logits lie within 1e-3; expert choices are equal in 99.9 % of (position, layer, slot), since routers can tie as closely. */
#ifndef TESTS_GOLDEN_MODEL_H
#define TESTS_GOLDEN_MODEL_H

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/engine.h"
#include "engine/model.h"

#define GOLDEN_TOLERANCE 1e-3
#define GOLDEN_CONTEXT 1024

/* One sequence on a model of its own, driven row by row without a scheduler. */
typedef struct {
    const char *name;                /* of the folder, for messages */
    ops *o;
    model *m;
    kv_cache *kv;
    state_pool *states;
    block_table table;
    int32_t slot, n_vocab;
    act *hidden; float *logits_there, *lse_there;        /* device: [64, hidden], [64, n_vocab], [64] */
    float *logits, *lse;             /* on the host */
    int32_t *routed; float *router_weights;              /* of one layer, on the host: [64, top_k] */
    size_t n_choices, n_other_choices;   /* expert choices compared, and different ones */
    double worst_logit, worst_logprob;
} golden_model;

static inline void golden_require(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s", err->text);
}

static inline void *golden_memory(golden_model *g, size_t n_bytes)
{
    void *memory = NULL;
    fl_err err;
    golden_require(g->o->take(g->o, &memory, n_bytes, "a test", &err), &err);
    return memory;
}

/* On `o`, which golden_close closes. */
static inline void golden_open_on(golden_model *g, const char *dir, ops *o)
{
    fl_err err;
    *g = (golden_model){ .name = strrchr(dir, '/') + 1, .o = o };
    golden_require(model_open(&g->m, dir, g->o, OPS_BLOCK_TOKENS, GOLDEN_CONTEXT, &err), &err);
    const model_config *c = model_describe(g->m);
    const cache_needs needs = model_config_caches(c);
    const ops_limits limits = { OPS_BLOCK_TOKENS, 1, OPS_BLOCK_TOKENS, GOLDEN_CONTEXT / OPS_BLOCK_TOKENS, c->n_heads, c->head_dim };
    golden_require(kv_cache_open(&g->kv, g->o, needs.kv_layers, c->n_kv_heads, c->head_dim, GOLDEN_CONTEXT / OPS_BLOCK_TOKENS, &err), &err);
    golden_require(state_pool_open(&g->states, g->o, needs.state_layers, needs.delta_floats, needs.conv_floats, 1, &err), &err);
    golden_require(kv_cache_reserve(g->kv, &g->table, GOLDEN_CONTEXT / OPS_BLOCK_TOKENS, &err), &err);
    golden_require(g->o->reserve(g->o, &limits, &err), &err);
    g->slot = state_pool_take(g->states);
    g->n_vocab = c->n_vocab;
    g->hidden = golden_memory(g, OPS_BLOCK_TOKENS * (size_t)c->hidden * g->o->act_bytes);
    g->logits_there = golden_memory(g, OPS_BLOCK_TOKENS * (size_t)c->n_vocab * sizeof(float));
    g->lse_there = golden_memory(g, OPS_BLOCK_TOKENS * sizeof(float));
    g->logits = calloc(OPS_BLOCK_TOKENS * (size_t)c->n_vocab, sizeof(float));
    g->lse = calloc(OPS_BLOCK_TOKENS, sizeof(float));
    g->routed = calloc(OPS_BLOCK_TOKENS * (size_t)c->moe.top_k + 1, sizeof(int32_t));
    g->router_weights = calloc(OPS_BLOCK_TOKENS * (size_t)c->moe.top_k + 1, sizeof(float));
    assert_true(g->logits && g->lse && g->routed && g->router_weights);
}

static inline void golden_open(golden_model *g, const char *dir)
{
    ops *o = NULL;
    fl_err err;
    golden_require(ops_cpu_open(&o, 1, &err), &err);
    golden_open_on(g, dir, o);
}

static inline void golden_close(golden_model *g)
{
    kv_cache_release(g->kv, &g->table, 0);
    state_pool_give(g->states, g->slot);
    kv_cache_close(g->kv);
    state_pool_close(g->states);
    g->o->give(g->o, g->hidden, OPS_BLOCK_TOKENS * (size_t)model_describe(g->m)->hidden * g->o->act_bytes);
    g->o->give(g->o, g->logits_there, OPS_BLOCK_TOKENS * (size_t)g->n_vocab * sizeof(float));
    g->o->give(g->o, g->lse_there, OPS_BLOCK_TOKENS * sizeof(float));
    model_close(g->m);
    g->o->close(g->o);
    free(g->logits);
    free(g->lse);
    free(g->routed);
    free(g->router_weights);
}

/* Logits of positions first .. first + n - 1 in g->logits, their log-sum-exps in g->lse. */
static inline void golden_run(golden_model *g, const int32_t *ids, int32_t first, int32_t n, bool is_prefill)
{
    int32_t positions[OPS_BLOCK_TOKENS], seq_of_row[OPS_BLOCK_TOKENS], rows[OPS_BLOCK_TOKENS], begin[2] = { 0, n };
    for (int32_t i = 0; i < n; i++) { positions[i] = first + i; seq_of_row[i] = 0; rows[i] = i; }
    ops_batch b = { .n_rows = n, .n_seqs = 1, .ids = ids, .positions = positions, .seq_of_row = seq_of_row, .row_begin = begin, .is_prefill = &is_prefill,
                    .state_slots = &g->slot, .block_tables = g->table.blocks, .table_stride = g->table.n_blocks, .logit_rows = rows, .n_logits = n };
    model_forward(g->m, &b, g->kv, g->states, g->hidden);
    model_logits(g->m, g->hidden, n, g->logits_there);
    g->o->log_sum_exp(g->o, g->lse_there, g->logits_there, n, g->n_vocab);
    g->o->download(g->o, g->logits, g->logits_there, (size_t)n * (size_t)g->n_vocab * sizeof(float));
    g->o->download(g->o, g->lse, g->lse_there, (size_t)n * sizeof(float));
    fl_err err;
    golden_require(g->o->finish(g->o, &err), &err);
}

/* What the router chose for n rows of the last run in mixture layer `index`: in g->routed and g->router_weights. */
static inline model_routing golden_routing(golden_model *g, int32_t index, int32_t n)
{
    model_routing r = model_routing_at(g->m, index);
    g->o->download(g->o, g->routed, r.ids, (size_t)n * (size_t)r.top_k * sizeof(int32_t));
    g->o->download(g->o, g->router_weights, r.weights, (size_t)n * (size_t)r.top_k * sizeof(float));
    r.ids = g->routed;
    r.weights = g->router_weights;
    return r;
}

static inline int32_t golden_argmax(const float *logits, int32_t n)
{
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++) if (logits[i] > logits[best]) best = i;
    return best;
}

/* "id:logit" of the five best, for messages. */
static inline void golden_top5(char out[160], const float *logits, int32_t n)
{
    int32_t top[5] = { -1, -1, -1, -1, -1 };
    size_t used = 0;
    for (int k = 0; k < 5 && k < n; k++) {
        for (int32_t i = 0; i < n; i++) {
            bool is_used = false;
            for (int j = 0; j < k; j++) is_used |= top[j] == i;
            if (!is_used && (top[k] < 0 || logits[i] > logits[top[k]])) top[k] = i;
        }
        used += (size_t)snprintf(out + used, 160 - used, "%s%d:%.5f", k ? " " : "", top[k], (double)logits[top[k]]);
    }
}

static inline int32_t *golden_ids(const json_t *list, int32_t *n)
{
    *n = (int32_t)json_array_size(list);
    int32_t *ids = calloc((size_t)*n + 1, sizeof *ids);
    assert_non_null(ids);
    for (int32_t i = 0; i < *n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return ids;
}

static inline double golden_number(const json_t *list, int32_t i) { return json_number_value(json_array_get(list, (size_t)i)); }

/* Expert choices of rows first .. first + n - 1, just computed. */
static inline void golden_check_routing(golden_model *g, const json_t *routing, int32_t first, int32_t n)
{
    for (size_t at = 0; at < json_array_size(routing); at++) {
        const json_t *layer = json_array_get(routing, at), *experts = json_object_get(layer, "experts");
        model_routing r = golden_routing(g, (int32_t)at, n);
        assert_int_equal(r.layer, json_integer_value(json_object_get(layer, "layer")));
        for (int32_t i = 0; i < n; i++)
            for (int32_t k = 0; k < r.top_k; k++) {
                g->n_choices++;
                g->n_other_choices += r.ids[i * r.top_k + k] != (int32_t)golden_number(json_array_get(experts, (size_t)(first + i)), k);
            }
    }
}

/* One row of the prompt: its argmax, and the log-probability of the token that follows. */
static inline void golden_check_row(golden_model *g, const json_t *c, const int32_t *prompt, int32_t n_prompt, int32_t position, const float *logits, float lse)
{
    char ours[160];
    const json_t *want_logits = json_object_get(c, "last_logits");
    int32_t want = (int32_t)golden_number(json_object_get(c, "argmax_per_position"), position), got = golden_argmax(logits, g->n_vocab);
    if (got != want && (double)(logits[got] - logits[want]) > GOLDEN_TOLERANCE) {
        golden_top5(ours, logits, g->n_vocab);
        fail_msg("%s, prompt of %d: position %d has argmax %d, the reference %d; our top 5 %s", g->name, n_prompt, position, got, want, ours);
    }
    if (position + 1 < n_prompt) {
        double ours_lp = (double)(logits[prompt[position + 1]] - lse), ref = golden_number(json_object_get(c, "prompt_logprobs"), position);
        g->worst_logprob = fmax(g->worst_logprob, fabs(ours_lp - ref));
        if (!(fabs(ours_lp - ref) <= GOLDEN_TOLERANCE)) fail_msg("%s, prompt of %d: the log-probability of token %d is %.6f, the reference %.6f", g->name, n_prompt, position + 1, ours_lp, ref);
        return;
    }
    for (int32_t i = 0; i < g->n_vocab; i++) {
        double off = fabs((double)logits[i] - golden_number(want_logits, i));
        g->worst_logit = fmax(g->worst_logit, off);
        if (off <= GOLDEN_TOLERANCE) continue;
        char theirs[160];
        float *reference = calloc((size_t)g->n_vocab, sizeof *reference);
        assert_non_null(reference);
        for (int32_t k = 0; k < g->n_vocab; k++) reference[k] = (float)golden_number(want_logits, k);
        golden_top5(ours, logits, g->n_vocab);
        golden_top5(theirs, reference, g->n_vocab);
        free(reference);
        fail_msg("%s, prompt of %d: last logit %d is off by %g; our top 5 %s, the reference's %s", g->name, n_prompt, i, off, ours, theirs);
    }
}

/* Prefill in chunks, then decode the reference's own greedy ids. */
static inline void golden_check_case(golden_model *g, const json_t *c)
{
    int32_t n_prompt, n_greedy;
    int32_t *prompt = golden_ids(json_object_get(c, "prompt"), &n_prompt), *greedy = golden_ids(json_object_get(c, "greedy"), &n_greedy);
    const float *last = g->logits;
    for (int32_t first = 0; first < n_prompt; first += OPS_BLOCK_TOKENS) {
        int32_t n = n_prompt - first < OPS_BLOCK_TOKENS ? n_prompt - first : OPS_BLOCK_TOKENS;
        golden_run(g, prompt + first, first, n, true);
        golden_check_routing(g, json_object_get(c, "routing"), first, n);
        for (int32_t i = 0; i < n; i++) golden_check_row(g, c, prompt, n_prompt, first + i, g->logits + (size_t)i * (size_t)g->n_vocab, g->lse[i]);
        last = g->logits + (size_t)(n - 1) * (size_t)g->n_vocab;
    }
    for (int32_t i = 0; i < n_greedy; i++) {
        int32_t got = golden_argmax(last, g->n_vocab);
        double margin = golden_number(json_object_get(c, "greedy_margin"), i);
        if (got != greedy[i] && margin > GOLDEN_TOLERANCE) {
            char ours[160];
            golden_top5(ours, last, g->n_vocab);
            fail_msg("%s, prompt of %d: greedy token %d is %d, the reference %d with margin %g; our top 5 %s", g->name, n_prompt, i, got, greedy[i], margin, ours);
        }
        golden_run(g, &greedy[i], n_prompt + i, 1, false);
        last = g->logits;
    }
    free(prompt);
    free(greedy);
}

static inline json_t *golden_load(const char *dir)
{
    char path[1024];
    json_error_t where;
    snprintf(path, sizeof path, "%s/golden.json", dir);
    json_t *root = json_load_file(path, 0, &where);
    if (!root) fail_msg("%s: %s", path, where.text);
    return root;
}

/* Every case of one folder through the forward pass of the model at `path` (the folder, or another form of it) on `o`, which is closed. */
static inline void golden_check_form_on(const char *path, const char *dir, ops *o)
{
    golden_model g;
    json_t *root = golden_load(dir);
    const json_t *cases = json_object_get(root, "cases");
    golden_open_on(&g, path, o);
    for (size_t i = 0; i < json_array_size(cases); i++) golden_check_case(&g, json_array_get(cases, i));
    print_message("%s: %zu cases, logits within %.1e, log-probabilities within %.1e, %zu of %zu expert choices differ\n", g.name, json_array_size(cases),
                  g.worst_logit, g.worst_logprob, g.n_other_choices, g.n_choices);
    if (g.n_other_choices * 1000 > g.n_choices) fail_msg("%s: %zu of %zu expert choices differ", g.name, g.n_other_choices, g.n_choices);
    golden_close(&g);
    json_decref(root);
}

static inline void golden_check_model_on(const char *dir, ops *o) { golden_check_form_on(dir, dir, o); }

static inline void golden_check_model(const char *dir)
{
    ops *o = NULL;
    fl_err err;
    golden_require(ops_cpu_open(&o, 1, &err), &err);
    golden_check_model_on(dir, o);
}

#endif
