/* pace.h - how fast two counters went over the last while: a ring of samples, from the oldest of which to now the rates run.
 * Threads  belongs to its caller's. Pure memory. */
#ifndef COORDINATOR_PACE_H
#define COORDINATOR_PACE_H

#include <stdint.h>

#define PACE_SAMPLES 16
typedef struct { int64_t at_ms; uint64_t a, b; } pace_sample;
typedef struct { pace_sample ring[PACE_SAMPLES]; uint64_t n; } pace;     /* zeroed: nothing noted yet */

/* Note the counters of now, when the last note is every_ms old; so the ring covers PACE_SAMPLES * every_ms. */
void pace_note(pace *p, int64_t now_ms, int64_t every_ms, uint64_t a, uint64_t b);

/* A second, up to these counters of now; 0 before the first note, and for a counter that began anew. */
void pace_rates(const pace *p, int64_t now_ms, uint64_t a, uint64_t b, double *a_per_s, double *b_per_s);

#endif
