#include "coordinator/id_set.h"

#include <stdbool.h>
#include <stdlib.h>
#include <xxhash.h>

static size_t slot_of(const id_set *set, XXH128_hash_t hash)
{
    size_t mask = set->n_slots - 1, slot = (size_t)hash.low64 & mask;
    while (set->slots[slot]) {
        const id_seen *seen = &set->ids[set->slots[slot] - 1];
        if (seen->low == hash.low64 && seen->high == hash.high64) break;
        slot = (slot + 1) & mask;
    }
    return slot;
}

/* Room for one more id, at most three quarters of the slots in use. */
static bool make_room(id_set *set)
{
    if (set->n_ids == set->ids_capacity) {
        size_t capacity = set->ids_capacity ? set->ids_capacity + set->ids_capacity / 2 : 64;
        id_seen *ids = realloc(set->ids, capacity * sizeof *ids);
        if (!ids) return false;
        set->ids = ids;
        set->ids_capacity = capacity;
    }
    if (set->n_ids + 1 <= set->n_slots / 4 * 3) return true;
    size_t n_slots = set->n_slots ? set->n_slots * 2 : 128;
    uint32_t *slots = calloc(n_slots, sizeof *slots);
    if (!slots) return false;
    free(set->slots);
    set->slots = slots;
    set->n_slots = n_slots;
    for (size_t i = 0; i < set->n_ids; i++)
        slots[slot_of(set, (XXH128_hash_t){ set->ids[i].low, set->ids[i].high })] = (uint32_t)(i + 1);
    return true;
}

fl_status id_set_add(id_set *set, const void *id, size_t n_bytes, uint64_t line, uint64_t *first_line, fl_err *err)
{
    if (set->n_ids == UINT32_MAX - 1 || !make_room(set)) return fl_fail(err, FL_FULL, "no memory for the custom_ids of %zu rows", set->n_ids + 1);
    XXH128_hash_t hash = XXH3_128bits(id, n_bytes);
    size_t slot = slot_of(set, hash);
    if (set->slots[slot]) { *first_line = set->ids[set->slots[slot] - 1].line; return FL_OK; }
    set->ids[set->n_ids++] = (id_seen){ hash.low64, hash.high64, line };
    set->slots[slot] = (uint32_t)set->n_ids;
    *first_line = 0;
    return FL_OK;
}

void id_set_fini(id_set *set)
{
    free(set->ids);
    free(set->slots);
    *set = (id_set){ 0 };
}
