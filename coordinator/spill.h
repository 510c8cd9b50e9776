/* spill.h - a file without a name, for what an ingest must keep but not in memory: it lies in the job's folder and goes with its descriptor, also after a crash.
 * Threads  plain functions. */
#ifndef COORDINATOR_SPILL_H
#define COORDINATOR_SPILL_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

/* `dir` is for sentences, too. The caller closes *fd. */
fl_status spill_create(int *fd, const char *dir, fl_err *err);
fl_status spill_write(int fd, const char *dir, const void *data, size_t n_bytes, uint64_t offset, fl_err *err);
fl_status spill_read(int fd, const char *dir, void *data, size_t n_bytes, uint64_t offset, fl_err *err);     /* all of them, else it fails */

#endif
