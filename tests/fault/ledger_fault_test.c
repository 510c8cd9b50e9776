/* The ledger on a disk that fails: the n-th write, sync or create fails, for every n until a run meets no fault. The program's own pwrite, fdatasync and
 * openat stand before the C library's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "coordinator/ledger.h"
#include "tests/temp_folder.h"

static int fail_after = -1, fail_with, n_failed;         /* calls until one fails; -1: none does */
static bool fail_syncs;                                  /* count syncs, else writes and creates */

static bool fails_now(bool is_sync)
{
    if (fail_after < 0 || is_sync != fail_syncs || fail_after-- > 0) return false;
    n_failed++;
    errno = fail_with;
    return true;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    if (fails_now(false)) return -1;
    if (fail_after >= 0 && n > 7) n /= 2;                /* and short writes all along */
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

int fdatasync(int fd)
{
    if (fails_now(true)) return -1;
    return (int)syscall(SYS_fdatasync, fd);
}

int openat(int dir, const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    int mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if ((flags & O_CREAT) && fails_now(false)) return -1;
    return (int)syscall(SYS_openat, dir, path, flags, mode);
}

static char folder[] = "/tmp/tokenfleet-ledger-XXXXXX";
static char dir[64];

static int setup(void **state)
{
    (void)state;
    if (temp_folder_make(folder) != 0) return -1;
    snprintf(dir, sizeof dir, "%s/ledger", folder);
    fail_after = -1;
    n_failed = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fail_after = -1;
    return temp_folder_remove(folder);
}

#define N_GROUPS 5
static char large[3 << 20];                              /* passes the writer's buffer */

/* Group g: the job record, or two results, the second one large in one group. */
static fl_status write_group(ledger *l, int g, fl_err *err)
{
    fl_status st;
    if (g == 0) {
        st = ledger_append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = { "{}", 2 } }, err);
    } else {
        st = ledger_append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { (uint64_t)g }, .n_pieces = 1, .body = { "one", 3 } }, err);
        if (st == FL_OK)
            st = ledger_append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { (uint64_t)g + 100 }, .n_pieces = 1, .body = { large, g == 2 ? sizeof large : 9 } }, err);
    }
    return st == FL_OK ? ledger_commit(l, err) : st;
}

static fl_status count(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    (void)r;
    ++*(int *)context;
    return FL_OK;
}

static int count_records(void)
{
    int n = 0;
    fl_err err = { 0 };
    fl_status st = ledger_scan(dir, count, &n, &err);
    if (st != FL_OK && st != FL_NOT_FOUND) fail_msg("%s: %s", fl_status_name(st), err.text);
    return n;
}

static void a_full_disk_cuts_back_and_the_group_can_be_written_again(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        fl_err err = { 0 };
        ledger *l = NULL;
        assert_int_equal(ledger_create(&l, dir, &err), FL_OK);
        n_failed = 0;
        fail_syncs = false;
        fail_with = n % 2 ? ENOSPC : EDQUOT;
        fail_after = n;
        for (int g = 0; g < N_GROUPS; g++) {
            fl_status st = write_group(l, g, &err);
            if (st == FL_OK) continue;
            assert_int_equal(st, FL_DISK_FULL);
            assert_int_equal(count_records(), g == 0 ? 0 : 2 * g - 1);       /* nothing of the group is left */
            assert_int_equal(write_group(l, g, &err), FL_OK);
        }
        bool is_end = n_failed == 0;
        fail_after = -1;
        ledger_close(l);
        assert_int_equal(count_records(), 2 * N_GROUPS - 1);
        teardown(NULL);
        assert_int_equal(setup(NULL), 0);
        if (is_end) break;
    }
}

static void any_other_failure_is_final_and_loses_nothing_that_was_committed(void **state)
{
    (void)state;
    for (int kind = 0; kind < 2; kind++)
        for (int n = 0;; n++) {
            fl_err err = { 0 };
            ledger *l = NULL;
            int n_good = 0;
            assert_int_equal(ledger_create(&l, dir, &err), FL_OK);
            n_failed = 0;
            fail_syncs = kind == 1;
            fail_with = fail_syncs && n % 2 ? ENOSPC : EIO;      /* a sync that finds no room is final too: what the file holds is unknown */
            fail_after = n;
            for (int g = 0; g < N_GROUPS; g++) {
                fl_status st = write_group(l, g, &err);
                if (n_failed == 0) {
                    assert_int_equal(st, FL_OK);
                    n_good++;
                } else {
                    assert_int_equal(st, FL_IO);
                    assert_int_equal(ledger_commit(l, &err), FL_IO);
                    assert_non_null(strstr(err.text, "start the coordinator again"));
                    break;
                }
            }
            bool is_end = n_failed == 0;
            fail_after = -1;
            ledger_close(l);
            int n_records = count_records();
            assert_true(n_records >= (n_good ? 2 * n_good - 1 : 0));
            if (n_good > 0) {
                assert_int_equal(ledger_open(&l, dir, NULL, NULL, &err), FL_OK);
                ledger_close(l);
            }
            teardown(NULL);
            assert_int_equal(setup(NULL), 0);
            if (is_end) break;
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_full_disk_cuts_back_and_the_group_can_be_written_again, setup, teardown),
        cmocka_unit_test_setup_teardown(any_other_failure_is_final_and_loses_nothing_that_was_committed, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
