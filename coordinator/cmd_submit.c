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
#include "coordinator/job_source.h"
#include "coordinator/job_store.h"
#include "coordinator/printable.h"
#include "coordinator/progress.h"
#include "coordinator/run_files.h"
#include "coordinator/service.h"
#include "coordinator/set_fields.h"
#include "coordinator/submit_job.h"
#include "proto/clock.h"

#define PIECES_UNDER_WAY 4
#define ROOM_POLL_MS 3
#define END_POLL_MS 20
#define ALIVE_MS 15000                                   /* a slow writer of our input: the coordinator hears of us so often (it forgets uploads after a minute) */
#define ABORT_MS 2000

static fl_status stopped(fl_err *err)
{
    return command_signals() ? fl_fail(err, FL_AGAIN, "stopped; nothing was submitted, run the same command to do it again") : FL_OK;
}

static fl_status open_job(const char *path, int *fd, fl_err *err)
{
    struct stat at;
    if (strcmp(path, "-") == 0) {
        *fd = 0;
        return FL_OK;
    }
    while ((*fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 && errno == EINTR) {         /* a pipe that nobody writes to yet */
        fl_status st = stopped(err);
        if (st != FL_OK) return st;
    }
    if (*fd < 0) return fl_fail_errno(err, errno, "cannot read %s", path);
    if (fstat(*fd, &at) == 0 && S_ISDIR(at.st_mode)) return fl_fail(err, FL_INVALID, "%s is a directory; give a JSONL file", path);
    return FL_OK;
}

typedef struct {
    const submit_options *options;
    client *client;                      /* owned */
    char upload[FL_JOB_NAME_BYTES];
    uint64_t offset, limit;              /* bytes sent; how far may be sent */
    uint64_t first, n_asked, n_answered; /* requests first .. first + n_asked - 1 are under way, without the first n_answered */
    progress_ingest progress;
} submission;

static void take_reply(submission *s, json_t *reply)
{
    json_t *limit = json_object_get(reply, "limit");
    if (limit) s->limit = (uint64_t)json_integer_value(limit);
    progress_ingest_show(&s->progress, fl_boot_ms(), isatty(2), (uint64_t)json_integer_value(json_object_get(reply, "rows")), s->offset);
    json_decref(reply);
}

static fl_status begin(submission *s, fl_err *err)
{
    const submit_options *o = s->options;
    char seed[24], *defaults = NULL;
    const char *slash = strrchr(o->job, '/');
    json_t *reply = NULL;
    fl_status st = set_fields_json(&o->set, &defaults, err);
    if (st != FL_OK) return st;
    snprintf(seed, sizeof seed, "%" PRIu64, o->seed);
    json_t *args = json_pack("{s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:b}", "name", slash ? slash + 1 : o->job, "model", o->model ? o->model : "", "seed", seed, "defaults", defaults,
                             "duplicates", o->duplicates, "max_context", (json_int_t)o->max_context, "now", (json_int_t)o->now, "expires_in", (json_int_t)o->expires,
                             "row_queue_limit", (json_int_t)o->row_queue, "row_run_limit", (json_int_t)o->row_run, "row_limit", (json_int_t)o->row, "grade", o->grade);
    free(defaults);
    if (!args) return fl_fail(err, FL_INVALID, "the name of the model is no text in UTF-8; give it as `tokenfleet status` shows it");
    if ((st = client_call(s->client, "submit_begin", args, NULL, JOB_SOURCE_CALL_MS, &reply, NULL, NULL, err)) != FL_OK) return st;
    const char *name = json_string_value(json_object_get(reply, "upload"));
    snprintf(s->upload, sizeof s->upload, "%s", name ? name : "");
    take_reply(s, reply);
    return FL_OK;
}

/* ---- pieces ---- */

/* Ask with a piece, or without one to hear how far may be sent. */
static fl_status ask(submission *s, const fl_bytes *part, fl_err *err)
{
    uint64_t number = 0;
    fl_status st = client_ask(s->client, "submit_piece", json_pack("{s:s, s:I}", "upload", s->upload, "offset", (json_int_t)s->offset), part, &number, err);
    if (s->n_asked == s->n_answered) {
        s->first = number;
        s->n_asked = s->n_answered = 0;
    }
    s->n_asked++;
    return st;
}

/* Wait until at most n_left requests have no answer. */
static fl_status take_answers(submission *s, uint64_t n_left, fl_err *err)
{
    while (s->n_asked - s->n_answered > n_left) {
        json_t *reply = NULL;
        fl_status st = client_answer(s->client, s->first + s->n_answered++, 10 * JOB_SOURCE_CALL_MS, &reply, NULL, NULL, err);
        if (st != FL_OK) return command_signals() ? stopped(err) : st;
        take_reply(s, reply);
    }
    return FL_OK;
}

static fl_status say_alive(submission *s, fl_err *err)
{
    fl_status st = ask(s, NULL, err);
    return st == FL_OK ? take_answers(s, 0, err) : st;
}

/* Read until the piece is full or the input ends. */
static fl_status read_piece(submission *s, int fd, uint8_t *piece, size_t *n_bytes, fl_err *err)
{
    struct pollfd input = { .fd = fd, .events = POLLIN };
    int64_t heard_ms = fl_boot_ms();
    for (*n_bytes = 0; *n_bytes < SERVICE_PIECE_BYTES; ) {
        fl_status st = stopped(err);
        if (st == FL_OK && fl_boot_ms() - heard_ms >= ALIVE_MS) {
            st = say_alive(s, err);
            heard_ms = fl_boot_ms();
        }
        if (st != FL_OK) return st;
        if (poll(&input, 1, ALIVE_MS) <= 0) continue;    /* nothing yet, or a signal */
        ssize_t n = read(fd, piece + *n_bytes, SERVICE_PIECE_BYTES - *n_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot read %s", s->options->job);
        if (n == 0) break;
        *n_bytes += (size_t)n;
    }
    return FL_OK;
}

/* The coordinator reads slower than we send: ask until it has room for the next piece. */
static fl_status wait_for_room(submission *s, fl_err *err)
{
    fl_status st = FL_OK;
    while (st == FL_OK && s->limit < s->offset + SERVICE_PIECE_BYTES) {
        if (s->n_asked == s->n_answered) {
            poll(NULL, 0, ROOM_POLL_MS);
            if ((st = stopped(err)) != FL_OK) break;
            st = ask(s, NULL, err);
        }
        if (st == FL_OK) st = take_answers(s, s->n_asked - s->n_answered - 1, err);
    }
    return st;
}

/* Pieces in order, at most PIECES_UNDER_WAY without an answer. */
static fl_status upload_all(submission *s, int fd, fl_err *err)
{
    fl_status st = FL_OK;
    uint8_t *piece = malloc(SERVICE_PIECE_BYTES);
    if (!piece) return fl_fail(err, FL_FULL, "no memory to read %s", s->options->job);
    for (size_t n = SERVICE_PIECE_BYTES; st == FL_OK && n == SERVICE_PIECE_BYTES; ) {
        if ((st = read_piece(s, fd, piece, &n, err)) != FL_OK || n == 0) break;
        st = take_answers(s, PIECES_UNDER_WAY - 1, err);
        if (st == FL_OK) st = wait_for_room(s, err);
        if (st == FL_OK) st = ask(s, &(fl_bytes){ piece, n }, err);
        s->offset += n;
    }
    if (st == FL_OK) st = take_answers(s, 0, err);
    free(piece);
    return st;
}

/* The coordinator still parses, merges and syncs: ask until the job is there. */
static fl_status end(submission *s, json_t **reply, fl_err *err)
{
    for (;;) {
        fl_status st = client_call(s->client, "submit_end", json_pack("{s:s}", "upload", s->upload), NULL, 10 * JOB_SOURCE_CALL_MS, reply, NULL, NULL, err);
        if (st != FL_OK || json_object_get(*reply, "job")) return st != FL_OK && command_signals() ? stopped(err) : st;
        json_decref(*reply);
        *reply = NULL;
        poll(NULL, 0, END_POLL_MS);
        if ((st = stopped(err)) != FL_OK) return st;
    }
}

fl_status submit_job(const submit_options *o, json_t **reply, fl_err *err)
{
    submission s = { .options = o, .progress = { .what = "sending" } };
    fl_err ignored;
    int fd = -1;
    command_catch_signals();
    fl_status st = open_job(o->job, &fd, err);
    if (st == FL_OK) st = run_files_check_name(o->job, err);
    if (st == FL_OK) st = client_open(&s.client, o->to, err);
    if (st == FL_OK) st = begin(&s, err);
    if (st == FL_OK) st = upload_all(&s, fd, err);
    if (st == FL_OK) st = end(&s, reply, err);
    progress_ingest_clear(&s.progress);
    if (st == FL_AGAIN && s.upload[0] && client_call(s.client, "submit_abort", json_pack("{s:s}", "upload", s.upload), NULL, ABORT_MS, reply, NULL, NULL, &ignored) == FL_OK) {
        json_decref(*reply);
        *reply = NULL;
    }
    if (fd > 0) close(fd);
    client_close(s.client);
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
        { "--expires", FLAG_DURATION, "TIME", "rows not finished after so long fail with batch_expired: 90, 15m, 2h, 3d", &o.expires, 1, JOB_TIMES_MAX_S, false },
        { "--row-queue-limit", FLAG_DURATION, "TIME", "a row that no worker took after so long fails with request_timeout", &o.row_queue, 1, JOB_TIMES_MAX_S, false },
        { "--row-run-limit", FLAG_DURATION, "TIME", "as does one that a worker holds so long", &o.row_run, 1, JOB_TIMES_MAX_S, false },
        { "--row-limit", FLAG_DURATION, "TIME", "and one that is not finished so long after the job came", &o.row, 1, JOB_TIMES_MAX_S, false },
        { "--grade", FLAG_SWITCH, "", "grade the samples: rows carry a grade object (ops/JOBS.md), workers with --roles grade judge them", &o.grade, 0, 0, false },
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
    fl_status st = submit_job(&o, &reply, &err);
    if (st != FL_OK) return flags_end(command_ended(st), command.name, "%s", err.text);
    const char *name = json_string_value(json_object_get(reply, "job")), *unknown = json_string_value(json_object_get(reply, "unknown_fields")),
               *why = json_string_value(json_object_get(reply, "why"));
    long long bad = json_integer_value(json_object_get(reply, "bad")), total = json_integer_value(json_object_get(reply, "rows"));
    if (bad) fprintf(stderr, "%lld of %lld lines are bad; each gets its line in the error file\n", bad, total);
    long long renamed = json_integer_value(json_object_get(reply, "renamed"));
    if (renamed) fprintf(stderr, "%lld rows have the custom_id of an earlier one; each is named ID#<its line>\n", renamed);
    if (unknown && unknown[0]) fprintf(stderr, "fields that are not known and do nothing: %s\n", unknown);
    char *sentence = why && why[0] ? strdup(why) : NULL;
    if (sentence) fprintf(stderr, "the job is taken and waits: %s\n", printable(sentence));
    free(sentence);
    char *text = o.as_json ? json_dumps(reply, JSON_COMPACT) : NULL;
    puts(text ? text : name ? name : "");
    free(text);
    json_decref(reply);
    return ENDED_WELL;
}
