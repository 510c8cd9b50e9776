/* worker_options.c - see worker_options.h. */
#include "worker/worker_options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "worker/gpu_module.h"

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
           "With --roles grade it judges samples of graded jobs in sandboxes (bubblewrap) and needs no model; --threads is then how many at a time.\n"
           "It waits for a coordinator that is not there, and ends when its coordinator drains. Ends with 0; 1 failed; 2 usage; 3 environment.\n\n"
           "  tokenfleet-worker --connect tcp://127.0.0.1:7070 --model demo --threads 2\n"
           "  tokenfleet-worker --connect tcp://127.0.0.1:7070 --roles grade\n\n");
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

int32_t worker_device_gpu(const char *device)
{
    if (strcmp(device, "cpu") == 0) return -1;
    if (strncmp(device, "cuda:", 5) != 0) return -2;
    const size_t n = strspn(device + 5, "0123456789");
    return n < 1 || n > 4 || device[5 + n] ? -2 : (int32_t)strtol(device + 5, NULL, 10);
}

/* The GPU itself is the engine process's to open: its parent would only take memory there. */
static int check_device(const worker_options *o)
{
    fl_err err = { 0 };
    if (o->gpu == -2) return usage("--device is cpu or cuda:N with a GPU's number, not '%.40s'", o->device);
    if (strcmp(o->precision, "16") != 0 && strcmp(o->precision, "f32") != 0) return usage("--precision is 16 or f32, not '%.40s'", o->precision);
    if (o->gpu < 0 || gpu_module_check(&err) == FL_OK) return -1;
    fprintf(stderr, "tokenfleet-worker: %s; or use --device cpu\n", err.text);
    return WORKER_ENDED_ENVIRONMENT;
}

static int read_roles(worker_options *out, const char *roles)
{
    bool both = strcmp(roles, "generate,grade") == 0 || strcmp(roles, "grade,generate") == 0;
    out->generates = both || strcmp(roles, "generate") == 0;
    out->grades = both || strcmp(roles, "grade") == 0;
    if (!out->generates && !out->grades) return usage("--roles is generate, grade or both with a comma, not '%.40s'", roles);
    return -1;
}

int worker_options_parse(worker_options *out, int argc, char **argv)
{
    const char *roles = "generate";
    int64_t serve = -1, threads = 0, batch = 0, budget = 0, kv = 0, context = 0, share = 0, progress = PROGRESS_S, details = 0;
    worker_options parsed = { .device = "cpu", .precision = "16" };
    const option options[] = {
        {"--connect", OPTION_TEXT, "ENDPOINT", "the coordinator: tcp://127.0.0.1:PORT or ipc:///PATH (required)", &parsed.connect, 0, 0},
        {"--model", OPTION_TEXT, "PATH", "a model directory, a .gguf file, or demo for the model that ships (required to generate)", &parsed.model, 0, 0},
        {"--device", OPTION_TEXT, "cpu|cuda:N", "where to compute (default cpu)", &parsed.device, 0, 0},
        {"--precision", OPTION_TEXT, "16|f32", "what a GPU computes in: bf16 (f16 before sm_80; default), or fp32 to find errors with", &parsed.precision, 0, 0},
        {"--gpu-share", OPTION_NUMBER, "N", "workers that share the GPU's memory in equal parts (default 1)", &share, 1, 64},
        {"--roles", OPTION_TEXT, "ROLES", "generate (default), grade, or both with a comma", &roles, 0, 0},
        {"--threads", OPTION_NUMBER, "N", "threads of the engine, samples graded at a time (default: all cores)", &threads, 1, 1024},
        {"--batch", OPTION_NUMBER, "N", "sequences in one batch step (default 64, on a GPU 256)", &batch, 1, 4096},
        {"--prefill-budget", OPTION_NUMBER, "N", "prompt tokens in one batch step (default 512, on a GPU 4096)", &budget, 1, 1 << 20},
        {"--kv-tokens", OPTION_NUMBER, "N", "size of the KV pool in tokens (default: what the memory plan allows)", &kv, 1, (int64_t)1 << 40},
        {"--max-context", OPTION_NUMBER, "N", "longest prompt and completion together (default: the model's)", &context, 1, 1 << 30},
        {"--progress-limit", OPTION_NUMBER, "S", "seconds without a new token after which the engine is ended and started again (default 300)", &progress, 1, 86400},
        {"--details", OPTION_NUMBER, "0|1", "with --serve: say why beside each verdict", &details, 0, 1},
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
    parsed.gpu = worker_device_gpu(parsed.device);
    int status = check_device(&parsed);
    if (status < 0) status = read_roles(&parsed, roles);
    if (status >= 0) return status;
    if (parsed.generates && !parsed.model) return usage("--model is missing: give a model directory, a .gguf file, or demo");
    if (!parsed.connect && serve < 0) return usage("--connect is missing: give the coordinator's endpoint, such as tcp://127.0.0.1:7070");
    if (parsed.connect && serve >= 0) return usage("--connect and --serve exclude each other");
    if (serve >= 0 && parsed.generates && parsed.grades) return usage("--serve takes one role");
    parsed.details = details != 0;
    parsed.serve_fd = (int)serve;
    parsed.n_threads = (int32_t)threads;
    parsed.gpu_share = (int32_t)share;
    parsed.batch_max = (int32_t)batch;
    parsed.prefill_budget = (int32_t)budget;
    parsed.context_max = (int32_t)context;
    parsed.kv_tokens = kv;
    parsed.progress_s = progress;
    *out = parsed;
    return -1;
}
