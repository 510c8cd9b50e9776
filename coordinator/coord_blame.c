/* coord_blame.c - rows under which an engine ended: they run alone until it is known whose fault it was, and what was seen is kept for people. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

void row_suspect(coord *c, job *j, row_index row, const lease *by)
{
    if (row_table_is_grade(j->rows, row)) return;        /* what a grader runs is in a sandbox of its own: the end of one says nothing about its samples */
    row_table_move(j->rows, row, ROW_QUEUE_SUSPECT);
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
