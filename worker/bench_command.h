/* bench_command.h - `tokenfleet-worker bench prefill|decode|job|sampler`: how fast this device is at it, as text or JSON, beside the copy and product rates measured in the same run.
 * prefill also compares the last token's logits over prefill budgets: other bits are a failure. */
#ifndef WORKER_BENCH_COMMAND_H
#define WORKER_BENCH_COMMAND_H

/* Returns the exit status: 0; 1 when bits differ or a step failed; 2 or 3 after a sentence on stderr. */
int bench_command(int argc, char **argv);

#endif
