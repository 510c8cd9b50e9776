/* outbox.h - results and row errors of the engine that the coordinator has not answered yet: kept until their fate comes, sent again on a new connection.
 * Order    first in, first out; an entry is offered for sending only when its last piece is in it, so a half result never leaves.
 * Full     when the bytes held reach the limit outbox_is_full says so and the engine is not read (back-pressure); one entry always fits.
 * Numbers  outbox_bytes.
 * Threads  belongs to the worker's one thread. */
#ifndef WORKER_OUTBOX_H
#define WORKER_OUTBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/wire.h"

typedef struct outbox outbox;
typedef struct outbox_entry outbox_entry;

fl_status outbox_open(outbox **out, size_t limit_bytes, fl_err *err);
void      outbox_close(outbox *box);                     /* accepts NULL */

/* Take a RESULT (one piece; pieces of a body come in order, bodies one after the other) or a ROW_ERROR; everything is copied. *complete says whether the
 * entry is whole now. FL_CORRUPT: a piece out of order. FL_FULL: no memory. */
fl_status outbox_put(outbox *box, const wire_msg *msg, bool *complete, fl_err *err);
void      outbox_drop_partial(outbox *box);              /* the engine ended inside a body */

/* The fate of (job, lease, row, sample) came; sample WIRE_WHOLE_ROW is a row error. True when an entry left. */
bool outbox_answer(outbox *box, uint64_t job, uint64_t lease, uint64_t row, uint64_t sample);

/* Entries of a lease leave: all of it, or one row (its error and each result), or one result. Returns how many left. */
size_t outbox_drop_lease(outbox *box, uint64_t lease);
size_t outbox_drop(outbox *box, uint64_t lease, uint64_t row, uint64_t sample);

/* The next message to send: fills *msg (borrowed until the next call on the box; `part` gives it a place for its one part). False when everything was sent.
 * outbox_sent moves on behind it; outbox_resend starts over from the oldest entry. */
bool outbox_next(outbox *box, wire_msg *msg, fl_bytes *part);
void outbox_sent(outbox *box);
void outbox_resend(outbox *box);

bool   outbox_is_full(const outbox *box);
size_t outbox_count(const outbox *box);                  /* whole entries not answered */
size_t outbox_bytes(const outbox *box);

#endif
