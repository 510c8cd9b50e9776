/* daemon_outputs.c - who writes the output files of which job: one closed job after the other, and running jobs that somebody fetches. */
#include "coordinator/daemon_state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"
#include "proto/log.h"

#define RETRY_MS 3000                                    /* between tries while the disk is full */
#define IDLE_MS 60000                                    /* a running job that nobody asked for in so long is not followed any more */

static output_slot *slot_of(coord_daemon *d, const stored_job *job)
{
    for (int i = 0; i < DAEMON_WRITERS_MAX; i++) {
        if (d->writers[i].writer && d->writers[i].job == job) return &d->writers[i];
    }
    return NULL;
}

bool daemon_outputs_busy(const coord_daemon *d, const stored_job *job)
{
    return slot_of((coord_daemon *)d, job) != NULL;
}

static fl_status begin(coord_daemon *d, output_slot *slot, stored_job *job, fl_err *err)
{
    char name[FL_JOB_NAME_BYTES];
    char *out = daemon_output_path(d, job, false), *errors = daemon_output_path(d, job, true);
    output_writer_options options = { .job_dir = job->dir, .ledger_dir = job->ledger_dir, .job_name = name, .out = { out, d->is_out_new }, .errors = { errors, d->is_errors_new }, .n_threads = output_rows_cores() };
    fl_job_name(job->id, name);
    *slot = (output_slot){ .job = job, .asked_ms = fl_boot_ms() };
    fl_status st = out && errors ? output_writer_start(&slot->writer, &options, job_store_marked(job), job->state != JOB_OPEN, err)
                                 : fl_fail(err, FL_FULL, "no memory for the output files' names");
    free(out);
    free(errors);
    return st;
}

/* ---- a job's way ---- */

void daemon_outputs_committed(coord_daemon *d, const stored_job *job)
{
    output_slot *slot = slot_of(d, job);
    if (slot && !ledger_is_closed(job->ledger)) output_writer_advance(slot->writer, ledger_marked(job->ledger), false);
}

void daemon_outputs_closed(coord_daemon *d, stored_job *job)
{
    output_slot *slot = slot_of(d, job);
    job->outputs_due = true;
    d->output_retry_ms = 0;
    if (slot) output_writer_advance(slot->writer, ledger_marked(job->ledger), true);
}

/* ---- fetch ---- */

/* A place for one job more to be followed; the one that was not asked for longest goes when it is idle. NULL: they are all wanted, or one is about to end. */
static output_slot *free_slot(coord_daemon *d)
{
    output_slot *idlest = NULL;
    for (int i = 1; i < DAEMON_WRITERS_MAX; i++) {       /* the first one is for closed jobs */
        output_slot *slot = &d->writers[i];
        if (!slot->writer) return slot;
        if (slot->job->state == JOB_OPEN && (!idlest || slot->asked_ms < idlest->asked_ms)) idlest = slot;
    }
    if (idlest && idlest->asked_ms + IDLE_MS / 6 < fl_boot_ms()) output_writer_stop(idlest->writer);
    return NULL;
}

/* A running job that nobody follows yet. *slot stays NULL where it has to wait, and *why says for what. */
static fl_status begin_following(coord_daemon *d, stored_job *job, output_slot **slot, const char **why, fl_err *err)
{
    if (d->follow_failed.v == job->id.v) {
        bool was_full = d->follow_error.code == FL_DISK_FULL;
        if (was_full) *why = d->follow_error.text;
        if (was_full && fl_boot_ms() < d->follow_retry_ms) return FL_OK;
        d->follow_failed.v = 0;
        if (!was_full) return fl_fail(err, d->follow_error.code, "%s", d->follow_error.text);
    }
    if (ledger_is_closed(job->ledger)) {                 /* its end is not in the journal yet: files that are whole have no name before it is */
        *why = d->disk_full;
        return FL_OK;
    }
    output_slot *place = free_slot(d);
    *why = place ? "" : "as many other running jobs as possible are being fetched; this one waits until one of them ends";
    if (!place) return FL_OK;
    fl_status st = begin(d, place, job, err);
    if (st == FL_OK) *slot = place;
    return st;
}

fl_status daemon_outputs_follow(coord_daemon *d, stored_job *job, output_written *written, const char **why, fl_err *err)
{
    output_slot *slot = slot_of(d, job);
    fl_status st = FL_OK;
    *written = (output_written){ 0 };
    *why = d->outputs_full[0] && job->outputs_due ? d->outputs_full : "";
    if (!slot && job->state == JOB_OPEN) st = begin_following(d, job, &slot, why, err);
    if (!slot) return st;
    slot->asked_ms = fl_boot_ms();
    *written = output_writer_written(slot->writer);
    return FL_OK;
}

/* ---- the loop ---- */

static stored_job *next_due(const coord_daemon *d)
{
    stored_job *next = NULL;
    if (d->writers[0].writer || fl_boot_ms() < d->output_retry_ms) return NULL;
    for (size_t i = 0; !next && i < d->n_jobs; i++) {
        if (d->jobs[i]->outputs_due && !daemon_outputs_busy(d, d->jobs[i])) next = d->jobs[i];
    }
    return next;
}

bool daemon_outputs_now(const coord_daemon *d)
{
    return next_due(d) != NULL;
}

bool daemon_outputs_soon(const coord_daemon *d)
{
    for (int i = 0; i < DAEMON_WRITERS_MAX; i++) {
        if (d->writers[i].writer && d->writers[i].job->outputs_due) return true;
    }
    return false;
}

/* A writer has ended. What fails while the job runs is told to who fetches; a closed job's files must come to be. */
static fl_status end(coord_daemon *d, output_slot *slot, fl_status st, const job_counts *counts, fl_err *err)
{
    stored_job *job = slot->job;
    output_writer_close(slot->writer);
    *slot = (output_slot){ 0 };
    if (st == FL_CLOSED) return FL_OK;
    if (job->state == JOB_OPEN) {
        fl_log(FL_LOG_WARN, "the output of a running job cannot be written: %s", err->text);
        d->follow_failed = job->id;
        d->follow_error = *err;
        d->follow_retry_ms = fl_boot_ms() + RETRY_MS;
        return FL_OK;
    }
    if (st == FL_OK) st = job_store_finish(job, counts, err);
    if (st == FL_OK) {
        job->outputs_due = false;
        d->is_out_new = d->is_errors_new = false;        /* what stands there is ours from now on: a retry replaces it */
        job_store_rest(job);
    }
    d->outputs_full[0] = '\0';
    if (st != FL_DISK_FULL) return st;
    snprintf(d->outputs_full, sizeof d->outputs_full, "%s", err->text);
    fl_log(FL_LOG_WARN, "output files wait for room: %s", err->text);
    d->output_retry_ms = fl_boot_ms() + RETRY_MS;
    return FL_OK;
}

fl_status daemon_tend_outputs(coord_daemon *d, fl_err *err)
{
    for (int i = 0; i < DAEMON_WRITERS_MAX; i++) {
        output_slot *slot = &d->writers[i];
        job_counts counts = { 0 };
        if (!slot->writer) continue;
        if (slot->job->state == JOB_OPEN && slot->asked_ms + IDLE_MS < fl_boot_ms()) output_writer_stop(slot->writer);
        fl_status st = output_writer_poll(slot->writer, &counts, err);
        if (st != FL_AGAIN && (st = end(d, slot, st, &counts, err)) != FL_OK) return st;
    }
    stored_job *job = next_due(d);
    return job ? begin(d, &d->writers[0], job, err) : FL_OK;
}

void daemon_end_outputs(coord_daemon *d)
{
    for (int i = 0; i < DAEMON_WRITERS_MAX; i++) {
        output_slot *slot = &d->writers[i];
        if (slot->writer && slot->job->state == JOB_OPEN) output_writer_stop(slot->writer);
    }
    for (int i = 0; i < DAEMON_WRITERS_MAX; i++) output_writer_close(d->writers[i].writer);
}
