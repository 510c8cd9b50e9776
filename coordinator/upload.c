#include "coordinator/upload.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

typedef struct piece { struct piece *next; size_t n_bytes; uint8_t data[]; } piece;

struct upload {
    job_id id;
    const spool *spool;                  /* borrowed; immutable */
    job_settings settings;               /* owned; the thread's while it runs */
    uint64_t offset, most_queued;        /* the daemon's thread's */
    bool has_ended;                      /* likewise */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock: */
    piece *first, *last;                 /* owned; the queue */
    uint64_t consumed;                   /* bytes that left the queue */
    bool ending, abandoned, done;
    ingest_report report;                /* so far */
    stored_job *job;                     /* owned; what came out */
    fl_status status; fl_err err;
};

/* ---- the thread ---- */

static fl_status note_numbers(void *context, const ingest_report *so_far, fl_err *err)
{
    upload *u = context;
    pthread_mutex_lock(&u->lock);
    u->report = *so_far;
    bool abandoned = u->abandoned;
    pthread_mutex_unlock(&u->lock);
    return abandoned ? fl_fail(err, FL_CLOSED, "the upload was given up") : FL_OK;
}

/* The next piece, which the caller frees; NULL: there are no more. */
static piece *take_piece(upload *u)
{
    pthread_mutex_lock(&u->lock);
    while (!u->first && !u->ending && !u->abandoned) pthread_cond_wait(&u->changed, &u->lock);
    piece *p = u->abandoned ? NULL : u->first;
    if (p) {
        u->first = p->next;
        if (!u->first) u->last = NULL;
    }
    pthread_mutex_unlock(&u->lock);
    return p;
}

static fl_status ingest_pieces(upload *u, job_draft *draft, fl_err *err)
{
    fl_status st = FL_OK;
    for (piece *p; st == FL_OK && (p = take_piece(u)); ) {
        st = job_draft_push(draft, p->data, p->n_bytes, err);
        pthread_mutex_lock(&u->lock);
        u->consumed += p->n_bytes;
        pthread_mutex_unlock(&u->lock);
        free(p);
    }
    return st;
}

static void *upload_main(void *context)
{
    upload *u = context;
    job_draft *draft = NULL;
    stored_job *job = NULL;
    ingest_report report = { 0 };
    fl_err err = { 0 };
    fl_status st = job_draft_open(&draft, u->spool, u->id, &u->settings, &(job_draft_options){ .note = note_numbers, .context = u }, &err);
    if (st == FL_OK) st = ingest_pieces(u, draft, &err);
    if (st == FL_OK) st = note_numbers(u, &u->report, &err);         /* pieces also end when it is given up */
    if (st == FL_OK) st = job_draft_end(draft, &job, &report, &err);
    job_draft_close(draft);
    pthread_mutex_lock(&u->lock);
    if (st == FL_OK) u->report = report;
    u->job = job;
    u->status = st;
    u->err = err;
    u->done = true;
    pthread_mutex_unlock(&u->lock);
    return NULL;
}

/* ---- the daemon's side ---- */

fl_status upload_open(upload **out, const spool *s, job_id id, const job_settings *settings, fl_err *err)
{
    sigset_t all, before;
    upload *u = calloc(1, sizeof *u);
    if (!u) return fl_fail(err, FL_FULL, "no memory for an upload");
    fl_status st = job_settings_copy(&u->settings, settings, err);
    if (st != FL_OK) {
        free(u);
        return st;
    }
    u->id = id;
    u->spool = s;
    pthread_mutex_init(&u->lock, NULL);
    pthread_cond_init(&u->changed, NULL);
    sigfillset(&all);                                    /* signals are for the loop's thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&u->thread, NULL, upload_main, u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        pthread_cond_destroy(&u->changed);
        pthread_mutex_destroy(&u->lock);
        job_settings_fini(&u->settings);
        free(u);
        return fl_fail_errno(err, error, "no thread for an upload");
    }
    *out = u;
    return FL_OK;
}

void upload_abandon(upload *u)
{
    pthread_mutex_lock(&u->lock);
    u->abandoned = true;
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

void upload_close(upload *u)
{
    if (!u) return;
    fl_err ignored;
    upload_abandon(u);
    pthread_join(u->thread, NULL);
    for (piece *p = u->first, *next; p; p = next) {
        next = p->next;
        free(p);
    }
    if (u->job) {                                        /* made, and nobody took it */
        job_store_close(u->job);
        spool_job_remove(u->spool, u->id, &ignored);
    }
    pthread_cond_destroy(&u->changed);
    pthread_mutex_destroy(&u->lock);
    job_settings_fini(&u->settings);
    free(u);
}

job_id upload_job(const upload *u) { return u->id; }
uint64_t upload_offset(const upload *u) { return u->offset; }
bool upload_has_ended(const upload *u) { return u->has_ended; }

uint64_t upload_limit(upload *u)
{
    pthread_mutex_lock(&u->lock);
    uint64_t consumed = u->consumed;
    pthread_mutex_unlock(&u->lock);
    return consumed + UPLOAD_QUEUE_BYTES;
}

fl_status upload_push(upload *u, const void *data, size_t n_bytes, fl_err *err)
{
    if (u->has_ended || u->offset + n_bytes > upload_limit(u)) return fl_fail(err, FL_INVALID, "a piece of an upload that nobody asked for");
    piece *p = malloc(sizeof *p + n_bytes);
    if (!p) return fl_fail(err, FL_FULL, "no memory for a piece of %zu bytes", n_bytes);
    p->next = NULL;
    p->n_bytes = n_bytes;
    if (n_bytes) memcpy(p->data, data, n_bytes);
    pthread_mutex_lock(&u->lock);
    fl_status st = u->done ? u->status : FL_OK;
    if (st != FL_OK && err) *err = u->err;
    if (st == FL_OK) {
        if (u->last) u->last->next = p;
        else u->first = p;
        u->last = p;
        p = NULL;
        if (u->offset + n_bytes - u->consumed > u->most_queued) u->most_queued = u->offset + n_bytes - u->consumed;
        pthread_cond_signal(&u->changed);
    }
    pthread_mutex_unlock(&u->lock);
    free(p);
    if (st == FL_OK) u->offset += n_bytes;
    return st;
}

void upload_end(upload *u)
{
    u->has_ended = true;
    pthread_mutex_lock(&u->lock);
    u->ending = true;
    pthread_cond_signal(&u->changed);
    pthread_mutex_unlock(&u->lock);
}

fl_status upload_poll(upload *u, stored_job **out, ingest_report *so_far, fl_err *err)
{
    pthread_mutex_lock(&u->lock);
    fl_status st = u->done ? u->status : FL_AGAIN;
    *so_far = u->report;
    if (st == FL_OK) {
        *out = u->job;
        u->job = NULL;
    } else if (st != FL_AGAIN && err) {
        *err = u->err;
    }
    pthread_mutex_unlock(&u->lock);
    return st;
}

void upload_queues(upload *u, queue_figures *pieces, queue_figures *blocks)
{
    pthread_mutex_lock(&u->lock);
    *pieces = (queue_figures){ .depth = u->done ? 0 : u->offset - u->consumed, .high_water = u->most_queued, .capacity = UPLOAD_QUEUE_BYTES };
    *blocks = u->report.blocks;
    pthread_mutex_unlock(&u->lock);
}

bool upload_is_done(upload *u)
{
    pthread_mutex_lock(&u->lock);
    bool done = u->done;
    pthread_mutex_unlock(&u->lock);
    return done;
}
