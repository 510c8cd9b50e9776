#include "coordinator/service.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "coordinator/background.h"
#include "coordinator/daemon.h"
#include "coordinator/job_verify.h"
#include "coordinator/service_submit.h"
#include "coordinator/spool_gc.h"
#include "coordinator/status_json.h"
#include "proto/clock.h"
#include "proto/job_row.h"

#define READ_IDLE_MS 10000                               /* a client that fetches and asks for nothing so long has gone */
#define DAY_S 86400
#define LIST_BYTES (1u << 20)                            /* of jobs in one answer; the next question gets the rest */
#define ITEMS_MAX 2000                                   /* of what gc removes are named in one answer */

/* A verification in the background: one at a time. */
typedef struct { job_id job; char *dir, *ledger_dir, *out, *errors; json_t *report; } verify_work;

struct service {
    coord_daemon *daemon;                      /* borrowed */
    service_submit *submit;                    /* owned */
    background verifier;
    verify_work verify;
};

fl_status service_open(service **out, coord_daemon *d, fl_err *err)
{
    service *s = calloc(1, sizeof *s);
    if (!s) return fl_fail(err, FL_FULL, "no memory for a service");
    s->daemon = d;
    fl_status st = service_submit_open(&s->submit, d, err);
    if (st == FL_OK) *out = s;
    else free(s);
    return st;
}

static void forget_verify(verify_work *work)
{
    free(work->dir);
    free(work->ledger_dir);
    free(work->out);
    free(work->errors);
    json_decref(work->report);
    *work = (verify_work){ 0 };
}

void service_close(service *s)
{
    if (!s) return;
    background_wait(&s->verifier, NULL);
    forget_verify(&s->verify);
    service_submit_close(s->submit);
    free(s);
}

void service_reply_free(service_reply *reply)
{
    json_decref(reply->json);
    free(reply->part);
    *reply = (service_reply){ 0 };
}

static void fail(service_reply *reply, const fl_err *err)
{
    json_decref(reply->json);
    free(reply->part);
    json_t *sentence = json_string(err->text);
    *reply = (service_reply){ .status = err->code, .json = json_object() };
    json_object_set_new(reply->json, "error", sentence ? sentence : json_string(fl_status_meaning(err->code)));
}

void service_refuse_unread(service_reply *reply)
{
    fl_err err;
    *reply = (service_reply){ 0 };
    fl_fail(&err, FL_AGAIN, "%u MB of answers to this connection were not read yet: read them, then ask again", SERVICE_UNREAD_BYTES_MAX >> 20);
    fail(reply, &err);
}

fl_status service_send(transport *t, const transport_peer *to, uint64_t number, const service_reply *reply, fl_err *err)
{
    char *text = reply->json ? json_dumps(reply->json, JSON_COMPACT) : strdup("{}");
    fl_status status = reply->status;
    if (text && strlen(text) > WIRE_REPLY_JSON_MAX) {    /* asking for much ends no coordinator */
        free(text);
        text = strdup("{\"error\":\"the answer is longer than a message may be\"}");
        status = FL_UNSUPPORTED;
    }
    if (!text) return fl_fail(err, FL_FULL, "no memory for a reply");
    fl_bytes part = { reply->part, reply->part_bytes };
    wire_msg msg = { .type = WIRE_REPLY, .n_parts = reply->part ? 1 : 0, .parts = &part,
                     .reply = { .number = number, .status = status, .json = wire_text(text) } };
    fl_status st = transport_send(t, to, &msg, err);
    free(text);
    return st == FL_CLOSED || st == FL_AGAIN ? FL_OK : st;
}

fl_status service_new_job_id(job_id *out, fl_err *err)
{
    do {
        if (getrandom(&out->v, sizeof out->v, 0) != (ssize_t)sizeof out->v) return fl_fail_errno(err, errno, "no random number for a job's id");
    } while (out->v == 0);
    return FL_OK;
}

/* ---- arguments ---- */

const char *service_text(const json_t *args, const char *key)
{
    const char *text = json_string_value(json_object_get(args, key));
    return text ? text : "";
}

static fl_status find_job(service *s, const json_t *args, stored_job **job, fl_err *err)
{
    const char *name = service_text(args, "job");
    job_id id;
    if (!fl_job_parse(name, &id)) return fl_fail(err, FL_INVALID, "'%.40s' is no job; `tokenfleet list` shows their names", name);
    *job = daemon_job_find(s->daemon, id);
    return *job ? FL_OK : fl_fail(err, FL_NOT_FOUND, "there is no job %.40s here; `tokenfleet list` shows the ones there are", name);
}

/* ---- verbs ---- */

static fl_status submit_begin(service *s, const json_t *args, service_reply *reply, fl_err *err) { return service_submit_begin(s->submit, args, reply, err); }
static fl_status submit_end(service *s, const json_t *args, service_reply *reply, fl_err *err) { return service_submit_end(s->submit, args, reply, err); }

static fl_status submit_abort(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    (void)reply;
    return service_submit_abort(s->submit, args, err);
}

/* Where a list goes on behind the job named `after`, "" for its beginning. */
static fl_status find_place(const service *s, const char *after, size_t *at, fl_err *err)
{
    job_id id;
    *at = 0;
    if (!after[0]) return FL_OK;
    for (stored_job *job; fl_job_parse(after, &id) && (job = daemon_job_at(s->daemon, *at)); ) {
        ++*at;
        if (job->id.v == id.v) return FL_OK;
    }
    return fl_fail(err, FL_NOT_FOUND, "the job '%.40s', behind which the list goes on, is gone; ask for the list again", after);
}

static fl_status list(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    size_t at, n_bytes = 0;
    stored_job *job;
    fl_status st = find_place(s, service_text(args, "after"), &at, err);
    if (st != FL_OK) return st;
    json_t *jobs = json_array();
    for (; n_bytes < LIST_BYTES && (job = daemon_job_at(s->daemon, at)); at++) {
        json_t *one = status_of_job(job, daemon_core(s->daemon), daemon_disk_full(s->daemon), false);
        n_bytes += json_dumpb(one, NULL, 0, JSON_COMPACT);
        json_array_append_new(jobs, one);
    }
    json_object_set_new(reply->json, "jobs", jobs);
    json_object_set_new(reply->json, "workers", status_of_workers(daemon_core(s->daemon)));
    json_object_set_new(reply->json, "more", json_boolean(daemon_job_at(s->daemon, at) != NULL));
    return FL_OK;
}

static void add_queue(json_t *list, const char *name, const char *unit, const queue_figures *f)
{
    json_array_append_new(list, json_pack("{s:s, s:s, s:I, s:I, s:I}", "queue", name, "unit", unit, "depth", (json_int_t)f->depth, "high_water", (json_int_t)f->high_water, "capacity", (json_int_t)f->capacity));
}

/* The queues of README.md, in its order. */
static json_t *queues_of(const service *s)
{
    json_t *list = json_array();
    daemon_queues d = daemon_queue_figures(s->daemon);
    submit_queues u = service_submit_queues(s->submit);
    queue_figures partials = coord_partials(daemon_core(s->daemon));
    add_queue(list, "messages to one peer", "bytes", &d.unsent);
    add_queue(list, "results not durable", "bytes", &d.not_durable);
    add_queue(list, "pieces of results", "bytes", &partials);
    add_queue(list, "uploads under way", "uploads", &u.uploads);
    add_queue(list, "pieces of an upload", "bytes", &u.pieces);
    add_queue(list, "blocks of an ingest", "blocks", &u.blocks);
    add_queue(list, "messages of one turn", "messages", &d.turn);
    return list;
}

static fl_status status(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    fl_status st = find_job(s, args, &job, err);
    if (st != FL_OK) return st;
    json_object_set_new(reply->json, "job", status_of_job(job, daemon_core(s->daemon), daemon_disk_full(s->daemon), true));
    json_object_set_new(reply->json, "workers", status_of_workers(daemon_core(s->daemon)));
    json_object_set_new(reply->json, "queues", queues_of(s));
    return FL_OK;
}

/* A piece of the open file (which is closed) from `offset` on, at most up to `size`. */
static fl_status read_piece(int fd, const char *path, uint64_t offset, uint64_t size, service_reply *reply, fl_err *err)
{
    fl_status st = FL_OK;
    size_t want = offset < size ? (size - offset < SERVICE_PIECE_BYTES ? (size_t)(size - offset) : SERVICE_PIECE_BYTES) : 0;
    if (fd < 0) { st = fl_fail_errno(err, errno, "cannot read %s", path); goto done; }
    if (!(reply->part = malloc(want ? want : 1))) { st = fl_fail(err, FL_FULL, "no memory for a piece of %zu bytes", want); goto done; }
    for (reply->part_bytes = 0; reply->part_bytes < want; ) {
        ssize_t n = pread(fd, reply->part + reply->part_bytes, want - reply->part_bytes, (off_t)(offset + reply->part_bytes));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { st = fl_fail_errno(err, n < 0 ? errno : EIO, "cannot read %s", path); goto done; }
        reply->part_bytes += (size_t)n;
    }
done:
    if (fd >= 0) close(fd);
    return st;
}

/* While it grows a file has its temporary name, until the moment it gets its own: which may be this one, so it is opened rather than looked for. A writer that ended early
 * (the disk is full) has taken its file away: then nothing of it is there until the next one has written it again. */
static fl_status read_growing(const stored_job *job, const char *path, uint64_t offset, output_written *written, int index, service_reply *reply, fl_err *err)
{
    char name[FL_JOB_NAME_BYTES];
    fl_job_name(job->id, name);
    char *temporary = output_file_temporary(path, name);
    if (!temporary) return fl_fail(err, FL_FULL, "no memory for a path");
    int fd = open(temporary, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) fd = open(path, O_RDONLY | O_CLOEXEC);
    free(temporary);
    if (fd < 0 && errno == ENOENT) *written = (output_written){ 0 };
    return fd < 0 && written->bytes[index] == 0 ? FL_OK : read_piece(fd, path, offset, written->bytes[index], reply, err);
}

static fl_status fetch(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    const char *file = service_text(args, "file"), *why = "";
    json_int_t offset = json_integer_value(json_object_get(args, "offset"));
    bool is_errors = strcmp(file, "errors") == 0;
    fl_status st = find_job(s, args, &job, err);
    if (st != FL_OK) return st;
    if ((strcmp(file, "out") != 0 && !is_errors) || offset < 0) return fl_fail(err, FL_INVALID, "fetch has a file (out or errors) and an offset");
    char *path = daemon_output_path(s->daemon, job, is_errors);
    bool is_whole = job->state != JOB_OPEN && !job->outputs_due;
    output_written written = { 0 };
    struct stat at;
    if (!path) return fl_fail(err, FL_FULL, "no memory for a path");
    if (is_whole && stat(path, &at) != 0) st = fl_fail_errno(err, errno, "cannot read %s", path);
    else if (!is_whole) st = daemon_outputs_follow(s->daemon, job, &written, &why, err);
    if (st == FL_OK && is_whole) st = read_piece(open(path, O_RDONLY | O_CLOEXEC), path, (uint64_t)offset, (uint64_t)at.st_size, reply, err);
    else if (st == FL_OK && (uint64_t)offset < written.bytes[is_errors]) st = read_growing(job, path, (uint64_t)offset, &written, is_errors, reply, err);
    uint64_t size = is_whole && st == FL_OK ? (uint64_t)at.st_size : written.bytes[is_errors];
    free(path);
    json_object_set_new(reply->json, "size", json_integer((json_int_t)size));
    json_object_set_new(reply->json, "whole", json_boolean(is_whole));
    json_object_set_new(reply->json, "why", json_string(why));
    json_object_set_new(reply->json, "generation", json_integer((json_int_t)job->generation));
    json_object_set_new(reply->json, "rows", json_integer((json_int_t)(is_whole ? job->counts.rows : written.rows)));
    json_object_set_new(reply->json, "failed", json_integer((json_int_t)job->counts.failed));
    bool is_end = is_whole && is_errors && (uint64_t)offset + reply->part_bytes >= size;
    job->read_until_ms = st == FL_OK && !is_end ? fl_boot_ms() + READ_IDLE_MS : 0;
    return st;
}

const char *service_job_busy(const service *s, job_id job)
{
    const stored_job *stored = daemon_job_find(s->daemon, job);
    if (s->verifier.running && s->verify.job.v == job.v) return "it is being verified";
    return stored && stored->read_until_ms > fl_boot_ms() ? "it is being fetched" : NULL;
}

static fl_status run_verify(void *context, fl_err *err)
{
    verify_work *work = context;
    return job_verify(work->dir, work->ledger_dir, work->out, work->errors, &work->report, err);
}

static fl_status verify(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    verify_work *work = &s->verify;
    fl_status st = find_job(s, args, &job, err);
    if (st != FL_OK) return st;
    json_object_set_new(reply->json, "state", json_string("running"));
    bool must_wait = job->outputs_due || daemon_is_retrying(s->daemon, job->id) || (s->verifier.running && work->job.v != job->id.v);
    if (must_wait) return FL_OK;                         /* asked again, it gets its turn */
    if (s->verifier.running) {
        if ((st = background_poll(&s->verifier, err)) == FL_AGAIN) return FL_OK;
        if (st == FL_OK) {
            json_decref(reply->json);
            reply->json = json_incref(work->report);
        }
        forget_verify(work);
        return st;
    }
    *work = (verify_work){ .job = job->id, .dir = strdup(job->dir), .ledger_dir = strdup(job->ledger_dir), .out = daemon_output_path(s->daemon, job, false),
                            .errors = daemon_output_path(s->daemon, job, true) };
    st = work->dir && work->ledger_dir && work->out && work->errors ? background_start(&s->verifier, run_verify, work, err) : fl_fail(err, FL_FULL, "no memory to verify");
    if (st != FL_OK) forget_verify(work);
    return st;
}

static fl_status cancel(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    fl_status st = find_job(s, args, &job, err);
    if (st == FL_NOT_FOUND) {                            /* perhaps it is still on its way in */
        fl_err unknown;
        json_t *upload = json_pack("{s:s}", "upload", service_text(args, "job"));
        bool was_coming = upload && service_submit_abort(s->submit, upload, &unknown) == FL_OK;
        json_decref(upload);
        if (was_coming) return FL_OK;
    }
    if (st != FL_OK) return st;
    if (job->state != JOB_OPEN) return fl_fail(err, FL_CONFLICT, "%s is %s already", service_text(args, "job"), job_state_name(job->state));
    event ev = { .type = EVENT_JOB_CLOSE, .job_id = job->id, .cause = LEDGER_CANCELLED };
    reply->after_sync = true;
    return daemon_step(s->daemon, &ev, err);
}

/* The rows of `counts` into the answer. */
static void say_retry(service_reply *reply, const job_retry_counts *counts)
{
    json_object_set_new(reply->json, "state", json_string(counts->again ? "open" : "nothing"));
    json_object_set_new(reply->json, "again", json_integer((json_int_t)counts->again));
    json_object_set_new(reply->json, "kept", json_integer((json_int_t)counts->kept));
    json_object_set_new(reply->json, "bad", json_integer((json_int_t)counts->bad));
}

static fl_status refuse_in_run(const service *s, fl_err *err)
{
    return daemon_is_run(s->daemon) ? fl_fail(err, FL_CONFLICT, "`tokenfleet run` is at work on this spool; when it has ended, do it again") : FL_OK;
}

static fl_status retry(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    bool begun = json_is_true(json_object_get(args, "begun"));
    const daemon_retry *last = daemon_last_retry(s->daemon);
    fl_status st = find_job(s, args, &job, err);
    if (st == FL_OK) st = refuse_in_run(s, err);
    if (st != FL_OK) return st;
    if (begun && !daemon_is_retrying(s->daemon, job->id)) {
        if (last->job.v != job->id.v) return fl_fail(err, FL_NOT_FOUND, "the coordinator was started again meanwhile; `tokenfleet status %s` shows how the job stands", service_text(args, "job"));
        if (last->status != FL_OK) return fl_fail(err, last->status, "%s", last->err.text);
        say_retry(reply, &last->counts);
        return FL_OK;
    }
    if (!begun && job->state == JOB_OPEN) {
        return fl_fail(err, FL_CONFLICT, "%s is running: a row that fails can run again when the job has ended, or after `tokenfleet cancel %s`", service_text(args, "job"), service_text(args, "job"));
    }
    if (!begun) st = daemon_job_retry(s->daemon, job, err);
    begun |= st == FL_OK;
    if (st != FL_OK && st != FL_AGAIN) return st;        /* FL_AGAIN: it gets its turn when it is asked again */
    json_object_set_new(reply->json, "state", json_string("running"));
    json_object_set_new(reply->json, "begun", json_boolean(begun));
    if (st == FL_AGAIN) json_object_set_new(reply->json, "why", json_string(err->text));
    return FL_OK;
}

static fl_status delete_job(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    stored_job *job = NULL;
    uint64_t bytes = 0;
    fl_status st = find_job(s, args, &job, err);
    if (st == FL_OK) st = refuse_in_run(s, err);
    if (st != FL_OK) return st;
    if (job->state == JOB_OPEN) {
        return fl_fail(err, FL_CONFLICT, "%s is running; end it first with `tokenfleet cancel %s`, or pass --force, which does both", service_text(args, "job"), service_text(args, "job"));
    }
    if ((st = spool_tree_bytes(job->dir, &bytes, err)) == FL_OK) st = daemon_jobs_delete(s->daemon, &job, 1, err);
    json_object_set_new(reply->json, "state", json_string(st == FL_AGAIN ? "busy" : "deleted"));
    json_object_set_new(reply->json, "bytes", json_integer((json_int_t)bytes));
    if (st != FL_AGAIN) return st;
    json_object_set_new(reply->json, "why", json_string(err->text));
    return FL_OK;
}

/* ---- gc ---- */

typedef struct { service *s; service_reply *reply; bool is_dry; json_int_t bytes, n_unnamed; } collection;

static void list_item(collection *c, const char *path, const char *what, uint64_t bytes)
{
    json_t *items = json_object_get(c->reply->json, "items"), *text = json_string(path);
    c->bytes += (json_int_t)bytes;
    if (json_array_size(items) < ITEMS_MAX) json_array_append_new(items, json_pack("{s:o, s:s, s:I}", "path", text ? text : json_string("?"), "what", what, "bytes", (json_int_t)bytes));
    else {
        json_decref(text);
        c->n_unnamed++;
    }
}

static fl_status collect(void *context, const gc_item *item, fl_err *err)
{
    collection *c = context;
    if (daemon_is_removing(c->s->daemon, item->path)) return FL_OK;
    list_item(c, item->path, item->what, item->bytes);
    return c->is_dry ? FL_OK : daemon_remove(c->s->daemon, item->path, err);
}

/* Finished jobs whose outputs were written so many days ago; those somebody uses are named instead. All go in one transaction: the loop waits for one sync. */
static fl_status collect_old_jobs(collection *c, json_int_t days, fl_err *err)
{
    size_t n = daemon_n_jobs(c->s->daemon), n_old = 0;
    stored_job **old = malloc((n + 1) * sizeof *old);
    fl_status st = old ? FL_OK : fl_fail(err, FL_FULL, "no memory for a list of jobs");
    for (size_t i = 0; st == FL_OK && i < n; i++) {
        char name[FL_JOB_NAME_BYTES];
        uint64_t bytes = 0, finished_s = 0;
        stored_job *job = daemon_job_at(c->s->daemon, i);
        const char *busy = daemon_job_busy(c->s->daemon, job);
        if (job->state == JOB_OPEN || job->outputs_due || !job_store_finished(job->dir, &finished_s)) continue;
        if (finished_s + (uint64_t)days * DAY_S > (uint64_t)time(NULL)) continue;
        fl_job_name(job->id, name);
        if (busy) {
            json_t *names = json_object_get(c->reply->json, "busy");
            if (json_array_size(names) < ITEMS_MAX) json_array_append_new(names, json_pack("{s:s, s:s}", "job", name, "why", busy));
            continue;
        }
        if ((st = spool_tree_bytes(job->dir, &bytes, err)) != FL_OK) break;
        list_item(c, job->dir, "a finished job", bytes);
        old[n_old++] = job;
    }
    if (st == FL_OK && !c->is_dry) st = daemon_jobs_delete(c->s->daemon, old, n_old, err);
    free(old);
    return st;
}

static fl_status gc(service *s, const json_t *args, service_reply *reply, fl_err *err)
{
    size_t n = daemon_n_jobs(s->daemon);
    collection c = { .s = s, .reply = reply, .is_dry = json_is_true(json_object_get(args, "dry_run")) };
    json_int_t days = json_integer_value(json_object_get(args, "older_than"));
    fl_status st = days >= 0 ? refuse_in_run(s, err) : FL_OK;
    json_object_set_new(reply->json, "removing", json_integer((json_int_t)daemon_n_removing(s->daemon)));
    if (st != FL_OK || json_is_true(json_object_get(args, "removing_only"))) return st;
    gc_job *named = calloc(n + SUBMITS_MAX, sizeof *named);
    if (!named) return fl_fail(err, FL_FULL, "no memory for a list of jobs");
    for (size_t i = 0; i < n; i++) {
        const stored_job *job = daemon_job_at(s->daemon, i);
        named[i] = (gc_job){ .id = job->id, .generation = job->generation, .is_busy = daemon_job_busy(s->daemon, job) != NULL };
    }
    job_id coming[SUBMITS_MAX];
    for (size_t i = 0, n_coming = service_submit_jobs(s->submit, coming); i < n_coming; i++) named[n++] = (gc_job){ .id = coming[i], .is_busy = true };
    json_object_set_new(reply->json, "items", json_array());
    json_object_set_new(reply->json, "busy", json_array());
    st = spool_gc_walk(daemon_spool(s->daemon), named, n, collect, &c, err);
    if (st == FL_OK && days >= 0) st = collect_old_jobs(&c, days, err);
    json_object_set_new(reply->json, "bytes", json_integer(c.bytes));
    json_object_set_new(reply->json, "unnamed", json_integer(c.n_unnamed));
    json_object_set_new(reply->json, "removing", json_integer((json_int_t)daemon_n_removing(s->daemon)));
    free(named);
    return st;
}

void service_request(service *s, const wire_request *request, const fl_bytes *part, service_reply *reply)
{
    static const struct { const char *verb; fl_status (*answer)(service *, const json_t *, service_reply *, fl_err *); } verbs[] = {
        { "submit_begin", submit_begin }, { "submit_end", submit_end }, { "submit_abort", submit_abort }, { "list", list }, { "status", status }, { "fetch", fetch }, { "verify", verify },
        { "cancel", cancel }, { "retry", retry }, { "delete", delete_job }, { "gc", gc },
    };
    fl_err err = { 0 };
    json_error_t where;
    json_t *args = request->args.n ? json_loadb(request->args.p, request->args.n, 0, &where) : json_object();
    char verb[33];
    snprintf(verb, sizeof verb, "%.*s", (int)request->verb.n, request->verb.p ? request->verb.p : "");
    *reply = (service_reply){ .json = json_object() };
    fl_status st = FL_UNSUPPORTED;
    if (!json_is_object(args)) st = fl_fail(&err, FL_INVALID, "the arguments of '%s' are no JSON object", verb);
    else if (strcmp(verb, "submit_piece") == 0) st = service_submit_piece(s->submit, args, part, reply, &err);
    else {
        fl_fail(&err, FL_UNSUPPORTED, "this coordinator does not know '%s'; it is of another release", verb);
        for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
            if (strcmp(verbs[i].verb, verb) == 0) st = verbs[i].answer(s, args, reply, &err);
        }
    }
    if (st != FL_OK) fail(reply, &err);
    json_decref(args);
}
