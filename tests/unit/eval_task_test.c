#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "coordinator/eval_samples.h"
#include "coordinator/md5.h"
#include "proto/job_row.h"
#include "tests/temp_folder.h"

static char folder[] = "/tmp/tokenfleet_eval_task_XXXXXX";

static const char *write_file(const char *text)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/tasks.jsonl", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

static void expect_refused(const char *text, const char *sentence)
{
    eval_set set = { 0 };
    fl_err err = { 0 };
    assert_int_equal(eval_set_read(&set, write_file(text), &err), FL_INVALID);
    if (!strstr(err.text, sentence)) fail_msg("'%s' does not say '%s'", err.text, sentence);
}

#define HUMANEVAL "{\"task_id\":\"HumanEval/0\",\"prompt\":\"def f(x):\\n\",\"entry_point\":\"f\",\"canonical_solution\":\"    return x\\n\",\"test\":\"def check(c):\\n    assert c(1) == 1\\n\"}\n"
#define PLUS "{\"task_id\":\"HumanEval/1\",\"prompt\":\"def g(x):\\n\",\"contract\":\"\",\"entry_point\":\"g\",\"canonical_solution\":\"    return x\\n\",\"base_input\":[[1]],\"plus_input\":[[1e400],[99999999999999999999]],\"atol\":0}\n"
#define MBPP "{\"task_id\":11,\"text\":\"Remove.\",\"code\":\"def h(s):\\r\\n  return s\\r\\ndef remove(s):\\r\\n  return h(s)\",\"test_list\":[\"assert remove(\\\"a\\\") == \\\"a\\\"\",\"assert remove(\\\"\\\") == \\\"\\\"\"],\"test_setup_code\":\"import os\",\"challenge_test_list\":[]}\n"

static void each_format_becomes_rows_that_a_job_takes(void **state)
{
    (void)state;
    static const struct { eval_kind kind; const char *id, *mode, *stop; } expected[] = {
        { EVAL_HUMANEVAL, "HumanEval/0", "\"mode\":\"check\"", "\ndef" }, { EVAL_HUMANEVAL_PLUS, "HumanEval/1", "\"mode\":\"inputs\"", "\ndef" }, { EVAL_MBPP, "11", "\"mode\":\"asserts\"", "\nassert" },
    };
    eval_set set = { 0 };
    fl_err err = { 0 };
    assert_int_equal(eval_set_read(&set, write_file("\xEF\xBB\xBF" HUMANEVAL "\n" PLUS MBPP), &err), FL_OK);
    assert_int_equal(set.n_tasks, 3);
    for (size_t i = 0; i < 3; i++) {
        const eval_task *t = &set.tasks[i];
        assert_int_equal(t->kind, expected[i].kind);
        assert_string_equal(t->id, expected[i].id);
        for (int chat = 0; chat < 2; chat++) {
            json_out line = { 0 };
            fl_row row = { 0 };
            fl_row_fault fault;
            eval_task_write_row(t, chat, 5, 77, "#5", &line);
            assert_int_equal(fl_row_parse(&row, line.data, line.n_bytes - 1, 1, NULL, &fault), ROW_OK);
            assert_true(row.n == 5 && row.max_tokens == 77 && row.endpoint == (chat ? ROW_CHAT : ROW_COMPLETION) && row.unknown_fields == NULL);
            assert_true(strstr(row.custom_id, "#5") && strncmp(row.custom_id, t->id, strlen(t->id)) == 0);
            assert_true(row.grade_end > row.grade_start);
            assert_non_null(memmem(line.data + row.grade_start, row.grade_end - row.grade_start, expected[i].mode, strlen(expected[i].mode)));
            bool has_stop = false;
            for (size_t k = 0; k < row.n_stop; k++) has_stop |= strcmp(row.stop[k], expected[i].stop) == 0;
            assert_int_equal(has_stop, !chat);
            fl_row_free(&row);
            json_out_fini(&line);
        }
    }
    assert_string_equal(set.tasks[2].entry_point, "remove");
    assert_string_equal(set.tasks[2].shown, "\"\"\"\nRemove.\nassert remove(\"a\") == \"a\"\n\"\"\"\n");
    assert_string_equal(set.tasks[2].prompt, "");
    assert_non_null(strstr(set.tasks[1].grade.data, "[[1e400],[99999999999999999999]]"));
    assert_string_equal(set.name, "tasks");
    eval_set_free(&set);
}

static void a_bad_task_is_named_with_line_and_byte(void **state)
{
    (void)state;
    expect_refused("", "has no tasks");
    expect_refused(HUMANEVAL "{\"task_id\":}\n", "line 2, byte ");
    expect_refused(HUMANEVAL HUMANEVAL, "line 2, byte 152: the task_id HumanEval/0 stands twice");
    expect_refused("\n[]\n", "line 2, byte 1: a task must be a JSON object");
    expect_refused("{\"task_id\":\"a\",\"prompt\":\"p\"}", "none of test, base_input and test_list");
    expect_refused("{\"task_id\":\"a\",\"prompt\":\"p\",\"test\":\"t\"}", "entry_point is missing");
    expect_refused("{\"task_id\":\"a\",\"prompt\":\"p\",\"entry_point\":\"1f\",\"test\":\"t\"}", "entry_point must be the name of a function");
    expect_refused("{\"task_id\":\"a\",\"entry_point\":\"f\",\"test\":\"t\"}", "prompt is missing");
    expect_refused("{\"prompt\":\"p\",\"entry_point\":\"f\",\"test\":\"t\"}", "task_id is missing");
    expect_refused("{\"task_id\":1,\"text\":\"\",\"code\":\"def f(): pass\",\"test_list\":[\"assert g()\"]}", "calls no function that code defines");
    expect_refused("{\"task_id\":1,\"text\":\"\",\"code\":\"def f(): pass\",\"test_list\":[]}", "test_list is empty");
    expect_refused("{\"task_id\":\"a\",\"prompt\":\"p\",\"entry_point\":\"f\",\"canonical_solution\":\"\",\"base_input\":{}}", "base_input must be an array");
}

static void samples_are_read_and_written_in_both_projects_forms(void **state)
{
    (void)state;
    char path[96];
    eval_set set = { 0 };
    eval_samples samples = { 0 };
    fl_err err = { 0 };
    assert_int_equal(eval_set_read(&set, write_file(HUMANEVAL MBPP), &err), FL_OK);
    assert_int_equal(eval_samples_open(&samples, &set, &err), FL_OK);
    snprintf(path, sizeof path, "%s/samples.jsonl", folder);
    FILE *file = fopen(path, "w");
    fputs("{\"task_id\":\"HumanEval/0\",\"completion\":\"    return x\"}\n{\"task_id\":11,\"solution\":\"def remove(s): return s\",\"completion\":\"ignored\"}\n{\"task_id\":\"11\",\"completion\":\"\"}\n", file);
    fclose(file);
    assert_int_equal(eval_samples_read(&samples, path, &err), FL_OK);
    assert_int_equal(samples.of[0].n, 1);
    assert_int_equal(samples.of[1].n, 2);
    assert_string_equal(samples.of[1].v[0].completion, "##__FULL_SCRIPT__##\ndef remove(s): return s");
    samples.of[0].v[0].verdict = (fl_verdict){ .verdict = FL_VERDICT_PASSED };
    samples.of[1].v[0].verdict = (fl_verdict){ .verdict = FL_VERDICT_TIMEOUT, .in_process = true };
    samples.of[1].v[1].verdict = (fl_verdict){ .verdict = FL_VERDICT_ERROR };
    assert_int_equal(eval_results_write(&samples, path, &err), FL_OK);
    char *text = NULL;
    size_t n = 0;
    assert_int_equal(eval_read_file(path, &text, &n, &err), FL_OK);
    assert_string_equal(text, "{\"task_id\":\"HumanEval/0\",\"completion\":\"    return x\",\"result\":\"passed\",\"passed\":true,\"verdict\":\"passed\"}\n"
                              "{\"task_id\":11,\"completion\":\"##__FULL_SCRIPT__##\\ndef remove(s): return s\",\"result\":\"timed out\",\"passed\":false,\"verdict\":\"timeout\",\"in_process\":true}\n"
                              "{\"task_id\":11,\"completion\":\"\",\"result\":\"failed: error\",\"passed\":false,\"verdict\":\"error\"}\n");
    free(text);
    pass_count counts[2];
    eval_samples_count(&samples, false, counts);
    assert_true(counts[0].n == 1 && counts[0].c == 1 && counts[1].n == 2 && counts[1].c == 0);
    eval_samples_close(&samples);
    eval_set_free(&set);
}

static void md5_is_rfc_1321(void **state)
{
    (void)state;
    char hex[33];
    md5_hex("", 0, hex);
    assert_string_equal(hex, "d41d8cd98f00b204e9800998ecf8427e");
    md5_hex("abc", 3, hex);
    assert_string_equal(hex, "900150983cd24fb0d6963f7d28e17f72");
    const char *digits = "12345678901234567890123456789012345678901234567890123456789012345678901234567890";
    md5_hex(digits, 80, hex);
    assert_string_equal(hex, "57edf4a22be3c955ac49da2e2107b67a");
    md5_hex(digits, 56, hex);
    assert_string_equal(hex, "49f193adce178490e34d1b3a4ec0064c");
}

static int make_folder(void **state)
{
    (void)state;
    return temp_folder_make(folder);
}

static int remove_folder(void **state)
{
    (void)state;
    return temp_folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_format_becomes_rows_that_a_job_takes),
        cmocka_unit_test(a_bad_task_is_named_with_line_and_byte),
        cmocka_unit_test(samples_are_read_and_written_in_both_projects_forms),
        cmocka_unit_test(md5_is_rfc_1321),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
