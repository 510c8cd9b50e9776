#include "coordinator/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

fl_status spill_create(int *fd, const char *dir, fl_err *err)
{
    char *path;
    if (asprintf(&path, "%s/spill.XXXXXX", dir) < 0) return fl_fail(err, FL_FULL, "no memory for the path of a temporary file");
    fl_status st = FL_OK;
    int made = mkostemp(path, O_CLOEXEC);
    if (made < 0) st = fl_fail_errno(err, errno, "ingest: create a temporary file in %s", dir);
    else if (unlink(path) != 0) st = fl_fail_errno(err, errno, "ingest: remove the name of %s", path);
    if (st == FL_OK) *fd = made;
    else if (made >= 0) close(made);
    free(path);
    return st;
}

fl_status spill_write(int fd, const char *dir, const void *data, size_t n_bytes, uint64_t offset, fl_err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "ingest: write a temporary file in %s", dir);
        done += (size_t)n;
    }
    return FL_OK;
}

fl_status spill_read(int fd, const char *dir, void *data, size_t n_bytes, uint64_t offset, fl_err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = pread(fd, (char *)data + done, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fl_fail_errno(err, n < 0 ? errno : EIO, "ingest: read a temporary file in %s back", dir);
        done += (size_t)n;
    }
    return FL_OK;
}
