/* sampler_bench.c - choosing tokens three ways: the CPU's chain on host logits (one core), the GPU's on logits that come from the host, and on logits that lie on the GPU.
 * p50 and p99 of single calls until the ids are on the host, and the time of one of many queued calls. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include "engine/sampler.h"
#include "tests/gpu/gpu_open.h"

#define N_CALLS 200
#define N_HISTORY 200

typedef struct { const char *name; sampling p; } setting;
static const setting settings[] = {
    { "greedy", { .temperature = 0.0f, .top_p = 1.0f, .repetition_penalty = 1.0f } },
    { "temperature 0.8", { .temperature = 0.8f, .top_p = 1.0f, .repetition_penalty = 1.0f } },
    { "top_p 0.9", { .temperature = 0.8f, .top_p = 0.9f, .repetition_penalty = 1.0f } },
    { "top_k 50 top_p 0.95", { .temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1.0f } },
    { "+ repetition 1.2", { .temperature = 0.8f, .top_p = 0.95f, .top_k = 50, .repetition_penalty = 1.2f } },
};

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}
static int by_value(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void require(fl_status st, const fl_err *err)
{
    if (st == FL_OK) return;
    printf("failed: %s\n", err->text);
    exit(1);
}

/* Logits as a language model's are: most of them far below a few. */
static void fill(float *x, size_t n)
{
    uint64_t z = 12345;
    for (size_t i = 0; i < n; i++) {
        z = z * 6364136223846793005u + 1442695040888963407u;
        const float u = (float)((z >> 40) + 1) * 0x1p-24f, v = (float)((z >> 16 & 0xffffff) + 1) * 0x1p-24f;
        x[i] = 2.2f * sqrtf(-2.0f * logf(u)) * cosf(6.2831853f * v) + ((z >> 33) % 20000 == 0 ? 12.0f : 0.0f);
    }
}

int main(void)
{
    static const int32_t vocabularies[] = { 151936, 248320 }, batches[] = { 1, 256 };
    ops *o = gpu_open(CUDA_16_BIT);
    fl_err err = { 0 };
    printf("sampler, us           vocabulary batch |  CPU p50     p99 | host logits p50     p99 | GPU logits p50     p99   queued  TB/s of one read\n");
    for (int v = 0; v < 2; v++)
        for (int b = 0; b < 2; b++) {
            const int32_t n_vocab = vocabularies[v], n_rows = batches[b];
            const size_t n_all = (size_t)n_vocab * (size_t)n_rows, bytes = n_all * sizeof(float);
            void *host = NULL, *device = NULL, *counts = NULL, *ids = NULL;
            sampler *chain = NULL;
            require(o->take_host(o, &host, bytes, "logits", &err), &err);
            require(o->take(o, &device, bytes, "logits", &err), &err);
            require(o->take(o, &counts, bytes, "counts", &err), &err);
            require(o->take(o, &ids, 4096, "ids", &err), &err);
            require(o->sampler_reserve(o, n_rows, 1, 1, n_vocab, &err), &err);
            require(sampler_open(&chain, n_vocab, &err), &err);
            fill(host, n_all);
            o->upload(o, device, host, bytes);
            for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
                static ops_sampling rows[256];
                static int32_t got[256], history[N_HISTORY];
                double cpu[64], from_host[N_CALLS], from_device[N_CALLS];
                const sampling *p = &settings[s].p;
                const bool has_penalty = p->repetition_penalty != 1.0f;
                for (int32_t i = 0; i < N_HISTORY; i++) history[i] = i * 700;
                for (int32_t r = 0; r < n_rows; r++)
                    rows[r] = (ops_sampling){ p->temperature, p->top_p, p->min_p, p->repetition_penalty, 0.0f, 0.0f, sampler_uniform(7, 9, 0, (uint32_t)r), p->top_k, r, has_penalty ? r : -1, true, -1, 0, 0 };
                const int n_cpu = n_rows == 1 ? 60 : 2, n_host = n_rows == 1 ? N_CALLS : 20;
                for (int i = 0; i < n_cpu; i++) {
                    const double begin = now_us();
                    for (int32_t r = 0; r < n_rows; r++) {
                        const sampler_history h = { history, N_HISTORY, history, 0, NULL, 0, (uint32_t)(r + i) };
                        got[r] = sampler_next(chain, (const float *)host + (size_t)r * (size_t)n_vocab, p, &h);
                    }
                    cpu[i] = now_us() - begin;
                }
                for (int i = -5; i < n_host; i++) {
                    const double begin = now_us();
                    o->upload(o, device, host, bytes);
                    o->sample(o, ids, device, rows, n_rows, NULL, 0, counts, n_vocab);
                    o->download(o, got, ids, (size_t)n_rows * 4);
                    if (i >= 0) from_host[i] = now_us() - begin;
                }
                for (int i = -20; i < N_CALLS; i++) {
                    const double begin = now_us();
                    o->sample(o, ids, device, rows, n_rows, NULL, 0, counts, n_vocab);
                    o->download(o, got, ids, (size_t)n_rows * 4);
                    if (i >= 0) from_device[i] = now_us() - begin;
                }
                require(o->finish(o, &err), &err);
                const double begin = now_us();
                for (int i = 0; i < N_CALLS; i++) o->sample(o, ids, device, rows, n_rows, NULL, 0, counts, n_vocab);
                require(o->finish(o, &err), &err);
                const double queued = (now_us() - begin) / N_CALLS;
                qsort(cpu, (size_t)n_cpu, sizeof *cpu, by_value);
                qsort(from_host, (size_t)n_host, sizeof *from_host, by_value);
                qsort(from_device, N_CALLS, sizeof *from_device, by_value);
                printf("%-22s %9d %5d | %8.0f %8.0f | %10.1f %10.1f | %10.1f %10.1f %8.1f %6.2f\n", settings[s].name, n_vocab, n_rows, cpu[n_cpu / 2], cpu[n_cpu - 1], from_host[n_host / 2],
                       from_host[n_host * 99 / 100], from_device[N_CALLS / 2], from_device[N_CALLS * 99 / 100], queued, (double)bytes / queued * 1e-6);
            }
            sampler_close(chain);
            o->give_host(o, host, bytes);
            o->give(o, device, bytes);
            o->give(o, counts, bytes);
            o->give(o, ids, 4096);
        }
    o->close(o);
    return 0;
}
