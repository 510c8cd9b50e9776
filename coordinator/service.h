/* service.h - what the coordinator answers to clients: the verbs of WIRE_REQUEST. Arguments and answers are JSON objects.
 *   submit_begin  {name, model, seed, defaults, max_context, now, duplicates: "error" | "suffix"} -> {upload}      seed as text; only name must be there
 *                                                                                both also -> limit: bytes that may be sent so far, which grows as the job is read
 *   submit_piece  {upload, offset} + part -> {offset, limit, rows}                 pieces come in order, several may be under way; without a part it only asks
 *   submit_end    {upload} -> {state: "running", rows} asked again until it is not running; then {job, rows, bad, unknown_fields, renamed, why}     why: what keeps it waiting, ""
 *   submit_abort  {upload} -> {}                                                   what came is thrown away
 *   list          {after} -> {jobs: [...], workers: [...], more}                   the jobs as status shows them, those behind the job `after` (absent: all), as many as fit;
 *                                                                                  more: there are others behind the last
 *   status        {job} -> status_json.h
 *   fetch         {job, file: "out" | "errors", offset} -> {size, whole, why, rows, failed, generation} + part, empty at the end
 *                 of a file that still grows (whole: false; why: what it waits for). rows: how many are in both files
 *   verify        {job} -> {state: "running"} or the report of job_verify.h        asked again until it is not running
 *   cancel        {job} -> {}                                                      answered once it is durable
 *   retry         {job, begun} -> {state: "running", begun} asked again with its own begun until it is not running; then {state: "open", again, kept, bad}, or
 *                 {state: "nothing", kept, bad} when no row failed
 *   delete        {job} -> {state: "busy", why} asked again, or {state: "deleted", bytes}
 *   gc            {older_than, dry_run, removing_only} -> {items: [{path, what, bytes}], unnamed, bytes, busy: [{job, why}], removing}    older_than: days, -1 = no jobs;
 *                                                                                  unnamed: so many items more, counted in bytes
 * A failure is the status and {error: sentence}; an unknown job is FL_NOT_FOUND and named. A client that leaves SERVICE_UNREAD_BYTES_MAX of answers unread gets FL_AGAIN and
 * nothing done for whatever it asks: it holds up nobody but itself.
 * Threads  the daemon's. */
#ifndef COORDINATOR_SERVICE_H
#define COORDINATOR_SERVICE_H

#include <jansson.h>
#include "coordinator/transport.h"

#define SERVICE_PIECE_BYTES (1u << 20)
#define SERVICE_UNREAD_BYTES_MAX (8u << 20)      /* one answer may go beyond it */

typedef struct coord_daemon coord_daemon;
typedef struct service service;

typedef struct {
    fl_status status;
    json_t *json;                        /* owned */
    uint8_t *part; size_t part_bytes;    /* owned */
    bool after_sync;                     /* true only once what this turn decided is durable */
} service_reply;

fl_status service_open(service **out, coord_daemon *d, fl_err *err);
void      service_close(service *s);     /* accepts NULL */
void      service_request(service *s, const wire_request *request, const fl_bytes *part, service_reply *reply);
void      service_refuse_unread(service_reply *reply);   /* the answer to a client that does not read */
void      service_reply_free(service_reply *reply);

/* A text among the arguments; "" when it is not there. */
const char *service_text(const json_t *args, const char *key);

/* A client that is gone is fine. */
fl_status service_send(transport *t, const transport_peer *to, uint64_t number, const service_reply *reply, fl_err *err);

/* Who uses the job's files through this service right now ("it is being verified"); NULL: nobody. */
const char *service_job_busy(const service *s, job_id job);

/* A random job id. */
fl_status service_new_job_id(job_id *out, fl_err *err);

#endif
