/* code_extract.h - from what a model wrote to the code that is graded.
 * Completion  what a samples file calls so: code that stands behind the task's prompt, or, with FL_SCRIPT_MARKER as its first line, a whole program of its own. A tool that
 *             knows no marker sees a comment there and appends the program to the prompt, which comes to the same.
 * Chats       the last block fenced as Python (```python, ```py), else the last fenced block, also one that was not closed, else the whole text. When it defines the entry
 *             point in a line of its own (def, async def, class, or an assignment, not indented), it is a whole program. Else the body of its first function is the
 *             completion, or the block itself where every line of it is indented, or an indented pass.
 * Threads     plain functions. */
#ifndef FL_CODE_EXTRACT_H
#define FL_CODE_EXTRACT_H

#include <stdbool.h>
#include <stddef.h>
#include "proto/status.h"

#define FL_SCRIPT_MARKER "##__FULL_SCRIPT__##"

/* The completion in a chat's answer; is_program: the task has no prompt to stand behind, so the code is a program whatever it defines. *out is malloc'ed, a NUL follows.
 * FL_FULL: no memory. */
fl_status fl_code_from_chat(const char *text, size_t n_bytes, const char *entry_point, bool is_program, char **out, size_t *n_out, fl_err *err);

/* The code of a completion: *code points into it, behind the marker's line where it has one (then *is_script). */
void fl_code_of(const char *completion, size_t n_bytes, const char **code, size_t *n_code, bool *is_script);

/* Does the code define `name` in a line of its own? */
bool fl_code_defines(const char *code, size_t n_bytes, const char *name);

#endif
