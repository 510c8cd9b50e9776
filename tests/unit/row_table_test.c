/* Row states, queues and the sets under them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <malloc.h>

#include <stdlib.h>
#include <string.h>

#include "coordinator/bit_set.h"
#include "coordinator/id_map.h"
#include "coordinator/row_table.h"

static uint64_t state_of_random = 1;
static uint32_t below(uint32_t n)
{
    state_of_random = state_of_random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state_of_random >> 33) % n;
}

static void a_bit_set_finds_its_lowest_member(void **state)
{
    (void)state;
    enum { N = 300000 };
    bit_set set = { 0 };
    uint8_t *plain = calloc(N, 1);
    assert_non_null(plain);
    assert_true(bit_set_grow(&set, 100));
    assert_true(bit_set_grow(&set, N));
    uint64_t found;
    assert_false(bit_set_next(&set, 0, &found));
    for (int i = 0; i < 3000; i++) {
        uint32_t x = below(3) ? below(N) : below(200);
        if (below(3)) { bit_set_add(&set, x); plain[x] = 1; }
        else { bit_set_remove(&set, x); plain[x] = 0; }
        uint32_t from = below(N), want = from;
        while (want < N && !plain[want]) want++;
        bool any = bit_set_next(&set, from, &found);
        assert_int_equal(any, want < N);
        if (any) assert_int_equal(found, want);
        assert_int_equal(bit_set_has(&set, x), plain[x]);
    }
    uint64_t count = 0;
    for (uint32_t i = 0; i < N; i++) count += plain[i];
    assert_int_equal(set.count, count);
    assert_false(bit_set_has(&set, 1ull << 40));
    assert_false(bit_set_next(&set, 1ull << 40, &found));
    free(plain);
    bit_set_fini(&set);
}

static void an_id_map_keeps_what_is_put_and_forgets_what_is_removed(void **state)
{
    (void)state;
    id_map map = { 0 };
    static char marks[2000];
    bool in[2000] = { false };
    assert_null(id_map_get(&map, 7));
    for (int i = 0; i < 40000; i++) {
        uint32_t k = below(2000);
        uint64_t id = (uint64_t)k * 64 + 1;              /* all in few home slots of a poor hash */
        if (below(2)) { id_map_put(&map, id, &marks[k]); in[k] = true; }
        else { id_map_remove(&map, id); in[k] = false; }
        uint32_t other = below(2000);
        assert_ptr_equal(id_map_get(&map, (uint64_t)other * 64 + 1), in[other] ? &marks[other] : NULL);
    }
    id_map_fini(&map);
}

static row_table *make(int n_rows, uint32_t n)
{
    row_table *t = NULL;
    assert_int_equal(row_table_open(&t, 0, NULL), FL_OK);
    for (int i = 0; i < n_rows; i++) assert_int_equal(row_table_add(t, n, 10, NULL), FL_OK);
    return t;
}

static void a_row_waits_until_its_last_sample_is_held_or_done(void **state)
{
    (void)state;
    row_table *t = make(3, 2);
    row_index row;
    assert_true(row_table_first(t, ROW_QUEUE_FRESH, &row) && row.v == 0);
    row_table_hold(t, row, 0);
    assert_true(row_table_first(t, ROW_QUEUE_FRESH, &row) && row.v == 0);
    row_table_hold(t, row, 1);
    assert_true(row_table_first(t, ROW_QUEUE_FRESH, &row) && row.v == 1);
    row_table_release(t, (row_index){ 0 }, 1);
    assert_true(row_table_first(t, ROW_QUEUE_FRESH, &row) && row.v == 0);
    assert_true(row_table_commit(t, row, 0));
    assert_false(row_table_commit(t, row, 0));
    assert_true(row_table_commit(t, row, 1));
    assert_true(row_table_finished(t, row));
    assert_int_equal(row_table_n_completed(t), 1);
    assert_int_equal(row_table_n_open(t), 2);
    assert_int_equal(row_table_cost_waiting(t), 40);
    row_table_close(t);
}

static void a_failed_row_never_waits_again(void **state)
{
    (void)state;
    row_table *t = make(1, 3);
    row_index row = { 0 };
    row_table_hold(t, row, 1);
    assert_true(row_table_commit(t, row, 0));
    assert_true(row_table_fail(t, row));
    assert_false(row_table_fail(t, row));
    row_table_release(t, row, 1);
    assert_int_equal(row_table_n_waiting(t), 0);
    assert_int_equal(row_table_cost_waiting(t), 0);
    assert_false(row_table_commit(t, row, 2));
    assert_int_equal(row_table_n_failed(t), 1);
    assert_int_equal(row_table_n_completed(t), 0);
    row_table_close(t);
}

static void a_row_waits_in_the_queue_it_was_moved_to(void **state)
{
    (void)state;
    row_table *t = make(4, 1);
    row_index row = { 2 };
    row_table_move(t, row, ROW_QUEUE_SUSPECT);
    assert_int_equal(row_table_queue_count(t, ROW_QUEUE_FRESH), 3);
    assert_true(row_table_first(t, ROW_QUEUE_SUSPECT, &row) && row.v == 2);
    row_table_hold(t, row, 0);
    assert_false(row_table_first(t, ROW_QUEUE_SUSPECT, &row));
    row_table_move(t, (row_index){ 2 }, ROW_QUEUE_ROOM);
    row_table_release(t, (row_index){ 2 }, 0);
    assert_true(row_table_first(t, ROW_QUEUE_ROOM, &row) && row.v == 2);
    assert_true(row_table_next(t, ROW_QUEUE_FRESH, (row_index){ 1 }, &row) && row.v == 3);
    row_table_close(t);
}

static void sizes_outside_the_domain_are_refused(void **state)
{
    (void)state;
    fl_err err;
    row_table *t = make(1, 1);
    assert_int_equal(row_table_add(t, 0, 1, &err), FL_INVALID);
    assert_int_equal(row_table_add(t, 1025, 1, &err), FL_INVALID);
    assert_int_equal(row_table_add(t, 1024, UINT64_MAX, &err), FL_OK);
    assert_int_equal(row_table_cost(t, (row_index){ 1 }), UINT32_MAX);
    assert_int_equal(row_table_cost_waiting(t), 10 + 1024ull * UINT32_MAX);
    assert_false(row_table_has(t, 2, 0));
    assert_false(row_table_has(t, UINT64_MAX, 0));
    assert_false(row_table_has(t, 0, 1));
    row_table_close(t);
}

/* Under a sanitizer, which has an allocator of its own, always 0. */
static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void ten_million_rows_fit_in_200_mb(void **state)
{
    (void)state;
    const size_t before = heap_bytes();
    row_table *t = NULL;
    assert_int_equal(row_table_open(&t, 10000000, NULL), FL_OK);
    for (int i = 0; i < 10000000; i++) assert_int_equal(row_table_add(t, 1, 10, NULL), FL_OK);
    size_t n_bytes = heap_bytes() - before;
    if (n_bytes > 200u * 1000 * 1000) fail_msg("%zu bytes", n_bytes);
    row_table_close(t);
}

static void a_sample_held_twice_waits_only_when_both_let_go(void **state)
{
    (void)state;
    row_table *t = NULL;
    assert_int_equal(row_table_open(&t, 0, NULL), FL_OK);
    assert_int_equal(row_table_add(t, 2, 5, NULL), FL_OK);
    row_index r = { 0 };
    assert_false(row_table_was_held(t, r));
    row_table_hold(t, r, 0);
    row_table_hold_again(t, r, 0);
    assert_true(row_table_held_twice(t, r, 0));
    assert_true(row_table_held_row(t, r));
    row_table_release(t, r, 0);
    assert_false(row_table_held_twice(t, r, 0));
    assert_true(row_table_held(t, r, 0));
    assert_int_equal(row_table_cost_waiting(t), 5);
    row_table_release(t, r, 0);
    assert_false(row_table_held_row(t, r));
    assert_int_equal(row_table_cost_waiting(t), 10);
    assert_true(row_table_was_held(t, r));
    row_table_hold(t, r, 1);
    row_table_hold_again(t, r, 1);
    assert_true(row_table_commit(t, r, 1));                  /* both leave with it */
    assert_false(row_table_held(t, r, 1));
    assert_false(row_table_held_twice(t, r, 1));
    row_table_close(t);
}

static void a_grade_row_waits_for_its_row_and_fails_with_it(void **state)
{
    (void)state;
    row_table *t = NULL;
    row_index row = { 99 };
    fl_err err;
    assert_int_equal(row_table_open(&t, 0, &err), FL_OK);
    for (int i = 0; i < 3; i++) assert_int_equal(row_table_add(t, 2, 10, &err), FL_OK);
    assert_false(row_table_is_graded(t));
    assert_int_equal(row_table_add_grades(t, &err), FL_OK);
    row_index grade = row_table_grade_of(t, (row_index){ 1 });
    assert_int_equal(grade.v, 4);
    assert_int_equal(row_table_graded(t, grade).v, 1);
    assert_true(row_table_has(t, 5, 1) && !row_table_has(t, 6, 0) && row_table_n_rows(t) == 3);
    assert_false(row_table_waits(t, grade, 0));
    assert_false(row_table_commit(t, grade, 0));                 /* a verdict of nothing */
    assert_true(row_table_commit(t, (row_index){ 1 }, 0));
    assert_true(row_table_waits(t, grade, 0) && !row_table_waits(t, grade, 1));
    assert_true(row_table_first(t, ROW_QUEUE_GRADE, &row) && row.v == 4);
    assert_int_equal(row_table_grades_waiting(t), 1);
    assert_int_equal(row_table_cost_waiting(t), 50);
    row_table_hold(t, grade, 0);
    row_table_release(t, grade, 0);
    assert_true(row_table_commit(t, (row_index){ 1 }, 1));
    assert_int_equal(row_table_n_completed(t), 0);               /* not without its verdicts */
    assert_true(row_table_finished(t, (row_index){ 1 }) && !row_table_settled(t, (row_index){ 1 }));
    assert_true(row_table_commit(t, grade, 1) && row_table_commit(t, grade, 0));
    assert_true(row_table_n_completed(t) == 1 && row_table_settled(t, (row_index){ 1 }));
    assert_false(row_table_fail(t, (row_index){ 1 }));
    assert_true(row_table_commit(t, (row_index){ 0 }, 0));
    assert_true(row_table_fail(t, row_table_grade_of(t, (row_index){ 0 })));
    assert_true(row_table_failed(t, (row_index){ 0 }) && row_table_grades_waiting(t) == 0);
    assert_true(row_table_fail(t, (row_index){ 2 }) && row_table_failed(t, row_table_grade_of(t, (row_index){ 2 })));
    assert_true(row_table_n_failed(t) == 2 && row_table_n_open(t) == 0 && row_table_n_waiting(t) == 0);
    row_table_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sample_held_twice_waits_only_when_both_let_go),
        cmocka_unit_test(a_bit_set_finds_its_lowest_member),
        cmocka_unit_test(an_id_map_keeps_what_is_put_and_forgets_what_is_removed),
        cmocka_unit_test(a_row_waits_until_its_last_sample_is_held_or_done),
        cmocka_unit_test(a_failed_row_never_waits_again),
        cmocka_unit_test(a_row_waits_in_the_queue_it_was_moved_to),
        cmocka_unit_test(sizes_outside_the_domain_are_refused),
        cmocka_unit_test(ten_million_rows_fit_in_200_mb),
        cmocka_unit_test(a_grade_row_waits_for_its_row_and_fails_with_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
