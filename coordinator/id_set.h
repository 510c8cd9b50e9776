/* id_set.h - has this custom_id been seen, and on which line? 128-bit hashes in memory, 24 bytes an id and a table of 4-byte slots.
 * Threads  one. */
#ifndef COORDINATOR_ID_SET_H
#define COORDINATOR_ID_SET_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct { uint64_t low, high, line; } id_seen;
typedef struct { id_seen *ids; size_t n_ids, ids_capacity; uint32_t *slots; size_t n_slots; } id_set;      /* zeroed is empty; slots hold index + 1 */

/* Add an id. *first_line is 0 when it is new, else the line that added it first (nothing changes then). FL_FULL without memory. */
fl_status id_set_add(id_set *set, const void *id, size_t n_bytes, uint64_t line, uint64_t *first_line, fl_err *err);
void      id_set_fini(id_set *set);

#endif
