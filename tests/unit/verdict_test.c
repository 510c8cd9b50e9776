#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/grade_line.h"
#include "proto/verdict.h"

static void every_verdict_comes_back(void **state)
{
    (void)state;
    uint8_t bytes[FL_VERDICT_BYTES];
    fl_verdict out;
    fl_err err;
    for (int i = 1; i < FL_VERDICT_END; i++) {
        fl_verdict v = { .verdict = (fl_verdict_kind)i, .has_inputs = i % 2, .in_process = i % 3 == 0, .canonical_failed = i % 4 == 0, .base = FL_VERDICT_PASSED, .plus = (fl_verdict_kind)i, .base_failed = -1, .plus_failed = 7 };
        fl_verdict_encode(&v, bytes);
        assert_int_equal(fl_verdict_decode(&out, bytes, sizeof bytes, &err), FL_OK);
        assert_int_equal(out.verdict, i);
        assert_int_equal(out.in_process, i % 3 == 0);
        assert_int_equal(out.canonical_failed, i % 4 == 0);
        assert_int_equal(out.base, i % 2 ? FL_VERDICT_PASSED : i);
        assert_int_equal(out.plus_failed, i % 2 ? 7 : -1);
        assert_int_equal(fl_verdict_find(fl_verdict_name(out.verdict), strlen(fl_verdict_name(out.verdict))), i);
    }
    assert_int_equal(fl_verdict_find("pass", 4), FL_VERDICT_END);
}

/* One encoding: a byte that means nothing, or another length, is no verdict. */
static void other_bytes_are_refused(void **state)
{
    (void)state;
    uint8_t bytes[FL_VERDICT_BYTES + 1] = { 0 };
    fl_verdict out;
    fl_err err;
    fl_verdict_encode(&(fl_verdict){ .verdict = FL_VERDICT_PASSED }, bytes);
    assert_int_equal(fl_verdict_decode(&out, bytes, FL_VERDICT_BYTES, &err), FL_OK);
    assert_int_equal(fl_verdict_decode(&out, bytes, FL_VERDICT_BYTES + 1, &err), FL_CORRUPT);
    assert_int_equal(fl_verdict_decode(&out, bytes, FL_VERDICT_BYTES - 1, &err), FL_CORRUPT);
    for (size_t i = 0; i < FL_VERDICT_BYTES; i++) {
        uint8_t was = bytes[i];
        bytes[i] = 0xFF;
        assert_int_equal(fl_verdict_decode(&out, bytes, FL_VERDICT_BYTES, &err), FL_CORRUPT);
        bytes[i] = was;
    }
}

static fl_status parse(const char *text, fl_grade_line *line, fl_err *err) { return fl_grade_line_parse(line, text, strlen(text), err); }

static void a_line_for_graders_is_read(void **state)
{
    (void)state;
    fl_grade_line line;
    fl_err err;
    assert_int_equal(parse("{\"grade\":{\"mode\":\"inputs\",\"task_id\":\"Mbpp/2\",\"entry_point\":\"f\",\"canonical_solution\":\"x\",\"base_input\":[[123456789012345678901234567890]],\"atol\":1e-6},"
                           "\"chat\":true,\"samples\":[\"a\",\"b\\u0000c\"]}", &line, &err), FL_OK);
    assert_int_equal(line.task.mode, FL_GRADE_INPUTS);
    assert_string_equal(line.task.base_input.p, "[[123456789012345678901234567890]]");       /* a number of any size, as it was written */
    assert_true(line.is_chat && line.n_samples == 2 && line.samples[1].n == 3 && line.task.atol == 1e-6 && line.task.plus_input.p == NULL);
    fl_grade_line_free(&line);
}

static void a_row_without_a_good_grade_is_told_from_damage(void **state)
{
    (void)state;
    fl_grade_line line;
    fl_err err;
    static const char *const invalid[] = {
        "{\"grade\":null,\"chat\":false,\"samples\":[]}", "{\"grade\":[],\"chat\":false,\"samples\":[]}", "{\"grade\":{},\"chat\":false,\"samples\":[]}",
        "{\"grade\":{\"mode\":\"check\",\"entry_point\":\"f g\",\"test\":\"\"},\"chat\":false,\"samples\":[]}", "{\"grade\":{\"mode\":\"check\",\"entry_point\":\"f\"},\"chat\":false,\"samples\":[]}",
        "{\"grade\":{\"mode\":\"check\",\"entry_point\":\"f\",\"test\":1},\"chat\":false,\"samples\":[]}",
        "{\"grade\":{\"mode\":\"inputs\",\"entry_point\":\"f\",\"canonical_solution\":\"\",\"base_input\":[],\"atol\":-1},\"chat\":false,\"samples\":[]}",
    };
    static const char *const corrupt[] = { "", "[]", "{", "{\"grade\":{},\"samples\":[]}", "{\"grade\":{\"mode\":\"check\",\"entry_point\":\"f\",\"test\":\"\"},\"chat\":false,\"samples\":[1]}" };
    for (size_t i = 0; i < sizeof invalid / sizeof *invalid; i++) assert_int_equal(parse(invalid[i], &line, &err), FL_INVALID);
    for (size_t i = 0; i < sizeof corrupt / sizeof *corrupt; i++) assert_int_equal(parse(corrupt[i], &line, &err), FL_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verdict_comes_back),
        cmocka_unit_test(other_bytes_are_refused),
        cmocka_unit_test(a_line_for_graders_is_read),
        cmocka_unit_test(a_row_without_a_good_grade_is_told_from_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
