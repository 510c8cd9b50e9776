/* cmd_run.c - `tokenfleet run`: a coordinator and its workers on one machine, for one job. Run again, it goes on where it was. */
#include "coordinator/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "coordinator/cores.h"
#include "coordinator/daemon.h"
#include "coordinator/engine_call.h"
#include "coordinator/flags.h"
#include "coordinator/progress.h"
#include "coordinator/run_files.h"
#include "coordinator/run_workers.h"
#include "coordinator/service.h"
#include "coordinator/set_fields.h"
#include "coordinator/spawn.h"
#include "proto/clock.h"
#include "proto/demo_path.h"

#define NAME "run"
#define BEAT_MS 200
#define TERM_MS 60000
#define TURN_MS 50
#define STUCK_MS 3000                                    /* no worker can go on for so long: the user must change something */
#define DRAIN_MS 2000                                    /* workers have so long to say their last numbers after the job's end */
#define WORKER_ARGS_MAX 24

typedef struct {
    const char *command, *job, *model, *out, *errors, *device, *precision, *spool, *duplicates;
    uint64_t workers;                    /* 0: one for each GPU, without one 1 */
    uint64_t graders, threads, seed, now, expires, row_queue, row_run, row, max_context, batch, prefill_budget, kv_tokens;
    bool force, restart, as_json, unsafe_spool;
    flag_list set;
} run_options;

typedef struct {
    const run_options *options;
    run_files files;
    char model[4096];                    /* path */
    char ipc_dir[64], endpoint[96];
    job_settings settings;               /* what the user asks for; owned */
    coord_daemon *daemon;                /* owned */
    int gpus[SPAWN_GPUS_MAX], n_gpus;    /* that workers compute on, by their numbers; none = the CPU */
    int n_workers;
    spawn *workers, *graders;            /* owned; graders NULL where nothing is graded */
    stored_job *job;                     /* borrowed */
    run_workers seen;                    /* owned */
    bool was_closed;                     /* already when this run began */
    bool has_written;                    /* OUT and ERR, and remembered that it has */
    uint64_t tokens_before, deaths, committed;
    int64_t began_ms, first_ms, ended_ms, stuck_ms;      /* first_ms: a worker was welcome; 0 = not yet */
    int signals;
    progress progress;
    progress_ingest reading;
} run;

/* ---- before the first worker ---- */

/* The sentence stays; what failed is the machine, not what the user typed. */
static fl_status is_the_world(fl_err *err)
{
    err->code = FL_IO;
    return FL_IO;
}

static fl_status make_endpoint(run *r, fl_err *err)
{
    const char *tmp = getenv("TMPDIR");
    if (!tmp || strlen(tmp) > 40 || snprintf(r->ipc_dir, sizeof r->ipc_dir, "%s/" DAEMON_SOCKET_DIR "XXXXXX", tmp) < 0 || !mkdtemp(r->ipc_dir)) {
        snprintf(r->ipc_dir, sizeof r->ipc_dir, "/tmp/" DAEMON_SOCKET_DIR "XXXXXX");       /* a socket's path has 107 bytes at most */
        if (!mkdtemp(r->ipc_dir)) {
            int error = errno;
            r->ipc_dir[0] = '\0';
            return fl_fail_errno(err, error, "no folder for a socket can be made in /tmp");
        }
    }
    snprintf(r->endpoint, sizeof r->endpoint, "ipc://%s/s", r->ipc_dir);
    return FL_OK;
}

static fl_status resolve_model(run *r, fl_err *err)
{
    fl_status st = fl_model_path(r->options->model, r->model, sizeof r->model, err);
    if (st != FL_OK) return is_the_world(err);
    if (strncmp(r->model, "random:", 7) == 0) return FL_OK;          /* no files; the worker looks at it */
    if (access(r->model, F_OK) != 0) return fl_fail_errno(err, errno, "the model %s cannot be used", r->model);
    char *real = realpath(r->model, NULL);
    if (real && strlen(real) < sizeof r->model) snprintf(r->model, sizeof r->model, "%s", real);
    free(real);
    return FL_OK;
}

static fl_status read_settings(run *r, fl_err *err)
{
    const run_options *o = r->options;
    const char *slash = strrchr(o->job, '/');
    char *defaults = NULL;
    fl_status st = set_fields_json(&o->set, &defaults, err);
    if (st != FL_OK) return st;
    job_settings s = { .name = (char *)(slash ? slash + 1 : o->job), .defaults = defaults, .seed = o->seed, .max_context = (uint32_t)o->max_context,
                       .now_s = o->now ? (uint32_t)o->now : (uint32_t)time(NULL), .suffix_duplicates = strcmp(o->duplicates, "suffix") == 0, .grade = o->graders > 0,
                       .times = { o->expires ? (uint64_t)time(NULL) + o->expires : 0, o->row_queue, o->row_run, o->row } };
    st = job_settings_copy(&r->settings, &s, err);
    free(defaults);
    return st;
}

/* --restart: nothing of what the spool holds is kept. The journal goes first: folders without it are strays. */
static fl_status clear_spool(const char *dir, bool unsafe, fl_err *err)
{
    static const char *const files[] = { "journal.db", "journal.db-wal", "journal.db-shm" };
    spool *s = NULL;
    fl_status st = spool_open(&s, dir, unsafe ? SPOOL_UNSAFE : 0, err);
    if (st == FL_NOT_FOUND) return FL_OK;
    for (size_t i = 0; st == FL_OK && i < sizeof files / sizeof *files; i++) {
        char *path = spool_path(s, files[i]);
        if (!path) st = fl_fail(err, FL_FULL, "no memory for a path");
        else if (unlink(path) != 0 && errno != ENOENT) st = fl_fail_errno(err, errno, "cannot remove %s", path);
        free(path);
    }
    if (st == FL_OK) st = spool_sync_dir(dir, err);
    spool_close(s);
    return st;
}

/* The spool has a job: it must be the one that is asked for. */
static fl_status check_same_job(run *r, fl_err *err)
{
    char what[700];
    fl_status st = job_store_hash(r->options->job, r->settings.content, err);
    if (st != FL_OK) return st;
    if (!r->options->now) r->settings.now_s = r->job->settings.now_s;
    if (!job_settings_differ(&r->job->settings, &r->settings, what, sizeof what)) return FL_OK;
    return fl_fail(err, FL_CONFLICT, "%s has changed since this spool was begun; run the job as it was, or pass --restart to begin anew (%s)", what, r->files.spool);
}

/* Now and then while the job is read. */
static fl_status note_ingest(void *context, const ingest_report *so_far, fl_err *err)
{
    run *r = context;
    progress_ingest_show(&r->reading, fl_boot_ms(), r->progress.terminal, so_far->n_rows, so_far->n_bytes);
    return command_signals() ? fl_fail(err, FL_AGAIN, "stopped while the job was read") : FL_OK;
}

static fl_status make_job(run *r, fl_err *err)
{
    stored_job *job = NULL;
    ingest_report report;
    job_draft_options how = { .path = r->options->job, .note = note_ingest, .context = r };
    job_id id;
    fl_err ignored;
    fl_status st = service_new_job_id(&id, err);
    r->reading.what = "reading the job";
    if (st == FL_OK) st = job_store_create(&job, daemon_spool(r->daemon), id, &r->settings, &how, &report, err);
    progress_ingest_clear(&r->reading);
    if (st != FL_OK) return st;
    if ((st = daemon_add_job(r->daemon, &job, err)) != FL_OK) {
        job_store_close(job);
        spool_job_remove(daemon_spool(r->daemon), id, &ignored);
        return st;
    }
    r->job = daemon_job_find(r->daemon, id);
    if (report.n_bad) fprintf(stderr, "%" PRIu64 " of %" PRIu64 " lines are bad; each gets its line in %s\n", report.n_bad, report.n_rows, command_shown_path(r->files.errors));
    if (report.n_renamed) fprintf(stderr, "%" PRIu64 " rows have the custom_id of an earlier one; each is named ID#<its line>\n", report.n_renamed);
    if (report.unknown_fields[0]) fprintf(stderr, "fields that are not known and do nothing: %s\n", report.unknown_fields);
    return FL_OK;
}

static fl_status remember_files(const run *r, bool is_written, fl_err *err)
{
    run_memory m = { .is_written = is_written };
    snprintf(m.out, sizeof m.out, "%s", r->files.out);
    snprintf(m.errors, sizeof m.errors, "%s", r->files.errors);
    return run_files_remember(r->files.spool, &m, err);
}

static fl_status find_or_make_job(run *r, fl_err *err)
{
    if (daemon_n_jobs(r->daemon) > 1) return fl_fail(err, FL_CONFLICT, "%s is the spool of a coordinator; give another --spool", r->files.spool);
    fl_status st = FL_OK;
    r->job = daemon_job_at(r->daemon, 0);
    if (!r->job) st = make_job(r, err);
    else st = check_same_job(r, err);
    if (st != FL_OK) return st;
    r->was_closed = r->job->state != JOB_OPEN;
    if (!r->was_closed && r->files.foreign) return output_file_not_ours(r->files.foreign, FL_INVALID, err);
    if (r->was_closed) r->job->outputs_due = true;       /* written again from the ledger: OUT may have been removed or edited since */
    r->tokens_before = r->job->counts.tokens;
    return remember_files(r, false, err);
}

/* The GPUs that can be used here, when they are asked for or may be used. */
static fl_status count_gpus(run *r, fl_err *err)
{
    const run_options *o = r->options;
    char *text = NULL;
    if (strcmp(o->device, "cpu") == 0) return FL_OK;
    fl_status st = engine_call((const char *const[]){ "gpus", NULL }, &text, err);
    if (st != FL_OK) return is_the_world(err);
    json_t *report = json_loads(text, 0, NULL), *gpu;
    const char *why = json_string_value(json_object_get(report, "why"));
    const int found = (int)json_integer_value(json_object_get(report, "found"));
    size_t i;
    json_array_foreach(json_object_get(report, "gpus"), i, gpu)
        if (r->n_gpus < SPAWN_GPUS_MAX) r->gpus[r->n_gpus++] = (int)json_integer_value(json_object_get(gpu, "index"));
    if (r->n_gpus == 0 && strcmp(o->device, "cuda") == 0) st = fl_fail(err, FL_IO, "%s; use --device cpu", why && why[0] ? why : "the worker does not say which GPUs are here");
    else if (found > r->n_gpus) fprintf(stderr, "%d of %d GPUs can be used%s: %s\n", r->n_gpus, found, r->n_gpus ? "" : ", so the CPU computes", why ? why : "");
    json_decref(report);
    free(text);
    return st;
}

/* One class of device for the whole run, and how many workers. */
static fl_status choose_device(run *r, fl_err *err)
{
    fl_status st = count_gpus(r, err);
    r->n_workers = r->options->workers ? (int)r->options->workers : r->n_gpus ? r->n_gpus : 1;
    return st;
}

static fl_status start_workers(run *r, fl_err *err)
{
    const run_options *o = r->options;
    const uint64_t n = (uint64_t)r->n_workers, cores = (uint64_t)cores_here(), threads = o->threads ? o->threads : cores > n ? cores / n : 1;
    const struct { const char *flag; uint64_t value; } numbers[] = {
        { "--threads", threads }, { "--batch", o->batch }, { "--prefill-budget", o->prefill_budget }, { "--kv-tokens", o->kv_tokens }, { "--max-context", o->max_context },
        { "--gpu-share", r->n_gpus ? (n + (uint64_t)r->n_gpus - 1) / (uint64_t)r->n_gpus : 0 },
    };
    char program[4096], texts[6][24];
    char *argv[WORKER_ARGS_MAX] = { program, "--connect", r->endpoint, "--model", strcmp(o->model, FL_DEMO_MODEL) == 0 ? FL_DEMO_MODEL : r->model };      /* the name it announces */
    int argc = 5;
    fl_status st = spawn_find_beside("tokenfleet-worker", program, sizeof program, err);
    if (st != FL_OK) return is_the_world(err);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (numbers[i].value == 0) continue;
        snprintf(texts[i], sizeof texts[i], "%" PRIu64, numbers[i].value);
        argv[argc++] = (char *)numbers[i].flag;
        argv[argc++] = texts[i];
    }
    if (o->precision) {
        argv[argc++] = "--precision";
        argv[argc++] = (char *)(uintptr_t)o->precision;
    }
    argv[argc] = NULL;
    st = spawn_open(&r->workers, argv, r->n_workers, r->gpus, r->n_gpus, err);
    if (st != FL_OK || o->graders == 0) return st;
    char *grader[] = { program, "--connect", r->endpoint, "--roles", "grade", "--threads", "1", NULL };
    return spawn_open(&r->graders, grader, (int)o->graders, NULL, 0, err);
}

/* ---- all processes that this one started ---- */

static int processes_alive(const run *r) { return spawn_alive(r->workers) + spawn_alive(r->graders); }
static uint64_t processes_deaths(const run *r) { return spawn_deaths(r->workers) + spawn_deaths(r->graders); }

static void processes_no_restart(run *r)
{
    spawn_no_restart(r->workers);
    spawn_no_restart(r->graders);
}

static fl_status processes_tend(run *r, fl_err *err)
{
    fl_status st = spawn_tend(r->workers, fl_boot_ms(), err);
    return st == FL_OK ? spawn_tend(r->graders, fl_boot_ms(), err) : st;
}

/* ---- while it runs ---- */

static fl_status note_workers(run *r, fl_err *err)
{
    coord_worker_status w;
    for (size_t i = 0; coord_worker_at(daemon_core(r->daemon), i, &w); i++) {
        fl_status st = run_workers_note(&r->seen, &w, err);
        if (st != FL_OK) return st;
        if (w.is_accepted && !w.grades && r->first_ms == 0) r->first_ms = fl_boot_ms();
    }
    return FL_OK;
}

/* The first HELLO tells what the model is: the job may be pinned to another. */
static fl_status check_model(run *r, fl_err *err)
{
    const daemon_hello *hello = daemon_last_hello(r->daemon);
    coord_worker_status w;
    if (hello->n_hellos == 0 || !r->job->is_pinned) return FL_OK;
    if (strcmp(hello->fingerprint, r->job->fingerprint) != 0) {
        return fl_fail(err, FL_CONFLICT, "the model at %s is not the one this job was begun with (fingerprint %.16s, was %.16s); use the model it had, or pass --restart to begin anew",
                       r->model, hello->fingerprint, r->job->fingerprint);
    }
    if (strcmp(hello->numerics, r->job->numerics) != 0) {
        return fl_fail(err, FL_CONFLICT, "the numerics of this machine's workers with this model (%.120s) are not those this job was begun with (%.120s); run it where it was begun, or pass --restart to begin anew",
                       hello->numerics, r->job->numerics);
    }
    if (strcmp(hello->model, r->job->pin_model) != 0) {
        return fl_fail(err, FL_CONFLICT, "the model's name is %.120s and was %.120s when this job was begun; rename its folder back, or pass --restart to begin anew", hello->model, r->job->pin_model);
    }
    for (size_t i = 0; r->job->state == JOB_OPEN && coord_worker_at(daemon_core(r->daemon), i, &w); i++) {
        if (!w.is_accepted && !w.grades && w.why[0]) return fl_fail(err, FL_CONFLICT, "the model's workers are refused: %s", w.why);
    }
    return FL_OK;
}

/* Nothing moves although every worker is there. */
static fl_status check_stuck(run *r, const coord_job_status *s, fl_err *err)
{
    bool all_here = coord_n_workers(daemon_core(r->daemon)) >= (size_t)r->n_workers + r->options->graders;
    if (!s->is_stuck || !all_here || r->signals > 0) {
        r->stuck_ms = 0;
        return FL_OK;
    }
    if (r->stuck_ms == 0) r->stuck_ms = fl_boot_ms();
    if (fl_boot_ms() - r->stuck_ms < STUCK_MS) return FL_OK;
    return fl_fail(err, FL_AGAIN, "the job stands still: %s", s->why[0] ? s->why : "no worker takes the rows that wait");
}

static fl_status take_signals(run *r, fl_err *err)
{
    int n = command_signals();
    if (n == r->signals) return FL_OK;
    event ev = { .type = EVENT_DRAIN, .drain = true };
    if (r->signals == 0 && n == 1) {
        progress_clear(&r->progress);
        fprintf(stderr, "tokenfleet %s: finishing the rows that run (Ctrl-C again stops at once)\n", r->options->command);
        processes_no_restart(r);
    }
    r->signals = n;
    return n == 1 ? daemon_step(r->daemon, &ev, err) : FL_OK;
}

static void show(run *r, const coord_job_status *s)
{
    char note[520] = "";
    const char *full = daemon_disk_full(r->daemon);
    if (full || s->why[0]) snprintf(note, sizeof note, "%s", full ? full : s->why);
    if (r->first_ms == 0 && !full) snprintf(note, sizeof note, "loading the model");
    progress_numbers n = { s->rows, s->rows_completed + s->rows_failed, s->rows_failed, s->n_tokens - r->tokens_before, processes_alive(r), note[0] ? note : NULL };
    progress_show(&r->progress, fl_boot_ms(), &n);
}

static fl_status one_turn(run *r, coord_job_status *s, fl_err *err)
{
    fl_status st = daemon_turn(r->daemon, TURN_MS, err);
    if (st == FL_CONFLICT && (r->files.is_out_new || r->files.is_errors_new)) run_files_forget(&r->files);  /* OUT or ERR became somebody else's while this job ran */
    if (st == FL_OK) st = take_signals(r, err);
    if (st == FL_OK) st = note_workers(r, err);
    if (st == FL_OK) st = check_model(r, err);
    if (st == FL_OK) st = processes_tend(r, err);
    if (st != FL_OK) return st;
    if (processes_deaths(r) != r->deaths) {
        r->deaths = processes_deaths(r);
        daemon_child_died(r->daemon);
    }
    if (!coord_job_find(daemon_core(r->daemon), r->job->id, s)) {
        *s = (coord_job_status){ .rows = r->job->counts.rows, .rows_completed = r->job->counts.completed, .rows_failed = r->job->counts.failed, .n_tokens = r->job->counts.tokens };
    }
    uint64_t committed = s->samples_committed + s->samples_graded + s->rows_failed;
    if (committed != r->committed) {
        spawn_note_progress(r->workers);
        spawn_note_progress(r->graders);
    }
    r->committed = committed;
    if (daemon_disk_full(r->daemon)) return fl_fail(err, FL_DISK_FULL, "%s", daemon_disk_full(r->daemon));
    if (r->job->state == JOB_OPEN) return check_stuck(r, s, err);
    if (r->ended_ms == 0) r->ended_ms = fl_boot_ms();
    return FL_OK;
}

/* Go on until the job is closed and its files are written. FL_CLOSED: stopped or drained before that. */
static fl_status run_to_the_end(run *r, fl_err *err)
{
    fl_status st = FL_OK;
    coord_job_status s = { 0 };
    while ((st = one_turn(r, &s, err)) == FL_OK) {
        bool is_checked = !r->was_closed || daemon_last_hello(r->daemon)->n_hellos > 0, is_whole = r->job->state != JOB_OPEN && !r->job->outputs_due;
        if (is_whole && !r->has_written) {               /* at once: a run that is killed from here on has written them */
            if ((st = remember_files(r, true, err)) != FL_OK) return st;
            r->has_written = true;
        }
        if (is_whole && is_checked) return FL_OK;
        if (r->signals >= 2) return FL_CLOSED;
        if (r->signals == 1 && r->job->state == JOB_OPEN && (coord_n_leases(daemon_core(r->daemon)) == 0 || processes_alive(r) == 0)) return FL_CLOSED;
        show(r, &s);
    }
    return st;
}

/* The job is done: let the workers say their last numbers and leave. */
static void let_workers_go(run *r)
{
    fl_err ignored;
    event ev = { .type = EVENT_DRAIN, .drain = true };
    processes_no_restart(r);
    if (daemon_step(r->daemon, &ev, &ignored) != FL_OK) return;
    for (int64_t until = fl_boot_ms() + DRAIN_MS; processes_alive(r) > 0 && fl_boot_ms() < until && command_signals() < 2; ) {
        if (daemon_turn(r->daemon, 10, &ignored) != FL_OK || note_workers(r, &ignored) != FL_OK) return;
        if (processes_tend(r, &ignored) != FL_OK) return;
    }
}

/* ---- the end ---- */

static json_t *summary_json(const run *r, double seconds, double work, double tokens_per_s)
{
    const job_counts *c = &r->job->counts;
    const run_worker all = run_workers_sum(&r->seen);
    return json_pack("{s:s, s:s, s:s, s:{s:I, s:I, s:I}, s:I, s:o, s:o, s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "state", job_state_name(r->job->state), "out", r->files.out, "errors",
                     r->files.errors, "rows", "total", (json_int_t)c->rows, "completed", (json_int_t)c->completed, "failed", (json_int_t)c->failed, "tokens",
                     (json_int_t)c->tokens, "workers", run_workers_json(&r->seen), "gpus", run_workers_gpus_json(&r->seen, work), "prefill_tokens", (json_int_t)all.prefill, "decode_tokens",
                     (json_int_t)all.decode, "preemptions", (json_int_t)all.preemptions, "decode_tokens_per_s", tokens_per_s, "seconds", seconds, "work_seconds", work, "worker_deaths",
                     (json_int_t)r->deaths);
}

static int summarize(run *r)
{
    const job_counts *c = &r->job->counts;
    uint64_t tokens = c->tokens > r->tokens_before ? c->tokens - r->tokens_before : 0;
    double seconds = (double)(fl_boot_ms() - r->began_ms) / 1000, work = r->first_ms && r->ended_ms > r->first_ms ? (double)(r->ended_ms - r->first_ms) / 1000 : 0;
    double tokens_per_s = work > 0 ? (double)tokens / work : 0;
    fprintf(stderr, "%" PRIu64 " rows: %" PRIu64 " completed, %" PRIu64 " failed; %" PRIu64 " tokens in %.1f s (%.0f tokens/s once the model was loaded) -> %s\n", c->rows, c->completed, c->failed, tokens,
            seconds, tokens_per_s, command_shown_path(r->files.out));
    run_workers_gpus_print(stderr, &r->seen, work);
    if (c->failed) fprintf(stderr, "the reasons of the failed rows are in %s\n", command_shown_path(r->files.errors));
    if (r->options->as_json) {
        json_t *json = summary_json(r, seconds, work, tokens_per_s);
        char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
        if (text) puts(text);
        free(text);
        json_decref(json);
    }
    return c->failed || r->job->state != JOB_COMPLETED ? ENDED_ROWS_FAILED : ENDED_WELL;
}

static int end_incomplete(run *r)
{
    coord_job_status s;
    if (!coord_job_find(daemon_core(r->daemon), r->job->id, &s)) return flags_end(ENDED_INCOMPLETE, r->options->command, "stopped; nothing is lost, run the same command again to continue");
    return flags_end(ENDED_INCOMPLETE, r->options->command, "stopped with %" PRIu64 " of %" PRIu64 " rows done; nothing is lost, run the same command again to continue", s.rows_completed + s.rows_failed, s.rows);
}

/* A failure before or while the job runs, with what the user can do. */
static int end_failed(const run_options *o, fl_status st, const fl_err *err)
{
    if (st == FL_DISK_FULL) return flags_end(ENDED_INCOMPLETE, o->command, "the disk has no space left (%s); nothing is lost: make room and run the same command again", err->text);
    if (st == FL_AGAIN) return flags_end(ENDED_INCOMPLETE, o->command, "%s; nothing is lost, run again", err->text);
    return flags_end(command_ended(st), o->command, "%s", err->text);
}

static fl_status prepare(run *r, fl_err *err)
{
    const run_options *o = r->options;
    fl_status st = run_files_resolve(&r->files, o->job, o->out, o->errors, o->spool, o->force, err);
    if (st == FL_NOT_FOUND) st = is_the_world(err);
    if (st == FL_OK) st = resolve_model(r, err);
    if (st == FL_OK) st = read_settings(r, err);
    if (st == FL_OK) st = choose_device(r, err);
    if (st == FL_OK && o->restart) st = clear_spool(r->files.spool, o->unsafe_spool, err);
    if (st == FL_OK) st = make_endpoint(r, err);
    if (st != FL_OK) return st;
    daemon_options options = { .spool = r->files.spool, .endpoint = r->endpoint, .beat_ms = BEAT_MS, .term_ms = TERM_MS, .workers_are_children = true, .unsafe_spool = o->unsafe_spool,
                               .out = { r->files.out, r->files.is_out_new }, .errors = { r->files.errors, r->files.is_errors_new } };
    st = daemon_open(&r->daemon, &options, err);
    if (st == FL_CONFLICT || st == FL_UNSUPPORTED || st == FL_CORRUPT) st = is_the_world(err);
    if (st == FL_OK) st = find_or_make_job(r, err);
    return st == FL_OK ? start_workers(r, err) : st;
}

static void finish(run *r)
{
    spawn_close(r->workers, 0);
    spawn_close(r->graders, 0);
    daemon_close(r->daemon);
    if (r->ipc_dir[0]) {
        char path[96];
        snprintf(path, sizeof path, "%s/s", r->ipc_dir);
        unlink(path);
        rmdir(r->ipc_dir);
    }
    job_settings_fini(&r->settings);
    run_workers_free(&r->seen);
}

static int run_job(const run_options *o)
{
    run r = { .options = o, .began_ms = fl_boot_ms() };
    fl_err err = { 0 };
    int ended;
    progress_init(&r.progress, r.began_ms, isatty(2));
    command_catch_signals();
    fl_status st = prepare(&r, &err);
    if (st == FL_OK) {
        st = run_to_the_end(&r, &err);
        progress_clear(&r.progress);
        if (st == FL_OK) let_workers_go(&r);
        ended = st == FL_OK ? summarize(&r) : st == FL_CLOSED ? end_incomplete(&r) : end_failed(o, st, &err);
    } else {
        ended = end_failed(o, st, &err);
    }
    finish(&r);
    return ended;
}

int cmd_run(int argc, char **argv) { return cmd_run_as(NAME, argc, argv); }

int cmd_run_as(const char *name, int argc, char **argv)
{
    run_options o = { .command = name, .device = "auto", .duplicates = "error" };
    const flag flags[] = {
        { "--model", FLAG_TEXT, "PATH", "a model directory, a .gguf file, or demo for the model that ships", &o.model, 0, 0, true },
        { "--out", FLAG_TEXT, "OUT.jsonl", "where results go (default the job's name with .out.jsonl behind it; needed with -)", &o.out, 0, 0, false },
        { "--errors", FLAG_TEXT, "ERR.jsonl", "where failed rows go (default OUT.errors.jsonl)", &o.errors, 0, 0, false },
        { "--workers", FLAG_NUMBER, "N|auto", "worker processes; auto is one for each GPU, next to it, and without GPUs one on all cores (default)", &o.workers, 1, SPAWN_WORKERS_MAX, false },
        { "--graders", FLAG_NUMBER, "N", "grade the samples, with N more worker processes: rows carry a grade object (ops/JOBS.md)", &o.graders, 1, SPAWN_WORKERS_MAX, false },
        { "--threads", FLAG_NUMBER, "N", "threads of each worker (default: its share of all cores)", &o.threads, 1, 1024, false },
        { "--device", FLAG_CHOICE, "auto|cpu|cuda", "where to compute; auto is cuda where this machine has a GPU it can use (default)", &o.device, 0, 0, false },
        { "--precision", FLAG_CHOICE, "16|f32", "what GPUs compute in: bf16 (f16 before sm_80; default), or fp32 to tell an error from rounding", &o.precision, 0, 0, false },
        { "--seed", FLAG_NUMBER, "S", "seed of rows that give none (default 0)", &o.seed, 0, UINT64_MAX, false },
        { "--set", FLAG_LIST, "KEY=VALUE", "a body field for rows that lack it", &o.set, 0, 0, false },
        { "--duplicates", FLAG_CHOICE, "error|suffix", "a custom_id that stands twice: the later rows fail, or are named ID#<line> (default error)", &o.duplicates, 0, 0, false },
        { "--max-context", FLAG_NUMBER, "N", "longest prompt + completion (default the model's)", &o.max_context, 1, 1 << 30, false },
        { "--now", FLAG_NUMBER, "SECONDS", "the time chat templates see (default now)", &o.now, 1, UINT32_MAX, false },
        { "--expires", FLAG_DURATION, "TIME", "rows not finished so long after the first start fail with batch_expired: 90, 15m, 2h, 3d", &o.expires, 1, JOB_TIMES_MAX_S, false },
        { "--row-queue-limit", FLAG_DURATION, "TIME", "a row that no worker took after so long fails with request_timeout", &o.row_queue, 1, JOB_TIMES_MAX_S, false },
        { "--row-run-limit", FLAG_DURATION, "TIME", "as does one that a worker holds so long", &o.row_run, 1, JOB_TIMES_MAX_S, false },
        { "--row-limit", FLAG_DURATION, "TIME", "and one that is not finished so long after the start (of the last run)", &o.row, 1, JOB_TIMES_MAX_S, false },
        { "--spool", FLAG_TEXT, "DIR", "where progress is kept (default OUT.spool)", &o.spool, 0, 0, false },
        { "--force", FLAG_SWITCH, "", "overwrite output files that are not this job's", &o.force, 0, 0, false },
        { "--restart", FLAG_SWITCH, "", "forget what the spool holds and begin anew", &o.restart, 0, 0, false },
        { "--unsafe-spool", FLAG_SWITCH, "", "allow a spool on a network file system", &o.unsafe_spool, 0, 0, false },
        { "--batch", FLAG_NUMBER, "N", "sequences in one batch step of a worker (default 64, on a GPU 256)", &o.batch, 1, 4096, false },
        { "--prefill-budget", FLAG_NUMBER, "N", "prompt tokens in one batch step (default 512, on a GPU 4096)", &o.prefill_budget, 1, 1 << 20, false },
        { "--kv-tokens", FLAG_NUMBER, "N", "size of a worker's KV pool in tokens", &o.kv_tokens, 1, (uint64_t)1 << 40, false },
        { "--json", FLAG_SWITCH, "", "print a summary as one JSON object at the end", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "JOB.jsonl",
        "Run a job on this machine: starts a coordinator and workers, shows progress and writes OUT in input order.\n"
        "JOB may be .gz, or - for standard input. Run the same command again to continue what was interrupted.\n"
        "Ends with 0; 1 when rows failed; 2 usage; 3 environment; 4 incomplete, run again. Ctrl-C finishes what runs; twice stops at once.",
        "tokenfleet run job.jsonl --model demo --workers 2 --set temperature=0.7 --out results.jsonl", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;
    o.job = operands[0];
    return run_job(&o);
}
