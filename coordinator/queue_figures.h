/* queue_figures.h - a queue as `status` shows it: how much is in it, how much was at most, how much may be, in its own unit.
 * Threads  a value; it belongs to who counts. */
#ifndef COORDINATOR_QUEUE_FIGURES_H
#define COORDINATOR_QUEUE_FIGURES_H

#include <stdint.h>

typedef struct { uint64_t depth, high_water, capacity; } queue_figures;

/* So much is in it now. */
static inline void queue_note(queue_figures *q, uint64_t depth)
{
    q->depth = depth;
    if (depth > q->high_water) q->high_water = depth;
}

#endif
