/* job_verify.h - the proof that a job's ledger and its output files are whole: every row has exactly one result or error, no frame was touched, and OUT and
 * ERR are byte for byte what the ledger gives.
 * Threads  plain functions on files; changes nothing; any thread. */
#ifndef COORDINATOR_JOB_VERIFY_H
#define COORDINATOR_JOB_VERIFY_H

#include <jansson.h>
#include "coordinator/job_store.h"

/* *report (the caller owns it): {state: "sound" | "broken" | "incomplete", findings: [sentence...] (the first 20), n_findings, rows, results, errors, rows_open,
 * out: {path, sha256}, err: {path, sha256}}. Findings name the row by its custom_id. FL_OK also when it is broken: look at `state`. */
fl_status job_verify(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, json_t **report, fl_err *err);

/* Print a report (quiet: only what goes to stderr); returns the exit status that goes with it: 0 sound, 1 broken, 4 incomplete. Findings go to stderr. */
int job_verify_print(const json_t *report, const char *command, bool quiet);

#endif
