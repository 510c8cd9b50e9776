#include "proto/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name, *meaning; } table[] = {
#define FL_STATUS_ROW(code, number, meaning) [number] = { #code, meaning },
    FL_STATUS_TABLE(FL_STATUS_ROW)
#undef FL_STATUS_ROW
};

/* Cut `text` back to a whole character when its last bytes are the start of a longer UTF-8 sequence. */
static void cut_at_character(char *text, size_t n_bytes)
{
    size_t start = n_bytes;
    while (start > 0 && n_bytes - start < 4 && ((unsigned char)text[start - 1] & 0xC0) == 0x80) start--;
    if (start == 0) return;
    unsigned char lead = (unsigned char)text[start - 1];
    size_t want = lead < 0x80 ? 1 : lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (n_bytes - (start - 1) < want) text[start - 1] = '\0';
}

static void write_sentence(fl_err *err, fl_status code, const char *format, va_list args)
{
    err->code = code;
    int n = vsnprintf(err->text, sizeof err->text, format, args);
    if (n >= (int)sizeof err->text) cut_at_character(err->text, sizeof err->text - 1);
}

fl_status fl_fail(fl_err *err, fl_status code, const char *format, ...)
{
    if (!err) return code;
    va_list args;
    va_start(args, format);
    write_sentence(err, code, format, args);
    va_end(args);
    return code;
}

fl_status fl_fail_errno(fl_err *err, int error_number, const char *format, ...)
{
    fl_status code = error_number == ENOSPC || error_number == EDQUOT ? FL_DISK_FULL : FL_IO;
    if (!err) return code;
    va_list args;
    va_start(args, format);
    write_sentence(err, code, format, args);
    va_end(args);
    size_t used = strlen(err->text);
    int n = snprintf(err->text + used, sizeof err->text - used, ": %s", strerror(error_number));
    if (n >= (int)(sizeof err->text - used)) cut_at_character(err->text, sizeof err->text - 1);
    return code;
}

const char *fl_status_name(fl_status code)
{
    return (unsigned)code < FL_STATUS_COUNT ? table[code].name : "FL_?";
}

const char *fl_status_meaning(fl_status code)
{
    return (unsigned)code < FL_STATUS_COUNT ? table[code].meaning : "a status this build does not know";
}

void fl_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "tokenfleet: broken assumption at %s:%d: %s\n", file, line, condition);
    abort();
}
