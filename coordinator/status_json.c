#include "coordinator/status_json.h"

#include <inttypes.h>
#include <string.h>

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
    json_object_set_new(counts, "suspects", number(live ? live->rows_suspect : 0));
    json_object_set_new(counts, "too_large", number(live ? live->rows_room : 0));
    return counts;
}

static json_t *settings_of(const stored_job *job)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, job->settings.seed);
    const job_times *t = &job->settings.times;
    return json_pack("{s:s, s:s, s:I, s:I, s:s, s:s, s:I, s:I, s:I, s:I}", "seed", seed, "set", job->settings.defaults, "max_context", (json_int_t)job->settings.max_context,
                     "now", (json_int_t)job->settings.now_s, "model", job->settings.model, "content", job->settings.content,
                     "expires", (json_int_t)(job->generation > 1 ? 0 : t->expires_s), "row_queue_limit", (json_int_t)t->row_queue_s, "row_run_limit", (json_int_t)t->row_run_s,
                     "row_limit", (json_int_t)t->row_s);
}

static json_t *grading_of(const coord_job_status *live)
{
    return json_pack("{s:I, s:I, s:I}", "graded", (json_int_t)live->samples_graded, "with_graders", (json_int_t)live->samples_grading, "waiting", (json_int_t)live->samples_ungraded);
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
    json_object_set_new(events, "timeouts", number(live->timeouts));
    json_object_set_new(events, "samples_copied", number(live->samples_copied));
    json_object_set_new(events, "duplicate_tokens", number(live->duplicate_tokens));
    return events;
}

/* What a person should know first: why it does not go on. */
static const char *why_of(const stored_job *job, const coord *core, const coord_job_status *live, const char *held_up)
{
    bool is_ending = live && live->state != JOB_OPEN && held_up;         /* nothing of it is left to do, but its end is not durable */
    if (job->state == JOB_OPEN) return is_ending ? held_up : live ? live->why : core ? "" : "no coordinator works on this spool";
    if (!job->outputs_due) return "";
    return held_up ? held_up : core ? "the output files are being written" : "the output files are not written yet, and no coordinator works on this spool";
}

static json_t *rate_of(const coord_job_status *live)
{
    json_t *rate = json_pack("{s:f, s:f}", "rows_per_s", live->rows_per_s, "tokens_per_s", live->tokens_per_s);
    json_object_set_new(rate, "seconds_left", live->left_s < 0 ? json_null() : json_integer((json_int_t)live->left_s));
    return rate;
}

/* The end of the job: nothing waits any more, all that is left is with workers. */
static json_t *tail_of(const coord_job_status *live)
{
    return json_pack("{s:I, s:I, s:I}", "rows", (json_int_t)live->rows_tail, "samples_twice", (json_int_t)live->samples_twice, "oldest_lease_ms", (json_int_t)live->oldest_lease_ms);
}

/* Engines that ended under rows of this job, as far as the coordinator remembers. */
static json_t *ends_of(const stored_job *job, const coord *core)
{
    json_t *list = json_array();
    coord_end e;
    for (size_t i = 0; core && coord_job_end(core, job->id, i, &e); i++) {
        json_t *words = json_string(e.last_words), *place = json_string(e.place);
        json_array_append_new(list, json_pack("{s:I, s:b, s:I, s:o, s:o}", "row", (json_int_t)e.row.v, "alone", e.was_alone, "crashes", (json_int_t)e.n_crashes,
                                              "worker", place ? place : json_string("?"), "last_words", words ? words : json_string("?")));
    }
    return list;
}

/* Rows that a cancel or the expiry left have no record of their own: they are what the codes do not count. */
static json_t *failures_of(stored_job *job)
{
    const job_failures *f = job_store_failures(job);
    json_t *codes = json_object(), *examples = json_array();
    uint64_t n[ROW_ERROR_COUNT], rest = job->counts.failed;
    memcpy(n, f->n, sizeof n);
    for (int i = 0; i < ROW_ERROR_COUNT; i++) rest -= n[i] < rest ? n[i] : rest;
    if (job->state == JOB_CANCELLED) n[ROW_CANCELLED] += rest;
    if (job->state == JOB_EXPIRED) n[ROW_EXPIRED] += rest;
    for (int i = 0; i < ROW_ERROR_COUNT; i++) {
        if (n[i]) json_object_set_new(codes, i ? fl_row_error_name((fl_row_error)i) : "unknown", number(n[i]));
    }
    for (int i = 0; i < f->n_examples; i++) {
        const failure_example *e = &f->examples[i];
        json_array_append_new(examples, json_pack("{s:s, s:I, s:s, s:s}", "custom_id", e->custom_id, "line", (json_int_t)e->line, "code", fl_row_error_name(e->code), "message", e->text));
    }
    return json_pack("{s:o, s:o}", "codes", codes, "examples", examples);
}

json_t *status_of_job(stored_job *job, const coord *core, const char *held_up, bool details)
{
    coord_job_status live;
    bool is_known = core && coord_job_find(core, job->id, &live), is_live = is_known && job->state == JOB_OPEN;      /* the core forgets ended jobs with its process */
    char name[FL_JOB_NAME_BYTES];
    fl_job_name(job->id, name);
    json_t *out = json_object();
    json_object_set_new(out, "job", json_string(name));
    json_object_set_new(out, "name", json_string(job->settings.name));
    json_object_set_new(out, "state", json_string(job->state == JOB_OPEN && !core ? "waiting" : job_state_name(job->state)));
    json_object_set_new(out, "why", json_string(why_of(job, core, is_live ? &live : NULL, held_up)));
    json_object_set_new(out, "created", number(job->created_s));
    json_object_set_new(out, "rows", rows_of(job, is_live ? &live : NULL));
    json_object_set_new(out, "tokens", number(is_live ? live.n_tokens : job->counts.tokens));
    if (is_live && live.is_graded) json_object_set_new(out, "samples", grading_of(&live));
    if (is_live) json_object_set_new(out, "rate", rate_of(&live));
    json_object_set_new(out, "settings", settings_of(job));
    if (job->is_pinned) {
        json_object_set_new(out, "pin", json_pack("{s:s, s:s, s:s}", "model", job->pin_model, "fingerprint", job->fingerprint, "numerics", job->numerics));
    }
    if (is_known) json_object_set_new(out, "events", events_of(&live));
    if (is_known) json_object_set_new(out, "tail", tail_of(&live));
    if (details) json_object_set_new(out, "engine_ends", ends_of(job, core));
    json_object_set_new(out, "outputs", json_boolean(job->state != JOB_OPEN && !job->outputs_due));
    if (details) json_object_set_new(out, "failures", failures_of(job));
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
        json_object_set_new(one, "grades", json_boolean(w.grades));
        json_object_set_new(one, "place", json_string(w.place));
        json_object_set_new(one, "idle", json_string(w.why));
        json_object_set_new(one, "draining", json_boolean(w.is_draining));
        json_object_set_new(one, "rows", number(w.samples_committed));
        json_object_set_new(one, "held", number(w.rows_held));
        json_object_set_new(one, "running", number(w.running));
        json_object_set_new(one, "waiting", number(w.waiting));
        json_object_set_new(one, "prefill_tokens", number(w.prefill_tokens));
        json_object_set_new(one, "decode_tokens", number(w.decode_tokens));
        json_object_set_new(one, "prefill_per_s", json_real(w.prefill_per_s));
        json_object_set_new(one, "decode_per_s", json_real(w.decode_per_s));
        json_object_set_new(one, "preemptions", number(w.preemptions));
        json_array_append_new(list, one);
    }
    return list;
}
