/* The spool: who may have it, and what it makes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "coordinator/spool.h"
#include "tests/temp_folder.h"

static char folder[] = "/tmp/tokenfleet-spool-XXXXXX";
static char dir[64];

static int setup(void **state)
{
    (void)state;
    if (temp_folder_make(folder) != 0) return -1;
    snprintf(dir, sizeof dir, "%s/spool", folder);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return temp_folder_remove(folder);
}

static spool *open_it(void)
{
    fl_err err = { 0 };
    spool *s = NULL;
    fl_status st = spool_open(&s, dir, SPOOL_CREATE, &err);
    if (st != FL_OK) fail_msg("%s", err.text);
    return s;
}

static void a_new_spool_is_private(void **state)
{
    (void)state;
    spool *s = open_it();
    struct stat info;
    assert_int_equal(stat(dir, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    char *path = spool_job_path(s, (job_id){ 0xab }, "lines");
    assert_non_null(strstr(path, "/jobs/job-00000000000000ab/lines"));
    free(path);
    spool_close(s);
    spool_close(open_it());                              /* and may be opened again */
}

static void a_second_process_waits_and_is_told_the_holders_pid(void **state)
{
    (void)state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        spool *s = NULL;
        char ok = spool_open(&s, dir, SPOOL_CREATE, NULL) == FL_OK;
        if (write(ready[1], &ok, 1) != 1) _exit(1);
        pause();
        _exit(0);
    }
    char ok = 0;
    assert_int_equal(read(ready[0], &ok, 1), 1);
    assert_true(ok);
    spool *s = NULL;
    fl_err err = { 0 };
    time_t begin = time(NULL);
    assert_int_equal(spool_open(&s, dir, SPOOL_CREATE, &err), FL_CONFLICT);
    assert_true(time(NULL) - begin >= 4);
    char pid[32];
    snprintf(pid, sizeof pid, "process %d;", (int)child);
    assert_non_null(strstr(err.text, pid));
    assert_int_equal(spool_open(&s, dir, SPOOL_READ_ONLY, &err), FL_OK);
    spool_close(s);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    spool_close(open_it());                              /* a dead holder holds nothing */
    close(ready[0]);
    close(ready[1]);
}

static void what_is_not_a_spool_is_not_taken_for_one(void **state)
{
    (void)state;
    fl_err err = { 0 };
    spool *s = NULL;
    assert_int_equal(spool_open(&s, dir, SPOOL_READ_ONLY, &err), FL_NOT_FOUND);
    assert_int_equal(spool_open(&s, folder, 0, &err), FL_NOT_FOUND);
    int fd = open(dir, O_CREAT | O_WRONLY, 0600);
    close(fd);
    assert_int_equal(spool_open(&s, dir, SPOOL_CREATE, &err), FL_CONFLICT);
    unlink(dir);
}

static void a_jobs_folder_comes_and_goes(void **state)
{
    (void)state;
    fl_err err = { 0 };
    spool *s = open_it();
    job_id job = { 0x1234 };
    assert_int_equal(spool_job_create(s, job, &err), FL_OK);
    assert_int_equal(spool_job_create(s, job, &err), FL_CONFLICT);
    char *path = spool_job_path(s, job, "ledger");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(spool_job_remove(s, job, &err), FL_OK);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(spool_job_remove(s, job, &err), FL_OK);
    free(path);
    spool_close(s);
}

static void a_spool_that_may_not_be_read_is_not_called_something_else(void **state)
{
    (void)state;
    fl_err err = { 0 };
    spool *s = open_it();
    spool_close(s);
    bool is_root = geteuid() == 0;                       /* root may read everything */
    if (is_root) assert_int_equal(seteuid(65534), 0);
    else assert_int_equal(chmod(dir, 0), 0);
    fl_status st = spool_open(&s, dir, SPOOL_READ_ONLY, &err);
    if (is_root) assert_int_equal(seteuid(0), 0);
    else assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(st, FL_IO);
    assert_non_null(strstr(err.text, "Permission denied"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(a_new_spool_is_private), T(a_second_process_waits_and_is_told_the_holders_pid), T(what_is_not_a_spool_is_not_taken_for_one), T(a_jobs_folder_comes_and_goes),
        T(a_spool_that_may_not_be_read_is_not_called_something_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
