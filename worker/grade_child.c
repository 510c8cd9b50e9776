/* grade_child.c - see grade_child.h. */
#include "worker/grade_child.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "proto/code_extract.h"
#include "proto/grade_line.h"
#include "proto/job_row.h"
#include "proto/log.h"
#include "proto/verdict.h"
#include "proto/wire.h"
#include "worker/child_loop.h"
#include "worker/grader.h"

#define REFUSED_MS 1000              /* between tries while the machine starts no sandbox */
#define CREDIT_A_SLOT 16             /* samples a place in flight: enough that the next ones are here before the first are done */

#define VERDICT_IS_SAME(NAME, number, name, meaning) _Static_assert((int)GRADE_##NAME + 1 == (int)FL_VERDICT_##NAME, "the grader's verdicts and the wire's are one list");
FL_VERDICT_TABLE(VERDICT_IS_SAME)
_Static_assert(GRADE_N_VERDICTS + 1 == FL_VERDICT_END, "the grader's verdicts and the wire's are one list");

/* A granted row: its line, and what is left of its samples. */
typedef struct { uint64_t job, lease, row; fl_grade_line line; uint32_t lo, n_left; } grant_row;

typedef enum { ITEM_WAITING, ITEM_RUNNING } item_state;
typedef struct { grant_row *row; uint32_t sample; uint64_t tag; item_state state; } item;

typedef struct {
    int fd;
    bool details;
    uint64_t n_slots;
    grader *grader;                      /* owned */
    item *items; size_t n_items, capacity;       /* owned; in order of arrival */
    uint64_t next_tag, n_verdicts;
    int64_t refused_until_ms;
} child;

/* ---- what it holds ---- */

/* The item owes nothing more; a row without items is gone. */
static void drop_item(child *c, size_t at)
{
    grant_row *row = c->items[at].row;
    memmove(&c->items[at], &c->items[at + 1], (c->n_items - at - 1) * sizeof *c->items);
    c->n_items--;
    if (--row->n_left > 0) return;
    fl_grade_line_free(&row->line);
    free(row);
}

static void forget_item(child *c, size_t at)
{
    if (c->items[at].state == ITEM_RUNNING) grader_cancel(c->grader, c->items[at].tag);
    drop_item(c, at);
}

static fl_status add_items(child *c, grant_row *row, uint32_t n, fl_err *err)
{
    if (c->n_items + n > c->capacity) {
        size_t capacity = c->capacity ? c->capacity : 64;
        while (capacity < c->n_items + n) capacity *= 2;
        item *grown = realloc(c->items, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "worker: no memory for granted samples");
        c->items = grown;
        c->capacity = capacity;
    }
    row->n_left = n;
    for (uint32_t i = 0; i < n; i++) c->items[c->n_items++] = (item){ .row = row, .sample = row->lo + i, .tag = ++c->next_tag };
    return FL_OK;
}

/* ---- what the child says ---- */

static fl_status greet(void *context, fl_err *err)
{
    child *c = context;
    wire_msg m = { .type = WIRE_HELLO, .hello = { .release = wire_text(TOKENFLEET_VERSION), .grades = 1, .credit_tokens = c->n_slots * CREDIT_A_SLOT } };
    return wire_send_fd(c->fd, &m, err);
}

static void count(void *context, wire_beat *beat)
{
    const child *c = context;
    for (size_t i = 0; i < c->n_items; i++) beat->running += c->items[i].state == ITEM_RUNNING;
    beat->decode_tokens = c->n_verdicts;
    beat->waiting = c->n_items - beat->running;
}

static fl_status say_row_error(child *c, uint64_t job, uint64_t lease, uint64_t row, const char *text, fl_err *err)
{
    wire_msg m = { .type = WIRE_ROW_ERROR, .row_error = { .job = job, .lease = lease, .row = row, .code = ROW_INVALID_REQUEST, .text = wire_text(text) } };
    return wire_send_fd(c->fd, &m, err);
}

static fl_verdict_kind kind_of(grade_verdict verdict) { return (fl_verdict_kind)((int)verdict + 1); }

static fl_status say_verdict(child *c, const item *it, const grade_result *r, fl_err *err)
{
    uint8_t body[FL_VERDICT_BYTES + sizeof r->detail];
    fl_verdict v = { .verdict = kind_of(r->verdict), .in_process = r->in_process, .canonical_failed = r->canonical_failed, .has_inputs = it->row->line.task.mode == FL_GRADE_INPUTS,
                     .base = kind_of(r->base), .plus = kind_of(r->plus), .base_failed = r->base_failed, .plus_failed = r->plus_failed };
    fl_verdict_encode(&v, body);
    size_t n = FL_VERDICT_BYTES, n_detail = c->details ? strlen(r->detail) : 0;
    memcpy(body + n, r->detail, n_detail);
    fl_bytes part = { body, n + n_detail };
    wire_msg m = { .type = WIRE_RESULT, .n_parts = 1, .parts = &part,
                   .result = { .job = it->row->job, .lease = it->row->lease, .row = it->row->row, .sample = it->sample, .n_pieces = 1 } };
    c->n_verdicts++;
    return wire_send_fd(c->fd, &m, err);
}

/* ---- what the child hears ---- */

static fl_status hear_row(child *c, const wire_grant *g, uint32_t i, fl_bytes line, fl_err *err)
{
    fl_err why = { 0 };
    uint64_t lo = g->sample_lo.v[i], hi = g->sample_hi.v[i];
    if (lo >= hi || hi > FL_SAMPLES_MAX) return fl_fail(err, FL_CORRUPT, "worker: a grant of samples %llu to %llu", (unsigned long long)lo, (unsigned long long)hi);
    grant_row *row = calloc(1, sizeof *row);
    if (!row) return fl_fail(err, FL_FULL, "worker: no memory for a granted row");
    *row = (grant_row){ .job = g->job, .lease = g->lease, .row = g->rows.v[i], .lo = (uint32_t)lo };
    fl_status st = fl_grade_line_parse(&row->line, line.data, line.bytes, &why);
    if (st == FL_INVALID) {
        free(row);
        return say_row_error(c, g->job, g->lease, g->rows.v[i], why.text, err);
    }
    if (st == FL_OK && row->line.n_samples != hi - lo) st = fl_fail(&why, FL_CORRUPT, "a line of %u samples for %llu", row->line.n_samples, (unsigned long long)(hi - lo));
    if (st == FL_OK) st = add_items(c, row, (uint32_t)(hi - lo), &why);
    if (st == FL_OK) return FL_OK;
    fl_grade_line_free(&row->line);
    free(row);
    return fl_fail(err, st, "worker: %.400s", why.text);
}

static fl_status hear_job(void *context, const wire_job *m, fl_err *err)
{
    (void)context, (void)m, (void)err;                    /* nothing in it matters here */
    return FL_OK;
}

static fl_status hear_grant(void *context, const wire_msg *m, fl_arena *arena, fl_err *err)
{
    child *c = context;
    uint32_t part = 0;
    for (uint32_t i = 0; i < m->grant.rows.n; i++) {
        fl_bytes line = wire_line_next(m, &part, arena);
        if (!line.data) return fl_fail(err, FL_FULL, "worker: no memory for a granted row");
        fl_status st = hear_row(c, &m->grant, i, line, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static bool is_revoked(const item *it, const wire_revoke *m)
{
    if (it->row->lease != m->lease) return false;
    for (uint32_t i = 0; i < m->rows.n; i++) {
        uint64_t sample = m->samples.n ? m->samples.v[i] : WIRE_WHOLE_ROW;
        if (m->rows.v[i] == it->row->row && (sample == WIRE_WHOLE_ROW || sample == it->sample)) return true;
    }
    return m->rows.n == 0;
}

static void hear_revoke(void *context, const wire_revoke *m)
{
    child *c = context;
    for (size_t i = c->n_items; i-- > 0;)
        if (is_revoked(&c->items[i], m)) forget_item(c, i);
}

/* ---- samples into the grader, verdicts out of it ---- */

static grade_text text_of(const fl_text *t) { return (grade_text){ t->p, t->n }; }

static fl_status submit(child *c, const item *it, fl_err *err)
{
    static const grade_mode modes[] = { [FL_GRADE_CHECK] = GRADE_CHECK, [FL_GRADE_ASSERTS] = GRADE_ASSERTS, [FL_GRADE_INPUTS] = GRADE_INPUTS };
    const fl_grade_task *t = &it->row->line.task;
    const fl_text *sample = &it->row->line.samples[it->sample - it->row->lo];
    char *made = NULL;
    size_t n_made = 0, n_code;
    const char *code;
    bool is_script;
    fl_status st = FL_OK;
    if (it->row->line.is_chat) st = fl_code_from_chat(sample->p, sample->n, t->entry_point.p, t->prompt.n == 0, &made, &n_made, err);
    if (st != FL_OK) return st;
    fl_code_of(made ? made : sample->p, made ? n_made : sample->n, &code, &n_code, &is_script);
    grade_task task = { .mode = modes[t->mode], .task_id = text_of(&t->task_id), .prompt = text_of(&t->prompt), .entry_point = text_of(&t->entry_point), .test = text_of(&t->test),
                        .canonical_solution = text_of(&t->canonical_solution), .base_inputs = text_of(&t->base_input), .plus_inputs = text_of(&t->plus_input), .atol = t->atol };
    st = grader_submit(c->grader, &task, &(grade_sample){ .completion = { code, n_code }, .full_script = is_script, .tag = it->tag }, err);
    free(made);
    return st;
}

/* One error for the row: nothing else of it is graded. */
static fl_status refuse_row(child *c, const grant_row *row, const char *why, fl_err *err)
{
    uint64_t lease = row->lease, number = row->row;
    fl_status st = say_row_error(c, row->job, lease, number, why, err);
    for (size_t i = c->n_items; i-- > 0;)
        if (c->items[i].row->lease == lease && c->items[i].row->row == number) forget_item(c, i);
    return st;
}

static fl_status submit_all(child *c, fl_err *err)
{
    fl_err why = { 0 };
    for (size_t i = 0; i < c->n_items && grader_room(c->grader) > 0; ) {
        if (c->items[i].state == ITEM_RUNNING) { i++; continue; }
        fl_status st = submit(c, &c->items[i], &why);
        if (st == FL_INVALID) {
            if ((st = refuse_row(c, c->items[i].row, why.text, err)) != FL_OK) return st;
            i = 0;
            continue;
        }
        if (st != FL_OK) return fl_fail(err, st, "%s", why.text);
        c->items[i++].state = ITEM_RUNNING;
    }
    return FL_OK;
}

static fl_status take_verdicts(child *c, fl_err *err)
{
    grade_result r;
    while (grader_next(c->grader, &r)) {
        for (size_t i = 0; i < c->n_items; i++) {
            if (c->items[i].tag != r.tag) continue;
            fl_status st = say_verdict(c, &c->items[i], &r, err);
            drop_item(c, i);
            if (st != FL_OK) return st;
            break;
        }
    }
    return FL_OK;
}

static fl_status step(child *c, int64_t now, fl_err *err)
{
    fl_err why = { 0 };
    if (now < c->refused_until_ms) return FL_OK;
    fl_status st = grader_step(c->grader, &why);
    if (st == FL_IO) {                                   /* no processes or no memory right now: others have them */
        fl_log(FL_LOG_WARN, "%s; it is tried again in %d ms", why.text, REFUSED_MS);
        c->refused_until_ms = now + REFUSED_MS;
    } else if (st != FL_OK) {
        return fl_fail(err, st, "%s", why.text);
    }
    return take_verdicts(c, err);
}

static bool is_busy(const void *context)
{
    const child *c = context;
    return c->n_items > 0;
}

static int wake(const void *context, int64_t now, int64_t *until_ms)
{
    const child *c = context;
    if (now >= c->refused_until_ms) return grader_fd(c->grader);
    if (is_busy(c) && c->refused_until_ms < *until_ms) *until_ms = c->refused_until_ms;
    return -1;
}

static fl_status work(void *context, int64_t now, fl_err *err)
{
    child *c = context;
    fl_status st = step(c, now, err);
    return st == FL_OK ? submit_all(c, err) : st;        /* into the room that verdicts left */
}

static fl_status open_grader(void *context, const worker_options *options, fl_err *err)
{
    child *c = context;
    *c = (child){ .fd = options->serve_fd, .details = options->details, .n_slots = options->n_threads ? (uint64_t)options->n_threads : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN) };
    return grader_open(&c->grader, &(grader_options){ .n_slots = (uint32_t)options->n_threads, .limits = grade_limits_default() }, err);
}

static int failed(fl_status st, const fl_err *err)
{
    (void)st;
    fprintf(stderr, "tokenfleet-worker: grading stops: %s\n", err->text);
    return WORKER_ENDED_FAILED;
}

static void close_grader(void *context)
{
    child *c = context;
    while (c->n_items > 0) drop_item(c, c->n_items - 1);
    free(c->items);
    grader_close(c->grader);
}

int grade_child_main(const worker_options *options)
{
    static const child_kind kind = { "tokenfleet-grd", "grader", "a grading process", open_grader, greet, hear_job, hear_grant, hear_revoke, is_busy, count, wake, work, failed, close_grader };
    child c;
    return child_loop_main(&kind, &c, options);
}
