#include "sim.h"

#include <stdlib.h>
#include <string.h>

static const sim_row *row_of(sim *s, const sim_task *t) { return &sim_job_of(s, t->job)->rows[t->row]; }

static void forget_sample(sim_worker *w, uint64_t lease, uint64_t row, uint64_t sample)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_tasks; i++) {            /* also a result that waits for its answer: another one came first */
        const sim_task *t = &w->tasks[i];
        if (t->lease != lease || t->row != row || t->sample != sample) w->tasks[n++] = *t;
    }
    w->n_tasks = n;
}

static void forget_tasks(sim_worker *w, uint64_t lease, uint64_t row, bool any_row)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const sim_task *t = &w->tasks[i];
        bool is_meant = t->lease == lease && (any_row || t->row == row) && t->state != TASK_DONE;    /* a result is kept until it is answered */
        if (!is_meant) w->tasks[n++] = *t;
    }
    w->n_tasks = n;
}

static void say(sim *s, sim_worker *w, const wire_msg *m) { sim_send(s, w, true, m, NULL, 0); }

static uint32_t held_leases(const sim_worker *w, uint64_t *ids)
{
    uint32_t n = 0;
    for (size_t i = 0; i < w->n_tasks; i++) {
        uint32_t k = 0;
        while (k < n && ids[k] != w->tasks[i].lease) k++;
        if (k < n) continue;
        FL_ASSERT(n < SIM_JOBS_MAX * SIM_ROWS_MAX * SIM_N_MAX);
        ids[n++] = w->tasks[i].lease;
    }
    return n;
}

static void send_hello(sim *s, sim_worker *w)
{
    uint64_t ids[SIM_JOBS_MAX * SIM_ROWS_MAX * SIM_N_MAX];
    wire_msg m = { .type = WIRE_HELLO };
    m.hello = (wire_hello){ .worker = w->id, .model = wire_text("stub"), .fingerprint = wire_text("f"), .numerics = wire_text(w->has_other_numerics ? "other" : "usual"), .n_vocab = 100,
                            .context = w->context, .credit_tokens = 200, .has_tokenizer = 1, .place = wire_text("sim") };
    if (w->slot % 3 == 1) { m.hello.batch = 4; m.hello.kv_tokens = 150; }        /* as one on a GPU */
    if (w->grades) m.hello = (wire_hello){ .worker = w->id, .grades = 1, .credit_tokens = 12, .place = wire_text("sim") };
    m.hello.leases = (wire_list){ ids, held_leases(w, ids) };
    say(s, w, &m);
    w->heard_ms = s->now_ms;
    w->knows_link = true;
}

static void send_result(sim *s, sim_worker *w, const sim_task *t)
{
    sim_job *j = sim_job_of(s, t->job);
    if (t->is_row_error) {
        wire_msg m = { .type = WIRE_ROW_ERROR };
        m.row_error = (wire_row_error){ .job = t->job, .lease = t->lease, .row = t->row, .code = ROW_CONTEXT_OVERFLOW, .text = wire_text("too long") };
        say(s, w, &m);
        return;
    }
    uint8_t body[64];
    uint32_t n = sim_result(j, t->row, t->sample, body);
    uint32_t n_pieces = !sim_is_grade(j, t->row) && sim_mix(t->job, t->row, t->sample, 3) % 4 == 0 ? 3 : 1;
    if (sim_trouble(s, 10)) {
        body[0] = 0;
        sim_hit(s, SIM_RESULT_INVALID);
    }
    if (n_pieces > 1) sim_hit(s, SIM_RESULT_IN_PIECES);
    for (uint32_t piece = 0; piece < n_pieces; piece++) {
        wire_msg m = { .type = WIRE_RESULT };
        m.result = (wire_result){ .job = t->job, .lease = t->lease, .row = t->row, .sample = t->sample, .piece = piece, .n_pieces = n_pieces, .n_tokens = sim_tokens(j, t->row, t->sample) };
        uint32_t lo = n * piece / n_pieces, hi = n * (piece + 1) / n_pieces;
        sim_send(s, w, true, &m, body + lo, hi - lo);
    }
}

void sim_worker_start(sim *s, sim_worker *w)
{
    if (w->is_alive) return;
    w->is_alive = true;
    w->is_draining = w->knows_link = w->is_disordered = false;
    w->id = sim_mix(s->seed, (uint64_t)w->slot, ++s->n_ids, 7) | 1;
    w->connection = 0;
    w->n_tasks = 0;
    w->n_jobs = 0;
    w->tokens = 0;
    w->n_parallel = 1 + (int)sim_below(s, 8);
    w->slowness = w->n_parallel > 2 && sim_chance(s, 200) ? 15000 : 2500;
    w->stalled_until_ms = w->cut_until_ms = w->retry_ms = 0;
    sim_log(s, "worker %d starts as %016llx", w->slot, (unsigned long long)w->id);
    sim_at(s, s->now_ms + 1, SIM_POLL_WORKER, w->slot, w->id, NULL);
}

void sim_worker_kill(sim *s, sim_worker *w)
{
    if (!w->is_alive) return;
    sim_log(s, "worker %d is gone", w->slot);
    w->is_alive = false;
    w->connection = 0;
    sim_at(s, s->now_ms + 500 + sim_below(s, 8000), SIM_START_WORKER, w->slot, 0, NULL);
}

/* The link breaks: what is under way is lost (its connection number is dead). */
void sim_worker_cut(sim *s, sim_worker *w, int64_t for_ms, bool is_seen)
{
    w->connection = 0;
    w->sent_ahead_ms[0] = w->sent_ahead_ms[1] = 0;
    w->cut_until_ms = s->now_ms + for_ms;
    w->retry_ms = s->now_ms + 100 + sim_below(s, 2000);
    if (is_seen) w->knows_link = false;
}

static void connect_again(sim *s, sim_worker *w)
{
    if (s->now_ms < w->retry_ms || s->now_ms < w->cut_until_ms) return;
    w->retry_ms = s->now_ms + 1000;
    if (!s->is_up) return;
    w->connection = ++s->n_ids;
    if (!w->knows_link) send_hello(s, w);                /* else the socket did it silently */
}

static void hand_back(sim *s, sim_worker *w, uint64_t lease, const uint64_t *rows, uint32_t n, wire_handback_reason reason, const char *words)
{
    wire_msg m = { .type = WIRE_HANDBACK };
    m.handback = (wire_handback){ .lease = lease, .rows = { rows, n }, .reason = reason, .text = wire_text(words) };
    say(s, w, &m);
    for (uint32_t i = 0; i < n; i++) forget_tasks(w, lease, rows[i], false);
}

/* Hand back every row that is not done, lease by lease. */
static void hand_back_all(sim *s, sim_worker *w, wire_handback_reason reason, const char *words)
{
    uint64_t rows[64];
    for (;;) {
        uint32_t n = 0;
        uint64_t lease = 0;
        for (size_t i = 0; i < w->n_tasks && n < 64; i++) {
            const sim_task *t = &w->tasks[i];
            if (t->state == TASK_DONE || (lease && t->lease != lease)) continue;
            lease = t->lease;
            uint32_t k = 0;
            while (k < n && rows[k] != t->row) k++;
            if (k == n) rows[n++] = t->row;
        }
        if (n == 0) return;
        hand_back(s, w, lease, rows, n, reason, words);
    }
}

/* The engine died under all that it had. With one row in it, and a signal that says so, that row is to blame. */
static void engine_ends(sim *s, sim_worker *w, bool is_evidence, const char *words)
{
    const sim_task *first = NULL;
    bool is_alone = true;
    for (size_t i = 0; i < w->n_tasks; i++) {
        const sim_task *t = &w->tasks[i];
        if (t->state == TASK_DONE) continue;
        if (!first) first = t;
        else if (t->row != first->row || t->lease != first->lease) is_alone = false;
    }
    if (!first) return;
    if (is_evidence && is_alone) {
        uint64_t row = first->row;
        hand_back(s, w, first->lease, &row, 1, WIRE_HAND_ENGINE_CRASHED_ALONE, words);
    } else {
        hand_back_all(s, w, WIRE_HAND_ENGINE_ENDED, words);
    }
}

/* Begin what fits. False: the engine died of it. */
static bool start_tasks(sim *s, sim_worker *w)
{
    int n_running = 0;
    for (size_t i = 0; i < w->n_tasks; i++) n_running += w->tasks[i].state == TASK_RUNNING;
    for (size_t i = 0; i < w->n_tasks && n_running < w->n_parallel; i++) {
        sim_task *t = &w->tasks[i];
        if (t->state != TASK_WAITING) continue;
        const sim_row *row = row_of(s, t);
        if (row->kind == SIM_ROW_LARGE && w->context < 2000) {
            uint64_t number = t->row;
            sim_hit(s, SIM_NO_ROOM);
            hand_back(s, w, t->lease, &number, 1, WIRE_HAND_NO_ROOM, "");
            i = (size_t)-1;
            continue;
        }
        t->state = TASK_RUNNING;
        n_running++;
        t->done_ms = s->now_ms + 100 + sim_below(s, w->slowness);
        t->is_row_error = row->kind == SIM_ROW_ERROR_ROW || row->kind == SIM_ROW_GRADE_ERROR;
        if (row->kind != SIM_ROW_POISON || !sim_chance(s, 800)) continue;    /* it does not kill each time */
        sim_hit(s, SIM_ENGINE_POISONED);
        engine_ends(s, w, !sim_chance(s, 100), "poisoned");
        return false;
    }
    return true;
}

static void finish_tasks(sim *s, sim_worker *w)
{
    for (size_t i = 0; i < w->n_tasks; i++) {
        sim_task *t = &w->tasks[i];
        if (t->state == TASK_RUNNING) w->tokens++;
        if (t->state != TASK_RUNNING || t->done_ms > s->now_ms) continue;
        t->state = TASK_DONE;
        if (t->is_row_error) {                           /* one error for the row: its other samples need not run */
            sim_task error = *t;
            forget_tasks(w, t->lease, t->row, false);
            for (size_t k = 0; k < w->n_tasks; k++)
                if (w->tasks[k].lease == error.lease && w->tasks[k].row == error.row) send_result(s, w, &error);
            i = (size_t)-1;
            continue;
        }
        send_result(s, w, t);
    }
}

static void send_beat(sim *s, sim_worker *w)
{
    uint64_t ids[SIM_JOBS_MAX * SIM_ROWS_MAX * SIM_N_MAX];
    wire_msg m = { .type = WIRE_BEAT };
    m.beat = (wire_beat){ .decode_tokens = w->tokens, .draining = w->is_draining };
    for (size_t i = 0; i < w->n_tasks; i++) {
        m.beat.running += w->tasks[i].state == TASK_RUNNING;
        m.beat.waiting += w->tasks[i].state == TASK_WAITING;
    }
    m.beat.leases = (wire_list){ ids, held_leases(w, ids) };
    say(s, w, &m);
    w->beat_ms = s->now_ms + SIM_BEAT_MS;
}

static void leave(sim *s, sim_worker *w)
{
    wire_msg m = { .type = WIRE_BYE };
    m.bye.worker = w->id;
    say(s, w, &m);
    w->is_alive = false;
    sim_at(s, s->now_ms + 500 + sim_below(s, 5000), SIM_START_WORKER, w->slot, 0, NULL);
}

/* Finish what runs and hand back what waits, or hand back all, then leave. */
static void drain(sim *s, sim_worker *w, bool all)
{
    w->is_draining = true;
    if (all) hand_back_all(s, w, WIRE_HAND_DRAIN, "");
    for (size_t i = w->n_tasks; i-- > 0;)
        if (w->tasks[i].state == TASK_WAITING) {
            uint64_t row = w->tasks[i].row;
            hand_back(s, w, w->tasks[i].lease, &row, 1, WIRE_HAND_DRAIN, "");
            i = w->n_tasks;
        }
}

/* Its machine says that it will be taken away. */
void sim_worker_preempt(sim *s, sim_worker *w)
{
    if (!w->is_alive || w->is_draining) return;
    sim_hit(s, SIM_WORKER_PREEMPTED);
    if (sim_chance(s, 200)) leave(s, w);                 /* there is no time for more than a word */
    else drain(s, w, sim_chance(s, 300));
}

static void mischief(sim *s, sim_worker *w)
{
    if (sim_trouble(s, 1)) sim_worker_preempt(s, w);
    if (sim_trouble(s, 2)) {
        sim_hit(s, w->grades ? SIM_GRADER_ENDED : SIM_ENGINE_KILLED);
        engine_ends(s, w, false, "killed");
    }
    if (sim_trouble(s, 1)) {
        sim_hit(s, SIM_ENGINE_STALLED);
        w->stalled_until_ms = s->now_ms + sim_below(s, 3 * SIM_PROGRESS_MS);
    }
    if (sim_trouble(s, 3)) {                             /* a result is sent once more before it is answered */
        for (size_t i = 0; i < w->n_tasks; i++)
            if (w->tasks[i].state == TASK_DONE) {
                send_result(s, w, &w->tasks[i]);
                break;
            }
    }
}

void sim_worker_poll(sim *s, sim_worker *w)
{
    if (!w->is_alive) return;
    sim_at(s, s->now_ms + 100 + sim_below(s, 150), SIM_POLL_WORKER, w->slot, w->id, NULL);
    if (w->connection == 0) connect_again(s, w);
    if (w->knows_link && s->now_ms - w->heard_ms > 4 * SIM_BEAT_MS) {        /* the coordinator is silent: connect anew */
        w->knows_link = false;
        w->connection = 0;
    }
    mischief(s, w);
    if (s->now_ms >= w->stalled_until_ms) {
        finish_tasks(s, w);
        start_tasks(s, w);
    }
    if (s->now_ms >= w->beat_ms) send_beat(s, w);
    if (w->is_draining && w->n_tasks == 0 && w->connection != 0) leave(s, w);
}

static void take_grant(sim *s, sim_worker *w, const wire_grant *g)
{
    bool is_known = false;
    for (int i = 0; i < w->n_jobs; i++) is_known |= w->jobs[i] == g->job;
    if (!is_known) {                                     /* JOB was overtaken: ask anew */
        send_hello(s, w);
        return;
    }
    for (size_t i = 0; i < w->n_tasks; i++)
        if (w->tasks[i].lease == g->lease) return;       /* repeated on the way */
    for (uint32_t i = 0; i < g->rows.n; i++)
        for (uint64_t k = g->sample_lo.v[i]; k < g->sample_hi.v[i]; k++) {
            w->tasks = sim_grow(w->tasks, &w->tasks_capacity, w->n_tasks, sizeof *w->tasks);
            w->tasks[w->n_tasks++] = (sim_task){ .lease = g->lease, .job = g->job, .row = g->rows.v[i], .sample = (uint32_t)k };
        }
    if (w->is_draining) {
        hand_back_all(s, w, WIRE_HAND_DRAIN, "");
    }
}

static void take_answer(sim *s, sim_worker *w, const wire_answer *m)
{
    for (uint32_t i = 0; i < m->jobs.n; i++) {
        sim_hit(s, m->fates.v[i] == WIRE_COMMITTED ? SIM_FATE_COMMITTED : m->fates.v[i] == WIRE_DUPLICATE ? SIM_FATE_DUPLICATE : m->fates.v[i] == WIRE_STALE ? SIM_FATE_STALE : SIM_FATE_REFUSED);
        size_t n = 0;
        for (size_t k = 0; k < w->n_tasks; k++) {
            const sim_task *t = &w->tasks[k];
            bool is_it = t->job == m->jobs.v[i] && t->lease == m->leases.v[i] && t->row == m->rows.v[i] && t->state == TASK_DONE &&
                         (m->samples.v[i] == WIRE_WHOLE_ROW ? t->is_row_error : t->sample == m->samples.v[i] && !t->is_row_error);
            if (!is_it) w->tasks[n++] = *t;
        }
        w->n_tasks = n;
    }
}

void sim_worker_receive(sim *s, sim_worker *w, const wire_msg *m)
{
    w->heard_ms = s->now_ms;
    switch (m->type) {
    case WIRE_WELCOME: {
        size_t n = 0;
        for (size_t i = 0; i < w->n_tasks; i++) {        /* leases that do not live on are dropped, results kept until answered */
            bool lives = w->tasks[i].state == TASK_DONE;
            for (uint32_t k = 0; k < m->welcome.leases.n; k++) lives |= m->welcome.leases.v[k] == w->tasks[i].lease;
            if (lives) w->tasks[n++] = w->tasks[i];
        }
        w->n_tasks = n;
        if (!m->welcome.accepted) sim_hit(s, w->grades ? SIM_GRADER_IDLES : SIM_OTHER_NUMERICS);
        for (size_t i = 0; i < w->n_tasks; i++)
            if (w->tasks[i].state == TASK_DONE) send_result(s, w, &w->tasks[i]);
        if (m->welcome.want_detok) {
            wire_msg d = { .type = WIRE_DETOK };
            d.detok.fingerprint = wire_text("f");
            sim_send(s, w, true, &d, (const uint8_t *)"table", 5);
        }
        break;
    }
    case WIRE_JOB:
        for (int i = 0; i < w->n_jobs; i++)
            if (w->jobs[i] == m->job.job) return;
        FL_ASSERT(w->n_jobs < SIM_JOBS_MAX);
        w->jobs[w->n_jobs++] = m->job.job;
        break;
    case WIRE_GRANT: take_grant(s, w, &m->grant); break;
    case WIRE_ANSWER: take_answer(s, w, &m->answer); break;
    case WIRE_REVOKE:
        if (m->revoke.rows.n == 0) forget_tasks(w, m->revoke.lease, 0, true);
        for (uint32_t i = 0; i < m->revoke.rows.n; i++) {
            if (m->revoke.samples.v[i] == WIRE_WHOLE_ROW) forget_tasks(w, m->revoke.lease, m->revoke.rows.v[i], false);
            else forget_sample(w, m->revoke.lease, m->revoke.rows.v[i], m->revoke.samples.v[i]);
        }
        break;
    case WIRE_BEAT:
        if (m->beat.say_hello) {
            sim_hit(s, SIM_SAY_HELLO);
            send_hello(s, w);
        }
        break;
    case WIRE_STOP:
        if (!w->is_draining || !m->stop.drain) drain(s, w, !m->stop.drain);
        break;
    default: sim_violation(s, "a worker was sent a %s", wire_type_name(m->type));
    }
}
