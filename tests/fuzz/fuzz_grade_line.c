/* fuzz_grade_line.c - what a grader is given. A line that is taken has a task that its mode can use, and its samples give code that lies inside them. */
#include <stdlib.h>
#include <string.h>

#include "proto/code_extract.h"
#include "proto/grade_line.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char *copy = malloc(n_bytes + 1);
    fl_grade_line line;
    fl_err err = { 0 };
    FL_ASSERT(copy);
    if (n_bytes) memcpy(copy, data, n_bytes);
    fl_status st = fl_grade_line_parse(&line, copy, n_bytes, &err);
    FL_ASSERT(st == FL_OK || ((st == FL_CORRUPT || st == FL_INVALID) && err.text[0]));
    for (uint32_t i = 0; st == FL_OK && i < line.n_samples; i++) {
        const char *code;
        size_t n_code;
        bool is_script;
        fl_code_of(line.samples[i].p, line.samples[i].n, &code, &n_code, &is_script);
        FL_ASSERT(code >= line.samples[i].p && code + n_code == line.samples[i].p + line.samples[i].n);
    }
    if (st == FL_OK) {
        FL_ASSERT(line.task.entry_point.n > 0);
        FL_ASSERT(line.task.mode == FL_GRADE_INPUTS ? line.task.base_input.p && line.task.canonical_solution.p : line.task.test.p != NULL);
        fl_grade_line_free(&line);
    }
    free(copy);
    return 0;
}
