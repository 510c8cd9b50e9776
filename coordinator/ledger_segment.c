#include "coordinator/ledger_segment.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void ledger_segment_name(uint32_t segment, char out[LEDGER_SEGMENT_NAME_BYTES])
{
    FL_ASSERT(segment >= 1 && segment <= LEDGER_SEGMENTS_MAX);
    snprintf(out, LEDGER_SEGMENT_NAME_BYTES, "%06u.seg", segment);
}

/* The number in "NNNNNN.seg", 0 for any other name. */
static uint32_t parse_name(const char *name)
{
    uint32_t number = 0;
    for (int i = 0; i < 6; i++) {
        if (name[i] < '0' || name[i] > '9') return 0;
        number = number * 10 + (uint32_t)(name[i] - '0');
    }
    return strcmp(name + 6, ".seg") == 0 ? number : 0;
}

fl_status ledger_segments_open(const char *dir, int *dir_fd, uint32_t *n_segments, fl_err *err)
{
    fl_status st = FL_OK;
    uint32_t n = 0, highest = 0;
    DIR *listing = opendir(dir);
    if (!listing && errno == ENOENT) return fl_fail(err, FL_NOT_FOUND, "ledger: there is no folder %s", dir);
    if (!listing) return fl_fail_errno(err, errno, "ledger: open %s", dir);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { st = fl_fail_errno(err, errno, "ledger: open %s", dir); goto done; }
    errno = 0;
    for (struct dirent *entry; (entry = readdir(listing)) != NULL; errno = 0) {
        uint32_t number = parse_name(entry->d_name);
        if (number == 0) continue;
        n++;
        if (number > highest) highest = number;
    }
    if (errno != 0) { st = fl_fail_errno(err, errno, "ledger: list %s", dir); goto done; }
    if (n != highest) {
        char name[LEDGER_SEGMENT_NAME_BYTES];
        for (uint32_t i = 1; i < highest; i++) {
            ledger_segment_name(i, name);
            if (faccessat(fd, name, F_OK, 0) != 0) break;
        }
        st = fl_fail(err, FL_CORRUPT, "ledger: %s/%s is missing: restore it from a backup, or start the job anew with --restart", dir, name);
        goto done;
    }
    *dir_fd = fd;
    *n_segments = n;
    fd = -1;
done:
    if (fd >= 0) close(fd);
    closedir(listing);
    return st;
}

fl_status ledger_segment_read(int dir_fd, const char *dir, uint32_t segment, uint8_t **out, size_t *n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    uint8_t *data = NULL;
    size_t n = 0;
    struct stat info;
    char name[LEDGER_SEGMENT_NAME_BYTES];
    ledger_segment_name(segment, name);
    int fd = openat(dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) { st = fl_fail_errno(err, errno, "ledger: open %s/%s", dir, name); goto done; }
    data = malloc((size_t)info.st_size + 1);
    if (!data) { st = fl_fail(err, FL_FULL, "ledger: no memory for the %lld bytes of %s/%s", (long long)info.st_size, dir, name); goto done; }
    while (n < (size_t)info.st_size) {
        ssize_t got = pread(fd, data + n, (size_t)info.st_size - n, (off_t)n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) { st = fl_fail_errno(err, errno, "ledger: read %s/%s", dir, name); goto done; }
        if (got == 0) break;                             /* cut by its writer in this moment: what is left is what counts */
        n += (size_t)got;
    }
    *out = data;
    *n_bytes = n;
    data = NULL;
done:
    if (fd >= 0) close(fd);
    free(data);
    return st;
}
