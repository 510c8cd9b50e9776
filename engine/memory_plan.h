/* memory_plan.h - what an engine takes, in bytes, before it takes any of it: a function of the model, the device, the batch, the context and the KV pool. engine_open logs it, refuses
 * one that this machine or GPU cannot hold and takes exactly this; `tokenfleet inspect` prints it.
 * Threads  plain functions. */
#ifndef ENGINE_MEMORY_PLAN_H
#define ENGINE_MEMORY_PLAN_H

#include <stdbool.h>
#include <stdint.h>
#include "engine/engine.h"
#include "engine/model.h"

#define BATCH_MAX 4096

typedef struct {
    bool is_host;                        /* all of it is the machine's memory; else mapped, expanded and tables are, and the rest is the GPU's */
    int32_t batch_max, prefill_budget;   /* sequences and prompt tokens in a step */
    int32_t n_rows, n_logit_rows;        /* rows in a step, and rows of logits computed at a time */
    int32_t context, kv_blocks;
    int32_t n_padding;                   /* 1 where steps are padded to be replayed: a KV block and a state slot beyond those of sequences; else 0 */
    uint64_t mapped, expanded, tables;   /* weight files; F8_E4M3 weights as fp32; views (and on the host rotary tables) */
    uint64_t weights, ropes;             /* stored weights (on a device, and random ones); rotary tables of a device */
    uint64_t activations, logits, kv, states, reserve;   /* reserve: of a device, for what its libraries and copies of batches take */
    uint64_t device_free, device_all;    /* before any of it was taken, this engine's share of it; 0 on the host */
    uint64_t sequence_kv, sequence_state;        /* of one sequence of `context` tokens; gaps between layers' states are in `states` alone */
} memory_plan;

/* The plan for options' limits (their zeros are defaults; the model is the one already mapped). On a device the default KV pool is all that is left of its memory, or what a full
 * batch can use. FL_INVALID for a limit outside its range. */
fl_status memory_plan_make(memory_plan *plan, model *m, ops *o, const engine_options *options, fl_err *err);

uint64_t  memory_plan_taken(const memory_plan *plan);    /* of the machine or the GPU; but for the mapped files, which the system reads and drops as it needs */
uint64_t  memory_plan_machine(void);                     /* this machine's memory, or less where a control group has less; 0 = unknown */

/* FL_FULL, saying what takes most and what to lower, when the machine or GPU has less than the plan takes. */
fl_status memory_plan_check(const memory_plan *plan, fl_err *err);
void      memory_plan_log(const memory_plan *plan);

#endif
