/* gpu_open.h - how a GPU test finds the CUDA module and a GPU: the module of this build (TOKENFLEET_CUDA_MODULE names another), GPU 0. Without either the test
 * is skipped: it says why and ends with 77. */
#ifndef TESTS_GPU_GPU_OPEN_H
#define TESTS_GPU_GPU_OPEN_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include "kernels/cuda/cuda_module.h"

static void *gpu_module(void)
{
    static void *module;
    const char *path = getenv("TOKENFLEET_CUDA_MODULE");
    if (module) return module;
    module = dlopen(path ? path : BIN_DIR "/tokenfleet-cuda.so", RTLD_NOW | RTLD_LOCAL);
    if (!module) {
        printf("skipped: %s\n", dlerror());
        exit(77);
    }
    return module;
}

static ops *gpu_open(cuda_precision precision)
{
    fl_err err = { 0 };
    ops *o = NULL;
    fl_status (*open)(ops **, int32_t, cuda_precision, fl_err *) = NULL;
    *(void **)&open = dlsym(gpu_module(), "cuda_ops_open");
    if (!open) {
        printf("failed: the module has no cuda_ops_open\n");
        exit(1);
    }
    const fl_status st = open(&o, 0, precision, &err);
    if (st == FL_OK) return o;
    printf("%s: %s\n", st == FL_NOT_FOUND ? "skipped" : "failed", err.text);
    exit(st == FL_NOT_FOUND ? 77 : 1);
}

#endif
