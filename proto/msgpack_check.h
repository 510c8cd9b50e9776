/* msgpack_check.h - a look at msgpack bytes from outside before msgpack-c may allocate for them.
 * Bounds   msgpack-c takes 24 bytes of memory an array entry and 48 a map entry as soon as it reads the count. Here a count is
 *          first checked against the bytes that remain (each entry needs one at least), and all of them against a limit.
 * Threads  plain functions on the caller's memory. */
#ifndef FL_MSGPACK_CHECK_H
#define FL_MSGPACK_CHECK_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

#define FL_MSGPACK_DEPTH_MAX 16                  /* msgpack-c stops at 32 and calls it a lack of memory */

/* Walk the one object at the start of `data`. FL_OK: it is whole, has at most items_max objects in it (counting itself, keys and
 * values) and is *used bytes long. FL_CORRUPT otherwise. */
fl_status fl_msgpack_check(const uint8_t *data, size_t n_bytes, size_t items_max, size_t *used, fl_err *err);

#endif
