/* inspect_command.h - `tokenfleet-worker inspect PATH SEQUENCES CONTEXT`: engine/inspect.h's object on standard output, for `tokenfleet inspect`, which links no engine.
 * Threads  plain functions. */
#ifndef WORKER_INSPECT_COMMAND_H
#define WORKER_INSPECT_COMMAND_H

/* argv[0] is "inspect". Returns the exit status: 0 when there is an object, also of a model that is not supported; 2 or 3 after one sentence on stderr. */
int inspect_command(int argc, char **argv);

#endif
