/* gpu_place_test.c - an engine process goes where sysfs says its GPU is, and stays where it is when sysfs says nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include "tests/temp_folder.h"
#include "worker/gpu_place.h"

#define PCI "0000:1a:00.0"

static char root[] = "/tmp/gpu_place_testXXXXXX";

static void write_file(const char *name, const char *text)
{
    char path[700];
    snprintf(path, sizeof path, "%s/bus/pci/devices/" PCI "/%s", root, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_sysfs(void **state)
{
    static const char *const parts[] = { "/bus", "/bus/pci", "/bus/pci/devices", ("/bus/pci/devices/" PCI) };
    (void)state;
    if (temp_folder_make(root) != 0) return -1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char path[700];
        snprintf(path, sizeof path, "%s%s", root, parts[i]);
        if (mkdir(path, 0700) != 0) return -1;
    }
    return 0;
}

static void lists_of_cores_are_read(void **state)
{
    gpu_place p;
    (void)state;
    write_file("local_cpulist", "0-2,8,10-11\n");
    write_file("numa_node", "1\n");
    gpu_place_read(&p, root, "0000:1A:00.0");
    assert_int_equal(p.n_cores, 6);
    assert_true(CPU_ISSET(0, &p.cores) && CPU_ISSET(2, &p.cores) && CPU_ISSET(8, &p.cores) && CPU_ISSET(11, &p.cores) && !CPU_ISSET(3, &p.cores) && !CPU_ISSET(9, &p.cores));
    assert_int_equal(p.node, 1);
}

static void what_is_no_list_is_nothing(void **state)
{
    static const char *const wrong[] = { "", "\n", "a", "0-", "3-1", "1,,2", "-1", "1;2", "0-2,x", "99999999999999999999" };
    gpu_place p;
    (void)state;
    write_file("numa_node", "-1\n");
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_file("local_cpulist", wrong[i]);
        gpu_place_read(&p, root, PCI);
        assert_int_equal(p.n_cores, 0);
        assert_int_equal(p.node, -1);
    }
    gpu_place_read(&p, root, "ffff:ff:ff.f");
    assert_int_equal(p.n_cores, 0);
    assert_int_equal(p.node, -1);
}

static int remove_sysfs(void **state)
{
    (void)state;
    return temp_folder_remove(root);
}

/* In a process of its own: it cannot go back to cores that it gave up. */
static void check_pinned(const char *list, int n_wanted, const char *said)
{
    write_file("local_cpulist", list);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        gpu_place p;
        char what[300];
        cpu_set_t now;
        gpu_place_read(&p, root, PCI);
        gpu_place_pin(&p, what, sizeof what);
        const int ok = sched_getaffinity(0, sizeof now, &now) == 0 && CPU_COUNT(&now) == n_wanted && strstr(what, said);
        if (!ok) fprintf(stderr, "%s: %d cores, \"%s\"\n", list, CPU_COUNT(&now), what);
        _exit(ok ? 0 : 1);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void the_process_keeps_to_the_cores_that_it_may_use(void **state)
{
    cpu_set_t mine;
    char list[32];
    int first = 0;
    (void)state;
    write_file("numa_node", "-1\n");
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    const int n = CPU_COUNT(&mine);
    while (!CPU_ISSET(first, &mine)) first++;
    snprintf(list, sizeof list, "%d,1020-1023\n", first);
    check_pinned(list, n > 1 ? 1 : n, n > 1 ? "pinned to 1 cores" : "all cores that this process may use");
    check_pinned("0-1023\n", n, "all cores that this process may use are next to it");
    check_pinned("1021-1023\n", n, "none of the cores next to it may be used");
    check_pinned("\n", n, "sysfs does not say");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists_of_cores_are_read),
        cmocka_unit_test(what_is_no_list_is_nothing),
        cmocka_unit_test(the_process_keeps_to_the_cores_that_it_may_use),
    };
    return cmocka_run_group_tests(tests, make_sysfs, remove_sysfs);
}
