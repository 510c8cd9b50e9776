/* A job that comes in pieces: its thread makes it, the queue has an end, and one that is given up leaves nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "coordinator/upload.h"

static char dir[64];
static spool *the_spool;
static const job_settings settings = { .name = "job.jsonl", .now_s = 1 };

static int set_up(void **state)
{
    (void)state;
    fl_err err;
    strcpy(dir, "/tmp/upload_test.XXXXXX");
    return mkdtemp(dir) && spool_open(&the_spool, dir, SPOOL_CREATE | SPOOL_UNSAFE, &err) == FL_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    char command[128];
    spool_close(the_spool);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

static bool has_folder(uint64_t id)
{
    struct stat at;
    char *path = spool_job_path(the_spool, (job_id){ id }, NULL);
    bool has = stat(path, &at) == 0;
    free(path);
    return has;
}

static upload *begin(uint64_t id)
{
    upload *u = NULL;
    fl_err err;
    assert_int_equal(upload_open(&u, the_spool, (job_id){ id }, &settings, &err), FL_OK);
    assert_int_equal(upload_job(u).v, id);
    assert_int_equal(upload_offset(u), 0);
    assert_int_equal(upload_limit(u), UPLOAD_QUEUE_BYTES);
    return u;
}

static fl_status wait_for(upload *u, stored_job **job, ingest_report *report, fl_err *err)
{
    fl_status st = FL_AGAIN;
    for (int i = 0; i < 3000 && (st = upload_poll(u, job, report, err)) == FL_AGAIN; i++) poll(NULL, 0, 10);
    return st;
}

static void pieces_become_a_job(void **state)
{
    (void)state;
    static const char line[] = "{\"prompt\":\"a text\"}\n";
    upload *u = begin(1);
    stored_job *job = NULL;
    ingest_report report;
    fl_err err;
    uint64_t n_rows = 0;
    while (n_rows < 2000) {
        if (upload_offset(u) + sizeof line - 1 > upload_limit(u)) continue;
        assert_int_equal(upload_push(u, line, sizeof line - 1, &err), FL_OK);
        n_rows++;
    }
    assert_int_equal(upload_poll(u, &job, &report, &err), FL_AGAIN);
    assert_false(upload_has_ended(u));
    upload_end(u);
    assert_true(upload_has_ended(u));
    assert_int_equal(upload_push(u, line, sizeof line - 1, &err), FL_INVALID);
    if (wait_for(u, &job, &report, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(report.n_rows, n_rows);
    assert_int_equal(job->counts.rows, n_rows);
    job_store_close(job);
    upload_close(u);
    assert_true(has_folder(1));                          /* it was taken: closing the upload leaves it alone */
}

static void what_does_not_become_a_job_leaves_nothing(void **state)
{
    (void)state;
    static const char gzip[] = "\x1F\x8B\x08\0\0\0\0\0\0\0nonsense nonsense";
    upload *u = begin(2);
    stored_job *job = NULL;
    ingest_report report;
    fl_err err;
    assert_int_equal(upload_push(u, gzip, sizeof gzip - 1, &err), FL_OK);
    assert_int_equal(wait_for(u, &job, &report, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "job.jsonl is damaged gzip data"));
    assert_int_equal(upload_push(u, gzip, 1, &err), FL_CORRUPT);     /* pieces that come later hear of it */
    assert_true(upload_is_done(u));
    assert_false(has_folder(2));
    upload_close(u);

    u = begin(3);                                        /* empty */
    upload_end(u);
    assert_int_equal(wait_for(u, &job, &report, &err), FL_INVALID);
    upload_close(u);
    assert_false(has_folder(3));

    u = begin(4);                                        /* made, and nobody took it */
    assert_int_equal(upload_push(u, "{\"prompt\":\"a\"}", 14, &err), FL_OK);
    upload_end(u);
    for (int i = 0; i < 3000 && !upload_is_done(u); i++) poll(NULL, 0, 10);
    assert_true(has_folder(4));
    upload_close(u);
    assert_false(has_folder(4));
}

static void the_queue_has_an_end_and_an_upload_can_be_given_up(void **state)
{
    (void)state;
    size_t n = 1 << 20;
    char *piece = malloc(n);
    upload *u = begin(5);
    stored_job *job = NULL;
    ingest_report report;
    fl_err err;
    assert_non_null(piece);
    memset(piece, 'x', n);
    for (int i = 0; i < 200; i++) {                      /* the client is faster than the parser: it asks before it sends */
        while (upload_offset(u) + n > upload_limit(u)) {
            assert_int_equal(upload_push(u, piece, n, &err), FL_INVALID);
            poll(NULL, 0, 1);
        }
        assert_int_equal(upload_push(u, piece, n, &err), FL_OK);
        assert_true(upload_offset(u) <= upload_limit(u));
    }
    upload_abandon(u);
    assert_int_equal(wait_for(u, &job, &report, &err), FL_CLOSED);
    upload_close(u);
    assert_false(has_folder(5));
    free(piece);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(pieces_become_a_job, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_become_a_job_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_queue_has_an_end_and_an_upload_can_be_given_up, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
