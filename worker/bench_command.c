#include "worker/bench_command.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model_shapes.h"
#include "proto/demo_path.h"
#include "worker/bench_model.h"
#include "worker/gpu_module.h"
#include "worker/worker_options.h"

#define SIZES_MAX 8
#define RUNS 3                           /* of which the median counts, after one to warm up */
#define DECODE_STEPS 16

typedef struct {
    const char *kind, *model, *device, *precision;
    int32_t prompt, context, n_threads, sizes[SIZES_MAX], n_sizes;      /* sizes: prefill budgets (0 = whole), or rows of a decode step */
    bool as_json;
} bench_options;

static int usage(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int usage(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fputs("tokenfleet-worker bench: ", stderr);
    vfprintf(stderr, format, args);
    fputs(" (tokenfleet-worker bench --help lists the flags)\n", stderr);
    va_end(args);
    return WORKER_ENDED_USAGE;
}

static int help(void)
{
    puts("tokenfleet-worker bench prefill|decode measures the steps of a model on this device, beside the rates of a large copy and a large product in the same run.\n\n"
         "  tokenfleet-worker bench prefill --model random:1:qwen3-8b --device cuda:0 --prompt 8192\n"
         "  tokenfleet-worker bench decode --model random:1:qwen3-0.6b --device cuda:0 --batch 1,64,256 --context 1024 --json\n\n"
         "prefill: one prompt in steps of each budget: seconds, and the last token's argmax and logit, whose bits must be the same for all (else it ends with 1).\n"
         "decode:  steps of one token for so many sequences of --context tokens: steps and tokens a second, logits included, without sampling.\n\n"
         "  --model PATH           a model, or random:SEED:SHAPE with the name of a shape (" MODEL_SHAPE_NAMES ")\n"
         "                         or a directory with a config.json (default random:1:qwen3.5-0.8b)\n"
         "  --device cpu|cuda:N    where to compute (default cpu)\n"
         "  --precision 16|f32     what a GPU computes in (default 16)\n"
         "  --threads N            threads of the CPU (default: all cores)\n"
         "  --prompt N             tokens of the prompt (default 4096)\n"
         "  --budgets N,N,...      prompt tokens in a step, multiples of 64; 0 = all in one (default 64,512,2048,0)\n"
         "  --context N            tokens of each sequence that decodes (default 512)\n"
         "  --batch N,N,...        sequences in a decode step (default 1,64,256)\n"
         "  --json                 print one JSON object");
    return WORKER_ENDED_WELL;
}

/* A number, or with most_numbers above 1 a list of them; how many, 0 when it is none. */
static int32_t read_numbers(int32_t *out, int32_t most_numbers, const char *text, int64_t least, int64_t most)
{
    int32_t n = 0;
    for (;;) {
        char *end;
        errno = 0;
        const long long v = strtoll(text, &end, 10);
        if (end == text || errno || v < least || v > most || n == most_numbers || (*end && *end != ',')) return 0;
        out[n++] = (int32_t)v;
        if (!*end) return n;
        text = end + 1;
    }
}

static int read_flag(bench_options *o, const char *name, const char *value)
{
    const bool is_prefill = strcmp(o->kind, "prefill") == 0;
    const struct { const char *name; const char **text; int32_t *number; int32_t least, most; } flags[] = {
        { "--model", &o->model, NULL, 0, 0 }, { "--device", &o->device, NULL, 0, 0 }, { "--precision", &o->precision, NULL, 0, 0 }, { "--threads", NULL, &o->n_threads, 1, 1024 },
        { "--prompt", NULL, &o->prompt, 1, 1 << 20 }, { "--context", NULL, &o->context, 1, 1 << 20 },
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        if (strcmp(name, flags[i].name) != 0) continue;
        if (flags[i].text) *flags[i].text = value;
        else if (!read_numbers(flags[i].number, 1, value, flags[i].least, flags[i].most)) return usage("%s takes a whole number from %d to %d, not '%.40s'", name, flags[i].least, flags[i].most, value);
        return -1;
    }
    if (strcmp(name, is_prefill ? "--budgets" : "--batch") != 0) return usage("%.40s is not a flag of bench %s", name, o->kind);
    o->n_sizes = read_numbers(o->sizes, SIZES_MAX, value, is_prefill ? 0 : 1, is_prefill ? 1 << 20 : 4096);
    for (int32_t i = 0; is_prefill && i < o->n_sizes; i++) if (o->sizes[i] % OPS_BLOCK_TOKENS != 0) o->n_sizes = 0;
    return o->n_sizes > 0 ? -1 : usage("%s takes at most %d numbers with commas between them%s, not '%.40s'", name, SIZES_MAX, is_prefill ? ", multiples of 64 or 0" : " from 1 to 4096", value);
}

static int read_options(bench_options *o, int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return argc < 2 ? usage("say prefill or decode") : help();
    *o = (bench_options){ .kind = argv[1], .model = "random:1:qwen3.5-0.8b", .device = "cpu", .precision = "16", .prompt = 4096, .context = 512, .n_sizes = 4, .sizes = { 64, 512, 2048, 0 } };
    if (strcmp(o->kind, "decode") == 0) { o->n_sizes = 3; o->sizes[0] = 1; o->sizes[1] = 64; o->sizes[2] = 256; }
    else if (strcmp(o->kind, "prefill") != 0) return usage("there is prefill and decode, not '%.40s'", o->kind);
    for (int i = 2; i < argc; i++) {
        char name[32];
        const char *equals = strchr(argv[i], '=');
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return help();
        if (strcmp(argv[i], "--json") == 0) { o->as_json = true; continue; }
        snprintf(name, sizeof name, "%.*s", equals ? (int)(equals - argv[i]) : (int)strlen(argv[i]), argv[i]);
        if (!equals && i + 1 == argc) return usage("%.40s needs a value", argv[i]);
        const int status = read_flag(o, name, equals ? equals + 1 : argv[++i]);
        if (status >= 0) return status;
    }
    if (worker_device_gpu(o->device) == -2) return usage("--device is cpu or cuda:N with a GPU's number, not '%.40s'", o->device);
    if (strcmp(o->precision, "16") != 0 && strcmp(o->precision, "f32") != 0) return usage("--precision is 16 or f32, not '%.40s'", o->precision);
    return -1;
}

static fl_status open_device(ops **out, const bench_options *o, fl_err *err)
{
    const int32_t gpu = worker_device_gpu(o->device);
    return gpu < 0 ? ops_cpu_open(out, o->n_threads, err) : gpu_module_ops(out, gpu, strcmp(o->precision, "f32") == 0 ? CUDA_F32 : CUDA_16_BIT, err);
}

static int compare_times(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double times[RUNS])
{
    qsort(times, RUNS, sizeof *times, compare_times);
    return times[RUNS / 2];
}

/* ---- prefill ---- */

static fl_status time_prefill(double *seconds, bench_model *b, const int32_t *ids, int32_t n, int32_t budget, fl_err *err)
{
    double times[RUNS];
    fl_status st = FL_OK;
    for (int run = -1; st == FL_OK && run < RUNS; run++) {
        const double begun = bench_now_s();
        for (int32_t first = 0; first < n; first += budget) bench_prefill_step(b, ids, first, n - first < budget ? n - first : budget, first + budget >= n);
        st = b->o->finish(b->o, err);
        if (run >= 0) times[run] = bench_now_s() - begun;
    }
    *seconds = st == FL_OK ? median(times) : 0;
    return st;
}

static fl_status run_prefill(json_t *report, bool *differs, const bench_options *o, const char *path, ops *device, const bench_rates *rates, fl_err *err)
{
    bench_model b = { 0 };
    json_t *runs = json_array();
    uint32_t first_bits = 0;
    int32_t widest = 0, *ids = calloc((size_t)o->prompt, sizeof *ids);
    json_object_set_new(report, "prompt", json_integer(o->prompt));
    json_object_set_new(report, "runs", runs);
    for (int32_t i = 0; i < o->n_sizes; i++) {
        const int32_t budget = o->sizes[i] == 0 || o->sizes[i] > o->prompt ? o->prompt : o->sizes[i];
        if (budget > widest) widest = budget;
    }
    fl_status st = bench_model_open(&b, path, device, 1, o->prompt, widest, 1, err);
    if (st == FL_OK && !ids) st = fl_fail(err, FL_FULL, "bench: no memory for a prompt of %d tokens", o->prompt);
    for (int32_t i = 0; st == FL_OK && i < o->prompt; i++) ids[i] = (int32_t)((uint32_t)i * 2654435761u >> 8) % model_describe(b.m)->n_vocab;
    for (int32_t i = 0; st == FL_OK && i < o->n_sizes; i++) {
        int32_t argmax = 0;
        double seconds;
        uint32_t bits;
        char text[16];
        const int32_t budget = o->sizes[i] == 0 ? o->prompt : o->sizes[i];
        st = time_prefill(&seconds, &b, ids, o->prompt, budget, err);
        if (st == FL_OK) st = bench_read_logits(&b, 0, &argmax, err);
        if (st != FL_OK) break;
        memcpy(&bits, &b.row[argmax], sizeof bits);
        if (i == 0) first_bits = bits;
        *differs |= bits != first_bits;
        snprintf(text, sizeof text, "%08x", bits);
        json_array_append_new(runs, json_pack("{s:i, s:f, s:f, s:i, s:f, s:s, s:f}", "budget", (int)o->sizes[i], "seconds", seconds, "tokens_per_s", o->prompt / seconds, "argmax", (int)argmax,
                                              "logit", (double)b.row[argmax], "logit_bits", text, "share_of_product",
                                              bench_prefill_flop(model_describe(b.m), o->prompt) / seconds / rates->product_flop_per_s));
    }
    json_object_set_new(report, "same_bits", json_boolean(!*differs));
    bench_model_close(&b);
    free(ids);
    return st;
}

/* ---- decode ---- */

static fl_status run_decode(json_t *report, const bench_options *o, const char *path, ops *device, const bench_rates *rates, fl_err *err)
{
    bench_model b = { 0 };
    json_t *runs = json_array();
    int32_t widest = 0;
    json_object_set_new(report, "context", json_integer(o->context));
    json_object_set_new(report, "runs", runs);
    for (int32_t i = 0; i < o->n_sizes; i++) if (o->sizes[i] > widest) widest = o->sizes[i];
    fl_status st = bench_model_open(&b, path, device, widest, o->context + DECODE_STEPS, widest, widest, err);
    for (int32_t i = 0; st == FL_OK && i < o->n_sizes; i++) {
        double times[RUNS];
        const int32_t n = o->sizes[i];
        for (int run = -1; st == FL_OK && run < RUNS; run++) {
            const double begun = bench_now_s();
            for (int32_t k = 0; k < DECODE_STEPS; k++) bench_decode_step(&b, n, o->context + k);
            st = b.o->finish(b.o, err);
            if (run >= 0) times[run] = (bench_now_s() - begun) / DECODE_STEPS;
        }
        if (st != FL_OK) break;
        const double seconds = median(times);
        json_array_append_new(runs, json_pack("{s:i, s:f, s:f, s:f}", "batch", (int)n, "step_seconds", seconds, "tokens_per_s", n / seconds, "share_of_copy",
                                              bench_decode_bytes(model_describe(b.m), b.o, n, o->context) / seconds / rates->copy_bytes_per_s));
    }
    bench_model_close(&b);
    return st;
}

/* ---- both ---- */

static double real(const json_t *object, const char *key) { return json_real_value(json_object_get(object, key)); }
static int whole(const json_t *object, const char *key) { return (int)json_integer_value(json_object_get(object, key)); }

static void print_text(const bench_options *o, const json_t *report)
{
    size_t i;
    json_t *run;
    printf("%s of %s on %s: a copy moves %.1f GB/s, a product does %.1f TFLOP/s\n", o->kind, o->model, json_string_value(json_object_get(report, "kernels")), real(report, "copy_bytes_per_s") / 1e9,
           real(report, "product_flop_per_s") / 1e12);
    json_array_foreach(json_object_get(report, "runs"), i, run) {
        if (strcmp(o->kind, "decode") == 0)
            printf("  batch %4d, context %d: %8.3f ms a step, %9.0f tokens/s, %4.1f %% of the copy rate\n", whole(run, "batch"), o->context, real(run, "step_seconds") * 1e3, real(run, "tokens_per_s"),
                   real(run, "share_of_copy") * 100);
        else
            printf("  budget %5d, prompt %d: %8.3f s, %9.0f tokens/s, %4.1f %% of the product rate; last token: argmax %d, logit %.6f (%s)\n", whole(run, "budget") ? whole(run, "budget") : o->prompt,
                   o->prompt, real(run, "seconds"), real(run, "tokens_per_s"), real(run, "share_of_product") * 100, whole(run, "argmax"), real(run, "logit"),
                   json_string_value(json_object_get(run, "logit_bits")));
    }
    if (json_object_get(report, "same_bits")) printf("  %s\n", json_is_true(json_object_get(report, "same_bits")) ? "the same bits for every budget" : "OTHER BITS: a budget changed the result");
}

int bench_command(int argc, char **argv)
{
    bench_options o;
    bench_rates rates;
    ops *device = NULL;
    char path[PATH_MAX];
    fl_err err = { 0 };
    bool differs = false;
    const int status = read_options(&o, argc, argv);
    if (status >= 0) return status;
    json_t *report = json_object();
    fl_status st = fl_model_path(o.model, path, sizeof path, &err);
    if (st == FL_OK) st = open_device(&device, &o, &err);
    if (st == FL_OK) {
        st = bench_measure(&rates, device, &err);
        device->close(device);
    }
    if (st == FL_OK) st = open_device(&device, &o, &err);
    if (st == FL_OK) {
        json_object_update_new(report, json_pack("{s:s, s:s, s:s, s:s, s:f, s:f}", "bench", o.kind, "model", o.model, "device", o.device, "kernels", device->name, "copy_bytes_per_s",
                                                 rates.copy_bytes_per_s, "product_flop_per_s", rates.product_flop_per_s));
        st = strcmp(o.kind, "prefill") == 0 ? run_prefill(report, &differs, &o, path, device, &rates, &err) : run_decode(report, &o, path, device, &rates, &err);
    }
    if (st == FL_OK && o.as_json) {
        json_dumpf(report, stdout, JSON_COMPACT | JSON_REAL_PRECISION(6));
        putchar('\n');
    } else if (st == FL_OK) {
        print_text(&o, report);
    }
    json_decref(report);
    if (st == FL_OK) return differs ? WORKER_ENDED_FAILED : WORKER_ENDED_WELL;
    fprintf(stderr, "tokenfleet-worker bench: %s\n", err.text);
    return st == FL_INVALID || st == FL_NOT_FOUND ? WORKER_ENDED_USAGE : st == FL_GPU ? WORKER_ENDED_FAILED : WORKER_ENDED_ENVIRONMENT;
}
