/* torture_storm.h - what happens to the fleet of `torture`, and when: each kind of disturbance has its pace, and a seed decides whom it meets and for how long.
 * Threads  one. */
#ifndef COORDINATOR_TORTURE_STORM_H
#define COORDINATOR_TORTURE_STORM_H

#include "coordinator/torture_fleet.h"

/*  kind                  name                      every   first (ms) */
#define TORTURE_STORM_TABLE(X) \
    X(STORM_KILL_WORKERS, "workers_killed",         2000,   1000) \
    X(STORM_KILL_ENGINE,  "engines_killed",         5000,   2500) \
    X(STORM_STOP_WORKER,  "workers_stopped",        5000,   3500) \
    X(STORM_DRAIN_WORKER, "workers_drained",        9000,   4500) \
    X(STORM_KILL_COORD,   "coordinators_killed",    10000,  6000) \
    X(STORM_STOP_COORD,   "coordinators_stopped",   23000,  11000) \
    X(STORM_DRAIN_COORD,  "coordinators_drained",   60000,  19000) \
    X(STORM_CUT_LINK,     "links_cut",              6000,   2000) \
    X(STORM_RESET_LINK,   "links_reset",            8000,   5000) \
    X(STORM_FILL_DISK,    "disks_filled",           0,      13000)

typedef enum {
#define TORTURE_STORM_ENUM(kind, name, every, first) kind,
    TORTURE_STORM_TABLE(TORTURE_STORM_ENUM)
#undef TORTURE_STORM_ENUM
    STORM_KINDS
} storm_kind;

const char *storm_kind_name(storm_kind kind);

typedef struct {
    torture_fleet *fleet;                /* borrowed */
    uint64_t random;                     /* splitmix64 */
    int64_t due_ms[STORM_KINDS];         /* 0: never (again) */
    uint64_t n[STORM_KINDS];
    int64_t mend_ms[TORTURE_HOSTS_MAX];  /* when a cut link comes back; 0 = it is not cut */
    int64_t space_ms;                    /* when the disk has space again; 0 = it is not full */
} torture_storm;

void      torture_storm_begin(torture_storm *s, torture_fleet *fleet, uint64_t seed, int64_t now_ms);
fl_status torture_storm_blow(torture_storm *s, int64_t now_ms, fl_err *err);

/* No new disturbances; what is under way ends at once. */
fl_status torture_storm_calm(torture_storm *s, int64_t now_ms, fl_err *err);

uint64_t torture_random(uint64_t *state);        /* splitmix64 (Steele, Lea, Flood 2014) */

#endif
