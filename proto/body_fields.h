/* body_fields.h - the fields of a request body, found by name and read into an fl_row. job_row.c's other half; nobody else needs it.
 * Rules    job_row.h gives every range. null is absent; a row's value wins over a --set default; a default that has no meaning at the row's endpoint is skipped.
 * Threads  plain functions on the caller's memory. */
#ifndef FL_BODY_FIELDS_H
#define FL_BODY_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include "proto/job_row.h"
#include "proto/json_scan.h"

enum { BODY_TEXT = 1, BODY_CHAT = 2, BODY_BOTH = 3 };    /* the endpoints at which a field has a meaning */

/* X(NAME, "name", endpoints) */
#define BODY_FIELDS(X) \
    X(PROMPT, "prompt", BODY_TEXT)                      X(MESSAGES, "messages", BODY_CHAT) \
    X(MODEL, "model", BODY_BOTH)                        X(USER, "user", BODY_BOTH) \
    X(METADATA, "metadata", BODY_BOTH)                  X(STORE, "store", BODY_BOTH) \
    X(SERVICE_TIER, "service_tier", BODY_BOTH)          X(STREAM, "stream", BODY_BOTH) \
    X(RESPONSE_FORMAT, "response_format", BODY_BOTH)    X(LOGIT_BIAS, "logit_bias", BODY_BOTH) \
    X(BEST_OF, "best_of", BODY_BOTH)                    X(SUFFIX, "suffix", BODY_BOTH) \
    X(TOOLS, "tools", BODY_CHAT)                        X(TOOL_CHOICE, "tool_choice", BODY_CHAT) \
    X(TEMPLATE_KWARGS, "chat_template_kwargs", BODY_CHAT) \
    X(GENERATION_PROMPT, "add_generation_prompt", BODY_CHAT) \
    X(MAX_TOKENS, "max_tokens", BODY_BOTH)              X(MAX_COMPLETION, "max_completion_tokens", BODY_BOTH) \
    X(MIN_TOKENS, "min_tokens", BODY_BOTH)              X(TEMPERATURE, "temperature", BODY_BOTH) \
    X(TOP_P, "top_p", BODY_BOTH)                        X(TOP_K, "top_k", BODY_BOTH) \
    X(MIN_P, "min_p", BODY_BOTH)                        X(REPETITION, "repetition_penalty", BODY_BOTH) \
    X(PRESENCE, "presence_penalty", BODY_BOTH)          X(FREQUENCY, "frequency_penalty", BODY_BOTH) \
    X(N, "n", BODY_BOTH)                                X(SEED, "seed", BODY_BOTH) \
    X(STOP, "stop", BODY_BOTH)                          X(STOP_IDS, "stop_token_ids", BODY_BOTH) \
    X(IGNORE_EOS, "ignore_eos", BODY_BOTH)              X(ECHO, "echo", BODY_BOTH) \
    X(LOGPROBS, "logprobs", BODY_BOTH)                  X(TOP_LOGPROBS, "top_logprobs", BODY_CHAT) \
    X(PROMPT_LOGPROBS, "prompt_logprobs", BODY_BOTH)    X(RETURN_IDS, "return_token_ids", BODY_BOTH)

typedef enum {
#define BODY_FIELD_ENUM(NAME, name, endpoints) BODY_##NAME,
    BODY_FIELDS(BODY_FIELD_ENUM)
#undef BODY_FIELD_ENUM
    BODY_FIELD_COUNT
} body_field;

typedef struct { const char *text; fl_json json; bool is_default; } body_value;      /* json.type ABSENT: not given, or null */
typedef struct { body_value of[BODY_FIELD_COUNT]; int n_unknown; fl_row_fault *fault; } body_values;     /* n_unknown: names kept in row->unknown_fields */

body_field body_field_find(const char *text, fl_json key);           /* BODY_FIELD_COUNT for a name that is not in the table */
bool       body_field_is_chats(body_field field);                     /* has no meaning for prompts */
bool       body_given(const body_values *b, body_field field);

/* Take the --set object into the fields that the row lacks. False: it is not a JSON object, and the fault says so. */
bool body_take_defaults(body_values *b, const char *defaults, fl_row_endpoint endpoint);

/* Read everything but prompt and messages into `row` (its endpoint is set). False: the fault is filled. */
bool body_read(body_values *b, fl_row *row);

/* Fill the fault and return false. The sentence ends with the value as it was written ("..., not 500"); its place is the value's. */
bool body_refuse(const body_values *b, body_field field, fl_row_error code, const char *format, ...) __attribute__((format(printf, 4, 5)));
bool body_refuse_value(const body_values *b, body_value value, fl_row_error code, const char *format, ...) __attribute__((format(printf, 4, 5)));
void row_fault_write(fl_row_fault *fault, fl_row_error code, size_t offset, const char *format, ...) __attribute__((format(printf, 4, 5)));

bool body_read_id(const char *text, fl_json json, int32_t *id);      /* a token id: an integer from 0 to 2^31-1 */
void *row_alloc(size_t n_bytes);         /* zeroed, never NULL: a row error must not depend on memory, so the process stops without it */

#endif
