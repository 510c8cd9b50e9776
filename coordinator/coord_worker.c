#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

worker *worker_find(const coord *c, worker_id id)
{
    return id_map_get(&c->worker_of, id.v);
}

void worker_free(worker *w)
{
    if (!w) return;
    free(w->model);
    free(w->fingerprint);
    free(w->numerics);
    free(w->place);
    free(w->announced);
    free(w);
}

detok_entry *detok_find(coord *c, const char *fingerprint)
{
    for (size_t i = 0; i < c->n_detoks; i++)
        if (strcmp(c->detoks[i].fingerprint, fingerprint) == 0) return &c->detoks[i];
    return NULL;
}

bool worker_has_detok(const coord *c, const worker *w, const job *j)
{
    if (!w->has_tokenizer || j->has_detok) return true;
    detok_entry *d = detok_find((coord *)c, w->fingerprint);
    return d && d->is_here;
}

worker_fit worker_fits(const worker *w, const job *j)
{
    if (w->grades) return row_table_is_graded(j->rows) ? WORKER_FITS : WORKER_OTHER_STAGE;
    if (j->model[0] && strcmp(j->model, w->model) != 0) return WORKER_OTHER_MODEL;
    if (j->is_pinned && strcmp(j->fingerprint, w->fingerprint) != 0) return WORKER_OTHER_FILES;
    return j->is_pinned && strcmp(j->numerics, w->numerics) != 0 ? WORKER_OTHER_NUMERICS : WORKER_FITS;
}

bool worker_serves(const worker *w, const job *j, const char **why, action_list *list)
{
    const char *text = NULL;
    worker_fit fit = worker_fits(w, j);
    if (fit == WORKER_OTHER_STAGE) {
        if (list) text = action_text(list, "job-%016" PRIx64 " has nothing to grade, and this worker only grades", j->id.v);
    } else if (fit == WORKER_OTHER_MODEL) {
        if (list) text = action_text(list, "job-%016" PRIx64 " asks for the model %s, this worker serves %s", j->id.v, j->model, w->model);
    } else if (fit == WORKER_OTHER_FILES) {
        if (list) text = action_text(list, "job-%016" PRIx64 " began with the model of fingerprint %.16s, this worker's model %s has %.16s: its files differ", j->id.v, j->fingerprint,
                                     w->model, w->fingerprint);
    } else if (fit == WORKER_OTHER_NUMERICS) {
        if (list) text = action_text(list, "job-%016" PRIx64 " began on %s, this worker computes with %s: its bytes could differ", j->id.v, j->numerics, w->numerics);
    } else {
        return true;
    }
    if (why) *why = text;
    return false;
}

bool worker_can_serve(worker *w, const job *j)
{
    if (w->asked_job != j || w->asked_pins != j->n_pins) {
        w->asked_serves = worker_serves(w, j, NULL, NULL);
        w->asked_job = j;
        w->asked_pins = j->n_pins;
    }
    return w->asked_serves;
}

/* Should this worker send its detokenizer table now? One worker a model is asked at a time, again when it did not answer for two beats. */
static bool ask_detok(coord *c, const worker *w)
{
    if (!w->has_tokenizer) return false;
    detok_entry *d = detok_find(c, w->fingerprint);
    if (!d) {
        c->detoks = coord_grow(c->detoks, &c->detoks_capacity, c->n_detoks, sizeof *c->detoks);
        d = &c->detoks[c->n_detoks++];
        memset(d, 0, sizeof *d);
        d->fingerprint = coord_copy(wire_text(w->fingerprint));
    }
    if (d->is_here || (d->was_asked && c->now_ms - d->asked_ms < 2 * (int64_t)c->options.beat_ms)) return false;
    d->was_asked = true;
    d->asked_ms = c->now_ms;
    return true;
}

static void send_welcome(coord *c, worker *w, bool want_detok)
{
    action *a = send_to(c, w->id, WIRE_WELCOME, false);
    uint64_t *leases = action_numbers(c->out, c->n_leases);
    uint32_t n = 0;
    for (size_t i = 0; i < c->n_leases; i++)
        if (c->leases[i]->worker.v == w->id.v) leases[n++] = c->leases[i]->id.v;
    a->msg.welcome = (wire_welcome){ .accepted = w->is_accepted, .beat_ms = c->options.beat_ms, .leases = { leases, n }, .want_detok = want_detok };
    if (!w->is_accepted) a->msg.welcome.why = wire_text(action_text(c->out, "%s", w->why));
}

/* May it work? Sets is_accepted and why; true when they changed. */
static bool judge(coord *c, worker *w)
{
    const char *why = NULL, *first = NULL;
    bool is_served = false, is_any_open = false;
    for (size_t i = 0; i < c->n_jobs && !is_served; i++) {
        if (c->jobs[i]->state != JOB_OPEN) continue;
        is_any_open = true;
        is_served = worker_serves(w, c->jobs[i], &why, first ? NULL : c->out);
        if (!is_served && !first) first = why;
    }
    bool is_accepted = is_served || !is_any_open;
    const char *text = is_accepted ? "" : first;
    if (w->is_accepted == is_accepted && strcmp(w->why, text) == 0) return false;
    w->is_accepted = is_accepted;
    c->fleet_version++;
    snprintf(w->why, sizeof w->why, "%s", text);
    return true;
}

static void worker_review(coord *c, worker *w)
{
    if (!judge(c, w)) return;
    send_welcome(c, w, false);
    if (!w->is_accepted) send_note(c, "worker %s idles: %.300s", w->place, w->why);
}

void workers_review(coord *c)
{
    for (size_t i = 0; i < c->n_workers; i++) worker_review(c, c->workers[i]);
}

/* End the leases of a worker that does not hold them any more; its rows go back in order. */
static void leases_end(coord *c, worker_id id, const wire_list *kept)
{
    for (size_t i = c->n_leases; i-- > 0;) {
        lease *l = c->leases[i];
        bool is_kept = l->worker.v != id.v;
        for (uint32_t k = 0; kept && k < kept->n && !is_kept; k++) is_kept = kept->v[k] == l->id.v;
        if (is_kept) continue;
        row_index row;
        job *j = l->job;
        for (uint32_t at = 0; lease_next_row(l, &at, &row);)
            if (lease_is_only(l, row)) job_retry_row(c, j, row);
        j->n_lost++;
        lease_end(c, l);
    }
}

void worker_leases_end(coord *c, worker_id id, const char *why)
{
    size_t before = c->n_leases;
    leases_end(c, id, NULL);
    if (before != c->n_leases) send_note(c, "worker %016" PRIx64 " %s: %zu leases go back", id.v, why, before - c->n_leases);
}

void worker_gone(coord *c, worker *w)
{
    size_t at = 0;
    while (c->workers[at] != w) at++;
    memmove(&c->workers[at], &c->workers[at + 1], (c->n_workers - at - 1) * sizeof *c->workers);
    c->n_workers--;
    id_map_remove(&c->worker_of, w->id.v);
    worker_free(w);
    c->must_grant_all = true;
    c->fleet_version++;
}

void lease_lost(coord *c, lease *l, bool is_stall)
{
    job *j = l->job;
    row_index row;
    worker *w = worker_find(c, l->worker);
    uint64_t n_together = is_stall ? rows_together(c, l->worker) : 0, n_rows = 0;
    send_revoke(c, l->worker, l->id);
    send_note(c, is_stall ? "lease %" PRIu64 " of worker %016" PRIx64 " is lost: no token was computed for too long" : "lease %" PRIu64 " of worker %016" PRIx64 " ran out", l->id.v, l->worker.v);
    for (uint32_t at = 0; lease_next_row(l, &at, &row);) {
        if (is_stall || lease_is_only(l, row)) job_retry_row(c, j, row);
        if (!is_stall) continue;
        row_table_add_stall(j->rows, row);
        row_suspect(c, j, row, l, n_together);
        n_rows++;
    }
    if (w && is_stall) worker_ended(w, n_rows, true);
    j->n_lost++;
    lease_end(c, l);
}

static void renew(coord *c, worker_id id, const wire_list *leases)
{
    for (uint32_t i = 0; i < leases->n; i++) {
        lease *l = lease_find(c, (lease_id){ leases->v[i] });
        if (l && l->worker.v == id.v) l->deadline_ms = c->now_ms + c->options.term_ms;
        else send_revoke(c, id, (lease_id){ leases->v[i] });
    }
}

static void hello(coord *c, worker_id id, const wire_hello *m)
{
    worker *w = worker_find(c, id);
    bool is_new = !w;
    if (is_new) {
        w = coord_alloc(1, sizeof *w);
        w->id = id;
        w->window_rows = WINDOW_ROWS_FIRST;
        w->progress_ms = c->now_ms;
        c->workers = coord_grow(c->workers, &c->workers_capacity, c->n_workers, sizeof *c->workers);
        c->workers[c->n_workers++] = w;
        id_map_put(&c->worker_of, id.v, w);
        for (size_t i = 0; i < c->n_leases; i++) {       /* restored ones */
            lease *l = c->leases[i];
            if (l->worker.v != id.v) continue;
            w->n_leases++;
            w->held_tokens += l->cost_left;
            w->held_line_bytes += l->line_bytes;
            if (l->id.v > w->newest.v) w->newest = l->id;
        }
    }
    free(w->model);
    free(w->fingerprint);
    free(w->numerics);
    free(w->place);
    w->model = coord_copy(m->model);
    w->fingerprint = coord_copy(m->fingerprint);
    w->numerics = coord_copy(m->numerics);
    w->place = coord_copy(m->place);
    w->n_vocab = (uint32_t)m->n_vocab;
    w->context = (uint32_t)m->context;
    w->credit_tokens = m->credit_tokens;
    w->credit_bytes = m->credit_bytes;
    w->has_tokenizer = m->has_tokenizer != 0;
    w->gpu = (int32_t)m->gpu - 1;
    w->batch = m->batch;
    w->kv_tokens = m->kv_tokens;
    if (is_new && w->batch > w->window_rows) w->window_rows = (uint32_t)w->batch;
    w->grades = m->grades != 0;
    w->heard_ms = c->now_ms;
    w->is_unreachable = w->is_draining = w->was_stopped = false;
    w->asked_job = NULL;
    w->n_announced = 0;
    c->fleet_version++;
    leases_end(c, id, &m->leases);
    for (uint32_t i = 0; i < m->leases.n; i++) {
        lease *l = lease_find(c, (lease_id){ m->leases.v[i] });
        if (l && l->worker.v == id.v) l->deadline_ms = c->now_ms + c->options.term_ms;
    }
    judge(c, w);
    send_welcome(c, w, ask_detok(c, w));
    if (is_new) send_note(c, "worker %016" PRIx64 " joins: %.200s, model %.64s%s%.150s", id.v, w->place, w->model, w->is_accepted ? "" : "; it idles: ", w->why);
    if (c->is_draining) {
        send_to(c, id, WIRE_STOP, false)->msg.stop.drain = c->drain;
        w->was_stopped = true;
    }
}

static bool has_unanswered_room(const worker *w)
{
    return w->credit_bytes == 0 || w->unanswered_bytes <= w->credit_bytes;
}

static void beat(coord *c, worker_id id, const wire_beat *m)
{
    worker *w = worker_find(c, id);
    renew(c, id, &m->leases);
    wire_beat answer = { .say_hello = !w };
    send_to(c, id, WIRE_BEAT, false)->msg.beat = answer;
    if (!w) return;
    if (w->prefill_tokens != m->prefill_tokens || w->decode_tokens != m->decode_tokens) w->progress_ms = c->now_ms;
    w->prefill_tokens = m->prefill_tokens;
    w->decode_tokens = m->decode_tokens;
    pace_note(&w->pace, c->now_ms, c->options.beat_ms, w->prefill_tokens, w->decode_tokens);
    w->running = (uint32_t)m->running;
    w->waiting = w->n_spare = (uint32_t)m->waiting;
    bool could = has_unanswered_room(w) && !w->is_draining;
    w->unanswered_bytes = m->unanswered_bytes;
    w->preemptions = m->preemptions;
    w->busy_us = m->busy_us;
    w->is_draining = m->draining != 0;
    if (could != (has_unanswered_room(w) && !w->is_draining)) c->fleet_version++;
    detok_entry *d = detok_find(c, w->fingerprint);
    if (!(d && d->is_here) && ask_detok(c, w)) send_welcome(c, w, true);
}

/* The row waits for another kind of worker; as a suspect it still runs in its group there. */
static void wait_for_another(job *j, row_index row, uint32_t mark)
{
    row_table_set_mark(j->rows, row, (uint8_t)mark);
    if (row_table_queue(j->rows, row) != ROW_QUEUE_SUSPECT) row_table_move(j->rows, row, ROW_QUEUE_ROOM);
}

/* Remember that this worker had no room for the row. */
static void note_no_room(job *j, row_index row, uint32_t context)
{
    uint32_t i = 0;
    uint32_t mark = row_table_mark(j->rows, row), before = mark & ROW_MARK_CONTEXT;
    if (before > 0 && j->room_contexts[before - 1] >= context) context = j->room_contexts[before - 1];
    while (i < j->n_room_contexts && j->room_contexts[i] != context) i++;
    if (i == ROOM_CONTEXTS_MAX) i--;                     /* more kinds of workers than we count: the last entry grows to stand for them */
    else if (i == j->n_room_contexts) j->room_contexts[j->n_room_contexts++] = context;
    if (j->room_contexts[i] < context) j->room_contexts[i] = context;
    wait_for_another(j, row, (i + 1) | (mark & ROW_MARK_CHAT));
}

/* Remember that this worker's machine cannot render the row, a chat. */
static void note_no_chats(job *j, worker *w, row_index row, wire_str why)
{
    w->no_chats = true;
    snprintf(j->no_chats, sizeof j->no_chats, "%.*s", (int)(why.n < sizeof j->no_chats ? why.n : sizeof j->no_chats - 1), why.p ? why.p : "");
    wait_for_another(j, row, row_table_mark(j->rows, row) | ROW_MARK_CHAT);
}

static void handback(coord *c, worker_id id, const wire_handback *m)
{
    lease *l = lease_find(c, (lease_id){ m->lease });
    worker *w = worker_find(c, id);
    if (!l || l->worker.v != id.v) return;               /* it ended already: its rows are back */
    job *j = l->job;
    j->n_handbacks++;
    size_t capacity = 0;
    uint32_t n = 0;
    row_index *rows = NULL, row;
    for (uint32_t at = 0; lease_next_row(l, &at, &row);) {       /* those that are named and still held */
        bool is_named = m->rows.n == 0;
        for (uint32_t i = 0; i < m->rows.n && !is_named; i++) is_named = m->rows.v[i] == row.v;
        if (!is_named) continue;
        rows = coord_grow(rows, &capacity, n, sizeof *rows);
        rows[n++] = row;
    }
    bool is_blame = m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE && n == 1;       /* two rows cannot both have run alone */
    bool is_end = m->reason == WIRE_HAND_ENGINE_ENDED || m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE;
    if (is_end && !is_blame && m->text.n > 0)
        send_note(c, "worker %016" PRIx64 ": its %s ended: %.*s", id.v, w && w->grades ? "grader" : "engine", (int)(m->text.n < 300 ? m->text.n : 300), m->text.p);
    lease_id lease_before = l->id;
    bool is_grading = lease_is_grading(l);
    uint64_t n_together = is_blame ? 1 : is_end ? rows_together(c, id) : 0;      /* what is granted while the row crashes alone is in the next engine */
    if (is_end && w && n > 0) worker_ended(w, n, false);
    for (uint32_t i = 0; i < n; i++) {
        lease_release_row(c, l, rows[i]);
        if (is_end) row_suspect(c, j, rows[i], l, n_together);
        if (is_end && !is_blame) job_retry_row(c, j, rows[i]);
        if (m->reason == WIRE_HAND_NO_ROOM && w && !is_grading) note_no_room(j, rows[i], w->context);
        if (m->reason == WIRE_HAND_NO_CHATS && w && !is_grading) note_no_chats(j, w, rows[i], m->text);
        if (is_end) row_note_end(c, j, rows[i], w, is_blame, m->text);
        if (is_blame) row_crashed(c, j, rows[i]);
    }
    free(rows);
    FL_ASSERT(lease_find(c, lease_before) == l);
    lease_settle(c, l, n > 0);
    c->must_grant_all = true;
    job_settle(c, j);
}

static void detok_arrived(coord *c, worker_id id, const wire_detok *m, coord_body body)
{
    worker *w = worker_find(c, id);
    detok_entry *d = w ? detok_find(c, w->fingerprint) : NULL;
    if (!d || d->is_here || m->fingerprint.n != strlen(d->fingerprint) || memcmp(m->fingerprint.p, d->fingerprint, m->fingerprint.n) != 0) {
        send_release(c, body);
        return;
    }
    d->body = body;
    d->is_here = true;
    c->must_grant_all = true;
}

void worker_message(coord *c, worker_id id, const wire_msg *msg, coord_body body)
{
    worker *w = worker_find(c, id);
    if (w) {
        w->heard_ms = c->now_ms;
        if (w->is_unreachable) {
            c->must_grant_all = true;
            c->fleet_version++;
        }
        w->is_unreachable = false;
        if (msg->type == WIRE_RESULT || msg->type == WIRE_ROW_ERROR || msg->type == WIRE_HANDBACK) w->progress_ms = c->now_ms;
    }
    switch (msg->type) {
    case WIRE_HELLO: hello(c, id, &msg->hello); break;
    case WIRE_BEAT: beat(c, id, &msg->beat); break;
    case WIRE_DETOK: detok_arrived(c, id, &msg->detok, body); return;
    case WIRE_RESULT: result_arrived(c, id, &msg->result, body); return;
    case WIRE_ROW_ERROR: row_error_arrived(c, id, &msg->row_error); break;
    case WIRE_HANDBACK: handback(c, id, &msg->handback); break;
    case WIRE_BYE:
        worker_leases_end(c, id, "leaves");
        if (w) worker_gone(c, w);
        break;
    default: FL_ASSERT(0 && "checked by coord_step");
    }
    send_release(c, body);
}
