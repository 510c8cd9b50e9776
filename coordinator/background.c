#include "coordinator/background.h"

#include <signal.h>
#include <string.h>

static void *run_work(void *context)
{
    background *b = context;
    b->status = b->work(b->context, &b->err);
    atomic_store(&b->done, true);
    return NULL;
}

fl_status background_start(background *b, background_work work, void *context, fl_err *err)
{
    FL_ASSERT(!b->running);
    b->work = work;
    b->context = context;
    atomic_store(&b->done, false);
    sigset_t all, before;                                /* signals are for the loop's thread */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&b->thread, NULL, run_work, b);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) return fl_fail_errno(err, error, "no thread for work in the background");
    b->running = true;
    return FL_OK;
}

fl_status background_wait(background *b, fl_err *err)
{
    if (!b->running) return FL_AGAIN;
    pthread_join(b->thread, NULL);
    b->running = false;
    if (b->status != FL_OK && err) *err = b->err;
    return b->status;
}

fl_status background_poll(background *b, fl_err *err)
{
    return b->running && atomic_load(&b->done) ? background_wait(b, err) : FL_AGAIN;
}
