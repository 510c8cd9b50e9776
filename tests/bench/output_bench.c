/* output_bench.c - how fast OUT is made from a ledger, and in how much memory.
 *   output_bench [ROWS [TOKENS]]      1000000 rows of 200 tokens when nothing is given; 10000000 4 shows the memory of a large job
 * Makes a job in $TMPDIR (chat rows; results in the order in which four workers with 64 rows each would end them; a vocabulary of 50,000 tokens of 4 bytes in
 * the mean), then writes OUT and ERR with one and with two threads, each in a process of its own, and prints MB/s of OUT, CPU time and the peak of resident memory. */
#include <inttypes.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/output_file.h"
#include "proto/clock.h"
#include "tests/job_fixture.h"

#define N_VOCAB 50000
#define WINDOW 256                       /* rows that run at the same time */
#define ROWS_A_COMMIT 4096

static void must(fl_status st, const fl_err *err)
{
    if (st == FL_OK) return;
    fprintf(stderr, "output_bench: %s\n", err->text);
    exit(3);
}

static uint64_t state = 1;

static uint64_t draw(void)               /* splitmix64 */
{
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void write_job(const char *path, uint64_t n_rows, int tokens)
{
    FILE *file = fopen(path, "we");
    if (!file) { perror(path); exit(3); }
    for (uint64_t i = 0; i < n_rows; i++) {
        fprintf(file, "{\"custom_id\": \"request-%08" PRIu64 "\", \"messages\": [{\"role\": \"user\", \"content\": \"Write a short story about number %" PRIu64
                " and its friend %" PRIu64 ".\\nUse simple words.\"}], \"max_tokens\": %d, \"temperature\": 0.7}\n", i, i, draw() % 100000, tokens);
    }
    if (fclose(file) != 0) { perror(path); exit(3); }
}

/* Mostly a space and letters; some line feeds, quotes, and characters of two and three bytes, as a byte-level vocabulary has them. */
static uint8_t *make_table(size_t *n_bytes)
{
    static const char *const rare[] = { "\n", "\n\n", "\"", "\\", ",", ".", "\xC3\xA9", "\xE2\x80\x94", "\xE4\xBD\xA0", "\t" };
    uint8_t *bytes = malloc(N_VOCAB * 8), *out = NULL;
    uint32_t *offsets = calloc(N_VOCAB + 1, sizeof *offsets), at = 0;
    bool *special = calloc(N_VOCAB, sizeof *special);
    fl_detok *table = NULL;
    fl_err err;
    if (!bytes || !offsets || !special) exit(3);
    for (uint32_t i = 0; i < N_VOCAB; i++) {
        if (i % 20 == 0) {
            const char *text = rare[i / 20 % 10];
            memcpy(bytes + at, text, strlen(text));
            at += (uint32_t)strlen(text);
        } else {
            uint32_t n = 2 + (uint32_t)(draw() % 5);
            for (uint32_t k = 0; k < n; k++) bytes[at++] = k == 0 && draw() % 4 ? ' ' : (uint8_t)('a' + draw() % 26);
        }
        offsets[i + 1] = at;
    }
    must(fl_detok_make(&table, N_VOCAB, bytes, offsets, special, &err), &err);
    must(fl_detok_encode(table, &out, n_bytes, &err), &err);
    fl_detok_free(table);
    free(bytes);
    free(offsets);
    free(special);
    return out;
}

static void append(ledger *l, const ledger_record *record)
{
    fl_err err;
    must(ledger_append(l, record, &err), &err);
}

static void append_result(ledger *l, uint64_t row, int32_t *ids, int tokens)
{
    uint8_t *body = NULL;
    size_t n_bytes = 0;
    fl_err err;
    for (int i = 0; i < tokens; i++) {
        double u = (double)(draw() >> 11) * 0x1p-53;     /* a few ids are most of a text */
        ids[i] = (int32_t)(u * u * u * N_VOCAB);
    }
    fl_result r = { .finish = FL_FINISH_LENGTH, .stop_kind = FL_STOP_NONE, .stop_index = -1, .n_prompt = 30, .ids = ids, .n_ids = (size_t)tokens, .text_bytes = -1,
                    .n_top = -1, .n_prompt_top = -1 };
    must(fl_result_encode(&r, &body, &n_bytes, &err), &err);
    append(l, &(ledger_record){ .kind = LEDGER_RESULT, .row = { row }, .lease = { 1 }, .n_pieces = 1, .n_tokens = (uint32_t)tokens, .body = { body, n_bytes } });
    free(body);
}

static void fill_ledger(ledger *l, uint64_t n_rows, int tokens)
{
    size_t n_bytes = 0;
    fl_err err;
    uint8_t *table = make_table(&n_bytes);
    int32_t *ids = calloc((size_t)tokens + 1, sizeof *ids);
    if (!ids) exit(3);
    append(l, &(ledger_record){ .kind = LEDGER_PIN, .n_vocab = N_VOCAB, .context = 4096, .fingerprint = { FIXTURE_FINGERPRINT, 32 },
                                .numerics = { FIXTURE_NUMERICS, strlen(FIXTURE_NUMERICS) }, .model = { "bench", 5 } });
    append(l, &(ledger_record){ .kind = LEDGER_DETOK, .fingerprint = { FIXTURE_FINGERPRINT, 32 }, .body = { table, n_bytes } });
    for (uint64_t first = 0; first < n_rows; first += WINDOW) {
        uint64_t n = n_rows - first < WINDOW ? n_rows - first : WINDOW, order[WINDOW];
        for (uint64_t i = 0; i < n; i++) {
            uint64_t other = draw() % (i + 1);
            order[i] = order[other];
            order[other] = i;
        }
        for (uint64_t i = 0; i < n; i++) append_result(l, first + order[i], ids, tokens);
        if (first / WINDOW % (ROWS_A_COMMIT / WINDOW) == 0) must(ledger_commit(l, &err), &err);
    }
    append(l, &(ledger_record){ .kind = LEDGER_CLOSE, .cause = LEDGER_COMPLETED });
    must(ledger_commit(l, &err), &err);
    free(table);
    free(ids);
}

static uint64_t peak_kb(void)
{
    char line[200];
    unsigned long long kb = 0;
    FILE *file = fopen("/proc/self/status", "re");
    while (file && fgets(line, sizeof line, file)) {
        if (sscanf(line, "VmHWM: %llu", &kb) == 1) break;
    }
    if (file) fclose(file);
    return kb;
}

static void measure(const char *job_dir, const char *folder, int n_threads)
{
    char out[4200], errors[4200], ledger_dir[4300];
    struct rusage used;
    struct stat info;
    job_counts counts = { 0 };
    fl_err err;
    snprintf(out, sizeof out, "%s/out.jsonl", folder);
    snprintf(errors, sizeof errors, "%s/errors.jsonl", folder);
    snprintf(ledger_dir, sizeof ledger_dir, "%s/ledger", job_dir);
    double began = fl_awake_s();
    must(fixture_write_outputs(job_dir, ledger_dir, out, errors, n_threads, &counts, &err), &err);
    double wall = fl_awake_s() - began;
    getrusage(RUSAGE_SELF, &used);
    double cpu = (double)used.ru_utime.tv_sec + (double)used.ru_stime.tv_sec + (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    if (stat(out, &info) != 0) { perror(out); exit(3); }
    printf("%d thread(s): %.0f MB in %.2f s: %.0f MB/s; CPU %.2f s: %.0f MB a CPU second, %.2f us a row; peak %" PRIu64 " MB resident\n", n_threads, (double)info.st_size * 1e-6, wall,
           (double)info.st_size * 1e-6 / wall, cpu, (double)info.st_size * 1e-6 / cpu, cpu * 1e6 / (double)counts.rows, peak_kb() / 1024);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    uint64_t n_rows = argc > 1 ? strtoull(argv[1], NULL, 10) : 1000000;
    int tokens = argc > 2 ? atoi(argv[2]) : 200;
    const char *tmp = getenv("TMPDIR");
    char folder[4000], job_path[4200], spool_path_of[4100];
    fl_err err;
    spool *s = NULL;
    stored_job *job = NULL;
    ingest_report report;
    job_settings settings = { .name = "bench", .seed = 7 };
    snprintf(folder, sizeof folder, "%s/output-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder)) { perror(folder); return 3; }
    snprintf(job_path, sizeof job_path, "%s/job.jsonl", folder);
    snprintf(spool_path_of, sizeof spool_path_of, "%s/spool", folder);
    double began = fl_awake_s();
    if (fork() == 0) {                                   /* in a process of its own: its memory must not count */
        write_job(job_path, n_rows, tokens);
        must(spool_open(&s, spool_path_of, SPOOL_CREATE, &err), &err);
        must(job_store_create(&job, s, (job_id){ 1 }, &settings, &(job_draft_options){ .path = job_path }, &report, &err), &err);
        fill_ledger(job->ledger, n_rows, tokens);
        job_store_close(job);
        spool_close(s);
        _exit(0);
    }
    int ended = 0;
    if (wait(&ended) < 0 || ended != 0) return 3;
    unlink(job_path);
    printf("%" PRIu64 " rows of %d tokens (made in %.0f s)\n", n_rows, tokens, fl_awake_s() - began);
    fflush(stdout);
    snprintf(job_path, sizeof job_path, "%s/jobs/job-0000000000000001", spool_path_of);
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        if (fork() == 0) {
            measure(job_path, folder, n_threads);
            _exit(0);
        }
        if (wait(&ended) < 0 || ended != 0) return 3;
    }
    fixture_remove(folder);
    return 0;
}
