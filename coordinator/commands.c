#include "coordinator/commands.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "coordinator/flags.h"

static volatile sig_atomic_t n_signals;

int command_ended(fl_status status)
{
    switch (status) {
    case FL_OK:          return ENDED_WELL;
    case FL_INVALID:
    case FL_UNSUPPORTED:
    case FL_CONFLICT:
    case FL_NOT_FOUND:   return ENDED_USAGE;
    case FL_DISK_FULL:
    case FL_AGAIN:       return ENDED_INCOMPLETE;
    default:             return ENDED_ENVIRONMENT;
    }
}

const char *command_shown_path(const char *path)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) return path;
    size_t n = strlen(here);
    return strncmp(path, here, n) == 0 && path[n] == '/' && path[n + 1] ? path + n + 1 : path;
}

static void count_signal(int number)
{
    (void)number;
    n_signals++;
}

void command_catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = count_signal;                    /* no SA_RESTART: waiting ends at once */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int command_signals(void)
{
    return n_signals;
}
