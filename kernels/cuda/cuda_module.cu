#include "kernels/cuda/cuda_module.h"

#include <cuda_runtime.h>
#include <stdio.h>
#include "kernels/cuda/cuda_code.h"

/* What it was compiled for, as cuda_code.h says it. */
static __global__ void probe_kernel(int32_t *code)
{
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    *code = CUDA_CODE_90A;
#elif defined(__CUDA_ARCH__)
    *code = __CUDA_ARCH__;
#endif
}

extern "C" fl_status cuda_device_count(int32_t *out, fl_err *err)
{
    int n_devices = 0;
    const cudaError_t e = cudaGetDeviceCount(&n_devices);
    if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver)
        return fl_fail(err, FL_NOT_FOUND, "cuda: no GPU can be used here: %s", cudaGetErrorString(e));
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: cannot count the GPUs: %s", cudaGetErrorString(e));
    *out = n_devices;
    return FL_OK;
}

static fl_status check_index(int32_t index, fl_err *err)
{
    int32_t n_devices;
    const fl_status st = cuda_device_count(&n_devices, err);
    if (st != FL_OK || (index >= 0 && index < n_devices)) return st;
    return fl_fail(err, FL_NOT_FOUND, "cuda: there is no GPU %d; this machine has %d, from 0", index, n_devices);
}

/* Launch a kernel and see what it was compiled for. */
static cudaError_t run_probe(int32_t *code)
{
    int32_t *memory = NULL;
    cudaGetLastError();                                  /* of a GPU that was asked before */
    cudaError_t e = cudaMalloc((void **)&memory, sizeof *memory);
    if (e != cudaSuccess) return e;
    probe_kernel<<<1, 1>>>(memory);
    e = cudaGetLastError();
    if (e == cudaSuccess) e = cudaMemcpy(code, memory, sizeof *code, cudaMemcpyDeviceToHost);
    cudaFree(memory);
    return e;
}

extern "C" fl_status cuda_device_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err)
{
    fl_status st = check_index(index, err);
    if (st != FL_OK) return st;
    const cudaError_t e = cudaDeviceGetPCIBusId(out, CUDA_PCI_BYTES, index);
    return e == cudaSuccess ? FL_OK : fl_fail(err, FL_GPU, "cuda: GPU %d does not say where it is: %s", index, cudaGetErrorString(e));
}

extern "C" fl_status cuda_device_probe(int32_t index, cuda_device *out, fl_err *err)
{
    cudaError_t e;
    fl_status st = check_index(index, err);
    if (st != FL_OK) return st;
    cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    if ((e = cudaSetDevice(index)) != cudaSuccess || (e = cudaGetDeviceProperties(&properties, index)) != cudaSuccess ||
        (e = cudaMemGetInfo(&free_bytes, &total_bytes)) != cudaSuccess)
        return fl_fail(err, FL_GPU, "cuda: GPU %d does not answer: %s", index, cudaGetErrorString(e));
    const int32_t sm = properties.major * 10 + properties.minor;
    int32_t code = 0;
    e = run_probe(&code);
    if (e == cudaErrorNoKernelImageForDevice || e == cudaErrorUnsupportedPtxVersion)
        return fl_fail(err, FL_UNSUPPORTED, "cuda: GPU %d, %s (sm_%d), is not among the architectures this module was built for; build with TOKENFLEET_CUDA_ARCHITECTURES=%d%s", index,
                       properties.name, sm, sm, sm == 90 ? "a" : "");
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: GPU %d, %s, cannot run a kernel: %s", index, properties.name, cudaGetErrorString(e));
    const char *missing = cuda_code_missing(sm, code);
    if (missing)
        return fl_fail(err, FL_UNSUPPORTED, "cuda: GPU %d, %s (sm_%d), needs code for %s, and this module has only what was built for sm_%d; build with TOKENFLEET_CUDA_ARCHITECTURES=%s", index,
                       properties.name, sm, missing, code / 10, missing);

    snprintf(out->name, sizeof out->name, "%s", properties.name);
    out->sm = sm;
    out->n_multiprocessors = properties.multiProcessorCount;
    out->memory_bytes = total_bytes;
    out->free_bytes = free_bytes;
    return FL_OK;
}
