#include "sim.h"

#include <stdlib.h>
#include <string.h>

static sim_segment *last_segment(sim_ledger *l)
{
    return &l->segments[l->n_segments - 1];
}

static void add_segment(sim_ledger *l)
{
    l->segments = realloc(l->segments, (l->n_segments + 1) * sizeof *l->segments);
    FL_ASSERT(l->segments);
    memset(&l->segments[l->n_segments++], 0, sizeof *l->segments);
}

static void put_bytes(sim_segment *seg, const void *data, size_t n)
{
    while (seg->n + n > seg->capacity) {
        seg->capacity = seg->capacity ? seg->capacity * 2 : 1024;
        seg->data = realloc(seg->data, seg->capacity);
        FL_ASSERT(seg->data);
    }
    memcpy(seg->data + seg->n, data, n);
    seg->n += n;
}

static void put_frame(sim_ledger *l, const ledger_frame *frame)
{
    sim_segment *seg = last_segment(l);
    put_bytes(seg, frame->header, FL_FRAME_HEADER_BYTES);
    for (int i = 0; i < frame->n_parts; i++) put_bytes(seg, frame->parts[i].data, frame->parts[i].bytes);
    l->chain = frame->checksum;
    l->n_frames++;
}

/* As ledger.c writes them: a segment is left only after a marker. */
bool sim_ledger_append(sim *s, sim_job *j, const ledger_record *record)
{
    ledger_frame frame;
    sim_ledger *l = &j->ledger;
    bool is_new = l->n_segments > 0 && !l->is_dirty && last_segment(l)->n >= SIM_SEGMENT_BYTES;
    if (is_new) sim_hit(s, SIM_SEGMENT_ROLL);
    if (is_new || l->n_segments == 0) add_segment(l);
    fl_status st = ledger_frame_record(&frame, record, l->chain, NULL);
    FL_ASSERT(st == FL_OK);
    put_frame(l, &frame);
    l->is_dirty = true;
    return is_new;
}

void sim_ledger_mark(sim_job *j)
{
    sim_ledger *l = &j->ledger;
    ledger_frame marker;
    if (!l->is_dirty) return;
    ledger_frame_marker(&marker, l->n_frames, (ledger_place){ l->n_segments, last_segment(l)->n }, l->chain);
    put_frame(l, &marker);
}

static void note_durable(sim_job *j, const ledger_record *r)
{
    if (r->kind == LEDGER_RESULT && r->piece + 1 == r->n_pieces) j->rows[r->row.v].durable |= 1u << r->sample;
    if (r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_INGEST_ERROR)
        for (uint64_t row = r->row.v; row < j->n_rows; row += j->n_base) j->rows[row].has_error = j->rows[row].is_error_appended = true;
    if (r->kind == LEDGER_CLOSE) j->is_closed = true;
}

void sim_ledger_sync(sim_job *j)
{
    sim_ledger *l = &j->ledger;
    if (!l->is_dirty) return;
    sim_segment *seg = last_segment(l);
    uint64_t chain = l->marked_chain;
    for (size_t at = seg->synced; at < seg->n;) {        /* the group that became durable, frame by frame (its place is not 0, so no ledger_walk) */
        fl_frame frame;
        ledger_record r;
        fl_status st = fl_frame_decode(&frame, seg->data + at, seg->n - at, chain, NULL);
        FL_ASSERT(st == FL_OK);
        if (frame.kind != LEDGER_MARKER) {
            st = ledger_record_decode(&r, frame.kind, frame.payload, frame.payload_bytes, NULL);
            FL_ASSERT(st == FL_OK);
            note_durable(j, &r);
        }
        chain = frame.checksum;
        at += FL_FRAME_HEADER_BYTES + (size_t)frame.payload_bytes;
    }
    seg->synced = seg->n;
    l->marked_chain = l->chain;
    l->marked_frames = l->n_frames;
    l->is_dirty = false;
}

void sim_ledger_cut_back(sim_job *j)
{
    sim_ledger *l = &j->ledger;
    if (l->n_segments == 0) return;
    last_segment(l)->n = last_segment(l)->synced;
    l->chain = l->marked_chain;
    l->n_frames = l->marked_frames;
    l->is_dirty = false;
}

void sim_ledger_crash(sim *s, sim_job *j)
{
    sim_ledger *l = &j->ledger;
    if (l->n_segments == 0) return;
    sim_segment *seg = last_segment(l);
    if (seg->n > seg->synced) {
        size_t n_loose = seg->n - seg->synced;
        uint32_t fate = sim_below(s, 4);
        if (fate == 0) {
            seg->n = seg->synced;
            if (seg->n == 0 && l->n_segments > 1 && sim_chance(s, 500)) {            /* the folder was not synced: the new file is not there */
                free(seg->data);
                l->n_segments--;
            }
        } else if (fate == 1) {
            seg->n = seg->synced + sim_below(s, (uint32_t)n_loose + 1);
            sim_hit(s, SIM_TORN_WRITE);
        } else if (fate == 2) {                          /* the file grew, its first bytes were never written */
            size_t n_zero = 1 + sim_below(s, (uint32_t)n_loose);
            memset(seg->data + seg->synced, 0, n_zero < 24 && n_loose >= 24 ? 24 : n_zero);
            seg->n = seg->synced + (n_zero < 24 && n_loose >= 24 ? 24 : n_zero);
            sim_hit(s, SIM_LOST_WRITE);
        }                                                /* else: all of it survived though nobody waited for it */
    }
}

bool sim_ledger_walk(sim *s, sim_job *j, ledger_cursor *cursor, ledger_visit visit, void *context)
{
    sim_ledger *l = &j->ledger;
    fl_err err = { 0 };
    for (uint32_t i = 0; i < l->n_segments; i++) {
        size_t marked;
        sim_segment *seg = &l->segments[i];
        fl_status st = ledger_walk(seg->data, seg->n, i + 1, i + 1 == l->n_segments, cursor, visit, context, &marked, &err);
        if (st != FL_OK) {
            sim_violation(s, "the ledger of job %llu cannot be replayed: %s", (unsigned long long)j->id.v, err.text);
            return false;
        }
        if (marked < seg->synced) {
            sim_violation(s, "replay cut synced bytes of job %llu: %zu of %zu are left", (unsigned long long)j->id.v, marked, seg->synced);
            return false;
        }
        seg->n = seg->synced = marked;
    }
    l->chain = l->marked_chain = cursor->chain;
    l->n_frames = l->marked_frames = cursor->n_frames;
    l->is_dirty = false;
    return true;
}

void sim_ledger_free(sim_ledger *l)
{
    for (uint32_t i = 0; i < l->n_segments; i++) free(l->segments[i].data);
    free(l->segments);
    memset(l, 0, sizeof *l);
}

void sim_lease_bits(uint64_t bits[SIM_WORDS], const lease_item *items, uint32_t n_items)
{
    memset(bits, 0, SIM_WORDS * sizeof *bits);
    for (uint32_t i = 0; i < n_items; i++)
        for (uint32_t k = items[i].sample_lo; k < items[i].sample_hi; k++) sim_bit_set(bits, items[i].row.v, k);
}

uint32_t sim_lease_items(const sim_lease *l, lease_item items[SIM_ROWS_MAX * SIM_N_MAX])
{
    uint32_t n = 0;
    for (uint64_t row = 0; row < SIM_ROWS_MAX; row++)
        for (uint32_t k = 0; k < SIM_N_MAX; k++)
            if (sim_bit(l->bits, row, k)) items[n++] = (lease_item){ { row }, k, k + 1 };
    return n;
}

sim_lease *sim_lease_find(sim_lease_list *list, uint64_t id)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->v[i].id == id) return &list->v[i];
    return NULL;
}

void sim_lease_end(sim_lease_list *list, uint64_t id)
{
    sim_lease *l = sim_lease_find(list, id);
    if (l) *l = list->v[--list->n];
}

void sim_lease_save(sim_lease_list *list, const action *a)
{
    sim_lease *l = sim_lease_find(list, a->lease.v);
    if (!l) {
        list->v = sim_grow(list->v, &list->capacity, list->n, sizeof *list->v);
        l = &list->v[list->n++];
        *l = (sim_lease){ .id = a->lease.v, .worker = a->worker.v, .job = sim_job_index(a->job.v) };
    }
    sim_lease_bits(l->bits, a->items, a->n_items);
}

void sim_journal_perform(sim *s, const action *a)
{
    switch (a->type) {
    case ACTION_LEASE_SAVE: sim_lease_save(&s->leases, a); break;
    case ACTION_LEASE_END: sim_lease_end(&s->leases, a->lease.v); break;
    case ACTION_NEXT_LEASE: s->next_lease = a->value; break;
    case ACTION_JOB_STATE: sim_job_of(s, a->job.v)->journal_state = a->state; break;
    default: FL_ASSERT(0 && "not an action of the journal");
    }
}
