/* gpu_stub_worker.c - tokenfleet-worker on a machine with GPUs that are none: linked in front of the CUDA module (ld --wrap), so that nothing of it is in the product. GPU_STUB says what the
 * driver shows, a letter a GPU: o can be used (the CPU computes in its place), u the module has no code for it, b it does not answer. Empty: there is none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/gpu_module.h"

fl_status __wrap_gpu_module_check(fl_err *err);
fl_status __wrap_gpu_module_count(int32_t *out, fl_err *err);
fl_status __wrap_gpu_module_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err);
fl_status __wrap_gpu_module_describe(int32_t index, cuda_device *out, fl_err *err);
fl_status __wrap_gpu_module_ops(ops **out, int32_t index, cuda_precision precision, fl_err *err);

static const char *shown(void)
{
    const char *gpus = getenv("GPU_STUB");
    return gpus ? gpus : "";
}

fl_status __wrap_gpu_module_check(fl_err *err) { (void)err; return FL_OK; }

fl_status __wrap_gpu_module_count(int32_t *out, fl_err *err)
{
    *out = (int32_t)strlen(shown());
    return *out > 0 ? FL_OK : fl_fail(err, FL_NOT_FOUND, "cuda: no GPU can be used here: no CUDA-capable device is detected");
}

fl_status __wrap_gpu_module_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err)
{
    (void)err;
    snprintf(out, CUDA_PCI_BYTES, "ffff:%02x:00.0", (unsigned)index & 0xffu);
    return FL_OK;
}

static fl_status look(int32_t index, fl_err *err)
{
    const char *gpus = shown();
    if (index < 0 || index >= (int32_t)strlen(gpus)) return fl_fail(err, FL_NOT_FOUND, "cuda: there is no GPU %d; this machine has %zu, from 0", index, strlen(gpus));
    if (gpus[index] == 'u') return fl_fail(err, FL_UNSUPPORTED, "cuda: GPU %d, an old card (sm_61), is not among the architectures this module was built for", index);
    return gpus[index] == 'o' ? FL_OK : fl_fail(err, FL_GPU, "cuda: GPU %d does not answer: an uncorrectable ECC error was encountered", index);
}

fl_status __wrap_gpu_module_describe(int32_t index, cuda_device *out, fl_err *err)
{
    const fl_status st = look(index, err);
    if (st == FL_OK) *out = (cuda_device){ .name = "a stub", .sm = 90, .n_multiprocessors = 1, .memory_bytes = 1u << 30, .free_bytes = 1u << 30 };
    return st;
}

fl_status __wrap_gpu_module_ops(ops **out, int32_t index, cuda_precision precision, fl_err *err)
{
    const fl_status st = look(index, err);
    (void)precision;
    return st == FL_OK ? ops_cpu_open(out, 1, err) : st;
}
