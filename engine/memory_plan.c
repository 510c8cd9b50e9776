#include "engine/memory_plan.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "proto/log.h"

#define PREFILL_BUDGET_MAX (1 << 16)
#define KV_DEFAULT_BYTES (64u << 20)     /* the default pool, when it holds a full context */
#define LOGITS_BYTES (16u << 20)         /* logits computed at a time, at least one row */

static fl_status read_limits(memory_plan *plan, const engine_options *options, fl_err *err)
{
    plan->batch_max = options->batch_max ? options->batch_max : 64;
    int32_t budget = options->prefill_budget ? options->prefill_budget : 512;
    if (plan->batch_max < 1 || plan->batch_max > BATCH_MAX) return fl_fail(err, FL_INVALID, "engine: the batch limit must be 1 to %d, not %d", BATCH_MAX, plan->batch_max);
    if (budget < 1 || budget > PREFILL_BUDGET_MAX) return fl_fail(err, FL_INVALID, "engine: the prefill budget must be 1 to %d tokens, not %d", PREFILL_BUDGET_MAX, budget);
    if (options->context_max < 0) return fl_fail(err, FL_INVALID, "engine: the context must be 0 or more tokens, not %d", options->context_max);
    plan->prefill_budget = budget < OPS_BLOCK_TOKENS ? OPS_BLOCK_TOKENS : budget / OPS_BLOCK_TOKENS * OPS_BLOCK_TOKENS;
    plan->n_rows = plan->batch_max + plan->prefill_budget;
    return FL_OK;
}

/* The pool in blocks: as asked, else as much as a full batch could use, bounded by KV_DEFAULT_BYTES; one full context at least. */
static fl_status plan_blocks(memory_plan *plan, int64_t kv_tokens, int64_t token_bytes, fl_err *err)
{
    const int64_t one = kv_blocks_of(plan->context);
    if (kv_tokens < 0) return fl_fail(err, FL_INVALID, "engine: the KV pool must be 0 or more tokens, not %lld", (long long)kv_tokens);
    if (kv_tokens > 0 && kv_tokens / OPS_BLOCK_TOKENS < one)
        return fl_fail(err, FL_INVALID, "engine: a KV pool of %lld tokens does not hold one full context of %lld in blocks of %d; ask for %lld or more, or lower --max-context",
                       (long long)kv_tokens, (long long)plan->context, OPS_BLOCK_TOKENS, (long long)one * OPS_BLOCK_TOKENS);
    int64_t blocks = kv_tokens / OPS_BLOCK_TOKENS;
    if (kv_tokens == 0) {
        blocks = token_bytes > 0 ? KV_DEFAULT_BYTES / (token_bytes * OPS_BLOCK_TOKENS) : INT32_MAX;
        if (blocks > one * plan->batch_max) blocks = one * plan->batch_max;
        if (blocks < one) blocks = one;
    }
    if (blocks > INT32_MAX / OPS_BLOCK_TOKENS) return fl_fail(err, FL_INVALID, "engine: a KV pool of %lld tokens is more than a block table can name", (long long)blocks * OPS_BLOCK_TOKENS);
    plan->kv_blocks = (int32_t)blocks;
    return FL_OK;
}

fl_status memory_plan_make(memory_plan *out, model *m, const ops *o, const engine_options *options, fl_err *err)
{
    const model_config *c = model_describe(m);
    const cache_needs caches = model_config_caches(c);
    const uint64_t block_bytes = caches.kv_token_floats * OPS_BLOCK_TOKENS * sizeof(float), logit_bytes = (uint64_t)c->n_vocab * sizeof(float);
    memory_plan plan = { 0 };
    fl_status st = read_limits(&plan, options, err);
    if (st != FL_OK) return st;
    plan.context = options->context_max > 0 && options->context_max < c->context_max ? options->context_max : c->context_max;
    if ((st = plan_blocks(&plan, options->kv_tokens, (int64_t)(block_bytes / OPS_BLOCK_TOKENS), err)) != FL_OK) return st;

    const model_needs needs = model_measure(m, o, plan.n_rows, plan.context);
    plan.mapped = needs.mapped_bytes;
    plan.expanded = needs.expanded_bytes;
    plan.tables = needs.table_bytes;
    plan.activations = needs.scratch_bytes + (uint64_t)plan.n_rows * (uint64_t)c->hidden * sizeof(float);      /* and the rows that logits are made from */
    plan.n_logit_rows = (int32_t)(LOGITS_BYTES / logit_bytes < 1 ? 1 : LOGITS_BYTES / logit_bytes > 64 ? 64 : LOGITS_BYTES / logit_bytes);
    plan.logits = (uint64_t)plan.n_logit_rows * logit_bytes;
    plan.sequence_kv = (uint64_t)kv_blocks_of(plan.context) * block_bytes;
    plan.sequence_state = (uint64_t)caches.state_layers * (caches.delta_floats + caches.conv_floats) * sizeof(float);
    plan.kv = (uint64_t)plan.kv_blocks * block_bytes;
    plan.states = (uint64_t)plan.batch_max * plan.sequence_state;
    *out = plan;
    return FL_OK;
}

uint64_t memory_plan_taken(const memory_plan *p) { return p->expanded + p->tables + p->activations + p->logits + p->kv + p->states; }

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
    const uint64_t taken = memory_plan_taken(p), machine = memory_plan_machine();
    if (machine == 0 || taken <= machine) return FL_OK;
    const char *advice = p->kv + p->tables > taken / 2 ? "lower --max-context or --kv-tokens"
                       : p->expanded > taken / 2       ? "use a machine with more memory or the unquantized model"
                                                       : "lower --batch or --prefill-budget";
    return fl_fail(err, FL_FULL, "engine: this model takes %.2f GB for a context of %d and batches of %d (KV %.2f, tables %.2f, F8_E4M3 as fp32 %.2f, activations %.2f, logits and states %.2f), and "
                   "this machine has %.2f GB; %s", (double)taken / 1e9, p->context, p->batch_max, (double)p->kv / 1e9, (double)p->tables / 1e9, (double)p->expanded / 1e9,
                   (double)p->activations / 1e9, (double)(p->logits + p->states) / 1e9, (double)machine / 1e9, advice);
}

void memory_plan_log(const memory_plan *p)
{
    fl_log(FL_LOG_INFO, "engine: memory plan: weights %.1f MB mapped and %.1f MB expanded from F8_E4M3, tables %.1f MB, activations %.1f MB (%d rows), logits %.1f MB (%d rows)",
           (double)p->mapped / 1e6, (double)p->expanded / 1e6, (double)p->tables / 1e6, (double)p->activations / 1e6, p->n_rows, (double)p->logits / 1e6, p->n_logit_rows);
    fl_log(FL_LOG_INFO, "engine: memory plan: KV %.1f MB (%lld tokens), states %.1f MB (%d slots)", (double)p->kv / 1e6, (long long)p->kv_blocks * OPS_BLOCK_TOKENS,
           (double)p->states / 1e6, p->batch_max);
}
