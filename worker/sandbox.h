/* sandbox.h - one bubblewrap with a Python interpreter in it: starting it, watching what it uses, ending all of it.
 * Inside   own user, pid, network, ipc, uts and cgroup namespaces; of the machine only /usr (read-only) and /dev/null, zero and urandom; /tmp of SANDBOX_TMP_BYTES; no /proc; no
 *          capabilities, no new privileges, worker/sandbox_filter.h; an empty environment but for a fixed locale, time zone and PYTHONHASHSEED=0. A root worker gives root up
 *          (uid and gid 65534) before bubblewrap starts, since the kernel does not count root's processes.
 *          Memory, files, processes and the like are limited by the program itself before it runs anything foreign (the kernel lets a new user namespace's limits
 *          count only from within), and by a control group where there is one (worker/sandbox_group.h).
 * Program  Python's marshal form of a module's code, or source that begins with '#'; it runs with descriptor SANDBOX_LINK_FD, and nothing else is open but 0 (/dev/null), 1 and 2.
 * Ending   Python is pid 1 inside: nothing inside can kill it, and when it ends or is killed from here the kernel kills and waits for every other process of the namespace, whatever
 *          session or parent it has. bubblewrap reaps it. Between it and us stands a guard, our child, which ends the sandbox when our process ends.
 * Threads  belongs to one thread. */
#ifndef WORKER_SANDBOX_H
#define WORKER_SANDBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "proto/status.h"
#include "worker/sandbox_group.h"

enum { SANDBOX_LINK_FD = 3, SANDBOX_PROGRAM_FD = 4, SANDBOX_TMP_BYTES = 32 << 20 };

/* What all starts share. */
typedef struct {
    char bwrap[256], python[64];
    int filter_fd;                       /* a sealed memory file with the seccomp program */
    bool gives_up_root;
} sandbox_kit;

fl_status sandbox_kit_open(sandbox_kit *kit, fl_err *err);           /* FL_UNSUPPORTED when bubblewrap or python3 is missing, with what to install */
void      sandbox_kit_close(sandbox_kit *kit);                       /* accepts a zeroed one */

/* A sealed memory file with these bytes, for `program_fd`: nobody can change it, also not who has it open. */
fl_status sandbox_sealed_file(int *out, const char *name, const void *bytes, size_t n, fl_err *err);

typedef struct {
    pid_t outer;                         /* the guard, our child, bubblewrap's parent; 0: none */
    pid_t inner;                         /* pid 1 inside, as seen from here; 0: not known yet */
    int outer_pidfd, inner_pidfd;        /* -1: none */
    int info_fd;                         /* the guard says on it what `inner` is; -1 afterwards */
    int life_fd;                         /* its guard ends it when this is closed, also by our end; -1: it was */
} sandbox;

#define SANDBOX_NONE ((sandbox){.outer_pidfd = -1, .inner_pidfd = -1, .info_fd = -1, .life_fd = -1})

/* Start one. link_fd, program_fd and output_fd (its stdout and stderr) stay the caller's. `group` may be NULL. The descriptor to poll for its end is outer_pidfd. */
fl_status sandbox_start(sandbox *box, const sandbox_kit *kit, int link_fd, int program_fd, int output_fd, const sandbox_group *group, fl_err *err);

/* End all that runs inside. Does not wait: sandbox_reap says when it is over. */
void sandbox_kill(sandbox *box);

/* True when it has ended, wholly: nothing of it runs, its descriptors are closed and the object is SANDBOX_NONE again. *status is bubblewrap's wait status; a signal when it was ended from outside. */
bool sandbox_reap(sandbox *box, int *status);

/* sandbox_kill and sandbox_reap, waiting. */
void sandbox_end(sandbox *box);

/* What the processes of `n` sandboxes use at this moment, by one pass over /proc. A sandbox whose `inner` is not known yet, or that has ended, has used nothing. */
typedef struct {
    uint64_t cpu_ms;                     /* of live processes and of the dead ones that they waited for */
    uint64_t waited_ms;                  /* in which they were ready and had no core */
    uint64_t memory_bytes;               /* resident, shared pages counted in each */
    uint32_t n_processes;
} sandbox_use;

void sandbox_measure(sandbox *const boxes[], size_t n, sandbox_use use[]);

#endif
