#include "worker/gpu_probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define MODULE_NAME "tokenfleet-cuda.so"

typedef fl_status (*probe_function)(int32_t, cuda_device *, fl_err *);

fl_status gpu_probe(int32_t index, cuda_device *out, fl_err *err)
{
    char path[PATH_MAX + sizeof MODULE_NAME];
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX);
    if (n <= 0) return fl_fail_errno(err, errno, "cuda: the place of this program cannot be read");
    path[n] = '\0';
    strcpy(strrchr(path, '/') + 1, MODULE_NAME);
    if (access(path, F_OK) != 0)
        return fl_fail(err, FL_NOT_FOUND, "cuda: this build has no CUDA module (%s beside the program); build with nvcc on PATH", MODULE_NAME);
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!module) return fl_fail(err, FL_UNSUPPORTED, "cuda: the module cannot be opened: %s", dlerror());
    probe_function probe = NULL;
    *(void **)&probe = dlsym(module, "cuda_device_probe");           /* POSIX's way from an object to a function pointer */
    fl_status st = probe ? probe(index, out, err) : fl_fail(err, FL_UNSUPPORTED, "cuda: %s is of another release: it has no cuda_device_probe", path);
    dlclose(module);
    return st;
}
