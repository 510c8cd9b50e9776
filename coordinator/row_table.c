#include "coordinator/row_table.h"

#include <stdlib.h>
#include <string.h>

#include "coordinator/bit_set.h"
#include "proto/job_row.h"

/* 16 bytes a row. */
typedef struct {
    uint32_t slot;                       /* of sample 0 in the sample bitmaps */
    uint32_t cost;                       /* of one sample */
    uint16_t n_samples;
    uint16_t n_waiting;                  /* samples neither done nor held */
    uint8_t queue : 2, has_failed : 1, n_crashes : 2, was_held : 1;
    uint8_t n_stalls : 4, group_log2 : 4;        /* group_log2: of a suspect */
    uint8_t n_retries;
    uint8_t mark;
} row;
_Static_assert(sizeof(row) == 16, "10 M rows must stay near 160 MB");

struct row_table {
    row *rows;                           /* owned [capacity] */
    uint64_t n_rows, capacity, n_slots;  /* with the grade rows */
    uint64_t n_base;                     /* without them */
    uint64_t *done, *held, *twice;       /* owned bitmaps [n_sample_words] of the samples; twice: two leases hold it */
    uint64_t n_sample_words;
    bit_set queue[ROW_QUEUE_COUNT];      /* rows with a waiting sample */
    uint64_t n_completed, n_failed, cost_waiting, samples_waiting, grades_waiting;      /* the waiting ones but for the last: of rows that are no grade rows */
};

static bool get(const uint64_t *bits, uint64_t i) { return bits[i / 64] >> (i % 64) & 1; }
static void set(uint64_t *bits, uint64_t i) { bits[i / 64] |= (uint64_t)1 << (i % 64); }
static void clear(uint64_t *bits, uint64_t i) { bits[i / 64] &= ~((uint64_t)1 << (i % 64)); }

static row *at(const row_table *t, row_index r)
{
    FL_ASSERT(r.v < t->n_rows);
    return &t->rows[r.v];
}

static uint64_t slot_of(const row_table *t, row_index r, uint32_t sample)
{
    const row *x = at(t, r);
    FL_ASSERT(sample < x->n_samples);
    return (uint64_t)x->slot + sample;
}

bool row_table_is_graded(const row_table *t) { return t->n_rows > t->n_base; }
bool row_table_is_grade(const row_table *t, row_index r) { return r.v >= t->n_base; }

row_index row_table_grade_of(const row_table *t, row_index r)
{
    FL_ASSERT(row_table_is_graded(t) && r.v < t->n_base);
    return (row_index){ t->n_base + r.v };
}

row_index row_table_graded(const row_table *t, row_index r)
{
    return row_table_is_grade(t, r) ? (row_index){ r.v - t->n_base } : r;
}

static bool grow_rows(row_table *t, uint64_t n)
{
    if (n <= t->capacity) return true;
    uint64_t room = t->capacity + t->capacity / 4;
    if (room < n) room = n;
    row *rows = realloc(t->rows, room * sizeof *rows);
    if (!rows) return false;
    t->rows = rows;
    t->capacity = room;
    return true;
}

static bool grow_samples(row_table *t, uint64_t n_slots)
{
    uint64_t need = n_slots / 64 + 1;
    if (need <= t->n_sample_words) return true;
    uint64_t room = t->n_sample_words + t->n_sample_words / 4;
    if (room < need) room = need;
    uint64_t *done = realloc(t->done, room * sizeof *done);
    if (!done) return false;
    t->done = done;
    uint64_t *held = realloc(t->held, room * sizeof *held);
    if (!held) return false;
    t->held = held;
    uint64_t *twice = realloc(t->twice, room * sizeof *twice);
    if (!twice) return false;
    t->twice = twice;
    size_t fresh = (room - t->n_sample_words) * sizeof *done;
    memset(t->done + t->n_sample_words, 0, fresh);
    memset(t->held + t->n_sample_words, 0, fresh);
    memset(t->twice + t->n_sample_words, 0, fresh);
    t->n_sample_words = room;
    return true;
}

fl_status row_table_open(row_table **out, uint64_t n_rows_hint, fl_err *err)
{
    row_table *t = calloc(1, sizeof *t);
    uint64_t n = n_rows_hint ? n_rows_hint : 64;
    if (t && grow_rows(t, n) && grow_samples(t, n) && bit_set_grow(&t->queue[ROW_QUEUE_FRESH], n) &&
        bit_set_grow(&t->queue[ROW_QUEUE_SUSPECT], n) && bit_set_grow(&t->queue[ROW_QUEUE_ROOM], n)) {
        *out = t;
        return FL_OK;
    }
    row_table_close(t);
    return fl_fail(err, FL_FULL, "rows: no memory for a table of %llu rows", (unsigned long long)n);
}

void row_table_close(row_table *t)
{
    if (!t) return;
    for (int q = 0; q < ROW_QUEUE_COUNT; q++) bit_set_fini(&t->queue[q]);
    free(t->rows);
    free(t->done);
    free(t->held);
    free(t->twice);
    free(t);
}

fl_status row_table_add(row_table *t, uint32_t n_samples, uint64_t sample_cost, fl_err *err)
{
    if (n_samples == 0 || n_samples > FL_SAMPLES_MAX) return fl_fail(err, FL_INVALID, "rows: n is %u; it must be 1 to %d", n_samples, FL_SAMPLES_MAX);
    if (t->n_rows >= ROW_TABLE_ROWS_MAX || t->n_slots + n_samples > UINT32_MAX)
        return fl_fail(err, FL_INVALID, "rows: a job may have at most %u rows and samples; split the job file", UINT32_MAX);
    if (!grow_rows(t, t->n_rows + 1) || !grow_samples(t, t->n_slots + n_samples))
        return fl_fail(err, FL_FULL, "rows: no memory for row %llu", (unsigned long long)t->n_rows);
    FL_ASSERT(!row_table_is_graded(t));
    for (int q = 0; q < ROW_QUEUE_GRADE; q++)
        if (!bit_set_grow(&t->queue[q], t->n_rows + 1)) return fl_fail(err, FL_FULL, "rows: no memory for row %llu", (unsigned long long)t->n_rows);
    if (sample_cost == 0) sample_cost = 1;
    if (sample_cost > UINT32_MAX) sample_cost = UINT32_MAX;
    t->rows[t->n_rows] = (row){ .slot = (uint32_t)t->n_slots, .cost = (uint32_t)sample_cost, .n_samples = (uint16_t)n_samples, .n_waiting = (uint16_t)n_samples };
    bit_set_add(&t->queue[ROW_QUEUE_FRESH], t->n_rows);
    t->cost_waiting += sample_cost * n_samples;
    t->samples_waiting += n_samples;
    t->n_rows++;
    t->n_base++;
    t->n_slots += n_samples;
    return FL_OK;
}

fl_status row_table_add_grades(row_table *t, fl_err *err)
{
    uint64_t n = t->n_base;
    FL_ASSERT(!row_table_is_graded(t) && t->n_completed + t->n_failed == 0);
    if (2 * n > ROW_TABLE_ROWS_MAX || 2 * t->n_slots > UINT32_MAX)
        return fl_fail(err, FL_INVALID, "rows: a graded job may have at most %u rows and samples; split the job file", UINT32_MAX / 2);
    if (!grow_rows(t, 2 * n) || !grow_samples(t, 2 * t->n_slots) || !bit_set_grow(&t->queue[ROW_QUEUE_GRADE], 2 * n))
        return fl_fail(err, FL_FULL, "rows: no memory to grade %llu rows", (unsigned long long)n);
    for (uint64_t i = 0; i < n; i++)
        t->rows[n + i] = (row){ .slot = (uint32_t)(t->n_slots + t->rows[i].slot), .cost = 1, .n_samples = t->rows[i].n_samples, .queue = ROW_QUEUE_GRADE };
    t->n_rows = 2 * n;
    t->n_slots *= 2;
    return FL_OK;
}

/* One sample more or less waits in its row. */
static void count_waiting(row_table *t, row_index r, int change)
{
    row *x = at(t, r);
    x->n_waiting = (uint16_t)(x->n_waiting + change);
    *(row_table_is_grade(t, r) ? &t->grades_waiting : &t->cost_waiting) += (uint64_t)((int64_t)x->cost * change);
    if (!row_table_is_grade(t, r)) t->samples_waiting += (uint64_t)(int64_t)change;
    if (x->n_waiting == 0) bit_set_remove(&t->queue[x->queue], r.v);
    else bit_set_add(&t->queue[x->queue], r.v);
}

static bool all_done(const row_table *t, row_index r)
{
    const row *x = at(t, r);
    for (uint32_t s = 0; s < x->n_samples; s++)
        if (!get(t->done, x->slot + (uint64_t)s)) return false;
    return true;
}

bool row_table_commit(row_table *t, row_index r, uint32_t sample)
{
    uint64_t slot = slot_of(t, r, sample);
    bool is_grade = row_table_is_grade(t, r), has_grade = !is_grade && row_table_is_graded(t);
    if (at(t, r)->has_failed || get(t->done, slot)) return false;
    if (is_grade && !row_table_done(t, row_table_graded(t, r), sample)) return false;
    if (get(t->held, slot)) clear(t->held, slot);
    else count_waiting(t, r, -1);
    clear(t->twice, slot);
    set(t->done, slot);
    if (has_grade) count_waiting(t, row_table_grade_of(t, r), +1);
    else if (all_done(t, r)) t->n_completed++;
    return true;
}

static void fail_one(row_table *t, row_index r)
{
    row *x = at(t, r);
    if (x->n_waiting > 0) count_waiting(t, r, -(int)x->n_waiting);
    x->has_failed = 1;
}

bool row_table_fail(row_table *t, row_index r)
{
    row_index base = row_table_graded(t, r);
    if (row_table_settled(t, base)) return false;
    fail_one(t, base);
    if (row_table_is_graded(t)) fail_one(t, row_table_grade_of(t, base));
    t->n_failed++;
    return true;
}

bool row_table_has(const row_table *t, uint64_t r, uint64_t sample)
{
    return r < t->n_rows && sample < t->rows[r].n_samples;
}

bool row_table_done(const row_table *t, row_index r, uint32_t sample) { return get(t->done, slot_of(t, r, sample)); }
bool row_table_held(const row_table *t, row_index r, uint32_t sample) { return get(t->held, slot_of(t, r, sample)); }
bool row_table_held_twice(const row_table *t, row_index r, uint32_t sample) { return get(t->twice, slot_of(t, r, sample)); }
bool row_table_was_held(const row_table *t, row_index r) { return at(t, r)->was_held; }
bool row_table_failed(const row_table *t, row_index r) { return at(t, r)->has_failed; }
bool row_table_finished(const row_table *t, row_index r) { return at(t, r)->has_failed || all_done(t, r); }

bool row_table_settled(const row_table *t, row_index r)
{
    row_index base = row_table_graded(t, r);
    return row_table_finished(t, row_table_is_graded(t) ? row_table_grade_of(t, base) : base);
}

bool row_table_waits(const row_table *t, row_index r, uint32_t sample)
{
    uint64_t slot = slot_of(t, r, sample);
    if (get(t->done, slot) || get(t->held, slot)) return false;
    return !row_table_is_grade(t, r) || row_table_done(t, row_table_graded(t, r), sample);
}

uint32_t row_table_samples(const row_table *t, row_index r) { return at(t, r)->n_samples; }
uint32_t row_table_cost(const row_table *t, row_index r) { return at(t, r)->cost; }
uint64_t row_table_slot(const row_table *t, row_index r, uint32_t sample) { return slot_of(t, r, sample); }
uint64_t row_table_n_rows(const row_table *t) { return t->n_base; }
uint64_t row_table_n_slots(const row_table *t) { return t->n_slots; }
uint64_t row_table_n_completed(const row_table *t) { return t->n_completed; }
uint64_t row_table_n_failed(const row_table *t) { return t->n_failed; }
uint64_t row_table_n_open(const row_table *t) { return t->n_base - t->n_completed - t->n_failed; }
uint64_t row_table_cost_waiting(const row_table *t) { return t->cost_waiting; }
uint64_t row_table_samples_waiting(const row_table *t) { return t->samples_waiting; }
uint64_t row_table_grades_waiting(const row_table *t) { return t->grades_waiting; }

uint64_t row_table_n_waiting(const row_table *t)
{
    uint64_t n = 0;
    for (int q = 0; q < ROW_QUEUE_GRADE; q++) n += t->queue[q].count;
    return n;
}

void row_table_hold(row_table *t, row_index r, uint32_t sample)
{
    uint64_t slot = slot_of(t, r, sample);
    FL_ASSERT(!get(t->done, slot) && !get(t->held, slot) && !at(t, r)->has_failed);
    set(t->held, slot);
    at(t, r)->was_held = 1;
    count_waiting(t, r, -1);
}

void row_table_hold_again(row_table *t, row_index r, uint32_t sample)
{
    uint64_t slot = slot_of(t, r, sample);
    FL_ASSERT(get(t->held, slot) && !get(t->twice, slot) && !at(t, r)->has_failed);
    set(t->twice, slot);
}

bool row_table_held_row(const row_table *t, row_index r)
{
    const row *x = at(t, r);
    for (uint32_t s = 0; s < x->n_samples; s++)
        if (get(t->held, x->slot + (uint64_t)s)) return true;
    return false;
}

void row_table_release(row_table *t, row_index r, uint32_t sample)
{
    uint64_t slot = slot_of(t, r, sample);
    FL_ASSERT(get(t->held, slot));
    if (get(t->twice, slot)) {
        clear(t->twice, slot);
        return;
    }
    clear(t->held, slot);
    if (!at(t, r)->has_failed) count_waiting(t, r, +1);
}

bool row_table_first(const row_table *t, row_queue queue, row_index *r) { return bit_set_next(&t->queue[queue], 0, &r->v); }
bool row_table_next(const row_table *t, row_queue queue, row_index after, row_index *r) { return bit_set_next(&t->queue[queue], after.v + 1, &r->v); }
uint64_t row_table_queue_count(const row_table *t, row_queue queue) { return t->queue[queue].count; }
row_queue row_table_queue(const row_table *t, row_index r) { return (row_queue)at(t, r)->queue; }

void row_table_move(row_table *t, row_index r, row_queue queue)
{
    row *x = at(t, r);
    bit_set_remove(&t->queue[x->queue], r.v);
    x->queue = (uint8_t)(queue & 3);
    if (x->n_waiting > 0) bit_set_add(&t->queue[queue], r.v);
}

void row_table_suspect(row_table *t, row_index r, uint64_t n_together)
{
    row *x = at(t, r);
    unsigned log2 = 0;
    while (log2 < 15 && n_together > 2u << log2) log2++;
    if (x->queue != ROW_QUEUE_SUSPECT || log2 < x->group_log2) x->group_log2 = (uint8_t)(log2 & 15);
    row_table_move(t, r, ROW_QUEUE_SUSPECT);
}

uint32_t row_table_group(const row_table *t, row_index r)
{
    FL_ASSERT(at(t, r)->queue == ROW_QUEUE_SUSPECT);
    return 1u << at(t, r)->group_log2;
}

uint32_t row_table_crashes(const row_table *t, row_index r) { return at(t, r)->n_crashes; }
uint32_t row_table_stalls(const row_table *t, row_index r) { return at(t, r)->n_stalls; }
uint32_t row_table_retries(const row_table *t, row_index r) { return at(t, r)->n_retries; }
void row_table_add_crash(row_table *t, row_index r) { row *x = at(t, r); if (x->n_crashes < 3) x->n_crashes = (uint8_t)((x->n_crashes + 1) & 3); }
void row_table_add_stall(row_table *t, row_index r) { row *x = at(t, r); if (x->n_stalls < 15) x->n_stalls = (uint8_t)((x->n_stalls + 1) & 15); }
void row_table_add_retry(row_table *t, row_index r) { row *x = at(t, r); if (x->n_retries < UINT8_MAX) x->n_retries++; }
uint8_t row_table_mark(const row_table *t, row_index r) { return at(t, r)->mark; }
void row_table_set_mark(row_table *t, row_index r, uint8_t mark) { at(t, r)->mark = mark; }
