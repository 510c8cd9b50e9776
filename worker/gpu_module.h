/* gpu_module.h - the CUDA module (kernels/cuda/cuda_module.h), a shared object beside this program, opened when a GPU is asked for.
 * Threads  the module is opened once and stays; the first call is the engine thread's. */
#ifndef WORKER_GPU_MODULE_H
#define WORKER_GPU_MODULE_H

#include <stdint.h>
#include "kernels/cuda/cuda_module.h"
#include "proto/status.h"

/* FL_NOT_FOUND, with a sentence, when tokenfleet-cuda.so does not lie beside this program. Opens nothing and touches no GPU. */
fl_status gpu_module_check(fl_err *err);

/* How many GPUs there are, usable or not: as cuda_device_count, or gpu_module_check's failure, or FL_UNSUPPORTED when the module cannot be opened. Takes no memory there. */
fl_status gpu_module_count(int32_t *out, fl_err *err);

/* Where GPU `index` is: as cuda_device_pci. Takes no memory there. */
fl_status gpu_module_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err);

/* Describe GPU `index`, and open the operations on it: as cuda_device_probe and cuda_ops_open, else as gpu_module_count. From then on this process holds memory of the GPU. */
fl_status gpu_module_describe(int32_t index, cuda_device *out, fl_err *err);
fl_status gpu_module_ops(ops **out, int32_t index, cuda_precision precision, fl_err *err);

#endif
