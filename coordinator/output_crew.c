#include "coordinator/output_crew.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#define PART_BYTES (1u << 20)

typedef enum { SLOT_FREE, SLOT_MADE, SLOT_PART, SLOT_READY } slot_state;       /* MADE: in its maker's hands; PART: more of it comes */

typedef struct { slot_state state; uint64_t number; output_batch batch; fl_status status; fl_err err; } slot;

typedef struct {
    const output_shared *shared;         /* borrowed */
    uint64_t first, end;                 /* rows */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock: */
    slot *slots; int n_slots;            /* owned */
    uint64_t next, turn, n_batches;      /* batches: next to be taken by a maker, and the one the caller waits for */
    bool is_over;                        /* makers give up */
} crew;

/* ---- one batch, by whoever makes it ---- */

static bool is_full(const output_batch *b)
{
    return b->lines[0].n_bytes + b->lines[1].n_bytes >= PART_BYTES;
}

/* Hand on what there is of a batch, and have it empty again; false: nothing more is wanted. */
typedef bool (*hand_on)(void *context, output_batch *b);

/* Fill rows up to `end`. `part` gets what there is ahead of a large row, which stands alone, and whenever the batch is full. */
static fl_status fill(output_maker *m, output_batch *b, uint64_t end, hand_on part, void *context, fl_err *err)
{
    while (b->first.v + b->n_rows < end) {
        bool is_large = false;
        fl_status st = output_maker_is_large(m, (row_index){ b->first.v + b->n_rows }, &is_large, err);
        if (st == FL_OK && (is_large || is_full(b)) && !part(context, b)) return FL_CLOSED;
        if (st == FL_OK) st = output_maker_add(m, b, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- makers ---- */

typedef struct { crew *c; slot *s; } handing;

/* Wait for the slot's turn and let the caller take it; its batch goes on behind what was taken. */
static bool hand_part(void *context, output_batch *b)
{
    handing *h = context;
    crew *c = h->c;
    uint64_t next = b->first.v + b->n_rows;
    pthread_mutex_lock(&c->lock);
    h->s->state = SLOT_PART;
    pthread_cond_broadcast(&c->changed);
    while (h->s->state == SLOT_PART && !c->is_over) pthread_cond_wait(&c->changed, &c->lock);
    bool goes_on = !c->is_over;
    pthread_mutex_unlock(&c->lock);
    output_batch_reset(b, (row_index){ next });
    return goes_on;
}

static slot *take_slot(crew *c)
{
    for (;;) {
        if (c->is_over || c->next == c->n_batches) return NULL;
        for (int i = 0; i < c->n_slots; i++) {
            if (c->slots[i].state != SLOT_FREE) continue;
            c->slots[i].state = SLOT_MADE;
            c->slots[i].number = c->next++;
            return &c->slots[i];
        }
        pthread_cond_wait(&c->changed, &c->lock);
    }
}

static void *make_batches(void *context)
{
    crew *c = context;
    output_maker *m = NULL;
    fl_err err = { 0 };
    fl_status opened = output_maker_open(&m, c->shared, &err);
    pthread_mutex_lock(&c->lock);
    for (slot *s; (s = take_slot(c)); ) {
        pthread_mutex_unlock(&c->lock);
        handing h = { c, s };
        uint64_t first = c->first + s->number * OUTPUT_BATCH_ROWS, end = first + OUTPUT_BATCH_ROWS < c->end ? first + OUTPUT_BATCH_ROWS : c->end;
        output_batch_reset(&s->batch, (row_index){ first });
        s->err = err;
        s->status = opened == FL_OK ? fill(m, &s->batch, end, hand_part, &h, &s->err) : opened;
        pthread_mutex_lock(&c->lock);
        s->state = SLOT_READY;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    output_maker_close(m);
    return NULL;
}

/* ---- the caller ---- */

/* The slot whose turn it is, with something to take. */
static slot *wait_slot(crew *c)
{
    for (;;) {
        for (int i = 0; i < c->n_slots; i++) {
            slot *s = &c->slots[i];
            if (s->number == c->turn && (s->state == SLOT_PART || s->state == SLOT_READY)) return s;
        }
        pthread_cond_wait(&c->changed, &c->lock);
    }
}

static fl_status take_all(crew *c, const atomic_bool *stop, output_crew_take take, void *context, fl_err *err)
{
    fl_status st = FL_OK;
    pthread_mutex_lock(&c->lock);
    while (st == FL_OK && c->turn < c->n_batches) {
        slot *s = wait_slot(c);
        pthread_mutex_unlock(&c->lock);
        if (stop && atomic_load(stop)) st = FL_CLOSED;
        if (st == FL_OK && s->batch.n_rows) st = take(context, &s->batch, err);
        pthread_mutex_lock(&c->lock);
        if (s->state == SLOT_PART) {
            s->state = SLOT_MADE;
        } else {
            if (st == FL_OK && s->status != FL_OK) {
                st = s->status;
                *err = s->err;
            }
            s->state = SLOT_FREE;
            c->turn++;
        }
        pthread_cond_broadcast(&c->changed);
    }
    c->is_over = true;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return st;
}

static fl_status make_with_threads(const output_shared *shared, uint64_t first, uint64_t end, int n_threads, const atomic_bool *stop, output_crew_take take, void *context,
                                   fl_err *err)
{
    crew c = { .shared = shared, .first = first, .end = end, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER,
               .n_slots = 2 * n_threads + 1, .n_batches = (end - first + OUTPUT_BATCH_ROWS - 1) / OUTPUT_BATCH_ROWS };
    fl_status st = FL_OK;
    int n_started = 0;
    pthread_t *threads = calloc((size_t)n_threads, sizeof *threads);
    c.slots = calloc((size_t)c.n_slots, sizeof *c.slots);
    sigset_t all, before;                                /* signals are for others */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (threads && c.slots && n_started < n_threads && pthread_create(&threads[n_started], NULL, make_batches, &c) == 0) n_started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    st = n_started ? take_all(&c, stop, take, context, err) : fl_fail(err, FL_FULL, "no memory or no threads to make output lines");
    for (int i = 0; i < n_started; i++) pthread_join(threads[i], NULL);
    for (int i = 0; c.slots && i < c.n_slots; i++) output_batch_fini(&c.slots[i].batch);
    free(c.slots);
    free(threads);
    return st;
}

/* ---- without threads ---- */

typedef struct { const atomic_bool *stop; output_crew_take take; void *context; fl_status status; fl_err *err; } alone;

static bool take_now(void *context, output_batch *b)
{
    alone *a = context;
    uint64_t next = b->first.v + b->n_rows;
    if (a->stop && atomic_load(a->stop)) a->status = FL_CLOSED;
    if (a->status == FL_OK && b->n_rows) a->status = a->take(a->context, b, a->err);
    output_batch_reset(b, (row_index){ next });
    return a->status == FL_OK;
}

static fl_status make_alone(const output_shared *shared, uint64_t first, uint64_t end, const atomic_bool *stop, output_crew_take take, void *context, fl_err *err)
{
    alone a = { stop, take, context, FL_OK, err };
    output_maker *m = NULL;
    output_batch *b = calloc(1, sizeof *b);
    fl_status st = b ? output_maker_open(&m, shared, err) : fl_fail(err, FL_FULL, "no memory to make output lines");
    for (uint64_t at = first; st == FL_OK && at < end; ) {
        fl_err why;
        uint64_t batch_end = at + OUTPUT_BATCH_ROWS < end ? at + OUTPUT_BATCH_ROWS : end;
        output_batch_reset(b, (row_index){ at });
        fl_status made = fill(m, b, batch_end, take_now, &a, &why);
        if (a.status == FL_OK) take_now(&a, b);
        st = a.status;
        if (st == FL_OK && made != FL_OK) {
            st = made;
            *err = why;
        }
        at = batch_end;
    }
    output_maker_close(m);
    if (b) output_batch_fini(b);
    free(b);
    return st;
}

fl_status output_crew_make(const output_shared *shared, uint64_t first, uint64_t end, int n_threads, const atomic_bool *stop, output_crew_take take, void *context, fl_err *err)
{
    if (n_threads > 1 && end - first > OUTPUT_BATCH_ROWS) return make_with_threads(shared, first, end, n_threads, stop, take, context, err);
    return make_alone(shared, first, end, stop, take, context, err);
}
