#include "coordinator/ledger_index.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/ledger_record.h"
#include "coordinator/ledger_segment.h"

/* An entry is a place as one number: segment (20 bits) << 40 | offset (40 bits); 0 = nothing. The first sample's entry of a failed
 * row carries ERROR_BIT and points at the error instead. */
#define ERROR_BIT ((uint64_t)1 << 63)
#define OFFSET_MASK (((uint64_t)1 << 40) - 1)
#define FILES_OPEN 16                    /* segments are read nearly in order, so few suffice */

typedef struct { uint32_t segment; int fd; uint64_t used; } open_file;

struct ledger_index {
    const row_table *rows;               /* borrowed */
    char *dir;                           /* owned */
    int dir_fd;
    uint64_t *entries;                   /* owned [row_table_n_slots] */
    open_file files[FILES_OPEN];
    uint64_t clock;                      /* orders `used` */
    uint8_t *frame; size_t frame_capacity;       /* owned; the last frame read */
    uint8_t *body; size_t body_capacity;         /* owned; the last body joined */
};

fl_status ledger_index_open(ledger_index **out, const row_table *rows, const char *dir, fl_err *err)
{
    ledger_index *x = calloc(1, sizeof *x);
    if (!x) return fl_fail(err, FL_FULL, "ledger index: no memory");
    x->rows = rows;
    x->dir_fd = -1;
    for (int i = 0; i < FILES_OPEN; i++) x->files[i].fd = -1;
    x->dir = strdup(dir);
    x->entries = calloc(row_table_n_slots(rows) + 1, sizeof *x->entries);
    fl_status st = FL_OK;
    if (!x->dir || !x->entries) { st = fl_fail(err, FL_FULL, "ledger index: no memory for %llu samples", (unsigned long long)row_table_n_slots(rows)); goto done; }
    x->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (x->dir_fd < 0) { st = fl_fail_errno(err, errno, "ledger index: open %s", dir); goto done; }
    *out = x;
    x = NULL;
done:
    ledger_index_close(x);
    return st;
}

void ledger_index_close(ledger_index *x)
{
    if (!x) return;
    for (int i = 0; i < FILES_OPEN; i++)
        if (x->files[i].fd >= 0) close(x->files[i].fd);
    if (x->dir_fd >= 0) close(x->dir_fd);
    free(x->frame);
    free(x->body);
    free(x->entries);
    free(x->dir);
    free(x);
}

static uint64_t place_number(ledger_place place)
{
    return (uint64_t)place.segment << 40 | place.offset;
}

fl_status ledger_index_note(ledger_index *x, const ledger_record *r, fl_err *err)
{
    bool is_error = r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_INGEST_ERROR;
    if (!is_error && (r->kind != LEDGER_RESULT || r->piece != 0)) return FL_OK;
    uint32_t sample = is_error ? 0 : r->sample;
    if (!row_table_has(x->rows, r->row.v, sample))
        return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %llu: a record for row %llu, sample %u, which the job does not have", r->place.segment,
                       (unsigned long long)r->place.offset, (unsigned long long)r->row.v, sample);
    uint64_t *entry = &x->entries[row_table_slot(x->rows, r->row, sample)];
    uint64_t *first = &x->entries[row_table_slot(x->rows, r->row, 0)];
    if ((is_error && (*first & ERROR_BIT)) || (!is_error && ((*first & ERROR_BIT) || *entry != 0)))
        return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %llu: a second record for row %llu, sample %u", r->place.segment,
                       (unsigned long long)r->place.offset, (unsigned long long)r->row.v, sample);
    *entry = place_number(r->place) | (is_error ? ERROR_BIT : 0);
    return FL_OK;
}

static fl_status segment_fd(ledger_index *x, uint32_t segment, int *fd, fl_err *err)
{
    open_file *oldest = &x->files[0];
    for (int i = 0; i < FILES_OPEN; i++) {
        open_file *f = &x->files[i];
        if (f->fd >= 0 && f->segment == segment) {
            f->used = ++x->clock;
            *fd = f->fd;
            return FL_OK;
        }
        if (f->fd < 0 || f->used < oldest->used) oldest = f;
    }
    char name[LEDGER_SEGMENT_NAME_BYTES];
    ledger_segment_name(segment, name);
    if (oldest->fd >= 0) close(oldest->fd);
    oldest->fd = openat(x->dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (oldest->fd < 0) return fl_fail_errno(err, errno, "ledger: open %s/%s", x->dir, name);
    oldest->segment = segment;
    oldest->used = ++x->clock;
    *fd = oldest->fd;
    return FL_OK;
}

static fl_status read_exactly(const ledger_index *x, int fd, void *data, size_t n, ledger_place place, fl_err *err)
{
    uint8_t *at = data;
    for (uint64_t offset = place.offset; n > 0;) {
        ssize_t got = pread(fd, at, n, (off_t)offset);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fl_fail_errno(err, errno, "ledger: read %s/%06u.seg", x->dir, place.segment);
        if (got == 0) return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg ends inside the frame at offset %llu", x->dir, place.segment, (unsigned long long)place.offset);
        at += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return FL_OK;
}

static bool make_room(uint8_t **buffer, size_t *capacity, size_t need)
{
    if (need <= *capacity) return true;
    uint8_t *grown = realloc(*buffer, need + need / 2);
    if (!grown) return false;
    *buffer = grown;
    *capacity = need + need / 2;
    return true;
}

/* Read the frame at `place`. The walk that noted it checked the chain; here a changed payload shows as a record of another row. */
static fl_status read_frame(ledger_index *x, ledger_place place, ledger_record *record, size_t *frame_bytes, fl_err *err)
{
    int fd = -1;
    uint8_t header[FL_FRAME_HEADER_BYTES];
    fl_status st = segment_fd(x, place.segment, &fd, err);
    if (st != FL_OK || (st = read_exactly(x, fd, header, sizeof header, place, err)) != FL_OK) return st;
    size_t n = (size_t)header[8] | (size_t)header[9] << 8 | (size_t)header[10] << 16 | (size_t)header[11] << 24;
    if (n > FL_FRAME_PAYLOAD_MAX) return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: not a frame", x->dir, place.segment, (unsigned long long)place.offset);
    if (!make_room(&x->frame, &x->frame_capacity, n + 1)) return fl_fail(err, FL_FULL, "ledger: no memory for a frame of %zu bytes", n);
    ledger_place payload = { place.segment, place.offset + sizeof header };
    if ((st = read_exactly(x, fd, x->frame, n, payload, err)) != FL_OK) return st;
    if ((st = ledger_record_decode(record, (uint16_t)(header[6] | header[7] << 8), x->frame, n, err)) != FL_OK) return st;
    record->place = place;
    *frame_bytes = sizeof header + n;
    return FL_OK;
}

fl_status ledger_index_error(ledger_index *x, row_index row, ledger_record *record, fl_err *err)
{
    if (!row_table_has(x->rows, row.v, 0)) return FL_NOT_FOUND;
    uint64_t entry = x->entries[row_table_slot(x->rows, row, 0)];
    if (!(entry & ERROR_BIT)) return FL_NOT_FOUND;
    entry &= ~ERROR_BIT;
    ledger_place place = { (uint32_t)(entry >> 40), entry & OFFSET_MASK };
    size_t frame_bytes;
    fl_status st = read_frame(x, place, record, &frame_bytes, err);
    if (st != FL_OK) return st;
    if ((record->kind != LEDGER_ROW_ERROR && record->kind != LEDGER_INGEST_ERROR) || record->row.v != row.v)
        return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: the error of row %llu was changed", x->dir, place.segment,
                       (unsigned long long)place.offset, (unsigned long long)row.v);
    return FL_OK;
}

fl_status ledger_index_result(ledger_index *x, row_index row, uint32_t sample, fl_bytes *body, fl_err *err)
{
    if (!row_table_has(x->rows, row.v, sample)) return FL_NOT_FOUND;
    uint64_t entry = x->entries[row_table_slot(x->rows, row, sample)];
    if (entry == 0 || (entry & ERROR_BIT)) return FL_NOT_FOUND;
    ledger_place place = { (uint32_t)(entry >> 40), entry & OFFSET_MASK };
    size_t n = 0;
    for (uint32_t piece = 0, n_pieces = 1; piece < n_pieces; piece++) {
        ledger_record r;
        size_t frame_bytes;
        fl_status st = read_frame(x, place, &r, &frame_bytes, err);
        if (st != FL_OK) return st;
        if (r.kind != LEDGER_RESULT || r.row.v != row.v || r.sample != sample || r.piece != piece)
            return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: not piece %u of row %llu, sample %u", x->dir, place.segment,
                           (unsigned long long)place.offset, piece, (unsigned long long)row.v, sample);
        if (!make_room(&x->body, &x->body_capacity, n + r.body.bytes + 1)) return fl_fail(err, FL_FULL, "ledger: no memory for a result of %zu bytes", n + r.body.bytes);
        if (r.body.bytes > 0) memcpy(x->body + n, r.body.data, r.body.bytes);
        n += r.body.bytes;
        n_pieces = r.n_pieces;
        place.offset += frame_bytes;
    }
    *body = (fl_bytes){ x->body, n };
    return FL_OK;
}
