/* status_json.h - how a job stands, as JSON and for people. Volatile things (workers, counters, reasons) live here and never in output files.
 * job      {job, name, state, why, created, rows: {total, completed, failed, running, waiting}, tokens, settings: {...}, pin: {...}, events: {...}, outputs: bool}
 * worker   {worker, model, place, idle, draining, rows, running, waiting, prefill_tokens, decode_tokens, preemptions}
 * Threads  plain functions. */
#ifndef COORDINATOR_STATUS_JSON_H
#define COORDINATOR_STATUS_JSON_H

#include <jansson.h>
#include <stdio.h>
#include "coordinator/job_store.h"

/* core may be NULL: nobody works on the job. NULL without memory; the caller owns the answer. */
json_t *status_of_job(const stored_job *job, const coord *core);
json_t *status_of_workers(const coord *core);

void status_print_job(FILE *file, const json_t *job, const json_t *workers);     /* workers may be NULL */
void status_print_list(FILE *file, const json_t *jobs);

#endif
