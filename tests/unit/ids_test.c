#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/ids.h"
#include "proto/row_error.h"

static void a_job_name_comes_back_as_its_id(void **state)
{
    (void)state;
    const uint64_t ids[] = { 1, 0xABCDEF, UINT64_MAX, 0x8000000000000000u };
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        char name[FL_JOB_NAME_BYTES];
        job_id parsed = { 0 };
        fl_job_name((job_id){ ids[i] }, name);
        assert_int_equal(strlen(name), 20);
        assert_int_equal(fl_job_parse(name, &parsed), 1);
        assert_int_equal(parsed.v, ids[i]);
        parsed.v = 0;
        assert_int_equal(fl_job_parse(name + 4, &parsed), 1);
        assert_int_equal(parsed.v, ids[i]);
    }
}

static void what_is_not_a_job_name_is_refused(void **state)
{
    (void)state;
    const char *names[] = { "", "job-", "job-1", "job-0000000000000000", "job-00000000000000012", "job-000000000000000g", "JOB-0000000000000001",
                            "job-000000000000000A", "row-0000000000000001", "job-job-0000000000000001", "job--000000000000001", "../00000000000001" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        job_id parsed = { 77 };
        assert_int_equal(fl_job_parse(names[i], &parsed), 0);
        assert_int_equal(parsed.v, 77);
    }
}

static void row_errors_have_the_names_of_the_error_file(void **state)
{
    (void)state;
    assert_string_equal(fl_row_error_name(ROW_OK), "");
    assert_string_equal(fl_row_error_name(ROW_INVALID_JSON), "invalid_json");
    assert_string_equal(fl_row_error_name(ROW_TIMEOUT), "request_timeout");
    assert_string_equal(fl_row_error_name(ROW_ERROR_COUNT), "unknown");
    assert_string_equal(fl_row_error_name((fl_row_error)-1), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_job_name_comes_back_as_its_id),
        cmocka_unit_test(what_is_not_a_job_name_is_refused),
        cmocka_unit_test(row_errors_have_the_names_of_the_error_file),
    };
    return cmocka_run_group_tests_name("ids", tests, NULL, NULL);
}
