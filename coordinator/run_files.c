#include "coordinator/run_files.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <jansson.h>
#include "coordinator/job_store.h"
#include "coordinator/output_file.h"
#include "proto/detok.h"

#define TEMPORARY_BYTES 25                               /* of ".tmp-job-0123456789abcdef" behind the name while a file is written */

fl_status run_files_absolute(const char *path, size_t suffix_bytes, char out[RUN_FILES_PATH_MAX], fl_err *err)
{
    char dir[PATH_MAX], real[PATH_MAX];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!*name || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return fl_fail(err, FL_INVALID, "%s is a folder, not a file to write", path);
    if (strlen(name) + suffix_bytes > NAME_MAX) return fl_fail(err, FL_INVALID, "the file name %.40s... has %zu bytes, and at most %zu leave room for its temporary name; choose a shorter one", name, strlen(name), NAME_MAX - suffix_bytes);
    if (strlen(path) >= sizeof dir) return fl_fail(err, FL_INVALID, "a path is longer than %d bytes", PATH_MAX - 1);
    snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash == path ? 1 : slash - path) : 1, slash ? path : ".");
    if (!realpath(dir, real)) {
        return errno == ENOENT ? fl_fail(err, FL_NOT_FOUND, "the folder of %s does not exist; make it first", path) : fl_fail_errno(err, errno, "the folder of %s cannot be used", path);
    }
    if (snprintf(out, RUN_FILES_PATH_MAX, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name) >= RUN_FILES_PATH_MAX) return fl_fail(err, FL_INVALID, "the path of %s is too long", path);
    return access(real, W_OK | X_OK) == 0 ? FL_OK : fl_fail_errno(err, errno, "nothing can be written into %s", real);
}

static bool is_text(const char *text)
{
    return fl_utf8_valid((const uint8_t *)text, strlen(text));
}

fl_status run_files_check_name(const char *job, fl_err *err)
{
    const char *slash = strrchr(job, '/');
    return is_text(slash ? slash + 1 : job) ? FL_OK : fl_fail(err, FL_INVALID, "the name of the job file is no text in UTF-8; rename the file");
}

static fl_status check_job(const char *job, fl_err *err)
{
    struct stat at;
    if (strcmp(job, "-") == 0) return FL_OK;
    if (stat(job, &at) != 0) return errno == ENOENT ? fl_fail(err, FL_NOT_FOUND, "%s is not there", job) : fl_fail_errno(err, errno, "cannot read %s", job);
    if (S_ISDIR(at.st_mode)) return fl_fail(err, FL_INVALID, "%s is a directory; give a JSONL file", job);
    if (access(job, R_OK) != 0) return fl_fail_errno(err, errno, "cannot read %s", job);
    return FL_OK;
}

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static fl_status check_output(run_files *f, const char *path, const char *own, bool is_written, bool force, bool *is_new, fl_err *err)
{
    struct stat at;
    if (is_same_file(path, f->job)) return fl_fail(err, FL_INVALID, "%s is the job itself and would be overwritten; choose another output file", path);
    bool is_there = stat(path, &at) == 0;
    *is_new = !force && !(is_there && is_written);
    if (!is_there) return FL_OK;
    if (!S_ISREG(at.st_mode)) return fl_fail(err, FL_INVALID, "%s exists and is not a regular file; choose another output file", path);
    if (force) return FL_OK;
    if (!is_written && !f->foreign) f->foreign = path;
    if (strcmp(path, own) == 0) return FL_OK;
    return output_file_not_ours(path, FL_INVALID, err);
}

fl_status run_files_resolve(run_files *f, const char *job, const char *out, const char *errors, const char *spool_dir, bool force, fl_err *err)
{
    char path[RUN_FILES_PATH_MAX];
    run_memory own = { 0 };
    fl_err ignored;
    fl_status st = check_job(job, err);
    if (st == FL_OK) st = run_files_check_name(job, err);
    if (st != FL_OK) return st;
    f->job = job;
    if (!out && strcmp(job, "-") == 0) return fl_fail(err, FL_INVALID, "a job from standard input needs --out OUT.jsonl");
    snprintf(path, sizeof path, "%s%s", out ? out : job, out ? "" : ".out.jsonl");
    if ((st = run_files_absolute(path, TEMPORARY_BYTES, f->out, err)) != FL_OK) return st;
    if (snprintf(path, sizeof path, "%s%s", errors ? errors : f->out, errors ? "" : ".errors.jsonl") >= (int)sizeof path) return fl_fail(err, FL_INVALID, "the path of the error file is too long");
    if ((st = run_files_absolute(path, TEMPORARY_BYTES, f->errors, err)) != FL_OK) return st;
    if (snprintf(path, sizeof path, "%s%s", spool_dir ? spool_dir : f->out, spool_dir ? "" : ".spool") >= (int)sizeof path) return fl_fail(err, FL_INVALID, "the path of the spool is too long");
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    if ((st = run_files_absolute(path, TEMPORARY_BYTES, f->spool, err)) != FL_OK) return st;
    if (!is_text(f->out) || !is_text(f->errors)) return fl_fail(err, FL_INVALID, "the path of an output file is no text in UTF-8; choose another --out, or rename its folder");
    if (strcmp(f->out, f->errors) == 0) return fl_fail(err, FL_INVALID, "the output file and the error file are both %s", f->out);
    if (strcmp(f->out, f->spool) == 0 || strcmp(f->errors, f->spool) == 0) return fl_fail(err, FL_INVALID, "the spool and an output file are both %s", f->spool);
    st = run_files_recall(f->spool, &own, &ignored);
    if (st != FL_OK && st != FL_NOT_FOUND) return fl_fail(err, st, "%s", ignored.text);
    if ((st = check_output(f, f->out, own.out, own.is_written, force, &f->is_out_new, err)) != FL_OK) return st;
    return check_output(f, f->errors, own.errors, own.is_written, force, &f->is_errors_new, err);
}

fl_status run_files_remember(const char *spool_dir, const run_memory *m, fl_err *err)
{
    char path[RUN_FILES_PATH_MAX + 16];
    run_memory own;
    fl_err ignored;
    if (run_files_recall(spool_dir, &own, &ignored) == FL_OK && strcmp(own.out, m->out) == 0 && strcmp(own.errors, m->errors) == 0 && (own.is_written || !m->is_written)) return FL_OK;
    json_t *json = json_pack("{s:s, s:s, s:b}", "out", m->out, "errors", m->errors, "written", (int)m->is_written);
    char *text = json ? json_dumps(json, 0) : NULL;
    fl_status st = text ? FL_OK : fl_fail(err, FL_INVALID, "the path of an output file is no text in UTF-8");
    snprintf(path, sizeof path, "%s/%s", spool_dir, RUN_FILES_MEMORY);
    if (st == FL_OK) st = job_store_write_file(path, text, strlen(text), err);
    free(text);
    json_decref(json);
    return st;
}

void run_files_forget(const run_files *f)
{
    char path[RUN_FILES_PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/%s", f->spool, RUN_FILES_MEMORY);
    unlink(path);
}

fl_status run_files_recall(const char *spool_dir, run_memory *m, fl_err *err)
{
    char path[RUN_FILES_PATH_MAX + 16];
    json_error_t where;
    const char *out = NULL, *errors = NULL;
    int is_written = 1;                                  /* spools of before do not say it */
    snprintf(path, sizeof path, "%s/%s", spool_dir, RUN_FILES_MEMORY);
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR)) return FL_NOT_FOUND;
    json_t *json = json_load_file(path, 0, &where);
    bool good = json && json_unpack(json, "{s:s, s:s, s?b}", "out", &out, "errors", &errors, "written", &is_written) == 0 && strlen(out) < RUN_FILES_PATH_MAX && strlen(errors) < RUN_FILES_PATH_MAX;
    if (good) {
        snprintf(m->out, sizeof m->out, "%s", out);
        snprintf(m->errors, sizeof m->errors, "%s", errors);
        m->is_written = is_written;
    }
    json_decref(json);
    return good ? FL_OK : fl_fail(err, FL_CORRUPT, "%s is damaged; remove it if the output files may be overwritten", path);
}
