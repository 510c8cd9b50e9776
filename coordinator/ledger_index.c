#include "coordinator/ledger_index.h"

#include <stdlib.h>

#include "coordinator/ledger_record.h"
#include "proto/job_row.h"

/* An entry is a place as one number: segment (20 bits) << 40 | offset (40 bits); 0 = nothing. The first sample's entry of a failed
 * row carries ERROR_BIT and points at the error instead. */
#define ERROR_BIT ((uint64_t)1 << 63)
#define OFFSET_MASK (((uint64_t)1 << 40) - 1)
#define GROUP_ROWS 64                    /* rows that share a base: their samples before a row fit 16 bits */

_Static_assert((GROUP_ROWS - 1) * FL_SAMPLES_MAX <= UINT16_MAX, "a row's slot must fit 16 bits from its group's base");

struct ledger_index {
    uint64_t n_rows, n_slots;
    uint64_t *entries;                   /* owned [n_slots] */
    uint64_t *bases; uint16_t *offsets;  /* owned; NULL when every row has one sample: then a row's slot is its number */
    uint64_t added, added_slots;
};

fl_status ledger_index_open(ledger_index **out, uint64_t n_rows, uint64_t n_samples, fl_err *err)
{
    FL_ASSERT(n_samples >= n_rows);
    ledger_index *x = calloc(1, sizeof *x);
    if (!x) return fl_fail(err, FL_FULL, "ledger index: no memory");
    x->n_rows = n_rows;
    x->n_slots = n_samples;
    bool is_plain = n_rows == n_samples;
    x->entries = calloc(n_samples + 1, sizeof *x->entries);
    if (!is_plain) {
        x->bases = calloc(n_rows / GROUP_ROWS + 1, sizeof *x->bases);
        x->offsets = calloc(n_rows + 1, sizeof *x->offsets);
    }
    if (!x->entries || (!is_plain && (!x->bases || !x->offsets))) {
        ledger_index_close(x);
        return fl_fail(err, FL_FULL, "ledger index: no memory for %llu samples", (unsigned long long)n_samples);
    }
    *out = x;
    return FL_OK;
}

void ledger_index_add(ledger_index *x, uint32_t n_samples)
{
    FL_ASSERT(x->added < x->n_rows && n_samples > 0 && n_samples <= FL_SAMPLES_MAX && x->added_slots + n_samples <= x->n_slots);
    if (x->offsets) {
        if (x->added % GROUP_ROWS == 0) x->bases[x->added / GROUP_ROWS] = x->added_slots;
        x->offsets[x->added] = (uint16_t)(x->added_slots - x->bases[x->added / GROUP_ROWS]);
    }
    x->added++;
    x->added_slots += n_samples;
}

void ledger_index_close(ledger_index *x)
{
    if (!x) return;
    free(x->entries);
    free(x->bases);
    free(x->offsets);
    free(x);
}

static uint64_t first_slot(const ledger_index *x, uint64_t row)
{
    if (row == x->n_rows) return x->n_slots;
    return x->offsets ? x->bases[row / GROUP_ROWS] + x->offsets[row] : row;
}

static bool has(const ledger_index *x, uint64_t row, uint32_t sample)
{
    return row < x->n_rows && sample < first_slot(x, row + 1) - first_slot(x, row);
}

fl_status ledger_index_note(ledger_index *x, const ledger_record *r, fl_err *err)
{
    bool is_error = r->kind == LEDGER_ROW_ERROR || r->kind == LEDGER_INGEST_ERROR;
    if (!is_error && (r->kind != LEDGER_RESULT || r->piece != 0)) return FL_OK;
    uint32_t sample = is_error ? 0 : r->sample;
    if (!has(x, r->row.v, sample))
        return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %llu: a record for row %llu, sample %u, which the job does not have", r->place.segment,
                       (unsigned long long)r->place.offset, (unsigned long long)r->row.v, sample);
    uint64_t *first = &x->entries[first_slot(x, r->row.v)], *entry = first + sample;
    if ((is_error && (*first & ERROR_BIT)) || (!is_error && ((*first & ERROR_BIT) || *entry != 0)))
        return fl_fail(err, FL_CORRUPT, "ledger: segment %06u, offset %llu: a second record for row %llu, sample %u", r->place.segment,
                       (unsigned long long)r->place.offset, (unsigned long long)r->row.v, sample);
    *entry = ((uint64_t)r->place.segment << 40 | r->place.offset) | (is_error ? ERROR_BIT : 0);
    return FL_OK;
}

static ledger_place place_of(uint64_t entry)
{
    return (ledger_place){ (uint32_t)((entry & ~ERROR_BIT) >> 40), entry & OFFSET_MASK };
}

bool ledger_index_error(const ledger_index *x, row_index row, ledger_place *place)
{
    FL_ASSERT(has(x, row.v, 0));
    uint64_t entry = x->entries[first_slot(x, row.v)];
    if (entry & ERROR_BIT) *place = place_of(entry);
    return entry & ERROR_BIT;
}

bool ledger_index_result(const ledger_index *x, row_index row, uint32_t sample, ledger_place *place)
{
    FL_ASSERT(has(x, row.v, sample));
    uint64_t entry = x->entries[first_slot(x, row.v) + sample];
    if (entry == 0 || (entry & ERROR_BIT)) return false;
    *place = place_of(entry);
    return true;
}

bool ledger_index_finished(const ledger_index *x, row_index row)
{
    FL_ASSERT(has(x, row.v, 0));
    uint64_t slot = first_slot(x, row.v), end = first_slot(x, row.v + 1);
    if (x->entries[slot] & ERROR_BIT) return true;
    while (slot < end && x->entries[slot]) slot++;
    return slot == end;
}
