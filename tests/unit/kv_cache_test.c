/* A block is free or has owners; copies to the host and back are exact; slots likewise. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/kv_cache.h"
#include "engine/state_pool.h"

static ops *o;

static kv_cache *open_cache(int32_t n_blocks)
{
    kv_cache *kv = NULL;
    fl_err err;
    if (kv_cache_open(&kv, o, 2, 3, 5, n_blocks, &err) != FL_OK) fail_msg("%s", err.text);
    return kv;
}

static void reserve_takes_all_or_nothing(void **state)
{
    (void)state;
    kv_cache *kv = open_cache(4);
    block_table a = { 0 }, b = { 0 };
    fl_err err;
    assert_int_equal(kv_cache_reserve(kv, &a, 3, &err), FL_OK);
    assert_int_equal(kv_cache_reserve(kv, &b, 2, &err), FL_FULL);
    assert_string_equal(err.text, "kv cache: 2 blocks wanted, 1 free");
    assert_int_equal(b.n_blocks, 0);
    assert_int_equal(kv_cache_blocks_free(kv), 1);
    assert_int_equal(kv_cache_reserve(kv, &b, 1, &err), FL_OK);
    for (int i = 0; i < 3; i++) assert_int_not_equal(a.blocks[i], b.blocks[0]);
    kv_cache_release(kv, &a, 0);
    kv_cache_release(kv, &b, 0);
    assert_int_equal(kv_cache_blocks_free(kv), 4);
    kv_cache_close(kv);
}

static void shared_block_is_free_after_its_last_owner(void **state)
{
    (void)state;
    kv_cache *kv = open_cache(3);
    block_table a = { 0 }, b = { 0 };
    fl_err err;
    assert_int_equal(kv_cache_reserve(kv, &a, 2, &err), FL_OK);
    assert_int_equal(kv_cache_share(kv, &b, a.blocks, 2, &err), FL_OK);
    assert_int_equal(kv_cache_owners(kv, a.blocks[0]), 2);
    kv_cache_release(kv, &a, 1);
    assert_int_equal(a.n_blocks, 1);
    assert_int_equal(kv_cache_blocks_free(kv), 1);
    kv_cache_release(kv, &b, 0);
    assert_int_equal(kv_cache_blocks_free(kv), 2);
    assert_int_equal(kv_cache_owners(kv, a.blocks[0]), 1);
    kv_cache_release(kv, &a, 0);
    assert_int_equal(kv_cache_blocks_free(kv), 3);
    kv_cache_close(kv);
}

static void block_goes_to_the_host_and_back_unchanged(void **state)
{
    (void)state;
    kv_cache *kv = open_cache(3);
    block_table a = { 0 };
    fl_err err;
    size_t n = kv_cache_block_bytes(kv) / sizeof(float), one = 3 * OPS_BLOCK_TOKENS * 5;
    assert_int_equal(n, 2 * 2 * one);
    assert_int_equal(kv_cache_reserve(kv, &a, 3, &err), FL_OK);
    float *out = malloc(n * sizeof *out), *back = malloc(n * sizeof *back);
    assert_non_null(out);
    assert_non_null(back);
    for (size_t i = 0; i < n; i++) out[i] = (float)i;
    kv_cache_copy_in(kv, a.blocks[1], out);
    for (int32_t layer = 0; layer < 2; layer++) {        /* where the ops see it */
        ops_kv view = kv_cache_layer(kv, layer);
        assert_true(view.k[(size_t)a.blocks[1] * one + 7] == (float)(2 * (size_t)layer * one + 7));
        assert_true(view.v[(size_t)a.blocks[1] * one + 7] == (float)((2 * (size_t)layer + 1) * one + 7));
    }
    memset(back, 0xFF, n * sizeof *back);
    kv_cache_copy_out(kv, a.blocks[1], back);
    assert_memory_equal(out, back, n * sizeof *out);
    kv_cache_copy_out(kv, a.blocks[0], back);
    for (size_t i = 0; i < n; i++) assert_true(back[i] == 0.0f);
    free(out);
    free(back);
    kv_cache_release(kv, &a, 0);
    kv_cache_close(kv);
}

static void positions_round_up_to_blocks(void **state)
{
    (void)state;
    assert_int_equal(kv_blocks_of(0), 0);
    assert_int_equal(kv_blocks_of(1), 1);
    assert_int_equal(kv_blocks_of(64), 1);
    assert_int_equal(kv_blocks_of(65), 2);
}

static void pool_beyond_memory_is_refused(void **state)
{
    (void)state;
    kv_cache *kv = NULL;
    fl_err err;
    assert_int_equal(kv_cache_open(&kv, o, 1024, 1024, 1024, 1 << 20, &err), FL_FULL);
    assert_non_null(strstr(err.text, "smaller"));
    assert_null(kv);
}

static void model_without_attention_needs_no_pool(void **state)
{
    (void)state;
    kv_cache *kv = NULL;
    block_table a = { 0 };
    fl_err err;
    assert_int_equal(kv_cache_open(&kv, o, 0, 2, 32, 4, &err), FL_OK);
    assert_int_equal(kv_cache_block_bytes(kv), 0);
    assert_int_equal(kv_cache_reserve(kv, &a, 4, &err), FL_OK);
    kv_cache_release(kv, &a, 0);
    kv_cache_close(kv);
}

static void state_slot_goes_to_the_host_and_into_another(void **state)
{
    (void)state;
    state_pool *pool = NULL;
    fl_err err;
    assert_int_equal(state_pool_open(&pool, o, 3, 6, 4, 2, &err), FL_OK);
    int32_t a = state_pool_take(pool), b = state_pool_take(pool);
    assert_int_not_equal(a, b);
    assert_int_equal(state_pool_take(pool), -1);
    float host[30], back[30];
    assert_int_equal(state_pool_slot_floats(pool), 30);
    for (int i = 0; i < 30; i++) host[i] = (float)i;
    state_pool_copy_in(pool, a, host);
    assert_true(state_pool_delta(pool, 1)[(size_t)a * 6 + 5] == 15.0f);
    assert_true(state_pool_conv(pool, 2)[(size_t)a * 4 + 3] == 29.0f);
    state_pool_copy_out(pool, b, back);
    for (int i = 0; i < 30; i++) assert_true(back[i] == 0.0f);
    state_pool_copy_out(pool, a, back);
    assert_memory_equal(host, back, sizeof host);
    state_pool_give(pool, a);
    assert_int_equal(state_pool_free(pool), 1);
    state_pool_give(pool, b);
    state_pool_close(pool);
}

/* Whether kernels may read a state in wide pieces must not depend on the batch: the last bits do. */
static void states_of_a_layer_begin_at_whole_pieces_for_any_number_of_slots(void **state)
{
    (void)state;
    fl_err err;
    for (int32_t n_slots = 1; n_slots <= 9; n_slots++)
        for (size_t conv = 0; conv <= 67; conv += conv == 6 ? 60 : 1) {
            state_pool *pool = NULL;
            const size_t delta = 5 + conv % 3, bytes = state_pool_bytes(4, delta, conv, n_slots);
            assert_int_equal(state_pool_open(&pool, o, 4, delta, conv, n_slots, &err), FL_OK);
            const char *begin = (const char *)state_pool_delta(pool, 0), *at = begin;
            for (int32_t i = 0; i < 4; i++) {
                const char *delta_at = (const char *)state_pool_delta(pool, i), *conv_at = (const char *)state_pool_conv(pool, i);
                assert_int_equal((uintptr_t)delta_at % 256, 0);
                assert_int_equal((uintptr_t)conv_at % 256, 0);
                assert_true(delta_at >= at && conv_at >= delta_at + (size_t)n_slots * delta * sizeof(float));
                at = conv_at + (size_t)n_slots * conv * sizeof(float);
            }
            assert_true((size_t)(at - begin) <= bytes && bytes - (size_t)(at - begin) < 256);
            state_pool_close(pool);
        }
    assert_true(state_pool_bytes(4, SIZE_MAX / 8, 1, 3) == SIZE_MAX && state_pool_bytes(INT32_MAX, (size_t)1 << 40, 1, 1) == SIZE_MAX);
    state_pool *none = NULL;
    assert_int_equal(state_pool_open(&none, o, 4, SIZE_MAX / 8, 1, 3, &err), FL_FULL);
    assert_null(none);
}

static int open_ops(void **state) { (void)state; return ops_cpu_open(&o, 1, NULL) == FL_OK ? 0 : -1; }
static int close_ops(void **state) { (void)state; o->close(o); return 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserve_takes_all_or_nothing),
        cmocka_unit_test(shared_block_is_free_after_its_last_owner),
        cmocka_unit_test(block_goes_to_the_host_and_back_unchanged),
        cmocka_unit_test(positions_round_up_to_blocks),
        cmocka_unit_test(pool_beyond_memory_is_refused),
        cmocka_unit_test(model_without_attention_needs_no_pool),
        cmocka_unit_test(state_slot_goes_to_the_host_and_into_another),
        cmocka_unit_test(states_of_a_layer_begin_at_whole_pieces_for_any_number_of_slots),
    };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
