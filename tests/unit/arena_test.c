#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/arena.h"
#include "proto/bytes.h"

static int is_zero(const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i]) return 0;
    return 1;
}

static void what_is_taken_is_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 1000, 0);
    uint8_t *taken[200];
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 200; i++) {
            taken[i] = fl_arena_take(&arena, i * 7);
            assert_non_null(taken[i]);
            assert_int_equal((uintptr_t)taken[i] % 64, 0);
            assert_true(is_zero(taken[i], i * 7));
            memset(taken[i], (int)i, i * 7);
        }
        for (size_t i = 0; i < 200; i++)
            for (size_t j = 0; j < i * 7; j++) assert_int_equal(taken[i][j], i);
        fl_arena_reset(&arena);
    }
    fl_arena_fini(&arena);
}

static void the_limit_is_kept_to_the_last_byte(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 64 * 1024, 100 * 1024);
    assert_non_null(fl_arena_take(&arena, 10));
    assert_non_null(fl_arena_take(&arena, 36 * 1024));   /* behind the first in its chunk */
    assert_non_null(fl_arena_take(&arena, 36 * 1024));   /* a chunk of all that is left */
    assert_null(fl_arena_take(&arena, 28 * 1024));
    assert_true(arena.total_bytes <= 100 * 1024);
    assert_non_null(fl_arena_take(&arena, 1000));        /* small ones still fit behind the others */
    fl_arena_fini(&arena);
    assert_null(fl_arena_take(&(fl_arena){ .chunk_bytes = 64, .limit_bytes = 64 }, 65));
}

static void sizes_that_wrap_are_refused(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 64, 0);
    assert_null(fl_arena_take(&arena, SIZE_MAX));
    assert_null(fl_arena_take(&arena, SIZE_MAX - 63));
    assert_null(fl_arena_copy(&arena, "x", SIZE_MAX));
    fl_arena_fini(&arena);
}

static void a_copy_ends_with_a_nul(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 64, 0);
    for (size_t n = 0; n < 130; n++) {
        char text[130];
        memset(text, 'x', sizeof text);
        char *copy = fl_arena_copy(&arena, text, n);
        assert_memory_equal(copy, text, n);
        assert_int_equal(copy[n], 0);
    }
    assert_string_equal(fl_arena_copy(&arena, NULL, 0), "");
    fl_arena_fini(&arena);
}

static void a_reset_keeps_the_largest_chunk_for_the_next_round(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 64, 0);
    uint8_t *large = NULL;
    for (size_t i = 1; i < 20; i++) large = fl_arena_take(&arena, i * 1000);
    (void)large;
    fl_arena_reset(&arena);
    assert_true(arena.total_bytes >= 19000 && arena.total_bytes < 20000);
    size_t before = arena.total_bytes;
    for (int i = 0; i < 18; i++) assert_non_null(fl_arena_take(&arena, 1000));
    assert_int_equal(arena.total_bytes, before);
    fl_arena_fini(&arena);
    fl_arena_reset(&arena);                              /* an empty arena too */
    assert_non_null(fl_arena_take(&arena, 1));
    fl_arena_fini(&arena);
}

static void a_trim_gives_a_large_chunk_back(void **state)
{
    (void)state;
    fl_arena arena;
    fl_arena_init(&arena, 4096, 0);
    assert_non_null(fl_arena_take(&arena, 1000));
    fl_arena_trim(&arena, 8192);
    assert_int_equal(arena.total_bytes, 4096);           /* small enough: kept */
    assert_non_null(fl_arena_take(&arena, 1 << 20));
    fl_arena_trim(&arena, 8192);
    assert_int_equal(arena.total_bytes, 0);
    assert_non_null(fl_arena_take(&arena, 1));
    fl_arena_fini(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_taken_is_aligned_zeroed_and_apart),
        cmocka_unit_test(the_limit_is_kept_to_the_last_byte),
        cmocka_unit_test(sizes_that_wrap_are_refused),
        cmocka_unit_test(a_copy_ends_with_a_nul),
        cmocka_unit_test(a_reset_keeps_the_largest_chunk_for_the_next_round),
        cmocka_unit_test(a_trim_gives_a_large_chunk_back),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
