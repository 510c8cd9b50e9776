#include "coordinator/status_print.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include "coordinator/printable.h"
#include "coordinator/progress.h"

#define LABEL_COLUMNS 11
#define WIDTH_MIN 40
#define ENDS_SHOWN 5
#define WORKERS_SHOWN 12                                 /* on a terminal; a file gets them all */

typedef struct { FILE *file; int width; } screen;

int status_width(FILE *file)
{
    struct winsize size;
    int fd = fileno(file);
    return isatty(fd) && ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= WIDTH_MIN ? size.ws_col : 0;
}

/* Bytes of text that fit into so many columns: up to the last space, or as many characters as fit; at least one. */
static size_t fitting(const char *text, int columns)
{
    size_t at = 0, space = 0;
    for (int used = 0; text[at]; at++) {
        if ((text[at] & 0xC0) == 0x80) continue;         /* the rest of a character */
        if (used++ == columns) return space ? space : at;
        if (text[at] == ' ' && at > 0) space = at;
    }
    return at;
}

/* A label and what stands behind it, in as many lines as the width asks for. */
static void show(const screen *s, const char *label, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void show(const screen *s, const char *label, const char *format, ...)
{
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return;
    printable(text);
    fprintf(s->file, "%-*s", LABEL_COLUMNS, label);
    for (const char *at = text; ; ) {
        size_t bytes = s->width ? fitting(at, s->width - LABEL_COLUMNS) : strlen(at);
        fprintf(s->file, "%.*s\n", (int)bytes, at);
        at += bytes;
        at += strspn(at, " ");
        if (!*at) break;
        fprintf(s->file, "%*s", LABEL_COLUMNS, "");
    }
    free(text);
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static double real_of(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

static void age_of(const json_t *job, uint64_t now_s, char out[24])
{
    int64_t age = (int64_t)now_s - number_of(job, "created");
    progress_duration(out, 24, age > 0 ? age : 0);
}

/* "running: 412 of 1000 rows done (41%), 8100 tokens/s, about 48s left" */
static void show_state(const screen *s, const json_t *job)
{
    const json_t *rows = json_object_get(job, "rows"), *rate = json_object_get(job, "rate");
    long long total = number_of(rows, "total"), done = number_of(rows, "completed") + number_of(rows, "failed");
    char speed[100] = "", left[24], eta[40] = "";
    if (rate && real_of(rate, "tokens_per_s") > 0) snprintf(speed, sizeof speed, ", %.3g rows/s, %.0f tokens/s", real_of(rate, "rows_per_s"), real_of(rate, "tokens_per_s"));
    if (rate && json_is_integer(json_object_get(rate, "seconds_left"))) {
        progress_duration(left, sizeof left, number_of(rate, "seconds_left"));
        snprintf(eta, sizeof eta, ", about %s left", left);
    }
    show(s, "state", "%s: %lld of %lld rows done (%lld%%)%s%s", text_of(job, "state"), done, total, total ? done * 100 / total : 100, speed, eta);
    if (text_of(job, "why")[0]) show(s, "waits", "%s", text_of(job, "why"));
}

static void show_rows(const screen *s, const json_t *job)
{
    const json_t *rows = json_object_get(job, "rows");
    char suspects[60] = "", large[60] = "";
    if (number_of(rows, "suspects")) snprintf(suspects, sizeof suspects, ", %lld of them run among themselves (suspects)", number_of(rows, "suspects"));
    if (number_of(rows, "too_large")) snprintf(large, sizeof large, ", %lld of them for a larger worker", number_of(rows, "too_large"));
    show(s, "rows", "%lld completed, %lld failed, %lld running, %lld waiting%s%s; %lld tokens generated", number_of(rows, "completed"), number_of(rows, "failed"), number_of(rows, "running"),
         number_of(rows, "waiting"), suspects, large, number_of(job, "tokens"));
}

static void show_grading(const screen *s, const json_t *samples)
{
    if (samples) show(s, "grading", "%lld samples graded, %lld with graders, %lld waiting for one", number_of(samples, "graded"), number_of(samples, "with_graders"), number_of(samples, "waiting"));
}

static void show_failures(const screen *s, const json_t *failures)
{
    const char *code;
    json_t *value;
    size_t i, used = 0;
    char counts[700] = "";
    json_object_foreach((json_t *)json_object_get(failures, "codes"), code, value) {
        if (used < sizeof counts) used += (size_t)snprintf(counts + used, sizeof counts - used, "%s%lld %s", used ? ", " : "", (long long)json_integer_value(value), code);
    }
    if (!used) return;
    show(s, "failures", "%s", counts);
    json_array_foreach(json_object_get(failures, "examples"), i, value) {
        show(s, "", "%s (line %lld): %s: %s", text_of(value, "custom_id"), number_of(value, "line"), text_of(value, "code"), text_of(value, "message"));
    }
}

/* How the job ends: what is left is with workers, some of it twice. */
static void show_tail(const screen *s, const json_t *job)
{
    const json_t *tail = json_object_get(job, "tail"), *events = json_object_get(job, "events");
    char age[24], twice[60] = "", cost[160] = "";
    if (number_of(tail, "samples_twice")) snprintf(twice, sizeof twice, ", %lld samples with two workers", number_of(tail, "samples_twice"));
    if (number_of(events, "samples_copied"))
        snprintf(cost, sizeof cost, "%lld samples copied for idle workers, %lld tokens came too late", number_of(events, "samples_copied"), number_of(events, "duplicate_tokens"));
    progress_duration(age, sizeof age, number_of(tail, "oldest_lease_ms") / 1000);
    if (number_of(tail, "rows")) show(s, "tail", "the last %lld rows are with workers, the longest for %s%s%s%s", number_of(tail, "rows"), age, twice, cost[0] ? "; " : "", cost);
    else if (cost[0]) show(s, "copies", "%s", cost);
}

static void show_ends(const screen *s, const json_t *ends)
{
    size_t i, n = json_array_size(ends);
    json_t *e;
    json_array_foreach((json_t *)ends, i, e) {
        if (i == ENDS_SHOWN) {
            show(s, "", "and %zu more; --json lists them all", n - i);
            break;
        }
        show(s, i ? "" : "crashes", "row %lld%s on %s: %s", number_of(e, "row"), json_is_true(json_object_get(e, "alone")) ? " alone" : " among others", text_of(e, "worker"), text_of(e, "last_words"));
    }
}

static void show_workers(const screen *s, const json_t *workers)
{
    size_t i, n = json_array_size(workers);
    json_t *w;
    json_array_foreach((json_t *)workers, i, w) {
        if (s->width && i == WORKERS_SHOWN) {
            show(s, "", "and %zu more; --json lists them all", n - i);
            break;
        }
        char speed[80] = "";
        bool grades = json_is_true(json_object_get(w, "grades"));
        if (!grades) snprintf(speed, sizeof speed, ", %.0f tokens/s (prefill %.0f)", real_of(w, "decode_per_s"), real_of(w, "prefill_per_s"));
        show(s, i ? "" : "workers", "%s%s%s: %lld rows held%s, %lld %s%s%s%s", text_of(w, "place"), grades ? "" : ", ", text_of(w, "model"), number_of(w, "held"), speed, number_of(w, "rows"),
             grades ? "graded" : "done", json_is_true(json_object_get(w, "draining")) ? ", draining" : "", text_of(w, "idle")[0] ? ", idle: " : "", text_of(w, "idle"));
    }
    if (n == 0) show(s, "workers", "none");
}

static void amount(char out[32], const char *unit, long long n)
{
    bool is_bytes = strcmp(unit, "bytes") == 0;
    if (is_bytes && n >= 1 << 20) snprintf(out, 32, "%.1f MB", (double)n / (1 << 20));
    else if (is_bytes) snprintf(out, 32, "%.1f KB", (double)n / (1 << 10));
    else snprintf(out, 32, "%lld", n);
}

/* Each of the coordinator's queues: what is in it, at most so far, and what may be. */
static void show_queues(const screen *s, const json_t *queues)
{
    size_t i;
    json_t *q;
    json_array_foreach((json_t *)queues, i, q) {
        char depth[32], most[32], capacity[32];
        amount(depth, text_of(q, "unit"), number_of(q, "depth"));
        amount(most, text_of(q, "unit"), number_of(q, "high_water"));
        amount(capacity, text_of(q, "unit"), number_of(q, "capacity"));
        show(s, i ? "" : "queues", "%s: %s, at most %s so far, of %s", text_of(q, "queue"), depth, most, capacity);
    }
}

static void show_settings(const screen *s, const json_t *job, uint64_t now_s)
{
    const json_t *settings = json_object_get(job, "settings"), *pin = json_object_get(job, "pin");
    char context[48] = "", times[160] = "", left[24];
    if (number_of(settings, "max_context")) snprintf(context, sizeof context, ", max context %lld", number_of(settings, "max_context"));
    size_t used = 0;
    static const struct { const char *key, *words; } limits[] = { { "row_queue_limit", "rows wait at most" }, { "row_run_limit", "run at most" }, { "row_limit", "take at most" } };
    if (number_of(settings, "expires")) {
        int64_t seconds = (int64_t)number_of(settings, "expires") - (int64_t)now_s;
        progress_duration(left, sizeof left, seconds > 0 ? seconds : -seconds);
        used = (size_t)snprintf(times, sizeof times, seconds > 0 ? ", expires in %s" : ", expired %s ago", left);
    }
    for (size_t i = 0; i < 3; i++) {
        if (!number_of(settings, limits[i].key)) continue;
        progress_duration(left, sizeof left, number_of(settings, limits[i].key));
        used += (size_t)snprintf(times + used, sizeof times - used, ", %s %s", limits[i].words, left);
    }
    show(s, "settings", "seed %s%s%s%s%s%s%s", text_of(settings, "seed"), text_of(settings, "set")[0] ? ", set " : "", text_of(settings, "set"), context,
         text_of(settings, "model")[0] ? ", model " : "", text_of(settings, "model"), times);
    if (pin) show(s, "model", "%s  %s  %s", text_of(pin, "model"), text_of(pin, "fingerprint"), text_of(pin, "numerics"));
}

void status_print_job(FILE *file, int width, uint64_t now_s, const json_t *job, const json_t *workers, const json_t *queues)
{
    const screen s = { file, width };
    const json_t *events = json_object_get(job, "events");
    char age[24];
    age_of(job, now_s, age);
    show(&s, "job", "%s  %s, submitted %s ago", text_of(job, "job"), text_of(job, "name"), age);
    show_state(&s, job);
    show_rows(&s, job);
    show_grading(&s, json_object_get(job, "samples"));
    show_tail(&s, job);
    show_failures(&s, json_object_get(job, "failures"));
    show_ends(&s, json_object_get(job, "engine_ends"));
    if (workers) show_workers(&s, workers);
    show_settings(&s, job, now_s);
    if (events) {
        show(&s, "events", "%lld leases granted, %lld lost, %lld handed back; rows begun again %lld, crashes %lld", number_of(events, "leases_granted"), number_of(events, "leases_lost"),
             number_of(events, "handbacks"), number_of(events, "retries"), number_of(events, "crashes"));
    }
    show_queues(&s, queues);
    show(&s, "outputs", "%s", json_is_true(json_object_get(job, "outputs")) ? "written" : "not yet");
}

void status_print_list(FILE *file, uint64_t now_s, const json_t *jobs)
{
    size_t i;
    json_t *job;
    if (json_array_size(jobs) == 0) {
        fprintf(file, "no jobs\n");
        return;
    }
    fprintf(file, "%-20s  %-9s  %21s  %9s  %8s  %s\n", "JOB", "STATE", "ROWS DONE", "FAILED", "AGE", "NAME");
    json_array_foreach((json_t *)jobs, i, job) {
        const json_t *rows = json_object_get(job, "rows");
        char done[48], age[24], *name = strdup(text_of(job, "name"));
        snprintf(done, sizeof done, "%lld/%lld", number_of(rows, "completed") + number_of(rows, "failed"), number_of(rows, "total"));
        age_of(job, now_s, age);
        fprintf(file, "%-20s  %-9s  %21s  %9lld  %8s  %s\n", text_of(job, "job"), text_of(job, "state"), done, number_of(rows, "failed"), age, name ? printable(name) : "");
        free(name);
    }
}
