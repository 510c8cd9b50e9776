#include "proto/clock.h"

#include <time.h>

static int64_t us_of(clockid_t clock)
{
    struct timespec t = { 0 };
    if (clock_gettime(clock, &t) != 0) return 0;         /* of this machine's clocks none fails, a process may be gone */
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int64_t fl_boot_us(void) { return us_of(CLOCK_BOOTTIME); }
int64_t fl_boot_ms(void) { return fl_boot_us() / 1000; }
int64_t fl_awake_ms(void) { return us_of(CLOCK_MONOTONIC) / 1000; }

double fl_awake_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int64_t fl_cpu_us(pid_t pid)
{
    clockid_t clock;
    return clock_getcpuclockid(pid, &clock) == 0 ? us_of(clock) : 0;
}
