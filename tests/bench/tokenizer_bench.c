/* tokenizer_bench.c - how fast a tokenizer.json encodes a text.
 *   tokenizer_bench TOKENIZER.json TEXT...      (ops/get-tokenizers fetches some)
 * Prints for each text the median rate of 5 runs in CPU time, and what opening the file took. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/tokenizer.h"
#include "proto/clock.h"
#include "worker/bench_device.h"

enum { RUNS = 5, TEXT_BYTES_MAX = 64 << 20 };

static double cpu_s(void) { return (double)fl_cpu_us(0) * 1e-6; }

static int bench_text(const tokenizer *t, const char *path, char *text)
{
    double took[RUNS];
    size_t n_ids = 0;
    fl_err err = { 0 };
    FILE *f = fopen(path, "rb");
    if (!f) { fprintf(stderr, "tokenizer_bench: cannot open %s\n", path); return 3; }
    size_t n = fread(text, 1, TEXT_BYTES_MAX, f);
    fclose(f);
    for (int i = 0; i < RUNS; i++) {
        int32_t *ids = NULL;
        double begin = cpu_s();
        if (tokenizer_encode(t, text, n, false, &ids, &n_ids, &err) != FL_OK) { fprintf(stderr, "tokenizer_bench: %s\n", err.text); return 3; }
        took[i] = cpu_s() - begin;
        free(ids);
    }
    printf("%-40s %9zu bytes %9zu ids %7.1f MB/s\n", path, n, n_ids, (double)n / 1e6 / bench_percentile(took, RUNS, 0.5));
    return 0;
}

int main(int argc, char **argv)
{
    tokenizer *t = NULL;
    fl_err err = { 0 };
    char *text = malloc(TEXT_BYTES_MAX);
    int status = argc < 3 ? 2 : 0;
    if (status) fprintf(stderr, "usage: tokenizer_bench TOKENIZER.json TEXT...\n");
    double begin = cpu_s();
    if (!status && (!text || tokenizer_open(&t, argv[1], &err) != FL_OK)) {
        fprintf(stderr, "tokenizer_bench: %s\n", text ? err.text : "no memory");
        status = 3;
    }
    if (!status) printf("opened %s in %.2f s\n", argv[1], cpu_s() - begin);
    for (int i = 2; i < argc && !status; i++) status = bench_text(t, argv[i], text);
    tokenizer_close(t);
    free(text);
    return status;
}
