/* daemon_start.c - how the daemon comes to life from what a spool holds, and how it ends. */
#include "coordinator/daemon_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "coordinator/spool_gc.h"
#include "proto/log.h"

static fl_status push_job(coord_daemon *d, stored_job **job, fl_err *err)
{
    if (d->n_jobs == d->jobs_capacity) {
        size_t capacity = d->jobs_capacity ? d->jobs_capacity * 2 : 16;
        stored_job **grown = realloc(d->jobs, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for %zu jobs", capacity);
        d->jobs = grown;
        d->jobs_capacity = capacity;
    }
    d->jobs[d->n_jobs++] = *job;
    *job = NULL;
    return FL_OK;
}

static fl_status read_job(void *context, const journal_job *entry, fl_err *err)
{
    coord_daemon *d = context;
    stored_job *job = NULL;
    char name[FL_JOB_NAME_BYTES];
    fl_err why;
    fl_job_name(entry->id, name);
    fl_status st = job_store_open(&job, d->spool, entry, true, &why);
    if (st == FL_CORRUPT) return fl_fail(err, st, "%.330s; `tokenfleet delete %s --spool %.60s` removes it, so that the others go on", why.text, name, spool_dir(d->spool));
    if (st != FL_OK) return fl_fail(err, st, "%s", why.text);
    if (entry->state == JOB_OPEN) st = job_store_drop_outputs(job, err);
    if (st == FL_OK && job->state != JOB_OPEN) {         /* its counts are all that is asked for from now on */
        row_table_close(job->table);
        job->table = NULL;
        if (!job->outputs_due) job_store_rest(job);
    }
    if (st == FL_OK) st = push_job(d, &job, err);
    job_store_close(job);
    return st;
}

static fl_status remove_stray(void *context, const gc_item *item, fl_err *err)
{
    (void)context;
    fl_log(FL_LOG_INFO, "%s is %s and is removed", item->path, item->what);
    return spool_tree_remove(item->path, err);
}

/* What killed processes left behind, and what a retry made outdated. */
static fl_status remove_strays(coord_daemon *d, fl_err *err)
{
    gc_job *named = calloc(d->n_jobs + 1, sizeof *named);
    if (!named) return fl_fail(err, FL_FULL, "no memory for a list of jobs");
    for (size_t i = 0; i < d->n_jobs; i++) named[i] = (gc_job){ .id = d->jobs[i]->id, .generation = d->jobs[i]->generation };
    fl_status st = spool_gc_walk(d->spool, named, d->n_jobs, remove_stray, NULL, err);
    free(named);
    return st;
}

fl_status daemon_add_to_core(coord_daemon *d, stored_job *job, fl_err *err)
{
    coord_job as = { .id = job->id, .seed = job->settings.seed, .max_context = job->settings.max_context, .now_s = job->settings.now_s,
                     .defaults = wire_text(job->settings.defaults), .model = wire_text(job->settings.model), .is_pinned = job->is_pinned,
                     .has_detok = job->has_detok, .fingerprint = wire_text(job->fingerprint), .numerics = wire_text(job->numerics),
                     .n_vocab = job->n_vocab, .n_tokens = job->counts.tokens,
                     .limits = { job->settings.times.row_queue_s * 1000, job->settings.times.row_run_s * 1000, job->settings.times.row_s * 1000 } };
    event ev = { .type = EVENT_JOB_ADD, .job = &as, .rows = &job->table };
    return daemon_step(d, &ev, err);
}

/* A lease whose job is closed: the crash came before its end reached the journal. */
typedef struct { coord_daemon *d; lease_id *gone; size_t n_gone, capacity; worker_id *workers; size_t n_workers; } restored;

static fl_status note_holder(restored *r, worker_id worker, fl_err *err)
{
    for (size_t i = 0; i < r->n_workers; i++) {
        if (r->workers[i].v == worker.v) return FL_OK;
    }
    worker_id *grown = realloc(r->workers, (r->n_workers + 1) * sizeof *grown);
    if (!grown) return fl_fail(err, FL_FULL, "no memory for %zu workers", r->n_workers + 1);
    r->workers = grown;
    r->workers[r->n_workers++] = worker;
    return FL_OK;
}

/* The workers of an earlier `run` died with it: what they held is free at once. */
static fl_status bury_workers(coord_daemon *d, const restored *r, fl_err *err)
{
    fl_status st = FL_OK;
    for (size_t i = 0; d->workers_are_children && st == FL_OK && i < r->n_workers; i++) {
        event ev = { .type = EVENT_WORKER_GONE, .worker = r->workers[i] };
        st = daemon_step(d, &ev, err);
        if (st != FL_FULL) st = FL_OK;                   /* one that holds nothing any more is not known */
    }
    return st;
}

static fl_status restore_lease(void *context, lease_id lease, job_id job, worker_id worker, const lease_item *items, uint32_t n_items, fl_err *err)
{
    restored *r = context;
    event ev = { .type = EVENT_LEASE_RESTORE, .lease = lease, .job_id = job, .worker = worker, .items = items, .n_items = n_items };
    fl_status st = daemon_step(r->d, &ev, err);
    if (st == FL_OK) return note_holder(r, worker, err);
    if (st == FL_FULL) return st;
    if (r->n_gone == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 16;
        lease_id *grown = realloc(r->gone, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for %zu leases", capacity);
        r->gone = grown;
        r->capacity = capacity;
    }
    r->gone[r->n_gone++] = lease;
    return FL_OK;
}

/* What the ledgers say and the journal does not know yet. */
static fl_status mend_journal(coord_daemon *d, const restored *leases, fl_err *err)
{
    fl_status st = journal_begin(d->journal, err);
    for (size_t i = 0; st == FL_OK && i < leases->n_gone; i++) {
        action end = { .type = ACTION_LEASE_END, .lease = leases->gone[i] };
        st = journal_perform(d->journal, &end, err);
    }
    for (size_t i = 0; st == FL_OK && i < d->n_jobs; i++) {
        action state = { .type = ACTION_JOB_STATE, .job = d->jobs[i]->id, .state = d->jobs[i]->state };
        if (d->jobs[i]->state != JOB_OPEN) st = journal_perform(d->journal, &state, err);
    }
    if (st == FL_OK) st = journal_commit(d->journal, err);
    if (st != FL_OK) journal_rollback(d->journal);
    return st;
}

static fl_status replay_spool(coord_daemon *d, fl_err *err)
{
    coord_options options = COORD_OPTIONS_DEFAULT;
    restored leases = { .d = d };
    options.beat_ms = d->beat_ms;
    if (d->term_ms) options.term_ms = d->term_ms;
    if (d->progress_ms) options.progress_ms = d->progress_ms;
    options.result_is_valid = daemon_result_is_valid;
    options.verdict_is_valid = daemon_verdict_is_valid;
    options.line_bytes = daemon_line_bytes;
    options.context = d;
    fl_status st = journal_jobs(d->journal, read_job, d, err);
    if (st == FL_OK) st = remove_strays(d, err);
    if (st == FL_OK) st = journal_next_lease(d->journal, &options.next_lease, err);
    if (st == FL_OK) st = coord_open(&d->core, &options, err);
    for (size_t i = 0; st == FL_OK && i < d->n_jobs; i++) {
        if (d->jobs[i]->state == JOB_OPEN) st = daemon_add_to_core(d, d->jobs[i], err);
    }
    if (st == FL_OK) st = journal_leases(d->journal, restore_lease, &leases, err);
    if (st == FL_OK) st = mend_journal(d, &leases, err);
    if (st == FL_OK) st = bury_workers(d, &leases, err);
    if (st == FL_OK) st = daemon_expire_jobs(d, err);    /* before anybody is given its rows */
    free(leases.gone);
    free(leases.workers);
    return st;
}

/* A `run` that was killed left its socket's folder; we hold the spool, so nobody uses it. */
static void remove_old_socket(const spool *s, const char *own)
{
    char old[SPOOL_ENDPOINT_MAX];
    if (!spool_read_endpoint(spool_dir(s), old)) return;
    char *slash = strrchr(old, '/');
    if (strcmp(old, own) == 0 || strncmp(old, "ipc://", 6) != 0 || !slash || strcmp(slash, "/s") != 0) return;
    *slash = '\0';
    const char *name = strrchr(old, '/');
    if (!name || strncmp(name, "/" DAEMON_SOCKET_DIR, strlen("/" DAEMON_SOCKET_DIR)) != 0) return;
    *slash = '/';
    unlink(old + 6);
    *slash = '\0';
    rmdir(old + 6);
}

static fl_status announce_endpoint(coord_daemon *d, fl_err *err)
{
    char *path = spool_path(d->spool, SPOOL_ENDPOINT_FILE);
    const char *endpoint = transport_endpoint(d->transport);
    remove_old_socket(d->spool, endpoint);
    fl_status st = path ? job_store_write_file(path, endpoint, strlen(endpoint), err) : fl_fail(err, FL_FULL, "no memory for a path");
    free(path);
    return st;
}

fl_status daemon_open(coord_daemon **out, const daemon_options *options, fl_err *err)
{
    fl_status st = FL_OK;
    char *journal_path = NULL;
    coord_daemon *d = calloc(1, sizeof *d);
    if (!d) return fl_fail(err, FL_FULL, "no memory for a coordinator");
    coord_options defaults = COORD_OPTIONS_DEFAULT;
    fl_arena_init(&d->messages, 1 << 20, 0);
    d->beat_ms = options->beat_ms ? options->beat_ms : defaults.beat_ms;
    d->term_ms = options->term_ms;
    d->progress_ms = options->progress_ms;
    d->workers_are_children = options->workers_are_children;
    d->now = daemon_turn_new();
    if (d->now) d->now->list.turn = ++d->n_turns;
    if (options->out.path) d->out = strdup(options->out.path);
    if (options->errors.path) d->errors = strdup(options->errors.path);
    d->is_out_new = options->out.is_new;
    d->is_errors_new = options->errors.is_new;
    if (!d->now || (options->out.path && !d->out) || (options->errors.path && !d->errors)) { st = fl_fail(err, FL_FULL, "no memory for a coordinator"); goto done; }
    if ((st = spool_open(&d->spool, options->spool, SPOOL_CREATE | (options->unsafe_spool ? SPOOL_UNSAFE : 0u), err)) != FL_OK) goto done;
    if ((st = transport_open(&d->transport, options->endpoint, err)) != FL_OK) goto done;
    if (!(journal_path = spool_path(d->spool, "journal.db"))) { st = fl_fail(err, FL_FULL, "no memory for a path"); goto done; }
    if ((st = journal_open(&d->journal, journal_path, err)) != FL_OK) goto done;
    if ((st = replay_spool(d, err)) != FL_OK) goto done;
    if ((st = service_open(&d->service, d, err)) != FL_OK) goto done;
    if ((st = announce_endpoint(d, err)) != FL_OK) goto done;
    *out = d;
    d = NULL;
done:
    free(journal_path);
    daemon_close(d);
    return st;
}

void daemon_close(coord_daemon *d)
{
    if (!d) return;
    daemon_end_outputs(d);
    daemon_end_jobs(d);
    service_close(d->service);
    if (d->core) coord_close(d->core, &d->now->list);
    daemon_turn_free(d->now);
    daemon_turn_free(d->spare);
    for (turn *t = d->kept_first, *next; t; t = next) {
        next = t->next;
        daemon_turn_free(t);
    }
    for (size_t i = 0; i < d->n_jobs; i++) job_store_close(d->jobs[i]);
    free(d->jobs);
    peers_fini(&d->peers);
    transport_close(d->transport);
    journal_close(d->journal);
    char *path = d->spool && d->service ? spool_path(d->spool, SPOOL_ENDPOINT_FILE) : NULL;
    if (path) unlink(path);
    free(path);
    spool_close(d->spool);
    fl_arena_fini(&d->messages);
    free(d->out);
    free(d->errors);
    free(d);
}

fl_status daemon_add_job(coord_daemon *d, stored_job **job, fl_err *err)
{
    stored_job *added = *job;
    if (added->created_s == 0) added->created_s = (uint64_t)time(NULL);
    fl_status st = journal_begin(d->journal, err);
    if (st == FL_OK) st = journal_job_add(d->journal, added->id, added->created_s, added->settings.name, err);
    if (st == FL_OK) st = journal_commit(d->journal, err);
    if (st != FL_OK) {
        journal_rollback(d->journal);
        return st;
    }
    if ((st = push_job(d, job, err)) == FL_OK) st = daemon_add_to_core(d, added, err);
    return st;
}
