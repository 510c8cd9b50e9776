/* stop_match.h - stop strings, exact across token borders and inside UTF-8 sequences: bytes are fed token by token.
 * Rule     the stop whose match ends first wins; of several that end at the same byte, the longest. The text kept ends where the match begins.
 * Threads  a matcher belongs to one sequence. */
#ifndef ENGINE_STOP_MATCH_H
#define ENGINE_STOP_MATCH_H

#include <stddef.h>
#include <stdint.h>
#include "proto/status.h"

typedef struct stop_match stop_match;    /* immutable automaton, shared by the samples of a row */
typedef struct { uint32_t node; int64_t n_bytes; } stop_cursor;      /* one sequence's place; zero-initialized at its first token */

fl_status stop_match_make(stop_match **out, const char *const *stops, const size_t *stop_bytes, size_t n_stops, fl_err *err);
void      stop_match_free(stop_match *m);

/* Feed the bytes of one token. Returns the index of the stop that fired and sets *text_bytes to the number of bytes kept since the first token; -1 when none did. */
int32_t stop_match_feed(const stop_match *m, stop_cursor *cursor, const uint8_t *bytes, size_t n_bytes, int64_t *text_bytes);

/* Move past the bytes of a token that may not end the sequence. A stop may still begin in them. */
void stop_match_skip(const stop_match *m, stop_cursor *cursor, const uint8_t *bytes, size_t n_bytes);

#endif
