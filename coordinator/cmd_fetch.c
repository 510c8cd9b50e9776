/* cmd_fetch.c - `tokenfleet fetch`: the output and error files of a finished job. */
#include "coordinator/commands.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/job_source.h"
#include "coordinator/service.h"

#define NAME "fetch"

typedef struct { int fd; char *temporary; const char *path; bool exists; } target;       /* temporary: owned */

static fl_status open_target(target *t, const char *path, bool force, fl_err *err)
{
    struct stat at;
    *t = (target){ .fd = -1, .path = path };
    if (stat(path, &at) == 0) {
        if (!S_ISREG(at.st_mode)) return fl_fail(err, FL_INVALID, "%s exists and is not a regular file; choose another --out", path);
        if (!force) return fl_fail(err, FL_INVALID, "%s exists; choose another --out, or pass --force to overwrite it", path);
    }
    if (asprintf(&t->temporary, "%s.tmp-%ld", path, (long)getpid()) < 0) return fl_fail(err, FL_FULL, "no memory to write %s", path);
    t->fd = open(t->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (t->fd < 0) return fl_fail_errno(err, errno, "cannot write %s", t->temporary);
    t->exists = true;
    return FL_OK;
}

static fl_status write_target(target *t, const uint8_t *data, size_t n_bytes, fl_err *err)
{
    if (command_signals()) return fl_fail(err, FL_AGAIN, "stopped before %s was whole; fetch again", t->path);
    for (size_t at = 0; at < n_bytes; ) {
        ssize_t n = write(t->fd, data + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot write %s", t->temporary);
        at += (size_t)n;
    }
    return FL_OK;
}

static fl_status name_target(target *t, fl_err *err)
{
    const char *slash = strrchr(t->path, '/');
    char *dir = slash ? strndup(t->path, slash == t->path ? 1 : (size_t)(slash - t->path)) : strdup(".");
    fl_status st = dir ? FL_OK : fl_fail(err, FL_FULL, "no memory for a path");
    if (st == FL_OK && fsync(t->fd) != 0) st = fl_fail_errno(err, errno, "cannot write %s", t->temporary);
    if (st == FL_OK && rename(t->temporary, t->path) != 0) st = fl_fail_errno(err, errno, "cannot name %s", t->path);
    if (st == FL_OK) t->exists = false;
    if (st == FL_OK) st = spool_sync_dir(dir, err);
    free(dir);
    return st;
}

static void close_target(target *t)
{
    if (t->fd >= 0) close(t->fd);
    if (t->exists) unlink(t->temporary);
    free(t->temporary);
}

static fl_status download(job_source *source, const char *file, target *t, uint64_t *failed, fl_err *err)
{
    uint64_t offset = 0, size = 0;
    do {
        json_t *reply = NULL;
        uint8_t *part = NULL;
        size_t n_bytes = 0;
        json_t *args = json_pack("{s:s, s:s, s:I}", "job", source->job, "file", file, "offset", (json_int_t)offset);
        fl_status st = client_call(source->client, "fetch", args, NULL, JOB_SOURCE_CALL_MS, &reply, &part, &n_bytes, err);
        if (st == FL_OK) {
            size = (uint64_t)json_integer_value(json_object_get(reply, "size"));
            *failed = (uint64_t)json_integer_value(json_object_get(reply, "failed"));
            st = n_bytes == 0 && offset < size ? fl_fail(err, FL_CORRUPT, "the coordinator sends an empty piece") : write_target(t, part, n_bytes, err);
        }
        free(part);
        json_decref(reply);
        if (st != FL_OK) return st;
        offset += n_bytes;
    } while (offset < size);
    return FL_OK;
}

static fl_status copy(const job_source *source, bool errors, target *t, fl_err *err)
{
    fl_status st = FL_OK;
    char *path = job_source_output(source, errors);
    uint8_t *piece = malloc(SERVICE_PIECE_BYTES);
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (!path || !piece) { st = fl_fail(err, FL_FULL, "no memory to copy a file"); goto done; }
    if (fd < 0) { st = fl_fail_errno(err, errno, "cannot read %s", path); goto done; }
    for (ssize_t n = 1; st == FL_OK && n != 0; ) {
        n = read(fd, piece, SERVICE_PIECE_BYTES);
        if (n < 0 && errno == EINTR) continue;
        st = n < 0 ? fl_fail_errno(err, errno, "cannot read %s", path) : write_target(t, piece, (size_t)n, err);
    }
done:
    if (fd >= 0) close(fd);
    free(piece);
    free(path);
    return st;
}

/* A spool that nobody holds: the job must be closed and its files written. */
static fl_status check_finished(job_source *source, uint64_t *failed, fl_err *err)
{
    json_t *reply = NULL;
    fl_status st = job_source_status(source, &reply, err);
    if (st != FL_OK) return st;
    const json_t *job = json_object_get(reply, "job");
    *failed = (uint64_t)json_integer_value(json_object_get(json_object_get(job, "rows"), "failed"));
    if (!json_is_true(json_object_get(job, "outputs"))) st = fl_fail(err, FL_AGAIN, "%s is not finished yet, and no coordinator works on it", source->job);
    json_decref(reply);
    return st;
}

static fl_status fetch(job_source *source, const char *out, const char *errors, bool force, uint64_t *failed, fl_err *err)
{
    target targets[2] = { { .fd = -1 }, { .fd = -1 } };
    fl_status st = source->client ? FL_OK : check_finished(source, failed, err);
    command_catch_signals();                             /* Ctrl-C leaves no half file behind */
    if (st == FL_OK) st = open_target(&targets[0], out, force, err);
    if (st == FL_OK) st = open_target(&targets[1], errors, force, err);
    for (int i = 0; st == FL_OK && i < 2; i++) {
        st = source->client ? download(source, i ? "errors" : "out", &targets[i], failed, err) : copy(source, i == 1, &targets[i], err);
    }
    for (int i = 1; st == FL_OK && i >= 0; i--) st = name_target(&targets[i], err);
    close_target(&targets[0]);
    close_target(&targets[1]);
    return st;
}

int cmd_fetch(int argc, char **argv)
{
    const char *to = NULL, *spool_given = NULL, *out = NULL, *errors = NULL, *operands[FLAGS_OPERANDS_MAX];
    bool force = false;
    const flag flags[] = {
        { "--to", FLAG_TEXT, "ENDPOINT", "the coordinator, as in tcp://127.0.0.1:7070", &to, 0, 0, false },
        { "--spool", FLAG_TEXT, "DIR", "or a spool on this machine, as in OUT.jsonl.spool", &spool_given, 0, 0, false },
        { "--out", FLAG_TEXT, "OUT.jsonl", "where results go (default JOB.out.jsonl)", &out, 0, 0, false },
        { "--errors", FLAG_TEXT, "ERR.jsonl", "where failed rows go (default OUT.errors.jsonl)", &errors, 0, 0, false },
        { "--force", FLAG_SWITCH, "", "overwrite files that exist", &force, 0, 0, false },
    };
    const flag_command command = {
        NAME, "[JOB]", "Download the output and error files of a finished job. Ends with 1 when rows failed, 4 when the job is not finished.",
        "tokenfleet fetch job-0123456789abcdef --to tcp://127.0.0.1:7070 --out results.jsonl", 0, 1
    };
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    fl_err err = { 0 };
    uint64_t failed = 0;
    char out_path[RUN_FILES_PATH_MAX], errors_path[RUN_FILES_PATH_MAX];
    fl_status st = job_source_open(&source, to, spool_given, false, &err);
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) {
        int n_out = snprintf(out_path, sizeof out_path, "%s%s", out ? out : source.job, out ? "" : ".out.jsonl");
        int n_errors = snprintf(errors_path, sizeof errors_path, "%s%s", errors ? errors : out_path, errors ? "" : ".errors.jsonl");
        st = n_out < RUN_FILES_PATH_MAX && n_errors < RUN_FILES_PATH_MAX ? FL_OK : fl_fail(&err, FL_INVALID, "the path of an output file is too long");
    }
    if (st == FL_OK && strcmp(out_path, errors_path) == 0) st = fl_fail(&err, FL_INVALID, "the output file and the error file are both %s", out_path);
    if (st == FL_OK) st = fetch(&source, out_path, errors_path, force, &failed, &err);
    job_source_close(&source);
    if (st != FL_OK) return flags_end(command_ended(st), NAME, "%s", err.text);
    fprintf(stderr, "results in %s, failed rows (%llu) in %s\n", out_path, (unsigned long long)failed, errors_path);
    return failed ? ENDED_ROWS_FAILED : ENDED_WELL;
}
