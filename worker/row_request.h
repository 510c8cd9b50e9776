/* row_request.h - from one line of a job to a request the engine takes: absent fields resolved, chat rendered, text tokenized, limits checked.
 * Rule     everything here is a function of line, model and job settings, never of load; so every worker of a fleet decides alike.
 * Order    a field of the row, else the model's generation_config.json (engine_info), else OpenAI's default. max_tokens: 16 for prompts, the rest of the context
 *          for chats. Text prompts get the tokenizer's special tokens, rendered chats and id prompts none.
 * Chats    the template's helper process is started by the first chat row, so a job without chats does not pay for it.
 * Memory   a prompt that surely has more tokens than the context is left before it is tokenized, at 8 bytes a byte of it or less; one that may fit takes up to 34 (a single long word), while
 *          its ids are made (tests/fault/hostile_rows_test.c).
 * Threads  a row_maker is used by one thread at a time, its chat rows by one thread only; the engine_info it borrows is only read. */
#ifndef WORKER_ROW_REQUEST_H
#define WORKER_ROW_REQUEST_H

#include "engine/engine.h"
#include "proto/job_row.h"

/* What a JOB message says. */
typedef struct {
    uint64_t job;
    uint64_t seed;
    uint32_t max_context;            /* prompt + completion; 0 = the model's, which is the most in any case */
    uint32_t now_s;                  /* what strftime_now sees */
    char *defaults;                  /* owned; --set as a JSON object; NULL when none */
} job_settings;

typedef struct row_maker row_maker;  /* the text side of one model: tokenizer and chat template */

/* `info` is borrowed for the maker's life. A model without tokenizer or template is fine (rows that need them are refused); a bad tokenizer fails. */
fl_status row_maker_open(row_maker **out, const char *model, const engine_info *info, fl_err *err);
void      row_maker_close(row_maker *maker);             /* accepts NULL */

typedef struct {
    fl_row row;                      /* owned; holds the stop strings and stop ids */
    int32_t *prompt; int32_t n_prompt;                   /* owned */
    sampling sampling;
    bool wants_prompt;               /* sample 0's result carries the prompt's ids */
} row_request;

/* The row error of a line, with a sentence that names the numbers. */
typedef struct { fl_row_error code; char text[480]; } row_refusal;

/* Make the request of `line` (physical line number `line_number`). FL_OK: *out is ready and the caller frees it with row_request_free. FL_INVALID: the row is
 * refused as *refusal says. FL_FULL: a legal row for which this worker has no room (its context is shorter than the job's). FL_IO: this
 * machine cannot run the chat template (no Python). In both cases another worker may serve it; err says why. FL_TIMEOUT, FL_CLOSED: the template's helper fails
 * although the row is not to blame; another attempt may work. */
fl_status row_request_make(row_maker *maker, const job_settings *job, const char *line, size_t n_bytes, uint64_t line_number, row_request *out,
                           row_refusal *refusal, fl_err *err);
void      row_request_free(row_request *request);        /* accepts a zeroed one */
void      row_request_rename(row_request *request, uint64_t line_number);            /* the row counts under the name that fl_row_rename gives it */

/* The engine's form of samples lo .. hi - 1 under `tag`; borrows from `request`. The engine gives what is asked of the prompt with sample 0 alone. */
engine_request row_request_samples(const row_request *request, uint64_t tag, uint32_t lo, uint32_t hi);

#endif
