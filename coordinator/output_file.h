/* output_file.h - OUT and ERR of a job as files: they grow under a temporary name in the same folder, are synced and renamed.
 * New      a file that is to be new replaces none: what has come to stand at its name meanwhile (another `run` with the same --out) stays,
 *          and is a conflict unless it has the same bytes.
 * Both are always written; ERR is renamed before OUT, so that an OUT that stands has its ERR.
 * Threads  an output_files belongs to one thread. Others may read what was written through the temporary name. */
#ifndef COORDINATOR_OUTPUT_FILE_H
#define COORDINATOR_OUTPUT_FILE_H

#include "coordinator/output_rows.h"

typedef struct output_files output_files;

typedef struct { const char *path; bool is_new; } output_place;

/* Begin both. The temporary name (output_file_temporary) is the job's own, so what a killed process left behind is written over and does not stay.
 * FL_CONFLICT: one of them exists and is no regular file. Paths are copied. */
fl_status output_files_open(output_files **out, output_place out_at, output_place errors_at, const char *job_name, fl_err *err);

/* Add lines. They may wait in a buffer until output_files_flush. FL_DISK_FULL: close and begin anew when there is room. */
fl_status output_files_add(output_files *f, const output_batch *batch, fl_err *err);
fl_status output_files_flush(output_files *f, uint64_t n_bytes[2], fl_err *err);     /* n_bytes: what OUT and ERR have now */

/* Whole: sync them and give them their names. FL_CONFLICT: one that is to be new is there already; both stay as they were. */
fl_status output_files_name(output_files *f, fl_err *err);
void      output_files_close(output_files *f);           /* accepts NULL; nothing is left of what was not named */

/* The sentence about a file that is not this job's and would be overwritten; returns `code`. */
fl_status output_file_not_ours(const char *path, fl_status code, fl_err *err);

/* The name a file has while it grows; malloc'ed, NULL without memory. */
char *output_file_temporary(const char *path, const char *job_name);

#endif
