/* eval_task.h - task files of code benchmarks: HumanEval, HumanEval+ and MBPP+ (EvalPlus), MBPP; one JSON object a line, plain or .gz.
 * Kinds    told apart line by line: `base_input` is EvalPlus's, `test_list` MBPP's, `test` with `entry_point` HumanEval's.
 * Prompts  HumanEval and EvalPlus: the task's `prompt`. MBPP: its text and first test as a docstring. Chats are asked for one Python block that holds the whole function.
 * Stops    the strings that end a raw completion: a new top-level statement behind a HumanEval body; a class, assert, docstring, print, if or fence behind an MBPP program.
 * Grade    what proto/grade_line.h calls a row's `grade`. MBPP's entry point is the function of `code` that its first test calls.
 * Threads  plain functions; a set belongs to its caller. */
#ifndef COORDINATOR_EVAL_TASK_H
#define COORDINATOR_EVAL_TASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "coordinator/json_write.h"
#include "proto/status.h"

typedef enum { EVAL_HUMANEVAL, EVAL_HUMANEVAL_PLUS, EVAL_MBPP, EVAL_MBPP_PLUS } eval_kind;

typedef struct {
    eval_kind kind;
    char *id;                            /* owned; as text */
    bool id_is_number;                   /* MBPP's are */
    char *prompt;                        /* owned; what a raw completion stands behind in a samples file: "" for MBPP */
    char *shown;                         /* owned; what the model is shown for a raw completion */
    char *entry_point;                   /* owned */
    json_out grade;                      /* owned; the `grade` object as JSON */
} eval_task;

typedef struct {
    char *name;                          /* owned; of the file, without folder and .jsonl, .gz */
    eval_task *tasks; size_t n_tasks, capacity;  /* owned */
    char md5[33];                        /* of the file's bytes, decompressed: EvalPlus names a set by it */
} eval_set;

/* FL_NOT_FOUND, FL_IO: the file. FL_INVALID: "TASKS, line 12, byte 345: ..." about the first bad line, an id that stands twice, or a file without tasks. */
fl_status eval_set_read(eval_set *out, const char *path, fl_err *err);
void      eval_set_free(eval_set *set);                  /* accepts a zeroed one */
const eval_task *eval_set_find(const eval_set *set, const char *id);     /* NULL: there is none */

/* One line of a job: the task as a row of n samples, raw or as a chat; max_tokens 0: the row does not say it. custom_id is the task's id with `suffix` behind it. Its line feed is included. */
void eval_task_write_row(const eval_task *task, bool chat, uint64_t n, uint64_t max_tokens, const char *suffix, json_out *out);

bool eval_kind_is_plus(eval_kind kind);

/* A whole file in memory, decompressed, a NUL behind it; the caller frees. Also for samples. */
fl_status eval_read_file(const char *path, char **out, size_t *n_bytes, fl_err *err);

#endif
