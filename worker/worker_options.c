/* worker_options.c - see worker_options.h. */
#include "worker/worker_options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/gpu_probe.h"

#define PROGRESS_S 300               /* before the coordinator's 600 takes the lease away */

typedef enum { OPTION_TEXT, OPTION_NUMBER } option_kind;
typedef struct { const char *name; option_kind kind; const char *value, *help; void *out; int64_t min, max; } option;

static int usage(const char *format, ...) __attribute__((format(printf, 1, 2)));

static int usage(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "tokenfleet-worker: %s (tokenfleet-worker --help lists the flags)\n", text);
    return WORKER_ENDED_USAGE;
}

static int help(const option *options, size_t n)
{
    printf("tokenfleet-worker serves one model to a tokenfleet coordinator until SIGTERM, which drains it: what runs is finished or handed back.\n"
           "It waits for a coordinator that is not there, and ends when its coordinator drains. Ends with 0; 1 failed; 2 usage; 3 environment.\n\n"
           "  tokenfleet-worker --connect tcp://127.0.0.1:7070 --model demo --threads 2\n\n");
    for (size_t i = 0; i < n; i++) printf("  %-17s %-13s %s\n", options[i].name, options[i].value, options[i].help);
    printf("  %-17s %-13s %s\n", "--version", "", "print the version");
    return WORKER_ENDED_WELL;
}

static int set_value(const option *o, const char *text)
{
    if (o->kind == OPTION_TEXT) {
        if (!*text) return usage("%s needs a value", o->name);
        *(const char **)o->out = text;
        return -1;
    }
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (!*text || *end || errno || v < o->min || v > o->max)
        return usage("%s takes a whole number from %lld to %lld, not '%.40s'", o->name, (long long)o->min, (long long)o->max, text);
    *(int64_t *)o->out = v;
    return -1;
}

/* A GPU is looked for, so that the sentence says what is here; computing on it is for a later release. */
static int refuse_cuda(const char *number)
{
    cuda_device gpu;
    fl_err err = { 0 };
    if (strlen(number) > 4) return usage("--device cuda:N takes a GPU's number, not '%.40s'", number);
    if (gpu_probe((int32_t)strtol(number, NULL, 10), &gpu, &err) == FL_OK)
        fprintf(stderr, "tokenfleet-worker: GPU %s is an %s (sm_%d), but this release computes on the CPU only: use --device cpu\n", number, gpu.name, gpu.sm);
    else fprintf(stderr, "tokenfleet-worker: %s; use --device cpu\n", err.text);
    return WORKER_ENDED_ENVIRONMENT;
}

/* The device and the roles this release has. */
static int check_device_and_roles(const char *device, const char *roles)
{
    if (strncmp(device, "cuda:", 5) == 0 && device[5] && device[5 + strspn(device + 5, "0123456789")] == '\0') return refuse_cuda(device + 5);
    if (strcmp(device, "cpu") != 0) return usage("--device is cpu or cuda:N, not '%.40s'", device);
    if (strcmp(roles, "grade") == 0 || strcmp(roles, "generate,grade") == 0 || strcmp(roles, "grade,generate") == 0)
        return usage("this release grades nothing yet: use --roles generate");
    if (strcmp(roles, "generate") != 0) return usage("--roles is generate, grade or both with a comma, not '%.40s'", roles);
    return -1;
}

int worker_options_parse(worker_options *out, int argc, char **argv)
{
    const char *device = "cpu", *roles = "generate";
    int64_t serve = -1, threads = 0, batch = 0, budget = 0, kv = 0, context = 0, progress = PROGRESS_S;
    worker_options parsed = { 0 };
    const option options[] = {
        {"--connect", OPTION_TEXT, "ENDPOINT", "the coordinator: tcp://127.0.0.1:PORT or ipc:///PATH (required)", &parsed.connect, 0, 0},
        {"--model", OPTION_TEXT, "PATH", "a model directory, or demo for the model that ships (required)", &parsed.model, 0, 0},
        {"--device", OPTION_TEXT, "cpu|cuda:N", "where to compute (default cpu)", &device, 0, 0},
        {"--roles", OPTION_TEXT, "ROLES", "generate (default, and the only one in this release)", &roles, 0, 0},
        {"--threads", OPTION_NUMBER, "N", "threads of the engine (default: all cores)", &threads, 1, 1024},
        {"--batch", OPTION_NUMBER, "N", "sequences in one batch step (default 64)", &batch, 1, 4096},
        {"--prefill-budget", OPTION_NUMBER, "N", "prompt tokens in one batch step (default 512)", &budget, 1, 1 << 20},
        {"--kv-tokens", OPTION_NUMBER, "N", "size of the KV pool in tokens (default: what the memory plan allows)", &kv, 1, (int64_t)1 << 40},
        {"--max-context", OPTION_NUMBER, "N", "longest prompt and completion together (default: the model's)", &context, 1, 1 << 30},
        {"--progress-limit", OPTION_NUMBER, "S", "seconds without a new token after which the engine is ended and started again (default 300)", &progress, 1, 86400},
        {"--serve", OPTION_NUMBER, "FD", "be the engine process on this descriptor; tokenfleet starts it so", &serve, 0, 1 << 20},
    };
    size_t n = sizeof options / sizeof *options;
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        size_t name_bytes = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const option *o = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return help(options, n);
        if (strcmp(argv[i], "--version") == 0) return printf("tokenfleet-worker %s\n", TOKENFLEET_VERSION), WORKER_ENDED_WELL;
        for (size_t k = 0; k < n; k++)
            if (strlen(options[k].name) == name_bytes && memcmp(options[k].name, argv[i], name_bytes) == 0) o = &options[k];
        if (!o) return usage("%.60s is not a flag of tokenfleet-worker", argv[i]);
        if (!equals && (i + 1 == argc || strncmp(argv[i + 1], "--", 2) == 0)) return usage("%s needs a value", o->name);
        int status = set_value(o, equals ? equals + 1 : argv[++i]);
        if (status >= 0) return status;
    }
    int status = check_device_and_roles(device, roles);
    if (status >= 0) return status;
    if (!parsed.model) return usage("--model is missing: give a model directory, or demo");
    if (!parsed.connect && serve < 0) return usage("--connect is missing: give the coordinator's endpoint, such as tcp://127.0.0.1:7070");
    if (parsed.connect && serve >= 0) return usage("--connect and --serve exclude each other");
    parsed.serve_fd = (int)serve;
    parsed.n_threads = (int32_t)threads;
    parsed.batch_max = (int32_t)batch;
    parsed.prefill_budget = (int32_t)budget;
    parsed.context_max = (int32_t)context;
    parsed.kv_tokens = kv;
    parsed.progress_s = progress;
    *out = parsed;
    return -1;
}
