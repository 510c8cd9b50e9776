#include "coordinator/stub_worker.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "proto/result.h"

#define BODIES 256
#define PROMPT_TOKENS 8
#define BUCKETS_AN_OCTAVE 8
#define BEAT_US_FIRST 1000000                            /* until a WELCOME says */

typedef struct { uint64_t job, lease, row; uint32_t sample; bool is_gone; int64_t sent_us; } item;

/* First in, first out; capacity is a power of two. */
typedef struct { item *v; size_t first, n, capacity; } ring;

typedef struct { uint64_t id; uint64_t n_left; bool was_presented; } stub_lease;

typedef enum { SAY_NOTHING, SAY_HELLO, SAY_BEAT, SAY_RESULT, SAY_HANDBACK, SAY_BYE } saying;

struct stub_worker {
    uint64_t id;
    const stub_options *options;         /* borrowed */
    ring held, outbox;                   /* owned; to be made, made and not answered */
    size_t n_said;                       /* of the outbox, from its front: sent on this connection */
    uint64_t outbox_bytes;
    stub_lease *leases; size_t n_leases, leases_capacity;       /* owned */
    uint64_t *ids; size_t ids_capacity;                         /* owned; of leases, for a message */
    uint64_t handback;                                          /* the lease being handed back */
    bool need_hello, awaits_welcome, is_welcome, is_stopping, finishes, has_ended;
    int64_t made_us;                     /* when the row in hand is made */
    int64_t beat_us, beat_at_us;
    int64_t since_us, idle_us;           /* welcomed first; since when it waits, STUB_NEVER = it does not */
    uint64_t waited_us, n_tokens;
    saying now;                          /* what stub_next gave */
};

/* ---- bodies ---- */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;             /* SplitMix64's finalizer */
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Ids as text has them: low ids are frequent, and a few come back again and again. */
static int32_t token_at(uint64_t body, uint64_t i)
{
    uint64_t x = mix(body * 0x9e3779b97f4a7c15u + i + 1);
    if (i >= 16 && x % 4 == 0) return token_at(body, i - 1 - x / 4 % 16);
    double u = (double)(x >> 11) * 0x1p-53;
    int32_t id = (int32_t)(exp2(u * 17.2) - 1.0);
    return id < STUB_VOCAB ? id : STUB_VOCAB - 1;
}

fl_status stub_bodies_open(stub_bodies *bodies, uint32_t n_tokens, fl_err *err)
{
    fl_status st = FL_OK;
    *bodies = (stub_bodies){ .v = calloc(BODIES, sizeof *bodies->v), .n_bytes = calloc(BODIES, sizeof *bodies->n_bytes), .n = BODIES, .n_tokens = n_tokens };
    int32_t *ids = malloc((n_tokens ? n_tokens : 1) * sizeof *ids);
    if (!bodies->v || !bodies->n_bytes || !ids) st = fl_fail(err, FL_FULL, "no memory for results of %u tokens", n_tokens);
    for (size_t b = 0; st == FL_OK && b < BODIES; b++) {
        for (uint32_t i = 0; i < n_tokens; i++) ids[i] = token_at(b, i);
        fl_result result = { .stop_index = -1, .n_prompt = PROMPT_TOKENS, .ids = ids, .n_ids = n_tokens, .text_bytes = -1, .n_top = -1, .n_prompt_top = -1 };
        st = fl_result_encode(&result, &bodies->v[b], &bodies->n_bytes[b], err);
    }
    free(ids);
    if (st != FL_OK) stub_bodies_close(bodies);
    return st;
}

void stub_bodies_close(stub_bodies *bodies)
{
    for (size_t b = 0; bodies->v && b < bodies->n; b++) free(bodies->v[b]);
    free(bodies->v);
    free(bodies->n_bytes);
    *bodies = (stub_bodies){ 0 };
}

fl_bytes stub_body(const stub_bodies *bodies, uint64_t row, uint64_t sample)
{
    size_t b = (size_t)(mix(row * 1024 + sample) % bodies->n);
    return (fl_bytes){ bodies->v[b], bodies->n_bytes[b] };
}

/* ---- stats ---- */

double stub_latency_us(size_t bucket)
{
    return exp2(((double)bucket + 0.5) / BUCKETS_AN_OCTAVE);
}

static void note_latency(stub_stats *stats, int64_t us)
{
    double bucket = us > 1 ? log2((double)us) * BUCKETS_AN_OCTAVE : 0;
    stats->latency[bucket < STUB_LATENCY_BUCKETS - 1 ? (size_t)bucket : STUB_LATENCY_BUCKETS - 1]++;
}

static void raise_to(uint64_t *high, uint64_t value)
{
    if (value > *high) *high = value;
}

/* ---- rings ---- */

static item *ring_at(const ring *r, size_t i)
{
    return &r->v[(r->first + i) & (r->capacity - 1)];
}

static bool ring_push(ring *r, item one)
{
    if (r->n == r->capacity) {
        size_t capacity = r->capacity ? r->capacity * 2 : 64;
        item *v = malloc(capacity * sizeof *v);
        if (!v) return false;
        for (size_t i = 0; i < r->n; i++) v[i] = *ring_at(r, i);
        free(r->v);
        *r = (ring){ v, 0, r->n, capacity };
    }
    r->n++;
    *ring_at(r, r->n - 1) = one;
    return true;
}

static void ring_drop_gone(ring *r, size_t *n_said)
{
    while (r->n > 0 && ring_at(r, 0)->is_gone) {
        r->first = (r->first + 1) & (r->capacity - 1);
        r->n--;
        if (n_said && *n_said > 0) --*n_said;
    }
}

/* ---- life ---- */

fl_status stub_open(stub_worker **out, uint64_t id, const stub_options *options, int64_t now_us, fl_err *err)
{
    stub_worker *w = calloc(1, sizeof *w);
    if (!w) return fl_fail(err, FL_FULL, "no memory for a stub worker");
    w->id = id;
    w->options = options;
    w->need_hello = true;
    w->beat_us = BEAT_US_FIRST;
    w->beat_at_us = now_us;
    w->idle_us = STUB_NEVER;
    *out = w;
    return FL_OK;
}

void stub_close(stub_worker *w)
{
    if (!w) return;
    free(w->held.v);
    free(w->outbox.v);
    free(w->leases);
    free(w->ids);
    free(w);
}

void stub_account(stub_worker *w)
{
    stub_stats *stats = w->options->stats;
    int64_t since = w->since_us > stats->first_grant_us ? w->since_us : stats->first_grant_us;
    if (w->since_us == 0 || stats->last_grant_us <= since) return;
    if (w->idle_us < stats->last_grant_us) w->waited_us += (uint64_t)(stats->last_grant_us - (w->idle_us > since ? w->idle_us : since));
    stats->waited_us += w->waited_us;
    stats->present_us += (uint64_t)(stats->last_grant_us - since);
}

static bool outbox_is_full(const stub_worker *w)
{
    return w->outbox.n > 0 && w->outbox_bytes >= w->options->credit_bytes;
}

/* Nothing is held: the waiting begins. */
static void note_idle(stub_worker *w, int64_t now_us)
{
    if (w->held.n == 0 && w->is_welcome && !w->is_stopping && w->idle_us == STUB_NEVER && !outbox_is_full(w)) w->idle_us = now_us;
}

/* ---- leases ---- */

static stub_lease *find_lease(stub_worker *w, uint64_t id)
{
    for (size_t i = 0; i < w->n_leases; i++)
        if (w->leases[i].id == id) return &w->leases[i];
    return NULL;
}

static void lease_settle(stub_worker *w, uint64_t id, uint64_t n)
{
    stub_lease *l = find_lease(w, id);
    if (!l) return;
    l->n_left -= n < l->n_left ? n : l->n_left;
    if (l->n_left == 0) *l = w->leases[--w->n_leases];
}

/* Samples of the lease leave, those in the outbox only when made ones go too (row UINT64_MAX: all rows; sample WIRE_WHOLE_ROW: the whole row). */
static void drop_samples(stub_worker *w, uint64_t lease, uint64_t row, uint64_t sample, bool made_too)
{
    ring *rings[2] = { &w->held, &w->outbox };
    uint64_t n = 0;
    for (int k = 0; k < 1 + made_too; k++) {
        for (size_t i = 0; i < rings[k]->n; i++) {
            item *one = ring_at(rings[k], i);
            if (one->is_gone || one->lease != lease || (row != UINT64_MAX && one->row != row) || (sample != WIRE_WHOLE_ROW && one->sample != sample)) continue;
            one->is_gone = true;
            n++;
            if (k == 1) w->outbox_bytes -= stub_body(w->options->bodies, one->row, one->sample).bytes;
        }
    }
    ring_drop_gone(&w->held, NULL);
    ring_drop_gone(&w->outbox, &w->n_said);
    lease_settle(w, lease, n);
}

static wire_list lease_ids(stub_worker *w)
{
    if (w->n_leases > w->ids_capacity) {
        uint64_t *grown = realloc(w->ids, w->leases_capacity * sizeof *grown);
        FL_ASSERT(grown);
        w->ids = grown;
        w->ids_capacity = w->leases_capacity;
    }
    for (size_t i = 0; i < w->n_leases; i++) w->ids[i] = w->leases[i].id;
    return (wire_list){ w->ids, (uint32_t)w->n_leases };
}

/* ---- hearing ---- */

static fl_status hear_welcome(stub_worker *w, const wire_welcome *m, int64_t now_us)
{
    if (!w->is_welcome) atomic_fetch_add(&w->options->stats->n_welcome, 1);
    w->is_welcome = true;
    if (w->since_us == 0) w->since_us = now_us;
    if (m->beat_ms) w->beat_us = (int64_t)m->beat_ms * 1000;
    w->beat_at_us = now_us + (int64_t)(mix(w->id) % (uint64_t)w->beat_us);       /* a fleet does not beat as one */
    for (size_t i = w->n_leases; i-- > 0;) {             /* what it presented and is not named has ended */
        bool lives = !w->leases[i].was_presented;
        for (uint32_t k = 0; k < m->leases.n && !lives; k++) lives = m->leases.v[k] == w->leases[i].id;
        w->leases[i].was_presented = false;
        if (!lives) drop_samples(w, w->leases[i].id, UINT64_MAX, WIRE_WHOLE_ROW, true);
    }
    if (w->awaits_welcome) w->n_said = 0;                /* what was said on the last connection may be lost */
    w->awaits_welcome = false;
    note_idle(w, now_us);
    return FL_OK;
}

static fl_status hear_grant(stub_worker *w, const wire_grant *m, int64_t now_us, fl_err *err)
{
    stub_stats *stats = w->options->stats;
    uint64_t n = 0;
    if (find_lease(w, m->lease)) return fl_fail(err, FL_CORRUPT, "lease %llu was granted twice", (unsigned long long)m->lease);
    if (w->n_leases == w->leases_capacity) {
        size_t capacity = w->leases_capacity ? w->leases_capacity * 2 : 8;
        stub_lease *grown = realloc(w->leases, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for a stub worker's leases");
        w->leases = grown;
        w->leases_capacity = capacity;
    }
    for (uint32_t i = 0; i < m->rows.n; i++) {
        for (uint64_t s = m->sample_lo.v[i]; s < m->sample_hi.v[i]; s++, n++) {
            item one = { .job = m->job, .lease = m->lease, .row = m->rows.v[i], .sample = (uint32_t)s };
            if (!ring_push(&w->held, one)) return fl_fail(err, FL_FULL, "no memory for a stub worker's rows");
        }
    }
    w->leases[w->n_leases++] = (stub_lease){ .id = m->lease, .n_left = n };
    if (w->held.n == n) w->made_us = now_us + (int64_t)w->options->interval_us;  /* it had nothing: the first of them is begun now */
    if (w->idle_us != STUB_NEVER) {
        int64_t from = w->idle_us > stats->first_grant_us ? w->idle_us : stats->first_grant_us;
        if (stats->first_grant_us && now_us > from) w->waited_us += (uint64_t)(now_us - from);
        w->idle_us = STUB_NEVER;
    }
    if (!stats->first_grant_us) stats->first_grant_us = now_us;
    stats->last_grant_us = now_us;
    stats->n_grants++;
    stats->n_samples_granted += n;
    raise_to(&stats->held_high, w->held.n);
    return FL_OK;
}

static void count_fate(stub_stats *stats, uint64_t fate)
{
    switch (fate) {
    case WIRE_COMMITTED: atomic_fetch_add_explicit(&stats->n_committed, 1, memory_order_relaxed); break;
    case WIRE_DUPLICATE: stats->n_duplicate++; break;
    case WIRE_STALE: stats->n_stale++; break;
    default: stats->n_refused++;
    }
}

static void hear_answer(stub_worker *w, const wire_answer *m, int64_t now_us)
{
    stub_stats *stats = w->options->stats;
    for (uint32_t i = 0; i < m->rows.n; i++) {
        item *one = NULL;
        for (size_t k = 0; k < w->outbox.n && !one; k++) {
            item *at = ring_at(&w->outbox, k);
            if (!at->is_gone && at->lease == m->leases.v[i] && at->row == m->rows.v[i] && at->sample == m->samples.v[i]) one = at;
        }
        if (!one) continue;                              /* answered before, or dropped */
        count_fate(stats, m->fates.v[i]);
        note_latency(stats, now_us - one->sent_us);
        one->is_gone = true;
        w->outbox_bytes -= stub_body(w->options->bodies, one->row, one->sample).bytes;
        lease_settle(w, one->lease, 1);
        ring_drop_gone(&w->outbox, &w->n_said);
    }
    stats->last_answer_us = now_us;
    note_idle(w, now_us);
}

fl_status stub_hear(stub_worker *w, const wire_msg *msg, int64_t now_us, fl_err *err)
{
    switch (msg->type) {
    case WIRE_WELCOME: return hear_welcome(w, &msg->welcome, now_us);
    case WIRE_GRANT: return hear_grant(w, &msg->grant, now_us, err);
    case WIRE_ANSWER: hear_answer(w, &msg->answer, now_us); return FL_OK;
    case WIRE_REVOKE:
        if (msg->revoke.rows.n == 0) drop_samples(w, msg->revoke.lease, UINT64_MAX, WIRE_WHOLE_ROW, true);
        for (uint32_t i = 0; i < msg->revoke.rows.n; i++) drop_samples(w, msg->revoke.lease, msg->revoke.rows.v[i], msg->revoke.samples.v[i], true);
        note_idle(w, now_us);
        return FL_OK;
    case WIRE_BEAT: w->need_hello |= msg->beat.say_hello && !w->awaits_welcome; return FL_OK;
    case WIRE_STOP: stub_stop(w, msg->stop.drain != 0); return FL_OK;
    case WIRE_JOB: return FL_OK;                         /* its settings change nothing here */
    default: return fl_fail(err, FL_CORRUPT, "the coordinator sent a %s, which a worker does not take", wire_type_name(msg->type));
    }
}

void stub_stop(stub_worker *w, bool finish)
{
    if (!w->is_stopping) w->beat_at_us = 0;              /* tells the coordinator at once */
    w->is_stopping = true;
    w->finishes = finish;
}

bool stub_ended(const stub_worker *w)
{
    return w->has_ended || (w->is_stopping && !w->is_welcome);
}

/* ---- saying ---- */

/* Make the rows whose time has come, as far as the outbox has room. */
static void make_rows(stub_worker *w, int64_t now_us)
{
    const stub_options *o = w->options;
    if (w->is_stopping && !w->finishes) return;
    while (w->held.n > 0 && w->made_us <= now_us && !outbox_is_full(w)) {
        item one = *ring_at(&w->held, 0);
        one.sent_us = 0;
        bool room = ring_push(&w->outbox, one);
        FL_ASSERT(room);
        ring_at(&w->held, 0)->is_gone = true;
        ring_drop_gone(&w->held, NULL);
        w->outbox_bytes += stub_body(o->bodies, one.row, one.sample).bytes;
        w->n_tokens += o->bodies->n_tokens;
        w->made_us += (int64_t)o->interval_us;
        raise_to(&o->stats->outbox_high, w->outbox.n);
        raise_to(&o->stats->outbox_high_bytes, w->outbox_bytes);
    }
    if (w->held.n > 0 && w->made_us < now_us) w->made_us = now_us;       /* it was held up by a full outbox: no burst behind it */
    note_idle(w, now_us);
}

static wire_hello hello_of(stub_worker *w)
{
    return (wire_hello){ .worker = w->id, .release = wire_text(TOKENFLEET_VERSION), .model = wire_text("stub"), .fingerprint = wire_text("73747562"),
                         .numerics = wire_text("stub"), .n_vocab = STUB_VOCAB, .context = 1 << 20, .credit_tokens = w->options->credit_tokens,
                         .credit_bytes = w->options->credit_bytes, .leases = lease_ids(w), .place = wire_text("bench-fleet") };
}

static saying choose(stub_worker *w, int64_t now_us)
{
    if (w->need_hello) return SAY_HELLO;
    if (!w->is_welcome || w->awaits_welcome || w->has_ended) return SAY_NOTHING;
    if (now_us >= w->beat_at_us) return SAY_BEAT;
    make_rows(w, now_us);
    while (w->n_said < w->outbox.n && ring_at(&w->outbox, w->n_said)->is_gone) w->n_said++;
    if (w->n_said < w->outbox.n) return SAY_RESULT;
    if (!w->is_stopping) return SAY_NOTHING;
    if (!w->finishes && w->held.n > 0) return SAY_HANDBACK;
    return w->outbox.n == 0 && w->held.n == 0 ? SAY_BYE : SAY_NOTHING;
}

bool stub_next(stub_worker *w, int64_t now_us, wire_msg *msg, fl_bytes *part)
{
    const item *one;
    w->now = choose(w, now_us);
    *msg = (wire_msg){ 0 };
    switch (w->now) {
    case SAY_NOTHING: return false;
    case SAY_HELLO:
        msg->type = WIRE_HELLO;
        msg->hello = hello_of(w);
        return true;
    case SAY_BEAT:
        msg->type = WIRE_BEAT;
        msg->beat = (wire_beat){ .decode_tokens = w->n_tokens, .running = w->held.n < 64 ? w->held.n : 64, .waiting = w->held.n < 64 ? 0 : w->held.n - 64,
                                 .unanswered_bytes = w->outbox_bytes, .leases = lease_ids(w), .draining = w->is_stopping };
        return true;
    case SAY_RESULT:
        one = ring_at(&w->outbox, w->n_said);
        *part = stub_body(w->options->bodies, one->row, one->sample);
        msg->type = WIRE_RESULT;
        msg->n_parts = 1;
        msg->parts = part;
        msg->result = (wire_result){ .job = one->job, .lease = one->lease, .row = one->row, .sample = one->sample, .n_pieces = 1, .n_tokens = w->options->bodies->n_tokens };
        return true;
    case SAY_HANDBACK:
        w->handback = ring_at(&w->held, 0)->lease;
        msg->type = WIRE_HANDBACK;
        msg->handback = (wire_handback){ .lease = w->handback, .reason = WIRE_HAND_DRAIN };
        return true;
    case SAY_BYE:
        msg->type = WIRE_BYE;
        msg->bye.worker = w->id;
        return true;
    }
    return false;
}

void stub_said(stub_worker *w, int64_t now_us)
{
    switch (w->now) {
    case SAY_NOTHING: break;
    case SAY_HELLO:
        for (size_t i = 0; i < w->n_leases; i++) w->leases[i].was_presented = true;
        w->need_hello = false;
        w->awaits_welcome = true;
        w->options->stats->n_hellos++;
        break;
    case SAY_BEAT: w->beat_at_us = now_us + w->beat_us; break;
    case SAY_RESULT:
        ring_at(&w->outbox, w->n_said++)->sent_us = now_us;
        w->options->stats->n_sent++;
        break;
    case SAY_HANDBACK: drop_samples(w, w->handback, UINT64_MAX, WIRE_WHOLE_ROW, false); break;
    case SAY_BYE: w->has_ended = true; break;
    }
}

int64_t stub_due_us(const stub_worker *w)
{
    if (w->need_hello) return 0;
    if (!w->is_welcome || w->awaits_welcome || w->has_ended) return STUB_NEVER;
    if (w->n_said < w->outbox.n || w->is_stopping) return 0;
    return w->held.n > 0 && !outbox_is_full(w) && w->made_us < w->beat_at_us ? w->made_us : w->beat_at_us;
}
