#include "worker/inspect_command.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include "engine/inspect.h"
#include "engine/memory_plan.h"
#include "proto/demo_path.h"
#include "worker/worker_options.h"

static int refuse(int status, const char *sentence)
{
    fprintf(stderr, "tokenfleet-worker: %s\n", sentence);
    return status;
}

static int64_t whole_number(const char *text, int64_t most)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    return *text && !*end && !errno && v >= 0 && v <= most ? v : -1;
}

int inspect_command(int argc, char **argv)
{
    char path[PATH_MAX];
    fl_err err = { 0 };
    json_t *report = NULL;
    int64_t n_sequences = argc == 4 ? whole_number(argv[2], BATCH_MAX) : -1, context = argc == 4 ? whole_number(argv[3], INT32_MAX) : -1;
    if (n_sequences < 1 || context < 0)
        return refuse(WORKER_ENDED_USAGE, "inspect takes a model's PATH, a number of sequences from 1 to 4096 and a context (0 = the default); people call `tokenfleet inspect PATH`");
    fl_status st = fl_model_path(argv[1], path, sizeof path, &err);
    if (st == FL_OK) st = inspect_model(&report, path, (int32_t)n_sequences, (int32_t)context, &err);
    if (st != FL_OK) return refuse(st == FL_NOT_FOUND || st == FL_INVALID ? WORKER_ENDED_USAGE : WORKER_ENDED_ENVIRONMENT, err.text);
    int failed = json_dumpf(report, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF || fflush(stdout) != 0;
    json_decref(report);
    return failed ? refuse(WORKER_ENDED_ENVIRONMENT, "the report cannot be written to standard output") : WORKER_ENDED_WELL;
}
