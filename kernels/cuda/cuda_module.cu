#include "kernels/cuda/cuda_module.h"

#include <cuda_runtime.h>
#include <stdio.h>

static __global__ void probe_kernel(void) {}

static fl_status check_index(int32_t index, fl_err *err)
{
    int n_devices = 0;
    cudaError_t e = cudaGetDeviceCount(&n_devices);
    if (e == cudaErrorNoDevice || e == cudaErrorInsufficientDriver)
        return fl_fail(err, FL_NOT_FOUND, "cuda: no GPU can be used here: %s", cudaGetErrorString(e));
    if (e != cudaSuccess) return fl_fail(err, FL_GPU, "cuda: cannot count the GPUs: %s", cudaGetErrorString(e));
    if (index < 0 || index >= n_devices) return fl_fail(err, FL_NOT_FOUND, "cuda: there is no GPU %d; this machine has %d, from 0", index, n_devices);
    return FL_OK;
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
    probe_kernel<<<1, 1>>>();
    if ((e = cudaGetLastError()) == cudaErrorNoKernelImageForDevice)
        return fl_fail(err, FL_UNSUPPORTED, "cuda: %s (sm_%d%d) is not among the architectures this module was built for", properties.name, properties.major,
                       properties.minor);
    if (e != cudaSuccess || (e = cudaDeviceSynchronize()) != cudaSuccess)
        return fl_fail(err, FL_GPU, "cuda: GPU %d cannot run a kernel: %s", index, cudaGetErrorString(e));

    snprintf(out->name, sizeof out->name, "%s", properties.name);
    out->sm = properties.major * 10 + properties.minor;
    out->n_multiprocessors = properties.multiProcessorCount;
    out->memory_bytes = total_bytes;
    out->free_bytes = free_bytes;
    return FL_OK;
}
