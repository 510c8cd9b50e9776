#include "sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A body the core holds: it must come back once, in an append or a release. */
typedef struct { uint8_t *data; } held_body;

static coord_body lend(sim *s, const uint8_t *data, size_t n)
{
    held_body *b = malloc(sizeof *b);
    FL_ASSERT(b);
    b->data = malloc(n + 1);
    FL_ASSERT(b->data);
    memcpy(b->data, data, n);
    s->n_bodies++;
    return (coord_body){ b->data, n, b };
}

static void take_back(sim *s, const coord_body *body)
{
    if (!body->owner) return;
    held_body *b = body->owner;
    free(b->data);
    free(b);
    s->n_bodies--;
}

int64_t sim_shell_now(const sim *s) { return s->now_ms + s->jump_ms; }

static bool result_is_valid(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces)
{
    (void)context;
    (void)n_vocab;
    return n_pieces > 0 && pieces[0].bytes > 0 && *(const uint8_t *)pieces[0].data == 0xA5;
}

static bool verdict_is_valid(void *context, fl_bytes verdict) { return result_is_valid(context, 0, &verdict, 1); }

/* Step the core, and let the history see what it decided. */
void sim_shell_step(sim *s, const event *ev)
{
    fl_err err = { 0 };
    sim_see_before(s, ev);
    size_t appends = s->actions.appends.n, journal = s->actions.journal.n, sends = s->actions.sends.n;
    fl_status st = coord_step(s->core, sim_shell_now(s), ev, &s->actions, &err);
    if (st != FL_OK && st != FL_NOT_FOUND && st != FL_CONFLICT) sim_violation(s, "the core refuses event %d: %s", ev->type, err.text);
    sim_see_step(s, ev, appends, journal, sends);
}

static void clear_inbox(sim *s)
{
    for (size_t i = 0; i < s->n_inbox; i++) sim_packet_free(s->inbox_packets[i]);
    s->n_inbox = 0;
}

void sim_shell_take(sim *s, const event *ev, sim_packet *packet)
{
    if (!s->is_up) {
        sim_packet_free(packet);
        return;
    }
    size_t capacity = s->inbox_capacity;
    s->inbox = sim_grow(s->inbox, &s->inbox_capacity, s->n_inbox, sizeof *s->inbox);
    s->inbox_packets = sim_grow(s->inbox_packets, &capacity, s->n_inbox, sizeof *s->inbox_packets);
    s->inbox[s->n_inbox] = *ev;
    s->inbox_packets[s->n_inbox++] = packet;
    if (s->turn_is_set) return;
    s->turn_is_set = true;
    int64_t delay = sim_below(s, 3);
    if (s->now_ms < s->slow_disk_until_ms) delay += sim_below(s, 800);
    sim_at(s, s->now_ms + delay, SIM_TURN, 0, 0, NULL);
}

/* The process is gone, with all it had not made durable. */
void sim_shell_die(sim *s)
{
    sim_log(s, "the coordinator dies");
    coord_close(s->core, &s->actions);
    s->core = NULL;
    for (size_t i = 0; i < s->actions.appends.n; i++) take_back(s, &s->actions.appends.v[i].body);
    for (size_t i = 0; i < s->actions.sends.n; i++)
        if (s->actions.sends.v[i].type == ACTION_RELEASE) take_back(s, &s->actions.sends.v[i].body);
    action_list_clear(&s->actions);
    clear_inbox(s);
    if (s->n_bodies != 0) sim_violation(s, "%ld bodies were neither appended nor released", s->n_bodies);
    s->n_bodies = 0;
    s->turn_sends = 0;
    s->is_up = s->is_kept = s->is_draining = false;
    for (int i = 0; i < s->n_jobs; i++) sim_ledger_crash(s, &s->jobs[i]);
    for (int i = 0; i < s->n_workers; i++) {
        sim_worker *w = &s->workers[i];
        bool is_seen = !sim_chance(s, 300);              /* else its socket connects again by itself and it never knows */
        if (!is_seen) sim_hit(s, SIM_LINK_CUT_UNSEEN);
        sim_worker_cut(s, w, 0, is_seen);
    }
    sim_at(s, s->now_ms + 50 + sim_below(s, sim_chance(s, 150) ? 40000 : 4000), SIM_RESTART, 0, 0, NULL);
}

bool sim_shell_crash(sim *s, sim_hit_kind fault, uint32_t in_100000)
{
    if (s->now_ms >= s->calm_ms || sim_below(s, 100000) >= in_100000) return false;
    sim_hit(s, fault);
    sim_shell_die(s);
    return true;
}

/* Sends leave; those that wait for a sync only when `all`. False: it crashed amid them. */
static bool perform_sends(sim *s, bool all)
{
    for (size_t i = 0; i < s->actions.sends.n; i++) {
        action *a = &s->actions.sends.v[i];
        if (a->after_sync && !all) continue;
        if (i == s->actions.sends.n / 2 && sim_shell_crash(s, SIM_CRASH_AMID_SENDS, 60)) return false;
        if (a->type == ACTION_RELEASE) {
            take_back(s, &a->body);
            a->body.owner = NULL;
        } else if (a->type == ACTION_NOTE) {
            sim_log(s, "  core: %s", a->text);
        } else if (a->type == ACTION_SEND) {
            sim_see_send(s, a);
            for (int k = 0; k < s->n_workers; k++) {
                sim_worker *w = &s->workers[k];
                if (!w->is_alive || w->id != a->worker.v) continue;
                if (w->connection != 0) sim_send(s, w, false, &a->msg, NULL, 0);
                else if (sim_chance(s, 300)) {
                    sim_hit(s, SIM_UNREACHABLE);
                    sim_shell_take(s, &(event){ .type = EVENT_UNREACHABLE, .worker = a->worker }, NULL);
                }
            }
        } else {
            sim_see_send(s, a);
            sim_client_closed(s, sim_job_of(s, a->job.v));
        }
    }
    return true;
}

/* Phase 1; the jobs' groups one after the other. False: it crashed. */
static bool perform_appends(sim *s, bool *is_full)
{
    *is_full = false;
    if (s->actions.appends.n > 0 && sim_shell_crash(s, SIM_CRASH_BEFORE_WRITE, 300)) return false;
    for (int k = 0; k < s->n_jobs; k++) {
        sim_job *j = &s->jobs[k];
        bool any = false, is_new = false, is_close = false;
        for (size_t i = 0; i < s->actions.appends.n; i++) {
            action *a = &s->actions.appends.v[i];
            if (a->job.v != j->id.v) continue;
            any = true;
            is_new |= sim_ledger_append(s, j, &a->record);
            is_close |= a->record.kind == LEDGER_CLOSE;
        }
        if (!any) continue;
        if (s->now_ms < s->disk_full_until_ms) {
            sim_ledger_cut_back(j);
            sim_hit(s, SIM_DISK_FULL);
            *is_full = true;
            return true;
        }
        if (is_new && sim_shell_crash(s, SIM_CRASH_AT_ROLL, 500)) return false;
        if (sim_shell_crash(s, SIM_CRASH_BEFORE_SYNC, 150)) return false;
        sim_ledger_mark(j);
        if (is_close && sim_shell_crash(s, SIM_CRASH_AT_CLOSE, 1500)) return false;
        if (sim_shell_crash(s, SIM_CRASH_BEFORE_SYNC, 300)) return false;
        sim_ledger_sync(j);
        if (is_close && sim_shell_crash(s, SIM_CRASH_AT_CLOSE, 1500)) return false;
        for (size_t i = 0; i < s->actions.appends.n; i++)
            if (s->actions.appends.v[i].job.v == j->id.v) take_back(s, &s->actions.appends.v[i].body);
        sim_actions_drop_appends(&s->actions, j->id);
        if (sim_shell_crash(s, SIM_CRASH_AFTER_SYNC, 300)) return false;
    }
    return true;
}

void sim_shell_perform(sim *s)
{
    bool is_full;
    if (!perform_appends(s, &is_full)) return;
    if (is_full) {
        if (!perform_sends(s, false)) return;
        sim_actions_keep(&s->actions);
        s->turn_sends = s->actions.sends.n;
        if (!s->is_kept) sim_shell_step(s, &(event){ .type = EVENT_DISK, .disk_full = true, .text = "the spool's disk is full" });
        s->is_kept = true;
        return;
    }
    for (size_t i = 0; i < s->actions.journal.n; i++) sim_journal_perform(s, &s->actions.journal.v[i]);     /* one transaction */
    if (s->actions.journal.n > 0 && sim_shell_crash(s, SIM_CRASH_AFTER_JOURNAL, 300)) return;
    if (!perform_sends(s, true)) return;
    action_list_clear(&s->actions);
    s->turn_sends = 0;
    if (!s->is_kept) return;
    s->is_kept = false;
    sim_shell_step(s, &(event){ .type = EVENT_DISK });
    sim_shell_perform(s);
}

void sim_shell_turn(sim *s)
{
    s->turn_is_set = false;
    if (!s->is_up) return;
    size_t n = 1 + sim_below(s, 16), i;
    for (i = 0; i < s->n_inbox && i < n; i++) {
        event ev = s->inbox[i];
        sim_packet *p = s->inbox_packets[i];
        if (p) {
            ev.msg = &p->msg;
            if (p->msg.type == WIRE_RESULT || p->msg.type == WIRE_DETOK) ev.body = lend(s, p->body, p->body_bytes);
        }
        sim_shell_step(s, &ev);
        sim_packet_free(p);
        s->inbox_packets[i] = NULL;
    }
    memmove(s->inbox, s->inbox + i, (s->n_inbox - i) * sizeof *s->inbox);
    memmove(s->inbox_packets, s->inbox_packets + i, (s->n_inbox - i) * sizeof *s->inbox_packets);
    s->n_inbox -= i;
    sim_shell_perform(s);
    if (s->is_up && s->n_inbox > 0 && !s->turn_is_set) {
        s->turn_is_set = true;
        sim_at(s, s->now_ms + 1, SIM_TURN, 0, 0, NULL);
    }
}

typedef struct { sim_job *j; row_table *rows; coord_job spec; char fingerprint[32], numerics[32]; } replay;

static fl_status replay_record(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    replay *p = context;
    sim_row *row = r->row.v < p->j->n_rows ? &p->j->rows[r->row.v] : NULL;
    switch (r->kind) {
    case LEDGER_RESULT:
        if (r->piece + 1 < r->n_pieces) break;
        row_table_commit(p->rows, r->row, r->sample);
        row->durable |= 1u << r->sample;
        p->spec.n_tokens += r->n_tokens;
        break;
    case LEDGER_ROW_ERROR: case LEDGER_INGEST_ERROR:
        row_table_fail(p->rows, r->row);
        row->has_error = true;
        if (p->j->n_rows > p->j->n_base) p->j->rows[p->j->n_base + r->row.v].has_error = true;
        break;
    case LEDGER_PIN:
        snprintf(p->fingerprint, sizeof p->fingerprint, "%.*s", (int)r->fingerprint.bytes, (const char *)r->fingerprint.data);
        snprintf(p->numerics, sizeof p->numerics, "%.*s", (int)r->numerics.bytes, (const char *)r->numerics.data);
        p->spec.is_pinned = true;
        p->spec.n_vocab = r->n_vocab;
        p->spec.fingerprint = wire_text(p->fingerprint);
        p->spec.numerics = wire_text(p->numerics);
        break;
    case LEDGER_DETOK:
        p->spec.has_detok = true;
        break;
    case LEDGER_CLOSE:
        p->j->is_closed = true;
        p->spec.state = r->cause == LEDGER_COMPLETED ? JOB_COMPLETED : r->cause == LEDGER_CANCELLED ? JOB_CANCELLED : JOB_EXPIRED;
        break;
    default:
        break;
    }
    return FL_OK;
}

/* Rebuild a job from its ledger and hand it to the core. */
bool sim_shell_add_job(sim *s, sim_job *j)
{
    replay p = { .j = j, .spec = { .id = j->id, .journal_state = j->journal_state, .limits = j->limits } };
    ledger_cursor cursor = { 0 };
    fl_status st = row_table_open(&p.rows, j->n_base, NULL);
    for (uint32_t i = 0; i < j->n_base && st == FL_OK; i++) st = row_table_add(p.rows, j->rows[i].n, 10 + i % 7, NULL);
    if (st == FL_OK && j->n_rows > j->n_base) st = row_table_add_grades(p.rows, NULL);
    FL_ASSERT(st == FL_OK);
    if (!sim_ledger_walk(s, j, &cursor, replay_record, &p)) {
        row_table_close(p.rows);
        return false;
    }
    sim_see_job(s, j);
    sim_shell_step(s, &(event){ .type = EVENT_JOB_ADD, .job = &p.spec, .rows = &p.rows });
    return true;
}

static int newest_first(const void *a, const void *b)
{
    uint64_t x = ((const sim_lease *)a)->id, y = ((const sim_lease *)b)->id;
    return x < y ? 1 : x > y ? -1 : 0;
}

void sim_shell_start(sim *s)
{
    if (s->is_up) return;
    sim_log(s, "the coordinator starts");
    coord_options options = { .beat_ms = SIM_BEAT_MS, .term_ms = SIM_TERM_MS, .progress_ms = SIM_PROGRESS_MS, .copy_ms = SIM_COPY_MS, .next_lease = s->next_lease,
                              .result_is_valid = result_is_valid, .verdict_is_valid = verdict_is_valid };
    fl_status st = coord_open(&s->core, &options, NULL);
    FL_ASSERT(st == FL_OK);
    s->is_up = true;
    s->turn_is_set = false;
    if (s->leases.n > 0) qsort(s->leases.v, s->leases.n, sizeof *s->leases.v, newest_first);
    s->live.n = 0;
    for (int i = 0; i < s->n_jobs; i++) {
        sim_job *j = &s->jobs[i];
        if (j->is_submitted && !j->is_deleted && !sim_shell_add_job(s, j)) return;
        if (j->is_closed && !j->has_outputs && !j->is_deleted) sim_client_closed(s, j);
    }
    sim_see_restart(s);                                  /* after replay, which may have found groups that survived unsynced */
    for (size_t i = 0; i < s->leases.n; i++) {
        const sim_lease *l = &s->leases.v[i];
        lease_item items[SIM_ROWS_MAX * SIM_N_MAX];
        sim_shell_step(s, &(event){ .type = EVENT_LEASE_RESTORE, .lease = { l->id }, .job_id = s->jobs[l->job].id, .worker = { l->worker }, .items = items, .n_items = sim_lease_items(l, items) });
    }
    sim_client_expire(s, true);
    if (sim_shell_crash(s, SIM_CRASH_IN_RESTART, 2000)) return;
    sim_shell_perform(s);
}

void sim_shell_stop(sim *s)
{
    if (s->core) {
        coord_close(s->core, &s->actions);
        s->core = NULL;
    }
    for (size_t i = 0; i < s->actions.appends.n; i++) take_back(s, &s->actions.appends.v[i].body);
    for (size_t i = 0; i < s->actions.sends.n; i++)
        if (s->actions.sends.v[i].type == ACTION_RELEASE) take_back(s, &s->actions.sends.v[i].body);
    action_list_clear(&s->actions);
    clear_inbox(s);
    if (s->n_bodies != 0 && !s->violation[0]) sim_violation(s, "%ld bodies were neither appended nor released", s->n_bodies);
}
