/* sandbox_group.h - a control group around one sandbox after the other: memory and process limits that hold for all of its processes together, and their CPU time.
 * Version  1 (each of memory, pids and cpuacct where it is mounted and writable) or 2 (when our own group is delegated to us); without either, all of this does nothing and says so.
 * Lifetime one group lasts as long as its place in the grader and is used again, so that no group is left behind and none is made for each sample.
 * Threads  belongs to one thread. */
#ifndef WORKER_SANDBOX_GROUP_H
#define WORKER_SANDBOX_GROUP_H

#include <stdbool.h>
#include <stdint.h>
#include "proto/status.h"

#define SANDBOX_GROUP_PREFIX "tokenfleet-grade-"
enum { SANDBOX_GROUP_PARTS = 3 };

typedef struct {
    char path[SANDBOX_GROUP_PARTS][200];     /* of memory, pids and CPU accounting; "" where there is none. In version 2 all three are one folder */
    int version;                             /* 0: no group at all */
} sandbox_group;

/* Make the group NAME below ours, with these limits. Whatever cannot be had is left out; never fails. */
void sandbox_group_open(sandbox_group *group, const char *name, uint64_t memory_bytes, uint32_t n_processes);
/* Remove empty groups whose grader's process is no more (names SANDBOX_GROUP_PREFIX + its pid + "-..."). */
void sandbox_group_sweep(void);

void sandbox_group_close(sandbox_group *group);                      /* removes it; nothing may run in it. Accepts a zeroed one */

void sandbox_group_enter(const sandbox_group *group);                /* put the calling process into it: between fork and exec, calls nothing that allocates */

bool sandbox_group_cpu_ms(const sandbox_group *group, uint64_t *cpu_ms);     /* of all that ever ran in it; false: not known */
int64_t sandbox_group_oom_kills(const sandbox_group *group);                 /* -1: not known */

#endif
