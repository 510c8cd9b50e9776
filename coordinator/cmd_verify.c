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
    const char *to = NULL, *spool_dir_given = NULL, *operands[FLAGS_OPERANDS_MAX];
    bool as_json = false;
    const flag flags[] = {
        { "--to", FLAG_TEXT, "ENDPOINT", "the coordinator, as in tcp://127.0.0.1:7070", &to, 0, 0, false },
        { "--spool", FLAG_TEXT, "DIR", "or a spool on this machine, as in OUT.jsonl.spool", &spool_dir_given, 0, 0, false },
        { "--json", FLAG_SWITCH, "", "print the report as JSON", &as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "[JOB]", "Prove from the ledger that every row has exactly one result or error, compare OUT and the error file with it byte by byte, and print their SHA-256.\n"
        "Ends with 0 when all is sound; 1 when anything was removed, doubled, flipped or edited, naming the row; 4 when the job is not finished.\n"
        "Results are counted by completion (a row with n 4 has 4), errors are rows that failed by themselves (not by a cancel).",
        "tokenfleet verify --spool results.jsonl.spool", 0, 1
    };
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    json_t *report = NULL;
    fl_err err = { 0 };
    fl_status st = job_source_open(&source, to, spool_dir_given, true, &err);
    if (st == FL_OK) st = job_source_choose(&source, n ? operands[0] : NULL, &err);
    if (st == FL_OK) {
        st = source.client ? ask(&source, &report, &err) : prove(&source, &report, &err);
        if (!source.client && (st == FL_NOT_FOUND || st == FL_CORRUPT)) {
            job_source_close(&source);
            return flags_end(ENDED_ROWS_FAILED, NAME, "the job is broken: %s", err.text);
        }
    }
    if (st == FL_OK && as_json) {
        char *text = json_dumps(report, JSON_COMPACT);
        if (text) puts(text);
        free(text);
    }
    int ended = st == FL_OK ? job_verify_print(report, NAME, as_json) : flags_end(command_ended(st), NAME, "%s", err.text);
    json_decref(report);
    job_source_close(&source);
    return ended;
}
