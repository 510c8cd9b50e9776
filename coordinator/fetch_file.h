/* fetch_file.h - a file that is downloaded: it grows as PATH.part-JOB beside PATH, is kept when the download breaks off, and gets its name when it is whole.
 * Threads  belongs to its caller's thread. Two fetches of one job to one place exclude each other. */
#ifndef COORDINATOR_FETCH_FILE_H
#define COORDINATOR_FETCH_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FETCH_FILE_SUFFIX_BYTES 26       /* of ".part-job-0123456789abcdef" */

typedef struct {
    const char *path;                    /* borrowed */
    char *part;                          /* owned; the name while it grows */
    int fd;
    uint64_t n_bytes;                    /* what is there */
} fetch_file;                            /* fd -1: not open */

/* Open what an earlier fetch left, or begin. FL_INVALID: PATH exists (force: allowed) or is no regular file. FL_CONFLICT: another fetch writes it. */
fl_status fetch_file_open(fetch_file *f, const char *path, const char *job, bool force, fl_err *err);
void      fetch_file_close(fetch_file *f);               /* keeps what is there, unless it is nothing; accepts one that is not open */

fl_status fetch_file_add(fetch_file *f, const void *data, size_t n_bytes, fl_err *err);
fl_status fetch_file_clear(fetch_file *f, fl_err *err);

/* Are the last n_bytes of it these? */
fl_status fetch_file_ends_with(const fetch_file *f, const void *data, size_t n_bytes, bool *same, fl_err *err);

fl_status fetch_file_name(fetch_file *f, fl_err *err);   /* whole: sync it and give it its name */

#endif
