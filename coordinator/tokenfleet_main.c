/* tokenfleet_main.c - the user's program: a table of commands. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/commands.h"
#include "coordinator/flags.h"

static const struct { const char *name; int (*main)(int argc, char **argv); const char *help; } commands[] = {
    { "run", cmd_run, "run a job on this machine: JSONL in, completions out, in order" },
    { "generate", cmd_generate, "complete one prompt" },
    { "eval", cmd_eval, "sample solutions of code tasks, judge them, and print pass@k" },
    { "grade", cmd_grade, "judge a file of samples of code tasks" },
    { "inspect", cmd_inspect, "what a model is, what it needs, and whether it runs here" },
    { "coordinator", cmd_coordinator, "serve a spool to workers and clients" },
    { "submit", cmd_submit, "give a job to a coordinator" },
    { "list", cmd_list, "the jobs of a coordinator or spool" },
    { "status", cmd_status, "how a job stands" },
    { "watch", cmd_watch, "follow a job until it ends" },
    { "fetch", cmd_fetch, "download a job's output and error files; of a running job as they grow" },
    { "verify", cmd_verify, "prove that a job's results are whole and unedited" },
    { "cancel", cmd_cancel, "end a job and keep what is finished" },
    { "retry", cmd_retry, "run a finished job's failed rows again" },
    { "delete", cmd_delete, "take a finished job out of a coordinator or spool" },
    { "gc", cmd_gc, "remove what is left over in a spool, and old jobs" },
    { "bench-fleet", cmd_bench_fleet, "how big a fleet can one coordinator feed on this machine" },
    { "torture", cmd_torture, "prove on this machine that nothing is lost when everything fails" },
};
#define N_COMMANDS (sizeof commands / sizeof *commands)

static void print_usage(FILE *file)
{
    fprintf(file, "usage: tokenfleet COMMAND [arguments]\n\n");
    for (size_t i = 0; i < N_COMMANDS; i++) fprintf(file, "  %-12s %s\n", commands[i].name, commands[i].help);
    fprintf(file, "\n`tokenfleet COMMAND --help` tells more and shows an example; `tokenfleet --version` prints the version.\n"
                  "\nexample:\n  tokenfleet run job.jsonl --model demo --workers 2\n");
}

/* A standard stream that was closed must not become the number of a file of the spool: sentences would be written into it. */
static void fill_standard_streams(void)
{
    int fd;
    do fd = open("/dev/null", O_RDWR); while (fd >= 0 && fd <= 2);
    if (fd > 2) close(fd);
}

static int run_command(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "tokenfleet: no command is given; `tokenfleet --help` lists them\n");
        return ENDED_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return ENDED_WELL;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("tokenfleet %s\n", TOKENFLEET_VERSION);
        return ENDED_WELL;
    }
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strcmp(commands[i].name, argv[1]) != 0) continue;
        command_stop_on_signal(commands[i].name, "stopped; nothing is lost, run the same command again");        /* until the command has its own way to stop */
        return commands[i].main(argc - 2, argv + 2);
    }
    fprintf(stderr, "tokenfleet: there is no command '%s'; `tokenfleet --help` lists them\n", argv[1]);
    return ENDED_USAGE;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    fill_standard_streams();
    int ended = run_command(argc, argv);
    if (fflush(stdout) == 0 && !ferror(stdout)) return ended;
    if (errno == EPIPE) return ended;                    /* who read the answer has seen enough */
    fprintf(stderr, "tokenfleet: the answer cannot be written to standard output: %s\n", strerror(errno));
    return ENDED_ENVIRONMENT;
}
