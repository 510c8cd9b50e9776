#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

fl_status coord_open(coord **out, const coord_options *options, fl_err *err)
{
    if (options->next_lease == 0 || options->beat_ms == 0 || options->term_ms < 2 * options->beat_ms || options->progress_ms == 0)
        return fl_fail(err, FL_INVALID, "coordinator: a lease term of %u ms must be at least two heartbeats of %u ms", options->term_ms, options->beat_ms);
    coord *c = coord_alloc(1, sizeof *c);
    c->options = *options;
    c->next_lease = options->next_lease;
    c->fleet_version = 1;
    c->shard_items = coord_alloc(GRANT_ITEMS_MAX, sizeof *c->shard_items);
    *out = c;
    return FL_OK;
}

void coord_close(coord *c, action_list *out)
{
    if (!c) return;
    c->out = out;
    for (size_t i = 0; i < c->n_leases; i++) {
        lease *l = c->leases[i];
        while (l->partials) partial_drop(c, l, l->partials->row, l->partials->sample);
        free(l->samples);
        free(l);
    }
    for (size_t i = 0; i < c->n_detoks; i++) {
        send_release(c, c->detoks[i].body);
        free(c->detoks[i].fingerprint);
    }
    for (size_t i = 0; i < c->n_workers; i++) worker_free(c->workers[i]);
    for (size_t i = 0; i < c->n_jobs; i++) job_free(c->jobs[i]);
    id_map_fini(&c->job_of);
    id_map_fini(&c->worker_of);
    id_map_fini(&c->lease_of);
    free(c->leases);
    free(c->detoks);
    free(c->workers);
    free(c->jobs);
    free(c->open);
    free(c->shard_items);
    free(c);
}

/* A lease of the journal gets a full new term. What two workers' leases name is held by both: the newer one is its copy. */
static fl_status restore_lease(coord *c, const event *ev, fl_err *err)
{
    job *j = job_find(c, ev->job_id);
    if (ev->lease.v == 0 || ev->lease.v >= c->next_lease)
        return fl_fail(err, FL_INVALID, "lease %" PRIu64 " was never given out; the counter stands at %" PRIu64, ev->lease.v, c->next_lease);
    if (lease_find(c, ev->lease)) return fl_fail(err, FL_CONFLICT, "lease %" PRIu64 " is here already", ev->lease.v);
    lease *l = j && j->state == JOB_OPEN ? lease_add(c, ev->lease, j, ev->worker, ev->items, ev->n_items, true) : NULL;
    if (!l) action_add(&c->out->journal, ACTION_LEASE_END)->lease = ev->lease;
    return FL_OK;
}

static fl_status close_job(coord *c, const event *ev, fl_err *err)
{
    job *j = job_find(c, ev->job_id);
    if (!j) return fl_fail(err, FL_NOT_FOUND, "there is no job-%016" PRIx64, ev->job_id.v);
    if (j->state != JOB_OPEN) return fl_fail(err, FL_CONFLICT, "job-%016" PRIx64 " is %s already", j->id.v, job_state_name(j->state));
    FL_ASSERT(ev->cause == LEDGER_CANCELLED || ev->cause == LEDGER_EXPIRED);
    job_close(c, j, ev->cause);
    return FL_OK;
}

static fl_status take_message(coord *c, const event *ev, fl_err *err)
{
    switch (ev->msg->type) {
    case WIRE_HELLO:
        if (ev->worker.v == 0 || ev->msg->hello.worker != ev->worker.v) break;
        worker_message(c, ev->worker, ev->msg, ev->body);
        return FL_OK;
    case WIRE_BEAT: case WIRE_DETOK: case WIRE_RESULT: case WIRE_ROW_ERROR: case WIRE_HANDBACK: case WIRE_BYE:
        if (ev->worker.v == 0) break;
        worker_message(c, ev->worker, ev->msg, ev->body);
        return FL_OK;
    default:
        break;
    }
    send_release(c, ev->body);
    return fl_fail(err, FL_INVALID, "a %s message that no worker may send so (worker %016" PRIx64 ")", wire_type_name(ev->msg->type), ev->worker.v);
}

static void worker_dead(coord *c, const event *ev)
{
    worker *w = worker_find(c, ev->worker);
    worker_leases_end(c, ev->worker, "died");
    if (w) worker_gone(c, w);
}

static void drain(coord *c, bool finish)
{
    c->is_draining = true;
    c->drain = finish;
    for (size_t i = 0; i < c->n_workers; i++) {
        worker *w = c->workers[i];
        if (w->was_stopped && finish) continue;          /* a second, harder stop goes out again */
        send_to(c, w->id, WIRE_STOP, false)->msg.stop.drain = finish;
        w->was_stopped = true;
    }
}

/* Rates run over PACE_SAMPLES of these, so over some minutes at a service's beat. */
static void note_pace(const coord *c, job *j)
{
    int64_t every_ms = 2 * (int64_t)c->options.beat_ms;
    if (j->state == JOB_OPEN) pace_note(&j->pace, c->now_ms, every_ms > 1000 ? every_ms : 1000, j->n_tokens, row_table_n_completed(j->rows) + row_table_n_failed(j->rows));
}

static void tick(coord *c)
{
    for (size_t i = 0; i < c->n_jobs; i++) {
        note_pace(c, c->jobs[i]);
        if (c->jobs[i]->state == JOB_OPEN) job_check_limits(c, c->jobs[i]);
    }
    for (size_t i = c->n_leases; i-- > 0;) {
        if (i >= c->n_leases) continue;                  /* a stalled lease takes copies of its rows with it */
        lease *l = c->leases[i];
        const worker *w = worker_find(c, l->worker);
        int64_t moved_ms = w && w->progress_ms > l->granted_ms ? w->progress_ms : l->granted_ms;
        if (c->now_ms > l->deadline_ms) lease_lost(c, l, false);
        else if (w && c->now_ms - moved_ms > l->progress_limit_ms) lease_lost(c, l, true);
    }
    for (size_t i = c->n_workers; i-- > 0;) {
        worker *w = c->workers[i];
        if (c->now_ms - w->heard_ms <= c->options.term_ms) continue;
        worker_leases_end(c, w->id, "is silent");
        send_note(c, "worker %016" PRIx64 " (%.200s) was not heard for %u ms and is taken for gone", w->id.v, w->place, c->options.term_ms);
        worker_gone(c, w);
    }
}

fl_status coord_step(coord *c, int64_t now_ms, const event *ev, action_list *out, fl_err *err)
{
    FL_ASSERT(now_ms >= c->now_ms);
    fl_status st = FL_OK;
    worker *w;
    c->now_ms = now_ms;
    c->out = out;
    switch (ev->type) {
    case EVENT_JOB_ADD: st = job_add(c, ev->job, ev->rows, err); break;
    case EVENT_JOB_REMOVE: st = job_remove(c, ev->job_id, err); break;
    case EVENT_JOB_CLOSE: st = close_job(c, ev, err); break;
    case EVENT_LEASE_RESTORE: return restore_lease(c, ev, err);       /* nothing is granted before all are restored */
    case EVENT_MESSAGE: st = take_message(c, ev, err); break;
    case EVENT_WORKER_GONE: worker_dead(c, ev); break;
    case EVENT_UNREACHABLE:
        if ((w = worker_find(c, ev->worker)) != NULL) w->is_unreachable = true;
        c->fleet_version++;
        break;
    case EVENT_DRAIN: drain(c, ev->drain); break;
    case EVENT_DISK:
        c->must_grant_all |= c->is_disk_full && !ev->disk_full;
        c->is_disk_full = ev->disk_full;
        snprintf(c->disk_text, sizeof c->disk_text, "%s", ev->text ? ev->text : "the disk is full");
        break;
    case EVENT_TICK: tick(c); break;
    }
    if (st != FL_OK) return st;
    if (c->must_grant_all) grant_all(c);
    else if (ev->type == EVENT_MESSAGE && (w = worker_find(c, ev->worker)) != NULL) grant_worker(c, w);
    if (c->must_grant_graders) grant_graders(c);
    return FL_OK;
}
