/* gpus_command.h - `tokenfleet-worker gpus`: the GPUs that this build can compute on here, as one JSON object: {"gpus": [{"index", "name", "sm", "memory_bytes", "free_bytes"}], "why"},
 * where `why` is the sentence that ended the search (there is no next GPU; or there is none at all). `run` asks it. */
#ifndef WORKER_GPUS_COMMAND_H
#define WORKER_GPUS_COMMAND_H

/* Returns the exit status: 0, also without a GPU; 2 or 3 after a sentence on stderr. */
int gpus_command(int argc, char **argv);

#endif
