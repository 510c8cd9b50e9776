#include "coordinator/ingest_pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include "coordinator/cores.h"

typedef enum { SLOT_BLANK, SLOT_FILLED, SLOT_PARSED } slot_state;
typedef struct { ingest_block block; slot_state state; } slot;

struct ingest_pool {
    const char *defaults;                /* borrowed */
    pthread_t threads[POOL_THREADS_MAX]; int n_threads;
    slot *slots; size_t n_slots;         /* owned; a ring: block i of the job is in slot i % n_slots */
    uint64_t n_pushed, n_taken;          /* the owner's */
    uint64_t most_on_the_way;            /* blocks */
    size_t bytes_on_the_way;
    pthread_mutex_t lock;
    pthread_cond_t filled, parsed;
    /* under lock: each slot's state, and */
    uint64_t n_filled, n_begun;          /* blocks that wait for a parser are n_begun .. n_filled - 1 */
    bool stopping;
};

static void *parser_main(void *context)
{
    ingest_pool *p = context;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        while (!p->stopping && p->n_begun == p->n_filled) pthread_cond_wait(&p->filled, &p->lock);
        if (p->stopping) break;
        slot *s = &p->slots[p->n_begun++ % p->n_slots];
        pthread_mutex_unlock(&p->lock);
        ingest_block_parse(&s->block, p->defaults);
        pthread_mutex_lock(&p->lock);
        s->state = SLOT_PARSED;
        pthread_cond_signal(&p->parsed);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

fl_status ingest_pool_open(ingest_pool **out, int n_threads, const char *defaults, fl_err *err)
{
    sigset_t all, before;
    fl_status st = FL_OK;
    if (n_threads <= 0) n_threads = cores_here();
    if (n_threads > POOL_THREADS_MAX) n_threads = POOL_THREADS_MAX;
    ingest_pool *p = calloc(1, sizeof *p);
    if (p) p->slots = calloc((size_t)n_threads * 2 + 2, sizeof *p->slots);
    if (!p || !p->slots) {
        free(p);
        return fl_fail(err, FL_FULL, "no memory for the threads of an ingest");
    }
    p->n_slots = (size_t)n_threads * 2 + 2;
    p->defaults = defaults;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->filled, NULL);
    pthread_cond_init(&p->parsed, NULL);
    sigfillset(&all);                                    /* signals are for the owner's thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (int error = 0; p->n_threads < n_threads && !error; ) {
        error = pthread_create(&p->threads[p->n_threads], NULL, parser_main, p);
        if (!error) p->n_threads++;
        else if (p->n_threads == 0) st = fl_fail_errno(err, error, "no thread for an ingest");       /* fewer than wanted will do */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st == FL_OK) {
        *out = p;
        p = NULL;
    }
    ingest_pool_close(p);
    return st;
}

void ingest_pool_close(ingest_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_broadcast(&p->filled);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->filled);
    pthread_cond_destroy(&p->parsed);
    pthread_mutex_destroy(&p->lock);
    for (size_t i = 0; i < p->n_slots; i++) ingest_block_fini(&p->slots[i].block);
    free(p->slots);
    free(p);
}

ingest_block *ingest_pool_blank(ingest_pool *p)
{
    return p->n_pushed - p->n_taken < p->n_slots ? &p->slots[p->n_pushed % p->n_slots].block : NULL;
}

queue_figures ingest_pool_queue(const ingest_pool *p)
{
    return (queue_figures){ .depth = p->n_pushed - p->n_taken, .high_water = p->most_on_the_way, .capacity = p->n_slots };
}

bool ingest_pool_fits(const ingest_pool *p, size_t n_bytes)
{
    return p->bytes_on_the_way == 0 || p->bytes_on_the_way + n_bytes <= POOL_BYTES_MAX;
}

void ingest_pool_push(ingest_pool *p)
{
    slot *s = &p->slots[p->n_pushed++ % p->n_slots];
    p->bytes_on_the_way += s->block.capacity;
    if (p->n_pushed - p->n_taken > p->most_on_the_way) p->most_on_the_way = p->n_pushed - p->n_taken;
    pthread_mutex_lock(&p->lock);
    s->state = SLOT_FILLED;
    p->n_filled++;
    pthread_cond_signal(&p->filled);
    pthread_mutex_unlock(&p->lock);
}

ingest_block *ingest_pool_take(ingest_pool *p, bool wait)
{
    if (p->n_taken == p->n_pushed) return NULL;
    slot *s = &p->slots[p->n_taken % p->n_slots];
    pthread_mutex_lock(&p->lock);
    while (wait && s->state != SLOT_PARSED) pthread_cond_wait(&p->parsed, &p->lock);
    bool is_parsed = s->state == SLOT_PARSED;
    pthread_mutex_unlock(&p->lock);
    return is_parsed ? &s->block : NULL;
}

void ingest_pool_give_back(ingest_pool *p)
{
    slot *s = &p->slots[p->n_taken++ % p->n_slots];
    p->bytes_on_the_way -= s->block.capacity;
    ingest_block_reset(&s->block);
    s->state = SLOT_BLANK;               /* nobody else looks at it before it is filled again */
}
