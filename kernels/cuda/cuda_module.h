/* cuda_module.h - what the CUDA module (tokenfleet-cuda.so, beside the programs) exports. The worker opens it with dlopen, so one worker binary runs
 * with and without a GPU.
 * Threads  plain functions; each may be called from any thread. */
#ifndef KERNELS_CUDA_MODULE_H
#define KERNELS_CUDA_MODULE_H

#include <stdint.h>
#include "proto/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    char name[128];                  /* "NVIDIA H200" */
    int32_t sm;                      /* compute capability * 10: 90 */
    int32_t n_multiprocessors;
    uint64_t memory_bytes, free_bytes;
} cuda_device;

/* Describe GPU `index`. FL_NOT_FOUND when there is no such GPU or no driver, FL_UNSUPPORTED when this module has no code for its architecture (a kernel is
 * launched to find out), FL_GPU when the driver fails; each with a sentence. Nothing stays allocated. */
fl_status cuda_device_probe(int32_t index, cuda_device *out, fl_err *err);

#ifdef __cplusplus
}
#endif
#endif
