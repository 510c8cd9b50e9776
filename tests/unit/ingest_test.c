/* From a job file to a job folder: lines, faults, ids, gzip, and the reader of what was written. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include <xxhash.h>
#include <zlib.h>
#include "coordinator/ingest.h"
#include "coordinator/rows.h"
#include "proto/job_row.h"

typedef struct { fl_row_error code; uint64_t row, line, offset; char custom_id[64], text[240]; } seen_fault;
typedef struct { seen_fault v[64]; size_t n, refuse_at; } faults;

static char dir[64];

static fl_status note_fault(void *context, const ingest_fault *f, fl_err *err)
{
    faults *all = context;
    if (all->refuse_at && all->n + 1 == all->refuse_at) return fl_fail(err, FL_IO, "the visitor said no");
    assert_true(all->n < 64);
    seen_fault *s = &all->v[all->n++];
    *s = (seen_fault){ .code = f->code, .row = f->row.v, .line = f->line, .offset = f->offset };
    snprintf(s->custom_id, sizeof s->custom_id, "%.*s", (int)f->custom_id_bytes, f->custom_id);
    snprintf(s->text, sizeof s->text, "%.*s", (int)f->text_bytes, f->text);
    return FL_OK;
}

static int make_dir(void **state)
{
    (void)state;
    strcpy(dir, "/tmp/ingest_test.XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
    (void)state;
    const char *names[] = { ROWS_JOB_FILE, ROWS_INDEX_FILE, "in" };
    char path[128];
    for (size_t i = 0; i < 3; i++) { snprintf(path, sizeof path, "%s/%s", dir, names[i]); unlink(path); }
    return rmdir(dir);
}

static const char *input_path(void)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/in", dir);
    return path;
}

static void write_input(const void *data, size_t n)
{
    FILE *f = fopen(input_path(), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static fl_status push_with(const ingest_options *options, const void *data, size_t n, size_t step, faults *all, ingest_report *report, fl_err *err)
{
    ingest *in;
    memset(all, 0, sizeof *all);
    assert_int_equal(ingest_open(&in, options, err), FL_OK);
    fl_status st = FL_OK;
    for (size_t at = 0; st == FL_OK && at < n; at += step) st = ingest_push(in, (const char *)data + at, n - at < step ? n - at : step, err);
    if (st == FL_OK) st = ingest_end(in, report, err);
    if (st == FL_OK) st = ingest_faults(in, note_fault, all, err);
    ingest_close(in);
    return st;
}

/* Push the bytes in pieces of `step`; every step must give the same folder. */
static fl_status push(const void *data, size_t n, size_t step, faults *all, ingest_report *report, fl_err *err)
{
    return push_with(&(ingest_options){ .name = "job", .job_dir = dir, .n_threads = 2 }, data, n, step, all, report, err);
}

/* The whole of a file, or of standard input. */
static fl_status read_file(const char *path, const char *job_dir, faults *all, ingest_report *report, fl_err *err)
{
    ingest *in = NULL;
    fl_status st = ingest_open(&in, &(ingest_options){ .name = path, .job_dir = job_dir }, err);
    if (st == FL_OK) st = ingest_read(in, path, err);
    if (st == FL_OK) st = ingest_end(in, report, err);
    if (st == FL_OK) st = ingest_faults(in, note_fault, all, err);
    ingest_close(in);
    return st;
}

static const char mixed[] =
    "\xEF\xBB\xBF{\"custom_id\":\"a\",\"prompt\":\"x\",\"n\":3,\"max_tokens\":10}\n"
    "\n"
    "  \t\r\n"
    "{\"prompt\":\"hello world\",\"task_id\":1}\r\n"
    "{\"custom_id\":\"a\",\"prompt\":\"y\"}\n"
    "{\"custom_id\":\"bad\",\"prompt\":\"y\",\"n\":0,\"task_id\":2}\n"
    "not json\n"
    "{\"prompt\":\"\xFF\"}\n"
    "{\"custom_id\":\"bad\",\"prompt\":\"y\"}\n"
    "{\"custom_id\":\"ids\",\"prompt\":[1,2,3],\"top_n\":1}";

static void mixed_lines_become_rows_and_faults(void **state)
{
    (void)state;
    static const size_t steps[] = { 1, 2, 3, 5, 7, 64, 100000 };
    for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
        faults all;
        ingest_report report;
        fl_err err = { FL_OK, "" };
        if (push(mixed, sizeof mixed - 1, steps[s], &all, &report, &err) != FL_OK) fail_msg("%s", err.text);
        assert_int_equal(report.n_rows, 8);
        assert_int_equal(report.n_bad, 5);
        assert_int_equal(report.n_lines, 10);
        assert_int_equal(report.n_bytes, sizeof mixed - 1);
        assert_int_equal(report.n_samples, 5);
        assert_string_equal(report.unknown_fields, "task_id (2 rows), top_n (1 row)");

        assert_int_equal(all.n, 5);
        const char *third = strstr(mixed, "{\"custom_id\":\"a\",\"prompt\":\"y\"}");
        assert_int_equal(all.v[0].code, ROW_DUPLICATE_ID);
        assert_int_equal(all.v[0].row, 2);
        assert_int_equal(all.v[0].line, 5);
        assert_int_equal(all.v[0].offset, third - mixed);
        assert_string_equal(all.v[0].custom_id, "a");
        assert_string_equal(all.v[0].text, "line 1 has the same custom_id: make them differ");
        assert_int_equal(all.v[1].code, ROW_INVALID_REQUEST);
        assert_string_equal(all.v[1].custom_id, "bad");
        assert_int_equal(mixed[all.v[1].offset], '0');
        assert_int_equal(all.v[2].code, ROW_INVALID_JSON);
        assert_string_equal(all.v[2].custom_id, "row-7");
        assert_int_equal(all.v[2].offset, strstr(mixed, "not json") - mixed);
        assert_int_equal(all.v[3].code, ROW_INVALID_UTF8);
        assert_int_equal((unsigned char)mixed[all.v[3].offset], 0xFF);
        assert_int_equal(all.v[4].code, ROW_DUPLICATE_ID);       /* a bad row has its id, too */
        assert_int_equal(all.v[4].line, 9);

        rows *r;
        rows_entry entry;
        const char *line;
        if (rows_open(&r, dir, &err) != FL_OK) fail_msg("%s", err.text);
        assert_int_equal(rows_describe(r)->n_rows, 8);
        assert_memory_equal(rows_describe(r)->hash, report.hash, ROWS_HASH_BYTES);
        assert_int_equal(rows_get(r, (row_index){ 0 }, &entry, &err), FL_OK);
        assert_int_equal(entry.offset, 3);
        assert_int_equal(entry.n_samples, 3);
        assert_int_equal(entry.cost, 30);
        assert_int_equal(rows_get(r, (row_index){ 1 }, &entry, &err), FL_OK);
        assert_int_equal(entry.line, 4);
        assert_int_equal(entry.cost, 11 / 3 + 16);
        assert_int_equal(rows_line(r, &entry, &line, &err), FL_OK);
        assert_int_equal(entry.n_bytes, strlen("{\"prompt\":\"hello world\",\"task_id\":1}"));
        assert_memory_equal(line, "{\"prompt\":\"hello world\",\"task_id\":1}", entry.n_bytes);
        assert_int_equal(rows_get(r, (row_index){ 4 }, &entry, &err), FL_OK);
        assert_int_equal(entry.n_samples, 0);
        assert_int_equal(rows_get(r, (row_index){ 7 }, &entry, &err), FL_OK);
        assert_int_equal(entry.cost, 19);
        assert_int_equal(rows_get(r, (row_index){ 8 }, &entry, &err), FL_NOT_FOUND);
        assert_int_equal(rows_verify(r, &err), FL_OK);
        rows_close(r);
    }
}

static size_t pack(const void *data, size_t n, uint8_t *out, size_t capacity)
{
    z_stream z = { 0 };
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (uint8_t *)data;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)capacity;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return capacity - z.avail_out;
}

static void gzip_members_are_one_job_with_the_plain_jobs_hash(void **state)
{
    (void)state;
    uint8_t packed[4096];
    faults all;
    ingest_report plain, report;
    fl_err err = { FL_OK, "" };
    assert_int_equal(push(mixed, sizeof mixed - 1, 100000, &all, &plain, &err), FL_OK);
    size_t half = 100, n = pack(mixed, half, packed, sizeof packed);                 /* a border inside a line */
    n += pack(mixed + half, 0, packed + n, sizeof packed - n);
    n += pack(mixed + half, sizeof mixed - 1 - half, packed + n, sizeof packed - n);
    for (size_t step = 1; step < 4096; step = step * 3 + 1) {
        if (push(packed, n, step, &all, &report, &err) != FL_OK) fail_msg("%s", err.text);
        assert_memory_equal(report.hash, plain.hash, ROWS_HASH_BYTES);
        assert_int_equal(all.n, 5);
    }
    memset(packed + n, 0, 512);                          /* tape padding */
    assert_int_equal(push(packed, n + 512, 100, &all, &report, &err), FL_OK);
    packed[n + 5] = 'x';
    assert_int_equal(push(packed, n + 512, 100, &all, &report, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "foreign bytes"));
    for (size_t cut = 2; cut < n; cut += 17) {
        fl_status st = push(packed, cut, 100, &all, &report, &err);
        if (st == FL_OK) assert_true(report.n_bytes == half); /* a cut exactly between members cannot be seen */
        else assert_int_equal(st, FL_CORRUPT);
    }
    assert_int_equal(push(packed, n - 1, 100, &all, &report, &err), FL_CORRUPT);
    assert_string_equal(err.text, "job ends in the middle of its gzip data: copy or pack it again");
    packed[20] ^= 0x55;
    assert_int_equal(push(packed, n, 100, &all, &report, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "damaged gzip data"));
}

static void jobs_without_rows_are_refused(void **state)
{
    (void)state;
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push("", 0, 1, &all, &report, &err), FL_INVALID);
    assert_string_equal(err.text, "job is empty: a job has one JSON object a line");
    assert_int_equal(push("\xEF\xBB\xBF\n \n\r\n\n", 9, 2, &all, &report, &err), FL_INVALID);
    assert_string_equal(err.text, "job is empty: all its lines are blank");
    assert_int_equal(push("\n", 1, 1, &all, &report, &err), FL_INVALID);
    assert_int_equal(push(" ", 1, 1, &all, &report, &err), FL_INVALID);
}

static void only_one_byte_order_mark_is_accepted(void **state)
{
    (void)state;
    faults all;
    ingest_report report;
    fl_err err;
    const char *twice = "\xEF\xBB\xBF\xEF\xBB\xBF{\"prompt\":\"a\"}\n\xEF\xBB\xBF{\"prompt\":\"a\"}\n";
    for (size_t step = 1; step < 9; step++) {
        assert_int_equal(push(twice, strlen(twice), step, &all, &report, &err), FL_OK);
        assert_int_equal(all.n, 2);
        assert_int_equal(all.v[0].code, ROW_INVALID_JSON);
        assert_int_equal(all.v[0].offset, 3);
        assert_int_equal(all.v[1].line, 2);
    }
}

static void other_formats_are_named(void **state)
{
    (void)state;
    static const struct { const char *bytes; size_t n; const char *says; } inputs[] = {
        { "\x28\xB5\x2F\xFD\x04\x00\x09\x00", 8, "zstd" }, { "\xFD" "7zXZ\0\0", 7, "xz" }, { "BZh91AY", 7, "bzip2" }, { "PK\x03\x04\x14\0\0", 7, "zip" },
        { "\xFF\xFE{\0}\0\n\0", 8, "UTF-16" }, { "\xFE\xFF\0{", 4, "UTF-16" },
    };
    faults all;
    ingest_report report;
    fl_err err;
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        assert_int_equal(push(inputs[i].bytes, inputs[i].n, 1, &all, &report, &err), FL_UNSUPPORTED);
        assert_non_null(strstr(err.text, inputs[i].says));
    }
}

static void binary_garbage_gives_faults_and_no_crash(void **state)
{
    (void)state;
    char garbage[20000];
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof garbage; i++) { x = x * 1664525 + 1013904223; garbage[i] = (char)(i % 800 == 799 ? '\n' : (int)(x >> 24) == '\n' ? 0 : (int)(x >> 24)); }
    garbage[0] = '!';
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push(garbage, sizeof garbage, 333, &all, &report, &err), FL_OK);
    assert_int_equal(report.n_rows, 25);
    assert_int_equal(report.n_bad, 25);
    for (size_t i = 0; i < all.n; i++) assert_int_equal(all.v[i].code, ROW_INVALID_UTF8);
}

static void files_that_cannot_be_jobs_are_refused(void **state)
{
    (void)state;
    faults all = { 0 };
    ingest_report report;
    fl_err err;
    assert_int_equal(read_file(dir, dir, &all, &report, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "is a directory"));
    assert_int_equal(read_file("/nonexistent/job.jsonl", dir, &all, &report, &err), FL_NOT_FOUND);
    assert_non_null(strstr(err.text, "does not exist"));
    write_input("{\"prompt\":\"a\"}", 14);
    assert_int_equal(read_file(input_path(), "/nonexistent", &all, &report, &err), FL_IO);
}

static void files_and_standard_input_give_the_same_folder(void **state)
{
    (void)state;
    faults all = { 0 }, piped = { 0 };
    ingest_report a, b;
    fl_err err;
    write_input(mixed, sizeof mixed - 1);
    assert_int_equal(read_file(input_path(), dir, &all, &a, &err), FL_OK);
    int keep = dup(0), fd = open(input_path(), O_RDONLY);
    assert_true(dup2(fd, 0) == 0);
    close(fd);
    assert_int_equal(read_file("-", dir, &piped, &b, &err), FL_OK);
    assert_true(dup2(keep, 0) == 0);
    close(keep);
    assert_memory_equal(a.hash, b.hash, ROWS_HASH_BYTES);
    assert_int_equal(a.cost, b.cost);
    assert_int_equal(piped.n, all.n);
}

static void a_visitor_can_end_the_walk_and_half_an_ingest_is_no_job(void **state)
{
    (void)state;
    faults all = { .refuse_at = 2 };
    ingest *in;
    ingest_report report;
    fl_err err;
    write_input(mixed, sizeof mixed - 1);
    assert_int_equal(read_file(input_path(), dir, &all, &report, &err), FL_IO);
    assert_string_equal(err.text, "the visitor said no");
    assert_int_equal(ingest_open(&in, &(ingest_options){ .name = "job", .job_dir = dir }, &err), FL_OK);
    assert_int_equal(ingest_read(in, input_path(), &err), FL_OK);
    ingest_close(in);
    rows *r;
    assert_int_equal(rows_open(&r, dir, &err), FL_CORRUPT);
}

static void a_write_that_fails_at_any_byte_leaves_no_job(void **state)
{
    (void)state;
    struct rlimit old, limit;
    ingest_report report;
    fl_err err;
    write_input(mixed, sizeof mixed - 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    bool failed = true;
    for (rlim_t n_bytes = 0; failed; n_bytes += 3) {     /* the file system takes so many bytes a file */
        faults all = { 0 };
        limit = (struct rlimit){ n_bytes, old.rlim_max };
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        fl_status st = read_file(input_path(), dir, &all, &report, &err);
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        failed = st != FL_OK;
        rows *r;
        if (failed) {
            assert_int_equal(st, FL_IO);
            assert_non_null(strstr(err.text, "ingest: write"));
            assert_int_not_equal(rows_open(&r, dir, &err), FL_OK);
        } else {
            assert_true(n_bytes >= sizeof mixed - 1);
            assert_int_equal(rows_open(&r, dir, &err), FL_OK);
            rows_close(r);
        }
    }
}

static void lines_too_long_are_faults_and_cost_no_memory(void **state)
{
    (void)state;
    ingest *in;
    faults all = { 0 };
    ingest_report report;
    fl_err err;
    size_t n = 1 << 20;
    char *x = malloc(n), *blank = malloc(n);
    assert_non_null(x);
    assert_non_null(blank);
    memset(x, 'x', n);
    memset(blank, ' ', n);
    assert_int_equal(ingest_open(&in, &(ingest_options){ .name = "job", .job_dir = dir }, &err), FL_OK);
    assert_int_equal(ingest_push(in, "{\"prompt\":\"a\"}\n", 15, &err), FL_OK);
    for (int i = 0; i < 66; i++) assert_int_equal(ingest_push(in, x, n, &err), FL_OK);
    assert_int_equal(ingest_push(in, "\n", 1, &err), FL_OK);
    for (int i = 0; i < 66; i++) assert_int_equal(ingest_push(in, blank, n, &err), FL_OK);
    assert_int_equal(ingest_push(in, "\n{\"prompt\":\"b\"}\n", 16, &err), FL_OK);
    assert_int_equal(ingest_end(in, &report, &err), FL_OK);
    assert_int_equal(ingest_faults(in, note_fault, &all, &err), FL_OK);
    ingest_close(in);
    free(x);
    free(blank);
    assert_int_equal(report.n_rows, 3);
    assert_int_equal(report.n_lines, 4);
    assert_int_equal(all.n, 1);
    assert_int_equal(all.v[0].code, ROW_LINE_TOO_LONG);
    assert_int_equal(all.v[0].offset, 15 + FL_LINE_BYTES_MAX);
    assert_string_equal(all.v[0].custom_id, "row-2");
    assert_string_equal(all.v[0].text, "the line has 69206016 bytes; at most 67108864 are read");
    rows *r;
    rows_entry entry;
    const char *line;
    assert_int_equal(rows_open(&r, dir, &err), FL_OK);
    assert_int_equal(rows_get(r, (row_index){ 1 }, &entry, &err), FL_OK);
    assert_int_equal(rows_line(r, &entry, &line, &err), FL_INVALID);
    assert_int_equal(rows_get(r, (row_index){ 2 }, &entry, &err), FL_OK);
    assert_int_equal(entry.line, 4);
    assert_int_equal(rows_line(r, &entry, &line, &err), FL_OK);
    assert_memory_equal(line, "{\"prompt\":\"b\"}", 14);
    rows_close(r);
}

/* What reads back the same is no reason to fill a disk: 32 MB of NULs between two rows, and as many behind them. */
static void nuls_take_no_room_in_the_copy(void **state)
{
    (void)state;
    static const char row[] = "\n{\"prompt\":\"x\"}\n";
    const size_t zeros = (size_t)32 << 20, n = 2 * (zeros + sizeof row - 1);
    char *data = calloc(1, n), *copy = malloc(n), path[128];
    faults all;
    ingest_report report;
    fl_err err;
    struct stat at;
    assert_true(data && copy);
    memcpy(data, row, sizeof row - 1);
    memcpy(data + sizeof row - 1 + zeros, row, sizeof row - 1);
    snprintf(path, sizeof path, "%s/%s", dir, ROWS_JOB_FILE);
    for (size_t step = 1 << 16; step <= 1 << 20; step <<= 4) {
        assert_int_equal(push(data, n, step, &all, &report, &err), FL_OK);
        assert_int_equal(report.n_rows, 4);
        assert_int_equal(report.n_bad, 2);
        assert_int_equal(stat(path, &at), 0);
        assert_int_equal(at.st_size, n);
        assert_true((size_t)at.st_blocks * 512 < zeros / 4);
        FILE *file = fopen(path, "rbe");
        assert_non_null(file);
        assert_int_equal(fread(copy, 1, n, file), n);
        fclose(file);
        assert_memory_equal(copy, data, n);
    }
    free(data);
    free(copy);
}

static void many_ids_are_told_apart(void **state)
{
    (void)state;
    size_t n = 20000, used = 0;
    char *data = malloc(n * 48);
    assert_non_null(data);
    for (size_t i = 0; i < n; i++) used += (size_t)sprintf(data + used, "{\"custom_id\":\"%zx\",\"prompt\":\"a\"}\n", i == 19999 ? 7 : i);
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push(data, used, 65536, &all, &report, &err), FL_OK);
    free(data);
    assert_int_equal(report.n_bad, 1);
    assert_int_equal(all.v[0].line, 20000);
    assert_string_equal(all.v[0].text, "line 8 has the same custom_id: make them differ");
    rows *r;
    rows_entry entry;
    assert_int_equal(rows_open(&r, dir, &err), FL_OK);
    for (size_t i = 0; i < n; i += 997) {                /* near and far, over block borders */
        size_t row = i * 7919 % n;
        assert_int_equal(rows_get(r, (row_index){ row }, &entry, &err), FL_OK);
        assert_int_equal(entry.line, row + 1);
    }
    rows_close(r);
}

/* All that an ingest leaves: the report, the faults, and rows.idx (the bytes of job.jsonl are the input). */
typedef struct { ingest_report report; uint64_t n_faults, faults_hash; uint8_t *index; size_t index_bytes; } outcome;

static fl_status hash_fault(void *context, const ingest_fault *f, fl_err *err)
{
    (void)err;
    outcome *o = context;
    const uint64_t numbers[] = { f->row.v, f->line, f->offset, f->code };
    o->faults_hash = XXH3_64bits_withSeed(numbers, sizeof numbers, o->faults_hash);
    o->faults_hash = XXH3_64bits_withSeed(f->custom_id, f->custom_id_bytes, o->faults_hash);
    o->faults_hash = XXH3_64bits_withSeed(f->text, f->text_bytes, o->faults_hash);
    o->n_faults++;
    return FL_OK;
}

static outcome ingest_all(const char *data, size_t n, size_t step, int n_threads, bool suffix)
{
    char path[128];
    outcome o = { 0 };
    ingest *in;
    fl_err err = { FL_OK, "" };
    memset(&o.report, 0, sizeof o.report);
    assert_int_equal(ingest_open(&in, &(ingest_options){ .name = "job", .job_dir = dir, .n_threads = n_threads, .suffix_duplicates = suffix }, &err), FL_OK);
    for (size_t at = 0; at < n; at += step) assert_int_equal(ingest_push(in, data + at, n - at < step ? n - at : step, &err), FL_OK);
    if (ingest_end(in, &o.report, &err) != FL_OK || ingest_faults(in, hash_fault, &o, &err) != FL_OK) fail_msg("%s", err.text);
    ingest_close(in);
    assert_int_equal(o.n_faults, o.report.n_bad);
    snprintf(path, sizeof path, "%s/%s", dir, ROWS_INDEX_FILE);
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    o.index_bytes = (size_t)ftell(f);
    rewind(f);
    o.index = malloc(o.index_bytes);
    assert_non_null(o.index);
    assert_int_equal(fread(o.index, 1, o.index_bytes, f), o.index_bytes);
    fclose(f);
    return o;
}

static void threads_and_pieces_change_nothing(void **state)
{
    (void)state;
    size_t n = 0, capacity = 12 << 20;
    char *data = malloc(capacity);
    uint32_t x = 7;
    assert_non_null(data);
    n += (size_t)sprintf(data, "\xEF\xBB\xBF");
    for (uint32_t i = 0; n < capacity - (3 << 20); i++) {              /* long and short lines, blank ones, ids twice and thrice, all kinds of faults */
        x = x * 1664525 + 1013904223;
        uint32_t kind = x >> 24;
        if (i % 20000 == 9000) {                         /* longer than a block */
            n += (size_t)sprintf(data + n, "{\"prompt\":\"");
            memset(data + n, 'y', 1 << 20);
            n += 1 << 20;
            n += (size_t)sprintf(data + n, "\"}\n");
        } else if (i % 30000 == 15000) {                 /* more lines than a block has */
            memset(data + n, '\n', 40000);
            n += 40000;
        } else if (kind < 20) n += (size_t)sprintf(data + n, "bad %u\n", i);
        else if (kind < 25) n += (size_t)sprintf(data + n, " \t\r\n");
        else if (kind < 60) n += (size_t)sprintf(data + n, "{\"prompt\":[%u,2,3],\"name%u\":1}\r\n", i, i / 3000);
        else if (kind < 70) n += (size_t)sprintf(data + n, "{\"custom_id\":\"row-%u\",\"prompt\":\"x\",\"n\":2}\n", i + kind);
        else if (kind < 80) n += (size_t)sprintf(data + n, "{\"custom_id\":\"id %u\",\"prompt\":\"x\",\"n\":0,\"task\":0}\n", i / 3);
        else n += (size_t)sprintf(data + n, "{\"custom_id\":\"id %u\",\"prompt\":\"%.*s\",\"task\":%u}\n", i - (kind > 200 ? kind : 0), (int)(x >> 20) % 300,
                                  "a text of some length, which is different from line to line but never of great interest to anybody who reads it, since nobody does; it goes on for a "
                                  "while until there are three hundred bytes of it, which takes longer than one would think when one has to make it up word by word, as now", i);
    }
    for (int suffix = 0; suffix < 2; suffix++) {
        outcome first = ingest_all(data, n, n, 1, suffix);
        assert_true(first.report.n_bad > 1000);
        assert_true(suffix ? first.report.n_renamed > 100 : first.report.n_renamed == 0);
        static const struct { size_t step; int n_threads; } ways[] = { { 1 << 20, 2 }, { 777, 5 }, { 300001, 3 } };
        for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
            outcome again = ingest_all(data, n, ways[w].step, ways[w].n_threads, suffix);
            again.report.blocks = first.report.blocks;   /* how full the queue was is all that may differ */
            assert_memory_equal(&again.report, &first.report, sizeof first.report);
            assert_true(again.n_faults == first.n_faults && again.faults_hash == first.faults_hash && again.index_bytes == first.index_bytes);
            assert_memory_equal(again.index, first.index, first.index_bytes);
            free(again.index);
        }
        free(first.index);
    }
    free(data);
}

static void a_generated_name_is_a_name_as_any(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"custom_id\":\"row-3\",\"prompt\":\"a\"}\n"      /* the third line's name is taken */
        "{\"prompt\":\"b\"}\n"
        "{\"prompt\":\"c\"}\n"
        "not json\n"
        "{\"custom_id\":\"row-2\",\"prompt\":\"d\"}\n"      /* the second line has it */
        "{\"custom_id\":\"row-4\",\"prompt\":\"e\"}\n";     /* a line that cannot be read has none */
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push(lines, sizeof lines - 1, 100, &all, &report, &err), FL_OK);
    assert_int_equal(all.n, 3);
    assert_int_equal(report.n_bad, 3);
    assert_int_equal(all.v[0].line, 3);
    assert_int_equal(all.v[0].code, ROW_DUPLICATE_ID);
    assert_string_equal(all.v[0].custom_id, "row-3");
    assert_string_equal(all.v[0].text, "line 1 has the same custom_id: make them differ");
    assert_int_equal(all.v[1].line, 4);
    assert_int_equal(all.v[2].line, 5);
    assert_string_equal(all.v[2].text, "line 2 has the same custom_id: make them differ");
}

static void suffixes_make_names_unless_they_are_taken(void **state)
{
    (void)state;
    static const char lines[] =
        "{\"custom_id\":\"a\",\"prompt\":\"1\"}\n"
        "{\"custom_id\":\"a\",\"prompt\":\"2\"}\n"             /* a#2 */
        "{\"custom_id\":\"a\",\"prompt\":\"3\",\"n\":0}\n"   /* bad anyway */
        "{\"custom_id\":\"a\",\"prompt\":\"4\",\"n\":5}\n"   /* a#4 is line 6's */
        "{\"custom_id\":\"row-6\",\"prompt\":\"5\"}\n"
        "{\"custom_id\":\"a#4\",\"prompt\":\"6\"}\n"
        "{\"prompt\":\"7\"}\n"
        "{\"custom_id\":\"a#4\",\"prompt\":\"8\"}\n"           /* a#4#8 */
        "{\"custom_id\":\"row-7\",\"prompt\":\"9\",\"n\":3}\n";      /* row-7#9 */
    static const struct { uint32_t n_samples; bool is_renamed; } rows_of[] = { { 1, false }, { 1, true }, { 0, false }, { 0, false }, { 1, false }, { 1, false }, { 1, false }, { 1, true }, { 3, true } };
    faults all;
    ingest_report report;
    fl_err err;
    rows *r;
    assert_int_equal(push_with(&(ingest_options){ .name = "job", .job_dir = dir, .suffix_duplicates = true }, lines, sizeof lines - 1, 50, &all, &report, &err), FL_OK);
    assert_int_equal(report.n_renamed, 3);
    assert_int_equal(report.n_bad, 2);
    assert_int_equal(report.n_samples, 9);
    assert_int_equal(all.n, 2);
    assert_int_equal(all.v[0].code, ROW_INVALID_REQUEST);
    assert_int_equal(all.v[1].code, ROW_DUPLICATE_ID);
    assert_int_equal(all.v[1].line, 4);
    assert_string_equal(all.v[1].custom_id, "a");
    assert_string_equal(all.v[1].text, "line 1 has the same custom_id, and the name with a suffix is another row's: make them differ");
    if (rows_open(&r, dir, &err) != FL_OK) fail_msg("%s", err.text);
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++) {
        rows_entry entry;
        assert_int_equal(rows_get(r, (row_index){ i }, &entry, &err), FL_OK);
        assert_int_equal(entry.n_samples, rows_of[i].n_samples);
        assert_int_equal(entry.is_renamed, rows_of[i].is_renamed);
    }
    rows_close(r);
}

static fl_status stop_at_the_second_note(void *context, const ingest_report *so_far, fl_err *err)
{
    (void)so_far;
    return ++*(int *)context == 2 ? fl_fail(err, FL_CLOSED, "somebody wants the end") : FL_OK;
}

static void an_ingest_can_be_stopped(void **state)
{
    (void)state;
    int notes = 0;
    size_t n = 3 << 20;
    char *data = malloc(n);
    assert_non_null(data);
    memset(data, '\n', n);
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push_with(&(ingest_options){ .name = "job", .job_dir = dir, .note = stop_at_the_second_note, .context = &notes }, data, n, 100000, &all, &report, &err), FL_CLOSED);
    assert_string_equal(err.text, "somebody wants the end");
    free(data);
}

/* /dev/zero has no line's end at which to ask. */
static void an_ingest_can_be_stopped_in_a_line_without_an_end(void **state)
{
    (void)state;
    int notes = 0;
    size_t n = (size_t)72 << 20;
    char *data = calloc(1, n);
    assert_non_null(data);
    faults all;
    ingest_report report;
    fl_err err;
    assert_int_equal(push_with(&(ingest_options){ .name = "job", .job_dir = dir, .note = stop_at_the_second_note, .context = &notes }, data, n, 1 << 20, &all, &report, &err), FL_CLOSED);
    free(data);
}

static void change_byte(const char *name, long at, int flip)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ flip, f);
    fclose(f);
}

static void every_flipped_byte_of_the_index_is_noticed(void **state)
{
    (void)state;
    faults all;
    ingest_report report;
    fl_err err;
    rows *r;
    assert_int_equal(push(mixed, sizeof mixed - 1, 100000, &all, &report, &err), FL_OK);
    for (long at = 0; at < ROWS_HEADER_BYTES + 8 * ROWS_ENTRY_BYTES; at++) {
        change_byte(ROWS_INDEX_FILE, at, 0x04);
        assert_int_equal(rows_open(&r, dir, &err), FL_CORRUPT);
        change_byte(ROWS_INDEX_FILE, at, 0x04);
    }
    assert_int_equal(rows_open(&r, dir, &err), FL_OK);
    change_byte(ROWS_JOB_FILE, 20, 0x01);
    assert_int_equal(rows_verify(r, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "was changed"));
    rows_close(r);
}

static void truncated_files_are_corrupt_also_after_open(void **state)
{
    (void)state;
    faults all;
    ingest_report report;
    fl_err err;
    rows *r;
    rows_entry entry;
    const char *line;
    char job[128], index[128];
    snprintf(job, sizeof job, "%s/%s", dir, ROWS_JOB_FILE);
    snprintf(index, sizeof index, "%s/%s", dir, ROWS_INDEX_FILE);
    assert_int_equal(push(mixed, sizeof mixed - 1, 100000, &all, &report, &err), FL_OK);
    assert_int_equal(rows_open(&r, dir, &err), FL_OK);
    assert_int_equal(rows_get(r, (row_index){ 7 }, &entry, &err), FL_OK);
    assert_int_equal(truncate(job, 40), 0);
    assert_int_equal(rows_line(r, &entry, &line, &err), FL_CORRUPT);
    rows_close(r);
    assert_int_equal(rows_open(&r, dir, &err), FL_CORRUPT);
    assert_int_equal(push(mixed, sizeof mixed - 1, 100000, &all, &report, &err), FL_OK);
    for (int cut = 0; cut < ROWS_HEADER_BYTES + 8 * ROWS_ENTRY_BYTES; cut += 13) {
        assert_int_equal(truncate(index, ROWS_HEADER_BYTES + 8 * ROWS_ENTRY_BYTES - 1 - cut), 0);
        assert_int_equal(rows_open(&r, dir, &err), FL_CORRUPT);
    }
    assert_int_equal(unlink(index), 0);
    assert_int_equal(rows_open(&r, dir, &err), FL_NOT_FOUND);
}

#define INGEST_TEST(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
int main(void)
{
    const struct CMUnitTest tests[] = {
        INGEST_TEST(mixed_lines_become_rows_and_faults),
        INGEST_TEST(gzip_members_are_one_job_with_the_plain_jobs_hash),
        INGEST_TEST(jobs_without_rows_are_refused),
        INGEST_TEST(only_one_byte_order_mark_is_accepted),
        INGEST_TEST(other_formats_are_named),
        INGEST_TEST(binary_garbage_gives_faults_and_no_crash),
        INGEST_TEST(files_that_cannot_be_jobs_are_refused),
        INGEST_TEST(files_and_standard_input_give_the_same_folder),
        INGEST_TEST(a_visitor_can_end_the_walk_and_half_an_ingest_is_no_job),
        INGEST_TEST(a_write_that_fails_at_any_byte_leaves_no_job),
        INGEST_TEST(lines_too_long_are_faults_and_cost_no_memory),
        INGEST_TEST(nuls_take_no_room_in_the_copy),
        INGEST_TEST(many_ids_are_told_apart),
        INGEST_TEST(threads_and_pieces_change_nothing),
        INGEST_TEST(a_generated_name_is_a_name_as_any),
        INGEST_TEST(suffixes_make_names_unless_they_are_taken),
        INGEST_TEST(an_ingest_can_be_stopped),
        INGEST_TEST(an_ingest_can_be_stopped_in_a_line_without_an_end),
        INGEST_TEST(every_flipped_byte_of_the_index_is_noticed),
        INGEST_TEST(truncated_files_are_corrupt_also_after_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
