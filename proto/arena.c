#include "proto/arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/status.h"

#define ALIGN 64

/* The header fills one alignment unit, so that the data behind it is aligned as the chunk is. */
struct fl_arena_chunk {
    _Alignas(ALIGN) fl_arena_chunk *next;
    size_t capacity;                                     /* bytes behind the header */
};

static uint8_t *chunk_data(fl_arena_chunk *chunk)
{
    return (uint8_t *)chunk + sizeof *chunk;
}

void fl_arena_init(fl_arena *arena, size_t chunk_bytes, size_t limit_bytes)
{
    FL_ASSERT(chunk_bytes > 0 && chunk_bytes <= SIZE_MAX / 2);
    *arena = (fl_arena){ .chunk_bytes = (chunk_bytes + ALIGN - 1) / ALIGN * ALIGN, .limit_bytes = limit_bytes };
}

/* A new chunk for at least `need` bytes (a multiple of ALIGN), of chunk_bytes where the limit allows it. */
static fl_arena_chunk *chunk_new(fl_arena *arena, size_t need)
{
    size_t capacity = need > arena->chunk_bytes ? need : arena->chunk_bytes;
    if (arena->limit_bytes) {
        size_t left = (arena->limit_bytes - arena->total_bytes) / ALIGN * ALIGN;
        if (need > left) return NULL;
        if (capacity > left) capacity = left;
    }
    fl_arena_chunk *chunk = aligned_alloc(ALIGN, sizeof *chunk + capacity);
    if (!chunk) return NULL;
    chunk->capacity = capacity;
    arena->total_bytes += capacity;
    return chunk;
}

void *fl_arena_take(fl_arena *arena, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2) return NULL;
    size_t need = n_bytes ? (n_bytes + ALIGN - 1) / ALIGN * ALIGN : ALIGN;
    if (need <= arena->capacity - arena->used) {
        uint8_t *taken = chunk_data(arena->chunks) + arena->used;
        arena->used += need;
        return memset(taken, 0, need);
    }
    fl_arena_chunk *chunk = chunk_new(arena, need);
    if (!chunk) return NULL;
    if (arena->chunks && need == chunk->capacity) {      /* full at once: keep taking from the current chunk */
        chunk->next = arena->chunks->next;
        arena->chunks->next = chunk;
    } else {
        chunk->next = arena->chunks;
        arena->chunks = chunk;
        arena->capacity = chunk->capacity;
        arena->used = need;
    }
    return memset(chunk_data(chunk), 0, need);
}

char *fl_arena_copy(fl_arena *arena, const void *data, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2) return NULL;
    char *copy = fl_arena_take(arena, n_bytes + 1);
    if (copy && n_bytes) memcpy(copy, data, n_bytes);
    return copy;
}

void fl_arena_reset(fl_arena *arena)
{
    fl_arena_chunk *keep = arena->chunks;                /* the largest: the next round is likely to fit in it */
    for (fl_arena_chunk *c = arena->chunks; c; c = c->next)
        if (c->capacity > keep->capacity) keep = c;
    for (fl_arena_chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        if (c != keep) free(c);
    }
    if (keep) keep->next = NULL;
    arena->chunks = keep;
    arena->used = 0;
    arena->capacity = arena->total_bytes = keep ? keep->capacity : 0;
}

void fl_arena_trim(fl_arena *arena, size_t keep_bytes)
{
    fl_arena_reset(arena);
    if (arena->capacity > keep_bytes) fl_arena_fini(arena);
}

void fl_arena_fini(fl_arena *arena)
{
    for (fl_arena_chunk *c = arena->chunks, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    arena->chunks = NULL;
    arena->used = arena->capacity = arena->total_bytes = 0;
}
