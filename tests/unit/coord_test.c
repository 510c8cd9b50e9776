/* The coordinator's core, event by event: jobs, workers and leases, time. Its other parts have their own tests (coord_grant_test, coord_result_test, coord_blame_test); tests/sim drives it with storms. */
#include "tests/unit/coord_rig.h"

static void a_dead_workers_rows_go_back_in_order(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 100, 1);
    hello(&r, 1);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(result(&r, 1, g.lease, 1, 0), WIRE_COMMITTED);
    assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { 1 } }), FL_OK);
    assert_int_equal(coord_n_leases(r.c), 0);
    hello(&r, 2);
    g = grant_of(&r, 2);
    assert_int_equal(g.rows.v[0], 0);
    assert_int_equal(g.rows.v[1], 2);
    rig_close(&r);
}

static void a_beat_renews_and_an_unlisted_lease_runs_out(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    for (int i = 0; i < 20; i++) {
        tick(&r, BEAT_MS);
        beat(&r, 1, lease, 5 + (uint64_t)i);
    }
    assert_int_equal(coord_n_leases(r.c), 1);
    uint64_t again = 0;
    for (int i = 0; i < 8 && !again; i++) {
        tick(&r, BEAT_MS);
        const action *a = find_send(&r, 1, WIRE_GRANT);
        if (a) { again = a->msg.grant.lease; break; }
        beat(&r, 1, 0, 100 + (uint64_t)i);
    }
    assert_true(again > lease);
    beat(&r, 1, lease, 3);
    assert_int_equal(find_send(&r, 1, WIRE_REVOKE)->msg.revoke.lease, lease);
    rig_close(&r);
}

static void a_lease_without_progress_is_lost_and_waits_twice_as_long_next_time(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    int64_t begin = r.now, first = 0, second = 0;
    for (int i = 0; i < 250 && !second; i++) {
        tick(&r, BEAT_MS);
        const action *a = find_send(&r, 1, WIRE_GRANT);
        if (a) {
            assert_int_equal(find_send(&r, 1, WIRE_REVOKE)->msg.revoke.lease, lease);
            lease = a->msg.grant.lease;
            if (!first) first = r.now;
            else second = r.now;
        }
        beat(&r, 1, lease, 7);
    }
    assert_true(first - begin >= PROGRESS_MS && first - begin <= PROGRESS_MS + 3 * BEAT_MS);
    assert_true(second - first >= 2 * PROGRESS_MS && second - first <= 2 * PROGRESS_MS + 3 * BEAT_MS);
    rig_close(&r);
}

/* What was found out about a job goes with it: the next one may lie at the same address. */
static void a_job_that_is_retried_is_judged_anew(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    wire_msg m = hello_of(2);
    m.hello.numerics = wire_text("cuda-sm90-1");
    assert_int_equal(say(&r, 2, &m), FL_OK);
    add_job_of(&r, (job_id){ 78 }, 1, 1, 10);                /* keeps worker 2 at work while it is asked about the other */
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
    hello(&r, 1);
    fl_err err = { 0 };
    row_table *rows = NULL;
    assert_int_equal(row_table_open(&rows, 0, &err), FL_OK);
    assert_int_equal(row_table_add(rows, 1, 10, &err), FL_OK);
    coord_job spec = { .id = JOB, .is_pinned = true, .fingerprint = wire_text("f1"), .numerics = wire_text("cpu-1"), .n_vocab = 100 };
    void *gap = malloc(4000);                                /* keeps the freed rows and the freed job apart, so that malloc gives the next job the same place */
    assert_non_null(gap);
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_null(find_send(&r, 2, WIRE_GRANT));
    const uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_CLOSE, .job_id = { 78 }, .cause = LEDGER_CANCELLED }), FL_OK);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_COMMITTED);
    assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { 1 } }), FL_OK);
    add_job(&r, 1, 1);                                       /* not pinned now */
    assert_int_equal(grant_of(&r, 2).rows.v[0], 0);
    free(gap);
    rig_close(&r);
}

static void add_limited_job(rig *r, uint64_t n_rows, row_limits limits)
{
    row_table *rows = NULL;
    assert_int_equal(row_table_open(&rows, 0, NULL), FL_OK);
    for (uint64_t i = 0; i < n_rows; i++) assert_int_equal(row_table_add(rows, 1, 10, NULL), FL_OK);
    coord_job spec = { .id = JOB, .limits = limits };
    assert_int_equal(step(r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
}

static void a_row_that_no_worker_takes_in_time_fails(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    add_limited_job(&r, 12, (row_limits){ .queue_ms = 5000 });
    uint64_t lease = grant_of(&r, 1).lease, n_held = status(&r).rows_running;
    assert_in_range(n_held, 1, 11);
    tick(&r, 5000);
    assert_int_equal(status(&r).rows_failed, 0);
    beat(&r, 1, lease, 1);
    tick(&r, 1);
    assert_int_equal(status(&r).rows_failed, 12 - n_held);
    assert_int_equal(status(&r).timeouts, 12 - n_held);
    assert_int_equal(r.out.appends.v[0].record.code, ROW_TIMEOUT);
    assert_int_equal(status(&r).state, JOB_OPEN);
    rig_close(&r);
}

static void a_row_that_runs_too_long_fails_in_all_its_leases(void **state)
{
    (void)state;
    rig r;
    rig_open_copying(&r, 1000);
    hello(&r, 1);
    add_limited_job(&r, 1, (row_limits){ .run_ms = 4000 });
    uint64_t lease = grant_of(&r, 1).lease;
    tick(&r, 1000);
    hello(&r, 2);
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
    tick(&r, 3000);
    assert_int_equal(status(&r).state, JOB_OPEN);
    tick(&r, 1);
    assert_non_null(find_send(&r, 1, WIRE_REVOKE));
    assert_non_null(find_send(&r, 2, WIRE_REVOKE));
    assert_int_equal(status(&r).state, JOB_COMPLETED);
    assert_int_equal(status(&r).rows_failed, 1);
    assert_int_equal(coord_n_leases(r.c), 0);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_STALE);
    rig_close(&r);
}

static void a_job_whose_time_is_over_fails_what_is_left(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    add_limited_job(&r, 30, (row_limits){ .total_ms = 5000 });
    uint64_t lease = grant_of(&r, 1).lease, row = grant_of(&r, 1).rows.v[0];
    assert_int_equal(result(&r, 1, lease, row, 0), WIRE_COMMITTED);
    tick(&r, 5001);
    assert_int_equal(count_appends(&r, LEDGER_ROW_ERROR), 29);
    assert_int_equal(count_appends(&r, LEDGER_CLOSE), 1);
    assert_int_equal(status(&r).state, JOB_COMPLETED);
    assert_int_equal(status(&r).rows_completed, 1);
    rig_close(&r);
}

static void cancel_works_while_paused_draining_and_on_a_full_disk(void **state)
{
    (void)state;
    event cancel = { .type = EVENT_JOB_CLOSE, .job_id = JOB, .cause = LEDGER_CANCELLED };
    for (int i = 0; i < 3; i++) {
        rig r;
        rig_open(&r);
        add_job(&r, 1, 2);
        hello(&r, 1);
        uint64_t row = 0, lease = grant_of(&r, 1).lease;
        assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_COMMITTED);
        if (i == 0) assert_int_equal(step(&r, &(event){ .type = EVENT_DRAIN, .drain = true }), FL_OK);
        if (i == 1) assert_int_equal(step(&r, &(event){ .type = EVENT_DISK, .disk_full = true }), FL_OK);
        for (uint64_t k = lease; i == 2 && !status(&r).why[0]; k++) handback(&r, 1, k, &row, 1, WIRE_HAND_ENGINE_ENDED);
        assert_int_equal(step(&r, &cancel), FL_OK);
        assert_int_equal(count_appends(&r, LEDGER_CLOSE), 1);
        assert_int_equal(status(&r).state, JOB_CANCELLED);
        assert_int_equal(status(&r).samples_committed, 1);
        rig_close(&r);
    }
}

static void an_unknown_worker_is_asked_for_hello(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    beat(&r, 8, 3, 0);
    assert_int_equal(find_send(&r, 8, WIRE_BEAT)->msg.beat.say_hello, 1);
    assert_int_equal(find_send(&r, 8, WIRE_REVOKE)->msg.revoke.lease, 3);
    rig_close(&r);
}

static void a_hello_without_a_lease_gives_its_rows_back(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    hello(&r, 1);                                            /* reconnected; the grant was lost on the way */
    assert_true(grant_of(&r, 1).lease > lease);
    assert_non_null(find_send(&r, 1, WIRE_JOB));
    assert_int_equal(coord_n_leases(r.c), 1);
    rig_close(&r);
}

static void cancel_revokes_and_nothing_follows_the_closing_record(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 10, 1);
    hello(&r, 1);
    wire_grant g = grant_of(&r, 1);
    uint64_t lease = g.lease;
    event cancel = { .type = EVENT_JOB_CLOSE, .job_id = JOB, .cause = LEDGER_CANCELLED };
    assert_int_equal(step(&r, &cancel), FL_OK);
    assert_int_equal(r.out.appends.v[0].record.cause, LEDGER_CANCELLED);
    assert_non_null(find_send(&r, 1, WIRE_REVOKE));
    assert_int_equal(coord_n_leases(r.c), 0);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_STALE);
    assert_int_equal(r.out.appends.n, 0);
    assert_int_equal(step(&r, &cancel), FL_CONFLICT);
    cancel.job_id.v = 3;
    assert_int_equal(step(&r, &cancel), FL_NOT_FOUND);
    rig_close(&r);
}

static void a_draining_coordinator_grants_nothing(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 100, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(step(&r, &(event){ .type = EVENT_DRAIN, .drain = true }), FL_OK);
    assert_int_equal(find_send(&r, 1, WIRE_STOP)->msg.stop.drain, 1);
    assert_int_equal(result(&r, 1, lease, 0, 0), WIRE_COMMITTED);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    handback(&r, 1, lease, NULL, 0, WIRE_HAND_DRAIN);
    hello(&r, 2);
    assert_non_null(find_send(&r, 2, WIRE_STOP));
    assert_null(find_send(&r, 2, WIRE_GRANT));
    rig_close(&r);
}

static void a_full_disk_stops_grants_until_it_has_room(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 5, 1);
    assert_int_equal(step(&r, &(event){ .type = EVENT_DISK, .disk_full = true, .text = "the spool's disk is full" }), FL_OK);
    hello(&r, 1);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    assert_string_equal(status(&r).why, "the spool's disk is full");
    assert_int_equal(step(&r, &(event){ .type = EVENT_DISK }), FL_OK);
    assert_non_null(find_send(&r, 1, WIRE_GRANT));
    rig_close(&r);
}

static void a_job_whose_rows_are_all_done_closes_when_it_is_added(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    fl_err err = { 0 };
    row_table *rows = NULL;
    row_table_open(&rows, 0, &err);
    row_table_add(rows, 1, 10, &err);
    row_table_add(rows, 2, 10, &err);
    row_table_fail(rows, (row_index){ 0 });
    row_table_commit(rows, (row_index){ 1 }, 0);
    row_table_commit(rows, (row_index){ 1 }, 1);
    coord_job spec = { .id = JOB };
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_int_equal(count_appends(&r, LEDGER_CLOSE), 1);
    assert_int_equal(status(&r).state, JOB_COMPLETED);
    row_table_open(&rows, 0, &err);                          /* a crash after the closing record, before the journal knew */
    row_table_add(rows, 1, 10, &err);
    row_table_commit(rows, (row_index){ 0 }, 0);
    spec = (coord_job){ .id = { 78 }, .state = JOB_COMPLETED, .journal_state = JOB_OPEN };
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_int_equal(r.out.appends.n, 0);
    assert_int_equal(r.out.journal.v[0].type, ACTION_JOB_STATE);
    assert_int_equal(count_actions(&r.out.sends, ACTION_JOB_CLOSED), 1);
    rig_close(&r);
}

static void an_unreachable_worker_gets_nothing_until_it_speaks(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    assert_int_equal(step(&r, &(event){ .type = EVENT_UNREACHABLE, .worker = { 1 } }), FL_OK);
    add_job(&r, 3, 1);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    beat(&r, 1, 0, 0);
    assert_non_null(find_send(&r, 1, WIRE_GRANT));
    rig_close(&r);
}

/* A retry: the closed job comes back in its place with the rows that are not done; a lease of its first life counts for nothing. */
static void a_closed_job_is_replaced_in_its_place_and_its_old_leases_are_stale(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    add_job(&r, 3, 1);
    add_job_of(&r, (job_id){ 78 }, 5, 1, 10);
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_REMOVE, .job_id = JOB }), FL_CONFLICT);
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_CLOSE, .job_id = JOB, .cause = LEDGER_CANCELLED }), FL_OK);
    fl_err err = { 0 };
    row_table *rows = NULL;
    row_table_open(&rows, 0, &err);
    for (int i = 0; i < 3; i++) row_table_add(rows, 1, 10, &err);
    row_table_commit(rows, (row_index){ 1 }, 0);
    coord_job spec = { .id = JOB, .seed = 5 };
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_true(status(&r).state == JOB_OPEN && status(&r).rows_completed == 1);
    wire_msg late = { .type = WIRE_RESULT, .result = { .job = JOB.v, .lease = 10, .row = 0, .n_pieces = 1 } };
    assert_int_equal(say(&r, 1, &late), FL_OK);
    assert_int_equal(count_appends(&r, LEDGER_RESULT), 0);
    assert_true(status(&r).stale == 1);
    rig_close(&r);
}

static void a_removed_job_is_not_known_and_can_come_again(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    coord_job_status s;
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_REMOVE, .job_id = JOB }), FL_NOT_FOUND);
    hello(&r, 1);
    add_job(&r, 3, 1);
    assert_non_null(find_send(&r, 1, WIRE_JOB));
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_CLOSE, .job_id = JOB, .cause = LEDGER_CANCELLED }), FL_OK);
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_REMOVE, .job_id = JOB }), FL_OK);
    assert_false(coord_job_find(r.c, JOB, &s));
    add_job(&r, 3, 1);
    assert_non_null(find_send(&r, 1, WIRE_JOB));         /* told anew */
    rig_close(&r);
}

static void a_message_that_is_not_a_workers_is_refused(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    wire_msg m = { .type = WIRE_GRANT };
    assert_int_equal(say(&r, 1, &m), FL_INVALID);
    m = hello_of(1);
    assert_int_equal(say(&r, 2, &m), FL_INVALID);
    m = hello_of(0);
    assert_int_equal(say(&r, 0, &m), FL_INVALID);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_job_is_replaced_in_its_place_and_its_old_leases_are_stale),
        cmocka_unit_test(a_removed_job_is_not_known_and_can_come_again),
        cmocka_unit_test(a_dead_workers_rows_go_back_in_order),
        cmocka_unit_test(a_beat_renews_and_an_unlisted_lease_runs_out),
        cmocka_unit_test(a_lease_without_progress_is_lost_and_waits_twice_as_long_next_time),
        cmocka_unit_test(a_job_that_is_retried_is_judged_anew),
        cmocka_unit_test(a_row_that_no_worker_takes_in_time_fails),
        cmocka_unit_test(a_row_that_runs_too_long_fails_in_all_its_leases),
        cmocka_unit_test(a_job_whose_time_is_over_fails_what_is_left),
        cmocka_unit_test(cancel_works_while_paused_draining_and_on_a_full_disk),
        cmocka_unit_test(an_unknown_worker_is_asked_for_hello),
        cmocka_unit_test(a_hello_without_a_lease_gives_its_rows_back),
        cmocka_unit_test(cancel_revokes_and_nothing_follows_the_closing_record),
        cmocka_unit_test(a_draining_coordinator_grants_nothing),
        cmocka_unit_test(a_full_disk_stops_grants_until_it_has_room),
        cmocka_unit_test(a_job_whose_rows_are_all_done_closes_when_it_is_added),
        cmocka_unit_test(an_unreachable_worker_gets_nothing_until_it_speaks),
        cmocka_unit_test(a_message_that_is_not_a_workers_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
