/* bit_set.h - a growing set of small numbers that finds its lowest member at once: a bitmap with summary levels above it, each bit
 * of which says whether a 64-bit word below is not zero. n / 8 bytes and 1.6% more.
 * Threads  one. Pure memory. */
#ifndef COORDINATOR_BIT_SET_H
#define COORDINATOR_BIT_SET_H

#include <stdbool.h>
#include <stdint.h>

#define BIT_SET_LEVELS 6                 /* 64^6 members: more than a u32 can count */

typedef struct { uint64_t *level[BIT_SET_LEVELS]; uint64_t n_words[BIT_SET_LEVELS]; uint64_t count; } bit_set;    /* zeroed = empty */

bool bit_set_grow(bit_set *set, uint64_t n);             /* room for 0 .. n-1; false without memory (the set is as before) */
void bit_set_fini(bit_set *set);
bool bit_set_has(const bit_set *set, uint64_t i);
void bit_set_add(bit_set *set, uint64_t i);              /* fine when it is in already */
void bit_set_remove(bit_set *set, uint64_t i);           /* fine when it is not in */
bool bit_set_next(const bit_set *set, uint64_t from, uint64_t *i);   /* the lowest member >= from */

#endif
