#include "sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t sim_random(sim *s)                              /* splitmix64 */
{
    uint64_t z = s->random += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

uint32_t sim_below(sim *s, uint32_t n) { return (uint32_t)(sim_random(s) % n); }
bool sim_chance(sim *s, uint32_t in_1000) { return sim_below(s, 1000) < in_1000; }
bool sim_trouble(sim *s, uint32_t in_1000) { return sim_chance(s, in_1000) && s->now_ms < s->calm_ms; }

const char *sim_hit_name(sim_hit_kind kind)
{
    static const char *const names[] = {
#define NAME(name) [SIM_##name] = #name,
        SIM_HITS(NAME)
#undef NAME
    };
    return names[kind];
}

void sim_hit(sim *s, sim_hit_kind kind)
{
    s->hits[kind]++;
    if (s->is_verbose && kind < SIM_FAULT_COUNT) sim_log(s, "  * %s", sim_hit_name(kind));
}

uint64_t sim_faults(const sim *s)
{
    uint64_t n = 0;
    for (int i = 0; i < SIM_FAULT_COUNT; i++) n += s->hits[i];
    return n;
}

void sim_log(sim *s, const char *format, ...)
{
    if (!s->is_verbose) return;
    va_list args;
    printf("%9.3f ", (double)s->now_ms / 1000);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    putchar('\n');
}

void *sim_grow(void *array, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 16;
    array = realloc(array, *capacity * size);
    FL_ASSERT(array);
    return array;
}

static bool is_before(const sim_item *a, const sim_item *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

void sim_at(sim *s, int64_t at, sim_kind kind, int slot, uint64_t number, sim_packet *packet)
{
    s->heap = sim_grow(s->heap, &s->heap_capacity, s->n_heap, sizeof *s->heap);
    sim_item item = { at, ++s->order, kind, slot, number, packet };
    size_t i = s->n_heap++;
    for (; i > 0 && is_before(&item, &s->heap[(i - 1) / 2]); i = (i - 1) / 2) s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = item;
}

bool sim_next(sim *s, sim_item *item)
{
    if (s->n_heap == 0) return false;
    *item = s->heap[0];
    sim_item last = s->heap[--s->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < s->n_heap; i = child) {
        if (child + 1 < s->n_heap && is_before(&s->heap[child + 1], &s->heap[child])) child++;
        if (!is_before(&s->heap[child], &last)) break;
        s->heap[i] = s->heap[child];
    }
    s->heap[i] = last;
    return true;
}

/* Deep copies, from the field tables of wire.h. Strings are padded to 8 bytes so that lists stay aligned. */
#define COUNT_U64(name)
#define COUNT_STR(name)  n += (from->name.n + 7) / 8;
#define COUNT_LIST(name) n += from->name.n;
#define COUNT_FIELD(kind, key, name, bound) COUNT_##kind(name)
#define COUNT_TYPE(number, NAME, name) case WIRE_##NAME: { const wire_##name *from = &msg->name; (void)from; WIRE_##NAME##_FIELDS(COUNT_FIELD) break; }
#define COPY_U64(name)
#define COPY_STR(name)   if (to->name.n > 0) { memcpy(at, to->name.p, to->name.n); to->name.p = (const char *)at; at += (to->name.n + 7) / 8; }
#define COPY_LIST(name)  if (to->name.n > 0) { memcpy(at, to->name.v, to->name.n * sizeof *at); to->name.v = at; at += to->name.n; }
#define COPY_FIELD(kind, key, name, bound) COPY_##kind(name)
#define COPY_TYPE(number, NAME, name) case WIRE_##NAME: { wire_##name *to = &p->msg.name; (void)to; WIRE_##NAME##_FIELDS(COPY_FIELD) break; }

static sim_packet *new_packet(const wire_msg *msg, const uint8_t *body, size_t body_bytes)
{
    size_t n = 0;
    switch (msg->type) { WIRE_TYPES(COUNT_TYPE) }
    sim_packet *p = malloc(sizeof *p + n * sizeof *p->memory + body_bytes);
    FL_ASSERT(p);
    p->msg = *msg;
    p->body = (uint8_t *)(p->memory + n);
    p->body_bytes = body_bytes;
    if (body_bytes > 0) memcpy(p->body, body, body_bytes);
    uint64_t *at = p->memory;
    switch (msg->type) { WIRE_TYPES(COPY_TYPE) }
    return p;
}

void sim_packet_free(sim_packet *p) { free(p); }

static sim_packet *addressed(const sim_worker *w, const wire_msg *msg, const uint8_t *body, size_t body_bytes)
{
    sim_packet *p = new_packet(msg, body, body_bytes);
    p->slot = w->slot;
    p->worker = w->id;
    p->connection = w->connection;
    return p;
}

static sim_hit_kind kind_of(const wire_msg *m, bool to_coordinator)
{
    switch (m->type) {
    case WIRE_HELLO: return SIM_HELLO;
    case WIRE_BEAT: return to_coordinator ? SIM_BEAT : SIM_BEAT_BACK;
    case WIRE_DETOK: return SIM_DETOK;
    case WIRE_RESULT: return SIM_RESULT;
    case WIRE_ROW_ERROR: return SIM_ROW_ERROR;
    case WIRE_HANDBACK: return SIM_HANDBACK;
    case WIRE_BYE: return SIM_BYE;
    case WIRE_WELCOME: return SIM_WELCOME;
    case WIRE_JOB: return SIM_JOB;
    case WIRE_GRANT: return SIM_GRANT;
    case WIRE_ANSWER: return SIM_ANSWER;
    case WIRE_REVOKE: return m->revoke.rows.n == 0 ? SIM_REVOKE_LEASE : m->revoke.samples.v[0] == WIRE_WHOLE_ROW ? SIM_REVOKE_ROW : SIM_REVOKE_SAMPLE;
    case WIRE_STOP: return SIM_STOP;
    default: FL_ASSERT(0 && "a message that is not between coordinator and worker");
    }
}

void sim_send(sim *s, sim_worker *w, bool to_coordinator, const wire_msg *msg, const uint8_t *body, size_t body_bytes)
{
    if (w->connection == 0 || !w->is_alive) return;      /* what is sent into a cut link is gone */
    sim_hit(s, kind_of(msg, to_coordinator));
    sim_kind kind = to_coordinator ? SIM_TO_COORDINATOR : SIM_TO_WORKER;
    int64_t at = s->now_ms + 1 + sim_below(s, 20);
    if (sim_trouble(s, 10)) {
        at += sim_below(s, 2 * SIM_TERM_MS);
        sim_hit(s, SIM_MESSAGE_LATE);
    }
    int64_t *ahead = &w->sent_ahead_ms[to_coordinator];
    bool is_overtaking = sim_trouble(s, 15);             /* leaves the queue: earlier ones may arrive later */
    if (is_overtaking) sim_hit(s, SIM_MESSAGE_OVERTAKEN);
    else if (at < *ahead) at = *ahead;
    if (at > *ahead) *ahead = at;
    sim_at(s, at, kind, w->slot, w->connection, addressed(w, msg, body, body_bytes));
    w->is_disordered |= is_overtaking;
    if (!sim_trouble(s, 15)) return;
    w->is_disordered = true;
    sim_hit(s, SIM_MESSAGE_REPEATED);
    sim_at(s, at + sim_below(s, 3000), kind, w->slot, w->connection, addressed(w, msg, body, body_bytes));
}

uint64_t sim_mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d)
{
    uint64_t h = 0x243f6a8885a308d3u;
    uint64_t v[4] = { a, b, c, d };
    for (int i = 0; i < 4; i++) {
        h = (h ^ v[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return h;
}

uint32_t sim_result(const sim_job *j, uint64_t row, uint32_t sample, uint8_t body[64])
{
    uint64_t h = sim_mix(j->id.v, row, sample, 1);
    uint32_t n = 9 + (uint32_t)(h % 50);
    body[0] = 0xA5;
    for (uint32_t i = 1; i < n; i++) body[i] = (uint8_t)(h >> (8 * (i % 8)));
    return n;
}

uint32_t sim_tokens(const sim_job *j, uint64_t row, uint32_t sample) { return 1 + (uint32_t)(sim_mix(j->id.v, row, sample, 2) % 40); }

int sim_job_index(uint64_t id) { return (int)id - 1; }

sim_job *sim_job_of(sim *s, uint64_t id)
{
    FL_ASSERT(id >= 1 && id <= (uint64_t)s->n_jobs);
    return &s->jobs[sim_job_index(id)];
}
