#include "sim.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sim_violation(sim *s, const char *format, ...)
{
    if (s->violation[0]) return;                         /* the first one explains the others */
    va_list args;
    va_start(args, format);
    vsnprintf(s->violation, sizeof s->violation, format, args);
    va_end(args);
    sim_log(s, "VIOLATION: %s", s->violation);
}

static bool item_has(const sim_lease *l, uint64_t row, uint32_t sample)
{
    for (uint32_t i = 0; i < l->n_items; i++)
        if (l->items[i].row.v == row && sample >= l->items[i].sample_lo && sample < l->items[i].sample_hi) return true;
    return false;
}

/* The live lease of the job that holds the sample; NULL when none does. */
static sim_lease *holder(sim *s, uint64_t job, uint64_t row, uint32_t sample, uint64_t except)
{
    for (size_t i = 0; i < s->live.n; i++) {
        sim_lease *l = &s->live.v[i];
        if (l->job == job && l->id != except && item_has(l, row, sample)) return l;
    }
    return NULL;
}

static void see_append(sim *s, const action *a)
{
    const ledger_record *r = &a->record;
    sim_job *j = sim_job_of(s, a->job.v);
    if (j->is_close_appended) sim_violation(s, "job %" PRIu64 ": a record of kind %d follows the closing record", j->id.v, r->kind);
    if (r->kind == LEDGER_CLOSE) {
        j->is_close_appended = true;
        for (uint32_t i = 0; i < j->n_rows && r->cause == LEDGER_COMPLETED; i++)
            if (!j->rows[i].is_error_appended && j->rows[i].appended != (1u << j->rows[i].n) - 1)
                sim_violation(s, "job %" PRIu64 " is closed as completed but row %u is not finished", j->id.v, i);
    }
    if (r->kind != LEDGER_RESULT && r->kind != LEDGER_ROW_ERROR) return;
    sim_row *row = &j->rows[r->row.v];
    const sim_lease *l = sim_lease_find(&s->live, r->lease.v);
    if (r->kind == LEDGER_RESULT) {
        if (!l) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: committed under lease %" PRIu64 ", which is dead", j->id.v, r->row.v, r->sample, r->lease.v);
        else if (l->job != j->id.v || !item_has(l, r->row.v, r->sample))
            sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: committed under lease %" PRIu64 ", which does not hold it", j->id.v, r->row.v, r->sample, r->lease.v);
        if (row->is_error_appended) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": a result after the row's error", j->id.v, r->row.v);
        if (r->piece == 0 && (row->appended >> r->sample & 1)) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: committed twice", j->id.v, r->row.v, r->sample);
        row->appended |= 1u << r->sample;
        return;
    }
    if (row->is_error_appended) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": a second error", j->id.v, r->row.v);
    row->is_error_appended = true;
    if (r->code == ROW_CRASH_QUARANTINED) {
        sim_hit(s, SIM_QUARANTINED);
        if (row->kind != SIM_ROW_POISON) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": quarantined without blame", j->id.v, r->row.v);
        return;
    }
    bool holds = false;
    for (uint32_t k = 0; l && k < row->n; k++) holds |= item_has(l, r->row.v, k);
    if (!holds) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": an error under lease %" PRIu64 ", which does not hold it", j->id.v, r->row.v, r->lease.v);
    if (row->kind != SIM_ROW_ERROR_ROW) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": an error nobody reported", j->id.v, r->row.v);
}

static void see_save(sim *s, const action *a)
{
    const sim_job *j = sim_job_of(s, a->job.v);
    for (uint32_t i = 0; i < a->n_items; i++)
        for (uint32_t k = a->items[i].sample_lo; k < a->items[i].sample_hi; k++) {
            uint64_t row = a->items[i].row.v;
            const sim_lease *other = holder(s, a->job.v, row, k, a->lease.v);
            if (other) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: given out under lease %" PRIu64 " while lease %" PRIu64 " holds it", a->job.v, row, k, a->lease.v, other->id);
            if (j->rows[row].appended >> k & 1 || j->rows[row].is_error_appended)
                sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: given out under lease %" PRIu64 " though it is done", a->job.v, row, k, a->lease.v);
        }
    sim_lease_save(&s->live, a);
}

void sim_see_step(sim *s, size_t n_appends, size_t n_journal, size_t n_sends)
{
    (void)n_sends;
    for (size_t i = n_appends; i < s->actions.appends.n; i++) see_append(s, &s->actions.appends.v[i]);
    for (size_t i = n_journal; i < s->actions.journal.n; i++) {
        const action *a = &s->actions.journal.v[i];
        if (a->type == ACTION_LEASE_SAVE) see_save(s, a);
        if (a->type == ACTION_LEASE_END) sim_lease_end(&s->live, a->lease.v);
    }
}

static void see_answer(sim *s, const wire_answer *m)
{
    for (uint32_t i = 0; i < m->jobs.n; i++) {
        if (m->fates.v[i] != WIRE_COMMITTED && m->fates.v[i] != WIRE_DUPLICATE) continue;
        const sim_job *j = sim_job_of(s, m->jobs.v[i]);
        const sim_row *row = &j->rows[m->rows.v[i]];
        bool is_durable = m->samples.v[i] == WIRE_WHOLE_ROW ? row->has_error || row->durable == (1u << row->n) - 1 : (row->durable >> m->samples.v[i] & 1) != 0;
        if (!is_durable)
            sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 ": answered '%s' before it is durable", m->jobs.v[i], m->rows.v[i], m->samples.v[i],
                          m->fates.v[i] == WIRE_COMMITTED ? "committed" : "duplicate");
    }
}

void sim_see_send(sim *s, const action *a)
{
    if (a->type == ACTION_JOB_CLOSED) {
        const sim_job *j = sim_job_of(s, a->job.v);
        if (!j->is_closed || j->journal_state == JOB_OPEN) sim_violation(s, "job %" PRIu64 ": outputs asked for before its closing record is durable", j->id.v);
        return;
    }
    if (a->msg.type == WIRE_ANSWER) see_answer(s, &a->msg.answer);
    if (a->msg.type != WIRE_GRANT) return;
    uint64_t id = a->msg.grant.lease;
    if (id <= s->highest_lease) sim_violation(s, "lease id %" PRIu64 " is given out again", id);
    if (s->next_lease <= id) sim_violation(s, "lease %" PRIu64 " is sent before its id is durable", id);
    s->highest_lease = id > s->highest_lease ? id : s->highest_lease;
}

void sim_see_restart(sim *s)
{
    for (int i = 0; i < s->n_jobs; i++) {
        sim_job *j = &s->jobs[i];
        j->is_close_appended = j->is_closed;
        for (uint32_t r = 0; r < j->n_rows; r++) {
            j->rows[r].appended = j->rows[r].durable;
            j->rows[r].is_error_appended = j->rows[r].has_error;
        }
    }
    sim_leases_free(&s->live);
    for (size_t i = 0; i < s->leases.n; i++) {           /* newest first: what a newer one holds, an older one gave back */
        const sim_lease *l = &s->leases.v[i];
        sim_lease own = { l->id, l->job, l->worker, malloc(512 * sizeof *own.items), 0 };
        FL_ASSERT(own.items);
        for (uint32_t k = 0; k < l->n_items; k++)
            for (uint32_t x = l->items[k].sample_lo; x < l->items[k].sample_hi; x++) {
                if (holder(s, l->job, l->items[k].row.v, x, 0)) continue;
                FL_ASSERT(own.n_items < 512);
                own.items[own.n_items++] = (lease_item){ l->items[k].row, x, x + 1 };
            }
        s->live.v = sim_grow(s->live.v, &s->live.capacity, s->live.n, sizeof *s->live.v);
        s->live.v[s->live.n++] = own;
    }
}

/* The ledger as a reader sees it: the truth that the job's files are made from. */
typedef struct { sim *s; sim_job *j; uint8_t *n_results; bool *has_error; uint8_t body[64]; size_t n_body; uint64_t n_tokens; bool is_closed; ledger_cause cause; } audit;

static fl_status audit_record(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    audit *a = context;
    sim *s = a->s;
    if (r->kind == LEDGER_CLOSE) {
        a->is_closed = true;
        a->cause = r->cause;
    }
    if (r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_INGEST_ERROR) a->has_error[r->row.v] = true;
    if (r->kind != LEDGER_RESULT) return FL_OK;
    if (r->piece == 0) a->n_body = 0;
    FL_ASSERT(a->n_body + r->body.bytes <= sizeof a->body);
    memcpy(a->body + a->n_body, r->body.data, r->body.bytes);
    a->n_body += r->body.bytes;
    if (r->piece + 1 < r->n_pieces) return FL_OK;
    uint8_t right[64];
    uint32_t n = sim_result(a->j, r->row.v, r->sample, right);
    if (n != a->n_body || memcmp(right, a->body, n) != 0) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: the ledger holds another result", a->j->id.v, r->row.v, r->sample);
    if (++a->n_results[r->row.v * 4 + r->sample] > 1) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: two results in the ledger", a->j->id.v, r->row.v, r->sample);
    a->n_tokens += r->n_tokens;
    return FL_OK;
}

static void audit_job(sim *s, sim_job *j)
{
    ledger_cursor cursor = { 0 };
    audit a = { .s = s, .j = j };
    coord_job_status status;
    uint64_t n_completed = 0, n_failed = 0;
    a.n_results = calloc(j->n_rows * 4u, 1);
    a.has_error = calloc(j->n_rows, sizeof *a.has_error);
    FL_ASSERT(a.n_results && a.has_error);
    if (!sim_ledger_walk(s, j, &cursor, audit_record, &a)) goto done;
    if (!a.is_closed) sim_violation(s, "job %" PRIu64 " never ended", j->id.v);
    for (uint32_t i = 0; i < j->n_rows; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < j->rows[i].n; k++) {
            n += a.n_results[i * 4 + k];
            if ((j->rows[i].durable >> k & 1) && a.n_results[i * 4 + k] == 0) sim_violation(s, "job %" PRIu64 " row %u sample %u: committed, then lost", j->id.v, i, k);
        }
        if (a.has_error[i]) n_failed++;
        else if (n == j->rows[i].n) n_completed++;
        else if (a.cause == LEDGER_COMPLETED) sim_violation(s, "job %" PRIu64 " row %u is lost: %u of %u results", j->id.v, i, n, j->rows[i].n);
        else if (a.cause) n_failed++;                    /* ended early: the row gets a batch_cancelled or batch_expired line */
    }
    if (!s->core || !coord_job_find(s->core, j->id, &status)) goto done;
    if (status.rows_completed != n_completed || status.rows_failed != n_failed || status.rows != j->n_rows || status.n_tokens != a.n_tokens)
        sim_violation(s, "job %" PRIu64 ": the core counts %" PRIu64 " completed, %" PRIu64 " failed, %" PRIu64 " tokens; the ledger %" PRIu64 ", %" PRIu64 ", %" PRIu64, j->id.v,
                      status.rows_completed, status.rows_failed, status.n_tokens, n_completed, n_failed, a.n_tokens);
    if (status.state == JOB_OPEN || status.rows_running != 0 || status.rows_waiting != 0) sim_violation(s, "job %" PRIu64 ": closed in the ledger, %s in the core", j->id.v, job_state_name(status.state));
done:
    free(a.n_results);
    free(a.has_error);
}

void sim_see_end(sim *s)
{
    for (int i = 0; i < s->n_jobs; i++) {
        if (s->jobs[i].is_submitted) audit_job(s, &s->jobs[i]);
        else sim_violation(s, "job %" PRIu64 " was never submitted", s->jobs[i].id.v);
    }
    if (s->leases.n > 0) sim_violation(s, "%zu leases are left in the journal, the first is %" PRIu64, s->leases.n, s->leases.v[0].id);
    if (s->core && coord_n_leases(s->core) > 0) sim_violation(s, "%zu leases are left in the core", coord_n_leases(s->core));
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].is_alive && s->workers[i].n_tasks > 0)
            sim_violation(s, "worker %d still has %zu results or rows that nobody answered, the first is job %" PRIu64 " row %" PRIu64 " of lease %" PRIu64, i, s->workers[i].n_tasks,
                          s->workers[i].tasks[0].job, s->workers[i].tasks[0].row, s->workers[i].tasks[0].lease);
}
