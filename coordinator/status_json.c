#include "coordinator/status_json.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *rows_of(const stored_job *job, const coord_job_status *live)
{
    uint64_t done = job->counts.completed + job->counts.failed, waiting = job->counts.rows > done ? job->counts.rows - done : 0;
    json_t *counts = json_object();
    json_object_set_new(counts, "total", number(live ? live->rows : job->counts.rows));
    json_object_set_new(counts, "completed", number(live ? live->rows_completed : job->counts.completed));
    json_object_set_new(counts, "failed", number(live ? live->rows_failed : job->counts.failed));
    json_object_set_new(counts, "running", number(live ? live->rows_running : 0));
    json_object_set_new(counts, "waiting", number(live ? live->rows_waiting : waiting));
    return counts;
}

static json_t *settings_of(const stored_job *job)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, job->settings.seed);
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s}", "seed", seed, "set", job->settings.defaults, "max_context", (json_int_t)job->settings.max_context,
                     "now", (json_int_t)job->settings.now_s, "model", job->settings.model, "content", job->settings.content);
}

static json_t *events_of(const coord_job_status *live)
{
    json_t *events = json_object();
    json_object_set_new(events, "leases_granted", number(live->leases_granted));
    json_object_set_new(events, "leases_lost", number(live->leases_lost));
    json_object_set_new(events, "handbacks", number(live->handbacks));
    json_object_set_new(events, "retries", number(live->retries));
    json_object_set_new(events, "crashes", number(live->crashes));
    json_object_set_new(events, "duplicates", number(live->duplicates));
    json_object_set_new(events, "stale", number(live->stale));
    json_object_set_new(events, "refused", number(live->refused));
    return events;
}

json_t *status_of_job(const stored_job *job, const coord *core)
{
    coord_job_status live;
    bool is_live = core && coord_job_find(core, job->id, &live);
    char name[FL_JOB_NAME_BYTES];
    fl_job_name(job->id, name);
    json_t *out = json_object();
    json_object_set_new(out, "job", json_string(name));
    json_object_set_new(out, "name", json_string(job->settings.name));
    json_object_set_new(out, "state", json_string(job->state == JOB_OPEN && !core ? "waiting" : job_state_name(job->state)));
    json_object_set_new(out, "why", json_string(is_live ? live.why : job->state == JOB_OPEN ? "no coordinator works on this spool" : ""));
    json_object_set_new(out, "created", number(job->created_s));
    json_object_set_new(out, "rows", rows_of(job, is_live ? &live : NULL));
    json_object_set_new(out, "tokens", number(is_live ? live.n_tokens : job->counts.tokens));
    json_object_set_new(out, "settings", settings_of(job));
    if (job->is_pinned) {
        json_object_set_new(out, "pin", json_pack("{s:s, s:s, s:s}", "model", job->pin_model, "fingerprint", job->fingerprint, "numerics", job->numerics));
    }
    if (is_live) json_object_set_new(out, "events", events_of(&live));
    json_object_set_new(out, "outputs", json_boolean(job->state != JOB_OPEN && !job->outputs_due));
    return out;
}

json_t *status_of_workers(const coord *core)
{
    json_t *list = json_array();
    coord_worker_status w;
    for (size_t i = 0; coord_worker_at(core, i, &w); i++) {
        char name[17];
        snprintf(name, sizeof name, "%016" PRIx64, w.id.v);
        json_t *one = json_object();
        json_object_set_new(one, "worker", json_string(name));
        json_object_set_new(one, "model", json_string(w.model));
        json_object_set_new(one, "place", json_string(w.place));
        json_object_set_new(one, "idle", json_string(w.why));
        json_object_set_new(one, "draining", json_boolean(w.is_draining));
        json_object_set_new(one, "rows", number(w.samples_committed));
        json_object_set_new(one, "running", number(w.running));
        json_object_set_new(one, "waiting", number(w.waiting));
        json_object_set_new(one, "prefill_tokens", number(w.prefill_tokens));
        json_object_set_new(one, "decode_tokens", number(w.decode_tokens));
        json_object_set_new(one, "preemptions", number(w.preemptions));
        json_array_append_new(list, one);
    }
    return list;
}

/* ---- for people ---- */

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

static long long number_of(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_time(FILE *file, long long seconds)
{
    time_t at = (time_t)seconds;
    struct tm parts;
    char text[40];
    if (seconds > 0 && gmtime_r(&at, &parts) && strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &parts)) fprintf(file, "submitted  %s\n", text);
}

static void print_workers(FILE *file, const json_t *workers)
{
    size_t i;
    json_t *w;
    json_array_foreach((json_t *)workers, i, w) {
        fprintf(file, "worker     %s  %s  %lld samples committed, %lld running, %lld waiting, %lld tokens decoded%s%s%s\n", text_of(w, "place"), text_of(w, "model"),
                number_of(w, "rows"), number_of(w, "running"), number_of(w, "waiting"), number_of(w, "decode_tokens"),
                json_is_true(json_object_get(w, "draining")) ? ", draining" : "", text_of(w, "idle")[0] ? ", idle: " : "", text_of(w, "idle"));
    }
    if (json_array_size(workers) == 0) fprintf(file, "workers    none\n");
}

void status_print_job(FILE *file, const json_t *job, const json_t *workers)
{
    const json_t *rows_seen = json_object_get(job, "rows"), *settings = json_object_get(job, "settings"), *pin = json_object_get(job, "pin"),
                 *events = json_object_get(job, "events");
    fprintf(file, "%s  %s\n", text_of(job, "job"), text_of(job, "name"));
    fprintf(file, "state      %s%s%s\n", text_of(job, "state"), text_of(job, "why")[0] ? ": " : "", text_of(job, "why"));
    fprintf(file, "rows       %lld: %lld completed, %lld failed, %lld running, %lld waiting\n", number_of(rows_seen, "total"), number_of(rows_seen, "completed"),
            number_of(rows_seen, "failed"), number_of(rows_seen, "running"), number_of(rows_seen, "waiting"));
    fprintf(file, "tokens     %lld generated\n", number_of(job, "tokens"));
    print_time(file, number_of(job, "created"));
    fprintf(file, "settings   seed %s", text_of(settings, "seed"));
    if (text_of(settings, "set")[0]) fprintf(file, ", set %s", text_of(settings, "set"));
    if (number_of(settings, "max_context")) fprintf(file, ", max context %lld", number_of(settings, "max_context"));
    fprintf(file, "\n");
    if (pin) fprintf(file, "model      %s  %s  %s\n", text_of(pin, "model"), text_of(pin, "fingerprint"), text_of(pin, "numerics"));
    if (events) {
        fprintf(file, "leases     %lld granted, %lld lost, %lld handed back; rows tried again %lld, crashes %lld\n", number_of(events, "leases_granted"),
                number_of(events, "leases_lost"), number_of(events, "handbacks"), number_of(events, "retries"), number_of(events, "crashes"));
    }
    if (workers) print_workers(file, workers);
    fprintf(file, "outputs    %s\n", json_is_true(json_object_get(job, "outputs")) ? "written" : "not yet");
}

void status_print_list(FILE *file, const json_t *jobs)
{
    size_t i;
    json_t *job;
    json_array_foreach((json_t *)jobs, i, job) {
        const json_t *rows_seen = json_object_get(job, "rows");
        fprintf(file, "%s  %-9s  %lld/%lld rows, %lld failed  %s\n", text_of(job, "job"), text_of(job, "state"), number_of(rows_seen, "completed"),
                number_of(rows_seen, "total"), number_of(rows_seen, "failed"), text_of(job, "name"));
    }
    if (json_array_size(jobs) == 0) fprintf(file, "no jobs\n");
}
