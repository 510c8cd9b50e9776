#include "coordinator/job_store.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>
#include <xxhash.h>
#include <zlib.h>
#include "coordinator/gunzip.h"
#include "proto/json_load.h"
#include "proto/job_row.h"

#define NAMED_LINE_BYTES_MAX (1u << 20)
#define GROUP_BYTES (4u << 20)
#define HASH_CHUNK_BYTES (256 * 1024)

struct job_draft {
    const spool *spool;                  /* borrowed */
    stored_job *job;                     /* owned until the end */
    ingest *ingest;                      /* owned */
};

/* ---- settings ---- */

void job_settings_fini(job_settings *s)
{
    free(s->name);
    free(s->model);
    free(s->defaults);
    memset(s, 0, sizeof *s);
}

fl_status job_settings_copy(job_settings *out, const job_settings *from, fl_err *err)
{
    job_settings copy = *from;
    copy.name = strdup(from->name ? from->name : "");
    copy.model = strdup(from->model ? from->model : "");
    copy.defaults = strdup(from->defaults ? from->defaults : "");
    *out = copy;
    if (copy.name && copy.model && copy.defaults) return FL_OK;
    job_settings_fini(out);
    return fl_fail(err, FL_FULL, "no memory for a job's settings");
}

bool job_settings_differ(const job_settings *was, const job_settings *is, char *text, size_t n_bytes)
{
    if (strcmp(was->content, is->content) != 0) snprintf(text, n_bytes, "the job file's content");
    else if (was->seed != is->seed) snprintf(text, n_bytes, "the seed (was %" PRIu64 ", is %" PRIu64 ")", was->seed, is->seed);
    else if (strcmp(was->defaults, is->defaults) != 0) {
        snprintf(text, n_bytes, "what --set says (was %s, is %s)", was->defaults[0] ? was->defaults : "nothing", is->defaults[0] ? is->defaults : "nothing");
    } else if (was->max_context != is->max_context) {
        snprintf(text, n_bytes, "--max-context (was %" PRIu32 ", is %" PRIu32 "; 0 is the model's)", was->max_context, is->max_context);
    } else if (was->suffix_duplicates != is->suffix_duplicates) {
        snprintf(text, n_bytes, "--duplicates (was %s, is %s)", was->suffix_duplicates ? "suffix" : "error", is->suffix_duplicates ? "suffix" : "error");
    } else if (was->grade != is->grade) snprintf(text, n_bytes, "whether it is graded (was %s, is %s)", was->grade ? "yes" : "no", is->grade ? "yes" : "no");
    else if (was->now_s != is->now_s) snprintf(text, n_bytes, "--now (was %" PRIu32 ", is %" PRIu32 ")", was->now_s, is->now_s);
    else if (was->created_s != is->created_s) snprintf(text, n_bytes, "the creation time");
    else if (strcmp(was->model, is->model) != 0) snprintf(text, n_bytes, "the model's name (was %s, is %s)", was->model, is->model);
    else return false;
    return true;
}

static fl_status settings_to_json(const job_settings *s, uint64_t n_rows, char **out, fl_err *err)
{
    char seed[24];
    snprintf(seed, sizeof seed, "%" PRIu64, s->seed);    /* jansson's integers end at 2^63 */
    json_t *json = json_pack("{s:i, s:s, s:I, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I}", "version", 1, "content", s->content, "rows", (json_int_t)n_rows,
                             "name", s->name, "seed", seed, "created", (json_int_t)s->created_s, "max_context", (json_int_t)s->max_context,
                             "now", (json_int_t)s->now_s, "model", s->model, "defaults", s->defaults, "duplicates", s->suffix_duplicates ? "suffix" : "error",
                             "expires", (json_int_t)s->times.expires_s, "row_queue_limit", (json_int_t)s->times.row_queue_s, "row_run_limit", (json_int_t)s->times.row_run_s,
                             "row_limit", (json_int_t)s->times.row_s);
    if (json && s->grade) json_object_set_new(json, "grade", json_true());
    *out = json ? json_dumps(json, JSON_COMPACT) : NULL;
    json_decref(json);
    return *out ? FL_OK : fl_fail(err, FL_INVALID, "the job's settings are no text in UTF-8: its name or the model's name");
}

fl_status job_settings_parse(job_settings *out, const void *data, size_t n_bytes, fl_err *err)
{
    json_t *json = NULL;
    const char *name = NULL, *seed = NULL, *model = NULL, *defaults = NULL, *content = NULL, *duplicates = "error";
    json_int_t created = 0, max_context = 0, now = 0, times[4] = { 0 };
    int version = 0, grade = 0;
    fl_status st = fl_json_load(&json, "the job's first record", data, n_bytes, 0, err);
    char *end = NULL;
    if (st != FL_OK) goto done;
    if (json_unpack(json, "{s:i, s:s, s:s, s:s, s:I, s:I, s:I, s:s, s:s, s?s, s?I, s?I, s?I, s?I, s?b}", "version", &version, "content", &content, "name", &name, "seed", &seed,
                             "created", &created, "max_context", &max_context, "now", &now, "model", &model, "defaults", &defaults, "duplicates", &duplicates,
                             "expires", &times[0], "row_queue_limit", &times[1], "row_run_limit", &times[2], "row_limit", &times[3], "grade", &grade) != 0) {
        st = fl_fail(err, FL_CORRUPT, "the job's first record does not hold its settings");
        goto done;
    }
    if (version != 1) { st = fl_fail(err, FL_UNSUPPORTED, "the job was written by a newer release (settings version %d)", version); goto done; }
    errno = 0;
    unsigned long long number = strtoull(seed, &end, 10);
    if (errno || !*seed || *end || strlen(content) != JOB_STORE_HASH_BYTES - 1 || created < 0 || max_context < 0 || max_context > UINT32_MAX || now < 0 ||
        now > UINT32_MAX || times[0] < 0 || times[1] < 0 || times[2] < 0 || times[3] < 0 ||
        (strcmp(duplicates, "error") != 0 && strcmp(duplicates, "suffix") != 0)) {
        st = fl_fail(err, FL_CORRUPT, "the job's first record holds a setting outside its domain");
        goto done;
    }
    job_settings s = { .name = (char *)name, .model = (char *)model, .defaults = (char *)defaults, .seed = number, .created_s = (uint64_t)created, .max_context = (uint32_t)max_context,
                       .now_s = (uint32_t)now, .times = { (uint64_t)times[0], (uint64_t)times[1], (uint64_t)times[2], (uint64_t)times[3] },
                       .suffix_duplicates = strcmp(duplicates, "suffix") == 0, .grade = grade != 0 };
    memcpy(s.content, content, JOB_STORE_HASH_BYTES);
    st = job_settings_copy(out, &s, err);
done:
    json_decref(json);
    return st;
}

static void hash_to_hex(const uint8_t hash[ROWS_HASH_BYTES], char out[JOB_STORE_HASH_BYTES])
{
    for (int i = 0; i < ROWS_HASH_BYTES; i++) snprintf(out + 2 * i, 3, "%02x", hash[i]);
}

/* ---- files ---- */

fl_status job_store_write_file(const char *path, const void *data, size_t n_bytes, fl_err *err)
{
    char temporary[4200], dir[4200];
    if ((size_t)snprintf(temporary, sizeof temporary, "%s.tmp", path) >= sizeof temporary) return fl_fail(err, FL_INVALID, "the path %s is too long", path);
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) slash[slash == dir] = '\0';
    fl_status st = FL_OK;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0) return fl_fail_errno(err, errno, "cannot write %s", temporary);
    for (size_t at = 0; at < n_bytes; ) {
        ssize_t n = write(fd, (const char *)data + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) { st = fl_fail_errno(err, errno, "cannot write %s", temporary); goto done; }
        at += (size_t)n;
    }
    if (fsync(fd) != 0) { st = fl_fail_errno(err, errno, "cannot write %s", temporary); goto done; }
    if (rename(temporary, path) != 0) { st = fl_fail_errno(err, errno, "cannot name %s", path); goto done; }
    st = spool_sync_dir(slash ? dir : ".", err);
done:
    close(fd);
    if (st != FL_OK) unlink(temporary);
    return st;
}

/* ---- a job in memory ---- */

static fl_status new_job(stored_job **out, const spool *s, job_id id, uint32_t generation, fl_err *err)
{
    stored_job *job = calloc(1, sizeof *job);
    if (!job) return fl_fail(err, FL_FULL, "no memory for a job");
    job->id = id;
    job->state = JOB_OPEN;
    job->generation = generation;
    job->dir = spool_job_path(s, id, NULL);
    job->ledger_dir = spool_ledger_path(s, id, generation);
    if (!job->dir || !job->ledger_dir) {
        job_store_close(job);
        return fl_fail(err, FL_FULL, "no memory for a job's paths");
    }
    *out = job;
    return FL_OK;
}

void job_store_close(stored_job *job)
{
    if (!job) return;
    job_settings_fini(&job->settings);
    rows_close(job->rows);
    ledger_close(job->ledger);
    row_table_close(job->table);
    ledger_index_close(job->results);
    fl_detok_free(job->detok);
    free(job->dir);
    free(job->ledger_dir);
    free(job);
}

fl_status job_store_table(row_table **out, rows *lines, fl_err *err)
{
    uint64_t n_rows = rows_describe(lines)->n_rows;
    row_table *table = NULL;
    fl_status st = row_table_open(&table, n_rows, err);
    for (uint64_t i = 0; st == FL_OK && i < n_rows; i++) {
        rows_entry entry;
        if ((st = rows_get(lines, (row_index){ i }, &entry, err)) != FL_OK) break;
        uint32_t n = entry.n_samples ? entry.n_samples : 1;
        st = row_table_add(table, n, entry.cost / n, err);
    }
    if (st == FL_OK) {
        *out = table;
        table = NULL;
    }
    row_table_close(table);
    return st;
}

static bool is_verdict(const stored_job *job, const ledger_record *record)
{
    return record->row.v >= rows_describe(job->rows)->n_rows;
}

/* What graders' lines are made from. */
static fl_status note_for_graders(stored_job *job, const ledger_record *record, fl_err *err)
{
    if (!job->settings.grade || job->state != JOB_OPEN) return FL_OK;
    if (!job->results) {
        fl_status st = job_store_index(&job->results, job->rows, true, err);
        if (st != FL_OK) return st;
    }
    if (record->kind != LEDGER_DETOK) return ledger_index_note(job->results, record, err);
    fl_detok *table = NULL;
    fl_status st = fl_detok_decode(&table, record->body.data, record->body.bytes, err);
    if (st != FL_OK) return st;
    fl_detok_free(job->detok);
    job->detok = table;
    return FL_OK;
}

static void forget_graders(stored_job *job)
{
    ledger_index_close(job->results);
    fl_detok_free(job->detok);
    job->results = NULL;
    job->detok = NULL;
}

fl_status job_store_note(stored_job *job, const ledger_record *record, fl_err *err)
{
    fl_status st = note_for_graders(job, record, err);
    if (st != FL_OK) return st;
    if (record->kind == LEDGER_DETOK) job->has_detok = true;
    if (record->kind == LEDGER_INGEST_ERROR) job->n_bad++;
    job_failures_note(&job->failures, record);
    if (record->kind == LEDGER_RESULT && record->piece + 1 == record->n_pieces && !is_verdict(job, record)) job->counts.tokens += record->n_tokens;
    if (record->kind == LEDGER_PIN) {
        job->is_pinned = true;
        job->n_vocab = record->n_vocab;
        job->context = record->context;
        fl_bytes_text(job->fingerprint, sizeof job->fingerprint, record->fingerprint);
        fl_bytes_text(job->numerics, sizeof job->numerics, record->numerics);
        fl_bytes_text(job->pin_model, sizeof job->pin_model, record->model);
    }
    if (record->kind == LEDGER_CLOSE) forget_graders(job);
    return FL_OK;
}

/* One record of the replay. */
static fl_status replay(void *context, const ledger_record *record, fl_err *err)
{
    stored_job *job = context;
    if (record->kind == LEDGER_JOB) {
        fl_status st = job_settings_parse(&job->settings, record->body.data, record->body.bytes, err);
        return st == FL_OK && job->settings.grade ? row_table_add_grades(job->table, err) : st;
    }
    bool has_row = record->kind == LEDGER_INGEST_ERROR || record->kind == LEDGER_RESULT || record->kind == LEDGER_ROW_ERROR;
    if (has_row && !row_table_has(job->table, record->row.v, record->sample)) {
        return fl_fail(err, FL_CORRUPT, "the ledger speaks of row %" PRIu64 ", which the job does not have", record->row.v);
    }
    if (record->kind == LEDGER_RESULT && record->piece + 1 == record->n_pieces) row_table_commit(job->table, record->row, record->sample);
    if (record->kind == LEDGER_INGEST_ERROR || record->kind == LEDGER_ROW_ERROR) row_table_fail(job->table, record->row);
    if (record->kind == LEDGER_CLOSE) job->state = record->cause == LEDGER_COMPLETED ? JOB_COMPLETED : record->cause == LEDGER_CANCELLED ? JOB_CANCELLED : JOB_EXPIRED;
    return job_store_note(job, record, err);
}

fl_status job_store_open(stored_job **out, const spool *s, const journal_job *named, bool for_writing, fl_err *err)
{
    stored_job *job = NULL;
    char name[FL_JOB_NAME_BYTES];
    fl_job_name(named->id, name);
    fl_err why = { 0 };
    fl_status st = new_job(&job, s, named->id, named->generation, err);
    if (st != FL_OK) return st;
    job->state = named->state;
    job->created_s = named->created_s;
    if ((st = rows_open(&job->rows, job->dir, &why)) != FL_OK) goto done;
    if ((st = job_store_table(&job->table, job->rows, &why)) != FL_OK) goto done;
    uint64_t finished_s;
    bool is_closed = false, is_finished = named->state != JOB_OPEN && job_store_finished(job->dir, &finished_s);     /* its ledger was synced before: a start with many such jobs must not wait for the disk */
    st = for_writing && !is_finished ? ledger_open(&job->ledger, job->ledger_dir, replay, job, &why) : ledger_scan_to_end(job->ledger_dir, replay, job, &job->end, &is_closed, &why);
    if (st != FL_OK) goto done;
    if (job->ledger) is_closed = ledger_is_closed(job->ledger);
    if (named->state != JOB_OPEN && for_writing && !is_closed) {
        st = fl_fail(&why, FL_CORRUPT, "the journal says it is %s, but the end of its ledger is missing; put the spool back from a copy, or begin anew (`run --restart`)", job_state_name(named->state));
        goto done;
    }
    job->counts.rows = row_table_n_rows(job->table);
    job->counts.completed = row_table_n_completed(job->table);
    job->counts.failed = row_table_n_failed(job->table);
    if (job->state != JOB_COMPLETED && job->state != JOB_OPEN) job->counts.failed = job->counts.rows - job->counts.completed;
    job->outputs_due = job->state != JOB_OPEN && !job_store_finished(job->dir, &finished_s);
    *out = job;
    job = NULL;
done:
    job_store_close(job);
    return st == FL_OK ? FL_OK : fl_fail(err, st == FL_NOT_FOUND ? FL_CORRUPT : st, "%s: %s", name, why.text);
}

fl_status job_store_index(ledger_index **out, rows *lines, bool is_graded, fl_err *err)
{
    uint64_t n_rows = rows_describe(lines)->n_rows, n_samples = 0, n_stages = is_graded ? 2 : 1;
    ledger_index *index = NULL;
    fl_status st = FL_OK;
    for (uint64_t pass = 0; st == FL_OK && pass <= n_stages; pass++) {       /* first how many, then each, once a stage */
        for (uint64_t row = 0; st == FL_OK && row < n_rows; row++) {
            rows_entry entry;
            if ((st = rows_get(lines, (row_index){ row }, &entry, err)) != FL_OK) break;
            uint32_t n = entry.n_samples ? entry.n_samples : 1;
            n_samples += pass == 0 ? n : 0;
            if (pass > 0) ledger_index_add(index, n);
        }
        if (st == FL_OK && pass == 0) st = ledger_index_open(&index, n_stages * n_rows, n_stages * n_samples, err);
    }
    if (st == FL_OK) {
        *out = index;
        index = NULL;
    }
    ledger_index_close(index);
    return st;
}

fl_status job_store_line(stored_job *job, row_index row, fl_bytes *line, rows_entry *entry, fl_err *err)
{
    const char *text = NULL;
    fl_status st = rows_get(job->rows, row, entry, err);
    if (st == FL_OK) st = rows_line(job->rows, entry, &text, err);
    if (st != FL_OK) return st;
    *line = (fl_bytes){ text, entry->n_bytes };
    return FL_OK;
}

/* The row's line tells its name; one that is very long is not read for it. */
static void name_example(stored_job *job, failure_example *e)
{
    rows_entry entry;
    const char *line = NULL;
    fl_row parsed = { 0 };
    fl_row_fault fault;
    fl_err ignored;
    e->is_named = true;
    if (rows_get(job->rows, e->row, &entry, &ignored) != FL_OK) return;
    e->line = entry.line;
    snprintf(e->custom_id, sizeof e->custom_id, "row-%" PRIu64, entry.line);
    if (entry.n_bytes > NAMED_LINE_BYTES_MAX || rows_line(job->rows, &entry, &line, &ignored) != FL_OK) return;
    fl_row_parse(&parsed, line, entry.n_bytes, entry.line, job->settings.defaults, &fault);
    if (parsed.custom_id && entry.is_renamed) fl_row_rename(&parsed, entry.line);
    if (parsed.custom_id) job_failures_copy(e->custom_id, sizeof e->custom_id, parsed.custom_id, parsed.custom_id_bytes);
    fl_row_free(&parsed);
}

const job_failures *job_store_failures(stored_job *job)
{
    for (int i = 0; i < job->failures.n_examples; i++) {
        if (!job->failures.examples[i].is_named) name_example(job, &job->failures.examples[i]);
    }
    return &job->failures;
}

void job_store_rest(stored_job *job)
{
    job_store_failures(job);                             /* their names stand in the lines */
    job->end = job_store_marked(job);
    rows_close(job->rows);
    ledger_close(job->ledger);
    forget_graders(job);
    job->rows = NULL;
    job->ledger = NULL;
}

ledger_place job_store_marked(const stored_job *job)
{
    return job->ledger ? ledger_marked(job->ledger) : job->end;
}

fl_status job_store_drop_outputs(const stored_job *job, fl_err *err)
{
    static const char *const names[] = { JOB_STORE_SUMMARY, JOB_STORE_OUT, JOB_STORE_ERRORS };
    char path[4200];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", job->dir, names[i]);
        if (unlink(path) == 0) {
            fl_status st = spool_sync_dir(job->dir, err);        /* the summary is gone for good before anything else happens to the job */
            if (st != FL_OK) return st;
        } else if (errno != ENOENT) {
            return fl_fail_errno(err, errno, "cannot remove %s", path);
        }
    }
    return FL_OK;
}

fl_status job_store_finish(stored_job *job, const job_counts *counts, fl_err *err)
{
    char path[4200];
    json_t *json = json_pack("{s:s, s:I, s:I, s:I, s:I}", "state", job_state_name(job->state), "rows", (json_int_t)counts->rows, "completed",
                             (json_int_t)counts->completed, "failed", (json_int_t)counts->failed, "tokens", (json_int_t)counts->tokens);
    char *text = json ? json_dumps(json, 0) : NULL;
    fl_status st = text ? FL_OK : fl_fail(err, FL_FULL, "no memory for a summary");
    snprintf(path, sizeof path, "%s/%s", job->dir, JOB_STORE_SUMMARY);
    if (st == FL_OK) st = job_store_write_file(path, text, strlen(text), err);
    if (st == FL_OK) job->counts = *counts;
    free(text);
    json_decref(json);
    return st;
}

bool job_store_finished(const char *job_dir, uint64_t *at_s)
{
    char path[4200];
    struct stat at;
    snprintf(path, sizeof path, "%s/%s", job_dir, JOB_STORE_SUMMARY);
    if (stat(path, &at) != 0) return false;
    *at_s = (uint64_t)at.st_mtime;
    return true;
}

/* ---- making a job ---- */

static fl_status append_job_record(ledger *l, const job_settings *settings, uint64_t n_rows, fl_err *err)
{
    char *json = NULL;
    fl_status st = settings_to_json(settings, n_rows, &json, err);
    if (st != FL_OK) return st;
    ledger_record record = { .kind = LEDGER_JOB, .body = { json, strlen(json) } };
    st = ledger_append(l, &record, err);
    free(json);
    return st;
}

/* Groups of bad lines are bounded, since readers hold a whole one. The folder counts for nothing before the journal names it, however many are committed. */
typedef struct { ledger *l; uint64_t committed; } fault_notes;

static fl_status note_fault(void *context, const ingest_fault *fault, fl_err *err)
{
    fault_notes *notes = context;
    ledger_record record = { .kind = LEDGER_INGEST_ERROR, .row = fault->row, .code = fault->code, .line = fault->line, .line_offset = fault->offset,
                             .custom_id = { fault->custom_id, fault->custom_id_bytes }, .body = { fault->text, fault->text_bytes } };
    fl_status st = ledger_append(notes->l, &record, err);
    if (st != FL_OK || ledger_bytes(notes->l) - notes->committed < GROUP_BYTES) return st;
    notes->committed = ledger_bytes(notes->l);
    return ledger_commit(notes->l, err);
}

void job_draft_close(job_draft *draft)
{
    if (!draft) return;
    fl_err ignored;
    ingest_close(draft->ingest);
    if (draft->job && draft->spool) {
        job_id id = draft->job->id;
        job_store_close(draft->job);
        draft->job = NULL;
        spool_job_remove(draft->spool, id, &ignored);    /* what stays is removed by the next start */
    }
    job_store_close(draft->job);
    free(draft);
}

/* Every line is in: settings and bad lines become the ledger's first group. */
static fl_status finish_draft(job_draft *draft, const ingest_report *report, stored_job **out, fl_err *err)
{
    stored_job *job = draft->job;
    fl_status st = FL_OK;
    hash_to_hex(report->hash, job->settings.content);
    if ((st = ledger_create(&job->ledger, job->ledger_dir, err)) != FL_OK) return st;
    if ((st = append_job_record(job->ledger, &job->settings, report->n_rows, err)) != FL_OK) return st;
    fault_notes notes = { job->ledger, 0 };
    if ((st = ingest_faults(draft->ingest, note_fault, &notes, err)) != FL_OK) return st;
    if ((st = ledger_commit(job->ledger, err)) != FL_OK) return st;
    if ((st = spool_sync_dir(job->dir, err)) != FL_OK) return st;
    ledger_close(job->ledger);
    job->ledger = NULL;
    st = job_store_open(out, draft->spool, &(journal_job){ .id = job->id, .state = JOB_OPEN, .generation = 1 }, true, err);     /* what a restart would read is what we go on with */
    if (st != FL_OK) return st;
    job_store_close(job);
    draft->job = NULL;
    return FL_OK;
}

fl_status job_draft_open(job_draft **out, const spool *s, job_id id, const job_settings *settings, const job_draft_options *options, fl_err *err)
{
    job_draft *draft = calloc(1, sizeof *draft);
    if (!draft) return fl_fail(err, FL_FULL, "no memory for a job");
    fl_status st = new_job(&draft->job, s, id, 1, err);
    if (st == FL_OK) st = job_settings_copy(&draft->job->settings, settings, err);
    if (st == FL_OK && (st = spool_job_create(s, id, err)) == FL_OK) draft->spool = s;
    if (st == FL_OK) {
        const job_settings *own = &draft->job->settings;
        ingest_options o = { .name = own->name, .defaults = own->defaults[0] ? own->defaults : NULL, .job_dir = draft->job->dir,
                             .suffix_duplicates = own->suffix_duplicates };
        if (options) {
            o.note = options->note;
            o.context = options->context;
            if (options->path) o.name = strcmp(options->path, "-") == 0 ? "standard input" : options->path;
        }
        st = ingest_open(&draft->ingest, &o, err);
    }
    if (st == FL_OK) {
        *out = draft;
        draft = NULL;
    }
    job_draft_close(draft);
    return st;
}

fl_status job_draft_push(job_draft *draft, const void *data, size_t n_bytes, fl_err *err)
{
    return ingest_push(draft->ingest, data, n_bytes, err);
}

fl_status job_draft_end(job_draft *draft, stored_job **out, ingest_report *report, fl_err *err)
{
    fl_status st = ingest_end(draft->ingest, report, err);
    return st == FL_OK ? finish_draft(draft, report, out, err) : st;
}

fl_status job_store_create(stored_job **out, const spool *s, job_id id, const job_settings *settings, const job_draft_options *options, ingest_report *report, fl_err *err)
{
    job_draft *draft = NULL;
    fl_status st = job_draft_open(&draft, s, id, settings, options, err);
    if (st == FL_OK) st = ingest_read(draft->ingest, options->path, err);
    if (st == FL_OK) st = job_draft_end(draft, out, report, err);
    job_draft_close(draft);
    return st;
}

/* ---- the hash of a job file ---- */

fl_status job_store_hash(const char *path, char out[JOB_STORE_HASH_BYTES], fl_err *err)
{
    fl_status st = FL_OK;
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path;
    uint8_t *chunk = malloc(HASH_CHUNK_BYTES);
    XXH3_state_t *state = XXH3_createState();
    int fd = strcmp(path, "-") == 0 ? dup(0) : open(path, O_RDONLY | O_CLOEXEC);
    int error = errno;
    gzFile file = fd >= 0 ? gzdopen(fd, "rb") : NULL;    /* a plain file passes through */
    int n = 0, code = Z_OK;
    if (!chunk || !state) { st = fl_fail(err, FL_FULL, "no memory to read %s", name); goto done; }
    if (fd < 0 && error == EINTR) { st = fl_fail(err, FL_AGAIN, "stopped while the job was read"); goto done; }     /* a pipe that nobody writes to */
    if (fd < 0) { st = error == ENOENT ? fl_fail(err, FL_NOT_FOUND, "%s is not there", name) : fl_fail_errno(err, error, "cannot read %s", name); goto done; }
    if (!file) { st = fl_fail(err, FL_FULL, "no memory to read %s", name); goto done; }
    XXH3_128bits_reset(state);
    while ((n = gzread(file, chunk, HASH_CHUNK_BYTES)) > 0) XXH3_128bits_update(state, chunk, (size_t)n);
    const char *why = gzerror(file, &code);
    if (n < 0 || (code != Z_OK && code != Z_STREAM_END)) {
        st = code == Z_ERRNO && errno == EINTR ? fl_fail(err, FL_AGAIN, "stopped while the job was read")
           : code == Z_ERRNO ? fl_fail_errno(err, errno, "cannot read %s", name) : gunzip_damaged(name, why, err);
        goto done;
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state));
    hash_to_hex(canonical.digest, out);
done:
    if (file) gzclose(file);
    else if (fd >= 0) close(fd);
    XXH3_freeState(state);
    free(chunk);
    return st;
}
