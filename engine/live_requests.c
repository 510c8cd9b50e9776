#include "engine/engine_state.h"

#include <stdio.h>
#include <stdlib.h>

static void take_out(engine *e, sequence *seq)
{
    if (seq) scheduler_remove(e->scheduler, seq);
}

void requests_drop(engine *e, request *r)
{
    take_out(e, r->trunk);
    for (uint32_t i = 0; i < r->n_samples; i++) take_out(e, r->samples[i].seq);
    e->n_live_samples -= r->n_live;
    if (r->previous) r->previous->next = r->next; else e->first = r->next;
    if (r->next) r->next->previous = r->previous; else e->last = r->previous;
    r->is_dropped = true;
    if (r->n_in_flight == 0) request_free(r);
}

void requests_end_sample(engine *e, request *r, sample *s)
{
    take_out(e, s->seq);
    free(s->seq);
    s->seq = NULL;
    s->is_over = true;
    r->n_live--;
    e->n_live_samples--;
}

void requests_free_event(engine_event *event)
{
    if (event->result) fl_result_free(event->result);
    free(event->result);
}

static fl_status push_event(engine *e, const engine_event *event, fl_err *err)
{
    if (e->n_events == e->events_capacity) {
        size_t capacity = e->events_capacity ? 2 * e->events_capacity : 64;
        engine_event *grown = realloc(e->events, capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "engine: no memory for %zu events", capacity);
        e->events = grown;
        e->events_capacity = capacity;
    }
    e->events[e->n_events++] = *event;
    return FL_OK;
}

fl_status requests_finish_sample(engine *e, request *r, sample *s, const fl_result *reason, fl_err *err)
{
    engine_event event = { .kind = ENGINE_FINISHED, .tag = r->tag, .sample = s->index, .result = malloc(sizeof *event.result) };
    if (!event.result) return fl_fail(err, FL_FULL, "engine: no memory for a result");
    *event.result = *reason;
    fl_status st = sample_result(event.result, r, s, err);
    if (st == FL_OK) st = push_event(e, &event, err);
    if (st != FL_OK) requests_free_event(&event);
    requests_end_sample(e, r, s);
    return st;
}

/* A request that wants no token (max_tokens 0) ends with its prompt. */
static fl_status finish_prompt(engine *e, request *r, fl_err *err)
{
    const fl_result reason = { .finish = FL_FINISH_LENGTH, .stop_index = -1, .text_bytes = -1 };
    fl_status st = FL_OK;
    for (uint32_t i = 0; st == FL_OK && i < r->n_samples; i++)
        if (!r->samples[i].is_over) st = requests_finish_sample(e, r, &r->samples[i], &reason, err);
    return st;
}

/* Its prompt was all that it wants, and is computed and read. */
static bool is_prompt_over(const request *r) { return r->sampling.max_tokens == 0 && r->trunk && r->trunk->n_cached == r->n_prompt && r->n_in_flight == 0; }

fl_status requests_sweep(engine *e, fl_err *err)
{
    fl_status st = FL_OK;
    for (request *r = e->first, *next; st == FL_OK && r; r = next) {
        next = r->next;
        if (!r->is_failed && is_prompt_over(r)) st = finish_prompt(e, r, err);
        if (r->is_failed) {
            engine_event event = { .kind = ENGINE_FAILED, .tag = r->tag, .error = ROW_NAN_LOGITS };
            snprintf(event.text, sizeof event.text, "the model's logits for this row are not numbers; no token can be chosen");
            engine_cancel(e, r->tag, UINT32_MAX);        /* also takes back events of its samples not yet handed out */
            st = push_event(e, &event, err);
        } else if (r->n_live == 0) {
            requests_drop(e, r);
        }
    }
    return st;
}
