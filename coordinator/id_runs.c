#include "coordinator/id_runs.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/spill.h"

enum { FIRST_RECORDS = 1024, BUCKET_BITS_MAX = 16, SMALL_BUCKET = 24, READ_RECORDS_MAX = 2730, READ_RECORDS_MIN = 64, MERGE_RECORDS = 1 << 18 };

/* A run while it is read: records [at, used) of `buffer` are next, then those of the file from `offset` to `end`. */
typedef struct { id_record *buffer; size_t at, used; uint64_t offset, end; } run_reader;

struct id_runs {
    char *dir;                           /* owned */
    size_t run_records;
    id_record *run; size_t n_run, run_capacity;          /* owned; the run that grows; the only one, in order, once there is no file */
    uint64_t n_records;
    int fd;                              /* -1: nothing was written */
    uint64_t *run_ends; size_t n_runs;   /* owned; bytes of the file */

    size_t next;                         /* in memory: which record comes next */
    run_reader *readers;                 /* owned [n_runs] */
    id_record *buffers; size_t buffer_records;           /* owned; the readers' */
    uint32_t *heap; size_t n_heap;       /* owned; readers by their next record, the lowest first */
};

static bool is_before(const id_record *a, const id_record *b)
{
    if (a->high != b->high) return a->high < b->high;
    return a->low != b->low ? a->low < b->low : a->row < b->row;
}

static int record_order(const void *a, const void *b) { return is_before(a, b) ? -1 : is_before(b, a); }

/* ---- sorting ---- */

static void insertion_sort(id_record *v, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        id_record moved = v[i];
        size_t at = i;
        for (; at > 0 && is_before(&moved, &v[at - 1]); at--) v[at] = v[at - 1];
        v[at] = moved;
    }
}

/* Hashes are spread evenly, so their first bits put nearly every record where it belongs; buckets that are large all the same (one id over and over, keys that are no
 * hashes) are sorted as they are. */
static fl_status sort_run(id_runs *r, fl_err *err)
{
    int bits = 0;
    while (bits < BUCKET_BITS_MAX && (r->n_run >> (bits + 3)) > 0) bits++;
    if (bits == 0) {
        insertion_sort(r->run, r->n_run);
        return FL_OK;
    }
    size_t n_buckets = (size_t)1 << bits;
    uint32_t *starts = calloc(n_buckets + 1, sizeof *starts);
    id_record *sorted = malloc(r->run_capacity * sizeof *sorted);
    if (!starts || !sorted) {
        free(starts);
        free(sorted);
        return fl_fail(err, FL_FULL, "no memory to sort the custom_ids of %zu rows", r->n_run);
    }
    int shift = 64 - bits;
    for (size_t i = 0; i < r->n_run; i++) starts[(r->run[i].high >> shift) + 1]++;
    for (size_t b = 0; b < n_buckets; b++) starts[b + 1] += starts[b];
    for (size_t i = 0; i < r->n_run; i++) sorted[starts[r->run[i].high >> shift]++] = r->run[i];     /* each start moves to its bucket's end */
    for (size_t b = 0, from = 0; b < n_buckets; from = starts[b++]) {
        size_t n = starts[b] - from;
        if (n <= SMALL_BUCKET) insertion_sort(sorted + from, n);
        else qsort(sorted + from, n, sizeof *sorted, record_order);
    }
    free(starts);
    free(r->run);
    r->run = sorted;
    return FL_OK;
}

/* ---- adding ---- */

fl_status id_runs_open(id_runs **out, const char *dir, size_t run_records, fl_err *err)
{
    id_runs *r = calloc(1, sizeof *r);
    if (!r || !(r->dir = strdup(dir))) {
        free(r);
        return fl_fail(err, FL_FULL, "no memory for the custom_ids of a job");
    }
    r->run_records = run_records;
    r->fd = -1;
    *out = r;
    return FL_OK;
}

void id_runs_close(id_runs *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    free(r->run);
    free(r->run_ends);
    free(r->readers);
    free(r->buffers);
    free(r->heap);
    free(r->dir);
    free(r);
}

uint64_t id_runs_count(const id_runs *r) { return r->n_records; }

static fl_status write_run(id_runs *r, fl_err *err)
{
    fl_status st = sort_run(r, err);
    uint64_t start = r->n_runs ? r->run_ends[r->n_runs - 1] : 0;
    uint64_t *ends = st == FL_OK ? realloc(r->run_ends, (r->n_runs + 1) * sizeof *ends) : NULL;
    if (st == FL_OK && !ends) st = fl_fail(err, FL_FULL, "no memory for another run of custom_ids");
    if (ends) r->run_ends = ends;
    if (st == FL_OK && r->fd < 0) st = spill_create(&r->fd, r->dir, err);
    if (st == FL_OK) st = spill_write(r->fd, r->dir, r->run, r->n_run * sizeof *r->run, start, err);
    if (st != FL_OK) return st;
    r->run_ends[r->n_runs++] = start + r->n_run * sizeof *r->run;
    r->n_run = 0;
    return FL_OK;
}

fl_status id_runs_add(id_runs *r, const id_record *records, size_t n, fl_err *err)
{
    while (n > 0) {
        fl_status st = r->n_run == r->run_records ? write_run(r, err) : FL_OK;
        if (st != FL_OK) return st;
        size_t take = r->run_records - r->n_run < n ? r->run_records - r->n_run : n;
        if (r->n_run + take > r->run_capacity) {
            size_t capacity = r->run_capacity ? r->run_capacity : FIRST_RECORDS;
            while (capacity < r->n_run + take) capacity *= 2;
            if (capacity > r->run_records) capacity = r->run_records;
            id_record *run = realloc(r->run, capacity * sizeof *run);
            if (!run) return fl_fail(err, FL_FULL, "no memory for the custom_ids of %zu rows", r->n_run + take);
            r->run = run;
            r->run_capacity = capacity;
        }
        memcpy(r->run + r->n_run, records, take * sizeof *records);
        r->n_run += take;
        r->n_records += take;
        records += take;
        n -= take;
    }
    return FL_OK;
}

/* ---- reading ---- */

static fl_status fill(id_runs *r, run_reader *reader, fl_err *err)
{
    uint64_t left = (reader->end - reader->offset) / sizeof(id_record);
    size_t n = left < r->buffer_records ? (size_t)left : r->buffer_records;
    fl_status st = spill_read(r->fd, r->dir, reader->buffer, n * sizeof(id_record), reader->offset, err);
    reader->at = 0;
    reader->used = st == FL_OK ? n : 0;
    reader->offset += n * sizeof(id_record);
    return st;
}

static const id_record *head(const id_runs *r, size_t place)
{
    const run_reader *reader = &r->readers[r->heap[place]];
    return &reader->buffer[reader->at];
}

static void sift_down(id_runs *r, size_t place)
{
    for (;;) {
        size_t child = 2 * place + 1;
        if (child >= r->n_heap) return;
        if (child + 1 < r->n_heap && is_before(head(r, child + 1), head(r, child))) child++;
        if (!is_before(head(r, child), head(r, place))) return;
        uint32_t moved = r->heap[place];
        r->heap[place] = r->heap[child];
        r->heap[child] = moved;
        place = child;
    }
}

/* Every record is in: put the last run where the others are. */
static fl_status end_runs(id_runs *r, fl_err *err)
{
    if (r->readers || r->n_records == 0) return FL_OK;
    if (r->fd < 0) return sort_run(r, err);
    fl_status st = write_run(r, err);
    free(r->run);
    r->run = NULL;
    r->run_capacity = 0;
    if (st != FL_OK) return st;
    r->buffer_records = MERGE_RECORDS / r->n_runs;
    if (r->buffer_records > READ_RECORDS_MAX) r->buffer_records = READ_RECORDS_MAX;
    if (r->buffer_records < READ_RECORDS_MIN) r->buffer_records = READ_RECORDS_MIN;
    r->readers = calloc(r->n_runs, sizeof *r->readers);
    r->buffers = malloc(r->n_runs * r->buffer_records * sizeof *r->buffers);
    r->heap = malloc(r->n_runs * sizeof *r->heap);
    return r->readers && r->buffers && r->heap ? FL_OK : fl_fail(err, FL_FULL, "no memory to merge %zu runs of custom_ids", r->n_runs);
}

fl_status id_runs_begin(id_runs *r, fl_err *err)
{
    fl_status st = end_runs(r, err);
    r->next = 0;
    r->n_heap = 0;
    for (size_t i = 0; st == FL_OK && r->readers && i < r->n_runs; i++) {
        r->readers[i] = (run_reader){ .buffer = r->buffers + i * r->buffer_records, .offset = i ? r->run_ends[i - 1] : 0, .end = r->run_ends[i] };
        st = fill(r, &r->readers[i], err);
        r->heap[r->n_heap++] = (uint32_t)i;
    }
    for (size_t i = r->n_heap / 2; st == FL_OK && i-- > 0; ) sift_down(r, i);
    return st;
}

fl_status id_runs_next(id_runs *r, id_record *out, fl_err *err)
{
    if (!r->readers) {
        if (r->next == r->n_run) return FL_CLOSED;
        *out = r->run[r->next++];
        return FL_OK;
    }
    if (r->n_heap == 0) return FL_CLOSED;
    run_reader *lowest = &r->readers[r->heap[0]];
    *out = lowest->buffer[lowest->at++];
    if (lowest->at == lowest->used) {
        if (lowest->offset == lowest->end) {
            r->heap[0] = r->heap[--r->n_heap];
        } else {
            fl_status st = fill(r, lowest, err);
            if (st != FL_OK) return st;
        }
    }
    if (r->n_heap) sift_down(r, 0);
    return FL_OK;
}
