#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <errno.h>
#include <unistd.h>

#include "proto/log.h"

/* What the calls of `act` wrote to stderr. */
static char *stderr_of(void (*act)(void), char *text, size_t capacity)
{
    int fds[2], saved = dup(STDERR_FILENO);
    assert_int_equal(pipe(fds), 0);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    act();
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t used = 0;
    for (ssize_t n; used < capacity - 1 && (n = read(fds[0], text + used, capacity - 1 - used)) > 0;) used += (size_t)n;
    close(fds[0]);
    text[used] = '\0';
    return text;
}

static void log_with_an_unknown_level(void)
{
    fl_log(FL_LOG_INFO, "too quiet to be seen");
    fl_log(FL_LOG_WARN, "seen %d", 1);
    fl_log(FL_LOG_WARN, "seen %d", 2);
}

static void an_unknown_level_is_reported_once_and_warn_is_used(void **state)
{
    (void)state;
    char text[4096];
    setenv("TOKENFLEET_LOG", "loud", 1);
    stderr_of(log_with_an_unknown_level, text, sizeof text);
    char *first = strstr(text, "TOKENFLEET_LOG=loud");
    assert_non_null(first);
    assert_null(strstr(first + 1, "TOKENFLEET_LOG=loud"));
    assert_null(strstr(text, "too quiet"));
    assert_non_null(strstr(text, "tokenfleet: seen 1\n"));
    assert_non_null(strstr(text, "tokenfleet: seen 2\n"));
}

static void log_one_line(void)
{
    fl_log_name("worker 3");
    fl_log_set_level(FL_LOG_INFO);
    errno = ENOENT;
    fl_log(FL_LOG_INFO, "bytes\nthat would\rforge\033[1m lines");
    assert_int_equal(errno, ENOENT);
    fl_log(FL_LOG_DEBUG, "not at this level");
}

static void a_sentence_is_one_line_with_time_level_and_part(void **state)
{
    (void)state;
    char text[4096];
    stderr_of(log_one_line, text, sizeof text);
    assert_true(strlen(text) > 25 && text[4] == '-' && text[10] == 'T' && text[23] == 'Z');
    assert_string_equal(text + 24, " info  worker 3: bytes that would forge [1m lines\n");
}

static void log_a_long_line(void)
{
    char wide[4000];
    for (size_t i = 0; i + 3 <= sizeof wide; i += 3) memcpy(wide + i, "\xE2\x82\xAC", 3);
    for (int ascii = 0; ascii < 3; ascii++) fl_log(FL_LOG_ERROR, "%.*s%.*s", ascii, "aaa", 3999, wide);
}

static void a_long_sentence_is_cut_at_a_character(void **state)
{
    (void)state;
    static char text[16384];
    stderr_of(log_a_long_line, text, sizeof text);
    int lines = 0;
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, lines++) {
        assert_true(end - line > 2000 && end - line < 2048);
        assert_memory_equal(end - 3, "\xE2\x82\xAC", 3);
    }
    assert_int_equal(lines, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unknown_level_is_reported_once_and_warn_is_used),
        cmocka_unit_test(a_sentence_is_one_line_with_time_level_and_part),
        cmocka_unit_test(a_long_sentence_is_cut_at_a_character),
    };
    return cmocka_run_group_tests_name("log", tests, NULL, NULL);
}
