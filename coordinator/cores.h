/* cores.h - how many threads of this process can run at the same time.
 * Threads  plain function. */
#ifndef COORDINATOR_CORES_H
#define COORDINATOR_CORES_H

int cores_here(void);                    /* from 1; the cores that its affinity allows, which may be fewer than the machine has */

#endif
