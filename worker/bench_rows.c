#include "worker/bench_rows.h"

#include <stdlib.h>

#define N 624
#define M 397
#define LENGTH_LEAST 100
#define LENGTH_MOST 1024
#define ID_MOST 10000

/* ---- Python's random ---- */

static void init_genrand(python_random *r, uint32_t seed)
{
    r->state[0] = seed;
    for (uint32_t i = 1; i < N; i++) r->state[i] = 1812433253u * (r->state[i - 1] ^ r->state[i - 1] >> 30) + i;
    r->at = N;
}

/* init_by_array of the one word `seed`. */
void python_random_init(python_random *r, uint32_t seed)
{
    uint32_t *s = r->state;
    uint32_t i = 1;
    init_genrand(r, 19650218u);
    for (int k = 0; k < N; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1664525u) + seed;
        if (++i == N) { s[0] = s[N - 1]; i = 1; }
    }
    for (int k = 0; k < N - 1; k++) {
        s[i] = (s[i] ^ (s[i - 1] ^ s[i - 1] >> 30) * 1566083941u) - i;
        if (++i == N) { s[0] = s[N - 1]; i = 1; }
    }
    s[0] = 0x80000000u;
}

static void next_state(python_random *r)
{
    uint32_t *s = r->state;
    for (int i = 0; i < N; i++) {
        const uint32_t y = (s[i] & 0x80000000u) | (s[(i + 1) % N] & 0x7fffffffu);
        s[i] = s[(i + M) % N] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0);
    }
    r->at = 0;
}

static uint32_t next_word(python_random *r)
{
    if (r->at == N) next_state(r);
    uint32_t y = r->state[r->at++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

int32_t python_random_int(python_random *r, int32_t lo, int32_t hi)
{
    FL_ASSERT(lo <= hi);
    const uint32_t n = (uint32_t)hi - (uint32_t)lo + 1;
    FL_ASSERT(n > 0);
    const int unused = __builtin_clz(n);
    uint32_t v;
    do v = next_word(r) >> unused; while (v >= n);
    return (int32_t)((uint32_t)lo + v);
}

/* ---- rows ---- */

static fl_status take_lists(bench_rows *rows, int32_t n_rows, int32_t input, fl_err *err)
{
    const size_t n = (size_t)n_rows;
    *rows = (bench_rows){ .n_rows = n_rows };
    rows->ids = malloc(n * (size_t)(input ? input : LENGTH_MOST) * sizeof *rows->ids);
    rows->n_prompt = malloc(n * sizeof *rows->n_prompt);
    rows->n_output = malloc(n * sizeof *rows->n_output);
    return rows->ids && rows->n_prompt && rows->n_output ? FL_OK : fl_fail(err, FL_FULL, "no memory for %d rows", n_rows);
}

fl_status bench_rows_make(bench_rows *rows, int32_t n_rows, int32_t input, int32_t output, fl_err *err)
{
    python_random random;
    fl_status st = take_lists(rows, n_rows, input, err);
    if (st != FL_OK) return st;
    python_random_init(&random, 0);
    for (int32_t i = 0; i < n_rows; i++) {
        rows->n_prompt[i] = input ? input : python_random_int(&random, LENGTH_LEAST, LENGTH_MOST);
        for (int32_t k = 0; k < rows->n_prompt[i]; k++) rows->ids[rows->n_prompt_tokens++] = python_random_int(&random, 0, ID_MOST);
    }
    for (int32_t i = 0; i < n_rows; i++) {
        rows->n_output[i] = output ? output : python_random_int(&random, LENGTH_LEAST, LENGTH_MOST);
        rows->n_output_tokens += rows->n_output[i];
        if (rows->n_prompt[i] + rows->n_output[i] > rows->n_longest) rows->n_longest = rows->n_prompt[i] + rows->n_output[i];
    }
    return FL_OK;
}

void bench_rows_fit(bench_rows *rows, int32_t n_vocab)
{
    for (int64_t i = 0; i < rows->n_prompt_tokens; i++) rows->ids[i] %= n_vocab;
}

void bench_rows_free(bench_rows *rows)
{
    free(rows->ids);
    free(rows->n_prompt);
    free(rows->n_output);
    *rows = (bench_rows){ 0 };
}
