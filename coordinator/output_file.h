/* output_file.h - OUT and ERR of a job as files: they grow under a temporary name in the same folder, are synced and renamed.
 * Both are always written; ERR is renamed before OUT, so that an OUT that stands has its ERR.
 * Threads  an output_files belongs to one thread. Others may read what was written through the temporary name. */
#ifndef COORDINATOR_OUTPUT_FILE_H
#define COORDINATOR_OUTPUT_FILE_H

#include "coordinator/output_rows.h"

typedef struct output_files output_files;

/* Begin both. The temporary name (output_file_temporary) is the job's own, so what a killed process left behind is written over and does not stay.
 * FL_CONFLICT: `out` or `errors` exists and is no regular file. Paths are copied. */
fl_status output_files_open(output_files **out, const char *out_path, const char *errors_path, const char *job_name, fl_err *err);

/* Add lines. They may wait in a buffer until output_files_flush. FL_DISK_FULL: close and begin anew when there is room. */
fl_status output_files_add(output_files *f, const output_batch *batch, fl_err *err);
fl_status output_files_flush(output_files *f, uint64_t n_bytes[2], fl_err *err);     /* n_bytes: what OUT and ERR have now */

fl_status output_files_name(output_files *f, fl_err *err);       /* whole: sync them and give them their names */
void      output_files_close(output_files *f);           /* accepts NULL; nothing is left of what was not named */

/* The name a file has while it grows; malloc'ed, NULL without memory. */
char *output_file_temporary(const char *path, const char *job_name);

/* All of it for a job that is closed, with at most n_threads. FL_AGAIN: it is not closed yet. After any failure nothing is left. */
fl_status output_file_write(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, int n_threads, job_counts *counts, fl_err *err);

#endif
