#include "coordinator/ledger.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger_record.h"
#include "coordinator/ledger_segment.h"

#define BUFFER_BYTES (1u << 20)

/* Where the writer stands. `now` runs ahead of `marked` inside a group. */
typedef struct {
    uint64_t offset;                     /* in the current segment, buffered bytes included */
    uint64_t chain;
    uint64_t n_frames;
    bool is_closed;
} position;

struct ledger {
    char *dir;                           /* owned */
    int dir_fd;
    int fd;                              /* the current segment; -1: it is made by the next append */
    uint32_t segment;
    uint64_t older_bytes;                /* of the segments before it */
    position now, marked;
    ledger_place last;                   /* of the record appended last */
    uint8_t *buffer;                     /* owned, BUFFER_BYTES; what of `now` is not yet in the file */
    size_t n_buffered;
    bool is_broken;                      /* a sync failed: nothing may be written any more */
};

static ledger *ledger_new(const char *dir)
{
    ledger *l = calloc(1, sizeof *l);
    if (!l) return NULL;
    l->dir_fd = l->fd = -1;
    l->dir = strdup(dir);
    l->buffer = malloc(BUFFER_BYTES);
    if (l->dir && l->buffer) return l;
    ledger_close(l);
    return NULL;
}

void ledger_close(ledger *l)
{
    if (!l) return;
    if (l->fd >= 0) close(l->fd);
    if (l->dir_fd >= 0) close(l->dir_fd);
    free(l->buffer);
    free(l->dir);
    free(l);
}

/* Take back everything since the last marker, so that the group can be written again. Returns `st`, or FL_IO when even that fails. */
static fl_status cut_back(ledger *l, fl_status st, fl_err *err)
{
    l->n_buffered = 0;
    l->now = l->marked;
    if (l->fd < 0 || ftruncate(l->fd, (off_t)l->marked.offset) == 0) return st;
    l->is_broken = true;
    return fl_fail(err, FL_IO, "ledger: cut %s/%06u.seg back to %llu bytes: %s", l->dir, l->segment, (unsigned long long)l->marked.offset, strerror(errno));
}

/* A write that failed: a full disk is cut back and told, anything else is final. */
static fl_status write_failed(ledger *l, int error_number, const char *what, fl_err *err)
{
    fl_status st = fl_fail_errno(err, error_number, "ledger: %s %s/%06u.seg", what, l->dir, l->segment);
    if (st == FL_DISK_FULL) return cut_back(l, st, err);
    l->is_broken = true;
    return st;
}

static fl_status open_segment(ledger *l, fl_err *err)
{
    char name[LEDGER_SEGMENT_NAME_BYTES];
    if (l->segment > LEDGER_SEGMENTS_MAX) return fl_fail(err, FL_FULL, "ledger: %s has no segment numbers left", l->dir);
    ledger_segment_name(l->segment, name);
    int fd = openat(l->dir_fd, name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) return write_failed(l, errno, "create", err);
    l->fd = fd;
    if (fsync(l->dir_fd) == 0) return FL_OK;
    l->is_broken = true;
    return fl_fail(err, FL_IO, "ledger: sync folder %s: %s", l->dir, strerror(errno));
}

static fl_status flush(ledger *l, const void *data, size_t n_bytes, uint64_t offset, fl_err *err)
{
    const uint8_t *at = data;
    while (n_bytes > 0) {
        ssize_t done = pwrite(l->fd, at, n_bytes, (off_t)offset);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return write_failed(l, errno, "write", err);
        at += done;
        offset += (uint64_t)done;
        n_bytes -= (size_t)done;
    }
    return FL_OK;
}

static fl_status flush_buffer(ledger *l, fl_err *err)
{
    size_t n = l->n_buffered;
    l->n_buffered = 0;
    return flush(l, l->buffer, n, l->now.offset - n, err);
}

static fl_status put_frame(ledger *l, const ledger_frame *frame, fl_err *err)
{
    fl_status st = FL_OK;
    if (l->fd < 0 && (st = open_segment(l, err)) != FL_OK) return st;
    if (l->n_buffered + frame->bytes > BUFFER_BYTES && (st = flush_buffer(l, err)) != FL_OK) return st;
    fl_bytes parts[LEDGER_RECORD_PARTS + 1] = { { frame->header, FL_FRAME_HEADER_BYTES } };
    for (int i = 0; i < frame->n_parts; i++) parts[i + 1] = frame->parts[i];
    for (int i = 0; i <= frame->n_parts; i++) {
        if (frame->bytes > BUFFER_BYTES) {               /* too large for the buffer, which is empty now */
            if ((st = flush(l, parts[i].data, parts[i].bytes, l->now.offset, err)) != FL_OK) return st;
        } else {
            memcpy(l->buffer + l->n_buffered, parts[i].data, parts[i].bytes);
            l->n_buffered += parts[i].bytes;
        }
        l->now.offset += parts[i].bytes;
    }
    l->now.chain = frame->checksum;
    l->now.n_frames++;
    return FL_OK;
}

static fl_status refuse_broken(const ledger *l, fl_err *err)
{
    return fl_fail(err, FL_IO, "ledger: %s can no longer be written after a failed sync; start the coordinator again", l->dir);
}

fl_status ledger_append(ledger *l, const ledger_record *record, fl_err *err)
{
    if (l->is_broken) return refuse_broken(l, err);
    if (l->now.is_closed) return fl_fail(err, FL_CONFLICT, "ledger: %s is closed; no record may follow the closing one", l->dir);
    FL_ASSERT((record->kind == LEDGER_JOB) == (l->now.n_frames == 0));
    ledger_frame frame;
    fl_status st = ledger_frame_record(&frame, record, l->now.chain, err);
    if (st != FL_OK) return st;
    ledger_place place = { l->segment, l->now.offset };
    if ((st = put_frame(l, &frame, err)) != FL_OK) return st;
    l->last = place;
    l->now.is_closed = record->kind == LEDGER_CLOSE;
    return FL_OK;
}

fl_status ledger_commit(ledger *l, fl_err *err)
{
    if (l->is_broken) return refuse_broken(l, err);
    if (l->now.n_frames == l->marked.n_frames) return FL_OK;
    ledger_frame marker;
    ledger_frame_marker(&marker, l->now.n_frames, (ledger_place){ l->segment, l->now.offset }, l->now.chain);
    fl_status st = put_frame(l, &marker, err);
    if (st != FL_OK || (st = flush_buffer(l, err)) != FL_OK) return st;
    if (fdatasync(l->fd) != 0) {
        l->is_broken = true;
        return fl_fail(err, FL_IO, "ledger: sync %s/%06u.seg: %s; the coordinator stops, start it again once the disk works", l->dir, l->segment, strerror(errno));
    }
    l->marked = l->now;
    if (l->now.offset >= LEDGER_SEGMENT_BYTES) {
        close(l->fd);
        l->fd = -1;
        l->segment++;
        l->older_bytes += l->now.offset;
        l->now.offset = l->marked.offset = 0;
    }
    return FL_OK;
}

ledger_place ledger_last(const ledger *l)
{
    return l->last;
}

bool ledger_is_closed(const ledger *l)
{
    return l->now.is_closed;
}

uint64_t ledger_bytes(const ledger *l)
{
    return l->older_bytes + l->now.offset;
}

ledger_place ledger_marked(const ledger *l)
{
    return (ledger_place){ l->segment, l->marked.offset };
}

fl_status ledger_create(ledger **out, const char *dir, fl_err *err)
{
    fl_status st = FL_OK;
    uint32_t n_segments;
    int parent = -1;
    ledger *l = ledger_new(dir);
    if (!l) return fl_fail(err, FL_FULL, "ledger: no memory to create %s", dir);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) { st = fl_fail_errno(err, errno, "ledger: create folder %s", dir); goto done; }
    if ((st = ledger_segments_open(dir, &l->dir_fd, &n_segments, err)) != FL_OK) goto done;
    if (n_segments != 0) { st = fl_fail(err, FL_CONFLICT, "ledger: %s holds a ledger already", dir); goto done; }
    parent = openat(l->dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (parent < 0 || fsync(parent) != 0) { st = fl_fail_errno(err, errno, "ledger: sync the folder of %s", dir); goto done; }
    l->segment = 1;
    *out = l;
    l = NULL;
done:
    if (parent >= 0) close(parent);
    ledger_close(l);
    return st;
}

/* Walk every segment. On FL_OK: *last_marked of segment `n_segments` bytes are good, *n_bytes_older lie in the segments before. */
static fl_status walk_all(int dir_fd, const char *dir, uint32_t n_segments, ledger_cursor *cursor, ledger_visit visit, void *context,
                          size_t *last_marked, uint64_t *older_bytes, fl_err *err)
{
    *last_marked = 0;
    *older_bytes = 0;
    for (uint32_t segment = 1; segment <= n_segments; segment++) {
        uint8_t *data;
        size_t n_bytes;
        fl_status st = ledger_segment_read(dir_fd, dir, segment, &data, &n_bytes, err);
        if (st != FL_OK) return st;
        *older_bytes += *last_marked;
        st = ledger_walk(data, n_bytes, segment, segment == n_segments, cursor, visit, context, last_marked, err);
        free(data);
        if (st == FL_CORRUPT && err) {
            fl_err why = *err;
            return fl_fail(err, FL_CORRUPT, "%s (in %s; `tokenfleet verify --spool` names the rows; put the spool back from a copy, or begin anew)", why.text, dir);
        }
        if (st != FL_OK) return st;
    }
    if (cursor->n_frames == 0) return fl_fail(err, FL_NOT_FOUND, "ledger: nothing was ever committed in %s", dir);
    return FL_OK;
}

fl_status ledger_open(ledger **out, const char *dir, ledger_visit visit, void *context, fl_err *err)
{
    fl_status st = FL_OK;
    uint32_t n_segments;
    size_t last_marked;
    ledger_cursor cursor = { 0 };
    ledger *l = ledger_new(dir);
    if (!l) return fl_fail(err, FL_FULL, "ledger: no memory to open %s", dir);
    if ((st = ledger_segments_open(dir, &l->dir_fd, &n_segments, err)) != FL_OK) goto done;
    if ((st = walk_all(l->dir_fd, dir, n_segments, &cursor, visit, context, &last_marked, &l->older_bytes, err)) != FL_OK) goto done;
    l->segment = n_segments;
    if ((st = open_segment(l, err)) != FL_OK) goto done;
    if (ftruncate(l->fd, (off_t)last_marked) != 0) { st = fl_fail_errno(err, errno, "ledger: cut the tail of %s/%06u.seg", dir, l->segment); goto done; }
    if (fdatasync(l->fd) != 0) { st = fl_fail(err, FL_IO, "ledger: sync %s/%06u.seg: %s", dir, l->segment, strerror(errno)); goto done; }
    l->now = l->marked = (position){ last_marked, cursor.chain, cursor.n_frames, cursor.is_closed };
    *out = l;
    l = NULL;
done:
    ledger_close(l);
    return st;
}

fl_status ledger_scan_to_end(const char *dir, ledger_visit visit, void *context, ledger_place *end, bool *is_closed, fl_err *err)
{
    int dir_fd;
    uint32_t n_segments;
    size_t last_marked;
    uint64_t older_bytes;
    ledger_cursor cursor = { 0 };
    fl_status st = ledger_segments_open(dir, &dir_fd, &n_segments, err);
    if (st != FL_OK) return st;
    st = walk_all(dir_fd, dir, n_segments, &cursor, visit, context, &last_marked, &older_bytes, err);
    close(dir_fd);
    if (st != FL_OK) return st;
    *end = (ledger_place){ n_segments, last_marked };
    *is_closed = cursor.is_closed;
    return FL_OK;
}

fl_status ledger_scan(const char *dir, ledger_visit visit, void *context, fl_err *err)
{
    ledger_place end;
    bool is_closed;
    return ledger_scan_to_end(dir, visit, context, &end, &is_closed, err);
}
