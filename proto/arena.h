/* arena.h - memory with one lifetime: many allocations, one free. Three of them exist: process, engine step, message.
 * Threads  an arena belongs to one thread. */
#ifndef FL_ARENA_H
#define FL_ARENA_H

#include <stddef.h>

typedef struct fl_arena_chunk fl_arena_chunk;
typedef struct { fl_arena_chunk *chunks; size_t used; size_t capacity; size_t chunk_bytes; size_t limit_bytes; size_t total_bytes; } fl_arena;

/* Chunks of chunk_bytes are taken as needed; limit_bytes 0 = no limit. Nothing is allocated yet. */
void  fl_arena_init(fl_arena *arena, size_t chunk_bytes, size_t limit_bytes);
void *fl_arena_take(fl_arena *arena, size_t n_bytes);    /* 64-byte aligned, zeroed; NULL past the limit or without memory */
char *fl_arena_copy(fl_arena *arena, const void *data, size_t n_bytes);   /* a NUL follows the copy */
void  fl_arena_reset(fl_arena *arena);                   /* keeps one chunk for the next round */
void  fl_arena_trim(fl_arena *arena, size_t keep_bytes); /* as reset, but a chunk of more than keep_bytes is given back */
void  fl_arena_fini(fl_arena *arena);

#endif
