#include "engine/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

fl_status mapped_file_open(mapped_file *file, const char *path, const char *format, size_t least_bytes, fl_err *err)
{
    fl_status status = FL_OK;
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) { status = fl_fail(err, FL_NOT_FOUND, "there is no %s", path); goto done; }
    if (fd < 0) { status = fl_fail_errno(err, errno, "cannot open %s", path); goto done; }
    if (fstat(fd, &info) != 0) { status = fl_fail_errno(err, errno, "cannot read the size of %s", path); goto done; }
    if (!S_ISREG(info.st_mode)) { status = fl_fail(err, FL_INVALID, "%s is not a file", path); goto done; }
    if ((uint64_t)info.st_size < least_bytes) { status = fl_fail(err, FL_CORRUPT, "%s: %lld bytes are no %s file; copy it again", file->name, (long long)info.st_size, format); goto done; }
    void *bytes = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED) { status = fl_fail_errno(err, errno, "cannot map %s", path); goto done; }
    file->bytes = bytes;
    file->n_bytes = (size_t)info.st_size;
    file->is_mapped = true;
done:
    if (fd >= 0) close(fd);
    return status;
}

void mapped_file_close(mapped_file *file)
{
    if (file->is_mapped) munmap((void *)file->bytes, file->n_bytes);
    free(file->name);
    *file = (mapped_file){ 0 };
}
