/* Any bytes as a ledger segment: the walk ends, agrees with itself about what it cut, and its records are within the file. verify walks the same
 * bytes past whatever is broken, from a file in memory. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

static char dir[] = "/dev/shm/tokenfleet-fuzz-XXXXXX";

static void remove_dir(void)
{
    rmdir(dir);
}

/* verify reads files: one folder for the process, one segment rewritten. */
static void verify(const uint8_t *data, size_t n)
{
    static char path[64];
    static row_table *rows;
    if (!rows) {
        if (!mkdtemp(dir) || atexit(remove_dir) != 0 || row_table_open(&rows, 0, NULL) != FL_OK) abort();
        for (int i = 0; i < 8; i++)
            if (row_table_add(rows, 1 + (uint32_t)i % 3, 1, NULL) != FL_OK) abort();
        snprintf(path, sizeof path, "%s/000001.seg", dir);
    }
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f) != 0) abort();
    uint64_t n_findings = 0;
    ledger_report report;
    fl_status st = ledger_verify(dir, rows, drop_finding, &n_findings, &report, NULL);
    FL_ASSERT(st == FL_OK || st == FL_NOT_FOUND);
    FL_ASSERT(n_findings <= report.n_findings);
    unlink(path);
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
    verify(data, n);
    return 0;
}
