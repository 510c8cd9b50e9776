/* cmd_eval.c - `tokenfleet eval`: the tasks of a code benchmark as a graded job (or several), and what their verdicts say. The job runs as `run` runs it, or on a fleet, so an
 * evaluation that was broken off goes on where it was. */
#include "coordinator/commands.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/cores.h"
#include "coordinator/eval_report.h"
#include "coordinator/job_store.h"
#include "coordinator/set_fields.h"
#include "coordinator/spawn.h"
#include "coordinator/submit_job.h"
#include "proto/demo_path.h"
#include "proto/job_row.h"

#define NAME "eval"
#define CONFIGS_MAX 64
#define ARGS_MAX (2 * FLAGS_LIST_MAX + 32)
#define TOKENS_DEFAULT 512
#define FIRST_PART 8                                     /* of n, the first round of --stop-when-solved */

typedef struct {
    const char *tasks, *out, *temperature, *ks, *sweep, *to, *device;
    uint64_t n, max_tokens, seed, workers, graders, threads;
    bool chat, stop_when_solved, restart, as_json, per_task;
    flag_list models, set;
} eval_options;

/* One point of a sweep. */
typedef struct { const char *model; char name[257], setting[128], dir[3000]; } config;

typedef struct {
    const eval_options *o;
    eval_set set;                        /* owned */
    pass_ks ks;
    char dir[2600], sweep_key[64];
    config *configs; size_t n_configs;   /* owned */
    eval_outcome *outcomes;              /* owned [n_configs] */
} evaluation;

/* ---- what is asked for ---- */

static fl_status add_config(evaluation *e, const char *model, const char *setting, fl_err *err)
{
    if (e->n_configs == CONFIGS_MAX) return fl_fail(err, FL_INVALID, "a sweep has at most %d points", CONFIGS_MAX);
    config *c = &e->configs[e->n_configs++];
    const char *end = model + strlen(model);
    while (end > model + 1 && end[-1] == '/') end--;
    const char *slash = memrchr(model, '/', (size_t)(end - model));
    *c = (config){ .model = model };
    snprintf(c->name, sizeof c->name, "%.*s", (int)(end - (slash ? slash + 1 : model)), slash ? slash + 1 : model);
    if ((size_t)snprintf(c->setting, sizeof c->setting, "%s", setting) >= sizeof c->setting) return fl_fail(err, FL_INVALID, "a value of --sweep is too long");
    return FL_OK;
}

static bool names_field(const char *setting, const char *key)
{
    size_t n = strlen(key);
    return strncmp(setting, key, n) == 0 && setting[n] == '=';
}

/* Rows say these themselves, so a setting would do nothing; an echoed prompt would become part of the samples. */
static fl_status check_settings(const eval_options *o, fl_err *err)
{
    static const struct { const char *key, *instead; } fixed[] = { { "n", "give -n" }, { "stop", "a task's format says where its samples stop" }, { "echo", "samples are graded without their prompt" } };
    for (int i = -1; i < o->set.n; i++) {
        const char *setting = i < 0 ? o->sweep : o->set.v[i];
        for (size_t k = 0; setting && k < sizeof fixed / sizeof *fixed; k++)
            if (names_field(setting, fixed[k].key)) return fl_fail(err, FL_INVALID, "%s cannot give %s: %s", i < 0 ? "--sweep" : "--set", fixed[k].key, fixed[k].instead);
    }
    return FL_OK;
}

/* Is it said by --set or --sweep, for rows that lack it? */
static bool is_set(const evaluation *e, const char *key)
{
    bool found = strcmp(e->sweep_key, key) == 0;
    for (int i = 0; i < e->o->set.n; i++) found |= names_field(e->o->set.v[i], key);
    return found;
}

/* --temperature T, as a row would have it. */
static fl_status check_temperature(const eval_options *o, fl_err *err)
{
    char setting[128], *json = NULL, *end = NULL;
    flag_list one = { { setting }, 1 };
    fl_err why;
    if (!o->temperature) return FL_OK;
    strtod(o->temperature, &end);
    bool is_number = end != o->temperature && *end == '\0' && snprintf(setting, sizeof setting, "temperature=%s", o->temperature) < (int)sizeof setting;
    fl_status st = is_number ? set_fields_json(&one, &json, &why) : FL_INVALID;
    free(json);
    return st == FL_OK ? FL_OK : fl_fail(err, FL_INVALID, "--temperature takes a number from 0 to 100, not '%.60s'", o->temperature);
}

/* What `run` would refuse is refused before anything is made. On a fleet a model is a name. */
static fl_status check_models(const eval_options *o, fl_err *err)
{
    char path[4096];
    for (int i = 0; i < o->models.n && !o->to; i++) {
        fl_status st = fl_model_path(o->models.v[i], path, sizeof path, err);
        if (st != FL_OK) return st;
        if (strncmp(path, "random:", 7) != 0 && access(path, F_OK) != 0) return fl_fail_errno(err, errno, "the model %s cannot be used", path);
    }
    return FL_OK;
}

/* "temperature=0.2,0.8": a configuration for each model and value. */
static fl_status make_configs(evaluation *e, fl_err *err)
{
    const eval_options *o = e->o;
    char setting[400];
    fl_err why;
    const char *values = o->sweep ? strchr(o->sweep, '=') : NULL;
    fl_status st = check_settings(o, err);
    if (st != FL_OK) return st;
    if (!(e->configs = calloc(CONFIGS_MAX, sizeof *e->configs))) return fl_fail(err, FL_FULL, "no memory for a sweep");
    if (o->sweep && (!values || values == o->sweep || values - o->sweep >= (ptrdiff_t)sizeof e->sweep_key || !values[1])) return fl_fail(err, FL_INVALID, "--sweep takes KEY=VALUE,VALUE,..., as in temperature=0.2,0.8, not '%.60s'", o->sweep);
    if (values) memcpy(e->sweep_key, o->sweep, (size_t)(values - o->sweep));
    if (values && o->temperature && strcmp(e->sweep_key, "temperature") == 0) return fl_fail(err, FL_INVALID, "--temperature and --sweep temperature=... exclude each other");
    for (int i = 0; st == FL_OK && i < o->models.n; i++) {
        if (!values) st = add_config(e, o->models.v[i], "", err);
        for (const char *at = values; st == FL_OK && at && *at; at = strchr(at + 1, ',')) {
            size_t n = strcspn(at + 1, ",");
            if (n == 0 || n > 100) return fl_fail(err, FL_INVALID, "--sweep has an empty value, or one that is too long: '%.60s'", o->sweep);
            snprintf(setting, sizeof setting, "%s=%.*s", e->sweep_key, (int)n, at + 1);
            flag_list one = { { setting }, 1 };
            char *json = NULL;
            if (set_fields_json(&one, &json, &why) != FL_OK) return fl_fail(err, FL_INVALID, "--sweep: %s", why.text);
            free(json);
            st = add_config(e, o->models.v[i], setting, err);
        }
    }
    return st;
}

static fl_status make_dir(const char *dir, fl_err *err)
{
    struct stat at;
    if (mkdir(dir, 0777) != 0 && errno != EEXIST) return fl_fail_errno(err, errno, "cannot make the folder %s", dir);
    if (stat(dir, &at) == 0 && !S_ISDIR(at.st_mode)) return fl_fail(err, FL_INVALID, "%s is a file, and results need a folder; give another --out", dir);
    return FL_OK;
}

/* Has an evaluation begun in this folder? Its job left a spool there, or a fleet's id of it. */
static bool is_ours(const char *dir)
{
    char spool_at[3200], id_at[3200];
    snprintf(spool_at, sizeof spool_at, "%s/out.jsonl.spool", dir);
    snprintf(id_at, sizeof id_at, "%s/job.id", dir);
    return access(spool_at, F_OK) == 0 || access(id_at, F_OK) == 0;
}

/* Files of these names that no evaluation wrote are somebody's own. */
static fl_status check_none_of(const char *dir, const char *const *names, fl_err *err)
{
    char path[3200];
    for (; *names; names++) {
        snprintf(path, sizeof path, "%s/%s", dir, *names);
        if (access(path, F_OK) == 0) return fl_fail(err, FL_INVALID, "%s is there and no evaluation wrote it; give another --out, or move it away", path);
    }
    return FL_OK;
}

/* DIR of one configuration: the evaluation's own, or one below it that is named after what it varies. */
static fl_status place_config(const evaluation *e, config *c, size_t at, fl_err *err)
{
    char part[400];
    if (e->n_configs == 1) {
        snprintf(c->dir, sizeof c->dir, "%s", e->dir);
        return FL_OK;
    }
    snprintf(part, sizeof part, "%s%s%s", c->name, c->setting[0] ? "-" : "", c->setting);
    for (char *p = part; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._=-", *p)) *p = '_';
    snprintf(c->dir, sizeof c->dir, "%s/%s", e->dir, part);
    for (size_t i = 0; i < at; i++) {
        const config *other = &e->configs[i];
        if (strcmp(other->dir, c->dir) != 0) continue;
        if (strcmp(other->model, c->model) != 0) return fl_fail(err, FL_INVALID, "two points of the sweep would be kept in %s; give models of different names", c->dir);
        if (strcmp(other->setting, c->setting) == 0) return fl_fail(err, FL_INVALID, "%s %s is given twice", c->setting[0] ? "--sweep" : "--model", c->setting[0] ? c->setting : c->model);
        return fl_fail(err, FL_INVALID, "--sweep's %s and %s would be kept in one folder, %s; write them otherwise", other->setting, c->setting, c->dir);
    }
    return FL_OK;
}

/* Nothing is made before all of them may be. */
static fl_status make_places(const evaluation *e, fl_err *err)
{
    static const char *const of_one[] = { "samples.jsonl", "results.jsonl", "results.evalplus.json", "summary.txt", "summary.json", "out.jsonl", "out.jsonl.errors.jsonl", NULL };
    static const char *const of_all[] = { "comparison.txt", "comparison.json", "comparison.svg", NULL };
    fl_status st = FL_OK;
    bool is_any_ours = false;                            /* points may have been added to the sweep */
    for (size_t i = 0; st == FL_OK && i < e->n_configs; i++) {
        if (is_ours(e->configs[i].dir)) is_any_ours = true;
        else st = check_none_of(e->configs[i].dir, of_one, err);
    }
    if (st == FL_OK && e->n_configs > 1 && !is_any_ours) st = check_none_of(e->dir, of_all, err);
    if (st == FL_OK) st = make_dir(e->dir, err);
    for (size_t i = 0; st == FL_OK && i < e->n_configs; i++) st = make_dir(e->configs[i].dir, err);
    return st;
}

static fl_status place_all(evaluation *e, fl_err *err)
{
    const char *tasks = e->o->tasks;
    size_t n = strlen(tasks);
    if (n > 3 && strcmp(tasks + n - 3, ".gz") == 0) n -= 3;
    if (n > 6 && strncmp(tasks + n - 6, ".jsonl", 6) == 0) n -= 6;
    int length = e->o->out ? snprintf(e->dir, sizeof e->dir, "%s", e->o->out) : snprintf(e->dir, sizeof e->dir, "%.*s.eval", (int)n, tasks);
    if ((size_t)length >= sizeof e->dir - 500) return fl_fail(err, FL_INVALID, "the path of the folder for results is too long");
    fl_status st = FL_OK;
    for (size_t i = 0; st == FL_OK && i < e->n_configs; i++) st = place_config(e, &e->configs[i], i, err);
    return st == FL_OK ? make_places(e, err) : st;
}

/* Without -k: 1, and 10 and 100 where n allows. */
static fl_status choose_ks(evaluation *e, fl_err *err)
{
    static const uint32_t usual[] = { 1, 10, 100 };
    for (size_t i = 0; !e->o->ks && i < 3; i++)
        if (usual[i] <= e->o->n) e->ks.v[e->ks.n++] = usual[i];
    fl_status st = e->o->ks ? pass_ks_parse(&e->ks, e->o->ks, err) : FL_OK;
    if (st == FL_OK && e->ks.v[e->ks.n - 1] > e->o->n)
        st = fl_fail(err, FL_INVALID, "pass@%u needs %u samples of each task and -n is %" PRIu64 "; raise -n, or ask for a smaller -k", e->ks.v[e->ks.n - 1], e->ks.v[e->ks.n - 1], e->o->n);
    return st;
}

/* ---- one job ---- */

/* Samples lo .. hi - 1 of the wanted tasks: round `number` of a configuration. */
typedef struct { const config *c; const bool *wanted; uint32_t number, lo, hi; char job[3100], out[3100], id_file[3100], suffix[24]; } eval_round;

static void name_round(eval_round *r, const config *c, uint32_t number, uint32_t lo, uint32_t hi, const bool *wanted)
{
    char tag[24] = "";
    *r = (eval_round){ .c = c, .wanted = wanted, .number = number, .lo = lo, .hi = hi };
    if (number) snprintf(tag, sizeof tag, ".%" PRIu32, number);
    if (number) snprintf(r->suffix, sizeof r->suffix, "#%" PRIu32, lo);
    snprintf(r->job, sizeof r->job, "%s/job%s.jsonl", c->dir, tag);
    snprintf(r->out, sizeof r->out, "%s/out%s.jsonl", c->dir, tag);
    snprintf(r->id_file, sizeof r->id_file, "%s/job%s.id", c->dir, tag);
}

/* A job file that stands where no evaluation has begun may be of one that was killed before that: then it is this very one. */
static fl_status check_job_file(const eval_round *r, const json_out *asked, fl_err *err)
{
    char *text = NULL;
    size_t n = 0;
    if (access(r->job, F_OK) != 0) return FL_OK;
    fl_status st = eval_read_file(r->job, &text, &n, err);
    if (st == FL_OK && (n != asked->n_bytes || memcmp(text, asked->data, n) != 0)) st = fl_fail(err, FL_INVALID, "%s is there and no evaluation wrote it; give another --out, or move it away", r->job);
    free(text);
    return st;
}

static fl_status write_job(const evaluation *e, const eval_round *r, fl_err *err)
{
    json_out out = { 0 };
    for (size_t i = 0; i < e->set.n_tasks; i++)
        if (r->wanted[i]) eval_task_write_row(&e->set.tasks[i], e->o->chat, r->hi - r->lo, is_set(e, "max_tokens") ? 0 : e->o->max_tokens, r->suffix, &out);
    fl_status st = out.failed ? fl_fail(err, FL_FULL, "no memory for the job's rows") : FL_OK;
    if (st == FL_OK && !is_ours(r->c->dir)) st = check_job_file(r, &out, err);
    if (st == FL_OK) st = job_store_write_file(r->job, out.data, out.n_bytes, err);
    json_out_fini(&out);
    return st;
}

/* The settings of a job: --set, and the temperature or what is swept. */
static void add_settings(const evaluation *e, const config *c, flag_list *set, char temperature[128])
{
    *set = e->o->set;
    snprintf(temperature, 128, "temperature=%s", e->o->temperature ? e->o->temperature : e->o->n == 1 ? "0" : "0.8");
    if (!is_set(e, "temperature") || e->o->temperature) set->v[set->n++] = temperature;
    if (c->setting[0]) set->v[set->n++] = c->setting;
}

typedef struct { char *v[ARGS_MAX]; int n; char numbers[8][24]; int n_numbers; } arg_list;

static void add_arg(arg_list *a, const char *name, const char *value)
{
    FL_ASSERT(a->n + 2 < ARGS_MAX);
    a->v[a->n++] = (char *)name;
    if (value) a->v[a->n++] = (char *)value;
}

static void add_number(arg_list *a, const char *name, uint64_t value)
{
    if (value == 0) return;
    char *text = a->numbers[a->n_numbers++];
    snprintf(text, sizeof a->numbers[0], "%" PRIu64, value);
    add_arg(a, name, text);
}

static int run_here(const evaluation *e, const eval_round *r)
{
    const eval_options *o = e->o;
    flag_list set;
    char temperature[128];
    arg_list a = { 0 };
    add_settings(e, r->c, &set, temperature);
    add_arg(&a, r->job, NULL);
    add_arg(&a, "--model", r->c->model);
    add_arg(&a, "--out", r->out);
    add_arg(&a, "--device", o->device);
    add_number(&a, "--workers", o->workers);
    add_number(&a, "--graders", o->graders ? o->graders : (uint64_t)cores_here());
    add_number(&a, "--threads", o->threads);
    add_number(&a, "--seed", o->seed);
    for (int i = 0; i < set.n; i++) add_arg(&a, "--set", set.v[i]);
    if (o->restart) add_arg(&a, "--restart", NULL);
    return cmd_run_as(NAME, a.n, a.v);
}

/* What the job's id stands for: the same evaluation finds its job again, another one is told apart. */
static fl_status describe_job(const evaluation *e, const eval_round *r, char out[400], fl_err *err)
{
    char hash[JOB_STORE_HASH_BYTES], temperature[128], *defaults = NULL;
    flag_list set;
    add_settings(e, r->c, &set, temperature);
    fl_status st = set_fields_json(&set, &defaults, err);
    if (st == FL_OK) st = job_store_hash(r->job, hash, err);
    if (st == FL_OK) snprintf(out, 400, "%s seed %" PRIu64 " model %.100s set %.200s", hash, e->o->seed, r->c->model, defaults);
    free(defaults);
    return st;
}

/* The job on the fleet: the one that was submitted for this round before, or a new one. */
static fl_status find_or_submit(const evaluation *e, const eval_round *r, char id[64], fl_err *err)
{
    char wanted[400], temperature[128], line[600], *known = NULL;
    size_t n = 0;
    fl_err ignored;
    json_t *reply = NULL;
    fl_status st = describe_job(e, r, wanted, err);
    if (st != FL_OK) return st;
    if (!e->o->restart && eval_read_file(r->id_file, &known, &n, &ignored) == FL_OK) {
        char *feed = strchr(known, '\n');
        bool is_same = feed && (size_t)(feed - known) < 64 && strncmp(feed + 1, wanted, strlen(wanted)) == 0 && feed[1 + strlen(wanted)] == '\n';
        if (is_same) snprintf(id, 64, "%.*s", (int)(feed - known), known);
        else st = fl_fail(err, FL_CONFLICT, "%s is of another evaluation (other tasks, model or settings); give another --out, or --restart to begin anew", r->id_file);
        free(known);
        return st;
    }
    submit_options s = { .job = r->job, .to = e->o->to, .model = r->c->model, .duplicates = "error", .seed = e->o->seed, .grade = true };
    add_settings(e, r->c, &s.set, temperature);
    if ((st = submit_job(&s, &reply, err)) != FL_OK) return st;
    const char *name = json_string_value(json_object_get(reply, "job")), *why = json_string_value(json_object_get(reply, "why"));
    snprintf(id, 64, "%s", name ? name : "");
    if (why && why[0]) fprintf(stderr, "the job is taken and waits: %s\n", why);
    json_decref(reply);
    snprintf(line, sizeof line, "%s\n%s\n", id, wanted);
    return job_store_write_file(r->id_file, line, strlen(line), err);
}

static int run_on_fleet(const evaluation *e, const eval_round *r)
{
    char id[64];
    fl_err err = { 0 };
    fl_status st = find_or_submit(e, r, id, &err);
    if (st != FL_OK) return flags_end(command_ended(st), NAME, "%s", err.text);
    arg_list a = { 0 };
    add_arg(&a, id, NULL);
    add_arg(&a, "--to", e->o->to);
    add_arg(&a, "--out", r->out);
    add_arg(&a, "--force", NULL);
    return cmd_fetch(a.n, a.v);
}

/* ---- rounds ---- */

/* Can no further sample change the task's part of any number that was asked for? With fewer than k failures among all n, pass@k is 1, whatever is left gives. */
static bool is_decided(const evaluation *e, const eval_sample_list *samples)
{
    uint64_t passed = 0;
    for (uint32_t i = 0; i < samples->n; i++) passed += samples->v[i].verdict.verdict == FL_VERDICT_PASSED;
    return e->o->n - passed < e->ks.v[0];
}

/* Returns an exit status: below ENDED_USAGE the samples are there. */
static int run_rounds(const evaluation *e, const config *c, eval_samples *samples)
{
    fl_err err = { 0 };
    fl_status st = FL_OK;
    int ended = ENDED_WELL;
    uint32_t n = (uint32_t)e->o->n, size = e->o->stop_when_solved ? (n + FIRST_PART - 1) / FIRST_PART : n, number = 0;
    bool *wanted = malloc(e->set.n_tasks * sizeof *wanted), any = true;
    if (!wanted) return flags_end(ENDED_ENVIRONMENT, NAME, "no memory for %zu tasks", e->set.n_tasks);
    memset(wanted, true, e->set.n_tasks * sizeof *wanted);
    for (uint32_t lo = 0; st == FL_OK && ended < ENDED_USAGE && any && lo < n; number++) {
        eval_round r;
        uint32_t step = number > 1 ? lo : size, hi = n - lo > step ? lo + step : n;      /* doubling: n/8, n/8, n/4, n/2 */
        name_round(&r, c, number, lo, hi, wanted);
        if ((st = write_job(e, &r, &err)) != FL_OK) break;
        int status = e->o->to ? run_on_fleet(e, &r) : run_here(e, &r);
        if (status > ended) ended = status;
        if (status >= ENDED_USAGE && !is_ours(c->dir)) unlink(r.job);            /* nothing began: the next try may ask for something else */
        if (ended < ENDED_USAGE) st = eval_samples_read_out(samples, r.out, r.suffix, wanted, hi - lo, e->o->chat, &err);
        lo = hi;
        any = false;
        for (size_t i = 0; st == FL_OK && ended < ENDED_USAGE && i < e->set.n_tasks; i++) any |= wanted[i] = wanted[i] && !is_decided(e, &samples->of[i]);
    }
    free(wanted);
    return st == FL_OK ? ended : flags_end(command_ended(st), NAME, "%s", err.text);
}

/* ---- results ---- */

static fl_status write_json(const char *dir, const char *name, json_t *json, fl_err *err)
{
    char path[3200], *text = json ? json_dumps(json, JSON_INDENT(1) | JSON_REAL_PRECISION(15)) : NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    fl_status st = text ? job_store_write_file(path, text, strlen(text), err) : fl_fail(err, FL_FULL, "no memory for a summary");
    free(text);
    json_decref(json);
    return st;
}

static fl_status write_text(const char *path, void (*print)(FILE *file, const evaluation *e, size_t i), const evaluation *e, size_t i, fl_err *err)
{
    char *text = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&text, &n);
    if (!file) return fl_fail(err, FL_FULL, "no memory for a summary");
    print(file, e, i);
    fl_status st = fclose(file) == 0 ? job_store_write_file(path, text, n, err) : fl_fail(err, FL_FULL, "no memory for a summary");
    free(text);
    return st;
}

static void print_one(FILE *file, const evaluation *e, size_t i)
{
    eval_outcome_print(file, &e->outcomes[i]);
    fputc('\n', file);
    eval_outcome_print_tasks(file, &e->outcomes[i]);
}

static void print_all(FILE *file, const evaluation *e, size_t i)
{
    (void)i;
    eval_compare_print(file, e->outcomes, e->n_configs);
}

static bool is_plus(const eval_set *set)
{
    for (size_t i = 0; i < set->n_tasks; i++)
        if (!eval_kind_is_plus(set->tasks[i].kind)) return false;
    return true;
}

static fl_status write_config(const evaluation *e, size_t i, const eval_samples *samples, fl_err *err)
{
    char path[3200];
    const char *dir = e->configs[i].dir;
    snprintf(path, sizeof path, "%s/samples.jsonl", dir);
    fl_status st = eval_samples_write(samples, path, err);
    snprintf(path, sizeof path, "%s/results.jsonl", dir);
    if (st == FL_OK) st = eval_results_write(samples, path, err);
    snprintf(path, sizeof path, "%s/results.evalplus.json", dir);
    if (st == FL_OK && is_plus(&e->set)) st = eval_evalplus_write(samples, e->ks.v, e->o->stop_when_solved ? 0 : e->ks.n, path, err);
    snprintf(path, sizeof path, "%s/summary.txt", dir);
    if (st == FL_OK) st = write_text(path, print_one, e, i, err);
    return st == FL_OK ? write_json(dir, "summary.json", eval_outcome_json(&e->outcomes[i]), err) : st;
}

static int run_config(evaluation *e, size_t i)
{
    fl_err err = { 0 };
    eval_samples samples = { 0 };
    config *c = &e->configs[i];
    if (e->n_configs > 1) fprintf(stderr, "%s%s%s:\n", c->name, c->setting[0] ? ", " : "", c->setting);
    fl_status st = eval_samples_open(&samples, &e->set, &err);
    int ended = st == FL_OK ? run_rounds(e, c, &samples) : ENDED_ENVIRONMENT;
    if (st == FL_OK && ended < ENDED_USAGE) {
        char setting[128] = "", temperature[128];
        flag_list set;
        add_settings(e, c, &set, temperature);
        for (int k = c->setting[0] ? set.n - 1 : 0; k < set.n; k++) {        /* of a sweep what it varies, else all */
            size_t used = strlen(setting);
            snprintf(setting + used, sizeof setting - used, "%s%s", used ? ", " : "", set.v[k]);
        }
        st = eval_outcome_make(&e->outcomes[i], &samples, (uint32_t)e->o->n, &e->ks, c->name, setting, &err);
        if (st == FL_OK) st = write_config(e, i, &samples, &err);
    }
    eval_samples_close(&samples);
    return st == FL_OK ? ended : flags_end(command_ended(st), NAME, "%s", err.text);
}

static fl_status write_comparison(const evaluation *e, fl_err *err)
{
    char path[3200];
    json_t *all = json_array();
    for (size_t i = 0; i < e->n_configs; i++) {
        json_t *one = eval_outcome_json(&e->outcomes[i]);
        if (one) json_object_del(one, "tasks");
        json_array_append_new(all, one ? one : json_null());
    }
    fl_status st = write_json(e->dir, "comparison.json", all, err);
    snprintf(path, sizeof path, "%s/comparison.txt", e->dir);
    if (st == FL_OK) st = write_text(path, print_all, e, 0, err);
    snprintf(path, sizeof path, "%s/comparison.svg", e->dir);
    return st == FL_OK ? eval_compare_svg(e->outcomes, e->n_configs, path, err) : st;
}

static void print_json(const evaluation *e)
{
    json_t *all = json_array();
    for (size_t i = 0; i < e->n_configs; i++) json_array_append_new(all, eval_outcome_json(&e->outcomes[i]));
    char *text = json_dumps(e->n_configs == 1 ? json_array_get(all, 0) : all, JSON_COMPACT | JSON_REAL_PRECISION(15));
    puts(text ? text : "");
    free(text);
    json_decref(all);
}

static void print_outcomes(const evaluation *e)
{
    for (size_t i = 0; i < e->n_configs && e->n_configs == 1; i++) {
        eval_outcome_print(stdout, &e->outcomes[i]);
        if (e->o->per_task) eval_outcome_print_tasks(stdout, &e->outcomes[i]);
    }
    if (e->n_configs > 1) eval_compare_print(stdout, e->outcomes, e->n_configs);
    printf("files          %s\n", command_shown_path(e->dir));
}

static int evaluate(const eval_options *o)
{
    fl_err err = { 0 };
    evaluation e = { .o = o };
    int ended = ENDED_WELL;
    fl_status st = choose_ks(&e, &err);
    if (st == FL_OK) st = make_configs(&e, &err);
    if (st == FL_OK) st = check_temperature(o, &err);
    if (st == FL_OK) st = check_models(o, &err);
    if (st == FL_OK) st = eval_set_read(&e.set, o->tasks, &err);
    if (st == FL_OK) st = place_all(&e, &err);
    if (st == FL_OK && !(e.outcomes = calloc(e.n_configs, sizeof *e.outcomes))) st = fl_fail(&err, FL_FULL, "no memory for a sweep");
    for (size_t i = 0; st == FL_OK && ended < ENDED_USAGE && i < e.n_configs; i++) {
        int status = run_config(&e, i);
        if (status > ended) ended = status;
    }
    if (st == FL_OK && ended < ENDED_USAGE && e.n_configs > 1) st = write_comparison(&e, &err);
    if (st == FL_OK && ended < ENDED_USAGE) (o->as_json ? print_json : print_outcomes)(&e);
    for (size_t i = 0; e.outcomes && i < e.n_configs; i++) eval_outcome_free(&e.outcomes[i]);
    free(e.outcomes);
    free(e.configs);
    eval_set_free(&e.set);
    return st == FL_OK ? ended : flags_end(command_ended(st), NAME, "%s", err.text);
}

int cmd_eval(int argc, char **argv)
{
    eval_options o = { .n = 1, .max_tokens = TOKENS_DEFAULT, .device = "auto" };
    const flag flags[] = {
        { "--model", FLAG_LIST, "PATH", "a model directory, a .gguf file, or demo; several are compared. With --to: the model's name", &o.models, 0, 0, true },
        { "-n", FLAG_NUMBER, "N", "samples of each task (default 1)", &o.n, 1, FL_SAMPLES_MAX, false },
        { "--temperature", FLAG_TEXT, "T", "of the samples (default 0 with one sample, else 0.8)", &o.temperature, 0, 0, false },
        { "-k", FLAG_TEXT, "K,K,...", "the k of pass@k, at most N (default those of 1, 10 and 100)", &o.ks, 0, 0, false },
        { "--chat", FLAG_SWITCH, "", "ask in a chat and take the code out of the answer", &o.chat, 0, 0, false },
        { "--max-tokens", FLAG_NUMBER, "N", "of a sample (default 512)", &o.max_tokens, 1, 1 << 30, false },
        { "--set", FLAG_LIST, "KEY=VALUE", "a body field of every row, as in top_p=0.95", &o.set, 0, 0, false },
        { "--seed", FLAG_NUMBER, "S", "seed of the draws (default 0)", &o.seed, 0, UINT64_MAX, false },
        { "--sweep", FLAG_TEXT, "KEY=V,V,...", "evaluate once for each value of a body field and compare, as in temperature=0.2,0.8", &o.sweep, 0, 0, false },
        { "--stop-when-solved", FLAG_SWITCH, "", "end a task once no further sample can change its part of the asked pass@k", &o.stop_when_solved, 0, 0, false },
        { "--out", FLAG_TEXT, "DIR", "folder for results and progress (default the tasks' name with .eval behind it)", &o.out, 0, 0, false },
        { "--workers", FLAG_NUMBER, "N|auto", "worker processes that generate; auto is one for each GPU, and without GPUs one on all cores (default)", &o.workers, 1, SPAWN_WORKERS_MAX, false },
        { "--graders", FLAG_NUMBER, "N", "worker processes that grade (default as many as there are cores)", &o.graders, 1, SPAWN_WORKERS_MAX, false },
        { "--device", FLAG_CHOICE, "auto|cpu|cuda", "where to generate, as `run` has it (default auto)", &o.device, 0, 0, false },
        { "--threads", FLAG_NUMBER, "N", "threads of each worker that generates (default: its share of all cores)", &o.threads, 1, 1024, false },
        { "--to", FLAG_TEXT, "ENDPOINT", "run it on the fleet of this coordinator, which needs workers with --roles grade", &o.to, 0, 0, false },
        { "--restart", FLAG_SWITCH, "", "forget what DIR holds and begin anew", &o.restart, 0, 0, false },
        { "--per-task", FLAG_SWITCH, "", "print a line for each task as well (DIR/summary.txt always has them)", &o.per_task, 0, 0, false },
        { "--json", FLAG_SWITCH, "", "print the summary as JSON", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "TASKS.jsonl",
        "Sample solutions of code tasks, judge them in sandboxes while more are generated, and print pass@k with 95% intervals. TASKS has HumanEval, EvalPlus (HumanEval+,\n"
        "MBPP+) or MBPP lines, plain or .gz. DIR gets samples.jsonl, results.jsonl, summary.txt and summary.json; the same command again continues what was interrupted.\n"
        "--stop-when-solved draws n/8, n/8, n/4 and n/2 samples and leaves out tasks with so many passed that pass@k is 1 whatever the rest gives (n - passed < k), so\n"
        "the numbers are those of all n samples. Ends with 0; 1 when rows failed; 2 usage; 3 environment; 4 incomplete, run again.",
        "tokenfleet eval HumanEval.jsonl.gz --model demo -n 20 --temperature 0.8 -k 1,10", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;
    if (o.set.n > FLAGS_LIST_MAX - 2) return flags_end(ENDED_USAGE, NAME, "--set may be given %d times at most", FLAGS_LIST_MAX - 2);
    o.tasks = operands[0];
    return evaluate(&o);
}
