#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/tokenizer.h"
#include "kernels/quant.h"
#include "proto/log.h"

#define NUMERICS_VERSION 3               /* bumped by any change of bits in kernels, sampler or the order of a forward pass */

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
    const int32_t n_blocks = e->plan.kv_blocks + e->plan.n_padding, n_slots = e->plan.batch_max + e->plan.n_padding;
    fl_status st = kv_cache_open(&e->kv, e->o, needs.kv_layers, c->n_kv_heads, c->head_dim, n_blocks, err);
    if (st == FL_OK) st = state_pool_open(&e->states, e->o, needs.state_layers, needs.delta_floats, needs.conv_floats, n_slots, err);
    if (st == FL_OK) st = scheduler_open(&e->scheduler, e->o, e->kv, e->states, e->plan.batch_max, e->plan.prefill_budget, err);
    if (st != FL_OK) return st;
    FL_ASSERT(kv_cache_block_bytes(e->kv) * (size_t)n_blocks == e->plan.kv);
    FL_ASSERT(state_pool_bytes(needs.state_layers, needs.delta_floats, needs.conv_floats, n_slots) == e->plan.states);
    if (e->plan.n_padding > 0) {
        if ((st = kv_cache_reserve(e->kv, &e->padding_table, 1, err)) != FL_OK) return st;
        e->padding = (step_padding){ state_pool_take(e->states), e->padding_table.blocks[0] };
    }
    e->info.kv_tokens = (int64_t)e->plan.kv_blocks * OPS_BLOCK_TOKENS;
    e->info.batch_max = e->plan.batch_max;
    e->info.prefill_budget = e->plan.prefill_budget;
    return FL_OK;
}

/* Bytes of the logits of the most rows at a time, and of their log-sum-exps. */
static size_t logits_bytes(const engine *e) { return (size_t)e->plan.n_logit_rows * (size_t)e->info.n_vocab * sizeof(float); }
static size_t lse_bytes(const engine *e) { return (size_t)e->plan.n_logit_rows * sizeof(float); }

static size_t hidden_bytes(const engine *e) { return (size_t)e->plan.n_rows * (size_t)model_describe(e->m)->hidden * e->o->act_bytes; }

static fl_status open_step_memory(engine *e, fl_err *err)
{
    const model_config *c = model_describe(e->m);
    const ops_limits limits = { .n_rows = e->plan.n_rows, .n_seqs = e->plan.batch_max, .n_logits = e->plan.n_rows, .seq_blocks = kv_blocks_of(e->plan.context),
                                .n_heads = c->n_heads, .head_dim = c->head_dim };
    void *hidden = NULL, *logits = NULL, *host = NULL;
    fl_status st = step_lists_open(&e->lists, e->plan.n_rows, e->plan.batch_max, limits.seq_blocks, err);
    if (st == FL_OK) st = e->o->take(e->o, &hidden, hidden_bytes(e), "the rows that logits are made from", err);
    e->hidden = hidden;
    if (st == FL_OK) st = e->o->take(e->o, &logits, logits_bytes(e) + lse_bytes(e), "logits", err);
    e->logits = logits;
    if (st == FL_OK && !e->o->is_host && !e->o->sample) st = e->o->take_host(e->o, &host, logits_bytes(e) + lse_bytes(e), "logits", err);
    e->host_logits = host;
    if (st != FL_OK) return st;
    e->lse = e->logits + logits_bytes(e) / sizeof(float);
    if (e->o->sample) st = device_sampler_open(&e->device_chain, e->o, e->plan.n_logit_rows, e->plan.batch_max + e->plan.n_padding, e->info.n_vocab, e->plan.context, err);
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
    stats.kv_tokens_used = (int64_t)(kv_cache_blocks(e->kv) - kv_cache_blocks_free(e->kv) - e->padding_table.n_blocks) * OPS_BLOCK_TOKENS;
    stats.device_s = e->o->busy_seconds ? e->o->busy_seconds(e->o) : 0.0;
    return stats;
}

/* ---- requests ---- */

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

void engine_cancel(engine *e, uint64_t tag, uint32_t index)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->n_events; i++) {
        engine_event *event = &e->events[i];             /* a failure is also the other samples' */
        bool is_meant = event->tag == tag && (index == UINT32_MAX || (event->kind == ENGINE_FINISHED && event->sample == index));
        if (is_meant) requests_free_event(event);
        else e->events[kept++] = *event;
    }
    e->n_events = kept;
    request *r = e->first;
    while (r && r->tag != tag) r = r->next;
    if (!r) return;
    sample *s = index == UINT32_MAX ? NULL : request_sample(r, index);
    if (index != UINT32_MAX && (!s || s->is_over)) return;
    if (s) requests_end_sample(e, r, s);
    if (!s || r->n_live == 0) requests_drop(e, r);
}

/* ---- steps ---- */

fl_status engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err)
{
    *n_events = 0;
    if (e->n_events == 0) {
        fl_status st = step_run(e, err);
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
    step_forget(e);
    while (e->first) requests_drop(e, e->first);
    for (size_t i = 0; i < e->n_events; i++) requests_free_event(&e->events[i]);
    sampler_close(e->chain);
    device_sampler_close(e->device_chain);
    scheduler_close(e->scheduler);
    if (e->padding_table.n_blocks > 0) {
        kv_cache_release(e->kv, &e->padding_table, 0);
        state_pool_give(e->states, e->padding.slot);
    }
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
    for (int i = 0; i < 2; i++) free(e->flights[i].choices);
    step_lists_close(&e->lists);
    free(e->name);
    free(e);
}
