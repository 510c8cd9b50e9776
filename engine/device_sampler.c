#include "engine/device_sampler.h"

#include <stdlib.h>
#include <string.h>

#define WORDS (2 * (1 + SAMPLING_TOP_MAX))               /* of a row's results */

/* Whose counts a slot has. */
typedef struct { uint64_t request; uint32_t sample; int32_t n_ids; bool is_set; } count_owner;

/* Results of a turn: ids [n], logprobs [n], top_ids [n, n_top], top_logprobs [n, n_top], in pinned memory as on the device. */
typedef struct { int32_t *words, n, n_top; } results;

struct device_sampler {
    ops *o;                              /* borrowed */
    int32_t n_rows, n_vocab, n_slots, n_barred_max;
    uint32_t *counts;                    /* of the device, as the next: [n_slots, n_vocab] */
    int32_t *chosen;                     /* [n_rows * WORDS]: as in `results`; the ids come first */
    count_owner *owners;                 /* owned [n_slots], as all below */
    ops_sampling *rows; int32_t *barred; /* [n_rows], [n_barred_max] */
    results turns[2];
    int32_t n, n_padded, n_top;          /* of the last begin */
};

static size_t rows_bytes(int32_t n_rows) { return (size_t)n_rows * WORDS * sizeof(int32_t); }
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
    d->chosen = memory;
    for (int i = 0; i < 2; i++) {
        void *host = NULL;
        if ((st = o->take_host(o, &host, rows_bytes(n_rows), "chosen tokens", err)) != FL_OK) goto done;
        d->turns[i].words = host;
    }
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
    d->o->give(d->o, d->chosen, rows_bytes(d->n_rows));
    d->o->give(d->o, d->counts, counts_bytes(d->n_slots, d->n_vocab));
    for (int i = 0; i < 2; i++) d->o->give_host(d->o, d->turns[i].words, rows_bytes(d->n_rows));
    free(d->owners);
    free(d->rows);
    free(d->barred);
    free(d);
}

const int32_t *device_sampler_ids(const device_sampler *d) { return d->chosen; }

static bool has_penalty(const sampling *p) { return p->repetition_penalty != 1.0f || p->presence_penalty != 0.0f || p->frequency_penalty != 0.0f; }
static int32_t n_top_of(const token_choice *c) { return c->s ? c->r->sampling.n_top : c->r->sampling.n_prompt_top; }
static int32_t n_barred_of(const token_choice *c) { return c->s && c->n_before < c->r->sampling.min_tokens ? c->r->n_end_ids : 0; }

int32_t device_sampler_room(const device_sampler *d, const token_choice *choices, int32_t n)
{
    int32_t i = 0;
    for (int32_t n_barred = 0; i < n && i < d->n_rows; i++) {
        n_barred += n_barred_of(&choices[i]);
        if (n_barred > d->n_barred_max) break;
    }
    FL_ASSERT(n == 0 || i > 0);                          /* one row bars fewer ids than there is room */
    return i;
}

/* The slot's counts are the sample's: as they were left a token ago, or made anew. The first tokens of several samples are chosen in the slot that computed their prompt, and counted
 * when each has a slot of its own. */
static bool own_counts(device_sampler *d, const token_choice *c)
{
    count_owner *owner = &d->owners[c->slot];
    const count_owner want = { c->r->number, c->keeps_slot ? c->s->index : UINT32_MAX, c->n_before, true };
    if (!owner->is_set || owner->request != want.request || owner->sample != want.sample || owner->n_ids != want.n_ids) {
        FL_ASSERT(c->s->n_ids == c->n_before);           /* a sequence that comes into a slot has been away for a step: its tokens are read */
        d->o->count_ids(d->o, d->counts + (size_t)c->slot * (size_t)d->n_vocab, c->r->prompt, c->r->n_prompt, c->s->ids, c->s->n_ids, d->n_vocab);
    }
    *owner = want;
    if (c->keeps_slot) owner->n_ids++;
    return c->keeps_slot;
}

static ops_sampling greedy_row(int32_t logits_row) { return (ops_sampling){ .logits_row = logits_row, .count_slot = -1, .given_id = -1, .repetition_penalty = 1.0f, .top_p = 1.0f }; }

static void fill_row(device_sampler *d, int32_t at, const token_choice *c, int32_t *n_barred)
{
    const sampling *p = &c->r->sampling;
    ops_sampling row = greedy_row(c->logits_row);
    if (c->s) {
        row.temperature = p->temperature;
        row.top_p = p->top_p;
        row.min_p = p->min_p;
        row.top_k = p->top_k;
        row.repetition_penalty = p->repetition_penalty;
        row.presence_penalty = p->presence_penalty;
        row.frequency_penalty = p->frequency_penalty;
        row.u = sampler_uniform(p->seed, p->id_hash, c->s->index, (uint32_t)c->n_before);
        row.barred_begin = *n_barred;
        row.n_barred = n_barred_of(c);
        if (row.n_barred > 0) memcpy(d->barred + *n_barred, c->r->end_ids, (size_t)row.n_barred * sizeof *d->barred);
        *n_barred += row.n_barred;
        if (has_penalty(p)) {
            row.count_slot = c->slot;
            row.is_counted = own_counts(d, c);
        }
    } else {
        row.given_id = c->given_id;
    }
    d->rows[at] = row;
}

uint64_t device_sampler_begin(device_sampler *d, const token_choice *choices, int32_t n, int32_t n_padded)
{
    int32_t n_barred = 0;
    FL_ASSERT(n <= n_padded && n_padded <= d->n_rows);
    d->n = n;
    d->n_padded = n_padded;
    d->n_top = -1;
    for (int32_t i = 0; i < n; i++) {
        fill_row(d, i, &choices[i], &n_barred);
        if (n_top_of(&choices[i]) > d->n_top) d->n_top = n_top_of(&choices[i]);
    }
    for (int32_t i = n; i < n_padded; i++) d->rows[i] = greedy_row(i);
    d->o->sample_begin(d->o, d->rows, n_padded, d->barred, n_barred);
    FL_ASSERT(d->n_top + 1 < 1 << DEVICE_SAMPLER_KEY_BITS);
    return (uint64_t)(d->n_top + 1);
}

void device_sampler_choose(device_sampler *d, const float *logits, float *lse, int32_t n_logits)
{
    const size_t n = (size_t)d->n_padded, tops = n * (size_t)(d->n_top > 0 ? d->n_top : 0);
    int32_t *logprobs = d->chosen + n, *top_ids = logprobs + n, *top_logprobs = top_ids + tops;
    if (d->n_padded == 0) return;
    if (d->n_top >= 0) d->o->log_sum_exp(d->o, lse, logits, n_logits, d->n_vocab);
    d->o->sample(d->o, d->chosen, logits, d->n_padded, d->counts, d->n_vocab);
    if (d->n_top >= 0) d->o->sample_logprobs(d->o, (float *)logprobs, top_ids, (float *)top_logprobs, d->chosen, logits, lse, d->n_top, d->n_padded, d->n_vocab);
}

/* One copy: what padding there is lies between the parts, and is less than the copies it saves. */
void device_sampler_send(device_sampler *d, int turn)
{
    results *t = &d->turns[turn];
    t->n = d->n_padded;
    t->n_top = d->n_top;
    const size_t n = (size_t)t->n, words = t->n_top < 0 ? n : 2 * n * (size_t)(1 + t->n_top);
    d->o->begin_download(d->o, t->words, d->chosen, words * sizeof *t->words, turn);
}

fl_status device_sampler_wait(device_sampler *d, int turn, fl_err *err) { return d->o->wait_download(d->o, turn, err); }

token_chosen device_sampler_at(const device_sampler *d, int turn, int32_t i)
{
    const results *t = &d->turns[turn];
    const size_t n = (size_t)t->n, n_top = (size_t)(t->n_top > 0 ? t->n_top : 0), at = (size_t)i * n_top;
    const int32_t *logprobs = t->words + n, *top_ids = logprobs + n, *top_logprobs = top_ids + n * n_top;
    token_chosen c = { .id = t->words[i] };
    if (t->n_top >= 0) c.logprob = ((const float *)logprobs)[i];
    if (n_top > 0) {
        c.top_ids = top_ids + at;
        c.top_logprobs = (const float *)top_logprobs + at;
    }
    return c;
}
