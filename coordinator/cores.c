#include "coordinator/cores.h"

#include <sched.h>
#include <unistd.h>

int cores_here(void)
{
    cpu_set_t set;
    long n = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);      /* it fails where there are more than 1,024 */
    return n < 1 ? 1 : (int)n;
}
