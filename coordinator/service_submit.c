#include "coordinator/service_submit.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "coordinator/daemon.h"
#include "coordinator/upload.h"
#include "proto/clock.h"
#include "proto/job_row.h"

#define IDLE_MS 60000                                    /* a client that sends nothing for so long has gone */

typedef struct { upload *upload; int64_t heard_ms; bool is_abandoned; } submit_slot;     /* upload: owned, NULL = free */

struct service_submit {
    coord_daemon *daemon;                                /* borrowed */
    submit_slot slots[SUBMITS_MAX];
    submit_queues queues;                                /* high-water marks */
};

fl_status service_submit_open(service_submit **out, coord_daemon *d, fl_err *err)
{
    service_submit *s = calloc(1, sizeof *s);
    if (!s) return fl_fail(err, FL_FULL, "no memory for a service");
    s->daemon = d;
    *out = s;
    return FL_OK;
}

void service_submit_close(service_submit *s)
{
    if (!s) return;
    for (int i = 0; i < SUBMITS_MAX; i++) if (s->slots[i].upload) upload_abandon(s->slots[i].upload);
    for (int i = 0; i < SUBMITS_MAX; i++) upload_close(s->slots[i].upload);
    free(s);
}

/* Seconds the client allows; the time left becomes a time of our clock. */
static fl_status parse_times(const json_t *args, job_times *out, fl_err *err)
{
    static const char *const names[] = { "expires_in", "row_queue_limit", "row_run_limit", "row_limit" };
    uint64_t seconds[4];
    for (int i = 0; i < 4; i++) {
        json_int_t value = json_integer_value(json_object_get(args, names[i]));
        if (value < 0 || (uint64_t)value > JOB_TIMES_MAX_S) return fl_fail(err, FL_INVALID, "%s is outside 0 to %" PRIu64 " seconds", names[i], JOB_TIMES_MAX_S);
        seconds[i] = (uint64_t)value;
    }
    *out = (job_times){ seconds[0] ? (uint64_t)time(NULL) + seconds[0] : 0, seconds[1], seconds[2], seconds[3] };
    return FL_OK;
}

static fl_status parse_settings(const json_t *args, job_settings *out, fl_err *err)
{
    const char *seed = service_text(args, "seed");
    json_int_t context = json_integer_value(json_object_get(args, "max_context")), now = json_integer_value(json_object_get(args, "now"));
    char *end = NULL;
    errno = 0;
    unsigned long long number = strtoull(seed, &end, 10);
    if (errno || *end) return fl_fail(err, FL_INVALID, "the seed '%.40s' is no whole number below 2^64", seed);
    if (context < 0 || context > UINT32_MAX || now < 0 || now > UINT32_MAX) return fl_fail(err, FL_INVALID, "max_context or now is outside 0 to %" PRIu32, UINT32_MAX);
    const char *duplicates = service_text(args, "duplicates");
    bool suffix = strcmp(duplicates, "suffix") == 0;
    if (!suffix && duplicates[0] && strcmp(duplicates, "error") != 0) return fl_fail(err, FL_INVALID, "duplicates is error or suffix, not '%.40s'", duplicates);
    *out = (job_settings){ .name = (char *)service_text(args, "name"), .model = (char *)service_text(args, "model"), .defaults = (char *)service_text(args, "defaults"),
                           .seed = number, .max_context = (uint32_t)context, .now_s = now ? (uint32_t)now : (uint32_t)time(NULL), .suffix_duplicates = suffix,
                           .grade = json_is_true(json_object_get(args, "grade")) };
    fl_row_fault fault;
    fl_status st = parse_times(args, &out->times, err);
    if (st != FL_OK) return st;
    if (out->defaults[0] && fl_row_defaults_check(out->defaults, &fault) != ROW_OK) return fl_fail(err, FL_INVALID, "the settings of the job: %s", fault.text);
    return FL_OK;
}

static void abandon(submit_slot *slot)
{
    upload_abandon(slot->upload);
    slot->is_abandoned = true;
}

static void note_upload(queue_figures *of_all, const queue_figures *of_one)
{
    if (of_one->depth > of_all->depth) of_all->depth = of_one->depth;
    if (of_one->high_water > of_all->high_water) of_all->high_water = of_one->high_water;
    if (of_one->capacity > of_all->capacity) of_all->capacity = of_one->capacity;
}

submit_queues service_submit_queues(service_submit *s)
{
    submit_queues *q = &s->queues;
    uint64_t n = 0;
    q->pieces.depth = q->blocks.depth = 0;
    q->uploads.capacity = SUBMITS_MAX;
    q->pieces.capacity = UPLOAD_QUEUE_BYTES;
    for (int i = 0; i < SUBMITS_MAX; i++) {
        queue_figures pieces, blocks;
        if (!s->slots[i].upload) continue;
        n += !s->slots[i].is_abandoned;
        upload_queues(s->slots[i].upload, &pieces, &blocks);
        note_upload(&q->pieces, &pieces);
        note_upload(&q->blocks, &blocks);
    }
    queue_note(&q->uploads, n);
    return *q;
}

/* The loop does not wait for threads that end: their slots are free when they have. */
static submit_slot *free_slot(service_submit *s)
{
    submit_slot *found = NULL;
    for (int i = 0; i < SUBMITS_MAX; i++) {
        submit_slot *slot = &s->slots[i];
        bool is_silent = slot->upload && fl_boot_ms() - slot->heard_ms > IDLE_MS;
        if (is_silent && !slot->is_abandoned) abandon(slot);
        if (slot->upload && slot->is_abandoned && upload_is_done(slot->upload)) {
            service_submit_queues(s);                    /* its marks stay */
            upload_close(slot->upload);
            *slot = (submit_slot){ 0 };
        }
        if (!slot->upload && !found) found = slot;
    }
    return found;
}

static void tell_limit(upload *u, service_reply *reply)
{
    json_object_set_new(reply->json, "offset", json_integer((json_int_t)upload_offset(u)));
    json_object_set_new(reply->json, "limit", json_integer((json_int_t)upload_limit(u)));
}

fl_status service_submit_begin(service_submit *s, const json_t *args, service_reply *reply, fl_err *err)
{
    job_settings settings;
    job_id id;
    char name[FL_JOB_NAME_BYTES];
    fl_status st = parse_settings(args, &settings, err);
    if (st == FL_OK) st = service_new_job_id(&id, err);
    if (st != FL_OK) return st;
    submit_slot *slot = free_slot(s);
    if (!slot) return fl_fail(err, FL_FULL, "%d jobs are being submitted right now; try again in a minute", SUBMITS_MAX);
    if ((st = upload_open(&slot->upload, daemon_spool(s->daemon), id, &settings, err)) != FL_OK) return st;
    slot->heard_ms = fl_boot_ms();
    service_submit_queues(s);
    fl_job_name(id, name);
    json_object_set_new(reply->json, "upload", json_string(name));
    tell_limit(slot->upload, reply);
    return FL_OK;
}

static fl_status find_slot(service_submit *s, const json_t *args, submit_slot **out, fl_err *err)
{
    job_id id;
    const char *name = service_text(args, "upload");
    for (int i = 0; fl_job_parse(name, &id) && i < SUBMITS_MAX; i++) {
        submit_slot *slot = &s->slots[i];
        if (!slot->upload || slot->is_abandoned || upload_job(slot->upload).v != id.v) continue;
        slot->heard_ms = fl_boot_ms();
        *out = slot;
        return FL_OK;
    }
    return fl_fail(err, FL_NOT_FOUND, "the upload is not known here (the coordinator was restarted, or nothing came for a minute); submit again");
}

fl_status service_submit_piece(service_submit *s, const json_t *args, const fl_bytes *part, service_reply *reply, fl_err *err)
{
    submit_slot *slot = NULL;
    stored_job *none;
    ingest_report so_far;
    fl_status st = find_slot(s, args, &slot, err);
    if (st != FL_OK) return st;
    upload *u = slot->upload;
    json_int_t offset = json_integer_value(json_object_get(args, "offset"));
    if (offset < 0 || (uint64_t)offset > upload_offset(u)) return fl_fail(err, FL_INVALID, "a piece of an upload is missing: byte %" PRIu64 " is next", upload_offset(u));
    if (part && (uint64_t)offset == upload_offset(u)) st = upload_push(u, part->data, part->bytes, err);     /* else it came again: its answer was lost */
    if (st == FL_OK && !upload_has_ended(u)) st = upload_poll(u, &none, &so_far, err);                       /* it cannot be done well before its end */
    if (st != FL_OK && st != FL_AGAIN) {                 /* a failed piece ends the upload: what came so far is thrown away */
        abandon(slot);
        return st;
    }
    tell_limit(u, reply);
    json_object_set_new(reply->json, "rows", json_integer(st == FL_AGAIN ? (json_int_t)so_far.n_rows : 0));
    return FL_OK;
}

/* The job is whole and durable in its folder: from now on it is the daemon's. The journal knows it when daemon_add_job returns, so the answer need not wait for what the turn
 * decides beside it: on a full disk that may be long. */
static fl_status add_job(service_submit *s, job_id id, stored_job *job, const ingest_report *report, service_reply *reply, fl_err *err)
{
    char name[FL_JOB_NAME_BYTES];
    fl_status st = daemon_add_job(s->daemon, &job, err);
    if (st != FL_OK) {
        fl_err ignored;
        job_store_close(job);
        spool_job_remove(daemon_spool(s->daemon), id, &ignored);
        return st;
    }
    fl_job_name(id, name);
    json_t *unknown = json_string(report->unknown_fields);
    json_object_set_new(reply->json, "job", json_string(name));
    json_object_set_new(reply->json, "rows", json_integer((json_int_t)report->n_rows));
    json_object_set_new(reply->json, "bad", json_integer((json_int_t)report->n_bad));
    json_object_set_new(reply->json, "renamed", json_integer((json_int_t)report->n_renamed));
    json_object_set_new(reply->json, "unknown_fields", unknown ? unknown : json_string(""));
    coord_job_status status_now;
    bool waits = coord_job_find(daemon_core(s->daemon), id, &status_now) && status_now.state == JOB_OPEN;
    json_object_set_new(reply->json, "why", json_string(waits ? status_now.why : ""));
    return FL_OK;
}

fl_status service_submit_end(service_submit *s, const json_t *args, service_reply *reply, fl_err *err)
{
    submit_slot *slot = NULL;
    stored_job *job = NULL;
    ingest_report report;
    fl_status st = find_slot(s, args, &slot, err);
    if (st != FL_OK) return st;
    if (!upload_has_ended(slot->upload)) upload_end(slot->upload);
    st = upload_poll(slot->upload, &job, &report, err);
    if (st == FL_AGAIN) {
        json_object_set_new(reply->json, "state", json_string("running"));
        json_object_set_new(reply->json, "rows", json_integer((json_int_t)report.n_rows));
        return FL_OK;
    }
    job_id id = upload_job(slot->upload);
    abandon(slot);                                       /* its thread has nothing left to do */
    return st == FL_OK ? add_job(s, id, job, &report, reply, err) : st;
}

fl_status service_submit_abort(service_submit *s, const json_t *args, fl_err *err)
{
    submit_slot *slot = NULL;
    fl_status st = find_slot(s, args, &slot, err);
    if (st == FL_OK) abandon(slot);
    return st;
}

size_t service_submit_jobs(const service_submit *s, job_id out[SUBMITS_MAX])
{
    size_t n = 0;
    for (int i = 0; i < SUBMITS_MAX; i++) if (s->slots[i].upload) out[n++] = upload_job(s->slots[i].upload);
    return n;
}
