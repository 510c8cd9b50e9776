/* Who gets what, and how much of it.
 * A worker is filled up to a window, in tokens: what it asked for (credit_tokens), but at first only WINDOW_ROWS_FIRST rows, doubled with
 * each lease it finishes, so that workers which come a little later find work too. It is refilled when it is half empty. For a worker whose steps hold a batch of sequences samples
 * count instead of rows: it gets a batch of them at first, and then two, long as they may be, as far as twice its KV pool: half empty its batch is full. A shard is never more than the
 * 1/(2 x workers) part of what waits, so shards shrink towards the end and all workers end together. When nothing waits any more, a worker without rows gets
 * copies: half of what the worker with most of them holds alone, from its end; of a young lease only what its worker has not begun. Each sample counts when the first of its two leases brings it, and leaves the other one.
 * Suspects (coord_blame.c) run in groups: rows of one job, at most as many as the group of each allows, as one lease of a worker that holds nothing else and gets nothing else beside it. Workers that hold
 * nothing take groups before other rows, until half of those that may work on the job do so, and more of them when there is nothing else to give: however many rows end engines, the other half goes on.
 * Where nobody runs suspects, one worker is kept from other rows until it holds nothing. A worker may be what is broken: whoever's engine ended gets no row alone before it has made
 * something again, and when it ended twice it gets groups only when there is nothing else for it, as long as there is another worker for them.
 * A worker that grades is filled up to the samples it asked for, from the grade rows that wait.
 * Whatever they cost in tokens, the lines of
 * all leases of a worker are at most COORD_LINE_BYTES: that is what one GRANT and what the worker keeps can take. */
#include <stdlib.h>
#include <string.h>

#include "coordinator/coord_state.h"

static bool may_work(const coord *c, const worker *w)
{
    return w->is_accepted && !w->is_draining && !w->is_unreachable && !c->is_draining && !c->is_disk_full &&
           (w->credit_bytes == 0 || w->unanswered_bytes <= w->credit_bytes);
}

static bool has_room_for(const job *j, const worker *w, row_index row)
{
    uint32_t mark = row_table_mark(j->rows, row), context = mark & ROW_MARK_CONTEXT;
    return (context == 0 || j->room_contexts[context - 1] < w->context) && !(w->no_chats && mark & ROW_MARK_CHAT);
}

/* The lowest row of the queue, or the lowest behind `*row`, that this worker can serve. */
static bool next_fitting_row(const job *j, const worker *w, row_queue queue, bool is_first, row_index *row)
{
    if (row_table_queue_count(j->rows, queue) == 0) return false;
    bool found = is_first ? row_table_first(j->rows, queue, row) : row_table_next(j->rows, queue, *row, row);
    while (found && !has_room_for(j, w, *row)) found = row_table_next(j->rows, queue, *row, row);
    return found;
}

static bool next_room_row(const job *j, const worker *w, bool is_first, row_index *row)
{
    return next_fitting_row(j, w, ROW_QUEUE_ROOM, is_first, row);
}

static bool is_grantable(const job *j, worker *w)
{
    return !j->pause[0] && !j->is_timed_out && worker_can_serve(w, j);
}

bool grant_possible(const coord *c, const job *j, const worker *w)
{
    row_index row;
    if (!may_work(c, w) || j->state != JOB_OPEN || j->pause[0] || j->is_timed_out || !worker_serves(w, j, NULL, NULL)) return false;
    if (w->grades) return row_table_grades_waiting(j->rows) > 0;
    return (row_table_queue_count(j->rows, ROW_QUEUE_FRESH) > 0 || next_fitting_row(j, w, ROW_QUEUE_SUSPECT, true, &row) || next_room_row(j, w, true, &row));
}

/* A shard under construction. */
typedef struct { lease_item *items; uint32_t n_items; uint64_t n_samples, n_rows, cost, line_bytes; bool is_copy; } shard;

uint64_t row_line_bytes(const coord *c, const job *j, row_index row)
{
    return c->options.line_bytes ? c->options.line_bytes(c->options.context, j->id, row) : 0;
}

/* Add the row's waiting samples, at most `most` of them. False: the shard is full and nothing was added. */
static bool shard_take(shard *s, const job *j, row_index row, uint64_t most)
{
    uint32_t n = row_table_samples(j->rows, row), n_runs = 0, n_taken = 0;
    for (uint32_t i = 0; i < n && n_taken < most;) {
        if (!row_table_waits(j->rows, row, i)) { i++; continue; }
        uint32_t lo = i;
        while (i < n && n_taken + (i - lo) < most && row_table_waits(j->rows, row, i)) i++;
        if (s->n_items == GRANT_ITEMS_MAX || s->n_samples + n_taken + (i - lo) > LEASE_SAMPLES_MAX) break;
        s->items[s->n_items++] = (lease_item){ row, lo, i };
        n_taken += i - lo;
        n_runs++;
    }
    s->n_samples += n_taken;
    s->cost += (uint64_t)n_taken * row_table_cost(j->rows, row);
    s->n_rows += n_taken > 0;
    return n_runs > 0;
}

static uint64_t row_cost(const job *j, row_index row)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i < row_table_samples(j->rows, row); i++) n += row_table_waits(j->rows, row, i);
    return n * row_table_cost(j->rows, row);
}

/* Add rows of one queue until the shard costs `budget` or would pass `room`, or its lines would pass what the worker may hold. The first row always goes in; its samples are parted only when all of
 * them are more than the worker asked for. */
static void shard_fill(shard *s, const coord *c, const job *j, const worker *w, row_queue queue, uint64_t budget, uint64_t room)
{
    row_index row;
    bool found = queue == ROW_QUEUE_ROOM ? next_room_row(j, w, true, &row) : row_table_first(j->rows, queue, &row);
    while (found && s->n_items < GRANT_ITEMS_MAX && (s->n_items == 0 || s->cost < budget)) {
        uint64_t cost = row_cost(j, row), most = UINT32_MAX, line_bytes = row_line_bytes(c, j, row);
        if (s->n_items > 0 && s->cost + cost > room) break;
        if (w->held_line_bytes + s->line_bytes + line_bytes > COORD_LINE_BYTES) break;
        if (cost > w->credit_tokens) most = room / row_table_cost(j->rows, row);
        if (!shard_take(s, j, row, most ? most : 1)) break;
        s->line_bytes += line_bytes;
        found = queue == ROW_QUEUE_ROOM ? next_room_row(j, w, false, &row) : row_table_next(j->rows, queue, row, &row);
    }
}

static void announce_job(coord *c, worker *w, const job *j)
{
    for (size_t i = 0; i < w->n_announced; i++)
        if (w->announced[i].v == j->id.v) return;
    w->announced = coord_grow(w->announced, &w->announced_capacity, w->n_announced, sizeof *w->announced);
    w->announced[w->n_announced++] = j->id;
    send_to(c, w->id, WIRE_JOB, true)->msg.job =
        (wire_job){ .job = j->id.v, .seed = j->seed, .max_context = j->max_context, .now_s = j->now_s, .defaults = wire_text(j->defaults) };
}

/* The counter is stored in the same turn as the lease, once a turn. */
static lease_id next_lease_id(coord *c)
{
    lease_id id = { c->next_lease++ };
    if (c->next_turn != c->out->turn) {
        action_add(&c->out->journal, ACTION_NEXT_LEASE);
        c->next_turn = c->out->turn;
        c->next_at = c->out->journal.n - 1;
    }
    c->out->journal.v[c->next_at].value = c->next_lease;
    return id;
}

static int by_row(const void *a, const void *b)
{
    const lease_item *x = a, *y = b;
    if (x->row.v != y->row.v) return x->row.v < y->row.v ? -1 : 1;
    return x->sample_lo < y->sample_lo ? -1 : x->sample_lo > y->sample_lo;
}

static void grant_shard(coord *c, worker *w, job *j, shard *s)
{
    for (uint32_t i = 1; i < s->n_items; i++) {          /* rows that needed room were taken first */
        if (by_row(&s->items[i - 1], &s->items[i]) < 0) continue;
        qsort(s->items, s->n_items, sizeof *s->items, by_row);
        break;
    }
    if (!w->grades) job_pin(c, j, w);
    announce_job(c, w, j);
    lease *l = lease_add(c, next_lease_id(c), j, w->id, s->items, s->n_items, s->is_copy);
    FL_ASSERT(l && l->n_left == s->n_samples);
    w->n_ended = 0;
    if (w->n_leases == 1) w->progress_ms = c->now_ms;    /* it had nothing to do before */
    lease_save(c, l);
    uint64_t *rows = action_numbers(c->out, s->n_items), *lo = action_numbers(c->out, s->n_items), *hi = action_numbers(c->out, s->n_items);
    for (uint32_t i = 0; i < s->n_items; i++) {
        rows[i] = s->items[i].row.v;
        lo[i] = s->items[i].sample_lo;
        hi[i] = s->items[i].sample_hi;
    }
    send_to(c, w->id, WIRE_GRANT, true)->msg.grant = (wire_grant){ .job = j->id.v, .lease = l->id.v, .term_ms = c->options.term_ms, .rows = { rows, s->n_items },
                                                                   .sample_lo = { lo, s->n_items }, .sample_hi = { hi, s->n_items } };
    j->n_granted++;
}

/* Those that may work on the job, or that may grade it, at least 1; counted again when somebody came, went or changed. */
static uint64_t count_workers(const coord *c, job *j, bool grades)
{
    if (j->able_version != c->fleet_version) {
        j->n_able[0] = j->n_able[1] = 0;
        for (size_t i = 0; i < c->n_workers; i++) j->n_able[c->workers[i]->grades] += may_work(c, c->workers[i]) && worker_can_serve(c->workers[i], j);
        j->able_version = c->fleet_version;
    }
    return j->n_able[grades] ? j->n_able[grades] : 1;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Tokens of work that it may hold of rows, or for a worker with a batch of samples, that cost `mean`. */
static uint64_t credit_of(const worker *w, uint64_t mean)
{
    const uint64_t batches = w->batch ? least(2 * w->batch * (mean + 1), w->kv_tokens < UINT64_MAX / 2 ? 2 * w->kv_tokens : UINT64_MAX) : 0;
    return batches > w->credit_tokens ? batches : w->credit_tokens;
}

/* Tokens of work that it may hold of rows as they wait. */
static uint64_t window_of(const worker *w, const job *j)
{
    uint64_t mean = row_table_cost_waiting(j->rows) / (w->batch ? row_table_samples_waiting(j->rows) : row_table_n_waiting(j->rows));
    return least(credit_of(w, mean), w->window_rows * (mean + 1));
}

/* Those that run suspects, of this job or another, and could work on this one. */
static uint64_t count_suspect_workers(const coord *c, const job *j)
{
    uint64_t n = 0;
    for (size_t i = 0; i < c->n_workers; i++) n += c->workers[i]->runs_suspects && worker_can_serve(c->workers[i], j);
    return n;
}

/* Somebody else, whose engine did not end lately, could run the suspect. */
static bool another_may_run(const coord *c, const worker *w, const job *j, row_index row)
{
    for (size_t i = 0; i < c->n_workers; i++) {
        worker *other = c->workers[i];
        if (other != w && !other->grades && other->n_ends == 0 && may_work(c, other) && is_grantable(j, other) && has_room_for(j, other, row)) return true;
    }
    return false;
}

/* The suspect of the largest group that this worker can serve, the lowest of those; false: there is none. */
static bool best_suspect(const job *j, const worker *w, row_index *best)
{
    row_index row;
    uint32_t most = 0;
    for (bool found = next_fitting_row(j, w, ROW_QUEUE_SUSPECT, true, &row); found; found = next_fitting_row(j, w, ROW_QUEUE_SUSPECT, false, &row)) {
        if (row_table_group(j->rows, row) <= most) continue;
        most = row_table_group(j->rows, row);
        *best = row;
    }
    return most > 0;
}

/* Suspects from `first` on whose groups are as large as its own, as many as that group and the worker take. Each goes in whole: no suspect is with two workers. */
static void shard_fill_suspects(shard *s, const coord *c, const job *j, const worker *w, row_index first)
{
    const uint32_t group = row_table_group(j->rows, first);
    const uint64_t window = window_of(w, j);
    row_index row = first;
    for (bool found = true; found && s->n_rows < group; found = next_fitting_row(j, w, ROW_QUEUE_SUSPECT, false, &row)) {
        uint64_t cost = row_cost(j, row), line_bytes = row_line_bytes(c, j, row);
        uint32_t n = row_table_samples(j->rows, row);
        if (row_table_group(j->rows, row) != group) continue;
        if (s->n_items > 0 && (s->cost + cost > window || s->line_bytes + line_bytes > COORD_LINE_BYTES || s->n_items + n > GRANT_ITEMS_MAX || s->n_samples + n > LEASE_SAMPLES_MAX)) return;
        shard_take(s, j, row, UINT32_MAX);
        s->line_bytes += line_bytes;
    }
}

/* A group of suspects for a worker that holds nothing. True: it got one, or it is kept free for one, and gets nothing else. `is_idle`: there is nothing else for it. */
static bool grant_suspects(coord *c, worker *w, bool is_idle)
{
    for (size_t i = 0; i < c->n_open; i++) {
        job *j = c->open[i];
        row_index row;
        if (row_table_queue_count(j->rows, ROW_QUEUE_SUSPECT) == 0 || !is_grantable(j, w) || !worker_has_detok(c, w, j)) continue;
        const uint64_t n_running = count_suspect_workers(c, j);
        if (n_running > 0 && (w->n_leases > 0 || (!is_idle && n_running >= count_workers(c, j, false) / 2))) continue;
        if (!best_suspect(j, w, &row)) continue;
        bool is_doubtful = row_table_group(j->rows, row) == 1 ? w->n_ends > 0 : w->n_ends > 1 && !is_idle;
        if (is_doubtful && another_may_run(c, w, j, row)) continue;
        w->runs_suspects = true;
        if (w->n_leases > 0) return true;                /* finishes what it holds first */
        shard s = { .items = c->shard_items };
        shard_fill_suspects(&s, c, j, w, row);
        grant_shard(c, w, j, &s);
        return true;
    }
    return false;
}

/* One shard of the job for this worker; false when it needs none or there is none. */
static bool grant_rows(coord *c, worker *w, job *j)
{
    row_index row;
    if (row_table_queue_count(j->rows, ROW_QUEUE_FRESH) == 0 && !next_room_row(j, w, true, &row)) return false;
    uint64_t window = window_of(w, j);
    if (w->held_tokens > window / 2) return false;
    uint64_t room = window - w->held_tokens, budget = least(room, row_table_cost_waiting(j->rows) / (2 * count_workers(c, j, false)));
    shard s = { .items = c->shard_items };
    shard_fill(&s, c, j, w, ROW_QUEUE_ROOM, budget, room);
    shard_fill(&s, c, j, w, ROW_QUEUE_FRESH, budget, room);
    if (s.n_items == 0) return false;
    grant_shard(c, w, j, &s);
    return true;
}

/* One shard of samples to grade; false when the worker needs none or there is none. */
static bool grant_grades(coord *c, worker *w, job *j)
{
    uint64_t waiting = row_table_grades_waiting(j->rows);
    if (waiting == 0 || w->held_tokens > w->credit_tokens / 2) return false;
    uint64_t room = w->credit_tokens - w->held_tokens;
    shard s = { .items = c->shard_items };
    shard_fill(&s, c, j, w, ROW_QUEUE_GRADE, least(room, waiting / (2 * count_workers(c, j, true)) + 1), room);
    if (s.n_items == 0) return false;
    grant_shard(c, w, j, &s);
    return true;
}

/* What a copy of the row would hold: samples that this lease alone holds. */
static uint32_t row_copyable(const lease *l, row_index row)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < row_table_samples(l->job->rows, row); s++)
        n += lease_holds(l, row, s) && !row_table_held_twice(l->job->rows, row, s);
    return n;
}

static bool may_copy_row(const lease *l, const worker *w, row_index row)
{
    return row_table_queue(l->job->rows, row) != ROW_QUEUE_SUSPECT && has_room_for(l->job, w, row);
}

/* How many samples of the lease may be copied: all when it is late, else half of what its worker says that it has not begun. */
static uint64_t copyable_samples(const coord *c, const lease *l)
{
    const job *j = l->job;
    const worker *holder = worker_find(c, l->worker);
    int64_t age_ms = c->now_ms - l->granted_ms;
    if (age_ms >= (int64_t)c->options.copy_ms && (j->n_timed == 0 || (uint64_t)age_ms >= j->timed_ms / j->n_timed)) return UINT64_MAX;
    return holder && holder->newest.v == l->id.v ? holder->n_spare / 2 : 0;
}

/* Tokens of the lease's rows that this worker may copy. */
static uint64_t copyable_cost(const coord *c, const lease *l, const worker *w)
{
    const job *j = l->job;
    uint64_t cost = 0;
    row_index row;
    if (l->worker.v == w->id.v || lease_is_grading(l) != w->grades || copyable_samples(c, l) == 0) return 0;
    for (uint32_t at = 0; lease_next_row(l, &at, &row);)
        if (may_copy_row(l, w, row)) cost += (uint64_t)row_copyable(l, row) * row_table_cost(j->rows, row);
    return cost;
}

/* All samples of the row that the lease alone holds. */
static void shard_copy(shard *s, const lease *l, row_index row)
{
    const row_table *rows = l->job->rows;
    for (uint32_t k = 0; k < row_table_samples(rows, row) && s->n_items < GRANT_ITEMS_MAX && s->n_samples < LEASE_SAMPLES_MAX; k++) {
        if (!lease_holds(l, row, k) || row_table_held_twice(rows, row, k)) continue;
        lease_item *last = s->n_items ? &s->items[s->n_items - 1] : NULL;
        if (last && last->row.v == row.v && last->sample_hi == k) last->sample_hi++;
        else s->items[s->n_items++] = (lease_item){ row, k, k + 1 };
        s->n_samples++;
        s->cost += row_table_cost(rows, row);
    }
}

/* Copy rows of the lease from its end until they cost `budget`. Its worker begins at the front, so the two seldom do the same. Samples of a row share their prompt: rows of which most
 * is still open come first, the others only when there are none of those. */
static void shard_fill_copy(shard *s, const coord *c, const lease *l, const worker *w, uint64_t budget, bool mostly_open)
{
    const row_table *rows = l->job->rows;
    uint64_t most = copyable_samples(c, l);
    for (uint32_t i = l->n_samples; i-- > 0 && (s->n_items == 0 || (s->cost < budget && s->n_samples < most));) {
        row_index row = { l->samples[i].row };
        if (i > 0 && l->samples[i - 1].row == row.v) continue;           /* a row is taken at its first sample */
        uint32_t n = may_copy_row(l, w, row) ? row_copyable(l, row) : 0;
        if (n == 0 || (2 * n > row_table_samples(rows, row)) != mostly_open) continue;
        uint64_t line_bytes = row_line_bytes(c, l->job, row);
        if (w->held_line_bytes + s->line_bytes + line_bytes > COORD_LINE_BYTES) break;
        shard_copy(s, l, row);
        s->line_bytes += line_bytes;
    }
}

/* The worker idles and nothing waits for it: a copy of what another one is late with. */
static bool grant_copy(coord *c, worker *w, job *j)
{
    const lease *most = NULL;
    uint64_t most_cost = 0;
    for (size_t i = 0; i < c->n_leases; i++) {
        uint64_t cost = c->leases[i]->job == j ? copyable_cost(c, c->leases[i], w) : 0;
        if (cost > most_cost || (cost == most_cost && cost > 0 && c->leases[i]->id.v < most->id.v)) {
            most = c->leases[i];
            most_cost = cost;
        }
    }
    if (!most) return false;
    shard s = { .items = c->shard_items, .is_copy = true };
    uint64_t budget = least((most_cost + 1) / 2, w->credit_tokens);
    shard_fill_copy(&s, c, most, w, budget, true);
    if (s.n_items == 0) shard_fill_copy(&s, c, most, w, budget, false);
    if (s.n_items == 0) return false;
    worker *holder = worker_find(c, most->worker);
    if (holder) holder->n_spare -= (uint32_t)least(holder->n_spare, s.n_samples);
    j->n_copied += s.n_samples;
    grant_shard(c, w, j, &s);
    return true;
}

void grant_worker(coord *c, worker *w)
{
    if (w->n_leases == 0) w->runs_suspects = false;      /* decided anew: there may be no more of them, or none for it */
    if (!may_work(c, w) || w->runs_suspects || (!w->grades && grant_suspects(c, w, false))) return;
    for (size_t i = 0; i < c->n_open; i++) {
        job *j = c->open[i];
        if (!is_grantable(j, w) || !worker_has_detok(c, w, j)) continue;
        while (w->grades ? grant_grades(c, w, j) : grant_rows(c, w, j)) {}
    }
    if (w->n_leases == 0 && !w->grades && grant_suspects(c, w, true)) return;
    for (size_t i = 0; i < c->n_open && w->n_leases == 0; i++) {
        job *j = c->open[i];
        if (is_grantable(j, w) && worker_has_detok(c, w, j)) grant_copy(c, w, j);
    }
}

void grant_all(coord *c)
{
    c->must_grant_all = c->must_grant_graders = false;
    for (size_t i = 0; i < c->n_workers; i++) grant_worker(c, c->workers[i]);
}

void grant_graders(coord *c)
{
    c->must_grant_graders = false;
    for (size_t i = 0; i < c->n_workers; i++)
        if (c->workers[i]->grades) grant_worker(c, c->workers[i]);
}
