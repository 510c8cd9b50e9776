#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

#define ANSWERS_MAX 4096                 /* proto/wire.h, WIRE_ANSWER_FIELDS */

void *coord_alloc(size_t n, size_t size)
{
    void *p = calloc(n ? n : 1, size);
    FL_ASSERT(p);
    return p;
}

void *coord_grow(void *array, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity) return array;
    *capacity = *capacity ? *capacity * 2 : 8;
    array = realloc(array, *capacity * size);
    FL_ASSERT(array);
    return array;
}

char *coord_copy(wire_str s)
{
    char *copy = coord_alloc(s.n + 1u, 1);
    if (s.n > 0) memcpy(copy, s.p, s.n);
    return copy;
}

void action_list_init(action_list *list)
{
    memset(list, 0, sizeof *list);
    list->turn = 1;
    fl_arena_init(&list->arena, 64 * 1024, 0);
}

void action_list_clear(action_list *list)
{
    list->appends.n = list->journal.n = list->sends.n = 0;
    list->turn++;
    fl_arena_reset(&list->arena);
}

void action_list_fini(action_list *list)
{
    free(list->appends.v);
    free(list->journal.v);
    free(list->sends.v);
    fl_arena_fini(&list->arena);
    memset(list, 0, sizeof *list);
}

action *action_add(action_array *array, action_type type)
{
    array->v = coord_grow(array->v, &array->capacity, array->n, sizeof *array->v);
    action *a = &array->v[array->n++];
    memset(a, 0, sizeof *a);
    a->type = type;
    return a;
}

const char *action_text(action_list *list, const char *format, ...)
{
    char text[480];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *copy = fl_arena_copy(&list->arena, text, strlen(text));
    FL_ASSERT(copy);
    return copy;
}

uint64_t *action_numbers(action_list *list, size_t n)
{
    uint64_t *numbers = fl_arena_take(&list->arena, (n ? n : 1) * sizeof *numbers);
    FL_ASSERT(numbers);
    return numbers;
}

action *send_to(coord *c, worker_id to, wire_type type, bool after_sync)
{
    action *a = action_add(&c->out->sends, ACTION_SEND);
    a->worker = to;
    a->msg.type = type;
    a->after_sync = after_sync;
    return a;
}

void send_release(coord *c, coord_body body)
{
    if (!body.owner) return;
    action_add(&c->out->sends, ACTION_RELEASE)->body = body;
}

void send_note(coord *c, const char *format, ...)
{
    char text[480];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    action_add(&c->out->sends, ACTION_NOTE)->text = action_text(c->out, "%s", text);
}

/* Fates of one worker in one turn share a message. */
void send_answer(coord *c, worker_id to, job_id of_job, lease_id of_lease, uint64_t row, uint64_t sample, wire_fate fate)
{
    worker *w = worker_find(c, to);
    wire_answer *m = NULL;
    if (w && w->answer_turn == c->out->turn) m = &c->out->sends.v[w->answer_at].msg.answer;
    if (!m || m->jobs.n == ANSWERS_MAX) {
        action *a = send_to(c, to, WIRE_ANSWER, true);
        m = &a->msg.answer;
        if (w) {
            w->answer_turn = c->out->turn;
            w->answer_at = c->out->sends.n - 1;
        }
    }
    wire_list *lists[5] = { &m->jobs, &m->leases, &m->rows, &m->samples, &m->fates };
    uint64_t values[5] = { of_job.v, of_lease.v, row, sample, (uint64_t)fate };
    uint32_t n = m->jobs.n;
    for (int i = 0; i < 5; i++) {
        if ((n & (n - 1)) == 0) {                        /* full at 0, 1, 2, 4, ...: the next size */
            uint64_t *grown = action_numbers(c->out, n ? n * 2 : 1);
            if (n > 0) memcpy(grown, lists[i]->v, n * sizeof *grown);
            lists[i]->v = grown;
        }
        ((uint64_t *)lists[i]->v)[n] = values[i];
        lists[i]->n = n + 1;
    }
}

void send_revoke(coord *c, worker_id to, lease_id ended)
{
    send_to(c, to, WIRE_REVOKE, true)->msg.revoke.lease = ended.v;
}

void send_revoke_row(coord *c, worker_id to, lease_id of_lease, row_index row, uint32_t sample)
{
    action *a = send_to(c, to, WIRE_REVOKE, true);
    uint64_t *rows = action_numbers(c->out, 2);
    rows[0] = row.v;
    rows[1] = sample;
    a->msg.revoke.lease = of_lease.v;
    a->msg.revoke.rows = (wire_list){ rows, 1 };
    a->msg.revoke.samples = (wire_list){ rows + 1, 1 };
}
