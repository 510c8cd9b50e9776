/* cuda_module.h - what the CUDA module (tokenfleet-cuda.so, beside the programs) exports. The worker opens it with dlopen, so one worker binary runs
 * with and without a GPU.
 * Threads  plain functions; each may be called from any thread. */
#ifndef KERNELS_CUDA_MODULE_H
#define KERNELS_CUDA_MODULE_H

#include <stdint.h>
#include "kernels/ops.h"
#include "proto/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_PCI_BYTES 32

typedef struct {
    char name[128];                  /* "NVIDIA H200" */
    int32_t sm;                      /* compute capability * 10: 90 */
    int32_t n_multiprocessors;
    uint64_t memory_bytes, free_bytes;
} cuda_device;

/* How many GPUs the driver shows this process (CUDA_VISIBLE_DEVICES and the like leave some out, and order them), 1 at least. FL_NOT_FOUND without one or without a driver, FL_GPU when the
 * driver fails. Takes no memory of a GPU. */
fl_status cuda_device_count(int32_t *out, fl_err *err);

/* Describe GPU `index`. FL_NOT_FOUND when there is no such GPU or no driver, FL_UNSUPPORTED when this module has no code for its architecture, or not all that our kernels need
 * (cuda_code.h; a kernel is launched to find out), FL_GPU when the driver fails; each with a sentence. Others can be asked after any of them. Nothing stays allocated. */
fl_status cuda_device_probe(int32_t index, cuda_device *out, fl_err *err);

/* The PCI address of GPU `index`, as "0000:1A:00.0". Errors as cuda_device_probe's, which it does without taking memory of the GPU. */
fl_status cuda_device_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err);

/* What activations and weights are computed in: 16 bits (bf16 where the GPU multiplies it, sm_80 and up, else f16), or fp32 to find errors with. */
typedef enum { CUDA_16_BIT, CUDA_F32 } cuda_precision;

/* Open the CUDA implementation of ops.h on GPU `index`; its close frees it. Errors as cuda_device_probe's, FL_FULL without memory. */
fl_status cuda_ops_open(ops **out, int32_t index, cuda_precision precision, fl_err *err);

#ifdef __cplusplus
}
#endif
#endif
