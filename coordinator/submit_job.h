/* submit_job.h - give a job file to a coordinator: what `submit` does, for other commands too.
 * Threads  belongs to its caller's thread; counts signals (command_catch_signals). */
#ifndef COORDINATOR_SUBMIT_JOB_H
#define COORDINATOR_SUBMIT_JOB_H

#include <jansson.h>
#include "coordinator/flags.h"
#include "proto/status.h"

/* Strings are borrowed; model NULL: whichever there is. */
typedef struct { const char *job, *to, *model, *duplicates; uint64_t seed, max_context, now, expires, row_queue, row_run, row; bool as_json, grade; flag_list set; } submit_options;

/* *reply: the coordinator's answer (`job`, `rows`, `bad`, ...), for the caller to release. FL_AGAIN: stopped, nothing was submitted. */
fl_status submit_job(const submit_options *options, json_t **reply, fl_err *err);

#endif
