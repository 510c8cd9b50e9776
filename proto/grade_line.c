#include "proto/grade_line.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "proto/job_row.h"

static void free_text(fl_text *t)
{
    free(t->p);
    *t = (fl_text){ 0 };
}

void fl_grade_task_free(fl_grade_task *task)
{
    fl_text *all[] = { &task->task_id, &task->entry_point, &task->prompt, &task->test, &task->canonical_solution, &task->base_input, &task->plus_input };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free_text(all[i]);
}

static fl_text copy_string(const char *text, fl_json value)
{
    fl_text out;
    out.p = fl_json_string(text, value, &out.n);
    return out;
}

/* The bytes of a value as they stand there. */
static fl_text copy_span(const char *text, fl_json value)
{
    fl_text out = { malloc(value.end - value.start + 1), value.end - value.start };
    FL_ASSERT(out.p);
    memcpy(out.p, text + value.start, out.n);
    out.p[out.n] = '\0';
    return out;
}

static bool is_name(const fl_text *t)
{
    for (size_t i = 0; i < t->n; i++) {
        unsigned char c = (unsigned char)t->p[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c >= 0x80;
        if (!letter && (i == 0 || c < '0' || c > '9')) return false;
    }
    return t->n > 0;
}

fl_status fl_grade_task_read(fl_grade_task *out, const char *text, fl_json value, fl_err *err)
{
    fl_json key, member, mode = { 0 }, atol = { 0 };
    fl_grade_task task = { 0 };
    const struct { const char *name; fl_text *into; bool is_array; } members[] = {
        { "task_id", &task.task_id, false }, { "entry_point", &task.entry_point, false }, { "prompt", &task.prompt, false }, { "test", &task.test, false },
        { "canonical_solution", &task.canonical_solution, false }, { "base_input", &task.base_input, true }, { "plus_input", &task.plus_input, true },
    };
    fl_status st = FL_OK;
    if (value.type != FL_JSON_OBJECT) return fl_fail(err, FL_INVALID, "grade must be an object");
    fl_json_walk walk = fl_json_members(text, value);
    while (st == FL_OK && fl_json_next(&walk, &key, &member)) {
        if (member.type == FL_JSON_NULL) continue;
        if (fl_json_is(text, key, "mode")) mode = member;
        if (fl_json_is(text, key, "atol")) atol = member;
        for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
            if (!fl_json_is(text, key, members[i].name)) continue;
            if (member.type != (members[i].is_array ? FL_JSON_ARRAY : FL_JSON_STRING)) st = fl_fail(err, FL_INVALID, "grade.%s must be %s", members[i].name, members[i].is_array ? "an array" : "a string");
            else *members[i].into = members[i].is_array ? copy_span(text, member) : copy_string(text, member);
        }
    }
    if (st != FL_OK) goto done;
    if (fl_json_is(text, mode, "check")) task.mode = FL_GRADE_CHECK;
    else if (fl_json_is(text, mode, "asserts")) task.mode = FL_GRADE_ASSERTS;
    else if (fl_json_is(text, mode, "inputs")) task.mode = FL_GRADE_INPUTS;
    else { st = fl_fail(err, FL_INVALID, "grade.mode must be \"check\", \"asserts\" or \"inputs\""); goto done; }
    if (!is_name(&task.entry_point)) { st = fl_fail(err, FL_INVALID, "grade.entry_point must be the name of a function"); goto done; }
    if (task.mode != FL_GRADE_INPUTS && !task.test.p) { st = fl_fail(err, FL_INVALID, "grade.test is missing"); goto done; }
    if (task.mode == FL_GRADE_INPUTS && (!task.base_input.p || !task.canonical_solution.p)) {
        st = fl_fail(err, FL_INVALID, "grade.%s is missing", task.base_input.p ? "canonical_solution" : "base_input");
        goto done;
    }
    if (atol.type != FL_JSON_ABSENT && (atol.type != FL_JSON_NUMBER || !(fl_json_double(text, atol) >= 0) || !isfinite(fl_json_double(text, atol)))) {
        st = fl_fail(err, FL_INVALID, "grade.atol must be a number of at least 0");
        goto done;
    }
    if (atol.type == FL_JSON_NUMBER) task.atol = fl_json_double(text, atol);
    *out = task;
    return FL_OK;
done:
    fl_grade_task_free(&task);
    return st;
}

void fl_grade_line_free(fl_grade_line *line)
{
    fl_grade_task_free(&line->task);
    for (uint32_t i = 0; i < line->n_samples; i++) free_text(&line->samples[i]);
    free(line->samples);
    *line = (fl_grade_line){ 0 };
}

static fl_status read_samples(fl_grade_line *out, const char *line, fl_json list, fl_err *err)
{
    fl_json item;
    out->samples = calloc(FL_SAMPLES_MAX, sizeof *out->samples);
    if (!out->samples) return fl_fail(err, FL_FULL, "no memory for a line of samples");
    fl_json_walk walk = fl_json_members(line, list);
    while (fl_json_next(&walk, NULL, &item)) {
        if (item.type != FL_JSON_STRING || out->n_samples == FL_SAMPLES_MAX) return fl_fail(err, FL_CORRUPT, "a line for a grader whose samples are no texts, or too many");
        out->samples[out->n_samples++] = copy_string(line, item);
    }
    return FL_OK;
}

fl_status fl_grade_line_parse(fl_grade_line *out, const char *line, size_t n_bytes, fl_err *err)
{
    fl_json object, key, value, grade = { 0 }, chat = { 0 }, samples = { 0 };
    size_t offset;
    char why[FL_JSON_WHY_BYTES];
    *out = (fl_grade_line){ 0 };
    if (fl_json_check(line, n_bytes, &object, &offset, why) != ROW_OK) return fl_fail(err, FL_CORRUPT, "a line for a grader that is no JSON: %s", why);
    if (object.type != FL_JSON_OBJECT) return fl_fail(err, FL_CORRUPT, "a line for a grader that is no object");
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value)) {
        if (fl_json_is(line, key, "grade")) grade = value;
        if (fl_json_is(line, key, "chat")) chat = value;
        if (fl_json_is(line, key, "samples")) samples = value;
    }
    if (samples.type != FL_JSON_ARRAY || chat.type != FL_JSON_BOOL) return fl_fail(err, FL_CORRUPT, "a line for a grader without samples");
    if (grade.type == FL_JSON_ABSENT || grade.type == FL_JSON_NULL) return fl_fail(err, FL_INVALID, "the job is graded, and the row has no grade object that says how");
    out->is_chat = fl_json_true(line, chat);
    fl_status st = fl_grade_task_read(&out->task, line, grade, err);
    if (st == FL_OK) st = read_samples(out, line, samples, err);
    if (st != FL_OK) fl_grade_line_free(out);
    return st;
}
