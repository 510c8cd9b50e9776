/* held_leases.h - what the worker holds: each lease's rows and, sample by sample, whether the engine still owes it, the outbox holds it, or it is settled.
 *
 *     grant ──▶ OWED ──result or row error──▶ MADE ──answer──▶ GONE          a revoke, a hand-back or a lost lease settles from anywhere
 *
 *          A lease leaves when all of it is GONE and no hand-back of it waits to be sent.
 * Threads  belongs to the worker's one thread. */
#ifndef WORKER_HELD_LEASES_H
#define WORKER_HELD_LEASES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/wire.h"

typedef struct held_leases held_leases;

fl_status held_open(held_leases **out, fl_err *err);
void      held_close(held_leases *held);                 /* accepts NULL */

/* Take a GRANT. FL_CONFLICT: the lease is held already (a repeated message, to be ignored). */
fl_status held_grant(held_leases *held, const wire_grant *grant, fl_err *err);

/* The engine made (row, sample), or a row error (sample WIRE_WHOLE_ROW: what the engine owes of the row). False when nothing of it was owed:
 * it was revoked or handed back meanwhile, so the result is dropped. */
bool held_made(held_leases *held, uint64_t lease, uint64_t row, uint64_t sample);

/* (row, sample) is settled; WIRE_WHOLE_ROW is the whole row. */
void held_settle(held_leases *held, uint64_t lease, uint64_t row, uint64_t sample);
void held_settle_lease(held_leases *held, uint64_t lease);

/* Nothing more will be made of what the engine owes of this lease, or of row `*row` of it: it is settled here, and the coordinator is to be told
 * with this reason. A hand-back of a lease that has one waiting is merged into it. */
void held_hand_back(held_leases *held, uint64_t lease, const uint64_t *row, wire_handback_reason reason, const char *text, size_t text_bytes);

/* The next hand-back to send (borrowed; `rows` gives it a place for its list). False when none waits. held_handed follows when it was sent.
 * held_hand_again lets the hand-backs of leases that are still held wait again, for a new connection. */
bool held_next_handback(held_leases *held, wire_msg *msg);
void held_handed(held_leases *held);
void held_hand_again(held_leases *held);

/* For HELLO and BEAT: ids of all leases, in an array of the object that lives until the next call. held_present notes which leases a
 * HELLO presented; held_missing gives those of them that a WELCOME's list lacks, one at a time, 0 at the end. */
wire_list held_ids(held_leases *held);
void      held_present(held_leases *held);
uint64_t  held_missing(held_leases *held, wire_list alive);

size_t held_count(const held_leases *held);
bool   held_owes(const held_leases *held);               /* the engine owes something */

/* Does all that the engine owes belong to one row of one lease? Then *lease and *row name it. */
bool held_owes_one_row(const held_leases *held, uint64_t *lease, uint64_t *row);

#endif
