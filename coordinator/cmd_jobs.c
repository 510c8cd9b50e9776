/* cmd_jobs.c - `tokenfleet cancel`, `retry` and `delete`: end a job, run its failed rows again, take it out of the spool. */
#include "coordinator/commands.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/daemon.h"
#include "coordinator/job_retry.h"
#include "coordinator/job_source.h"

#define END_MS 600000                                    /* a coordinator that syncs much, or waits for room */
#define ASK_MS 50

/* ---- what they share ---- */

typedef struct { job_place place; bool force; const char *job; } jobs_options;

static int parse(jobs_options *o, const flag_command *command, const flag *more, int n_more, int argc, char **argv)
{
    flag flags[4] = { JOB_PLACE_FLAGS(o->place) };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n = 0;
    if (n_more) flags[3] = *more;
    int status = flags_parse(command, flags, 3 + n_more, argc, argv, operands, &n);
    o->job = n ? operands[0] : NULL;
    return status;
}

static fl_status open_source(job_source *source, const jobs_options *o, fl_err *err)
{
    fl_status st = job_source_open(source, o->place.to, o->place.spool, true, err);
    return st == FL_OK ? job_source_choose(source, o->job, err) : st;
}

static const char *text_at(const json_t *json, const char *key)
{
    const char *text = json_string_value(json_object_get(json, key));
    return text ? text : "";
}

static long long number_at(const json_t *json, const char *key)
{
    return (long long)json_integer_value(json_object_get(json, key));
}

/* Ask until the coordinator is done with it; says once why it takes longer. */
static fl_status ask_until_done(const job_source *source, const char *verb, json_t **reply, fl_err *err)
{
    bool begun = false, has_said = false;
    for (;; poll(NULL, 0, ASK_MS)) {
        fl_status st = client_call(source->client, verb, json_pack("{s:s, s:b}", "job", source->job, "begun", begun), NULL, JOB_SOURCE_CALL_MS, reply, NULL, NULL, err);
        if (st != FL_OK) return st;
        const char *state = text_at(*reply, "state"), *why = text_at(*reply, "why");
        if (strcmp(state, "running") != 0 && strcmp(state, "busy") != 0) return FL_OK;
        begun = json_is_true(json_object_get(*reply, "begun"));
        if (why[0] && !has_said) fprintf(stderr, "tokenfleet %s: %s waits: %s\n", verb, source->job, why);
        has_said |= why[0] != '\0';
        json_decref(*reply);
        *reply = NULL;
    }
}

/* The answer as JSON, or `sentence` for people. */
static int finish(job_source *source, const char *command, const jobs_options *o, fl_status st, json_t *reply, const char *sentence, const fl_err *err)
{
    int ended = st == FL_OK ? ENDED_WELL : flags_end(command_ended(st), command, "%s", err->text);
    if (st == FL_OK && o->place.as_json) job_source_print(source, reply);
    else if (st == FL_OK && sentence[0]) puts(sentence);
    json_decref(reply);
    job_source_close(source);
    return ended;
}

/* ---- cancel ---- */

/* Nobody holds the spool: a coordinator of our own for a moment, at a socket that nobody knows. */
static fl_status cancel_in_spool(job_source *source, fl_err *err)
{
    char dir[] = "/tmp/" DAEMON_SOCKET_DIR "XXXXXX", endpoint[64], *spool_of = strdup(spool_dir(source->spool)), *out = job_source_output(source, false), *errors = job_source_output(source, true);
    coord_daemon *d = NULL;
    job_id id = source->id;
    bool is_run = source->files.out[0] != '\0', is_new = is_run && !source->files.is_written;
    run_memory own = source->files;
    fl_status st = spool_of && out && errors && mkdtemp(dir) ? FL_OK : fl_fail_errno(err, errno, "no folder for a socket can be made in /tmp");
    spool_close(source->spool);                          /* gives its lock to the daemon */
    source->spool = NULL;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", dir);
    daemon_options options = { .spool = spool_of, .endpoint = endpoint, .out = { is_run ? out : NULL, is_new }, .errors = { is_run ? errors : NULL, is_new } };
    if (st == FL_OK) st = daemon_open(&d, &options, err);
    stored_job *job = st == FL_OK ? daemon_job_find(d, id) : NULL;
    event ev = { .type = EVENT_JOB_CLOSE, .job_id = id, .cause = LEDGER_CANCELLED };
    if (st == FL_OK && !job) st = fl_fail(err, FL_NOT_FOUND, "the job is gone");
    if (st == FL_OK && job->state != JOB_OPEN) st = fl_fail(err, FL_CONFLICT, "the job is %s already", job_state_name(job->state));
    if (st == FL_OK) st = daemon_step(d, &ev, err);
    bool is_begun = st == FL_OK;
    while (st == FL_OK && (job->state == JOB_OPEN || job->outputs_due)) {
        st = daemon_turn(d, 20, err);
        if (st == FL_OK && daemon_disk_full(d)) st = fl_fail(err, FL_DISK_FULL, "%s; make room and cancel again", daemon_disk_full(d));
    }
    if (is_begun && st == FL_CONFLICT && is_new && job->state != JOB_OPEN)
        st = fl_fail(err, FL_CONFLICT, "the job is cancelled, but %s exists and this spool did not write it: `tokenfleet run` as before with another --out writes its files", out);
    own.is_written = true;
    if (st == FL_OK && is_run) st = run_files_remember(spool_of, &own, err);
    daemon_close(d);
    unlink(endpoint + strlen("ipc://"));
    rmdir(dir);
    free(spool_of);
    free(out);
    free(errors);
    return st;
}

static fl_status cancel_job(job_source *source, fl_err *err)
{
    json_t *reply = NULL;
    if (!source->client) return cancel_in_spool(source, err);
    fl_status st = job_source_status(source, &reply, err);       /* a cancel may take long: is anybody there? */
    json_decref(reply);
    reply = NULL;
    if (st == FL_OK) st = client_call(source->client, "cancel", json_pack("{s:s}", "job", source->job), NULL, END_MS, &reply, NULL, NULL, err);
    json_decref(reply);
    return st;
}

int cmd_cancel(int argc, char **argv)
{
    const flag_command command = {
        "cancel", "[JOB]", "End a job. What is finished stays; every other row gets a batch_cancelled line in the error file, and can run later with `tokenfleet retry`.\n"
        "JOB may be left out when there is one.",
        "tokenfleet cancel job-0123456789abcdef --to tcp://127.0.0.1:7070", 0, 1
    };
    jobs_options o = { 0 };
    int status = parse(&o, &command, NULL, 0, argc, argv);
    if (status >= 0) return status;
    job_source source;
    fl_err err = { 0 };
    command_stop_on_signal(command.name, "stopped before the coordinator answered; `tokenfleet status` shows whether the job was cancelled");
    fl_status st = open_source(&source, &o, &err);
    if (st == FL_OK) st = cancel_job(&source, &err);
    return finish(&source, command.name, &o, st, st == FL_OK ? json_pack("{s:s}", "state", "cancelled") : NULL, "", &err);
}

/* ---- retry ---- */

static json_t *retry_answer(const job_retry_counts *counts)
{
    return json_pack("{s:s, s:I, s:I, s:I}", "state", counts->again ? "open" : "nothing", "again", (json_int_t)counts->again, "kept", (json_int_t)counts->kept, "bad",
                     (json_int_t)counts->bad);
}

/* With the outputs of before unwritten, nobody could tell later whether what stands at their names is the job's own: its bytes are others then. */
static fl_status retry_in_spool(const job_source *source, json_t **reply, fl_err *err)
{
    journal *j = NULL;
    job_retry_counts counts = { 0 };
    fl_status st = source->named.state == JOB_OPEN ? FL_OK : job_source_check_written(source, "retry", err);
    if (st == FL_OK) st = job_source_journal(source, &j, err);
    if (st == FL_OK) st = job_retry(source->spool, j, &source->named, &counts, err);
    journal_close(j);
    if (st == FL_CONFLICT) return fl_fail(err, st, "%s is not finished: rows that fail can run again when it has ended. Run it to its end, or `tokenfleet cancel` it first", source->job);
    if (st == FL_OK) *reply = retry_answer(&counts);
    return st;
}

int cmd_retry(int argc, char **argv)
{
    const flag_command command = {
        "retry", "[JOB]", "Run the failed rows of a finished job again, and those that a cancelled or expired one did not reach. What is good stays; lines that were refused\n"
        "when the job was taken in stay bad. The job is open again afterwards and its outputs are written anew at its end. Ends with 0, also when there is nothing to\n"
        "run again; 2 when the job is running; 4 when a run that was killed has not written its files yet. After `retry --spool OUT.jsonl.spool` the same `tokenfleet run` command goes on.",
        "tokenfleet retry job-0123456789abcdef --to tcp://127.0.0.1:7070\n  tokenfleet retry --spool results.jsonl.spool", 0, 1
    };
    jobs_options o = { 0 };
    char sentence[300] = "";
    int status = parse(&o, &command, NULL, 0, argc, argv);
    if (status >= 0) return status;
    job_source source;
    json_t *reply = NULL;
    fl_err err = { 0 };
    command_stop_on_signal(command.name, "stopped before it was done; nothing is lost, `tokenfleet status` shows whether the job is open again");
    fl_status st = open_source(&source, &o, &err);
    if (st == FL_OK) st = source.client ? ask_until_done(&source, "retry", &reply, &err) : retry_in_spool(&source, &reply, &err);
    if (st == FL_OK && number_at(reply, "again") == 0) {
        snprintf(sentence, sizeof sentence, "%s: no row failed that could run again (%lld completed, %lld bad lines, which need another file)", source.job,
                 number_at(reply, "kept"), number_at(reply, "bad"));
    } else if (st == FL_OK) {
        snprintf(sentence, sizeof sentence, "%s: %lld rows run again, %lld are kept%s", source.job, number_at(reply, "again"), number_at(reply, "kept"),
                 source.files.out[0] ? "; run the same `tokenfleet run` command to go on" : source.client ? "" : "; start a coordinator on this spool to go on");
    }
    return finish(&source, command.name, &o, st, reply, sentence, &err);
}

/* ---- delete ---- */

/* A job that cannot be read may go as well: that is how a spool gets rid of it. */
static fl_status check_closed(const job_source *source, fl_err *err)
{
    stored_job *job = NULL;
    fl_err why;
    if (source->named.state != JOB_OPEN) return FL_OK;
    fl_status st = job_store_open(&job, source->spool, &source->named, false, &why);
    bool is_open = st == FL_OK && job->state == JOB_OPEN;
    job_store_close(job);
    if (st != FL_OK && st != FL_CORRUPT) return fl_fail(err, st, "%s", why.text);
    return is_open ? fl_fail(err, FL_CONFLICT, "%s is not finished; `tokenfleet cancel` it first, or pass --force", source->job) : FL_OK;
}

static fl_status delete_in_spool(const job_source *source, bool force, json_t **reply, fl_err *err)
{
    journal *j = NULL;
    uint64_t bytes = 0;
    char *dir = job_source_dir(source);
    fl_status st = dir ? FL_OK : fl_fail(err, FL_FULL, "no memory for a path");
    if (st == FL_OK && !force) st = check_closed(source, err);
    if (st == FL_OK) st = spool_tree_bytes(dir, &bytes, err);
    if (st == FL_OK) st = job_source_journal(source, &j, err);
    if (st == FL_OK) st = journal_jobs_delete(j, &source->id, 1, err);
    journal_close(j);
    if (st == FL_OK) st = spool_job_remove(source->spool, source->id, err);
    if (st == FL_OK) *reply = json_pack("{s:s, s:I}", "state", "deleted", "bytes", (json_int_t)bytes);
    free(dir);
    return st;
}

static fl_status delete_at_coordinator(job_source *source, bool force, json_t **reply, fl_err *err)
{
    fl_status st = force ? cancel_job(source, err) : FL_OK;
    if (st == FL_CONFLICT) st = FL_OK;                   /* it has ended already */
    return st == FL_OK ? ask_until_done(source, "delete", reply, err) : st;
}

int cmd_delete(int argc, char **argv)
{
    jobs_options o = { 0 };
    const flag force = { "--force", FLAG_SWITCH, "", "also a job that is not finished: it is cancelled first", &o.force, 0, 0, false };
    const flag_command command = {
        "delete", "[JOB]", "Take a finished job out of a coordinator or spool: its lines, results and outputs there are gone (files that `run` or `fetch` wrote stay).\n"
        "It waits while the job's outputs are written, fetched or verified. With --spool also a damaged job that keeps a coordinator from starting.",
        "tokenfleet delete job-0123456789abcdef --to tcp://127.0.0.1:7070", 0, 1
    };
    char sentence[120] = "";
    int status = parse(&o, &command, &force, 1, argc, argv);
    if (status >= 0) return status;
    job_source source;
    json_t *reply = NULL;
    fl_err err = { 0 };
    command_stop_on_signal(command.name, "stopped before it was done; `tokenfleet list` shows whether the job is gone");
    fl_status st = open_source(&source, &o, &err);
    if (st == FL_OK) st = source.client ? delete_at_coordinator(&source, o.force, &reply, &err) : delete_in_spool(&source, o.force, &reply, &err);
    if (st == FL_OK) snprintf(sentence, sizeof sentence, "%s: deleted, %lld bytes freed", source.job, number_at(reply, "bytes"));
    return finish(&source, command.name, &o, st, reply, sentence, &err);
}
