/* daemon_jobs.c - jobs that run again or go while the daemon serves: what may take long (writing a ledger anew, removing a folder) happens in the background,
 * what decides is one transaction of the journal. And jobs whose time is over. */
#include "coordinator/daemon_state.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "proto/log.h"

/* ---- removing ---- */

static fl_status add_path(path_list *list, const char *path, fl_err *err)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 16;
        char **grown = realloc(list->v, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for a list of %zu paths", capacity);
        list->v = grown;
        list->capacity = capacity;
    }
    if (!(list->v[list->n] = strdup(path))) return fl_fail(err, FL_FULL, "no memory for a path");
    list->n++;
    return FL_OK;
}

static void clear_paths(path_list *list)
{
    for (size_t i = 0; i < list->n; i++) free(list->v[i]);
    list->n = 0;
}

static bool has_path(const path_list *list, const char *path)
{
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->v[i], path) == 0) return true;
    }
    return false;
}

fl_status daemon_remove(coord_daemon *d, const char *path, fl_err *err)
{
    return add_path(&d->removals, path, err);
}

bool daemon_is_removing(const coord_daemon *d, const char *path)
{
    return has_path(&d->removals, path) || (d->remover.running && has_path(&d->being_removed, path));
}

size_t daemon_n_removing(const coord_daemon *d)
{
    return d->removals.n + (d->remover.running ? d->being_removed.n : 0);
}

static fl_status remove_paths(void *context, fl_err *err)
{
    const path_list *list = context;
    fl_status st = FL_OK;
    for (size_t i = 0; i < list->n && st == FL_OK; i++) st = spool_tree_remove(list->v[i], err);
    return st;
}

/* What cannot be removed stays until the next start, or until gc. */
static fl_status tend_removals(coord_daemon *d, fl_err *err)
{
    if (d->remover.running) {
        fl_err why;
        fl_status st = background_poll(&d->remover, &why);
        if (st == FL_AGAIN) return FL_OK;
        if (st != FL_OK) fl_log(FL_LOG_WARN, "%s; `tokenfleet gc` tries again", why.text);
        clear_paths(&d->being_removed);
    }
    if (d->removals.n == 0) return FL_OK;
    path_list empty = d->being_removed;
    d->being_removed = d->removals;
    d->removals = empty;
    return background_start(&d->remover, remove_paths, &d->being_removed, err);
}

/* ---- deleting ---- */

bool daemon_is_retrying(const coord_daemon *d, job_id job)
{
    return d->retrier.running && d->retry.named.id.v == job.v;
}

const char *daemon_job_busy(const coord_daemon *d, const stored_job *job)
{
    if (daemon_outputs_busy(d, job)) return "its output files are being written";
    if (daemon_is_retrying(d, job->id)) return "its failed rows are being prepared to run again";
    return service_job_busy(d->service, job->id);
}

/* One of those that the journal does not name any more. */
static fl_status forget_job(coord_daemon *d, stored_job *job, fl_err *err)
{
    event ev = { .type = EVENT_JOB_REMOVE, .job_id = job->id };
    fl_err why;
    if (daemon_step(d, &ev, &why) == FL_FULL) return fl_fail(err, FL_FULL, "%s", why.text);      /* a job that was closed at the start is not known to the core */
    fl_status st = daemon_remove(d, job->dir, err);
    job_store_close(job);
    return st;
}

static int compare_jobs(const void *a, const void *b)
{
    uint64_t x = (*(stored_job *const *)a)->id.v, y = (*(stored_job *const *)b)->id.v;
    return (x > y) - (x < y);
}

/* Out of the list of jobs, whose order stays; `gone` are sorted by id. */
static void unlist_jobs(coord_daemon *d, stored_job *const *gone, size_t n)
{
    size_t n_kept = 0;
    for (size_t i = 0; i < d->n_jobs; i++) {
        if (!bsearch(&d->jobs[i], gone, n, sizeof *gone, compare_jobs)) d->jobs[n_kept++] = d->jobs[i];
    }
    d->n_jobs = n_kept;
}

fl_status daemon_jobs_delete(coord_daemon *d, stored_job *const *jobs, size_t n, fl_err *err)
{
    stored_job **sorted = malloc((n + 1) * sizeof *sorted);
    job_id *ids = malloc((n + 1) * sizeof *ids);
    fl_status st = sorted && ids ? FL_OK : fl_fail(err, FL_FULL, "no memory to delete %zu jobs", n);
    for (size_t i = 0; st == FL_OK && i < n; i++) {
        const char *busy = daemon_job_busy(d, jobs[i]);
        sorted[i] = jobs[i];
        ids[i] = jobs[i]->id;
        if (jobs[i]->state == JOB_OPEN) st = fl_fail(err, FL_CONFLICT, "the job is running");
        else if (busy) st = fl_fail(err, FL_AGAIN, "%s", busy);
    }
    if (st == FL_OK) st = journal_jobs_delete(d->journal, ids, n, err);
    if (st == FL_OK) {
        qsort(sorted, n, sizeof *sorted, compare_jobs);
        unlist_jobs(d, sorted, n);
    }
    for (size_t i = 0; st == FL_OK && i < n; i++) st = forget_job(d, sorted[i], err);
    free(sorted);
    free(ids);
    return st;
}

/* ---- running again ---- */

static fl_status build_ledger(void *context, fl_err *err)
{
    retry_work *work = context;
    return job_retry_build(&work->fresh, work->spool, &work->named, &work->counts, err);
}

fl_status daemon_job_retry(coord_daemon *d, stored_job *job, fl_err *err)
{
    const char *busy = d->retrier.running ? "another job's failed rows are being prepared to run again" : daemon_job_busy(d, job);
    if (job->state == JOB_OPEN) return fl_fail(err, FL_CONFLICT, "the job is running");
    if (busy) return fl_fail(err, FL_AGAIN, "%s", busy);
    d->retry = (retry_work){ .spool = d->spool, .job = job,
                             .named = { .id = job->id, .state = job->state, .created_s = job->created_s, .generation = job->generation, .name = "" } };
    return background_start(&d->retrier, build_ledger, &d->retry, err);
}

const daemon_retry *daemon_last_retry(const coord_daemon *d) { return &d->last_retry; }

/* The job is what was built: others keep their pointers to it. Any failure ends the process. */
static fl_status reopen_job(coord_daemon *d, fl_err *err)
{
    stored_job *job = d->retry.job, *fresh = d->retry.fresh, before = *job;
    *job = *fresh;
    *fresh = before;
    fl_status st = job_store_drop_outputs(job, err);
    if (st == FL_OK) st = daemon_remove(d, fresh->ledger_dir, err);
    job_store_close(fresh);
    return st == FL_OK ? daemon_add_to_core(d, job, err) : st;
}

static fl_status tend_retry(coord_daemon *d, fl_err *err)
{
    daemon_retry *last = &d->last_retry;
    fl_err why = { 0 };
    if (!d->retrier.running) return FL_OK;
    fl_status st = background_poll(&d->retrier, &why), committed = FL_OK;
    if (st == FL_AGAIN) return FL_OK;
    if (st == FL_OK && d->retry.fresh) st = committed = job_retry_commit(d->journal, d->retry.fresh, &why);
    *last = (daemon_retry){ .job = d->retry.named.id, .status = st, .err = why, .counts = d->retry.counts };
    if (committed == FL_DISK_FULL) job_retry_abandon(d->retry.fresh);
    else if (committed != FL_OK) st = fl_fail(err, committed, "%s", why.text);
    else st = d->retry.fresh ? reopen_job(d, err) : FL_OK;
    d->retry = (retry_work){ 0 };
    return committed == FL_DISK_FULL ? FL_OK : st;
}

/* ---- expiring ---- */

fl_status daemon_expire_jobs(coord_daemon *d, fl_err *err)
{
    uint64_t now_s = (uint64_t)time(NULL);
    for (size_t i = 0; i < d->n_jobs; i++) {
        const stored_job *job = d->jobs[i];
        if (job->state != JOB_OPEN || job->generation > 1 || job->settings.times.expires_s == 0 || now_s < job->settings.times.expires_s) continue;
        event ev = { .type = EVENT_JOB_CLOSE, .job_id = job->id, .cause = LEDGER_EXPIRED };
        fl_err closed;
        fl_status st = daemon_step(d, &ev, &closed);     /* FL_CONFLICT: its closing record is not durable yet */
        if (st != FL_OK && st != FL_CONFLICT) return fl_fail(err, st, "%s", closed.text);
    }
    return FL_OK;
}

/* ---- both ---- */

bool daemon_has_jobs_work(const coord_daemon *d)
{
    return d->retrier.running || d->remover.running || d->removals.n > 0;
}

fl_status daemon_tend_jobs(coord_daemon *d, fl_err *err)
{
    fl_status st = tend_retry(d, err);
    return st == FL_OK ? tend_removals(d, err) : st;
}

void daemon_end_jobs(coord_daemon *d)
{
    if (background_wait(&d->retrier, NULL) == FL_OK) job_retry_abandon(d->retry.fresh);
    background_wait(&d->remover, NULL);
    clear_paths(&d->removals);
    clear_paths(&d->being_removed);
    free(d->removals.v);
    free(d->being_removed.v);
}
