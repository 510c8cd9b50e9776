#include "coordinator/ledger_lookup.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/ledger_record.h"
#include "coordinator/ledger_segment.h"

#define FILES_OPEN 16                    /* segments are read nearly in order, so few suffice */
#define BLOCK_BYTES 65536u
#define BLOCKS 32
#define RESULT_HEADER_BYTES 32           /* ledger.h: what stands before a piece */

typedef struct { uint32_t segment; int fd; uint64_t used; } open_file;
typedef struct { uint32_t segment; uint64_t number, used; size_t n_bytes; } cached_block;    /* segment 0: empty */

struct ledger_lookup {
    char *dir;                           /* owned */
    int dir_fd;
    open_file files[FILES_OPEN];
    cached_block blocks[BLOCKS];
    uint8_t *cache;                      /* owned [BLOCKS * BLOCK_BYTES] */
    int last;                            /* the block that was asked for last */
    uint64_t clock;                      /* orders `used` */
    uint8_t *frame; size_t frame_capacity;       /* owned; a frame that lies in more than one block */
    uint8_t *body; size_t body_capacity;         /* owned; a body of more than one piece */
};

fl_status ledger_lookup_open(ledger_lookup **out, const char *dir, fl_err *err)
{
    fl_status st = FL_OK;
    ledger_lookup *l = calloc(1, sizeof *l);
    if (!l) return fl_fail(err, FL_FULL, "ledger: no memory to read results");
    l->dir_fd = -1;
    for (int i = 0; i < FILES_OPEN; i++) l->files[i].fd = -1;
    l->dir = strdup(dir);
    l->cache = malloc((size_t)BLOCKS * BLOCK_BYTES);
    if (!l->dir || !l->cache) { st = fl_fail(err, FL_FULL, "ledger: no memory to read results"); goto done; }
    l->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->dir_fd < 0) { st = fl_fail_errno(err, errno, "ledger: open %s", dir); goto done; }
    *out = l;
    l = NULL;
done:
    ledger_lookup_close(l);
    return st;
}

void ledger_lookup_close(ledger_lookup *l)
{
    if (!l) return;
    for (int i = 0; i < FILES_OPEN; i++)
        if (l->files[i].fd >= 0) close(l->files[i].fd);
    if (l->dir_fd >= 0) close(l->dir_fd);
    free(l->cache);
    free(l->frame);
    free(l->body);
    free(l->dir);
    free(l);
}

static fl_status segment_fd(ledger_lookup *l, uint32_t segment, int *fd, fl_err *err)
{
    open_file *oldest = &l->files[0];
    for (int i = 0; i < FILES_OPEN; i++) {
        open_file *f = &l->files[i];
        if (f->fd >= 0 && f->segment == segment) {
            f->used = ++l->clock;
            *fd = f->fd;
            return FL_OK;
        }
        if (f->fd < 0 || f->used < oldest->used) oldest = f;
    }
    char name[LEDGER_SEGMENT_NAME_BYTES];
    ledger_segment_name(segment, name);
    if (oldest->fd >= 0) close(oldest->fd);
    oldest->fd = openat(l->dir_fd, name, O_RDONLY | O_CLOEXEC);
    if (oldest->fd < 0) return fl_fail_errno(err, errno, "ledger: open %s/%s", l->dir, name);
    oldest->segment = segment;
    oldest->used = ++l->clock;
    *fd = oldest->fd;
    return FL_OK;
}

static fl_status ends_inside(const ledger_lookup *l, ledger_place place, fl_err *err)
{
    return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg ends inside the frame at offset %llu", l->dir, place.segment, (unsigned long long)place.offset);
}

static fl_status load_block(ledger_lookup *l, int at, uint32_t segment, uint64_t number, fl_err *err)
{
    int fd = -1;
    cached_block *b = &l->blocks[at];
    fl_status st = segment_fd(l, segment, &fd, err);
    if (st != FL_OK) return st;
    *b = (cached_block){ 0 };
    for (size_t n = 0; n < BLOCK_BYTES; ) {
        ssize_t got = pread(fd, l->cache + (size_t)at * BLOCK_BYTES + n, BLOCK_BYTES - n, (off_t)(number * BLOCK_BYTES + n));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fl_fail_errno(err, errno, "ledger: read %s/%06u.seg", l->dir, segment);
        if (got == 0) break;
        n += (size_t)got;
        b->n_bytes = n;
    }
    b->segment = segment;
    b->number = number;
    return FL_OK;
}

/* The bytes from `place` on that lie in its block; *n_bytes of them, at least one. */
static fl_status block_at(ledger_lookup *l, ledger_place place, const uint8_t **data, size_t *n_bytes, fl_err *err)
{
    uint64_t number = place.offset / BLOCK_BYTES;
    size_t in_block = (size_t)(place.offset % BLOCK_BYTES);
    int at = l->last;
    if (l->blocks[at].segment != place.segment || l->blocks[at].number != number) {
        int oldest = 0;
        for (at = 0; at < BLOCKS && (l->blocks[at].segment != place.segment || l->blocks[at].number != number); at++)
            if (l->blocks[at].used < l->blocks[oldest].used) oldest = at;
        if (at == BLOCKS) {
            at = oldest;
            fl_status st = load_block(l, at, place.segment, number, err);
            if (st != FL_OK) return st;
        }
        l->blocks[at].used = ++l->clock;
        l->last = at;
    }
    if (in_block >= l->blocks[at].n_bytes) return ends_inside(l, place, err);
    *data = l->cache + (size_t)at * BLOCK_BYTES + in_block;
    *n_bytes = l->blocks[at].n_bytes - in_block;
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

/* n bytes at `place`: in their block, or gathered in l->frame. */
static fl_status bytes_at(ledger_lookup *l, ledger_place place, size_t n, const uint8_t **data, fl_err *err)
{
    size_t there = 0;
    fl_status st = block_at(l, place, data, &there, err);
    if (st != FL_OK || there >= n) return st;
    if (!make_room(&l->frame, &l->frame_capacity, n)) return fl_fail(err, FL_FULL, "ledger: no memory for a frame of %zu bytes", n);
    for (size_t at = 0; at < n; ) {
        const uint8_t *part;
        if ((st = block_at(l, (ledger_place){ place.segment, place.offset + at }, &part, &there, err)) != FL_OK) return ends_inside(l, place, err);
        size_t take = there < n - at ? there : n - at;
        memcpy(l->frame + at, part, take);
        at += take;
    }
    *data = l->frame;
    return FL_OK;
}

static fl_status payload_size(ledger_lookup *l, ledger_place place, size_t *n_bytes, fl_err *err)
{
    const uint8_t *header;
    fl_status st = bytes_at(l, place, FL_FRAME_HEADER_BYTES, &header, err);
    if (st != FL_OK) return st;
    *n_bytes = fl_get_u32(header + 8);
    if (*n_bytes <= FL_FRAME_PAYLOAD_MAX) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: not a frame", l->dir, place.segment, (unsigned long long)place.offset);
}

static fl_status read_record(ledger_lookup *l, ledger_place place, ledger_record *record, size_t *frame_bytes, fl_err *err)
{
    size_t n = 0;
    const uint8_t *frame;
    fl_status st = payload_size(l, place, &n, err);
    if (st == FL_OK) st = bytes_at(l, place, FL_FRAME_HEADER_BYTES + n, &frame, err);
    if (st == FL_OK) st = ledger_record_decode(record, fl_get_u16(frame + 6), frame + FL_FRAME_HEADER_BYTES, n, err);
    record->place = place;
    *frame_bytes = FL_FRAME_HEADER_BYTES + n;
    return st;
}

fl_status ledger_lookup_error(ledger_lookup *l, ledger_place place, row_index row, ledger_record *record, fl_err *err)
{
    size_t frame_bytes;
    fl_status st = read_record(l, place, record, &frame_bytes, err);
    if (st != FL_OK) return st;
    if ((record->kind == LEDGER_ROW_ERROR || record->kind == LEDGER_INGEST_ERROR) && record->row.v == row.v) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: the error of row %llu was changed", l->dir, place.segment, (unsigned long long)place.offset,
                   (unsigned long long)row.v);
}

fl_status ledger_lookup_result(ledger_lookup *l, ledger_place place, row_index row, uint32_t sample, fl_bytes *body, fl_err *err)
{
    size_t n = 0;
    for (uint32_t piece = 0, n_pieces = 1; piece < n_pieces; piece++) {
        ledger_record r;
        size_t frame_bytes;
        fl_status st = read_record(l, place, &r, &frame_bytes, err);
        if (st != FL_OK) return st;
        if (r.kind != LEDGER_RESULT || r.row.v != row.v || r.sample != sample || r.piece != piece)
            return fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: not piece %u of row %llu, sample %u", l->dir, place.segment,
                           (unsigned long long)place.offset, piece, (unsigned long long)row.v, sample);
        if (r.n_pieces == 1) {
            *body = r.body;
            return FL_OK;
        }
        if (!make_room(&l->body, &l->body_capacity, n + r.body.bytes + 1)) return fl_fail(err, FL_FULL, "ledger: no memory for a result of %zu bytes", n + r.body.bytes);
        if (r.body.bytes > 0) memcpy(l->body + n, r.body.data, r.body.bytes);
        n += r.body.bytes;
        n_pieces = r.n_pieces;
        place.offset += frame_bytes;
    }
    *body = (fl_bytes){ l->body, n };
    return FL_OK;
}

fl_status ledger_lookup_size(ledger_lookup *l, ledger_place place, uint64_t *n_bytes, fl_err *err)
{
    size_t payload = 0;
    const uint8_t *head;
    fl_status st = payload_size(l, place, &payload, err);
    if (st == FL_OK && payload < RESULT_HEADER_BYTES) st = fl_fail(err, FL_CORRUPT, "ledger: %s/%06u.seg, offset %llu: not a result", l->dir, place.segment, (unsigned long long)place.offset);
    if (st == FL_OK) st = bytes_at(l, (ledger_place){ place.segment, place.offset + FL_FRAME_HEADER_BYTES }, RESULT_HEADER_BYTES, &head, err);
    if (st == FL_OK) *n_bytes = (uint64_t)payload * fl_get_u32(head + 24);         /* the last piece may be shorter */
    return st;
}
