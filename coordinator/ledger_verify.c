#include "coordinator/ledger_verify.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "coordinator/ledger_record.h"
#include "coordinator/ledger_segment.h"

#define MAGIC 0x31464654u
#define FINDINGS_MAX 1000

typedef struct {
    const row_table *rows;
    void (*finding)(void *context, const ledger_finding *f);
    void *context;
    ledger_report *report;
    uint64_t *seen;                      /* owned bitmap: this sample has a result */
    uint64_t *failed;                    /* owned bitmap by first slot: this row has an error */
    uint64_t chain, n_frames;
    bool has_marker_after_close;
    row_index last_row; bool has_last_row;       /* of the record before, to name a place by */
    row_index piece_row; uint32_t piece_sample, next_piece, n_pieces;   /* pieces of one body follow each other */
} check;

static bool get(const uint64_t *bits, uint64_t i) { return bits[i / 64] >> (i % 64) & 1; }
static void set(uint64_t *bits, uint64_t i) { bits[i / 64] |= (uint64_t)1 << (i % 64); }

static void report(check *c, bool has_row, row_index row, ledger_place place, const char *format, ...) __attribute__((format(printf, 5, 6)));
static void report(check *c, bool has_row, row_index row, ledger_place place, const char *format, ...)
{
    if (c->report->n_findings++ >= FINDINGS_MAX || !c->finding) return;
    ledger_finding f = { .has_row = has_row && row_table_has(c->rows, row.v, 0), .row = row, .place = place };
    if (f.has_row) f.row = row_table_graded(c->rows, row);       /* people know the row, not its grade row */
    va_list args;
    va_start(args, format);
    vsnprintf(f.text, sizeof f.text, format, args);
    va_end(args);
    c->finding(c->context, &f);
}

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t stored_checksum(const uint8_t *frame)
{
    return get32(frame + 16) | (uint64_t)get32(frame + 20) << 32;
}

/* A result: pieces in order, sample known, not a second one. Only its last piece makes it count. */
static void check_result(check *c, const ledger_record *r)
{
    if (!row_table_has(c->rows, r->row.v, r->sample)) {
        report(c, c->has_last_row, c->last_row, r->place, "a result for row %" PRIu64 ", sample %u, which the job does not have, lies behind this row's record", r->row.v, r->sample);
        return;
    }
    bool continues = r->piece > 0 && c->next_piece == r->piece && c->n_pieces == r->n_pieces && c->piece_row.v == r->row.v && c->piece_sample == r->sample;
    if (r->piece > 0 && !continues) report(c, true, r->row, r->place, "piece %u of sample %u does not follow piece %u", r->piece, r->sample, r->piece - 1);
    c->piece_row = r->row;
    c->piece_sample = r->sample;
    c->n_pieces = r->n_pieces;
    c->next_piece = r->piece + 1;
    if (r->piece + 1 < r->n_pieces) return;
    uint64_t slot = row_table_slot(c->rows, r->row, r->sample);
    bool is_grade = row_table_is_grade(c->rows, r->row);
    row_index row = row_table_graded(c->rows, r->row);
    if (get(c->seen, slot)) report(c, true, r->row, r->place, "sample %u has a second %s", r->sample, is_grade ? "verdict" : "result");
    else if (get(c->failed, row_table_slot(c->rows, row, 0))) report(c, true, r->row, r->place, "sample %u has a %s after the row's error", r->sample, is_grade ? "verdict" : "result");
    else if (is_grade && !get(c->seen, row_table_slot(c->rows, row, r->sample))) report(c, true, r->row, r->place, "sample %u has a verdict before its result", r->sample);
    set(c->seen, slot);
    *(is_grade ? &c->report->n_verdicts : &c->report->n_results) += 1;
}

static void check_error(check *c, const ledger_record *r)
{
    if (!row_table_has(c->rows, r->row.v, 0)) {
        report(c, c->has_last_row, c->last_row, r->place, "an error for row %" PRIu64 ", which the job does not have, lies behind this row's record", r->row.v);
        return;
    }
    uint64_t slot = row_table_slot(c->rows, r->row, 0);
    if (get(c->failed, slot)) report(c, true, r->row, r->place, "the row has a second error");
    set(c->failed, slot);
    c->report->n_errors++;
}

static bool names_row(const ledger_record *r)
{
    return r->kind == LEDGER_RESULT || r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_INGEST_ERROR;
}

/* One frame whose bounds are known. is_good: its checksum fits the frame before it. */
static void check_frame(check *c, const uint8_t *frame, size_t size, ledger_place place, bool is_good)
{
    ledger_record r;
    fl_err why = { 0 };
    uint16_t kind = (uint16_t)(frame[6] | frame[7] << 8);
    const uint8_t *payload = frame + FL_FRAME_HEADER_BYTES;
    size_t payload_bytes = size - FL_FRAME_HEADER_BYTES;
    if (kind == LEDGER_MARKER) {
        uint64_t n_frames;
        bool matches = ledger_marker_matches(payload, payload_bytes, place, &n_frames);
        if (!is_good || !matches) report(c, c->has_last_row, c->last_row, place, "the commit marker behind this row's record is broken, or something before it was removed, added or moved");
        c->n_frames++;
        if (c->report->closed) c->has_marker_after_close = true;
        return;
    }
    bool is_record = ledger_record_decode(&r, kind, payload, payload_bytes, &why) == FL_OK;
    if (!is_record) {
        report(c, c->has_last_row, c->last_row, place, "behind this row's record lies %s", why.text);
        return;
    }
    r.place = place;
    if (!is_good) report(c, names_row(&r) || c->has_last_row, names_row(&r) ? r.row : c->last_row, place,
                         "its record does not follow the one before it: it was changed, or a record between them was removed, added or moved");
    if (c->report->closed) report(c, names_row(&r) || c->has_last_row, names_row(&r) ? r.row : c->last_row, place, "a record lies behind the closing record");
    c->n_frames++;
    c->report->n_frames++;
    if (r.kind == LEDGER_RESULT) check_result(c, &r);
    else if (names_row(&r)) check_error(c, &r);
    else if (r.kind == LEDGER_CLOSE) { c->report->closed = true; c->report->cause = r.cause; }
    if (names_row(&r)) { c->last_row = r.row; c->has_last_row = true; }
}

/* The next place that can be a frame: magic, a known kind and a length that ends at another magic or at the end. */
static size_t next_frame(const uint8_t *data, size_t n_bytes, size_t from)
{
    for (; from + FL_FRAME_HEADER_BYTES <= n_bytes; from++) {
        if (get32(data + from) != MAGIC) continue;
        size_t end = from + FL_FRAME_HEADER_BYTES + get32(data + from + 8);
        if (end == n_bytes || (end + 4 <= n_bytes && get32(data + end) == MAGIC)) return from;
    }
    return n_bytes;
}

static void check_segment(check *c, const uint8_t *data, size_t n_bytes, uint32_t segment, bool is_last)
{
    size_t at = 0, end_of_marked = 0;
    while (at < n_bytes) {
        ledger_place place = { segment, at };
        fl_frame frame;
        bool is_good = fl_frame_decode(&frame, data + at, n_bytes - at, c->chain, NULL) == FL_OK;
        bool is_tail = is_last && !is_good && ledger_find_marker(data, n_bytes, at) == n_bytes;
        if (is_tail && !c->report->closed) break;        /* a torn tail: what a crash leaves */
        if (!is_good && next_frame(data, n_bytes, at) != at) {
            size_t next = next_frame(data, n_bytes, at + 1);
            report(c, c->has_last_row, c->last_row, place, "%zu bytes behind this row's record are not a frame", next - at);
            at = next;
            continue;
        }
        size_t size = FL_FRAME_HEADER_BYTES + (size_t)get32(data + at + 8);
        check_frame(c, data + at, size, place, is_good);
        c->chain = stored_checksum(data + at);
        bool is_marker = (data[at + 6] | data[at + 7] << 8) == LEDGER_MARKER;
        at += size;
        if (is_marker) end_of_marked = at;
    }
    if (is_last) c->report->n_tail_bytes = n_bytes - end_of_marked;
    else if (end_of_marked != n_bytes)
        report(c, c->has_last_row, c->last_row, (ledger_place){ segment, end_of_marked }, "the segment does not end in a marker but another one follows");
}

/* Samples of the row (or grade row) without a record; *first is the lowest. */
static uint32_t count_missing(const check *c, row_index row, uint32_t *first)
{
    uint64_t slot = row_table_slot(c->rows, row, 0);
    uint32_t n_missing = 0;
    for (uint32_t s = row_table_samples(c->rows, row); s-- > 0;)
        if (!get(c->seen, slot + s)) { n_missing++; *first = s; }
    return n_missing;
}

static void check_missing(check *c)
{
    bool is_graded = row_table_is_graded(c->rows);
    for (row_index row = { 0 }; row.v < row_table_n_rows(c->rows); row.v++) {
        if (get(c->failed, row_table_slot(c->rows, row, 0))) continue;
        uint32_t first = 0, n = count_missing(c, row, &first), n_verdicts = n == 0 && is_graded ? count_missing(c, row_table_grade_of(c->rows, row), &first) : 0;
        if (n + n_verdicts == 0) continue;
        c->report->n_rows_open++;
        if (c->report->closed && c->report->cause == LEDGER_COMPLETED)
            report(c, true, row, (ledger_place){ 0 }, "%u of its %u %s are missing, the first is sample %u", n + n_verdicts, row_table_samples(c->rows, row), n ? "results" : "verdicts", first);
    }
}

fl_status ledger_verify(const char *dir, const row_table *rows, void (*finding)(void *context, const ledger_finding *f), void *context,
                        ledger_report *out, fl_err *err)
{
    fl_status st = FL_OK;
    int dir_fd;
    uint32_t n_segments;
    memset(out, 0, sizeof *out);
    if ((st = ledger_segments_open(dir, &dir_fd, &n_segments, err)) != FL_OK) return st;
    size_t n_words = row_table_n_slots(rows) / 64 + 1;
    check c = { .rows = rows, .finding = finding, .context = context, .report = out };
    c.seen = calloc(n_words, sizeof *c.seen);
    c.failed = calloc(n_words, sizeof *c.failed);
    if (!c.seen || !c.failed) { st = fl_fail(err, FL_FULL, "verify: no memory for %llu samples", (unsigned long long)row_table_n_slots(rows)); goto done; }
    for (uint32_t segment = 1; segment <= n_segments; segment++) {
        uint8_t *data;
        size_t n_bytes;
        if ((st = ledger_segment_read(dir_fd, dir, segment, &data, &n_bytes, err)) != FL_OK) goto done;
        check_segment(&c, data, n_bytes, segment, segment == n_segments);
        free(data);
    }
    if (c.n_frames == 0) { st = fl_fail(err, FL_NOT_FOUND, "verify: nothing was ever committed in %s", dir); goto done; }
    if (out->closed && (!c.has_marker_after_close || out->n_tail_bytes != 0))
        report(&c, c.has_last_row, c.last_row, (ledger_place){ n_segments, 0 }, "the ledger does not end with the closing record and its marker");
    check_missing(&c);
done:
    free(c.seen);
    free(c.failed);
    close(dir_fd);
    return st;
}
