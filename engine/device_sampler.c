#include "engine/device_sampler.h"

#include <stdlib.h>
#include <string.h>

/* Whose counts a slot has. */
typedef struct { uint64_t request; uint32_t sample; int32_t n_ids; bool is_set; } count_owner;

struct device_sampler {
    ops *o;                              /* borrowed */
    int32_t n_rows, n_vocab, n_slots, n_barred_max;
    uint32_t *counts;                    /* of the device, as the next four: [n_slots, n_vocab] */
    int32_t *ids, *top_ids;              /* [n_rows], [n_rows, SAMPLING_TOP_MAX] */
    float *logprobs, *top_logprobs;
    count_owner *owners;                 /* owned [n_slots], as all below */
    ops_sampling *rows; int32_t *barred; /* of one call: [n_rows], [n_barred_max] */
    int32_t *got_ids, *got_top_ids; float *got_logprobs, *got_top_logprobs; int32_t got_capacity, n_top;     /* of a run: [got_capacity], [got_capacity, n_top] */
};

static size_t rows_bytes(int32_t n_rows) { return (size_t)n_rows * 2 * (1 + SAMPLING_TOP_MAX) * sizeof(float); }
static size_t counts_bytes(int32_t n_slots, int32_t n_vocab) { return (size_t)n_slots * (size_t)n_vocab * sizeof(uint32_t); }
uint64_t device_sampler_bytes(int32_t n_rows, int32_t n_slots, int32_t n_vocab) { return rows_bytes(n_rows) + counts_bytes(n_slots, n_vocab); }

fl_status device_sampler_open(device_sampler **out, ops *o, int32_t n_rows, int32_t n_slots, int32_t n_vocab, int32_t n_context, fl_err *err)
{
    fl_status st = FL_OK;
    void *counts = NULL, *memory = NULL;
    device_sampler *d = calloc(1, sizeof *d);
    if (!d) { st = fl_fail(err, FL_FULL, "sampler: no memory"); goto done; }
    *d = (device_sampler){ .o = o, .n_rows = n_rows, .n_vocab = n_vocab, .n_slots = n_slots, .n_barred_max = n_vocab + 16 * n_rows };
    d->owners = calloc((size_t)n_slots, sizeof *d->owners);
    d->rows = calloc((size_t)n_rows, sizeof *d->rows);
    d->barred = calloc((size_t)d->n_barred_max, sizeof *d->barred);
    if (!d->owners || !d->rows || !d->barred) { st = fl_fail(err, FL_FULL, "sampler: no memory for %d rows", n_rows); goto done; }
    if ((st = o->take(o, &memory, rows_bytes(n_rows), "chosen tokens", err)) != FL_OK) goto done;
    d->ids = memory;
    d->top_ids = d->ids + n_rows;
    d->logprobs = (float *)(d->top_ids + (size_t)n_rows * SAMPLING_TOP_MAX);
    d->top_logprobs = d->logprobs + n_rows;
    if ((st = o->take(o, &counts, counts_bytes(n_slots, n_vocab), "counts of tokens for penalties; lower --batch", err)) != FL_OK) goto done;
    d->counts = counts;
    if ((st = o->sampler_reserve(o, n_rows, d->n_barred_max, n_context, n_vocab, err)) != FL_OK) goto done;
    *out = d;
    d = NULL;
done:
    device_sampler_close(d);
    return st;
}

void device_sampler_close(device_sampler *d)
{
    if (!d) return;
    d->o->give(d->o, d->ids, rows_bytes(d->n_rows));
    d->o->give(d->o, d->counts, counts_bytes(d->n_slots, d->n_vocab));
    free(d->owners);
    free(d->rows);
    free(d->barred);
    free(d->got_ids);
    free(d->got_top_ids);
    free(d->got_logprobs);
    free(d->got_top_logprobs);
    free(d);
}

static bool has_penalty(const sampling *p) { return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f; }
static int32_t n_top_of(const token_choice *c) { return c->s ? c->r->sampling.n_top : c->r->sampling.n_prompt_top; }

/* The slot's counts are the sample's: as they were left a token ago, or made anew. The first token of a row's samples is chosen in the slot that computed their prompt,
 * and counted when the sample has a slot of its own. */
static bool own_counts(device_sampler *d, const token_choice *c)
{
    count_owner *owner = &d->owners[c->slot];
    const bool is_first = c->s->n_ids == 0;
    const count_owner want = { c->r->number, is_first ? UINT32_MAX : c->s->index, c->s->n_ids, true };
    if (!owner->is_set || owner->request != want.request || owner->sample != want.sample || owner->n_ids != want.n_ids)
        d->o->count_ids(d->o, d->counts + (size_t)c->slot * (size_t)d->n_vocab, c->r->prompt, c->r->n_prompt, c->s->ids, c->s->n_ids, d->n_vocab);
    *owner = want;
    if (!is_first) owner->n_ids++;
    return !is_first;
}

/* One row of the call; false when the ids it bars have no room behind the n_barred of those before it. */
static bool fill_row(device_sampler *d, int32_t at, const token_choice *c, int32_t *n_barred)
{
    const sampling *p = &c->r->sampling;
    ops_sampling row = { .logits_row = c->logits_row, .count_slot = -1, .given_id = c->s ? -1 : c->given_id, .repetition_penalty = 1.0f, .top_p = 1.0f };
    if (c->s) {
        const bool bars = c->s->n_ids < p->min_tokens;
        if (bars && *n_barred + c->r->n_end_ids > d->n_barred_max) return false;
        row.temperature = p->temperature;
        row.top_p = p->top_p;
        row.min_p = p->min_p;
        row.top_k = p->top_k;
        row.repetition_penalty = p->repetition_penalty;
        row.presence_penalty = p->presence_penalty;
        row.frequency_penalty = p->frequency_penalty;
        row.u = sampler_uniform(p->seed, p->id_hash, c->s->index, (uint32_t)c->s->n_ids);
        row.barred_begin = *n_barred;
        row.n_barred = bars ? c->r->n_end_ids : 0;
        if (row.n_barred > 0) memcpy(d->barred + *n_barred, c->r->end_ids, (size_t)row.n_barred * sizeof *d->barred);
        *n_barred += row.n_barred;
        if (has_penalty(p)) {
            row.count_slot = c->slot;
            row.is_counted = own_counts(d, c);
        }
    }
    d->rows[at] = row;
    return true;
}

static bool grow_results(device_sampler *d, int32_t n)
{
    const size_t tops = (size_t)n * (size_t)(d->n_top > 0 ? d->n_top : 0);
    if (n > d->got_capacity) {
        int32_t *ids = realloc(d->got_ids, (size_t)n * sizeof *ids);
        if (!ids) return false;
        d->got_ids = ids;
        float *logprobs = realloc(d->got_logprobs, (size_t)n * sizeof *logprobs);
        if (!logprobs) return false;
        d->got_logprobs = logprobs;
        d->got_capacity = n;
    }
    if (tops == 0) return true;
    int32_t *top_ids = realloc(d->got_top_ids, tops * sizeof *top_ids);
    if (!top_ids) return false;
    d->got_top_ids = top_ids;
    float *top_logprobs = realloc(d->got_top_logprobs, tops * sizeof *top_logprobs);
    if (!top_logprobs) return false;
    d->got_top_logprobs = top_logprobs;
    return true;
}

/* One call's rows, from choice `begin` on; returns how many they are. */
static int32_t run_slice(device_sampler *d, const token_choice *choices, int32_t begin, int32_t n, const float *logits, const float *lse)
{
    ops *o = d->o;
    int32_t n_rows = 0, n_barred = 0;
    while (begin + n_rows < n && n_rows < d->n_rows && fill_row(d, n_rows, &choices[begin + n_rows], &n_barred)) n_rows++;
    FL_ASSERT(n_rows > 0);                               /* one row bars fewer ids than there is room */
    o->sample(o, d->ids, logits, d->rows, n_rows, d->barred, n_barred, d->counts, d->n_vocab);
    if (d->n_top >= 0) o->sample_logprobs(o, d->logprobs, d->top_ids, d->top_logprobs, d->ids, logits, lse, d->n_top, n_rows, d->n_vocab);
    const size_t rows = (size_t)n_rows, top = d->n_top > 0 ? (size_t)d->n_top : 0, at = (size_t)begin;
    o->download(o, d->got_ids + at, d->ids, rows * sizeof *d->ids);
    if (d->n_top >= 0) o->download(o, d->got_logprobs + at, d->logprobs, rows * sizeof *d->logprobs);
    if (top > 0) {
        o->download(o, d->got_top_ids + at * top, d->top_ids, rows * top * sizeof *d->top_ids);
        o->download(o, d->got_top_logprobs + at * top, d->top_logprobs, rows * top * sizeof *d->top_logprobs);
    }
    return n_rows;
}

fl_status device_sampler_run(device_sampler *d, const token_choice *choices, int32_t n, const float *logits, float *lse, int32_t n_logits, fl_err *err)
{
    d->n_top = -1;
    for (int32_t i = 0; i < n; i++) if (n_top_of(&choices[i]) > d->n_top) d->n_top = n_top_of(&choices[i]);
    if (!grow_results(d, n)) return fl_fail(err, FL_FULL, "sampler: no memory for %d tokens of a step", n);
    if (d->n_top >= 0) d->o->log_sum_exp(d->o, lse, logits, n_logits, d->n_vocab);
    for (int32_t begin = 0; begin < n;) begin += run_slice(d, choices, begin, n, logits, lse);
    return d->o->finish(d->o, err);
}

token_chosen device_sampler_at(const device_sampler *d, int32_t i)
{
    const size_t at = (size_t)i * (size_t)(d->n_top > 0 ? d->n_top : 0);
    token_chosen c = { .id = d->got_ids[i] };
    if (d->n_top >= 0) c.logprob = d->got_logprobs[i];
    if (d->n_top > 0) {
        c.top_ids = d->got_top_ids + at;
        c.top_logprobs = d->got_top_logprobs + at;
    }
    return c;
}
