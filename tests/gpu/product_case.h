/* product_case.h - what the tests and benches of products on the GPU share: values and comparisons on the device, times, the machine's own rates.
 * Errors   a failing call of CUDA ends the program. */
#ifndef TESTS_GPU_PRODUCT_CASE_H
#define TESTS_GPU_PRODUCT_CASE_H

#include "tests/gpu/gpu_case.h"

#include <algorithm>

static void cuda_must(cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

static dtype product_dtype(act_type t) { return t == ACT_F32 ? DTYPE_F32 : t == ACT_BF16 ? DTYPE_BF16 : DTYPE_F16; }

static void *device_take(ops *o, size_t n_bytes)
{
    void *p = NULL;
    fl_err err;
    must(o->take(o, &p, n_bytes, "a test", &err), err);
    return p;
}
static void *device_random(ops *o, dtype type, size_t n, uint64_t seed, float reach)
{
    void *p = device_take(o, n * (type == DTYPE_F32 ? 4 : 2));
    o->fill_random(o, p, type, n, seed, 0.0f, reach);
    return p;
}

/* ---- bits ---- */

static __global__ void differ_kernel(unsigned long long *seen, const uint32_t *a, const uint32_t *b, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) {
            atomicAdd(&seen[0], 1);
            atomicMin(&seen[1], (unsigned long long)i);
        }
}
static __global__ void differ_kernel_16(unsigned long long *seen, const uint16_t *a, const uint16_t *b, size_t n)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x)
        if (a[i] != b[i]) {
            atomicAdd(&seen[0], 1);
            atomicMin(&seen[1], (unsigned long long)i);
        }
}

typedef struct { unsigned long long n, first; } difference;

/* Elements that differ in their bits, and the first of them. */
static difference device_differ(ops *o, const void *a, const void *b, size_t n, size_t element_bytes)
{
    static unsigned long long *seen;
    if (!seen) seen = (unsigned long long *)device_take(o, 16);
    difference d = { 0, ~0ull };
    o->upload(o, seen, &d, sizeof d);
    if (n > 0 && element_bytes == 4) launch(cuda_of(o), "differ", differ_kernel, dim3(1024), dim3(256), 0, seen, (const uint32_t *)a, (const uint32_t *)b, n);
    if (n > 0 && element_bytes == 2) launch(cuda_of(o), "differ", differ_kernel_16, dim3(1024), dim3(256), 0, seen, (const uint16_t *)a, (const uint16_t *)b, n);
    o->download(o, &d, seen, sizeof d);
    fl_err err;
    must(o->finish(o, &err), err);
    return d;
}

/* ---- times ---- */

/* Median microseconds of one of `n` calls, which run one after the other as a graph; warmed up. Each call gets its number, to rotate its operands by. */
template <typename Call> static double median_us(ops *o, int n, Call call)
{
    cudaStream_t stream = cuda_of(o)->stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    cuda_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < n; i++) call(i);
    cuda_must(cudaStreamEndCapture(stream, &graph), "capture");
    cuda_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    cuda_must(cudaEventCreate(&begin), "event");
    cuda_must(cudaEventCreate(&end), "event");
    std::vector<float> ms;
    for (int i = 0; i < 6; i++) {
        float t = 0.0f;
        cuda_must(cudaEventRecord(begin, stream), "event");
        cuda_must(cudaGraphLaunch(exec, stream), "graph");
        cuda_must(cudaEventRecord(end, stream), "event");
        cuda_must(cudaEventSynchronize(end), "graph");
        cuda_must(cudaEventElapsedTime(&t, begin, end), "event");
        if (i > 0) ms.push_back(t);
    }
    std::sort(ms.begin(), ms.end());
    cuda_must(cudaGraphExecDestroy(exec), "graph");
    cuda_must(cudaGraphDestroy(graph), "graph");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return (double)ms[ms.size() / 2] * 1000.0 / n;
}

/* Bytes read and written a second by a copy of 512 MB on the device, in TB/s. */
static double copy_rate(ops *o)
{
    const size_t n_bytes = (size_t)512 << 20;
    void *a = device_random(o, DTYPE_F32, n_bytes / 4, 1, 1.0f), *b = device_take(o, n_bytes);
    const double us = median_us(o, 8, [&](int i) { o->copy(o, i % 2 ? a : b, i % 2 ? b : a, n_bytes); });
    o->give(o, a, n_bytes);
    o->give(o, b, n_bytes);
    return 2.0 * (double)n_bytes / us / 1e6;
}

#endif
