/* worker_options.h - the command line of tokenfleet-worker.
 * Threads  plain functions; strings are borrowed from argv. */
#ifndef WORKER_WORKER_OPTIONS_H
#define WORKER_WORKER_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum { WORKER_ENDED_WELL = 0, WORKER_ENDED_FAILED = 1, WORKER_ENDED_USAGE = 2, WORKER_ENDED_ENVIRONMENT = 3, WORKER_ENDED_MEMORY = 5, WORKER_ENDED_GPU = 6 };

typedef struct {
    const char *connect;             /* the coordinator's endpoint; NULL with serve_fd */
    int serve_fd;                    /* be an engine child on this descriptor; -1 otherwise */
    const char *model;               /* a path, "demo", or random:SEED:SHAPE; NULL: only grade */
    const char *device;              /* "cpu" or "cuda:N" */
    int32_t gpu;                     /* its number; -1 = the CPU */
    int32_t gpu_share;               /* workers that share it; 0 = 1 */
    const char *precision;           /* "16" or "f32": what a GPU computes in */
    bool generates, grades;          /* --roles; with both, the program is two workers */
    bool details;                    /* with serve_fd: say why beside each verdict */
    int32_t n_threads, batch_max, prefill_budget, context_max;   /* engine_options; 0 = its default */
    int64_t kv_tokens;
    int64_t progress_s;              /* without a token for so long, the engine is ended and started again */
} worker_options;

/* The number of "cuda:N", -1 for "cpu", -2 for anything else. */
int32_t worker_device_gpu(const char *device);

/* Returns -1 when the program should go on, else the exit status to end with (0 after --help and --version, 2 or 3 after one sentence on
 * stderr). */
int worker_options_parse(worker_options *out, int argc, char **argv);

#endif
