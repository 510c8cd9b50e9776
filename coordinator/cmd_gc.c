/* cmd_gc.c - `tokenfleet gc`: remove what nobody needs from a spool, and finished jobs of long ago. */
#include "coordinator/commands.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "coordinator/job_source.h"
#include "coordinator/job_store.h"
#include "coordinator/spool_gc.h"

#define NAME "gc"
#define DAYS_NONE UINT64_MAX
#define DAY_S 86400
#define ASK_MS 50

typedef struct { job_place place; uint64_t days; bool is_dry; } gc_options;

/* ---- a spool that nobody holds ---- */

typedef struct { const job_source *source; const gc_options *options; journal *journal; journal_job *jobs; size_t n_jobs; json_t *items; json_int_t bytes; } collection;

static void list_item(collection *c, const char *path, const char *what, uint64_t bytes)
{
    json_t *text = json_string(path);
    json_array_append_new(c->items, json_pack("{s:o, s:s, s:I}", "path", text ? text : json_string("?"), "what", what, "bytes", (json_int_t)bytes));
    c->bytes += (json_int_t)bytes;
}

static fl_status collect(void *context, const gc_item *item, fl_err *err)
{
    collection *c = context;
    list_item(c, item->path, item->what, item->bytes);
    return c->options->is_dry ? FL_OK : spool_tree_remove(item->path, err);
}

static fl_status note_job(void *context, const journal_job *job, fl_err *err)
{
    collection *c = context;
    journal_job *grown = realloc(c->jobs, (c->n_jobs + 1) * sizeof *grown);
    if (!grown) return fl_fail(err, FL_FULL, "no memory for a list of jobs");
    c->jobs = grown;
    c->jobs[c->n_jobs++] = *job;
    return FL_OK;
}

static fl_status collect_leftovers(collection *c, fl_err *err)
{
    gc_job *named = calloc(c->n_jobs + 1, sizeof *named);
    if (!named) return fl_fail(err, FL_FULL, "no memory for a list of jobs");
    for (size_t i = 0; i < c->n_jobs; i++) named[i] = (gc_job){ .id = c->jobs[i].id, .generation = c->jobs[i].generation };
    fl_status st = spool_gc_walk(c->source->spool, named, c->n_jobs, collect, c, err);
    free(named);
    return st;
}

static fl_status collect_job(collection *c, const journal_job *job, job_id *old, size_t *n_old, fl_err *err)
{
    uint64_t finished_s = 0, bytes = 0;
    char *dir = spool_job_path(c->source->spool, job->id, NULL);
    fl_status st = dir ? FL_OK : fl_fail(err, FL_FULL, "no memory for a path");
    if (st != FL_OK || job->state == JOB_OPEN || !job_store_finished(dir, &finished_s)) goto done;
    if (finished_s + c->options->days * DAY_S > (uint64_t)time(NULL)) goto done;
    if ((st = spool_tree_bytes(dir, &bytes, err)) != FL_OK) goto done;
    list_item(c, dir, "a finished job", bytes);
    old[(*n_old)++] = job->id;
done:
    free(dir);
    return st;
}

/* The journal forgets them all in one transaction; folders that it does not name are leftovers, should this end early. */
static fl_status collect_old_jobs(collection *c, fl_err *err)
{
    size_t n_old = 0;
    job_id *old = malloc((c->n_jobs + 1) * sizeof *old);
    fl_status st = old ? FL_OK : fl_fail(err, FL_FULL, "no memory for a list of jobs");
    for (size_t i = 0; st == FL_OK && i < c->n_jobs; i++) st = collect_job(c, &c->jobs[i], old, &n_old, err);
    if (st == FL_OK && !c->options->is_dry) st = journal_jobs_delete(c->journal, old, n_old, err);
    for (size_t i = 0; st == FL_OK && i < n_old && !c->options->is_dry; i++) st = spool_job_remove(c->source->spool, old[i], err);
    free(old);
    return st;
}

static fl_status collect_in_spool(const job_source *source, const gc_options *o, json_t **reply, fl_err *err)
{
    collection c = { .source = source, .options = o, .items = json_array() };
    fl_status st = job_source_journal(source, &c.journal, err);
    if (st == FL_OK) st = journal_jobs(c.journal, note_job, &c, err);
    if (st == FL_OK) st = collect_leftovers(&c, err);
    if (st == FL_OK && o->days != DAYS_NONE) st = collect_old_jobs(&c, err);
    if (st == FL_OK) *reply = json_pack("{s:O, s:I, s:I, s:[]}", "items", c.items, "unnamed", (json_int_t)0, "bytes", c.bytes, "busy");
    journal_close(c.journal);
    json_decref(c.items);
    free(c.jobs);
    return st;
}

/* ---- a coordinator ---- */

static fl_status ask(const job_source *source, bool is_dry, uint64_t days, json_t **reply, fl_err *err)
{
    json_t *args = json_pack("{s:I, s:b}", "older_than", days == DAYS_NONE ? (json_int_t)-1 : (json_int_t)days, "dry_run", is_dry);
    return client_call(source->client, "gc", args, NULL, 10 * JOB_SOURCE_CALL_MS, reply, NULL, NULL, err);
}

/* The coordinator removes in the background: ask until nothing is left to go. */
static fl_status collect_at_coordinator(job_source *source, const gc_options *o, json_t **reply, fl_err *err)
{
    fl_status st = job_source_list(source, reply, err);  /* looking through a big spool takes long: is anybody there? */
    if (st != FL_OK) return st;
    json_decref(*reply);
    *reply = NULL;
    st = ask(source, o->is_dry, o->days, reply, err);
    long long left = o->is_dry || st != FL_OK ? 0 : (long long)json_integer_value(json_object_get(*reply, "removing"));
    while (st == FL_OK && left > 0) {
        json_t *again = NULL;
        poll(NULL, 0, ASK_MS);
        st = client_call(source->client, "gc", json_pack("{s:i, s:b, s:b}", "older_than", -1, "dry_run", true, "removing_only", true), NULL, JOB_SOURCE_CALL_MS, &again, NULL, NULL, err);
        left = (long long)json_integer_value(json_object_get(again, "removing"));
        json_decref(again);
    }
    return st;
}

/* ---- the command ---- */

static void print_answer(const json_t *reply, bool is_dry)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(reply, "items"), i, one) {
        printf("%12lld  %s  (%s)\n", (long long)json_integer_value(json_object_get(one, "bytes")), json_string_value(json_object_get(one, "path")),
               json_string_value(json_object_get(one, "what")));
    }
    long long unnamed = (long long)json_integer_value(json_object_get(reply, "unnamed"));
    if (unnamed) printf("and %lld more\n", unnamed);
    json_array_foreach(json_object_get(reply, "busy"), i, one) {
        printf("%s stays: %s\n", json_string_value(json_object_get(one, "job")), json_string_value(json_object_get(one, "why")));
    }
    printf("%lld bytes %s\n", (long long)json_integer_value(json_object_get(reply, "bytes")), is_dry ? "would be freed" : "freed");
}

int cmd_gc(int argc, char **argv)
{
    gc_options o = { .days = DAYS_NONE };
    const flag flags[] = {
        JOB_PLACE_FLAGS(o.place),
        { "--older-than", FLAG_NUMBER, "DAYS", "also delete jobs whose outputs were written so many days ago (0: all finished ones)", &o.days, 0, 36500, false },
        { "--dry-run", FLAG_SWITCH, "", "only list what would go", &o.is_dry, 0, 0, false },
    };
    const flag_command command = {
        NAME, "", "Remove what killed processes left in a spool: halves of ingests, ledgers from before a retry, temporary files; with --older-than finished jobs too.\n"
        "A job whose outputs are being written, fetched or verified stays and is named. Prints what goes and the bytes that are freed.",
        "tokenfleet gc --spool /var/lib/tokenfleet --older-than 30 --dry-run", 0, 0
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n);
    if (status >= 0) return status;
    job_source source;
    json_t *reply = NULL;
    fl_err err = { 0 };
    command_stop_on_signal(NAME, "stopped before it was done; run it again");
    fl_status st = job_source_open(&source, o.place.to, o.place.spool, true, &err);
    if (st == FL_OK) st = source.client ? collect_at_coordinator(&source, &o, &reply, &err) : collect_in_spool(&source, &o, &reply, &err);
    if (st == FL_OK && o.place.as_json) job_source_print(&source, reply);
    else if (st == FL_OK) print_answer(reply, o.is_dry);
    json_decref(reply);
    job_source_close(&source);
    return st == FL_OK ? ENDED_WELL : flags_end(command_ended(st), NAME, "%s", err.text);
}
