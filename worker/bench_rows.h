/* bench_rows.h - the rows of `bench job`: token ids and lengths as nano-vLLM's bench draws them, from Python's random seeded with 0. First each row's prompt: its length,
 * randint(100, 1024), then as many ids, randint(0, 10000); after all prompts each row's output length, randint(100, 1024). 256 rows are 142,827 prompt and 133,966 output tokens.
 * Source   Mersenne Twister MT19937, Matsumoto & Nishimura 1998; seeded by init_by_array as Python does; randint takes the top bits of a draw, again until they are in range.
 * Threads  plain functions. */
#ifndef WORKER_BENCH_ROWS_H
#define WORKER_BENCH_ROWS_H

#include <stdint.h>
#include "proto/status.h"

/* Python's random.Random(seed). */
typedef struct { uint32_t state[624]; int32_t at; } python_random;
void    python_random_init(python_random *r, uint32_t seed);
int32_t python_random_int(python_random *r, int32_t lo, int32_t hi);     /* randint(lo, hi), both included; lo <= hi */

typedef struct {
    int32_t n_rows;
    int32_t *ids;                        /* owned: all prompts, one behind the other */
    int32_t *n_prompt, *n_output;        /* owned [n_rows] */
    int64_t n_prompt_tokens, n_output_tokens;
    int32_t n_longest;                   /* prompt + output */
} bench_rows;

/* input, output: the length of every row instead of a drawn one; 0 = drawn. FL_FULL without memory. */
fl_status bench_rows_make(bench_rows *rows, int32_t n_rows, int32_t input, int32_t output, fl_err *err);
void      bench_rows_fit(bench_rows *rows, int32_t n_vocab);             /* ids modulo n_vocab, for small vocabularies */
void      bench_rows_free(bench_rows *rows);                             /* accepts a zeroed one */

#endif
