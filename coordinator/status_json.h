/* status_json.h - how a job stands, as JSON. Volatile things (workers, counters, reasons) live here and never in output files.
 * job      {job, name, state, why, created, rows: {total, completed, failed, running, waiting, suspects, too_large}, tokens,
 *           rate: {rows_per_s, tokens_per_s, seconds_left}, settings: {...}, pin: {model, fingerprint, numerics}, events: {...}, outputs: bool,
 *           failures: {codes: {CODE: rows}, examples: [{custom_id, line, code, message}]}}
 *          why: what holds an open job up, or a closed one's output files; "" when nothing does. suspects and too_large are of those that wait: they run among themselves since an
 *          engine ended under them, they need a larger worker. seconds_left is null when it is not known. rate only while a coordinator works on
 *          the job; events and tail as long as that process lives, also when the job has ended; pin once a worker began it, failures only in details.
 * worker   {worker, model, place, idle, draining, rows, held, running, waiting, prefill_tokens, decode_tokens, prefill_per_s, decode_per_s, preemptions}
 *          rows: samples committed. held: rows of its leases. running, waiting: sequences of its engine. Rates are of the last beats.
 * queue    {queue, unit, depth, high_water, capacity} of each of the coordinator's queues (README.md); of those that each peer or upload has, the fullest (service.h)
 * Threads  plain functions. */
#ifndef COORDINATOR_STATUS_JSON_H
#define COORDINATOR_STATUS_JSON_H

#include <jansson.h>
#include "coordinator/job_store.h"

/* core may be NULL: nobody works on the job. held_up: why output files cannot be written right now, NULL when they can. NULL without memory; the caller owns the answer. */
json_t *status_of_job(stored_job *job, const coord *core, const char *held_up, bool details);
json_t *status_of_workers(const coord *core);

#endif
