/* The coordinator's core, event by event. tests/sim drives it with storms; here each behaviour has a name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord.h"

#define JOB ((job_id){ 77 })
#define BEAT_MS 1000
#define TERM_MS 6000
#define PROGRESS_MS 60000

typedef struct {
    coord *c;
    action_list out;
    int64_t now;
    int n_released;
    bool is_valid;
    uint64_t line_bytes;                 /* of every row */
} rig;

static uint64_t line_bytes(void *context, job_id job, row_index row)
{
    (void)job;
    (void)row;
    return ((rig *)context)->line_bytes;
}

static bool check_result(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces)
{
    (void)n_vocab;
    (void)pieces;
    (void)n_pieces;
    return ((rig *)context)->is_valid;
}

static void rig_open_copying(rig *r, uint32_t copy_ms)
{
    memset(r, 0, sizeof *r);
    r->is_valid = true;
    action_list_init(&r->out);
    coord_options options = { .beat_ms = BEAT_MS, .term_ms = TERM_MS, .progress_ms = PROGRESS_MS, .copy_ms = copy_ms, .next_lease = 10, .result_is_valid = check_result,
                              .line_bytes = line_bytes, .context = r };
    assert_int_equal(coord_open(&r->c, &options, NULL), FL_OK);
}

static void rig_open(rig *r) { rig_open_copying(r, UINT32_MAX); }      /* no copies */

static void rig_close(rig *r)
{
    coord_close(r->c, &r->out);
    action_list_fini(&r->out);
}

static fl_status step(rig *r, const event *ev)
{
    fl_err err = { 0 };
    action_list_clear(&r->out);
    fl_status st = coord_step(r->c, r->now, ev, &r->out, &err);
    for (size_t i = 0; i < r->out.sends.n; i++) r->n_released += r->out.sends.v[i].type == ACTION_RELEASE;
    return st;
}

static void add_job_of(rig *r, job_id id, uint64_t n_rows, uint32_t n, uint64_t cost)
{
    fl_err err = { 0 };
    row_table *rows = NULL;
    assert_int_equal(row_table_open(&rows, 0, &err), FL_OK);
    for (uint64_t i = 0; i < n_rows; i++) assert_int_equal(row_table_add(rows, n, cost, &err), FL_OK);
    coord_job spec = { .id = id, .seed = 5 };
    assert_int_equal(step(r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_null(rows);
}

static void add_job(rig *r, uint64_t n_rows, uint32_t n) { add_job_of(r, JOB, n_rows, n, 10); }

static fl_status say(rig *r, uint64_t worker, const wire_msg *m)
{
    return step(r, &(event){ .type = EVENT_MESSAGE, .worker = { worker }, .msg = m });
}

static wire_msg hello_of(uint64_t worker)
{
    wire_msg m = { .type = WIRE_HELLO };
    m.hello = (wire_hello){ .worker = worker, .model = wire_text("demo"), .fingerprint = wire_text("f1"), .numerics = wire_text("cpu-1"), .n_vocab = 100, .context = 1000,
                            .credit_tokens = 100000, .place = wire_text("here") };
    return m;
}

static void hello(rig *r, uint64_t worker)
{
    wire_msg m = hello_of(worker);
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static const action *find_send(const rig *r, uint64_t worker, wire_type type)
{
    for (size_t i = 0; i < r->out.sends.n; i++) {
        const action *a = &r->out.sends.v[i];
        if (a->type == ACTION_SEND && a->msg.type == type && a->worker.v == worker) return a;
    }
    return NULL;
}

static size_t count_actions(const action_array *array, action_type type)
{
    size_t n = 0;
    for (size_t i = 0; i < array->n; i++) n += array->v[i].type == type;
    return n;
}

static size_t count_appends(const rig *r, ledger_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->out.appends.n; i++) n += r->out.appends.v[i].record.kind == kind;
    return n;
}

/* The grant of the last step to this worker, which must be there. */
static wire_grant grant_of(const rig *r, uint64_t worker)
{
    const action *a = find_send(r, worker, WIRE_GRANT);
    assert_non_null(a);
    return a->msg.grant;
}

static fl_status result_piece_of(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample, uint64_t piece, uint64_t n_pieces, size_t n_bytes)
{
    static const char body[] = "body";
    static char owner;
    wire_msg m = { .type = WIRE_RESULT };
    m.result = (wire_result){ .job = JOB.v, .lease = lease, .row = row, .sample = sample, .piece = piece, .n_pieces = n_pieces, .n_tokens = 3 };
    return step(r, &(event){ .type = EVENT_MESSAGE, .worker = { worker }, .msg = &m, .body = { body, n_bytes, &owner } });
}

static fl_status result_piece(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample, uint64_t piece, uint64_t n_pieces)
{
    return result_piece_of(r, worker, lease, row, sample, piece, n_pieces, 4);
}

static wire_fate fate_of(const rig *r, uint64_t worker)
{
    const action *a = find_send(r, worker, WIRE_ANSWER);
    assert_non_null(a);
    assert_true(a->after_sync);
    assert_int_equal(a->msg.answer.fates.n, 1);
    return (wire_fate)a->msg.answer.fates.v[0];
}

static wire_fate result(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample)
{
    assert_int_equal(result_piece(r, worker, lease, row, sample, 0, 1), FL_OK);
    return fate_of(r, worker);
}

static void beat(rig *r, uint64_t worker, uint64_t lease, uint64_t tokens)
{
    wire_msg m = { .type = WIRE_BEAT };
    m.beat = (wire_beat){ .decode_tokens = tokens, .leases = { &lease, lease ? 1 : 0 } };
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static void handback(rig *r, uint64_t worker, uint64_t lease, const uint64_t *rows, uint32_t n, wire_handback_reason reason)
{
    wire_msg m = { .type = WIRE_HANDBACK };
    m.handback = (wire_handback){ .lease = lease, .rows = { rows, n }, .reason = reason, .text = wire_text("SIGSEGV") };
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static void tick(rig *r, int64_t ms)
{
    r->now += ms;
    assert_int_equal(step(r, &(event){ .type = EVENT_TICK }), FL_OK);
}

static coord_job_status status(const rig *r)
{
    coord_job_status s;
    assert_true(coord_job_find(r->c, JOB, &s));
    return s;
}

static void the_first_grant_pins_the_job_and_is_durable_before_it_is_sent(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    assert_non_null(find_send(&r, 1, WIRE_WELCOME));
    add_job(&r, 3, 1);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(g.lease, 10);
    assert_int_equal(g.rows.v[0], 0);
    assert_true(find_send(&r, 1, WIRE_GRANT)->after_sync);
    assert_non_null(find_send(&r, 1, WIRE_JOB));
    assert_int_equal(count_appends(&r, LEDGER_PIN), 1);
    assert_int_equal(r.out.journal.v[0].type, ACTION_NEXT_LEASE);
    assert_true(r.out.journal.v[0].value > g.lease);
    assert_true(count_actions(&r.out.journal, ACTION_LEASE_SAVE) >= 1);
    rig_close(&r);
}

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

static void four_workers_share_300_rows(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 300, 1);
    enum { N = 4 };
    uint64_t done[N + 1] = { 0 }, queue[N + 1][400][2];      /* (lease, row) of each worker, done in order, one a round */
    size_t head[N + 1] = { 0 }, tail[N + 1] = { 0 };
    for (int round = 0; round < 400 && status(&r).state == JOB_OPEN; round++) {
        for (uint64_t w = 1; w <= N; w++) {
            if (round == (int)(w - 1) * 10) hello(&r, w);    /* they come one after the other */
            else if (head[w] < tail[w]) {
                assert_int_equal(result(&r, w, queue[w][head[w]][0], queue[w][head[w]][1], 0), WIRE_COMMITTED);
                head[w]++;
                done[w]++;
            } else continue;
            for (size_t i = 0; i < r.out.sends.n; i++) {
                const action *a = &r.out.sends.v[i];
                if (a->type != ACTION_SEND || a->msg.type != WIRE_GRANT) continue;
                for (uint32_t k = 0; k < a->msg.grant.rows.n; k++) {
                    queue[a->worker.v][tail[a->worker.v]][0] = a->msg.grant.lease;
                    queue[a->worker.v][tail[a->worker.v]++][1] = a->msg.grant.rows.v[k];
                }
            }
        }
    }
    assert_int_equal(status(&r).state, JOB_COMPLETED);
    for (int w = 1; w <= N; w++)
        if (done[w] < 30) fail_msg("worker %d did %d of 300 rows", w, (int)done[w]);
    assert_true(status(&r).leases_granted < 150);
    rig_close(&r);
}

/* The rows of all grants of the last step to this worker. */
static size_t count_granted(const rig *r, uint64_t worker, uint64_t *lease)
{
    size_t n = 0;
    for (size_t i = 0; i < r->out.sends.n; i++) {
        const action *a = &r->out.sends.v[i];
        if (a->type != ACTION_SEND || a->msg.type != WIRE_GRANT || a->worker.v != worker) continue;
        n += a->msg.grant.rows.n;
        *lease = a->msg.grant.lease;
    }
    return n;
}

static void long_lines_are_granted_as_their_bytes_fit(void **state)
{
    (void)state;
    rig r;
    uint64_t lease = 0;
    rig_open(&r);
    r.line_bytes = COORD_LINE_BYTES;                         /* each as long as a line may be, each of 10 tokens */
    add_job(&r, 6, 3);
    hello(&r, 1);
    assert_int_equal(count_granted(&r, 1, &lease), 1);
    hello(&r, 2);
    assert_int_equal(count_granted(&r, 2, &lease), 1);
    for (uint64_t sample = 0; sample < 2; sample++) {        /* its line is kept until the last sample is there */
        assert_int_equal(result(&r, 2, lease, 1, sample), WIRE_COMMITTED);
        assert_null(find_send(&r, 2, WIRE_GRANT));
    }
    assert_int_equal(result(&r, 2, lease, 1, 2), WIRE_COMMITTED);
    assert_int_equal(count_granted(&r, 2, &lease), 1);
    rig_close(&r);

    rig_open(&r);
    r.line_bytes = COORD_LINE_BYTES / 4;                     /* four at a time, over all leases */
    add_job(&r, 100, 1);
    hello(&r, 1);
    assert_int_equal(count_granted(&r, 1, &lease), 4);
    rig_close(&r);

    rig_open(&r);
    r.line_bytes = 100;                                      /* short ones are a matter of tokens */
    add_job(&r, 100, 1);
    hello(&r, 1);
    assert_true(count_granted(&r, 1, &lease) >= 8);
    rig_close(&r);
}

static void lines_of_restored_leases_count(void **state)
{
    (void)state;
    rig r;
    uint64_t lease = 0;
    rig_open(&r);
    r.line_bytes = COORD_LINE_BYTES / 2;
    add_job(&r, 6, 1);
    lease_item items[] = { { { 2 }, 0, 1 } };
    assert_int_equal(step(&r, &(event){ .type = EVENT_LEASE_RESTORE, .lease = { 5 }, .job_id = JOB, .worker = { 1 }, .items = items, .n_items = 1 }), FL_OK);
    wire_msg m = hello_of(1);
    uint64_t held = 5;
    m.hello.leases = (wire_list){ &held, 1 };
    assert_int_equal(say(&r, 1, &m), FL_OK);
    assert_int_equal(count_granted(&r, 1, &lease), 1);
    rig_close(&r);
}

static void the_tail_is_not_hoarded(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    hello(&r, 2);
    add_job(&r, 6, 1);
    assert_true(grant_of(&r, 1).rows.n <= 2);
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
    rig_close(&r);
}

static void the_samples_of_a_row_stay_together_unless_they_are_too_much(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    wire_msg m = hello_of(1);
    m.hello.credit_tokens = 400;
    assert_int_equal(say(&r, 1, &m), FL_OK);
    add_job_of(&r, JOB, 1, 100, 10);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(g.sample_lo.v[0], 0);
    assert_int_equal(g.sample_hi.v[0], 40);
    m = hello_of(2);
    assert_int_equal(say(&r, 2, &m), FL_OK);
    assert_int_equal(grant_of(&r, 2).sample_hi.v[0], 100);
    rig_close(&r);
}

static void a_worker_with_other_numerics_idles_with_a_sentence(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 50, 1);
    hello(&r, 1);
    wire_msg m = hello_of(2);
    m.hello.numerics = wire_text("cuda-sm90-1");
    assert_int_equal(say(&r, 2, &m), FL_OK);
    const action *a = find_send(&r, 2, WIRE_WELCOME);
    assert_int_equal(a->msg.welcome.accepted, 0);
    assert_non_null(strstr(a->msg.welcome.why.p, "cpu-1"));
    assert_null(find_send(&r, 2, WIRE_GRANT));
    add_job_of(&r, (job_id){ 78 }, 5, 1, 10);                /* a job that nobody began yet */
    assert_int_equal(find_send(&r, 2, WIRE_WELCOME)->msg.welcome.accepted, 1);
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
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

static void a_job_that_names_a_model_waits_for_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    fl_err err = { 0 };
    row_table *rows = NULL;
    row_table_open(&rows, 0, &err);
    row_table_add(rows, 1, 10, &err);
    coord_job spec = { .id = JOB, .model = wire_text("large") };
    assert_int_equal(step(&r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_true(strstr(status(&r).why, "no worker is connected") && status(&r).is_stuck);
    hello(&r, 1);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    assert_non_null(strstr(status(&r).why, "large"));
    wire_msg m = hello_of(2);
    m.hello.model = wire_text("large");
    assert_int_equal(say(&r, 2, &m), FL_OK);
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
    assert_string_equal(status(&r).why, "");
    rig_close(&r);
}

static void the_detokenizer_table_is_in_the_ledger_before_the_first_grant(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    wire_msg m = hello_of(1);
    m.hello.has_tokenizer = 1;
    assert_int_equal(say(&r, 1, &m), FL_OK);
    assert_int_equal(find_send(&r, 1, WIRE_WELCOME)->msg.welcome.want_detok, 1);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    tick(&r, 2 * BEAT_MS + 1);
    beat(&r, 1, 0, 0);                                       /* it was lost: asked again */
    assert_int_equal(find_send(&r, 1, WIRE_WELCOME)->msg.welcome.want_detok, 1);
    static char owner;
    m = (wire_msg){ .type = WIRE_DETOK };
    m.detok.fingerprint = wire_text("f1");
    assert_int_equal(step(&r, &(event){ .type = EVENT_MESSAGE, .worker = { 1 }, .msg = &m, .body = { "tab", 3, &owner } }), FL_OK);
    assert_non_null(find_send(&r, 1, WIRE_GRANT));
    assert_int_equal(count_appends(&r, LEDGER_PIN), 1);
    assert_int_equal(count_appends(&r, LEDGER_DETOK), 1);
    add_job_of(&r, (job_id){ 78 }, 5, 1, 10);
    assert_int_equal(count_appends(&r, LEDGER_DETOK), 1);
    rig_close(&r);
}

static void restored_leases_get_a_full_term_and_two_workers_may_hold_the_same(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 4, 1);
    lease_item newer[] = { { { 1 }, 0, 1 } }, older[] = { { { 0 }, 0, 1 }, { { 1 }, 0, 1 } };
    event ev = { .type = EVENT_LEASE_RESTORE, .lease = { 9 }, .job_id = JOB, .worker = { 2 }, .items = newer, .n_items = 1 };
    assert_int_equal(step(&r, &ev), FL_OK);
    ev = (event){ .type = EVENT_LEASE_RESTORE, .lease = { 5 }, .job_id = JOB, .worker = { 1 }, .items = older, .n_items = 2 };
    assert_int_equal(step(&r, &ev), FL_OK);
    ev.lease.v = 4;                                          /* nothing is left for the same worker */
    assert_int_equal(step(&r, &ev), FL_OK);
    assert_int_equal(r.out.journal.v[0].type, ACTION_LEASE_END);
    ev.lease.v = 10;
    assert_int_equal(step(&r, &ev), FL_INVALID);
    tick(&r, TERM_MS - 1);
    wire_msg m = hello_of(1);
    uint64_t held[] = { 5, 4 };
    m.hello.leases = (wire_list){ held, 2 };
    assert_int_equal(say(&r, 1, &m), FL_OK);
    wire_welcome w = find_send(&r, 1, WIRE_WELCOME)->msg.welcome;
    assert_int_equal(w.leases.n, 1);
    assert_int_equal(w.leases.v[0], 5);
    assert_int_equal(status(&r).samples_twice, 1);
    assert_int_equal(result(&r, 2, 9, 1, 0), WIRE_COMMITTED);
    assert_int_equal(result(&r, 1, 5, 1, 0), WIRE_DUPLICATE);
    assert_int_equal(result(&r, 1, 5, 0, 0), WIRE_COMMITTED);
    rig_close(&r);
}

static void an_idle_worker_copies_the_last_rows_and_only_the_sample_leaves_the_other_lease(void **state)
{
    (void)state;
    rig r;
    rig_open_copying(&r, 2000);
    hello(&r, 1);
    add_job(&r, 4, 1);
    uint64_t first = grant_of(&r, 1).lease;
    assert_int_equal(grant_of(&r, 1).rows.n, 2);             /* half of what waits, then the rest */
    hello(&r, 2);
    coord_job_status s = status(&r);
    assert_int_equal(s.rows_tail, 4);
    assert_int_equal(s.samples_copied, 0);
    tick(&r, 2000);
    assert_int_equal(status(&r).oldest_lease_ms, 2000);
    beat(&r, 1, first, 5);
    beat(&r, 2, 0, 0);
    wire_grant g = grant_of(&r, 2);                          /* rows 0 and 1 cost most: half of them, from the end */
    assert_int_equal(g.rows.n, 1);
    assert_int_equal(g.rows.v[0], 1);
    s = status(&r);
    assert_int_equal(s.samples_copied, 1);
    assert_int_equal(s.samples_twice, 1);
    assert_int_equal(s.rows_running, 4);
    assert_int_equal(result(&r, 2, g.lease, 1, 0), WIRE_COMMITTED);
    wire_revoke revoke = find_send(&r, 1, WIRE_REVOKE)->msg.revoke;
    assert_int_equal(revoke.lease, first);
    assert_int_equal(revoke.rows.n, 1);
    assert_int_equal(revoke.rows.v[0], 1);
    assert_int_equal(revoke.samples.v[0], 0);
    assert_true(find_send(&r, 1, WIRE_REVOKE)->after_sync);
    assert_int_equal(result(&r, 1, first, 1, 0), WIRE_DUPLICATE);
    assert_int_equal(status(&r).duplicate_tokens, 3);
    assert_int_equal(status(&r).rows_waiting, 0);
    assert_int_equal(result(&r, 1, first, 0, 0), WIRE_COMMITTED);
    rig_close(&r);
}

static void a_copy_waits_until_nothing_else_does_and_the_lease_is_old(void **state)
{
    (void)state;
    rig r;
    rig_open_copying(&r, 2000);
    hello(&r, 1);
    add_job(&r, 40, 1);
    uint64_t first = grant_of(&r, 1).lease;
    tick(&r, 3000);
    beat(&r, 1, first, 5);
    hello(&r, 2);
    for (size_t i = 0; i < r.out.sends.n; i++) {             /* rows that nobody holds */
        const action *a = &r.out.sends.v[i];
        for (uint32_t k = 0; a->type == ACTION_SEND && a->msg.type == WIRE_GRANT && k < a->msg.grant.rows.n; k++) assert_true(a->msg.grant.rows.v[k] >= 8);
    }
    assert_int_equal(status(&r).samples_copied, 0);
    rig_close(&r);
    rig_open_copying(&r, 2000);
    hello(&r, 1);
    add_job(&r, 1, 1);
    tick(&r, 1999);
    hello(&r, 2);
    assert_null(find_send(&r, 2, WIRE_GRANT));
    tick(&r, 1);
    beat(&r, 2, 0, 0);
    assert_non_null(find_send(&r, 2, WIRE_GRANT));
    beat(&r, 1, 0, 0);
    assert_null(find_send(&r, 1, WIRE_GRANT));               /* its own row is no work for it */
    hello(&r, 3);
    assert_null(find_send(&r, 3, WIRE_GRANT));               /* two at most */
    rig_close(&r);
}

static void a_young_lease_is_copied_as_far_as_it_has_not_begun(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello(&r, 1);
    add_job(&r, 5, 1);
    assert_int_equal(status(&r).rows_tail, 5);
    uint64_t leases[] = { 10, 11, 12 };
    wire_msg m = { .type = WIRE_BEAT };
    m.beat = (wire_beat){ .leases = { leases, 3 }, .running = 3, .waiting = 2 };
    hello(&r, 2);
    assert_null(find_send(&r, 2, WIRE_GRANT));               /* nobody said that something has not begun */
    assert_int_equal(say(&r, 1, &m), FL_OK);
    beat(&r, 2, 0, 0);
    wire_grant g = grant_of(&r, 2);
    assert_int_equal(g.rows.n, 1);
    assert_int_equal(g.rows.v[0], 4);                        /* of the newest lease */
    rig_close(&r);
}

/* Worker 1 holds the job's only row of n samples, worker 2 has a copy of it. */
static void open_with_a_copy(rig *r, uint32_t n, uint64_t *first, uint64_t *copy)
{
    rig_open_copying(r, 1000);
    hello(r, 1);
    add_job(r, 1, n);
    *first = grant_of(r, 1).lease;
    tick(r, 1000);
    hello(r, 2);
    *copy = grant_of(r, 2).lease;
}

static void a_lost_copy_gives_nothing_back(void **state)
{
    (void)state;
    rig r;
    uint64_t first, copy;
    open_with_a_copy(&r, 2, &first, &copy);
    assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { 2 } }), FL_OK);
    assert_int_equal(status(&r).rows_waiting, 0);
    assert_int_equal(status(&r).retries, 0);
    assert_int_equal(result(&r, 2, copy, 0, 0), WIRE_STALE);
    hello(&r, 3);
    uint64_t again = grant_of(&r, 3).lease;
    assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { 1 } }), FL_OK);     /* now the copy is all there is */
    assert_int_equal(status(&r).rows_waiting, 0);
    assert_int_equal(result(&r, 3, again, 0, 0), WIRE_COMMITTED);
    assert_int_equal(step(&r, &(event){ .type = EVENT_WORKER_GONE, .worker = { 3 } }), FL_OK);
    assert_int_equal(status(&r).rows_waiting, 1);
    rig_close(&r);
}

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

static void rows_of_which_most_is_open_are_copied_first(void **state)
{
    (void)state;
    rig r;
    rig_open_copying(&r, 1000);
    hello(&r, 1);
    add_job(&r, 2, 4);
    uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(coord_n_leases(r.c), 2);
    for (uint64_t k = 0; k < 3; k++) assert_int_equal(result(&r, 1, lease, 0, k), WIRE_COMMITTED);
    tick(&r, 1000);
    hello(&r, 2);
    assert_int_equal(grant_of(&r, 2).rows.v[0], 1);
    assert_int_equal(grant_of(&r, 2).sample_hi.v[0], 4);     /* all of it: its samples share a prompt */
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

static void a_row_without_room_waits_for_a_larger_worker(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease, row = 0;
    handback(&r, 1, lease, &row, 1, WIRE_HAND_NO_ROOM);
    assert_int_equal(result(&r, 1, lease + 1, 1, 0), WIRE_COMMITTED);       /* row 1 is in a lease of its own */
    assert_true(status(&r).is_stuck);
    assert_non_null(strstr(status(&r).why, "row 0"));
    assert_non_null(strstr(status(&r).why, "more memory"));
    hello(&r, 2);                                            /* no larger */
    assert_null(find_send(&r, 2, WIRE_GRANT));
    wire_msg m = hello_of(3);
    m.hello.context = 4000;
    assert_int_equal(say(&r, 3, &m), FL_OK);
    assert_int_equal(grant_of(&r, 3).rows.v[0], 0);
    assert_false(status(&r).is_stuck);
    rig_close(&r);
}

static void a_chat_waits_for_a_worker_that_can_render_it(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 2, 1);
    hello(&r, 1);
    uint64_t lease = grant_of(&r, 1).lease, row = 0;
    handback(&r, 1, lease, &row, 1, WIRE_HAND_NO_CHATS);
    assert_int_equal(result(&r, 1, lease + 1, 1, 0), WIRE_COMMITTED);       /* row 1 is in a lease of its own */
    assert_null(find_send(&r, 1, WIRE_GRANT));
    assert_true(status(&r).is_stuck);
    assert_non_null(strstr(status(&r).why, "row 0"));
    assert_non_null(strstr(status(&r).why, "chat"));
    assert_non_null(strstr(status(&r).why, "SIGSEGV"));      /* the worker's own words */
    wire_msg m = hello_of(2);                                /* no larger, but it has a Python; then it has no room, and a third has too little of both */
    assert_int_equal(say(&r, 2, &m), FL_OK);
    lease = grant_of(&r, 2).lease;
    assert_int_equal(grant_of(&r, 2).rows.v[0], 0);
    handback(&r, 2, lease, &row, 1, WIRE_HAND_NO_ROOM);
    assert_null(find_send(&r, 1, WIRE_GRANT));
    hello(&r, 3);
    assert_null(find_send(&r, 3, WIRE_GRANT));
    m = hello_of(4);
    m.hello.context = 4000;
    assert_int_equal(say(&r, 4, &m), FL_OK);
    assert_int_equal(grant_of(&r, 4).rows.v[0], 0);
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

static void jobs_are_served_in_submit_order(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job(&r, 1, 1);
    add_job_of(&r, (job_id){ 78 }, 1, 1, 10);
    hello(&r, 1);
    assert_int_equal(grant_of(&r, 1).job, JOB.v);
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
    coord_job_status first;
    assert_true(coord_n_jobs(r.c) == 2 && coord_job_at(r.c, 0, &first) && first.id.v == JOB.v && first.state == JOB_OPEN && first.rows_completed == 1);
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
    assert_true(coord_n_jobs(r.c) == 0 && !coord_job_find(r.c, JOB, &s));
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
        cmocka_unit_test(the_first_grant_pins_the_job_and_is_durable_before_it_is_sent),
        cmocka_unit_test(a_result_is_committed_once_and_the_job_closes_with_its_last),
        cmocka_unit_test(late_result_of_an_old_lease_is_stale),
        cmocka_unit_test(pieces_commit_as_a_whole_with_the_last),
        cmocka_unit_test(a_result_that_cannot_be_read_is_refused_and_its_row_given_out_again),
        cmocka_unit_test(pieces_beyond_the_bound_of_a_lease_are_dropped),
        cmocka_unit_test(a_result_with_a_missing_piece_is_refused_and_given_out_again),
        cmocka_unit_test(a_row_error_ends_the_row_in_every_lease),
        cmocka_unit_test(a_dead_workers_rows_go_back_in_order),
        cmocka_unit_test(a_beat_renews_and_an_unlisted_lease_runs_out),
        cmocka_unit_test(a_lease_without_progress_is_lost_and_waits_twice_as_long_next_time),
        cmocka_unit_test(four_workers_share_300_rows),
        cmocka_unit_test(the_tail_is_not_hoarded),
        cmocka_unit_test(the_samples_of_a_row_stay_together_unless_they_are_too_much),
        cmocka_unit_test(a_worker_with_other_numerics_idles_with_a_sentence),
        cmocka_unit_test(a_job_that_is_retried_is_judged_anew),
        cmocka_unit_test(a_job_that_names_a_model_waits_for_it),
        cmocka_unit_test(long_lines_are_granted_as_their_bytes_fit),
        cmocka_unit_test(lines_of_restored_leases_count),
        cmocka_unit_test(the_detokenizer_table_is_in_the_ledger_before_the_first_grant),
        cmocka_unit_test(restored_leases_get_a_full_term_and_two_workers_may_hold_the_same),
        cmocka_unit_test(an_idle_worker_copies_the_last_rows_and_only_the_sample_leaves_the_other_lease),
        cmocka_unit_test(a_copy_waits_until_nothing_else_does_and_the_lease_is_old),
        cmocka_unit_test(a_young_lease_is_copied_as_far_as_it_has_not_begun),
        cmocka_unit_test(a_lost_copy_gives_nothing_back),
        cmocka_unit_test(a_copied_row_that_ends_an_engine_runs_alone),
        cmocka_unit_test(rows_of_which_most_is_open_are_copied_first),
        cmocka_unit_test(a_row_that_no_worker_takes_in_time_fails),
        cmocka_unit_test(a_row_that_runs_too_long_fails_in_all_its_leases),
        cmocka_unit_test(a_job_whose_time_is_over_fails_what_is_left),
        cmocka_unit_test(what_engines_said_at_their_end_is_kept),
        cmocka_unit_test(a_suspect_without_room_still_runs_alone),
        cmocka_unit_test(cancel_works_while_paused_draining_and_on_a_full_disk),
        cmocka_unit_test(an_unknown_worker_is_asked_for_hello),
        cmocka_unit_test(a_hello_without_a_lease_gives_its_rows_back),
        cmocka_unit_test(a_row_without_room_waits_for_a_larger_worker),
        cmocka_unit_test(a_chat_waits_for_a_worker_that_can_render_it),
        cmocka_unit_test(suspects_run_alone_and_two_crashes_quarantine),
        cmocka_unit_test(a_hundred_ends_without_blame_pause_the_job),
        cmocka_unit_test(cancel_revokes_and_nothing_follows_the_closing_record),
        cmocka_unit_test(jobs_are_served_in_submit_order),
        cmocka_unit_test(a_draining_coordinator_grants_nothing),
        cmocka_unit_test(a_full_disk_stops_grants_until_it_has_room),
        cmocka_unit_test(a_job_whose_rows_are_all_done_closes_when_it_is_added),
        cmocka_unit_test(an_unreachable_worker_gets_nothing_until_it_speaks),
        cmocka_unit_test(a_message_that_is_not_a_workers_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
