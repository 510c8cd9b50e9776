#include "worker/gpu_place.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE_BYTES 4096
#define NODES_MAX 1024
#define PREFERRED 1                      /* MPOL_PREFERRED of linux/mempolicy.h */

/* The first line of a device's file; empty when it cannot be read. */
static void read_line(char line[LINE_BYTES], const char *sysfs, const char *pci, const char *name)
{
    char path[512];
    int n = snprintf(path, sizeof path, "%s/bus/pci/devices/%s/%s", sysfs, pci, name);
    line[0] = '\0';
    FILE *f = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    if (!f) return;
    if (!fgets(line, LINE_BYTES, f)) line[0] = '\0';
    fclose(f);
}

/* "0-3,8": false, and nothing set, when it is not such a list. Cores beyond the set are passed over. */
static bool read_cores(cpu_set_t *cores, const char *text)
{
    CPU_ZERO(cores);
    for (;;) {
        char *end;
        errno = 0;
        const unsigned long first = strtoul(text, &end, 10), last = *end == '-' && isdigit((unsigned char)end[1]) ? strtoul(end + 1, &end, 10) : first;
        if (!isdigit((unsigned char)*text) || errno || first > last || (*end != ',' && *end != '\n' && *end != '\0')) break;
        for (unsigned long i = first; i <= last && i < CPU_SETSIZE; i++) CPU_SET(i, cores);
        if (*end != ',') return true;
        text = end + 1;
    }
    CPU_ZERO(cores);
    return false;
}

void gpu_place_read(gpu_place *p, const char *sysfs, const char *pci)
{
    char name[32], line[LINE_BYTES], *end;
    size_t n = 0;
    for (; pci[n] && n + 1 < sizeof name; n++) name[n] = (char)tolower((unsigned char)pci[n]);
    name[n] = '\0';
    *p = (gpu_place){ .node = -1 };
    read_line(line, sysfs, name, "local_cpulist");
    if (read_cores(&p->cores, line)) p->n_cores = CPU_COUNT(&p->cores);
    read_line(line, sysfs, name, "numa_node");
    const long node = strtol(line, &end, 10);
    if (end != line && node >= 0 && node < NODES_MAX) p->node = (int32_t)node;
}

/* Why the cores are left as they are; NULL when they were set. */
static const char *pin_cores(const gpu_place *p, int *n_pinned)
{
    cpu_set_t allowed, both;
    if (p->n_cores == 0) return "sysfs does not say which cores are next to it";
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return strerror(errno);
    CPU_AND(&both, &allowed, &p->cores);
    *n_pinned = CPU_COUNT(&both);
    if (*n_pinned == 0) return "none of the cores next to it may be used by this process";
    if (CPU_EQUAL(&both, &allowed)) return "all cores that this process may use are next to it";
    return sched_setaffinity(0, sizeof both, &both) == 0 ? NULL : strerror(errno);
}

static const char *pin_memory(const gpu_place *p)
{
    unsigned long nodes[NODES_MAX / (8 * sizeof(unsigned long))] = { 0 };
    const size_t bits = 8 * sizeof *nodes;
    if (p->node < 0) return "sysfs names no memory node next to it";
    nodes[(size_t)p->node / bits] = 1ul << (size_t)p->node % bits;
    return syscall(SYS_set_mempolicy, PREFERRED, nodes, (unsigned long)NODES_MAX) == 0 ? NULL : strerror(errno);
}

void gpu_place_pin(const gpu_place *p, char *what, size_t n_bytes)
{
    int n_cores = 0;
    char memory[48];
    const char *no_cores = pin_cores(p, &n_cores), *no_memory = pin_memory(p);
    snprintf(memory, sizeof memory, "memory of node %d preferred", p->node);
    if (no_cores) snprintf(what, n_bytes, "cores not pinned: %s; %s%s", no_cores, no_memory ? "memory neither: " : memory, no_memory ? no_memory : "");
    else snprintf(what, n_bytes, "pinned to %d cores next to it; %s%s", n_cores, no_memory ? "memory not: " : memory, no_memory ? no_memory : "");
}
