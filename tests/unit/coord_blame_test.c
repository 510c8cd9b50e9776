/* The coordinator's core: rows under which engines end. */
#include "tests/unit/coord_rig.h"

static void a_copied_row_that_ends_an_engine_runs_alone(void **state)
{
    (void)state;
    rig r;
    uint64_t first, copy, row = 0;
    open_with_a_copy(&r, 1, &first, &copy);
    handback(&r, 2, copy, &row, 1, WIRE_HAND_ENGINE_ENDED);
    wire_revoke revoke = find_send(&r, 1, WIRE_REVOKE)->msg.revoke;
    assert_int_equal(revoke.lease, first);
    assert_int_equal(revoke.samples.v[0], WIRE_WHOLE_ROW);
    assert_int_equal(result(&r, 1, first, 0, 0), WIRE_STALE);
    uint64_t worker = find_send(&r, 1, WIRE_GRANT) ? 1 : 2;
    tick(&r, 1500);
    beat(&r, worker, 12, 3);
    beat(&r, 3 - worker, 0, 0);
    assert_null(find_send(&r, 3 - worker, WIRE_GRANT));      /* a suspect is not copied */
    rig_close(&r);
}

static void what_engines_said_at_their_end_is_kept(void **state)
{
    (void)state;
    rig r;
    coord_end end;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    assert_false(coord_job_end(r.c, JOB, 0, &end));
    wire_grant g = grant_of(&r, 1);
    uint64_t rows[] = { 0 };
    handback(&r, 1, g.lease, rows, 1, WIRE_HAND_ENGINE_ENDED);
    assert_true(coord_job_end(r.c, JOB, 0, &end));
    assert_int_equal(end.row.v, 0);
    assert_false(end.was_alone);
    assert_string_equal(end.last_words, "SIGSEGV");
    assert_string_equal(end.place, "here");
    assert_false(coord_job_end(r.c, JOB, 1, &end));
    rig_close(&r);
}

static void a_suspect_without_room_still_runs_alone(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 3, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease, row = 0;
    handback(&r, 1, lease, &row, 1, WIRE_HAND_ENGINE_ENDED);
    coord_job_status s = status(&r);
    assert_int_equal(s.rows_suspect, 1);
    assert_int_equal(result(&r, 1, lease, 1, 0), WIRE_COMMITTED);
    assert_int_equal(result(&r, 1, lease + 1, 2, 0), WIRE_COMMITTED);
    uint64_t alone = grant_of(&r, 1).lease;
    handback(&r, 1, alone, &row, 1, WIRE_HAND_NO_ROOM);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    s = status(&r);
    assert_int_equal(s.rows_suspect, 1);
    assert_int_equal(s.rows_room, 0);
    assert_true(s.is_stuck);
    assert_non_null(strstr(s.why, "more room"));
    wire_msg large = hello_of(2);
    large.hello.context = 8000;
    assert_int_equal(say(&r, 2, &large), FL_OK);
    assert_int_equal(grant_of(&r, 2).rows.v[0], 0);
    rig_close(&r);
}

static void suspects_run_alone_and_two_crashes_quarantine(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease;
    const action *a;
    handback(&r, 1, lease, NULL, 0, WIRE_HAND_ENGINE_ENDED);
    while (coord_n_leases(r.c) > 1) {                        /* other shards of the first grant */
        a = find_send(&r, 1, WIRE_GRANT);
        handback(&r, 1, a ? a->msg.grant.lease : ++lease, NULL, 0, WIRE_HAND_ENGINE_ENDED);
    }
    int n_crashes = 0;
    for (int i = 0; i < 10 && status(&r).state == JOB_OPEN; i++) {
        a = find_send(&r, 1, WIRE_GRANT);
        if (!a) { handback(&r, 1, ++lease, NULL, 0, WIRE_HAND_ENGINE_ENDED); continue; }
        lease = a->msg.grant.lease;
        assert_int_equal(coord_n_leases(r.c), 1);
        assert_int_equal(a->msg.grant.rows.n, 1);
        if (a->msg.grant.rows.v[0] == 0 && n_crashes < 2) {
            n_crashes++;
            handback(&r, 1, lease, NULL, 0, WIRE_HAND_ENGINE_CRASHED_ALONE);
            if (n_crashes == 2) {
                assert_int_equal(r.out.appends.v[0].record.kind, LEDGER_ROW_ERROR);
                assert_int_equal(r.out.appends.v[0].record.code, ROW_CRASH_QUARANTINED);
                assert_int_equal(r.out.appends.v[0].record.row.v, 0);
            }
        } else {
            assert_int_equal(result(&r, 1, lease, a->msg.grant.rows.v[0], 0), WIRE_COMMITTED);
        }
    }
    coord_job_status s = status(&r);
    assert_int_equal(s.state, JOB_COMPLETED);
    assert_int_equal(s.rows_failed, 1);
    assert_int_equal(s.rows_completed, 1);
    assert_int_equal(n_crashes, 2);
    rig_close(&r);
}

static void a_hundred_ends_without_blame_pause_the_job(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    for (uint64_t w = 1; w <= 100; w++) {
        assert_string_equal(status(&r).why, w == 1 ? "no worker is connected" : status(&r).why);
        hello(&r, w);
        assert_non_null(find_send(&r, w, WIRE_GRANT));
        assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { w } }), FL_OK);
    }
    hello(&r, 101);
    assert_null(find_send(&r, 101, WIRE_GRANT));
    assert_non_null(strstr(status(&r).why, "100 times"));
    assert_true(status(&r).is_stuck);
    assert_int_equal(status(&r).rows_failed, 0);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_copied_row_that_ends_an_engine_runs_alone),
        cmocka_unit_test(what_engines_said_at_their_end_is_kept),
        cmocka_unit_test(a_suspect_without_room_still_runs_alone),
        cmocka_unit_test(suspects_run_alone_and_two_crashes_quarantine),
        cmocka_unit_test(a_hundred_ends_without_blame_pause_the_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
