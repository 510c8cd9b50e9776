/* Any bytes as rows.idx (and some as job.jsonl): refused, or every entry and line can be read and lies where rows.h says. The checksum is set right for
 * half of the inputs, else nothing behind it would be reached. */
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "coordinator/rows.h"
#include "proto/bytes.h"
#include "proto/job_row.h"
#include "proto/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static char dir[64];

static void remove_dir(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, ROWS_JOB_FILE);
    unlink(path);
    snprintf(path, sizeof path, "%s/%s", dir, ROWS_INDEX_FILE);
    unlink(path);
    rmdir(dir);
}

static void write_file(const char *name, const uint8_t *data, size_t n_bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FL_ASSERT(fd >= 0 && write(fd, data, n_bytes) == (ssize_t)n_bytes);
    close(fd);
}

static void set_checksum(uint8_t *index, size_t n_bytes)
{
    rows_header header = { .n_rows = (n_bytes - ROWS_HEADER_BYTES) / ROWS_ENTRY_BYTES, .n_bytes = fl_get_u64(index + 16) };
    memcpy(header.hash, index + 32, ROWS_HASH_BYTES);
    XXH3_state_t *sum = XXH3_createState();
    XXH3_64bits_reset_withSeed(sum, rows_header_seed(&header));
    XXH3_64bits_update(sum, index + ROWS_HEADER_BYTES, n_bytes - ROWS_HEADER_BYTES);
    header.checksum = XXH3_64bits_digest(sum);
    XXH3_freeState(sum);
    rows_header_encode(index, &header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (!dir[0]) {
        strcpy(dir, "/dev/shm/fuzz_rows_idx.XXXXXX");    /* in memory where there is such a folder: a hundred times faster */
        if (!mkdtemp(dir)) FL_ASSERT(mkdtemp(strcpy(dir, "/tmp/fuzz_rows_idx.XXXXXX")));
        FL_ASSERT(atexit(remove_dir) == 0);
    }
    if (n_bytes < 2) return 0;
    size_t n_job = data[1] < n_bytes - 2 ? data[1] : n_bytes - 2, n_index = n_bytes - 2 - n_job;
    uint8_t *index = malloc(n_index + 1);
    FL_ASSERT(index);
    memcpy(index, data + 2 + n_job, n_index);
    if ((data[0] & 1) && n_index >= ROWS_HEADER_BYTES) {
        fl_put_u64(index + 16, n_job);
        set_checksum(index, n_index);
    }
    write_file(ROWS_JOB_FILE, data + 2, n_job);
    write_file(ROWS_INDEX_FILE, index, n_index);
    free(index);

    rows *r;
    rows_entry entry;
    fl_err err = { FL_OK, "" };
    fl_status st = rows_open(&r, dir, &err);
    if (st != FL_OK) {
        FL_ASSERT(st == FL_CORRUPT && err.text[0]);
        return 0;
    }
    uint64_t end = 0, line_before = 0;
    for (uint64_t i = 0; i < rows_describe(r)->n_rows; i++) {
        const char *line;
        FL_ASSERT(rows_get(r, (row_index){ i }, &entry, &err) == FL_OK);
        FL_ASSERT(entry.offset >= end && entry.offset + entry.n_bytes <= n_job && entry.line > line_before && entry.n_samples <= FL_SAMPLES_MAX);
        FL_ASSERT(rows_line(r, &entry, &line, &err) == FL_OK && memcmp(line, data + 2 + entry.offset, entry.n_bytes) == 0);
        end = entry.offset + entry.n_bytes;
        line_before = entry.line;
    }
    FL_ASSERT(rows_get(r, (row_index){ rows_describe(r)->n_rows }, &entry, &err) == FL_NOT_FOUND);
    rows_close(r);
    return 0;
}
