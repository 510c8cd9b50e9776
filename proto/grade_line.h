/* grade_line.h - what a grader is given: how a task's completions are checked, and completions.
 * Row      a row of a graded job carries the task under `grade`, an object of
 *            "mode"                "check": `test` defines check(candidate). "asserts": `test` is statements that call the entry point by its name. "inputs": what the canonical
 *                                  solution returns for each input is what the completion must return
 *            "task_id"             a string; sentences name it, and EvalPlus's special comparisons follow it
 *            "entry_point"         the function's name
 *            "prompt"              the code a completion stands behind; "" or absent: completions are whole programs
 *            "test", "canonical_solution"
 *            "base_input", "plus_input", "atol"      mode "inputs": arrays of argument arrays, passed on as they are written (numbers of any size); a number, default 0
 *          Other members are ignored.
 * Line     what a GRANT of grade rows has instead of the job's line: an object of "grade" (the row's, as it stands there), "chat" (true: the samples are answers to a chat) and
 *          "samples", the texts of the samples sample_lo .. sample_hi - 1 of the item.
 * Threads  plain functions; what they fill belongs to the caller. */
#ifndef FL_GRADE_LINE_H
#define FL_GRADE_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "proto/json_scan.h"
#include "proto/status.h"

typedef enum { FL_GRADE_CHECK, FL_GRADE_ASSERTS, FL_GRADE_INPUTS } fl_grade_mode;
typedef struct { char *p; size_t n; } fl_text;           /* owned, a NUL follows; {NULL, 0}: absent */

typedef struct {
    fl_grade_mode mode;
    fl_text task_id, entry_point, prompt, test, canonical_solution, base_input, plus_input;
    double atol;
} fl_grade_task;

/* Read the object `value` of `text` (checked by fl_json_check). FL_INVALID: a sentence about the member that is missing or wrong, without a place. */
fl_status fl_grade_task_read(fl_grade_task *out, const char *text, fl_json value, fl_err *err);
void      fl_grade_task_free(fl_grade_task *task);       /* accepts a zeroed one */

typedef struct {
    fl_grade_task task;
    bool is_chat;
    fl_text *samples; uint32_t n_samples;                /* owned */
} fl_grade_line;

/* FL_CORRUPT: it is no line of this form. FL_INVALID: its row's `grade` is not good, or is missing. */
fl_status fl_grade_line_parse(fl_grade_line *out, const char *line, size_t n_bytes, fl_err *err);
void      fl_grade_line_free(fl_grade_line *line);       /* accepts a zeroed one */

#endif
