/* background.h - one piece of work on files in a thread of its own, so that the daemon's loop goes on meanwhile: writing a job's outputs, verifying it.
 * Threads  start, poll and wait belong to one thread; `work` runs on another and touches nothing but its context. */
#ifndef COORDINATOR_BACKGROUND_H
#define COORDINATOR_BACKGROUND_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include "proto/status.h"

typedef fl_status (*background_work)(void *context, fl_err *err);

typedef struct {
    pthread_t thread;
    bool running;
    atomic_bool done;
    background_work work;
    void *context;
    fl_status status;
    fl_err err;
} background;                            /* all zero: nothing runs */

fl_status background_start(background *b, background_work work, void *context, fl_err *err);

/* FL_AGAIN while it runs or when nothing was started, else what the work returned; b is free again. */
fl_status background_poll(background *b, fl_err *err);
fl_status background_wait(background *b, fl_err *err);   /* FL_AGAIN when nothing was started */

#endif
