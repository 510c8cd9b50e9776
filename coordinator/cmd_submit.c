/* cmd_submit.c - `tokenfleet submit`: give a job to a coordinator. */
#include "coordinator/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/daemon.h"
#include "coordinator/job_source.h"
#include "coordinator/service.h"
#include "coordinator/set_fields.h"

#define END_MS 600000                                    /* the coordinator syncs the whole job */

typedef struct { const char *job, *to, *model, *duplicates; uint64_t seed, max_context, now; bool as_json; flag_list set; } submit_options;

static fl_status open_job(const char *path, int *fd, fl_err *err)
{
    struct stat at;
    if (strcmp(path, "-") == 0) {
        *fd = 0;
        return FL_OK;
    }
    *fd = open(path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0) return fl_fail_errno(err, errno, "cannot read %s", path);
    if (fstat(*fd, &at) == 0 && S_ISDIR(at.st_mode)) return fl_fail(err, FL_INVALID, "%s is a directory; give a JSONL file", path);
    return FL_OK;
}

static fl_status begin(client *c, const submit_options *o, char upload[FL_JOB_NAME_BYTES], fl_err *err)
{
    char seed[24], *defaults = NULL;
    const char *slash = strrchr(o->job, '/');
    json_t *reply = NULL;
    fl_status st = set_fields_json(&o->set, &defaults, err);
    if (st != FL_OK) return st;
    snprintf(seed, sizeof seed, "%" PRIu64, o->seed);
    json_t *args = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I}", "name", slash ? slash + 1 : o->job, "model", o->model ? o->model : "", "seed", seed, "defaults", defaults, "duplicates", o->duplicates,
                             "max_context", (json_int_t)o->max_context, "now", (json_int_t)o->now);
    free(defaults);
    if (!args) return fl_fail(err, FL_INVALID, "the name of the job or of the model is no text in UTF-8");
    if ((st = client_call(c, "submit_begin", args, NULL, JOB_SOURCE_CALL_MS, &reply, NULL, NULL, err)) != FL_OK) return st;
    const char *name = json_string_value(json_object_get(reply, "upload"));
    snprintf(upload, FL_JOB_NAME_BYTES, "%s", name ? name : "");
    json_decref(reply);
    return FL_OK;
}

/* Read until the piece is full or the input ends. */
static fl_status read_piece(int fd, const char *name, uint8_t *piece, size_t *n_bytes, fl_err *err)
{
    for (*n_bytes = 0; *n_bytes < SERVICE_PIECE_BYTES; ) {
        ssize_t n = read(fd, piece + *n_bytes, SERVICE_PIECE_BYTES - *n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot read %s", name);
        if (n == 0) break;
        *n_bytes += (size_t)n;
    }
    return FL_OK;
}

static fl_status upload_all(client *c, int fd, const submit_options *o, const char *upload, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t offset = 0;
    uint8_t *piece = malloc(SERVICE_PIECE_BYTES);
    if (!piece) return fl_fail(err, FL_FULL, "no memory to read %s", o->job);
    for (size_t n = SERVICE_PIECE_BYTES; st == FL_OK && n == SERVICE_PIECE_BYTES; offset += n) {
        json_t *reply = NULL;
        if ((st = read_piece(fd, o->job, piece, &n, err)) != FL_OK || n == 0) break;
        fl_bytes part = { piece, n };
        json_t *args = json_pack("{s:s, s:I}", "upload", upload, "offset", (json_int_t)offset);
        st = client_call(c, "submit_piece", args, &part, 10 * JOB_SOURCE_CALL_MS, &reply, NULL, NULL, err);
        json_decref(reply);
    }
    free(piece);
    return st;
}

static fl_status submit(const submit_options *o, json_t **reply, fl_err *err)
{
    client *c = NULL;
    char upload[FL_JOB_NAME_BYTES];
    int fd = -1;
    fl_status st = open_job(o->job, &fd, err);
    if (st == FL_OK) st = client_open(&c, o->to, err);
    if (st == FL_OK) st = begin(c, o, upload, err);
    if (st == FL_OK) st = upload_all(c, fd, o, upload, err);
    if (st == FL_OK) st = client_call(c, "submit_end", json_pack("{s:s}", "upload", upload), NULL, END_MS, reply, NULL, NULL, err);
    if (fd > 0) close(fd);
    client_close(c);
    return st;
}

int cmd_submit(int argc, char **argv)
{
    submit_options o = { .duplicates = "error" };
    const flag flags[] = {
        { "--to", FLAG_TEXT, "ENDPOINT", "the coordinator, as in tcp://127.0.0.1:7070", &o.to, 0, 0, true },
        { "--model", FLAG_TEXT, "NAME", "the model's name as workers announce it (default: the one there is)", &o.model, 0, 0, false },
        { "--seed", FLAG_NUMBER, "S", "seed of rows that give none (default 0)", &o.seed, 0, UINT64_MAX, false },
        { "--set", FLAG_LIST, "KEY=VALUE", "a body field for rows that lack it", &o.set, 0, 0, false },
        { "--duplicates", FLAG_CHOICE, "error|suffix", "a custom_id that stands twice: the later rows fail, or are named ID#<line> (default error)", &o.duplicates, 0, 0, false },
        { "--max-context", FLAG_NUMBER, "N", "longest prompt + completion (default the model's)", &o.max_context, 1, 1 << 30, false },
        { "--now", FLAG_NUMBER, "SECONDS", "the time chat templates see (default now)", &o.now, 1, UINT32_MAX, false },
        { "--json", FLAG_SWITCH, "", "print the answer as JSON", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        "submit", "JOB.jsonl", "Give a job to a coordinator and print the job's name. JOB may be .gz, or - for standard input.",
        "tokenfleet submit job.jsonl --to tcp://127.0.0.1:7070 --seed 1", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    json_t *reply = NULL;
    fl_err err = { 0 };
    o.job = operands[0];
    command_stop_on_signal(command.name, "stopped before the job was taken in; submit it again (`tokenfleet list` shows it if it was already)");
    fl_status st = submit(&o, &reply, &err);
    if (st != FL_OK) return flags_end(command_ended(st), command.name, "%s", err.text);
    const char *name = json_string_value(json_object_get(reply, "job")), *unknown = json_string_value(json_object_get(reply, "unknown_fields")),
               *why = json_string_value(json_object_get(reply, "why"));
    long long bad = json_integer_value(json_object_get(reply, "bad")), total = json_integer_value(json_object_get(reply, "rows"));
    if (bad) fprintf(stderr, "%lld of %lld lines are bad; each gets its line in the error file\n", bad, total);
    if (unknown && unknown[0]) fprintf(stderr, "fields that are not known and do nothing: %s\n", unknown);
    if (why && why[0]) fprintf(stderr, "the job is taken and waits: %s\n", why);
    char *text = o.as_json ? json_dumps(reply, JSON_COMPACT) : NULL;
    puts(text ? text : name ? name : "");
    free(text);
    json_decref(reply);
    return ENDED_WELL;
}
