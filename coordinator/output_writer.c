#include "coordinator/output_writer.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "coordinator/background.h"

#define LOOK_MS 100

struct output_writer {
    char *job_dir, *ledger_dir, *job_name, *out, *errors;        /* owned */
    bool is_out_new, is_errors_new;
    int n_threads;
    background thread;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock: */
    ledger_place durable;
    bool is_closed;
    output_written written;
    /* the thread's, and the caller's once it has ended: */
    output_rows *lines;                  /* owned */
    output_files *files;                 /* owned */
    job_counts counts;
};

static fl_status add_batch(void *context, const output_batch *batch, fl_err *err)
{
    output_writer *w = context;
    return output_files_add(w->files, batch, err);
}

/* Make what is ready, and say so. */
static fl_status write_ready(output_writer *w, fl_err *err)
{
    output_written now = { 0 };
    fl_status st = output_rows_make(w->lines, w->n_threads, &w->stop, add_batch, w, err);
    if (st == FL_OK) st = output_files_flush(w->files, now.bytes, err);
    if (st != FL_OK) return st;
    now.rows = output_rows_counts(w->lines)->rows;
    pthread_mutex_lock(&w->lock);
    w->written = now;
    pthread_mutex_unlock(&w->lock);
    return FL_OK;
}

/* Until more is durable, or LOOK_MS. */
static void wait_for_more(output_writer *w)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&w->lock);
    if (!w->is_closed && !atomic_load(&w->stop)) pthread_cond_clockwait(&w->changed, &w->lock, CLOCK_MONOTONIC, &until);
    pthread_mutex_unlock(&w->lock);
}

static fl_status follow(output_writer *w, fl_err *err)
{
    fl_status st = output_rows_open(&w->lines, w->job_dir, w->ledger_dir, err);
    if (st == FL_OK) st = output_files_open(&w->files, (output_place){ w->out, w->is_out_new }, (output_place){ w->errors, w->is_errors_new }, w->job_name, err);
    while (st == FL_OK) {
        pthread_mutex_lock(&w->lock);
        ledger_place durable = w->durable;
        pthread_mutex_unlock(&w->lock);
        if (atomic_load(&w->stop)) return FL_CLOSED;
        if ((st = output_rows_read(w->lines, durable, err)) != FL_OK) return st;
        if ((st = write_ready(w, err)) != FL_OK) return st;
        if (output_rows_is_closed(w->lines)) return output_files_name(w->files, err);
        wait_for_more(w);
    }
    return st;
}

static fl_status run(void *context, fl_err *err)
{
    output_writer *w = context;
    fl_status st = follow(w, err);
    if (st == FL_OK) w->counts = *output_rows_counts(w->lines);
    output_files_close(w->files);
    output_rows_close(w->lines);
    w->files = NULL;
    w->lines = NULL;
    return st;
}

fl_status output_writer_start(output_writer **out, const output_writer_options *options, ledger_place durable, bool is_closed, fl_err *err)
{
    output_writer *w = calloc(1, sizeof *w);
    if (!w) return fl_fail(err, FL_FULL, "no memory to write output files");
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->job_dir = strdup(options->job_dir);
    w->ledger_dir = strdup(options->ledger_dir);
    w->job_name = strdup(options->job_name);
    w->out = strdup(options->out.path);
    w->errors = strdup(options->errors.path);
    w->is_out_new = options->out.is_new;
    w->is_errors_new = options->errors.is_new;
    w->n_threads = options->n_threads;
    w->durable = durable;
    w->is_closed = is_closed;
    fl_status st = w->job_dir && w->ledger_dir && w->job_name && w->out && w->errors ? background_start(&w->thread, run, w, err)
                                                                                     : fl_fail(err, FL_FULL, "no memory to write output files");
    if (st == FL_OK) {
        *out = w;
        w = NULL;
    }
    output_writer_close(w);
    return st;
}

void output_writer_advance(output_writer *w, ledger_place durable, bool is_closed)
{
    pthread_mutex_lock(&w->lock);
    w->durable = durable;
    if (is_closed && !w->is_closed) pthread_cond_signal(&w->changed);
    w->is_closed = is_closed;
    pthread_mutex_unlock(&w->lock);
}

output_written output_writer_written(output_writer *w)
{
    pthread_mutex_lock(&w->lock);
    output_written written = w->written;
    pthread_mutex_unlock(&w->lock);
    return written;
}

fl_status output_writer_poll(output_writer *w, job_counts *counts, fl_err *err)
{
    fl_status st = background_poll(&w->thread, err);
    if (st == FL_OK) *counts = w->counts;
    return st;
}

void output_writer_stop(output_writer *w)
{
    atomic_store(&w->stop, true);
    pthread_mutex_lock(&w->lock);
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

void output_writer_close(output_writer *w)
{
    if (!w) return;
    background_wait(&w->thread, NULL);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w->job_dir);
    free(w->ledger_dir);
    free(w->job_name);
    free(w->out);
    free(w->errors);
    free(w);
}
