/* engine_rows.h - random requests, and what becomes of them in an engine: hashes of the whole results, for the tests that compare settings (engine_bits_test) and devices.
 * A model without tokenizer takes no stop strings: make_rows leaves them out below 1,024 ids. */
#ifndef TESTS_PROPERTY_ENGINE_ROWS_H
#define TESTS_PROPERTY_ENGINE_ROWS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <xxhash.h>
#include "engine/engine.h"
#include "kernels/ops.h"

#define N_REQUESTS 28
#define SAMPLES_MAX 4
#define PROMPT_MAX 330
#define CONTEXT 448                      /* 7 blocks */

typedef struct {
    int32_t prompt[PROMPT_MAX], n_prompt;
    uint32_t n_samples;
    sampling sampling;
    const char *stop[2]; size_t stop_bytes[2], n_stop;
    int32_t stop_ids[2]; size_t n_stop_ids;
} row;

typedef struct { XXH128_hash_t hash[N_REQUESTS][SAMPLES_MAX]; uint64_t n_tokens; engine_stats stats; } outcome;

static row rows[N_REQUESTS];
static int32_t rows_vocab = 1024;
static uint64_t seed;

static uint32_t next_random(void)
{
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return (uint32_t)(seed >> 32);
}

static int32_t between(int32_t lo, int32_t hi) { return lo + (int32_t)(next_random() % (uint32_t)(hi - lo + 1)); }
static bool    chance(int percent) { return between(1, 100) <= percent; }
static float   pick(const float *values, int n) { return values[between(0, n - 1)]; }

static void make_row(row *r, int index)
{
    static const int32_t borders[] = { 1, 2, 63, 64, 65, 127, 128, 129, 192, 256 };
    static const char *const stops[] = { "\n", "return", " ", "e", "in", ")", "x = " };
    *r = (row){ .n_prompt = index % 2 ? borders[between(0, 9)] : between(1, PROMPT_MAX), .n_samples = (uint32_t)between(1, SAMPLES_MAX) };
    for (int32_t i = 0; i < r->n_prompt; i++) r->prompt[i] = between(0, rows_vocab - 1);
    if (index >= 3 && index % 3 == 0) memcpy(r->prompt, rows[0].prompt, sizeof(int32_t) * (size_t)(r->n_prompt < rows[0].n_prompt ? r->n_prompt : rows[0].n_prompt));
    r->sampling = (sampling){
        .temperature = pick((const float[]){ 0, 0.5f, 1.0f, 2.0f }, 4), .top_p = pick((const float[]){ 1, 0.95f, 0.6f }, 3), .top_k = chance(50) ? 0 : between(1, 60),
        .min_p = chance(70) ? 0 : 0.05f, .repetition_penalty = chance(60) ? 1 : 1.3f, .presence_penalty = chance(70) ? 0 : 0.7f,
        .frequency_penalty = chance(70) ? 0 : -0.4f, .max_tokens = chance(5) ? 0 : between(1, 100), .ignore_eos = chance(60),
        .n_top = chance(50) ? -1 : between(0, 4), .n_prompt_top = chance(75) ? -1 : between(0, 3), .seed = next_random(), .id_hash = next_random() };
    r->sampling.min_tokens = chance(70) ? 0 : between(0, r->sampling.max_tokens);
    if (chance(25)) { r->n_stop = 2; for (int i = 0; i < 2; i++) { r->stop[i] = stops[between(0, 6)]; r->stop_bytes[i] = strlen(r->stop[i]); } }
    if (chance(25)) { r->n_stop_ids = 2; r->stop_ids[0] = between(0, rows_vocab - 1); r->stop_ids[1] = between(0, 5000); }
}

static void require(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s", err->text);
}

static void make_rows(uint64_t from, int32_t n_vocab)
{
    seed = from ? from : 1;
    rows_vocab = n_vocab;
    for (int i = 0; i < N_REQUESTS; i++) {
        make_row(&rows[i], i);
        if (n_vocab < 1024) rows[i].n_stop = 0;
    }
}

static void add_row(engine *e, int index, uint32_t lo, uint32_t hi)
{
    const row *r = &rows[index];
    fl_err err;
    engine_request request = { .tag = (uint64_t)index * SAMPLES_MAX + lo, .prompt = r->prompt, .n_prompt = r->n_prompt, .sample_lo = lo, .sample_hi = hi, .sampling = r->sampling,
                               .stop = r->stop, .stop_bytes = r->stop_bytes, .n_stop = r->n_stop, .stop_ids = r->stop_ids, .n_stop_ids = r->n_stop_ids };
    require(engine_add(e, &request, &err), &err);
}

static void keep_result(outcome *o, engine_event *event)
{
    uint8_t *bytes;
    size_t n_bytes;
    fl_err err;
    if (event->kind != ENGINE_FINISHED) fail_msg("request %d failed: %s", (int)event->tag, event->text);
    require(fl_result_encode(event->result, &bytes, &n_bytes, &err), &err);
    XXH128_hash_t *hash = &o->hash[event->tag / SAMPLES_MAX][event->sample];
    assert_true(hash->low64 == 0 && hash->high64 == 0);
    *hash = XXH3_128bits(bytes, n_bytes);
    o->n_tokens += event->result->n_ids;
    free(bytes);
    fl_result_free(event->result);
    free(event->result);
}

/* Run every row. is_split: each sample is a request of its own, added youngest first, three rows before each step. */
static void run_rows(outcome *o, const engine_options *options, bool is_split)
{
    engine *e = NULL;
    engine_event events[3];
    fl_err err;
    fl_status st;
    int32_t n;
    int next = 0;
    memset(o, 0, sizeof *o);
    require(engine_open(&e, options, &err), &err);
    for (;; ) {
        for (int k = 0; next < N_REQUESTS && (k < 3 || !is_split); k++, next++) {
            if (!is_split) { add_row(e, next, 0, rows[next].n_samples); continue; }
            int index = N_REQUESTS - 1 - next;
            for (uint32_t i = 0; i < rows[index].n_samples; i++) add_row(e, index, i, i + 1);
        }
        if ((st = engine_step(e, events, 3, &n, &err)) != FL_OK) break;
        for (int32_t i = 0; i < n; i++) keep_result(o, &events[i]);
    }
    if (st != FL_AGAIN) fail_msg("%s", err.text);
    assert_int_equal(next, N_REQUESTS);
    o->stats = engine_read_stats(e);
    assert_int_equal(o->stats.running + o->stats.waiting, 0);
    assert_int_equal(o->stats.kv_tokens_used, 0);
    engine_close(e);
}

/* The first row and sample whose bytes differ is the test's failure. */
static void check_same(const char *name, const outcome *got, const outcome *expected)
{
    for (int i = 0; i < N_REQUESTS; i++)
        for (uint32_t k = 0; k < rows[i].n_samples; k++)
            if (!XXH128_isEqual(got->hash[i][k], expected->hash[i][k]))
                fail_msg("%s: row %d, sample %u has other bytes (prompt of %d, max_tokens %d)", name, i, k, rows[i].n_prompt, rows[i].sampling.max_tokens);
    print_message("%s: same bytes, %llu steps, %llu preemptions\n", name, (unsigned long long)got->stats.steps, (unsigned long long)got->stats.preemptions);
}

#endif
