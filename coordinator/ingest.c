#include "coordinator/ingest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "coordinator/fault_list.h"
#include "coordinator/gunzip.h"
#include "coordinator/id_runs.h"
#include "coordinator/ingest_ids.h"
#include "coordinator/ingest_pool.h"
#include "coordinator/spool.h"
#include "proto/bytes.h"
#include "proto/job_row.h"

enum { READ_CHUNK = 256 * 1024, UNKNOWN_MAX = 48, UNKNOWN_NAME = 65, MAGIC_BYTES = 6, CHECKSUM_CHUNK = 64 * 1024, HOLE_BYTES = 4096 };      /* so many NULs in one piece become a hole of the copy */
#define LINE_ROOM ((size_t)FL_LINE_BYTES_MAX + 5)         /* a line that fills so much and has no end is too long, even with a BOM and 0x0D */

typedef struct { char name[UNKNOWN_NAME]; uint64_t n_rows; } unknown_field;

struct ingest {
    char *name, *defaults, *job_dir;     /* owned; defaults may be NULL */
    ingest_note note; void *context;
    int job_fd, index_fd;
    bool is_cloned;                      /* job.jsonl is there already; its bytes are only read */

    uint8_t magic[MAGIC_BYTES]; size_t n_magic; bool is_known;      /* the first bytes, until what the input is can be told */
    gunzip *unpack;                      /* owned; NULL for plain input */

    XXH3_state_t *hash;                  /* owned; of the decompressed bytes */
    uint64_t n_bytes;                    /* decompressed, so far */
    ingest_pool *pool;                   /* owned */
    char *data; size_t used, capacity;   /* owned; the lines that make the next block */
    uint64_t offset, first_line;         /* where they begin in the job, and the number of the first */
    uint64_t long_bytes; bool long_has_text;             /* not 0: they are one line that is too long; only its bytes are counted */

    id_runs *ids;                        /* owned */
    fault_list *faults;                  /* owned; without double ids, which are known at the end */
    ingest_ids *twice;                   /* owned; NULL before the end */
    bool suffix_duplicates;
    unknown_field unknown[UNKNOWN_MAX]; size_t n_unknown;
    ingest_report report;
};

/* ---- files ---- */

static fl_status write_all(int fd, const void *data, size_t n_bytes, const char *dir, const char *file, fl_err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        ssize_t n = write(fd, (const char *)data + done, n_bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "ingest: write %s/%s", dir, file);
        done += (size_t)n;
    }
    return FL_OK;
}

static int create_file(const char *dir, const char *file)
{
    char *path;
    if (asprintf(&path, "%s/%s", dir, file) < 0) { errno = ENOMEM; return -1; }
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    int error_number = errno;
    free(path);
    errno = error_number;
    return fd;
}

fl_status ingest_open(ingest **out, const ingest_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    uint8_t empty[ROWS_HEADER_BYTES] = { 0 };            /* the header is written last, so a half index is never taken for a whole one */
    ingest *in = calloc(1, sizeof *in);
    if (!in) return fl_fail(err, FL_FULL, "ingest: no memory");
    in->job_fd = in->index_fd = -1;
    in->note = o->note;
    in->context = o->context;
    in->suffix_duplicates = o->suffix_duplicates;
    in->first_line = 1;
    in->name = strdup(o->name);
    in->defaults = o->defaults ? strdup(o->defaults) : NULL;
    in->job_dir = strdup(o->job_dir);
    in->hash = XXH3_createState();
    if (!in->name || !in->job_dir || (o->defaults && !in->defaults) || !in->hash) { st = fl_fail(err, FL_FULL, "ingest: no memory"); goto done; }
    XXH3_128bits_reset(in->hash);
    in->job_fd = create_file(in->job_dir, ROWS_JOB_FILE);
    if (in->job_fd < 0) { st = fl_fail_errno(err, errno, "ingest: create %s/%s", in->job_dir, ROWS_JOB_FILE); goto done; }
    in->index_fd = create_file(in->job_dir, ROWS_INDEX_FILE);
    if (in->index_fd < 0) { st = fl_fail_errno(err, errno, "ingest: create %s/%s", in->job_dir, ROWS_INDEX_FILE); goto done; }
    if ((st = write_all(in->index_fd, empty, sizeof empty, in->job_dir, ROWS_INDEX_FILE, err)) != FL_OK) goto done;
    if ((st = id_runs_open(&in->ids, in->job_dir, ID_RUNS_DEFAULT, err)) != FL_OK) goto done;
    if ((st = fault_list_open(&in->faults, in->job_dir, err)) != FL_OK) goto done;
    if ((st = ingest_pool_open(&in->pool, o->n_threads, in->defaults, err)) != FL_OK) goto done;
    *out = in;
    in = NULL;
done:
    ingest_close(in);
    return st;
}

void ingest_close(ingest *in)
{
    if (!in) return;
    ingest_pool_close(in->pool);
    if (in->job_fd >= 0) close(in->job_fd);
    if (in->index_fd >= 0) close(in->index_fd);
    gunzip_close(in->unpack);
    XXH3_freeState(in->hash);
    id_runs_close(in->ids);
    fault_list_close(in->faults);
    ingest_ids_close(in->twice);
    free(in->data);
    free(in->name);
    free(in->defaults);
    free(in->job_dir);
    free(in);
}

static fl_status tell(ingest *in, fl_err *err)
{
    in->report.n_bytes = in->n_bytes;
    if (in->pool) in->report.blocks = ingest_pool_queue(in->pool);
    return in->note ? in->note(in->context, &in->report, err) : FL_OK;
}

/* ---- what the parsers found, in the job's order ---- */

/* Count each of the comma-separated names for n_rows. */
static void count_unknown(ingest *in, const char *names, size_t n_bytes, uint32_t n_rows)
{
    for (const char *end = names + n_bytes; names < end; ) {
        const char *comma = memchr(names, ',', (size_t)(end - names));
        size_t n = (size_t)((comma ? comma : end) - names), i = 0;
        while (i < in->n_unknown && (strncmp(in->unknown[i].name, names, n) != 0 || in->unknown[i].name[n] != '\0')) i++;
        if (i == in->n_unknown && i < UNKNOWN_MAX && n < UNKNOWN_NAME) {
            memcpy(in->unknown[i].name, names, n);
            in->n_unknown++;
        }
        if (i < in->n_unknown) in->unknown[i].n_rows += n_rows;
        names += n + 1;
    }
}

static fl_status collect(ingest *in, ingest_block *b, fl_err *err)
{
    uint64_t base = in->report.n_rows;
    if (b->status != FL_OK) return fl_fail(err, b->status, "%s", b->err.text);
    if (base + b->n_rows > UINT32_MAX) return fl_fail(err, FL_UNSUPPORTED, "%s has more than %u rows: split it", in->name, UINT32_MAX);
    fl_status st = write_all(in->index_fd, b->entries.bytes, b->entries.used, in->job_dir, ROWS_INDEX_FILE, err);
    id_record *ids = (id_record *)b->ids.bytes;
    size_t n_ids = b->ids.used / sizeof *ids;
    for (size_t i = 0; i < n_ids; i++) ids[i].row += base;
    if (st == FL_OK && n_ids) st = id_runs_add(in->ids, ids, n_ids, err);
    for (size_t at = 0, n; st == FL_OK && at < b->faults.used; at += n) {
        fault_entry fault;
        n = fault_decode(&fault, b->faults.bytes + at);
        fault_set_row(b->faults.bytes + at, base + fault.row);
        st = fault_list_add(in->faults, b->faults.bytes + at, n, err);
    }
    for (size_t at = 0; at < b->unknown.used; at += 8 + fl_get_u32(b->unknown.bytes + at + 4))
        count_unknown(in, (const char *)b->unknown.bytes + at + 8, fl_get_u32(b->unknown.bytes + at + 4), fl_get_u32(b->unknown.bytes + at));
    in->report.n_rows += b->n_rows;
    in->report.n_bad += b->n_bad;
    in->report.n_samples += b->n_samples;
    in->report.n_lines += b->n_lines;
    in->report.cost += b->cost;
    return st;
}

/* Take back the oldest block. */
static fl_status collect_one(ingest *in, ingest_block *b, fl_err *err)
{
    fl_status st = collect(in, b, err);
    ingest_pool_give_back(in->pool);
    return st == FL_OK ? tell(in, err) : st;
}

static fl_status collect_all(ingest *in, fl_err *err)
{
    fl_status st = FL_OK;
    for (ingest_block *b; st == FL_OK && (b = ingest_pool_take(in->pool, true)); ) st = collect_one(in, b, err);
    return st;
}

/* ---- from bytes to blocks ---- */

/* A block that the parsers do not have; what they have finished is collected meanwhile. */
static fl_status get_block(ingest *in, size_t n_bytes, ingest_block **out, fl_err *err)
{
    fl_status st = FL_OK;
    for (ingest_block *b; st == FL_OK && (b = ingest_pool_take(in->pool, false)); ) st = collect_one(in, b, err);
    while (st == FL_OK && (!(*out = ingest_pool_blank(in->pool)) || !ingest_pool_fits(in->pool, n_bytes))) st = collect_one(in, ingest_pool_take(in->pool, true), err);
    return st;
}

/* Give the first n_bytes, n_lines whole lines (or the job's last), to the parsers. The buffer goes with them; what is left begins the next block. */
static fl_status push_block(ingest *in, size_t n_bytes, uint64_t n_lines, fl_err *err)
{
    ingest_block *b = NULL;
    fl_status st = get_block(in, in->capacity, &b, err);
    if (st != FL_OK) return st;
    size_t rest = in->used - n_bytes, room = rest > BLOCK_BYTES ? rest : BLOCK_BYTES;
    char *fresh = b->data;
    if (b->capacity < room) {
        if (!(fresh = realloc(fresh, room))) return fl_fail(err, FL_FULL, "ingest: no memory for %zu bytes of lines", room);
        b->capacity = room;
    }
    if (rest) memcpy(fresh, in->data + n_bytes, rest);
    size_t capacity = b->capacity;
    b->data = in->data;
    b->capacity = in->capacity;
    b->used = n_bytes;
    b->offset = in->offset;
    b->first_line = in->first_line;
    in->data = fresh;
    in->capacity = capacity;
    in->used = rest;
    in->offset += n_bytes;
    in->first_line += n_lines;
    ingest_pool_push(in->pool);
    return FL_OK;
}

static fl_status push_long(ingest *in, fl_err *err)
{
    ingest_block *b = NULL;
    fl_status st = get_block(in, 0, &b, err);
    if (st != FL_OK) return st;
    b->offset = in->offset;
    b->first_line = in->first_line++;
    b->long_bytes = in->long_bytes;
    b->long_has_text = in->long_has_text;
    in->offset += in->long_bytes + 1;
    in->long_bytes = 0;
    ingest_pool_push(in->pool);
    return FL_OK;
}

/* Push whole lines, at most BLOCK_LINES_MAX; there is one. */
static fl_status push_lines(ingest *in, fl_err *err)
{
    uint64_t n_lines = 0;
    const char *p = in->data, *end = in->data + in->used;
    for (const char *feed; n_lines < BLOCK_LINES_MAX && (feed = memchr(p, '\n', (size_t)(end - p))); n_lines++) p = feed + 1;
    return push_block(in, (size_t)(p - in->data), n_lines, err);
}

/* The buffer is full: pass lines on, or make it larger for a line that is longer, or only count the line from here on. */
static fl_status make_room(ingest *in, fl_err *err)
{
    if (in->used && memrchr(in->data, '\n', in->used)) return push_lines(in, err);
    if (in->capacity == LINE_ROOM) {
        size_t bom = in->offset == 0 && memcmp(in->data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
        in->offset += bom;
        in->long_bytes = in->used - bom;
        in->long_has_text = !fl_line_is_blank(in->data + bom, in->used - bom);
        in->used = 0;
        return FL_OK;
    }
    size_t capacity = in->capacity ? in->capacity * 2 : BLOCK_BYTES;
    if (capacity > LINE_ROOM) capacity = LINE_ROOM;
    char *data = realloc(in->data, capacity);
    if (!data) return fl_fail(err, FL_FULL, "ingest: no memory for a line of %zu bytes", capacity);
    in->data = data;
    in->capacity = capacity;
    return FL_OK;
}

/* The next bytes of a line that is too long; *n becomes how many were taken, with its feed. */
static fl_status count_long(ingest *in, const char *data, size_t *n, fl_err *err)
{
    const char *feed = memchr(data, '\n', *n);
    size_t bytes = feed ? (size_t)(feed - data) : *n;
    if (!in->long_has_text) in->long_has_text = !fl_line_is_blank(data, bytes);
    in->long_bytes += bytes;
    if (!feed) return tell(in, err);                     /* it may have no end: who waits must be able to stop */
    *n = bytes + 1;
    return push_long(in, err);
}

static fl_status cut_lines(ingest *in, const char *data, size_t n_bytes, fl_err *err)
{
    fl_status st = FL_OK;
    for (size_t at = 0, n; st == FL_OK && at < n_bytes; at += n) {
        n = n_bytes - at;
        if (in->long_bytes) { st = count_long(in, data + at, &n, err); continue; }
        if (n > in->capacity - in->used) n = in->capacity - in->used;
        if (n == 0) { st = make_room(in, err); continue; }
        memcpy(in->data + in->used, data + at, n);
        in->used += n;
    }
    return st;
}

/* Into job.jsonl. NULs become a hole, which reads the same: a sparse file, or /dev/zero until somebody stops it, fills no disk. */
static fl_status keep(ingest *in, const char *data, size_t n_bytes, fl_err *err)
{
    bool is_hole = n_bytes >= HOLE_BYTES && data[0] == '\0' && memcmp(data, data + 1, n_bytes - 1) == 0;
    if (!is_hole) return write_all(in->job_fd, data, n_bytes, in->job_dir, ROWS_JOB_FILE, err);
    return lseek(in->job_fd, (off_t)n_bytes, SEEK_CUR) >= 0 ? FL_OK : fl_fail_errno(err, errno, "ingest: write %s/%s", in->job_dir, ROWS_JOB_FILE);
}

/* Decompressed bytes, in order. */
static fl_status take_plain(void *context, const void *data, size_t n_bytes, fl_err *err)
{
    ingest *in = context;
    fl_status st = in->is_cloned ? FL_OK : keep(in, data, n_bytes, err);
    XXH3_128bits_update(in->hash, data, n_bytes);
    in->n_bytes += n_bytes;
    return st == FL_OK ? cut_lines(in, data, n_bytes, err) : st;
}

/* ---- what the input is ---- */

static const struct { const char *bytes; size_t n; const char *what; } foreign[] = {
    { "\x28\xB5\x2F\xFD", 4, "zstd data" }, { "\xFD" "7zXZ\0", 6, "xz data" }, { "BZh", 3, "bzip2 data" }, { "PK\x03\x04", 4, "a zip archive" },
    { "\x04\x22\x4D\x18", 4, "lz4 data" }, { "\xFF\xFE", 2, "UTF-16 text" }, { "\xFE\xFF", 2, "UTF-16 text" }, { "PAR1", 4, "a Parquet file" },
};

/* Called once with the first bytes (fewer than MAGIC_BYTES when there are no more). */
static fl_status know_input(ingest *in, fl_err *err)
{
    fl_status st = FL_OK;
    in->is_known = true;
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (in->n_magic >= foreign[i].n && memcmp(in->magic, foreign[i].bytes, foreign[i].n) == 0)
            return fl_fail(err, FL_UNSUPPORTED, "%s is %s: give JSONL in UTF-8, plain or packed with gzip", in->name, foreign[i].what);
    if (!in->is_cloned && in->n_magic >= 2 && in->magic[0] == 0x1F && in->magic[1] == 0x8B) {
        if ((st = gunzip_open(&in->unpack, in->name, take_plain, in, err)) != FL_OK) return st;
        return gunzip_push(in->unpack, in->magic, in->n_magic, err);
    }
    return in->n_magic ? take_plain(in, in->magic, in->n_magic, err) : FL_OK;
}

fl_status ingest_push(ingest *in, const void *data, size_t n_bytes, fl_err *err)
{
    const uint8_t *p = data;
    if (!in->is_known) {
        size_t n = MAGIC_BYTES - in->n_magic < n_bytes ? MAGIC_BYTES - in->n_magic : n_bytes;
        if (n) memcpy(in->magic + in->n_magic, p, n);
        in->n_magic += n;
        p += n;
        n_bytes -= n;
        if (in->n_magic < MAGIC_BYTES) return FL_OK;
        fl_status st = know_input(in, err);
        if (st != FL_OK) return st;
    }
    if (n_bytes == 0) return FL_OK;
    return in->unpack ? gunzip_push(in->unpack, p, n_bytes, err) : take_plain(in, p, n_bytes, err);
}

/* ---- the end ---- */

static fl_status push_rest(ingest *in, fl_err *err)
{
    fl_status st = FL_OK;
    while (st == FL_OK && in->used) st = memchr(in->data, '\n', in->used) ? push_lines(in, err) : push_block(in, in->used, 1, err);
    return st == FL_OK && in->long_bytes ? push_long(in, err) : st;
}

/* The checksum covers the header's fields, so it is taken over the finished file. */
static fl_status write_header(ingest *in, fl_err *err)
{
    uint8_t head[ROWS_HEADER_BYTES], *chunk = malloc(CHECKSUM_CHUNK);
    XXH3_state_t *sum = XXH3_createState();
    fl_status st = FL_OK;
    rows_header header = { .n_rows = in->report.n_rows, .n_bytes = in->n_bytes };
    memcpy(header.hash, in->report.hash, ROWS_HASH_BYTES);
    if (!chunk || !sum) { st = fl_fail(err, FL_FULL, "ingest: no memory"); goto done; }
    XXH3_64bits_reset_withSeed(sum, rows_header_seed(&header));
    for (uint64_t at = ROWS_HEADER_BYTES, end = at + header.n_rows * ROWS_ENTRY_BYTES; at < end;) {
        ssize_t n = pread(in->index_fd, chunk, end - at < CHECKSUM_CHUNK ? (size_t)(end - at) : CHECKSUM_CHUNK, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) { st = fl_fail_errno(err, n < 0 ? errno : EIO, "ingest: read %s/%s back", in->job_dir, ROWS_INDEX_FILE); goto done; }
        XXH3_64bits_update(sum, chunk, (size_t)n);
        at += (uint64_t)n;
    }
    header.checksum = XXH3_64bits_digest(sum);
    rows_header_encode(head, &header);
    if (lseek(in->index_fd, 0, SEEK_SET) != 0) { st = fl_fail_errno(err, errno, "ingest: seek in %s/%s", in->job_dir, ROWS_INDEX_FILE); goto done; }
    st = write_all(in->index_fd, head, sizeof head, in->job_dir, ROWS_INDEX_FILE, err);
done:
    free(chunk);
    XXH3_freeState(sum);
    return st;
}

static void write_unknown(ingest *in)
{
    char *out = in->report.unknown_fields;
    size_t used = 0, room = sizeof in->report.unknown_fields;
    for (size_t i = 0; i < in->n_unknown; i++) {
        char one[UNKNOWN_NAME + 40];
        size_t n = (size_t)snprintf(one, sizeof one, "%s%s (%llu row%s)", i ? ", " : "", in->unknown[i].name, (unsigned long long)in->unknown[i].n_rows,
                                    in->unknown[i].n_rows == 1 ? "" : "s");
        if (used + n + 4 >= room) { memcpy(out + used, ", ...", 6); return; }        /* the last 6 bytes are kept free for this */
        memcpy(out + used, one, n + 1);
        used += n;
    }
}

static fl_status note_merge(void *context, fl_err *err) { return tell(context, err); }

/* Every row is in the index: which of them have another's custom_id? */
static fl_status find_double_ids(ingest *in, fl_err *err)
{
    const ingest_ids_options o = { .ids = in->ids, .index_fd = in->index_fd, .job_fd = in->job_fd, .job_dir = in->job_dir, .defaults = in->defaults,
                                   .suffix = in->suffix_duplicates, .n_rows = in->report.n_rows, .n_bytes = in->n_bytes, .note = note_merge, .context = in };
    ingest_ids_counts found = { 0 };
    fl_status st = ingest_ids_open(&in->twice, &o, &found, err);
    in->report.n_bad += found.n_bad;
    in->report.n_renamed = found.n_renamed;
    in->report.n_samples -= found.samples_lost;
    in->report.cost -= found.cost_lost;
    return st;
}

fl_status ingest_end(ingest *in, ingest_report *report, fl_err *err)
{
    fl_status st = in->is_known ? FL_OK : know_input(in, err);
    if (st == FL_OK && in->unpack) st = gunzip_end(in->unpack, err);
    if (st == FL_OK) st = push_rest(in, err);
    if (st == FL_OK) st = collect_all(in, err);
    if (st == FL_OK && in->report.n_rows == 0)
        st = fl_fail(err, FL_INVALID, in->n_bytes ? "%s is empty: all its lines are blank" : "%s is empty: a job has one JSON object a line", in->name);
    if (st != FL_OK) return st;
    in->report.blocks = ingest_pool_queue(in->pool);
    ingest_pool_close(in->pool);
    in->pool = NULL;
    free(in->data);
    in->data = NULL;
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(in->hash));
    memcpy(in->report.hash, hash.digest, ROWS_HASH_BYTES);
    in->report.n_bytes = in->n_bytes;
    if (!in->is_cloned && ftruncate(in->job_fd, (off_t)in->n_bytes) != 0) return fl_fail_errno(err, errno, "ingest: write %s/%s", in->job_dir, ROWS_JOB_FILE);       /* it may end with a hole */
    if ((st = find_double_ids(in, err)) != FL_OK) return st;
    if ((st = write_header(in, err)) != FL_OK) return st;
    if (fsync(in->job_fd) != 0) return fl_fail_errno(err, errno, "ingest: sync %s/%s", in->job_dir, ROWS_JOB_FILE);
    if (fsync(in->index_fd) != 0) return fl_fail_errno(err, errno, "ingest: sync %s/%s", in->job_dir, ROWS_INDEX_FILE);
    if ((st = spool_sync_dir(in->job_dir, err)) != FL_OK) return st;
    write_unknown(in);
    *report = in->report;
    return FL_OK;
}

/* ---- the bad lines ---- */

static fl_status visit_entry(ingest_visit visit, void *context, const fault_entry *f, fl_err *err)
{
    ingest_fault fault = { { f->row }, f->code, f->line, f->offset, f->custom_id, f->custom_id_bytes, f->text, f->text_bytes };
    return visit(context, &fault, err);
}

/* Two lists in the order of rows; a row that stands in both was bad before its id was compared. */
fl_status ingest_faults(ingest *in, ingest_visit visit, void *context, fl_err *err)
{
    fault_entry fault, twice;
    fl_status st = fault_list_begin(in->faults, err);
    if (st == FL_OK) st = ingest_ids_begin(in->twice, err);
    if (st != FL_OK) return st;
    fl_status more = fault_list_next(in->faults, &fault, err), more_twice = ingest_ids_next(in->twice, &twice, err);
    while ((more == FL_OK || more_twice == FL_OK) && st == FL_OK) {
        bool is_twice = more != FL_OK || (more_twice == FL_OK && twice.row < fault.row);
        bool is_both = !is_twice && more_twice == FL_OK && twice.row == fault.row;
        if ((more != FL_OK && more != FL_CLOSED) || (more_twice != FL_OK && more_twice != FL_CLOSED)) break;
        st = visit_entry(visit, context, is_twice ? &twice : &fault, err);
        if (st == FL_OK && !is_twice) more = fault_list_next(in->faults, &fault, err);
        if (st == FL_OK && (is_twice || is_both)) more_twice = ingest_ids_next(in->twice, &twice, err);
    }
    if (st == FL_OK && more != FL_OK && more != FL_CLOSED) st = more;
    if (st == FL_OK && more_twice != FL_OK && more_twice != FL_CLOSED) st = more_twice;
    return st;
}

/* ---- files and standard input ---- */

/* Share the file's blocks with the spool where the file system can. Then the copy is what is read, so the job cannot change under us. */
static void clone_plain(ingest *in, int fd, const struct stat *info)
{
    uint8_t head[2];
    if (!S_ISREG(info->st_mode) || pread(fd, head, 2, 0) != 2 || (head[0] == 0x1F && head[1] == 0x8B)) return;
    in->is_cloned = ioctl(in->job_fd, FICLONE, fd) == 0;
}

fl_status ingest_read(ingest *in, const char *path, fl_err *err)
{
    fl_status st = FL_OK;
    struct stat info;
    bool is_stdin = strcmp(path, "-") == 0;
    char *chunk = malloc(READ_CHUNK);
    int fd;
    while ((fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC)) < 0 && errno == EINTR) {       /* a pipe that nobody writes to yet; a signal may want the end */
        if ((st = tell(in, err)) != FL_OK) goto done;
    }
    if (!chunk) { st = fl_fail(err, FL_FULL, "ingest: no memory"); goto done; }
    if (fd < 0 && errno == ENOENT) { st = fl_fail(err, FL_NOT_FOUND, "%s does not exist: give a JSONL file of prompts", in->name); goto done; }
    if (fd < 0 || fstat(fd, &info) != 0) { st = fl_fail_errno(err, errno, "cannot read %s", in->name); goto done; }
    if (S_ISDIR(info.st_mode)) { st = fl_fail(err, FL_INVALID, "%s is a directory: give a JSONL file of prompts", in->name); goto done; }
    if (!is_stdin) clone_plain(in, fd, &info);
    for (;;) {
        ssize_t n = read(in->is_cloned ? in->job_fd : fd, chunk, READ_CHUNK);
        if (n < 0 && errno == EINTR) {                   /* a signal may want the end */
            if ((st = tell(in, err)) != FL_OK) goto done;
            continue;
        }
        if (n < 0) { st = fl_fail_errno(err, errno, "cannot read %s", in->name); goto done; }
        if (n == 0) break;
        if ((st = ingest_push(in, chunk, (size_t)n, err)) != FL_OK) goto done;
    }
done:
    if (fd >= 0) close(fd);
    free(chunk);
    return st;
}
