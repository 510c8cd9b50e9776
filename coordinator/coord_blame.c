/* coord_blame.c - rows under which an engine ended: which of them it was is found by halves, and what was seen is kept for people.
 *
 *     256 rows together ──end──▶ 128 ──done: not they
 *                                128 ──end──▶ 64 ──done
 *                                             64 ──end──▶ ... 1 ──end, with evidence, twice──▶ quarantined
 *
 * All rows of an engine that ended are suspects. They run in groups (coord_grant.c): rows of one job, fewer than were together at the end (row_table_group: the largest power of two below that), on a
 * worker that holds nothing else, so that whatever ends the engine is in the group. A group that finishes has cleared its rows; one that ends an engine halves again. So one bad row among n costs about
 * log2(n) ends, and all others run in batches. Blame is for a row that was alone, as ever. An end that is nobody's fault (SIGKILL) halves as well: then nothing more happens to the groups. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

uint64_t rows_together(const coord *c, worker_id id)
{
    const worker *w = worker_find(c, id);
    uint64_t n = w ? w->n_ended : 0;
    row_index row;
    for (size_t i = 0; i < c->n_leases; i++)
        for (uint32_t at = 0; c->leases[i]->worker.v == id.v && lease_next_row(c->leases[i], &at, &row);) n++;
    return n;
}

void worker_ended(worker *w, uint64_t n_rows, bool is_stall)
{
    if (w->n_ended == 0) w->n_ends += is_stall ? 2 : 1;  /* the first of its leases that comes back */
    w->n_ended += n_rows;
    if (w->n_ends == 1 && !w->grades) w->runs_suspects = true;       /* it will hold nothing, so nobody need be kept free */
}

void row_suspect(coord *c, job *j, row_index row, const lease *by, uint64_t n_together)
{
    if (row_table_is_grade(j->rows, row)) return;        /* what a grader runs is in a sandbox of its own: the end of one says nothing about its samples */
    row_table_suspect(j->rows, row, n_together);
    for (size_t i = c->n_leases; i-- > 0;) {             /* what other workers hold of it would end their engines too, with all that runs beside it */
        lease *l = c->leases[i];
        if (l->job != j || l == by || !lease_holds_row(l, row)) continue;
        send_revoke_row(c, l->worker, l->id, row, WIRE_WHOLE_ROW);
        lease_release_row(c, l, row);
        lease_settle(c, l, true);
    }
}

static void copy_words(char *out, size_t n_bytes, const char *text, size_t n)
{
    if (n > n_bytes - 1) n = n_bytes - 1;
    if (n > 0) memcpy(out, text, n);
    out[n] = '\0';
}

void row_note_end(coord *c, job *j, row_index row, const worker *w, bool was_alone, wire_str last_words)
{
    row = row_table_graded(j->rows, row);
    if (!j->ends) j->ends = coord_alloc(COORD_ENDS_MAX, sizeof *j->ends);
    coord_end *e = NULL;
    for (uint32_t i = 0; i < j->n_ends && !e; i++)
        if (j->ends[i].row.v == row.v) e = &j->ends[i];
    if (e && e->was_alone && !was_alone) return;         /* what it did alone says more */
    if (!e && j->n_ends < COORD_ENDS_MAX) e = &j->ends[j->n_ends++];
    for (uint32_t i = 0; !e && i < j->n_ends; i++)       /* full: one that was not alone makes room, else this one is not kept */
        if (!j->ends[i].was_alone && was_alone) e = &j->ends[i];
    if (!e) return;
    e->row = row;
    e->was_alone = was_alone;
    e->n_crashes = row_table_crashes(j->rows, row) + was_alone;
    e->at_ms = c->now_ms;
    copy_words(e->place, sizeof e->place, w ? w->place : "", w ? strlen(w->place) : 0);
    copy_words(e->last_words, sizeof e->last_words, last_words.p, last_words.n);
}

void row_crashed(coord *c, job *j, row_index row)
{
    j->n_crashes++;
    row_table_add_crash(j->rows, row);
    bool is_grade = row_table_is_grade(j->rows, row);
    const char *sentence = is_grade ? "the grader crashed twice while it graded this row alone" : "the engine crashed twice while this row ran alone";     /* the same whoever ran it: the last words are for status and the log */
    send_note(c, "job-%016" PRIx64 " row %" PRIu64 ": the %s crashed while it ran alone (%u of %d)", j->id.v, row_table_graded(j->rows, row).v, is_grade ? "grader" : "engine",
              row_table_crashes(j->rows, row), ROW_CRASHES_MAX);
    if (row_table_crashes(j->rows, row) >= ROW_CRASHES_MAX) job_fail_row(c, j, row, (lease_id){ 0 }, ROW_CRASH_QUARANTINED, sentence, strlen(sentence));
}
