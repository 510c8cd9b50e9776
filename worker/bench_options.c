#include "worker/bench_options.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model_shapes.h"
#include "worker/worker_options.h"

static const char *const kind_names[BENCH_KINDS] = { "prefill", "decode", "job", "sampler" };

enum { PREFILL = 1 << BENCH_PREFILL, DECODE = 1 << BENCH_DECODE, JOB = 1 << BENCH_JOB, SAMPLER = 1 << BENCH_SAMPLER, ALL = PREFILL | DECODE | JOB | SAMPLER };

typedef enum { FLAG_TEXT, FLAG_NUMBER, FLAG_REAL, FLAG_LIST, FLAG_SWITCH } flag_kind;
typedef struct {
    const char *name;
    int kinds;                           /* of benches that have it */
    flag_kind kind;
    const char *value, *help;
    void *out;                           /* const char **, int64_t *, double *, bench_sizes *, bool * */
    int64_t least, most, step;           /* of numbers; multiples of step */
} flag;

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

static int help(const flag *flags, size_t n)
{
    puts("tokenfleet-worker bench KIND measures this device, beside the rates of a large copy and a large product in the same run.\n\n"
         "  tokenfleet-worker bench prefill --model random:1:qwen3-8b --device cuda:0 --prompt 8192\n"
         "  tokenfleet-worker bench decode --model random:1:qwen3-0.6b --device cuda:0 --batch 1,64,256 --context 1024 --json\n"
         "  tokenfleet-worker bench job --device cuda:0\n"
         "  tokenfleet-worker bench sampler --device cuda:0\n\n"
         "prefill: one prompt in steps of each budget: seconds, and the last token's argmax and logit, whose bits must be the same for all (else it ends with 1).\n"
         "decode:  steps of one token for so many sequences of --context tokens: steps and tokens a second, logits included, without sampling.\n"
         "job:     a whole job through the engine, without a coordinator: tokens a second, what of it the device's rates explain, and a hash of all tokens. Its rows are those of\n"
         "         nano-vLLM's bench: 256 rows, prompts and outputs of 100 to 1024 tokens drawn by Python's random with seed 0 (133,966 output tokens), end tokens ignored.\n"
         "sampler: choosing a token for each row of logits: the CPU's chain on one core and, with a GPU, the GPU's on logits of the host (their copy included) and on its own.\n");
    for (size_t i = 0; i < n; i++) {
        char left[48], kinds[48] = "";
        for (int k = 0; k < BENCH_KINDS && flags[i].kinds != ALL; k++)
            if (flags[i].kinds & 1 << k) snprintf(kinds + strlen(kinds), sizeof kinds - strlen(kinds), "%s%s", kinds[0] ? ", " : "", kind_names[k]);
        snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value);
        printf("  %-22s %s%s%s\n", left, kinds, kinds[0] ? ": " : "", flags[i].help);
    }
    puts("\n--model takes a model, or random:SEED:SHAPE with the name of a shape (" MODEL_SHAPE_NAMES ")\nor a directory with a config.json.");
    return WORKER_ENDED_WELL;
}

/* Whole numbers with commas between them, at most `most_numbers`; how many, 0 when it is none. */
static int32_t read_numbers(int64_t *out, int32_t most_numbers, const char *text, const flag *f)
{
    int32_t n = 0;
    for (;;) {
        char *end;
        errno = 0;
        const long long v = strtoll(text, &end, 10);
        if (end == text || errno || v < f->least || v > f->most || v % f->step != 0 || n == most_numbers || (*end && *end != ',')) return 0;
        out[n++] = v;
        if (!*end) return n;
        text = end + 1;
    }
}

static int set_value(const flag *f, const char *text)
{
    int64_t numbers[BENCH_SIZES_MAX];
    char *end, multiples[40] = "";
    if (f->step > 1) snprintf(multiples, sizeof multiples, ", multiples of %lld", (long long)f->step);
    if (f->kind == FLAG_TEXT) {
        if (!*text) return usage("%s needs a value", f->name);
        *(const char **)f->out = text;
    } else if (f->kind == FLAG_REAL) {
        const double v = strtod(text, &end);
        if (!*text || *end || !isfinite(v) || v < (double)f->least || v > (double)f->most) return usage("%s takes a number from %lld to %lld, not '%.40s'", f->name, (long long)f->least, (long long)f->most, text);
        *(double *)f->out = v;
    } else if (f->kind == FLAG_NUMBER) {
        if (read_numbers(numbers, 1, text, f) == 0) return usage("%s takes a whole number from %lld to %lld%s, not '%.40s'", f->name, (long long)f->least, (long long)f->most, multiples, text);
        *(int64_t *)f->out = numbers[0];
    } else {
        bench_sizes *sizes = f->out;
        sizes->n = read_numbers(numbers, BENCH_SIZES_MAX, text, f);
        if (sizes->n == 0)
            return usage("%s takes at most %d whole numbers from %lld to %lld%s, with commas between them, not '%.40s'", f->name, BENCH_SIZES_MAX, (long long)f->least, (long long)f->most, multiples, text);
        for (int32_t i = 0; i < sizes->n; i++) sizes->v[i] = (int32_t)numbers[i];
    }
    return -1;
}

static bool set_kind(bench_options *o, const char *name)
{
    for (int k = 0; k < BENCH_KINDS; k++) {
        if (strcmp(name, kind_names[k]) != 0) continue;
        *o = (bench_options){ .kind = (bench_kind)k, .kind_name = kind_names[k], .model = k == BENCH_JOB ? "random:1:qwen3-0.6b" : "random:1:qwen3.5-0.8b", .device = "cpu", .precision = "16",
                              .prompt = 4096, .context = 512, .budgets = { { 64, 512, 2048, 0 }, 4 }, .batches = { { 1, 64, 256 }, 3 }, .vocabularies = { { 151936, 248320 }, 2 }, .n_calls = 200,
                              .rows = 256, .temperature = 0.6 };
        if (k == BENCH_SAMPLER) o->batches = (bench_sizes){ { 1, 256 }, 2 };
        return true;
    }
    return false;
}

int bench_options_parse(bench_options *o, int argc, char **argv)
{
    const flag flags[] = {
        { "--model", ALL & ~SAMPLER, FLAG_TEXT, "PATH", "default random:1:qwen3.5-0.8b, for job random:1:qwen3-0.6b", &o->model, 0, 0, 1 },
        { "--device", ALL, FLAG_TEXT, "cpu|cuda:N", "where to compute (default cpu)", &o->device, 0, 0, 1 },
        { "--precision", ALL, FLAG_TEXT, "16|f32", "what a GPU computes in (default 16)", &o->precision, 0, 0, 1 },
        { "--threads", ALL, FLAG_NUMBER, "N", "threads of the CPU (default: all cores)", &o->n_threads, 1, 1024, 1 },
        { "--prompt", PREFILL, FLAG_NUMBER, "N", "tokens of the prompt (default 4096)", &o->prompt, 1, 1 << 20, 1 },
        { "--budgets", PREFILL, FLAG_LIST, "N,N,...", "prompt tokens in a step, multiples of 64; 0 = all in one (default 64,512,2048,0)", &o->budgets, 0, 1 << 20, 64 },
        { "--context", DECODE, FLAG_NUMBER, "N", "tokens of each sequence that decodes (default 512)", &o->context, 1, 1 << 20, 1 },
        { "--batch", DECODE | SAMPLER, FLAG_LIST, "N,N,...", "rows in a step (default 1,64,256, for sampler 1,256)", &o->batches, 1, 4096, 1 },
        { "--vocab", SAMPLER, FLAG_LIST, "N,N,...", "sizes of the vocabulary (default 151936,248320)", &o->vocabularies, 2, 1 << 20, 1 },
        { "--calls", SAMPLER, FLAG_NUMBER, "N", "calls of each kind, fewer where they take long (default 200)", &o->n_calls, 1, 100000, 1 },
        { "--rows", JOB, FLAG_NUMBER, "N", "rows (default 256)", &o->rows, 1, 1 << 20, 1 },
        { "--input", JOB, FLAG_NUMBER, "N", "tokens of every prompt (default: drawn)", &o->input, 1, 1 << 20, 1 },
        { "--output", JOB, FLAG_NUMBER, "N", "output tokens of every row (default: drawn)", &o->output, 1, 1 << 20, 1 },
        { "--temperature", JOB, FLAG_REAL, "T", "default 0.6; 0 is greedy", &o->temperature, 0, 100, 1 },
        { "--batch", JOB, FLAG_NUMBER, "N", "sequences in a step (default 64, on a GPU 256)", &o->batch, 1, 4096, 1 },
        { "--prefill-budget", JOB, FLAG_NUMBER, "N", "prompt tokens in a step (default 512, on a GPU 4096)", &o->prefill_budget, 1, 1 << 20, 1 },
        { "--kv-tokens", JOB, FLAG_NUMBER, "N", "size of the KV pool in tokens (default: what the memory plan allows)", &o->kv_tokens, 1, (int64_t)1 << 40, 1 },
        { "--json", ALL, FLAG_SWITCH, "", "print one JSON object", &o->as_json, 0, 0, 1 },
    };
    const size_t n = sizeof flags / sizeof *flags;
    if (argc < 2) return usage("say prefill, decode, job or sampler");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) return help(flags, n);
    if (!set_kind(o, argv[1])) return usage("there is prefill, decode, job and sampler, not '%.40s'", argv[1]);
    for (int i = 2; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const size_t name_bytes = equals ? (size_t)(equals - argv[i]) : strlen(argv[i]);
        const flag *f = NULL;
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) return help(flags, n);
        for (size_t k = 0; k < n; k++)
            if (flags[k].kinds & 1 << o->kind && strlen(flags[k].name) == name_bytes && memcmp(flags[k].name, argv[i], name_bytes) == 0) f = &flags[k];
        if (!f) return usage("%.40s is not a flag of bench %s", argv[i], o->kind_name);
        if (f->kind == FLAG_SWITCH) {
            if (equals) return usage("%s takes no value", f->name);
            *(bool *)f->out = true;
            continue;
        }
        if (!equals && i + 1 == argc) return usage("%s needs a value", f->name);
        const int status = set_value(f, equals ? equals + 1 : argv[++i]);
        if (status >= 0) return status;
    }
    if (worker_device_gpu(o->device) == -2) return usage("--device is cpu or cuda:N with a GPU's number, not '%.40s'", o->device);
    if (strcmp(o->precision, "16") != 0 && strcmp(o->precision, "f32") != 0) return usage("--precision is 16 or f32, not '%.40s'", o->precision);
    return -1;
}
