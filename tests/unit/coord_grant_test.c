/* The coordinator's core: who gets how many rows, and when rows are copied. */
#include "tests/unit/coord_rig.h"

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

static uint64_t rows_held(const rig *r, size_t i)
{
    coord_worker_status w;
    assert_true(coord_worker_at(r->c, i, &w));
    return w.rows_held;
}

/* A worker on a GPU, which also says how many sequences a step of it holds. */
static void hello_with_batch(rig *r, uint64_t batch, uint64_t kv_tokens, uint64_t credit_tokens)
{
    wire_msg m = hello_of(1);
    m.hello.batch = batch;
    m.hello.kv_tokens = kv_tokens;
    m.hello.credit_tokens = credit_tokens;
    assert_int_equal(say(r, 1, &m), FL_OK);
}

/* Long rows on a GPU: its credit is that of 20 of them, its batch is 32. */
static void a_worker_with_a_batch_never_has_less(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello_with_batch(&r, 32, 1000000, 20000);
    add_job_of(&r, JOB, 1000, 1, 1000);
    assert_int_equal(rows_held(&r, 0), 32);
    const uint64_t lease = grant_of(&r, 1).lease;
    assert_int_equal(grant_of(&r, 1).rows.n, 32);
    for (uint64_t row = 0; row < 32; row++) {
        assert_int_equal(result(&r, 1, lease, row, 0), WIRE_COMMITTED);
        assert_in_range(rows_held(&r, 0), 32, 64);
    }
    rig_close(&r);
}

static void a_batch_is_bounded_by_the_kv_pool(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello_with_batch(&r, 32, 5000, 2000);
    add_job_of(&r, JOB, 1000, 1, 1000);
    assert_in_range(rows_held(&r, 0), 5, 10);
    rig_close(&r);
}

/* A batch is so many samples, whichever rows they are of: the rest is left to others. */
static void a_batch_counts_samples(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    hello_with_batch(&r, 32, 1000000, 20000);
    add_job_of(&r, JOB, 164, 20, 1000);
    assert_in_range(rows_held(&r, 0), 1, 2);
    rig_close(&r);
    rig_open(&r);
    hello_with_batch(&r, 32, 1000000, 20000);
    add_job_of(&r, JOB, 1, 1000, 700);                       /* one row that is far more than it asked for */
    assert_int_equal(grant_of(&r, 1).sample_hi.v[0], 32);
    rig_close(&r);
}

static void workers_with_a_batch_share_what_is_no_more_than_their_batches(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job_of(&r, JOB, 64, 1, 1000);
    for (uint64_t w = 1; w <= 2; w++) {
        wire_msg m = hello_of(w);
        m.hello.batch = 64;
        m.hello.kv_tokens = 1000000;
        assert_int_equal(say(&r, w, &m), FL_OK);
    }
    assert_in_range(rows_held(&r, 0), 16, 48);
    assert_in_range(rows_held(&r, 1), 12, 48);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_grant_pins_the_job_and_is_durable_before_it_is_sent),
        cmocka_unit_test(four_workers_share_300_rows),
        cmocka_unit_test(the_tail_is_not_hoarded),
        cmocka_unit_test(a_worker_with_a_batch_never_has_less),
        cmocka_unit_test(a_batch_is_bounded_by_the_kv_pool),
        cmocka_unit_test(a_batch_counts_samples),
        cmocka_unit_test(workers_with_a_batch_share_what_is_no_more_than_their_batches),
        cmocka_unit_test(the_samples_of_a_row_stay_together_unless_they_are_too_much),
        cmocka_unit_test(a_worker_with_other_numerics_idles_with_a_sentence),
        cmocka_unit_test(a_job_that_names_a_model_waits_for_it),
        cmocka_unit_test(long_lines_are_granted_as_their_bytes_fit),
        cmocka_unit_test(lines_of_restored_leases_count),
        cmocka_unit_test(the_detokenizer_table_is_in_the_ledger_before_the_first_grant),
        cmocka_unit_test(restored_leases_get_a_full_term_and_two_workers_may_hold_the_same),
        cmocka_unit_test(an_idle_worker_copies_the_last_rows_and_only_the_sample_leaves_the_other_lease),
        cmocka_unit_test(a_copy_waits_until_nothing_else_does_and_the_lease_is_old),
        cmocka_unit_test(a_young_lease_is_copied_as_far_as_it_has_not_begun),
        cmocka_unit_test(a_lost_copy_gives_nothing_back),
        cmocka_unit_test(rows_of_which_most_is_open_are_copied_first),
        cmocka_unit_test(a_row_without_room_waits_for_a_larger_worker),
        cmocka_unit_test(a_chat_waits_for_a_worker_that_can_render_it),
        cmocka_unit_test(jobs_are_served_in_submit_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
