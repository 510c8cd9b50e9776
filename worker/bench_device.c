#include "worker/bench_device.h"

#include <stdlib.h>
#include <string.h>
#include "proto/clock.h"
#include "worker/gpu_module.h"
#include "worker/worker_options.h"

#define COPY_BYTES (1u << 30)
#define PRODUCT_DIM 8192
#define HOST_COPY_BYTES (64u << 20)
#define HOST_PRODUCT_DIM 512
#define TRIES 4                          /* the first is for warming up */
#define COPIES 8
#define PRODUCTS 4

static int compare_values(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_percentile(double *values, int32_t n, double share)
{
    FL_ASSERT(n >= 1);
    qsort(values, (size_t)n, sizeof *values, compare_values);
    const int32_t at = (int32_t)(share * n);
    return values[at < n ? at : n - 1];
}

fl_status bench_device_open(ops **out, const bench_options *o, fl_err *err)
{
    const int32_t gpu = worker_device_gpu(o->device);
    fl_err why = { 0 };
    if (gpu < 0) return ops_cpu_open(out, (int32_t)o->n_threads, err);
    const fl_status st = gpu_module_ops(out, gpu, strcmp(o->precision, "f32") == 0 ? CUDA_F32 : CUDA_16_BIT, &why);
    if (st == FL_OK) return st;
    return fl_fail(err, st == FL_NOT_FOUND ? FL_UNSUPPORTED : st, "%s; use --device cpu", why.text);      /* what is missing is the machine's, not a path of the user's */
}

static fl_status measure_copy(bench_rates *rates, ops *o, void *memory[2], size_t bytes, fl_err *err)
{
    fl_status st = FL_OK;
    for (int i = 0; st == FL_OK && i < TRIES; i++) {
        const double begun = fl_awake_s();
        for (int k = 0; k < COPIES; k++) o->copy(o, memory[i % 2], memory[1 - i % 2], bytes);
        st = o->finish(o, err);
        const double rate = COPIES * 2 * (double)bytes / (fl_awake_s() - begun);
        if (i > 0 && rate > rates->copy_bytes_per_s) rates->copy_bytes_per_s = rate;
    }
    return st;
}

/* y = x w^T, all of dim by dim: x and w lie in memory[0], y in memory[1]. */
static fl_status measure_product(bench_rates *rates, ops *o, void *memory[2], size_t dim, fl_err *err)
{
    act *x = memory[0], *y = memory[1];
    const weight none = { 0 }, w = { act_at(o, x, dim * dim), o->act_type, (int32_t)dim, (int32_t)dim };
    const ops_product product = { .w = w, .n_rows = (int32_t)dim };
    char note[OPS_NOTE_BYTES];
    o->fill_random(o, memory[0], o->act_type, 2 * dim * dim, 1, 0.0f, 1.0f);
    fl_status st = o->prepare(o, &product, 1, note, err);
    for (int i = 0; st == FL_OK && i < TRIES; i++) {
        const double begun = fl_awake_s();
        for (int k = 0; k < PRODUCTS; k++) o->linear(o, y, x, &w, &none, (int32_t)dim);
        st = o->finish(o, err);
        const double rate = PRODUCTS * 2 * (double)dim * (double)dim * (double)dim / (fl_awake_s() - begun);
        if (i > 0 && rate > rates->product_flop_per_s) rates->product_flop_per_s = rate;
    }
    return st;
}

fl_status bench_device_measure(bench_rates *rates, const bench_options *options, fl_err *err)
{
    ops *o = NULL;
    void *memory[2] = { 0 };
    fl_status st = bench_device_open(&o, options, err);
    if (st != FL_OK) return st;
    *rates = (bench_rates){ .kernels = o->name };
    const size_t bytes = o->is_host ? HOST_COPY_BYTES : COPY_BYTES, dim = o->is_host ? HOST_PRODUCT_DIM : PRODUCT_DIM;
    FL_ASSERT(2 * dim * dim * o->act_bytes <= bytes);
    for (int i = 0; st == FL_OK && i < 2; i++) st = o->take(o, &memory[i], bytes, "the measured copy", err);
    if (st == FL_OK) st = measure_copy(rates, o, memory, bytes, err);
    if (st == FL_OK) st = measure_product(rates, o, memory, dim, err);
    for (int i = 0; i < 2; i++) o->give(o, memory[i], bytes);
    o->close(o);
    return st;
}
