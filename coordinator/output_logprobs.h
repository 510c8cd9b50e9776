/* output_logprobs.h - the log-probability objects of an output line, in OpenAI's two forms and vLLM's form for prompts. output_line.c's other half;
 * output_line.h says how tokens are named and has checked that the results hold what is read here.
 * Threads  plain functions. */
#ifndef COORDINATOR_OUTPUT_LOGPROBS_H
#define COORDINATOR_OUTPUT_LOGPROBS_H

#include <stdbool.h>
#include "coordinator/json_write.h"
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/result.h"
#include "proto/status.h"

/* What a choice shows, not yet repaired; ends[i] are the sample's bytes up to and with its id i. bytes and ends owned. */
typedef struct { uint8_t *bytes; size_t n_bytes, n_prompt_bytes, *ends; bool is_utf8; } shown_text;

/* `prompt` is the result that has the prompt's arrays; they stand before the sample's with echo. */
fl_status output_text_logprobs(json_out *out, const fl_row *row, const fl_result *prompt, const fl_result *sample, const shown_text *shown, const fl_detok *table, fl_err *err);
fl_status output_chat_logprobs(json_out *out, const fl_row *row, const fl_result *sample, const fl_detok *table, fl_err *err);
fl_status output_prompt_logprobs(json_out *out, const fl_row *row, const fl_result *prompt, const fl_detok *table, fl_err *err);

#endif
