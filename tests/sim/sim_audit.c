#include "sim.h"

#include <inttypes.h>
#include <string.h>

/* ---- what status says, against the history ---- */

static void audit_open(sim *s, const sim_job *j, const coord_job_status *status)
{
    uint64_t held[SIM_WORDS] = { 0 }, twice[SIM_WORDS] = { 0 };
    coord_job_status own = { 0 };
    for (size_t i = 0; i < s->live.n; i++)
        for (int k = 0; k < SIM_WORDS && s->live.v[i].job == j - s->jobs; k++) {
            twice[k] |= held[k] & s->live.v[i].bits[k];
            held[k] |= s->live.v[i].bits[k];
        }
    bool is_graded = j->n_rows > j->n_base;
    for (uint64_t r = j->n_base; r < j->n_rows; r++) {
        const sim_row *row = &j->rows[r];
        for (uint32_t k = 0; k < row->n; k++) {
            bool is_there = j->rows[sim_graded(j, r)].appended >> k & 1, is_held = sim_bit(held, r, k), is_done = row->appended >> k & 1;
            own.samples_graded += is_done;
            own.samples_grading += is_held;
            own.samples_ungraded += is_there && !is_held && !is_done && !row->is_error_appended;
            own.samples_twice += sim_bit(twice, r, k);
        }
    }
    for (uint64_t r = 0; r < j->n_base; r++) {
        const sim_row *row = &j->rows[r], *last = is_graded ? &j->rows[j->n_base + r] : row;
        bool is_running = false, is_waiting = false;
        if (row->is_error_appended) own.rows_failed++;
        else if (last->appended == (1u << row->n) - 1) own.rows_completed++;
        for (uint32_t k = 0; k < row->n && !row->is_error_appended; k++) {
            is_running |= sim_bit(held, r, k);
            is_waiting |= !sim_bit(held, r, k) && !(row->appended >> k & 1);
            own.samples_twice += sim_bit(twice, r, k);
        }
        own.rows_running += is_running;
        own.rows_waiting += is_waiting;
    }
    if (status->rows_completed != own.rows_completed || status->rows_failed != own.rows_failed || status->rows_running != own.rows_running || status->rows_waiting != own.rows_waiting ||
        status->samples_twice != own.samples_twice)
        sim_violation(s, "job %" PRIu64 ": status counts %" PRIu64 " rows completed, %" PRIu64 " failed, %" PRIu64 " running, %" PRIu64 " waiting, %" PRIu64 " samples twice; there are %" PRIu64
                      ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64, j->id.v, status->rows_completed, status->rows_failed, status->rows_running, status->rows_waiting, status->samples_twice,
                      own.rows_completed, own.rows_failed, own.rows_running, own.rows_waiting, own.samples_twice);
    if (status->is_graded != is_graded || status->samples_graded != own.samples_graded || status->samples_grading != own.samples_grading || status->samples_ungraded != own.samples_ungraded)
        sim_violation(s, "job %" PRIu64 ": status counts %" PRIu64 " samples graded, %" PRIu64 " with graders, %" PRIu64 " waiting for one; there are %" PRIu64 ", %" PRIu64 ", %" PRIu64, j->id.v,
                      status->samples_graded, status->samples_grading, status->samples_ungraded, own.samples_graded, own.samples_grading, own.samples_ungraded);
    if (status->rows_tail != (own.rows_waiting ? 0 : own.rows_running)) sim_violation(s, "job %" PRIu64 ": status says that the tail has %" PRIu64 " rows", j->id.v, status->rows_tail);
}

void sim_audit_counts(sim *s)
{
    for (int i = 0; i < s->n_jobs && s->core; i++) {
        const sim_job *j = &s->jobs[i];
        const sim_counts *seen = &j->seen;
        coord_job_status status;
        if (!j->is_submitted || j->is_deleted || !coord_job_find(s->core, j->id, &status)) continue;
        if (!j->is_close_appended) audit_open(s, j, &status);
        if (status.leases_granted != seen->granted || status.samples_copied != seen->copied || status.duplicates != seen->duplicates || status.duplicate_tokens != seen->duplicate_tokens ||
            status.stale != seen->stale || status.refused != seen->refused || status.timeouts != seen->timeouts)
            sim_violation(s, "job %" PRIu64 ": status counts %" PRIu64 " leases, %" PRIu64 " copies, %" PRIu64 " duplicates, %" PRIu64 " stale, %" PRIu64 " refused, %" PRIu64
                          " timeouts; the history %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64, j->id.v, status.leases_granted, status.samples_copied,
                          status.duplicates, status.stale, status.refused, status.timeouts, seen->granted, seen->copied, seen->duplicates, seen->stale, seen->refused, seen->timeouts);
    }
}

/* ---- the ledger as a reader sees it: the truth that the job's files are made from ---- */

typedef struct { sim *s; sim_job *j; uint8_t n_results[SIM_ROWS_MAX][SIM_N_MAX]; bool has_error[SIM_ROWS_MAX]; uint8_t body[64]; size_t n_body; uint64_t n_tokens; ledger_cause cause; } audit;

static fl_status audit_record(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    audit *a = context;
    sim *s = a->s;
    if (r->kind == LEDGER_CLOSE) a->cause = r->cause;
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
    if (++a->n_results[r->row.v][r->sample] > 1) sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: two results in the ledger", a->j->id.v, r->row.v, r->sample);
    a->n_tokens += r->n_tokens;
    return FL_OK;
}

static uint32_t n_samples_of(const audit *a, uint64_t row)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < a->j->rows[row].n; k++) n += a->n_results[row][k];
    return n;
}

void sim_audit_job(sim *s, sim_job *j)
{
    ledger_cursor cursor = { 0 };
    audit a = { .s = s, .j = j };
    uint64_t n_completed = 0, n_failed = 0;
    coord_job_status status;
    if (!sim_ledger_walk(s, j, &cursor, audit_record, &a)) return;
    if (!a.cause) sim_violation(s, "job %" PRIu64 " never ended", j->id.v);
    for (uint32_t i = 0; i < j->n_rows; i++) {
        uint32_t n = 0;
        for (uint32_t k = 0; k < j->rows[i].n; k++) {
            n += a.n_results[i][k];
            if (sim_is_grade(j, i) && a.n_results[i][k] && !a.n_results[sim_graded(j, i)][k]) sim_violation(s, "job %" PRIu64 " row %u sample %u: the ledger has a verdict of nothing", j->id.v, i, k);
            if ((j->rows[i].durable >> k & 1) != a.n_results[i][k]) sim_violation(s, "job %" PRIu64 " row %u sample %u: it was durable and is lost, or the other way round", j->id.v, i, k);
        }
        if (i < j->n_base && j->n_rows > j->n_base && !a.has_error[i] && n == j->rows[i].n) continue;       /* its grade row tells */
        if (sim_is_grade(j, i) && (a.has_error[sim_graded(j, i)] || n_samples_of(&a, sim_graded(j, i)) < j->rows[i].n)) continue;      /* the row told */
        if (a.has_error[i]) n_failed++;
        else if (n == j->rows[i].n) n_completed++;
        else if (a.cause == LEDGER_COMPLETED) sim_violation(s, "job %" PRIu64 " row %u is lost: %u of %u results", j->id.v, i, n, j->rows[i].n);
        else n_failed++;                                 /* ended early: the row gets a batch_cancelled or batch_expired line */
    }
    if (!s->core || !coord_job_find(s->core, j->id, &status)) return;
    if (status.rows_completed != n_completed || status.rows_failed != n_failed || status.rows != j->n_base || status.n_tokens != a.n_tokens)
        sim_violation(s, "job %" PRIu64 ": the core counts %" PRIu64 " completed, %" PRIu64 " failed, %" PRIu64 " tokens; the ledger %" PRIu64 ", %" PRIu64 ", %" PRIu64, j->id.v,
                      status.rows_completed, status.rows_failed, status.n_tokens, n_completed, n_failed, a.n_tokens);
    if (status.state == JOB_OPEN || status.rows_running != 0 || status.rows_waiting != 0) sim_violation(s, "job %" PRIu64 ": closed in the ledger, %s in the core", j->id.v, job_state_name(status.state));
}

void sim_audit_end(sim *s)
{
    for (int i = 0; i < s->n_jobs; i++) {
        sim_job *j = &s->jobs[i];
        if (!j->is_submitted) sim_violation(s, "job %" PRIu64 " was never submitted", j->id.v);
        else if (!j->is_deleted) sim_audit_job(s, j);
        if (j->is_submitted && !j->is_deleted && !j->has_outputs) sim_violation(s, "job %" PRIu64 " has no output files", j->id.v);
    }
    sim_audit_counts(s);
    if (s->leases.n > 0) sim_violation(s, "%zu leases are left in the journal, the first is %" PRIu64, s->leases.n, s->leases.v[0].id);
    if (s->core && coord_n_leases(s->core) > 0) sim_violation(s, "%zu leases are left in the core", coord_n_leases(s->core));
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].is_alive && s->workers[i].n_tasks > 0)
            sim_violation(s, "worker %d still has %zu results or rows that nobody answered, the first is job %" PRIu64 " row %" PRIu64 " of lease %" PRIu64, i, s->workers[i].n_tasks,
                          s->workers[i].tasks[0].job, s->workers[i].tasks[0].row, s->workers[i].tasks[0].lease);
    if (sim_faults(s) < SIM_FAULTS_MIN) sim_violation(s, "a schedule of only %" PRIu64 " faults", sim_faults(s));
}
