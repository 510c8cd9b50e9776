/* tokenfleet_main.c - the user's program: a table of commands. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include "coordinator/commands.h"
#include "coordinator/flags.h"

static const struct { const char *name; int (*main)(int argc, char **argv); const char *help; } commands[] = {
    { "run", cmd_run, "run a job on this machine: JSONL in, completions out, in order" },
    { "generate", cmd_generate, "complete one prompt" },
    { "coordinator", cmd_coordinator, "serve a spool to workers and clients" },
    { "submit", cmd_submit, "give a job to a coordinator" },
    { "list", cmd_list, "the jobs of a coordinator or spool" },
    { "status", cmd_status, "how a job stands" },
    { "watch", cmd_watch, "follow a job until it ends" },
    { "fetch", cmd_fetch, "download a finished job's output and error files" },
    { "verify", cmd_verify, "prove that a job's results are whole and unedited" },
    { "cancel", cmd_cancel, "end a job and keep what is finished" },
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static void print_usage(FILE *file)
{
    fprintf(file, "usage: tokenfleet COMMAND [arguments]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(file, "\n`tokenfleet COMMAND --help` tells more and shows an example; `tokenfleet --version` prints the version.\n"
                  "\nexample:\n  tokenfleet run job.jsonl --model demo --workers 2\n");
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2) {
        fprintf(stderr, "tokenfleet: no command is given; `tokenfleet --help` lists them\n");
        return ENDED_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0) {
        print_usage(stdout);
        return ENDED_WELL;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tokenfleet %s\n", TOKENFLEET_VERSION);
        return ENDED_WELL;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) return commands[i].main(argc - 2, argv + 2);
    }
    fprintf(stderr, "tokenfleet: there is no command '%s'; `tokenfleet --help` lists them\n", argv[1]);
    return ENDED_USAGE;
}
