/* The journal: transactions, order, and content that is not believed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coordinator/journal.h"

static int n_syncs;                                      /* this program's own syncs stand before the C library's */

int fdatasync(int fd)
{
    n_syncs++;
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    n_syncs++;
    return (int)syscall(SYS_fsync, fd);
}

static char folder[] = "/tmp/tokenfleet-journal-XXXXXX";
static char path[64];

static int setup(void **state)
{
    (void)state;
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/journal.db", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };
    char file[80];
    for (int i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s%s", path, suffixes[i]);
        unlink(file);
    }
    return rmdir(folder);
}

static void must(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s: %s", fl_status_name(st), err->text);
}

static journal *open_it(void)
{
    fl_err err = { 0 };
    journal *j = NULL;
    must(journal_open(&j, path, &err), &err);
    return j;
}

static void perform(journal *j, const action *a)
{
    fl_err err = { 0 };
    must(journal_perform(j, a, &err), &err);
}

static void write_some(void)
{
    fl_err err = { 0 };
    journal *j = open_it();
    lease_item items[] = { { { 3 }, 0, 4 }, { { 3 }, 6, 7 }, { { 4000000000u }, 1023, 1024 } };
    must(journal_begin(j, &err), &err);
    must(journal_job_add(j, (job_id){ UINT64_MAX }, 1700000000, "first", &err), &err);
    must(journal_job_add(j, (job_id){ 5 }, 1700000001, "second", &err), &err);
    assert_int_equal(journal_job_add(j, (job_id){ 5 }, 1, "again", &err), FL_CONFLICT);
    perform(j, &(action){ .type = ACTION_LEASE_SAVE, .lease = { 1 }, .job = { 5 }, .worker = { UINT64_MAX - 1 }, .items = items, .n_items = 3 });
    perform(j, &(action){ .type = ACTION_LEASE_SAVE, .lease = { 2 }, .job = { 5 }, .worker = { 8 }, .items = items, .n_items = 1 });
    perform(j, &(action){ .type = ACTION_NEXT_LEASE, .value = 3 });
    perform(j, &(action){ .type = ACTION_JOB_STATE, .job = { UINT64_MAX }, .state = JOB_COMPLETED });
    must(journal_commit(j, &err), &err);
    journal_close(j);
}

typedef struct { int n; job_id id[4]; job_state job_states[4]; uint64_t lease[4], worker[4]; uint32_t n_items[4]; lease_item last; } seen;

static fl_status see_job(void *context, const journal_job *job, fl_err *err)
{
    (void)err;
    seen *s = context;
    s->id[s->n] = job->id;
    s->job_states[s->n++] = job->state;
    return FL_OK;
}

static fl_status see_lease(void *context, lease_id lease, job_id job, worker_id worker, const lease_item *items, uint32_t n_items, fl_err *err)
{
    (void)err;
    (void)job;
    seen *s = context;
    s->lease[s->n] = lease.v;
    s->worker[s->n] = worker.v;
    s->last = items[n_items - 1];
    s->n_items[s->n++] = n_items;
    return FL_OK;
}

static void what_was_committed_is_there_after_reopening(void **state)
{
    (void)state;
    fl_err err = { 0 };
    write_some();
    journal *j = open_it();
    uint64_t next = 0;
    seen jobs = { 0 }, leases = { 0 };
    must(journal_next_lease(j, &next, &err), &err);
    assert_int_equal(next, 3);
    must(journal_jobs(j, see_job, &jobs, &err), &err);
    assert_int_equal(jobs.n, 2);
    assert_true(jobs.id[0].v == UINT64_MAX && jobs.id[1].v == 5);
    assert_true(jobs.job_states[0] == JOB_COMPLETED && jobs.job_states[1] == JOB_OPEN);
    must(journal_leases(j, see_lease, &leases, &err), &err);
    assert_int_equal(leases.n, 2);
    assert_true(leases.lease[0] == 2 && leases.lease[1] == 1);       /* newest first */
    assert_true(leases.worker[1] == UINT64_MAX - 1);
    assert_int_equal(leases.n_items[1], 3);
    assert_true(leases.last.row.v == 4000000000u && leases.last.sample_lo == 1023 && leases.last.sample_hi == 1024);
    journal_close(j);
}

static void a_transaction_that_was_not_committed_leaves_nothing(void **state)
{
    (void)state;
    fl_err err = { 0 };
    write_some();
    journal *j = open_it();
    must(journal_begin(j, &err), &err);
    perform(j, &(action){ .type = ACTION_LEASE_END, .lease = { 1 } });
    perform(j, &(action){ .type = ACTION_NEXT_LEASE, .value = 99 });
    journal_rollback(j);
    must(journal_begin(j, &err), &err);
    perform(j, &(action){ .type = ACTION_LEASE_END, .lease = { 2 } });
    journal_close(j);                                    /* as a crash would */
    j = open_it();
    uint64_t next = 0;
    seen leases = { 0 };
    must(journal_next_lease(j, &next, &err), &err);
    must(journal_leases(j, see_lease, &leases, &err), &err);
    assert_int_equal(next, 3);
    assert_int_equal(leases.n, 2);
    must(journal_jobs_delete(j, &(job_id){ 5 }, 1, &err), &err);
    memset(&leases, 0, sizeof leases);
    must(journal_leases(j, see_lease, &leases, &err), &err);
    assert_int_equal(leases.n, 0);
    journal_close(j);
}

/* The disk is waited for once, however many jobs go. */
static void many_jobs_are_deleted_with_one_sync(void **state)
{
    (void)state;
    fl_err err = { 0 };
    job_id ids[300];
    seen jobs = { 0 };
    write_some();
    journal *j = open_it();
    must(journal_begin(j, &err), &err);
    for (uint64_t i = 0; i < 300; i++) {
        ids[i] = (job_id){ 1000 + i };
        must(journal_job_add(j, ids[i], 1700000002, "one of many", &err), &err);
    }
    must(journal_commit(j, &err), &err);
    ids[299] = (job_id){ 5 };                            /* it has leases */
    n_syncs = 0;
    must(journal_jobs_delete(j, ids, 300, &err), &err);
    assert_in_range(n_syncs, 1, 3);
    must(journal_jobs(j, see_job, &jobs, &err), &err);
    assert_int_equal(jobs.n, 2);
    assert_int_equal(jobs.id[1].v, 1299);
    memset(&jobs, 0, sizeof jobs);
    must(journal_leases(j, see_lease, &jobs, &err), &err);
    assert_int_equal(jobs.n, 0);
    journal_close(j);
}

static void edit(const char *sql)
{
    sqlite3 *db = NULL;
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, NULL) != SQLITE_OK) fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    sqlite3_close(db);
}

static void content_out_of_range_is_named(void **state)
{
    (void)state;
    static const struct { const char *sql, *word; bool in_jobs; } cases[] = {
        { "UPDATE leases SET items = x'00'", "items", false },
        { "UPDATE leases SET items = x'000001000001'", "items", false },
        { "UPDATE leases SET items = x'ffffffffffffffffff0000'", "items", false },
        { "UPDATE leases SET items = x'03008108'", "items", false },
        { "UPDATE leases SET items = 'text'", "items", false },
        { "UPDATE leases SET items = x''", "items", false },
        { "UPDATE leases SET id = 77 WHERE id = 2", "lease 77", false },
        { "UPDATE leases SET worker = 0", "worker", false },
        { "UPDATE leases SET job = 'x'", "job", false },
        { "UPDATE jobs SET state = 9", "state", true },
        { "UPDATE jobs SET state = 'open'", "state", true },
        { "UPDATE jobs SET created_s = -4", "created_s", true },
        { "UPDATE jobs SET generation = 0", "generation", true },
        { "UPDATE jobs SET name = x'00'", "name", true },
        { "UPDATE meta SET value = 0 WHERE key = 'next_lease'", "next_lease", false },
        { "DELETE FROM meta WHERE key = 'next_lease'", "next_lease", false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fl_err err = { 0 };
        seen s = { 0 };
        write_some();
        edit(cases[i].sql);
        journal *j = open_it();
        fl_status st = cases[i].in_jobs ? journal_jobs(j, see_job, &s, &err) : journal_leases(j, see_lease, &s, &err);
        if (st != FL_CORRUPT || !strstr(err.text, cases[i].word)) fail_msg("%s: %s: %s", cases[i].sql, fl_status_name(st), err.text);
        journal_close(j);
        teardown(NULL);
        assert_int_equal(setup(NULL), 0);
    }
}

static void a_newer_schema_and_a_foreign_file_are_refused(void **state)
{
    (void)state;
    fl_err err = { 0 };
    journal *j = NULL;
    write_some();
    edit("UPDATE meta SET value = 3 WHERE key = 'version'");
    assert_int_equal(journal_open(&j, path, &err), FL_UNSUPPORTED);
    assert_non_null(strstr(err.text, "version 3"));
    edit("DROP TABLE meta");
    assert_int_equal(journal_open(&j, path, &err), FL_CORRUPT);
    teardown(NULL);
    assert_int_equal(setup(NULL), 0);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 1000; i++) fputs("not a database ", f);
    fclose(f);
    assert_int_equal(journal_open(&j, path, &err), FL_CORRUPT);
    unlink(path);
    assert_int_equal(journal_open_read_only(&j, path, &err), FL_NOT_FOUND);
}

static void views_and_triggers_are_refused(void **state)
{
    (void)state;
    static const char *const hostile[] = {               /* the first one never ends */
        "DROP TABLE leases; CREATE VIEW leases AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS id, 7 AS job, 5 AS worker, x'030002' AS items FROM n",
        "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM leases; END",
        "ALTER TABLE jobs ADD COLUMN made TEXT GENERATED ALWAYS AS (zeroblob(1000000000)) VIRTUAL",
    };
    for (size_t i = 0; i < sizeof hostile / sizeof *hostile; i++) {
        fl_err err = { 0 };
        journal *j = NULL;
        write_some();
        edit(hostile[i]);
        assert_int_equal(journal_open_read_only(&j, path, &err), FL_CORRUPT);
        assert_int_equal(journal_open(&j, path, &err), FL_CORRUPT);
        assert_non_null(strstr(err.text, "views, triggers"));
        teardown(NULL);
        assert_int_equal(setup(NULL), 0);
    }
}

static fl_status see_generation(void *context, const journal_job *job, fl_err *err)
{
    (void)err;
    if (job->id.v == UINT64_MAX) *(journal_job *)context = *job;
    return FL_OK;
}

static void a_retried_job_is_open_with_its_new_ledger_and_without_leases(void **state)
{
    (void)state;
    fl_err err = { 0 };
    journal_job job = { 0 };
    seen leases = { 0 };
    write_some();
    journal *j = open_it();
    must(journal_jobs(j, see_generation, &job, &err), &err);
    assert_int_equal(job.generation, 1);
    must(journal_begin(j, &err), &err);
    must(journal_job_reopen(j, (job_id){ UINT64_MAX }, 2, &err), &err);
    must(journal_job_reopen(j, (job_id){ 5 }, 3, &err), &err);
    must(journal_commit(j, &err), &err);
    journal_close(j);
    must(journal_open_read_only(&j, path, &err), &err);
    must(journal_jobs(j, see_generation, &job, &err), &err);
    must(journal_leases(j, see_lease, &leases, &err), &err);
    assert_true(job.generation == 2 && job.state == JOB_OPEN);
    assert_int_equal(leases.n, 0);
    journal_close(j);
}

/* A file of the schema before generations: read as it is, brought up when it is opened for writing. */
static void a_journal_of_the_first_schema_is_read_and_brought_up(void **state)
{
    (void)state;
    fl_err err = { 0 };
    journal_job job = { 0 };
    journal *j = NULL;
    write_some();
    edit("ALTER TABLE jobs DROP COLUMN generation; UPDATE meta SET value = 1 WHERE key = 'version'");
    must(journal_open_read_only(&j, path, &err), &err);
    must(journal_jobs(j, see_generation, &job, &err), &err);
    assert_true(job.generation == 1 && job.state == JOB_COMPLETED);
    journal_close(j);
    j = open_it();
    must(journal_begin(j, &err), &err);
    must(journal_job_reopen(j, (job_id){ UINT64_MAX }, 2, &err), &err);
    must(journal_commit(j, &err), &err);
    journal_close(j);
    j = open_it();
    must(journal_jobs(j, see_generation, &job, &err), &err);
    assert_int_equal(job.generation, 2);
    journal_close(j);
}

static void only_its_owner_may_read_it(void **state)
{
    (void)state;
    struct stat at;
    char wal[80];
    mode_t before = umask(022);
    journal *j = open_it();
    snprintf(wal, sizeof wal, "%s-wal", path);
    assert_int_equal(stat(path, &at), 0);
    assert_int_equal(at.st_mode & 0777, 0600);
    assert_int_equal(stat(wal, &at), 0);
    assert_int_equal(at.st_mode & 0777, 0600);
    journal_close(j);
    chmod(path, 0644);
    journal_close(open_it());
    assert_int_equal(stat(path, &at), 0);
    assert_int_equal(at.st_mode & 0777, 0600);
    umask(before);
}

static void a_second_holder_is_refused(void **state)
{
    (void)state;
    fl_err err = { 0 };
    journal *first = open_it(), *second = NULL;
    must(journal_begin(first, &err), &err);
    must(journal_job_add(first, (job_id){ 1 }, 1, "x", &err), &err);
    must(journal_commit(first, &err), &err);
    assert_int_equal(journal_open(&second, path, &err), FL_CONFLICT);
    journal_close(first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(what_was_committed_is_there_after_reopening), T(a_transaction_that_was_not_committed_leaves_nothing), T(content_out_of_range_is_named),
        T(a_newer_schema_and_a_foreign_file_are_refused), T(views_and_triggers_are_refused), T(a_second_holder_is_refused), T(many_jobs_are_deleted_with_one_sync),
        T(a_retried_job_is_open_with_its_new_ledger_and_without_leases), T(a_journal_of_the_first_schema_is_read_and_brought_up), T(only_its_owner_may_read_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
