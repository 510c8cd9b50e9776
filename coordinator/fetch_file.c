#include "coordinator/fetch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/spool.h"

static fl_status open_part(fetch_file *f, fl_err *err)
{
    struct stat opened, named;
    f->fd = open(f->part, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (f->fd < 0) return fl_fail_errno(err, errno, "cannot write %s", f->part);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return fl_fail(err, FL_CONFLICT, "another fetch writes %s right now; wait for it, or choose another --out", f->part);
    if (fstat(f->fd, &opened) != 0) return fl_fail_errno(err, errno, "cannot read %s", f->part);
    if (stat(f->part, &named) != 0 || named.st_ino != opened.st_ino || named.st_dev != opened.st_dev) {
        return fl_fail(err, FL_CONFLICT, "another fetch has just written %s", f->path);
    }
    if (!S_ISREG(opened.st_mode)) return fl_fail(err, FL_INVALID, "%s is not a regular file; remove it, or choose another --out", f->part);
    f->n_bytes = (uint64_t)opened.st_size;
    return FL_OK;
}

fl_status fetch_file_open(fetch_file *f, const char *path, const char *job, bool force, fl_err *err)
{
    struct stat at;
    *f = (fetch_file){ .fd = -1, .path = path };
    if (stat(path, &at) == 0) {
        if (!S_ISREG(at.st_mode)) return fl_fail(err, FL_INVALID, "%s exists and is not a regular file; choose another --out", path);
        if (!force) return fl_fail(err, FL_INVALID, "%s exists; choose another --out, or pass --force to overwrite it", path);
    }
    if (asprintf(&f->part, "%s.part-%s", path, job) < 0) {
        f->part = NULL;
        return fl_fail(err, FL_FULL, "no memory to write %s", path);
    }
    fl_status st = open_part(f, err);
    if (st != FL_OK && f->fd >= 0) {                     /* not ours: it stays as it is */
        close(f->fd);
        f->fd = -1;
    }
    return st;
}

void fetch_file_close(fetch_file *f)
{
    if (f->fd >= 0) {
        if (f->n_bytes == 0) unlink(f->part);
        close(f->fd);
    }
    free(f->part);
    *f = (fetch_file){ .fd = -1 };
}

fl_status fetch_file_add(fetch_file *f, const void *data, size_t n_bytes, fl_err *err)
{
    for (size_t at = 0; at < n_bytes; ) {
        ssize_t n = write(f->fd, (const char *)data + at, n_bytes - at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "cannot write %s", f->part);
        at += (size_t)n;
        f->n_bytes += (uint64_t)n;
    }
    return FL_OK;
}

fl_status fetch_file_clear(fetch_file *f, fl_err *err)
{
    if (ftruncate(f->fd, 0) != 0) return fl_fail_errno(err, errno, "cannot write %s", f->part);
    f->n_bytes = 0;
    return FL_OK;
}

fl_status fetch_file_ends_with(const fetch_file *f, const void *data, size_t n_bytes, bool *same, fl_err *err)
{
    char piece[16384];
    *same = n_bytes <= f->n_bytes;
    for (size_t at = 0; *same && at < n_bytes; ) {
        size_t want = n_bytes - at < sizeof piece ? n_bytes - at : sizeof piece;
        ssize_t n = pread(f->fd, piece, want, (off_t)(f->n_bytes - n_bytes + at));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fl_fail_errno(err, n < 0 ? errno : EIO, "cannot read %s", f->part);
        *same = memcmp(piece, (const char *)data + at, (size_t)n) == 0;
        at += (size_t)n;
    }
    return FL_OK;
}

fl_status fetch_file_name(fetch_file *f, fl_err *err)
{
    const char *slash = strrchr(f->path, '/');
    char *dir = slash ? strndup(f->path, slash == f->path ? 1 : (size_t)(slash - f->path)) : strdup(".");
    fl_status st = dir ? FL_OK : fl_fail(err, FL_FULL, "no memory for a path");
    if (st == FL_OK && fsync(f->fd) != 0) st = fl_fail_errno(err, errno, "cannot write %s", f->part);
    if (st == FL_OK && rename(f->part, f->path) != 0) st = fl_fail_errno(err, errno, "cannot name %s", f->path);
    if (st == FL_OK) {
        close(f->fd);
        f->fd = -1;
        st = spool_sync_dir(dir, err);
    }
    free(dir);
    return st;
}
