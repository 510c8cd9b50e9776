/* fuzz_ingest.c - any bytes as a job file. The first byte: bit 0 packs the rest with gzip first, bits 1 to 3 say how many bytes are pushed at once. A refusal has a sentence; a job's folder
 * opens again, has the counts of the report, each row reads back as its samples say, and its faults are named in the order of their rows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include "coordinator/ingest.h"
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static char dir[] = "/dev/shm/tokenfleet-fuzz-XXXXXX";

static void remove_dir(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    FL_ASSERT(system(command) == 0);
}

typedef struct { uint64_t n, before, n_rows; } faults;

static fl_status see_fault(void *context, const ingest_fault *f, fl_err *err)
{
    (void)err;
    faults *all = context;
    FL_ASSERT(f->code != ROW_OK && f->text_bytes > 0 && f->line >= 1 && f->row.v < all->n_rows && (all->n == 0 || f->row.v > all->before));
    FL_ASSERT(fl_utf8_valid((const uint8_t *)f->text, f->text_bytes) && fl_utf8_valid((const uint8_t *)f->custom_id, f->custom_id_bytes));
    all->before = f->row.v;
    all->n++;
    return FL_OK;
}

static uint8_t *pack(const uint8_t *data, size_t *n_bytes)
{
    z_stream z = { 0 };
    size_t room = *n_bytes + *n_bytes / 1000 + 1024;
    uint8_t *packed = malloc(room);
    FL_ASSERT(packed && deflateInit2(&z, 1, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY) == Z_OK);
    z.next_in = (Bytef *)(uintptr_t)data;
    z.avail_in = (uInt)*n_bytes;
    z.next_out = packed;
    z.avail_out = (uInt)room;
    FL_ASSERT(deflate(&z, Z_FINISH) == Z_STREAM_END);
    *n_bytes = z.total_out;
    deflateEnd(&z);
    return packed;
}

static void check_folder(const ingest_report *report)
{
    rows *r = NULL;
    rows_entry entry;
    const char *line;
    fl_err err = { 0 };
    uint64_t n_bad = 0, n_samples = 0;
    FL_ASSERT(rows_open(&r, dir, &err) == FL_OK && rows_describe(r)->n_rows == report->n_rows && rows_describe(r)->n_bytes == report->n_bytes);
    for (uint64_t i = 0; i < report->n_rows; i++) {
        FL_ASSERT(rows_get(r, (row_index){ i }, &entry, &err) == FL_OK && rows_line(r, &entry, &line, &err) == FL_OK);
        n_bad += entry.n_samples == 0;
        n_samples += entry.n_samples;
        if (entry.n_samples == 0) continue;
        fl_row row;
        fl_row_fault fault;
        FL_ASSERT(fl_row_parse(&row, line, entry.n_bytes, entry.line, NULL, &fault) == ROW_OK && (uint32_t)row.n == entry.n_samples);
        fl_row_free(&row);
    }
    FL_ASSERT(n_bad == report->n_bad && n_samples == report->n_samples && rows_verify(r, &err) == FL_OK);
    rows_close(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static bool is_made;
    if (!is_made) {
        FL_ASSERT(mkdtemp(dir) && atexit(remove_dir) == 0);
        is_made = true;
    }
    if (n_bytes < 1) return 0;
    size_t n = n_bytes - 1, step = (size_t)1 << (data[0] >> 1 & 7) * 2;
    uint8_t *packed = data[0] & 1 ? pack(data + 1, &n) : NULL;
    const uint8_t *job = packed ? packed : data + 1;
    if (n / step > 4096) step = n / 4096;
    ingest *in = NULL;
    ingest_report report;
    ingest_options options = { .name = "job", .job_dir = dir, .suffix_duplicates = data[0] & 16, .n_threads = 1 };
    fl_err err = { 0 };
    fl_status st = ingest_open(&in, &options, &err);
    for (size_t at = 0; at < n && st == FL_OK; at += step) st = ingest_push(in, job + at, step < n - at ? step : n - at, &err);
    if (st == FL_OK) st = ingest_end(in, &report, &err);
    FL_ASSERT(st == FL_OK || err.text[0]);
    if (st == FL_OK) {
        faults all = { 0, 0, report.n_rows };
        FL_ASSERT(ingest_faults(in, see_fault, &all, &err) == FL_OK && all.n == report.n_bad);
        if (!report.n_renamed) check_folder(&report);
    }
    ingest_close(in);
    free(packed);
    return 0;
}
