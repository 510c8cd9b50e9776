/* The ledger: what was committed comes back, what was not is cut, what was touched is found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "coordinator/ledger.h"
#include "coordinator/ledger_index.h"
#include "coordinator/ledger_lookup.h"
#include "coordinator/ledger_reader.h"
#include "coordinator/ledger_record.h"
#include "coordinator/ledger_verify.h"
#include "tests/temp_folder.h"

static char folder[] = "/tmp/tokenfleet-ledger-XXXXXX";
static char dir[64], segment[96];

static int setup(void **state)
{
    (void)state;
    if (temp_folder_make(folder) != 0) return -1;
    snprintf(dir, sizeof dir, "%s/ledger", folder);
    snprintf(segment, sizeof segment, "%s/000001.seg", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return temp_folder_remove(folder);
}

static fl_bytes text(const char *s) { return (fl_bytes){ s, strlen(s) }; }

static void must(fl_status st, const fl_err *err)
{
    if (st != FL_OK) fail_msg("%s: %s", fl_status_name(st), err->text);
}

static void append(ledger *l, const ledger_record *r)
{
    fl_err err = { 0 };
    must(ledger_append(l, r, &err), &err);
}

static void commit(ledger *l)
{
    fl_err err = { 0 };
    must(ledger_commit(l, &err), &err);
}

static void append_result(ledger *l, uint64_t row, uint32_t sample, uint32_t piece, uint32_t n_pieces, const char *body)
{
    append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .sample = sample, .piece = piece, .n_pieces = n_pieces, .n_tokens = 7, .lease = { 9 }, .body = text(body) });
}

#define N_ROWS 6

/* Rows 0..5: 0 is bad at ingest, 3 fails, 5 has two samples of which one comes in two pieces. Five groups. */
static void write_ledger(bool with_close)
{
    fl_err err = { 0 };
    ledger *l = NULL;
    must(ledger_create(&l, dir, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = text("{\"seed\": 3}") });
    append(l, &(ledger_record){ .kind = LEDGER_INGEST_ERROR, .row = { 0 }, .line = 1, .line_offset = 4, .code = ROW_INVALID_JSON, .custom_id = text("c"), .body = text("bad") });
    commit(l);
    append(l, &(ledger_record){ .kind = LEDGER_PIN, .n_vocab = 300, .context = 128, .fingerprint = text("abcd"), .numerics = text("cpu-1"), .model = text("demo") });
    append(l, &(ledger_record){ .kind = LEDGER_DETOK, .fingerprint = text("abcd"), .body = text("table") });
    append_result(l, 1, 0, 0, 1, "one");
    commit(l);
    append_result(l, 4, 0, 0, 1, "four");
    append_result(l, 2, 0, 0, 1, "");
    commit(l);
    append(l, &(ledger_record){ .kind = LEDGER_ROW_ERROR, .row = { 3 }, .lease = { 2 }, .code = ROW_CONTEXT_OVERFLOW, .body = text("too long") });
    append_result(l, 5, 1, 0, 2, "fi");
    append_result(l, 5, 1, 1, 2, "ve");
    append_result(l, 5, 0, 0, 1, "five");
    commit(l);
    if (with_close) {
        append(l, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_COMPLETED });
        commit(l);
        assert_true(ledger_is_closed(l));
    }
    ledger_close(l);
}

static row_table *make_rows(void)
{
    fl_err err = { 0 };
    row_table *rows = NULL;
    must(row_table_open(&rows, 0, &err), &err);
    for (int i = 0; i < N_ROWS; i++) must(row_table_add(rows, i == 5 ? 2 : 1, 10, &err), &err);
    return rows;
}

static uint8_t *read_file(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    uint8_t *data = malloc(1 << 20);
    assert_non_null(data);
    *n = fread(data, 1, 1 << 20, f);
    fclose(f);
    return data;
}

static void write_file(const char *path, const uint8_t *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

typedef struct { int n, n_of[9]; char bodies[256]; } seen;

static fl_status look(void *context, const ledger_record *r, fl_err *err)
{
    (void)err;
    seen *s = context;
    s->n++;
    s->n_of[r->kind]++;
    if (r->kind == LEDGER_RESULT) strncat(s->bodies, r->body.data, r->body.bytes);
    if (r->kind == LEDGER_PIN) {
        assert_int_equal(r->n_vocab, 300);
        assert_int_equal(r->context, 128);
        assert_memory_equal(r->numerics.data, "cpu-1", 5);
        assert_memory_equal(r->model.data, "demo", 4);
    }
    if (r->kind == LEDGER_INGEST_ERROR) {
        assert_int_equal(r->line_offset, 4);
        assert_memory_equal(r->custom_id.data, "c", 1);
        assert_memory_equal(r->body.data, "bad", 3);
    }
    return FL_OK;
}

static void committed_records_come_back_in_order(void **state)
{
    (void)state;
    write_ledger(true);
    seen s = { 0 };
    fl_err err = { 0 };
    must(ledger_scan(dir, look, &s, &err), &err);
    assert_int_equal(s.n, 12);
    assert_string_equal(s.bodies, "onefourfivefive");
    ledger *l = NULL;
    must(ledger_open(&l, dir, NULL, NULL, &err), &err);
    assert_true(ledger_is_closed(l));
    assert_int_equal(ledger_append(l, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_CANCELLED }, &err), FL_CONFLICT);
    ledger_close(l);
}

static void an_uncommitted_group_is_cut(void **state)
{
    (void)state;
    fl_err err = { 0 };
    write_ledger(false);
    ledger *l = NULL;
    must(ledger_open(&l, dir, NULL, NULL, &err), &err);
    uint64_t before = ledger_bytes(l);
    append_result(l, 9, 0, 0, 1, "lost");
    ledger_close(l);
    seen s = { 0 };
    must(ledger_open(&l, dir, look, &s, &err), &err);
    assert_int_equal(s.n, 11);
    assert_int_equal(ledger_bytes(l), before);
    append_result(l, 9, 0, 0, 1, "kept");
    commit(l);
    ledger_close(l);
    memset(&s, 0, sizeof s);
    must(ledger_scan(dir, look, &s, &err), &err);
    assert_int_equal(s.n, 12);
}

/* Offsets at which a group ends, and how many records lie before each. */
static void find_groups(const uint8_t *data, size_t n, size_t ends[16], int counts[16], int *n_groups)
{
    size_t at = 0;
    int count = 0;
    *n_groups = 0;
    while (at < n) {
        uint32_t bytes;
        memcpy(&bytes, data + at + 8, 4);
        if (data[at + 6] != LEDGER_MARKER) count++;
        at += FL_FRAME_HEADER_BYTES + bytes;
        if (data[at - FL_FRAME_HEADER_BYTES - bytes + 6] != LEDGER_MARKER) continue;
        ends[*n_groups] = at;
        counts[(*n_groups)++] = count;
    }
}

static void every_truncation_reopens_at_the_last_marker(void **state)
{
    (void)state;
    write_ledger(true);
    size_t n, ends[16];
    int counts[16], n_groups;
    uint8_t *whole = read_file(segment, &n);
    find_groups(whole, n, ends, counts, &n_groups);
    assert_int_equal(n_groups, 5);
    for (size_t cut = 0; cut <= n; cut++) {
        write_file(segment, whole, cut);
        int group = -1;
        while (group + 1 < n_groups && ends[group + 1] <= cut) group++;
        seen s = { 0 };
        fl_err err = { 0 };
        ledger *l = NULL;
        fl_status st = ledger_open(&l, dir, look, &s, &err);
        if (group < 0) {
            assert_int_equal(st, FL_NOT_FOUND);
            continue;
        }
        must(st, &err);
        assert_int_equal(s.n, counts[group]);
        ledger_close(l);
        struct stat info;
        assert_int_equal(stat(segment, &info), 0);
        assert_int_equal(info.st_size, ends[group]);
    }
    free(whole);
}

static void a_flip_before_a_marker_is_corrupt_with_its_place(void **state)
{
    (void)state;
    write_ledger(true);
    size_t n, ends[16];
    int counts[16], n_groups;
    uint8_t *whole = read_file(segment, &n);
    find_groups(whole, n, ends, counts, &n_groups);
    size_t last_marker = n - FL_FRAME_HEADER_BYTES - LEDGER_MARKER_BYTES;
    for (size_t at = 0; at < n; at++) {
        whole[at] ^= 0x10;
        write_file(segment, whole, n);
        fl_err err = { 0 };
        fl_status st = ledger_scan(dir, NULL, NULL, &err);
        if (at < last_marker) {
            assert_int_equal(st, FL_CORRUPT);
            assert_non_null(strstr(err.text, "000001"));
            assert_non_null(strstr(err.text, "offset"));
        } else {
            seen s = { 0 };                              /* a broken last marker looks like a torn one: its group is not there */
            fl_status again = ledger_scan(dir, look, &s, &err);
            assert_true(again == FL_CORRUPT || (again == FL_OK && s.n == counts[n_groups - 2]));
        }
        whole[at] ^= 0x10;
    }
    free(whole);
}

static void a_page_that_was_never_written_is_a_torn_tail(void **state)
{
    (void)state;
    fl_err err = { 0 };
    ledger *l = NULL;
    char big[20000];
    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    must(ledger_create(&l, dir, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = text("{}") });
    commit(l);
    append_result(l, 0, 0, 0, 1, big);
    append_result(l, 1, 0, 0, 1, "next");
    commit(l);
    ledger_close(l);
    size_t n;
    uint8_t *whole = read_file(segment, &n);
    memset(whole + 8192, 0, 4096);
    write_file(segment, whole, n);
    seen s = { 0 };
    must(ledger_scan(dir, look, &s, &err), &err);
    assert_int_equal(s.n, 1);
    whole[9000] = 'x';                                   /* the page was written: this is damage */
    write_file(segment, whole, n);
    assert_int_equal(ledger_scan(dir, NULL, NULL, &err), FL_CORRUPT);
    free(whole);
}

static void a_record_after_the_closing_one_is_refused_on_replay(void **state)
{
    (void)state;
    write_ledger(true);
    size_t n;
    uint8_t *whole = read_file(segment, &n);
    uint64_t chain;
    memcpy(&chain, whole + n - LEDGER_MARKER_BYTES - 8, 8);
    uint64_t n_frames;
    memcpy(&n_frames, whole + n - LEDGER_MARKER_BYTES, 8);
    FILE *f = fopen(segment, "ab");
    ledger_record r = { .kind = LEDGER_RESULT, .row = { 1 }, .n_pieces = 1, .body = text("late") };
    ledger_frame frames[2];
    must(ledger_frame_record(&frames[0], &r, chain, NULL), NULL);
    ledger_frame_marker(&frames[1], n_frames + 2, (ledger_place){ 1, n + frames[0].bytes }, frames[0].checksum);
    for (int i = 0; i < 2; i++) {
        fwrite(frames[i].header, 1, FL_FRAME_HEADER_BYTES, f);
        for (int k = 0; k < frames[i].n_parts; k++) fwrite(frames[i].parts[k].data, 1, frames[i].parts[k].bytes, f);
    }
    fclose(f);
    fl_err err = { 0 };
    assert_int_equal(ledger_scan(dir, NULL, NULL, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "after the closing record"));
    free(whole);
}

static void a_full_segment_is_left_for_the_next_and_a_missing_one_is_named(void **state)
{
    (void)state;
    fl_err err = { 0 };
    ledger *l = NULL;
    size_t n = 6 * 1024 * 1024;
    char *big = malloc(n);
    assert_non_null(big);
    memset(big, 'y', n);
    must(ledger_create(&l, dir, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = text("{}") });
    for (uint64_t row = 0; row < 14; row++) {
        append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .n_pieces = 1, .body = { big, n } });
        commit(l);
    }
    ledger_close(l);
    free(big);
    char path[128];
    snprintf(path, sizeof path, "%s/000003.seg", dir);
    assert_int_equal(access(path, F_OK), 0);
    must(ledger_scan(dir, NULL, NULL, &err), &err);
    assert_int_equal(unlink(segment), 0);
    assert_int_equal(ledger_scan(dir, NULL, NULL, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "000001.seg is missing"));
}

static fl_status note(void *context, const ledger_record *r, fl_err *err)
{
    return ledger_index_note(context, r, err);
}

static ledger_index *make_index(void)
{
    fl_err err = { 0 };
    ledger_index *x = NULL;
    must(ledger_index_open(&x, N_ROWS, N_ROWS + 1, &err), &err);
    for (int i = 0; i < N_ROWS; i++) ledger_index_add(x, i == 5 ? 2 : 1);
    return x;
}

static void assert_result(ledger_lookup *l, const ledger_index *x, uint64_t row, uint32_t sample, const char *expected)
{
    fl_err err = { 0 };
    fl_bytes body;
    ledger_place place;
    assert_true(ledger_index_result(x, (row_index){ row }, sample, &place));
    must(ledger_lookup_result(l, place, (row_index){ row }, sample, &body, &err), &err);
    assert_int_equal(body.bytes, strlen(expected));
    if (body.bytes) assert_memory_equal(body.data, expected, body.bytes);
}

static void the_index_finds_results_and_errors_in_any_order(void **state)
{
    (void)state;
    write_ledger(true);
    fl_err err = { 0 };
    ledger_index *x = make_index();
    ledger_lookup *l = NULL;
    ledger_record r;
    ledger_place place;
    assert_false(ledger_index_finished(x, (row_index){ 0 }));
    must(ledger_scan(dir, note, x, &err), &err);
    must(ledger_lookup_open(&l, dir, &err), &err);
    assert_result(l, x, 5, 1, "five");
    assert_result(l, x, 1, 0, "one");
    assert_result(l, x, 2, 0, "");
    assert_result(l, x, 5, 0, "five");
    assert_false(ledger_index_result(x, (row_index){ 3 }, 0, &place));
    assert_true(ledger_index_error(x, (row_index){ 3 }, &place));
    must(ledger_lookup_error(l, place, (row_index){ 3 }, &r, &err), &err);
    assert_int_equal(r.code, ROW_CONTEXT_OVERFLOW);
    assert_int_equal(ledger_lookup_error(l, place, (row_index){ 2 }, &r, &err), FL_CORRUPT);
    assert_true(ledger_index_error(x, (row_index){ 0 }, &place));
    must(ledger_lookup_error(l, place, (row_index){ 0 }, &r, &err), &err);
    assert_int_equal(r.kind, LEDGER_INGEST_ERROR);
    assert_false(ledger_index_error(x, (row_index){ 1 }, &place));
    for (uint64_t row = 0; row < N_ROWS; row++) assert_true(ledger_index_finished(x, (row_index){ row }));
    ledger_lookup_close(l);
    ledger_index_close(x);
}

static void a_row_with_one_of_two_samples_is_not_finished(void **state)
{
    (void)state;
    fl_err err = { 0 };
    ledger_index *x = make_index();
    must(ledger_index_note(x, &(ledger_record){ .kind = LEDGER_RESULT, .row = { 5 }, .sample = 1, .n_pieces = 1, .place = { 1, 40 } }, &err), &err);
    assert_false(ledger_index_finished(x, (row_index){ 5 }));
    assert_int_equal(ledger_index_note(x, &(ledger_record){ .kind = LEDGER_RESULT, .row = { 5 }, .sample = 1, .n_pieces = 1, .place = { 1, 80 } }, &err), FL_CORRUPT);
    assert_int_equal(ledger_index_note(x, &(ledger_record){ .kind = LEDGER_RESULT, .row = { 5 }, .sample = 2, .n_pieces = 1, .place = { 1, 80 } }, &err), FL_CORRUPT);
    assert_int_equal(ledger_index_note(x, &(ledger_record){ .kind = LEDGER_ROW_ERROR, .row = { 6 }, .place = { 1, 80 } }, &err), FL_CORRUPT);
    must(ledger_index_note(x, &(ledger_record){ .kind = LEDGER_ROW_ERROR, .row = { 5 }, .place = { 1, 80 } }, &err), &err);
    assert_true(ledger_index_finished(x, (row_index){ 5 }));
    ledger_index_close(x);
}

/* ---- reading on ---- */

typedef struct { uint64_t n, rows; bool closed; } followed;

static fl_status count_record(void *context, const ledger_record *r, fl_err *err)
{
    followed *f = context;
    (void)err;
    f->n++;
    if (r->kind == LEDGER_RESULT && r->piece == 0) f->rows += r->row.v;
    f->closed |= r->kind == LEDGER_CLOSE;
    return FL_OK;
}

/* Groups of many sizes over several segments: each read shows what was committed since the one before, and nothing of an open group. */
static void a_reader_follows_the_writer_from_marker_to_marker(void **state)
{
    (void)state;
    fl_err err = { 0 };
    ledger *l = NULL;
    ledger_reader *r = NULL;
    followed shown = { 0 };
    uint64_t n = 1, rows = 0, row = 0;
    char *body = calloc(1, 5000000);
    assert_non_null(body);
    must(ledger_create(&l, dir, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = text("{}") });
    commit(l);
    must(ledger_reader_open(&r, dir, &err), &err);
    for (int group = 0; group < 60; group++) {
        for (int i = 0; i < 1 + group * 7 % 5; i++, row++, n++, rows += row - 1) {
            append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .n_pieces = 1, .body = { body, group % 9 == 3 ? 5000000 : (size_t)(group * 977) } });
        }
        if (group % 3 == 0) must(ledger_reader_read(r, ledger_marked(l), count_record, &shown, &err), &err);
        assert_true(shown.n < n);
        commit(l);
        if (group % 2 == 0) continue;
        must(ledger_reader_read(r, ledger_marked(l), count_record, &shown, &err), &err);
        assert_int_equal(shown.n, n);
        assert_int_equal(shown.rows, rows);
    }
    append(l, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_COMPLETED });
    commit(l);
    must(ledger_reader_read(r, ledger_marked(l), count_record, &shown, &err), &err);
    assert_true(shown.closed);
    ledger_close(l);
    ledger_reader_close(r);
    followed again = { 0 };
    must(ledger_reader_open(&r, dir, &err), &err);
    must(ledger_reader_read(r, (ledger_place){ 0 }, count_record, &again, &err), &err);
    assert_memory_equal(&again, &shown, sizeof shown);
    ledger_reader_close(r);
    free(body);
}

static void a_reader_stops_at_a_torn_tail_and_names_a_changed_byte(void **state)
{
    (void)state;
    fl_err err = { 0 };
    ledger_reader *r = NULL;
    followed shown = { 0 };
    size_t n = 0;
    write_ledger(false);
    uint8_t *data = read_file(segment, &n);
    write_file(segment, data, n - 5);
    must(ledger_reader_open(&r, dir, &err), &err);
    must(ledger_reader_read(r, (ledger_place){ 0 }, count_record, &shown, &err), &err);
    assert_int_equal(shown.n, 7);                         /* all but the last group */
    assert_int_equal(ledger_reader_read(r, (ledger_place){ 1, n - 5 }, count_record, &shown, &err), FL_CORRUPT);
    ledger_reader_close(r);
    data[n / 2] ^= 1;
    write_file(segment, data, n);
    must(ledger_reader_open(&r, dir, &err), &err);
    assert_int_equal(ledger_reader_read(r, (ledger_place){ 0 }, count_record, &shown, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "offset"));
    ledger_reader_close(r);
    free(data);
}

typedef struct { int n; bool named[N_ROWS]; char last[320]; } verdict;

static void judge(void *context, const ledger_finding *f)
{
    verdict *v = context;
    v->n++;
    if (f->has_row) v->named[f->row.v] = true;
    memcpy(v->last, f->text, sizeof v->last);
}

static verdict verify_bytes(const uint8_t *data, size_t n)
{
    fl_err err = { 0 };
    verdict v = { 0 };
    ledger_report report;
    row_table *rows = make_rows();
    write_file(segment, data, n);
    must(ledger_verify(dir, rows, judge, &v, &report, &err), &err);
    assert_int_equal(v.n, report.n_findings);
    row_table_close(rows);
    return v;
}

static void verify_passes_on_a_whole_ledger_and_counts(void **state)
{
    (void)state;
    write_ledger(true);
    fl_err err = { 0 };
    verdict v = { 0 };
    ledger_report report;
    row_table *rows = make_rows();
    must(ledger_verify(dir, rows, judge, &v, &report, &err), &err);
    if (v.n > 0) fail_msg("%s", v.last);
    assert_int_equal(report.n_results, 5);
    assert_int_equal(report.n_errors, 2);
    assert_int_equal(report.n_rows_open, 0);
    assert_true(report.closed && report.cause == LEDGER_COMPLETED);
    row_table_close(rows);
}

/* Of a graded job of two rows: row 0 has its verdict; what else is said of row 1 is the case's. */
static void judge_verdicts(uint64_t extra_row, const char *sentence, uint64_t n_verdicts)
{
    fl_err err = { 0 };
    verdict v = { 0 };
    ledger_report report;
    ledger *l = NULL;
    row_table *rows = NULL;
    temp_folder_remove(dir);
    must(ledger_create(&l, dir, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_JOB, .body = text("{}") });
    append_result(l, 0, 0, 0, 1, "a");
    append_result(l, 2, 0, 0, 1, "verdict");
    if (extra_row != 3) append_result(l, 1, 0, 0, 1, "b");
    if (extra_row) append_result(l, extra_row, 0, 0, 1, "more");
    if (extra_row == 3) append_result(l, 1, 0, 0, 1, "b");
    append(l, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_COMPLETED });
    commit(l);
    ledger_close(l);
    must(row_table_open(&rows, 0, &err), &err);
    for (int i = 0; i < 2; i++) must(row_table_add(rows, 1, 10, &err), &err);
    must(row_table_add_grades(rows, &err), &err);
    must(ledger_verify(dir, rows, judge, &v, &report, &err), &err);
    assert_true(v.n > 0);
    if (!strstr(v.last, sentence)) fail_msg("'%s' does not say '%s'", v.last, sentence);
    assert_int_equal(report.n_verdicts, n_verdicts);
    row_table_close(rows);
}

static void verify_misses_each_verdict_that_is_not_there_once(void **state)
{
    (void)state;
    judge_verdicts(0, "1 of its 1 verdicts are missing", 1);
    judge_verdicts(2, "1 of its 1 verdicts are missing", 2);     /* the second verdict of row 0 is named before it */
    judge_verdicts(3, "sample 0 has a verdict before its result", 2);
}

static void verify_names_the_row_of_every_touched_record(void **state)
{
    (void)state;
    write_ledger(true);
    size_t n, at = 0;
    uint8_t *whole = read_file(segment, &n);
    while (at < n) {
        uint32_t bytes;
        memcpy(&bytes, whole + at + 8, 4);
        size_t size = FL_FRAME_HEADER_BYTES + bytes;
        uint64_t row;
        if (whole[at + 6] == LEDGER_RESULT || whole[at + 6] == LEDGER_ROW_ERROR) {
            memcpy(&row, whole + at + FL_FRAME_HEADER_BYTES, 8);
            uint8_t *edit = malloc(n + size);
            assert_non_null(edit);
            memcpy(edit, whole, at);                     /* removed */
            memcpy(edit + at, whole + at + size, n - at - size);
            verdict v = verify_bytes(edit, n - size);
            if (!v.named[row]) fail_msg("frame at %zu removed: row %llu is not named; last finding of %d: %s", at, (unsigned long long)row, v.n, v.last);
            memcpy(edit, whole, at + size);              /* doubled */
            memcpy(edit + at + size, whole + at, n - at);
            v = verify_bytes(edit, n + size);
            assert_true(v.named[row]);
            memcpy(edit, whole, n);                      /* appended */
            memcpy(edit + n, whole + at, size);
            v = verify_bytes(edit, n + size);
            assert_true(v.named[row]);
            for (size_t i = 0; i < size; i++) {          /* flipped, in each byte */
                memcpy(edit, whole, n);
                edit[at + i] ^= 0x40;
                v = verify_bytes(edit, n);
                assert_true(v.n > 0);
                if (!v.named[row]) fail_msg("frame at %zu, byte %zu of %zu: row %llu is not named; last finding: %s", at, i, size, (unsigned long long)row, v.last);
            }
            free(edit);
        }
        at += size;
    }
    for (size_t i = 0; i < n; i++) {                     /* any flip anywhere is found */
        whole[i] ^= 0x02;
        verdict v = verify_bytes(whole, n);
        assert_true(v.n > 0);
        whole[i] ^= 0x02;
    }
    for (size_t cut = n - 47; cut < n; cut++) assert_true(verify_bytes(whole, cut).n > 0);
    free(whole);
}

static void verify_of_an_open_ledger_with_a_torn_tail_passes(void **state)
{
    (void)state;
    write_ledger(false);
    size_t n;
    uint8_t *whole = read_file(segment, &n);
    verdict v = verify_bytes(whole, n - 5);
    if (v.n > 0) fail_msg("%s", v.last);
    free(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        T(committed_records_come_back_in_order), T(an_uncommitted_group_is_cut), T(every_truncation_reopens_at_the_last_marker),
        T(a_flip_before_a_marker_is_corrupt_with_its_place), T(a_page_that_was_never_written_is_a_torn_tail),
        T(a_record_after_the_closing_one_is_refused_on_replay), T(a_full_segment_is_left_for_the_next_and_a_missing_one_is_named),
        T(the_index_finds_results_and_errors_in_any_order), T(verify_passes_on_a_whole_ledger_and_counts), T(verify_names_the_row_of_every_touched_record), T(verify_misses_each_verdict_that_is_not_there_once),
        T(a_row_with_one_of_two_samples_is_not_finished), T(a_reader_follows_the_writer_from_marker_to_marker),
        T(a_reader_stops_at_a_torn_tail_and_names_a_changed_byte),
        T(verify_of_an_open_ledger_with_a_torn_tail_passes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
