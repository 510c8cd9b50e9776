#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

lease *lease_find(const coord *c, lease_id id)
{
    return id_map_get(&c->lease_of, id.v);
}

/* The first sample of the lease at or after (row, sample). */
static uint32_t lower_bound(const lease *l, uint64_t row, uint32_t sample)
{
    uint32_t lo = 0, hi = l->n_samples;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        const lease_sample *s = &l->samples[mid];
        if (s->row < row || (s->row == row && s->sample < sample)) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static lease_sample *find_sample(const lease *l, row_index row, uint32_t sample)
{
    uint32_t i = lower_bound(l, row.v, sample);
    if (i == l->n_samples || l->samples[i].row != row.v || l->samples[i].sample != sample || l->samples[i].is_gone) return NULL;
    return &l->samples[i];
}

bool lease_holds(const lease *l, row_index row, uint32_t sample)
{
    return find_sample(l, row, sample) != NULL;
}

bool lease_holds_row(const lease *l, row_index row)
{
    for (uint32_t i = lower_bound(l, row.v, 0); i < l->n_samples && l->samples[i].row == row.v; i++)
        if (!l->samples[i].is_gone) return true;
    return false;
}

bool lease_is_grading(const lease *l)
{
    return row_table_is_grade(l->job->rows, (row_index){ l->samples[0].row });
}

bool lease_is_only(const lease *l, row_index row)
{
    for (uint32_t i = lower_bound(l, row.v, 0); i < l->n_samples && l->samples[i].row == row.v; i++)
        if (!l->samples[i].is_gone && !row_table_held_twice(l->job->rows, row, l->samples[i].sample)) return true;
    return false;
}

bool lease_next_row(const lease *l, uint32_t *at, row_index *row)
{
    for (uint32_t i = *at; i < l->n_samples; i++) {
        if (l->samples[i].is_gone) continue;
        row->v = l->samples[i].row;
        while (i < l->n_samples && l->samples[i].row == row->v) i++;
        *at = i;
        return true;
    }
    return false;
}

lease *lease_other(const coord *c, const job *j, row_index row, uint32_t sample, const lease *except)
{
    for (size_t i = 0; i < c->n_leases; i++) {
        lease *l = c->leases[i];
        if (l->job == j && l != except && lease_holds(l, row, sample)) return l;
    }
    return NULL;
}

/* May this worker's lease hold the sample? As the second one only beside one of another worker. */
static bool can_hold(const coord *c, const job *j, worker_id by, row_index row, uint32_t sample, bool may_copy)
{
    if (!row_table_has(j->rows, row.v, sample) || row_table_failed(j->rows, row) || row_table_done(j->rows, row, sample)) return false;
    if (!row_table_held(j->rows, row, sample)) return true;
    return may_copy && !row_table_held_twice(j->rows, row, sample) && lease_other(c, j, row, sample, NULL)->worker.v != by.v;
}

lease *lease_add(coord *c, lease_id id, job *j, worker_id worker_of_it, const lease_item *items, uint32_t n_items, bool may_copy)
{
    size_t n = 0;
    uint32_t n_stalls = 0;
    for (uint32_t i = 0; i < n_items; i++) n += items[i].sample_hi - items[i].sample_lo;
    lease *l = coord_alloc(1, sizeof *l);
    l->samples = coord_alloc(n, sizeof *l->samples);
    for (uint32_t i = 0; i < n_items; i++) {
        for (uint32_t s = items[i].sample_lo; s < items[i].sample_hi; s++) {
            row_index row = items[i].row;
            if (!can_hold(c, j, worker_of_it, row, s, may_copy)) continue;
            if (row_table_held(j->rows, row, s)) row_table_hold_again(j->rows, row, s);
            else row_table_hold(j->rows, row, s);
            l->samples[l->n_samples++] = (lease_sample){ (uint32_t)row.v, (uint16_t)s, false };
            if (l->n_samples == 1 || l->samples[l->n_samples - 2].row != row.v) l->line_bytes += row_line_bytes(c, j, row);
            l->cost_left += row_table_cost(j->rows, row);
            if (row_table_stalls(j->rows, row) > n_stalls) n_stalls = row_table_stalls(j->rows, row);
        }
    }
    if (l->n_samples == 0) {
        free(l->samples);
        free(l);
        return NULL;
    }
    l->id = id;
    l->job = j;
    l->worker = worker_of_it;
    l->n_left = l->n_samples;
    l->granted_ms = c->now_ms;
    l->deadline_ms = c->now_ms + c->options.term_ms;
    l->progress_limit_ms = (int64_t)c->options.progress_ms << n_stalls;
    c->leases = coord_grow(c->leases, &c->leases_capacity, c->n_leases, sizeof *c->leases);
    l->at = c->n_leases;
    c->leases[c->n_leases++] = l;
    id_map_put(&c->lease_of, id.v, l);
    worker *w = worker_find(c, worker_of_it);
    if (w) {
        w->n_leases++;
        w->held_tokens += l->cost_left;
        w->held_line_bytes += l->line_bytes;
        if (id.v > w->newest.v) w->newest = id;
    }
    return l;
}

void partial_drop(coord *c, lease *l, row_index row, uint32_t sample)
{
    for (partial **at = &l->partials; *at; at = &(*at)->next) {
        partial *p = *at;
        if (p->row.v != row.v || p->sample != sample) continue;
        for (uint32_t i = 0; i < p->n_have; i++) {
            c->partial_bytes -= p->pieces[i].bytes;
            l->partial_bytes -= p->pieces[i].bytes;
            send_release(c, p->pieces[i]);
        }
        *at = p->next;
        free(p->pieces);
        free(p);
        return;
    }
}

/* The sample leaves the lease; what it is in the row table is the caller's affair. */
static void take_out(coord *c, lease *l, lease_sample *s)
{
    row_index row = { s->row };
    uint32_t cost = row_table_cost(l->job->rows, row);
    s->is_gone = true;
    l->n_left--;
    l->cost_left -= cost;
    worker *w = worker_find(c, l->worker);
    if (w) w->held_tokens -= cost;
    partial_drop(c, l, row, s->sample);
}

void lease_drop_sample(coord *c, lease *l, row_index row, uint32_t sample)
{
    lease_sample *s = find_sample(l, row, sample);
    FL_ASSERT(s);
    take_out(c, l, s);
}

void lease_release_sample(coord *c, lease *l, row_index row, uint32_t sample)
{
    lease_drop_sample(c, l, row, sample);
    row_table_release(l->job->rows, row, sample);
    c->must_grant_all = true;
}

void lease_release_row(coord *c, lease *l, row_index row)
{
    for (uint32_t i = lower_bound(l, row.v, 0); i < l->n_samples && l->samples[i].row == row.v; i++)
        if (!l->samples[i].is_gone) lease_release_sample(c, l, row, l->samples[i].sample);
}

static void lease_remove(coord *c, lease *l)
{
    worker *w = worker_find(c, l->worker);
    if (w) {
        w->n_leases--;
        w->held_line_bytes -= l->line_bytes;
    }
    lease *last = c->leases[--c->n_leases];
    c->leases[l->at] = last;
    last->at = l->at;
    id_map_remove(&c->lease_of, l->id.v);
    action_add(&c->out->journal, ACTION_LEASE_END)->lease = l->id;
    free(l->samples);
    free(l);
}

void lease_end(coord *c, lease *l)
{
    for (uint32_t i = 0; i < l->n_samples; i++)
        if (!l->samples[i].is_gone) lease_release_sample(c, l, (row_index){ l->samples[i].row }, l->samples[i].sample);
    lease_remove(c, l);
}

bool lease_settle(coord *c, lease *l, bool has_changed)
{
    if (l->n_left == 0) {
        lease_remove(c, l);
        return true;
    }
    if (has_changed) lease_save(c, l);
    return false;
}

static lease_item *lease_items(const lease *l, action_list *list, uint32_t *n_items)
{
    lease_item *items = fl_arena_take(&list->arena, (l->n_left ? l->n_left : 1) * sizeof *items);
    FL_ASSERT(items);
    uint32_t n = 0;
    for (uint32_t i = 0; i < l->n_samples; i++) {
        const lease_sample *s = &l->samples[i];
        if (s->is_gone) continue;
        if (n > 0 && items[n - 1].row.v == s->row && items[n - 1].sample_hi == s->sample) items[n - 1].sample_hi++;
        else items[n++] = (lease_item){ { s->row }, s->sample, s->sample + 1u };
    }
    *n_items = n;
    return items;
}

void lease_save(coord *c, const lease *l)
{
    uint32_t n_items;
    lease_item *items = lease_items(l, c->out, &n_items);
    action *a = action_add(&c->out->journal, ACTION_LEASE_SAVE);
    a->lease = l->id;
    a->job = l->job->id;
    a->worker = l->worker;
    a->items = items;
    a->n_items = n_items;
}
