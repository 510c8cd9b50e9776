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

static bool is_empty(const uint64_t *bits)
{
    for (int i = 0; i < SIM_WORDS; i++)
        if (bits[i]) return false;
    return true;
}

static uint32_t n_holders(const sim *s, int job, uint64_t row, uint32_t sample)
{
    uint32_t n = 0;
    for (size_t i = 0; i < s->live.n; i++) n += s->live.v[i].job == job && sim_bit(s->live.v[i].bits, row, sample);
    return n;
}

static bool is_row_finished(const sim_row *row) { return row->is_error_appended || row->appended == (1u << row->n) - 1; }

static bool holds_row(const sim_lease *l, uint64_t row)
{
    for (uint32_t k = 0; k < SIM_N_MAX; k++)
        if (sim_bit(l->bits, row, k)) return true;
    return false;
}

/* ---- before a step: what a message should be answered ---- */

static size_t count_answers(const sim *s)
{
    size_t n = 0;
    for (size_t i = s->turn_sends; i < s->actions.sends.n; i++)
        if (s->actions.sends.v[i].type == ACTION_SEND && s->actions.sends.v[i].msg.type == WIRE_ANSWER) n += s->actions.sends.v[i].msg.answer.jobs.n;
    return n;
}

/* The rule of fates, once more. */
static wire_fate fate_of(sim *s, uint64_t speaker, uint64_t job, uint64_t lease, uint64_t row, uint64_t sample)
{
    sim_job *j = sim_job_of(s, job);
    const sim_row *r = &j->rows[row];
    const sim_lease *l = sim_lease_find(&s->live, lease);
    if (j->is_deleted || j->is_close_appended) return WIRE_STALE;
    if (sample == WIRE_WHOLE_ROW ? is_row_finished(r) : (r->appended >> sample & 1) != 0) return WIRE_DUPLICATE;
    if (!l) return WIRE_STALE;
    if (l->worker != speaker || l->job != sim_job_index(job)) return WIRE_REFUSED;
    return (sample == WIRE_WHOLE_ROW ? holds_row(l, row) : sim_bit(l->bits, row, (uint32_t)sample)) ? WIRE_COMMITTED : WIRE_STALE;
}

static bool in_order(const sim *s, uint64_t speaker)
{
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].id == speaker) return !s->workers[i].is_disordered;
    return false;
}

static uint32_t n_rows_of(const sim *s, const sim_lease *l)
{
    uint32_t n = 0;
    for (uint64_t row = 0; row < s->jobs[l->job].n_rows; row++) n += holds_row(l, row);
    return n;
}

/* An engine ended under the row. In a group of suspects there was nothing but the group, so from now on at most half of it may run together. */
static void see_suspect(sim *s, const sim_lease *l, uint64_t r, uint32_t n_together)
{
    sim_row *row = &s->jobs[l->job].rows[r];
    uint32_t group = 1;
    while (2 * group < n_together) group *= 2;
    if (!row->is_suspect) row->group = UINT32_MAX;
    if (l->is_group && group < row->group) {
        row->group = group;
        sim_hit(s, SIM_SUSPECTS_HALVED);
    }
    row->is_suspect = true;
    sim_hit(s, SIM_ROW_SUSPECT);
}

/* Rows under which an engine ended are suspects; poison ends only so many engines with the same row in it. */
static void see_handback(sim *s, uint64_t speaker, const wire_handback *m)
{
    const sim_lease *l = sim_lease_find(&s->live, m->lease);
    if (!l || l->worker != speaker || (m->reason != WIRE_HAND_ENGINE_ENDED && m->reason != WIRE_HAND_ENGINE_CRASHED_ALONE)) return;
    uint32_t n_together = n_rows_of(s, l);
    bool is_poison = in_order(s, speaker) && m->reason == WIRE_HAND_ENGINE_ENDED && m->text.n == strlen("poisoned") && memcmp(m->text.p, "poisoned", m->text.n) == 0;
    if (m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE) sim_hit(s, SIM_CRASH_ALONE);
    for (uint32_t i = 0; i < m->rows.n; i++) {
        sim_row *row = &s->jobs[l->job].rows[m->rows.v[i]];
        if (!holds_row(l, m->rows.v[i]) || sim_is_grade(&s->jobs[l->job], m->rows.v[i])) continue;     /* the end of a grader makes no suspects */
        see_suspect(s, l, m->rows.v[i], n_together);
        if (m->reason == WIRE_HAND_ENGINE_CRASHED_ALONE && m->rows.n == 1) row->n_crashed++;
        if (is_poison && !(l->is_group && n_together == 1) && ++row->n_poisoned > SIM_POISONED_MAX)
            sim_violation(s, "job %d row %" PRIu64 ": poison ended %u engines with it and others in them", l->job + 1, m->rows.v[i], row->n_poisoned);
    }
}

void sim_see_before(sim *s, const event *ev)
{
    s->expected = s->may_refuse = 0;
    if (ev->type != EVENT_MESSAGE) return;
    const wire_msg *m = ev->msg;
    if (m->type == WIRE_RESULT) {
        const wire_result *r = &m->result;
        if (r->piece + 1 < r->n_pieces) return;
        s->expected = fate_of(s, ev->worker.v, r->job, r->lease, r->row, r->sample);
        if (s->expected == WIRE_COMMITTED && r->n_pieces > 1) s->may_refuse = WIRE_REFUSED;      /* a piece may be missing, or the first one bad */
        else if (s->expected == WIRE_COMMITTED && *(const uint8_t *)ev->body.data != 0xA5) s->expected = WIRE_REFUSED;
    } else if (m->type == WIRE_ROW_ERROR) {
        s->expected = fate_of(s, ev->worker.v, m->row_error.job, m->row_error.lease, m->row_error.row, WIRE_WHOLE_ROW);
    } else if (m->type == WIRE_HANDBACK) {
        see_handback(s, ev->worker.v, &m->handback);
    } else if (m->type == WIRE_BEAT) {
        for (uint32_t i = 0; i < m->beat.leases.n; i++) {
            const sim_lease *l = sim_lease_find(&s->live, m->beat.leases.v[i]);
            if (l && l->worker == ev->worker.v) sim_hit(s, SIM_LEASE_RENEWED);
        }
    }
    s->n_answers = count_answers(s);
}

/* Each message that is to be answered was, once and rightly. */
static void see_fate(sim *s, const event *ev)
{
    const wire_msg *m = ev->msg;
    bool is_result = m->type == WIRE_RESULT;
    uint64_t job = is_result ? m->result.job : m->row_error.job, row = is_result ? m->result.row : m->row_error.row;
    uint64_t lease = is_result ? m->result.lease : m->row_error.lease, sample = is_result ? m->result.sample : WIRE_WHOLE_ROW;
    size_t n = count_answers(s) - s->n_answers;
    if (n != 1) {
        sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 ": %zu answers to one result", job, row, sample, n);
        return;
    }
    for (size_t i = s->actions.sends.n; i-- > s->turn_sends;) {
        const action *a = &s->actions.sends.v[i];
        if (a->type != ACTION_SEND || a->msg.type != WIRE_ANSWER || a->worker.v != ev->worker.v) continue;
        const wire_answer *r = &a->msg.answer;
        uint32_t last = r->jobs.n - 1;
        wire_fate fate = (wire_fate)r->fates.v[last];
        if (r->jobs.v[last] != job || r->leases.v[last] != lease || r->rows.v[last] != row || r->samples.v[last] != sample)
            sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 ": the answer names another one", job, row, sample);
        else if (fate != s->expected && fate != s->may_refuse)
            sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 " under lease %" PRIu64 ": answered %d, should be %d", job, row, sample, lease, fate, s->expected);
        sim_counts *seen = &sim_job_of(s, job)->seen;
        seen->duplicates += fate == WIRE_DUPLICATE;
        seen->stale += fate == WIRE_STALE;
        seen->refused += fate == WIRE_REFUSED;
        if (is_result && fate == WIRE_DUPLICATE) seen->duplicate_tokens += m->result.n_tokens;
        return;
    }
}

/* ---- a step: records ---- */

static void see_result(sim *s, sim_job *j, const ledger_record *r)
{
    sim_row *row = &j->rows[r->row.v];
    int job = (int)(j - s->jobs);
    const sim_lease *l = sim_lease_find(&s->live, r->lease.v);
    if (!l) sim_violation(s, "job %d row %" PRIu64 " sample %u: committed under lease %" PRIu64 ", which is dead", job + 1, r->row.v, r->sample, r->lease.v);
    else if (r->piece == 0 && (l->job != job || !sim_bit(l->bits, r->row.v, r->sample)))
        sim_violation(s, "job %d row %" PRIu64 " sample %u: committed under lease %" PRIu64 ", which does not hold it", job + 1, r->row.v, r->sample, r->lease.v);
    if (row->is_error_appended) sim_violation(s, "job %d row %" PRIu64 ": a result after the row's error", job + 1, r->row.v);
    if (r->piece == 0 && (row->appended >> r->sample & 1)) sim_violation(s, "job %d row %" PRIu64 " sample %u: committed twice", job + 1, r->row.v, r->sample);
    row->appended |= 1u << r->sample;
    if (r->piece + 1 < r->n_pieces) return;
    bool is_twice = n_holders(s, job, r->row.v, r->sample) > 1;
    if (sim_is_grade(j, r->row.v)) {
        if (!(j->rows[sim_graded(j, r->row.v)].appended >> r->sample & 1)) sim_violation(s, "job %d row %" PRIu64 " sample %u: a verdict of nothing", job + 1, r->row.v, r->sample);
        sim_hit(s, is_twice ? SIM_GRADE_TWICE_TO_DONE : SIM_GRADE_DONE);
    } else {
        sim_hit(s, is_twice ? SIM_TWICE_TO_DONE : SIM_HELD_TO_DONE);
    }
    if (row->is_suspect) sim_hit(s, SIM_SUSPECT_DONE);
    for (size_t i = 0; i < s->live.n; i++)
        if (s->live.v[i].job == job) sim_bit_clear(s->live.v[i].bits, r->row.v, r->sample);
}

static void see_timeout(sim *s, sim_job *j, const ledger_record *r)
{
    int64_t age_ms = sim_shell_now(s) - j->added_ms;
    const char *text = r->body.data;
    const row_limits *limits = &j->limits;
    j->seen.timeouts++;
    if (strncmp(text, "no worker", 9) == 0) {
        sim_hit(s, SIM_TIMEOUT_QUEUE);
        if (!limits->queue_ms || age_ms <= (int64_t)limits->queue_ms || j->rows[r->row.v].was_held) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": it did not wait too long", j->id.v, r->row.v);
    } else if (strncmp(text, "the row ran", 11) == 0) {
        sim_hit(s, SIM_TIMEOUT_RUN);
        const sim_lease *l = sim_lease_find(&s->live, r->lease.v);
        if (!l || !(holds_row(l, r->row.v) || holds_row(l, j->n_base + r->row.v))) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": ran too long under lease %" PRIu64 ", which does not hold it", j->id.v, r->row.v, r->lease.v);
        bool was_graded = j->n_rows > j->n_base && j->rows[j->n_base + r->row.v].was_held;
        if (!limits->run_ms || !(j->rows[r->row.v].was_held || was_graded)) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": it did not run too long", j->id.v, r->row.v);
    } else {
        sim_hit(s, SIM_TIMEOUT_TOTAL);
        if (!limits->total_ms || age_ms <= (int64_t)limits->total_ms) sim_violation(s, "job %" PRIu64 " row %" PRIu64 ": it did not take too long", j->id.v, r->row.v);
    }
}

static void see_row_error(sim *s, sim_job *j, const ledger_record *r)
{
    sim_row *row = &j->rows[r->row.v];
    int job = (int)(j - s->jobs);
    const sim_lease *l = sim_lease_find(&s->live, r->lease.v);
    const sim_row *grade = j->n_rows > j->n_base ? &j->rows[j->n_base + r->row.v] : NULL;
    if (row->is_error_appended) sim_violation(s, "job %d row %" PRIu64 ": a second error", job + 1, r->row.v);
    for (uint64_t each = r->row.v; each < j->n_rows; each += j->n_base) j->rows[each].is_error_appended = true;
    if (r->code == ROW_CRASH_QUARANTINED) {
        sim_hit(s, SIM_QUARANTINED);
        if (row->kind != SIM_ROW_POISON || row->n_crashed < 2) sim_violation(s, "job %d row %" PRIu64 ": quarantined without blame: it crashed alone %u times", job + 1, r->row.v, row->n_crashed);
    } else if (r->code == ROW_TIMEOUT) {
        see_timeout(s, j, r);
    } else {
        if (!l || l->job != job || !(holds_row(l, r->row.v) || (grade && holds_row(l, j->n_base + r->row.v))))
            sim_violation(s, "job %d row %" PRIu64 ": an error under lease %" PRIu64 ", which does not hold it", job + 1, r->row.v, r->lease.v);
        if (row->kind != SIM_ROW_ERROR_ROW && (!grade || grade->kind != SIM_ROW_GRADE_ERROR)) sim_violation(s, "job %d row %" PRIu64 ": an error nobody reported", job + 1, r->row.v);
        if (row->kind != SIM_ROW_ERROR_ROW) sim_hit(s, SIM_GRADE_FAILED);
    }
    for (uint32_t k = 0; k < row->n; k++) {
        uint32_t n = n_holders(s, job, r->row.v, k);
        sim_hit(s, row->appended >> k & 1 ? SIM_DONE_TO_FAILED : n > 1 ? SIM_TWICE_TO_FAILED : n > 0 ? SIM_HELD_TO_FAILED : SIM_WAITS_TO_FAILED);
        for (size_t i = 0; i < s->live.n; i++)
            for (uint64_t each = r->row.v; each < j->n_rows && s->live.v[i].job == job; each += j->n_base) sim_bit_clear(s->live.v[i].bits, each, k);
    }
}

static void see_append(sim *s, const action *a)
{
    const ledger_record *r = &a->record;
    sim_job *j = sim_job_of(s, a->job.v);
    if (j->is_close_appended) sim_violation(s, "job %" PRIu64 ": a record of kind %d follows the closing record", j->id.v, r->kind);
    if (r->kind == LEDGER_RESULT) see_result(s, j, r);
    if (r->kind == LEDGER_ROW_ERROR) see_row_error(s, j, r);
    if (r->kind != LEDGER_CLOSE) return;
    j->is_close_appended = true;
    j->cause = r->cause;
    sim_hit(s, r->cause == LEDGER_COMPLETED ? SIM_JOB_COMPLETED : r->cause == LEDGER_CANCELLED ? SIM_JOB_CANCELLED : SIM_JOB_EXPIRED);
    for (uint32_t i = 0; i < j->n_rows && r->cause == LEDGER_COMPLETED; i++)
        if (!is_row_finished(&j->rows[i])) sim_violation(s, "job %" PRIu64 " is closed as completed but row %u is not finished", j->id.v, i);
}

/* ---- a step: leases ---- */

/* The samples leave the lease and are not done. */
static void see_release(sim *s, const event *ev, const sim_lease *l, const uint64_t *bits)
{
    const sim_job *j = &s->jobs[l->job];
    for (uint64_t row = 0; row < j->n_rows; row++)
        for (uint32_t k = 0; k < j->rows[row].n; k++) {
            if (!sim_bit(bits, row, k)) continue;
            sim_hit(s, n_holders(s, l->job, row, k) > 1 ? SIM_TWICE_TO_HELD : SIM_HELD_TO_WAITS);
            if (ev->type != EVENT_MESSAGE || ev->msg->type != WIRE_RESULT || j->is_close_appended) continue;
            const wire_result *m = &ev->msg->result;
            if (m->lease != l->id || m->row != row || m->sample != k)
                sim_violation(s, "job %d row %" PRIu64 " sample %u: taken from lease %" PRIu64 " though the result was of row %" PRIu64 " sample %" PRIu64, l->job + 1, row, k, l->id, m->row, m->sample);
        }
}

static bool worker_is_here(const sim *s, uint64_t id)
{
    for (int i = 0; i < s->n_workers; i++)
        if (s->workers[i].id == id) return true;
    return false;
}

/* A new lease: at most two hold a sample, of different workers, the second a copy made when nothing waits; suspects are among themselves, and not more than their groups allow. */
static void see_new_lease(sim *s, const action *a, const uint64_t *bits)
{
    int job = sim_job_index(a->job.v);
    sim_job *j = &s->jobs[job];
    uint64_t once[SIM_WORDS] = { 0 }, more[SIM_WORDS] = { 0 };
    sim_lease fresh = { .id = a->lease.v, .worker = a->worker.v, .granted_ms = sim_shell_now(s), .job = job };
    int64_t copied_ms = INT64_MAX;                       /* age of the youngest lease that it copies */
    memcpy(fresh.bits, bits, sizeof fresh.bits);
    uint32_t n_rows = 0, n_suspects = 0, n_samples = 0, group = UINT32_MAX;
    for (size_t i = 0; i < s->live.n; i++) {
        const sim_lease *o = &s->live.v[i];
        if (o->worker == a->worker.v && o->is_group) sim_violation(s, "lease %" PRIu64 " goes to a worker that runs suspects", a->lease.v);
        for (int k = 0; k < SIM_WORDS && o->job == job; k++) {
            uint64_t shared = bits[k] & o->bits[k];
            if (shared && o->worker == a->worker.v) sim_violation(s, "lease %" PRIu64 " copies lease %" PRIu64 " for the same worker", a->lease.v, o->id);
            if (shared && fresh.granted_ms - o->granted_ms < copied_ms) copied_ms = fresh.granted_ms - o->granted_ms;
            more[k] |= once[k] & shared;
            once[k] |= shared;
        }
    }
    fresh.is_copy = !is_empty(once);
    bool is_grading = false, is_mixed = false, grades = false;
    for (uint64_t r = 0; r < j->n_rows; r++)
        if (holds_row(&fresh, r)) *(sim_is_grade(j, r) ? &is_grading : &is_mixed) = true;
    for (int i = 0; i < s->n_workers; i++) grades |= s->workers[i].grades && s->workers[i].id == a->worker.v;
    if (is_grading && is_mixed) sim_violation(s, "lease %" PRIu64 " is of rows and of their grading", a->lease.v);
    if (is_grading && !grades && worker_is_here(s, a->worker.v)) sim_violation(s, "lease %" PRIu64 ": a worker that does not grade is to grade", a->lease.v);
    if (!is_grading && grades) sim_violation(s, "lease %" PRIu64 ": a worker that grades is to generate", a->lease.v);
    if (is_grading) sim_hit(s, fresh.is_copy ? SIM_GRADE_COPY : SIM_GRADE_GRANTED);
    if (!is_empty(more)) sim_violation(s, "lease %" PRIu64 " holds a sample as the third one", a->lease.v);
    for (int k = 0; k < SIM_WORDS && fresh.is_copy; k++)
        if (bits[k] & ~once[k]) sim_violation(s, "lease %" PRIu64 " is a copy in part", a->lease.v);
    for (uint64_t r = 0; r < j->n_rows; r++) {
        sim_row *row = &j->rows[r];
        if (!holds_row(&fresh, r)) continue;
        n_rows++;
        n_suspects += row->is_suspect;
        if (row->is_suspect && row->group < group) group = row->group;
        row->was_held = true;
        for (uint32_t k = 0; k < row->n; k++) {
            if (!sim_bit(bits, r, k)) continue;
            n_samples++;
            sim_hit(s, fresh.is_copy ? SIM_HELD_TO_TWICE : SIM_WAITS_TO_HELD);
        }
    }
    if (n_suspects > 0) {
        fresh.is_group = true;
        sim_hit(s, n_rows > 1 ? SIM_SUSPECTS_TOGETHER : SIM_SUSPECT_ALONE);
        if (n_rows != n_suspects) sim_violation(s, "lease %" PRIu64 ": suspects run with other rows", a->lease.v);
        if (n_rows > group) sim_violation(s, "lease %" PRIu64 ": %u suspects run together, of one only %u may", a->lease.v, n_rows, group);
        if (fresh.is_copy) sim_violation(s, "lease %" PRIu64 ": a suspect row is copied", a->lease.v);
        for (size_t i = 0; i < s->live.n; i++) {
            if (s->live.v[i].is_group) sim_hit(s, SIM_GROUPS_AT_ONCE);
            if (s->live.v[i].worker == a->worker.v) sim_violation(s, "lease %" PRIu64 ": suspects go to a worker that holds lease %" PRIu64, a->lease.v, s->live.v[i].id);
        }
    }
    coord_job_status now;
    if (fresh.is_copy && is_grading && coord_job_find(s->core, a->job, &now) && now.samples_ungraded > 0)
        sim_violation(s, "lease %" PRIu64 ": a copy while %" PRIu64 " samples wait for a grader", a->lease.v, now.samples_ungraded);
    if (fresh.is_copy && !is_grading && coord_job_find(s->core, a->job, &now) && now.rows_waiting > now.rows_suspect + now.rows_room)
        sim_violation(s, "lease %" PRIu64 ": a copy while %" PRIu64 " rows wait", a->lease.v, now.rows_waiting);
    sim_hit(s, fresh.is_copy ? SIM_LEASE_COPY : SIM_LEASE_GRANTED);
    if (copied_ms < SIM_COPY_MS) sim_hit(s, SIM_COPY_OF_WAITING);
    j->seen.granted++;
    if (fresh.is_copy) j->seen.copied += n_samples;
    s->live.v = sim_grow(s->live.v, &s->live.capacity, s->live.n, sizeof *s->live.v);
    s->live.v[s->live.n++] = fresh;
}

static void see_save(sim *s, const event *ev, const action *a)
{
    const sim_job *j = sim_job_of(s, a->job.v);
    uint64_t bits[SIM_WORDS], released[SIM_WORDS];
    sim_lease *l = sim_lease_find(&s->live, a->lease.v);
    sim_lease_bits(bits, a->items, a->n_items);
    for (uint64_t row = 0; row < j->n_rows; row++)
        for (uint32_t k = 0; k < j->rows[row].n; k++)
            if (sim_bit(bits, row, k) && (j->rows[row].appended >> k & 1 || j->rows[row].is_error_appended))
                sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: given out under lease %" PRIu64 " though it is done", a->job.v, row, k, a->lease.v);
            else if (sim_bit(bits, row, k) && sim_is_grade(j, row) && !(j->rows[sim_graded(j, row)].appended >> k & 1))
                sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %u: to be graded under lease %" PRIu64 " though it is not there", a->job.v, row, k, a->lease.v);
    if (!l) {
        see_new_lease(s, a, bits);
        return;
    }
    for (int k = 0; k < SIM_WORDS; k++) {
        if (bits[k] & ~l->bits[k]) sim_violation(s, "lease %" PRIu64 " grew", a->lease.v);
        released[k] = l->bits[k] & ~bits[k];
    }
    if (is_empty(released)) return;
    sim_hit(s, SIM_LEASE_SHRUNK);
    see_release(s, ev, l, released);
    memcpy(l->bits, bits, sizeof l->bits);
}

/* The core says in its log why a lease ended by itself. */
static bool has_note(const sim *s, size_t n_sends, uint64_t lease, const char *words)
{
    char begin[40];
    int n = snprintf(begin, sizeof begin, "lease %" PRIu64 " ", lease);
    for (size_t i = n_sends; i < s->actions.sends.n; i++) {
        const action *a = &s->actions.sends.v[i];
        if (a->type == ACTION_NOTE && strncmp(a->text, begin, (size_t)n) == 0 && strstr(a->text, words)) return true;
    }
    return false;
}

static sim_hit_kind why_ended(const sim *s, const event *ev, const sim_lease *l, size_t n_sends)
{
    if (s->jobs[l->job].is_close_appended) return SIM_LEASE_JOB_CLOSED;
    if (ev->type == EVENT_WORKER_GONE) return SIM_LEASE_WORKER_DIED;
    if (ev->type == EVENT_TICK) {
        if (has_note(s, n_sends, l->id, "ran out")) return SIM_LEASE_RAN_OUT;
        if (has_note(s, n_sends, l->id, "no token")) return SIM_LEASE_STALLED;
        return is_empty(l->bits) ? SIM_LEASE_ROW_FAILED : SIM_LEASE_SILENT;
    }
    if (ev->type != EVENT_MESSAGE) return SIM_LEASE_NOT_RESTORED;
    switch (ev->msg->type) {
    case WIRE_RESULT: return ev->msg->result.lease == l->id ? SIM_LEASE_FINISHED : SIM_LEASE_LEFT_BY_COPY;
    case WIRE_ROW_ERROR: return SIM_LEASE_ROW_FAILED;
    case WIRE_HANDBACK: return SIM_LEASE_HANDED_BACK;
    case WIRE_HELLO: return SIM_LEASE_NOT_PRESENTED;
    default: return SIM_LEASE_BYE;
    }
}

static void see_lease_end(sim *s, const event *ev, uint64_t id, size_t n_sends)
{
    sim_lease *l = sim_lease_find(&s->live, id);
    if (!l) {
        if (ev->type == EVENT_LEASE_RESTORE) sim_hit(s, SIM_LEASE_NOT_RESTORED);
        return;
    }
    sim_hit_kind why = why_ended(s, ev, l, n_sends);
    sim_hit(s, why);
    if (!s->jobs[l->job].is_close_appended) see_release(s, ev, l, l->bits);
    uint32_t n_together = n_rows_of(s, l);
    for (uint64_t row = 0; why == SIM_LEASE_STALLED && row < s->jobs[l->job].n_rows; row++)
        if (holds_row(l, row) && !sim_is_grade(&s->jobs[l->job], row)) see_suspect(s, l, row, n_together);
    sim_lease_end(&s->live, id);
}

/* Suspects are with nobody, or among themselves. */
static void see_suspects(sim *s)
{
    for (size_t i = 0; i < s->live.n; i++) {
        const sim_lease *l = &s->live.v[i];
        for (uint64_t row = 0; row < s->jobs[l->job].n_rows && !l->is_group; row++)
            if (s->jobs[l->job].rows[row].is_suspect && holds_row(l, row)) sim_violation(s, "job %d row %" PRIu64 ": a suspect stays under lease %" PRIu64 " with others", l->job + 1, row, l->id);
    }
}

/* Of what one transaction says about a lease only the last is ever seen. */
static bool is_saved_again(const sim *s, size_t at)
{
    const action_array *journal = &s->actions.journal;
    for (size_t i = at + 1; i < journal->n; i++)
        if ((journal->v[i].type == ACTION_LEASE_SAVE || journal->v[i].type == ACTION_LEASE_END) && journal->v[i].lease.v == journal->v[at].lease.v) return true;
    return false;
}

void sim_see_step(sim *s, const event *ev, size_t n_appends, size_t n_journal, size_t n_sends)
{
    for (size_t i = n_appends; i < s->actions.appends.n; i++) see_append(s, &s->actions.appends.v[i]);
    for (size_t i = n_journal; i < s->actions.journal.n; i++) {
        const action *a = &s->actions.journal.v[i];
        if (a->type == ACTION_LEASE_SAVE && !is_saved_again(s, i)) see_save(s, ev, a);
        if (a->type == ACTION_LEASE_END) see_lease_end(s, ev, a->lease.v, n_sends);
    }
    if (s->expected) see_fate(s, ev);
    if (ev->type == EVENT_TICK || (ev->type == EVENT_MESSAGE && ev->msg->type == WIRE_HANDBACK)) see_suspects(s);
}

/* ---- sends ---- */

static void see_answer(sim *s, const wire_answer *m)
{
    for (uint32_t i = 0; i < m->jobs.n; i++) {
        wire_fate fate = (wire_fate)m->fates.v[i];
        sim_hit(s, fate == WIRE_COMMITTED ? SIM_FATE_COMMITTED : fate == WIRE_DUPLICATE ? SIM_FATE_DUPLICATE : fate == WIRE_STALE ? SIM_FATE_STALE : SIM_FATE_REFUSED);
        if (fate != WIRE_COMMITTED && fate != WIRE_DUPLICATE) continue;
        const sim_row *row = &sim_job_of(s, m->jobs.v[i])->rows[m->rows.v[i]];
        bool is_durable = m->samples.v[i] == WIRE_WHOLE_ROW ? row->has_error || row->durable == (1u << row->n) - 1 : (row->durable >> m->samples.v[i] & 1) != 0;
        if (!is_durable)
            sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 ": answered '%s' before it is durable", m->jobs.v[i], m->rows.v[i], m->samples.v[i],
                          fate == WIRE_COMMITTED ? "committed" : "duplicate");
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
    const sim_job *j = sim_job_of(s, a->msg.grant.job);
    for (uint32_t i = 0; i < a->msg.grant.rows.n; i++) {
        uint64_t row = a->msg.grant.rows.v[i];
        for (uint64_t k = a->msg.grant.sample_lo.v[i]; k < a->msg.grant.sample_hi.v[i] && sim_is_grade(j, row); k++)
            if (!(j->rows[sim_graded(j, row)].durable >> k & 1))
                sim_violation(s, "job %" PRIu64 " row %" PRIu64 " sample %" PRIu64 ": sent to a grader before it is durable", j->id.v, row, k);
    }
}

/* ---- restarts ---- */

void sim_see_job(sim *s, sim_job *j)
{
    j->is_close_appended = j->is_closed;
    j->seen = (sim_counts){ 0 };
    j->added_ms = sim_shell_now(s);
    for (uint32_t r = 0; r < j->n_rows; r++) {
        sim_row *row = &j->rows[r];
        row->appended = row->durable;
        row->is_error_appended = row->has_error;
        row->is_suspect = row->was_held = false;
        row->n_poisoned = row->n_crashed = 0;
    }
}

void sim_see_restart(sim *s)
{
    s->live.n = 0;
    for (size_t i = 0; i < s->leases.n; i++) {           /* newest first */
        const sim_lease *l = &s->leases.v[i];
        sim_job *j = &s->jobs[l->job];
        sim_lease own = { .id = l->id, .worker = l->worker, .granted_ms = sim_shell_now(s), .job = l->job };
        for (uint64_t row = 0; row < j->n_rows && !j->is_deleted && !j->is_closed; row++)
            for (uint32_t k = 0; k < j->rows[row].n; k++) {
                if (!sim_bit(l->bits, row, k) || j->rows[row].appended >> k & 1 || j->rows[row].is_error_appended) continue;
                uint32_t n = n_holders(s, l->job, row, k);
                if (n > 1) sim_violation(s, "lease %" PRIu64 " in the journal holds a sample as the third one", l->id);
                if (n > 0) sim_hit(s, SIM_LEASE_RESTORED_TWICE);
                sim_bit_set(own.bits, row, k);
                j->rows[row].was_held = true;
            }
        if (is_empty(own.bits)) continue;
        sim_hit(s, SIM_LEASE_RESTORED);
        s->live.v = sim_grow(s->live.v, &s->live.capacity, s->live.n, sizeof *s->live.v);
        s->live.v[s->live.n++] = own;
    }
}
