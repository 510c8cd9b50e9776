/* gpu_place.h - the cores and the memory node next to a GPU, as sysfs gives them for its PCI device: an engine process stays there, so that what it copies does not cross the machine.
 * Threads  plain functions; pinning is the calling thread's, and of all that it starts. */
#ifndef WORKER_GPU_PLACE_H
#define WORKER_GPU_PLACE_H

#include <sched.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
    cpu_set_t cores; int32_t n_cores;    /* 0: not known */
    int32_t node;                        /* of memory; -1: not known */
} gpu_place;

/* What <sysfs>/bus/pci/devices/<pci> says; pci as "0000:1a:00.0", in either case. */
void gpu_place_read(gpu_place *p, const char *sysfs, const char *pci);

/* Keep to those of the cores that this process may use, and prefer the node's memory. What was done, or why not, as words for the log in what[n_bytes]. */
void gpu_place_pin(const gpu_place *p, char *what, size_t n_bytes);

#endif
