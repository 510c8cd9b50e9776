/* commands.h - the user's commands. Each takes the arguments behind its name and returns the exit status (flags.h). */
#ifndef COORDINATOR_COMMANDS_H
#define COORDINATOR_COMMANDS_H

#include <sys/types.h>
#include "proto/status.h"

int cmd_run(int argc, char **argv);
int cmd_run_as(const char *command, int argc, char **argv);     /* what `run` does, for a command that is called so in the sentences for people */
int cmd_coordinator(int argc, char **argv);
int cmd_submit(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_watch(int argc, char **argv);
int cmd_fetch(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_cancel(int argc, char **argv);
int cmd_retry(int argc, char **argv);
int cmd_delete(int argc, char **argv);
int cmd_gc(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_inspect(int argc, char **argv);
int cmd_bench_fleet(int argc, char **argv);
int cmd_torture(int argc, char **argv);
int cmd_eval(int argc, char **argv);
int cmd_grade(int argc, char **argv);

/* The exit status that goes with a failure: what the user typed, the world, or a full disk. */
int command_ended(fl_status status);

/* `path` as people read it: without the current folder in front, where it lies below it. Borrowed from `path`. */
const char *command_shown_path(const char *path);

/* Count SIGINT and SIGTERM from now on instead of dying of them; command_signals tells how many came. */
void command_catch_signals(void);
int  command_signals(void);

/* fork for a child that becomes another program: SIGINT and SIGTERM end it as they end that one before it catches them. After a plain fork the child has our handlers until
 * it resets them, and a signal that comes then is counted by nobody. -1 with errno, as fork. */
pid_t command_fork(void);

/* From now on SIGINT and SIGTERM end the process with ENDED_INCOMPLETE after "tokenfleet COMMAND: SENTENCE": for commands that may be cut off anywhere. The
 * strings must last. */
void command_stop_on_signal(const char *command, const char *sentence);

#endif
