/* device_sampler.h - tokens chosen where the logits lie: the chain of sampler.h on a device that has it (ops.sample), with the log-probabilities that were asked for.
 * Penalties need counts of a sequence's ids: a row of them for each slot of the scheduler. Its rows follow a sequence from token to token and are made anew when another
 * sequence has the slot.
 * Memory   device_sampler_bytes of the device, taken at open. Threads  belongs to the engine thread. */
#ifndef ENGINE_DEVICE_SAMPLER_H
#define ENGINE_DEVICE_SAMPLER_H

#include "engine/request.h"

typedef struct device_sampler device_sampler;

/* One token to choose: sample s's next one. Or, without s, one whose log-probability is wanted: given_id, with request r's n_prompt_top. */
typedef struct { const request *r; const sample *s; int32_t logits_row, slot, given_id; } token_choice;

/* For at most n_rows rows of logits at a time and slots 0 .. n_slots - 1; contexts of n_context tokens. FL_FULL without memory, FL_UNSUPPORTED for a vocabulary beyond the sampler's. */
fl_status device_sampler_open(device_sampler **out, ops *o, int32_t n_rows, int32_t n_slots, int32_t n_vocab, int32_t n_context, fl_err *err);
void      device_sampler_close(device_sampler *d);       /* accepts NULL */
uint64_t  device_sampler_bytes(int32_t n_rows, int32_t n_slots, int32_t n_vocab);

/* Choose n tokens, any number, from logits of the device; lse is room for n_logits values there. They are there when this returns (device_sampler_at). FL_GPU when the device
 * failed, FL_FULL without memory. */
fl_status device_sampler_run(device_sampler *d, const token_choice *choices, int32_t n, const float *logits, float *lse, int32_t n_logits, fl_err *err);

/* The i-th choice of the last run: its id (-1: the logits are no numbers) and log-probabilities, borrowed until the next run. */
token_chosen device_sampler_at(const device_sampler *d, int32_t i);

#endif
