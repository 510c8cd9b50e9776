/* cmd_coordinator.c - `tokenfleet coordinator`: serve a spool to workers and clients until told to stop. */
#include "coordinator/commands.h"

#include <stdio.h>
#include "coordinator/daemon.h"
#include "coordinator/flags.h"

#define NAME "coordinator"
#define TURN_MS 500
#define TERM_S 30
#define PROGRESS_S 600
#define BEATS_A_TERM 6

static bool has_open_job(coord_daemon *d)
{
    stored_job *job;
    for (size_t i = 0; (job = daemon_job_at(d, i)); i++) {
        if (job->state == JOB_OPEN || job->outputs_due) return true;
    }
    return false;
}

/* Until a second signal, or a first one and nothing is held by workers any more. */
static fl_status serve(coord_daemon *d, fl_err *err)
{
    fl_status st = FL_OK;
    for (int seen = 0; st == FL_OK && seen < 2; ) {
        int n = command_signals();
        if (n > 0 && seen == 0) {
            event ev = { .type = EVENT_DRAIN, .drain = true };
            fprintf(stderr, "tokenfleet coordinator: draining: workers finish what they hold (a second signal stops at once)\n");
            st = daemon_step(d, &ev, err);
        }
        seen = n;
        if (st == FL_OK) st = daemon_turn(d, TURN_MS, err);
        if (seen > 0 && (coord_n_leases(daemon_core(d)) == 0 || coord_n_workers(daemon_core(d)) == 0)) break;
    }
    return st;
}

int cmd_coordinator(int argc, char **argv)
{
    daemon_options options = { 0 };
    uint64_t term_s = TERM_S, progress_s = PROGRESS_S;
    const flag flags[] = {
        { "--spool", FLAG_TEXT, "DIR", "where jobs, ledgers and leases are kept", &options.spool, 0, 0, true },
        { "--bind", FLAG_TEXT, "ENDPOINT", "where workers and clients come: tcp://127.0.0.1:PORT (0 = any) or ipc:///PATH", &options.endpoint, 0, 0, true },
        { "--lease-term", FLAG_NUMBER, "S", "seconds without a heartbeat after which a worker's rows go to others (default 30)", &term_s, 2, 3600, false },
        { "--progress-limit", FLAG_NUMBER, "S", "seconds without a new token after which a worker's rows go to others (default 600)", &progress_s, 1, 86400, false },
        { "--unsafe-spool", FLAG_SWITCH, "", "allow a spool on a network file system", &options.unsafe_spool, 0, 0, false },
    };
    const flag_command command = {
        NAME, "", "Serve a spool to workers and clients. SIGTERM or Ctrl-C drains: workers finish what they hold and end; the second one stops at once.\n"
        "Everything that was answered is durable: started again, it goes on (start workers again too). Ends with 4 when jobs are unfinished.",
        "tokenfleet coordinator --spool /var/lib/tokenfleet --bind tcp://127.0.0.1:7070", 0, 0
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;
    options.term_ms = (uint32_t)term_s * 1000;
    options.beat_ms = options.term_ms / BEATS_A_TERM;
    options.progress_ms = (uint32_t)progress_s * 1000;
    coord_daemon *d = NULL;
    fl_err err = { 0 };
    fl_status st = transport_check_endpoint(options.endpoint, &err);
    if (st != FL_OK) return flags_end(ENDED_USAGE, NAME, "%s", err.text);
    command_stop_on_signal(NAME, "stopped before its spool was read; nothing is lost, start it again");
    st = daemon_open(&d, &options, &err);
    if (st == FL_OK) {
        command_catch_signals();
        fprintf(stderr, "tokenfleet coordinator: serving %s at %s\n", options.spool, daemon_endpoint(d));
        st = serve(d, &err);
    }
    int ended = st != FL_OK ? flags_end(st == FL_DISK_FULL ? ENDED_INCOMPLETE : ENDED_ENVIRONMENT, NAME, "%s", err.text)
              : has_open_job(d) ? flags_end(ENDED_INCOMPLETE, NAME, "stopped with unfinished jobs; nothing is lost, start it and its workers again to continue") : ENDED_WELL;
    daemon_close(d);
    return ended;
}
