/* cmd_fetch.c - `tokenfleet fetch`: the output and error files of a job. A running job is followed to its end: its files come as far as its first rows are finished.
 * What came is kept when the download breaks off, and the next one goes on behind it, since the files are a function of the job alone. */
#include "coordinator/commands.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/fetch_file.h"
#include "coordinator/job_source.h"
#include "coordinator/output_rows.h"
#include "coordinator/progress.h"
#include "coordinator/service.h"
#include "proto/clock.h"

#define NAME "fetch"
#define WAIT_MS 200                                      /* between questions while there is nothing new */

/* One of the two files. is_checked: what an earlier fetch left is known to be the job's. */
typedef struct { const char *name; fetch_file file; bool is_checked, is_whole; uint64_t size; } download;

typedef struct {
    job_source *source;
    download files[2];                   /* OUT, ERR */
    uint64_t rows, failed;               /* as last heard */
    json_int_t generation;               /* of the job's ledger: -1 = not heard yet */
    char why[480];
    progress progress;
    int64_t status_ms;                   /* when to ask again how the job stands */
} fetching;

static fl_status begin_again(download *d, fl_err *err)
{
    fprintf(stderr, "tokenfleet " NAME ": what an earlier fetch left in %s is not the beginning of this job's file; it is fetched from the beginning\n", d->file.part);
    d->is_checked = true;
    return fetch_file_clear(&d->file, err);
}

/* The last piece of what is there must be what the coordinator has at that place. */
static fl_status check_kept(download *d, const uint8_t *part, size_t n_part, size_t n_kept, fl_err *err)
{
    bool same = n_part >= n_kept;
    fl_status st = same ? fetch_file_ends_with(&d->file, part, n_kept, &same, err) : FL_OK;
    if (st != FL_OK) return st;
    d->is_checked = same;
    return same ? fetch_file_add(&d->file, part + n_kept, n_part - n_kept, err) : begin_again(d, err);
}

static void note_reply(fetching *f, download *d, const json_t *reply)
{
    json_int_t generation = json_integer_value(json_object_get(reply, "generation"));
    const char *why = json_string_value(json_object_get(reply, "why"));
    if (f->generation >= 0 && f->generation != generation) f->files[0].is_checked = f->files[1].is_checked = false;      /* failed rows run again */
    f->generation = generation;
    d->size = (uint64_t)json_integer_value(json_object_get(reply, "size"));
    d->is_whole = json_is_true(json_object_get(reply, "whole"));
    f->rows = (uint64_t)json_integer_value(json_object_get(reply, "rows"));
    f->failed = (uint64_t)json_integer_value(json_object_get(reply, "failed"));
    snprintf(f->why, sizeof f->why, "%s", why ? why : "");
}

/* Ask for one piece. *moved: something came. */
static fl_status pull(fetching *f, download *d, bool *moved, fl_err *err)
{
    json_t *reply = NULL;
    uint8_t *part = NULL;
    size_t n_part = 0;
    size_t n_kept = d->is_checked ? 0 : d->file.n_bytes < SERVICE_PIECE_BYTES ? (size_t)d->file.n_bytes : SERVICE_PIECE_BYTES;
    uint64_t before = d->file.n_bytes;
    bool was_checked = d->is_checked;
    *moved = false;
    json_t *args = json_pack("{s:s, s:s, s:I}", "job", f->source->job, "file", d->name, "offset", (json_int_t)(d->file.n_bytes - n_kept));
    fl_status st = client_call(f->source->client, "fetch", args, NULL, JOB_SOURCE_CALL_MS, &reply, &part, &n_part, err);
    if (st == FL_OK) note_reply(f, d, reply);
    json_decref(reply);
    if (st != FL_OK) return st;
    if (!was_checked && (d->is_whole || d->size >= d->file.n_bytes)) st = check_kept(d, part, n_part, n_kept, err);
    else if (d->is_checked && d->is_whole && d->size < d->file.n_bytes) st = begin_again(d, err);
    else if (d->is_checked) st = fetch_file_add(&d->file, part, n_part, err);
    free(part);
    *moved = d->file.n_bytes != before || d->is_checked != was_checked;
    return st;
}

/* How the job stands, while its next rows are waited for. */
static fl_status show(fetching *f, fl_err *err)
{
    json_t *reply = NULL;
    char note[600];
    if (fl_boot_ms() < f->status_ms) return FL_OK;
    f->status_ms = fl_boot_ms() + 1000;
    fl_status st = job_source_status(f->source, &reply, err);
    if (st != FL_OK) return st;
    const json_t *job = json_object_get(reply, "job"), *counts = json_object_get(job, "rows");
    const char *why = f->why[0] ? f->why : json_string_value(json_object_get(job, "why"));
    uint64_t completed = (uint64_t)json_integer_value(json_object_get(counts, "completed")), failed = (uint64_t)json_integer_value(json_object_get(counts, "failed"));
    snprintf(note, sizeof note, "the first %llu fetched%s%s", (unsigned long long)f->rows, why && why[0] ? ", " : "", why ? why : "");
    progress_numbers n = { (uint64_t)json_integer_value(json_object_get(counts, "total")), completed + failed, failed, (uint64_t)json_integer_value(json_object_get(job, "tokens")),
                           (int)json_array_size(json_object_get(reply, "workers")), note };
    progress_show(&f->progress, fl_boot_ms(), &n);
    json_decref(reply);
    return FL_OK;
}

static bool has_all(const download *d)
{
    return d->is_checked && d->is_whole && d->file.n_bytes == d->size;
}

/* Both files to their ends. */
static fl_status follow(fetching *f, fl_err *err)
{
    progress_init(&f->progress, fl_boot_ms(), isatty(2));
    while (!has_all(&f->files[0]) || !has_all(&f->files[1])) {
        bool any = false;
        for (int i = 0; i < 2; i++) {
            for (bool moved = true; moved; ) {
                fl_status st = pull(f, &f->files[i], &moved, err);
                if (command_signals()) return fl_fail(err, FL_AGAIN, "stopped before %s was whole; fetch again", f->files[0].file.path);
                if (st != FL_OK) return st;
                any |= moved;
                moved = moved && !has_all(&f->files[i]);
            }
        }
        if (any) continue;
        fl_status st = show(f, err);
        if (st != FL_OK && !command_signals()) return st;
        poll(NULL, 0, WAIT_MS);
        if (command_signals()) return fl_fail(err, FL_AGAIN, "stopped before %s was whole; fetch again", f->files[0].file.path);
    }
    return FL_OK;
}

/* ---- a spool that nobody holds ---- */

static fl_status add_batch(void *context, const output_batch *batch, fl_err *err)
{
    fetching *f = context;
    fl_status st = FL_OK;
    if (command_signals()) return fl_fail(err, FL_AGAIN, "stopped before %s was whole; fetch again", f->files[0].file.path);
    for (int i = 0; st == FL_OK && i < 2; i++) st = fetch_file_add(&f->files[i].file, batch->lines[i].data, batch->lines[i].n_bytes, err);
    return st;
}

/* The files' lines, made again from the ledger: what `run` wrote may have been edited or removed since. */
static fl_status make_lines(fetching *f, fl_err *err)
{
    char *dir = job_source_dir(f->source), *ledger_dir = job_source_ledger(f->source);
    output_rows *lines = NULL;
    fl_status st = dir && ledger_dir ? output_rows_open(&lines, dir, ledger_dir, err) : fl_fail(err, FL_FULL, "no memory to fetch a job");
    if (st == FL_OK) st = output_rows_read(lines, (ledger_place){ 0 }, err);
    if (st == FL_OK && !output_rows_is_closed(lines)) st = fl_fail(err, FL_AGAIN, "%s is not finished yet, and no coordinator works on it", f->source->job);
    for (int i = 0; st == FL_OK && i < 2; i++) st = fetch_file_clear(&f->files[i].file, err);
    if (st == FL_OK) st = output_rows_make(lines, output_rows_cores(), NULL, add_batch, f, err);
    if (st == FL_OK) f->failed = output_rows_counts(lines)->failed;
    output_rows_close(lines);
    free(dir);
    free(ledger_dir);
    return st;
}

/* The job must be known, and where no coordinator works on it, be closed. */
static fl_status check_job(job_source *source, fl_err *err)
{
    json_t *reply = NULL;
    if (!source->client) return source->named.state != JOB_OPEN ? FL_OK : fl_fail(err, FL_AGAIN, "%s is not finished yet, and no coordinator works on it", source->job);
    fl_status st = job_source_status(source, &reply, err);
    json_decref(reply);
    return st;
}

static fl_status fetch(job_source *source, const char *out, const char *errors, bool force, uint64_t *failed, fl_err *err)
{
    fetching f = { .source = source, .generation = -1, .files = { { .name = "out", .file = { .fd = -1 } }, { .name = "errors", .file = { .fd = -1 } } } };
    command_catch_signals();
    fl_status st = check_job(source, err);
    if (st == FL_OK) st = fetch_file_open(&f.files[0].file, out, source->job, force, err);
    if (st == FL_OK) st = fetch_file_open(&f.files[1].file, errors, source->job, force, err);
    for (int i = 0; i < 2; i++) f.files[i].is_checked = f.files[i].file.n_bytes == 0;
    if (st == FL_OK && source->client) {
        st = follow(&f, err);
        progress_clear(&f.progress);
    } else if (st == FL_OK) {
        st = make_lines(&f, err);
    }
    *failed = f.failed;
    for (int i = 1; st == FL_OK && i >= 0; i--) st = fetch_file_name(&f.files[i].file, err);
    if (st != FL_OK && f.files[0].file.fd >= 0 && f.files[1].file.fd >= 0 && f.files[0].file.n_bytes + f.files[1].file.n_bytes > 0) {
        fl_err why = *err;
        fl_fail(err, st, "%s; what came so far is kept beside %s, and the same command goes on from there", why.text, out);
    }
    fetch_file_close(&f.files[0].file);
    fetch_file_close(&f.files[1].file);
    return st;
}

/* What cannot be written is said before anything is fetched. */
static fl_status check_places(const char *out, const char *errors, fl_err *err)
{
    char absolute[RUN_FILES_PATH_MAX];
    fl_status st = run_files_absolute(out, FETCH_FILE_SUFFIX_BYTES, absolute, err);
    if (st == FL_OK) st = run_files_absolute(errors, FETCH_FILE_SUFFIX_BYTES, absolute, err);
    if (st == FL_NOT_FOUND) err->code = st = FL_IO;      /* the sentence stays; what failed is the machine, as `run` says it */
    return st;
}

int cmd_fetch(int argc, char **argv)
{
    const char *out = NULL, *errors = NULL, *operands[FLAGS_OPERANDS_MAX];
    bool force = false;
    job_place place = { 0 };
    const flag flags[] = {
        JOB_PLACE_FLAGS(place),
        { "--out", FLAG_TEXT, "OUT.jsonl", "where results go (default JOB.out.jsonl)", &out, 0, 0, false },
        { "--errors", FLAG_TEXT, "ERR.jsonl", "where failed rows go (default OUT.errors.jsonl)", &errors, 0, 0, false },
        { "--force", FLAG_SWITCH, "", "overwrite files that exist", &force, 0, 0, false },
    };
    const flag_command command = {
        NAME, "[JOB]", "Download the output and error files of a job. A running job is followed: its files grow in input order as OUT.part-JOB beside OUT, as far as\n"
        "its first rows are finished, and get their names at the job's end. Broken off (Ctrl-C, or the coordinator was restarted), the same command goes on\n"
        "where it was. Ends with 1 when rows failed, 4 when stopped before the end.",
        "tokenfleet fetch job-0123456789abcdef --to tcp://127.0.0.1:7070 --out results.jsonl", 0, 1
    };
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    fl_err err = { 0 };
    uint64_t failed = 0;
    char out_path[RUN_FILES_PATH_MAX], errors_path[RUN_FILES_PATH_MAX];
    fl_status st = job_source_open(&source, place.to, place.spool, false, &err);
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) {
        int n_out = snprintf(out_path, sizeof out_path, "%s%s", out ? out : source.job, out ? "" : ".out.jsonl");
        int n_errors = snprintf(errors_path, sizeof errors_path, "%s%s", errors ? errors : out_path, errors ? "" : ".errors.jsonl");
        st = n_out < RUN_FILES_PATH_MAX && n_errors < RUN_FILES_PATH_MAX ? FL_OK : fl_fail(&err, FL_INVALID, "the path of an output file is too long");
    }
    if (st == FL_OK && strcmp(out_path, errors_path) == 0) st = fl_fail(&err, FL_INVALID, "the output file and the error file are both %s", out_path);
    if (st == FL_OK) st = check_places(out_path, errors_path, &err);
    if (st == FL_OK) st = fetch(&source, out_path, errors_path, force, &failed, &err);
    json_t *answer = st == FL_OK && place.as_json ? json_pack("{s:s, s:s, s:I}", "out", out_path, "errors", errors_path, "failed", (json_int_t)failed) : NULL;
    if (answer) job_source_print(&source, answer);
    json_decref(answer);
    job_source_close(&source);
    if (st != FL_OK) return flags_end(command_ended(st), NAME, "%s", err.text);
    fprintf(stderr, "results in %s, failed rows (%llu) in %s\n", out_path, (unsigned long long)failed, errors_path);
    return failed ? ENDED_ROWS_FAILED : ENDED_WELL;
}
