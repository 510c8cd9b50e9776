#include "worker/bench_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "engine/engine.h"
#include "engine/model.h"
#include "proto/clock.h"
#include "worker/bench_model.h"
#include "worker/bench_report.h"
#include "worker/bench_rows.h"

#define EVENTS_MAX 64
#define WARM_UP_ROWS 4
#define WARM_UP_TOKENS 8

/* What the rows became. */
typedef struct {
    XXH64_hash_t *hashes;                /* owned [n_rows]: of each row's tokens */
    double *steps; int32_t n_steps, capacity;            /* owned: seconds of each engine_step */
    double seconds;
    double decode_step_s, decode_wait_s; /* engine_stats' step_s and wait_s of calls that neither launched nor waited for a prompt's tokens */
    bool had_prompt;                     /* the last call launched some, which the next one waits for */
} job_outcome;

static fl_status add_row(engine *e, const bench_rows *rows, int32_t index, const int32_t *prompt, int32_t n_output, float temperature, fl_err *err)
{
    const engine_request request = { .tag = (uint64_t)index, .prompt = prompt, .n_prompt = rows->n_prompt[index], .sample_hi = 1,
                                     .sampling = { .temperature = temperature, .top_p = 1.0f, .repetition_penalty = 1.0f, .max_tokens = n_output, .ignore_eos = true, .n_top = -1,
                                                   .n_prompt_top = -1, .id_hash = (uint64_t)index } };
    return engine_add(e, &request, err);
}

static fl_status take_event(job_outcome *out, engine_event *event, int32_t n_output, fl_err *err)
{
    if (event->kind == ENGINE_FAILED) return fl_fail(err, FL_CORRUPT, "row %d failed: %.160s", (int)event->tag, event->text);
    if (out->hashes) out->hashes[event->tag] = XXH3_64bits(event->result->ids, event->result->n_ids * sizeof *event->result->ids);
    const size_t n = event->result->n_ids;
    fl_result_free(event->result);
    free(event->result);
    return n == (size_t)n_output ? FL_OK : fl_fail(err, FL_CORRUPT, "row %d has %zu tokens instead of %d", (int)event->tag, n, n_output);
}

static fl_status note_step(job_outcome *out, double seconds, const engine_stats *before, const engine_stats *after, fl_err *err)
{
    const bool has_prompt = after->prefill_tokens != before->prefill_tokens;
    if (!has_prompt && !out->had_prompt) {
        out->decode_step_s += after->step_s - before->step_s;
        out->decode_wait_s += after->wait_s - before->wait_s;
    }
    out->had_prompt = has_prompt;
    if (out->n_steps == out->capacity) {
        const int32_t capacity = out->capacity ? 2 * out->capacity : 4096;
        double *grown = realloc(out->steps, (size_t)capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for the times of %d steps", capacity);
        out->steps = grown;
        out->capacity = capacity;
    }
    out->steps[out->n_steps++] = seconds;
    return FL_OK;
}

/* The first n rows, with their own or n_output tokens, from the first engine_add to the last result. */
static fl_status run_rows(job_outcome *out, engine *e, const bench_rows *rows, int32_t n, int32_t n_output, float temperature, fl_err *err)
{
    fl_status st = FL_OK;
    const int32_t *prompt = rows->ids;
    const double begun = fl_awake_s();
    for (int32_t i = 0; st == FL_OK && i < n; i++) {
        st = add_row(e, rows, i, prompt, n_output ? n_output : rows->n_output[i], temperature, err);
        prompt += rows->n_prompt[i];
    }
    engine_stats before = engine_read_stats(e);
    for (int32_t left = n; st == FL_OK && left > 0;) {
        engine_event events[EVENTS_MAX];
        int32_t n_events = 0;
        const double step_begun = fl_awake_s();
        if ((st = engine_step(e, events, EVENTS_MAX, &n_events, err)) != FL_OK) break;
        const engine_stats after = engine_read_stats(e);
        st = note_step(out, fl_awake_s() - step_begun, &before, &after, err);
        before = after;
        for (int32_t i = 0; i < n_events; i++) {
            const fl_status taken = take_event(out, &events[i], n_output ? n_output : rows->n_output[events[i].tag], st == FL_OK ? err : NULL);
            if (st == FL_OK) st = taken;
        }
        left -= n_events;
    }
    out->seconds = fl_awake_s() - begun;
    return st == FL_AGAIN ? fl_fail(err, FL_CORRUPT, "the engine has nothing more to do, and rows are missing") : st;
}

/* Seconds in which the device, at the rates measured, could read what the decode steps read, and compute the prompts. */
static void bound_of(double *copy_s, double *product_s, const model_config *c, size_t value_bytes, const bench_rows *rows, const engine_stats *stats, const bench_rates *rates)
{
    const double n_steps = (double)stats->steps, n_decoded = (double)(rows->n_output_tokens - rows->n_rows);       /* a row's first token is its prompt's */
    double bytes = n_steps > 0 ? n_steps * bench_weight_bytes(c, value_bytes, n_decoded / n_steps) : 0, flop = 0;
    for (int32_t i = 0; i < rows->n_rows; i++) {
        bytes += (rows->n_output[i] - 1) * bench_token_bytes(c, value_bytes, rows->n_prompt[i] + rows->n_output[i] / 2.0);
        flop += bench_prefill_flop(c, rows->n_prompt[i]);
    }
    *copy_s = bytes / rates->copy_bytes_per_s;
    *product_s = flop / rates->product_flop_per_s;
}

static fl_status open_engine(engine **out, size_t *value_bytes, const bench_options *o, const char *path, const bench_rows *rows, fl_err *err)
{
    engine_options options = { .model = path, .n_threads = (int32_t)o->n_threads, .batch_max = (int32_t)o->batch, .prefill_budget = (int32_t)o->prefill_budget, .context_max = rows->n_longest,
                               .kv_tokens = o->kv_tokens };
    fl_status st = bench_device_open(&options.ops, o, err);
    if (st != FL_OK) return st;
    *value_bytes = options.ops->act_bytes;
    return engine_open(out, &options, err);
}

static void write_report(json_t *report, const bench_rows *rows, job_outcome *out, const engine *e, const engine_stats *stats, double copy_s, double product_s)
{
    char hash[24];
    const engine_info *info = engine_describe(e);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)XXH3_64bits(out->hashes, (size_t)rows->n_rows * sizeof *out->hashes));
    json_object_update_new(report, json_pack("{s:i, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:f, s:f, s:f, s:i, s:I, s:I, s:s, s:s}", "rows", (int)rows->n_rows, "prompt_tokens",
                                             (json_int_t)rows->n_prompt_tokens, "output_tokens", (json_int_t)rows->n_output_tokens, "seconds", out->seconds, "output_tokens_per_s",
                                             (double)rows->n_output_tokens / out->seconds, "prompt_tokens_per_s", (double)rows->n_prompt_tokens / out->seconds, "steps", (json_int_t)stats->steps,
                                             "step_p50_seconds", bench_percentile(out->steps, out->n_steps, 0.5), "step_p99_seconds", bench_percentile(out->steps, out->n_steps, 0.99),
                                             "decode_copy_seconds", copy_s, "prompt_product_seconds", product_s, "share_of_rates", (copy_s + product_s) / out->seconds, "batch",
                                             (int)info->batch_max, "kv_tokens", (json_int_t)info->kv_tokens, "preemptions", (json_int_t)stats->preemptions, "numerics", info->numerics,
                                             "output_hash", hash));
    if (stats->wait_s > 0) json_object_set_new(report, "host_share", json_real(1.0 - stats->wait_s / stats->step_s));
    if (out->decode_wait_s > 0) json_object_set_new(report, "host_share_of_decode", json_real(1.0 - out->decode_wait_s / out->decode_step_s));
    if (stats->device_s > 0) json_object_set_new(report, "idle_share", json_real(stats->device_s < out->seconds ? 1.0 - stats->device_s / out->seconds : 0.0));
}

/* What the engine did between two looks. */
static engine_stats stats_between(const engine_stats *before, const engine_stats *after)
{
    engine_stats s = *after;
    s.steps -= before->steps;
    s.preemptions -= before->preemptions;
    s.step_s -= before->step_s;
    s.wait_s -= before->wait_s;
    s.device_s -= before->device_s;
    return s;
}

fl_status bench_job_run(json_t *report, const bench_options *o, const char *path, const bench_rates *rates, fl_err *err)
{
    bench_rows rows = { 0 };
    job_outcome out = { 0 }, warm_up = { 0 };
    engine *e = NULL;
    model *shape = NULL;
    size_t value_bytes = 0;
    double copy_s = 0, product_s = 0;
    fl_status st = bench_rows_make(&rows, (int32_t)o->rows, (int32_t)o->input, (int32_t)o->output, err);
    if (st != FL_OK || (st = model_map(&shape, path, err)) != FL_OK) goto done;
    const model_config *c = model_describe(shape);
    if (rows.n_longest > c->context_max) { st = fl_fail(err, FL_INVALID, "the longest row has %d tokens and the model's context is %d; lower --input or --output", rows.n_longest, c->context_max); goto done; }
    bench_rows_fit(&rows, c->n_vocab);
    out.hashes = calloc((size_t)rows.n_rows, sizeof *out.hashes);
    if (!out.hashes) { st = fl_fail(err, FL_FULL, "no memory for %d rows", rows.n_rows); goto done; }
    if ((st = open_engine(&e, &value_bytes, o, path, &rows, err)) != FL_OK) goto done;
    const int32_t least = rows.n_longest - 1 < WARM_UP_TOKENS ? 1 : WARM_UP_TOKENS;
    if ((st = run_rows(&warm_up, e, &rows, rows.n_rows < WARM_UP_ROWS ? rows.n_rows : WARM_UP_ROWS, o->output && o->output < least ? (int32_t)o->output : least, (float)o->temperature, err)) != FL_OK) goto done;
    const engine_stats before = engine_read_stats(e);
    if ((st = run_rows(&out, e, &rows, rows.n_rows, 0, (float)o->temperature, err)) != FL_OK) goto done;
    const engine_stats after = engine_read_stats(e), stats = stats_between(&before, &after);
    bound_of(&copy_s, &product_s, c, value_bytes, &rows, &stats, rates);
    write_report(report, &rows, &out, e, &stats, copy_s, product_s);
done:
    engine_close(e);
    model_close(shape);
    bench_rows_free(&rows);
    free(out.hashes);
    free(out.steps);
    free(warm_up.steps);
    return st;
}

void bench_job_print(const json_t *report)
{
    printf("  %lld rows, %lld prompt and %lld output tokens, %lld sequences in a step at most: %.3f s\n", (long long)report_whole(report, "rows"), (long long)report_whole(report, "prompt_tokens"),
           (long long)report_whole(report, "output_tokens"), (long long)report_whole(report, "batch"), report_real(report, "seconds"));
    printf("  %.0f output tokens/s, %.0f prompt tokens/s; tokens %s\n", report_real(report, "output_tokens_per_s"), report_real(report, "prompt_tokens_per_s"), report_text(report, "output_hash"));
    printf("  %lld steps, half of them within %.3f ms, 99 %% within %.3f ms; %lld preemptions\n", (long long)report_whole(report, "steps"), report_real(report, "step_p50_seconds") * 1e3,
           report_real(report, "step_p99_seconds") * 1e3, (long long)report_whole(report, "preemptions"));
    if (json_object_get(report, "host_share"))
        printf("  the host was at work in %.1f %% of its steps' time, %.1f %% of steps of decode rows alone, and waited for the GPU in the rest; the GPU was idle in %.1f %%\n",
               report_real(report, "host_share") * 100, report_real(report, "host_share_of_decode") * 100, report_real(report, "idle_share") * 100);
    printf("  at the rates measured its decode steps need %.3f s of copying and its prompts %.3f s of products: %.1f %% of the time\n", report_real(report, "decode_copy_seconds"),
           report_real(report, "prompt_product_seconds"), report_real(report, "share_of_rates") * 100);
}
