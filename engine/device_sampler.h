/* device_sampler.h - tokens chosen where the logits lie: the chain of sampler.h on a device that has it (ops.sample), with the log-probabilities that were asked for.
 *
 *   device_sampler_begin ─▶ (logits) ─▶ device_sampler_choose ─▶ device_sampler_send ─ ─ ─▶ device_sampler_wait ─▶ device_sampler_at
 *       whose rows             calls that can be replayed             on its way                when it is needed
 *
 * Penalties need counts of a sequence's ids: a row of them for each slot of the scheduler. Its rows follow a sequence from token to token, whether the tokens were read or not, and are
 * made anew when another sequence has the slot.
 * Results  travel through a ring of two pieces of pinned memory: those of one step are read while the next one runs. Whatever else leaves a step (routing) can go the same way: a
 *          piece beside these for each turn, begin_download in device_sampler_send's place, no more waiting.
 * Memory   device_sampler_bytes of the device, taken at open. Threads  belongs to the engine thread. */
#ifndef ENGINE_DEVICE_SAMPLER_H
#define ENGINE_DEVICE_SAMPLER_H

#include "engine/request.h"

typedef struct device_sampler device_sampler;

/* One token to choose: sample s's next one. Or, without s, one whose log-probability is wanted: given_id, with request r's n_prompt_top. */
typedef struct {
    request *r; sample *s;
    int32_t logits_row, slot, given_id;
    int32_t n_before;                /* tokens of s so far, chosen and not yet read ones among them */
    int32_t position;                /* of the row */
    bool keeps_slot;                 /* s goes on in the slot: false for the first tokens of several samples, chosen where their prompt was computed */
    bool ends_prompt;                /* the last choice of a prompt that several samples share */
} token_choice;

/* For at most n_rows rows of logits at a time and slots 0 .. n_slots - 1; contexts of n_context tokens. FL_FULL without memory, FL_UNSUPPORTED for a vocabulary beyond the sampler's. */
fl_status device_sampler_open(device_sampler **out, ops *o, int32_t n_rows, int32_t n_slots, int32_t n_vocab, int32_t n_context, fl_err *err);
void      device_sampler_close(device_sampler *d);       /* accepts NULL */
uint64_t  device_sampler_bytes(int32_t n_rows, int32_t n_slots, int32_t n_vocab);

/* How many of the first of n choices one turn has room for: at least one. */
int32_t device_sampler_room(const device_sampler *d, const token_choice *choices, int32_t n);

/* Take the n choices, which have room, to the device, and n_padded - n more that nobody reads (of logits rows n .. n_padded - 1). What the calls of device_sampler_choose depend on
 * beside n_padded and its arguments comes back, below 2^DEVICE_SAMPLER_KEY_BITS. */
#define DEVICE_SAMPLER_KEY_BITS 5
uint64_t device_sampler_begin(device_sampler *d, const token_choice *choices, int32_t n, int32_t n_padded);

/* Choose them from logits [n_logits, n_vocab] of the device; lse is room for n_logits values there. */
void device_sampler_choose(device_sampler *d, const float *logits, float *lse, int32_t n_logits);

/* What was chosen begins to travel, in turn 0 or 1. */
void device_sampler_send(device_sampler *d, int turn);

/* It has arrived. FL_GPU when the device failed. */
fl_status device_sampler_wait(device_sampler *d, int turn, fl_err *err);

/* The i-th choice of the turn: its id (-1: the logits are no numbers) and log-probabilities, borrowed until the turn's next device_sampler_send. */
token_chosen device_sampler_at(const device_sampler *d, int turn, int32_t i);

/* Where the device keeps the ids it chose last, by their place among the choices. */
const int32_t *device_sampler_ids(const device_sampler *d);

#endif
