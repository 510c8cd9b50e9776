/* How fast a job file becomes a job's folder: ingest_bench FILE [DIR] [RUNS]. Each run is a process of its own, so that its peak memory is its own; DIR (default: beside FILE)
 * must have room for the copy. Prints MB/s of wall time (median of RUNS, default 3), CPU time, and the peak of resident memory, with 1 and with 2 parser threads; the
 * clock stops when the folder is synced. make_ingest_job.py writes the file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include "coordinator/ingest.h"
#include "proto/clock.h"

typedef struct { double wall_s, end_s, user_s, system_s; uint64_t rows, bad, bytes; long peak_kb; } run_numbers;

static double seconds(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

static fl_status count_fault(void *context, const ingest_fault *fault, fl_err *err)
{
    (void)err;
    *(uint64_t *)context += fault->text_bytes > 0;
    return FL_OK;
}

static void remove_file(const char *dir, const char *name)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    unlink(path);
}

static void run_once(const char *file, const char *dir, int n_threads, run_numbers *out)
{
    ingest *in = NULL;
    ingest_report report;
    fl_err err;
    struct rusage used;
    char line[256];
    uint64_t n_faults = 0;
    double start = fl_awake_s(), pushed;
    fl_status st = ingest_open(&in, &(ingest_options){ .name = file, .job_dir = dir, .n_threads = n_threads }, &err);
    if (st == FL_OK) st = ingest_read(in, file, &err);
    pushed = fl_awake_s();
    if (st == FL_OK) st = ingest_end(in, &report, &err);
    if (st == FL_OK) st = ingest_faults(in, count_fault, &n_faults, &err);
    if (st != FL_OK || n_faults != report.n_bad) {
        fprintf(stderr, "ingest_bench: %s\n", st != FL_OK ? err.text : "the faults are not as many as the bad rows");
        exit(1);
    }
    out->wall_s = fl_awake_s() - start;
    out->end_s = fl_awake_s() - pushed;
    getrusage(RUSAGE_SELF, &used);
    out->user_s = seconds(used.ru_utime);
    out->system_s = seconds(used.ru_stime);
    out->rows = report.n_rows;
    out->bad = report.n_bad;
    out->bytes = report.n_bytes;
    FILE *status = fopen("/proc/self/status", "r");
    while (status && fgets(line, sizeof line, status)) sscanf(line, "VmHWM: %ld kB", &out->peak_kb);
    if (status) fclose(status);
    ingest_close(in);
}

static run_numbers run_in_a_process(const char *file, const char *dir, int n_threads)
{
    run_numbers numbers = { 0 };
    int pipe_fds[2], status = 0;
    if (pipe(pipe_fds) != 0) exit(1);
    pid_t child = fork();
    if (child == 0) {
        run_once(file, dir, n_threads, &numbers);
        exit(write(pipe_fds[1], &numbers, sizeof numbers) != sizeof numbers);
    }
    close(pipe_fds[1]);
    if (child < 0 || read(pipe_fds[0], &numbers, sizeof numbers) != sizeof numbers || waitpid(child, &status, 0) != child || status != 0) exit(1);
    close(pipe_fds[0]);
    return numbers;
}

static int by_wall(const void *a, const void *b)
{
    double x = ((const run_numbers *)a)->wall_s, y = ((const run_numbers *)b)->wall_s;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    char dir[4096];
    run_numbers runs[99];
    int n_runs = argc > 3 ? atoi(argv[3]) : 3;
    if (argc < 2 || n_runs < 1 || n_runs > 99) {
        fprintf(stderr, "usage: ingest_bench FILE [DIR] [RUNS]\n");
        return 2;
    }
    if (access(argv[1], R_OK) != 0) {                    /* before there is a folder that would stay */
        perror(argv[1]);
        return 1;
    }
    if (argc > 2) snprintf(dir, sizeof dir, "%s/ingest_bench.XXXXXX", argv[2]);
    else snprintf(dir, sizeof dir, "%s.bench.XXXXXX", argv[1]);
    if (!mkdtemp(dir)) {
        perror(dir);
        return 1;
    }
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        for (int i = 0; i < n_runs; i++) {
            runs[i] = run_in_a_process(argv[1], dir, n_threads);
            remove_file(dir, ROWS_JOB_FILE);
            remove_file(dir, ROWS_INDEX_FILE);
        }
        qsort(runs, (size_t)n_runs, sizeof *runs, by_wall);
        const run_numbers *m = &runs[n_runs / 2];
        printf("%d thread%s: %llu rows (%llu bad), %.0f MB in %.2f s (%.2f to %.2f; the end %.2f): %.0f MB/s; CPU %.2f s user + %.2f s system, %.0f ns a row; peak %ld MB\n", n_threads, n_threads == 1 ? "" : "s",
               (unsigned long long)m->rows, (unsigned long long)m->bad, (double)m->bytes / 1e6, m->wall_s, runs[0].wall_s, runs[n_runs - 1].wall_s, m->end_s, (double)m->bytes / 1e6 / m->wall_s, m->user_s, m->system_s,
               1e9 * (m->user_s + m->system_s) / (double)m->rows, m->peak_kb / 1024);
        fflush(stdout);
    }
    rmdir(dir);
    return 0;
}
