/* cpu_pool.c - the helpers of one engine thread.
 *
 * A run is one 64-bit word: [ sequence 24 | chunks 20 | next chunk 20 ]. A thread takes a chunk by adding 1 to the word it has read
 * (compare and swap), so a helper that wakes late, even a whole run late, either takes a chunk that is really there or finds none.
 * Whoever holds a chunk keeps the run alive: the caller returns only when `done` counts every chunk, and only then may the job
 * fields change. The caller takes chunks too, so a helper that the system does not schedule costs nothing but its share.
 *
 *   caller   job fields -> word (release) -> wake sleepers -> take chunks -> wait until done == chunks
 *   helper   read word (acquire) -> take a chunk -> job -> done + 1 -> ... none left: spin a little, then sleep */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define POOL_THREADS_MAX 1024
#define POOL_CHUNKS_PER_THREAD 4
#define POOL_SPINS 4000                  /* about 40 us of pauses: the gap between two kernels of a step, not more */
#define POOL_WORK_MIN 100000.0           /* multiply-adds below which waking a helper costs more than it gives */

struct cpu_pool {
    _Atomic uint64_t word;
    _Atomic int32_t done;                /* chunks finished in this run */
    _Atomic int32_t sleepers;            /* helpers in, or about to enter, wake's wait */
    _Atomic bool waiting;                /* the caller is in, or about to enter, finished's wait */
    _Atomic bool closing;
    _Atomic int32_t n_entered;           /* helpers that have taken an index */
    cpu_job job;                         /* fields of the run: written between runs only */
    const void *arg;
    int32_t n_items;
    int32_t n_threads;                   /* with the caller */
    int32_t n_started;
    pthread_t *threads;                  /* owned [n_threads - 1] */
    pthread_mutex_t lock;                /* guards nothing but the two waits */
    pthread_cond_t wake, finished;
};

static uint32_t word_chunks(uint64_t word) { return (uint32_t)(word >> 20) & 0xfffffu; }
static uint32_t word_next(uint64_t word) { return (uint32_t)word & 0xfffffu; }
static bool word_has_work(uint64_t word) { return word_next(word) < word_chunks(word); }

static void chunk_run(const cpu_pool *p, uint64_t word)
{
    int64_t chunk = word_next(word), chunks = word_chunks(word);
    p->job(p->arg, (int32_t)(chunk * p->n_items / chunks), (int32_t)((chunk + 1) * p->n_items / chunks));
}

/* Take and do one chunk; false when there is none. */
static bool chunk_take(cpu_pool *p)
{
    uint64_t word = atomic_load(&p->word);
    do {
        if (!word_has_work(word)) return false;
    } while (!atomic_compare_exchange_weak(&p->word, &word, word + 1));
    int32_t chunks = (int32_t)word_chunks(word);
    chunk_run(p, word);
    if (atomic_fetch_add(&p->done, 1) + 1 == chunks && atomic_load(&p->waiting)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->lock);
    }
    return true;
}

static _Thread_local int32_t thread_index;                           /* 0: the caller */

int32_t cpu_pool_index(void) { return thread_index; }

static void *helper_main(void *arg)
{
    cpu_pool *p = arg;
    thread_index = atomic_fetch_add(&p->n_entered, 1) + 1;
    int32_t spins = 0;
    while (!atomic_load(&p->closing)) {
        if (chunk_take(p)) { spins = 0; continue; }
        if (++spins < POOL_SPINS) { __builtin_ia32_pause(); continue; }
        pthread_mutex_lock(&p->lock);
        atomic_fetch_add(&p->sleepers, 1);                           /* before the check: the caller stores the word, then reads this */
        while (!word_has_work(atomic_load(&p->word)) && !atomic_load(&p->closing)) pthread_cond_wait(&p->wake, &p->lock);
        atomic_fetch_sub(&p->sleepers, 1);
        pthread_mutex_unlock(&p->lock);
        spins = 0;
    }
    return NULL;
}

fl_status cpu_pool_open(cpu_pool **out, int32_t n_threads, fl_err *err)
{
    fl_status st = FL_OK;
    sigset_t all, before;
    if (n_threads < 2 || n_threads > POOL_THREADS_MAX) return fl_fail(err, FL_INVALID, "kernels: %d threads; give 1 to %d", n_threads, POOL_THREADS_MAX);
    cpu_pool *p = calloc(1, sizeof *p);
    if (!p || !(p->threads = calloc((size_t)n_threads - 1, sizeof *p->threads))) {
        free(p);
        return fl_fail(err, FL_FULL, "kernels: no memory for a pool of %d threads", n_threads);
    }
    p->n_threads = n_threads;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    pthread_cond_init(&p->finished, NULL);
    sigfillset(&all);                                                /* signals are the process's own threads' business */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; p->n_started < n_threads - 1; p->n_started++) {
        int failed = pthread_create(&p->threads[p->n_started], NULL, helper_main, p);
        if (failed) { st = fl_fail_errno(err, failed, "kernels: start thread %d of %d; give --threads fewer", p->n_started + 2, n_threads); break; }
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (st != FL_OK) { cpu_pool_close(p); return st; }
    *out = p;
    return FL_OK;
}

void cpu_pool_close(cpu_pool *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->closing, true);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
    for (int32_t i = 0; i < p->n_started; i++) pthread_join(p->threads[i], NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->threads);
    free(p);
}

static void pool_wait(cpu_pool *p, int32_t chunks)
{
    for (int32_t spins = 0; spins < POOL_SPINS; spins++) {
        if (atomic_load(&p->done) == chunks) return;
        __builtin_ia32_pause();
    }
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->waiting, true);                                 /* before the check: a helper adds to done, then reads this */
    while (atomic_load(&p->done) != chunks) pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->waiting, false);
    pthread_mutex_unlock(&p->lock);
}

void cpu_pool_run(cpu_pool *p, int32_t n_items, double item_work, cpu_job job, const void *arg)
{
    if (n_items <= 0) return;
    if (!p || n_items == 1 || item_work * n_items < POOL_WORK_MIN) { job(arg, 0, n_items); return; }
    int32_t chunks = p->n_threads * POOL_CHUNKS_PER_THREAD;
    if (chunks > n_items) chunks = n_items;
    p->job = job;
    p->arg = arg;
    p->n_items = n_items;
    atomic_store(&p->done, 0);
    uint64_t sequence = (atomic_load(&p->word) >> 40) + 1;
    atomic_store(&p->word, sequence << 40 | (uint64_t)chunks << 20);
    if (atomic_load(&p->sleepers) > 0) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->wake);
        pthread_mutex_unlock(&p->lock);
    }
    while (chunk_take(p)) { }
    pool_wait(p, chunks);
}
