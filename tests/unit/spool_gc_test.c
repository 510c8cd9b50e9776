/* What a spool holds that nobody needs, told apart from what counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "coordinator/spool_gc.h"
#include "tests/job_fixture.h"

#define JOB_DIR "jobs/job-0000000000000005"
static char folder[32];
static spool *the_spool;

static int setup(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tokenfleet-sgc-XXXXXX");
    return mkdtemp(folder) && spool_open(&the_spool, folder, SPOOL_CREATE, NULL) == FL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    spool_close(the_spool);
    fixture_remove(folder);
    return 0;
}

static void make(const char *name, int n_bytes)          /* 0 bytes: a folder */
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (n_bytes == 0) {
        assert_int_equal(mkdir(path, 0700), 0);
        return;
    }
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    for (int i = 0; i < n_bytes; i++) fputc('x', file);
    fclose(file);
}

typedef struct { char names[600]; uint64_t bytes; bool removes; } found;

static fl_status see(void *context, const gc_item *item, fl_err *err)
{
    found *f = context;
    const char *name = item->path + strlen(folder) + 1;
    size_t n = strlen(f->names);
    snprintf(f->names + n, sizeof f->names - n, "%s;", name);
    f->bytes += item->bytes;
    assert_true(item->what[0] != '\0');
    return f->removes ? spool_tree_remove(item->path, err) : FL_OK;
}

static found walk(uint32_t generation, bool is_busy, bool removes)
{
    fl_err err = { 0 };
    found f = { .removes = removes };
    gc_job job = { .id = { 5 }, .generation = generation, .is_busy = is_busy };
    if (spool_gc_walk(the_spool, &job, 1, see, &f, &err) != FL_OK) fail_msg("%s", err.text);
    return f;
}

static void make_spool(void)
{
    make(JOB_DIR, 0);
    make(JOB_DIR "/job.jsonl", 5);
    make(JOB_DIR "/out.jsonl", 5);
    make(JOB_DIR "/ledger", 0);
    make(JOB_DIR "/ledger/000001.seg", 100);
    make(JOB_DIR "/ledger.2", 0);
    make(JOB_DIR "/ledger.2/000001.seg", 10);
    make("jobs/notes.txt", 3);
    make("run.json", 3);
}

static void only_the_ledger_that_the_journal_names_counts(void **state)
{
    (void)state;
    make_spool();
    found f = walk(2, false, false);
    assert_string_equal(f.names, JOB_DIR "/ledger;");
    assert_int_equal(f.bytes, 100);
    f = walk(1, false, false);
    assert_string_equal(f.names, JOB_DIR "/ledger.2;");
    f = walk(1, true, false);
    assert_string_equal(f.names, "");
    f = walk(2, false, true);
    f = walk(2, false, false);
    assert_string_equal(f.names, "");
}

static void folders_of_no_job_and_temporary_files_are_left_over(void **state)
{
    (void)state;
    make_spool();
    make("jobs/job-0000000000000009", 0);
    make("jobs/job-0000000000000009/job.jsonl", 7);
    make(JOB_DIR "/summary.json.tmp", 1);
    make(JOB_DIR "/out.jsonl.tmp-job-0000000000000005", 2);
    make("endpoint.tmp", 4);
    found f = walk(2, true, false);
    assert_int_equal(f.bytes, 11);
    f = walk(2, false, true);
    assert_int_equal(f.bytes, 100 + 7 + 1 + 2 + 4);
    f = walk(2, false, false);
    assert_string_equal(f.names, "");
    char path[200];
    snprintf(path, sizeof path, "%s/" JOB_DIR "/ledger.2/000001.seg", folder);
    assert_int_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(only_the_ledger_that_the_journal_names_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(folders_of_no_job_and_temporary_files_are_left_over, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
