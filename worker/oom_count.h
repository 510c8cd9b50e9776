/* oom_count.h - how often the kernel killed a process of our memory cgroup for want of memory: the evidence that turns a SIGKILL of the engine into an end of its own making.
 * Source   memory.events (cgroup v2) or memory.oom_control (v1), field oom_kill, of the group that /proc/self/cgroup names. In a container it is usually readable; where it is not there is
 *          no evidence.
 * Threads  plain functions. */
#ifndef WORKER_OOM_COUNT_H
#define WORKER_OOM_COUNT_H

#include <stdint.h>

/* Of this process's group; -1: not known here. */
int64_t oom_count_read(void);

/* The same with other places for /proc/self/cgroup and /sys/fs/cgroup. */
int64_t oom_count_read_at(const char *membership, const char *root);

#endif
