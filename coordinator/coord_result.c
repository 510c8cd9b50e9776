#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

/* The fate of something said about (row, sample) under a lease, before its content is looked at. WIRE_COMMITTED = it counts. */
static wire_fate judge(const coord *c, worker_id speaker, uint64_t job_number, uint64_t lease_number, uint64_t row, uint64_t sample, bool is_whole_row, job **j, lease **l)
{
    *j = job_find(c, (job_id){ job_number });
    *l = lease_find(c, (lease_id){ lease_number });
    if (!*j || (*j)->state != JOB_OPEN) return WIRE_STALE;
    if (!row_table_has((*j)->rows, row, sample)) return WIRE_REFUSED;
    row_index r = { row };
    if (is_whole_row ? row_table_finished((*j)->rows, r) : row_table_done((*j)->rows, r, (uint32_t)sample)) return WIRE_DUPLICATE;
    if (!*l) return WIRE_STALE;
    if ((*l)->worker.v != speaker.v || (*l)->job != *j) return WIRE_REFUSED;
    return (is_whole_row ? lease_holds_row(*l, r) : lease_holds(*l, r, (uint32_t)sample)) ? WIRE_COMMITTED : WIRE_STALE;
}

static void count(job *j, wire_fate fate)
{
    if (!j) return;
    if (fate == WIRE_DUPLICATE) j->n_duplicates++;
    else if (fate == WIRE_STALE) j->n_stale++;
    else if (fate == WIRE_REFUSED) j->n_refused++;
}

/* Keep a piece until its last one came. Returns the whole, which the lease owns until its sample leaves it, or NULL: there is more to come, or a piece is
 * missing (the connection was lost in between) and this one is dropped. */
static partial *collect(coord *c, lease *l, const wire_result *m, coord_body body)
{
    partial *p = l->partials;
    while (p && (p->row.v != m->row || p->sample != m->sample)) p = p->next;
    if (p && m->piece == 0) {                            /* sent again from its start, after a lost connection */
        partial_drop(c, l, p->row, p->sample);
        p = NULL;
    }
    if (!p && m->piece == 0) {
        p = coord_alloc(1, sizeof *p);
        *p = (partial){ .next = l->partials, .row = { m->row }, .sample = (uint32_t)m->sample, .n_pieces = (uint32_t)m->n_pieces };
        p->pieces = coord_alloc(p->n_pieces, sizeof *p->pieces);
        l->partials = p;
    }
    if (!p || p->n_have != m->piece || p->n_pieces != m->n_pieces) {
        send_release(c, body);
        return NULL;
    }
    if (l->partial_bytes + body.bytes > COORD_PARTIAL_BYTES) {
        send_note(c, "worker %016" PRIx64 " sends pieces of more than %u MB under one lease; those of job-%016" PRIx64 " row %" PRIu64 " are dropped", l->worker.v, COORD_PARTIAL_BYTES >> 20, l->job->id.v, m->row);
        send_release(c, body);
        partial_drop(c, l, p->row, p->sample);
        return NULL;
    }
    p->pieces[p->n_have++] = body;
    l->partial_bytes += body.bytes;
    c->partial_bytes += body.bytes;
    if (c->partial_bytes > c->most_partial_bytes) c->most_partial_bytes = c->partial_bytes;
    return p->n_have == p->n_pieces ? p : NULL;
}

static bool is_valid(const coord *c, const job *j, uint64_t row, const coord_body *pieces, uint32_t n)
{
    if (row_table_is_grade(j->rows, (row_index){ row }))         /* a verdict is small */
        return n == 1 && (!c->options.verdict_is_valid || c->options.verdict_is_valid(c->options.context, (fl_bytes){ pieces[0].data, pieces[0].bytes }));
    if (!c->options.result_is_valid) return true;
    fl_bytes *bytes = coord_alloc(n, sizeof *bytes);
    for (uint32_t i = 0; i < n; i++) bytes[i] = (fl_bytes){ pieces[i].data, pieces[i].bytes };
    bool valid = c->options.result_is_valid(c->options.context, j->n_vocab, bytes, n);
    free(bytes);
    return valid;
}

/* The other lease of a sample that was held twice gives it up, and nothing else. */
static void leave_other(coord *c, lease *other, row_index row, uint32_t sample)
{
    lease_drop_sample(c, other, row, sample);
    send_revoke_row(c, other->worker, other->id, row, sample);
    lease_settle(c, other, false);
}

/* The pieces move into the ledger and the sample out of its lease. */
static void commit_result(coord *c, job *j, lease *l, const wire_result *m, const coord_body *pieces, uint32_t n)
{
    row_index row = { m->row };
    lease *other = row_table_held_twice(j->rows, row, (uint32_t)m->sample) ? lease_other(c, j, row, (uint32_t)m->sample, l) : NULL;
    for (uint32_t i = 0; i < n; i++) {
        action *a = action_add(&c->out->appends, ACTION_APPEND);
        a->job = j->id;
        a->body = pieces[i];
        a->record = (ledger_record){ .kind = LEDGER_RESULT, .row = row, .lease = l->id, .sample = (uint32_t)m->sample, .piece = i, .n_pieces = n,
                                     .n_tokens = (uint32_t)m->n_tokens, .body = { pieces[i].data, pieces[i].bytes } };
    }
    row_table_commit(j->rows, row, (uint32_t)m->sample);
    lease_drop_sample(c, l, row, (uint32_t)m->sample);
    if (other) leave_other(c, other, row, (uint32_t)m->sample);
    if (row_table_is_grade(j->rows, row)) j->n_verdicts++;
    else j->n_samples++;
    c->must_grant_graders |= row_table_is_graded(j->rows) && !row_table_is_grade(j->rows, row);
    j->n_tokens += m->n_tokens;
    if (!row_table_is_grade(j->rows, row)) {
        j->n_timed++;
        j->timed_ms += (uint64_t)(c->now_ms - l->granted_ms);
    }
    worker *w = worker_find(c, l->worker);
    if (!w) return;
    w->n_samples++;
    w->n_ends = 0;
    w->n_ended = 0;                                      /* what ends its engine from now on is another end */
}

/* What came cannot be used; its sample is given out again. */
static void refuse_result(coord *c, job *j, lease *l, const wire_result *m)
{
    row_index row = { m->row };
    send_note(c, "job-%016" PRIx64 " row %" PRIu64 ": worker %016" PRIx64 " sent a result that cannot be read; the row is given out again", j->id.v, m->row, l->worker.v);
    job_retry_row(c, j, row);
    lease_release_sample(c, l, row, (uint32_t)m->sample);
}

/* The lease gave up a sample; when that was its last, it is over. Only what waits again must be told to the journal. */
static void lease_after_result(coord *c, lease *l, bool was_released)
{
    worker *w = worker_find(c, l->worker);
    if (w && w->window_rows < 2 * w->batch) w->window_rows = 2 * (uint32_t)w->batch;     /* whoever started beside it had the time of a row to come */
    if (!lease_settle(c, l, was_released) || !w) return;
    if (w->window_rows < WINDOW_ROWS_MAX) w->window_rows *= 2;
}

void result_arrived(coord *c, worker_id speaker, const wire_result *m, coord_body body)
{
    job *j;
    lease *l;
    bool is_last = m->piece + 1 == m->n_pieces, is_numbered = m->piece < m->n_pieces;
    wire_fate fate = judge(c, speaker, m->job, m->lease, m->row, m->sample, false, &j, &l);
    if (!is_numbered) {
        fate = WIRE_REFUSED;
        send_release(c, body);
    } else if (fate != WIRE_COMMITTED) {
        send_release(c, body);
        if (!is_last) return;                            /* a part is not answered */
    } else if (m->n_pieces == 1) {
        if (is_valid(c, j, m->row, &body, 1)) {
            commit_result(c, j, l, m, &body, 1);
        } else {
            fate = WIRE_REFUSED;
            refuse_result(c, j, l, m);
            send_release(c, body);
        }
        lease_after_result(c, l, fate == WIRE_REFUSED);
    } else {
        partial *whole = collect(c, l, m, body);
        if (!is_last) return;
        if (whole && is_valid(c, j, m->row, whole->pieces, whole->n_pieces)) {
            uint32_t n = whole->n_have;
            whole->n_have = 0;                           /* they move into the ledger */
            for (uint32_t i = 0; i < n; i++) {
                c->partial_bytes -= whole->pieces[i].bytes;
                l->partial_bytes -= whole->pieces[i].bytes;
            }
            commit_result(c, j, l, m, whole->pieces, n);
        } else {                                         /* a piece is missing, or it cannot be read */
            fate = WIRE_REFUSED;
            refuse_result(c, j, l, m);
        }
        lease_after_result(c, l, fate == WIRE_REFUSED);
    }
    send_answer(c, speaker, (job_id){ m->job }, (lease_id){ m->lease }, m->row, m->sample, fate);
    count(j, fate);
    if (fate == WIRE_DUPLICATE) j->n_duplicate_tokens += m->n_tokens;
    if (fate == WIRE_COMMITTED) job_settle(c, j);
}

/* Errors that a worker can find; the others are the coordinator's to give. */
static bool is_workers_error(uint64_t code)
{
    switch (code) {
    case ROW_OK: case ROW_CRASH_QUARANTINED: case ROW_CANCELLED: case ROW_EXPIRED: case ROW_TIMEOUT: case ROW_DUPLICATE_ID: return false;
    default: return code < ROW_ERROR_COUNT;
    }
}

void row_error_arrived(coord *c, worker_id speaker, const wire_row_error *m)
{
    job *j;
    lease *l;
    row_index row = { m->row };
    wire_fate fate = judge(c, speaker, m->job, m->lease, m->row, 0, true, &j, &l);
    if (!is_workers_error(m->code)) fate = WIRE_REFUSED;
    if (fate == WIRE_COMMITTED) {
        job_fail_row(c, j, row, l->id, (fl_row_error)m->code, m->text.p ? m->text.p : "", m->text.n);
        lease_after_result(c, l, false);
    }
    send_answer(c, speaker, (job_id){ m->job }, (lease_id){ m->lease }, m->row, WIRE_WHOLE_ROW, fate);
    count(j, fate);
    if (fate == WIRE_COMMITTED) job_settle(c, j);
}
