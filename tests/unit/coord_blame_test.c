/* The coordinator's core: rows under which engines end. */
#include "tests/unit/coord_rig.h"

#define PLAY_ROWS 256
#define PLAY_WORKERS 4
#define PLAY_LEASES 64

/* Workers 1 to n, each with an engine that has all that its worker holds. `ends` says whether that ends it, with evidence or without; otherwise the oldest lease is finished. */
typedef struct play {
    rig r;
    int n_workers;
    bool (*ends)(const struct play *p, int worker, bool *is_evidence);
    struct { uint64_t id, rows[PLAY_ROWS]; uint32_t n; } held[PLAY_WORKERS + 1][PLAY_LEASES];
    uint32_t n_held[PLAY_WORKERS + 1];
    uint32_t begun[PLAY_ROWS];
    uint32_t n_ends, n_leases, n_suspect_leases, n_largest;      /* n_largest: rows of the largest lease of suspects */
    uint64_t poison;
    int last_crashed;                                            /* the worker that last said that a row crashed alone */
} play;

static uint32_t rows_held(const play *p, int worker)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->n_held[worker]; i++) n += p->held[worker][i].n;
    return n;
}

static bool holds(const play *p, int worker, uint64_t row)
{
    for (uint32_t i = 0; i < p->n_held[worker]; i++)
        for (uint32_t k = 0; k < p->held[worker][i].n; k++)
            if (p->held[worker][i].rows[k] == row) return true;
    return false;
}

/* What the last step gave to whom. */
static void take_grants(play *p)
{
    for (size_t i = 0; i < p->r.out.sends.n; i++) {
        const action *a = &p->r.out.sends.v[i];
        if (a->type != ACTION_SEND || a->msg.type != WIRE_GRANT) continue;
        const wire_grant *g = &a->msg.grant;
        const int w = (int)a->worker.v;
        bool is_suspect = false;
        assert_true(p->n_held[w] < PLAY_LEASES && g->rows.n <= PLAY_ROWS);
        p->held[w][p->n_held[w]].id = g->lease;
        p->held[w][p->n_held[w]].n = g->rows.n;
        memcpy(p->held[w][p->n_held[w]].rows, g->rows.v, g->rows.n * sizeof(uint64_t));
        for (uint32_t k = 0; k < g->rows.n; k++) is_suspect |= p->begun[g->rows.v[k]]++ > 0;
        p->n_leases++;
        if (is_suspect) {
            assert_int_equal(p->n_held[w], 0);               /* nothing beside it */
            p->n_suspect_leases++;
            if (g->rows.n > p->n_largest) p->n_largest = g->rows.n;
        }
        p->n_held[w]++;
    }
}

static void open_play(play *p, int n_workers, uint64_t n_rows, uint64_t batch)
{
    memset(p, 0, sizeof *p);
    rig_open(&p->r);
    p->n_workers = n_workers;
    p->poison = UINT64_MAX;
    for (int w = 1; w <= n_workers; w++) {
        wire_msg m = hello_of((uint64_t)w);
        m.hello.batch = batch;
        m.hello.kv_tokens = 1000000;
        assert_int_equal(say(&p->r, (uint64_t)w, &m), FL_OK);
    }
    add_job(&p->r, n_rows, 1);
    take_grants(p);
}

static void end_engine(play *p, int w, bool is_evidence)
{
    const bool is_alone = is_evidence && rows_held(p, w) == 1;
    const uint32_t n = p->n_held[w];
    p->n_ends++;
    if (is_alone && p->n_workers > 1) {
        assert_int_not_equal(w, p->last_crashed);            /* what crashed alone once does so elsewhere, too */
        p->last_crashed = w;
    }
    for (uint32_t i = 0; i < n; i++) {
        uint64_t lease = p->held[w][0].id;
        p->n_held[w]--;
        memmove(&p->held[w][0], &p->held[w][1], p->n_held[w] * sizeof p->held[w][0]);
        handback(&p->r, (uint64_t)w, lease, NULL, 0, is_alone ? WIRE_HAND_ENGINE_CRASHED_ALONE : WIRE_HAND_ENGINE_ENDED);
        take_grants(p);
    }
}

static void finish_lease(play *p, int w)
{
    const uint64_t lease = p->held[w][0].id;
    while (p->held[w][0].n > 0) {
        uint64_t row = p->held[w][0].rows[--p->held[w][0].n];
        const bool is_last = p->held[w][0].n == 0;
        if (is_last) {
            p->n_held[w]--;
            memmove(&p->held[w][0], &p->held[w][1], p->n_held[w] * sizeof p->held[w][0]);
        }
        assert_int_equal(result(&p->r, (uint64_t)w, lease, row, 0), WIRE_COMMITTED);
        take_grants(p);
        if (is_last) return;
    }
}

/* To the end of the job, a turn a worker. */
static coord_job_status play_on(play *p)
{
    for (int round = 0; round < 1000 && status(&p->r).state == JOB_OPEN; round++)
        for (int w = 1; w <= p->n_workers && status(&p->r).state == JOB_OPEN; w++) {
            bool is_evidence = false;
            if (p->n_held[w] == 0) {
                beat(&p->r, (uint64_t)w, 0, (uint64_t)round);
                take_grants(p);
            } else if (p->ends(p, w, &is_evidence)) {
                end_engine(p, w, is_evidence);
            } else {
                finish_lease(p, w);
            }
        }
    coord_job_status s = status(&p->r);
    assert_int_equal(s.state, JOB_COMPLETED);
    return s;
}

static bool ends_of_poison(const play *p, int w, bool *is_evidence)
{
    *is_evidence = true;
    return holds(p, w, p->poison);
}

static void one_bad_row_among_64_is_found_by_halves(void **state)
{
    (void)state;
    for (uint64_t poison = 0; poison < 64; poison += 9) {
        play p;
        open_play(&p, 1, 64, 128);
        p.ends = ends_of_poison;
        p.poison = poison;
        assert_int_equal(rows_held(&p, 1), 64);
        coord_job_status s = play_on(&p);
        assert_int_equal(s.rows_failed, 1);
        assert_int_equal(s.rows_completed, 63);
        assert_int_equal(p.n_ends, 1 + 5 + 2);               /* under 64; under 32, 16, 8, 4 and 2; twice alone */
        assert_int_equal(p.n_largest, 32);
        assert_int_equal(p.n_suspect_leases, 2 + 2 * 5 + 1); /* both halves of 64, 32, 16, 8, 4 and 2; the row once more */
        for (uint64_t row = 0; row < 64; row++) assert_in_range(p.begun[row], 2, 8);
        assert_int_equal(p.begun[poison], 8);
        rig_close(&p.r);
    }
}

static bool ends_once(const play *p, int w, bool *is_evidence)
{
    *is_evidence = false;
    return w == 1 && p->n_ends == 0;
}

static void a_kill_that_is_nobodys_fault_costs_two_groups(void **state)
{
    (void)state;
    play p;
    open_play(&p, 1, 200, 256);
    p.ends = ends_once;
    uint32_t n = rows_held(&p, 1);
    coord_job_status s = play_on(&p);
    assert_int_equal(s.rows_completed, 200);
    assert_int_equal(s.crashes, 0);
    assert_in_range(n, 65, 200);
    assert_int_equal(p.n_suspect_leases, 2);
    assert_true(p.n_largest >= n / 2 && p.n_largest < n);
    for (uint64_t row = 0; row < 200; row++) assert_in_range(p.begun[row], 1, 2);
    rig_close(&p.r);
}

static bool ends_always_on_1(const play *p, int w, bool *is_evidence)
{
    (void)p;
    *is_evidence = true;
    return w == 1;
}

static void a_broken_worker_blames_no_row_beside_a_sound_one(void **state)
{
    (void)state;
    play p;
    open_play(&p, 2, 200, 16);
    p.ends = ends_always_on_1;
    coord_job_status s = play_on(&p);
    assert_int_equal(s.rows_completed, 200);
    assert_int_equal(s.rows_failed, 0);
    rig_close(&p.r);
}

static void a_bad_row_crashes_alone_on_two_workers(void **state)
{
    (void)state;
    play p;
    open_play(&p, 2, 100, 16);
    p.ends = ends_of_poison;
    p.poison = 3;
    coord_job_status s = play_on(&p);                        /* end_engine checks where */
    assert_int_equal(s.rows_failed, 1);
    assert_int_equal(s.crashes, 2);
    rig_close(&p.r);
}

static void half_of_the_workers_go_on_with_other_rows(void **state)
{
    (void)state;
    play p;
    open_play(&p, 4, 250, 8);
    uint32_t n_running = 0, n_others = 0;
    for (int w = 1; w <= 4; w++) end_engine(&p, w, false);
    for (int w = 1; w <= 4; w++) {
        beat(&p.r, (uint64_t)w, 0, 1);
        take_grants(&p);
    }
    for (int w = 1; w <= 4; w++) {
        assert_true(p.n_held[w] > 0);
        if (p.begun[p.held[w][0].rows[0]] > 1) n_running++;
        else n_others++;
    }
    assert_int_equal(n_running, 2);
    assert_int_equal(n_others, 2);
    rig_close(&p.r);
}

static void suspects_of_two_jobs_run_apart(void **state)
{
    (void)state;
    rig r;
    rig_open(&r);
    add_job_of(&r, (job_id){ 5 }, 4, 1, 10);
    add_job_of(&r, (job_id){ 6 }, 4, 1, 10);
    hello(&r, 1);
    uint64_t leases[16];
    size_t n = 0;
    for (size_t i = 0; i < r.out.sends.n; i++)
        if (r.out.sends.v[i].type == ACTION_SEND && r.out.sends.v[i].msg.type == WIRE_GRANT) leases[n++] = r.out.sends.v[i].msg.grant.lease;
    assert_true(n >= 2);
    for (size_t i = 0; i < n; i++) handback(&r, 1, leases[i], NULL, 0, WIRE_HAND_ENGINE_ENDED);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(coord_n_leases(r.c), 1);
    assert_int_equal(g.job, 5);
    assert_int_equal(g.rows.n, 4);
    handback(&r, 1, g.lease, NULL, 0, WIRE_HAND_ENGINE_ENDED);
    g = grant_of(&r, 1);
    assert_int_equal(g.job, 5);
    assert_int_equal(g.rows.n, 2);
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

/* Worker 1 holds rows 0 to 4 under leases 10 (rows 0, 1, 2), 11 and 12. */
static void open_with_three_leases(rig *r)
{
    rig_open(r);
    add_job(r, 5, 1);
    hello(r, 1);
    assert_int_equal(grant_of(r, 1).lease, 10);
    assert_int_equal(grant_of(r, 1).rows.n, 3);
    assert_int_equal(coord_n_leases(r->c), 3);
}

static void an_end_behind_a_result_is_another_end(void **state)
{
    (void)state;
    rig r;
    open_with_three_leases(&r);
    handback(&r, 1, 10, NULL, 0, WIRE_HAND_ENGINE_ENDED);    /* 11 and 12 came when it had ended: they are in the next engine */
    hello(&r, 2);
    wire_grant g = grant_of(&r, 2);
    assert_int_equal(g.rows.n, 3);
    assert_int_equal(result(&r, 1, 11, 3, 0), WIRE_COMMITTED);
    handback(&r, 1, 12, NULL, 0, WIRE_HAND_ENGINE_ENDED);
    assert_null(find_send(&r, 1, WIRE_GRANT));               /* row 4 was alone: it goes to the other worker */
    for (uint64_t row = 0; row < 3; row++) assert_int_equal(result(&r, 2, g.lease, row, 0), WIRE_COMMITTED);
    g = grant_of(&r, 2);
    assert_int_equal(g.rows.n, 1);
    assert_int_equal(g.rows.v[0], 4);
    rig_close(&r);
}

static void a_row_that_crashed_alone_stays_alone_whatever_was_granted_meanwhile(void **state)
{
    (void)state;
    rig r;
    uint64_t crashed = 0;
    open_with_three_leases(&r);
    handback(&r, 1, 10, &crashed, 1, WIRE_HAND_ENGINE_CRASHED_ALONE);
    for (uint64_t lease = 10; lease <= 12; lease++) handback(&r, 1, lease, NULL, 0, WIRE_HAND_ENGINE_ENDED);
    wire_grant g = grant_of(&r, 1);
    assert_int_equal(g.rows.n, 4);
    assert_int_equal(g.rows.v[0], 1);
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
        cmocka_unit_test(one_bad_row_among_64_is_found_by_halves),
        cmocka_unit_test(a_kill_that_is_nobodys_fault_costs_two_groups),
        cmocka_unit_test(a_broken_worker_blames_no_row_beside_a_sound_one),
        cmocka_unit_test(a_bad_row_crashes_alone_on_two_workers),
        cmocka_unit_test(half_of_the_workers_go_on_with_other_rows),
        cmocka_unit_test(suspects_of_two_jobs_run_apart),
        cmocka_unit_test(an_end_behind_a_result_is_another_end),
        cmocka_unit_test(a_row_that_crashed_alone_stays_alone_whatever_was_granted_meanwhile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
