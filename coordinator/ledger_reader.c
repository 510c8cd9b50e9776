#include "coordinator/ledger_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger_record.h"
#include "coordinator/ledger_segment.h"

#define WINDOW_BYTES (1u << 20)

struct ledger_reader {
    char *dir;                           /* owned */
    int dir_fd, fd;                      /* fd: the segment's, -1 = not yet open */
    uint32_t segment;
    ledger_cursor cursor;                /* base: the end of the last group shown, in this segment */
    uint8_t *window; size_t capacity;    /* owned */
};

fl_status ledger_reader_open(ledger_reader **out, const char *dir, fl_err *err)
{
    uint32_t n_segments;
    fl_status st = FL_OK;
    ledger_reader *r = calloc(1, sizeof *r);
    if (!r) return fl_fail(err, FL_FULL, "ledger: no memory to read %s", dir);
    r->dir_fd = r->fd = -1;
    r->segment = 1;
    r->capacity = WINDOW_BYTES;
    r->dir = strdup(dir);
    r->window = malloc(r->capacity);
    if (!r->dir || !r->window) { st = fl_fail(err, FL_FULL, "ledger: no memory to read %s", dir); goto done; }
    if ((st = ledger_segments_open(dir, &r->dir_fd, &n_segments, err)) != FL_OK) goto done;
    *out = r;
    r = NULL;
done:
    ledger_reader_close(r);
    return st;
}

void ledger_reader_close(ledger_reader *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    if (r->dir_fd >= 0) close(r->dir_fd);
    free(r->window);
    free(r->dir);
    free(r);
}

/* *limit: how far this segment may be read now. *is_last: nothing follows it that may be read. FL_NOT_FOUND: it is not there (yet). */
static fl_status open_segment(ledger_reader *r, ledger_place until, uint64_t *limit, bool *is_last, fl_err *err)
{
    char name[LEDGER_SEGMENT_NAME_BYTES], next[LEDGER_SEGMENT_NAME_BYTES];
    struct stat info;
    ledger_segment_name(r->segment, name);
    if (r->segment < LEDGER_SEGMENTS_MAX) ledger_segment_name(r->segment + 1, next);
    *is_last = until.segment ? r->segment == until.segment : r->segment == LEDGER_SEGMENTS_MAX || faccessat(r->dir_fd, next, F_OK, 0) != 0;   /* asked before the size */
    if (r->fd < 0) r->fd = openat(r->dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (r->fd < 0 && errno == ENOENT) return FL_NOT_FOUND;
    if (r->fd < 0 || fstat(r->fd, &info) != 0) return fl_fail_errno(err, errno, "ledger: open %s/%s", r->dir, name);
    *limit = until.segment == r->segment ? until.offset : (uint64_t)info.st_size;
    if (*limit <= (uint64_t)info.st_size) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "ledger: %s/%s has %lld bytes, %llu were committed", r->dir, name, (long long)info.st_size, (unsigned long long)*limit);
}

static fl_status read_window(ledger_reader *r, size_t n, fl_err *err)
{
    if (n > r->capacity) {
        uint8_t *grown = realloc(r->window, n);
        if (!grown) return fl_fail(err, FL_FULL, "ledger: no memory for a group of %zu bytes in %s", n, r->dir);
        r->window = grown;
        r->capacity = n;
    }
    for (size_t done = 0; done < n; ) {
        ssize_t got = pread(r->fd, r->window + done, n - done, (off_t)(r->cursor.base + done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fl_fail_errno(err, errno, "ledger: read %s/%06u.seg", r->dir, r->segment);
        if (got == 0) return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg became shorter while it was read", r->dir, r->segment);
        done += (size_t)got;
    }
    return FL_OK;
}

/* Everything of this segment below `limit`. A window that holds no whole group is read again, larger. */
static fl_status read_segment(ledger_reader *r, uint64_t limit, bool may_be_torn, ledger_visit visit, void *context, fl_err *err)
{
    size_t window = WINDOW_BYTES, marked = 0;
    while (r->cursor.base < limit) {
        uint64_t left = limit - r->cursor.base;
        size_t n = left < window ? (size_t)left : window;
        fl_status st = read_window(r, n, err);
        if (st == FL_OK) st = ledger_walk(r->window, n, r->segment, n < left || may_be_torn, &r->cursor, visit, context, &marked, err);
        if (st != FL_OK) return st;
        r->cursor.base += marked;
        if (marked == 0 && n == left) return FL_OK;      /* what a crash left behind the last marker */
        window = marked ? WINDOW_BYTES : window * 2;
    }
    return FL_OK;
}

fl_status ledger_reader_read(ledger_reader *r, ledger_place until, ledger_visit visit, void *context, fl_err *err)
{
    for (;;) {
        uint64_t limit = 0;
        bool is_last = false;
        if (until.segment && (r->segment > until.segment || (r->segment == until.segment && r->cursor.base >= until.offset))) return FL_OK;
        fl_status st = open_segment(r, until, &limit, &is_last, err);
        if (st == FL_NOT_FOUND && until.segment == 0) return FL_OK;
        if (st == FL_NOT_FOUND) return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg is missing: restore it from a backup, or start the job anew with --restart", r->dir, r->segment);
        if (st == FL_OK) st = read_segment(r, limit, is_last && until.segment == 0, visit, context, err);
        if (st != FL_OK || is_last) return st;
        close(r->fd);
        r->fd = -1;
        r->segment++;
        r->cursor.base = 0;
    }
}
