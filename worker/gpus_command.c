#include "worker/gpus_command.h"

#include <jansson.h>
#include <stdio.h>
#include "worker/gpu_module.h"
#include "worker/worker_options.h"

#define GPUS_MAX 64

int gpus_command(int argc, char **argv)
{
    cuda_device gpu;
    fl_err err = { 0 };
    (void)argv;
    if (argc != 1) {
        fprintf(stderr, "tokenfleet-worker: gpus takes no arguments\n");
        return WORKER_ENDED_USAGE;
    }
    json_t *list = json_array(), *report = json_object();
    for (int32_t i = 0; i < GPUS_MAX && gpu_module_describe(i, &gpu, &err) == FL_OK; i++)
        json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:I, s:I}", "index", (int)i, "name", gpu.name, "sm", (int)gpu.sm, "memory_bytes", (json_int_t)gpu.memory_bytes, "free_bytes",
                                              (json_int_t)gpu.free_bytes));
    json_object_set_new(report, "gpus", list);
    json_object_set_new(report, "why", json_string(err.text));
    int failed = json_dumpf(report, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF || fflush(stdout) != 0;
    json_decref(report);
    if (!failed) return WORKER_ENDED_WELL;
    fprintf(stderr, "tokenfleet-worker: the list cannot be written to standard output\n");
    return WORKER_ENDED_ENVIRONMENT;
}
