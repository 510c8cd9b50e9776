#include "engine/engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/device_sampler.h"
#include "engine/fingerprint.h"
#include "engine/kv_cache.h"
#include "engine/memory_plan.h"
#include "engine/model.h"
#include "engine/request.h"
#include "engine/sampler.h"
#include "engine/scheduler.h"
#include "engine/state_pool.h"
#include "engine/tokenizer.h"
#include "kernels/quant.h"
#include "proto/log.h"

#define NUMERICS_VERSION 2               /* bumped by any change of bits in kernels, sampler or the order of a forward pass */

/* One row of logits of the step: what becomes of it. */
typedef struct { request *r; sequence *seq; int32_t position; bool is_prefill; } logit_row;

struct engine {
    engine_info info;
    char *name, numerics[256], fingerprint[FINGERPRINT_BYTES];   /* name owned */
    ops *o;                              /* owned, as all below */
    model *m;
    kv_cache *kv;
    state_pool *states;
    scheduler *scheduler;
    sampler *chain;                      /* where the host chooses tokens, else NULL */
    device_sampler *device_chain;        /* where the device does */
    fl_detok *detok;
    memory_plan plan;

    request *first, *last;               /* live requests, oldest first */
    uint64_t n_requests;                 /* ever added: the next one's number */
    uint64_t n_live_samples;
    engine_event *events; size_t n_events, events_capacity;      /* not yet handed out, oldest first */
    engine_stats stats;

    /* of one step: [plan.n_rows], [plan.batch_max], [plan.n_logit_rows] */
    int32_t *ids, *positions, *seq_of_row, *logit_rows;
    int32_t *row_begin, *slots; bool *is_prefill;
    int32_t *tables, seq_blocks;         /* [plan.batch_max, seq_blocks] */
    logit_row *rows;
    act *hidden; float *logits, *lse;    /* of the device; lse lies behind the logits */
    float *host_logits;                  /* the same on the host, for a device of its own memory that chooses no tokens; NULL otherwise */
    token_choice *choices; int32_t choices_capacity;         /* what the device's sampler is asked */
};

/* ---- open ---- */

static fl_status open_tokenizer(engine *e, const char *path, int32_t n_vocab, fl_err *err)
{
    tokenizer *t = NULL;
    fl_status st = tokenizer_open_model(&t, path, err);
    if (st == FL_NOT_FOUND) return fl_detok_make(&e->detok, 0, NULL, NULL, NULL, err);
    if (st == FL_OK) st = tokenizer_detok(t, n_vocab, &e->detok, err);
    tokenizer_close(t);
    e->info.has_tokenizer = st == FL_OK;
    return st;
}

static fl_status open_pools(engine *e, fl_err *err)
{
    const model_config *c = model_describe(e->m);
    const cache_needs needs = model_config_caches(c);
    fl_status st = kv_cache_open(&e->kv, e->o, needs.kv_layers, c->n_kv_heads, c->head_dim, e->plan.kv_blocks, err);
    if (st == FL_OK) st = state_pool_open(&e->states, e->o, needs.state_layers, needs.delta_floats, needs.conv_floats, e->plan.batch_max, err);
    if (st == FL_OK) st = scheduler_open(&e->scheduler, e->o, e->kv, e->states, e->plan.batch_max, e->plan.prefill_budget, err);
    if (st != FL_OK) return st;
    FL_ASSERT(kv_cache_block_bytes(e->kv) * (size_t)e->plan.kv_blocks == e->plan.kv);
    FL_ASSERT(state_pool_slot_floats(e->states) * sizeof(float) * (size_t)e->plan.batch_max == e->plan.states);
    e->info.kv_tokens = (int64_t)e->plan.kv_blocks * OPS_BLOCK_TOKENS;
    e->info.batch_max = e->plan.batch_max;
    e->info.prefill_budget = e->plan.prefill_budget;
    return FL_OK;
}

/* Bytes of the logits of the most rows at a time, and of their log-sum-exps. */
static size_t logits_bytes(const engine *e) { return (size_t)e->plan.n_logit_rows * (size_t)e->info.n_vocab * sizeof(float); }
static size_t lse_bytes(const engine *e) { return (size_t)e->plan.n_logit_rows * sizeof(float); }

static size_t hidden_bytes(const engine *e) { return (size_t)e->plan.n_rows * (size_t)model_describe(e->m)->hidden * e->o->act_bytes; }

static fl_status open_step_lists(engine *e, fl_err *err)
{
    const size_t rows = (size_t)e->plan.n_rows, seqs = (size_t)e->plan.batch_max;
    e->seq_blocks = kv_blocks_of(e->plan.context);
    e->ids = calloc(rows, sizeof *e->ids);
    e->positions = calloc(rows, sizeof *e->positions);
    e->seq_of_row = calloc(rows, sizeof *e->seq_of_row);
    e->logit_rows = calloc(rows, sizeof *e->logit_rows);
    e->rows = calloc(rows, sizeof *e->rows);
    e->row_begin = calloc(seqs + 1, sizeof *e->row_begin);
    e->slots = calloc(seqs, sizeof *e->slots);
    e->is_prefill = calloc(seqs, sizeof *e->is_prefill);
    e->tables = calloc(seqs * (size_t)e->seq_blocks, sizeof *e->tables);
    bool ok = e->ids && e->positions && e->seq_of_row && e->logit_rows && e->rows && e->row_begin && e->slots && e->is_prefill && e->tables;
    return ok ? FL_OK : fl_fail(err, FL_FULL, "engine: no memory for a step of %d rows; lower the batch limit or the prefill budget", e->plan.n_rows);
}

static fl_status open_step_memory(engine *e, fl_err *err)
{
    const model_config *c = model_describe(e->m);
    const ops_limits limits = { .n_rows = e->plan.n_rows, .n_seqs = e->plan.batch_max, .n_logits = e->plan.n_rows, .seq_blocks = kv_blocks_of(e->plan.context),
                                .n_heads = c->n_heads, .head_dim = c->head_dim };
    void *hidden = NULL, *logits = NULL, *host = NULL;
    fl_status st = open_step_lists(e, err);
    if (st == FL_OK) st = e->o->take(e->o, &hidden, hidden_bytes(e), "the rows that logits are made from", err);
    e->hidden = hidden;
    if (st == FL_OK) st = e->o->take(e->o, &logits, logits_bytes(e) + lse_bytes(e), "logits", err);
    e->logits = logits;
    if (st == FL_OK && !e->o->is_host && !e->o->sample) st = e->o->take_host(e->o, &host, logits_bytes(e) + lse_bytes(e), "logits", err);
    e->host_logits = host;
    if (st != FL_OK) return st;
    e->lse = e->logits + logits_bytes(e) / sizeof(float);
    if (e->o->sample) st = device_sampler_open(&e->device_chain, e->o, e->plan.n_logit_rows, e->plan.batch_max, e->info.n_vocab, e->plan.context, err);
    else st = sampler_open(&e->chain, e->info.n_vocab, err);
    return st == FL_OK ? e->o->reserve(e->o, &limits, err) : st;
}

/* The path's last part, owned by the caller: what the user calls the model, also where that is a link; of a .gguf file without its end. "." and the like are looked up. NULL without memory. */
static char *name_of_path(const char *path)
{
    size_t end = strlen(path), begin;
    if (gguf_is_path(path)) return gguf_model_name(path);
    while (end > 1 && path[end - 1] == '/') end--;
    for (begin = end; begin > 0 && path[begin - 1] != '/'; begin--) {}
    bool is_plain = begin < end && !(end - begin <= 2 && strspn(path + begin, ".") >= end - begin);
    if (is_plain) return strndup(path + begin, end - begin);
    char *real = realpath(path, NULL);
    const char *last = real ? strrchr(real, '/') : NULL;
    char *name = strdup(last && last[1] ? last + 1 : path);
    free(real);
    return name;
}

static fl_status describe(engine *e, const char *path, fl_err *err)
{
    const model_config *c = model_describe(e->m);
    e->name = name_of_path(path);
    if (!e->name) return fl_fail(err, FL_FULL, "engine: no memory for the model's name");
    fl_status st = model_fingerprint(e->fingerprint, path, model_weights(e->m), err);
    e->info.name = e->name;
    e->info.architecture = c->architecture;
    e->info.fingerprint = e->fingerprint;
    e->info.numerics = e->numerics;
    e->info.n_vocab = c->n_vocab;
    e->info.context_model = c->context_max;
    e->info.context_max = model_context(e->m);
    e->info.eos_ids = c->eos_ids;
    e->info.n_eos = c->n_eos;
    e->info.temperature = c->temperature;
    e->info.top_p = c->top_p;
    e->info.min_p = c->min_p;
    e->info.repetition_penalty = c->repetition_penalty;
    e->info.top_k = c->top_k;
    return st;
}

fl_status engine_open(engine **out, const engine_options *options, fl_err *err)
{
    fl_status status = FL_OK;
    engine *e = calloc(1, sizeof *e);
    if (!e) {
        if (options->ops) options->ops->close(options->ops);
        return fl_fail(err, FL_FULL, "engine: no memory");
    }
    if (options->ops) e->o = options->ops;
    else if ((status = ops_cpu_open(&e->o, options->n_threads, err)) != FL_OK) goto done;
    if ((status = model_map(&e->m, options->model, err)) != FL_OK) goto done;
    if ((status = memory_plan_make(&e->plan, e->m, e->o, options, err)) != FL_OK) goto done;
    if ((status = memory_plan_check(&e->plan, err)) != FL_OK) goto done;
    if ((status = model_load(e->m, e->o, e->plan.n_rows, e->plan.context, err)) != FL_OK) goto done;
    if ((status = model_prepare(e->m, e->plan.n_logit_rows, err)) != FL_OK) goto done;
    if ((status = describe(e, options->model, err)) != FL_OK) goto done;
    if ((status = open_tokenizer(e, options->model, e->info.n_vocab, err)) != FL_OK) goto done;
    if ((status = open_pools(e, err)) != FL_OK) goto done;
    if ((status = open_step_memory(e, err)) != FL_OK) goto done;
    if ((status = e->o->finish(e->o, err)) != FL_OK) goto done;
    snprintf(e->numerics, sizeof e->numerics, "%s/%d/%s/%s", e->o->numerics, NUMERICS_VERSION, dtype_name(model_dtype(e->m)), dtype_name(e->o->act_type));
    fl_log(FL_LOG_INFO, "engine: %s (%s) on %s, %s, context %d", e->name, e->info.architecture, e->o->name, e->numerics, e->info.context_max);
    memory_plan_log(&e->plan);
    *out = e;
    e = NULL;
done:
    engine_close(e);
    return status;
}

const engine_info *engine_describe(const engine *e) { return &e->info; }
const fl_detok *engine_detok(const engine *e) { return e->detok; }

engine_stats engine_read_stats(const engine *e)
{
    engine_stats stats = e->stats;
    stats.preemptions = scheduler_preemptions(e->scheduler);
    stats.running = (uint32_t)scheduler_resident(e->scheduler);
    stats.waiting = e->n_live_samples > stats.running ? (uint32_t)(e->n_live_samples - stats.running) : 0;
    stats.kv_tokens_used = (int64_t)(kv_cache_blocks(e->kv) - kv_cache_blocks_free(e->kv)) * OPS_BLOCK_TOKENS;
    return stats;
}

/* ---- requests ---- */

static void take_out(engine *e, sequence *seq)
{
    if (seq) scheduler_remove(e->scheduler, seq);
}

/* Unlink and free a request with all that its sequences hold. */
static void drop_request(engine *e, request *r)
{
    take_out(e, r->trunk);
    for (uint32_t i = 0; i < r->n_samples; i++) take_out(e, r->samples[i].seq);
    e->n_live_samples -= r->n_live;
    if (r->previous) r->previous->next = r->next; else e->first = r->next;
    if (r->next) r->next->previous = r->previous; else e->last = r->previous;
    request_free(r);
}

static void end_sample(engine *e, request *r, sample *s)
{
    take_out(e, s->seq);
    free(s->seq);
    s->seq = NULL;
    s->is_over = true;
    r->n_live--;
    e->n_live_samples--;
}

fl_status engine_add(engine *e, const engine_request *in, fl_err *err)
{
    request *r = NULL;
    fl_status st = request_make(&r, in, &e->info, e->n_requests, err);
    if (st != FL_OK) return st;
    e->n_requests++;
    e->n_live_samples += r->n_live;
    r->previous = e->last;
    if (e->last) e->last->next = r; else e->first = r;
    e->last = r;
    scheduler_add(e->scheduler, r->trunk);
    return FL_OK;
}

static void free_event(engine_event *event)
{
    if (event->result) fl_result_free(event->result);
    free(event->result);
}

void engine_cancel(engine *e, uint64_t tag, uint32_t index)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->n_events; i++) {
        engine_event *event = &e->events[i];             /* a failure is also the other samples' */
        bool is_meant = event->tag == tag && (index == UINT32_MAX || (event->kind == ENGINE_FINISHED && event->sample == index));
        if (is_meant) free_event(event);
        else e->events[kept++] = *event;
    }
    e->n_events = kept;
    request *r = e->first;
    while (r && r->tag != tag) r = r->next;
    if (!r) return;
    sample *s = index == UINT32_MAX ? NULL : request_sample(r, index);
    if (index != UINT32_MAX && (!s || s->is_over)) return;
    if (s) end_sample(e, r, s);
    if (!s || r->n_live == 0) drop_request(e, r);
}

/* ---- events ---- */

static fl_status push_event(engine *e, const engine_event *event, fl_err *err)
{
    if (e->n_events == e->events_capacity) {
        size_t capacity = e->events_capacity ? 2 * e->events_capacity : 64;
        engine_event *grown = realloc(e->events, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "engine: no memory for %zu events", capacity);
        e->events = grown;
        e->events_capacity = capacity;
    }
    e->events[e->n_events++] = *event;
    return FL_OK;
}

/* The sample is finished for the reason in `reason`. */
static fl_status finish_sample(engine *e, request *r, sample *s, const fl_result *reason, fl_err *err)
{
    engine_event event = { .kind = ENGINE_FINISHED, .tag = r->tag, .sample = s->index, .result = malloc(sizeof *event.result) };
    if (!event.result) return fl_fail(err, FL_FULL, "engine: no memory for a result");
    *event.result = *reason;
    fl_status st = sample_result(event.result, r, s, err);
    if (st == FL_OK) st = push_event(e, &event, err);
    if (st != FL_OK) free_event(&event);
    end_sample(e, r, s);
    return st;
}

/* A request that wants no token (max_tokens 0) ends with its prompt. */
static fl_status finish_prompt(engine *e, request *r, fl_err *err)
{
    const fl_result reason = { .finish = FL_FINISH_LENGTH, .stop_index = -1, .text_bytes = -1 };
    fl_status st = FL_OK;
    for (uint32_t i = 0; st == FL_OK && i < r->n_samples; i++)
        if (!r->samples[i].is_over) st = finish_sample(e, r, &r->samples[i], &reason, err);
    return st;
}

/* At the end of a step: a failed request becomes one event, a request without live samples is forgotten. */
static fl_status sweep_requests(engine *e, fl_err *err)
{
    fl_status st = FL_OK;
    for (request *r = e->first, *next; st == FL_OK && r; r = next) {
        next = r->next;
        if (!r->is_failed && r->trunk && r->trunk->n_cached == r->n_prompt) st = finish_prompt(e, r, err);
        if (r->is_failed) {
            engine_event event = { .kind = ENGINE_FAILED, .tag = r->tag, .error = ROW_NAN_LOGITS };
            snprintf(event.text, sizeof event.text, "the model's logits for this row are not numbers; no token can be chosen");
            engine_cancel(e, r->tag, UINT32_MAX);        /* also takes back events of its samples not yet handed out */
            st = push_event(e, &event, err);
        } else if (r->n_live == 0) {
            drop_request(e, r);
        }
    }
    return st;
}

/* ---- one step ---- */

/* Block tables of the step, side by side; the stride between them. */
static int32_t fill_tables(engine *e, const plan_entry *entries, int32_t n)
{
    int32_t stride = 1;
    for (int32_t i = 0; i < n; i++) if (entries[i].seq->table.n_blocks > stride) stride = entries[i].seq->table.n_blocks;
    FL_ASSERT(stride <= e->seq_blocks);
    for (int32_t i = 0; i < n; i++)
        memcpy(e->tables + (size_t)i * (size_t)stride, entries[i].seq->table.blocks, (size_t)entries[i].seq->table.n_blocks * sizeof *e->tables);
    return stride;
}

/* Is the row's logits row needed: to choose a token, or for the prompt's log-probabilities? */
static bool wants_logits(const request *r, int32_t position, bool is_prefill)
{
    if (is_prefill && position + 1 < r->n_prompt) return r->sampling.n_prompt_top >= 0;
    return r->sampling.max_tokens > 0;
}

static void fill_batch(engine *e, ops_batch *b, const plan_entry *entries, int32_t n)
{
    int32_t n_rows = 0, n_logits = 0;
    const int32_t stride = fill_tables(e, entries, n);
    for (int32_t i = 0; i < n; i++) {
        const plan_entry *entry = &entries[i];
        request *r = entry->seq->owner;
        e->row_begin[i] = n_rows;
        e->slots[i] = entry->seq->slot;
        e->is_prefill[i] = entry->is_prefill;
        for (int32_t k = 0; k < entry->n_rows; k++, n_rows++) {
            int32_t position = entry->first + k;
            e->ids[n_rows] = entry->is_prefill ? r->prompt[position] : request_sample(r, entry->seq->sample)->ids[position - r->n_prompt];
            e->positions[n_rows] = position;
            e->seq_of_row[n_rows] = i;
            if (!wants_logits(r, position, entry->is_prefill)) continue;
            e->rows[n_logits] = (logit_row){ r, entry->seq, position, entry->is_prefill };
            e->logit_rows[n_logits++] = n_rows;
        }
        *(entry->is_prefill ? &e->stats.prefill_tokens : &e->stats.decode_tokens) += (uint64_t)entry->n_rows;
    }
    e->row_begin[n] = n_rows;
    *b = (ops_batch){ .n_rows = n_rows, .n_seqs = n, .ids = e->ids, .positions = e->positions, .seq_of_row = e->seq_of_row, .row_begin = e->row_begin,
                      .is_prefill = e->is_prefill, .state_slots = e->slots, .block_tables = e->tables, .table_stride = stride,
                      .logit_rows = e->logit_rows, .n_logits = n_logits };
}

/* What became of a sample with its next token: one that ends becomes an event. */
static fl_status advance_sample(engine *e, request *r, sample *s, sample_fate fate, const fl_result *reason, fl_err *err)
{
    if (fate == SAMPLE_IS_NAN) r->is_failed = true;
    return fate == SAMPLE_ENDED ? finish_sample(e, r, s, reason, err) : FL_OK;
}

/* The prompt is computed: the first live sample goes on in the trunk's place, the others fork from it. */
static fl_status fork_request(engine *e, request *r, fl_err *err)
{
    fl_status st = FL_OK;
    sequence **children = NULL;
    int32_t n = 0;
    if (r->n_live > 1 && !(children = calloc(r->n_live, sizeof *children))) return fl_fail(err, FL_FULL, "engine: no memory for %u samples", r->n_live);
    for (uint32_t i = 0; i < r->n_samples; i++) {
        sample *s = &r->samples[i];
        if (s->is_over) continue;
        if (r->trunk) {                                  /* the trunk keeps its place in the order: it is the lowest sample left */
            s->seq = r->trunk;
            s->seq->sample = s->index;
            r->trunk = NULL;
            continue;
        }
        s->seq = request_sequence(r, s->index);
        if (!s->seq) { st = fl_fail(err, FL_FULL, "engine: no memory for a sample"); goto done; }
        children[n++] = s->seq;
    }
    if (n > 0) {
        const sample *first = r->samples;
        while (first->is_over) first++;
        st = scheduler_fork(e->scheduler, first->seq, children, n, err);
    }
done:
    free(children);
    return st;
}

static bool is_last_of_prompt(const logit_row *row) { return row->is_prefill && row->position + 1 == row->r->n_prompt; }

/* After the last prompt row's choices. */
static fl_status end_prompt(engine *e, request *r, fl_err *err) { return r->is_failed || r->n_live == 0 ? FL_OK : fork_request(e, r, err); }

/* ---- tokens chosen by the host ---- */

static fl_status choose_next(engine *e, request *r, sample *s, const float *logits, float lse, fl_err *err)
{
    sample_fate fate;
    fl_result reason = { 0 };
    fl_status st = sample_next(&fate, &reason, r, s, e->chain, e->detok, logits, e->info.n_vocab, lse, err);
    return st == FL_OK ? advance_sample(e, r, s, fate, &reason, err) : st;
}

/* The last prompt row: every live sample's first token. */
static fl_status begin_samples(engine *e, request *r, const float *logits, float lse, fl_err *err)
{
    for (uint32_t i = 0; i < r->n_samples && !r->is_failed; i++) {
        if (r->samples[i].is_over) continue;
        fl_status st = choose_next(e, r, &r->samples[i], logits, lse, err);
        if (st != FL_OK) return st;
    }
    return end_prompt(e, r, err);
}

static fl_status use_row(engine *e, const logit_row *row, const float *logits, float lse, fl_err *err)
{
    request *r = row->r;
    if (r->is_failed) return FL_OK;
    if (!row->is_prefill) return choose_next(e, r, request_sample(r, row->seq->sample), logits, lse, err);
    if (is_last_of_prompt(row)) return begin_samples(e, r, logits, lse, err);
    if (lse != lse) r->is_failed = true;
    else request_prompt_logprob(r, row->position, logits, e->info.n_vocab, lse);
    return FL_OK;
}

static fl_status use_on_host(engine *e, const logit_row *rows, int32_t n, fl_err *err)
{
    const float *logits = e->host_logits ? e->host_logits : e->logits, *lse = logits + logits_bytes(e) / sizeof(float);
    e->o->log_sum_exp(e->o, e->lse, e->logits, n, e->info.n_vocab);
    if (e->host_logits) e->o->download(e->o, e->host_logits, e->logits, logits_bytes(e) + lse_bytes(e));
    fl_status st = e->o->finish(e->o, err);
    for (int32_t i = 0; st == FL_OK && i < n; i++) st = use_row(e, &rows[i], logits + (size_t)i * (size_t)e->info.n_vocab, lse[i], err);
    return st;
}

/* ---- tokens chosen by the device ---- */

static fl_status add_choice(engine *e, int32_t *n, const token_choice *choice, fl_err *err)
{
    if (*n == e->choices_capacity) {
        const int32_t capacity = e->choices_capacity ? 2 * e->choices_capacity : 256;
        token_choice *grown = realloc(e->choices, (size_t)capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "engine: no memory for %d tokens of a step", capacity);
        e->choices = grown;
        e->choices_capacity = capacity;
    }
    e->choices[(*n)++] = *choice;
    return FL_OK;
}

/* What rows of logits are asked for, in the order of the rows. */
static fl_status list_choices(engine *e, const logit_row *rows, int32_t n_rows, int32_t *n, fl_err *err)
{
    fl_status st = FL_OK;
    *n = 0;
    for (int32_t i = 0; st == FL_OK && i < n_rows; i++) {
        const logit_row *row = &rows[i];
        request *r = row->r;
        token_choice choice = { r, NULL, i, row->seq->slot, -1 };
        if (r->is_failed) continue;
        if (row->is_prefill && !is_last_of_prompt(row)) {
            choice.given_id = r->prompt[row->position + 1];
            st = add_choice(e, n, &choice, err);
        } else if (!row->is_prefill) {
            choice.s = request_sample(r, row->seq->sample);
            st = add_choice(e, n, &choice, err);
        } else {
            for (uint32_t k = 0; st == FL_OK && k < r->n_samples; k++) {
                choice.s = &r->samples[k];
                if (!choice.s->is_over) st = add_choice(e, n, &choice, err);
            }
        }
    }
    return st;
}

static fl_status use_choice(engine *e, const logit_row *row, const token_choice *choice, const token_chosen *chosen, fl_err *err)
{
    request *r = row->r;
    sample *s = choice->s ? request_sample(r, choice->s->index) : NULL;
    sample_fate fate;
    fl_result reason = { 0 };
    if (r->is_failed) return FL_OK;
    if (!s) {
        if (chosen->id < 0) r->is_failed = true;
        else request_prompt_chosen(r, row->position, chosen);
        return FL_OK;
    }
    fl_status st = sample_take(&fate, &reason, r, s, e->detok, chosen, err);
    return st == FL_OK ? advance_sample(e, r, s, fate, &reason, err) : st;
}

static fl_status use_on_device(engine *e, const logit_row *rows, int32_t n_rows, fl_err *err)
{
    int32_t n = 0;
    fl_status st = list_choices(e, rows, n_rows, &n, err);
    if (st == FL_OK) st = device_sampler_run(e->device_chain, e->choices, n, e->logits, e->lse, n_rows, err);
    for (int32_t i = 0; st == FL_OK && i < n; i++) {
        const logit_row *row = &rows[e->choices[i].logits_row];
        const token_chosen chosen = device_sampler_at(e->device_chain, i);
        st = use_choice(e, row, &e->choices[i], &chosen, err);
        const bool is_last = i + 1 == n || e->choices[i + 1].logits_row != e->choices[i].logits_row;
        if (st == FL_OK && is_last && is_last_of_prompt(row)) st = end_prompt(e, row->r, err);
    }
    return st;
}

/* Logits of the step's rows, so many at a time as fit, each used at once. */
static fl_status use_logits(engine *e, int32_t n_logits, fl_err *err)
{
    fl_status st = FL_OK;
    const size_t hidden = (size_t)model_describe(e->m)->hidden;
    for (int32_t begin = 0; st == FL_OK && begin < n_logits; begin += e->plan.n_logit_rows) {
        const int32_t n = n_logits - begin < e->plan.n_logit_rows ? n_logits - begin : e->plan.n_logit_rows;
        model_logits(e->m, act_at(e->o, e->hidden, (size_t)begin * hidden), n, e->logits);
        st = e->device_chain ? use_on_device(e, e->rows + begin, n, err) : use_on_host(e, e->rows + begin, n, err);
    }
    return st;
}

static fl_status run_step(engine *e, fl_err *err)
{
    const plan_entry *entries;
    int32_t n;
    ops_batch batch;
    fl_status st = scheduler_plan(e->scheduler, &entries, &n, err);
    if (st != FL_OK) return st;
    if (n == 0) return FL_AGAIN;
    fill_batch(e, &batch, entries, n);
    model_forward(e->m, &batch, e->kv, e->states, e->hidden);
    e->stats.steps++;
    for (int32_t i = 0; i < n; i++) entries[i].seq->n_cached += entries[i].n_rows;
    if (batch.n_logits == 0 && (st = e->o->finish(e->o, err)) != FL_OK) return st;
    if ((st = use_logits(e, batch.n_logits, err)) != FL_OK) return st;
    return sweep_requests(e, err);
}

fl_status engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err)
{
    *n_events = 0;
    if (e->n_events == 0) {
        fl_status st = run_step(e, err);
        if (st != FL_OK) return st;
    }
    size_t n = capacity < 0 ? 0 : (size_t)capacity < e->n_events ? (size_t)capacity : e->n_events;
    if (n > 0) {
        memcpy(events, e->events, n * sizeof *events);
        memmove(e->events, e->events + n, (e->n_events - n) * sizeof *e->events);
        e->n_events -= n;
    }
    *n_events = (int32_t)n;
    return FL_OK;
}

void engine_close(engine *e)
{
    if (!e) return;
    while (e->first) drop_request(e, e->first);
    for (size_t i = 0; i < e->n_events; i++) free_event(&e->events[i]);
    sampler_close(e->chain);
    device_sampler_close(e->device_chain);
    scheduler_close(e->scheduler);
    state_pool_close(e->states);
    kv_cache_close(e->kv);
    fl_detok_free(e->detok);
    if (e->hidden) e->o->give(e->o, e->hidden, hidden_bytes(e));
    model_close(e->m);
    if (e->o) {
        e->o->give(e->o, e->logits, logits_bytes(e) + lse_bytes(e));
        e->o->give_host(e->o, e->host_logits, logits_bytes(e) + lse_bytes(e));
        e->o->close(e->o);
    }
    free(e->events);
    free(e->choices);
    free(e->ids); free(e->positions); free(e->seq_of_row); free(e->logit_rows); free(e->rows);
    free(e->row_begin); free(e->slots); free(e->is_prefill); free(e->tables);
    free(e->name);
    free(e);
}
