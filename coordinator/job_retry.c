#include "coordinator/job_retry.h"

#include <stdlib.h>
#include "proto/log.h"

#define GROUP_BYTES (8u << 20)                           /* of records between two syncs */

typedef struct { const row_table *table; ledger *to; uint64_t group_bytes; } copying;

/* Copy one record of the old ledger. A group ends only behind the last piece of a result. */
static fl_status copy_record(void *context, const ledger_record *r, fl_err *err)
{
    copying *c = context;
    if (r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_CLOSE) return FL_OK;
    if (r->kind == LEDGER_RESULT && row_table_failed(c->table, r->row)) return FL_OK;
    fl_status st = ledger_append(c->to, r, err);
    if (st != FL_OK) return st;
    c->group_bytes += r->body.bytes;
    if (c->group_bytes < GROUP_BYTES || (r->kind == LEDGER_RESULT && r->piece + 1 < r->n_pieces)) return FL_OK;
    c->group_bytes = 0;
    return ledger_commit(c->to, err);
}

static fl_status write_ledger(const stored_job *old, const char *dir, fl_err *err)
{
    copying c = { .table = old->table };
    fl_status st = spool_tree_remove(dir, err);          /* of an attempt that was cut off */
    if (st == FL_OK) st = ledger_create(&c.to, dir, err);
    if (st == FL_OK) st = ledger_scan(old->ledger_dir, copy_record, &c, err);
    if (st == FL_OK) st = ledger_commit(c.to, err);
    ledger_close(c.to);
    return st == FL_OK ? spool_sync_dir(dir, err) : st;
}

fl_status job_retry_build(stored_job **fresh, const spool *s, const journal_job *named, job_retry_counts *counts, fl_err *err)
{
    stored_job *old = NULL;
    journal_job next = { .id = named->id, .state = JOB_OPEN, .created_s = named->created_s, .generation = named->generation + 1 };
    char *dir = spool_ledger_path(s, named->id, next.generation);
    bool has_begun = false;
    fl_status st = dir ? job_store_open(&old, s, named, false, err) : fl_fail(err, FL_FULL, "no memory for a path");
    *fresh = NULL;
    if (st != FL_OK) goto done;
    if (old->state == JOB_OPEN) { st = fl_fail(err, FL_CONFLICT, "the job is not finished yet"); goto done; }
    *counts = (job_retry_counts){ .again = old->counts.rows - old->counts.completed - old->n_bad, .kept = old->counts.completed, .bad = old->n_bad };
    if (counts->again == 0) goto done;
    has_begun = true;
    if ((st = write_ledger(old, dir, err)) != FL_OK) goto done;
    st = job_store_open(fresh, s, &next, true, err);     /* what a restart would read is what we go on with */
done:
    job_store_close(old);
    if (st != FL_OK && has_begun) spool_tree_remove(dir, NULL);      /* what stays is removed by the next start */
    free(dir);
    return st;
}

fl_status job_retry_commit(journal *j, const stored_job *fresh, fl_err *err)
{
    fl_status st = journal_begin(j, err);
    if (st == FL_OK) st = journal_job_reopen(j, fresh->id, fresh->generation, err);
    if (st == FL_OK) st = journal_commit(j, err);
    if (st != FL_OK) journal_rollback(j);
    return st;
}

void job_retry_abandon(stored_job *fresh)
{
    fl_err why;
    if (!fresh) return;
    if (spool_tree_remove(fresh->ledger_dir, &why) != FL_OK) fl_log(FL_LOG_WARN, "%s; the next start removes it", why.text);
    job_store_close(fresh);
}

fl_status job_retry(const spool *s, journal *j, const journal_job *named, job_retry_counts *counts, fl_err *err)
{
    stored_job *fresh = NULL;
    fl_status st = job_retry_build(&fresh, s, named, counts, err);
    if (st != FL_OK || !fresh) return st;
    if ((st = job_retry_commit(j, fresh, err)) != FL_OK) {
        if (st == FL_DISK_FULL) job_retry_abandon(fresh);
        else job_store_close(fresh);
        return st;
    }
    char *old = spool_ledger_path(s, named->id, named->generation);
    st = job_store_drop_outputs(fresh, err);
    if (st == FL_OK) st = old ? spool_tree_remove(old, err) : fl_fail(err, FL_FULL, "no memory for a path");
    free(old);
    job_store_close(fresh);
    return st;
}
