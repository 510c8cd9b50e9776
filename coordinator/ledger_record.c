#include "coordinator/ledger_record.h"

#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

#define MAGIC 0x31464654u                /* proto/frame.h */
#define PAGE_BYTES 4096u

static void put32(uint8_t *at, uint32_t v)
{
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static void put64(uint8_t *at, uint64_t v)
{
    for (int i = 0; i < 8; i++) at[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get64(const uint8_t *at)
{
    return get32(at) | (uint64_t)get32(at + 4) << 32;
}

static void add_part(ledger_frame *frame, const void *data, size_t bytes)
{
    FL_ASSERT(frame->n_parts < LEDGER_RECORD_PARTS);
    if (bytes == 0) return;
    frame->parts[frame->n_parts++] = (fl_bytes){ data, bytes };
    frame->bytes += bytes;
}

/* The next piece of the frame's own small memory. */
static uint8_t *fixed_part(ledger_frame *frame, size_t bytes)
{
    FL_ASSERT(frame->n_parts < LEDGER_RECORD_PARTS && bytes <= sizeof frame->fixed[0]);
    uint8_t *at = frame->fixed[frame->n_parts];
    memset(at, 0, bytes);
    add_part(frame, at, bytes);
    return at;
}

static void finish(ledger_frame *frame, uint16_t kind, uint64_t chain)
{
    frame->checksum = fl_frame_header(frame->header, kind, frame->parts, frame->n_parts, chain);
    frame->bytes += FL_FRAME_HEADER_BYTES;
}

fl_status ledger_frame_record(ledger_frame *frame, const ledger_record *r, uint64_t chain, fl_err *err)
{
    frame->n_parts = 0;
    frame->bytes = 0;
    uint8_t *at;
    switch (r->kind) {
    case LEDGER_JOB:
        break;
    case LEDGER_INGEST_ERROR:
        at = fixed_part(frame, 32);
        put64(at, r->row.v);
        put64(at + 8, r->line);
        put64(at + 16, r->line_offset);
        put32(at + 24, r->code);
        put32(at + 28, (uint32_t)r->custom_id.bytes);
        add_part(frame, r->custom_id.data, r->custom_id.bytes);
        break;
    case LEDGER_DETOK:
        put32(fixed_part(frame, 4), (uint32_t)r->fingerprint.bytes);
        add_part(frame, r->fingerprint.data, r->fingerprint.bytes);
        break;
    case LEDGER_PIN:
        at = fixed_part(frame, 20);
        put32(at, r->n_vocab);
        put32(at + 4, r->context);
        put32(at + 8, (uint32_t)r->fingerprint.bytes);
        put32(at + 12, (uint32_t)r->numerics.bytes);
        put32(at + 16, (uint32_t)r->model.bytes);
        add_part(frame, r->fingerprint.data, r->fingerprint.bytes);
        add_part(frame, r->numerics.data, r->numerics.bytes);
        add_part(frame, r->model.data, r->model.bytes);
        break;
    case LEDGER_RESULT:
        FL_ASSERT(r->n_pieces > 0 && r->piece < r->n_pieces);
        put64(at = fixed_part(frame, 32), r->row.v);
        put64(at + 8, r->lease.v);
        put32(at + 16, r->sample);
        put32(at + 20, r->piece);
        put32(at + 24, r->n_pieces);
        put32(at + 28, r->n_tokens);
        break;
    case LEDGER_ROW_ERROR:
        at = fixed_part(frame, 24);
        put64(at, r->row.v);
        put64(at + 8, r->lease.v);
        put32(at + 16, r->code);
        break;
    case LEDGER_CLOSE:
        put32(fixed_part(frame, 8), (uint32_t)r->cause);
        break;
    case LEDGER_MARKER:
        FL_ASSERT(0 && "markers are written by ledger_commit");
    }
    if (r->kind != LEDGER_PIN && r->kind != LEDGER_CLOSE) add_part(frame, r->body.data, r->body.bytes);
    if (frame->bytes > FL_FRAME_PAYLOAD_MAX)
        return fl_fail(err, FL_INVALID, "ledger: a record of %zu bytes is over the limit of %u", frame->bytes, FL_FRAME_PAYLOAD_MAX);
    finish(frame, (uint16_t)r->kind, chain);
    return FL_OK;
}

static uint64_t place_number(ledger_place place)
{
    return (uint64_t)place.segment << 40 | place.offset;
}

void ledger_frame_marker(ledger_frame *frame, uint64_t n_frames, ledger_place place, uint64_t chain)
{
    frame->n_parts = 0;
    frame->bytes = 0;
    uint8_t *at = fixed_part(frame, LEDGER_MARKER_BYTES);
    put64(at, n_frames);
    put64(at + 8, place_number(place));
    put64(at + 16, XXH3_64bits(at, 16));
    finish(frame, LEDGER_MARKER, chain);
}

static bool is_intact_marker(const uint8_t *payload)
{
    return get64(payload + 16) == XXH3_64bits(payload, 16);
}

bool ledger_marker_matches(const uint8_t *payload, size_t n_bytes, ledger_place place, uint64_t *n_frames)
{
    if (n_bytes != LEDGER_MARKER_BYTES || !is_intact_marker(payload) || get64(payload + 8) != place_number(place)) return false;
    *n_frames = get64(payload);
    return true;
}

fl_status ledger_record_decode(ledger_record *r, uint16_t kind, const uint8_t *p, size_t n, fl_err *err)
{
    static const size_t fixed[] = { [LEDGER_JOB] = 0, [LEDGER_INGEST_ERROR] = 32, [LEDGER_DETOK] = 4, [LEDGER_PIN] = 20, [LEDGER_RESULT] = 32,
                                    [LEDGER_ROW_ERROR] = 24, [LEDGER_CLOSE] = 8 };
    memset(r, 0, sizeof *r);
    if (kind < LEDGER_JOB || kind > LEDGER_CLOSE) return fl_fail(err, FL_CORRUPT, "a record of unknown kind %u", kind);
    if (n < fixed[kind]) return fl_fail(err, FL_CORRUPT, "a record of kind %u with only %zu bytes", kind, n);
    r->kind = (ledger_kind)kind;
    const uint8_t *rest = p + fixed[kind];
    size_t n_rest = n - fixed[kind];
    switch (r->kind) {
    case LEDGER_JOB:
        break;
    case LEDGER_INGEST_ERROR:
        r->row.v = get64(p);
        r->line = get64(p + 8);
        r->line_offset = get64(p + 16);
        r->code = get32(p + 24);
        r->custom_id = (fl_bytes){ rest, get32(p + 28) };
        if (r->custom_id.bytes > n_rest) return fl_fail(err, FL_CORRUPT, "an ingest error whose custom id is longer than the record");
        rest += r->custom_id.bytes;
        n_rest -= r->custom_id.bytes;
        break;
    case LEDGER_DETOK:
        r->fingerprint = (fl_bytes){ rest, get32(p) };
        if (r->fingerprint.bytes > n_rest) return fl_fail(err, FL_CORRUPT, "a detokenizer table whose fingerprint is longer than the record");
        rest += r->fingerprint.bytes;
        n_rest -= r->fingerprint.bytes;
        break;
    case LEDGER_PIN: {
        uint64_t sizes[3] = { get32(p + 8), get32(p + 12), get32(p + 16) };
        r->n_vocab = get32(p);
        r->context = get32(p + 4);
        if (sizes[0] + sizes[1] + sizes[2] != n_rest) return fl_fail(err, FL_CORRUPT, "a pin whose strings do not fill the record");
        r->fingerprint = (fl_bytes){ rest, sizes[0] };
        r->numerics = (fl_bytes){ rest + sizes[0], sizes[1] };
        r->model = (fl_bytes){ rest + sizes[0] + sizes[1], sizes[2] };
        return FL_OK;
    }
    case LEDGER_RESULT:
        r->row.v = get64(p);
        r->lease.v = get64(p + 8);
        r->sample = get32(p + 16);
        r->piece = get32(p + 20);
        r->n_pieces = get32(p + 24);
        r->n_tokens = get32(p + 28);
        if (r->n_pieces == 0 || r->piece >= r->n_pieces) return fl_fail(err, FL_CORRUPT, "a result with piece %u of %u", r->piece, r->n_pieces);
        break;
    case LEDGER_ROW_ERROR:
        r->row.v = get64(p);
        r->lease.v = get64(p + 8);
        r->code = get32(p + 16);
        break;
    case LEDGER_CLOSE: {
        uint32_t cause = get32(p);
        if (cause < LEDGER_COMPLETED || cause > LEDGER_EXPIRED || n_rest != 0) return fl_fail(err, FL_CORRUPT, "a closing record with cause %u", cause);
        r->cause = (ledger_cause)cause;
        return FL_OK;
    }
    case LEDGER_MARKER:
        break;
    }
    r->body = (fl_bytes){ rest, n_rest };
    return FL_OK;
}

size_t ledger_find_marker(const uint8_t *data, size_t n_bytes, size_t from)
{
    static const uint8_t magic[4] = { MAGIC & 0xff, MAGIC >> 8 & 0xff, MAGIC >> 16 & 0xff, MAGIC >> 24 };
    const size_t size = FL_FRAME_HEADER_BYTES + LEDGER_MARKER_BYTES;
    while (from + size <= n_bytes) {
        const uint8_t *at = memmem(data + from, n_bytes - from, magic, sizeof magic);
        if (!at) break;
        size_t offset = (size_t)(at - data);
        if (offset + size <= n_bytes && (at[6] | at[7] << 8) == LEDGER_MARKER && is_intact_marker(at + FL_FRAME_HEADER_BYTES)) return offset;
        from = offset + 1;
    }
    return n_bytes;
}

/* Does a whole file page, or the rest of the page in which `from` lies, read as zeros below `to`? Such a page was never written. */
static bool has_lost_page(const uint8_t *data, uint64_t base, size_t from, size_t to)
{
    while (from < to) {
        size_t end = from + (PAGE_BYTES - (size_t)((base + from) % PAGE_BYTES)), i = from;
        if (end > to) end = to;
        while (i < end && data[i] == 0) i++;
        if (i == end && end - from >= FL_FRAME_HEADER_BYTES) return true;
        from = end;
    }
    return false;
}

typedef struct { ledger_cursor *cursor; uint32_t segment; ledger_visit visit; void *context; } walk;

/* Show the records of a group that its marker confirms; their checksums are known to be good. */
static fl_status show_group(const walk *w, const uint8_t *data, size_t from, size_t marker, fl_err *err)
{
    fl_err why = { 0 };
    while (from < marker) {
        ledger_record record;
        size_t payload_bytes = get32(data + from + 8);
        uint16_t kind = (uint16_t)(data[from + 6] | data[from + 7] << 8);
        if (ledger_record_decode(&record, kind, data + from + FL_FRAME_HEADER_BYTES, payload_bytes, &why) != FL_OK)
            return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": %s", w->segment, w->cursor->base + from, why.text);
        record.place = (ledger_place){ w->segment, w->cursor->base + from };
        if (w->cursor->is_closed)
            return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": a record after the closing record", w->segment, record.place.offset);
        if ((record.kind == LEDGER_JOB) != (w->cursor->n_frames == 0))
            return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": the job record must come first and once", w->segment, record.place.offset);
        if (record.kind == LEDGER_CLOSE) w->cursor->is_closed = true;
        w->cursor->n_frames++;
        if (w->visit) {
            fl_status st = w->visit(w->context, &record, err);
            if (st != FL_OK) return st;
        }
        from += FL_FRAME_HEADER_BYTES + payload_bytes;
    }
    w->cursor->n_frames++;                               /* the marker itself */
    return FL_OK;
}

fl_status ledger_walk(const uint8_t *data, size_t n_bytes, uint32_t segment, bool is_last, ledger_cursor *cursor, ledger_visit visit, void *context,
                      size_t *marked_bytes, fl_err *err)
{
    walk w = { cursor, segment, visit, context };
    size_t at = 0, group = 0;
    uint64_t chain = cursor->chain, base = cursor->base, n_in_group = 0;
    *marked_bytes = 0;
    while (at < n_bytes) {
        fl_frame frame;
        fl_err why = { 0 };
        fl_status st = fl_frame_decode(&frame, data + at, n_bytes - at, chain, &why);
        if (st != FL_OK) {
            size_t marker = ledger_find_marker(data, n_bytes, at);
            size_t end = marker + FL_FRAME_HEADER_BYTES + LEDGER_MARKER_BYTES;
            if (is_last && (marker == n_bytes || (end == n_bytes && has_lost_page(data, base, at, marker)))) return FL_OK;
            if (st == FL_AGAIN) return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": a frame that does not end", segment, base + at);
            return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": %s", segment, base + at, why.text);
        }
        size_t size = FL_FRAME_HEADER_BYTES + (size_t)frame.payload_bytes;
        if (frame.kind == LEDGER_MARKER) {
            uint64_t n_frames;
            if (!ledger_marker_matches(frame.payload, frame.payload_bytes, (ledger_place){ segment, base + at }, &n_frames) || n_frames != cursor->n_frames + n_in_group)
                return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": a marker of another place", segment, base + at);
            if ((st = show_group(&w, data, group, at, err)) != FL_OK) return st;
            group = at + size;
            n_in_group = 0;
            cursor->chain = frame.checksum;
            *marked_bytes = group;
        } else {
            n_in_group++;
        }
        chain = frame.checksum;
        at += size;
    }
    if (group < n_bytes && !is_last)
        return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %" PRIu64 ": the segment does not end in a marker but another segment follows", segment, base + group);
    return FL_OK;
}
