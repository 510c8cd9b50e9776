#include "coordinator/commands.h"

#include <errno.h>
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

static const char *volatile last_words[2];

static void say(const char *text)
{
    ssize_t n = write(2, text, strlen(text));
    (void)n;                                             /* nobody reads it: the exit status tells */
}

static void stop(int number)
{
    (void)number;
    say("tokenfleet ");
    say(last_words[0]);
    say(": ");
    say(last_words[1]);
    say("\n");
    _exit(ENDED_INCOMPLETE);
}

static void handle_signals(void (*handler)(int))
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;                         /* no SA_RESTART: waiting ends at once */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

void command_catch_signals(void)
{
    handle_signals(count_signal);
}

void command_stop_on_signal(const char *command, const char *sentence)
{
    last_words[0] = command;
    last_words[1] = sentence;
    handle_signals(stop);
}

pid_t command_fork(void)
{
    sigset_t ours, before;
    sigemptyset(&ours);
    sigaddset(&ours, SIGINT);
    sigaddset(&ours, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &ours, &before);
    pid_t pid = fork();
    int error = errno;
    if (pid == 0) {
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);         /* one that came meanwhile ends the child here */
    errno = error;
    return pid;
}

int command_signals(void)
{
    return n_signals;
}
