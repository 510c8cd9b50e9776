/* worker_main.c - tokenfleet-worker: the parent that talks to the coordinator, with --serve the engine or grading process below it, or one look at a model or the GPUs, or a bench. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "worker/bench_command.h"
#include "worker/engine_child.h"
#include "worker/gpus_command.h"
#include "worker/grade_child.h"
#include "worker/inspect_command.h"
#include "worker/worker.h"
#include "worker/worker_options.h"

/* Both roles: the second worker is a process of its own, so that neither waits for the other. It drains when this one ends. */
static int serve_both(const worker_options *options)
{
    worker_options generating = *options, grading = *options;
    pid_t parent = getpid(), second = fork();
    generating.grades = grading.generates = false;
    grading.model = NULL;
    if (second < 0) {
        perror("tokenfleet-worker: start the grading worker");
        return WORKER_ENDED_ENVIRONMENT;
    }
    if (second == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        return getppid() == parent ? worker_main(&grading) : WORKER_ENDED_ENVIRONMENT;
    }
    int status = worker_main(&generating), graded = 0;
    kill(second, SIGTERM);
    while (waitpid(second, &graded, 0) < 0 && errno == EINTR) {}
    if (status != WORKER_ENDED_WELL) return status;
    return WIFEXITED(graded) ? WEXITSTATUS(graded) : WORKER_ENDED_ENVIRONMENT;
}

int main(int argc, char **argv)
{
    worker_options options;
    if (argc > 1 && strcmp(argv[1], "inspect") == 0) return inspect_command(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "bench") == 0) return bench_command(argc - 1, argv + 1);
    if (argc > 1 && strcmp(argv[1], "gpus") == 0) return gpus_command(argc - 1, argv + 1);
    int status = worker_options_parse(&options, argc, argv);
    if (status >= 0) return status;
    if (options.serve_fd >= 0) return options.grades ? grade_child_main(&options) : engine_child_main(&options);
    return options.grades && options.generates ? serve_both(&options) : worker_main(&options);
}
