#include "proto/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES_MAX 2048

static const char *const level_names[] = { "error", "warn", "info", "debug" };
static char part_name[64] = "tokenfleet";
static atomic_int level_now = -1;                        /* -1: the environment has not been read */

void fl_log_name(const char *name)
{
    snprintf(part_name, sizeof part_name, "%s", name);
}

void fl_log_set_level(fl_log_level level)
{
    atomic_store(&level_now, (int)level);
}

/* Two threads may both read the environment; one of them stores the level and reports a bad value. */
static int level_from_environment(void)
{
    const char *value = getenv("TOKENFLEET_LOG");
    int level = FL_LOG_WARN, known = !value || !*value;
    for (int i = 0; value && i < 4; i++)
        if (strcmp(value, level_names[i]) == 0) { level = i; known = 1; }
    int unread = -1;
    if (!atomic_compare_exchange_strong(&level_now, &unread, level)) return unread;
    if (!known)
        fl_log(FL_LOG_WARN, "TOKENFLEET_LOG=%s is not a level; use error, warn, info or debug (warn is used now)", value);
    return level;
}

/* Whole characters only at the cut, and no byte that could start a second line or drive a terminal. */
static size_t make_one_line(char *line, size_t start, size_t wanted)
{
    size_t end = wanted;
    if (wanted > LINE_BYTES_MAX - 2) {
        end = LINE_BYTES_MAX - 2;
        while (end > start && ((unsigned char)line[end - 1] & 0xC0) == 0x80) end--;
        if (end > start && (unsigned char)line[end - 1] >= 0xC0) end--;
    }
    for (size_t i = start; i < end; i++) {
        bool is_c1 = (unsigned char)line[i] == 0xC2 && i + 1 < end && (unsigned char)line[i + 1] >= 0x80 && (unsigned char)line[i + 1] < 0xA0;
        if (is_c1) line[i + 1] = ' ';
        if (is_c1 || (unsigned char)line[i] < 0x20 || line[i] == 0x7F) line[i] = ' ';
    }
    line[end] = '\n';
    return end + 1;
}

void fl_log(fl_log_level level, const char *format, ...)
{
    int now = atomic_load(&level_now);
    if (now < 0) now = level_from_environment();
    if ((int)level > now) return;
    int errno_before = errno;                            /* a log line between a failed call and its sentence changes nothing */

    char line[LINE_BYTES_MAX], clock[32];
    struct timespec t;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &utc);
    strftime(clock, sizeof clock, "%Y-%m-%dT%H:%M:%S", &utc);
    int head = snprintf(line, sizeof line, "%s.%03dZ %-5s %s: ", clock, (int)(t.tv_nsec / 1000000), level_names[level], part_name);

    va_list args;
    va_start(args, format);
    int body = vsnprintf(line + head, sizeof line - (size_t)head, format, args);
    va_end(args);
    if (body < 0) body = 0;
    size_t n_bytes = make_one_line(line, (size_t)head, (size_t)head + (size_t)body);
    ssize_t written;
    do written = write(STDERR_FILENO, line, n_bytes);    /* stderr gone: there is no better place to say so */
    while (written < 0 && errno == EINTR);
    errno = errno_before;
}
