/* engine_state.h - what engine.c (open, close, the calls of engine.h), live_requests.c (how requests end and become events) and step.c (one batch step) share. Nobody else includes it.
 * Threads  as engine.h. */
#ifndef ENGINE_ENGINE_STATE_H
#define ENGINE_ENGINE_STATE_H

#include "engine/device_sampler.h"
#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "engine/memory_plan.h"
#include "engine/model.h"
#include "engine/request.h"
#include "engine/scheduler.h"
#include "engine/step_lists.h"

/* A step that the device has been given and whose results were not used yet: what it chooses, in the order of its rows. */
typedef struct { token_choice *choices; int32_t n, capacity; bool is_under_way; } flight;

struct engine {
    engine_info info;
    char *name, numerics[256], fingerprint[FINGERPRINT_BYTES];   /* name owned */
    ops *o;                              /* owned, as all below */
    model *m;
    kv_cache *kv;
    state_pool *states;
    scheduler *scheduler;
    sampler *chain;                      /* where the host chooses tokens, else NULL */
    device_sampler *device_chain;        /* where the device does */
    fl_detok *detok;
    memory_plan plan;
    step_padding padding; block_table padding_table;     /* taken for good, where steps are replayed */

    request *first, *last;               /* live requests, oldest first */
    uint64_t n_requests;                 /* ever added: the next one's number */
    uint64_t n_live_samples;
    engine_event *events; size_t n_events, events_capacity;      /* not yet handed out, oldest first */
    engine_stats stats;

    step_lists lists;                    /* of one step */
    flight flights[2]; int turn;         /* by the turn of their results: the last launched one, and room for the next */
    act *hidden; float *logits, *lse;    /* of the device; lse lies behind the logits */
    float *host_logits;                  /* the same on the host, for a device of its own memory that chooses no tokens; NULL otherwise */
};

/* live_requests.c */
void      requests_drop(engine *e, request *r);          /* unlink it; it is freed with all that its sequences hold, at once or when the steps that name it are over */
void      requests_end_sample(engine *e, request *r, sample *s);
fl_status requests_finish_sample(engine *e, request *r, sample *s, const fl_result *reason, fl_err *err);    /* with an event, for the reason in `reason` */
fl_status requests_sweep(engine *e, fl_err *err);        /* after a step: a failed request becomes one event, one without live samples is forgotten */
void      requests_free_event(engine_event *event);

/* step.c: one step. FL_AGAIN: there is nothing to do. */
fl_status step_run(engine *e, fl_err *err);
void      step_forget(engine *e);                        /* before the engine closes: what is under way is waited for and not used */

#endif
