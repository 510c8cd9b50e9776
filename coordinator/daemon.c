#include "coordinator/daemon.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/daemon_state.h"
#include "proto/clock.h"
#include "proto/detok.h"
#include "proto/log.h"
#include "proto/result.h"
#include "proto/verdict.h"

#define MESSAGES_A_TURN 4096
#define BYTES_A_TURN (64u << 20)                         /* of their parts, which are held until the sync */
#define CREDIT_BYTES_MAX (256u << 20)                    /* whatever a worker says of itself */
#define LOAD_MS 100                                      /* over which messages are counted to tell whether the loop is busy */
#define LOAD_MESSAGES 500                                /* in LOAD_MS: it is, */
#define LOAD_A_SEND 4                                    /* unless so many of them share an answer already */
#define GATHER_MS 60                                     /* a busy loop's turns begin so far apart at least */
#define MESSAGES_KEPT_BYTES (4 << 20)                    /* of the arena of messages behind a large one */
#define OUTPUT_POLL_MS 5
#define RETRY_MS 3000                                    /* between tries while the disk is full */
#define COMPLAIN_MS 1000                                 /* between lines about messages that are dropped: a peer may send many */
#define TEXT_BYTES_A_TOKEN 4
#define PROBE_MS 20
#define PROBES 50                                        /* after a child died: for one second */

const coord *daemon_core(const coord_daemon *d) { return d->core; }
bool daemon_is_run(const coord_daemon *d) { return d->workers_are_children; }
const spool *daemon_spool(const coord_daemon *d) { return d->spool; }
const char *daemon_endpoint(const coord_daemon *d) { return transport_endpoint(d->transport); }
size_t daemon_n_jobs(const coord_daemon *d) { return d->n_jobs; }
stored_job *daemon_job_at(coord_daemon *d, size_t i) { return i < d->n_jobs ? d->jobs[i] : NULL; }
const char *daemon_disk_full(const coord_daemon *d) { return d->disk_full[0] ? d->disk_full : d->outputs_full[0] ? d->outputs_full : NULL; }
const daemon_hello *daemon_last_hello(const coord_daemon *d) { return &d->hello; }

daemon_queues daemon_queue_figures(const coord_daemon *d)
{
    daemon_queues q = { .unsent = transport_queue(d->transport), .not_durable = d->kept, .turn = d->inbox };
    q.turn.capacity = MESSAGES_A_TURN;
    for (size_t i = 0; i < d->peers.n; i++) q.not_durable.capacity += d->peers.v[i]->credit_bytes;
    return q;
}

stored_job *daemon_job_find(coord_daemon *d, job_id id)
{
    for (size_t i = 0; i < d->n_jobs; i++) {
        if (d->jobs[i]->id.v == id.v) return d->jobs[i];
    }
    return NULL;
}

char *daemon_output_path(const coord_daemon *d, const stored_job *job, bool errors)
{
    const char *elsewhere = errors ? d->errors : d->out;
    return elsewhere ? strdup(elsewhere) : spool_job_path(d->spool, job->id, errors ? JOB_STORE_ERRORS : JOB_STORE_OUT);
}

/* ---- the core's opinion of a result body ---- */

bool daemon_result_is_valid(void *context, uint32_t n_vocab, const fl_bytes *pieces, uint32_t n_pieces)
{
    (void)context;
    size_t n_bytes = 0, at = 0;
    for (uint32_t i = 0; i < n_pieces; i++) n_bytes += pieces[i].bytes;
    const uint8_t *body = pieces[0].data;
    uint8_t *joined = NULL;
    if (n_pieces > 1) {
        if (!(joined = malloc(n_bytes ? n_bytes : 1))) return false;
        for (uint32_t i = 0; i < n_pieces; at += pieces[i++].bytes) memcpy(joined + at, pieces[i].data, pieces[i].bytes);
        body = joined;
    }
    fl_err err;
    bool valid = fl_result_check(body, n_bytes, (int32_t)n_vocab, &err) == FL_OK;
    if (!valid) fl_log(FL_LOG_WARN, "a worker sent a result that is refused: %s", err.text);
    free(joined);
    return valid;
}

bool daemon_verdict_is_valid(void *context, fl_bytes verdict)
{
    (void)context;
    fl_verdict decoded;
    fl_err err;
    bool valid = fl_verdict_decode(&decoded, verdict.data, verdict.bytes, &err) == FL_OK;
    if (!valid) fl_log(FL_LOG_WARN, "a worker sent a verdict that is refused: %s", err.text);
    return valid;
}

/* A grader's line has the task, which is most of the row's line, and the samples' texts: what the row costs says about how many tokens that are. */
uint64_t daemon_line_bytes(void *context, job_id id, row_index row)
{
    const stored_job *job = daemon_job_find(context, id);
    rows_entry entry;
    if (!job || !job->rows) return 0;
    uint64_t n_rows = rows_describe(job->rows)->n_rows, is_grade = row.v >= n_rows;
    if (rows_get(job->rows, (row_index){ row.v - (is_grade ? n_rows : 0) }, &entry, NULL) != FL_OK) return 0;     /* what cannot be read is reported when its line is */
    return entry.n_bytes + is_grade * entry.cost * TEXT_BYTES_A_TOKEN;
}

/* ---- turns ---- */

turn *daemon_turn_new(void)
{
    turn *t = calloc(1, sizeof *t);
    if (t) action_list_init(&t->list);
    return t;
}

void daemon_turn_free(turn *t)
{
    if (!t) return;
    for (size_t i = 0; i < t->list.appends.n; i++) free(t->list.appends.v[i].body.owner);
    for (size_t i = 0; i < t->list.sends.n; i++) {
        if (t->list.sends.v[i].type == ACTION_RELEASE) free(t->list.sends.v[i].body.owner);
    }
    for (size_t i = 0; i < t->n_replies; i++) service_reply_free(&t->replies[i].reply);
    action_list_fini(&t->list);
    free(t->replies);
    free(t);
}

/* The turn was performed: make it ready for the next one. */
static void turn_reset(turn *t)
{
    for (size_t i = 0; i < t->n_replies; i++) service_reply_free(&t->replies[i].reply);
    t->n_replies = 0;
    action_list_clear(&t->list);
}

static fl_status step(coord_daemon *d, const event *ev, fl_err *err)
{
    return coord_step(d->core, fl_boot_ms(), ev, &d->now->list, err);
}

fl_status daemon_step(coord_daemon *d, const event *ev, fl_err *err)
{
    return step(d, ev, err);
}

/* Phase 1 of one job: its appends and one commit. A job whose appends are durable is struck out (job 0), so that a retry passes over it. */
static fl_status append_job(coord_daemon *d, action_array *appends, job_id id, fl_err *err)
{
    stored_job *job = daemon_job_find(d, id);
    FL_ASSERT(job && job->ledger);
    fl_status st = FL_OK;
    for (size_t i = 0; i < appends->n; i++) {
        if (appends->v[i].job.v != id.v) continue;
        if ((st = ledger_append(job->ledger, &appends->v[i].record, err)) != FL_OK) return st;
        appends->v[i].record.place = ledger_last(job->ledger);
    }
    if ((st = ledger_commit(job->ledger, err)) != FL_OK) return st;
    daemon_outputs_committed(d, job);
    for (size_t i = 0; i < appends->n; i++) {
        if (appends->v[i].job.v != id.v) continue;
        if ((st = job_store_note(job, &appends->v[i].record, err)) != FL_OK) return st;
        free(appends->v[i].body.owner);
        appends->v[i].body.owner = NULL;
        appends->v[i].job.v = 0;
    }
    return FL_OK;
}

static fl_status make_durable(coord_daemon *d, turn *t, fl_err *err)
{
    fl_status st = FL_OK;
    for (size_t i = 0; i < t->list.appends.n; i++) {
        if (t->list.appends.v[i].job.v && (st = append_job(d, &t->list.appends, t->list.appends.v[i].job, err)) != FL_OK) return st;
    }
    if (t->list.journal.n == 0) return FL_OK;
    if ((st = journal_begin(d->journal, err)) != FL_OK) return st;
    for (size_t i = 0; st == FL_OK && i < t->list.journal.n; i++) st = journal_perform(d->journal, &t->list.journal.v[i], err);
    if (st == FL_OK) st = journal_commit(d->journal, err);
    if (st != FL_OK) journal_rollback(d->journal);
    return st;
}

/* The worker cannot be reached: the core learns of it in the next turn. */
static fl_status note_unreachable(coord_daemon *d, worker_id worker, fl_err *err)
{
    event ev = { .type = d->workers_are_children ? EVENT_WORKER_GONE : EVENT_UNREACHABLE, .worker = worker };
    peers_drop(&d->peers, worker);
    fl_status st = step(d, &ev, err);
    return st == FL_FULL ? st : FL_OK;                   /* a worker the core has forgotten already is fine */
}

/* A GRANT gets its lines here: the core never sees them. They live in d->messages until it is sent. */
static fl_status add_lines(coord_daemon *d, action *a, fl_err *err)
{
    wire_grant *grant = &a->msg.grant;
    stored_job *job = daemon_job_find(d, (job_id){ grant->job });
    FL_ASSERT(job);
    uint32_t n = grant->rows.n, n_parts = 0;
    fl_bytes *lines = fl_arena_take(&d->messages, n * sizeof *lines), *parts = NULL;
    uint64_t *numbers = fl_arena_take(&d->messages, n * sizeof *numbers), *renamed = fl_arena_take(&d->messages, n * sizeof *renamed);
    if (!lines || !numbers || !renamed) return fl_fail(err, FL_FULL, "no memory for a grant of %u rows", n);
    for (uint32_t i = 0; i < n; i++) {
        fl_bytes line;
        rows_entry entry;
        uint64_t row = grant->rows.v[i], n_rows = rows_describe(job->rows)->n_rows;
        bool is_grade = row >= n_rows;
        fl_status st = is_grade ? job_store_grade_line(job, (row_index){ row - n_rows }, (uint32_t)grant->sample_lo.v[i], (uint32_t)grant->sample_hi.v[i], &line, &entry, err)
                                : job_store_line(job, (row_index){ row }, &line, &entry, err);
        if (st != FL_OK) return st;
        numbers[i] = entry.line;
        renamed[i] = entry.is_renamed;
        lines[i] = (fl_bytes){ fl_arena_copy(&d->messages, line.data, line.bytes), line.bytes };
        if (is_grade) free((void *)line.data);
        if (!lines[i].data) return fl_fail(err, FL_FULL, "no memory for a grant of %u rows", n);
        n_parts += wire_line_parts(line.bytes);
    }
    if (!(parts = fl_arena_take(&d->messages, n_parts * sizeof *parts))) return fl_fail(err, FL_FULL, "no memory for a grant of %u rows", n);
    a->msg.parts = parts;
    a->msg.n_parts = n_parts;
    for (uint32_t i = 0; i < n; parts += wire_line_parts(lines[i++].bytes)) wire_line_cut(lines[i], parts);
    grant->lines = (wire_list){ numbers, n };
    grant->renamed = (wire_list){ renamed, n };
    return FL_OK;
}

static fl_status send_to_worker(coord_daemon *d, action *a, fl_err *err)
{
    peer_entry *entry = peers_of_worker(&d->peers, a->worker);
    fl_status st = entry ? FL_OK : FL_CLOSED;
    fl_arena_reset(&d->messages);
    d->n_answers += a->msg.type == WIRE_ANSWER;
    if (st == FL_OK && a->msg.type == WIRE_GRANT) st = add_lines(d, a, err);
    if (st == FL_OK) st = transport_send(d->transport, &entry->peer, &a->msg, err);
    fl_arena_trim(&d->messages, MESSAGES_KEPT_BYTES);
    if (st == FL_CLOSED || st == FL_AGAIN) return note_unreachable(d, a->worker, err);
    return st;
}

static void close_job(coord_daemon *d, job_id id, job_state state)
{
    stored_job *job = daemon_job_find(d, id);
    FL_ASSERT(job);
    job->state = state;
    daemon_outputs_closed(d, job);
}

/* Phase 3, one half of it: the sends that wait for the sync, or those that do not. Performed ones are struck out (RELEASE without owner). */
static fl_status perform_sends(coord_daemon *d, turn *t, bool after_sync, fl_err *err)
{
    for (size_t i = 0; i < t->list.sends.n; i++) {
        action *a = &t->list.sends.v[i];
        fl_status st = FL_OK;
        if (a->after_sync != after_sync) continue;
        switch (a->type) {
        case ACTION_SEND: st = send_to_worker(d, a, err); break;
        case ACTION_JOB_CLOSED: close_job(d, a->job, a->state); break;
        case ACTION_RELEASE: free(a->body.owner); break;
        case ACTION_NOTE: fl_log(FL_LOG_INFO, "%s", a->text); break;
        default: FL_ASSERT(0 && "an action of another phase");
        }
        if (st != FL_OK) return st;
        a->type = ACTION_RELEASE;
        a->body.owner = NULL;
    }
    return FL_OK;
}

static fl_status perform_replies(coord_daemon *d, turn *t, fl_err *err)
{
    for (size_t i = 0; i < t->n_replies; i++) {
        fl_status st = service_send(d->transport, &t->replies[i].to, t->replies[i].number, &t->replies[i].reply, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static fl_status set_disk_full(coord_daemon *d, const char *why, fl_err *err)
{
    bool was_full = d->disk_full[0] != '\0';
    snprintf(d->disk_full, sizeof d->disk_full, "%s", why);
    if (was_full == (why[0] != '\0')) return FL_OK;
    fl_log(FL_LOG_WARN, "%s", why[0] ? why : "the disk has room again; the job goes on");
    event ev = { .type = EVENT_DISK, .disk_full = why[0] != '\0', .text = d->disk_full };
    return step(d, &ev, err);
}

static void keep_turn(coord_daemon *d, turn *t)
{
    t->next = NULL;
    t->n_bytes = 0;
    for (size_t i = 0; i < t->list.appends.n; i++) t->n_bytes += t->list.appends.v[i].body.bytes;
    if (d->kept_last) d->kept_last->next = t;
    else d->kept_first = t;
    if (!d->kept_last) d->n_full++;
    d->kept_last = t;
    queue_note(&d->kept, d->kept.depth + t->n_bytes);
}

/* What stands behind the sync of a turn that is durable now. */
static fl_status finish_turn(coord_daemon *d, turn *t, fl_err *err)
{
    fl_status st = perform_sends(d, t, true, err);
    return st == FL_OK ? perform_replies(d, t, err) : st;
}

/* Perform what was collected; the core may be stepped meanwhile (into the next turn). */
static fl_status perform_turn(coord_daemon *d, fl_err *err)
{
    turn *t = d->now;
    if (t->list.appends.n + t->list.journal.n + t->list.sends.n + t->n_replies == 0) return FL_OK;
    turn *next = d->spare ? d->spare : daemon_turn_new();
    if (!next) return fl_fail(err, FL_FULL, "no memory for another turn");
    d->spare = NULL;
    next->list.turn = ++d->n_turns;                      /* the core tells turns apart by it, whichever list they live in */
    d->now = next;
    fl_err why;
    fl_status st = d->kept_first ? FL_DISK_FULL : make_durable(d, t, &why);
    if (st == FL_DISK_FULL) {
        bool first = !d->kept_first;
        keep_turn(d, t);
        if ((st = perform_sends(d, t, false, err)) != FL_OK || !first) return st;
        d->retry_ms = fl_boot_ms() + RETRY_MS;
        return set_disk_full(d, why.text, err);
    }
    if (st != FL_OK) *err = why;
    if (st == FL_OK) st = perform_sends(d, t, false, err);
    if (st == FL_OK) st = finish_turn(d, t, err);
    turn_reset(t);
    d->spare = t;
    return st;
}

static fl_status retry_kept(coord_daemon *d, fl_err *err)
{
    while (d->kept_first) {
        turn *t = d->kept_first;
        fl_status st = make_durable(d, t, err);
        if (st == FL_DISK_FULL) {
            d->retry_ms = fl_boot_ms() + RETRY_MS;
            return FL_OK;
        }
        if (st == FL_OK) st = finish_turn(d, t, err);
        if (st != FL_OK) return st;
        d->kept_first = t->next;
        if (!d->kept_first) d->kept_last = NULL;
        d->kept.depth -= t->n_bytes;
        daemon_turn_free(t);
    }
    return set_disk_full(d, "", err);
}

/* ---- messages ---- */

static void copy_text(char *out, size_t n_bytes, wire_str text)
{
    size_t n = text.n < n_bytes - 1 ? text.n : n_bytes - 1;
    if (n) memcpy(out, text.p, n);
    out[n] = '\0';
}

static fl_status take_hello(coord_daemon *d, const transport_peer *from, const wire_hello *hello, fl_err *err)
{
    if (!hello->grades) {                                /* a grader has no model */
        copy_text(d->hello.model, sizeof d->hello.model, hello->model);
        copy_text(d->hello.fingerprint, sizeof d->hello.fingerprint, hello->fingerprint);
        copy_text(d->hello.numerics, sizeof d->hello.numerics, hello->numerics);
        d->hello.n_hellos++;
    }
    fl_status st = peers_bind(&d->peers, (worker_id){ hello->worker }, from, (uint32_t)hello->n_vocab, err);
    if (st == FL_OK) peers_of_connection(&d->peers, from)->credit_bytes = hello->credit_bytes && hello->credit_bytes < CREDIT_BYTES_MAX ? hello->credit_bytes : CREDIT_BYTES_MAX;
    return st;
}

/* A table that does not decode, or names more ids than the worker's model has, would spoil every output line. */
static bool is_good_table(const peer_entry *from, const fl_bytes *part)
{
    fl_detok *table = NULL;
    fl_err why;
    fl_status st = fl_detok_decode(&table, part->data, part->bytes, &why);
    if (st == FL_OK && (uint32_t)fl_detok_vocab(table) > from->n_vocab) {
        st = fl_fail(&why, FL_CORRUPT, "it names %d ids, the model has %u", fl_detok_vocab(table), from->n_vocab);
    }
    fl_detok_free(table);
    if (st != FL_OK) fl_log(FL_LOG_WARN, "a worker's table of tokens is refused: %s", why.text);
    return st == FL_OK;
}

static fl_status take_request(coord_daemon *d, const transport_peer *from, const wire_msg *msg, fl_err *err)
{
    turn *t = d->now;
    late_reply late = { .to = *from, .number = msg->request.number };
    if (transport_unsent(d->transport, from) < SERVICE_UNREAD_BYTES_MAX) service_request(d->service, &msg->request, msg->n_parts ? &msg->parts[0] : NULL, &late.reply);
    else service_refuse_unread(&late.reply);
    if (!late.reply.after_sync) {
        fl_status st = service_send(d->transport, from, late.number, &late.reply, err);
        service_reply_free(&late.reply);
        return st;
    }
    if (t->n_replies == t->replies_capacity) {
        size_t capacity = t->replies_capacity ? t->replies_capacity * 2 : 8;
        late_reply *grown = realloc(t->replies, capacity * sizeof *grown);
        if (!grown) {
            service_reply_free(&late.reply);
            return fl_fail(err, FL_FULL, "no memory for a reply");
        }
        t->replies = grown;
        t->replies_capacity = capacity;
    }
    t->replies[t->n_replies++] = late;
    return FL_OK;
}

/* A connection that never said HELLO to us: we restarted, or forgot it. */
static fl_status ask_for_hello(coord_daemon *d, const transport_peer *from, fl_err *err)
{
    wire_msg msg = { .type = WIRE_BEAT, .beat = { .say_hello = 1 } };
    fl_status st = transport_send(d->transport, from, &msg, err);
    return st == FL_CLOSED || st == FL_AGAIN ? FL_OK : st;
}

static void note_dropped(coord_daemon *d, const char *why)
{
    d->n_dropped++;
    if (fl_boot_ms() < d->complain_ms) return;
    d->complain_ms = fl_boot_ms() + COMPLAIN_MS;
    fl_log(FL_LOG_WARN, "a message is dropped (%llu since the start): %s", (unsigned long long)d->n_dropped, why);
}

/* While the disk is full nothing is answered, and a worker holds as much as it has credit for; it may go beyond that by one result. What comes on top of that is dropped: its
 * sender keeps what was not answered, or floods. */
static bool is_in_credit(coord_daemon *d, peer_entry *from, size_t n_bytes)
{
    if (!d->kept_first) return true;                     /* it is answered with its turn */
    if (from->kept_since != d->n_full) from->kept_bytes = 0;
    from->kept_since = d->n_full;
    if (from->kept_bytes > from->credit_bytes) return false;
    from->kept_bytes += n_bytes;
    return true;
}

static fl_status take_message(coord_daemon *d, const transport_peer *from, const wire_msg *msg, fl_err *err)
{
    fl_status st = FL_OK;
    if (msg->type == WIRE_REQUEST) return take_request(d, from, msg, err);
    if (msg->type == WIRE_HELLO && msg->hello.worker == 0) {
        note_dropped(d, "a HELLO of a worker without an id");
        return FL_OK;
    }
    if (msg->type == WIRE_HELLO && (st = take_hello(d, from, &msg->hello, err)) != FL_OK) return st;
    peer_entry *entry = peers_of_connection(&d->peers, from);
    if (!entry) return msg->type == WIRE_BYE ? FL_OK : ask_for_hello(d, from, err);
    if (msg->type == WIRE_DETOK && (msg->n_parts != 1 || !is_good_table(entry, &msg->parts[0]))) return FL_OK;
    if (msg->type == WIRE_RESULT && !is_in_credit(d, entry, msg->parts[0].bytes)) {
        note_dropped(d, "a worker sends more results than its credit allows while the disk is full; stop it if it is none of yours");
        return FL_OK;
    }
    event ev = { .type = EVENT_MESSAGE, .worker = entry->worker, .msg = msg };
    if ((msg->type == WIRE_RESULT || msg->type == WIRE_DETOK) && msg->n_parts == 1) {
        void *copy = malloc(msg->parts[0].bytes ? msg->parts[0].bytes : 1);
        if (!copy) return fl_fail(err, FL_FULL, "no memory for a result of %zu bytes", msg->parts[0].bytes);
        memcpy(copy, msg->parts[0].data, msg->parts[0].bytes);
        ev.body = (coord_body){ copy, msg->parts[0].bytes, copy };
    }
    worker_id worker = entry->worker;
    st = step(d, &ev, err);
    if (st != FL_OK && st != FL_FULL) {
        fl_log(FL_LOG_INFO, "a %s of a worker is refused: %s", wire_type_name(msg->type), err->text);
        st = FL_OK;
    }
    if (msg->type == WIRE_BYE) peers_drop(&d->peers, worker);
    return st;
}

static fl_status read_messages(coord_daemon *d, fl_err *err)
{
    size_t n_bytes = 0;
    queue_note(&d->inbox, 0);
    for (int i = 0; i < MESSAGES_A_TURN && n_bytes < BYTES_A_TURN; i++, d->n_load++) {
        transport_peer from;
        wire_msg msg;
        fl_arena_reset(&d->messages);
        fl_status st = transport_recv(d->transport, &from, &msg, &d->messages, err);
        if (st == FL_AGAIN) return FL_OK;
        queue_note(&d->inbox, d->inbox.depth + 1);
        if (st == FL_CORRUPT) {
            note_dropped(d, err->text);
            continue;
        }
        if (st == FL_OK && msg.n_parts) n_bytes += msg.parts[0].bytes;
        if (st != FL_OK || (st = take_message(d, &from, &msg, err)) != FL_OK) return st;
    }
    return FL_OK;
}

/* ---- children ---- */

void daemon_child_died(coord_daemon *d)
{
    d->probes = PROBES;
    d->probe_ms = fl_boot_ms() + PROBE_MS;
}

/* Send each worker a beat: the dead one's connection refuses it. */
static fl_status probe_workers(coord_daemon *d, fl_err *err)
{
    wire_msg beat = { .type = WIRE_BEAT };
    d->probes--;
    d->probe_ms = fl_boot_ms() + PROBE_MS;
    for (size_t i = d->peers.n; i-- > 0; ) {
        worker_id worker = d->peers.v[i]->worker;
        fl_status st = transport_send(d->transport, &d->peers.v[i]->peer, &beat, err);
        if (st == FL_CLOSED) st = note_unreachable(d, worker, err);
        if (st != FL_OK && st != FL_AGAIN) return st;
    }
    return FL_OK;
}

/* ---- the loop ---- */

static int wait_time(const coord_daemon *d, int timeout_ms)
{
    int64_t now = fl_boot_ms(), until = now + timeout_ms;
    if (d->tick_ms < until) until = d->tick_ms;
    if (d->probes > 0 && d->probe_ms < until) until = d->probe_ms;
    if (d->kept_first && d->retry_ms < until) until = d->retry_ms;
    if ((daemon_outputs_soon(d) || daemon_has_jobs_work(d)) && now + OUTPUT_POLL_MS < until) until = now + OUTPUT_POLL_MS;
    if (daemon_outputs_now(d) || d->now->list.appends.n + d->now->list.journal.n + d->now->list.sends.n + d->now->n_replies > 0) until = now;
    return until > now ? (int)(until - now) : 0;
}

/* Each turn costs two syncs, and each worker that is answered in it a message: at thousands of results a second turns that follow each other at once would answer them one by one
 * and spend most of the time on that. So a busy loop lets messages gather for a moment. Nobody waits for it: workers hold rows for longer, and those that send bursts, because
 * they hold too few, share answers as it is. */
static void gather(coord_daemon *d)
{
    int64_t now = fl_boot_ms();
    if (now - d->load_ms >= LOAD_MS) {
        d->is_busy = (int64_t)d->n_load * LOAD_MS >= LOAD_MESSAGES * (now - d->load_ms) && d->n_load < LOAD_A_SEND * d->n_answers;
        d->load_ms = now;
        d->n_load = d->n_answers = 0;
    }
    if (d->is_busy && now < d->turn_ms + GATHER_MS) poll(NULL, 0, (int)(d->turn_ms + GATHER_MS - now));
    d->turn_ms = fl_boot_ms();
}

fl_status daemon_turn(coord_daemon *d, int timeout_ms, fl_err *err)
{
    bool ready = false;
    fl_status st = transport_wait(d->transport, wait_time(d, timeout_ms), &ready, err);
    if (st == FL_OK && ready) {
        gather(d);
        st = read_messages(d, err);
    }
    if (st == FL_OK && d->probes > 0 && fl_boot_ms() >= d->probe_ms) st = probe_workers(d, err);
    if (st == FL_OK && fl_boot_ms() >= d->tick_ms) {
        event tick = { .type = EVENT_TICK };
        d->tick_ms = fl_boot_ms() + d->beat_ms / 4;
        st = daemon_expire_jobs(d, err);
        if (st == FL_OK) st = step(d, &tick, err);
    }
    if (st == FL_OK && d->kept_first && fl_boot_ms() >= d->retry_ms) st = retry_kept(d, err);
    if (st == FL_OK) st = perform_turn(d, err);
    if (st == FL_OK) st = daemon_tend_outputs(d, err);
    return st == FL_OK ? daemon_tend_jobs(d, err) : st;
}
