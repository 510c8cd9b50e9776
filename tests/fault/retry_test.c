/* A closed job that is to run again, cut off or failing at every write, sync, rename and removal: before the journal's transaction the old closed job is what a
 * restart finds, behind it the new open one, and nothing is left over. The calls of this program stand before the C library's, also those SQLite makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include "coordinator/daemon.h"
#include "coordinator/job_retry.h"
#include "coordinator/job_verify.h"
#include "coordinator/output_file.h"
#include "coordinator/spool_gc.h"
#include "tests/job_fixture.h"

#define N_GOOD 30
#define DIED 9

/* ---- calls that fail ---- */

static int calls_left = -1;                              /* the call that finds 0 does not happen; -1: all do */
static int failure;                                      /* its errno; 0: the process ends there */
static bool has_failed;

static bool fails(void)
{
    if (calls_left < 0 || calls_left-- != 0) return false;
    if (failure == 0) _exit(DIED);
    has_failed = true;
    errno = failure;
    return true;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset) { return fails() ? -1 : syscall(SYS_pwrite64, fd, data, n, offset); }
ssize_t pwrite64(int fd, const void *data, size_t n, off_t offset) { return fails() ? -1 : syscall(SYS_pwrite64, fd, data, n, offset); }
int fdatasync(int fd) { return fails() ? -1 : (int)syscall(SYS_fdatasync, fd); }
int fsync(int fd) { return fails() ? -1 : (int)syscall(SYS_fsync, fd); }
int mkdir(const char *path, mode_t mode) { return fails() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode); }
int unlink(const char *path) { return fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0); }
int rmdir(const char *path) { return fails() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }

int remove(const char *path)
{
    if (fails()) return -1;
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0) return 0;
    return errno == EISDIR ? (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : -1;
}

/* ---- a closed job of which some rows failed ---- */

static char folder[32], spool_at[64], job_at[64], out_at[64], errors_at[64];
static const job_id the_id = { 0x77 };

static void must(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s: %s", fl_status_name(st), err->text);
}

static fl_status see(void *context, const journal_job *job, fl_err *err)
{
    (void)err;
    *(journal_job *)context = *job;
    ((journal_job *)context)->name = "";
    return FL_OK;
}

typedef struct { spool *spool; journal *journal; journal_job named; } open_spool;

static fl_status open_all(open_spool *o, fl_err *err)
{
    *o = (open_spool){ 0 };
    fl_status st = spool_open(&o->spool, spool_at, SPOOL_CREATE, err);
    char *path = st == FL_OK ? spool_path(o->spool, "journal.db") : NULL;
    if (st == FL_OK) st = journal_open(&o->journal, path, err);
    if (st == FL_OK) st = journal_jobs(o->journal, see, &o->named, err);
    free(path);
    return st;
}

static void close_all(open_spool *o)
{
    journal_close(o->journal);
    spool_close(o->spool);
}

/* A result of every sample in pieces of two, but of rows whose number is in `left_out`. */
static void add_results(ledger *l, const stored_job *job, bool (*left_out)(uint64_t row), bool (*again)(uint64_t row))
{
    fl_err err;
    for (row_index row = { 0 }; row.v < row_table_n_rows(job->table); row.v++) {
        rows_entry entry;
        must(rows_get(job->rows, row, &entry, &err), &err);
        if (entry.n_samples == 0 || left_out(row.v) || (again && !again(row.v))) continue;
        for (uint32_t sample = 0; sample < entry.n_samples; sample++) {
            size_t n_bytes = 0;
            uint8_t *body = fixture_result(row.v, sample, &n_bytes);
            ledger_record r = { .kind = LEDGER_RESULT, .row = row, .lease = { 1 + row.v }, .sample = sample, .n_pieces = 2, .n_tokens = 3, .body = { body, 2 } };
            must(ledger_append(l, &r, &err), &err);
            r.piece = 1;
            r.body = (fl_bytes){ body + 2, n_bytes - 2 };
            must(ledger_append(l, &r, &err), &err);
            free(body);
        }
    }
}

static bool is_seventh(uint64_t row) { return row % 7 == 3; }
static bool is_none(uint64_t row) { (void)row; return false; }

static void close_ledger(stored_job *job, ledger_cause cause)
{
    fl_err err;
    must(ledger_append(job->ledger, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = cause }, &err), &err);
    must(ledger_commit(job->ledger, &err), &err);
}

/* Rows of is_failed have a ROW_ERROR, or (cause cancelled) nothing at all. */
static void make_job(bool (*is_failed)(uint64_t), ledger_cause cause)
{
    fl_err err;
    open_spool o;
    stored_job *job = NULL;
    ingest_report report;
    job_settings settings = { .name = "job.jsonl", .seed = 7 };
    must(open_all(&o, &err), &err);
    must(job_store_create(&job, o.spool, the_id, &settings, &(job_draft_options){ .path = job_at }, &report, &err), &err);
    must(journal_begin(o.journal, &err), &err);
    must(journal_job_add(o.journal, the_id, 5, "job.jsonl", &err), &err);
    must(journal_perform(o.journal, &(action){ .type = ACTION_JOB_STATE, .job = the_id, .state = cause == LEDGER_COMPLETED ? JOB_COMPLETED : JOB_CANCELLED }, &err), &err);
    must(journal_commit(o.journal, &err), &err);
    must(fixture_pin(job->ledger, &err), &err);
    add_results(job->ledger, job, is_failed, NULL);
    for (row_index row = { 0 }; cause == LEDGER_COMPLETED && row.v < row_table_n_rows(job->table); row.v++) {
        rows_entry entry;
        must(rows_get(job->rows, row, &entry, &err), &err);
        ledger_record r = { .kind = LEDGER_ROW_ERROR, .row = row, .code = ROW_CRASH_QUARANTINED, .body = { "crashed", 7 } };
        if (entry.n_samples && is_failed(row.v)) must(ledger_append(job->ledger, &r, &err), &err);
    }
    close_ledger(job, cause);
    must(fixture_write_outputs(job->dir, job->ledger_dir, out_at, errors_at, 1, &job->counts, &err), &err);
    job->state = cause == LEDGER_COMPLETED ? JOB_COMPLETED : JOB_CANCELLED;
    must(job_store_finish(job, &job->counts, &err), &err);
    job_store_close(job);
    close_all(&o);
}

static int setup(void **unused)
{
    (void)unused;
    calls_left = -1;
    strcpy(folder, "/tmp/tokenfleet-rty-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(spool_at, sizeof spool_at, "%s/spool", folder);
    snprintf(job_at, sizeof job_at, "%s/job.jsonl", folder);
    snprintf(out_at, sizeof out_at, "%s/out.jsonl", folder);
    snprintf(errors_at, sizeof errors_at, "%s/err.jsonl", folder);
    fixture_write_job(job_at, N_GOOD);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    calls_left = -1;
    fixture_remove(folder);
    return 0;
}

static fl_status retry_once(job_retry_counts *counts, fl_err *err)
{
    open_spool o;
    fl_status st = open_all(&o, err);
    if (st == FL_OK) st = job_retry(o.spool, o.journal, &o.named, counts, err);
    close_all(&o);
    return st;
}

static fl_status count_item(void *context, const gc_item *item, fl_err *err)
{
    (void)item;
    (void)err;
    ++*(int *)context;
    return FL_OK;
}

/* What a restart finds: the job sound and closed with its old summary, or open; and nothing left over. Returns whether it is open. */
static bool assert_either(void)
{
    char endpoint[80], summary[200];
    fl_err err;
    coord_daemon *d = NULL;
    int n_left = 0;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    daemon_options options = { .spool = spool_at, .endpoint = endpoint, .beat_ms = 100, .term_ms = 10000, .out = { out_at, false }, .errors = { errors_at, false } };
    must(daemon_open(&d, &options, &err), &err);
    assert_int_equal(daemon_n_jobs(d), 1);
    stored_job *job = daemon_job_at(d, 0);
    bool is_open = job->state == JOB_OPEN;
    assert_int_equal(job->generation, is_open ? 2 : 1);
    snprintf(summary, sizeof summary, "%s/%s", job->dir, JOB_STORE_SUMMARY);
    assert_true((access(summary, F_OK) == 0) == !is_open);
    assert_false(job->outputs_due);
    gc_job named = { .id = job->id, .generation = job->generation };
    must(spool_gc_walk(daemon_spool(d), &named, 1, count_item, &n_left, &err), &err);
    assert_int_equal(n_left, 0);
    daemon_close(d);
    return is_open;
}

/* Do the rest of an open job's rows and close it: OUT as text, which the caller frees. */
static char *finish_job(void)
{
    fl_err err;
    open_spool o;
    stored_job *job = NULL;
    json_t *report = NULL;
    must(open_all(&o, &err), &err);
    must(job_store_open(&job, o.spool, &o.named, true, &err), &err);
    add_results(job->ledger, job, is_none, is_seventh);
    close_ledger(job, LEDGER_COMPLETED);
    must(fixture_write_outputs(job->dir, job->ledger_dir, out_at, errors_at, 1, &job->counts, &err), &err);
    must(job_verify(job->dir, job->ledger_dir, out_at, errors_at, &report, &err), &err);
    assert_string_equal(json_string_value(json_object_get(report, "state")), "sound");
    json_decref(report);
    job_store_close(job);
    close_all(&o);
    char *out = fixture_read(out_at, NULL), *errors = fixture_read(errors_at, NULL);
    size_t n = strlen(out) + strlen(errors) + 1;
    char *both = malloc(n);
    assert_non_null(both);
    snprintf(both, n, "%s%s", out, errors);
    free(out);
    free(errors);
    return both;
}

/* OUT and ERR where nothing ever failed. */
static char *reference(void)
{
    make_job(is_none, LEDGER_COMPLETED);
    char *out = fixture_read(out_at, NULL), *errors = fixture_read(errors_at, NULL);
    size_t n = strlen(out) + strlen(errors) + 1;
    char *both = malloc(n);
    assert_non_null(both);
    snprintf(both, n, "%s%s", out, errors);
    free(out);
    free(errors);
    fixture_remove(spool_at);
    return both;
}

/* ---- the tests ---- */

static void only_what_failed_runs_again_and_the_bytes_are_those_of_a_job_where_nothing_failed(void **unused)
{
    (void)unused;
    char *expected = reference();
    for (ledger_cause cause = LEDGER_COMPLETED; cause <= LEDGER_CANCELLED; cause++) {
        fl_err err;
        job_retry_counts counts = { 0 };
        make_job(is_seventh, cause);
        must(retry_once(&counts, &err), &err);
        assert_true(counts.again > 3 && counts.bad == N_GOOD / 10 && counts.again + counts.kept == N_GOOD);
        assert_true(assert_either());
        char *both = finish_job();
        assert_string_equal(both, expected);
        free(both);
        fixture_remove(spool_at);
    }
    free(expected);
}

static void a_job_without_failed_rows_and_an_open_one_stay_as_they_are(void **unused)
{
    (void)unused;
    fl_err err;
    job_retry_counts counts = { 0 };
    make_job(is_none, LEDGER_COMPLETED);
    must(retry_once(&counts, &err), &err);
    assert_true(counts.again == 0 && counts.kept == N_GOOD && counts.bad == N_GOOD / 10);
    assert_false(assert_either());
    fixture_remove(spool_at);
    make_job(is_seventh, LEDGER_COMPLETED);
    must(retry_once(&counts, &err), &err);
    assert_int_equal(retry_once(&counts, &err), FL_CONFLICT);
    assert_true(assert_either());
}

static void a_retry_cut_off_anywhere_leaves_the_old_job_or_the_new_one(void **unused)
{
    (void)unused;
    char *expected = reference();
    int n_old = 0, n_new = 0;
    for (int n = 0; ; n++) {
        make_job(is_seventh, LEDGER_COMPLETED);
        pid_t child = fork();
        if (child == 0) {
            fl_err err;
            job_retry_counts counts;
            failure = 0;
            calls_left = n;
            _exit(retry_once(&counts, &err) == FL_OK ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
        bool is_open = assert_either();
        n_new += is_open;
        n_old += !is_open;
        assert_true(WEXITSTATUS(status) == DIED || is_open);
        if (!is_open) {                                  /* asked again, it works */
            fl_err err;
            job_retry_counts counts;
            must(retry_once(&counts, &err), &err);
        }
        char *both = finish_job();
        assert_string_equal(both, expected);
        free(both);
        fixture_remove(spool_at);
        if (WEXITSTATUS(status) == 0) break;
    }
    assert_true(n_old > 5 && n_new > 3);
    free(expected);
}

/* In one process: the call fails, the sentence comes, and the process goes on (or, behind the transaction, the next start puts it right). */
static void a_retry_that_fails_anywhere_leaves_the_old_job_or_the_new_one(void **unused)
{
    (void)unused;
    static const int errors[] = { ENOSPC, EIO };
    int n_failed = 0;
    for (size_t e = 0; e < 2; e++) {
        for (int n = 0; ; n++) {
            fl_err err = { 0 };
            job_retry_counts counts = { 0 };
            open_spool o;
            make_job(is_seventh, LEDGER_COMPLETED);
            must(open_all(&o, &err), &err);
            failure = errors[e];
            has_failed = false;
            calls_left = n;
            fl_status st = job_retry(o.spool, o.journal, &o.named, &counts, &err);
            calls_left = -1;
            n_failed += st != FL_OK;
            if (st != FL_OK && !err.text[0]) fail_msg("call %d fails without a sentence", n);
            close_all(&o);
            bool is_open = assert_either();
            assert_true(is_open || st != FL_OK);
            fixture_remove(spool_at);
            if (!has_failed) break;
        }
    }
    assert_true(n_failed > 10);
}

static fl_status delete_once(fl_err *err)
{
    open_spool o;
    fl_status st = open_all(&o, err);
    if (st == FL_OK) st = journal_jobs_delete(o.journal, &the_id, 1, err);
    if (st == FL_OK) st = spool_job_remove(o.spool, the_id, err);
    close_all(&o);
    return st;
}

/* What a restart finds: the whole job, sound, or nothing of it. */
static bool assert_whole_or_gone(void)
{
    char endpoint[80], jobs[200];
    fl_err err;
    coord_daemon *d = NULL;
    json_t *report = NULL;
    snprintf(endpoint, sizeof endpoint, "ipc://%s/s", folder);
    snprintf(jobs, sizeof jobs, "%s/jobs", spool_at);
    daemon_options options = { .spool = spool_at, .endpoint = endpoint, .beat_ms = 100, .term_ms = 10000, .out = { out_at, false }, .errors = { errors_at, false } };
    must(daemon_open(&d, &options, &err), &err);
    bool is_there = daemon_n_jobs(d) == 1;
    if (is_there) {
        stored_job *job = daemon_job_at(d, 0);
        must(job_verify(job->dir, job->ledger_dir, out_at, errors_at, &report, &err), &err);
        assert_string_equal(json_string_value(json_object_get(report, "state")), "sound");
        json_decref(report);
    } else {
        assert_int_equal(rmdir(jobs), 0);                /* it is empty */
    }
    daemon_close(d);
    return is_there;
}

static void a_delete_cut_off_anywhere_leaves_the_whole_job_or_nothing(void **unused)
{
    (void)unused;
    int n_whole = 0, n_gone = 0;
    for (int n = 0; ; n++) {
        make_job(is_none, LEDGER_COMPLETED);
        pid_t child = fork();
        if (child == 0) {
            fl_err err;
            failure = 0;
            calls_left = n;
            _exit(delete_once(&err) == FL_OK ? 0 : 1);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == DIED));
        bool is_whole = assert_whole_or_gone();
        n_whole += is_whole;
        n_gone += !is_whole;
        assert_true(WEXITSTATUS(status) == DIED || !is_whole);
        fixture_remove(spool_at);
        if (WEXITSTATUS(status) == 0) break;
    }
    assert_true(n_whole > 2 && n_gone > 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(only_what_failed_runs_again_and_the_bytes_are_those_of_a_job_where_nothing_failed), T(a_job_without_failed_rows_and_an_open_one_stay_as_they_are),
        T(a_retry_cut_off_anywhere_leaves_the_old_job_or_the_new_one), T(a_retry_that_fails_anywhere_leaves_the_old_job_or_the_new_one),
        T(a_delete_cut_off_anywhere_leaves_the_whole_job_or_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
