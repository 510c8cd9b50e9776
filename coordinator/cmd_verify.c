/* cmd_verify.c - `tokenfleet verify`: prove from the ledger that a job's results are whole. */
#include "coordinator/commands.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/job_source.h"
#include "coordinator/job_verify.h"

#define NAME "verify"
#define ASK_MS 100

static fl_status ask(job_source *source, json_t **report, fl_err *err)
{
    for (;;) {
        fl_status st = client_call(source->client, "verify", json_pack("{s:s}", "job", source->job), NULL, JOB_SOURCE_CALL_MS, report, NULL, NULL, err);
        if (st != FL_OK) return st;
        const char *state = json_string_value(json_object_get(*report, "state"));
        if (!state || strcmp(state, "running") != 0) return FL_OK;
        json_decref(*report);
        *report = NULL;
        poll(NULL, 0, ASK_MS);
    }
}

static fl_status prove(job_source *source, json_t **report, fl_err *err)
{
    char *dir = job_source_dir(source), *ledger_dir = job_source_ledger(source), *out = job_source_output(source, false), *errors = job_source_output(source, true);
    fl_status st = dir && ledger_dir && out && errors ? job_verify(dir, ledger_dir, out, errors, report, err) : fl_fail(err, FL_FULL, "no memory to verify");
    free(dir);
    free(ledger_dir);
    free(out);
    free(errors);
    return st;
}

int cmd_verify(int argc, char **argv)
{
    const char *operands[FLAGS_OPERANDS_MAX];
    job_place place = { 0 };
    const flag flags[] = { JOB_PLACE_FLAGS(place) };
    const flag_command command = {
        NAME, "[JOB]", "Prove from the ledger that every row has exactly one result or error, compare OUT and the error file with it byte by byte, and print their SHA-256.\n"
        "Ends with 0 when all is sound; 1 when anything was removed, doubled, flipped or edited, naming the row; 4 when the job is not finished.\n"
        "JOB may be left out when there is one. Results are counted by completion (a row with n 4 has 4), errors are rows that failed by themselves (not by a cancel).",
        "tokenfleet verify --spool results.jsonl.spool", 0, 1
    };
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    json_t *report = NULL;
    fl_err err = { 0 };
    command_stop_on_signal(NAME, "stopped before it was proved; verify again");
    fl_status st = job_source_open(&source, place.to, place.spool, true, &err);
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) st = job_source_check_written(&source, NAME, &err);
    if (st == FL_OK) {
        st = source.client ? ask(&source, &report, &err) : prove(&source, &report, &err);
        if (!source.client && (st == FL_NOT_FOUND || st == FL_CORRUPT)) {
            job_source_close(&source);
            return flags_end(ENDED_ROWS_FAILED, NAME, "the job is broken: %s", err.text);
        }
    }
    if (st == FL_OK && place.as_json) job_source_print(&source, report);
    int ended = st == FL_OK ? job_verify_print(report, NAME, place.as_json) : flags_end(command_ended(st), NAME, "%s", err.text);
    json_decref(report);
    job_source_close(&source);
    return ended;
}
