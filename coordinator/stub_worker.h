/* stub_worker.h - a worker without an engine, for `bench-fleet`: it speaks wire.h as tokenfleet-worker does (hello, beats, credits, leases, an outbox that empties
 * by answers, hand-back, good-bye) and "computes" rows at a fixed pace. What it answers is a function of (row, sample) alone, so a row that is made
 * twice has the same bytes. One worker is pure state; stub_fleet.h gives many of them sockets and a clock.
 * Waiting   a worker waits while it holds no row though its outbox has room. Only time before the fleet's last grant counts: behind it there is nothing to
 *           hand out and what is left is the tail.
 * Threads   all workers of one fleet belong to one thread; stub_stats.n_committed may be read by others. */
#ifndef COORDINATOR_STUB_WORKER_H
#define COORDINATOR_STUB_WORKER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/wire.h"

#define STUB_VOCAB 151936                /* of the largest tokenizers in use: most ids take two or three bytes */
#define STUB_LATENCY_BUCKETS 256
#define STUB_NEVER INT64_MAX

/* Result bodies as an engine makes them (fl_result_encode), ready to send. */
typedef struct { uint8_t **v; size_t *n_bytes; size_t n; uint32_t n_tokens; } stub_bodies;     /* owned */
fl_status stub_bodies_open(stub_bodies *bodies, uint32_t n_tokens, fl_err *err);
void      stub_bodies_close(stub_bodies *bodies);        /* accepts a zeroed one */
fl_bytes  stub_body(const stub_bodies *bodies, uint64_t row, uint64_t sample);

/* What a fleet has done. Times are CLOCK_BOOTTIME in microseconds, 0 = never. */
typedef struct {
    atomic_uint_fast64_t n_committed, n_welcome;         /* answers that said committed; workers that were welcomed once */
    uint64_t n_duplicate, n_stale, n_refused, n_sent, n_grants, n_samples_granted, n_hellos;
    uint64_t sent_bytes, received_bytes;                 /* frames of messages, both ways */
    uint64_t outbox_high, outbox_high_bytes, held_high;  /* the most that one worker had, in results, bytes, samples */
    uint64_t waited_us, present_us;                      /* sums over workers; see Waiting */
    uint64_t latency[STUB_LATENCY_BUCKETS];              /* from a result's sending to its answer; stub_latency_us tells what a bucket is */
    int64_t first_grant_us, last_grant_us, last_answer_us;
    uint64_t cpu_us;                                     /* of the process, at its end */
} stub_stats;

/* The middle of a bucket, in microseconds; buckets grow by an eighth of an octave. */
double stub_latency_us(size_t bucket);

typedef struct {
    uint64_t interval_us;                /* between two results of one worker; 0 = as fast as it is read */
    uint64_t credit_tokens, credit_bytes;
    const stub_bodies *bodies;           /* borrowed */
    stub_stats *stats;                   /* borrowed; shared by the fleet's workers */
} stub_options;

typedef struct stub_worker stub_worker;

fl_status stub_open(stub_worker **out, uint64_t id, const stub_options *options, int64_t now_us, fl_err *err);   /* options: borrowed */
void      stub_close(stub_worker *w);                    /* accepts NULL */

/* A message of the coordinator came. FL_CORRUPT: it breaks the protocol. FL_FULL: no memory. */
fl_status stub_hear(stub_worker *w, const wire_msg *msg, int64_t now_us, fl_err *err);

/* What it has to say now; false when nothing. *msg and *part are borrowed until the next call. Then stub_said, or the same message is given again. */
bool stub_next(stub_worker *w, int64_t now_us, wire_msg *msg, fl_bytes *part);
void stub_said(stub_worker *w, int64_t now_us);

int64_t stub_due_us(const stub_worker *w);               /* when stub_next may have something, unless a message comes before */
void    stub_stop(stub_worker *w, bool finish);          /* finish: make and hand in what is held; else hand it back. Then say good-bye */
bool    stub_ended(const stub_worker *w);                /* its good-bye was said */
void    stub_account(stub_worker *w);                    /* at the end: its waiting goes into the stats */

#endif
