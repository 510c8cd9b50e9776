/* coord_limits.c - how long a row may take (row_limits in coord.h). Looked at with each tick; a job of many rows is gone through over several. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "coordinator/coord_state.h"

#define LIMIT_ROWS_A_TICK 65536

static void time_out(coord *c, job *j, row_index row, lease_id by, const char *what, uint64_t limit_ms)
{
    char text[160];
    int n = snprintf(text, sizeof text, "%s %" PRIu64 " s", what, limit_ms / 1000);
    job_fail_row(c, j, row, by, ROW_TIMEOUT, text, (size_t)n);
    j->n_timeouts++;
}

/* Rows from *at on that are not finished and that no lease holds; with only_fresh: none ever did. */
static void time_out_rows(coord *c, job *j, uint64_t *at, bool only_fresh, const char *what, uint64_t limit_ms)
{
    uint64_t n = row_table_n_rows(j->rows), end = n - *at < LIMIT_ROWS_A_TICK ? n : *at + LIMIT_ROWS_A_TICK;
    for (; *at < end; (*at)++) {
        row_index row = { *at };
        if (row_table_settled(j->rows, row) || (only_fresh && row_table_was_held(j->rows, row))) continue;
        time_out(c, j, row, (lease_id){ 0 }, what, limit_ms);
    }
}

/* All that is left of leases that are older than rows may run. */
static void time_out_leases(coord *c, job *j)
{
    for (size_t i = c->n_leases; i-- > 0;) {
        if (i >= c->n_leases) continue;                  /* copies of its rows were in leases that are gone now */
        lease *l = c->leases[i];
        row_index row;
        if (l->job != j || c->now_ms - l->granted_ms <= (int64_t)j->limits.run_ms) continue;
        send_revoke(c, l->worker, l->id);
        for (uint32_t at = 0; lease_next_row(l, &at, &row);) time_out(c, j, row, l->id, "the row ran longer than", j->limits.run_ms);
        lease_settle(c, l, false);
    }
}

/* Nothing of the job runs any more, nor will. */
static void stop_leases(coord *c, job *j)
{
    j->is_timed_out = true;
    for (size_t i = c->n_leases; i-- > 0;) {
        lease *l = c->leases[i];
        if (l->job != j) continue;
        send_revoke(c, l->worker, l->id);
        lease_end(c, l);
    }
}

void job_check_limits(coord *c, job *j)
{
    const row_limits *limits = &j->limits;
    int64_t age_ms = c->now_ms - j->added_ms;
    if (limits->run_ms) time_out_leases(c, j);
    if (limits->queue_ms && age_ms > (int64_t)limits->queue_ms) time_out_rows(c, j, &j->queue_checked, true, "no worker took the row within", limits->queue_ms);
    if (limits->total_ms && age_ms > (int64_t)limits->total_ms) {
        if (!j->is_timed_out) stop_leases(c, j);
        time_out_rows(c, j, &j->total_checked, false, "the row was not finished within", limits->total_ms);
    }
    job_settle(c, j);
}
