#include "worker/bench_sampler.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/sampler.h"
#include "proto/clock.h"
#include "worker/bench_report.h"

#define N_HISTORY 200                    /* ids that the penalties know of */
#define WARM_UP_CALLS 5
#define SECONDS_MOST 0.4                 /* of one kind of calls, after the first two */

typedef struct { const char *name; bool is_flat; sampling p; } setting;
static const setting settings[] = {
    { "greedy", false, { .top_p = 1.0f, .repetition_penalty = 1.0f } },
    { "temperature 0.8", false, { .temperature = 0.8f, .top_p = 1.0f, .repetition_penalty = 1.0f } },
    { "top_p 0.9", false, { .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.0f } },
    { "top_k 50, top_p 0.95", false, { .temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1.0f } },
    { "penalties", false, { .temperature = 0.8f, .top_p = 1.0f, .repetition_penalty = 1.2f, .frequency_penalty = 0.1f } },
    { "top_p 0.9, flat logits", true, { .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.0f } },
};

/* One vocabulary and batch. */
typedef struct {
    ops *o;                              /* borrowed */
    bool is_flat;
    int32_t n_vocab, n_rows;
    size_t logits_bytes;
    float *host;                         /* owned: logits [n_rows, n_vocab] */
    void *logits, *counts, *ids;         /* owned, of the device; NULL where it has no sampler */
    sampler *chain;                      /* owned */
    ops_sampling *rows; int32_t *got;    /* owned [n_rows] */
    double *seconds; int32_t n_calls;    /* owned [n_calls] */
    int32_t history[N_HISTORY];
} bench_case;

/* ---- memory ---- */

static fl_status case_open(bench_case *b, ops *o, int32_t n_vocab, int32_t n_rows, int32_t n_calls, fl_err *err)
{
    void *host = NULL;
    *b = (bench_case){ .o = o, .n_vocab = n_vocab, .n_rows = n_rows, .logits_bytes = (size_t)n_vocab * (size_t)n_rows * sizeof(float), .n_calls = n_calls };
    for (int32_t i = 0; i < N_HISTORY; i++) b->history[i] = (int32_t)(i * 700LL % n_vocab);
    fl_status st = o->take_host(o, &host, b->logits_bytes, "logits", err);
    b->host = host;
    b->rows = calloc((size_t)n_rows, sizeof *b->rows);
    b->got = calloc((size_t)n_rows, sizeof *b->got);
    b->seconds = calloc((size_t)n_calls, sizeof *b->seconds);
    if (st == FL_OK && !(b->rows && b->got && b->seconds)) st = fl_fail(err, FL_FULL, "no memory for %d rows", n_rows);
    if (st == FL_OK) st = sampler_open(&b->chain, n_vocab, err);
    if (st != FL_OK || !o->sample) return st;
    st = o->take(o, &b->logits, b->logits_bytes, "logits", err);
    if (st == FL_OK) st = o->take(o, &b->counts, b->logits_bytes, "counts of ids", err);
    if (st == FL_OK) st = o->take(o, &b->ids, (size_t)n_rows * sizeof(int32_t), "ids", err);
    return st == FL_OK ? o->sampler_reserve(o, n_rows, 1, N_HISTORY, n_vocab, err) : st;
}

static void case_close(bench_case *b)
{
    b->o->give_host(b->o, b->host, b->logits_bytes);
    b->o->give(b->o, b->logits, b->logits_bytes);
    b->o->give(b->o, b->counts, b->logits_bytes);
    b->o->give(b->o, b->ids, (size_t)b->n_rows * sizeof(int32_t));
    sampler_close(b->chain);
    free(b->rows);
    free(b->got);
    free(b->seconds);
}

/* Logits as a language model's are: most of them far below a few. Or flat ones, as a model's without training are. */
static void fill_logits(bench_case *b, bool is_flat)
{
    const float spread = is_flat ? 0.7f : 2.2f;
    const size_t n = (size_t)b->n_vocab;
    uint64_t z = 12345;
    b->is_flat = is_flat;
    for (size_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        const float u = (float)((z >> 40) + 1) * 0x1p-24f, v = (float)((z >> 16 & 0xffffff) + 1) * 0x1p-24f;
        b->host[i] = spread * sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v) + (!is_flat && (z >> 33) % 20000 == 0 ? 12.0f : 0.0f);
    }
    for (int32_t r = 1; r < b->n_rows; r++) {            /* the same values in another order */
        const size_t turn = (size_t)r * 977 % n;
        float *row = b->host + (size_t)r * n;
        memcpy(row, b->host + turn, (n - turn) * sizeof *row);
        memcpy(row + n - turn, b->host, turn * sizeof *row);
    }
    if (b->logits) b->o->upload(b->o, b->logits, b->host, b->logits_bytes);
}

/* ---- the three ways ---- */

typedef enum { ON_CPU, FROM_HOST, ON_DEVICE, N_WAYS } way;
static const char *const way_names[N_WAYS] = { "cpu", "gpu_host_logits", "gpu" };

static void call_cpu(bench_case *b, const sampling *p, int32_t turn)
{
    for (int32_t r = 0; r < b->n_rows; r++) {
        const sampler_history h = { b->history, N_HISTORY, b->history, 0, NULL, 0, (uint32_t)(r + turn) };
        b->got[r] = sampler_next(b->chain, b->host + (size_t)r * (size_t)b->n_vocab, p, &h);
    }
}

static void enqueue(bench_case *b)
{
    b->o->sample_begin(b->o, b->rows, b->n_rows, NULL, 0);
    b->o->sample(b->o, b->ids, b->logits, b->n_rows, b->counts, b->n_vocab);
}

static void call_way(bench_case *b, way w, const sampling *p, int32_t turn)
{
    if (w == ON_CPU) {
        call_cpu(b, p, turn);
        return;
    }
    if (w == FROM_HOST) b->o->upload(b->o, b->logits, b->host, b->logits_bytes);
    enqueue(b);
    b->o->download(b->o, b->got, b->ids, (size_t)b->n_rows * sizeof *b->got);
}

/* n_calls of them, fewer where they take long. */
static json_t *time_way(bench_case *b, way w, const sampling *p)
{
    int32_t n = 0;
    double spent = 0;
    for (int32_t i = 0; w != ON_CPU && i < WARM_UP_CALLS; i++) call_way(b, w, p, i);
    while (n < b->n_calls && (n < 2 || spent < SECONDS_MOST)) {
        const double begun = fl_awake_s();
        call_way(b, w, p, n);
        b->seconds[n] = fl_awake_s() - begun;
        spent += b->seconds[n++];
    }
    const double p50 = bench_percentile(b->seconds, n, 0.5), p99 = bench_percentile(b->seconds, n, 0.99);
    return json_pack("{s:i, s:f, s:f}", "calls", (int)n, "p50_seconds", p50, "p99_seconds", p99);
}

static void set_rows(bench_case *b, const sampling *p)
{
    const bool has_penalty = p->repetition_penalty != 1.0f || p->frequency_penalty != 0.0f;
    for (int32_t r = 0; r < b->n_rows; r++) {
        b->rows[r] = (ops_sampling){ .temperature = p->temperature, .top_p = p->top_p, .min_p = p->min_p, .repetition_penalty = p->repetition_penalty, .frequency_penalty = p->frequency_penalty,
                                     .u = sampler_uniform(7, 9, 0, (uint32_t)r), .top_k = p->top_k, .logits_row = r, .count_slot = has_penalty ? r : -1, .is_counted = has_penalty, .given_id = -1 };
        if (has_penalty) b->o->count_ids(b->o, (uint32_t *)b->counts + (size_t)r * (size_t)b->n_vocab, b->history, N_HISTORY, NULL, 0, b->n_vocab);
    }
}

/* One of many calls that wait for nothing but each other; as many as single ones were made. */
static fl_status time_queued(json_t *run, bench_case *b, const bench_rates *rates, fl_err *err)
{
    const int32_t n = (int32_t)report_whole(json_object_get(run, way_names[ON_DEVICE]), "calls");
    fl_status st = b->o->finish(b->o, err);
    const double begun = fl_awake_s();
    for (int32_t i = 0; i < n; i++) enqueue(b);
    if (st == FL_OK) st = b->o->finish(b->o, err);
    const double seconds = (fl_awake_s() - begun) / n;
    json_object_set_new(run, "queued_seconds", json_real(seconds));
    json_object_set_new(run, "share_of_copy", json_real((double)b->logits_bytes / seconds / rates->copy_bytes_per_s));
    return st;
}

static fl_status run_setting(json_t *runs, bench_case *b, const setting *s, const bench_rates *rates, fl_err *err)
{
    json_t *run = json_pack("{s:s, s:i, s:i}", "setting", s->name, "vocabulary", (int)b->n_vocab, "batch", (int)b->n_rows);
    fl_status st = FL_OK;
    json_array_append_new(runs, run);
    for (way w = ON_CPU; w < N_WAYS && (w == ON_CPU || b->logits); w++) {
        if (w == FROM_HOST) set_rows(b, &s->p);
        json_object_set_new(run, way_names[w], time_way(b, w, &s->p));
    }
    if (b->logits) st = time_queued(run, b, rates, err);
    return st;
}

fl_status bench_sampler_run(json_t *report, const bench_options *options, const char *path, const bench_rates *rates, fl_err *err)
{
    json_t *runs = json_array();
    ops *o = NULL;
    (void)path;
    json_object_set_new(report, "runs", runs);
    fl_status st = bench_device_open(&o, options, err);
    if (st != FL_OK) return st;
    for (int32_t v = 0; st == FL_OK && v < options->vocabularies.n; v++)
        for (int32_t k = 0; st == FL_OK && k < options->batches.n; k++) {
            bench_case b;
            st = case_open(&b, o, options->vocabularies.v[v], options->batches.v[k], (int32_t)options->n_calls, err);
            for (size_t i = 0; st == FL_OK && i < sizeof settings / sizeof *settings; i++) {
                if (i == 0 || settings[i].is_flat != b.is_flat) fill_logits(&b, settings[i].is_flat);
                st = run_setting(runs, &b, &settings[i], rates, err);
            }
            case_close(&b);
        }
    o->close(o);
    return st;
}

static void print_way(const json_t *run, way w)
{
    const json_t *times = json_object_get(run, way_names[w]);
    if (times) printf(" | %10.1f %10.1f", report_real(times, "p50_seconds") * 1e6, report_real(times, "p99_seconds") * 1e6);
}

void bench_sampler_print(const json_t *report)
{
    size_t i;
    json_t *run;
    const json_t *runs = json_object_get(report, "runs");
    const bool has_gpu = json_object_get(json_array_get(runs, 0), way_names[ON_DEVICE]);
    printf("  us until the ids are there       vocabulary batch |    CPU p50        p99%s\n", has_gpu ? " | of host p50        p99 |    GPU p50        p99 |   queued, of the copy rate" : "");
    json_array_foreach(runs, i, run) {
        printf("  %-32s %10d %5d", report_text(run, "setting"), (int)report_whole(run, "vocabulary"), (int)report_whole(run, "batch"));
        for (way w = ON_CPU; w < N_WAYS; w++) print_way(run, w);
        if (has_gpu) printf(" | %8.1f %6.1f %%", report_real(run, "queued_seconds") * 1e6, report_real(run, "share_of_copy") * 100);
        putchar('\n');
    }
}
