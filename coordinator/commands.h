/* commands.h - the user's commands. Each takes the arguments behind its name and returns the exit status (flags.h). */
#ifndef COORDINATOR_COMMANDS_H
#define COORDINATOR_COMMANDS_H

int cmd_generate(int argc, char **argv);

#endif
