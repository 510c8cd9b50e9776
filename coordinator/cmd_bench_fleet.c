/* cmd_bench_fleet.c - `tokenfleet bench-fleet`: how big a fleet can one coordinator feed on this machine? Stub workers, a real coordinator, real sockets, a real job. */
#include "coordinator/commands.h"

#include <errno.h>
#include <ftw.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/bench_report.h"
#include "coordinator/client.h"
#include "coordinator/flags.h"
#include "coordinator/progress.h"
#include "coordinator/spool.h"
#include "coordinator/stub_fleet.h"
#include "proto/clock.h"

#define NAME "bench-fleet"
#define PROCESSES_MAX 16
#define PROMPT_TOKENS 8
#define START_MS 20000                                   /* for the coordinator to come up, for the fleet to be welcomed */
#define STALL_MS 120000                                  /* without a committed result, the bench gives up */
#define CALL_MS 30000
#define WATCH_MS 20
#define ASK_MS 2000                                      /* `status` names every worker, so it is asked rarely while results come */
#define END_MS 15000
#define HELD_SECONDS 2                                   /* of its own pace a worker wants to hold, but at least HELD_ROWS */
#define HELD_ROWS 128
#define FILES_BESIDE 64                                  /* descriptors of a process that are not a worker's */

typedef struct {
    const char *job, *to, *spool, *transport;
    uint64_t workers, processes, rows, tokens, rate, samples;
    bool no_verify, as_json;
} bench_options;

typedef struct {
    const bench_options *options;
    char dir[64];                        /* "" before it is made: everything of ours lies in it */
    char spool[4096], job_path[4096], log[128], endpoint[300], job[FL_JOB_NAME_BYTES];
    pid_t coordinator;                   /* 0: none of ours */
    bench_stubs stubs[PROCESSES_MAX]; uint32_t n_stubs;
    stub_bodies bodies;
    client *client;                      /* owned */
    json_t *verify;                      /* owned */
    bench_found found;
} bench;

/* ---- folders and files ---- */

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)info;
    (void)kind;
    (void)where;
    return remove(path);
}

static fl_status make_folder(bench *b, fl_err *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || tmp[0] != '/' || strlen(tmp) > 24) tmp = "/tmp";         /* the path of a socket is short */
    snprintf(b->dir, sizeof b->dir, "%s/tokenfleet-bench-XXXXXX", tmp);
    if (!mkdtemp(b->dir)) {
        b->dir[0] = '\0';
        return fl_fail_errno(err, errno, "no folder can be made in %s", tmp);
    }
    snprintf(b->log, sizeof b->log, "%s/coordinator.log", b->dir);
    snprintf(b->spool, sizeof b->spool, "%s", b->options->spool ? b->options->spool : "");
    if (!b->spool[0]) snprintf(b->spool, sizeof b->spool, "%s/spool", b->dir);
    return FL_OK;
}

/* Rows of token ids, so that no tokenizer is needed to read them. */
static fl_status write_job(bench *b, fl_err *err)
{
    const bench_options *o = b->options;
    snprintf(b->job_path, sizeof b->job_path, "%s/job.jsonl", b->dir);
    FILE *file = fopen(b->job_path, "we");
    if (!file) return fl_fail_errno(err, errno, "cannot write %s", b->job_path);
    for (uint64_t i = 0; i < o->rows && !ferror(file); i++) {
        fputs("{\"prompt\":[", file);
        for (uint64_t k = 0, x = i; k < PROMPT_TOKENS; k++, x /= 10) fprintf(file, k ? ",%" PRIu64 : "%" PRIu64, x % 10);
        fprintf(file, "],\"max_tokens\":%" PRIu64, o->tokens);
        if (o->samples > 1) fprintf(file, ",\"n\":%" PRIu64, o->samples);
        fputs("}\n", file);
    }
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) return fl_fail_errno(err, errno, "cannot write %s", b->job_path);
    return FL_OK;
}

static uint64_t file_bytes(const char *path)
{
    struct stat at;
    return stat(path, &at) == 0 ? (uint64_t)at.st_size : 0;
}

/* ---- start ---- */

static fl_status check_files(bench *b, fl_err *err)
{
    const bench_options *o = b->options;
    b->found.file_limit = bench_file_limit();
    uint64_t a_process = (o->workers + o->processes - 1) / o->processes * STUB_FILES_A_WORKER + FILES_BESIDE, ours = o->to ? 0 : o->workers + FILES_BESIDE;
    if (a_process > b->found.file_limit)
        return fl_fail(err, FL_INVALID, "%" PRIu64 " stub workers in one process need %" PRIu64 " open files and %" PRIu64 " are allowed: raise `ulimit -Hn`, or give more --processes",
                       (o->workers + o->processes - 1) / o->processes, a_process, b->found.file_limit);
    if (ours > b->found.file_limit)
        return fl_fail(err, FL_INVALID, "a coordinator of %" PRIu64 " workers needs %" PRIu64 " open files and %" PRIu64 " are allowed: raise `ulimit -Hn`, or take fewer --workers", o->workers,
                       ours, b->found.file_limit);
    return FL_OK;
}

static fl_status coordinator_ended(bench *b, fl_err *err)
{
    char last[400];
    bench_last_line(b->log, last, sizeof last);
    b->coordinator = 0;
    return fl_fail(err, FL_IO, "the coordinator ended: %s", last[0] ? last : "it left no sentence");
}

static bool is_interrupted(void)
{
    return command_signals() > 0;
}

static fl_status interrupted(fl_err *err)
{
    return fl_fail(err, FL_AGAIN, "interrupted; nothing is left of the bench");
}

static fl_status start_coordinator(bench *b, fl_err *err)
{
    char bind[128];
    bool is_tcp = strcmp(b->options->transport, "tcp") == 0, is_there = false;
    snprintf(bind, sizeof bind, is_tcp ? "tcp://127.0.0.1:0" : "ipc://%s/s", b->dir);
    char *argv[] = { "tokenfleet", "coordinator", "--spool", b->spool, "--bind", bind, NULL };
    fl_status st = bench_start_self(&b->coordinator, argv, b->log, err);
    for (int waited = 0; st == FL_OK && !is_there; waited += WATCH_MS) {
        int status;
        if (bench_has_ended(b->coordinator, &status)) return coordinator_ended(b, err);
        if (is_interrupted()) return interrupted(err);
        if (waited > START_MS) return fl_fail(err, FL_TIMEOUT, "the coordinator did not come up within %d s", START_MS / 1000);
        poll(NULL, 0, WATCH_MS);
        is_there = spool_read_endpoint(b->spool, b->endpoint);
    }
    b->found.at_start = bench_usage_of(b->coordinator);
    return st;
}

static fl_status start_stubs(bench *b, fl_err *err)
{
    const bench_options *o = b->options;
    uint64_t held = o->rate * HELD_SECONDS > HELD_ROWS ? o->rate * HELD_SECONDS : HELD_ROWS;
    fl_status st = stub_bodies_open(&b->bodies, (uint32_t)o->tokens, err);
    for (uint64_t i = 0; st == FL_OK && i < o->processes; i++) {
        bench_stubs_options options = { .endpoint = b->endpoint, .n_workers = (uint32_t)(o->workers * (i + 1) / o->processes - o->workers * i / o->processes),
                                        .options = { .interval_us = o->rate ? 1000000 / o->rate : 0, .credit_tokens = held * (o->tokens + PROMPT_TOKENS),
                                                     .credit_bytes = 32u << 20, .bodies = &b->bodies } };
        st = bench_stubs_start(&b->stubs[i], &options, err);
        b->n_stubs += st == FL_OK;
    }
    return st;
}

/* ---- watching ---- */

static uint64_t sum_of(const bench *b, size_t offset)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < b->n_stubs; i++) n += atomic_load((const atomic_uint_fast64_t *)((const char *)&b->stubs[i].shared->stats + offset));
    return n;
}

/* Is everybody alive, and does nobody want us to stop? */
static fl_status look_around(bench *b, fl_err *err)
{
    int status;
    if (is_interrupted()) return interrupted(err);
    if (b->coordinator && bench_has_ended(b->coordinator, &status)) return coordinator_ended(b, err);
    for (uint32_t i = 0; i < b->n_stubs; i++) {
        if (!b->stubs[i].pid || !bench_has_ended(b->stubs[i].pid, &status)) continue;
        b->stubs[i].pid = 0;
        return fl_fail(err, FL_IO, "the stub workers ended: %s", b->stubs[i].shared->error[0] ? b->stubs[i].shared->error : "by a signal");
    }
    return FL_OK;
}

static fl_status wait_for_fleet(bench *b, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t n = 0;
    for (int waited = 0; st == FL_OK && (n = sum_of(b, offsetof(stub_stats, n_welcome))) < b->options->workers; waited += WATCH_MS) {
        if (waited > START_MS) return fl_fail(err, FL_TIMEOUT, "%" PRIu64 " of %" PRIu64 " stub workers were welcomed within %d s", n, b->options->workers, START_MS / 1000);
        poll(NULL, 0, WATCH_MS);
        st = look_around(b, err);
    }
    return st;
}

static long long integer_at(const json_t *reply, const char *part, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(json_object_get(reply, "job"), part), key));
}

static fl_status ask_status(bench *b, json_t **reply, fl_err *err)
{
    return client_call(b->client, "status", json_pack("{s:s}", "job", b->job), NULL, CALL_MS, reply, NULL, NULL, err);
}

/* Until the job is closed. */
static fl_status watch_run(bench *b, fl_err *err)
{
    progress shown;
    int64_t now = fl_boot_ms(), asked = now, moved = now;
    uint64_t wanted = b->found.samples, before = 0;
    fl_status st = FL_OK;
    progress_init(&shown, now, isatty(2));
    for (bool is_open = true; st == FL_OK && is_open; ) {
        poll(NULL, 0, WATCH_MS);
        if ((st = look_around(b, err)) != FL_OK) break;
        uint64_t n = sum_of(b, offsetof(stub_stats, n_committed));
        now = fl_boot_ms();
        if (n != before) moved = now;
        before = n;
        if (!b->options->as_json) {
            progress_show(&shown, now, &(progress_numbers){ .rows = wanted, .done = n, .tokens = n * b->options->tokens, .workers = (int)b->options->workers });
        }
        if (now - moved > STALL_MS) st = fl_fail(err, FL_TIMEOUT, "no result was committed for %d s; `tokenfleet status` of the coordinator may tell why", STALL_MS / 1000);
        if (n < wanted && now - asked < ASK_MS) continue;
        json_t *reply = NULL;
        asked = now;
        if (st == FL_OK) st = ask_status(b, &reply, err);
        is_open = st == FL_OK && strcmp(json_string_value(json_object_get(json_object_get(reply, "job"), "state")), "running") == 0;
        b->found.failed_rows = (uint64_t)integer_at(reply, "rows", "failed");
        json_decref(reply);
    }
    progress_clear(&shown);
    return st;
}

static fl_status watch_outputs(bench *b, fl_err *err)
{
    int64_t begin = fl_boot_ms();
    fl_status st = FL_OK;
    for (bool is_written = false; st == FL_OK && !is_written; ) {
        json_t *reply = NULL;
        if ((st = look_around(b, err)) == FL_OK) st = ask_status(b, &reply, err);
        is_written = st == FL_OK && json_is_true(json_object_get(json_object_get(reply, "job"), "outputs"));
        json_decref(reply);
        if (!is_written) poll(NULL, 0, WATCH_MS);
    }
    b->found.outputs_s = (double)(fl_boot_ms() - begin) / 1000.0;
    return st;
}

/* ---- the job's way ---- */

static fl_status submit(bench *b, fl_err *err)
{
    char *text = NULL;
    char *argv[] = { "tokenfleet", "submit", b->job_path, "--to", b->endpoint, "--json", NULL };
    int64_t begin = fl_boot_ms();
    fl_status st = bench_call_self(argv, &text, err);
    json_t *reply = st == FL_OK ? json_loads(text, 0, NULL) : NULL;
    const char *name = json_string_value(json_object_get(reply, "job"));
    if (st == FL_OK && !name) st = fl_fail(err, FL_CORRUPT, "`tokenfleet submit` named no job");
    if (st == FL_OK) {
        snprintf(b->job, sizeof b->job, "%s", name);
        b->found.rows = (uint64_t)json_integer_value(json_object_get(reply, "rows"));
        b->found.samples = (b->found.rows - (uint64_t)json_integer_value(json_object_get(reply, "bad"))) * (b->options->job ? 1 : b->options->samples);
    }
    b->found.ingest_s = (double)(fl_boot_ms() - begin) / 1000.0;
    if (b->coordinator) b->found.at_ingested = bench_usage_of(b->coordinator);
    json_decref(reply);
    free(text);
    return st;
}

static fl_status prove(bench *b, fl_err *err)
{
    char *text = NULL;
    char *argv[] = { "tokenfleet", "verify", b->job, "--to", b->endpoint, "--json", NULL };
    int64_t begin = fl_boot_ms();
    fl_status st = bench_call_self(argv, &text, err);
    b->found.verify_s = (double)(fl_boot_ms() - begin) / 1000.0;
    if (st == FL_OK && !(b->verify = json_loads(text, 0, NULL))) st = fl_fail(err, FL_CORRUPT, "`tokenfleet verify` gave no report");
    free(text);
    return st;
}

/* Everybody says good-bye; then their stats are whole. */
static void dismiss_stubs(bench *b)
{
    for (uint32_t i = 0; i < b->n_stubs; i++) bench_stubs_stop(&b->stubs[i]);
    for (uint32_t i = 0; i < b->n_stubs; i++) {
        if (b->stubs[i].pid) bench_end(b->stubs[i].pid, END_MS);
        b->stubs[i].pid = 0;
    }
}

static void take_stock(bench *b)
{
    bench_found *f = &b->found;
    for (uint32_t i = 0; i < b->n_stubs; i++) bench_sum(&f->stats, &b->stubs[i].shared->stats);
    f->run_s = (double)(f->stats.last_answer_us - f->stats.first_grant_us) * 1e-6;
    f->tail_s = (double)(f->stats.last_answer_us - f->stats.last_grant_us) * 1e-6;
    if (b->options->job) f->samples = atomic_load(&f->stats.n_committed);
    if (!b->coordinator) return;
    char ledger_dir[4300];
    snprintf(ledger_dir, sizeof ledger_dir, "%s/jobs/%s/ledger", b->spool, b->job);
    f->ledger_bytes = bench_folder_bytes(ledger_dir);
}

static fl_status measure(bench *b, fl_err *err)
{
    const bench_options *o = b->options;
    fl_status st = check_files(b, err);
    if (st == FL_OK) st = make_folder(b, err);
    if (st == FL_OK && o->job) snprintf(b->job_path, sizeof b->job_path, "%s", o->job);
    else if (st == FL_OK) st = write_job(b, err);
    if (st != FL_OK) return st;
    b->found.job_bytes = file_bytes(b->job_path);
    if (o->to) snprintf(b->endpoint, sizeof b->endpoint, "%s", o->to);
    else st = start_coordinator(b, err);
    if (st == FL_OK) st = start_stubs(b, err);           /* before there is a libzmq context here: they are forks */
    if (st == FL_OK) st = wait_for_fleet(b, err);
    if (st == FL_OK) st = client_open(&b->client, b->endpoint, err);
    if (st == FL_OK) st = submit(b, err);
    if (st == FL_OK) st = watch_run(b, err);
    if (st == FL_OK && b->coordinator) b->found.at_run = bench_usage_of(b->coordinator);
    if (st == FL_OK) st = watch_outputs(b, err);
    if (st == FL_OK && b->coordinator) b->found.at_outputs = bench_usage_of(b->coordinator);
    dismiss_stubs(b);
    if (st == FL_OK) take_stock(b);
    if (st == FL_OK && !o->no_verify) st = prove(b, err);
    if (st == FL_OK && b->coordinator) b->found.at_end = bench_usage_of(b->coordinator);
    return st;
}

static void clean_up(bench *b)
{
    dismiss_stubs(b);
    for (uint32_t i = 0; i < b->n_stubs; i++) bench_stubs_free(&b->stubs[i]);
    stub_bodies_close(&b->bodies);
    client_close(b->client);
    json_decref(b->verify);
    if (b->coordinator) {
        kill(b->coordinator, SIGTERM);
        bench_end(b->coordinator, END_MS);
    }
    if (b->dir[0]) nftw(b->dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

int cmd_bench_fleet(int argc, char **argv)
{
    bench_options o = { .transport = "tcp", .workers = 1000, .processes = 1, .rows = 1000000, .tokens = 200, .rate = 50, .samples = 1 };
    const flag flags[] = {
        { "--workers", FLAG_NUMBER, "N", "stub workers (default 1000)", &o.workers, 1, 100000, false },
        { "--rows", FLAG_NUMBER, "R", "rows of the job it writes (default 1000000)", &o.rows, 1, 100000000, false },
        { "--tokens", FLAG_NUMBER, "T", "tokens of each result (default 200)", &o.tokens, 1, 1 << 20, false },
        { "--samples", FLAG_NUMBER, "N", "results of each row (default 1)", &o.samples, 1, 1024, false },
        { "--rate", FLAG_NUMBER, "R", "results a second of each worker, 0 = as fast as it can (default 50)", &o.rate, 0, 1000000, false },
        { "--processes", FLAG_NUMBER, "P", "processes that the stub workers share (default 1)", &o.processes, 1, PROCESSES_MAX, false },
        { "--transport", FLAG_CHOICE, "tcp|ipc", "sockets of the coordinator it starts (default tcp, on loopback)", &o.transport, 0, 0, false },
        { "--to", FLAG_TEXT, "ENDPOINT", "a running coordinator instead of one of its own; the job stays there", &o.to, 0, 0, false },
        { "--spool", FLAG_TEXT, "DIR", "spool of the coordinator it starts, which is kept (default a temporary one)", &o.spool, 0, 0, false },
        { "--no-verify", FLAG_SWITCH, "", "do not prove from the ledger that the job is whole", &o.no_verify, 0, 0, false },
        { "--json", FLAG_SWITCH, "", "print the report as JSON", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "[JOB.jsonl]", "How big a fleet can one coordinator feed on this machine? Runs a whole job with stub workers, which compute nothing and answer at a fixed pace, against a\n"
        "real coordinator over real sockets, and reports rows/s, the CPU time of both sides apart, memory, how long workers waited for rows, and latencies. Then it proves\n"
        "that the job is whole. Without JOB it writes one. What it made is removed (except a --spool, and a job that --to was given).\n"
        "The coordinator is the limit when workers wait for more than about 1% of their time or results come slower than workers x rate; free cores matter: the\n"
        "stub workers need as much time as the coordinator.",
        "tokenfleet bench-fleet --workers 1000 --rows 1000000\n  tokenfleet bench-fleet --workers 8 --rate 0 --tokens 1000 --rows 100000", 0, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    if (o.to && o.spool) return flags_end(ENDED_USAGE, NAME, "--spool is for the coordinator it starts and --to names one that runs: give one of them");
    if (o.processes > o.workers) return flags_end(ENDED_USAGE, NAME, "--processes %" PRIu64 " are more than --workers %" PRIu64, o.processes, o.workers);
    if (n) o.job = operands[0];
    bench b = { .options = &o };
    fl_err err = { 0 };
    command_catch_signals();
    b.found = (bench_found){ .workers = o.workers, .processes = o.processes, .rate = o.rate, .tokens = o.tokens, .transport = o.to ? "given" : o.transport, .is_own = !o.to };
    fl_status st = measure(&b, &err);
    if (st == FL_OK) {
        b.found.endpoint = b.endpoint;
        b.found.verify = b.verify;
        json_t *report = bench_report(&b.found);
        char *text = o.as_json ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
        if (text) puts(text);
        else bench_report_print(report);
        free(text);
        json_decref(report);
    }
    clean_up(&b);
    if (st != FL_OK) return flags_end(command_ended(st), NAME, "%s", err.text);
    return b.found.failed_rows ? ENDED_ROWS_FAILED : ENDED_WELL;
}
