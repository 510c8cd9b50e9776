#include "coordinator/output_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BUFFER_BYTES (256 * 1024)

/* One of the two files while it has its temporary name. */
typedef struct {
    const char *path;                    /* borrowed */
    char *temporary, *dir;               /* owned */
    int fd;
    uint8_t *buffer; size_t used;        /* owned */
    bool exists;                         /* under the temporary name */
} sink;

/* The temporary name is the job's own, so what a killed process left behind is written over by the next one and does not stay. */
static fl_status open_sink(sink *s, const char *path, const char *job_name, fl_err *err)
{
    struct stat at;
    *s = (sink){ .path = path, .fd = -1 };
    if (stat(path, &at) == 0 && !S_ISREG(at.st_mode)) return fl_fail(err, FL_CONFLICT, "%s is not a regular file; choose another place", path);
    const char *slash = strrchr(path, '/');
    s->dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    s->buffer = malloc(BUFFER_BYTES);
    if (!s->dir || !s->buffer || asprintf(&s->temporary, "%s.tmp-%s", path, job_name) < 0) {
        return fl_fail(err, FL_FULL, "no memory to write %s", path);
    }
    s->fd = open(s->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s->fd < 0) return fl_fail_errno(err, errno, "cannot write %s", s->temporary);
    s->exists = true;
    return FL_OK;
}

static fl_status flush_sink(sink *s, fl_err *err)
{
    for (size_t at = 0; at < s->used; ) {
        ssize_t n = write(s->fd, s->buffer + at, s->used - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot write %s", s->temporary);
        at += (size_t)n;
    }
    s->used = 0;
    return FL_OK;
}

static fl_status add_to_sink(sink *s, const char *line, size_t n_bytes, fl_err *err)
{
    while (n_bytes) {
        size_t take = BUFFER_BYTES - s->used < n_bytes ? BUFFER_BYTES - s->used : n_bytes;
        memcpy(s->buffer + s->used, line, take);
        s->used += take;
        line += take;
        n_bytes -= take;
        fl_status st = s->used == BUFFER_BYTES ? flush_sink(s, err) : FL_OK;
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static fl_status sync_sink(sink *s, fl_err *err)
{
    fl_status st = flush_sink(s, err);
    if (st == FL_OK && fsync(s->fd) != 0) st = fl_fail_errno(err, errno, "cannot write %s", s->temporary);
    if (st == FL_OK) {
        int fd = s->fd;
        s->fd = -1;
        if (close(fd) != 0) st = fl_fail_errno(err, errno, "cannot write %s", s->temporary);
    }
    return st;
}

static fl_status name_sink(sink *s, fl_err *err)
{
    if (rename(s->temporary, s->path) != 0) return fl_fail_errno(err, errno, "cannot name %s", s->path);
    s->exists = false;
    return spool_sync_dir(s->dir, err);
}

static void close_sink(sink *s)
{
    if (s->fd >= 0) close(s->fd);
    if (s->exists) unlink(s->temporary);
    free(s->temporary);
    free(s->dir);
    free(s->buffer);
}

fl_status output_file_write(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, job_counts *counts, fl_err *err)
{
    output_rows *rows_out = NULL;
    sink files[2] = { { .fd = -1 }, { .fd = -1 } };      /* OUT, ERR */
    const char *slash = strrchr(job_dir, '/'), *job_name = slash ? slash + 1 : job_dir;
    fl_status st = output_rows_open(&rows_out, job_dir, ledger_dir, err);
    if (st == FL_OK) st = open_sink(&files[0], out, job_name, err);
    if (st == FL_OK) st = open_sink(&files[1], errors, job_name, err);
    while (st == FL_OK) {
        output_row row;
        st = output_rows_next(rows_out, &row, err);
        if (st == FL_OK) st = add_to_sink(&files[row.is_error], row.line, row.n_bytes, err);
    }
    if (st == FL_CLOSED) st = FL_OK;
    if (st == FL_OK) st = sync_sink(&files[1], err);
    if (st == FL_OK) st = sync_sink(&files[0], err);
    if (st == FL_OK) st = name_sink(&files[1], err);
    if (st == FL_OK) st = name_sink(&files[0], err);
    if (st == FL_OK) *counts = *output_rows_counts(rows_out);
    close_sink(&files[0]);
    close_sink(&files[1]);
    output_rows_close(rows_out);
    return st;
}
