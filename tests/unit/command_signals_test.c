/* A process that is started and told to end at once: the signal may reach it before it is the program that it becomes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/commands.h"

static int number;                       /* what the child is sent as soon as it is there; 0: nothing */

static void send_in_child(void)
{
    if (number) raise(number);
}

static int status_of_child(void)
{
    int status = 0;
    pid_t pid = command_fork();
    if (pid == 0) _exit(7);
    assert_true(pid > 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void a_signal_right_behind_the_fork_ends_the_child_and_is_not_counted_away(void **unused)
{
    (void)unused;
    static const int numbers[] = { SIGTERM, SIGINT };
    assert_int_equal(pthread_atfork(NULL, NULL, send_in_child), 0);
    command_catch_signals();
    for (int i = 0; i < 2; i++) {
        number = numbers[i];
        int status = status_of_child();
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), number);
    }
    number = 0;
    int status = status_of_child();
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 7);
    assert_int_equal(command_signals(), 0);
    raise(SIGTERM);                                      /* ours are counted as before */
    assert_int_equal(command_signals(), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(a_signal_right_behind_the_fork_ends_the_child_and_is_not_counted_away) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
