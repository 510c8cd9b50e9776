/* worker_main.c - tokenfleet-worker: the parent that talks to the coordinator, with --serve the engine process below it, or one look at a model or the GPUs, or a bench. */
#include <string.h>
#include "worker/bench_command.h"
#include "worker/engine_child.h"
#include "worker/gpus_command.h"
#include "worker/inspect_command.h"
#include "worker/worker.h"
#include "worker/worker_options.h"

int main(int argc, char **argv)
{
    worker_options options;
    if (argc > 1 && strcmp(argv[1], "inspect") == 0) return inspect_command(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "bench") == 0) return bench_command(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "gpus") == 0) return gpus_command(argc - 1, argv + 1);
    int status = worker_options_parse(&options, argc, argv);
    if (status >= 0) return status;
    return options.serve_fd >= 0 ? engine_child_main(&options) : worker_main(&options);
}
