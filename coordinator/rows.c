#include "coordinator/rows.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "proto/bytes.h"
#include "proto/job_row.h"

#define ROWS_MAGIC 0x31495254u                           /* "TRI1" */
#define ROWS_BLOCK_ENTRIES 2048
#define ROWS_WINDOW_BYTES 65536          /* lines are asked for nearly in order: one read serves many */
#define WINDOW_KEPT_BYTES (1u << 20)     /* a longer line's memory is given back with the next one */

struct rows {
    int index_fd, job_fd;
    char *index_path, *job_path;                         /* owned, for sentences */
    rows_header header;
    uint8_t *block;                                      /* owned [ROWS_BLOCK_ENTRIES * ROWS_ENTRY_BYTES]: entries block_first .. */
    uint64_t block_first, block_count;
    char *window; size_t window_capacity, window_bytes;  /* owned; bytes of job.jsonl from window_first on */
    uint64_t window_first;
};

/* ---- bytes ---- */

void rows_entry_encode(uint8_t out[ROWS_ENTRY_BYTES], const rows_entry *entry)
{
    fl_put_u64(out, entry->offset);
    fl_put_u32(out + 8, entry->n_bytes);
    fl_put_u32(out + 12, entry->n_samples);
    fl_put_u64(out + 16, entry->line);
    fl_put_u32(out + 24, entry->cost);
    fl_put_u32(out + 28, entry->is_renamed);
}

fl_status rows_entry_decode(rows_entry *entry, const uint8_t in[ROWS_ENTRY_BYTES], const rows_header *header, fl_err *err)
{
    *entry = (rows_entry){ fl_get_u64(in), fl_get_u32(in + 8), fl_get_u32(in + 12), fl_get_u64(in + 16), fl_get_u32(in + 24), fl_get_u32(in + 28) == 1 };
    if (entry->offset > header->n_bytes || entry->n_bytes > header->n_bytes - entry->offset)
        return fl_fail(err, FL_CORRUPT, "an entry points outside the job's lines");
    if (entry->n_bytes == 0 || entry->line == 0 || fl_get_u32(in + 28) > 1 || (entry->is_renamed && entry->n_samples == 0)) return fl_fail(err, FL_CORRUPT, "an entry has a field out of range");
    if (entry->n_samples > FL_SAMPLES_MAX || (entry->n_samples > 0 && entry->n_bytes > FL_LINE_BYTES_MAX))
        return fl_fail(err, FL_CORRUPT, "an entry has more samples or bytes than a row may have");
    return FL_OK;
}

/* Everything but the checksum, which stands at byte 24. */
static void header_fields(uint8_t out[ROWS_HEADER_BYTES], const rows_header *header)
{
    memset(out, 0, ROWS_HEADER_BYTES);
    fl_put_u32(out, ROWS_MAGIC);
    fl_put_u16(out + 4, 1);
    fl_put_u64(out + 8, header->n_rows);
    fl_put_u64(out + 16, header->n_bytes);
    memcpy(out + 32, header->hash, ROWS_HASH_BYTES);
}

uint64_t rows_header_seed(const rows_header *header)
{
    uint8_t bytes[ROWS_HEADER_BYTES];
    header_fields(bytes, header);
    return XXH3_64bits(bytes, sizeof bytes);
}

void rows_header_encode(uint8_t out[ROWS_HEADER_BYTES], const rows_header *header)
{
    header_fields(out, header);
    fl_put_u64(out + 24, header->checksum);
}

static bool header_decode(rows_header *header, const uint8_t in[ROWS_HEADER_BYTES])
{
    *header = (rows_header){ .n_rows = fl_get_u64(in + 8), .n_bytes = fl_get_u64(in + 16), .checksum = fl_get_u64(in + 24) };
    memcpy(header->hash, in + 32, ROWS_HASH_BYTES);
    uint8_t again[ROWS_HEADER_BYTES];                    /* magic, version and zeros are right when writing it gives the same bytes */
    rows_header_encode(again, header);
    return memcmp(again, in, ROWS_HEADER_BYTES) == 0;
}

/* ---- files ---- */

/* Read n_min bytes, and up to n_max where they come with them; *n_read of them. */
static fl_status read_some(int fd, const char *path, void *out, size_t n_min, size_t n_max, size_t *n_read, uint64_t offset, fl_err *err)
{
    *n_read = 0;
    while (*n_read < n_min) {
        ssize_t n = pread(fd, (char *)out + *n_read, n_max - *n_read, (off_t)(offset + *n_read));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fl_fail_errno(err, errno, "rows: read %s", path);
        if (n == 0) return fl_fail(err, FL_CORRUPT, "rows: %s ends at byte %llu, inside the job", path, (unsigned long long)(offset + *n_read));
        *n_read += (size_t)n;
    }
    return FL_OK;
}

static fl_status read_exact(int fd, const char *path, void *out, size_t n_bytes, uint64_t offset, fl_err *err)
{
    size_t n;
    return read_some(fd, path, out, n_bytes, n_bytes, &n, offset, err);
}

static fl_status open_file(int *fd, char **path, const char *dir, const char *name, uint64_t *n_bytes, fl_err *err)
{
    struct stat st;
    if (asprintf(path, "%s/%s", dir, name) < 0) { *path = NULL; return fl_fail(err, FL_FULL, "rows: no memory"); }
    *fd = open(*path, O_RDONLY | O_CLOEXEC);
    if (*fd < 0 && errno == ENOENT) return fl_fail(err, FL_NOT_FOUND, "rows: %s is missing", *path);
    if (*fd < 0 || fstat(*fd, &st) != 0) return fl_fail_errno(err, errno, "rows: open %s", *path);
    if (!S_ISREG(st.st_mode)) return fl_fail(err, FL_CORRUPT, "rows: %s is not a file", *path);
    *n_bytes = (uint64_t)st.st_size;
    return FL_OK;
}

static fl_status load_block(rows *r, uint64_t first, fl_err *err)
{
    uint64_t count = r->header.n_rows - first;
    if (count > ROWS_BLOCK_ENTRIES) count = ROWS_BLOCK_ENTRIES;
    r->block_count = 0;
    fl_status st = read_exact(r->index_fd, r->index_path, r->block, count * ROWS_ENTRY_BYTES, ROWS_HEADER_BYTES + first * ROWS_ENTRY_BYTES, err);
    if (st != FL_OK) return st;
    r->block_first = first;
    r->block_count = count;
    return FL_OK;
}

static fl_status entry_of(rows *r, uint64_t row, rows_entry *entry, fl_err *err)
{
    fl_err why = { FL_OK, "" };
    if (rows_entry_decode(entry, r->block + (row - r->block_first) * ROWS_ENTRY_BYTES, &r->header, &why) == FL_OK) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "rows: %s, row %llu: %s", r->index_path, (unsigned long long)row, why.text);
}

static fl_status check_entries(rows *r, fl_err *err)
{
    XXH3_state_t *sum = XXH3_createState();
    if (!sum) return fl_fail(err, FL_FULL, "rows: no memory");
    XXH3_64bits_reset_withSeed(sum, rows_header_seed(&r->header));
    fl_status st = FL_OK;
    uint64_t end = 0, line = 0;
    for (uint64_t row = 0; st == FL_OK && row < r->header.n_rows; row++) {
        rows_entry entry;
        if (row % ROWS_BLOCK_ENTRIES == 0) {
            if ((st = load_block(r, row, err)) != FL_OK) break;
            XXH3_64bits_update(sum, r->block, r->block_count * ROWS_ENTRY_BYTES);
        }
        if ((st = entry_of(r, row, &entry, err)) != FL_OK) break;
        if (entry.offset < end || entry.line <= line)
            st = fl_fail(err, FL_CORRUPT, "rows: %s, row %llu does not lie behind the row before it", r->index_path, (unsigned long long)row);
        end = entry.offset + entry.n_bytes;
        line = entry.line;
    }
    if (st == FL_OK && XXH3_64bits_digest(sum) != r->header.checksum)
        st = fl_fail(err, FL_CORRUPT, "rows: %s fails its checksum: it was changed after the job was submitted", r->index_path);
    XXH3_freeState(sum);
    return st;
}

fl_status rows_open(rows **out, const char *job_dir, fl_err *err)
{
    fl_status st = FL_OK;
    uint64_t index_bytes, job_bytes;
    uint8_t head[ROWS_HEADER_BYTES];
    rows *r = calloc(1, sizeof *r);
    if (!r) return fl_fail(err, FL_FULL, "rows: no memory");
    r->index_fd = r->job_fd = -1;
    r->block = malloc(ROWS_BLOCK_ENTRIES * ROWS_ENTRY_BYTES);
    if (!r->block) { st = fl_fail(err, FL_FULL, "rows: no memory"); goto done; }
    if ((st = open_file(&r->index_fd, &r->index_path, job_dir, ROWS_INDEX_FILE, &index_bytes, err)) != FL_OK) goto done;
    if ((st = open_file(&r->job_fd, &r->job_path, job_dir, ROWS_JOB_FILE, &job_bytes, err)) != FL_OK) goto done;
    if (index_bytes < ROWS_HEADER_BYTES) { st = fl_fail(err, FL_CORRUPT, "rows: %s has %llu bytes, too few for its header", r->index_path, (unsigned long long)index_bytes); goto done; }
    if ((st = read_exact(r->index_fd, r->index_path, head, sizeof head, 0, err)) != FL_OK) goto done;
    if (!header_decode(&r->header, head)) { st = fl_fail(err, FL_CORRUPT, "rows: %s has a header that is not ours", r->index_path); goto done; }
    if ((index_bytes - ROWS_HEADER_BYTES) % ROWS_ENTRY_BYTES != 0 || (index_bytes - ROWS_HEADER_BYTES) / ROWS_ENTRY_BYTES != r->header.n_rows) {
        st = fl_fail(err, FL_CORRUPT, "rows: %s has %llu bytes, not those of its %llu rows", r->index_path, (unsigned long long)index_bytes, (unsigned long long)r->header.n_rows);
        goto done;
    }
    if (job_bytes != r->header.n_bytes) {
        st = fl_fail(err, FL_CORRUPT, "rows: %s has %llu bytes, it had %llu when the job was submitted", r->job_path, (unsigned long long)job_bytes, (unsigned long long)r->header.n_bytes);
        goto done;
    }
    if ((st = check_entries(r, err)) != FL_OK) goto done;
    *out = r;
    r = NULL;
done:
    rows_close(r);
    return st;
}

void rows_close(rows *r)
{
    if (!r) return;
    if (r->index_fd >= 0) close(r->index_fd);
    if (r->job_fd >= 0) close(r->job_fd);
    free(r->index_path);
    free(r->job_path);
    free(r->block);
    free(r->window);
    free(r);
}

fl_status rows_share(rows **out, const rows *from, fl_err *err)
{
    fl_status st = FL_OK;
    rows *r = calloc(1, sizeof *r);
    if (!r) return fl_fail(err, FL_FULL, "rows: no memory");
    r->index_fd = fcntl(from->index_fd, F_DUPFD_CLOEXEC, 0);
    r->job_fd = fcntl(from->job_fd, F_DUPFD_CLOEXEC, 0);
    r->header = from->header;
    r->block = malloc(ROWS_BLOCK_ENTRIES * ROWS_ENTRY_BYTES);
    r->index_path = strdup(from->index_path);
    r->job_path = strdup(from->job_path);
    if (r->index_fd < 0 || r->job_fd < 0) { st = fl_fail_errno(err, errno, "rows: open %s once more", from->job_path); goto done; }
    if (!r->block || !r->index_path || !r->job_path) { st = fl_fail(err, FL_FULL, "rows: no memory"); goto done; }
    *out = r;
    r = NULL;
done:
    rows_close(r);
    return st;
}

const rows_header *rows_describe(const rows *r) { return &r->header; }

fl_status rows_get(rows *r, row_index row, rows_entry *entry, fl_err *err)
{
    if (row.v >= r->header.n_rows)
        return fl_fail(err, FL_NOT_FOUND, "rows: row %llu of %llu does not exist", (unsigned long long)row.v, (unsigned long long)r->header.n_rows);
    if (row.v < r->block_first || row.v - r->block_first >= r->block_count) {
        fl_status st = load_block(r, row.v - row.v % ROWS_BLOCK_ENTRIES, err);
        if (st != FL_OK) return st;
    }
    return entry_of(r, row.v, entry, err);
}

fl_status rows_line(rows *r, const rows_entry *entry, const char **line, fl_err *err)
{
    if (entry->n_bytes > FL_LINE_BYTES_MAX) return fl_fail(err, FL_INVALID, "rows: line %llu is too long to be read", (unsigned long long)entry->line);
    if (entry->offset < r->window_first || entry->offset - r->window_first > r->window_bytes || entry->n_bytes > r->window_bytes - (entry->offset - r->window_first)) {
        size_t want = entry->n_bytes > ROWS_WINDOW_BYTES ? entry->n_bytes : ROWS_WINDOW_BYTES;
        r->window_bytes = 0;
        if (want > r->window_capacity || (r->window_capacity > WINDOW_KEPT_BYTES && want <= WINDOW_KEPT_BYTES)) {
            free(r->window);
            r->window_capacity = 0;
            r->window = malloc(want);
            if (!r->window) return fl_fail(err, FL_FULL, "rows: no memory for a line of %u bytes", entry->n_bytes);
            r->window_capacity = want;
        }
        fl_status st = read_some(r->job_fd, r->job_path, r->window, entry->n_bytes, want, &r->window_bytes, entry->offset, err);
        if (st != FL_OK) return st;
        r->window_first = entry->offset;
    }
    *line = r->window + (entry->offset - r->window_first);
    return FL_OK;
}

fl_status rows_verify(rows *r, fl_err *err)
{
    enum { CHUNK = 1 << 20 };
    fl_status st = FL_OK;
    XXH3_state_t *sum = XXH3_createState();
    char *chunk = malloc(CHUNK);
    if (!sum || !chunk) { st = fl_fail(err, FL_FULL, "rows: no memory"); goto done; }
    XXH3_128bits_reset(sum);
    for (uint64_t at = 0; at < r->header.n_bytes;) {
        size_t n = r->header.n_bytes - at < CHUNK ? (size_t)(r->header.n_bytes - at) : CHUNK;
        if ((st = read_exact(r->job_fd, r->job_path, chunk, n, at, err)) != FL_OK) goto done;
        XXH3_128bits_update(sum, chunk, n);
        at += n;
    }
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(sum));
    if (memcmp(hash.digest, r->header.hash, ROWS_HASH_BYTES) != 0)
        st = fl_fail(err, FL_CORRUPT, "rows: %s was changed after the job was submitted", r->job_path);
done:
    free(chunk);
    XXH3_freeState(sum);
    return st;
}
