/* spawn.h - the worker processes of `run`: started beside this binary, watched, started again when they die.
 * Rules    a worker that ends by itself with a usage or environment status cannot do better the next time: that ends the fleet with its last
 *          sentence. One that is killed is started again, after a pause that doubles while it keeps dying young; too many
 *          deaths in a row without any progress end the fleet too.
 *          Workers die with this process (PR_SET_PDEATHSIG), have their own process group, so that a Ctrl-C at the terminal reaches `run` alone, and
 *          what they print is kept, not shown, unless TOKENFLEET_LOG asks for it.
 * Threads  belongs to the thread that made it. */
#ifndef COORDINATOR_SPAWN_H
#define COORDINATOR_SPAWN_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include "proto/status.h"

#define SPAWN_WORKERS_MAX 256
#define SPAWN_GPUS_MAX 64

typedef struct spawn spawn;

/* The path of the program that lies beside this one, in out[n_bytes]; FL_NOT_FOUND with a sentence when it does not. */
fl_status spawn_find_beside(const char *name, char *out, size_t n_bytes, fl_err *err);

/* Start n_workers of argv (argv[0] is the path; NULL at its end; copied). With n_gpus above 0 worker i also gets --device cuda:N, N = gpus[i mod n_gpus] (copied). */
fl_status spawn_open(spawn **out, char *const *argv, int n_workers, const int *gpus, int n_gpus, fl_err *err);

/* All calls below accept NULL, a fleet of nobody.
 * Read what they print, notice the dead, start them again when it is time. Call often. Any failure: the fleet cannot go on; the
 * sentence is the worker's own where it left one. */
fl_status spawn_tend(spawn *s, int64_t now_ms, fl_err *err);

void spawn_note_progress(spawn *s);                      /* something was committed: the deaths so far are forgiven */
void spawn_no_restart(spawn *s);                         /* from now on a worker that ends stays ended */
int  spawn_alive(const spawn *s);
uint64_t spawn_deaths(const spawn *s);                   /* that were not asked for */

/* End them: SIGTERM, after grace_ms SIGKILL; then wait for each. */
void spawn_close(spawn *s, int64_t grace_ms);

#endif
