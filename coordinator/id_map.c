#include "coordinator/id_map.h"

#include <stdlib.h>
#include <string.h>

#include "proto/status.h"

static size_t home(const id_map *map, uint64_t id)
{
    id ^= id >> 33;                                      /* MurmurHash3's finalizer: ids may be counters */
    id *= 0xff51afd7ed558ccdu;
    id ^= id >> 33;
    return (size_t)id & (map->capacity - 1);
}

/* The slot of `id`, or the free slot where it would go. */
static size_t find(const id_map *map, uint64_t id)
{
    size_t i = home(map, id);
    while (map->keys[i] != 0 && map->keys[i] != id) i = (i + 1) & (map->capacity - 1);
    return i;
}

void *id_map_get(const id_map *map, uint64_t id)
{
    if (map->capacity == 0 || id == 0) return NULL;
    size_t i = find(map, id);
    return map->keys[i] == id ? map->values[i] : NULL;
}

void id_map_put(id_map *map, uint64_t id, void *value)
{
    FL_ASSERT(id != 0);
    if ((map->count + 1) * 2 > map->capacity) {
        id_map old = *map;
        map->capacity = old.capacity ? old.capacity * 2 : 64;
        map->keys = calloc(map->capacity, sizeof *map->keys);
        map->values = calloc(map->capacity, sizeof *map->values);
        FL_ASSERT(map->keys && map->values);
        for (size_t k = 0; k < old.capacity; k++) {
            if (old.keys[k] == 0) continue;
            size_t i = find(map, old.keys[k]);
            map->keys[i] = old.keys[k];
            map->values[i] = old.values[k];
        }
        free(old.keys);
        free(old.values);
    }
    size_t i = find(map, id);
    if (map->keys[i] == 0) map->count++;
    map->keys[i] = id;
    map->values[i] = value;
}

void id_map_remove(id_map *map, uint64_t id)
{
    if (map->capacity == 0 || id == 0) return;
    size_t i = find(map, id), mask = map->capacity - 1;
    if (map->keys[i] != id) return;
    map->count--;
    map->keys[i] = 0;
    for (size_t k = (i + 1) & mask; map->keys[k] != 0; k = (k + 1) & mask) {      /* close the gap for those that probed past it */
        size_t h = home(map, map->keys[k]);
        if (((k - h) & mask) < ((k - i) & mask)) continue;
        map->keys[i] = map->keys[k];
        map->values[i] = map->values[k];
        map->keys[k] = 0;
        i = k;
    }
}

void id_map_fini(id_map *map)
{
    free(map->keys);
    free(map->values);
    memset(map, 0, sizeof *map);
}
