/* Any bytes as a ledger segment: the walk ends, agrees with itself about what it cut, and its records are within the file. Then as the segment of a ledger's folder, as it is and
 * with checksums and markers set right (else nothing behind the first changed frame would be reached): verify walks past whatever is broken; scan, reader, index,
 * lookup and open see the same records or refuse with a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger_index.h"
#include "coordinator/ledger_lookup.h"
#include "coordinator/ledger_reader.h"
#include "coordinator/ledger_record.h"
#include "coordinator/ledger_verify.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

typedef struct { const uint8_t *data; size_t n; uint64_t sum; int count; } span;

static void touch(span *s, fl_bytes b)
{
    const uint8_t *p = b.data;
    FL_ASSERT(b.bytes == 0 || (p >= s->data && p + b.bytes <= s->data + s->n));
    for (size_t i = 0; i < b.bytes; i++) s->sum += p[i];
}

static fl_status see(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    span *s = context;
    touch(s, r->body);
    touch(s, r->fingerprint);
    touch(s, r->numerics);
    touch(s, r->model);
    touch(s, r->custom_id);
    s->count++;
    return FL_OK;
}

static void drop_finding(void *context, const ledger_finding *f)
{
    ++*(uint64_t *)context;
    FL_ASSERT(f->text[0]);
}

/* ---- as a folder ---- */

enum { N_ROWS = 8 };
static uint32_t samples_of(int row) { return 1 + (uint32_t)row % 3; }

static char dir[] = "/dev/shm/tokenfleet-fuzz-XXXXXX", segment_path[64];

static void remove_dir(void)
{
    unlink(segment_path);
    rmdir(dir);
}

static void write_segment(const uint8_t *data, size_t n)
{
    if (!segment_path[0]) {
        if (!mkdtemp(dir) || atexit(remove_dir) != 0) abort();
        snprintf(segment_path, sizeof segment_path, "%s/000001.seg", dir);
    }
    FILE *f = fopen(segment_path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
}

static void verify_folder(void)
{
    static row_table *rows;
    if (!rows) {
        if (row_table_open(&rows, 0, NULL) != FL_OK) abort();
        for (int i = 0; i < N_ROWS; i++)
            if (row_table_add(rows, samples_of(i), 1, NULL) != FL_OK) abort();
    }
    uint64_t n_findings = 0;
    ledger_report report;
    fl_status st = ledger_verify(dir, rows, drop_finding, &n_findings, &report, NULL);
    FL_ASSERT(st == FL_OK || st == FL_NOT_FOUND);
    FL_ASSERT(n_findings <= report.n_findings);
}

/* Checksums, chain and markers of the frames that stand back to back, set right. */
static void mend(uint8_t *data, size_t n)
{
    uint64_t chain = 0, n_frames = 0;
    for (size_t at = 0; n - at >= FL_FRAME_HEADER_BYTES; n_frames++) {
        uint32_t payload_bytes = fl_get_u32(data + at + 8);
        uint8_t *payload = data + at + FL_FRAME_HEADER_BYTES;
        if (payload_bytes > FL_FRAME_PAYLOAD_MAX || payload_bytes > n - at - FL_FRAME_HEADER_BYTES) return;
        uint16_t kind = fl_get_u16(data + at + 6);
        if (kind == LEDGER_MARKER && payload_bytes == LEDGER_MARKER_BYTES) {
            ledger_frame marker;
            ledger_frame_marker(&marker, n_frames, (ledger_place){ 1, at }, chain);
            memcpy(payload, marker.parts[0].data, LEDGER_MARKER_BYTES);
        }
        chain = fl_frame_header(data + at, kind, &(fl_bytes){ payload, payload_bytes }, 1, chain);
        at += FL_FRAME_HEADER_BYTES + payload_bytes;
    }
}

typedef struct { ledger_index *index; int count; } folder_records;

static fl_status count_record(void *context, const ledger_record *r, fl_err *err)
{
    folder_records *f = context;
    f->count++;
    return f->index ? ledger_index_note(f->index, r, err) : FL_OK;
}

/* What the index says lies there can be looked up, or is refused. */
static void look_up(const ledger_index *index)
{
    ledger_lookup *l = NULL;
    FL_ASSERT(ledger_lookup_open(&l, dir, NULL) == FL_OK);
    for (int i = 0; i < N_ROWS; i++) {
        row_index row = { (uint64_t)i };
        ledger_place place;
        ledger_record record;
        fl_bytes body;
        uint64_t n_bytes;
        fl_err err = { 0 };
        if (ledger_index_error(index, row, &place)) FL_ASSERT(ledger_lookup_error(l, place, row, &record, &err) == FL_OK || err.text[0]);
        for (uint32_t k = 0; k < samples_of(i); k++) {
            if (!ledger_index_result(index, row, k, &place)) continue;
            FL_ASSERT(ledger_lookup_size(l, place, &n_bytes, &err) == FL_OK || err.text[0]);
            FL_ASSERT(ledger_lookup_result(l, place, row, k, &body, &err) == FL_OK || err.text[0]);
        }
    }
    ledger_lookup_close(l);
}

static void read_folder(void)
{
    fl_err err = { 0 };
    uint64_t n_samples = 0;
    for (int i = 0; i < N_ROWS; i++) n_samples += samples_of(i);
    folder_records scanned = { 0 }, read = { 0 }, opened = { 0 }, again = { 0 };
    FL_ASSERT(ledger_index_open(&scanned.index, N_ROWS, n_samples, NULL) == FL_OK);
    for (int i = 0; i < N_ROWS; i++) ledger_index_add(scanned.index, samples_of(i));
    fl_status st = ledger_scan(dir, count_record, &scanned, &err);
    FL_ASSERT(st == FL_OK || err.text[0]);
    if (st == FL_OK) look_up(scanned.index);
    ledger_index_close(scanned.index);

    ledger_reader *reader = NULL;
    FL_ASSERT(ledger_reader_open(&reader, dir, NULL) == FL_OK);
    fl_status read_st = ledger_reader_read(reader, (ledger_place){ 0 }, count_record, &read, &err);
    ledger_reader_close(reader);
    FL_ASSERT(read_st == FL_OK || err.text[0]);
    if (st == FL_OK) FL_ASSERT(read_st == FL_OK && read.count == scanned.count);

    ledger *l = NULL;
    fl_status open_st = ledger_open(&l, dir, count_record, &opened, &err);
    ledger_close(l);
    FL_ASSERT(open_st == FL_OK || err.text[0]);
    if (st == FL_OK) FL_ASSERT(open_st == FL_OK && opened.count == scanned.count);
    if (open_st != FL_OK) return;
    l = NULL;
    FL_ASSERT(ledger_open(&l, dir, count_record, &again, &err) == FL_OK && again.count == opened.count);      /* its tail was cut */
    ledger_close(l);
}

static void as_folder(const uint8_t *data, size_t n)
{
    uint8_t *mended = malloc(n + 1);
    FL_ASSERT(mended);
    memcpy(mended, data, n);
    mend(mended, n);
    write_segment(data, n);
    verify_folder();
    read_folder();
    write_segment(mended, n);
    verify_folder();
    read_folder();
    free(mended);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    for (int is_last = 0; is_last < 2; is_last++) {
        span s = { data, n, 0, 0 };
        ledger_cursor cursor = { 0 };
        size_t marked = 0;
        fl_err err = { 0 };
        fl_status st = ledger_walk(data, n, 1, is_last, &cursor, see, &s, &marked, &err);
        FL_ASSERT(marked <= n && (st == FL_OK || err.text[0]));
        if (st != FL_OK) continue;
        span again = { data, n, 0, 0 };
        ledger_cursor second = { 0 };
        size_t all = 0;
        FL_ASSERT(ledger_walk(data, marked, 1, false, &second, see, &again, &all, NULL) == FL_OK);
        FL_ASSERT(all == marked && again.count == s.count && again.sum == s.sum && second.chain == cursor.chain);
    }
    ledger_record r;
    if (n > 1) (void)ledger_record_decode(&r, data[0], data + 1, n - 1, NULL);
    as_folder(data, n);
    return 0;
}
