/* What failed in a job: counts of every code, few examples of as many codes as there are, whatever bytes a sentence or an id holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "coordinator/job_failures.h"

static void note(job_failures *f, ledger_kind kind, uint64_t row, uint32_t code, const char *id, const char *text)
{
    ledger_record r = { .kind = kind, .row = { row }, .code = code, .line = row + 1, .custom_id = { id, strlen(id) }, .body = { text, strlen(text) } };
    job_failures_note(f, &r);
}

static int examples_of(const job_failures *f, fl_row_error code)
{
    int n = 0;
    for (int i = 0; i < f->n_examples; i++) n += f->examples[i].code == code;
    return n;
}

static void a_rare_code_has_an_example_beside_thousands_of_another(void **state)
{
    (void)state;
    job_failures f = { 0 };
    for (uint64_t row = 0; row < 5000; row++) note(&f, LEDGER_ROW_ERROR, row, ROW_CONTEXT_OVERFLOW, "", "too long");
    note(&f, LEDGER_INGEST_ERROR, 5000, ROW_INVALID_JSON, "x", "no JSON");
    note(&f, LEDGER_ROW_ERROR, 5001, ROW_NAN_LOGITS, "", "not a number");
    note(&f, LEDGER_ROW_ERROR, 5002, ROW_NAN_LOGITS, "", "not a number");
    note(&f, LEDGER_RESULT, 5003, 0, "", "");
    assert_int_equal(f.n[ROW_CONTEXT_OVERFLOW], 5000);
    assert_int_equal(f.n[ROW_NAN_LOGITS], 2);
    assert_int_equal(f.n_examples, JOB_FAILURES_EXAMPLES);
    assert_true(examples_of(&f, ROW_CONTEXT_OVERFLOW) >= 1 && examples_of(&f, ROW_INVALID_JSON) == 1 && examples_of(&f, ROW_NAN_LOGITS) == 1);
    assert_int_equal(f.examples[0].row.v, 0);
    for (int i = 0; i < f.n_examples; i++) assert_true(f.examples[i].is_named == (f.examples[i].code == ROW_INVALID_JSON));
}

static void more_codes_than_places_keep_one_example_each_of_the_first(void **state)
{
    (void)state;
    job_failures f = { 0 };
    for (uint32_t code = 1; code < ROW_ERROR_COUNT; code++) note(&f, LEDGER_ROW_ERROR, code, code, "", "text");
    for (int i = 0; i < JOB_FAILURES_EXAMPLES; i++) assert_int_equal(f.examples[i].code, i + 1);
    note(&f, LEDGER_ROW_ERROR, 99, 4000, "", "a code of a newer release");
    assert_int_equal(f.n[ROW_OK], 1);
}

static void any_bytes_become_text_that_fits(void **state)
{
    (void)state;
    char out[8];
    job_failures_copy(out, sizeof out, "a\nb\x7f\x01", 5);
    assert_string_equal(out, "a?b??");
    job_failures_copy(out, sizeof out, "l\xc3\xa4ngs\xff", 7);
    assert_string_equal(out, "l\xc3\xa4ngs?");
    job_failures_copy(out, sizeof out, "123456\xc3\xa4", 8);           /* a character that does not fit is left out whole */
    assert_string_equal(out, "123456");
    job_failures_copy(out, sizeof out, "\xf0\x9f\x98\x80\xf0\x9f\x98\x80", 8);
    assert_string_equal(out, "\xf0\x9f\x98\x80");
    job_failures_copy(out, sizeof out, "", 0);
    assert_string_equal(out, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rare_code_has_an_example_beside_thousands_of_another),
        cmocka_unit_test(more_codes_than_places_keep_one_example_each_of_the_first),
        cmocka_unit_test(any_bytes_become_text_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
