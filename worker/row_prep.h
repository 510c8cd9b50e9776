/* row_prep.h - one thread beside the engine's that turns lines into requests, so that a slow chat template never holds up a batch step.
 * Queue    in order, first in, first out; bounded by what the coordinator grants (lines in, token ids out). Finished items wait until taken.
 * Threads  the owner calls everything here; the thread touches only items that were pushed and not yet taken. */
#ifndef WORKER_ROW_PREP_H
#define WORKER_ROW_PREP_H

#include <stdatomic.h>
#include "worker/row_request.h"

typedef struct row_prep row_prep;

typedef struct row_item {
    uint64_t tag;                    /* the owner's */
    const job_settings *job;         /* borrowed; outlives the item */
    char *line; size_t line_bytes;   /* owned; freed once the request is made */
    uint64_t line_number;
    bool is_renamed;                 /* as the GRANT says */
    atomic_bool cancelled;           /* the owner sets it; the thread then skips the work */
    fl_status status;                /* as row_request_make returned it; FL_CLOSED when it was skipped */
    row_request request;             /* owned */
    row_refusal refusal;
    fl_err err;
    struct row_item *next;
} row_item;

/* `maker` is borrowed and used by the thread alone. wake_fd (an eventfd, borrowed) is written each time an item is finished. */
fl_status row_prep_start(row_prep **out, row_maker *maker, int wake_fd, fl_err *err);
void      row_prep_stop(row_prep *prep);                 /* ends the thread after the item in hand and frees the rest; accepts NULL */

/* Copy the line into a new item and queue it. The item stays the queue's until taken; the owner may keep the pointer to cancel it. */
fl_status row_prep_push(row_prep *prep, uint64_t tag, const job_settings *job, const void *line, size_t line_bytes, uint64_t line_number, bool is_renamed,
                        row_item **out, fl_err *err);
row_item *row_prep_take(row_prep *prep);                 /* the next finished item, which the caller frees; NULL when none */
void      row_item_free(row_item *item);                 /* accepts NULL */

#endif
