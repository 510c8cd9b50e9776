#include "worker/gpu_module.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "tokenfleet-cuda.so"

static fl_status find_module(char path[PATH_MAX + sizeof MODULE_NAME], fl_err *err)
{
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0) return fl_fail_errno(err, errno, "cuda: the place of this program cannot be read");
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, MODULE_NAME);
    if (access(path, F_OK) == 0) return FL_OK;
    return fl_fail(err, FL_NOT_FOUND, "cuda: this build has no CUDA module (%s beside the program); build with nvcc on PATH", MODULE_NAME);
}

fl_status gpu_module_check(fl_err *err)
{
    char path[PATH_MAX + sizeof MODULE_NAME];
    return find_module(path, err);
}

/* The address of one of the module's functions. */
static fl_status find_function(void *function, const char *name, fl_err *err)
{
    static void *module;
    char path[PATH_MAX + sizeof MODULE_NAME];
    fl_status st = module ? FL_OK : find_module(path, err);
    if (st != FL_OK) return st;
    if (!module && !(module = dlopen(path, RTLD_NOW | RTLD_LOCAL))) return fl_fail(err, FL_UNSUPPORTED, "cuda: the module cannot be opened: %s", dlerror());
    void *address = dlsym(module, name);
    if (!address) return fl_fail(err, FL_UNSUPPORTED, "cuda: %s is of another release: it has no %s; build or install both together", MODULE_NAME, name);
    memcpy(function, &address, sizeof address);          /* POSIX's way from an object to a function pointer */
    return FL_OK;
}

fl_status gpu_module_count(int32_t *out, fl_err *err)
{
    fl_status (*count)(int32_t *, fl_err *);
    fl_status st = find_function(&count, "cuda_device_count", err);
    return st == FL_OK ? count(out, err) : st;
}

fl_status gpu_module_describe(int32_t index, cuda_device *out, fl_err *err)
{
    fl_status (*probe)(int32_t, cuda_device *, fl_err *);
    fl_status st = find_function(&probe, "cuda_device_probe", err);
    return st == FL_OK ? probe(index, out, err) : st;
}

fl_status gpu_module_pci(int32_t index, char out[CUDA_PCI_BYTES], fl_err *err)
{
    fl_status (*pci)(int32_t, char *, fl_err *);
    fl_status st = find_function(&pci, "cuda_device_pci", err);
    return st == FL_OK ? pci(index, out, err) : st;
}

fl_status gpu_module_ops(ops **out, int32_t index, cuda_precision precision, fl_err *err)
{
    fl_status (*open)(ops **, int32_t, cuda_precision, fl_err *);
    fl_status st = find_function(&open, "cuda_ops_open", err);
    return st == FL_OK ? open(out, index, precision, err) : st;
}
