/* id_map.h - from a 64-bit id (not 0) to a pointer: open addressing, grows by itself.
 * Threads  one. Pure memory; a failed allocation is an assertion. */
#ifndef COORDINATOR_ID_MAP_H
#define COORDINATOR_ID_MAP_H

#include <stddef.h>
#include <stdint.h>

typedef struct { uint64_t *keys; void **values; size_t capacity, count; } id_map;    /* zeroed = empty */

void *id_map_get(const id_map *map, uint64_t id);        /* NULL when absent */
void  id_map_put(id_map *map, uint64_t id, void *value); /* replaces */
void  id_map_remove(id_map *map, uint64_t id);           /* fine when absent */
void  id_map_fini(id_map *map);

#endif
