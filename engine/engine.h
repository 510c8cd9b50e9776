/* engine.h - one model on one device: continuous batching with chunked prefill over paged KV blocks and recurrent-state slots.
 * Bits     ops/DESIGN.md section 7: what a request yields depends on the request, the model and the numerics id alone, never on its neighbours, budgets,
 *          threads, preemptions or the prefix cache.
 * Memory   planned, taken and logged in engine_open; engine_step allocates what grows with its requests: their tokens, events, and the lists of a prompt with many samples.
 * Threads  an engine belongs to one thread. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "engine/sampling.h"
#include "proto/detok.h"
#include "proto/result.h"
#include "proto/row_error.h"
#include "proto/status.h"

typedef struct engine engine;

typedef struct {
    const char *model;               /* a model directory, a .gguf file, or random:SEED:CONFIG_DIR (model.h) */
    struct ops *ops;                 /* where to compute: engine_open takes it over, also when it fails; NULL = the CPU */
    int32_t n_sharing;               /* engines that share the memory of ops' GPU; 0 = 1 */
    int32_t n_threads;               /* of the CPU; 0 = all cores of this process */
    int32_t batch_max;               /* sequences in a step, 1 .. 4096; 0 = 64, on a GPU 256 */
    int32_t prefill_budget;          /* prompt tokens in a step; whole 64-token chunks, at least one; 0 = 512, on a GPU 4096 */
    int32_t context_max;             /* prompt + completion; 0 = the model's */
    int64_t kv_tokens;               /* KV pool in tokens; 0 = what the memory plan allows (context_max at least). Enough for one full sequence is the
                                        minimum */
} engine_options;

typedef struct {
    const char *name;                /* last part of the path; of a .gguf file without .gguf and -00001-of-0000N */
    const char *architecture;        /* "qwen3_5_moe" */
    const char *fingerprint;         /* hex, of the model (ops/DESIGN.md section 7) */
    const char *numerics;            /* numerics id: "cpu/3/bf16/f32": where, version, weights, KV */
    int32_t n_vocab;
    int32_t context_model, context_max;                  /* prompt + completion: what the model can do, and what this engine was opened for */
    const int32_t *eos_ids; int32_t n_eos;
    float temperature, top_p, min_p, repetition_penalty; int32_t top_k;      /* generation_config.json; OpenAI's defaults where absent */
    int64_t kv_tokens;
    int32_t batch_max, prefill_budget;       /* what this engine was opened for */
    bool has_tokenizer;
} engine_info;

/* A prompt and n samples that share its prefill. Everything is copied. */
typedef struct {
    uint64_t tag;                    /* the caller's, unique among live requests; events carry it */
    const int32_t *prompt; int32_t n_prompt;             /* >= 1 */
    uint32_t sample_lo, sample_hi;   /* samples sample_lo .. sample_hi - 1 are generated */
    sampling sampling;
    const char *const *stop; const size_t *stop_bytes; size_t n_stop;
    const int32_t *stop_ids; size_t n_stop_ids;
} engine_request;

typedef enum { ENGINE_FINISHED, ENGINE_FAILED } engine_event_kind;
typedef struct {
    engine_event_kind kind;
    uint64_t tag;
    uint32_t sample;                 /* FINISHED */
    fl_result *result;               /* FINISHED: an fl_result (proto/result.h) the caller takes over: fl_result_free, then free. The prompt's log-probabilities
                                        and, with them, its ids are in sample 0's alone: a thousand samples do not carry a thousand copies */
    fl_row_error error;              /* FAILED (the whole request): ROW_NAN_LOGITS */
    char text[240];
} engine_event;

/* Counts and seconds since it was opened; what is running and waiting now. */
typedef struct {
    uint64_t prefill_tokens, decode_tokens, preemptions, steps;
    uint32_t running, waiting;
    int64_t kv_tokens_used;
    double step_s, wait_s;           /* in engine_step's steps; of these, waiting for the device: the rest is the host's own work, beside which the device works on the step before */
    double device_s;                 /* in which the device worked on steps: what is missing to the time on the clock it was idle. 0 where that is not measured */
} engine_stats;

fl_status engine_open(engine **out, const engine_options *options, fl_err *err);
void      engine_close(engine *e);                       /* accepts NULL */
const engine_info *engine_describe(const engine *e);
const fl_detok *engine_detok(const engine *e);           /* empty table when the model has no tokenizer */

/* FL_INVALID: an id outside the vocabulary, prompt + max_tokens above context_max, sizes out of range: a row error with this sentence. FL_FULL: no memory; the queue has no
 * limit of its own. */
fl_status engine_add(engine *e, const engine_request *request, fl_err *err);

/* One batch step; on a device that chooses tokens itself the host is one step behind: the step is launched, and the results of the one before are used while it runs. At most `capacity` events are stored and *n_events set; the rest comes with the next call. FL_AGAIN: nothing to do. Any other failure is the engine's end; FL_GPU,
 * naming the kernel: this process cannot use the GPU any more. */
fl_status engine_step(engine *e, engine_event *events, int32_t capacity, int32_t *n_events, fl_err *err);

/* Forget a request, or one sample of it (sample UINT32_MAX = all): no further event carries it; the request's failure still comes for the samples that
 * were left. Unknown tags are ignored. */
void engine_cancel(engine *e, uint64_t tag, uint32_t sample);
engine_stats engine_read_stats(const engine *e);

#endif
