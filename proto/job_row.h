/* job_row.h - one line of a job file as a request. Ingest uses it to accept or refuse a line, the worker uses it again on
 * the same bytes to run the row, so both always agree on what a line means.
 * Source   ops/DESIGN.md section 5 (the OpenAI batch line, or the plain form), shared by /v1/completions and /v1/chat/completions.
 * Threads  plain functions; a row belongs to its caller. */
#ifndef FL_JOB_ROW_H
#define FL_JOB_ROW_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/row_error.h"
#include "proto/status.h"

#define FL_CUSTOM_ID_MAX 512                   /* bytes */
#define FL_SAMPLES_MAX 1024                    /* n */
#define FL_TOP_LOGPROBS_MAX 20
#define FL_STOP_STRINGS_MAX 16
#define FL_STOP_BYTES_MAX 1024                 /* of one stop string */
#define FL_STOP_IDS_MAX 64
#define FL_LINE_BYTES_MAX (64u * 1024 * 1024)
#define FL_ROW_MODEL_MAX 512                   /* bytes of `model` */
#define FL_PROMPT_TOKENS_DEFAULT 16            /* max_tokens of a prompt that gives none */

typedef enum { ROW_COMPLETION, ROW_CHAT } fl_row_endpoint;
typedef enum { ROW_PROMPT_TEXT, ROW_PROMPT_IDS, ROW_PROMPT_MESSAGES } fl_row_prompt;

/* A sampling field that the line (or a --set default) gave; the others take the model's generation_config.json, then
 * OpenAI's default. One bit each in fl_row.given. */
enum {
    ROW_GIVEN_TEMPERATURE = 1 << 0, ROW_GIVEN_TOP_P = 1 << 1, ROW_GIVEN_TOP_K = 1 << 2, ROW_GIVEN_MIN_P = 1 << 3,
    ROW_GIVEN_REPETITION = 1 << 4, ROW_GIVEN_MAX_TOKENS = 1 << 5, ROW_GIVEN_SEED = 1 << 6
};

typedef struct {
    char *custom_id; size_t custom_id_bytes;   /* owned, UTF-8, NUL-terminated (may hold U+0000 inside, so mind the size) */
    fl_row_endpoint endpoint;
    fl_row_prompt prompt_kind;
    char *text; size_t text_bytes;             /* owned; ROW_PROMPT_TEXT: the prompt. ROW_PROMPT_MESSAGES: a JSON object with
                                                  `messages` and, where given, `tools`, `chat_template_kwargs`,
                                                  `add_generation_prompt`, as the template helper takes it */
    int32_t *ids; size_t n_ids;                /* owned; ROW_PROMPT_IDS, each 0 .. 2^31-1 */
    char *model;                               /* owned, NULL when the line names none */
    uint32_t given;                            /* ROW_GIVEN_* */
    float temperature;                         /* 0 .. 100 */
    float top_p;                               /* (0, 1] */
    int32_t top_k;                             /* 0 or -1 = off, else >= 1 */
    float min_p;                               /* [0, 1] */
    float repetition_penalty;                  /* (0, 100] */
    float presence_penalty, frequency_penalty; /* [-2, 2], 0 when absent */
    int32_t max_tokens;                        /* >= 1; 0 only with echo; of max_tokens and max_completion_tokens, which wins. Not
                                                  given: FL_PROMPT_TOKENS_DEFAULT for prompts, 0 (the rest of the context) for chats */
    int32_t min_tokens;                        /* 0 .. max_tokens */
    int32_t n;                                 /* 1 .. FL_SAMPLES_MAX */
    uint64_t seed;                             /* any 64-bit integer, signed ones wrap */
    int32_t logprobs;                          /* -1 none, else the number of alternatives 0 .. FL_TOP_LOGPROBS_MAX */
    int32_t prompt_logprobs;                   /* likewise */
    bool echo, ignore_eos, return_token_ids;
    char **stop; size_t *stop_bytes; size_t n_stop;      /* owned, none empty */
    int32_t *stop_ids; size_t n_stop_ids;                /* owned */
    size_t grade_start, grade_end;             /* bytes of the line that hold the `grade` object (grade_line.h); equal: there is none */
    char *unknown_fields;                      /* owned, comma-separated names of fields nobody knows; NULL when none */
} fl_row;

/* Why a line was refused. offset counts bytes from the start of the line. */
typedef struct { fl_row_error code; size_t offset; char text[240]; } fl_row_fault;

/* Parse the line (without its line feed; a trailing 0x0D is dropped here; UTF-8 BOM is the caller's affair). `defaults` is NULL, "" or the
 * job's --set object as JSON text, a body field for rows that lack it. physical_line counts from 1 and names a row without custom_id.
 * Returns ROW_OK and a row to be freed with fl_row_free, or the code with *fault filled; row->custom_id is then set
 * where it could be read and NULL elsewhere (free it all the same). The line is checked as json_scan.h says. A row error is a function of the row,
 * so running out of memory ends the process; a line of n bytes takes at most 4 n of it (ids), beside 32 MB for keys. */
fl_row_error fl_row_parse(fl_row *row, const char *line, size_t n_bytes, uint64_t physical_line, const char *defaults, fl_row_fault *fault);
void         fl_row_free(fl_row *row);                   /* accepts a zeroed row */

/* The name of a row whose custom_id is an earlier row's, in a job that wants such rows renamed (--duplicates suffix): ID becomes ID#<physical line>. The row then counts
 * under this name everywhere: random numbers, output, ids of responses. Its id may be longer than FL_CUSTOM_ID_MAX by the suffix. */
void         fl_row_rename(fl_row *row, uint64_t physical_line);

/* Check a --set object by itself: an object of known body fields (not prompt or messages) whose values are good for prompts or for chats. */
fl_row_error fl_row_defaults_check(const char *defaults, fl_row_fault *fault);
bool         fl_line_is_blank(const char *line, size_t n_bytes);   /* JSON white space only */

#endif
