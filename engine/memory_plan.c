#include "engine/memory_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "engine/device_sampler.h"
#include "proto/log.h"

#define PREFILL_BUDGET_MAX (1 << 16)
#define KV_DEFAULT_BYTES (64u << 20)     /* the default pool on the host, when it holds a full context */
#define LOGITS_BYTES (16u << 20)         /* logits computed at a time on the host, at least one row */
#define DEVICE_LOGITS_BYTES (256u << 20)
#define DEVICE_RESERVE_BYTES (768u << 20)        /* of a device, with a hundredth of its memory: for lists of batches and what its libraries take as they go */

static fl_status read_limits(memory_plan *plan, const engine_options *options, fl_err *err)
{
    plan->batch_max = options->batch_max ? options->batch_max : plan->is_host ? 64 : 256;
    int32_t budget = options->prefill_budget ? options->prefill_budget : plan->is_host ? 512 : 4096;
    if (plan->batch_max < 1 || plan->batch_max > BATCH_MAX) return fl_fail(err, FL_INVALID, "engine: the batch limit must be 1 to %d, not %d", BATCH_MAX, plan->batch_max);
    if (budget < 1 || budget > PREFILL_BUDGET_MAX) return fl_fail(err, FL_INVALID, "engine: the prefill budget must be 1 to %d tokens, not %d", PREFILL_BUDGET_MAX, budget);
    if (options->context_max < 0) return fl_fail(err, FL_INVALID, "engine: the context must be 0 or more tokens, not %d", options->context_max);
    plan->prefill_budget = budget < OPS_BLOCK_TOKENS ? OPS_BLOCK_TOKENS : budget / OPS_BLOCK_TOKENS * OPS_BLOCK_TOKENS;
    plan->n_rows = plan->batch_max + plan->prefill_budget;
    return FL_OK;
}

/* The pool in blocks: as asked, else as much as a full batch could use, bounded by pool_bytes; one full context at least. */
static fl_status plan_blocks(memory_plan *plan, int64_t kv_tokens, int64_t token_bytes, int64_t pool_bytes, fl_err *err)
{
    const int64_t one = kv_blocks_of(plan->context);
    if (kv_tokens < 0) return fl_fail(err, FL_INVALID, "engine: the KV pool must be 0 or more tokens, not %lld", (long long)kv_tokens);
    if (kv_tokens > 0 && kv_tokens / OPS_BLOCK_TOKENS < one)
        return fl_fail(err, FL_INVALID, "engine: a KV pool of %lld tokens does not hold one full context of %lld in blocks of %d; ask for %lld or more, or lower --max-context",
                       (long long)kv_tokens, (long long)plan->context, OPS_BLOCK_TOKENS, (long long)one * OPS_BLOCK_TOKENS);
    int64_t blocks = kv_tokens / OPS_BLOCK_TOKENS;
    if (kv_tokens == 0) {
        blocks = token_bytes > 0 ? pool_bytes / (token_bytes * OPS_BLOCK_TOKENS) : INT32_MAX;
        if (blocks > one * plan->batch_max) blocks = one * plan->batch_max;
        if (blocks < one) blocks = one;
    }
    if (blocks > INT32_MAX / OPS_BLOCK_TOKENS) return fl_fail(err, FL_INVALID, "engine: a KV pool of %lld tokens is more than a block table can name; lower --kv-tokens", (long long)blocks * OPS_BLOCK_TOKENS);
    plan->kv_blocks = (int32_t)blocks;
    return FL_OK;
}

/* All but the KV pool of a device. */
static uint64_t device_fixed(const memory_plan *p) { return p->weights + p->ropes + p->activations + p->logits + p->states + p->reserve; }

fl_status memory_plan_make(memory_plan *out, model *m, ops *o, const engine_options *options, fl_err *err)
{
    const model_config *c = model_describe(m);
    const cache_needs caches = model_config_caches(c);
    const uint64_t block_bytes = caches.kv_token_floats * OPS_BLOCK_TOKENS * o->act_bytes, logit_bytes = (uint64_t)c->n_vocab * sizeof(float);
    memory_plan plan = { .is_host = o->is_host, .n_padding = o->replay ? 1 : 0 };
    model_needs needs;
    fl_status st = read_limits(&plan, options, err);
    if (st != FL_OK) return st;
    plan.context = options->context_max > 0 && options->context_max < c->context_max ? options->context_max : c->context_max;
    if ((st = model_measure(&needs, m, o, plan.n_rows, plan.context, err)) != FL_OK) return st;
    o->measure(o, &plan.device_free, &plan.device_all);
    if (options->n_sharing > 1 && plan.device_free > plan.device_all / (uint64_t)options->n_sharing) plan.device_free = plan.device_all / (uint64_t)options->n_sharing;
    plan.mapped = needs.mapped_bytes;
    plan.expanded = needs.expanded_bytes;
    plan.tables = needs.table_bytes + (o->is_host ? needs.rope_bytes : 0);
    plan.ropes = o->is_host ? 0 : needs.rope_bytes;
    plan.weights = needs.stored_bytes;
    plan.activations = needs.scratch_bytes + needs.room_bytes + (uint64_t)plan.n_rows * (uint64_t)c->hidden * o->act_bytes;       /* and the rows that logits are made from, and quantized ones */
    const uint64_t at_a_time = (o->is_host ? LOGITS_BYTES : DEVICE_LOGITS_BYTES) / logit_bytes, most = o->is_host ? 64 : (uint64_t)plan.n_rows;
    plan.n_logit_rows = (int32_t)(at_a_time < 1 ? 1 : at_a_time > most ? most : at_a_time);
    if (o->sample && plan.n_logit_rows < plan.batch_max) plan.n_logit_rows = plan.batch_max;      /* a step of decode rows is not taken apart: its tokens are read while the next one runs */
    plan.logits = (uint64_t)plan.n_logit_rows * (logit_bytes + sizeof(float));
    if (o->sample) plan.logits += device_sampler_bytes(plan.n_logit_rows, plan.batch_max + plan.n_padding, c->n_vocab);
    plan.sequence_kv = (uint64_t)kv_blocks_of(plan.context) * block_bytes;
    plan.sequence_state = (uint64_t)caches.state_layers * (caches.delta_floats + caches.conv_floats) * sizeof(float);
    plan.states = state_pool_bytes(caches.state_layers, caches.delta_floats, caches.conv_floats, plan.batch_max + plan.n_padding);
    plan.reserve = o->is_host ? 0 : DEVICE_RESERVE_BYTES + plan.device_all / 100;
    const uint64_t fixed = device_fixed(&plan) + (uint64_t)plan.n_padding * block_bytes, left = plan.device_free > fixed ? plan.device_free - fixed : 0;
    if ((st = plan_blocks(&plan, options->kv_tokens, (int64_t)(block_bytes / OPS_BLOCK_TOKENS), o->is_host ? (int64_t)KV_DEFAULT_BYTES : (int64_t)left, err)) != FL_OK) return st;
    plan.kv = (uint64_t)(plan.kv_blocks + plan.n_padding) * block_bytes;
    *out = plan;
    return FL_OK;
}

uint64_t memory_plan_taken(const memory_plan *p)
{
    return p->is_host ? p->expanded + p->tables + p->weights + p->activations + p->logits + p->kv + p->states : device_fixed(p) + p->kv;
}

uint64_t memory_plan_machine(void)
{
    static const char *const limits[] = { "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes" };
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t bytes = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes : 0;
    for (int i = 0; i < 2; i++) {
        uint64_t limit;
        FILE *file = fopen(limits[i], "re");             /* "max" is no number, a v1 group without a limit says more than there is */
        if (file && fscanf(file, "%" SCNu64, &limit) == 1 && limit > 0 && (bytes == 0 || limit < bytes)) bytes = limit;
        if (file) fclose(file);
    }
    return bytes;
}

fl_status memory_plan_check(const memory_plan *p, fl_err *err)
{
    const uint64_t taken = memory_plan_taken(p), machine = p->is_host ? memory_plan_machine() : p->device_free;
    if (machine == 0 || taken <= machine) return FL_OK;
    if (!p->is_host) {
        const char *advice = p->weights + p->reserve > machine         ? "use a larger GPU or a smaller model"
                           : p->kv > taken / 2 || p->ropes > taken / 2 ? "lower --max-context or --kv-tokens"
                                                                       : "lower --batch or --prefill-budget";
        return fl_fail(err, FL_FULL, "engine: this model takes %.2f GB of the GPU's memory for a context of %d and batches of %d (weights %.2f, KV %.2f, states %.2f, activations %.2f, logits and "
                       "tables %.2f, reserve %.2f), of which %.2f GB are free; %s", (double)taken / 1e9, p->context, p->batch_max, (double)p->weights / 1e9, (double)p->kv / 1e9,
                       (double)p->states / 1e9, (double)p->activations / 1e9, (double)(p->logits + p->ropes) / 1e9, (double)p->reserve / 1e9, (double)machine / 1e9, advice);
    }
    const char *advice = p->kv + p->tables > taken / 2 ? "lower --max-context or --kv-tokens"
                       : p->expanded > taken / 2       ? "use a machine with more memory or the unquantized model"
                                                       : "lower --batch or --prefill-budget";
    return fl_fail(err, FL_FULL, "engine: this model takes %.2f GB for a context of %d and batches of %d (KV %.2f, tables %.2f, weights as fp32 %.2f, activations %.2f, logits and states %.2f), and "
                   "this machine has %.2f GB; %s", (double)taken / 1e9, p->context, p->batch_max, (double)p->kv / 1e9, (double)p->tables / 1e9, (double)p->expanded / 1e9,
                   (double)p->activations / 1e9, (double)(p->logits + p->states) / 1e9, (double)machine / 1e9, advice);
}

void memory_plan_log(const memory_plan *p)
{
    if (p->is_host)
        fl_log(FL_LOG_INFO, "engine: memory plan: weights %.1f MB mapped, %.1f MB made anew and %.1f MB random, tables %.1f MB, activations %.1f MB (%d rows), logits %.1f MB (%d rows)",
               (double)p->mapped / 1e6, (double)p->expanded / 1e6, (double)p->weights / 1e6, (double)p->tables / 1e6, (double)p->activations / 1e6, p->n_rows, (double)p->logits / 1e6, p->n_logit_rows);
    else
        fl_log(FL_LOG_INFO, "engine: memory plan: of the GPU's %.2f GB (%.2f GB free) weights %.1f MB, rotary tables %.1f MB, activations %.1f MB (%d rows), logits %.1f MB (%d rows), reserve %.1f MB",
               (double)p->device_all / 1e9, (double)p->device_free / 1e9, (double)p->weights / 1e6, (double)p->ropes / 1e6, (double)p->activations / 1e6, p->n_rows, (double)p->logits / 1e6,
               p->n_logit_rows, (double)p->reserve / 1e6);
    char pad_tokens[48] = "", pad_slots[48] = "";
    if (p->n_padding > 0) {
        snprintf(pad_tokens, sizeof pad_tokens, " and %d for padding", p->n_padding * OPS_BLOCK_TOKENS);
        snprintf(pad_slots, sizeof pad_slots, " and %d for padding", p->n_padding);
    }
    fl_log(FL_LOG_INFO, "engine: memory plan: KV %.1f MB (%lld tokens%s), states %.1f MB (%d slots%s)", (double)p->kv / 1e6, (long long)p->kv_blocks * OPS_BLOCK_TOKENS, pad_tokens,
           (double)p->states / 1e6, p->batch_max, pad_slots);
}
