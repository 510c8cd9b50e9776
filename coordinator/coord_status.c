#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coord_state.h"

const char *job_state_name(job_state state)
{
    switch (state) {
    case JOB_OPEN: return "running";
    case JOB_COMPLETED: return "completed";
    case JOB_CANCELLED: return "cancelled";
    case JOB_EXPIRED: return "expired";
    }
    return "unknown";
}

/* Why no worker here can serve the first of the rows that were handed back. False: there is none. */
static bool explain_room_row(const job *j, char why[480])
{
    row_index row = { 0 };
    bool found = row_table_first(j->rows, ROW_QUEUE_ROOM, &row) || row_table_first(j->rows, ROW_QUEUE_SUSPECT, &row);     /* a suspect may need room as well */
    if (!found || row_table_mark(j->rows, row) == 0) return false;
    uint32_t mark = row_table_mark(j->rows, row), context = mark & ROW_MARK_CONTEXT;
    if (mark & ROW_MARK_CHAT)
        snprintf(why, 480, "row %" PRIu64 " (counted from 0) is a chat, and no worker here can render it: %s", row.v, j->no_chats);
    else
        snprintf(why, 480, "%" PRIu64 " rows wait for more room: row %" PRIu64 " (counted from 0) takes about %" PRIu32 " tokens and the largest worker here holds %u; start a worker "
                 "with more memory, or lower the row's max_tokens", row_table_queue_count(j->rows, row_table_queue(j->rows, row)), row.v, row_table_cost(j->rows, row),
                 context ? j->room_contexts[context - 1] : 0);
    return true;
}

/* The names of the models that the connected workers serve, each once, as many as fit. */
static void name_models(const coord *c, char *out, size_t n_bytes)
{
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < c->n_workers; i++) {
        bool is_named = c->workers[i]->grades;
        for (size_t k = 0; k < i && !is_named; k++) is_named = strcmp(c->workers[k]->model, c->workers[i]->model) == 0;
        size_t need = strlen(c->workers[i]->model) + 2;
        if (is_named || used + need >= n_bytes) continue;
        used += (size_t)snprintf(out + used, n_bytes - used, "%s%s", used ? ", " : "", c->workers[i]->model);
    }
}

/* Workers are connected, none fits: the one that comes nearest tells what is wrong. */
static void explain_misfit(const coord *c, const job *j, char why[480])
{
    const worker *nearest = c->workers[0];
    char models[160];
    for (size_t i = 1; i < c->n_workers; i++) {
        if (!c->workers[i]->grades && (nearest->grades || worker_fits(c->workers[i], j) > worker_fits(nearest, j))) nearest = c->workers[i];
    }
    switch (worker_fits(nearest, j)) {
    case WORKER_OTHER_NUMERICS:
        snprintf(why, 480, "the job began on %.120s and its bytes could differ on %.120s, with which the workers here compute; start a worker of the first kind", j->numerics, nearest->numerics);
        break;
    case WORKER_OTHER_FILES:
        snprintf(why, 480, "the job began with model files of fingerprint %.16s, those of the workers here differ (%.100s has %.16s); start a worker with the files it began with", j->fingerprint,
                 nearest->model, nearest->fingerprint);
        break;
    case WORKER_OTHER_STAGE:
    case WORKER_FITS:
        snprintf(why, 480, "the workers here only grade; start one with a model");
        break;
    default:
        name_models(c, models, sizeof models);
        snprintf(why, 480, "no worker here serves the model %.120s, which the job asks for (there is %s); start one that does, or submit again with another --model", j->model, models);
    }
}

/* Why nothing of the job can be granted, in order of what a person should do first. */
static void explain(const coord *c, const job *j, char why[480])
{
    const char *text = NULL;
    size_t n_here = 0;
    for (size_t i = 0; i < c->n_workers; i++) n_here += !c->workers[i]->grades && worker_fits(c->workers[i], j) == WORKER_FITS;
    if (j->pause[0]) text = j->pause;
    else if (c->is_disk_full) text = c->disk_text;
    else if (c->is_draining) text = "the coordinator is stopping";
    else if (c->n_workers == 0) text = "no worker is connected";
    if (text) {
        snprintf(why, 480, "%s", text);
    } else if (n_here == 0) {
        explain_misfit(c, j, why);
    } else if (!explain_room_row(j, why)) {
        snprintf(why, 480, "the workers that may serve this job are stopping or cannot be reached");
    }
}

/* Samples wait for a verdict and nobody here gives any. */
static void explain_grading(const coord *c, const job *j, char why[480])
{
    size_t n_here = 0;
    for (size_t i = 0; i < c->n_workers; i++) n_here += c->workers[i]->grades && worker_fits(c->workers[i], j) == WORKER_FITS;
    if (j->pause[0] || c->is_disk_full || c->is_draining) explain(c, j, why);
    else if (n_here > 0) snprintf(why, 480, "the workers that may grade this job are stopping or cannot be reached");
    else snprintf(why, 480, "%" PRIu64 " samples wait for a grader and no worker here grades; start one: tokenfleet-worker --roles grade --connect ENDPOINT", row_table_grades_waiting(j->rows));
}

/* It could go on, but nothing of it runs: the jobs before it are served first. */
static void explain_turn(const coord *c, const job *j, char why[480])
{
    for (size_t i = 0; i < c->n_jobs && c->jobs[i] != j; i++) {
        if (c->jobs[i]->state != JOB_OPEN) continue;
        snprintf(why, 480, "it waits for its turn: job-%016" PRIx64 " was submitted before it", c->jobs[i]->id.v);
        return;
    }
}

static void fill_pace(const coord *c, const job *j, coord_job_status *s)
{
    uint64_t done = s->rows_completed + s->rows_failed;
    pace_rates(&j->pace, c->now_ms, j->n_tokens, done, &s->tokens_per_s, &s->rows_per_s);
    if (s->rows_per_s > 0) s->left_s = (int64_t)((double)(s->rows - done) / s->rows_per_s + 0.5);
}

/* A row with several workers counts once: with the older lease of the first sample that is held. */
static bool counts_here(const coord *c, const lease *l, row_index row)
{
    const row_table *rows = l->job->rows;
    uint32_t k = 0;
    while (!row_table_held(rows, row, k)) k++;
    return lease_holds(l, row, k) && (!row_table_held_twice(rows, row, k) || lease_other(c, l->job, row, k, l)->id.v > l->id.v);
}

static void count_lease(const coord *c, const lease *l, coord_job_status *s)
{
    row_index row;
    for (uint32_t at = 0; lease_next_row(l, &at, &row);) {
        for (uint32_t k = 0; k < row_table_samples(l->job->rows, row); k++) s->samples_twice += row_table_held_twice(l->job->rows, row, k) && lease_holds(l, row, k);
        s->rows_running += !lease_is_grading(l) && counts_here(c, l, row);
    }
    if (c->now_ms - l->granted_ms > s->oldest_lease_ms) s->oldest_lease_ms = c->now_ms - l->granted_ms;
}

static uint64_t count_grading(const job *j)
{
    uint64_t n = 0;
    for (row_index r = { 0 }; r.v < row_table_n_rows(j->rows); r.v++) {
        row_index grade = row_table_grade_of(j->rows, r);
        for (uint32_t k = 0; k < row_table_samples(j->rows, r); k++) n += row_table_held(j->rows, grade, k);
    }
    return n;
}

static void fill_job(const coord *c, const job *j, coord_job_status *s)
{
    memset(s, 0, sizeof *s);
    s->id = j->id;
    s->state = j->state;
    s->rows = j->n_rows;
    s->rows_completed = j->n_completed;
    s->rows_failed = j->n_failed;
    s->samples_committed = j->n_samples;
    s->n_tokens = j->n_tokens;
    s->left_s = -1;
    s->duplicates = j->n_duplicates;
    s->stale = j->n_stale;
    s->refused = j->n_refused;
    s->retries = j->n_retries;
    s->leases_granted = j->n_granted;
    s->leases_lost = j->n_lost;
    s->handbacks = j->n_handbacks;
    s->crashes = j->n_crashes;
    s->timeouts = j->n_timeouts;
    s->samples_copied = j->n_copied;
    s->duplicate_tokens = j->n_duplicate_tokens;
    if (j->state != JOB_OPEN) return;
    s->rows = row_table_n_rows(j->rows);
    s->rows_completed = row_table_n_completed(j->rows);
    s->rows_failed = row_table_n_failed(j->rows);
    s->rows_waiting = row_table_n_waiting(j->rows);
    s->rows_suspect = row_table_queue_count(j->rows, ROW_QUEUE_SUSPECT);
    s->rows_room = row_table_queue_count(j->rows, ROW_QUEUE_ROOM);
    fill_pace(c, j, s);
    bool is_held[2] = { 0 }, is_possible[2] = { 0 };         /* of rows, of their grading */
    for (size_t i = 0; i < c->n_leases; i++) {
        if (c->leases[i]->job != j) continue;
        is_held[lease_is_grading(c->leases[i])] = true;
        count_lease(c, c->leases[i], s);
    }
    s->samples_twice /= 2;                               /* each was met in both of its leases */
    if (s->rows_waiting == 0) s->rows_tail = s->rows_running;
    for (size_t i = 0; i < c->n_workers && !(is_possible[0] && is_possible[1]); i++) {
        bool grades = c->workers[i]->grades;
        is_possible[grades] = is_possible[grades] || grant_possible(c, j, c->workers[i]);
    }
    s->is_graded = row_table_is_graded(j->rows);
    s->samples_ungraded = row_table_grades_waiting(j->rows);
    s->samples_graded = j->n_verdicts;
    s->samples_grading = s->is_graded ? count_grading(j) : 0;
    s->is_stuck = !is_held[0] && !is_held[1] && !is_possible[0] && !is_possible[1];
    if (!is_possible[0] && s->rows_waiting > 0) explain(c, j, s->why);
    else if (!is_held[0] && s->rows_waiting > 0) explain_turn(c, j, s->why);
    else if (!is_possible[1] && s->samples_ungraded > 0) explain_grading(c, j, s->why);
}

size_t coord_n_workers(const coord *c) { return c->n_workers; }
size_t coord_n_leases(const coord *c) { return c->n_leases; }
queue_figures coord_partials(const coord *c) { return (queue_figures){ c->partial_bytes, c->most_partial_bytes, COORD_PARTIAL_BYTES }; }

bool coord_job_find(const coord *c, job_id id, coord_job_status *out)
{
    const job *j = job_find(c, id);
    if (!j) return false;
    fill_job(c, j, out);
    return true;
}

bool coord_job_end(const coord *c, job_id id, size_t i, coord_end *out)
{
    const job *j = job_find(c, id);
    if (!j || i >= j->n_ends) return false;
    *out = j->ends[i];
    return true;
}

/* What a worker without leases waits for, when it is welcome and could work. */
static void explain_idle(const coord *c, const worker *w, char *why, size_t n_bytes)
{
    bool is_open = false, is_waiting = false;
    for (size_t i = 0; i < c->n_jobs; i++) {
        const job *j = c->jobs[i];
        is_open |= j->state == JOB_OPEN;
        is_waiting |= j->state == JOB_OPEN && (w->grades ? row_table_grades_waiting(j->rows) > 0 : row_table_n_waiting(j->rows) > 0);
    }
    snprintf(why, n_bytes, "%s", w->is_unreachable ? "it cannot be reached" : c->is_disk_full ? "the disk of the coordinator is full" : !is_open ? "no job is open" :
             is_waiting ? "the rows that wait are not for it" : w->grades ? "no sample waits for a verdict" : "every row is with a worker");
}

bool coord_worker_at(const coord *c, size_t i, coord_worker_status *out)
{
    if (i >= c->n_workers) return false;
    const worker *w = c->workers[i];
    memset(out, 0, sizeof *out);
    out->id = w->id;
    snprintf(out->model, sizeof out->model, "%s", w->model);
    snprintf(out->place, sizeof out->place, "%s", w->place);
    snprintf(out->why, sizeof out->why, "%s", w->why);
    out->is_accepted = w->is_accepted;
    out->is_draining = w->is_draining;
    out->grades = w->grades;
    out->held_tokens = w->held_tokens;
    out->credit_tokens = w->credit_tokens;
    out->prefill_tokens = w->prefill_tokens;
    out->decode_tokens = w->decode_tokens;
    out->preemptions = w->preemptions;
    out->busy_us = w->busy_us;
    out->gpu = w->gpu;
    out->unanswered_bytes = w->unanswered_bytes;
    out->running = w->running;
    out->waiting = w->waiting;
    out->n_leases = w->n_leases;
    out->samples_committed = w->n_samples;
    out->heard_ms = w->heard_ms;
    pace_rates(&w->pace, c->now_ms, w->prefill_tokens, w->decode_tokens, &out->prefill_per_s, &out->decode_per_s);
    for (size_t k = 0; k < c->n_leases; k++) {
        row_index row;
        if (c->leases[k]->worker.v != w->id.v) continue;
        for (uint32_t at = 0; lease_next_row(c->leases[k], &at, &row);) out->rows_held++;
    }
    if (!out->why[0] && w->n_leases == 0 && !w->is_draining) explain_idle(c, w, out->why, sizeof out->why);
    return true;
}
