#include "sim.h"

#include <string.h>

/* Ingest: the ledger's first records. What no journal names is removed at the next start, and the user submits again. */
static void submit(sim *s, sim_job *j)
{
    sim_ledger_free(&j->ledger);
    sim_ledger_append(s, j, &(ledger_record){ .kind = LEDGER_JOB, .body = { "{}", 2 } });
    for (uint32_t i = 0; i < j->n_base; i++)
        if (j->rows[i].kind == SIM_ROW_BAD_LINE)
            sim_ledger_append(s, j, &(ledger_record){ .kind = LEDGER_INGEST_ERROR, .row = { i }, .line = i + 1, .code = ROW_INVALID_JSON, .body = { "bad", 3 } });
    bool died = sim_shell_crash(s, SIM_CRASH_IN_INGEST, 2000);
    if (!died) {
        sim_ledger_mark(j);
        sim_ledger_sync(j);
        died = sim_shell_crash(s, SIM_CRASH_IN_INGEST, 2000);
    }
    if (died) {
        sim_at(s, s->now_ms + 1000, SIM_CLIENT, (int)(j - s->jobs), CLIENT_SUBMIT, NULL);
        return;
    }
    j->journal_state = JOB_OPEN;
    j->is_submitted = true;
    sim_log(s, "job %llu is submitted", (unsigned long long)j->id.v);
    if (sim_shell_crash(s, SIM_CRASH_IN_INGEST, 1000)) return;           /* the journal names it: it is there after the restart */
    sim_shell_add_job(s, j);
    sim_shell_perform(s);
}

typedef struct { sim *s; sim_job *old; sim_job *fresh; } retrying;

static fl_status copy_record(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    retrying *c = context;
    if (r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_CLOSE || (r->kind == LEDGER_RESULT && c->old->rows[r->row.v].has_error)) return FL_OK;
    sim_ledger_append(c->s, c->fresh, r);
    return FL_OK;
}

/* A new generation of the ledger, without row errors and closing record; then one transaction names it. False: the coordinator died before that. */
static bool write_generation(sim *s, sim_job *j, sim_job *fresh)
{
    ledger_cursor cursor = { 0 };
    retrying c = { s, j, fresh };
    *fresh = *j;
    memset(&fresh->ledger, 0, sizeof fresh->ledger);
    for (uint32_t i = 0; i < fresh->n_rows; i++) {
        sim_row *row = &fresh->rows[i];
        if (row->has_error) row->durable = row->appended = 0;
        row->has_error = row->is_error_appended = false;
    }
    fresh->is_closed = fresh->is_close_appended = fresh->has_outputs = false;
    if (!sim_ledger_walk(s, j, &cursor, copy_record, &c) || sim_shell_crash(s, SIM_CRASH_IN_RETRY, 3000)) return false;
    sim_ledger_mark(fresh);
    sim_ledger_sync(fresh);
    return !sim_shell_crash(s, SIM_CRASH_IN_RETRY, 3000);
}

static void retry(sim *s, sim_job *j)
{
    sim_job fresh;
    if (!write_generation(s, j, &fresh)) {
        sim_ledger_free(&fresh.ledger);
        sim_at(s, s->now_ms + 1000, SIM_CLIENT, (int)(j - s->jobs), CLIENT_RETRY, NULL);
        return;
    }
    sim_audit_job(s, j);
    sim_ledger_free(&j->ledger);
    fresh.journal_state = JOB_OPEN;
    fresh.cancel_ms = fresh.expire_ms = 0;
    fresh.limits = (row_limits){ 0 };
    fresh.n_retries++;
    *j = fresh;
    sim_hit(s, SIM_JOB_RETRIED);
    sim_log(s, "job %llu runs again", (unsigned long long)j->id.v);
    if (sim_shell_crash(s, SIM_CRASH_IN_RETRY, 2000)) return;
    sim_shell_add_job(s, j);
    sim_shell_perform(s);
}

static void delete_job(sim *s, sim_job *j)
{
    if (sim_shell_crash(s, SIM_CRASH_IN_DELETE, 8000)) {
        sim_at(s, s->now_ms + 1000, SIM_CLIENT, (int)(j - s->jobs), CLIENT_DELETE, NULL);
        return;
    }
    sim_audit_job(s, j);
    j->is_deleted = true;                                /* in the journal */
    sim_hit(s, SIM_JOB_DELETED);
    sim_ledger_free(&j->ledger);
    if (sim_shell_crash(s, SIM_CRASH_IN_DELETE, 8000)) return;
    sim_shell_step(s, &(event){ .type = EVENT_JOB_REMOVE, .job_id = j->id });
    sim_shell_perform(s);
}

static void cancel(sim *s, sim_job *j)
{
    if (j->is_close_appended) return;
    if (s->is_kept) sim_hit(s, SIM_CANCEL_ON_FULL_DISK);
    if (s->is_draining) sim_hit(s, SIM_CANCEL_WHILE_DRAINING);
    if (j->expire_ms && j->expire_ms <= s->now_ms) sim_hit(s, SIM_CANCEL_RACES_EXPIRY);
    sim_shell_take(s, &(event){ .type = EVENT_JOB_CLOSE, .job_id = j->id, .cause = LEDGER_CANCELLED }, NULL);
}

/* A client asks again while the coordinator is away, and waits while it cannot write. A cancel waits for nothing but the coordinator. */
void sim_client(sim *s, sim_job *j, sim_wish wish)
{
    bool is_free = !s->is_kept && s->n_inbox == 0 && s->now_ms >= s->disk_full_until_ms;
    bool is_over = wish == CLIENT_SUBMIT || (j->is_closed && j->journal_state != JOB_OPEN && j->has_outputs && s->actions.appends.n == 0 && s->actions.journal.n == 0);
    if (wish == CLIENT_CANCEL && !j->is_submitted) return;
    if (!s->is_up || (wish != CLIENT_CANCEL && (!is_free || !is_over))) sim_at(s, s->now_ms + 700, SIM_CLIENT, (int)(j - s->jobs), wish, NULL);
    else if (wish == CLIENT_SUBMIT) submit(s, j);
    else if (wish == CLIENT_CANCEL) cancel(s, j);
    else if (wish == CLIENT_RETRY) retry(s, j);
    else delete_job(s, j);
}

void sim_client_expire(sim *s, bool at_restart)
{
    for (int i = 0; i < s->n_jobs; i++) {
        sim_job *j = &s->jobs[i];
        if (!j->is_submitted || j->is_deleted || j->is_close_appended || j->expire_ms == 0 || s->now_ms < j->expire_ms) continue;
        if (at_restart) sim_hit(s, SIM_EXPIRED_AT_RESTART);
        sim_shell_step(s, &(event){ .type = EVENT_JOB_CLOSE, .job_id = j->id, .cause = LEDGER_EXPIRED });
    }
}

void sim_client_closed(sim *s, sim_job *j)
{
    sim_at(s, s->now_ms + 20 + sim_below(s, 400), SIM_OUTPUTS, (int)(j - s->jobs), (uint64_t)j->n_retries, NULL);
}

/* The files were written under temporary names; now they get their own. */
void sim_client_outputs(sim *s, sim_job *j)
{
    if (!s->is_up || !j->is_closed || j->has_outputs || j->is_deleted) return;       /* after a restart they are written again */
    if (sim_shell_crash(s, SIM_CRASH_AT_RENAME, 1500)) return;
    j->has_outputs = true;
    sim_hit(s, SIM_OUTPUTS_NAMED);
    if (sim_shell_crash(s, SIM_CRASH_AT_RENAME, 500)) return;
    bool has_failed = false;
    for (uint32_t i = 0; i < j->n_rows; i++) has_failed |= j->rows[sim_graded(j, i)].kind != SIM_ROW_BAD_LINE && (j->rows[i].has_error || j->rows[i].durable != (1u << j->rows[i].n) - 1);
    int slot = (int)(j - s->jobs);
    if (has_failed && j->n_retries < SIM_RETRIES_MAX && sim_trouble(s, 300)) sim_at(s, s->now_ms + sim_below(s, 5000), SIM_CLIENT, slot, CLIENT_RETRY, NULL);
    else if (sim_trouble(s, 300)) sim_at(s, s->now_ms + sim_below(s, 5000), SIM_CLIENT, slot, CLIENT_DELETE, NULL);
}
