#include "coordinator/output_line.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "coordinator/output_logprobs.h"

/* ---- ids ---- */

typedef struct { char text[64]; } id_text;

/* prefix + 32 hex digits. Each kind of id has its own seed, so no two of a line are alike. */
static id_text make_id(const char *prefix, uint64_t kind, const output_job *job, const char *custom_id, size_t n_bytes)
{
    id_text id;
    uint8_t input[ROWS_HASH_BYTES + FL_CUSTOM_ID_MAX];
    size_t n = n_bytes < FL_CUSTOM_ID_MAX ? n_bytes : FL_CUSTOM_ID_MAX;
    memcpy(input, job->content_hash, ROWS_HASH_BYTES);
    memcpy(input + ROWS_HASH_BYTES, custom_id, n);
    XXH128_hash_t hash = XXH3_128bits_withSeed(input, ROWS_HASH_BYTES + n, kind);
    char *at = stpcpy(id.text, prefix);
    for (int half = 0; half < 2; half++) {
        uint64_t bits = half ? hash.low64 : hash.high64;
        for (int shift = 60; shift >= 0; shift -= 4) *at++ = "0123456789abcdef"[bits >> shift & 15];
    }
    *at = '\0';
    return id;
}

enum { ID_LINE = 1, ID_REQUEST = 2, ID_BODY = 3 };

/* ---- text ---- */

/* What a choice shows, as bytes: the prompt where the row asks for its echo, then the sample up to its stop. */
static fl_status shown_bytes(shown_text *shown, const fl_row *row, const fl_result *results, int32_t sample, const fl_detok *table, fl_err *err)
{
    const fl_result *r = &results[sample];
    uint8_t *prompt = NULL, *text = NULL;
    size_t n_prompt = 0, n_text = 0, *ends = malloc((r->n_ids + 1) * sizeof *ends);
    fl_status st;
    if (!ends) { st = fl_fail(err, FL_FULL, "output: no memory for the places of %zu tokens", (size_t)r->n_ids); goto done; }
    if ((st = fl_detok_text(table, r->ids, r->n_ids, r->text_bytes, &text, &n_text, ends, err)) != FL_OK) goto done;
    if (row->echo && row->prompt_kind == ROW_PROMPT_IDS) {
        if ((st = fl_detok_text(table, row->ids, row->n_ids, -1, &prompt, &n_prompt, NULL, err)) != FL_OK) goto done;
    } else if (row->echo) {
        n_prompt = row->text_bytes;
    }
    uint8_t *joined = malloc(n_prompt + n_text + 1);
    if (!joined) { st = fl_fail(err, FL_FULL, "output: no memory for a text of %zu bytes", n_prompt + n_text); goto done; }
    if (n_prompt) memcpy(joined, prompt ? prompt : (const uint8_t *)row->text, n_prompt);
    if (n_text) memcpy(joined + n_prompt, text, n_text);
    *shown = (shown_text){ joined, n_prompt + n_text, n_prompt, ends, fl_utf8_valid(joined, n_prompt + n_text) };
    ends = NULL;
done:
    free(prompt);
    free(text);
    free(ends);
    return st;
}

/* ---- the body ---- */

/* Everything the row asks for must be in the results; an engine that left it out is at fault, not the reader. */
static fl_status check_results(const fl_row *row, const fl_result *results, fl_err *err)
{
    const fl_result *first = &results[0];
    for (int32_t i = 0; i < row->n; i++) {
        const fl_result *r = &results[i];
        if (row->logprobs >= 0 && (r->n_top < row->logprobs || (r->n_ids && !r->logprobs) || (row->logprobs > 0 && r->n_ids && (!r->top_ids || !r->top_logprobs))))
            return fl_fail(err, FL_CORRUPT, "sample %d lacks the log-probabilities that the row asks for", i);
        if (r->stop_kind == FL_STOP_STRING && (r->stop_index < 0 || (size_t)r->stop_index >= row->n_stop))
            return fl_fail(err, FL_CORRUPT, "sample %d was stopped by stop string %d of %zu", i, r->stop_index, row->n_stop);
    }
    int32_t n_top = row->prompt_logprobs;                /* of the prompt's positions */
    if (row->echo && row->logprobs > n_top) n_top = row->logprobs;
    if (!first->prompt_ids && first->n_prompt > 0 && (n_top >= 0 || row->return_token_ids))
        return fl_fail(err, FL_CORRUPT, "the results lack the prompt's token ids that the row asks for");
    if (n_top >= 0 && first->n_prompt > 1
        && (first->n_prompt_top < n_top || !first->prompt_logprobs || (n_top > 0 && (!first->prompt_top_ids || !first->prompt_top_logprobs))))
        return fl_fail(err, FL_CORRUPT, "the results lack the prompt's log-probabilities that the row asks for");
    return FL_OK;
}

static void write_ids(json_out *out, const int32_t *ids, size_t n_ids)
{
    json_out_begin(out, '[');
    for (size_t i = 0; i < n_ids; i++) json_out_i64(out, ids[i]);
    json_out_end(out, ']');
}

static fl_status write_choice(json_out *out, const fl_row *row, const fl_result *results, int32_t sample, const shown_text *shown, const fl_detok *table, fl_err *err)
{
    const fl_result *r = &results[sample];
    fl_status st = FL_OK;
    json_out_begin(out, '{');
    if (row->endpoint == ROW_CHAT) {
        json_out_key(out, "index");
        json_out_i64(out, sample);
        json_out_key(out, "message");
        json_out_begin(out, '{');
        json_out_key(out, "role");
        json_out_string(out, "assistant");
        json_out_key(out, "content");
        json_out_bytes(out, shown->bytes, shown->n_bytes);
        json_out_key(out, "refusal");
        json_out_null(out);
        json_out_end(out, '}');
    } else {
        json_out_key(out, "text");
        json_out_bytes(out, shown->bytes, shown->n_bytes);
        json_out_key(out, "index");
        json_out_i64(out, sample);
    }
    json_out_key(out, "logprobs");
    if (row->logprobs < 0) json_out_null(out);
    else if (row->endpoint == ROW_CHAT) st = output_chat_logprobs(out, row, r, table, err);
    else st = output_text_logprobs(out, row, &results[0], r, shown, table, err);
    json_out_key(out, "finish_reason");
    json_out_string(out, r->finish == FL_FINISH_STOP ? "stop" : "length");
    if (row->prompt_logprobs >= 0 && row->endpoint == ROW_COMPLETION && st == FL_OK) {
        json_out_key(out, "prompt_logprobs");
        st = output_prompt_logprobs(out, row, &results[0], table, err);
    }
    if (row->return_token_ids) {
        json_out_key(out, "token_ids");
        write_ids(out, r->ids, r->n_ids);
    }
    json_out_end(out, '}');
    return st;
}

/* Our own part of a choice: which stop fired, and the bytes of a text that is no UTF-8. */
static void write_verdict(json_out *out, const fl_verdict *v)
{
    json_out_key(out, "verdict");
    json_out_string(out, fl_verdict_name(v->verdict));
    if (v->has_inputs) {
        json_out_key(out, "base");
        json_out_string(out, fl_verdict_name(v->base));
        json_out_key(out, "plus");
        json_out_string(out, fl_verdict_name(v->plus));
        if (v->base_failed >= 0) {
            json_out_key(out, "base_failed");
            json_out_i64(out, v->base_failed);
        }
        if (v->plus_failed >= 0) {
            json_out_key(out, "plus_failed");
            json_out_i64(out, v->plus_failed);
        }
    }
    if (v->in_process) {
        json_out_key(out, "in_process");
        json_out_bool(out, true);
    }
    if (v->canonical_failed) {
        json_out_key(out, "canonical_failed");
        json_out_bool(out, true);
    }
}

static void write_extra(json_out *out, const fl_row *row, const fl_result *r, int32_t sample, const fl_verdict *verdict, const shown_text *shown)
{
    json_out_begin(out, '{');
    json_out_key(out, "index");
    json_out_i64(out, sample);
    json_out_key(out, "stop");
    if (r->stop_kind == FL_STOP_NONE) {
        json_out_null(out);
    } else {
        bool string = r->stop_kind == FL_STOP_STRING;
        json_out_begin(out, '{');
        json_out_key(out, "kind");
        json_out_string(out, string ? "string" : r->stop_kind == FL_STOP_EOS ? "end_token" : "stop_token");
        json_out_key(out, string ? "string" : "token_id");
        if (string) json_out_bytes(out, row->stop[r->stop_index], row->stop_bytes[r->stop_index]);
        else json_out_i64(out, r->stop_index);
        json_out_end(out, '}');
    }
    if (!shown->is_utf8) {
        json_out_key(out, "text_base64");
        json_out_base64(out, shown->bytes, shown->n_bytes);
    }
    if (verdict) write_verdict(out, verdict);
    json_out_end(out, '}');
}

static void write_usage(json_out *out, const fl_row *row, const fl_result *results)
{
    uint64_t prompt = (uint64_t)results[0].n_prompt, completion = 0;
    for (int32_t i = 0; i < row->n; i++) completion += results[i].n_ids;
    json_out_key(out, "usage");
    json_out_begin(out, '{');
    json_out_key(out, "prompt_tokens");
    json_out_u64(out, prompt);
    json_out_key(out, "completion_tokens");
    json_out_u64(out, completion);
    json_out_key(out, "total_tokens");
    json_out_u64(out, prompt + completion);
    json_out_end(out, '}');
}

static fl_status write_body(json_out *out, const output_job *job, const fl_row *row, const fl_result *results, const fl_verdict *verdicts, const shown_text *shown, const fl_detok *table, fl_err *err)
{
    bool chat = row->endpoint == ROW_CHAT;
    fl_status st = FL_OK;
    json_out_begin(out, '{');
    json_out_key(out, "id");
    json_out_string(out, make_id(chat ? "chatcmpl-" : "cmpl-", ID_BODY, job, row->custom_id, row->custom_id_bytes).text);
    json_out_key(out, "object");
    json_out_string(out, chat ? "chat.completion" : "text_completion");
    json_out_key(out, "created");
    json_out_i64(out, job->created);
    json_out_key(out, "model");
    json_out_string(out, row->model ? row->model : job->model);
    json_out_key(out, "choices");
    json_out_begin(out, '[');
    for (int32_t i = 0; i < row->n && st == FL_OK; i++) st = write_choice(out, row, results, i, &shown[i], table, err);
    json_out_end(out, ']');
    write_usage(out, row, results);
    if (chat && row->prompt_logprobs >= 0 && st == FL_OK) {
        json_out_key(out, "prompt_logprobs");
        st = output_prompt_logprobs(out, row, &results[0], table, err);
    }
    if (row->return_token_ids) {
        json_out_key(out, "prompt_token_ids");
        write_ids(out, results[0].prompt_ids, (size_t)results[0].n_prompt);
    }
    json_out_key(out, "tokenfleet");
    json_out_begin(out, '{');
    json_out_key(out, "seed");
    json_out_u64(out, row->given & ROW_GIVEN_SEED ? row->seed : job->seed);
    json_out_key(out, "model_fingerprint");
    json_out_string(out, job->fingerprint);
    json_out_key(out, "numerics");
    json_out_string(out, job->numerics);
    json_out_key(out, "choices");
    json_out_begin(out, '[');
    for (int32_t i = 0; i < row->n; i++) write_extra(out, row, &results[i], i, verdicts ? &verdicts[i] : NULL, &shown[i]);
    json_out_end(out, ']');
    json_out_end(out, '}');
    json_out_end(out, '}');
    return st;
}

/* ---- lines ---- */

fl_status output_line_write(json_out *out, const output_job *job, const fl_row *row, const fl_result *results, const fl_verdict *verdicts, const fl_detok *table, fl_err *err)
{
    size_t start = out->n_bytes;
    fl_status st = check_results(row, results, err);
    if (st != FL_OK) return st;
    shown_text *shown = calloc((size_t)row->n, sizeof *shown);
    if (!shown) return fl_fail(err, FL_FULL, "output: no memory for %d samples", row->n);
    for (int32_t i = 0; i < row->n; i++)
        if ((st = shown_bytes(&shown[i], row, results, i, table, err)) != FL_OK) goto done;
    json_out_begin(out, '{');
    json_out_key(out, "id");
    json_out_string(out, make_id("batch_req_", ID_LINE, job, row->custom_id, row->custom_id_bytes).text);
    json_out_key(out, "custom_id");
    json_out_bytes(out, row->custom_id, row->custom_id_bytes);
    json_out_key(out, "response");
    json_out_begin(out, '{');
    json_out_key(out, "status_code");
    json_out_i64(out, 200);
    json_out_key(out, "request_id");
    json_out_string(out, make_id("req_", ID_REQUEST, job, row->custom_id, row->custom_id_bytes).text);
    json_out_key(out, "body");
    st = write_body(out, job, row, results, verdicts, shown, table, err);
    json_out_end(out, '}');
    json_out_key(out, "error");
    json_out_null(out);
    json_out_end(out, '}');
    json_out_line_end(out);
    if (st == FL_OK && out->failed) st = fl_fail(err, FL_FULL, "output: no memory for a line of more than %zu bytes", out->n_bytes - start);
done:
    if (st != FL_OK) json_out_reset(out, start);
    for (int32_t i = 0; i < row->n; i++) { free(shown[i].bytes); free(shown[i].ends); }
    free(shown);
    return st;
}

fl_status output_error_write(json_out *out, const output_job *job, const output_error *error, fl_err *err)
{
    size_t start = out->n_bytes;
    json_out_begin(out, '{');
    json_out_key(out, "id");
    json_out_string(out, make_id("batch_req_", ID_LINE, job, error->custom_id, error->custom_id_bytes).text);
    json_out_key(out, "custom_id");
    json_out_bytes(out, error->custom_id, error->custom_id_bytes);
    json_out_key(out, "response");
    json_out_null(out);
    json_out_key(out, "error");
    json_out_begin(out, '{');
    json_out_key(out, "code");
    json_out_string(out, fl_row_error_name(error->code));
    json_out_key(out, "message");
    json_out_bytes(out, error->text, error->text_bytes);
    json_out_key(out, "line");
    json_out_u64(out, error->line);
    json_out_key(out, "offset");
    json_out_u64(out, error->offset);
    json_out_end(out, '}');
    json_out_end(out, '}');
    json_out_line_end(out);
    if (!out->failed) return FL_OK;
    json_out_reset(out, start);
    return fl_fail(err, FL_FULL, "output: no memory for an error line");
}
