/* batch_bench.c - tokens a second of a model on the CPU, prefill and decode apart: N sequences of random prompts, greedy, none ends early.
 *   batch_bench MODEL [--threads N] [--sequences N] [--prompt N] [--tokens N] [--runs N]       defaults 2, 16, 128, 128, 3
 * All prompts are one step's prefill, so the steps after it decode all sequences at once. Prints a line a run: wall rates, and the process's CPU seconds of each
 * part as a check: on a quiet machine they are close to threads * wall. tests/bench/batch_llama_cpp.py does the same with llama.cpp. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/engine.h"
#include "proto/clock.h"
#include "proto/log.h"

typedef struct { double wall, cpu; } moment;

static moment now(void) { return (moment){ fl_awake_s(), (double)fl_cpu_us(0) * 1e-6 }; }

static void must(fl_status st, const fl_err *err)
{
    if (st == FL_OK) return;
    fprintf(stderr, "batch_bench: %s\n", err->text);
    exit(3);
}

typedef struct { int32_t threads, sequences, prompt, tokens, runs; } settings;

static void add_sequences(engine *e, const settings *s, int32_t run)
{
    const engine_info *info = engine_describe(e);
    int32_t *prompt = malloc((size_t)s->prompt * sizeof *prompt);
    fl_err err;
    if (!prompt) exit(3);
    for (int32_t i = 0; i < s->sequences; i++) {
        for (int32_t j = 0; j < s->prompt; j++) prompt[j] = (int32_t)((uint32_t)((run * s->sequences + i) * s->prompt + j) * 2654435761u % (uint32_t)info->n_vocab);
        engine_request r = { .tag = (uint64_t)i, .prompt = prompt, .n_prompt = s->prompt, .sample_hi = 1 };
        r.sampling.max_tokens = s->tokens;
        r.sampling.ignore_eos = true;
        r.sampling.n_top = r.sampling.n_prompt_top = -1;
        r.sampling.repetition_penalty = 1.0f;
        r.sampling.top_p = 1.0f;
        must(engine_add(e, &r, &err), &err);
    }
    free(prompt);
}

/* Steps until nothing is left; those that read prompts count as prefill. */
static void run_once(engine *e, const settings *s, int32_t run)
{
    moment part[2] = { { 0, 0 }, { 0, 0 } };
    uint64_t tokens[2] = { 0, 0 };
    int32_t left = s->sequences;
    fl_err err;
    add_sequences(e, s, run);
    while (left > 0) {
        engine_event events[64];
        int32_t n = 0;
        engine_stats before = engine_read_stats(e);
        moment begin = now();
        must(engine_step(e, events, 64, &n, &err), &err);
        moment end = now();
        engine_stats after = engine_read_stats(e);
        int which = after.prefill_tokens == before.prefill_tokens;
        part[which].wall += end.wall - begin.wall;
        part[which].cpu += end.cpu - begin.cpu;
        tokens[which] += which ? after.decode_tokens - before.decode_tokens : after.prefill_tokens - before.prefill_tokens;
        for (int32_t i = 0; i < n; i++) {
            if (events[i].kind == ENGINE_FAILED) { fprintf(stderr, "batch_bench: %s\n", events[i].text); exit(3); }
            fl_result_free(events[i].result);
            free(events[i].result);
            left--;
        }
    }
    printf("prefill %.1f tok/s (%llu tokens, %.3f s, cpu %.3f s)  decode %.1f tok/s (%llu tokens, %.3f s, cpu %.3f s)\n", (double)tokens[0] / part[0].wall, (unsigned long long)tokens[0],
           part[0].wall, part[0].cpu, (double)tokens[1] / part[1].wall, (unsigned long long)tokens[1], part[1].wall, part[1].cpu);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    settings s = { 2, 16, 128, 128, 3 };
    const struct { const char *flag; int32_t *value; } flags[] = { { "--threads", &s.threads }, { "--sequences", &s.sequences }, { "--prompt", &s.prompt }, { "--tokens", &s.tokens }, { "--runs", &s.runs } };
    if (argc < 2 || argc % 2) { fprintf(stderr, "batch_bench MODEL [--threads N] [--sequences N] [--prompt N] [--tokens N] [--runs N]\n"); return 2; }
    for (int i = 2; i < argc; i += 2) {
        size_t f = 0;
        while (f < 5 && strcmp(argv[i], flags[f].flag) != 0) f++;
        if (f == 5 || (*flags[f].value = atoi(argv[i + 1])) < 1) { fprintf(stderr, "batch_bench: '%s %s' is not understood\n", argv[i], argv[i + 1]); return 2; }
    }
    int32_t whole = (s.prompt + 63) / 64 * 64, context = s.prompt + s.tokens;
    engine_options options = { .model = argv[1], .n_threads = s.threads, .batch_max = s.sequences, .prefill_budget = s.sequences * whole, .context_max = context,
                               .kv_tokens = (int64_t)s.sequences * ((context + 63) / 64 * 64) };
    engine *e = NULL;
    fl_err err;
    must(engine_open(&e, &options, &err), &err);
    for (int32_t i = 0; i < s.runs; i++) run_once(e, &s, i);
    engine_close(e);
    return 0;
}
