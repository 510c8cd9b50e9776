/* Random loads on small pools: every sequence ends, the oldest resident that does not rest runs in every step, none that rests does, a position once written reads back the same after any
 * number of preemptions and forks, and in the end every block and slot is free. Prints its seed; TOKENFLEET_TEST_SEED replays another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/scheduler.h"

#define N_LOADS 60
#define N_JOBS 24
#define CHILDREN_MAX 4
#define CONTEXT 320                      /* 5 blocks */

/* One sequence to be: `total` positions, of which n_prompt in prefill form; a parent forks when its prompt is done. */
typedef struct { sequence seq; int32_t total, n_children; bool is_begun, is_over; float key; } work;

static ops *o;
static uint64_t seed;
static int32_t n_sat, n_preempted;       /* that rested, in memory or preempted meanwhile */

static int32_t between(int32_t lo, int32_t hi)
{
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return lo + (int32_t)((seed >> 32) % (uint64_t)(hi - lo + 1));
}

static void require(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s", err->text);
}

/* KV is one float a position: [n_blocks, 1, 64, 1]. Prompts of one request write its key, later positions the sample's own. */
static float value_at(const work *w, int32_t position) { return (position < w->seq.n_prompt ? (float)w->seq.request : w->key) * 1000.0f + (float)position; }

static void check_memory(const work *w, const ops_kv *kv, const state_pool *states)
{
    const sequence *s = &w->seq;
    for (int32_t p = 0; p < s->n_cached; p++) {
        float k = kv->k[(size_t)s->table.blocks[p / 64] * 64 + (size_t)(p % 64)], v = kv->v[(size_t)s->table.blocks[p / 64] * 64 + (size_t)(p % 64)];
        if (k != value_at(w, p) || v != -k) fail_msg("request %d, sample %u: position %d of %d reads %g, not %g", (int)s->request, s->sample, p, s->n_cached, (double)k, (double)value_at(w, p));
    }
    if (s->n_cached > 0) assert_true(state_pool_delta(states, 0)[s->slot] == value_at(w, s->n_cached - 1));
}

static void write_rows(work *w, const plan_entry *entry, const ops_kv *kv, state_pool *states)
{
    for (int32_t p = entry->first; p < entry->first + entry->n_rows; p++) {
        size_t at = (size_t)w->seq.table.blocks[p / 64] * 64 + (size_t)(p % 64);
        kv->k[at] = value_at(w, p);
        kv->v[at] = -value_at(w, p);
        state_pool_delta(states, 0)[w->seq.slot] = value_at(w, p);
    }
}

static void check_entry(const plan_entry *entry)
{
    const sequence *s = entry->seq;
    assert_int_equal(s->place, SEQ_RESIDENT);
    assert_false(s->is_resting);
    assert_int_equal(entry->first, s->n_cached);
    assert_int_equal(entry->is_prefill, s->n_cached < s->n_prompt);
    if (entry->is_prefill) {
        assert_int_equal(entry->first % 64, 0);
        assert_true(entry->n_rows > 0 && (entry->n_rows % 64 == 0 || entry->first + entry->n_rows == s->n_prompt));
    } else {
        assert_int_equal(entry->n_rows, 1);
    }
    assert_true((entry->first + entry->n_rows + 63) / 64 <= s->table.n_blocks);
}

static bool has_to_fork(const work *w) { return w->n_children > 0 && w->seq.n_cached == w->seq.n_prompt && w->seq.sample == 0 && !w->is_begun; }

/* Fork where the prompt is done, leave where all is done. */
static void advance(scheduler *s, work *w)
{
    fl_err err;
    if (has_to_fork(w)) {
        sequence *children[CHILDREN_MAX];
        w->is_begun = true;
        for (int32_t i = 0; i < w->n_children; i++) children[i] = &w[i + 1].seq;
        require(scheduler_fork(s, &w->seq, children, w->n_children, &err), &err);
    }
    if (w->seq.n_cached < w->total) return;
    scheduler_remove(s, &w->seq);
    w->is_over = true;
}

/* After its rows: some rest for a step before they go on, and may have been preempted by then. */
static void advance_or_rest(scheduler *s, work *w)
{
    w->seq.is_resting = w->seq.n_cached >= w->seq.n_prompt && between(0, has_to_fork(w) ? 1 : 5) == 0;
    if (!w->seq.is_resting) advance(s, w);
}

static uint64_t run_load(int32_t n_blocks, int32_t n_resident_max, int32_t budget)
{
    static work jobs[N_JOBS][1 + CHILDREN_MAX];
    kv_cache *kv = NULL;
    state_pool *states = NULL;
    scheduler *s = NULL;
    fl_err err;
    const plan_entry *entries;
    int32_t n, next = 0, steps = 0;
    require(kv_cache_open(&kv, o, 1, 1, 1, n_blocks, &err), &err);
    require(state_pool_open(&states, o, 1, 1, 0, n_resident_max, &err), &err);
    require(scheduler_open(&s, o, kv, states, n_resident_max, budget, &err), &err);
    ops_kv layer = kv_cache_layer(kv, 0);
    memset(jobs, 0, sizeof jobs);
    for (int32_t j = 0; j < N_JOBS; j++) {
        int32_t n_prompt = between(0, 2) ? between(1, CONTEXT - 1) : 64 * between(1, 4), n_children = between(0, CHILDREN_MAX);
        for (int32_t c = 0; c <= n_children; c++) {
            jobs[j][c] = (work){ .seq = { .request = (uint64_t)j + 1, .sample = (uint32_t)c, .n_prompt = n_prompt }, .total = between(n_prompt, CONTEXT), .key = (float)(100 + 10 * j + c) };
            jobs[j][c].seq.owner = &jobs[j][c];
            if (c > 0 && jobs[j][c].total == n_prompt) jobs[j][c].total++;     /* a child has a token to compute */
        }
        jobs[j][0].n_children = n_children;
    }
    for (;; steps++) {
        if (next < N_JOBS && (steps == 0 || between(0, 3) == 0)) for (int32_t k = between(1, 6); k > 0 && next < N_JOBS; k--) scheduler_add(s, &jobs[next++][0].seq);
        work *resting[N_JOBS * (1 + CHILDREN_MAX)];
        int32_t n_resting = 0;
        for (int32_t j = 0; j < N_JOBS; j++) for (int32_t c = 0; c <= CHILDREN_MAX; c++) if (jobs[j][c].seq.is_resting && !jobs[j][c].is_over) resting[n_resting++] = &jobs[j][c];
        require(scheduler_plan(s, &entries, &n, &err), &err);
        if (n == 0 && n_resting == 0 && next == N_JOBS) break;
        if (steps > 100000) fail_msg("no end after %d steps", steps);
        int32_t n_prefill = 0;
        const sequence *oldest = NULL;
        for (int32_t j = N_JOBS - 1; j >= 0; j--)
            for (int32_t c = CHILDREN_MAX; c >= 0; c--)
                if (jobs[j][c].seq.place == SEQ_RESIDENT && !jobs[j][c].seq.is_resting) oldest = &jobs[j][c].seq;
        if (n > 0) assert_ptr_equal(entries[0].seq, oldest);
        for (int32_t i = 0; i < n; i++) {
            check_entry(&entries[i]);
            check_memory(entries[i].seq->owner, &layer, states);
            n_prefill += entries[i].is_prefill ? entries[i].n_rows : 0;
        }
        assert_true(n_prefill <= budget && n <= n_resident_max);
        for (int32_t i = 0; i < n; i++) write_rows(entries[i].seq->owner, &entries[i], &layer, states);
        for (int32_t i = 0; i < n; i++) entries[i].seq->n_cached += entries[i].n_rows;
        for (int32_t i = 0; i < n_resting; i++) {        /* those that sat this step out */
            if (resting[i]->seq.place == SEQ_RESIDENT) n_sat++;
            else n_preempted++;
            resting[i]->seq.is_resting = false;
            advance(s, resting[i]);
        }
        for (int32_t i = 0; i < n; i++) advance_or_rest(s, entries[i].seq->owner);
        if (between(0, 40) == 0) {                       /* cancel somebody, wherever it is */
            work *w = &jobs[between(0, N_JOBS - 1)][0];
            if (w->seq.place != SEQ_OUTSIDE && (w->is_begun || w->n_children == 0)) { scheduler_remove(s, &w->seq); w->is_over = true; w->seq.is_resting = false; }
        }
    }
    for (int32_t j = 0; j < N_JOBS; j++) for (int32_t c = 0; c <= jobs[j][0].n_children; c++) assert_true(jobs[j][c].is_over);
    assert_int_equal(kv_cache_blocks_free(kv), n_blocks);
    assert_int_equal(state_pool_free(states), n_resident_max);
    uint64_t preemptions = scheduler_preemptions(s);
    scheduler_close(s);
    state_pool_close(states);
    kv_cache_close(kv);
    return preemptions;
}

static void every_sequence_ends_with_its_memory_intact(void **state)
{
    (void)state;
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    uint64_t preemptions = 0;
    seed = given ? strtoull(given, NULL, 10) : 4711;
    if (seed == 0) seed = 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int i = 0; i < N_LOADS; i++) preemptions += run_load(between(5, i % 2 ? 12 : 60), between(1, i % 3 ? 4 : 32), 64 * between(1, 4));
    print_message("%llu preemptions, %d rested, %d of them preempted meanwhile\n", (unsigned long long)preemptions, n_sat + n_preempted, n_preempted);
    assert_true(preemptions > 100 && n_sat > 100 && n_preempted > 10);
}

static int open_ops(void **state) { (void)state; return ops_cpu_open(&o, 1, NULL) == FL_OK ? 0 : -1; }
static int close_ops(void **state) { (void)state; o->close(o); return 0; }

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(every_sequence_ends_with_its_memory_intact) };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
