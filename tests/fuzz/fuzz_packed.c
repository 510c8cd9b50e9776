/* fuzz_packed.c - wire_unpack on any frame. What unpacks must pack to a canonical form that is no longer than the input, unpacks again and packs to itself. */
#include <stdlib.h>
#include <string.h>

#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static uint8_t *pack(const wire_msg *msg, fl_arena *arena, size_t *n_bytes)
{
    wire_packing p;
    FL_ASSERT(wire_pack_begin(&p, msg, arena, NULL) == FL_OK);
    uint8_t *out = fl_arena_take(arena, p.n_bytes);
    FL_ASSERT(out);
    wire_pack(&p, msg, out);
    *n_bytes = p.n_bytes;
    return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    fl_arena arena;
    fl_arena_init(&arena, 4096, 0);
    wire_msg msg, again;
    size_t n_first, n_second;
    fl_err err = { 0 };
    if (wire_unpack(&msg, data, n_bytes, &arena, &err) == FL_OK) {
        const uint8_t *first = pack(&msg, &arena, &n_first);
        FL_ASSERT(n_first <= n_bytes);
        FL_ASSERT(wire_unpack(&again, first, n_first, &arena, &err) == FL_OK);
        FL_ASSERT(again.n_parts == msg.n_parts);
        for (uint32_t i = 0; i < msg.n_parts; i++) {
            FL_ASSERT(msg.parts[i].bytes == again.parts[i].bytes && memcmp(msg.parts[i].data, again.parts[i].data, msg.parts[i].bytes) == 0);
        }
        const uint8_t *second = pack(&again, &arena, &n_second);
        FL_ASSERT(n_first == n_second && memcmp(first, second, n_first) == 0);
    } else {
        FL_ASSERT(err.text[0]);
    }
    fl_arena_fini(&arena);
    return 0;
}
