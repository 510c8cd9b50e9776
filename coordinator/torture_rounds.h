/* torture_rounds.h - the job of `torture`, again and again: submitted, fetched while it runs, proved, compared with the undisturbed run and deleted, by the user's own commands, each of which
 * is tried again when the coordinator was not there.
 * Threads  one. */
#ifndef COORDINATOR_TORTURE_ROUNDS_H
#define COORDINATOR_TORTURE_ROUNDS_H

#include <jansson.h>
#include "coordinator/sha256.h"
#include "coordinator/torture_fleet.h"
#include "proto/ids.h"

typedef enum { ROUND_LOOK, ROUND_SUBMIT, ROUND_FETCH, ROUND_VERIFY, ROUND_DELETE } round_step;

typedef struct { uint64_t retries, duplicates, stale, refused, leases_granted, leases_lost, handbacks, crashes; } round_events;

typedef struct {
    torture_fleet *fleet;                /* borrowed, as job */
    const char *job;
    char seed[24], out[128], errors[128];
    char hash[2][SHA256_HEX_BYTES];      /* of the undisturbed run: OUT, ERR */
    round_step step;
    torture_task command, watch;
    char name[FL_JOB_NAME_BYTES];        /* of the job under way; "" = none */
    int64_t again_ms, watch_ms, moved_ms;
    uint64_t watch_start;                /* fleet->n_starts when the watch began */
    uint64_t n_done;                     /* rows, as last heard */
    round_events last, sum;              /* of this coordinator's life; of all */
    char why[480];                       /* why the job stands still, as last heard */
    uint64_t n_rounds, rows, failed, tokens, n_tries;
} torture_rounds;

/* Run the job undisturbed (`tokenfleet run`) for its hashes; waits, and a signal ends it. */
fl_status torture_rounds_open(torture_rounds *r, torture_fleet *fleet, const char *job, uint64_t seed, fl_err *err);

/* Go on a little. `more`: begin another round behind this one. *is_over: no round is under way. FL_CORRUPT: something that must hold does not, with the finding. */
fl_status torture_rounds_turn(torture_rounds *r, int64_t now_ms, bool more, bool *is_over, fl_err *err);

#endif
