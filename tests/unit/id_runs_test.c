/* Records come back in order from memory and from sorted runs, whatever they were. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>
#include "coordinator/id_runs.h"

enum { N = 20000 };
static char dir[64];
static id_record all[N];

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/id_runs_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    return rmdir(dir);                                   /* fails when a file was left */
}

static int record_order(const void *a, const void *b)
{
    const id_record *x = a, *y = b;
    if (x->high != y->high) return x->high < y->high ? -1 : 1;
    if (x->low != y->low) return x->low < y->low ? -1 : 1;
    return x->row < y->row ? -1 : x->row > y->row;
}

/* Add `n` of them in pieces of `step` and read them twice. */
static void check(size_t n, size_t run_records, size_t step)
{
    id_runs *r;
    fl_err err = { FL_OK, "" };
    id_record got;
    assert_int_equal(id_runs_open(&r, dir, run_records, &err), FL_OK);
    for (size_t at = 0; at < n; at += step) assert_int_equal(id_runs_add(r, all + at, n - at < step ? n - at : step, &err), FL_OK);
    assert_int_equal(id_runs_count(r), n);
    id_record *sorted = malloc((n ? n : 1) * sizeof *sorted);
    assert_non_null(sorted);
    memcpy(sorted, all, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, record_order);
    for (int pass = 0; pass < 2; pass++) {
        assert_int_equal(id_runs_begin(r, &err), FL_OK);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(id_runs_next(r, &got, &err), FL_OK);
            assert_memory_equal(&got, &sorted[i], sizeof got);
        }
        assert_int_equal(id_runs_next(r, &got, &err), FL_CLOSED);
    }
    free(sorted);
    id_runs_close(r);
}

static void hashes_come_back_in_order(void **state)
{
    (void)state;
    static const size_t runs[] = { 1, 7, 1000, 4096, N - 1, N, N + 1 };
    uint64_t x = 1;
    for (size_t i = 0; i < N; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        all[i] = (id_record){ x ^ x >> 32, x * 31, i };
        if (i % 10 == 3) { all[i].high = all[i / 2].high; all[i].low = all[i / 2].low; }       /* doubles, near and far */
        if (i % 10 == 4) all[i].high = all[i / 2].high;                                       /* halves that agree */
    }
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) check(runs[i] == 1 ? 300 : N, runs[i], 333);
    check(0, 100, 1);
    check(1, 100, 1);
    check(100, 100, 7);                                  /* exactly a run */
    check(200, 100, 200);
}

static void one_key_over_and_over_and_keys_that_are_small(void **state)
{
    (void)state;
    for (size_t i = 0; i < N; i++) all[i] = (id_record){ 5, 6, N - i };
    check(N, 3000, 1000);
    check(N, N, N);
    for (size_t i = 0; i < N; i++) all[i] = (id_record){ i * 7919 % N, i, 0 };
    check(N, 3000, 1);
    check(N, N, N);
}

static size_t n_files(void)
{
    size_t n = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)); ) n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void a_run_has_no_name_and_a_disk_that_is_full_is_told(void **state)
{
    (void)state;
    struct rlimit old, limit;
    id_runs *r;
    fl_err err = { FL_OK, "" };
    assert_int_equal(id_runs_open(&r, dir, 100, &err), FL_OK);
    assert_int_equal(id_runs_add(r, all, 1000, &err), FL_OK);
    assert_int_equal(n_files(), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    limit = (struct rlimit){ 30000, old.rlim_max };
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fl_status st = id_runs_add(r, all, 1000, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_int_equal(st, FL_IO);
    assert_non_null(strstr(err.text, "write a temporary file in"));
    id_runs_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(hashes_come_back_in_order, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(one_key_over_and_over_and_keys_that_are_small, make_dir, remove_dir),
        cmocka_unit_test_setup_teardown(a_run_has_no_name_and_a_disk_that_is_full_is_told, make_dir, remove_dir),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
