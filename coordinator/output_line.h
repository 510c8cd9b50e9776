/* output_line.h - one line of OUT or ERR, as a pure function of what the ledger holds. Nothing volatile: the same job, results and table give the same bytes.
 * Source   ops/DESIGN.md section 5: the OpenAI batch response object; `body` is a text_completion or chat.completion object.
 * Ids      `id`, `request_id` and the body's `id` are XXH3-128 of (job content, custom_id).
 * Text     the sample's bytes up to its stop, with echo behind the prompt's; malformed UTF-8 becomes U+FFFD, and tokenfleet.choices[i].text_base64 has the bytes.
 * Logprobs of all generated tokens, also the end token and a stop string's, which the text does not show. A token is named by its text; one whose bytes are
 *          no UTF-8 as `bytes:\xE2\x80`, one without bytes (or, as a key, one whose text is another's too) as `token_id:N`. The first prompt token has null.
 *          text_offset counts characters of the text: the one that holds the token's first byte.
 * vLLM     choices[i].prompt_logprobs for completions and body.prompt_logprobs for chats (the prompt's own token first); prompt_token_ids in the body;
 *          choices[i].token_ids.
 * Graded   tokenfleet.choices[i].verdict: what grading the sample gave, with `base` and `plus` (and the first inputs that failed) for tasks that have both, `in_process` and `canonical_failed` where they are true.
 * Threads  plain functions on the caller's buffer. */
#ifndef COORDINATOR_OUTPUT_LINE_H
#define COORDINATOR_OUTPUT_LINE_H

#include <stddef.h>
#include <stdint.h>
#include "coordinator/json_write.h"
#include "coordinator/rows.h"
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/result.h"
#include "proto/status.h"
#include "proto/verdict.h"

/* What all lines of a job share. Strings are borrowed. */
typedef struct {
    uint8_t content_hash[ROWS_HASH_BYTES];
    int64_t created;                     /* a setting; 0 unless given */
    const char *model;                   /* its name, for rows that name none */
    uint64_t seed;
    const char *fingerprint, *numerics;  /* what the job is pinned to */
} output_job;

/* Append the output line of a good row, its line feed included. `row` is the line parsed again with the job's defaults; results[row->n] come in sample order; prompt
 * arrays are read from results[0]; verdicts[row->n] of a graded job, else NULL. FL_CORRUPT: the results lack what the row asks for. FL_FULL: no memory. On failure *out is as it was. */
fl_status output_line_write(json_out *out, const output_job *job, const fl_row *row, const fl_result *results, const fl_verdict *verdicts, const fl_detok *table, fl_err *err);

typedef struct {
    const char *custom_id; size_t custom_id_bytes;       /* any bytes; row-<line> where the line has none */
    fl_row_error code;
    const char *text; size_t text_bytes; /* the sentence; any bytes */
    uint64_t line, offset;               /* physical line from 1; byte in the (decompressed) job */
} output_error;

/* Append the error line of a row. FL_FULL: no memory, *out is as it was. */
fl_status output_error_write(json_out *out, const output_job *job, const output_error *error, fl_err *err);

#endif
