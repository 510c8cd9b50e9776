#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

job *job_find(const coord *c, job_id id)
{
    return id_map_get(&c->job_of, id.v);
}

void job_free(job *j)
{
    if (!j) return;
    row_table_close(j->rows);
    free(j->defaults);
    free(j->model);
    free(j->fingerprint);
    free(j->numerics);
    free(j->ends);
    free(j);
}

/* Put the closed job's journal state right and ask for its outputs. */
static void announce_closed(coord *c, const job *j)
{
    action *a = action_add(&c->out->journal, ACTION_JOB_STATE);
    a->job = j->id;
    a->state = j->state;
    a = action_add(&c->out->sends, ACTION_JOB_CLOSED);
    a->job = j->id;
    a->state = j->state;
    a->after_sync = true;
}

/* A closed job keeps its counts only. One that was ended early has an error line for every row without a result. */
static void drop_rows(job *j)
{
    j->n_rows = row_table_n_rows(j->rows);
    j->n_completed = row_table_n_completed(j->rows);
    j->n_failed = j->state == JOB_COMPLETED ? row_table_n_failed(j->rows) : j->n_rows - j->n_completed;
    row_table_close(j->rows);
    j->rows = NULL;
}

static void count_committed(const row_table *rows, uint64_t *n_samples, uint64_t *n_verdicts)
{
    bool is_graded = row_table_is_graded(rows);
    *n_samples = *n_verdicts = 0;
    for (row_index r = { 0 }; r.v < row_table_n_rows(rows); r.v++)
        for (uint32_t s = 0; s < row_table_samples(rows, r); s++) {
            *n_samples += row_table_done(rows, r, s);
            *n_verdicts += is_graded && row_table_done(rows, row_table_grade_of(rows, r), s);
        }
}

/* Take a closed job out of the list; its place there. Workers are told what it is anew should it come back, and no answer about it is remembered: another job may come to lie where it lay. */
static size_t take_out(coord *c, job *j)
{
    size_t at = 0;
    while (c->jobs[at] != j) at++;
    memmove(&c->jobs[at], &c->jobs[at + 1], (c->n_jobs - at - 1) * sizeof *c->jobs);
    c->n_jobs--;
    id_map_remove(&c->job_of, j->id.v);
    for (size_t i = 0; i < c->n_workers; i++) {
        worker *w = c->workers[i];
        if (w->asked_job == j) w->asked_job = NULL;
        for (size_t k = w->n_announced; k-- > 0;)
            if (w->announced[k].v == j->id.v) w->announced[k] = w->announced[--w->n_announced];
    }
    job_free(j);
    return at;
}

fl_status job_remove(coord *c, job_id id, fl_err *err)
{
    job *j = job_find(c, id);
    if (!j) return fl_fail(err, FL_NOT_FOUND, "there is no job-%016" PRIx64, id.v);
    if (j->state == JOB_OPEN) return fl_fail(err, FL_CONFLICT, "job-%016" PRIx64 " is running", id.v);
    take_out(c, j);
    return FL_OK;
}

fl_status job_add(coord *c, const coord_job *spec, row_table **rows, fl_err *err)
{
    if (spec->id.v == 0) return fl_fail(err, FL_INVALID, "a job without an id");
    job *before = job_find(c, spec->id);
    if (before && before->state == JOB_OPEN) return fl_fail(err, FL_CONFLICT, "job-%016" PRIx64 " is here already", spec->id.v);
    size_t place = before ? take_out(c, before) : c->n_jobs;
    job *j = coord_alloc(1, sizeof *j);
    j->id = spec->id;
    j->state = spec->state ? spec->state : JOB_OPEN;
    j->seed = spec->seed;
    j->max_context = spec->max_context;
    j->now_s = spec->now_s;
    j->limits = spec->limits;
    j->added_ms = c->now_ms;
    j->defaults = coord_copy(spec->defaults);
    j->model = coord_copy(spec->model);
    j->is_pinned = spec->is_pinned;
    j->has_detok = spec->has_detok;
    j->fingerprint = coord_copy(spec->fingerprint);
    j->numerics = coord_copy(spec->numerics);
    j->n_vocab = spec->n_vocab;
    j->n_tokens = spec->n_tokens;
    j->rows = *rows;
    *rows = NULL;
    count_committed(j->rows, &j->n_samples, &j->n_verdicts);
    c->jobs = coord_grow(c->jobs, &c->jobs_capacity, c->n_jobs, sizeof *c->jobs);
    memmove(&c->jobs[place + 1], &c->jobs[place], (c->n_jobs - place) * sizeof *c->jobs);
    c->jobs[place] = j;
    c->n_jobs++;
    id_map_put(&c->job_of, j->id.v, j);
    if (j->state != JOB_OPEN) {
        if (spec->journal_state != j->state) announce_closed(c, j);
        drop_rows(j);
        return FL_OK;
    }
    c->open = coord_grow(c->open, &c->open_capacity, c->n_open, sizeof *c->open);
    c->open[c->n_open++] = j;
    c->must_grant_all = true;
    workers_review(c);
    job_settle(c, j);
    return FL_OK;
}

static action *append(coord *c, const job *j, ledger_kind kind)
{
    action *a = action_add(&c->out->appends, ACTION_APPEND);
    a->job = j->id;
    a->record.kind = kind;
    return a;
}

void job_close(coord *c, job *j, ledger_cause cause)
{
    append(c, j, LEDGER_CLOSE)->record.cause = cause;
    j->state = cause == LEDGER_COMPLETED ? JOB_COMPLETED : cause == LEDGER_CANCELLED ? JOB_CANCELLED : JOB_EXPIRED;
    for (size_t i = c->n_leases; i-- > 0;) {             /* lease_end moves the last one into the gap */
        lease *l = c->leases[i];
        if (l->job != j) continue;
        send_revoke(c, l->worker, l->id);
        lease_end(c, l);
    }
    announce_closed(c, j);
    drop_rows(j);
    size_t at = 0;
    while (c->open[at] != j) at++;
    memmove(&c->open[at], &c->open[at + 1], (--c->n_open - at) * sizeof *c->open);
    c->must_grant_all = true;
    workers_review(c);
}

void job_settle(coord *c, job *j)
{
    if (j->state == JOB_OPEN && row_table_n_open(j->rows) == 0) job_close(c, j, LEDGER_COMPLETED);
}

static fl_bytes bytes_of(const char *text)
{
    return (fl_bytes){ text, strlen(text) };
}

/* The job's detokenizer table goes into its ledger, once. */
static void append_detok(coord *c, job *j, const detok_entry *d)
{
    ledger_record *r = &append(c, j, LEDGER_DETOK)->record;
    r->fingerprint = bytes_of(d->fingerprint);
    r->body = (fl_bytes){ d->body.data, d->body.bytes };
    j->has_detok = true;
}

void job_pin(coord *c, job *j, const worker *w)
{
    if (!j->is_pinned) {
        free(j->fingerprint);
        free(j->numerics);
        j->fingerprint = coord_copy(wire_text(w->fingerprint));
        j->numerics = coord_copy(wire_text(w->numerics));
        j->n_vocab = w->n_vocab;
        j->is_pinned = true;
        j->n_pins++;
        c->fleet_version++;
        ledger_record *r = &append(c, j, LEDGER_PIN)->record;
        r->n_vocab = w->n_vocab;
        r->context = w->context;
        r->fingerprint = bytes_of(j->fingerprint);
        r->numerics = bytes_of(j->numerics);
        const char *model = fl_arena_copy(&c->out->arena, w->model, strlen(w->model));     /* the worker may be forgotten before the append */
        FL_ASSERT(model);
        r->model = bytes_of(model);
        workers_review(c);
    }
    detok_entry *d = detok_find(c, j->fingerprint);
    if (!j->has_detok && d && d->is_here) append_detok(c, j, d);
}

/* A row that failed is no longer held. */
static void leave_leases(coord *c, job *j, row_index row, lease_id by)
{
    if (!row_table_held_row(j->rows, row)) return;
    for (size_t i = c->n_leases; i-- > 0;) {             /* samples of the row may be with several workers */
        lease *l = c->leases[i];
        if (l->job != j || !lease_holds_row(l, row)) continue;
        lease_release_row(c, l, row);                    /* of a failed row: nothing waits again */
        if (l->id.v == by.v) continue;
        send_revoke_row(c, l->worker, l->id, row, WIRE_WHOLE_ROW);
        lease_settle(c, l, true);
    }
}

void job_fail_row(coord *c, job *j, row_index row, lease_id by, fl_row_error code, const char *text, size_t n_text)
{
    if (!row_table_fail(j->rows, row)) return;
    row = row_table_graded(j->rows, row);                /* whichever of its stages failed */
    ledger_record *r = &append(c, j, LEDGER_ROW_ERROR)->record;
    r->row = row;
    r->lease = by;
    r->code = (uint32_t)code;
    const char *copy = fl_arena_copy(&c->out->arena, text, n_text);
    FL_ASSERT(copy);
    r->body = (fl_bytes){ copy, n_text };
    leave_leases(c, j, row, by);
    if (row_table_is_graded(j->rows)) leave_leases(c, j, row_table_grade_of(j->rows, row), by);
}

void job_retry_row(coord *c, job *j, row_index row)
{
    j->n_retries++;
    row_table_add_retry(j->rows, row);
    if (row_table_retries(j->rows, row) < ROW_RETRIES_MAX || j->pause[0]) return;
    snprintf(j->pause, sizeof j->pause, "row %" PRIu64 " (counted from 0) was begun %d times and each time its worker died, was stopped or lost its connection; see the workers' logs, "
             "then start the coordinator again to go on", row_table_graded(j->rows, row).v, ROW_RETRIES_MAX);
    send_note(c, "job-%016" PRIx64 " pauses: %s", j->id.v, j->pause);
}
