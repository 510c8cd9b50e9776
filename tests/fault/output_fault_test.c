/* The writer of a job's outputs: behind a ledger that grows, with a disk that has no room at its n-th write, stopped in between. write and fsync of this program
 * stand before the C library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include "coordinator/output_writer.h"
#include "tests/job_fixture.h"

#define N_GOOD 1200                      /* several batches */

static atomic_int writes_left = -1;      /* the write that finds 0 has no room; -1: never */

static bool has_room(void)
{
    return atomic_load(&writes_left) < 0 || atomic_fetch_sub(&writes_left, 1) > 0;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (has_room()) return syscall(SYS_write, fd, data, n);
    errno = ENOSPC;
    return -1;
}

int fsync(int fd)
{
    if (has_room()) return (int)syscall(SYS_fsync, fd);
    errno = ENOSPC;
    return -1;
}

static char folder[32], spool_at[64], job_at[64], out_at[64], errors_at[64], whole_at[64], whole_errors_at[64];
static spool *the_spool;
static stored_job *job;

static int setup(void **unused)
{
    (void)unused;
    strcpy(folder, "/tmp/tokenfleet-out-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(spool_at, sizeof spool_at, "%s/spool", folder);
    snprintf(job_at, sizeof job_at, "%s/job.jsonl", folder);
    snprintf(out_at, sizeof out_at, "%s/out", folder);
    snprintf(errors_at, sizeof errors_at, "%s/errors", folder);
    snprintf(whole_at, sizeof whole_at, "%s/whole", folder);
    snprintf(whole_errors_at, sizeof whole_errors_at, "%s/whole.errors", folder);
    fixture_write_job(job_at, N_GOOD);
    fl_err err;
    ingest_report report;
    job_settings settings = { .name = "job.jsonl", .seed = 7 };
    if (spool_open(&the_spool, spool_at, SPOOL_CREATE, &err) != FL_OK) return -1;
    if (job_store_create(&job, the_spool, (job_id){ 1 }, &settings, &(job_draft_options){ .path = job_at }, &report, &err) != FL_OK) return -1;
    return fixture_pin(job->ledger, &err) == FL_OK && ledger_commit(job->ledger, &err) == FL_OK ? 0 : -1;
}

static int teardown(void **unused)
{
    (void)unused;
    atomic_store(&writes_left, -1);
    job_store_close(job);
    spool_close(the_spool);
    fixture_remove(folder);
    return 0;
}

static void must(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s: %s", fl_status_name(st), err->text);
}

/* Results of rows lo .. hi - 1 that were good, the last row first; a commit at the end. */
static void commit_rows(uint64_t lo, uint64_t hi)
{
    fl_err err;
    for (uint64_t row = hi; row-- > lo; ) {
        if (row_table_failed(job->table, (row_index){ row })) continue;
        for (uint32_t sample = 0; sample < row_table_samples(job->table, (row_index){ row }); sample++) {
            size_t n_bytes = 0;
            uint8_t *body = fixture_result(row, sample, &n_bytes);
            must(ledger_append(job->ledger, &(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .lease = { 1 }, .sample = sample, .n_pieces = 1, .n_tokens = 3,
                                                              .body = { body, n_bytes } }, &err), &err);
            free(body);
        }
    }
    must(ledger_commit(job->ledger, &err), &err);
}

static void close_job(void)
{
    fl_err err;
    must(ledger_append(job->ledger, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_COMPLETED }, &err), &err);
    must(ledger_commit(job->ledger, &err), &err);
}

static output_writer *start(bool is_closed, int n_threads)
{
    output_writer *w = NULL;
    fl_err err;
    output_writer_options options = { job->dir, job->ledger_dir, "job-1", { out_at, false }, { errors_at, false }, n_threads };
    must(output_writer_start(&w, &options, ledger_marked(job->ledger), is_closed, &err), &err);
    return w;
}

static fl_status end(output_writer *w, job_counts *counts, fl_err *err)
{
    fl_status st;
    while ((st = output_writer_poll(w, counts, err)) == FL_AGAIN) poll(NULL, 0, 1);
    output_writer_close(w);
    return st;
}

static void wait_rows(output_writer *w, uint64_t n)
{
    for (int i = 0; i < 10000 && output_writer_written(w).rows < n; i++) poll(NULL, 0, 1);
    assert_int_equal(output_writer_written(w).rows, n);
}

static void assert_whole(void)
{
    fl_err err;
    job_counts counts;
    must(fixture_write_outputs(job->dir, job->ledger_dir, whole_at, whole_errors_at, 1, &counts, &err), &err);
    char *got[2] = { fixture_read(out_at, NULL), fixture_read(errors_at, NULL) }, *whole[2] = { fixture_read(whole_at, NULL), fixture_read(whole_errors_at, NULL) };
    for (int i = 0; i < 2; i++) {
        assert_non_null(got[i]);
        assert_string_equal(got[i], whole[i]);
        free(got[i]);
        free(whole[i]);
    }
}

static void assert_nothing_left(void)
{
    char temporary[96];
    for (int i = 0; i < 2; i++) {
        snprintf(temporary, sizeof temporary, "%s.tmp-job-1", i ? errors_at : out_at);
        assert_int_not_equal(access(temporary, F_OK), 0);
        assert_int_not_equal(access(i ? errors_at : out_at, F_OK), 0);
    }
}

static void lines_come_as_far_as_the_first_rows_are_finished(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    char temporary[96];
    uint64_t n_rows = row_table_n_rows(job->table);
    output_writer *w = start(false, 3);
    commit_rows(5, 700);
    output_writer_advance(w, ledger_marked(job->ledger), false);
    wait_rows(w, 0);                                     /* row 0 is not finished */
    commit_rows(0, 5);
    output_writer_advance(w, ledger_marked(job->ledger), false);
    wait_rows(w, 700);
    output_written before = output_writer_written(w);
    snprintf(temporary, sizeof temporary, "%s.tmp-job-1", out_at);
    size_t n = 0;
    char *early = fixture_read(temporary, &n);
    assert_non_null(early);
    assert_int_equal(n, before.bytes[0]);
    commit_rows(700, n_rows);
    output_writer_advance(w, ledger_marked(job->ledger), false);
    wait_rows(w, n_rows);
    assert_int_equal(output_writer_poll(w, &counts, &err), FL_AGAIN);
    assert_int_not_equal(access(out_at, F_OK), 0);
    close_job();
    output_writer_advance(w, ledger_marked(job->ledger), true);
    must(end(w, &counts, &err), &err);
    assert_int_equal(counts.rows, n_rows);
    assert_int_equal(counts.completed, N_GOOD);
    assert_whole();
    char *out = fixture_read(out_at, NULL);
    assert_memory_equal(out, early, n);
    free(out);
    free(early);
}

static void a_writer_that_is_stopped_leaves_nothing_and_the_next_one_begins_anew(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    output_writer *w = start(false, 2);
    commit_rows(0, 300);
    output_writer_advance(w, ledger_marked(job->ledger), false);
    wait_rows(w, 300);
    output_writer_stop(w);
    assert_int_equal(end(w, &counts, &err), FL_CLOSED);
    assert_nothing_left();
    commit_rows(300, row_table_n_rows(job->table));
    close_job();
    must(end(start(true, 2), &counts, &err), &err);
    assert_whole();
}

static void a_disk_without_room_at_any_write_leaves_nothing_and_later_gives_the_same_bytes(void **unused)
{
    (void)unused;
    fl_err err;
    job_counts counts;
    int n = 0;
    commit_rows(0, row_table_n_rows(job->table));
    close_job();
    for (;; n++) {
        atomic_store(&writes_left, n);
        fl_status st = end(start(true, 2), &counts, &err);
        bool met_it = atomic_load(&writes_left) < 0;
        atomic_store(&writes_left, -1);
        if (!met_it) {
            must(st, &err);
            break;
        }
        if (st == FL_OK) continue;                       /* the sync of the folder behind the last name */
        assert_int_equal(st, FL_DISK_FULL);
        if (access(errors_at, F_OK) == 0) unlink(errors_at);     /* it had its name when OUT failed */
        if (access(out_at, F_OK) == 0) unlink(out_at);
        assert_nothing_left();
    }
    assert_true(n > 3);
    assert_whole();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(lines_come_as_far_as_the_first_rows_are_finished, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_that_is_stopped_leaves_nothing_and_the_next_one_begins_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_without_room_at_any_write_leaves_nothing_and_later_gives_the_same_bytes, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
