/* The coordinator's core: what becomes of results, and of their pieces. */
#include "tests/unit/coord_rig.h"

static void a_result_is_committed_once_and_the_job_closes_with_its_last(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 2);
    hello(&r, 1);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(g.sample_hi.v[0] - g.sample_lo.v[0], 2);
    assert_int_equal(result(&r, 1, g.lease, 0, 0), WIRE_COMMITTED);
    assert_int_equal(count_appends(&r, LEDGER_RESULT), 1);
    assert_int_equal(result(&r, 1, g.lease, 0, 0), WIRE_DUPLICATE);
    assert_int_equal(count_appends(&r, LEDGER_RESULT), 0);
    assert_int_equal(result(&r, 1, g.lease, 0, 7), WIRE_REFUSED);
    assert_int_equal(result(&r, 1, g.lease, 0, 1), WIRE_COMMITTED);
    assert_int_equal(r.out.appends.v[r.out.appends.n - 1].record.kind, LEDGER_CLOSE);
    assert_int_equal(count_actions(&r.out.sends, ACTION_JOB_CLOSED), 1);
    assert_int_equal(result(&r, 1, g.lease, 0, 1), WIRE_STALE);
    assert_int_equal(count_appends(&r, LEDGER_RESULT), 0);
    coord_job_status s = status(&r);
    assert_int_equal(s.state, JOB_COMPLETED);
    assert_int_equal(s.rows_completed, 1);
    assert_int_equal(s.n_tokens, 6);
    rig_close(&r);
}

static void late_result_of_an_old_lease_is_stale(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    hello(&r, 2);
    tick(&r, TERM_MS + 1);
    assert_int_equal(coord_n_workers(r.c), 0);
    hello(&r, 2);
    uint64_t second = grant_of(&r, 2).lease;
    assert_true(second > lease);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_STALE);
    assert_int_equal(result(&r, 1, second, 0, 0), WIRE_REFUSED);
    assert_int_equal(result(&r, 2, second, 0, 0), WIRE_COMMITTED);
    rig_close(&r);
}

static void pieces_commit_as_a_whole_with_the_last(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 0, 3), FL_OK);
    assert_null(find_send(&r, 1, WIRE_ANSWER));
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 1, 3), FL_OK);
    assert_int_equal(coord_partials(r.c).depth, 8);
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 0, 3), FL_OK);     /* begins again */
    assert_int_equal(r.n_released, 2);
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 1, 3), FL_OK);
    assert_int_equal(r.out.appends.n, 0);
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 2, 3), FL_OK);
    assert_int_equal(count_appends(&r, LEDGER_RESULT), 3);
    assert_int_equal(fate_of(&r, 1), WIRE_COMMITTED);
    assert_int_equal(coord_partials(r.c).depth, 0);
    assert_int_equal(r.n_released, 2);
    rig_close(&r);
}

static void pieces_beyond_the_bound_of_a_lease_are_dropped(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 2);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease, n_half = COORD_PARTIAL_BYTES / 2;      /* the core counts bytes and reads none */
    assert_int_equal(result_piece_of(&r, 1, lease, 0, 0, 0, 4096, n_half), FL_OK);
    assert_int_equal(result_piece_of(&r, 1, lease, 0, 1, 0, 4096, n_half), FL_OK);
    assert_int_equal(coord_partials(r.c).depth, COORD_PARTIAL_BYTES);
    assert_int_equal(result_piece_of(&r, 1, lease, 0, 0, 1, 4096, 1), FL_OK);
    assert_int_equal(coord_partials(r.c).depth, n_half);
    assert_int_equal(coord_partials(r.c).high_water, COORD_PARTIAL_BYTES);
    assert_int_equal(r.n_released, 2);                   /* the piece, and the one before it */
    assert_int_equal(result_piece_of(&r, 1, lease, 0, 0, 2, 4096, n_half), FL_OK);
    assert_int_equal(coord_partials(r.c).depth, n_half);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_COMMITTED);        /* the row itself is as before */
    rig_close(&r);
}

static void a_result_with_a_missing_piece_is_refused_and_given_out_again(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 0, 3), FL_OK);
    assert_int_equal(result_piece(&r, 1, lease, 0, 0, 2, 3), FL_OK);
    assert_int_equal(fate_of(&r, 1), WIRE_REFUSED);
    assert_int_equal(r.out.appends.n, 0);
    assert_int_equal(r.n_released, 2);
    assert_int_equal(coord_partials(r.c).depth, 0);
    assert_true(grant_of(&r, 1).lease > lease);
    rig_close(&r);
}

static void a_result_that_cannot_be_read_is_refused_and_its_row_given_out_again(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    r.is_valid = false;
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_REFUSED);
    assert_int_equal(r.n_released, 1);
    assert_true(grant_of(&r, 1).lease > lease);
    r.is_valid = true;
    assert_int_equal(result(&r, 1, grant_of(&r, 1).lease, 0, 0), WIRE_COMMITTED);
    rig_close(&r);
}

static void a_row_error_ends_the_row_in_every_lease(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    wire_msg m = { .type = WIRE_ROW_ERROR };
    m.row_error = (wire_row_error){ .job = JOB.v, .lease = lease, .row = 0, .code = ROW_CONTEXT_OVERFLOW, .text = wire_text("too long") };
    assert_int_equal(say(&r, 1, &m), FL_OK);
    assert_int_equal(fate_of(&r, 1), WIRE_COMMITTED);
    assert_int_equal(count_appends(&r, LEDGER_ROW_ERROR), 1);
    assert_int_equal(say(&r, 1, &m), FL_OK);
    assert_int_equal(fate_of(&r, 1), WIRE_DUPLICATE);
    m.row_error.row = 1;
    m.row_error.code = ROW_CANCELLED;
    assert_int_equal(say(&r, 1, &m), FL_OK);
    assert_int_equal(fate_of(&r, 1), WIRE_REFUSED);
    assert_int_equal(status(&r).rows_failed, 1);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_result_is_committed_once_and_the_job_closes_with_its_last),
        cmocka_unit_test(late_result_of_an_old_lease_is_stale),
        cmocka_unit_test(pieces_commit_as_a_whole_with_the_last),
        cmocka_unit_test(a_result_that_cannot_be_read_is_refused_and_its_row_given_out_again),
        cmocka_unit_test(pieces_beyond_the_bound_of_a_lease_are_dropped),
        cmocka_unit_test(a_result_with_a_missing_piece_is_refused_and_given_out_again),
        cmocka_unit_test(a_row_error_ends_the_row_in_every_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
