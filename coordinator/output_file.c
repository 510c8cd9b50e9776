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
    char *path, *temporary, *dir;        /* owned */
    int fd;
    uint64_t n_bytes;                    /* with what is in the buffer */
    uint8_t *buffer; size_t used;        /* owned */
    bool exists;                         /* under the temporary name */
    bool is_new, is_named;               /* is_new: it replaces nothing */
} sink;

struct output_files { sink sinks[2]; };  /* OUT, ERR */

char *output_file_temporary(const char *path, const char *job_name)
{
    char *temporary = NULL;
    return asprintf(&temporary, "%s.tmp-%s", path, job_name) < 0 ? NULL : temporary;
}

fl_status output_file_not_ours(const char *path, fl_status code, fl_err *err)
{
    return fl_fail(err, code, "%s exists and was not written by this job's spool; choose another output file, or pass --force to overwrite it", path);
}

static fl_status open_sink(sink *s, output_place place, const char *job_name, fl_err *err)
{
    struct stat at;
    const char *path = place.path;
    if (stat(path, &at) == 0 && !S_ISREG(at.st_mode)) return fl_fail(err, FL_CONFLICT, "%s is not a regular file; choose another place", path);
    const char *slash = strrchr(path, '/');
    s->is_new = place.is_new;
    s->path = strdup(path);
    s->temporary = output_file_temporary(path, job_name);
    s->dir = slash ? strndup(path, slash == path ? 1 : (size_t)(slash - path)) : strdup(".");
    s->buffer = malloc(BUFFER_BYTES);
    if (!s->path || !s->temporary || !s->dir || !s->buffer) return fl_fail(err, FL_FULL, "no memory to write %s", path);
    s->fd = open(s->temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s->fd < 0) return fl_fail_errno(err, errno, "cannot write %s", s->temporary);
    s->exists = true;
    return FL_OK;
}

static fl_status write_sink(sink *s, const void *data, size_t n_bytes, fl_err *err)
{
    for (size_t at = 0; at < n_bytes; ) {
        ssize_t n = write(s->fd, (const uint8_t *)data + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot write %s", s->temporary);
        at += (size_t)n;
    }
    return FL_OK;
}

static fl_status flush_sink(sink *s, fl_err *err)
{
    size_t n = s->used;
    s->used = 0;
    return write_sink(s, s->buffer, n, err);
}

/* Only what is small goes through the buffer. */
static fl_status add_to_sink(sink *s, const char *lines, size_t n_bytes, fl_err *err)
{
    fl_status st = s->used + n_bytes > BUFFER_BYTES ? flush_sink(s, err) : FL_OK;
    s->n_bytes += n_bytes;
    if (st != FL_OK) return st;
    if (n_bytes > BUFFER_BYTES / 4) return s->used && (st = flush_sink(s, err)) != FL_OK ? st : write_sink(s, lines, n_bytes, err);
    memcpy(s->buffer + s->used, lines, n_bytes);
    s->used += n_bytes;
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

/* Some file systems cannot rename without replacing: a look before it must do there. */
static int rename_to_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (access(to, F_OK) != 0) return rename(from, to);
    errno = EEXIST;
    return -1;
}

/* The file that stands at the name has the very bytes: this job wrote it before a crash, or nothing is lost with either of them. */
static bool is_there_already(const sink *s)
{
    bool same = false;
    uint8_t *other = malloc(BUFFER_BYTES);
    int a = open(s->temporary, O_RDONLY | O_CLOEXEC), b = open(s->path, O_RDONLY | O_CLOEXEC);
    struct stat x, y;
    if (other && a >= 0 && b >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && S_ISREG(y.st_mode) && x.st_size == y.st_size) {
        ssize_t n = 0;
        for (same = true; same && (n = read(a, s->buffer, BUFFER_BYTES)) > 0; ) same = read(b, other, (size_t)n) == n && memcmp(s->buffer, other, (size_t)n) == 0;
        same = same && n == 0;
    }
    if (a >= 0) close(a);
    if (b >= 0) close(b);
    free(other);
    return same;
}

static fl_status name_sink(sink *s, fl_err *err)
{
    if (s->is_new && access(s->path, F_OK) == 0 && is_there_already(s)) return FL_OK;        /* close_sink removes the other one */
    if ((s->is_new ? rename_to_new : rename)(s->temporary, s->path) != 0) {
        return errno == EEXIST ? output_file_not_ours(s->path, FL_CONFLICT, err) : fl_fail_errno(err, errno, "cannot name %s", s->path);
    }
    s->exists = false;
    s->is_named = true;
    return spool_sync_dir(s->dir, err);
}

/* One of two could not be named: the other one is no more than it was before, so that a next try finds the place as it was. */
static void take_back(sink *s)
{
    if (s->is_new && s->is_named) unlink(s->path);
}

static void close_sink(sink *s)
{
    if (s->fd >= 0) close(s->fd);
    if (s->exists) unlink(s->temporary);
    free(s->path);
    free(s->temporary);
    free(s->dir);
    free(s->buffer);
}

fl_status output_files_open(output_files **out, output_place out_at, output_place errors_at, const char *job_name, fl_err *err)
{
    output_files *f = calloc(1, sizeof *f);
    if (!f) return fl_fail(err, FL_FULL, "no memory to write %s", out_at.path);
    f->sinks[0].fd = f->sinks[1].fd = -1;
    fl_status st = open_sink(&f->sinks[0], out_at, job_name, err);
    if (st == FL_OK) st = open_sink(&f->sinks[1], errors_at, job_name, err);
    if (st == FL_OK) {
        *out = f;
        f = NULL;
    }
    output_files_close(f);
    return st;
}

void output_files_close(output_files *f)
{
    if (!f) return;
    close_sink(&f->sinks[0]);
    close_sink(&f->sinks[1]);
    free(f);
}

fl_status output_files_add(output_files *f, const output_batch *batch, fl_err *err)
{
    fl_status st = FL_OK;
    for (int i = 0; st == FL_OK && i < 2; i++) {
        if (batch->lines[i].n_bytes) st = add_to_sink(&f->sinks[i], batch->lines[i].data, batch->lines[i].n_bytes, err);
    }
    return st;
}

fl_status output_files_flush(output_files *f, uint64_t n_bytes[2], fl_err *err)
{
    fl_status st = FL_OK;
    for (int i = 0; st == FL_OK && i < 2; i++) {
        st = flush_sink(&f->sinks[i], err);
        n_bytes[i] = f->sinks[i].n_bytes;
    }
    return st;
}

fl_status output_files_name(output_files *f, fl_err *err)
{
    fl_status st = sync_sink(&f->sinks[1], err);
    if (st == FL_OK) st = sync_sink(&f->sinks[0], err);
    if (st == FL_OK) st = name_sink(&f->sinks[1], err);
    if (st == FL_OK) st = name_sink(&f->sinks[0], err);
    for (int i = 0; st != FL_OK && i < 2; i++) take_back(&f->sinks[i]);
    return st;
}
