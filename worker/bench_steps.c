#include "worker/bench_steps.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"
#include "worker/bench_model.h"
#include "worker/bench_report.h"

#define RUNS 3                           /* of which the median counts, after one to warm up */
#define DECODE_STEPS 16

static int32_t widest_of(const bench_sizes *sizes)
{
    int32_t widest = 0;
    for (int32_t i = 0; i < sizes->n; i++) if (sizes->v[i] > widest) widest = sizes->v[i];
    return widest;
}

/* ---- prefill ---- */

static fl_status time_prefill(double *seconds, bench_model *b, const int32_t *ids, int32_t n, int32_t budget, fl_err *err)
{
    double times[RUNS];
    fl_status st = FL_OK;
    for (int run = -1; st == FL_OK && run < RUNS; run++) {
        const double begun = fl_awake_s();
        for (int32_t first = 0; first < n; first += budget) bench_prefill_step(b, ids, first, n - first < budget ? n - first : budget, first + budget >= n);
        st = b->o->finish(b->o, err);
        if (run >= 0) times[run] = fl_awake_s() - begun;
    }
    *seconds = st == FL_OK ? bench_percentile(times, RUNS, 0.5) : 0;
    return st;
}

static fl_status prefill_in(json_t *runs, bench_model *b, const int32_t *ids, int32_t n, int32_t size, const bench_rates *rates, fl_err *err)
{
    int32_t argmax = 0;
    double seconds;
    uint32_t bits;
    char text[16];
    fl_status st = time_prefill(&seconds, b, ids, n, size ? size : n, err);
    if (st == FL_OK) st = bench_read_logits(b, 0, &argmax, err);
    if (st != FL_OK) return st;
    memcpy(&bits, &b->row[argmax], sizeof bits);
    snprintf(text, sizeof text, "%08x", bits);
    json_array_append_new(runs, json_pack("{s:i, s:f, s:f, s:i, s:f, s:s, s:f}", "budget", (int)size, "seconds", seconds, "tokens_per_s", n / seconds, "argmax", (int)argmax, "logit",
                                          (double)b->row[argmax], "logit_bits", text, "share_of_product", bench_prefill_flop(model_describe(b->m), n) / seconds / rates->product_flop_per_s));
    return FL_OK;
}

fl_status bench_prefill_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err)
{
    bench_model b = { 0 };
    ops *device;
    json_t *runs = json_array();
    bool has_whole = false, differs = false;
    const int32_t n = (int32_t)o->prompt;
    int32_t widest = widest_of(&o->budgets), *ids = calloc((size_t)n, sizeof *ids);
    json_object_set_new(report, "prompt", json_integer(n));
    json_object_set_new(report, "runs", runs);
    for (int32_t i = 0; i < o->budgets.n; i++) has_whole |= o->budgets.v[i] == 0;
    if (has_whole || widest > n) widest = n;
    fl_status st = bench_device_open(&device, o, err);
    if (st == FL_OK) st = bench_model_open(&b, path, device, 1, n, widest, 1, err);
    if (st == FL_OK && !ids) st = fl_fail(err, FL_FULL, "no memory for a prompt of %d tokens", n);
    for (int32_t i = 0; st == FL_OK && i < n; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % model_describe(b.m)->n_vocab;
    for (int32_t i = 0; st == FL_OK && i < o->budgets.n; i++) st = prefill_in(runs, &b, ids, n, o->budgets.v[i], rates, err);
    for (size_t i = 1; i < json_array_size(runs); i++) differs |= !json_equal(json_object_get(json_array_get(runs, i), "logit_bits"), json_object_get(json_array_get(runs, 0), "logit_bits"));
    json_object_set_new(report, "same_bits", json_boolean(!differs));
    bench_model_close(&b);
    free(ids);
    return st;
}

void bench_prefill_print(const json_t *report)
{
    size_t i;
    json_t *run;
    const int64_t prompt = report_whole(report, "prompt");
    json_array_foreach(json_object_get(report, "runs"), i, run) {
        const int64_t budget = report_whole(run, "budget");
        printf("  budget %5d, prompt %d: %8.3f s, %9.0f tokens/s, %4.1f %% of the product rate; last token: argmax %d, logit %.6f (%s)\n", (int)(budget ? budget : prompt), (int)prompt,
               report_real(run, "seconds"), report_real(run, "tokens_per_s"), report_real(run, "share_of_product") * 100, (int)report_whole(run, "argmax"), report_real(run, "logit"),
               report_text(run, "logit_bits"));
    }
    printf("  %s\n", json_is_true(json_object_get(report, "same_bits")) ? "the same bits for every budget" : "OTHER BITS: a budget changed the result");
}

/* ---- decode ---- */

static fl_status time_decode(double *seconds, bench_model *b, int32_t n, int32_t context, fl_err *err)
{
    double times[RUNS];
    fl_status st = FL_OK;
    for (int run = -1; st == FL_OK && run < RUNS; run++) {
        const double begun = fl_awake_s();
        for (int32_t k = 0; k < DECODE_STEPS; k++) bench_decode_step(b, n, context + k);
        st = b->o->finish(b->o, err);
        if (run >= 0) times[run] = (fl_awake_s() - begun) / DECODE_STEPS;
    }
    *seconds = st == FL_OK ? bench_percentile(times, RUNS, 0.5) : 0;
    return st;
}

fl_status bench_decode_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err)
{
    bench_model b = { 0 };
    ops *device;
    json_t *runs = json_array();
    const int32_t widest = widest_of(&o->batches), context = (int32_t)o->context;
    json_object_set_new(report, "context", json_integer(context));
    json_object_set_new(report, "runs", runs);
    fl_status st = bench_device_open(&device, o, err);
    if (st == FL_OK) st = bench_model_open(&b, path, device, widest, context + DECODE_STEPS, widest, widest, err);
    for (int32_t i = 0; st == FL_OK && i < o->batches.n; i++) {
        double seconds;
        const int32_t n = o->batches.v[i];
        if ((st = time_decode(&seconds, &b, n, context, err)) != FL_OK) break;
        const double bytes = bench_weight_bytes(model_describe(b.m), b.o->act_bytes, n) + n * bench_token_bytes(model_describe(b.m), b.o->act_bytes, context);
        json_array_append_new(runs, json_pack("{s:i, s:f, s:f, s:f}", "batch", (int)n, "step_seconds", seconds, "tokens_per_s", n / seconds, "share_of_copy", bytes / seconds / rates->copy_bytes_per_s));
    }
    bench_model_close(&b);
    return st;
}

void bench_decode_print(const json_t *report)
{
    size_t i;
    json_t *run;
    json_array_foreach(json_object_get(report, "runs"), i, run)
        printf("  batch %4d, context %d: %8.3f ms a step, %9.0f tokens/s, %4.1f %% of the copy rate\n", (int)report_whole(run, "batch"), (int)report_whole(report, "context"),
               report_real(run, "step_seconds") * 1e3, report_real(run, "tokens_per_s"), report_real(run, "share_of_copy") * 100);
}
