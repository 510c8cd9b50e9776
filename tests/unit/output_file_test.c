#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "coordinator/job_verify.h"
#include "coordinator/output_file.h"
#include "tests/job_fixture.h"

#define N_GOOD 30

static char folder[32], spool_path_of[64], job_path[64], out_path[64], errors_path[64];
static spool *the_spool;
static stored_job *job;
static int n_rows;

static int setup(void **unused)
{
    (void)unused;
    strcpy(folder, "/tmp/tokenfleet-out-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(spool_path_of, sizeof spool_path_of, "%s/spool", folder);
    snprintf(job_path, sizeof job_path, "%s/job.jsonl", folder);
    snprintf(out_path, sizeof out_path, "%s/out.jsonl", folder);
    snprintf(errors_path, sizeof errors_path, "%s/errors.jsonl", folder);
    n_rows = fixture_write_job(job_path, N_GOOD);
    fl_err err;
    ingest_report report;
    job_settings settings = { .name = "job.jsonl", .seed = 7 };
    if (spool_open(&the_spool, spool_path_of, SPOOL_CREATE, &err) != FL_OK) return -1;
    return job_store_create(&job, the_spool, (job_id){ 1 }, &settings, &(job_draft_options){ .path = job_path }, &report, &err) == FL_OK ? 0 : -1;
}

static int teardown(void **unused)
{
    (void)unused;
    job_store_close(job);
    spool_close(the_spool);
    fixture_remove(folder);
    return 0;
}

static void append(const ledger_record *record)
{
    fl_err err;
    assert_int_equal(ledger_append(job->ledger, record, &err), FL_OK);
}

static void pin(void)
{
    fl_err err;
    assert_int_equal(fixture_pin(job->ledger, &err), FL_OK);
}

/* Results of the rows lo .. hi - 1 that were not refused at ingest, last row first: the ledger's order is not the output's. */
static void commit_rows(uint64_t lo, uint64_t hi)
{
    for (uint64_t row = hi; row-- > lo; ) {
        if (row_table_failed(job->table, (row_index){ row })) continue;
        for (uint32_t sample = 0; sample < row_table_samples(job->table, (row_index){ row }); sample++) {
            size_t n_bytes = 0;
            uint8_t *body = fixture_result(row, sample, &n_bytes);
            append(&(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .lease = { 1 }, .sample = sample, .n_pieces = 1, .n_tokens = 3, .body = { body, n_bytes } });
            free(body);
        }
    }
}

static void close_job(ledger_cause cause)
{
    fl_err err;
    append(&(ledger_record){ .kind = LEDGER_CLOSE, .cause = cause });
    assert_int_equal(ledger_commit(job->ledger, &err), FL_OK);
}

static void a_completed_job_has_a_line_for_every_row_in_input_order(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    json_t *report = NULL;
    pin();
    commit_rows(0, (uint64_t)n_rows);
    close_job(LEDGER_COMPLETED);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_OK);
    char *out = fixture_read(out_path, NULL), *errors = fixture_read(errors_path, NULL), *at = out;
    assert_int_equal(fixture_count_lines(out), N_GOOD);
    assert_int_equal(fixture_count_lines(errors), N_GOOD / 10);
    for (int i = 0; i < N_GOOD; i++) {
        char name[40];
        snprintf(name, sizeof name, "\"custom_id\":\"r%d\"", i);
        at = strstr(at, name);
        assert_non_null(at);
    }
    assert_non_null(strstr(errors, "\"custom_id\":\"bad9\""));
    assert_int_equal(counts.rows, n_rows);
    assert_int_equal(counts.completed, N_GOOD);
    assert_int_equal(counts.failed, N_GOOD / 10);
    free(out);
    free(errors);
    assert_int_equal(job_verify(job->dir, job->ledger_dir, out_path, errors_path, &report, &err), FL_OK);
    assert_string_equal(json_string_value(json_object_get(report, "state")), "sound");
    json_decref(report);
}

static void a_cancelled_job_keeps_what_is_finished(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    pin();
    commit_rows(0, 5);
    close_job(LEDGER_CANCELLED);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_OK);
    char *out = fixture_read(out_path, NULL), *errors = fixture_read(errors_path, NULL);
    assert_int_equal(fixture_count_lines(out), 5);
    assert_int_equal(fixture_count_lines(errors), n_rows - 5);
    assert_non_null(strstr(errors, "batch_cancelled"));
    assert_non_null(strstr(errors, "\"custom_id\":\"r29\""));
    free(out);
    free(errors);
}

static void a_job_cancelled_before_any_worker_came_has_errors_only(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    close_job(LEDGER_CANCELLED);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_OK);
    char *out = fixture_read(out_path, NULL);
    assert_string_equal(out, "");
    free(out);
    assert_int_equal(counts.failed, n_rows);
}

static void an_open_job_has_no_outputs(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_AGAIN);
    assert_int_equal(access(out_path, F_OK), -1);
    assert_int_equal(access(errors_path, F_OK), -1);
}

static void a_completed_job_that_lacks_a_result_is_corrupt_and_leaves_nothing(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    pin();
    commit_rows(1, (uint64_t)n_rows);
    close_job(LEDGER_COMPLETED);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_CORRUPT);
    char command[120], line[200] = "";
    snprintf(command, sizeof command, "ls %s | grep -v -e job.jsonl -e spool", folder);
    FILE *left = popen(command, "re");
    assert_non_null(left);
    assert_null(fgets(line, sizeof line, left));
    pclose(left);
}

static void what_is_no_regular_file_is_not_replaced(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    close_job(LEDGER_CANCELLED);
    assert_int_equal(mkdir(out_path, 0700), 0);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_CONFLICT);
}

/* Another `run` with the same --out was faster; either of the two files stops both. */
static void a_file_that_is_to_be_new_replaces_none(void **unused)
{
    (void)unused;
    fl_err err;
    struct stat at;
    const char *paths[] = { out_path, errors_path };
    for (int taken = 0; taken < 2; taken++) {
        output_files *files = NULL;
        assert_int_equal(output_files_open(&files, (output_place){ out_path, true }, (output_place){ errors_path, true }, "job-1", &err), FL_OK);
        FILE *other = fopen(paths[taken], "we");
        assert_non_null(other);
        fputs("precious\n", other);
        fclose(other);
        assert_int_equal(output_files_name(files, &err), FL_CONFLICT);
        assert_non_null(strstr(err.text, "--force"));
        output_files_close(files);
        char *kept = fixture_read(paths[taken], NULL);
        assert_string_equal(kept, "precious\n");
        free(kept);
        assert_int_not_equal(stat(paths[1 - taken], &at), 0);
        assert_int_equal(unlink(paths[taken]), 0);
    }
}

static void an_edited_line_is_found_and_its_row_is_named(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    json_t *report = NULL;
    size_t n = 0;
    pin();
    commit_rows(0, (uint64_t)n_rows);
    close_job(LEDGER_COMPLETED);
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_OK);
    char *out = fixture_read(out_path, &n), *at = strstr(out, "\"custom_id\":\"r12\"");
    assert_non_null(at);
    *strstr(at, "length") = 'L';
    FILE *file = fopen(out_path, "we");
    assert_non_null(file);
    fwrite(out, 1, n, file);
    fclose(file);
    free(out);
    assert_int_equal(job_verify(job->dir, job->ledger_dir, out_path, errors_path, &report, &err), FL_OK);
    assert_string_equal(json_string_value(json_object_get(report, "state")), "broken");
    assert_non_null(strstr(json_string_value(json_array_get(json_object_get(report, "findings"), 0)), "r12"));
    json_decref(report);
}

static void what_a_killed_process_left_does_not_stay(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    char left[2][128];
    close_job(LEDGER_CANCELLED);
    for (int i = 0; i < 2; i++) {
        snprintf(left[i], sizeof left[i], "%s.tmp-job-0000000000000001", i ? errors_path : out_path);
        fclose(fopen(left[i], "we"));
    }
    assert_int_equal(fixture_write_outputs(job->dir, job->ledger_dir, out_path, errors_path, 2, &counts, &err), FL_OK);
    for (int i = 0; i < 2; i++) assert_int_not_equal(access(left[i], F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_completed_job_has_a_line_for_every_row_in_input_order, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancelled_job_keeps_what_is_finished, setup, teardown),
        cmocka_unit_test_setup_teardown(a_job_cancelled_before_any_worker_came_has_errors_only, setup, teardown),
        cmocka_unit_test_setup_teardown(an_open_job_has_no_outputs, setup, teardown),
        cmocka_unit_test_setup_teardown(a_completed_job_that_lacks_a_result_is_corrupt_and_leaves_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_killed_process_left_does_not_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_no_regular_file_is_not_replaced, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_to_be_new_replaces_none, setup, teardown),
        cmocka_unit_test_setup_teardown(an_edited_line_is_found_and_its_row_is_named, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
