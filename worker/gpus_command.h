/* gpus_command.h - `tokenfleet-worker gpus`: the GPUs that this build can compute on here, as one JSON object: {"found", "gpus": [{"index", "name", "sm", "memory_bytes", "free_bytes"}],
 * "why"}. `found` is how many the driver shows; `why` says why each of the others cannot be used, or why there is none at all, and is empty where all of them can. `index` is what --device
 * cuda:N takes: one that cannot be used leaves a gap. `run` asks it. */
#ifndef WORKER_GPUS_COMMAND_H
#define WORKER_GPUS_COMMAND_H

/* Returns the exit status: 0, also without a GPU; 2 or 3 after a sentence on stderr. */
int gpus_command(int argc, char **argv);

#endif
