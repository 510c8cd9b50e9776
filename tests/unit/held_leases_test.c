/* held_leases_test.c - a lease is held while something of it is owed, unanswered or to be handed back, and not longer. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include "worker/held_leases.h"

static held_leases *open_held(void)
{
    held_leases *held = NULL;
    assert_int_equal(held_open(&held, NULL), FL_OK);
    return held;
}

/* Lease `id`: rows 10 (samples 0, 1) and 11 (sample 2). */
static fl_status grant(held_leases *held, uint64_t id)
{
    static const uint64_t rows[] = {10, 11}, lo[] = {0, 2}, hi[] = {2, 3}, lines[] = {11, 12};
    wire_grant g = { .job = 7, .lease = id, .rows = { rows, 2 }, .sample_lo = { lo, 2 }, .sample_hi = { hi, 2 }, .lines = { lines, 2 } };
    return held_grant(held, &g, NULL);
}

static void a_lease_leaves_with_its_last_answer(void **state)
{
    (void)state;
    held_leases *held = open_held();
    assert_int_equal(grant(held, 1), FL_OK);
    assert_true(held_owes(held));
    assert_true(held_made(held, 1, 10, 0));
    assert_true(held_made(held, 1, 10, 1));
    assert_true(held_made(held, 1, 11, 2));
    assert_false(held_owes(held));
    assert_int_equal(held_count(held), 1);
    held_settle(held, 1, 10, 0);
    held_settle(held, 1, 10, 1);
    assert_int_equal(held_count(held), 1);
    held_settle(held, 1, 11, 2);
    assert_int_equal(held_count(held), 0);
    held_close(held);
}

static void a_repeated_grant_is_a_conflict(void **state)
{
    (void)state;
    held_leases *held = open_held();
    assert_int_equal(grant(held, 1), FL_OK);
    assert_int_equal(grant(held, 1), FL_CONFLICT);
    assert_int_equal(held_count(held), 1);
    held_close(held);
}

static void a_grant_of_no_samples_is_corrupt(void **state)
{
    (void)state;
    held_leases *held = open_held();
    const uint64_t row = 1, lo = 3, hi = 3, line = 2;
    wire_grant g = { .job = 7, .lease = 1, .rows = { &row, 1 }, .sample_lo = { &lo, 1 }, .sample_hi = { &hi, 1 }, .lines = { &line, 1 } };
    assert_int_equal(held_grant(held, &g, NULL), FL_CORRUPT);
    assert_int_equal(held_count(held), 0);
    held_close(held);
}

static void what_was_revoked_is_not_taken_when_it_is_made(void **state)
{
    (void)state;
    held_leases *held = open_held();
    assert_int_equal(grant(held, 1), FL_OK);
    held_settle(held, 1, 10, 1);
    assert_false(held_made(held, 1, 10, 1));
    assert_true(held_made(held, 1, 10, 0));
    assert_false(held_made(held, 1, 10, 0));     /* twice */
    held_settle(held, 1, 11, WIRE_WHOLE_ROW);
    assert_false(held_made(held, 1, 11, 2));
    assert_false(held_made(held, 2, 11, 2));     /* another lease */
    held_settle_lease(held, 1);
    assert_int_equal(held_count(held), 0);
    held_close(held);
}

static void a_row_error_stands_for_all_the_row_owes(void **state)
{
    (void)state;
    held_leases *held = open_held();
    assert_int_equal(grant(held, 1), FL_OK);
    assert_true(held_made(held, 1, 10, 0));
    assert_true(held_made(held, 1, 10, WIRE_WHOLE_ROW));
    assert_false(held_made(held, 1, 10, WIRE_WHOLE_ROW));
    held_settle(held, 1, 11, 2);
    assert_false(held_owes(held));
    held_close(held);
}

static void a_hand_back_covers_what_is_owed_and_the_rest_stays(void **state)
{
    (void)state;
    held_leases *held = open_held();
    wire_msg m;
    assert_int_equal(grant(held, 1), FL_OK);
    assert_true(held_made(held, 1, 10, 0));
    held_hand_back(held, 1, NULL, WIRE_HAND_ENGINE_ENDED, "words", 5);
    assert_false(held_owes(held));
    assert_true(held_next_handback(held, &m));
    assert_int_equal(m.handback.lease, 1);
    assert_int_equal(m.handback.rows.n, 0);
    assert_int_equal(m.handback.reason, WIRE_HAND_ENGINE_ENDED);
    assert_memory_equal(m.handback.text.p, "words", 5);
    held_handed(held);
    assert_false(held_next_handback(held, &m));
    assert_int_equal(held_count(held), 1);       /* a result of it waits for its answer */
    held_hand_again(held);
    assert_true(held_next_handback(held, &m));   /* a new connection hears of it again */
    held_handed(held);
    held_settle(held, 1, 10, 0);
    assert_int_equal(held_count(held), 0);
    held_close(held);
}

static void a_settled_lease_stays_until_its_hand_back_was_sent(void **state)
{
    (void)state;
    held_leases *held = open_held();
    const uint64_t row = 11;
    wire_msg m;
    assert_int_equal(grant(held, 1), FL_OK);
    held_hand_back(held, 1, &row, WIRE_HAND_NO_ROOM, "", 0);
    assert_true(held_owes(held));
    held_hand_back(held, 1, &row, WIRE_HAND_NO_ROOM, "", 0);     /* nothing is owed of it any more */
    held_settle(held, 1, 10, WIRE_WHOLE_ROW);
    assert_int_equal(held_count(held), 1);
    assert_true(held_next_handback(held, &m));
    assert_int_equal(m.handback.rows.n, 1);
    assert_int_equal(m.handback.rows.v[0], 11);
    held_handed(held);
    assert_int_equal(held_count(held), 0);
    assert_false(held_next_handback(held, &m));
    held_close(held);
}

static void only_presented_leases_can_be_missing(void **state)
{
    (void)state;
    held_leases *held = open_held();
    const uint64_t alive[] = {2};
    assert_int_equal(grant(held, 1), FL_OK);
    assert_int_equal(grant(held, 2), FL_OK);
    held_present(held);
    assert_int_equal(grant(held, 3), FL_OK);     /* came between HELLO and WELCOME */
    assert_int_equal(held_ids(held).n, 3);
    assert_int_equal(held_missing(held, (wire_list){ alive, 1 }), 1);
    held_settle_lease(held, 1);
    assert_int_equal(held_missing(held, (wire_list){ alive, 1 }), 0);
    assert_int_equal(held_count(held), 2);
    held_close(held);
}

static void the_only_row_that_is_owed_is_found_also_in_parts(void **state)
{
    (void)state;
    held_leases *held = open_held();
    uint64_t lease = 0, row = 0;
    assert_false(held_owes_one_row(held, &lease, &row));
    for (uint64_t id = 1; id <= 20; id++) assert_int_equal(grant(held, id), FL_OK);
    for (uint64_t id = 1; id <= 20; id++) {
        assert_true(held_made(held, id, 10, WIRE_WHOLE_ROW));
        if (id != 13) assert_true(held_made(held, id, 11, 2));
    }
    assert_true(held_owes_one_row(held, &lease, &row));
    assert_int_equal(lease, 13);
    assert_int_equal(row, 11);
    assert_int_equal(grant(held, 21), FL_OK);
    assert_false(held_owes_one_row(held, &lease, &row));
    held_settle_lease(held, 21);
    held_settle_lease(held, 13);
    const uint64_t rows[] = {5, 5}, lo[] = {0, 2}, hi[] = {1, 3}, lines[] = {6, 6};      /* sample 1 was committed before */
    wire_grant parted = { .job = 7, .lease = 30, .rows = { rows, 2 }, .sample_lo = { lo, 2 }, .sample_hi = { hi, 2 }, .lines = { lines, 2 } };
    assert_int_equal(held_grant(held, &parted, NULL), FL_OK);
    assert_true(held_owes_one_row(held, &lease, &row));
    assert_int_equal(row, 5);
    held_close(held);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lease_leaves_with_its_last_answer),
        cmocka_unit_test(a_repeated_grant_is_a_conflict),
        cmocka_unit_test(a_grant_of_no_samples_is_corrupt),
        cmocka_unit_test(what_was_revoked_is_not_taken_when_it_is_made),
        cmocka_unit_test(a_row_error_stands_for_all_the_row_owes),
        cmocka_unit_test(a_hand_back_covers_what_is_owed_and_the_rest_stays),
        cmocka_unit_test(a_settled_lease_stays_until_its_hand_back_was_sent),
        cmocka_unit_test(only_presented_leases_can_be_missing),
        cmocka_unit_test(the_only_row_that_is_owed_is_found_also_in_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
