/* worker.c - see worker.h. */
#include "worker/worker.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>
#include <zmq.h>
#include "proto/clock.h"
#include "proto/log.h"
#include "proto/wire.h"
#include "worker/child_link.h"
#include "worker/coord_link.h"
#include "worker/engine_child.h"
#include "worker/held_leases.h"
#include "worker/outbox.h"

#define BEAT_MS_DEFAULT 1000         /* until a WELCOME says */
#define SILENT_BEATS 3               /* so many without a word: say HELLO again */
#define SILENCE_MS_MIN 3000
#define DRAIN_MS 20000               /* grace for what runs */
#define FLUSH_MS 10000               /* grace for answers after that */
#define FLUSH_MS_HURRIED 3000        /* after a second signal */
#define RESTART_MS 100
#define RESTART_MS_MAX 10000
#define YOUNG_DEATHS_MAX 5           /* of an engine that was not ready yet, in a row */
#define MESSAGES_A_TURN 256          /* each way, so that no stream starves another */
#define LINGER_MS 1000
#define LOOK_MS 500                  /* between looks at the engine's progress */
#define ARENA_KEPT_BYTES (4 << 20)   /* behind a message with a very long line */

typedef enum { WORKER_SERVING, WORKER_DRAINING, WORKER_FLUSHING, WORKER_ENDED } worker_phase;

typedef struct { uint64_t job, seed, max_context, now_s; char *defaults; uint32_t defaults_bytes; } known_job;

typedef struct {
    const worker_options *options;   /* borrowed */
    coord_link *coord;               /* owned, as all below */
    child_link *child;
    outbox *box;
    held_leases *held;
    fl_arena arena;                  /* of the message in hand */
    int signal_fd;
    uint64_t id;                     /* random, of this process start */
    char place[256];

    /* the engine, as its HELLO announced it */
    bool is_known;                   /* a child was ready once */
    char model[257], fingerprint[65], numerics[257];
    uint64_t n_vocab, context, credit_tokens, batch, kv_tokens, has_tokenizer;
    uint8_t *detok; size_t detok_bytes;
    known_job *jobs; size_t n_jobs;

    /* contact */
    bool need_hello;                 /* before anything else on this connection */
    bool awaits_welcome, is_welcome; /* HELLO was said; WELCOME came since */
    bool want_detok, is_blocked;
    int64_t heard_at_ms, hello_at_ms, beat_at_ms;
    int64_t beat_ms;
    char why_idle[481];              /* last reason logged */

    /* the child */
    bool is_ready;                   /* this one said HELLO */
    int64_t start_at_ms, restart_ms;
    int young_deaths;
    bool has_moved;                  /* it made something since the last look */
    int64_t look_at_ms;
    wire_beat totals;                /* of children that ended */
    wire_beat now;                   /* of this one */

    worker_phase phase;
    int64_t deadline_ms;             /* of DRAINING and FLUSHING */
    bool is_hurried;
    int status;                      /* the exit status to be */
} worker;

static void keep_text(char *out, size_t capacity, wire_str text)
{
    size_t n = text.n < capacity - 1 ? text.n : capacity - 1;
    if (n) memcpy(out, text.p, n);
    out[n] = '\0';
}

static bool text_is(const char *kept, wire_str text)
{
    return strlen(kept) == text.n && (text.n == 0 || memcmp(kept, text.p, text.n) == 0);
}

/* ---- to the engine ---- */

static fl_status send_job(worker *w, const known_job *job, fl_err *err)
{
    wire_msg m = { .type = WIRE_JOB, .job = { .job = job->job, .seed = job->seed, .max_context = job->max_context, .now_s = job->now_s,
                                              .defaults = { job->defaults, job->defaults_bytes } } };
    return child_link_send(w->child, &m, err);
}

static fl_status revoke_lease(worker *w, uint64_t lease, fl_err *err)
{
    wire_msg m = { .type = WIRE_REVOKE, .revoke.lease = lease };
    return child_link_runs(w->child) ? child_link_send(w->child, &m, err) : FL_OK;
}

/* All the engine owes will not come from it: settle it and tell the coordinator. */
static void hand_back_all(worker *w, wire_handback_reason reason, const char *text)
{
    wire_list leases = held_ids(w->held);
    for (uint32_t i = 0; i < leases.n; i++) held_hand_back(w->held, leases.v[i], NULL, reason, text, strlen(text));
}

/* ---- draining ---- */

static void begin_flush(worker *w, int64_t now)
{
    w->phase = WORKER_FLUSHING;
    w->deadline_ms = now + (w->is_hurried ? FLUSH_MS_HURRIED : FLUSH_MS);
}

/* Take nothing new and let the engine finish; `hurried` hands everything back at once. */
static fl_status begin_drain(worker *w, bool hurried, int64_t now, fl_err *err)
{
    fl_status st = FL_OK;
    if (w->phase == WORKER_SERVING) {
        wire_msg stop = { .type = WIRE_STOP, .stop.drain = 1 };
        w->phase = WORKER_DRAINING;
        w->deadline_ms = now + DRAIN_MS;
        w->beat_at_ms = now;                     /* tells the coordinator at once */
        if (w->is_ready) st = child_link_send(w->child, &stop, err);
        else hurried = true;                     /* nothing runs, so there is nothing to finish */
    }
    if (hurried && !w->is_hurried) {
        w->is_hurried = true;
        if (w->phase == WORKER_FLUSHING && w->deadline_ms > now + FLUSH_MS_HURRIED) w->deadline_ms = now + FLUSH_MS_HURRIED;
        if (w->phase == WORKER_DRAINING) w->deadline_ms = now;
    }
    return st;
}

static void advance_drain(worker *w, int64_t now)
{
    if (w->phase == WORKER_DRAINING && now >= w->deadline_ms) {
        hand_back_all(w, WIRE_HAND_DRAIN, "the worker is draining");
        child_link_kill(w->child);
    }
    if (w->phase == WORKER_DRAINING && !held_owes(w->held)) begin_flush(w, now);
    if (w->phase != WORKER_FLUSHING) return;
    bool is_empty = held_count(w->held) == 0 && outbox_count(w->box) == 0;
    if (!is_empty && now < w->deadline_ms) return;
    if (!is_empty) fl_log(FL_LOG_WARN, "%zu results were not answered before the end of the drain; others will make them again", outbox_count(w->box));
    w->phase = WORKER_ENDED;
}

/* ---- from the coordinator ---- */

static known_job *find_job(worker *w, uint64_t job)
{
    for (size_t i = w->n_jobs; i-- > 0;)
        if (w->jobs[i].job == job) return &w->jobs[i];
    return NULL;
}

static fl_status hear_job(worker *w, const wire_job *m, fl_err *err)
{
    if (find_job(w, m->job)) return FL_OK;       /* told again on a new connection */
    known_job *grown = realloc(w->jobs, (w->n_jobs + 1) * sizeof *grown);
    if (grown) w->jobs = grown;
    char *defaults = malloc(m->defaults.n + 1);
    if (!grown || !defaults) {
        free(defaults);
        return fl_fail(err, FL_FULL, "worker: no memory for a job's settings");
    }
    if (m->defaults.n) memcpy(defaults, m->defaults.p, m->defaults.n);
    w->jobs[w->n_jobs] = (known_job){ .job = m->job, .seed = m->seed, .max_context = m->max_context, .now_s = m->now_s, .defaults = defaults,
                                      .defaults_bytes = m->defaults.n };
    return send_job(w, &w->jobs[w->n_jobs++], err);
}

static fl_status hear_grant(worker *w, const wire_msg *m, fl_err *err)
{
    fl_err why = { 0 };
    fl_status st = held_grant(w->held, &m->grant, &why);
    if (st == FL_CONFLICT || st == FL_CORRUPT) {
        fl_log(FL_LOG_INFO, "a grant is passed over: %s", why.text);
        return FL_OK;
    }
    if (st != FL_OK) return fl_fail(err, st, "%s", why.text);
    if (w->phase != WORKER_SERVING) {
        const char *text = "the worker is draining";
        held_hand_back(w->held, m->grant.lease, NULL, WIRE_HAND_DRAIN, text, strlen(text));
        return FL_OK;
    }
    if (!find_job(w, m->grant.job)) {
        const char *text = "the settings of this job never reached the worker";
        held_hand_back(w->held, m->grant.lease, NULL, WIRE_HAND_ENGINE_ENDED, text, strlen(text));
        return FL_OK;
    }
    return child_link_send(w->child, m, err);
}

static fl_status drop_lease(worker *w, uint64_t lease, fl_err *err)
{
    outbox_drop_lease(w->box, lease);
    held_settle_lease(w->held, lease);
    return revoke_lease(w, lease, err);
}

static fl_status hear_revoke(worker *w, const wire_msg *m, fl_err *err)
{
    const wire_revoke *r = &m->revoke;
    if (r->rows.n == 0) return drop_lease(w, r->lease, err);
    for (uint32_t i = 0; i < r->rows.n; i++) {
        uint64_t sample = r->samples.n ? r->samples.v[i] : WIRE_WHOLE_ROW;
        outbox_drop(w->box, r->lease, r->rows.v[i], sample);
        held_settle(w->held, r->lease, r->rows.v[i], sample);
    }
    return child_link_runs(w->child) ? child_link_send(w->child, m, err) : FL_OK;
}

static void hear_answer(worker *w, const wire_answer *m)
{
    for (uint32_t i = 0; i < m->rows.n; i++) {
        if (!outbox_answer(w->box, m->jobs.v[i], m->leases.v[i], m->rows.v[i], m->samples.v[i])) continue;      /* answered before, or dropped */
        held_settle(w->held, m->leases.v[i], m->rows.v[i], m->samples.v[i]);
        if (m->fates.v[i] == WIRE_REFUSED)
            fl_log(FL_LOG_WARN, "the coordinator refused the result of row %llu: it does not fit the job", (unsigned long long)m->rows.v[i]);
    }
}

static fl_status hear_welcome(worker *w, const wire_welcome *m, int64_t now, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t lost;
    w->is_welcome = true;
    if (m->beat_ms) w->beat_ms = (int64_t)m->beat_ms;
    w->beat_at_ms = now;
    w->want_detok = w->want_detok || m->want_detok;
    while (st == FL_OK && (lost = held_missing(w->held, m->leases)) != 0) st = drop_lease(w, lost, err);
    if (w->awaits_welcome) {                     /* a new connection: what was said on the last one may be lost */
        outbox_resend(w->box);
        held_hand_again(w->held);
    }
    w->awaits_welcome = false;
    if (m->accepted) w->why_idle[0] = '\0';
    else if (!text_is(w->why_idle, m->why)) {
        keep_text(w->why_idle, sizeof w->why_idle, m->why);
        fl_log(FL_LOG_WARN, "the worker stays idle: %s", w->why_idle);
    }
    return st;
}

static fl_status hear_coordinator(worker *w, const wire_msg *m, int64_t now, fl_err *err)
{
    w->heard_at_ms = now;
    switch (m->type) {
    case WIRE_WELCOME: return hear_welcome(w, &m->welcome, now, err);
    case WIRE_JOB: return hear_job(w, &m->job, err);
    case WIRE_GRANT: return hear_grant(w, m, err);
    case WIRE_REVOKE: return hear_revoke(w, m, err);
    case WIRE_ANSWER: hear_answer(w, &m->answer); return FL_OK;
    case WIRE_STOP: return begin_drain(w, !m->stop.drain, now, err);
    case WIRE_BEAT: w->need_hello |= m->beat.say_hello && !w->awaits_welcome; return FL_OK;
    default: fl_log(FL_LOG_WARN, "the coordinator sent a %s, which a worker does not take", wire_type_name(m->type)); return FL_OK;
    }
}

static fl_status read_coordinator(worker *w, int64_t now, fl_err *err)
{
    for (int i = 0; i < MESSAGES_A_TURN; i++) {
        wire_msg m;
        fl_arena_trim(&w->arena, ARENA_KEPT_BYTES);
        fl_status st = coord_link_recv(w->coord, &m, &w->arena, err);
        if (st == FL_AGAIN) return FL_OK;
        if (st == FL_CORRUPT) fl_log(FL_LOG_WARN, "a message is passed over: %s", err->text);
        else if (st != FL_OK || (st = hear_coordinator(w, &m, now, err)) != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- to the coordinator ---- */

static fl_status say(worker *w, const wire_msg *m, bool *sent, fl_err *err)
{
    fl_status st = coord_link_send(w->coord, m, err);
    *sent = st == FL_OK;
    return st == FL_AGAIN ? FL_OK : st;
}

static fl_status say_hello(worker *w, int64_t now, fl_err *err)
{
    bool sent;
    wire_msg m = { .type = WIRE_HELLO, .hello = {
        .worker = w->id, .release = wire_text(TOKENFLEET_VERSION), .model = wire_text(w->model), .fingerprint = wire_text(w->fingerprint),
        .numerics = wire_text(w->numerics), .n_vocab = w->n_vocab, .context = w->context, .credit_tokens = w->credit_tokens,
        .credit_bytes = ENGINE_CHILD_CREDIT_BYTES, .leases = held_ids(w->held), .place = wire_text(w->place), .has_tokenizer = w->has_tokenizer,
        .grades = w->options->grades, .gpu = w->options->grades ? 0 : (uint64_t)(w->options->gpu + 1), .batch = w->batch, .kv_tokens = w->kv_tokens,
    } };
    fl_status st = say(w, &m, &sent, err);
    if (!sent) return st;
    held_present(w->held);
    w->need_hello = false;
    w->awaits_welcome = true;
    w->hello_at_ms = now;
    return FL_OK;
}

static fl_status say_beat(worker *w, int64_t now, fl_err *err)
{
    bool sent;
    wire_msg m = { .type = WIRE_BEAT, .beat = {
        .prefill_tokens = w->totals.prefill_tokens + w->now.prefill_tokens, .decode_tokens = w->totals.decode_tokens + w->now.decode_tokens,
        .running = w->now.running, .waiting = w->now.waiting, .unanswered_bytes = outbox_bytes(w->box), .leases = held_ids(w->held),
        .preemptions = w->totals.preemptions + w->now.preemptions, .draining = w->phase != WORKER_SERVING,
        .busy_us = w->totals.busy_us + w->now.busy_us,
    } };
    w->beat_at_ms = now + w->beat_ms;            /* one that finds no room is skipped: the next says more */
    return say(w, &m, &sent, err);
}

static fl_status say_detok(worker *w, fl_err *err)
{
    bool sent;
    fl_bytes part = { w->detok, w->detok_bytes };
    wire_msg m = { .type = WIRE_DETOK, .n_parts = 1, .parts = &part, .detok.fingerprint = wire_text(w->fingerprint) };
    fl_status st = say(w, &m, &sent, err);
    w->want_detok = !sent;
    return st;
}

/* Results first, so that a hand-back never overtakes what was made before it. */
static fl_status say_results(worker *w, fl_err *err)
{
    fl_status st = FL_OK;
    wire_msg m;
    fl_bytes part;
    bool sent = true;
    for (int i = 0; st == FL_OK && sent && i < MESSAGES_A_TURN && outbox_next(w->box, &m, &part); i++) {
        st = say(w, &m, &sent, err);
        if (sent) outbox_sent(w->box);
    }
    while (st == FL_OK && sent && !outbox_next(w->box, &m, &part) && held_next_handback(w->held, &m)) {
        st = say(w, &m, &sent, err);
        if (sent) held_handed(w->held);
    }
    w->is_blocked = outbox_next(w->box, &m, &part) || held_next_handback(w->held, &m);
    return st;
}

static fl_status tend_contact(worker *w, int64_t now, fl_err *err)
{
    int64_t silence = SILENT_BEATS * w->beat_ms > SILENCE_MS_MIN ? SILENT_BEATS * w->beat_ms : SILENCE_MS_MIN;
    fl_status st = FL_OK;
    if (coord_link_is_new(w->coord)) {
        w->need_hello = true;
        w->heard_at_ms = now;
    }
    bool is_silent = now - w->heard_at_ms > silence && now - w->hello_at_ms > silence;
    if (w->need_hello || !coord_link_is_up(w->coord) || is_silent) {
        w->is_welcome = w->is_blocked = false;
        w->need_hello = true;
    }
    if (w->need_hello && w->is_known && coord_link_is_up(w->coord)) st = say_hello(w, now, err);
    if (st == FL_OK) st = read_coordinator(w, now, err);
    if (st == FL_OK && w->is_welcome && now >= w->beat_at_ms) st = say_beat(w, now, err);
    if (st == FL_OK && w->is_welcome && w->want_detok && w->detok) st = say_detok(w, err);
    if (st == FL_OK && w->is_welcome) st = say_results(w, err);
    return st;
}

/* ---- the engine process ---- */

static fl_status child_ready(worker *w, const wire_hello *m, fl_err *err)
{
    if (w->is_known && (!text_is(w->fingerprint, m->fingerprint) || !text_is(w->numerics, m->numerics)))
        return fl_fail(err, FL_CONFLICT, "worker: the model's files changed while the worker ran: start it anew");
    keep_text(w->model, sizeof w->model, m->model);
    keep_text(w->fingerprint, sizeof w->fingerprint, m->fingerprint);
    keep_text(w->numerics, sizeof w->numerics, m->numerics);
    w->n_vocab = m->n_vocab;
    w->context = m->context;
    w->credit_tokens = m->credit_tokens;
    w->batch = m->batch;
    w->kv_tokens = m->kv_tokens;
    w->has_tokenizer = m->has_tokenizer;
    w->is_known = w->is_ready = w->has_moved = true;
    w->young_deaths = 0;
    return FL_OK;
}

static fl_status child_detok(worker *w, const wire_msg *m, fl_err *err)
{
    if (w->detok) return FL_OK;
    w->detok = malloc(m->parts[0].bytes + 1);
    if (!w->detok) return fl_fail(err, FL_FULL, "worker: no memory for the tokenizer's id table");
    memcpy(w->detok, m->parts[0].data, m->parts[0].bytes);
    w->detok_bytes = m->parts[0].bytes;
    return FL_OK;
}

static fl_status child_made(worker *w, const wire_msg *m, fl_err *err)
{
    bool complete;
    w->restart_ms = RESTART_MS;                  /* it works */
    w->has_moved = true;
    if (m->type == WIRE_ROW_ERROR)               /* nothing owed: it was revoked while it was made */
        return held_made(w->held, m->row_error.lease, m->row_error.row, WIRE_WHOLE_ROW) ? outbox_put(w->box, m, &complete, err) : FL_OK;
    fl_status st = outbox_put(w->box, m, &complete, err);
    if (st == FL_OK && complete && !held_made(w->held, m->result.lease, m->result.row, m->result.sample))
        outbox_drop(w->box, m->result.lease, m->result.row, m->result.sample);
    return st;
}

static void child_beat(worker *w, const wire_beat *m)
{
    w->has_moved |= w->now.prefill_tokens != m->prefill_tokens || w->now.decode_tokens != m->decode_tokens;
    w->now = *m;
    w->now.leases = (wire_list){ 0 };
}

static fl_status hear_child(worker *w, const wire_msg *m, fl_err *err)
{
    switch (m->type) {
    case WIRE_HELLO: return child_ready(w, &m->hello, err);
    case WIRE_DETOK: return child_detok(w, m, err);
    case WIRE_BEAT: child_beat(w, &m->beat); return FL_OK;
    case WIRE_RESULT:
    case WIRE_ROW_ERROR: return child_made(w, m, err);
    case WIRE_HANDBACK:
        for (uint32_t i = 0; i < m->handback.rows.n; i++)
            held_hand_back(w->held, m->handback.lease, &m->handback.rows.v[i], (wire_handback_reason)m->handback.reason, m->handback.text.p, m->handback.text.n);
        return FL_OK;
    default: return fl_fail(err, FL_CORRUPT, "worker: the engine process sent a %s", wire_type_name(m->type));
    }
}

/* Tell the coordinator what the engine owed and how it ended. A row is blamed only when it was the only one there and the end is evidence; one that waited for an engine that was not ready yet was in none. */
static void hand_back_after(worker *w, const child_end *end)
{
    char text[480];
    uint64_t lease, row;
    snprintf(text, sizeof text, "%s%s%s", end->sentence, end->words[0] ? ": " : "", end->words);
    if (end->is_evidence && w->is_ready && !child_link_has_queued(w->child) && held_owes_one_row(w->held, &lease, &row))
        held_hand_back(w->held, lease, &row, WIRE_HAND_ENGINE_CRASHED_ALONE, text, strlen(text));
    hand_back_all(w, w->is_ready ? WIRE_HAND_ENGINE_ENDED : WIRE_HAND_DRAIN, text);
}

/* The engine will not come up again: hand everything back and end with status 3. */
static void give_up(worker *w, int64_t now)
{
    w->status = WORKER_ENDED_ENVIRONMENT;
    if (w->phase != WORKER_FLUSHING) begin_flush(w, now);
}

static fl_status child_ended(worker *w, int64_t now, fl_err *err)
{
    child_end end;
    bool was_ready = w->is_ready;
    fl_status st = FL_OK;
    child_link_reap(w->child, &end);
    outbox_drop_partial(w->box);
    w->totals.prefill_tokens += w->now.prefill_tokens;
    w->totals.decode_tokens += w->now.decode_tokens;
    w->totals.preemptions += w->now.preemptions;
    w->totals.busy_us += w->now.busy_us;
    w->now = (wire_beat){ 0 };
    if (w->phase != WORKER_ENDED) hand_back_after(w, &end);
    w->is_ready = false;
    child_link_clear(w->child);
    if (w->phase != WORKER_SERVING) return FL_OK;
    if (!was_ready && end.signal_number == 0 && end.exit_status == WORKER_ENDED_ENVIRONMENT) {       /* its sentence is on stderr already */
        give_up(w, now);
        return FL_OK;
    }
    if (!was_ready && ++w->young_deaths >= YOUNG_DEATHS_MAX) {
        fprintf(stderr, "tokenfleet-worker: %s %d times in a row before %s%s%s\n", end.sentence, w->young_deaths, w->options->grades ? "it could grade" : "the model was open",
                end.last_line[0] ? "; its last words: " : "", end.last_line);
        give_up(w, now);
        return FL_OK;
    }
    fl_log(FL_LOG_WARN, "%s; it is started again in %lld ms", end.sentence, (long long)w->restart_ms);
    w->start_at_ms = now + w->restart_ms;
    w->restart_ms = w->restart_ms * 2 < RESTART_MS_MAX ? w->restart_ms * 2 : RESTART_MS_MAX;
    for (size_t i = 0; st == FL_OK && i < w->n_jobs; i++) st = send_job(w, &w->jobs[i], err);
    return st;
}

/* An engine that makes nothing of what it owes, while we read it, hangs. */
static void watch_progress(worker *w, int64_t now)
{
    if (now < w->look_at_ms) return;
    w->look_at_ms = now + LOOK_MS;
    if (w->has_moved || !w->is_ready || !held_owes(w->held) || outbox_is_full(w->box)) child_link_note_progress(w->child, now);
    else if (child_link_end_hung(w->child, now, w->options->progress_s * 1000)) fl_log(FL_LOG_WARN, "the engine computed no token for %lld s: it is ended", (long long)w->options->progress_s);
    w->has_moved = false;
}

static fl_status tend_child(worker *w, bool is_hung_up, int64_t now, fl_err *err)
{
    fl_status st = FL_OK;
    if (!child_link_runs(w->child) && w->phase == WORKER_SERVING && now >= w->start_at_ms) st = child_link_start(w->child, err);
    if (st != FL_OK || !child_link_runs(w->child)) return st;
    child_link_read_stderr(w->child);
    watch_progress(w, now);
    if ((st = child_link_flush(w->child, err)) != FL_OK) return st;
    for (int i = 0; i < MESSAGES_A_TURN && (is_hung_up || !outbox_is_full(w->box)); i++) {
        wire_msg m;
        fl_arena_trim(&w->arena, ARENA_KEPT_BYTES);
        st = child_link_recv(w->child, &m, &w->arena, err);
        if (st == FL_AGAIN) return FL_OK;
        if (st == FL_CLOSED) return child_ended(w, now, err);
        if (st != FL_OK || (st = hear_child(w, &m, err)) != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- the loop ---- */

static fl_status read_signals(worker *w, int64_t now, fl_err *err)
{
    struct signalfd_siginfo info;
    fl_status st = FL_OK;
    while (st == FL_OK && read(w->signal_fd, &info, sizeof info) == sizeof info) {
        bool again = w->phase != WORKER_SERVING;
        fl_log(FL_LOG_INFO, again ? "a second signal: what runs is handed back" : "draining: what runs is finished, nothing new is taken");
        st = begin_drain(w, again, now, err);
    }
    return st;
}

static void sooner(int64_t *at, int64_t other)
{
    if (other < *at) *at = other;
}

static long wait_ms(const worker *w, int64_t now)
{
    int64_t at = now + 1000;
    if (w->is_welcome) sooner(&at, w->beat_at_ms);
    if (!child_link_runs(w->child) && w->phase == WORKER_SERVING) sooner(&at, w->start_at_ms);
    if (w->phase != WORKER_SERVING) sooner(&at, w->deadline_ms);
    if (w->need_hello && w->is_known && coord_link_is_up(w->coord)) sooner(&at, now + 20);
    return at > now ? (long)(at - now) : 0;
}

/* Sleep until something can be done. *is_hung_up: the engine's stream ended, so it is read to its end even with a full outbox. */
static fl_status wait_for_work(worker *w, bool *is_hung_up, fl_err *err)
{
    short child_events = (short)((outbox_is_full(w->box) ? 0 : ZMQ_POLLIN) | (child_link_has_queued(w->child) ? ZMQ_POLLOUT : 0));
    zmq_pollitem_t items[5] = {
        { .socket = coord_link_socket(w->coord), .events = (short)(ZMQ_POLLIN | (w->is_blocked ? ZMQ_POLLOUT : 0)) },
        { .socket = coord_link_monitor(w->coord), .events = ZMQ_POLLIN },
        { .fd = w->signal_fd, .events = ZMQ_POLLIN },
    };
    int n = 3;
    int child = -1;
    if (child_link_fd(w->child) >= 0) items[child = n++] = (zmq_pollitem_t){ .fd = child_link_fd(w->child), .events = child_events };
    if (child_link_stderr_fd(w->child) >= 0) items[n++] = (zmq_pollitem_t){ .fd = child_link_stderr_fd(w->child), .events = ZMQ_POLLIN };
    if (zmq_poll(items, n, wait_ms(w, fl_boot_ms())) < 0 && zmq_errno() != EINTR)
        return fl_fail(err, FL_IO, "worker: wait for messages: %s", zmq_strerror(zmq_errno()));
    *is_hung_up = child >= 0 && items[child].revents & ZMQ_POLLERR;
    return FL_OK;
}

static fl_status run(worker *w, fl_err *err)
{
    bool is_hung_up = false;
    fl_status st = FL_OK;
    while (st == FL_OK) {
        int64_t now = fl_boot_ms();
        st = read_signals(w, now, err);
        if (st == FL_OK) st = tend_child(w, is_hung_up, now, err);
        if (st == FL_OK) st = tend_contact(w, now, err);
        if (st == FL_OK) advance_drain(w, now);
        if (st == FL_OK && w->phase == WORKER_ENDED) break;
        if (st == FL_OK) st = wait_for_work(w, &is_hung_up, err);
    }
    return st;
}

static fl_status watch_signals(worker *w, fl_err *err)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) != 0 || (w->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return fl_fail_errno(err, errno, "worker: watch for signals");
    return FL_OK;
}

static fl_status worker_open(worker *w, fl_err *err)
{
    char host[128] = "?";
    fl_status st;
    while (w->id == 0)
        if (getrandom(&w->id, sizeof w->id, 0) != sizeof w->id && errno != EINTR) return fl_fail_errno(err, errno, "worker: get a random id");
    gethostname(host, sizeof host - 1);
    snprintf(w->place, sizeof w->place, "%s, process %d, %s", host, (int)getpid(), w->options->grades ? "grading" : w->options->device);
    w->beat_ms = BEAT_MS_DEFAULT;
    w->restart_ms = RESTART_MS;
    if ((st = watch_signals(w, err)) != FL_OK) return st;        /* before libzmq starts threads: they inherit the mask */
    if ((st = outbox_open(&w->box, ENGINE_CHILD_CREDIT_BYTES, err)) != FL_OK) return st;
    if ((st = held_open(&w->held, err)) != FL_OK) return st;
    if ((st = child_link_open(&w->child, w->options, err)) != FL_OK) return st;
    return coord_link_open(&w->coord, w->options->connect, err);
}

static void worker_close(worker *w)
{
    wire_msg bye = { .type = WIRE_BYE, .bye.worker = w->id };
    fl_err ignored;
    child_link_close(w->child);
    if (w->coord && w->is_welcome && coord_link_send(w->coord, &bye, &ignored) != FL_OK) fl_log(FL_LOG_INFO, "the coordinator was not there for a good-bye");
    coord_link_close(w->coord, LINGER_MS);
    held_close(w->held);
    outbox_close(w->box);
    for (size_t i = 0; i < w->n_jobs; i++) free(w->jobs[i].defaults);
    free(w->jobs);
    free(w->detok);
    if (w->signal_fd >= 0) close(w->signal_fd);
    fl_arena_fini(&w->arena);
}

int worker_main(const worker_options *options)
{
    fl_err err = { 0 };
    char name[32];
    worker w = { .options = options, .signal_fd = -1, .status = WORKER_ENDED_WELL };
    snprintf(name, sizeof name, "worker %d", (int)getpid());
    fl_log_name(name);
    fl_arena_init(&w.arena, 64 * 1024, 0);
    fl_status st = coord_link_check(options->connect, &err);
    if (st != FL_OK) {
        fprintf(stderr, "tokenfleet-worker: --connect: %s\n", err.text);
        return WORKER_ENDED_USAGE;
    }
    st = worker_open(&w, &err);
    if (st == FL_OK) st = run(&w, &err);
    if (st != FL_OK) {
        fprintf(stderr, "tokenfleet-worker: %s\n", err.text);
        w.status = WORKER_ENDED_ENVIRONMENT;
    }
    worker_close(&w);
    return w.status;
}
