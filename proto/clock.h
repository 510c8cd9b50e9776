/* clock.h - what time it is, for whoever has to measure or wait. The coordinator's core takes the time as a parameter and must not ask here.
 * Two clocks: `boot` goes on while the machine sleeps, so it is the one for leases, heartbeats and whatever else is agreed with other machines; `awake` stands still meanwhile, so it is the
 * one for how long something may take and how long it took.
 * Threads  any. */
#ifndef PROTO_CLOCK_H
#define PROTO_CLOCK_H

#include <stdint.h>
#include <sys/types.h>

int64_t fl_boot_ms(void);                /* CLOCK_BOOTTIME */
int64_t fl_boot_us(void);
int64_t fl_awake_ms(void);               /* CLOCK_MONOTONIC */
double  fl_awake_s(void);
int64_t fl_cpu_us(pid_t pid);            /* processor time of a process and its threads so far, 0: this one's; 0 when it is gone */

#endif
