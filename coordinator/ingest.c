#include "coordinator/ingest.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include "coordinator/gunzip.h"
#include "coordinator/id_set.h"
#include "coordinator/spool.h"
#include "proto/job_row.h"

enum { READ_CHUNK = 1 << 20, INDEX_BLOCK = 2048 * ROWS_ENTRY_BYTES, UNKNOWN_MAX = 48, UNKNOWN_NAME = 65, MAGIC_BYTES = 6 };

typedef struct { char name[UNKNOWN_NAME]; uint64_t n_rows; } unknown_field;

struct ingest {
    char *name, *defaults, *job_dir;     /* owned; defaults may be NULL */
    ingest_visit visit; void *context;
    int job_fd, index_fd;
    bool is_cloned;                      /* job.jsonl is there already; its bytes are only read */

    uint8_t magic[MAGIC_BYTES]; size_t n_magic; bool is_known;      /* the first bytes, until what the input is can be told */
    gunzip *unpack;                      /* owned; NULL for plain input */

    XXH3_state_t *hash;                  /* owned; of the decompressed bytes */
    uint64_t n_bytes;                    /* decompressed, so far */
    char *line; size_t line_used, line_capacity;                    /* owned; the line that has not ended, without the bytes that are too many */
    uint64_t line_start, line_bytes;     /* where it began, and all its bytes */
    bool line_has_text;                  /* it is not blank, as far as it is here */

    uint8_t *index; size_t index_used;   /* owned [INDEX_BLOCK] */
    XXH3_state_t *index_sum;             /* owned; rebuilt at the end, when the header is known */
    id_set ids;
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

static fl_status flush_index(ingest *in, fl_err *err)
{
    fl_status st = write_all(in->index_fd, in->index, in->index_used, in->job_dir, ROWS_INDEX_FILE, err);
    in->index_used = 0;
    return st;
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

fl_status ingest_open(ingest **out, const char *name, const char *defaults, const char *job_dir, ingest_visit visit, void *context, fl_err *err)
{
    fl_status st = FL_OK;
    uint8_t empty[ROWS_HEADER_BYTES] = { 0 };            /* the header is written last, so a half index is never taken for a whole one */
    ingest *in = calloc(1, sizeof *in);
    if (!in) return fl_fail(err, FL_FULL, "ingest: no memory");
    in->job_fd = in->index_fd = -1;
    in->visit = visit;
    in->context = context;
    in->name = strdup(name);
    in->defaults = defaults ? strdup(defaults) : NULL;
    in->job_dir = strdup(job_dir);
    in->index = malloc(INDEX_BLOCK);
    in->hash = XXH3_createState();
    in->index_sum = XXH3_createState();
    if (!in->name || !in->job_dir || (defaults && !in->defaults) || !in->index || !in->hash || !in->index_sum) {
        st = fl_fail(err, FL_FULL, "ingest: no memory");
        goto done;
    }
    XXH3_128bits_reset(in->hash);
    in->job_fd = create_file(job_dir, ROWS_JOB_FILE);
    if (in->job_fd < 0) { st = fl_fail_errno(err, errno, "ingest: create %s/%s", job_dir, ROWS_JOB_FILE); goto done; }
    in->index_fd = create_file(job_dir, ROWS_INDEX_FILE);
    if (in->index_fd < 0) { st = fl_fail_errno(err, errno, "ingest: create %s/%s", job_dir, ROWS_INDEX_FILE); goto done; }
    if ((st = write_all(in->index_fd, empty, sizeof empty, job_dir, ROWS_INDEX_FILE, err)) != FL_OK) goto done;
    *out = in;
    in = NULL;
done:
    ingest_close(in);
    return st;
}

void ingest_close(ingest *in)
{
    if (!in) return;
    if (in->job_fd >= 0) close(in->job_fd);
    if (in->index_fd >= 0) close(in->index_fd);
    gunzip_close(in->unpack);
    XXH3_freeState(in->hash);
    XXH3_freeState(in->index_sum);
    id_set_fini(&in->ids);
    free(in->name);
    free(in->defaults);
    free(in->job_dir);
    free(in->line);
    free(in->index);
    free(in);
}

/* ---- one row ---- */

/* Count each of the comma-separated names once for this row. */
static void count_unknown(ingest *in, const char *names)
{
    while (names && *names) {
        size_t n = strcspn(names, ","), i = 0;
        while (i < in->n_unknown && (strncmp(in->unknown[i].name, names, n) != 0 || in->unknown[i].name[n] != '\0')) i++;
        if (i == in->n_unknown && i < UNKNOWN_MAX && n < UNKNOWN_NAME) {
            memcpy(in->unknown[i].name, names, n);
            in->n_unknown++;
        }
        if (i < in->n_unknown) in->unknown[i].n_rows++;
        names += n + (names[n] == ',');
    }
}

static uint32_t row_cost(const fl_row *row)
{
    uint64_t prompt = row->prompt_kind == ROW_PROMPT_IDS ? row->n_ids : row->text_bytes / 3;         /* about three bytes a token */
    uint64_t new_tokens = row->endpoint == ROW_CHAT && !(row->given & ROW_GIVEN_MAX_TOKENS) ? INGEST_CHAT_TOKENS : (uint64_t)row->max_tokens;
    uint64_t cost = prompt + new_tokens * (uint64_t)row->n;
    return cost > UINT32_MAX ? UINT32_MAX : cost ? (uint32_t)cost : 1;
}

static fl_status report_fault(ingest *in, const fl_row *row, const fl_row_fault *fault, fl_err *err)
{
    char made[32];
    ingest_fault f = { { in->report.n_rows }, fault->code, in->report.n_lines, in->line_start + fault->offset, row->custom_id, row->custom_id_bytes, fault->text };
    if (!f.custom_id) {
        f.custom_id_bytes = (size_t)snprintf(made, sizeof made, "row-%llu", (unsigned long long)in->report.n_lines);
        f.custom_id = made;
    }
    in->report.n_bad++;
    return in->visit(in->context, &f, err);
}

/* The id of a row that parsed, or that could at least be read. A second owner makes a good row bad. */
static fl_status claim_id(ingest *in, const fl_row *row, fl_row_fault *fault, fl_err *err)
{
    uint64_t first_line;
    if (!row->custom_id) return FL_OK;
    fl_status st = id_set_add(&in->ids, row->custom_id, row->custom_id_bytes, in->report.n_lines, &first_line, err);
    if (st != FL_OK || first_line == 0 || fault->code != ROW_OK) return st;
    *fault = (fl_row_fault){ .code = ROW_DUPLICATE_ID };
    snprintf(fault->text, sizeof fault->text, "line %llu has the same custom_id: make them differ", (unsigned long long)first_line);
    return FL_OK;
}

static fl_status take_row(ingest *in, const char *line, size_t kept, uint64_t n_bytes, fl_err *err)
{
    fl_row row = { 0 };
    fl_row_fault fault;
    if (in->report.n_rows == UINT32_MAX) return fl_fail(err, FL_UNSUPPORTED, "%s has more than %u rows: split it", in->name, UINT32_MAX);
    if (kept < n_bytes) {                                /* it was not worth keeping */
        fault = (fl_row_fault){ .code = ROW_LINE_TOO_LONG, .offset = FL_LINE_BYTES_MAX };
        snprintf(fault.text, sizeof fault.text, "the line has %llu bytes; at most %u are read", (unsigned long long)n_bytes, FL_LINE_BYTES_MAX);
    } else {
        fl_row_parse(&row, line, kept, in->report.n_lines, in->defaults, &fault);
        if (kept > 1 && line[kept - 1] == '\r') n_bytes--;
    }
    fl_status st = claim_id(in, &row, &fault, err);
    if (st != FL_OK) goto done;
    count_unknown(in, row.unknown_fields);
    rows_entry entry = { in->line_start, n_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)n_bytes, 0, in->report.n_lines, 1 };
    if (fault.code == ROW_OK) {
        entry.n_samples = (uint32_t)row.n;
        entry.cost = row_cost(&row);
        in->report.n_samples += entry.n_samples;
        in->report.cost += entry.cost;
    } else if ((st = report_fault(in, &row, &fault, err)) != FL_OK) {
        goto done;
    }
    if (in->index_used == INDEX_BLOCK && (st = flush_index(in, err)) != FL_OK) goto done;
    rows_entry_encode(in->index + in->index_used, &entry);
    in->index_used += ROWS_ENTRY_BYTES;
    in->report.n_rows++;
done:
    fl_row_free(&row);
    return st;
}

/* ---- lines ---- */

static fl_status end_line(ingest *in, const char *line, size_t kept, uint64_t n_bytes, fl_err *err)
{
    in->report.n_lines++;
    bool blank = kept < n_bytes ? !in->line_has_text : fl_line_is_blank(line, kept);
    fl_status st = blank ? FL_OK : take_row(in, line, kept, n_bytes, err);
    in->line_start += n_bytes + 1;
    in->line_used = 0;
    in->line_bytes = 0;
    in->line_has_text = false;
    return st;
}

/* Keep a piece of a line whose end is not here yet. Beyond what a row may have (and its 0x0D) only the count goes on. */
static fl_status keep_piece(ingest *in, const char *data, size_t n_bytes, fl_err *err)
{
    size_t room = (size_t)FL_LINE_BYTES_MAX + 1 - in->line_used, n = n_bytes < room ? n_bytes : room;
    if (in->line_used + n > in->line_capacity) {
        size_t capacity = in->line_capacity ? in->line_capacity : 4096;
        while (capacity < in->line_used + n) capacity *= 2;
        char *line = realloc(in->line, capacity);
        if (!line) return fl_fail(err, FL_FULL, "ingest: no memory for a line of %zu bytes", in->line_used + n);
        in->line = line;
        in->line_capacity = capacity;
    }
    if (n) memcpy(in->line + in->line_used, data, n);
    in->line_used += n;
    in->line_bytes += n_bytes;
    if (!in->line_has_text) in->line_has_text = !fl_line_is_blank(data, n_bytes);
    return FL_OK;
}

/* Decompressed bytes, in order. */
static fl_status take_plain(void *context, const void *data, size_t n_bytes, fl_err *err)
{
    ingest *in = context;
    const char *p = data, *end = p + n_bytes;
    fl_status st = in->is_cloned ? FL_OK : write_all(in->job_fd, data, n_bytes, in->job_dir, ROWS_JOB_FILE, err);
    XXH3_128bits_update(in->hash, data, n_bytes);
    in->n_bytes += n_bytes;
    while (st == FL_OK && p < end) {
        const char *feed = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((feed ? feed : end) - p);
        if (feed && in->line_bytes == 0 && in->report.n_lines > 0) {                 /* the usual line: all of it is here */
            st = end_line(in, p, n, n, err);
        } else if ((st = keep_piece(in, p, n, err)) == FL_OK && (feed || in->report.n_lines == 0)) {
            static const char bom[] = "\xEF\xBB\xBF";
            if (in->report.n_lines == 0 && in->line_start == 0 && in->line_used >= 3 && memcmp(in->line, bom, 3) == 0) {
                memmove(in->line, in->line + 3, in->line_used - 3);
                in->line_used -= 3;
                in->line_bytes -= 3;
                in->line_start = 3;
            }
            if (feed) st = end_line(in, in->line, in->line_used, in->line_bytes, err);
        }
        p += n + (feed != NULL);
    }
    return st;
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

/* The checksum covers the header's fields, so it is taken over the finished file. */
static fl_status write_header(ingest *in, fl_err *err)
{
    rows_header header = { .n_rows = in->report.n_rows, .n_bytes = in->n_bytes };
    memcpy(header.hash, in->report.hash, ROWS_HASH_BYTES);
    XXH3_64bits_reset_withSeed(in->index_sum, rows_header_seed(&header));
    for (uint64_t at = ROWS_HEADER_BYTES, end = at + header.n_rows * ROWS_ENTRY_BYTES; at < end;) {
        size_t want = end - at < INDEX_BLOCK ? (size_t)(end - at) : INDEX_BLOCK;
        ssize_t n = pread(in->index_fd, in->index, want, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fl_fail_errno(err, n < 0 ? errno : EIO, "ingest: read %s/%s back", in->job_dir, ROWS_INDEX_FILE);
        XXH3_64bits_update(in->index_sum, in->index, (size_t)n);
        at += (uint64_t)n;
    }
    header.checksum = XXH3_64bits_digest(in->index_sum);
    uint8_t bytes[ROWS_HEADER_BYTES];
    rows_header_encode(bytes, &header);
    if (lseek(in->index_fd, 0, SEEK_SET) != 0) return fl_fail_errno(err, errno, "ingest: seek in %s/%s", in->job_dir, ROWS_INDEX_FILE);
    return write_all(in->index_fd, bytes, sizeof bytes, in->job_dir, ROWS_INDEX_FILE, err);
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

fl_status ingest_end(ingest *in, ingest_report *report, fl_err *err)
{
    fl_status st = in->is_known ? FL_OK : know_input(in, err);
    if (st == FL_OK && in->unpack) st = gunzip_end(in->unpack, err);
    if (st == FL_OK && in->line_bytes > 0) st = end_line(in, in->line, in->line_used, in->line_bytes, err);     /* a last line without its feed */
    if (st == FL_OK && in->report.n_rows == 0)
        st = fl_fail(err, FL_INVALID, in->n_bytes ? "%s is empty: all its lines are blank" : "%s is empty: a job has one JSON object a line", in->name);
    if (st == FL_OK) st = flush_index(in, err);
    if (st != FL_OK) return st;
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits_digest(in->hash));
    memcpy(in->report.hash, hash.digest, ROWS_HASH_BYTES);
    in->report.n_bytes = in->n_bytes;
    if ((st = write_header(in, err)) != FL_OK) return st;
    if (fsync(in->job_fd) != 0) return fl_fail_errno(err, errno, "ingest: sync %s/%s", in->job_dir, ROWS_JOB_FILE);
    if (fsync(in->index_fd) != 0) return fl_fail_errno(err, errno, "ingest: sync %s/%s", in->job_dir, ROWS_INDEX_FILE);
    if ((st = spool_sync_dir(in->job_dir, err)) != FL_OK) return st;
    write_unknown(in);
    *report = in->report;
    return FL_OK;
}

/* ---- files and standard input ---- */

/* Share the file's blocks with the spool where the file system can. Then the copy is what is read, so the job cannot change under us. */
static void clone_plain(ingest *in, int fd, const struct stat *info)
{
    uint8_t head[2];
    if (!S_ISREG(info->st_mode) || pread(fd, head, 2, 0) != 2 || (head[0] == 0x1F && head[1] == 0x8B)) return;
    in->is_cloned = ioctl(in->job_fd, FICLONE, fd) == 0;
}

fl_status ingest_file(const char *path, const char *defaults, const char *job_dir, ingest_visit visit, void *context, ingest_report *report, fl_err *err)
{
    fl_status st = FL_OK;
    struct stat info;
    bool is_stdin = strcmp(path, "-") == 0;
    const char *name = is_stdin ? "standard input" : path;
    ingest *in = NULL;
    char *chunk = malloc(READ_CHUNK);
    int fd = is_stdin ? dup(STDIN_FILENO) : open(path, O_RDONLY | O_CLOEXEC);
    if (!chunk) { st = fl_fail(err, FL_FULL, "ingest: no memory"); goto done; }
    if (fd < 0 && errno == ENOENT) { st = fl_fail(err, FL_NOT_FOUND, "%s does not exist: give a JSONL file of prompts", name); goto done; }
    if (fd < 0 || fstat(fd, &info) != 0) { st = fl_fail_errno(err, errno, "cannot read %s", name); goto done; }
    if (S_ISDIR(info.st_mode)) { st = fl_fail(err, FL_INVALID, "%s is a directory: give a JSONL file of prompts", name); goto done; }
    if ((st = ingest_open(&in, name, defaults, job_dir, visit, context, err)) != FL_OK) goto done;
    if (!is_stdin) clone_plain(in, fd, &info);
    for (;;) {
        ssize_t n = read(in->is_cloned ? in->job_fd : fd, chunk, READ_CHUNK);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) { st = fl_fail_errno(err, errno, "cannot read %s", name); goto done; }
        if (n == 0) break;
        if ((st = ingest_push(in, chunk, (size_t)n, err)) != FL_OK) goto done;
    }
    st = ingest_end(in, report, err);
done:
    ingest_close(in);
    if (fd >= 0) close(fd);
    free(chunk);
    return st;
}
