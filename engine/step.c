/* A step, from the scheduler's plan to events.
 *
 *   the host chooses tokens      plan ─▶ forward ─▶ logits ─▶ use each row at once
 *   the device chooses them      plan ─▶ launch: forward, logits, choices, copies to the host ─▶ use what the step before chose
 *
 * One step behind. While the device runs step k, the host plans and launches step k + 1 and then reads what k chose. A row of k + 1 whose token k chose takes its id from the device's own
 * list (step_lists.h). Counts of tokens (positions, uniforms, min_tokens, whose counts a slot has) are those of launched ones: sample.n_ids + n_ahead.
 *   - An end by max_tokens is known beforehand: the sequence rests (scheduler.h) until it is read. Any other end, a cancel or a failure finds one more row under way, whose
 *     result is dropped; that row's blocks and slot can be given to others at once, since all they run comes later in the device's order.
 *   - A prompt with one sample goes on as that sample. With more it rests until their first tokens are read; those left then fork.
 *   - What is under way names requests and samples by pointer: a request that is forgotten meanwhile is freed with the last choice that names it.
 *   - A step of more rows of logits or choices than there is room for waits for the one before, and runs piece by piece.
 * Steps of decode rows alone are replayed where the device can (ops.h: replay). */
#include "engine/engine_state.h"

#include <stdlib.h>
#include "proto/clock.h"
#include "proto/log.h"

/* ---- what becomes of rows ---- */

/* What became of a sample with its next token: one that ends becomes an event. */
static fl_status advance_sample(engine *e, request *r, sample *s, sample_fate fate, const fl_result *reason, fl_err *err)
{
    if (fate == SAMPLE_IS_NAN) r->is_failed = true;
    return fate == SAMPLE_ENDED ? requests_finish_sample(e, r, s, reason, err) : FL_OK;
}

/* The prompt is computed: sample s goes on in the trunk's place. It is the lowest one left, so the place in the order stays. */
static void go_on_in_trunk(request *r, sample *s)
{
    s->seq = r->trunk;
    s->seq->sample = s->index;
    r->trunk = NULL;
}

/* The first live sample goes on in the trunk's place, the others fork from it. */
static fl_status fork_request(engine *e, request *r, fl_err *err)
{
    fl_status st = FL_OK;
    sequence **children = NULL;
    int32_t n = 0;
    if (r->n_live > 1 && !(children = calloc(r->n_live, sizeof *children))) return fl_fail(err, FL_FULL, "engine: no memory for %u samples", r->n_live);
    for (uint32_t i = 0; i < r->n_samples; i++) {
        sample *s = &r->samples[i];
        if (s->is_over) continue;
        if (r->trunk) {
            go_on_in_trunk(r, s);
            continue;
        }
        s->seq = request_sequence(r, s->index);
        if (!s->seq) { st = fl_fail(err, FL_FULL, "engine: no memory for a sample"); goto done; }
        children[n++] = s->seq;
    }
    if (n > 0) {
        const sample *first = r->samples;
        while (first->is_over) first++;
        st = scheduler_fork(e->scheduler, first->seq, children, n, err);
    }
done:
    free(children);
    return st;
}

static bool is_last_of_prompt(const logit_row *row) { return row->is_prefill && row->position + 1 == row->r->n_prompt; }

/* After the choices of the last prompt row were used. */
static fl_status end_prompt(engine *e, request *r, fl_err *err) { return r->is_failed || r->n_live == 0 ? FL_OK : fork_request(e, r, err); }

/* ---- tokens chosen by the host ---- */

static fl_status choose_next(engine *e, request *r, sample *s, const float *logits, float lse, fl_err *err)
{
    sample_fate fate;
    fl_result reason = { 0 };
    fl_status st = sample_next(&fate, &reason, r, s, e->chain, e->detok, logits, e->info.n_vocab, lse, err);
    return st == FL_OK ? advance_sample(e, r, s, fate, &reason, err) : st;
}

/* The last prompt row: every live sample's first token. */
static fl_status begin_samples(engine *e, request *r, const float *logits, float lse, fl_err *err)
{
    for (uint32_t i = 0; i < r->n_samples && !r->is_failed; i++) {
        if (r->samples[i].is_over) continue;
        fl_status st = choose_next(e, r, &r->samples[i], logits, lse, err);
        if (st != FL_OK) return st;
    }
    return end_prompt(e, r, err);
}

static fl_status use_row(engine *e, const logit_row *row, const float *logits, float lse, fl_err *err)
{
    request *r = row->r;
    if (r->is_failed) return FL_OK;
    if (!row->is_prefill) {
        e->stats.decode_tokens++;
        return choose_next(e, r, request_sample(r, row->seq->sample), logits, lse, err);
    }
    if (is_last_of_prompt(row)) return begin_samples(e, r, logits, lse, err);
    if (lse != lse) r->is_failed = true;
    else request_prompt_logprob(r, row->position, logits, e->info.n_vocab, lse);
    return FL_OK;
}

static fl_status finish_device(engine *e, fl_err *err)
{
    const double begun = fl_awake_s();
    fl_status st = e->o->finish(e->o, err);
    if (!e->o->is_host) e->stats.wait_s += fl_awake_s() - begun;
    return st;
}

static fl_status use_on_host(engine *e, const logit_row *rows, int32_t n, fl_err *err)
{
    const size_t n_logits = (size_t)e->plan.n_logit_rows * (size_t)e->info.n_vocab;
    const float *logits = e->host_logits ? e->host_logits : e->logits, *lse = logits + n_logits;
    e->o->log_sum_exp(e->o, e->lse, e->logits, n, e->info.n_vocab);
    if (e->host_logits) e->o->download(e->o, e->host_logits, e->logits, (n_logits + (size_t)e->plan.n_logit_rows) * sizeof(float));
    fl_status st = finish_device(e, err);
    for (int32_t i = 0; st == FL_OK && i < n; i++) st = use_row(e, &rows[i], logits + (size_t)i * (size_t)e->info.n_vocab, lse[i], err);
    return st;
}

static void count_rows(engine *e, const plan_entry *entries, int32_t n)
{
    e->stats.steps++;
    e->stats.prefill_tokens += (uint64_t)e->lists.n_prefill;
    for (int32_t i = 0; i < n; i++) entries[i].seq->n_cached += entries[i].n_rows;
}

static fl_status run_on_host(engine *e, const plan_entry *entries, int32_t n, fl_err *err)
{
    const int32_t hidden = model_describe(e->m)->hidden, most = e->plan.n_logit_rows;
    fl_status st = FL_OK;
    step_lists_fill(&e->lists, entries, n, NULL);
    const ops_batch batch = step_lists_batch(&e->lists, NULL);
    model_forward(e->m, &batch, e->kv, e->states, e->hidden);
    count_rows(e, entries, n);
    if (batch.n_logits == 0) st = finish_device(e, err);
    for (int32_t begin = 0; st == FL_OK && begin < batch.n_logits; begin += most) {          /* so many at a time as fit, each used at once */
        const int32_t n_logits = batch.n_logits - begin < most ? batch.n_logits - begin : most;
        model_logits(e->m, act_at(e->o, e->hidden, (size_t)begin * (size_t)hidden), n_logits, e->logits);
        st = use_on_host(e, e->lists.rows + begin, n_logits, err);
    }
    return st == FL_OK ? requests_sweep(e, err) : st;
}

/* ---- tokens chosen by the device: what is asked ---- */

static fl_status add_choice(flight *f, const token_choice *choice, fl_err *err)
{
    if (f->n == f->capacity) {
        const int32_t capacity = f->capacity ? 2 * f->capacity : 256;
        token_choice *grown = realloc(f->choices, (size_t)capacity * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "engine: no memory for %d tokens of a step", capacity);
        f->choices = grown;
        f->capacity = capacity;
    }
    f->choices[f->n++] = *choice;
    return FL_OK;
}

/* The first tokens of all live samples. */
static fl_status add_first_tokens(flight *f, token_choice choice, fl_err *err)
{
    fl_status st = FL_OK;
    request *r = choice.r;
    choice.keeps_slot = r->n_live == 1;
    for (uint32_t i = 0, n = 0; st == FL_OK && i < r->n_samples; i++) {
        choice.s = &r->samples[i];
        if (choice.s->is_over) continue;
        choice.ends_prompt = ++n == r->n_live && r->n_live > 1;
        st = add_choice(f, &choice, err);
    }
    return st;
}

/* What the step's rows of logits are asked for, in their order. */
static fl_status list_choices(flight *f, const step_lists *l, fl_err *err)
{
    fl_status st = FL_OK;
    f->n = 0;
    for (int32_t i = 0; st == FL_OK && i < l->n_real; i++) {
        const logit_row *row = &l->rows[i];
        token_choice choice = { .r = row->r, .logits_row = i, .slot = row->seq->slot, .given_id = -1, .position = row->position };
        if (!row->is_prefill) {
            choice.s = request_sample(row->r, row->seq->sample);
            choice.n_before = choice.s->n_ids + choice.s->n_ahead;
            choice.keeps_slot = true;
            st = add_choice(f, &choice, err);
        } else if (is_last_of_prompt(row)) {
            st = add_first_tokens(f, choice, err);
        } else {
            choice.given_id = row->r->prompt[row->position + 1];
            st = add_choice(f, &choice, err);
        }
    }
    return st;
}

/* The choices are on the device: they are ahead of what was read. */
static void count_choices(const token_choice *choices, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        choices[i].r->n_in_flight++;
        if (!choices[i].s) continue;
        choices[i].s->n_ahead++;
        choices[i].s->choice = i;
    }
}

/* After count_choices and count_rows: what the sequences go on with. One whose next row needs what is not known yet, or that has none, rests. */
static void settle_sequences(const plan_entry *entries, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        sequence *seq = entries[i].seq;
        request *r = seq->owner;
        if (seq->n_cached < r->n_prompt) continue;
        if (entries[i].is_prefill) {
            sample *s = r->samples;
            while (s->is_over) s++;
            if (r->n_live == 1 && r->sampling.max_tokens > 0) go_on_in_trunk(r, s);
            else seq->is_resting = true;
        }
        if (seq == r->trunk) continue;
        const sample *s = request_sample(r, seq->sample);
        seq->is_resting = s->n_ids + s->n_ahead == r->sampling.max_tokens;
    }
}

/* ---- tokens chosen by the device: what was answered ---- */

static fl_status use_choice(engine *e, const token_choice *c, const token_chosen *chosen, fl_err *err)
{
    request *r = c->r;
    sample_fate fate;
    fl_result reason = { 0 };
    if (r->is_failed || (c->s && c->s->is_over)) return FL_OK;
    if (!c->s) {
        if (chosen->id < 0) r->is_failed = true;
        else request_prompt_chosen(r, c->position, chosen);
        return FL_OK;
    }
    if (c->n_before > 0) e->stats.decode_tokens++;
    fl_status st = sample_take(&fate, &reason, r, c->s, e->detok, chosen, err);
    return st == FL_OK ? advance_sample(e, r, c->s, fate, &reason, err) : st;
}

/* The choice is no longer under way. */
static void count_answer(const token_choice *c)
{
    request *r = c->r;
    if (c->s) c->s->n_ahead--;
    if (--r->n_in_flight == 0 && r->is_dropped) request_free(r);
}

/* Wait for a turn's choices and use them. */
static fl_status use_answers(engine *e, const token_choice *choices, int32_t n, int turn, fl_err *err)
{
    const double begun = fl_awake_s();
    fl_status st = device_sampler_wait(e->device_chain, turn, err);
    e->stats.wait_s += fl_awake_s() - begun;
    for (int32_t i = 0; i < n; i++) {
        const token_choice *c = &choices[i];
        const token_chosen chosen = device_sampler_at(e->device_chain, turn, i);
        const bool is_meant = st == FL_OK && !c->r->is_dropped;
        if (is_meant) st = use_choice(e, c, &chosen, err);
        if (is_meant && st == FL_OK && c->ends_prompt) {
            c->r->trunk->is_resting = false;
            st = end_prompt(e, c->r, err);
        }
        count_answer(c);
    }
    return st;
}

static fl_status land(engine *e, int turn, fl_err *err)
{
    flight *f = &e->flights[turn];
    f->is_under_way = false;
    fl_status st = use_answers(e, f->choices, f->n, turn, err);
    return st == FL_OK ? requests_sweep(e, err) : st;
}

/* ---- tokens chosen by the device: the step ---- */

/* Whether one turn holds all that the step asks for. */
static bool fits(const engine *e, const flight *f)
{
    return e->lists.n_logits <= e->plan.n_logit_rows && device_sampler_room(e->device_chain, f->choices, f->n) == f->n;
}

/* What decides the launches of a padded step. */
static uint64_t key_of(const ops_batch *b, uint64_t sampler_key)
{
    FL_ASSERT(b->n_rows <= BATCH_MAX && b->table_stride < 1 << 25);
    return ((uint64_t)b->table_stride << 13 | (uint64_t)b->n_rows) << DEVICE_SAMPLER_KEY_BITS | sampler_key;
}

static void launch(engine *e, const plan_entry *entries, int32_t n, int turn)
{
    flight *f = &e->flights[turn];
    const ops_batch batch = step_lists_batch(&e->lists, device_sampler_ids(e->device_chain));
    char note[OPS_NOTE_BYTES] = "";
    const bool is_padded = e->lists.is_padded;
    model_begin(e->m, &batch);
    const uint64_t sampler_key = device_sampler_begin(e->device_chain, f->choices, f->n, is_padded ? batch.n_logits : f->n), key = is_padded ? key_of(&batch, sampler_key) : 0;
    while (!is_padded || !e->o->replay(e->o, key)) {
        model_run(e->m, &batch, e->kv, e->states, e->hidden);
        if (batch.n_logits > 0) model_logits(e->m, e->hidden, batch.n_logits, e->logits);
        device_sampler_choose(e->device_chain, e->logits, e->lse, batch.n_logits);
        const bool is_made = !is_padded || e->o->record_end(e->o, note);
        if (note[0]) fl_log(FL_LOG_WARN, "engine: %s", note);
        if (is_made) break;
    }
    device_sampler_send(e->device_chain, turn);
    f->is_under_way = true;
    count_choices(f->choices, f->n);
    count_rows(e, entries, n);
    settle_sequences(entries, n);
}

/* A step that has no room in one turn, piece by piece; nothing else is under way. */
static fl_status run_in_pieces(engine *e, const plan_entry *entries, int32_t n, flight *f, int turn, fl_err *err)
{
    const int32_t hidden = model_describe(e->m)->hidden, most = e->plan.n_logit_rows;
    const ops_batch batch = step_lists_batch(&e->lists, device_sampler_ids(e->device_chain));
    fl_status st = FL_OK;
    model_forward(e->m, &batch, e->kv, e->states, e->hidden);
    count_choices(f->choices, f->n);
    count_rows(e, entries, n);
    settle_sequences(entries, n);
    for (int32_t at = 0, begin = 0, end = 0; at < f->n;) {
        token_choice *piece = f->choices + at;
        if (piece->logits_row >= end) {                  /* the next rows of logits */
            begin = end;
            end = begin + most < batch.n_logits ? begin + most : batch.n_logits;
            if (st == FL_OK) model_logits(e->m, act_at(e->o, e->hidden, (size_t)begin * (size_t)hidden), end - begin, e->logits);
            continue;
        }
        int32_t n_piece = 0;
        for (; at + n_piece < f->n && piece[n_piece].logits_row < end; n_piece++) {}
        n_piece = device_sampler_room(e->device_chain, piece, n_piece);
        for (int32_t i = 0; i < n_piece; i++) piece[i].logits_row -= begin;
        if (st == FL_OK) {
            device_sampler_begin(e->device_chain, piece, n_piece, n_piece);
            device_sampler_choose(e->device_chain, e->logits, e->lse, end - begin);
            device_sampler_send(e->device_chain, turn);
            st = use_answers(e, piece, n_piece, turn, err);
        } else {
            for (int32_t i = 0; i < n_piece; i++) count_answer(&piece[i]);
        }
        at += n_piece;
    }
    return st == FL_OK ? requests_sweep(e, err) : st;
}

static fl_status plan_step(engine *e, const plan_entry **entries, int32_t *n, flight *f, fl_err *err)
{
    fl_status st = scheduler_plan(e->scheduler, entries, n, err);
    if (st != FL_OK || *n == 0) return st;
    step_lists_fill(&e->lists, *entries, *n, e->o->replay ? &e->padding : NULL);
    return list_choices(f, &e->lists, err);
}

static fl_status run_on_device(engine *e, fl_err *err)
{
    const plan_entry *entries;
    const int before = e->turn, turn = 1 - before;
    const bool is_one_under_way = e->flights[before].is_under_way;
    flight *f = &e->flights[turn];
    int32_t n;
    fl_status st = plan_step(e, &entries, &n, f, err);
    if (st != FL_OK) return st;
    if (n == 0) return is_one_under_way ? land(e, before, err) : FL_AGAIN;
    if (fits(e, f)) {
        launch(e, entries, n, turn);
        e->turn = turn;
        return is_one_under_way ? land(e, before, err) : FL_OK;
    }
    if (!is_one_under_way) return run_in_pieces(e, entries, n, f, turn, err);
    return land(e, before, err);                         /* it has no room beside what is under way: the next call plans it anew */
}

fl_status step_run(engine *e, fl_err *err)
{
    const plan_entry *entries;
    int32_t n;
    const double begun = fl_awake_s();
    fl_status st;
    if (e->device_chain) {
        st = run_on_device(e, err);
    } else {
        st = scheduler_plan(e->scheduler, &entries, &n, err);
        if (st == FL_OK) st = n == 0 ? FL_AGAIN : run_on_host(e, entries, n, err);
    }
    e->stats.step_s += fl_awake_s() - begun;
    return st;
}

void step_forget(engine *e)
{
    for (int turn = 0; turn < 2; turn++) {
        flight *f = &e->flights[turn];
        if (!f->is_under_way) continue;
        fl_err err;
        e->o->finish(e->o, &err);                        /* copies into memory that is about to be freed have ended; what failed does not matter any more */
        for (int32_t i = 0; i < f->n; i++) count_answer(&f->choices[i]);
        f->is_under_way = false;
    }
}
