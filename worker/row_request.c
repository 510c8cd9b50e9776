/* row_request.c - see row_request.h. */
#include "worker/row_request.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "engine/chat_template.h"
#include "engine/tokenizer.h"
#include "proto/log.h"

struct row_maker {
    const engine_info *info;         /* borrowed */
    tokenizer *tokenizer;            /* owned; NULL when the model has none */
    char model[PATH_MAX];
    bool chat_opened;                /* the first chat row does it */
    chat_template *chat;             /* owned; NULL when chats cannot be rendered: chat_status and chat_why say why */
    fl_status chat_status;
    fl_err chat_why;
};

fl_status row_maker_open(row_maker **out, const char *model, const engine_info *info, fl_err *err)
{
    fl_status st = FL_OK;
    row_maker *maker = calloc(1, sizeof *maker);
    if (!maker) return fl_fail(err, FL_FULL, "worker: no memory for the tokenizer");
    maker->info = info;
    snprintf(maker->model, sizeof maker->model, "%s", model);
    if (info->has_tokenizer && (st = tokenizer_open_model(&maker->tokenizer, model, err)) != FL_OK) goto done;
    *out = maker;
    maker = NULL;
done:
    row_maker_close(maker);
    return st;
}

void row_maker_close(row_maker *maker)
{
    if (!maker) return;
    chat_template_close(maker->chat);
    tokenizer_close(maker->tokenizer);
    free(maker);
}

static fl_status refuse(row_refusal *refusal, fl_row_error code, const char *format, ...) __attribute__((format(printf, 3, 4)));

static fl_status refuse(row_refusal *refusal, fl_row_error code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    refusal->code = code;
    vsnprintf(refusal->text, sizeof refusal->text, format, args);
    va_end(args);
    return FL_INVALID;
}

/* ---- the prompt's ids ---- */

static fl_status take_ids(row_request *request, int32_t n_vocab, row_refusal *refusal)
{
    fl_row *row = &request->row;
    for (size_t i = 0; i < row->n_ids; i++)
        if (row->ids[i] < 0 || row->ids[i] >= n_vocab)
            return refuse(refusal, ROW_INVALID_REQUEST, "prompt id %d at position %zu is outside the model's vocabulary of %d ids", row->ids[i], i, n_vocab);
    if (row->n_ids > INT32_MAX) return refuse(refusal, ROW_CONTEXT_OVERFLOW, "the prompt has %zu tokens", row->n_ids);
    request->prompt = row->ids;
    request->n_prompt = (int32_t)row->n_ids;
    row->ids = NULL;
    row->n_ids = 0;
    return FL_OK;
}

/* A tokenizer's or template's failure: FL_INVALID is the row's, the rest this machine's. */
static fl_status text_failed(fl_status st, const fl_err *why, fl_row_error code, row_refusal *refusal, fl_err *err)
{
    return st == FL_INVALID ? refuse(refusal, code, "%s", why->text) : fl_fail(err, st, "%s", why->text);
}

/* The most tokens that a prompt and its completion may have, on any worker. */
static int64_t context_of(const row_maker *maker, const job_settings *job)
{
    int64_t limit = maker->info->context_model;
    return job->max_context && job->max_context < limit ? job->max_context : limit;
}

static fl_status take_text(row_maker *maker, row_request *request, const job_settings *job, const char *text, size_t n_bytes, bool add_special, row_refusal *refusal, fl_err *err)
{
    bool is_more;
    int64_t limit = context_of(maker, job);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    fl_err why = { 0 };
    fl_status st = tokenizer_encode_within(maker->tokenizer, text, n_bytes, add_special, (uint32_t)limit, &ids, &n_ids, &is_more, &why);
    if (st != FL_OK) return text_failed(st, &why, ROW_INVALID_REQUEST, refusal, err);
    if (is_more || n_ids > INT32_MAX) {
        free(ids);
        return refuse(refusal, ROW_CONTEXT_OVERFLOW, "the prompt of %zu bytes has more tokens than the context of %lld", n_bytes, (long long)limit);
    }
    request->prompt = ids;
    request->n_prompt = (int32_t)n_ids;
    return FL_OK;
}

static fl_status take_chat(row_maker *maker, row_request *request, const job_settings *job, row_refusal *refusal, fl_err *err)
{
    if (!maker->chat_opened) {
        maker->chat_opened = true;
        maker->chat_status = chat_template_open(&maker->chat, maker->model, &maker->chat_why);
        if (maker->chat_status != FL_OK) fl_log(FL_LOG_WARN, "chat rows of %s cannot be served here: %s", maker->model, maker->chat_why.text);
    }
    /* The model's own files are at fault, so every worker says the same; anything else is this machine's. */
    bool is_models = maker->chat_status == FL_NOT_FOUND || maker->chat_status == FL_CORRUPT || maker->chat_status == FL_UNSUPPORTED;
    if (!maker->chat) return text_failed(is_models ? FL_INVALID : maker->chat_status, &maker->chat_why, ROW_TEMPLATE_ERROR, refusal, err);
    char *text = NULL;
    size_t n_bytes = 0;
    fl_err why = { 0 };
    fl_status st = chat_template_render(maker->chat, request->row.text, request->row.text_bytes, job->now_s, &text, &n_bytes, &why);
    if (st != FL_OK) return text_failed(st, &why, ROW_TEMPLATE_ERROR, refusal, err);
    st = take_text(maker, request, job, text, n_bytes, false, refusal, err);
    free(text);
    return st;
}

static fl_status take_prompt(row_maker *maker, row_request *request, const job_settings *job, row_refusal *refusal, fl_err *err)
{
    fl_status st;
    if (request->row.prompt_kind == ROW_PROMPT_IDS) st = take_ids(request, maker->info->n_vocab, refusal);
    else if (!maker->tokenizer) st = refuse(refusal, ROW_NO_TOKENIZER, "the model has no tokenizer.json (or its .gguf file no tokenizer): give the prompt as token ids");
    else if (request->row.prompt_kind == ROW_PROMPT_MESSAGES) st = take_chat(maker, request, job, refusal, err);
    else st = take_text(maker, request, job, request->row.text, request->row.text_bytes, true, refusal, err);
    if (st == FL_OK && request->n_prompt == 0) st = refuse(refusal, ROW_INVALID_REQUEST, "the prompt is empty: the model needs at least one token to start from");
    return st;
}

/* ---- sampling and limits ---- */

static int32_t larger(int32_t a, int32_t b)
{
    return a > b ? a : b;
}

static void resolve_sampling(const row_maker *maker, const job_settings *job, row_request *request)
{
    const engine_info *info = maker->info;
    const fl_row *row = &request->row;
    sampling *s = &request->sampling;
    s->temperature = row->given & ROW_GIVEN_TEMPERATURE ? row->temperature : info->temperature;
    s->top_p = row->given & ROW_GIVEN_TOP_P ? row->top_p : info->top_p;
    s->top_k = row->given & ROW_GIVEN_TOP_K ? row->top_k : info->top_k;
    s->min_p = row->given & ROW_GIVEN_MIN_P ? row->min_p : info->min_p;
    s->repetition_penalty = row->given & ROW_GIVEN_REPETITION ? row->repetition_penalty : info->repetition_penalty;
    s->presence_penalty = row->presence_penalty;
    s->frequency_penalty = row->frequency_penalty;
    s->min_tokens = row->min_tokens;
    s->ignore_eos = row->ignore_eos;
    s->n_top = row->logprobs;
    s->n_prompt_top = larger(row->prompt_logprobs, row->echo ? row->logprobs : -1);
    s->seed = row->given & ROW_GIVEN_SEED ? row->seed : job->seed;
    s->id_hash = XXH3_64bits(row->custom_id, row->custom_id_bytes);
    request->wants_prompt = row->echo || row->return_token_ids || row->prompt_logprobs >= 0;
}

/* max_tokens, and whether prompt and completion fit: first into the job's and the model's context (else a row error), then into this worker's (else no room). */
static fl_status resolve_lengths(const row_maker *maker, const job_settings *job, row_request *request, row_refusal *refusal, fl_err *err)
{
    const fl_row *row = &request->row;
    int64_t here = maker->info->context_max, limit = context_of(maker, job), n_prompt = request->n_prompt;
    bool rest = !(row->given & ROW_GIVEN_MAX_TOKENS) && row->prompt_kind == ROW_PROMPT_MESSAGES;
    int64_t max_tokens = row->given & ROW_GIVEN_MAX_TOKENS ? row->max_tokens : rest ? limit - n_prompt : FL_PROMPT_TOKENS_DEFAULT;
    if (rest && max_tokens < 1)
        return refuse(refusal, ROW_CONTEXT_OVERFLOW, "the prompt has %lld tokens and leaves no room for one more in a context of %lld", (long long)n_prompt, (long long)limit);
    if (n_prompt + max_tokens > limit)
        return refuse(refusal, ROW_CONTEXT_OVERFLOW, "the prompt has %lld tokens; with max_tokens %lld that is %lld, above the context of %lld", (long long)n_prompt,
                      (long long)max_tokens, (long long)(n_prompt + max_tokens), (long long)limit);
    if (row->min_tokens > max_tokens)
        return refuse(refusal, ROW_INVALID_REQUEST, "min_tokens is %d, above max_tokens, which is %lld for this row", row->min_tokens, (long long)max_tokens);
    if (n_prompt + max_tokens > here)
        return fl_fail(err, FL_FULL, "a row needs a context of %lld tokens and this worker has %lld: start a worker with a larger --max-context",
                       (long long)(n_prompt + max_tokens), (long long)here);
    request->sampling.max_tokens = (int32_t)max_tokens;
    return FL_OK;
}

/* An id that the model cannot produce never stops a sequence; it is left out, so that the engine may index by each. */
static void drop_foreign_stop_ids(fl_row *row, int32_t n_vocab)
{
    size_t n = 0;
    for (size_t i = 0; i < row->n_stop_ids; i++)
        if (row->stop_ids[i] >= 0 && row->stop_ids[i] < n_vocab) row->stop_ids[n++] = row->stop_ids[i];
    row->n_stop_ids = n;
}

fl_status row_request_make(row_maker *maker, const job_settings *job, const char *line, size_t n_bytes, uint64_t line_number, row_request *out,
                           row_refusal *refusal, fl_err *err)
{
    row_request request = { 0 };
    fl_row_fault fault = { 0 };
    fl_status st;
    fl_row_error code = fl_row_parse(&request.row, line, n_bytes, line_number, job->defaults, &fault);
    if (code != ROW_OK) { st = refuse(refusal, code, "%s", fault.text); goto done; }
    if ((st = take_prompt(maker, &request, job, refusal, err)) != FL_OK) goto done;
    resolve_sampling(maker, job, &request);
    if ((st = resolve_lengths(maker, job, &request, refusal, err)) != FL_OK) goto done;
    drop_foreign_stop_ids(&request.row, maker->info->n_vocab);
    *out = request;
    request = (row_request){ 0 };
done:
    row_request_free(&request);
    return st;
}

void row_request_rename(row_request *request, uint64_t line_number)
{
    fl_row_rename(&request->row, line_number);
    request->sampling.id_hash = XXH3_64bits(request->row.custom_id, request->row.custom_id_bytes);
}

void row_request_free(row_request *request)
{
    fl_row_free(&request->row);
    free(request->prompt);
    *request = (row_request){ 0 };
}

engine_request row_request_samples(const row_request *request, uint64_t tag, uint32_t lo, uint32_t hi)
{
    return (engine_request){
        .tag = tag, .prompt = request->prompt, .n_prompt = request->n_prompt, .sample_lo = lo, .sample_hi = hi, .sampling = request->sampling,
        .stop = (const char *const *)request->row.stop, .stop_bytes = request->row.stop_bytes, .n_stop = request->row.n_stop,
        .stop_ids = request->row.stop_ids, .n_stop_ids = request->row.n_stop_ids,
    };
}
