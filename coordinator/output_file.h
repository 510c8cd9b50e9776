/* output_file.h - OUT and ERR of a closed job, written from its folder alone: under a temporary name in the same folder, synced, renamed.
 * Both are always written; ERR is renamed before OUT, so that an OUT that stands has its ERR.
 * Threads  plain functions on files; any thread, beside an open ledger of the same (closed) job. */
#ifndef COORDINATOR_OUTPUT_FILE_H
#define COORDINATOR_OUTPUT_FILE_H

#include "coordinator/output_rows.h"

/* FL_DISK_FULL: nothing is left, try again when there is room. FL_CONFLICT: `out` or `errors` exists and is no regular file. */
fl_status output_file_write(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, job_counts *counts, fl_err *err);

#endif
