#include "worker/gpus_command.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include "worker/gpu_module.h"
#include "worker/worker_options.h"

#define GPUS_MAX 64
#define WHY_BYTES 1024

static void add_gpu(json_t *list, int32_t index, const cuda_device *gpu)
{
    json_array_append_new(list, json_pack("{s:i, s:s, s:i, s:I, s:I}", "index", (int)index, "name", gpu->name, "sm", (int)gpu->sm, "memory_bytes", (json_int_t)gpu->memory_bytes, "free_bytes",
                                          (json_int_t)gpu->free_bytes));
}

/* One sentence more, as far as there is room. */
static void add_reason(char why[WHY_BYTES], const char *sentence)
{
    const size_t n = strlen(why);
    snprintf(why + n, WHY_BYTES - n, "%s%s", n ? "; " : "", sentence);
}

/* Those that can be used go to the list; one that cannot hides none behind it, and its reason joins the others in `why`. How many there are. */
static int32_t look_at_gpus(json_t *list, char why[WHY_BYTES])
{
    int32_t n = 0;
    fl_err err = { 0 };
    if (gpu_module_count(&n, &err) != FL_OK) add_reason(why, err.text);
    for (int32_t i = 0; i < n && i < GPUS_MAX; i++) {
        cuda_device gpu;
        if (gpu_module_describe(i, &gpu, &err) == FL_OK) add_gpu(list, i, &gpu);
        else add_reason(why, err.text);
    }
    return n;
}

int gpus_command(int argc, char **argv)
{
    char why[WHY_BYTES] = "";
    (void)argv;
    if (argc != 1) {
        fprintf(stderr, "tokenfleet-worker: gpus takes no arguments\n");
        return WORKER_ENDED_USAGE;
    }
    json_t *list = json_array(), *report = json_object();
    json_object_set_new(report, "found", json_integer(look_at_gpus(list, why)));
    json_object_set_new(report, "gpus", list);
    json_object_set_new(report, "why", json_string(why));
    int failed = json_dumpf(report, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF || fflush(stdout) != 0;
    json_decref(report);
    if (!failed) return WORKER_ENDED_WELL;
    fprintf(stderr, "tokenfleet-worker: the list cannot be written to standard output\n");
    return WORKER_ENDED_ENVIRONMENT;
}
