/* ops_bench.c - how fast linear is, beside the machine's own limits measured in the same run.
 *   ops_bench [THREADS [TYPE]]         TOKENFLEET_KERNELS chooses the form
 * Prints for each shape and number of token rows the median and 99th percentile of repeated runs, the rate of multiply-adds, the rate at which weights are
 * read, and how many times cheaper a row is than alone. Weights are walked through a set larger than the caches, as a model's layers are. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "kernels/ops.h"
#include "kernels/quant.h"
#include "proto/clock.h"
#include "worker/bench_device.h"

static void *must(void *p)
{
    if (p) return p;
    fprintf(stderr, "ops_bench: no memory\n");
    exit(3);
}

#define SET_BYTES (192u << 20)
#define RUNS_MAX 400
#define ROWS_MAX 256

/* GB/s of reading and writing a set beyond the caches, one thread. */
static double copy_rate(char *to, const char *from)
{
    double best = 1e9;
    for (int i = 0; i < 5; i++) {
        double t = fl_awake_s();
        memcpy(to, from, SET_BYTES / 2);
        t = fl_awake_s() - t;
        if (t < best) best = t;
    }
    return SET_BYTES / best * 1e-9;
}

int main(int argc, char **argv)
{
    static const struct { int32_t n_out, n_in; } shapes[] = { { 512, 256 }, { 1024, 1024 }, { 3072, 1024 }, { 1024, 3072 }, { 4096, 4096 } };
    static const int32_t rows[] = { 1, 4, 16, 64, 256 };
    int32_t n_threads = argc > 1 ? atoi(argv[1]) : 1;
    ops *o = NULL;
    fl_err err;
    if (ops_cpu_open(&o, n_threads, &err) != FL_OK || o->quant_room(o, 4096, &err) != FL_OK) { fprintf(stderr, "ops_bench: %s\n", err.text); return 3; }
    char *set = must(malloc(SET_BYTES));
    for (size_t i = 0; i < SET_BYTES; i += 2) { uint16_t h = (uint16_t)(0x3c00 + (i * 2654435761u >> 8 & 0xff)); memcpy(set + i, &h, 2); }
    float *x = must(malloc(ROWS_MAX * 4096 * sizeof *x)), *y = must(malloc(ROWS_MAX * 4096 * sizeof *y));
    for (int32_t i = 0; i < ROWS_MAX * 4096; i++) x[i] = (float)(i % 97) * 0.01f;

    printf("%s, %d thread(s); copy %.1f GB/s (read + write, one thread)\n", o->name, n_threads, copy_rate(set, set + SET_BYTES / 2));
    printf("%-6s %-12s %5s %10s %10s %9s %9s %8s\n", "type", "out x in", "rows", "median us", "p99 us", "GFLOP/s", "GB/s", "a row");
    for (dtype type = 0; type < DTYPE_COUNT; type++)
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            if (argc > 2 && strcmp(argv[2], dtype_name(type)) != 0) continue;
            size_t bytes = (size_t)shapes[s].n_out * dtype_row_bytes(type, shapes[s].n_in), at = 0;
            double alone = 0.0;
            for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
                double times[RUNS_MAX], until = fl_awake_s() + 0.3;
                int32_t n = 0;
                while (n < RUNS_MAX && (n < 5 || fl_awake_s() < until)) {
                    if (at + bytes > SET_BYTES) at = 0;
                    weight w = { set + at, type, shapes[s].n_out, shapes[s].n_in };
                    at += bytes;
                    double begin = fl_awake_s();
                    o->linear(o, y, x, &w, NULL, rows[r]);
                    times[n++] = fl_awake_s() - begin;
                }
                double median = bench_percentile(times, n, 0.5), p99 = bench_percentile(times, n, 0.99);
                if (rows[r] == 1) alone = median;
                char shape[32];
                snprintf(shape, sizeof shape, "%dx%d", shapes[s].n_out, shapes[s].n_in);
                printf("%-6s %-12s %5d %10.1f %10.1f %9.1f %9.1f %7.1fx\n", dtype_name(type), shape, rows[r], median * 1e6, p99 * 1e6,
                       2.0 * shapes[s].n_out * shapes[s].n_in * rows[r] / median * 1e-9, (double)bytes / median * 1e-9, alone * rows[r] / median);
                fflush(stdout);
            }
        }
    free(y);
    free(x);
    free(set);
    o->close(o);
    return 0;
}
