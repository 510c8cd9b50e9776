/* cmd_status.c - `tokenfleet list`, `status` and `watch`: how jobs stand. */
#include "coordinator/commands.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "coordinator/job_source.h"
#include "coordinator/progress.h"
#include "coordinator/status_print.h"
#include "proto/clock.h"

#define WATCH_MS 250
#define SILENCE_MS 60000                                 /* watch outlives a coordinator that is started again */

static int parse_place(job_place *o, const flag_command *command, int argc, char **argv, const char *operands[FLAGS_OPERANDS_MAX], int *n_operands)
{
    const flag flags[] = { JOB_PLACE_FLAGS(*o) };
    *o = (job_place){ 0 };
    return flags_parse(command, flags, sizeof flags / sizeof *flags, argc, argv, operands, n_operands);
}

static void print_json(const json_t *json)
{
    char *text = json_dumps(json, JSON_COMPACT);
    if (text) puts(text);
    free(text);
}

int cmd_list(int argc, char **argv)
{
    const flag_command command = { "list", "", "Show the jobs of a coordinator or spool in submit order: state, rows that are done, how many of them failed, age.", "tokenfleet list --to tcp://127.0.0.1:7070", 0, 0 };
    const char *operands[FLAGS_OPERANDS_MAX];
    job_place o;
    int n = 0, status = parse_place(&o, &command, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    json_t *reply = NULL;
    fl_err err = { 0 };
    fl_status st = job_source_open(&source, o.to, o.spool, false, &err);
    if (st == FL_OK) st = job_source_list(&source, &reply, &err);
    if (st == FL_OK && o.as_json) print_json(reply);
    if (st == FL_OK && !o.as_json) status_print_list(stdout, (uint64_t)time(NULL), json_object_get(reply, "jobs"));
    json_decref(reply);
    job_source_close(&source);
    return st == FL_OK ? ENDED_WELL : flags_end(command_ended(st), command.name, "%s", err.text);
}

int cmd_status(int argc, char **argv)
{
    const flag_command command = {
        "status", "[JOB]", "Show on one screen how a job stands: rows and pace, what waits and why, what failed with examples, what each worker does, its settings.\n"
        "JOB may be left out when there is one.",
        "tokenfleet status --spool results.jsonl.spool", 0, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    job_place o;
    int n = 0, status = parse_place(&o, &command, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    json_t *reply = NULL;
    fl_err err = { 0 };
    fl_status st = job_source_open(&source, o.to, o.spool, false, &err);
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) st = job_source_status(&source, &reply, &err);
    if (st == FL_OK && o.as_json) {
        json_t *job = json_object_get(reply, "job");
        json_object_set(job, "workers", json_object_get(reply, "workers"));
        if (source.client) json_object_set(job, "queues", json_object_get(reply, "queues"));
        print_json(job);
    }
    if (st == FL_OK && !o.as_json) {
        status_print_job(stdout, status_width(stdout), (uint64_t)time(NULL), json_object_get(reply, "job"), source.client ? json_object_get(reply, "workers") : NULL,
                         source.client ? json_object_get(reply, "queues") : NULL);
    }
    json_decref(reply);
    job_source_close(&source);
    return st == FL_OK ? ENDED_WELL : flags_end(command_ended(st), command.name, "%s", err.text);
}

/* ---- watch ---- */

static uint64_t count_at(const json_t *object, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void show(progress *p, const json_t *reply)
{
    const json_t *job = json_object_get(reply, "job"), *counts = json_object_get(job, "rows");
    const char *why = json_string_value(json_object_get(job, "why"));
    progress_numbers n = { count_at(counts, "total"), count_at(counts, "completed") + count_at(counts, "failed"), count_at(counts, "failed"), count_at(job, "tokens"),
                           (int)json_array_size(json_object_get(reply, "workers")), why && why[0] ? why : NULL };
    progress_show(p, fl_boot_ms(), &n);
}

/* The job's end: 0 when every row is completed, else 1. -1: it goes on. */
static int ended_so(const json_t *job)
{
    const char *state = json_string_value(json_object_get(job, "state"));
    if (!state || strcmp(state, "running") == 0 || strcmp(state, "waiting") == 0 || !json_is_true(json_object_get(job, "outputs"))) return -1;
    const json_t *counts = json_object_get(job, "rows");
    return strcmp(state, "completed") == 0 && count_at(counts, "failed") == 0 ? ENDED_WELL : ENDED_ROWS_FAILED;
}

static fl_status follow(job_source *source, bool as_json, int *ended, fl_err *err)
{
    progress p;
    int64_t heard_ms = fl_boot_ms();
    progress_init(&p, heard_ms, isatty(2));
    for (*ended = -1; *ended < 0; ) {
        json_t *reply = NULL;
        fl_status st = job_source_status(source, &reply, err);
        if (command_signals()) {
            json_decref(reply);
            return fl_fail(err, FL_AGAIN, "stopped watching; the job goes on");
        }
        if (st == FL_TIMEOUT && source->client && fl_boot_ms() - heard_ms < SILENCE_MS) continue;
        if (st != FL_OK) return st;
        heard_ms = fl_boot_ms();
        *ended = ended_so(json_object_get(reply, "job"));
        if (*ended < 0 && !source->client) st = fl_fail(err, FL_AGAIN, "no coordinator works on this spool, so the job does not go on; run it again");
        if (*ended < 0) show(&p, reply);
        else progress_clear(&p);
        if (*ended >= 0 && as_json) print_json(json_object_get(reply, "job"));
        if (*ended >= 0 && !as_json) {
            json_t *jobs = json_pack("[O]", json_object_get(reply, "job"));
            status_print_list(stdout, (uint64_t)time(NULL), jobs);
            json_decref(jobs);
        }
        json_decref(reply);
        if (st != FL_OK) return st;
        if (*ended < 0) poll(NULL, 0, WATCH_MS);
    }
    return FL_OK;
}

int cmd_watch(int argc, char **argv)
{
    const flag_command command = {
        "watch", "[JOB]", "Follow a job until it ends. Ends with 0 when every row is completed, 1 when some failed or the job was cancelled, 4 when stopped before.",
        "tokenfleet watch job-0123456789abcdef --to tcp://127.0.0.1:7070", 0, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    job_place o;
    int n = 0, ended = 0, status = parse_place(&o, &command, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    fl_err err = { 0 };
    fl_status st = job_source_open(&source, o.to, o.spool, false, &err);
    command_catch_signals();
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) st = follow(&source, o.as_json, &ended, &err);
    job_source_close(&source);
    return st == FL_OK ? ended : flags_end(command_ended(st), command.name, "%s", err.text);
}
