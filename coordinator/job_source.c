#include "coordinator/job_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/daemon.h"
#include "coordinator/status_json.h"

#define PROBE_MS 2000
#define LIST_TRIES 20

/* The coordinator that holds the spool, when there is one and it answers. */
static client *client_of_spool(const char *spool_dir)
{
    char endpoint[SPOOL_ENDPOINT_MAX];
    client *c = NULL;
    json_t *reply = NULL;
    fl_err ignored;
    if (!spool_read_endpoint(spool_dir, endpoint)) return NULL;
    if (client_open(&c, endpoint, &ignored) != FL_OK) return NULL;
    if (client_call(c, "list", NULL, NULL, PROBE_MS, &reply, NULL, NULL, &ignored) == FL_OK) {
        json_decref(reply);
        return c;
    }
    client_close(c);                                     /* it was killed and left the file behind */
    return NULL;
}

fl_status job_source_open(job_source *s, const char *to, const char *spool_dir, bool lock, fl_err *err)
{
    *s = (job_source){ 0 };
    if ((to != NULL) == (spool_dir != NULL)) return fl_fail(err, FL_INVALID, "give either --to ENDPOINT or --spool DIR");
    if (to) return client_open(&s->client, to, err);
    if ((s->client = client_of_spool(spool_dir))) return FL_OK;
    fl_status st = spool_open(&s->spool, spool_dir, lock ? 0 : SPOOL_READ_ONLY, err);
    if (st != FL_OK) return st == FL_CONFLICT ? FL_IO : st;        /* held by a process that does not answer */
    fl_err why;
    st = run_files_recall(spool_dir, &s->files, &why);
    if (st == FL_OK || st == FL_NOT_FOUND) return FL_OK;
    job_source_close(s);
    return fl_fail(err, st, "%s", why.text);
}

void job_source_close(job_source *s)
{
    client_close(s->client);
    spool_close(s->spool);
    *s = (job_source){ 0 };
}

/* ---- a spool that nobody holds ---- */

typedef struct { journal_job *v; size_t n; } named_jobs;

static fl_status note_job(void *context, const journal_job *job, fl_err *err)
{
    named_jobs *jobs = context;
    journal_job *grown = realloc(jobs->v, (jobs->n + 1) * sizeof *grown);
    if (!grown) return fl_fail(err, FL_FULL, "no memory for a list of jobs");
    jobs->v = grown;
    jobs->v[jobs->n] = *job;
    jobs->v[jobs->n++].name = "";
    return FL_OK;
}

static fl_status read_names(const job_source *s, named_jobs *jobs, fl_err *err)
{
    journal *j = NULL;
    char *path = spool_path(s->spool, "journal.db");
    fl_status st = path ? journal_open_read_only(&j, path, err) : fl_fail(err, FL_FULL, "no memory for a path");
    if (st == FL_OK) st = journal_jobs(j, note_job, jobs, err);
    journal_close(j);
    free(path);
    if (st == FL_CONFLICT) return fl_fail(err, FL_IO, "the process that holds %s does not answer; try again when it does, or stop it", spool_dir(s->spool));
    return st;
}

static fl_status read_status(const job_source *s, const journal_job *named, bool details, json_t **out, fl_err *err)
{
    stored_job *job = NULL;
    fl_status st = job_store_open(&job, s->spool, named, false, err);
    if (st != FL_OK) return st;
    *out = status_of_job(job, NULL, NULL, details);
    job_store_close(job);
    return *out ? FL_OK : fl_fail(err, FL_FULL, "no memory for a job's status");
}

static fl_status list_spool(const job_source *s, json_t **reply, fl_err *err)
{
    named_jobs jobs = { 0 };
    json_t *list = json_array();
    fl_status st = read_names(s, &jobs, err);
    for (size_t i = 0; st == FL_OK && i < jobs.n; i++) {
        json_t *one = NULL;
        if ((st = read_status(s, &jobs.v[i], false, &one, err)) == FL_OK) json_array_append_new(list, one);
    }
    free(jobs.v);
    if (st == FL_OK) *reply = json_pack("{s:O, s:[]}", "jobs", list, "workers");
    json_decref(list);
    return st;
}

static fl_status choose_in_spool(job_source *s, const char *name, fl_err *err)
{
    named_jobs jobs = { 0 };
    fl_status st = read_names(s, &jobs, err);
    if (st == FL_OK && !name && jobs.n != 1) {
        st = fl_fail(err, jobs.n ? FL_INVALID : FL_NOT_FOUND, jobs.n ? "there are %zu jobs here; say which (`tokenfleet list` shows them)" : "the spool holds no job", jobs.n);
    }
    if (st == FL_OK && !name) s->id = jobs.v[0].id;
    bool found = false;
    for (size_t i = 0; st == FL_OK && i < jobs.n; i++) {
        if (jobs.v[i].id.v != s->id.v) continue;
        found = true;
        s->named = jobs.v[i];
    }
    if (st == FL_OK && !found) st = fl_fail(err, FL_NOT_FOUND, "there is no job %.40s in %s; `tokenfleet list --spool` shows the ones there are", name, spool_dir(s->spool));
    free(jobs.v);
    return st;
}

/* ---- either ---- */

/* One page more of a coordinator's list behind the jobs in *reply (NULL: the first). */
static fl_status list_on(const job_source *s, json_t **reply, fl_err *err)
{
    json_t *next = NULL, *jobs = json_object_get(*reply, "jobs");
    const json_t *last = json_array_get(jobs, json_array_size(jobs) - 1);
    fl_status st = client_call(s->client, "list", last ? json_pack("{s:O}", "after", json_object_get(last, "job")) : NULL, NULL, JOB_SOURCE_CALL_MS, &next, NULL, NULL, err);
    if (st != FL_OK) return st;
    if (jobs) {
        json_array_extend(jobs, json_object_get(next, "jobs"));
        json_object_set(next, "jobs", jobs);
    }
    json_decref(*reply);
    *reply = next;
    return FL_OK;
}

/* A job that is deleted between two pages takes the place where the list goes on with it: then from the beginning. */
static fl_status list_coordinator(const job_source *s, json_t **reply, fl_err *err)
{
    fl_status st = FL_OK;
    int n_tries = 0;
    *reply = NULL;
    do {
        st = list_on(s, reply, err);
        bool again = st == FL_NOT_FOUND && *reply && n_tries++ < LIST_TRIES;
        if (st != FL_OK) {
            json_decref(*reply);
            *reply = NULL;
        }
        if (again) st = FL_OK;
    } while (st == FL_OK && (!*reply || json_is_true(json_object_get(*reply, "more"))));
    if (st == FL_OK) json_object_del(*reply, "more");
    return st;
}

fl_status job_source_list(job_source *s, json_t **reply, fl_err *err)
{
    return s->client ? list_coordinator(s, reply, err) : list_spool(s, reply, err);
}

fl_status job_source_status(job_source *s, json_t **reply, fl_err *err)
{
    if (s->client) return client_call(s->client, "status", json_pack("{s:s}", "job", s->job), NULL, JOB_SOURCE_CALL_MS, reply, NULL, NULL, err);
    named_jobs jobs = { 0 };
    fl_status st = read_names(s, &jobs, err);
    for (size_t i = 0; st == FL_OK && i < jobs.n; i++) {
        json_t *job = NULL;
        if (jobs.v[i].id.v != s->id.v) continue;
        if ((st = read_status(s, &jobs.v[i], true, &job, err)) == FL_OK) *reply = json_pack("{s:o, s:[]}", "job", job, "workers");
    }
    free(jobs.v);
    return st;
}

static fl_status choose_of_client(job_source *s, const char *name, fl_err *err)
{
    json_t *reply = NULL;
    if (name) return FL_OK;                              /* the coordinator says it when it does not know it */
    fl_status st = job_source_list(s, &reply, err);
    if (st != FL_OK) return st;
    const json_t *jobs = json_object_get(reply, "jobs");
    size_t n = json_array_size(jobs);
    const char *only = json_string_value(json_object_get(json_array_get(jobs, 0), "job"));
    if (n != 1 || !only || !fl_job_parse(only, &s->id)) {
        st = fl_fail(err, n ? FL_INVALID : FL_NOT_FOUND, n ? "there are %zu jobs here; say which (`tokenfleet list` shows them)" : "the coordinator has no job", n);
    }
    json_decref(reply);
    return st;
}

fl_status job_source_choose(job_source *s, const char *name, fl_err *err)
{
    if (name && !fl_job_parse(name, &s->id)) return fl_fail(err, FL_INVALID, "'%.40s' is no job's name; they look like job-0123456789abcdef", name);
    fl_status st = s->client ? choose_of_client(s, name, err) : choose_in_spool(s, name, err);
    if (st == FL_OK) fl_job_name(s->id, s->job);
    return st;
}

fl_status job_source_journal(const job_source *s, journal **out, fl_err *err)
{
    char *path = spool_path(s->spool, "journal.db");
    fl_status st = path ? journal_open(out, path, err) : fl_fail(err, FL_FULL, "no memory for a path");
    free(path);
    return st;
}

fl_status job_source_check_written(const job_source *s, const char *command, fl_err *err)
{
    if (s->client || !s->files.out[0] || s->files.is_written) return FL_OK;
    return fl_fail(err, FL_AGAIN, "this spool has not finished writing its %s: give its `tokenfleet run` command again, with another --out where that is another job's, then %s", s->files.out, command);
}

void job_source_print(const job_source *s, json_t *answer)
{
    if (s->job[0]) json_object_set_new(answer, "job", json_string(s->job));
    char *text = json_dumps(answer, JSON_COMPACT);
    if (text) puts(text);
    free(text);
}

char *job_source_dir(const job_source *s)
{
    return spool_job_path(s->spool, s->id, NULL);
}

char *job_source_ledger(const job_source *s)
{
    return spool_ledger_path(s->spool, s->id, s->named.generation);
}

char *job_source_output(const job_source *s, bool errors)
{
    const char *own = errors ? s->files.errors : s->files.out;
    return own[0] ? strdup(own) : spool_job_path(s->spool, s->id, errors ? JOB_STORE_ERRORS : JOB_STORE_OUT);
}
