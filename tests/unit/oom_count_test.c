#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/job_fixture.h"
#include "worker/oom_count.h"

static char root[40], membership[80];

static void write_text(const char *name, const char *text)
{
    char path[400];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static int setup(void **unused)
{
    (void)unused;
    strcpy(root, "/tmp/tokenfleet-oom-XXXXXX");
    if (!mkdtemp(root)) return -1;
    snprintf(membership, sizeof membership, "%s/cgroup", root);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    fixture_remove(root);
    return 0;
}

static void the_count_of_our_group_is_read_in_either_version(void **unused)
{
    (void)unused;
    write_text("cgroup", "0::/a/b\n");
    write_text("a/b/memory.events", "low 0\noom 4\noom_kill 3\noom_group_kill 0\n");
    assert_int_equal(oom_count_read_at(membership, root), 3);
    write_text("cgroup", "9:pids:/x\n4:memory:/c\n0::/nowhere\n");
    write_text("memory/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n");
    assert_int_equal(oom_count_read_at(membership, root), 7);
}

static void in_a_container_the_root_is_our_group(void **unused)
{
    (void)unused;
    write_text("cgroup", "0::/../outside\n");
    write_text("memory.events", "oom_kill 2\n");
    assert_int_equal(oom_count_read_at(membership, root), 2);
}

static void where_nothing_can_be_read_nothing_is_known(void **unused)
{
    (void)unused;
    assert_int_equal(oom_count_read_at(membership, root), -1);
    write_text("cgroup", "0::/a\nnonsense\n");
    assert_int_equal(oom_count_read_at(membership, root), -1);
    write_text("a/memory.events", "oom 1\n");
    assert_int_equal(oom_count_read_at(membership, root), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(the_count_of_our_group_is_read_in_either_version), T(in_a_container_the_root_is_our_group), T(where_nothing_can_be_read_nothing_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
