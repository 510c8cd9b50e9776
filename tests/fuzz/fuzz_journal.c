/* fuzz_journal.c - any bytes as journal.db. First byte 0: the rest is the file itself. Else the rest is SQL, run over a good journal, as someone with a hostile spool could: rows of wrong types,
 * huge blobs, tables that are missing, views and triggers called like our tables. What opens is read to its end; every refusal has a sentence; what is read is in its range. */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/journal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static char dir[] = "/dev/shm/tokenfleet-fuzz-XXXXXX", path[64];

static void unlink_all(void)
{
    static const char *const suffixes[] = { "", "-wal", "-shm", "-journal" };
    char file[80];
    for (int i = 0; i < 4; i++) {
        snprintf(file, sizeof file, "%s%s", path, suffixes[i]);
        unlink(file);
    }
}

static void remove_dir(void)
{
    unlink_all();
    rmdir(dir);
}

static fl_status see_job(void *context, const journal_job *job, fl_err *err)
{
    (void)err;
    FL_ASSERT(job->id.v != 0 && job->state >= JOB_OPEN && job->state <= JOB_EXPIRED && job->name && strlen(job->name) <= 4096);
    *(job_id *)context = job->id;
    return FL_OK;
}

static fl_status see_lease(void *context, lease_id lease, job_id job, worker_id worker, const lease_item *items, uint32_t n_items, fl_err *err)
{
    (void)context;
    (void)err;
    FL_ASSERT(lease.v >= 1 && job.v != 0 && worker.v != 0 && n_items > 0);
    for (uint32_t i = 0; i < n_items; i++) {
        FL_ASSERT(items[i].row.v <= UINT32_MAX && items[i].sample_lo < items[i].sample_hi && items[i].sample_hi <= 1024);
        if (i > 0) FL_ASSERT(items[i].row.v > items[i - 1].row.v || (items[i].row.v == items[i - 1].row.v && items[i].sample_lo >= items[i - 1].sample_hi));
    }
    return FL_OK;
}

static void said(fl_status st, const fl_err *err) { FL_ASSERT(st == FL_OK || err->text[0]); }

static void read_it(journal *j)
{
    fl_err err = { 0 };
    job_id id = { 7 };
    uint64_t next = 0;
    said(journal_jobs(j, see_job, &id, &err), &err);
    said(journal_leases(j, see_lease, NULL, &err), &err);
    fl_status st = journal_next_lease(j, &next, &err);
    said(st, &err);
    FL_ASSERT(st != FL_OK || next >= 1);
}

static void write_it(journal *j)
{
    fl_err err = { 0 };
    fl_status st = journal_begin(j, &err);
    said(st, &err);
    if (st != FL_OK) return;
    lease_item item = { { 3 }, 0, 2 };
    action actions[] = { { .type = ACTION_NEXT_LEASE, .value = 9 }, { .type = ACTION_LEASE_SAVE, .lease = { 5 }, .job = { 7 }, .worker = { 2 }, .items = &item, .n_items = 1 },
                         { .type = ACTION_LEASE_END, .lease = { 1 } }, { .type = ACTION_JOB_STATE, .job = { 7 }, .state = JOB_COMPLETED } };
    st = journal_job_add(j, (job_id){ 8 }, 1, "added", &err);
    said(st, &err);
    for (size_t i = 0; st == FL_OK && i < sizeof actions / sizeof *actions; i++) said(st = journal_perform(j, &actions[i], &err), &err);
    if (st == FL_OK) said(st = journal_commit(j, &err), &err);
    if (st != FL_OK) journal_rollback(j);
}

static void write_file(const uint8_t *data, size_t n_bytes)
{
    FILE *f = fopen(path, "wb");
    FL_ASSERT(f && fwrite(data, 1, n_bytes, f) == n_bytes && fclose(f) == 0);
}

static uint8_t *good;                    /* a journal with a job and a lease; never freed */
static size_t good_bytes;

static void make_good(void)
{
    journal *j = NULL;
    lease_item item = { { 3 }, 0, 2 };
    action next = { .type = ACTION_NEXT_LEASE, .value = 4 }, lease = { .type = ACTION_LEASE_SAVE, .lease = { 2 }, .job = { 7 }, .worker = { 5 }, .items = &item, .n_items = 1 };
    FL_ASSERT(mkdtemp(dir) && atexit(remove_dir) == 0);
    snprintf(path, sizeof path, "%s/j.db", dir);
    FL_ASSERT(journal_open(&j, path, NULL) == FL_OK && journal_begin(j, NULL) == FL_OK && journal_job_add(j, (job_id){ 7 }, 1, "job", NULL) == FL_OK);
    FL_ASSERT(journal_perform(j, &next, NULL) == FL_OK && journal_perform(j, &lease, NULL) == FL_OK && journal_commit(j, NULL) == FL_OK);
    journal_close(j);                    /* the last connection folds the log into the file */
    FILE *f = fopen(path, "rb");
    FL_ASSERT(f && (good = malloc(1 << 20)));
    good_bytes = fread(good, 1, 1 << 20, f);
    fclose(f);
}

static int limit_steps(void *left) { return --*(int *)left < 0; }

static void run_sql(const char *sql)
{
    sqlite3 *db = NULL;
    int left = 100;
    if (sqlite3_open(path, &db) == SQLITE_OK) {
        sqlite3_limit(db, SQLITE_LIMIT_LENGTH, 1 << 20);
        sqlite3_limit(db, SQLITE_LIMIT_ATTACHED, 0);     /* no other files */
        sqlite3_progress_handler(db, 1000, limit_steps, &left);
        sqlite3_exec(db, "PRAGMA journal_mode=DELETE", NULL, NULL, NULL);
        sqlite3_exec(db, sql, NULL, NULL, NULL);
    }
    sqlite3_close(db);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!good) make_good();
    if (n_bytes < 1) return 0;
    unlink_all();
    if (data[0] == 0) {
        write_file(data + 1, n_bytes - 1);
    } else {
        char *sql = malloc(n_bytes);
        FL_ASSERT(sql);
        memcpy(sql, data + 1, n_bytes - 1);
        sql[n_bytes - 1] = '\0';
        write_file(good, good_bytes);
        if (strlen(sql) < 4096) run_sql(sql);
        free(sql);
    }
    for (int read_only = 1; read_only >= 0; read_only--) {
        journal *j = NULL;
        fl_err err = { 0 };
        fl_status st = read_only ? journal_open_read_only(&j, path, &err) : journal_open(&j, path, &err);
        said(st, &err);
        if (st != FL_OK) continue;
        read_it(j);
        if (!read_only) write_it(j), read_it(j);
        journal_close(j);
    }
    return 0;
}
