/* The simulator: sim_test [--schedules N] [--from SEED] [--jobs N] [--seed SEED]. Without arguments 2,000 schedules from seed 1. A schedule that breaks a rule
 * prints its seed; --seed SEED plays it again and shows every step. --jobs N plays them in N processes. sim.h says how it works. */
#include "sim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define JOBS_MAX 64
#define SCHEDULE_S_MAX 60                /* of the wall clock: the core itself loops */
#define COVERED_SCHEDULES 1000           /* from so many on everything must have happened */
#define REPLAYED_SCHEDULES 200           /* played once more at the end: nothing outside the seed may have a part in them */

static volatile uint64_t seed_now;

/* The core stopped the process, or never returns: the seed is what one needs. */
static void on_signal(int number)
{
    char text[160];
    int n = snprintf(text, sizeof text, "FAILED: seed %" PRIu64 ": the program %s\nplay it again: sim_test --seed %" PRIu64 "\n", seed_now,
                     number == SIGALRM ? "does not come back" : "broke an assumption or its memory", seed_now);
    if (write(1, text, (size_t)n) < 0) _exit(3);
    _exit(1);
}

static void catch_signals(void)
{
    static const int numbers[] = { SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGALRM };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) signal(numbers[i], on_signal);
}

/* False: a rule was broken, which is printed. */
static bool play_all(uint64_t from, uint64_t n, bool is_verbose, uint64_t hits[SIM_HIT_COUNT])
{
    char violation[512];
    catch_signals();
    for (uint64_t k = 0; k < n; k++) {
        seed_now = from + k;
        alarm(is_verbose ? 0 : SCHEDULE_S_MAX);
        if (sim_play(seed_now, is_verbose, hits, violation)) continue;
        printf("FAILED after %" PRIu64 " schedules: seed %" PRIu64 ": %s\nplay it again: sim_test --seed %" PRIu64 "\n", k + 1, seed_now, violation, seed_now);
        return false;
    }
    alarm(0);
    return true;
}

/* A block of the seeds for each process; their hits come back through pipes. */
static bool play_in_processes(uint64_t from, uint64_t n, uint64_t n_jobs, uint64_t hits[SIM_HIT_COUNT])
{
    pid_t pids[JOBS_MAX];
    int ends[JOBS_MAX];
    bool ok = true;
    fflush(stdout);
    for (uint64_t i = 0; i < n_jobs; i++) {
        int pair[2];
        uint64_t lo = n * i / n_jobs, hi = n * (i + 1) / n_jobs;
        if (pipe(pair) != 0 || (pids[i] = fork()) < 0) { perror("sim_test"); exit(3); }
        if (pids[i] > 0) {
            ends[i] = pair[0];
            close(pair[1]);
            continue;
        }
        bool good = play_all(from + lo, hi - lo, false, hits);
        fflush(stdout);
        _exit(write(pair[1], hits, SIM_HIT_COUNT * sizeof *hits) != (ssize_t)(SIM_HIT_COUNT * sizeof *hits) || !good);
    }
    for (uint64_t i = 0; i < n_jobs; i++) {
        uint64_t some[SIM_HIT_COUNT] = { 0 };
        int status = 1;
        ssize_t n_bytes = read(ends[i], some, sizeof some);
        waitpid(pids[i], &status, 0);
        ok &= status == 0 && n_bytes == (ssize_t)sizeof some;
        for (int k = 0; k < SIM_HIT_COUNT; k++) hits[k] += some[k];
        close(ends[i]);
    }
    return ok;
}

/* Every fault, message, state and transition must have happened, or the schedules prove less than they say. */
static int report_hits(const uint64_t hits[SIM_HIT_COUNT])
{
    int n_missed = 0;
    for (int i = 0; i < SIM_HIT_COUNT; i++) {
        printf("%-22s %11" PRIu64 "%s", sim_hit_name((sim_hit_kind)i), hits[i], i % 4 == 3 ? "\n" : "  ");
        n_missed += hits[i] == 0;
    }
    putchar('\n');
    for (int i = 0; i < SIM_HIT_COUNT; i++)
        if (hits[i] == 0) printf("never happened: %s\n", sim_hit_name((sim_hit_kind)i));
    return n_missed;
}

/* The first n schedules are played again with another heap behind them: all that happens must happen as often. */
static bool replays_exactly(uint64_t from, uint64_t n)
{
    static uint64_t first[REPLAYED_SCHEDULES][SIM_HIT_COUNT], again[SIM_HIT_COUNT];
    char violation[512];
    bool ok = true;
    for (uint64_t k = 0; ok && k < n; k++) {
        ok = sim_play(from + k, false, first[k], violation);
        if (!ok) printf("FAILED: seed %" PRIu64 " does not replay: %s\n", from + k, violation);
    }
    for (uint64_t k = n; ok && k-- > 0;) {
        memset(again, 0, sizeof again);
        ok = sim_play(from + k, false, again, violation) && memcmp(first[k], again, sizeof again) == 0;
        if (!ok) printf("FAILED: seed %" PRIu64 " does not replay: the second time something else happened%s%s\n", from + k, violation[0] ? ": " : "", violation);
    }
    return ok;
}

static double cpu_seconds(int who)
{
    struct rusage u;
    getrusage(who, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

int main(int argc, char **argv)
{
    uint64_t n = 2000, from = 1, n_jobs = 1, hits[SIM_HIT_COUNT] = { 0 };
    bool is_one = false;
    for (int i = 1; i < argc; i += 2) {                  /* name, number */
        char *end = NULL;
        uint64_t value = i + 1 < argc ? strtoull(argv[i + 1], &end, 10) : 0;
        bool is_number = end && end != argv[i + 1] && *end == 0;
        if (is_number && strcmp(argv[i], "--schedules") == 0) n = value;
        else if (is_number && strcmp(argv[i], "--from") == 0) from = value;
        else if (is_number && strcmp(argv[i], "--jobs") == 0 && value >= 1 && value <= JOBS_MAX) n_jobs = value;
        else if (is_number && strcmp(argv[i], "--seed") == 0) { from = value; n = 1; is_one = true; }
        else { fprintf(stderr, "usage: sim_test [--schedules N] [--from SEED] [--jobs 1 to %d] [--seed SEED]\n", JOBS_MAX); return 2; }
    }
    bool ok = n_jobs > 1 && n > n_jobs && !is_one ? play_in_processes(from, n, n_jobs, hits) : play_all(from, n, is_one, hits);
    if (!ok || !replays_exactly(from, n < REPLAYED_SCHEDULES ? n : REPLAYED_SCHEDULES)) return 1;
    int n_missed = report_hits(hits);
    printf("%" PRIu64 " schedules without a violation in %.1f s of CPU\n", n, cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN));
    return n >= COVERED_SCHEDULES && n_missed > 0;
}
