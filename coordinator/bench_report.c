#include "coordinator/bench_report.h"

#include <stdio.h>
#include <string.h>

static void raise_to(uint64_t *high, uint64_t value)
{
    if (value > *high) *high = value;
}

void bench_sum(stub_stats *sum, const stub_stats *one)
{
    atomic_fetch_add(&sum->n_committed, atomic_load(&one->n_committed));
    atomic_fetch_add(&sum->n_welcome, atomic_load(&one->n_welcome));
    sum->n_duplicate += one->n_duplicate;
    sum->n_stale += one->n_stale;
    sum->n_refused += one->n_refused;
    sum->n_sent += one->n_sent;
    sum->n_grants += one->n_grants;
    sum->n_samples_granted += one->n_samples_granted;
    sum->n_hellos += one->n_hellos;
    sum->sent_bytes += one->sent_bytes;
    sum->received_bytes += one->received_bytes;
    sum->waited_us += one->waited_us;
    sum->present_us += one->present_us;
    sum->cpu_us += one->cpu_us;
    raise_to(&sum->outbox_high, one->outbox_high);
    raise_to(&sum->outbox_high_bytes, one->outbox_high_bytes);
    raise_to(&sum->held_high, one->held_high);
    for (int i = 0; i < STUB_LATENCY_BUCKETS; i++) sum->latency[i] += one->latency[i];
    if (one->first_grant_us && (!sum->first_grant_us || one->first_grant_us < sum->first_grant_us)) sum->first_grant_us = one->first_grant_us;
    if (one->last_grant_us > sum->last_grant_us) sum->last_grant_us = one->last_grant_us;
    if (one->last_answer_us > sum->last_answer_us) sum->last_answer_us = one->last_answer_us;
}

/* The latency that a share of all answers did not exceed, in milliseconds. */
static double quantile_ms(const stub_stats *stats, double share)
{
    uint64_t n = 0, seen = 0;
    for (int i = 0; i < STUB_LATENCY_BUCKETS; i++) n += stats->latency[i];
    for (int i = 0; i < STUB_LATENCY_BUCKETS; i++) {
        seen += stats->latency[i];
        if (seen > 0 && (double)seen >= share * (double)n) return stub_latency_us((size_t)i) / 1000.0;
    }
    return 0.0;
}

static double ratio(double a, double b)
{
    return b > 0 ? a / b : 0.0;
}

static json_t *coordinator_of(const bench_found *f)
{
    if (!f->is_own) return json_null();
    double run_cpu_s = f->at_run.cpu_s - f->at_ingested.cpu_s;
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:I}", "cpu_s", f->at_end.cpu_s, "ingest_cpu_s", f->at_ingested.cpu_s - f->at_start.cpu_s,
                     "run_cpu_s", run_cpu_s, "outputs_cpu_s", f->at_outputs.cpu_s - f->at_run.cpu_s, "verify_cpu_s", f->at_end.cpu_s - f->at_outputs.cpu_s, "run_cores",
                     ratio(run_cpu_s, f->run_s), "cpu_us_a_result", ratio(run_cpu_s * 1e6, (double)f->samples), "rss_high_bytes", (json_int_t)f->at_end.rss_high_bytes,
                     "rss_high_bytes_ingest", (json_int_t)f->at_ingested.rss_high_bytes, "rss_high_bytes_run", (json_int_t)f->at_run.rss_high_bytes, "rss_high_bytes_outputs",
                     (json_int_t)f->at_outputs.rss_high_bytes, "rss_bytes", (json_int_t)f->at_end.rss_bytes, "ledger_bytes", (json_int_t)f->ledger_bytes);
}

json_t *bench_report(const bench_found *f)
{
    const stub_stats *s = &f->stats;
    json_t *report = json_object();
    uint64_t committed = atomic_load(&s->n_committed);
    json_object_set_new(report, "fleet", json_pack("{s:I, s:I, s:I, s:I, s:s, s:s, s:I}", "workers", (json_int_t)f->workers, "processes", (json_int_t)f->processes, "rate",
                                                   (json_int_t)f->rate, "tokens", (json_int_t)f->tokens, "transport", f->transport, "endpoint", f->endpoint, "open_files_allowed",
                                                   (json_int_t)f->file_limit));
    json_object_set_new(report, "job", json_pack("{s:I, s:I, s:I, s:I, s:f}", "rows", (json_int_t)f->rows, "results", (json_int_t)f->samples, "failed_rows",
                                                 (json_int_t)f->failed_rows, "bytes", (json_int_t)f->job_bytes, "ingest_s", f->ingest_s));
    json_object_set_new(report, "run", json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "seconds", f->run_s, "rows_per_s", ratio((double)f->rows, f->run_s),
                                                 "results_per_s", ratio((double)committed, f->run_s), "tokens_per_s", ratio((double)committed * (double)f->tokens, f->run_s),
                                                 "waiting_share", ratio((double)s->waited_us, (double)s->present_us), "tail_s", f->tail_s, "outputs_s", f->outputs_s, "verify_s", f->verify_s,
                                                 "latency_p50_ms", quantile_ms(s, 0.5), "latency_p99_ms", quantile_ms(s, 0.99)));
    json_object_set_new(report, "coordinator", coordinator_of(f));
    json_object_set_new(report, "stubs", json_pack("{s:f, s:f, s:I, s:I}", "cpu_s", (double)s->cpu_us * 1e-6, "cpu_us_a_result", ratio((double)s->cpu_us, (double)committed),
                                                   "sent_bytes", (json_int_t)s->sent_bytes, "received_bytes", (json_int_t)s->received_bytes));
    json_object_set_new(report, "fates", json_pack("{s:I, s:I, s:I, s:I}", "committed", (json_int_t)committed, "duplicate", (json_int_t)s->n_duplicate, "stale",
                                                   (json_int_t)s->n_stale, "refused", (json_int_t)s->n_refused));
    json_object_set_new(report, "leases", json_pack("{s:I, s:f, s:I}", "granted", (json_int_t)s->n_grants, "results_each", ratio((double)s->n_samples_granted, (double)s->n_grants),
                                                    "hellos", (json_int_t)s->n_hellos));
    json_object_set_new(report, "queues", json_pack("{s:I, s:I, s:I}", "outbox_results", (json_int_t)s->outbox_high, "outbox_bytes", (json_int_t)s->outbox_high_bytes,
                                                    "held_results", (json_int_t)s->held_high));
    json_object_set_new(report, "verify", f->verify ? json_string(json_string_value(json_object_get(f->verify, "state"))) : json_null());
    return report;
}

/* ---- text ---- */

static double real(const json_t *report, const char *part, const char *key)
{
    return json_number_value(json_object_get(json_object_get(report, part), key));
}

static long long whole(const json_t *report, const char *part, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(report, part), key));
}

static double mb(const json_t *report, const char *part, const char *key)
{
    return (double)whole(report, part, key) / 1e6;
}

void bench_report_print(const json_t *r)
{
    char pace[48] = "as fast as they can";
    if (whole(r, "fleet", "rate")) snprintf(pace, sizeof pace, "%lld results/s each", whole(r, "fleet", "rate"));
    printf("fleet        %lld stub workers in %lld process%s, %s, %lld tokens a result, %s\n", whole(r, "fleet", "workers"), whole(r, "fleet", "processes"),
           whole(r, "fleet", "processes") == 1 ? "" : "es", pace, whole(r, "fleet", "tokens"), json_string_value(json_object_get(json_object_get(r, "fleet"), "transport")));
    printf("job          %lld rows, %lld results, %.1f MB; ingest %.2f s\n", whole(r, "job", "rows"), whole(r, "job", "results"), mb(r, "job", "bytes"), real(r, "job", "ingest_s"));
    printf("run          %.2f s: %.0f rows/s, %.0f tokens/s; tail %.2f s; outputs %.2f s\n", real(r, "run", "seconds"), real(r, "run", "rows_per_s"),
           real(r, "run", "tokens_per_s"), real(r, "run", "tail_s"), real(r, "run", "outputs_s"));
    printf("waiting      %.2f%% of the workers' time without a row to compute\n", 100.0 * real(r, "run", "waiting_share"));
    printf("latency      result to answer: p50 %.1f ms, p99 %.1f ms\n", real(r, "run", "latency_p50_ms"), real(r, "run", "latency_p99_ms"));
    if (json_is_object(json_object_get(r, "coordinator"))) {
        printf("coordinator  cpu %.2f s: ingest %.2f, run %.2f (%.2f cores, %.1f us a result), outputs %.2f, verify %.2f\n", real(r, "coordinator", "cpu_s"),
               real(r, "coordinator", "ingest_cpu_s"), real(r, "coordinator", "run_cpu_s"), real(r, "coordinator", "run_cores"), real(r, "coordinator", "cpu_us_a_result"),
               real(r, "coordinator", "outputs_cpu_s"), real(r, "coordinator", "verify_cpu_s"));
        printf("memory       most %.1f MB (up to the end of ingest %.1f, run %.1f, outputs %.1f), at the end %.1f MB\n", mb(r, "coordinator", "rss_high_bytes"),
               mb(r, "coordinator", "rss_high_bytes_ingest"), mb(r, "coordinator", "rss_high_bytes_run"), mb(r, "coordinator", "rss_high_bytes_outputs"),
               mb(r, "coordinator", "rss_bytes"));
    }
    printf("stubs        cpu %.2f s (%.1f us a result)\n", real(r, "stubs", "cpu_s"), real(r, "stubs", "cpu_us_a_result"));
    printf("bytes        %.1f MB sent to the coordinator, %.1f MB back; ledger %.1f MB\n", mb(r, "stubs", "sent_bytes"), mb(r, "stubs", "received_bytes"),
           mb(r, "coordinator", "ledger_bytes"));
    printf("leases       %lld of %.1f results; %lld hellos\n", whole(r, "leases", "granted"), real(r, "leases", "results_each"), whole(r, "leases", "hellos"));
    printf("fates        %lld committed, %lld duplicate, %lld stale, %lld refused\n", whole(r, "fates", "committed"), whole(r, "fates", "duplicate"), whole(r, "fates", "stale"),
           whole(r, "fates", "refused"));
    printf("queues       of one worker at most: outbox %lld results, %lld bytes; held %lld results\n", whole(r, "queues", "outbox_results"), whole(r, "queues", "outbox_bytes"),
           whole(r, "queues", "held_results"));
    const char *verify = json_string_value(json_object_get(r, "verify"));
    if (verify) printf("verify       %s (%.2f s)\n", verify, real(r, "run", "verify_s"));
    else printf("verify       not asked for\n");
}
