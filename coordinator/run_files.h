/* run_files.h - where `run` reads and writes: JOB, OUT, ERR and the spool, with their defaults, and what the spool remembers of them (run.json).
 * Rule     an OUT or ERR that exists is only replaced when this spool has written it, or with --force. A spool that names it as its own and did not come to write it (a killed run) has no right
 *          to what another wrote there meanwhile; one that is new at the start replaces nothing at the end, unless it has the very bytes.
 * Threads  plain functions. */
#ifndef COORDINATOR_RUN_FILES_H
#define COORDINATOR_RUN_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include "proto/status.h"

#define RUN_FILES_MEMORY "run.json"
#define RUN_FILES_PATH_MAX 4096

typedef struct {
    const char *job;                     /* borrowed; "-" = standard input */
    char out[RUN_FILES_PATH_MAX], errors[RUN_FILES_PATH_MAX], spool[RUN_FILES_PATH_MAX];         /* absolute */
    bool is_out_new, is_errors_new;      /* nothing may be overwritten: nothing was there, or what is there may be another's */
    const char *foreign;                 /* out or errors: it is there, and only a job that is closed can have written it; NULL: neither is */
} run_files;

/* Fill in the defaults and check what can be checked before anything is made. FL_INVALID: a usage error. FL_NOT_FOUND, FL_IO: the world. */
fl_status run_files_resolve(run_files *f, const char *job, const char *out, const char *errors, const char *spool_dir, bool force, fl_err *err);

/* The absolute path of a file to write, which may not exist yet. FL_NOT_FOUND: its folder does not. FL_INVALID: a folder, or a name that leaves no
 * room for the suffix_bytes of a temporary one. */
fl_status run_files_absolute(const char *path, size_t suffix_bytes, char out[RUN_FILES_PATH_MAX], fl_err *err);

/* The job's name is kept, and people read it: FL_INVALID when it is no UTF-8. */
fl_status run_files_check_name(const char *job, fl_err *err);

/* What a spool remembers: the outputs that are its own, and whether it has written them (is_written is never taken back for the same paths). The spool must exist. */
typedef struct { char out[RUN_FILES_PATH_MAX], errors[RUN_FILES_PATH_MAX]; bool is_written; } run_memory;
fl_status run_files_remember(const char *spool_dir, const run_memory *m, fl_err *err);

/* They are not its own after all: others wrote them first. The rows stay in the spool. */
void run_files_forget(const run_files *f);

/* FL_NOT_FOUND when it is no spool of `run`. */
fl_status run_files_recall(const char *spool_dir, run_memory *m, fl_err *err);

#endif
