/* job_source.h - where a command finds jobs: a coordinator (--to ENDPOINT), or a spool (--spool DIR), which is asked through the coordinator that holds it,
 * or read directly when nobody does.
 * Threads  belongs to its caller's thread. */
#ifndef COORDINATOR_JOB_SOURCE_H
#define COORDINATOR_JOB_SOURCE_H

#include <jansson.h>
#include "coordinator/client.h"
#include "coordinator/flags.h"
#include "coordinator/journal.h"
#include "coordinator/run_files.h"
#include "coordinator/spool.h"

#define JOB_SOURCE_CALL_MS 5000

typedef struct {
    client *client;                      /* owned; NULL: the spool is read directly */
    spool *spool;                        /* owned; NULL with a client */
    run_memory files;                    /* of a spool of `run`; "" otherwise */
    char job[FL_JOB_NAME_BYTES];         /* the chosen job's name; "" before job_source_choose */
    job_id id;
    journal_job named;                   /* when the spool is read directly: what its journal says; no name */
} job_source;

/* Where the user says that the jobs are: the flags of every command on jobs. */
typedef struct { const char *to, *spool; bool as_json; } job_place;
#define JOB_PLACE_FLAGS(place) \
    { "--to", FLAG_TEXT, "ENDPOINT", "the coordinator, as in tcp://127.0.0.1:7070", &(place).to, 0, 0, false }, \
    { "--spool", FLAG_TEXT, "DIR", "or a spool on this machine, as in OUT.jsonl.spool", &(place).spool, 0, 0, false }, \
    { "--json", FLAG_SWITCH, "", "print the answer as one JSON object", &(place).as_json, 0, 0, false }

/* One of the two must be given (a usage error otherwise). lock: take the spool when nobody holds it; else it is only read. */
fl_status job_source_open(job_source *s, const char *to, const char *spool_dir, bool lock, fl_err *err);
void      job_source_close(job_source *s);

/* Choose the job called `name`; NULL: the only one there is. FL_NOT_FOUND, FL_INVALID with a sentence that names it. */
fl_status job_source_choose(job_source *s, const char *name, fl_err *err);

/* {jobs: [...], workers: [...]} and {job, workers}, as service.h's list and status answer. */
fl_status job_source_list(job_source *s, json_t **reply, fl_err *err);
fl_status job_source_status(job_source *s, json_t **reply, fl_err *err);

/* The journal of a spool that is read directly and was taken (lock), for writing. */
fl_status job_source_journal(const job_source *s, journal **out, fl_err *err);

/* FL_AGAIN, with what to do before `command`: a spool of `run` that nobody holds, and it did not come to write its OUT and ERR, so that what stands there may be another's. */
fl_status job_source_check_written(const job_source *s, const char *command, fl_err *err);

/* Print an answer on one line; its `job` is the chosen job. */
void job_source_print(const job_source *s, json_t *answer);

/* Paths in a spool that is read directly; malloc'ed. */
char *job_source_dir(const job_source *s);
char *job_source_ledger(const job_source *s);
char *job_source_output(const job_source *s, bool errors);

#endif
