/* fuzz_wire.c - wire_decode on any header. The first byte is the number of parts that come with it. What decodes must encode to a
 * canonical form that is no longer than the input, decodes again and encodes to itself. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static fl_bytes parts[255];
    if (n_bytes < 1) return 0;
    fl_arena arena;
    fl_arena_init(&arena, 4096, 0);
    wire_msg msg, again;
    const uint8_t *first, *second;
    size_t n_first, n_second;
    fl_err err = { 0 };
    if (wire_decode(&msg, data + 1, n_bytes - 1, parts, data[0], &arena, &err) == FL_OK) {
        FL_ASSERT(wire_encode(&msg, &arena, &first, &n_first, &err) == FL_OK);
        FL_ASSERT(n_first <= n_bytes - 1);
        FL_ASSERT(wire_decode(&again, first, n_first, parts, data[0], &arena, &err) == FL_OK);
        FL_ASSERT(wire_encode(&again, &arena, &second, &n_second, &err) == FL_OK);
        FL_ASSERT(n_first == n_second && memcmp(first, second, n_first) == 0);
    } else {
        FL_ASSERT(err.text[0]);
    }
    fl_arena_fini(&arena);
    return 0;
}
