/* A rotary table that is filled as positions come holds what one filled at once holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "engine/rope_table.h"

static ops *o;
static const rope_config yarn = { .kind = ROPE_YARN, .n_rot = 6, .theta = 1e4, .factor = 4.0, .original_context = 512.0, .beta_fast = 32.0, .beta_slow = 1.0, .truncate = true };
enum { N = 5000, HALF = 3 };

static void table_filled_in_steps_is_the_table_filled_at_once(void **state)
{
    (void)state;
    static const int32_t positions[] = { 0, 1, 1023, 1024, 1500, 2, 2524, 4098, 4999 };
    rope_table t;
    float inv_freq[HALF], *cos_table = calloc(N * HALF, sizeof(float)), *sin_table = calloc(N * HALF, sizeof(float));
    assert_true(cos_table && sin_table);
    rope_inv_freq(inv_freq, &yarn);
    rope_fill(cos_table, sin_table, inv_freq, yarn.n_rot, 0, N, rope_attention_factor(&yarn));
    assert_int_equal(rope_table_open(&t, o, &yarn, N, NULL), FL_OK);
    assert_int_equal(t.n_bytes, rope_table_bytes(&yarn, N));
    for (size_t i = 0; i < sizeof positions / sizeof *positions; i++) {
        rope_table_reach(&t, positions[i]);
        assert_true(t.n_filled > positions[i] && t.n_filled <= N);
        assert_memory_equal(t.view.cos, cos_table, (size_t)t.n_filled * HALF * sizeof(float));
        assert_memory_equal(t.view.sin, sin_table, (size_t)t.n_filled * HALF * sizeof(float));
    }
    assert_int_equal(t.n_filled, N);
    rope_table_close(&t);
    free(cos_table);
    free(sin_table);
}

static void long_context_costs_nothing_until_it_is_used(void **state)
{
    (void)state;
    rope_table t;
    assert_int_equal(rope_table_open(&t, o, &yarn, 1 << 24, NULL), FL_OK);
    assert_int_equal(t.n_filled, 0);
    rope_table_reach(&t, 100);
    assert_true(t.n_filled < 10000);
    rope_table_close(&t);
    assert_null(t.memory);
}

static int open_ops(void **state) { (void)state; return ops_cpu_open(&o, 1, NULL) == FL_OK ? 0 : -1; }
static int close_ops(void **state) { (void)state; o->close(o); return 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_filled_in_steps_is_the_table_filled_at_once),
        cmocka_unit_test(long_context_costs_nothing_until_it_is_used),
    };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
