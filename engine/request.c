#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SAMPLES_MAX 65536

static fl_status check_request(const engine_request *r, const engine_info *info, fl_err *err)
{
    const sampling *p = &r->sampling;
    if (r->n_prompt < 1) return fl_fail(err, FL_INVALID, "the prompt has no tokens");
    if (p->n_top > SAMPLING_TOP_MAX || p->n_prompt_top > SAMPLING_TOP_MAX) return fl_fail(err, FL_INVALID, "log-probabilities of %d tokens were asked for; at most %d are given", p->n_top > p->n_prompt_top ? p->n_top : p->n_prompt_top, SAMPLING_TOP_MAX);
    if (r->sample_lo >= r->sample_hi || r->sample_hi - r->sample_lo > SAMPLES_MAX) return fl_fail(err, FL_INVALID, "samples %u to %u are no range", r->sample_lo, r->sample_hi);
    if (p->max_tokens < 0 || p->min_tokens < 0 || p->min_tokens > p->max_tokens) return fl_fail(err, FL_INVALID, "min_tokens %d and max_tokens %d are out of range", p->min_tokens, p->max_tokens);
    if ((int64_t)r->n_prompt + p->max_tokens > info->context_max)
        return fl_fail(err, FL_INVALID, "%d prompt tokens and max_tokens %d are more than the context of %d", r->n_prompt, p->max_tokens, info->context_max);
    if (!(p->temperature >= 0.0f) || !isfinite(p->temperature)) return fl_fail(err, FL_INVALID, "the temperature must be 0 or more");
    for (int32_t i = 0; i < r->n_prompt; i++)
        if (r->prompt[i] < 0 || r->prompt[i] >= info->n_vocab)
            return fl_fail(err, FL_INVALID, "prompt token %d is %d, outside the model's vocabulary of %d", i, r->prompt[i], info->n_vocab);
    return FL_OK;
}

sequence *request_sequence(request *r, uint32_t sample_index)
{
    sequence *seq = calloc(1, sizeof *seq);
    if (!seq) return NULL;
    seq->owner = r;
    seq->request = r->number;
    seq->sample = sample_index;
    seq->n_prompt = r->n_prompt;
    return seq;
}

static bool make_prompt_logprobs(request *r)
{
    if (r->sampling.n_prompt_top < 0) return true;
    size_t n = (size_t)r->n_prompt - 1, n_top = n * (size_t)r->sampling.n_prompt_top;
    r->prompt_logprobs = malloc(n * sizeof(float) + 1);
    r->prompt_top_ids = malloc(n_top * sizeof(int32_t) + 1);
    r->prompt_top_logprobs = malloc(n_top * sizeof(float) + 1);
    return r->prompt_logprobs && r->prompt_top_ids && r->prompt_top_logprobs;
}

/* An id outside the vocabulary can never be chosen and is left out. */
static void add_end_ids(request *r, const int32_t *ids, size_t n, int32_t n_vocab)
{
    for (size_t i = 0; i < n; i++) if (ids[i] >= 0 && ids[i] < n_vocab) r->end_ids[r->n_end_ids++] = ids[i];
}

fl_status request_make(request **out, const engine_request *in, const engine_info *info, uint64_t number, fl_err *err)
{
    fl_status status = check_request(in, info, err);
    if (status != FL_OK) return status;
    request *r = calloc(1, sizeof *r);
    if (!r) { status = fl_fail(err, FL_FULL, "engine: no memory for a request"); goto done; }
    r->tag = in->tag;
    r->number = number;
    r->sampling = in->sampling;
    if (in->sample_lo > 0) r->sampling.n_prompt_top = -1;            /* they are sample 0's */
    r->n_prompt = in->n_prompt;
    r->n_samples = r->n_live = in->sample_hi - in->sample_lo;
    r->prompt = malloc((size_t)in->n_prompt * sizeof *r->prompt);
    r->samples = calloc(r->n_samples, sizeof *r->samples);
    r->end_ids = malloc(((size_t)info->n_eos + in->n_stop_ids) * sizeof *r->end_ids + 1);
    r->trunk = request_sequence(r, in->sample_lo);
    if (!r->prompt || !r->samples || !r->end_ids || !r->trunk || !make_prompt_logprobs(r)) {
        status = fl_fail(err, FL_FULL, "engine: no memory for a request of %d tokens", in->n_prompt);
        goto done;
    }
    memcpy(r->prompt, in->prompt, (size_t)in->n_prompt * sizeof *r->prompt);
    if (!in->sampling.ignore_eos) add_end_ids(r, info->eos_ids, (size_t)info->n_eos, info->n_vocab);
    r->n_eos = r->n_end_ids;
    add_end_ids(r, in->stop_ids, in->n_stop_ids, info->n_vocab);
    for (uint32_t i = 0; i < r->n_samples; i++) r->samples[i].index = in->sample_lo + i;
    if (in->n_stop > 0 && (status = stop_match_make(&r->stop, in->stop, in->stop_bytes, in->n_stop, err)) != FL_OK) goto done;
    *out = r;
    r = NULL;
done:
    request_free(r);
    return status;
}

static void sample_fini(sample *s)
{
    free(s->seq);
    free(s->ids);
    free(s->logprobs);
    free(s->top_ids);
    free(s->top_logprobs);
}

void request_free(request *r)
{
    if (!r) return;
    for (uint32_t i = 0; r->samples && i < r->n_samples; i++) sample_fini(&r->samples[i]);
    stop_match_free(r->stop);
    free(r->trunk);
    free(r->samples);
    free(r->prompt);
    free(r->end_ids);
    free(r->prompt_logprobs);
    free(r->prompt_top_ids);
    free(r->prompt_top_logprobs);
    free(r);
}

sample *request_sample(request *r, uint32_t index)
{
    uint32_t i = index - r->samples[0].index;
    return index >= r->samples[0].index && i < r->n_samples ? &r->samples[i] : NULL;
}

void request_prompt_logprob(request *r, int32_t position, const float *logits, int32_t n_vocab, float lse)
{
    size_t n_top = (size_t)r->sampling.n_prompt_top, at = (size_t)position;
    logprobs_of(logits, n_vocab, lse, r->prompt[position + 1], r->sampling.n_prompt_top, &r->prompt_logprobs[at], r->prompt_top_ids + at * n_top, r->prompt_top_logprobs + at * n_top);
}

void request_prompt_chosen(request *r, int32_t position, const token_chosen *c)
{
    const size_t n_top = (size_t)r->sampling.n_prompt_top, at = (size_t)position;
    r->prompt_logprobs[at] = c->logprob;
    if (n_top == 0) return;
    memcpy(r->prompt_top_ids + at * n_top, c->top_ids, n_top * sizeof *c->top_ids);
    memcpy(r->prompt_top_logprobs + at * n_top, c->top_logprobs, n_top * sizeof *c->top_logprobs);
}

/* ---- samples ---- */

static bool grow_sample(sample *s, int32_t n_top)
{
    if (s->n_ids < s->capacity) return true;
    int32_t capacity = s->capacity ? 2 * s->capacity : 32;
    int32_t *ids = realloc(s->ids, (size_t)capacity * sizeof *ids);
    if (!ids) return false;
    s->ids = ids;
    if (n_top >= 0) {
        float *logprobs = realloc(s->logprobs, (size_t)capacity * sizeof *logprobs);
        if (!logprobs) return false;
        s->logprobs = logprobs;
    }
    if (n_top > 0) {
        int32_t *top_ids = realloc(s->top_ids, (size_t)capacity * (size_t)n_top * sizeof *top_ids);
        if (!top_ids) return false;
        s->top_ids = top_ids;
        float *top_logprobs = realloc(s->top_logprobs, (size_t)capacity * (size_t)n_top * sizeof *top_logprobs);
        if (!top_logprobs) return false;
        s->top_logprobs = top_logprobs;
    }
    s->capacity = capacity;
    return true;
}

/* The place of `id` among the end ids, or -1. */
static int32_t find_end(const request *r, int32_t id)
{
    for (int32_t i = 0; i < r->n_end_ids; i++) if (r->end_ids[i] == id) return i;
    return -1;
}

/* Did the sample's last token end it? A stop string is looked at first: its last byte lies before the end token's end, or is it. The first min_tokens tokens end
 * nothing: the sampler gives them no end id, and a stop string that ends in them does not count. */
static bool judge_end(fl_result *result, request *r, sample *s, const fl_detok *detok)
{
    const int32_t id = s->ids[s->n_ids - 1], end = find_end(r, id);
    size_t n_bytes;
    const uint8_t *bytes = fl_detok_next(detok, &s->place, id, &n_bytes);
    int64_t kept = s->n_text_bytes;
    s->n_text_bytes += (int64_t)n_bytes;
    int32_t string = -1;
    if (r->stop && s->n_ids <= r->sampling.min_tokens) stop_match_skip(r->stop, &s->cursor, bytes, n_bytes);
    else if (r->stop) string = stop_match_feed(r->stop, &s->cursor, bytes, n_bytes, &kept);
    if (string >= 0) {
        result->finish = FL_FINISH_STOP;
        result->stop_kind = FL_STOP_STRING;
        result->stop_index = string;
        result->text_bytes = kept;
    } else if (end >= 0) {
        result->finish = FL_FINISH_STOP;
        result->stop_kind = end < r->n_eos ? FL_STOP_EOS : FL_STOP_ID;
        result->stop_index = id;
        result->text_bytes = s->n_text_bytes - (int64_t)n_bytes;
    } else if (s->n_ids == r->sampling.max_tokens) {
        result->finish = FL_FINISH_LENGTH;
        result->stop_kind = FL_STOP_NONE;
        result->stop_index = -1;
        result->text_bytes = -1;
    } else {
        return false;
    }
    return true;
}

fl_status sample_take(sample_fate *fate, fl_result *result, request *r, sample *s, const fl_detok *detok, const token_chosen *c, fl_err *err)
{
    const int32_t n_top = r->sampling.n_top;
    if (c->id < 0) { *fate = SAMPLE_IS_NAN; return FL_OK; }
    if (!grow_sample(s, n_top)) return fl_fail(err, FL_FULL, "engine: no memory for token %d of a sample", s->n_ids);
    const size_t at = (size_t)s->n_ids, top = n_top > 0 ? (size_t)n_top : 0;
    if (n_top >= 0) s->logprobs[at] = c->logprob;
    if (top > 0) {
        memcpy(s->top_ids + at * top, c->top_ids, top * sizeof *c->top_ids);
        memcpy(s->top_logprobs + at * top, c->top_logprobs, top * sizeof *c->top_logprobs);
    }
    s->ids[s->n_ids++] = c->id;
    *fate = judge_end(result, r, s, detok) ? SAMPLE_ENDED : SAMPLE_GOES_ON;
    return FL_OK;
}

fl_status sample_next(sample_fate *fate, fl_result *result, request *r, sample *s, sampler *chain, const fl_detok *detok, const float *logits, int32_t n_vocab, float lse, fl_err *err)
{
    const sampler_history history = { r->prompt, r->n_prompt, s->ids, s->n_ids, r->end_ids, r->n_end_ids, s->index };
    int32_t top_ids[SAMPLING_TOP_MAX];
    float top_logprobs[SAMPLING_TOP_MAX];
    token_chosen c = { sampler_next(chain, logits, &r->sampling, &history), 0.0f, top_ids, top_logprobs };
    if (c.id >= 0 && r->sampling.n_top >= 0) logprobs_of(logits, n_vocab, lse, c.id, r->sampling.n_top, &c.logprob, top_ids, top_logprobs);
    return sample_take(fate, result, r, s, detok, &c, err);
}

fl_status sample_result(fl_result *result, request *r, sample *s, fl_err *err)
{
    result->n_prompt = r->n_prompt;
    result->ids = s->ids;
    result->n_ids = (size_t)s->n_ids;
    result->n_top = r->sampling.n_top;
    result->logprobs = s->logprobs;
    result->top_ids = s->top_ids;
    result->top_logprobs = s->top_logprobs;
    s->ids = s->top_ids = NULL;
    s->logprobs = s->top_logprobs = NULL;
    result->n_prompt_top = s->index == 0 ? r->sampling.n_prompt_top : -1;
    if (result->n_prompt_top < 0) return FL_OK;
    result->prompt_logprobs = r->prompt_logprobs;
    result->prompt_top_ids = r->prompt_top_ids;
    result->prompt_top_logprobs = r->prompt_top_logprobs;
    r->prompt_logprobs = r->prompt_top_logprobs = NULL;
    r->prompt_top_ids = NULL;
    result->prompt_ids = malloc((size_t)r->n_prompt * sizeof *result->prompt_ids);       /* a copy: the other samples' penalties still need it */
    if (!result->prompt_ids) return fl_fail(err, FL_FULL, "engine: no memory for the result of a prompt of %d tokens", r->n_prompt);
    memcpy(result->prompt_ids, r->prompt, (size_t)r->n_prompt * sizeof *result->prompt_ids);
    return FL_OK;
}
