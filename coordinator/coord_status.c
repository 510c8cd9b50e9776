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
    row_index row;
    if (!row_table_first(j->rows, ROW_QUEUE_ROOM, &row)) return false;
    uint32_t mark = row_table_mark(j->rows, row), context = mark & ROW_MARK_CONTEXT;
    if (mark & ROW_MARK_CHAT)
        snprintf(why, 480, "row %" PRIu64 " (counted from 0) is a chat, and no worker here can render it: %s", row.v, j->no_chats);
    else
        snprintf(why, 480, "row %" PRIu64 " (counted from 0) needs more room than any worker here has (the largest holds %u tokens); start a worker with more memory, "
                 "or lower the row's max_tokens", row.v, context ? j->room_contexts[context - 1] : 0);
    return true;
}

/* Why nothing of the job can be granted, in order of what a person should do first. */
static void explain(const coord *c, const job *j, char why[480])
{
    const char *text = NULL;
    size_t n_here = 0;
    for (size_t i = 0; i < c->n_workers; i++) n_here += worker_serves(c->workers[i], j, NULL, NULL);
    if (j->pause[0]) text = j->pause;
    else if (c->is_disk_full) text = c->disk_text;
    else if (c->is_draining) text = "the coordinator is stopping";
    else if (c->n_workers == 0) text = "no worker is connected";
    if (text) {
        snprintf(why, 480, "%s", text);
    } else if (n_here == 0) {
        snprintf(why, 480, "no connected worker may serve this job: %.380s", c->workers[0]->why);
    } else if (!explain_room_row(j, why)) {
        snprintf(why, 480, "the workers that may serve this job are stopping or cannot be reached");
    }
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
    s->duplicates = j->n_duplicates;
    s->stale = j->n_stale;
    s->refused = j->n_refused;
    s->retries = j->n_retries;
    s->leases_granted = j->n_granted;
    s->leases_lost = j->n_lost;
    s->handbacks = j->n_handbacks;
    s->crashes = j->n_crashes;
    if (j->state != JOB_OPEN) return;
    s->rows = row_table_n_rows(j->rows);
    s->rows_completed = row_table_n_completed(j->rows);
    s->rows_failed = row_table_n_failed(j->rows);
    s->rows_waiting = row_table_n_waiting(j->rows);
    bool is_held = false, is_possible = false;
    for (size_t i = 0; i < c->n_leases; i++) {
        row_index row;
        if (c->leases[i]->job != j) continue;
        is_held = true;
        for (uint32_t at = 0; lease_next_row(c->leases[i], &at, &row);) s->rows_running++;
    }
    for (size_t i = 0; i < c->n_workers && !is_possible; i++) is_possible = grant_possible(c, j, c->workers[i]);
    s->is_stuck = !is_held && !is_possible;
    if (!is_possible && s->rows_waiting > 0) explain(c, j, s->why);
}

size_t coord_n_jobs(const coord *c) { return c->n_jobs; }
size_t coord_n_workers(const coord *c) { return c->n_workers; }
size_t coord_n_leases(const coord *c) { return c->n_leases; }
uint64_t coord_partial_bytes(const coord *c) { return c->partial_bytes; }

bool coord_job_at(const coord *c, size_t i, coord_job_status *out)
{
    if (i >= c->n_jobs) return false;
    fill_job(c, c->jobs[i], out);
    return true;
}

bool coord_job_find(const coord *c, job_id id, coord_job_status *out)
{
    const job *j = job_find(c, id);
    if (!j) return false;
    fill_job(c, j, out);
    return true;
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
    out->held_tokens = w->held_tokens;
    out->credit_tokens = w->credit_tokens;
    out->prefill_tokens = w->prefill_tokens;
    out->decode_tokens = w->decode_tokens;
    out->preemptions = w->preemptions;
    out->unanswered_bytes = w->unanswered_bytes;
    out->running = w->running;
    out->waiting = w->waiting;
    out->n_leases = w->n_leases;
    out->samples_committed = w->n_samples;
    out->heard_ms = w->heard_ms;
    return true;
}
