/* late_ops.h - the CPU's operations as a GPU behaves towards the engine: memory that the host cannot touch (far_ops.h), tokens that are chosen there, and results that are not in the host's
 * memory before they are waited for. The chain is engine/sampler.h's, from what ops.h gives a device: counts, a uniform, barred ids.
 *   - begin_download() takes the bytes at once, as the device's order has it, and leaves nonsense where they will be; wait_download() puts them there.
 *   - replay() never replays, but all calls under one key must have been given the same addresses and sizes, or a recording would be wrong. A recording can fail: then what the calls
 *     did is undone, as it would never have been done. */
#ifndef TESTS_PROPERTY_LATE_OPS_H
#define TESTS_PROPERTY_LATE_OPS_H

#include "engine/sampler.h"
#include "far_ops.h"

#define LATE_PIECES 64
#define LATE_KEYS 512
#define PROMPT_BIT 0x80000000u

typedef struct { void *to, *bytes; size_t n_bytes; } late_piece;
typedef struct { uint64_t key, calls; int32_t n_uses; } late_key;

typedef struct {
    far_ops far;                         /* first */
    sampler *chain;                      /* owned, as all below */
    ops_sampling *rows; int32_t *barred, n_rows, n_rows_max, n_barred_max, n_vocab;
    int32_t *history; int32_t n_history_max;
    ops_batch batch; int32_t *ids;       /* begin()'s, with the ids that the device knows */
    late_piece pieces[2][LATE_PIECES]; int32_t n_pieces[2];
    late_key keys[LATE_KEYS], *current; int32_t n_keys;
    bool is_recording, fails_to_record, has_failed; char *before; size_t before_bytes;
    uint64_t n_samples, nan_every;       /* every so many tokens one is -1; 0 = none */
    int64_t n_waits_left, n_host_left;   /* the one after these fails: waits for results; pieces of pinned memory. -1 = none */
    uint64_t n_same;                     /* calls found as recorded */
} late_ops;

static late_ops *late_of(ops *o) { return (late_ops *)o; }
static void fold(ops *o, uint64_t v) { far_of(o)->calls = (far_of(o)->calls ^ v) * 0x9e3779b97f4a7c15u; }

static void late_begin(ops *o, const ops_batch *b)
{
    late_ops *l = late_of(o);
    const int32_t *chosen = b->chosen ? near_of(o, b->chosen) : NULL;
    free(l->ids);
    l->ids = malloc((size_t)b->n_rows * sizeof *l->ids);
    FL_ASSERT(l->ids && (b->reach == 0 || b->ids_from));
    for (int32_t i = 0; i < b->n_rows; i++) {
        const int32_t from = b->ids_from ? b->ids_from[i] : -1;
        FL_ASSERT(from < l->n_rows);                     /* among the last call's choices */
        l->ids[i] = from < 0 ? b->ids[i] : chosen[from] > 0 ? chosen[from] : 0;
        FL_ASSERT(b->reach == 0 || b->positions[i] < b->reach);
    }
    l->batch = *b;
    l->batch.ids = l->ids;
    far_begin(o, &l->batch);
}
static void late_embed(ops *o, float *y, const weight *table, float scale, const ops_batch *b) { (void)b; far_embed(o, y, table, scale, &late_of(o)->batch); }
static void late_linear(ops *o, act *y, const act *x, const weight *w, const weight *bias, int32_t n_rows) { fold(o, (uint64_t)n_rows); far_linear(o, y, x, w, bias, n_rows); }
static void late_linear_f32(ops *o, float *y, const act *x, const weight *w, const weight *bias, int32_t n_rows) { fold(o, (uint64_t)n_rows); far_linear_f32(o, y, x, w, bias, n_rows); }

/* ---- choosing ---- */

static fl_status late_sampler_reserve(ops *o, int32_t n_rows, int32_t n_barred, int32_t n_context, int32_t n_vocab, fl_err *err)
{
    late_ops *l = late_of(o);
    (void)n_context;
    l->n_rows_max = n_rows;
    l->n_barred_max = n_barred;
    l->n_vocab = n_vocab;
    l->rows = calloc((size_t)n_rows, sizeof *l->rows);
    l->barred = calloc((size_t)n_barred, sizeof *l->barred);
    FL_ASSERT(l->rows && l->barred);
    return sampler_open(&l->chain, n_vocab, err);
}

static void late_sample_begin(ops *o, const ops_sampling *asked, int32_t n_rows, const int32_t *barred, int32_t n_barred)
{
    late_ops *l = late_of(o);
    check_host(o, asked);
    FL_ASSERT(n_rows <= l->n_rows_max && n_barred <= l->n_barred_max);
    memcpy(l->rows, asked, (size_t)n_rows * sizeof *asked);
    memcpy(l->barred, barred, (size_t)n_barred * sizeof *barred);
    l->n_rows = n_rows;
}

static void add_history(late_ops *l, int32_t *n, int32_t id)
{
    if (*n == l->n_history_max) {
        l->n_history_max = 2 * *n + 1024;
        l->history = realloc(l->history, (size_t)l->n_history_max * sizeof *l->history);
        FL_ASSERT(l->history);
    }
    l->history[(*n)++] = id;
}

static int32_t late_choose(late_ops *l, const ops_sampling *r, const float *logits, uint32_t *counts)
{
    sampling p = { .temperature = r->temperature, .top_p = r->top_p, .top_k = r->top_k, .min_p = r->min_p, .repetition_penalty = r->repetition_penalty, .presence_penalty = r->presence_penalty,
                   .frequency_penalty = r->frequency_penalty, .min_tokens = r->n_barred > 0 ? INT32_MAX : 0 };
    int32_t n = 0, n_prompt = 0;
    for (int32_t id = 0; counts && id < l->n_vocab; id++) if (counts[id] & PROMPT_BIT) add_history(l, &n, id);
    n_prompt = n;
    for (int32_t id = 0; counts && id < l->n_vocab; id++) for (uint32_t k = 0; k < (counts[id] & ~PROMPT_BIT); k++) add_history(l, &n, id);
    const sampler_history h = { l->history, n_prompt, l->history + n_prompt, n - n_prompt, l->barred + r->barred_begin, r->n_barred, 0 };
    if (r->given_id >= 0) return sampler_choose(l->chain, logits, &(sampling){ .top_p = 1.0f, .repetition_penalty = 1.0f }, &(sampler_history){ 0 }, 0.0f) < 0 ? -1 : r->given_id;
    const int32_t id = sampler_choose(l->chain, logits, &p, &h, r->u);
    return l->nan_every && ++l->n_samples % l->nan_every == 0 ? -1 : id;
}

static void late_sample(ops *o, int32_t *ids, const float *logits, int32_t n_rows, uint32_t *counts, int32_t n_vocab)
{
    late_ops *l = late_of(o);
    int32_t *to = near_of(o, ids);
    FL_ASSERT(n_rows == l->n_rows && n_vocab == l->n_vocab);
    fold(o, (uint64_t)n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        const ops_sampling *r = &l->rows[i];
        const uint64_t calls = l->far.calls;
        uint32_t *row_counts = r->count_slot >= 0 ? (uint32_t *)near_of(o, counts) + (size_t)r->count_slot * (size_t)n_vocab : NULL;
        to[i] = late_choose(l, r, (const float *)near_of(o, logits) + (size_t)r->logits_row * (size_t)n_vocab, row_counts);
        l->far.calls = calls;                            /* whose counts are looked at is no address of the call's */
        if (row_counts && r->is_counted && to[i] >= 0) row_counts[to[i]]++;
    }
}

static void late_sample_logprobs(ops *o, float *logprobs, int32_t *top_ids, float *top_logprobs, const int32_t *ids, const float *logits, const float *lse, int32_t n_top, int32_t n_rows,
                                 int32_t n_vocab)
{
    late_ops *l = late_of(o);
    const int32_t *chosen = near_of(o, ids);
    const float *from_logits = near_of(o, logits), *from_lse = near_of(o, lse);
    float *to = near_of(o, logprobs), *tops = near_of(o, top_logprobs);
    int32_t *to_ids = near_of(o, top_ids);
    fold(o, (uint64_t)n_top << 32 | (uint32_t)n_rows);
    for (int32_t i = 0; i < n_rows; i++) {
        const size_t from = (size_t)l->rows[i].logits_row, at = (size_t)i * (size_t)n_top;
        if (chosen[i] < 0) continue;
        logprobs_of(from_logits + from * (size_t)n_vocab, n_vocab, from_lse[from], chosen[i], n_top, to + i, to_ids + at, tops + at);
    }
}

static void late_count_ids(ops *o, uint32_t *counts, const int32_t *prompt, int32_t n_prompt, const int32_t *output, int32_t n_output, int32_t n_vocab)
{
    uint32_t *to = near_of(o, counts);
    memset(to, 0, (size_t)n_vocab * sizeof *to);
    for (int32_t i = 0; i < n_prompt; i++) to[prompt[i]] |= PROMPT_BIT;
    for (int32_t i = 0; i < n_output; i++) to[output[i]]++;
}

static fl_status late_take_host(ops *o, void **out, size_t n_bytes, const char *what, fl_err *err)
{
    late_ops *l = late_of(o);
    if (l->n_host_left == 0) return fl_fail(err, FL_FULL, "late: no pinned memory for %s", what);
    if (l->n_host_left > 0) l->n_host_left--;
    return far_take_host(o, out, n_bytes, what, err);
}

/* ---- results ---- */

static void late_begin_download(ops *o, void *to, const void *from, size_t n_bytes, int turn)
{
    late_ops *l = late_of(o);
    late_piece *p = &l->pieces[turn][l->n_pieces[turn]];
    FL_ASSERT(l->n_pieces[turn] < LATE_PIECES && !l->is_recording);
    check_host(o, to);
    *p = (late_piece){ to, malloc(n_bytes + 1), n_bytes };
    FL_ASSERT(p->bytes);
    if (n_bytes > 0) memcpy(p->bytes, near_of(o, from), n_bytes);
    memset(to, 0xAB, n_bytes);
    l->n_pieces[turn]++;
}

static void late_drop_pieces(late_ops *l, int turn, bool is_copied)
{
    for (int32_t i = 0; i < l->n_pieces[turn]; i++) {
        late_piece *p = &l->pieces[turn][i];
        if (is_copied) memcpy(p->to, p->bytes, p->n_bytes);
        free(p->bytes);
    }
    l->n_pieces[turn] = 0;
}

static fl_status late_wait_download(ops *o, int turn, fl_err *err)
{
    late_ops *l = late_of(o);
    if (l->n_waits_left == 0) return fl_fail(err, FL_GPU, "cuda: GPU 0 failed at attention: an illegal memory access was encountered");
    if (l->n_waits_left > 0) l->n_waits_left--;
    FL_ASSERT(l->n_pieces[turn] > 0);                    /* something was begun */
    late_drop_pieces(l, turn, true);
    return FL_OK;
}

/* ---- replaying ---- */

static bool late_replay(ops *o, uint64_t key)
{
    late_ops *l = late_of(o);
    late_key *k = l->keys;
    FL_ASSERT(!l->is_recording);
    while (k < l->keys + l->n_keys && k->key != key) k++;
    FL_ASSERT(k < l->keys + LATE_KEYS);
    if (k == l->keys + l->n_keys) { l->n_keys++; k->key = key; }
    l->current = k;
    l->is_recording = true;
    k->n_uses++;
    if (k->n_uses == 2 && l->fails_to_record && !l->has_failed) {
        l->before_bytes = l->far.n_taken;
        l->before = malloc(l->before_bytes);
        FL_ASSERT(l->before);
        memcpy(l->before, l->far.near, l->before_bytes);
    }
    l->far.calls = 1;
    return false;
}

static bool late_record_end(ops *o, char *note)
{
    late_ops *l = late_of(o);
    const ops_batch *b = &l->batch;
    FL_ASSERT(l->is_recording);
    l->is_recording = false;
    note[0] = '\0';
    if (l->before) {
        memcpy(l->far.near, l->before, l->before_bytes);
        free(l->before);
        l->before = NULL;
        l->has_failed = true;
        memcpy(note, "no recording", 13);
        return false;
    }
    fold(o, (uint64_t)b->n_rows << 32 | (uint32_t)b->n_seqs);
    fold(o, (uint64_t)b->n_logits << 32 | (uint32_t)b->table_stride);
    fold(o, (uint64_t)b->reach);
    for (int32_t i = 0; i < b->n_seqs; i++) FL_ASSERT(!b->is_prefill[i] && b->row_begin[i] == i && b->logit_rows[i] == i);
    if (l->current->n_uses > 1) FL_ASSERT(l->current->calls == l->far.calls);
    if (l->current->n_uses > 1) l->n_same++;
    l->current->calls = l->far.calls;
    return true;
}

static void late_close(ops *o)
{
    late_ops *l = late_of(o);
    for (int turn = 0; turn < 2; turn++) late_drop_pieces(l, turn, false);
    sampler_close(l->chain);
    free(l->rows);
    free(l->barred);
    free(l->history);
    free(l->ids);
    free(l->before);
    far_close(o);
}

/* replays: steps are offered for recording. NULL without memory. */
static late_ops *late_open(bool replays, fl_err *err)
{
    late_ops *l = calloc(1, sizeof *l);
    if (!l || far_init(&l->far, err) != FL_OK) { free(l); return NULL; }
    ops *o = &l->far.table;
    l->n_waits_left = l->n_host_left = -1;
    o->name = o->numerics = "late";
    o->begin = late_begin;
    o->embed = late_embed;
    o->linear = late_linear;
    o->linear_f32 = late_linear_f32;
    o->take_host = late_take_host;
    o->sampler_reserve = late_sampler_reserve;
    o->sample_begin = late_sample_begin;
    o->sample = late_sample;
    o->sample_logprobs = late_sample_logprobs;
    o->count_ids = late_count_ids;
    o->begin_download = late_begin_download;
    o->wait_download = late_wait_download;
    if (replays) { o->replay = late_replay; o->record_end = late_record_end; }
    o->close = late_close;
    return l;
}

#endif
