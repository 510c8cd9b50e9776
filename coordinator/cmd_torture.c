/* cmd_torture.c - `tokenfleet torture`: prove on this machine that nothing is lost and nothing doubled when workers, engines, coordinators, links and disks fail. */
#include "coordinator/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/flags.h"
#include "coordinator/torture_rounds.h"
#include "coordinator/torture_storm.h"
#include "proto/clock.h"

#define NAME "torture"
#define TURN_MS 10
#define HOSTS 3
#define JOB_ROWS 1500
#define DISK_BYTES_LEAST (96ull << 20)
#define DISK_BYTES_A_JOB_BYTE 40         /* results, outputs and a deleted job that is not gone yet, beside the lines */
#define MINUTES_MAX 100000.0

typedef struct {
    const char *job, *model;
    double minutes;
    uint64_t seed, workers;
    bool as_json;
} torture_options;

typedef struct {
    const torture_options *options;
    char job[PATH_MAX];
    torture_lab lab;
    torture_fleet fleet;
    torture_rounds rounds;
    torture_storm storm;
    int64_t begun_ms, ended_ms;
    int n_left;                          /* processes */
    const char *left;                    /* a file or mount; "" */
} torture;

/* ---- the job ---- */

/* Token ids that any vocabulary has, so that no tokenizer is needed; every kind of row that could suffer: samples, log-probabilities, long and short ones, and bad ones for the error file. */
static fl_status write_job(const char *path, uint64_t seed, fl_err *err)
{
    uint64_t random = seed;
    FILE *file = fopen(path, "we");
    if (!file) return fl_fail_errno(err, errno, "cannot write %s", path);
    for (int i = 0; i < JOB_ROWS; i++) {
        uint64_t x = torture_random(&random);
        fprintf(file, "{\"custom_id\":\"torture-%d\",\"prompt\":", i);
        if (x % 50 == 0) fputs("7", file);
        else {
            for (uint64_t k = 0, n = 3 + x % 60; k < n; k++) fprintf(file, "%c%" PRIu64, k ? ',' : '[', 3 + torture_random(&random) % 200);
            fputc(']', file);
        }
        fprintf(file, ",\"max_tokens\":%" PRIu64 ",\"n\":%" PRIu64 ",\"temperature\":%s,\"ignore_eos\":true", 2 + (x >> 8) % 40, 1 + (x >> 16) % 3, (x >> 24) % 3 ? "1" : "0");
        if ((x >> 32) % 4 == 0) fputs(",\"logprobs\":2", file);
        if ((x >> 40) % 4 == 0) fputs(",\"return_token_ids\":true", file);
        fputs("}\n", file);
    }
    bool failed = ferror(file) != 0;
    return fclose(file) != 0 || failed ? fl_fail_errno(err, errno, "cannot write %s", path) : FL_OK;
}

static fl_status check_job(torture *t, uint64_t *job_bytes, fl_err *err)
{
    struct stat at;
    if (!t->options->job) return FL_OK;
    if (!realpath(t->options->job, t->job) || stat(t->job, &at) != 0) return fl_fail(err, FL_NOT_FOUND, "%s: %s", t->options->job, strerror(errno));
    *job_bytes = (uint64_t)at.st_size;
    return FL_OK;
}

/* ---- the run ---- */

static void show_round(const torture *t)
{
    const uint64_t *n = t->storm.n;
    fprintf(stderr, "tokenfleet " NAME ": round %" PRIu64 " is sound and has the same hash after %.0f s; killed so far: %" PRIu64 " workers, %" PRIu64 " engines, %" PRIu64 " coordinators\n",
            t->rounds.n_rounds, (double)(fl_boot_ms() - t->begun_ms) / 1000.0, n[STORM_KILL_WORKERS], n[STORM_KILL_ENGINE], n[STORM_KILL_COORD]);
}

static fl_status torment(torture *t, fl_err *err)
{
    fl_status st = FL_OK;
    int64_t now = fl_boot_ms(), until = now + (int64_t)(t->options->minutes * 60000.0);
    uint64_t seen = 0;
    bool is_over = false, is_calm = false;
    t->begun_ms = now;
    torture_storm_begin(&t->storm, &t->fleet, t->options->seed, now);
    while (st == FL_OK && !is_over) {
        now = fl_boot_ms();
        if (command_signals()) return fl_fail(err, FL_AGAIN, "interrupted");
        if (now >= until && !is_calm) {
            st = torture_storm_calm(&t->storm, now, err);
            is_calm = true;
        }
        if (st == FL_OK) st = torture_fleet_tend(&t->fleet, now, err);
        if (st == FL_OK) st = torture_storm_blow(&t->storm, now, err);
        if (st == FL_OK) st = torture_rounds_turn(&t->rounds, now, !is_calm, &is_over, err);
        if (t->rounds.n_rounds != seen) show_round(t);
        seen = t->rounds.n_rounds;
        poll(NULL, 0, TURN_MS);
    }
    t->ended_ms = fl_boot_ms();
    return st;
}

/* Nothing of the jobs that were deleted may be left in the spool. */
static fl_status check_spool(torture *t, fl_err *err)
{
    char jobs[128];
    snprintf(jobs, sizeof jobs, "%s/jobs", t->lab.spool);
    if (rmdir(jobs) != 0 && errno != ENOENT) return fl_fail(err, FL_CORRUPT, "a job's files are left in the spool: %s", strerror(errno));
    return FL_OK;
}

static fl_status run_it(torture *t, fl_err *err)
{
    const torture_options *o = t->options;
    uint64_t job_bytes = 0, disk = DISK_BYTES_LEAST;
    fl_status st = check_job(t, &job_bytes, err);
    if (job_bytes * DISK_BYTES_A_JOB_BYTE > disk) disk = job_bytes * DISK_BYTES_A_JOB_BYTE;
    if (st == FL_OK) st = torture_lab_open(&t->lab, o->workers < HOSTS ? (int)o->workers : HOSTS, disk, err);
    if (st == FL_OK && !o->job) {
        snprintf(t->job, sizeof t->job, "%s/job.jsonl", t->lab.dir);
        st = write_job(t->job, o->seed, err);
    }
    if (st == FL_OK) st = torture_fleet_open(&t->fleet, &t->lab, (int)o->workers, o->model, err);
    if (st == FL_OK) fprintf(stderr, "tokenfleet " NAME ": seed %" PRIu64 "; links: %s; disk: %s\n", o->seed, t->lab.links, t->lab.disk_text);
    if (st == FL_OK) st = torture_rounds_open(&t->rounds, &t->fleet, t->job, o->seed, err);
    if (st == FL_OK) st = torment(t, err);
    if (st == FL_OK) st = torture_fleet_end(&t->fleet, err);
    if (st == FL_OK) st = check_spool(t, err);
    return st;
}

/* ---- the report ---- */

static json_t *report_of(const torture *t)
{
    const torture_rounds *r = &t->rounds;
    json_t *storm = json_object();
    for (int i = 0; i < STORM_KINDS; i++) json_object_set_new(storm, storm_kind_name((storm_kind)i), json_integer((json_int_t)t->storm.n[i]));
    return json_pack("{s:I, s:f, s:I, s:s, s:s, s:o, s:{s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}, s:{s:I, s:I, s:I, s:I, s:I}, s:{s:s, s:s}}",
                     "seed", (json_int_t)t->options->seed, "seconds", (double)(t->ended_ms - t->begun_ms) / 1000.0, "workers", (json_int_t)t->options->workers, "links", t->lab.links, "disk",
                     t->lab.disk_text, "disturbances", storm, "jobs", "rounds", (json_int_t)r->n_rounds, "rows", (json_int_t)r->rows, "failed_rows", (json_int_t)r->failed, "seen_at_least",
                     "leases_granted", (json_int_t)r->sum.leases_granted, "leases_lost", (json_int_t)r->sum.leases_lost, "handbacks", (json_int_t)r->sum.handbacks, "retries",
                     (json_int_t)r->sum.retries, "duplicates", (json_int_t)r->sum.duplicates, "stale", (json_int_t)r->sum.stale, "refused", (json_int_t)r->sum.refused, "crashes",
                     (json_int_t)r->sum.crashes, "processes", "coordinator_starts", (json_int_t)t->fleet.n_starts, "worker_starts", (json_int_t)t->fleet.n_worker_starts, "drained",
                     (json_int_t)t->fleet.n_drained, "ended_without_space", (json_int_t)t->fleet.n_no_space, "commands_tried_again", (json_int_t)r->n_tries, "sha256", "out", r->hash[0], "errors",
                     r->hash[1]);
}

static long long whole(const json_t *report, const char *part, const char *key)
{
    return (long long)json_integer_value(json_object_get(json_object_get(report, part), key));
}

static void print_report(const json_t *r)
{
    const char *key;
    json_t *value;
    printf("jobs          %lld rounds of the job in %.0f s, %lld rows, %lld of them meant to fail; every hash the same, every round sound\n", whole(r, "jobs", "rounds"),
           json_real_value(json_object_get(r, "seconds")), whole(r, "jobs", "rows"), whole(r, "jobs", "failed_rows"));
    printf("disturbances  ");
    int n = 0;
    json_object_foreach(json_object_get(r, "disturbances"), key, value) {
        printf("%s%lld ", n++ ? ", " : "", (long long)json_integer_value(value));
        for (const char *c = key; *c; c++) putchar(*c == '_' ? ' ' : *c);
    }
    printf("\nlinks         %s\ndisk          %s\n", json_string_value(json_object_get(r, "links")), json_string_value(json_object_get(r, "disk")));
    printf("leases        %lld granted, %lld lost, %lld handed back (at least: a killed coordinator takes its counts along)\n", whole(r, "seen_at_least", "leases_granted"),
           whole(r, "seen_at_least", "leases_lost"), whole(r, "seen_at_least", "handbacks"));
    printf("rows          %lld begun again, %lld duplicate and %lld stale results, %lld refused, %lld crashes (at least)\n", whole(r, "seen_at_least", "retries"),
           whole(r, "seen_at_least", "duplicates"), whole(r, "seen_at_least", "stale"), whole(r, "seen_at_least", "refused"), whole(r, "seen_at_least", "crashes"));
    printf("processes     %lld coordinators, %lld workers started; %lld drained; %lld coordinators ended for want of space; %lld commands tried again\n",
           whole(r, "processes", "coordinator_starts"), whole(r, "processes", "worker_starts"), whole(r, "processes", "drained"), whole(r, "processes", "ended_without_space"),
           whole(r, "processes", "commands_tried_again"));
    printf("left over     no process, file or mount\n");
    printf("sha256        %s  OUT\n              %s  ERR\n", json_string_value(json_object_get(json_object_get(r, "sha256"), "out")),
           json_string_value(json_object_get(json_object_get(r, "sha256"), "errors")));
}

static int tell(const torture *t, fl_status st, const fl_err *err)
{
    const char *again = st == FL_CORRUPT || t->n_left || t->left[0] ? "; the same seed disturbs the same way again: --seed " : "";
    char seed[24] = "";
    if (again[0]) snprintf(seed, sizeof seed, "%" PRIu64, t->options->seed);
    if (st == FL_CORRUPT) return flags_end(ENDED_ROWS_FAILED, NAME, "%s%s%s", err->text, again, seed);
    if (st == FL_AGAIN) return flags_end(ENDED_INCOMPLETE, NAME, "%s after %" PRIu64 " sound rounds; %s", err->text, t->rounds.n_rounds, t->left[0] ? t->left : "nothing is left of it");
    if (st != FL_OK) return flags_end(command_ended(st), NAME, "%s", err->text);
    if (t->n_left) return flags_end(ENDED_ROWS_FAILED, NAME, "%d processes outlived their fleet and were killed%s%s", t->n_left, again, seed);
    if (t->left[0]) return flags_end(ENDED_ROWS_FAILED, NAME, "%s%s%s", t->left, again, seed);
    json_t *report = report_of(t);
    char *text = t->options->as_json ? json_dumps(report, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    if (text) puts(text);
    else print_report(report);
    free(text);
    json_decref(report);
    return ENDED_WELL;
}

static bool read_minutes(const char *text, double *minutes)
{
    char *end;
    *minutes = strtod(text, &end);
    return *text && !*end && *minutes > 0.0 && *minutes <= MINUTES_MAX;
}

int cmd_torture(int argc, char **argv)
{
    torture_options o = { .model = "demo", .workers = 6 };
    const char *minutes = "2", *seed = NULL;
    const flag flags[] = {
        { "--minutes", FLAG_TEXT, "M", "how long the storm lasts, as in 30 or 0.5 (default 2)", &minutes, 0, 0, false },
        { "--seed", FLAG_TEXT, "S", "whom it meets and when (default: another one each time; it is printed)", &seed, 0, 0, false },
        { "--workers", FLAG_NUMBER, "N", "workers (default 6)", &o.workers, 1, TORTURE_WORKERS_MAX, false },
        { "--model", FLAG_TEXT, "PATH", "a model directory, a .gguf file, or demo for the one that ships (default)", &o.model, 0, 0, false },
        { "--json", FLAG_SWITCH, "", "print the report as JSON", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "[JOB.jsonl]", "Prove on this machine that nothing is lost and nothing doubled. Runs a job undisturbed, then again and again while workers, their engines and the\n"
        "coordinator are killed, stopped and drained, links are cut and the spool's disk is filled once; every round must give the same bytes, pass `verify`, and at the\n"
        "end nothing may be left over: no process, no file, no mount. Without JOB it writes one. Ends with 0 only when all of it held, 1 with a sentence when not.\n"
        "As root, or where user namespaces are allowed, hosts are network namespaces whose links go down, and the disk is a small tmpfs; elsewhere links are played by\n"
        "a relay that stops carrying, and the disk is not filled. Only processes that it started are touched. Everything runs in a temporary folder (TMPDIR).",
        "tokenfleet torture --minutes 30\n  tokenfleet torture --minutes 1 --seed 7 --workers 8 job.jsonl", 0, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    if (!read_minutes(minutes, &o.minutes)) return flags_end(ENDED_USAGE, NAME, "--minutes takes a number above 0, not '%s'", minutes);
    char *end = NULL;
    if (seed) o.seed = strtoull(seed, &end, 10);
    if (seed && (!*seed || *end || seed[strspn(seed, "0123456789")])) return flags_end(ENDED_USAGE, NAME, "--seed takes a whole number, not '%s'", seed);
    if (!seed && getrandom(&o.seed, sizeof o.seed, 0) == sizeof o.seed) o.seed %= 1000000;
    if (n) o.job = operands[0];
    torture t = { .options = &o, .lab.lock_fd = -1, .left = "" };
    fl_err err = { 0 };
    command_catch_signals();
    fl_status st = run_it(&t, &err);
    t.n_left = torture_fleet_close(&t.fleet);
    t.left = torture_lab_close(&t.lab);
    return tell(&t, st, &err);
}
