#include "coordinator/spool_gc.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const gc_job *jobs; size_t n_jobs; gc_visit visit; void *context; } walk;

static fl_status show(const walk *w, const char *dir, const char *name, const char *what, fl_err *err)
{
    gc_item item = { .what = what };
    char *path = NULL;
    if (asprintf(&path, "%s/%s", dir, name) < 0) return fl_fail(err, FL_FULL, "no memory for a path");
    item.path = path;
    fl_status st = spool_tree_bytes(path, &item.bytes, err);
    if (st == FL_OK) st = w->visit(w->context, &item, err);
    free(path);
    return st;
}

/* NAME.tmp, and NAME.tmp-ANYTHING. */
static bool is_temporary(const char *name)
{
    const char *at = strstr(name, ".tmp");
    return at && (at[4] == '\0' || at[4] == '-');
}

/* Call `each` for every entry of a folder; one that is not there has none. */
static fl_status each_entry(const walk *w, const char *dir, fl_status (*each)(const walk *, const char *dir, const char *name, const void *with, fl_err *), const void *with, fl_err *err)
{
    DIR *listing = opendir(dir);
    fl_status st = FL_OK;
    if (!listing) return errno == ENOENT ? FL_OK : fl_fail_errno(err, errno, "cannot read %s", dir);
    for (struct dirent *entry; st == FL_OK && (entry = readdir(listing)); ) {
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) st = each(w, dir, entry->d_name, with, err);
    }
    closedir(listing);
    return st;
}

static fl_status look_in_job(const walk *w, const char *dir, const char *name, const void *with, fl_err *err)
{
    const gc_job *job = with;
    char current[24] = "ledger";
    if (job->generation > 1) snprintf(current, sizeof current, "ledger.%u", job->generation);
    if (is_temporary(name)) return show(w, dir, name, "a temporary file", err);
    bool is_ledger = strcmp(name, "ledger") == 0 || strncmp(name, "ledger.", 7) == 0;
    return is_ledger && strcmp(name, current) != 0 ? show(w, dir, name, "a ledger from before a retry, or half of one", err) : FL_OK;
}

static fl_status look_at_job(const walk *w, const char *dir, const char *name, const void *with, fl_err *err)
{
    job_id id;
    (void)with;
    if (!fl_job_parse(name, &id)) return FL_OK;
    for (size_t i = 0; i < w->n_jobs; i++) {
        if (w->jobs[i].id.v != id.v) continue;
        char *path = NULL;
        if (w->jobs[i].is_busy) return FL_OK;
        if (asprintf(&path, "%s/%s", dir, name) < 0) return fl_fail(err, FL_FULL, "no memory for a path");
        fl_status st = each_entry(w, path, look_in_job, &w->jobs[i], err);
        free(path);
        return st;
    }
    return show(w, dir, name, "half an ingest, or the rest of a deleted job", err);
}

static fl_status look_at_top(const walk *w, const char *dir, const char *name, const void *with, fl_err *err)
{
    (void)with;
    return is_temporary(name) ? show(w, dir, name, "a temporary file", err) : FL_OK;
}

fl_status spool_gc_walk(const spool *s, const gc_job *jobs, size_t n_jobs, gc_visit visit, void *context, fl_err *err)
{
    walk w = { jobs, n_jobs, visit, context };
    char *folder = spool_path(s, "jobs");
    fl_status st = folder ? each_entry(&w, folder, look_at_job, NULL, err) : fl_fail(err, FL_FULL, "no memory for a path");
    if (st == FL_OK) st = each_entry(&w, spool_dir(s), look_at_top, NULL, err);
    free(folder);
    return st;
}
