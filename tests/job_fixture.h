/* job_fixture.h - what tests of the coordinator's shell share: a temporary folder, a small job in it, results that look like a worker's. */
#ifndef TESTS_JOB_FIXTURE_H
#define TESTS_JOB_FIXTURE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "coordinator/job_store.h"
#include "coordinator/output_file.h"
#include "proto/detok.h"
#include "proto/result.h"
#include "tests/temp_folder.h"

#define FIXTURE_VOCAB 26
#define FIXTURE_FINGERPRINT "0123456789abcdef0123456789abcdef"
#define FIXTURE_NUMERICS "cpu/1/test/test"

static inline void fixture_remove(const char *dir)
{
    temp_folder_remove(dir);
}

/* n rows, every fourth with two samples, and a bad line behind each tenth. Returns the number of rows. */
static inline int fixture_write_job(const char *path, int n)
{
    int rows_written = 0;
    FILE *file = fopen(path, "we");
    if (!file) abort();
    for (int i = 0; i < n; i++, rows_written++) {
        fprintf(file, "{\"custom_id\": \"r%d\", \"prompt\": [1, 2, %d], \"max_tokens\": 3, \"n\": %d}\n", i, i % FIXTURE_VOCAB, i % 4 == 3 ? 2 : 1);
        if (i % 10 == 9) {
            fprintf(file, "{\"custom_id\": \"bad%d\", \"prompt\": 7}\n", i);
            rows_written++;
        }
    }
    fclose(file);
    return rows_written;
}

/* Ids a .. z. The caller frees the bytes. */
static inline uint8_t *fixture_detok(size_t *n_bytes)
{
    uint8_t letters[FIXTURE_VOCAB], *out = NULL;
    uint32_t offsets[FIXTURE_VOCAB + 1];
    bool special[FIXTURE_VOCAB] = { false };
    fl_detok *table = NULL;
    for (uint32_t i = 0; i <= FIXTURE_VOCAB; i++) offsets[i] = i;
    for (int i = 0; i < FIXTURE_VOCAB; i++) letters[i] = (uint8_t)('a' + i);
    if (fl_detok_make(&table, FIXTURE_VOCAB, letters, offsets, special, NULL) != FL_OK || fl_detok_encode(table, &out, n_bytes, NULL) != FL_OK) abort();
    fl_detok_free(table);
    return out;
}

/* What the first worker of a job leaves in its ledger: the id table and what the job is pinned to. Not committed. */
static inline fl_status fixture_pin(ledger *l, fl_err *err)
{
    size_t n_bytes = 0;
    uint8_t *table = fixture_detok(&n_bytes);
    const ledger_record detok = { .kind = LEDGER_DETOK, .fingerprint = { FIXTURE_FINGERPRINT, 32 }, .body = { table, n_bytes } };
    const ledger_record pin = { .kind = LEDGER_PIN, .n_vocab = FIXTURE_VOCAB, .context = 100, .fingerprint = { FIXTURE_FINGERPRINT, 32 },
                                .numerics = { FIXTURE_NUMERICS, strlen(FIXTURE_NUMERICS) }, .model = { "tiny", 4 } };
    fl_status st = ledger_append(l, &detok, err);
    if (st == FL_OK) st = ledger_append(l, &pin, err);
    free(table);
    return st;
}

/* The body of a row's sample: a function of both alone, as a real one. The caller frees it. */
static inline uint8_t *fixture_result(uint64_t row, uint32_t sample, size_t *n_bytes)
{
    int32_t ids[3] = { (int32_t)(row % FIXTURE_VOCAB), (int32_t)(row / FIXTURE_VOCAB % FIXTURE_VOCAB), (int32_t)(sample % FIXTURE_VOCAB) };
    fl_result result = { .finish = FL_FINISH_LENGTH, .stop_kind = FL_STOP_NONE, .stop_index = -1, .n_prompt = 3, .ids = ids, .n_ids = 3, .text_bytes = -1,
                         .n_top = -1, .n_prompt_top = -1 };
    uint8_t *out = NULL;
    if (fl_result_encode(&result, &out, n_bytes, NULL) != FL_OK) abort();
    return out;
}

/* All bytes of a file, NUL-terminated; the caller frees. NULL when it is not there. */
static inline char *fixture_read(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "re");
    if (!file) return NULL;
    char *text = malloc(1 << 22);
    if (!text) abort();
    size_t n = fread(text, 1, (1 << 22) - 1, file);
    text[n] = '\0';
    if (n_bytes) *n_bytes = n;
    fclose(file);
    return text;
}

static inline int fixture_count_lines(const char *text)
{
    int n = 0;
    for (; *text; text++) n += *text == '\n';
    return n;
}

static inline fl_status fixture_add_batch(void *context, const output_batch *batch, fl_err *err)
{
    return output_files_add(context, batch, err);
}

/* OUT and ERR of a job that is closed, as the daemon writes them (daemon_outputs.c), at once. FL_AGAIN: it is not closed yet. */
static inline fl_status fixture_write_outputs(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, int n_threads, job_counts *counts, fl_err *err)
{
    output_rows *lines = NULL;
    output_files *files = NULL;
    const char *slash = strrchr(job_dir, '/');
    fl_status st = output_rows_open(&lines, job_dir, ledger_dir, err);
    if (st == FL_OK) st = output_rows_read(lines, (ledger_place){ 0 }, err);
    if (st == FL_OK && !output_rows_is_closed(lines)) st = fl_fail(err, FL_AGAIN, "the job is not finished yet");
    if (st == FL_OK) st = output_files_open(&files, (output_place){ out, false }, (output_place){ errors, false }, slash ? slash + 1 : job_dir, err);
    if (st == FL_OK) st = output_rows_make(lines, n_threads, NULL, fixture_add_batch, files, err);
    if (st == FL_OK) st = output_files_name(files, err);
    if (st == FL_OK) *counts = *output_rows_counts(lines);
    output_files_close(files);
    output_rows_close(lines);
    return st;
}

#endif
