#include "coordinator/torture_rounds.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/bench_process.h"
#include "coordinator/commands.h"
#include "coordinator/flags.h"
#include "proto/clock.h"
#include "proto/row_error.h"

#define TURN_MS 20
#define AGAIN_MS 300                     /* before a command that failed is tried again */
#define WATCH_MS 1000
#define STILL_MS 180000                  /* without a row or a step: it hangs */

/* ---- files ---- */

static fl_status hash_file(const char *path, char hex[SHA256_HEX_BYTES], fl_err *err)
{
    sha256 state;
    uint8_t piece[65536];
    size_t n;
    FILE *file = fopen(path, "re");
    if (!file) return fl_fail_errno(err, errno, "cannot read %s", path);
    sha256_init(&state);
    while ((n = fread(piece, 1, sizeof piece, file)) > 0) sha256_add(&state, piece, n);
    sha256_end(&state, hex);
    bool failed = ferror(file) != 0;
    fclose(file);
    return failed ? fl_fail(err, FL_IO, "cannot read %s", path) : FL_OK;
}

static bool has_quarantine(const char *path)
{
    char *line = NULL, word[64];
    size_t capacity = 0;
    bool found = false;
    snprintf(word, sizeof word, "\"%s\"", fl_row_error_name(ROW_CRASH_QUARANTINED));
    FILE *file = fopen(path, "re");
    while (file && !found && getline(&line, &capacity, file) > 0) found = strstr(line, word) != NULL;
    if (file) fclose(file);
    free(line);
    return found;
}

/* ---- the undisturbed run ---- */

fl_status torture_rounds_open(torture_rounds *r, torture_fleet *fleet, const char *job, uint64_t seed, fl_err *err)
{
    char workers[8] = "2", last[300], spool_dir[160];
    *r = (torture_rounds){ .fleet = fleet, .job = job, .moved_ms = fl_boot_ms() };
    snprintf(r->seed, sizeof r->seed, "%llu", (unsigned long long)seed);
    snprintf(r->out, sizeof r->out, "%s/calm.jsonl", fleet->lab->dir);
    snprintf(r->errors, sizeof r->errors, "%s/calm.errors.jsonl", fleet->lab->dir);
    snprintf(spool_dir, sizeof spool_dir, "%s/calm.spool", fleet->lab->dir);
    char *argv[] = { "tokenfleet", "run", (char *)(uintptr_t)job, "--model", (char *)(uintptr_t)fleet->model, "--workers", workers, "--seed", r->seed, "--now", "1",
                     "--out", r->out, "--errors", r->errors, "--spool", spool_dir, NULL };
    fl_status st = torture_task_start(fleet, &r->command, "calm", argv, err);
    fleet->is_ending = true;                             /* no fleet beside it */
    while (st == FL_OK && !r->command.is_done) {
        if (command_signals()) return fl_fail(err, FL_AGAIN, "interrupted");
        poll(NULL, 0, TURN_MS);
        st = torture_fleet_tend(fleet, fl_boot_ms(), err);
    }
    fleet->is_ending = false;
    if (st != FL_OK) return st;
    bench_last_line(r->command.errors, last, sizeof last);
    if (r->command.status != ENDED_WELL && r->command.status != ENDED_ROWS_FAILED) return fl_fail(err, FL_IO, "the undisturbed run failed: %s", last);
    st = hash_file(r->out, r->hash[0], err);
    if (st == FL_OK) st = hash_file(r->errors, r->hash[1], err);
    torture_remove_folder(spool_dir, "");
    unlink(r->out);
    unlink(r->errors);
    snprintf(r->out, sizeof r->out, "%s/storm.jsonl", fleet->lab->dir);
    snprintf(r->errors, sizeof r->errors, "%s/storm.errors.jsonl", fleet->lab->dir);
    r->command = (torture_task){ 0 };
    return st;
}

/* ---- watching ---- */

static json_t *answer_of(const torture_task *t)
{
    return json_load_file(t->output, 0, NULL);
}

static void add_events(round_events *sum, round_events *last, const json_t *events)
{
    static const struct { const char *key; size_t at; } keys[] = {
        { "retries", offsetof(round_events, retries) }, { "duplicates", offsetof(round_events, duplicates) }, { "stale", offsetof(round_events, stale) },
        { "refused", offsetof(round_events, refused) }, { "leases_granted", offsetof(round_events, leases_granted) }, { "leases_lost", offsetof(round_events, leases_lost) },
        { "handbacks", offsetof(round_events, handbacks) }, { "crashes", offsetof(round_events, crashes) },
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        uint64_t *before = (uint64_t *)((char *)last + keys[i].at), now = (uint64_t)json_integer_value(json_object_get(events, keys[i].key));
        if (now > *before) *(uint64_t *)((char *)sum + keys[i].at) += now - *before;
        *before = now;
    }
}

static void take_watch(torture_rounds *r, int64_t now_ms)
{
    json_t *list = r->watch.status == ENDED_WELL ? answer_of(&r->watch) : NULL;
    const json_t *job = NULL, *one;
    size_t i;
    json_array_foreach(json_object_get(list, "jobs"), i, one) {
        if (strcmp(json_string_value(json_object_get(one, "job")), r->name) == 0) job = one;
    }
    const json_t *counts = json_object_get(job, "rows"), *events = json_object_get(job, "events");
    uint64_t failed = (uint64_t)json_integer_value(json_object_get(counts, "failed")), done = failed + (uint64_t)json_integer_value(json_object_get(counts, "completed"));
    const char *why = json_string_value(json_object_get(job, "why"));
    if (job && done != r->n_done) r->moved_ms = now_ms;
    if (job) r->n_done = done;
    if (job) snprintf(r->why, sizeof r->why, "%s", why ? why : "");
    if (events && r->watch_start == r->fleet->n_starts) add_events(&r->sum, &r->last, events);
    json_decref(list);
}

static fl_status watch(torture_rounds *r, int64_t now_ms, fl_err *err)
{
    if (r->watch.pid) return FL_OK;
    if (r->watch.is_done) {
        take_watch(r, now_ms);
        r->watch.is_done = false;
    }
    if (now_ms < r->watch_ms || r->step != ROUND_FETCH || !r->name[0]) return FL_OK;
    if (r->watch_start != r->fleet->n_starts) r->last = (round_events){ 0 };
    r->watch_ms = now_ms + WATCH_MS;
    r->watch_start = r->fleet->n_starts;
    char *argv[] = { "tokenfleet", "list", "--to", r->fleet->endpoint, "--json", NULL };
    return torture_task_start(r->fleet, &r->watch, "watch", argv, err);
}

/* ---- steps ---- */

static void next_step(torture_rounds *r, round_step step, int64_t now_ms)
{
    r->step = step;
    r->moved_ms = now_ms;
    r->again_ms = now_ms;
}

/* A job of an earlier submit, whose answer was lost. */
static void took_look(torture_rounds *r, int64_t now_ms)
{
    json_t *list = r->command.status == ENDED_WELL ? answer_of(&r->command) : NULL;
    const json_t *jobs = json_object_get(list, "jobs");
    const char *name = json_string_value(json_object_get(json_array_get(jobs, 0), "job"));
    if (json_is_array(jobs)) next_step(r, name ? ROUND_FETCH : ROUND_SUBMIT, now_ms);
    snprintf(r->name, sizeof r->name, "%s", name ? name : "");
    r->last = (round_events){ 0 };
    r->n_done = 0;
    json_decref(list);
}

static void submitted(torture_rounds *r, int64_t now_ms)
{
    json_t *answer = r->command.status == ENDED_WELL ? answer_of(&r->command) : NULL;
    const char *name = json_string_value(json_object_get(answer, "job"));
    snprintf(r->name, sizeof r->name, "%s", name ? name : "");
    next_step(r, name ? ROUND_FETCH : ROUND_LOOK, now_ms);
    if (!name) r->again_ms = now_ms + AGAIN_MS;
    json_decref(answer);
}

static fl_status fetched(torture_rounds *r, int64_t now_ms, fl_err *err)
{
    static const char *const names[] = { "output", "error" };
    if (r->command.status != ENDED_WELL && r->command.status != ENDED_ROWS_FAILED) return FL_OK;
    for (int i = 0; i < 2; i++) {
        char hex[SHA256_HEX_BYTES];
        fl_status st = hash_file(i == 0 ? r->out : r->errors, hex, err);
        if (st != FL_OK) return st;
        if (strcmp(hex, r->hash[i]) != 0) return fl_fail(err, FL_CORRUPT, "the %s file of round %llu has the SHA-256 %s, that of the undisturbed run %s", names[i],
                                                         (unsigned long long)r->n_rounds + 1, hex, r->hash[i]);
    }
    if (has_quarantine(r->errors)) return fl_fail(err, FL_CORRUPT, "a row was quarantined in round %llu, and no engine crashed by itself", (unsigned long long)r->n_rounds + 1);
    next_step(r, ROUND_VERIFY, now_ms);
    return FL_OK;
}

static fl_status verified(torture_rounds *r, int64_t now_ms, fl_err *err)
{
    json_t *report = answer_of(&r->command);
    const char *state = json_string_value(json_object_get(report, "state"));
    bool is_sound = r->command.status == ENDED_WELL && state && strcmp(state, "sound") == 0, is_unsound = r->command.status == ENDED_ROWS_FAILED;
    if (is_sound) {
        r->rows += (uint64_t)json_integer_value(json_object_get(report, "rows"));
        r->failed += (uint64_t)json_integer_value(json_object_get(report, "errors"));
        next_step(r, ROUND_DELETE, now_ms);
    }
    json_decref(report);
    if (!is_unsound) return FL_OK;
    char last[300];
    bench_last_line(r->command.output, last, sizeof last);
    return fl_fail(err, FL_CORRUPT, "verify finds round %llu unsound: %s", (unsigned long long)r->n_rounds + 1, last);
}

static void deleted(torture_rounds *r, int64_t now_ms)
{
    if (r->command.status != ENDED_WELL && r->command.status != ENDED_USAGE) return;     /* 2: it is gone, and the answer was lost */
    unlink(r->out);
    unlink(r->errors);
    r->name[0] = '\0';
    r->n_rounds++;
    next_step(r, ROUND_LOOK, now_ms);
}

static fl_status take_command(torture_rounds *r, int64_t now_ms, fl_err *err)
{
    round_step before = r->step;
    fl_status st = FL_OK;
    r->again_ms = now_ms + AGAIN_MS;
    switch (r->step) {
    case ROUND_LOOK: took_look(r, now_ms); break;
    case ROUND_SUBMIT: submitted(r, now_ms); break;
    case ROUND_FETCH: st = fetched(r, now_ms, err); break;
    case ROUND_VERIFY: st = verified(r, now_ms, err); break;
    case ROUND_DELETE: deleted(r, now_ms); break;
    }
    r->n_tries += st == FL_OK && r->step == before;
    r->command.is_done = false;
    return st;
}

static fl_status start_command(torture_rounds *r, fl_err *err)
{
    char *to = r->fleet->endpoint, *job = (char *)(uintptr_t)r->job;
    char *look[] = { "tokenfleet", "list", "--to", to, "--json", NULL };
    char *submit[] = { "tokenfleet", "submit", job, "--to", to, "--seed", r->seed, "--now", "1", "--json", NULL };
    char *fetch[] = { "tokenfleet", "fetch", r->name, "--to", to, "--out", r->out, "--errors", r->errors, "--force", NULL };
    char *verify[] = { "tokenfleet", "verify", r->name, "--to", to, "--json", NULL };
    char *delete[] = { "tokenfleet", "delete", r->name, "--to", to, NULL };
    char *const *argv[] = { look, submit, fetch, verify, delete };
    return torture_task_start(r->fleet, &r->command, "command", argv[r->step], err);
}

fl_status torture_rounds_turn(torture_rounds *r, int64_t now_ms, bool more, bool *is_over, fl_err *err)
{
    fl_status st = watch(r, now_ms, err);
    if (st == FL_OK && r->command.is_done) st = take_command(r, now_ms, err);
    *is_over = !more && r->step <= ROUND_SUBMIT && !r->command.pid && !r->watch.pid && r->n_rounds > 0;
    if (st != FL_OK || *is_over || r->command.pid || now_ms < r->again_ms) return st;
    if (now_ms - r->moved_ms > STILL_MS) {
        char last[300];
        bench_last_line(r->command.errors, last, sizeof last);
        return fl_fail(err, FL_CORRUPT, "nothing moved for %d s in round %llu: %s%s%s", STILL_MS / 1000, (unsigned long long)r->n_rounds + 1,
                       r->why[0] ? r->why : "no reason is given", last[0] ? "; the last command said: " : "", last);
    }
    return start_command(r, err);
}
