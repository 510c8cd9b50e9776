/* gpu_probe.h - what GPU this machine has, asked of the CUDA module (kernels/cuda/cuda_module.h), which is opened only for that.
 * Threads  any. */
#ifndef WORKER_GPU_PROBE_H
#define WORKER_GPU_PROBE_H

#include <stdint.h>
#include "kernels/cuda/cuda_module.h"
#include "proto/status.h"

/* Describe GPU `index`. FL_NOT_FOUND when the module tokenfleet-cuda.so does not lie beside this program, or cuda_device_probe's failure; each with a sentence. */
fl_status gpu_probe(int32_t index, cuda_device *out, fl_err *err);

#endif
