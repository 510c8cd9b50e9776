/* coord_rig.h - the coordinator's core with a clock of the test's and the actions of the last step: what its unit tests share. */
#ifndef TESTS_UNIT_COORD_RIG_H
#define TESTS_UNIT_COORD_RIG_H

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

static inline uint64_t line_bytes(void *context, job_id job, row_index row)
{
    (void)job;
    (void)row;
    return ((rig *)context)->line_bytes;
}

static inline bool check_result(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces)
{
    (void)n_vocab;
    (void)pieces;
    (void)n_pieces;
    return ((rig *)context)->is_valid;
}

static inline void rig_open_copying(rig *r, uint32_t copy_ms)
{
    memset(r, 0, sizeof *r);
    r->is_valid = true;
    action_list_init(&r->out);
    coord_options options = { .beat_ms = BEAT_MS, .term_ms = TERM_MS, .progress_ms = PROGRESS_MS, .copy_ms = copy_ms, .next_lease = 10, .result_is_valid = check_result,
                              .line_bytes = line_bytes, .context = r };
    assert_int_equal(coord_open(&r->c, &options, NULL), FL_OK);
}

static inline void rig_open(rig *r) { rig_open_copying(r, UINT32_MAX); }      /* no copies */

static inline void rig_close(rig *r)
{
    coord_close(r->c, &r->out);
    action_list_fini(&r->out);
}

static inline fl_status step(rig *r, const event *ev)
{
    fl_err err = { 0 };
    action_list_clear(&r->out);
    fl_status st = coord_step(r->c, r->now, ev, &r->out, &err);
    for (size_t i = 0; i < r->out.sends.n; i++) r->n_released += r->out.sends.v[i].type == ACTION_RELEASE;
    return st;
}

static inline void add_job_of(rig *r, job_id id, uint64_t n_rows, uint32_t n, uint64_t cost)
{
    fl_err err = { 0 };
    row_table *rows = NULL;
    assert_int_equal(row_table_open(&rows, 0, &err), FL_OK);
    for (uint64_t i = 0; i < n_rows; i++) assert_int_equal(row_table_add(rows, n, cost, &err), FL_OK);
    coord_job spec = { .id = id, .seed = 5 };
    assert_int_equal(step(r, &(event){ .type = EVENT_JOB_ADD, .job = &spec, .rows = &rows }), FL_OK);
    assert_null(rows);
}

static inline void add_job(rig *r, uint64_t n_rows, uint32_t n) { add_job_of(r, JOB, n_rows, n, 10); }

static inline fl_status say(rig *r, uint64_t worker, const wire_msg *m)
{
    return step(r, &(event){ .type = EVENT_MESSAGE, .worker = { worker }, .msg = m });
}

static inline wire_msg hello_of(uint64_t worker)
{
    wire_msg m = { .type = WIRE_HELLO };
    m.hello = (wire_hello){ .worker = worker, .model = wire_text("demo"), .fingerprint = wire_text("f1"), .numerics = wire_text("cpu-1"), .n_vocab = 100, .context = 1000,
                            .credit_tokens = 100000, .place = wire_text("here") };
    return m;
}

static inline void hello(rig *r, uint64_t worker)
{
    wire_msg m = hello_of(worker);
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static inline const action *find_send(const rig *r, uint64_t worker, wire_type type)
{
    for (size_t i = 0; i < r->out.sends.n; i++) {
        const action *a = &r->out.sends.v[i];
        if (a->type == ACTION_SEND && a->msg.type == type && a->worker.v == worker) return a;
    }
    return NULL;
}

static inline size_t count_actions(const action_array *array, action_type type)
{
    size_t n = 0;
    for (size_t i = 0; i < array->n; i++) n += array->v[i].type == type;
    return n;
}

static inline size_t count_appends(const rig *r, ledger_kind kind)
{
    size_t n = 0;
    for (size_t i = 0; i < r->out.appends.n; i++) n += r->out.appends.v[i].record.kind == kind;
    return n;
}

/* The grant of the last step to this worker, which must be there. */
static inline wire_grant grant_of(const rig *r, uint64_t worker)
{
    const action *a = find_send(r, worker, WIRE_GRANT);
    assert_non_null(a);
    return a->msg.grant;
}

static inline fl_status result_piece_of(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample, uint64_t piece, uint64_t n_pieces, size_t n_bytes)
{
    static const char body[] = "body";
    static char owner;
    wire_msg m = { .type = WIRE_RESULT };
    m.result = (wire_result){ .job = JOB.v, .lease = lease, .row = row, .sample = sample, .piece = piece, .n_pieces = n_pieces, .n_tokens = 3 };
    return step(r, &(event){ .type = EVENT_MESSAGE, .worker = { worker }, .msg = &m, .body = { body, n_bytes, &owner } });
}

static inline fl_status result_piece(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample, uint64_t piece, uint64_t n_pieces)
{
    return result_piece_of(r, worker, lease, row, sample, piece, n_pieces, 4);
}

static inline wire_fate fate_of(const rig *r, uint64_t worker)
{
    const action *a = find_send(r, worker, WIRE_ANSWER);
    assert_non_null(a);
    assert_true(a->after_sync);
    assert_int_equal(a->msg.answer.fates.n, 1);
    return (wire_fate)a->msg.answer.fates.v[0];
}

static inline wire_fate result(rig *r, uint64_t worker, uint64_t lease, uint64_t row, uint64_t sample)
{
    assert_int_equal(result_piece(r, worker, lease, row, sample, 0, 1), FL_OK);
    return fate_of(r, worker);
}

static inline void beat(rig *r, uint64_t worker, uint64_t lease, uint64_t tokens)
{
    wire_msg m = { .type = WIRE_BEAT };
    m.beat = (wire_beat){ .decode_tokens = tokens, .leases = { &lease, lease ? 1 : 0 } };
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static inline void handback(rig *r, uint64_t worker, uint64_t lease, const uint64_t *rows, uint32_t n, wire_handback_reason reason)
{
    wire_msg m = { .type = WIRE_HANDBACK };
    m.handback = (wire_handback){ .lease = lease, .rows = { rows, n }, .reason = reason, .text = wire_text("SIGSEGV") };
    assert_int_equal(say(r, worker, &m), FL_OK);
}

static inline void tick(rig *r, int64_t ms)
{
    r->now += ms;
    assert_int_equal(step(r, &(event){ .type = EVENT_TICK }), FL_OK);
}

static inline coord_job_status status(const rig *r)
{
    coord_job_status s;
    assert_true(coord_job_find(r->c, JOB, &s));
    return s;
}

/* Worker 1 holds the job's only row of n samples, worker 2 has a copy of it. */
static inline void open_with_a_copy(rig *r, uint32_t n, uint64_t *first, uint64_t *copy)
{
    rig_open_copying(r, 1000);
    hello(r, 1);
    add_job(r, 1, n);
    *first = grant_of(r, 1).lease;
    tick(r, 1000);
    hello(r, 2);
    *copy = grant_of(r, 2).lease;
}

#endif
