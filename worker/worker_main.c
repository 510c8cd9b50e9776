/* worker_main.c - tokenfleet-worker: the parent that talks to the coordinator, or with --serve the engine process below it. */
#include "worker/engine_child.h"
#include "worker/worker.h"
#include "worker/worker_options.h"

int main(int argc, char **argv)
{
    worker_options options;
    int status = worker_options_parse(&options, argc, argv);
    if (status >= 0) return status;
    return options.serve_fd >= 0 ? engine_child_main(&options) : worker_main(&options);
}
