/* The stub worker of `bench-fleet` as pure state: it speaks as a worker does. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include "coordinator/stub_worker.h"
#include "proto/result.h"

#define N_TOKENS 5
#define SECOND 1000000

typedef struct { stub_bodies bodies; stub_stats stats; stub_options options; stub_worker *w; int64_t now_us; wire_msg msg; fl_bytes part; } rig;

static void rig_open(rig *r, uint64_t interval_us)
{
    *r = (rig){ .now_us = 100 * SECOND };
    assert_int_equal(stub_bodies_open(&r->bodies, N_TOKENS, NULL), FL_OK);
    r->options = (stub_options){ .interval_us = interval_us, .credit_tokens = 1000, .credit_bytes = 1 << 20, .bodies = &r->bodies, .stats = &r->stats };
    assert_int_equal(stub_open(&r->w, 7, &r->options, r->now_us, NULL), FL_OK);
}

static void rig_close(rig *r)
{
    stub_close(r->w);
    stub_bodies_close(&r->bodies);
}

/* What it says now; 0 when nothing. */
static wire_type next(rig *r)
{
    if (!stub_next(r->w, r->now_us, &r->msg, &r->part)) return 0;
    stub_said(r->w, r->now_us);
    return r->msg.type;
}

static void hear(rig *r, const wire_msg *msg)
{
    fl_err err = { 0 };
    if (stub_hear(r->w, msg, r->now_us, &err) != FL_OK) fail_msg("%s", err.text);
}

static void grant(rig *r, uint64_t lease, uint64_t row, uint64_t n_rows)
{
    uint64_t rows[16], lo[16], hi[16];
    for (uint64_t i = 0; i < n_rows; i++) {
        rows[i] = row + i;
        lo[i] = 0;
        hi[i] = 1;
    }
    uint32_t n = (uint32_t)n_rows;
    hear(r, &(wire_msg){ .type = WIRE_GRANT, .grant = { .job = 1, .lease = lease, .rows = { rows, n }, .sample_lo = { lo, n }, .sample_hi = { hi, n } } });
}

static void answer(rig *r, uint64_t lease, uint64_t row, wire_fate fate)
{
    uint64_t v[5] = { 1, lease, row, 0, fate };
    hear(r, &(wire_msg){ .type = WIRE_ANSWER, .answer = { { v, 1 }, { v + 1, 1 }, { v + 2, 1 }, { v + 3, 1 }, { v + 4, 1 } } });
}

static void greet(rig *r)
{
    assert_int_equal(next(r), WIRE_HELLO);
    assert_int_equal(next(r), 0);
    hear(r, &(wire_msg){ .type = WIRE_WELCOME, .welcome = { .accepted = 1, .beat_ms = 1000 } });
}

static void rows_are_made_at_its_pace_and_bodies_are_good_results(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, SECOND / 10);
    greet(&r);
    grant(&r, 3, 20, 4);
    assert_int_equal(next(&r), 0);                       /* the first is in work */
    r.now_us += SECOND / 4;
    for (uint64_t row = 20; row < 22; row++) {           /* at 100 and 200 ms */
        assert_int_equal(next(&r), WIRE_RESULT);
        assert_int_equal(r.msg.result.row, row);
        assert_int_equal(r.msg.result.lease, 3);
        assert_int_equal(r.msg.result.n_tokens, N_TOKENS);
        assert_int_equal(fl_result_check(r.part.data, r.part.bytes, STUB_VOCAB, NULL), FL_OK);
        fl_bytes again = stub_body(&r.bodies, row, 0);
        assert_ptr_equal(again.data, r.part.data);
    }
    assert_int_equal(next(&r), 0);
    assert_int_equal(stub_due_us(r.w), r.now_us + SECOND / 20);
    rig_close(&r);
}

static void an_outbox_without_room_stops_the_work_until_an_answer_comes(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, 0);
    r.options.credit_bytes = stub_body(&r.bodies, 1, 0).bytes + 1;
    greet(&r);
    grant(&r, 3, 1, 5);
    assert_int_equal(next(&r), WIRE_RESULT);
    assert_int_equal(next(&r), WIRE_RESULT);             /* the one that fills it */
    assert_int_equal(next(&r), 0);
    answer(&r, 3, 1, WIRE_COMMITTED);
    answer(&r, 3, 2, WIRE_DUPLICATE);
    assert_int_equal(next(&r), WIRE_RESULT);
    assert_int_equal(r.stats.n_committed, 1);
    assert_int_equal(r.stats.n_duplicate, 1);
    assert_int_equal(r.stats.outbox_high, 2);
    rig_close(&r);
}

static void after_a_new_hello_what_is_unanswered_is_sent_again_and_lost_leases_are_dropped(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, 0);
    greet(&r);
    grant(&r, 3, 1, 2);
    grant(&r, 4, 10, 2);
    for (int i = 0; i < 4; i++) assert_int_equal(next(&r), WIRE_RESULT);
    answer(&r, 3, 1, WIRE_COMMITTED);
    hear(&r, &(wire_msg){ .type = WIRE_BEAT, .beat = { .say_hello = 1 } });
    assert_int_equal(next(&r), WIRE_HELLO);
    assert_int_equal(r.msg.hello.leases.n, 2);
    uint64_t lives = 3;
    hear(&r, &(wire_msg){ .type = WIRE_WELCOME, .welcome = { .accepted = 1, .beat_ms = 1000, .leases = { &lives, 1 } } });
    assert_int_equal(next(&r), WIRE_RESULT);
    assert_int_equal(r.msg.result.row, 2);
    assert_int_equal(next(&r), 0);                       /* lease 4 has ended, row 1 was answered */
    rig_close(&r);
}

static void a_revoked_row_is_not_made(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, SECOND);
    greet(&r);
    grant(&r, 3, 1, 2);
    uint64_t row = 1, whole = WIRE_WHOLE_ROW;
    hear(&r, &(wire_msg){ .type = WIRE_REVOKE, .revoke = { .lease = 3, .rows = { &row, 1 }, .samples = { &whole, 1 } } });
    r.now_us += SECOND;
    while (next(&r) == WIRE_BEAT) {}
    assert_int_equal(r.msg.type, WIRE_RESULT);
    assert_int_equal(r.msg.result.row, 2);
    hear(&r, &(wire_msg){ .type = WIRE_REVOKE, .revoke.lease = 3 });
    stub_stop(r.w, true);
    assert_int_equal(next(&r), WIRE_BEAT);
    assert_int_equal(next(&r), WIRE_BYE);
    rig_close(&r);
}

static void a_beat_names_its_leases_and_a_stop_hands_back_and_says_good_bye(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, SECOND);
    greet(&r);
    grant(&r, 3, 1, 2);
    r.now_us += SECOND;                                  /* the first beat comes within one interval */
    assert_int_equal(next(&r), WIRE_BEAT);
    assert_int_equal(r.msg.beat.leases.n, 1);
    assert_int_equal(r.msg.beat.leases.v[0], 3);
    assert_int_equal(next(&r), WIRE_RESULT);
    stub_stop(r.w, false);
    assert_int_equal(next(&r), WIRE_BEAT);
    assert_int_equal(r.msg.beat.draining, 1);
    assert_int_equal(next(&r), WIRE_HANDBACK);
    assert_int_equal(r.msg.handback.lease, 3);
    assert_int_equal(next(&r), 0);                       /* one result is not answered yet */
    answer(&r, 3, 1, WIRE_COMMITTED);
    assert_int_equal(next(&r), WIRE_BYE);
    assert_true(stub_ended(r.w));
    assert_int_equal(next(&r), 0);
    rig_close(&r);
}

static void only_time_without_a_row_before_the_last_grant_counts_as_waiting(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, 0);
    greet(&r);
    r.now_us += SECOND;                                  /* no grant has come to anybody yet */
    grant(&r, 3, 1, 1);
    assert_int_equal(next(&r), WIRE_BEAT);
    assert_int_equal(next(&r), WIRE_RESULT);
    r.now_us += 2 * SECOND;
    answer(&r, 3, 1, WIRE_COMMITTED);
    r.now_us += SECOND;
    grant(&r, 4, 2, 1);
    while (next(&r)) {}
    r.now_us += 50 * SECOND;                             /* the tail */
    stub_account(r.w);
    assert_int_equal(r.stats.present_us, 3 * SECOND);
    assert_int_equal(r.stats.waited_us, 3 * SECOND);     /* its outbox had room all the time */
    rig_close(&r);
}

static void what_breaks_the_protocol_is_refused(void **unused)
{
    (void)unused;
    rig r;
    fl_err err;
    rig_open(&r, 0);
    greet(&r);
    grant(&r, 3, 1, 1);
    uint64_t v[3] = { 1, 0, 1 };
    wire_msg twice = { .type = WIRE_GRANT, .grant = { .job = 1, .lease = 3, .rows = { v, 1 }, .sample_lo = { v + 1, 1 }, .sample_hi = { v + 2, 1 } } };
    assert_int_equal(stub_hear(r.w, &twice, r.now_us, &err), FL_CORRUPT);
    assert_int_equal(stub_hear(r.w, &(wire_msg){ .type = WIRE_HELLO }, r.now_us, &err), FL_CORRUPT);
    answer(&r, 9, 9, WIRE_COMMITTED);                    /* of nothing it sent */
    assert_int_equal(r.stats.n_committed, 0);
    rig_close(&r);
}

static void a_latency_falls_into_a_bucket_near_it(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, 0);
    greet(&r);
    grant(&r, 3, 1, 1);
    assert_int_equal(next(&r), WIRE_RESULT);
    r.now_us += 12345;
    answer(&r, 3, 1, WIRE_COMMITTED);
    size_t bucket = 0;
    while (r.stats.latency[bucket] == 0) bucket++;
    assert_true(stub_latency_us(bucket) > 11000 && stub_latency_us(bucket) < 13700);
    rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_made_at_its_pace_and_bodies_are_good_results),
        cmocka_unit_test(an_outbox_without_room_stops_the_work_until_an_answer_comes),
        cmocka_unit_test(after_a_new_hello_what_is_unanswered_is_sent_again_and_lost_leases_are_dropped),
        cmocka_unit_test(a_revoked_row_is_not_made),
        cmocka_unit_test(a_beat_names_its_leases_and_a_stop_hands_back_and_says_good_bye),
        cmocka_unit_test(only_time_without_a_row_before_the_last_grant_counts_as_waiting),
        cmocka_unit_test(what_breaks_the_protocol_is_refused),
        cmocka_unit_test(a_latency_falls_into_a_bucket_near_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
