/* held_leases.c - see held_leases.h. */
#include "worker/held_leases.h"

#include <stdlib.h>
#include <string.h>

enum { SAMPLE_OWED, SAMPLE_MADE, SAMPLE_GONE };

typedef struct {
    uint64_t row;
    uint32_t lo, hi;
    uint32_t n_owed, n_gone;
    uint8_t *samples;                /* owned [hi - lo] */
} held_row;

typedef struct {
    uint64_t id;
    held_row *rows; uint32_t n_rows; /* owned */
    bool presented;                  /* in the last HELLO */
} held_lease;

typedef struct {
    uint64_t lease, row;
    bool whole, sent;
    wire_handback_reason reason;
    char text[480]; uint32_t text_bytes;
} handback;

struct held_leases {
    held_lease *v; size_t n, capacity;           /* owned */
    handback *backs; size_t n_backs, backs_capacity;     /* owned, oldest first */
    uint64_t *ids; size_t ids_capacity;          /* owned; held_ids' answer */
    size_t next_back;                            /* the one held_next_handback offered */
};

fl_status held_open(held_leases **out, fl_err *err)
{
    *out = calloc(1, sizeof **out);
    return *out ? FL_OK : fl_fail(err, FL_FULL, "worker: no memory for leases");
}

static void lease_free(held_lease *lease)
{
    for (uint32_t i = 0; i < lease->n_rows; i++) free(lease->rows[i].samples);
    free(lease->rows);
}

void held_close(held_leases *held)
{
    if (!held) return;
    for (size_t i = 0; i < held->n; i++) lease_free(&held->v[i]);
    free(held->v);
    free(held->backs);
    free(held->ids);
    free(held);
}

/* Make room for one more in an array that doubles. */
static bool grow(void **v, size_t *capacity, size_t n, size_t item_bytes)
{
    if (n < *capacity) return true;
    size_t more = *capacity ? *capacity * 2 : 16;
    void *grown = realloc(*v, more * item_bytes);
    if (!grown) return false;
    *v = grown;
    *capacity = more;
    return true;
}

static held_lease *find_lease(const held_leases *held, uint64_t id)
{
    for (size_t i = 0; i < held->n; i++)
        if (held->v[i].id == id) return &held->v[i];
    return NULL;
}

fl_status held_grant(held_leases *held, const wire_grant *grant, fl_err *err)
{
    uint32_t n = grant->rows.n;
    if (find_lease(held, grant->lease)) return fl_fail(err, FL_CONFLICT, "worker: lease %llu is held already", (unsigned long long)grant->lease);
    for (uint32_t i = 0; i < n; i++)
        if (grant->sample_lo.v[i] >= grant->sample_hi.v[i] || grant->sample_hi.v[i] > 1024)
            return fl_fail(err, FL_CORRUPT, "worker: lease %llu grants samples %llu to %llu of a row", (unsigned long long)grant->lease,
                           (unsigned long long)grant->sample_lo.v[i], (unsigned long long)grant->sample_hi.v[i]);
    held_lease lease = { .id = grant->lease, .rows = calloc(n ? n : 1, sizeof *lease.rows), .n_rows = n };
    bool fits = lease.rows != NULL;
    for (uint32_t i = 0; fits && i < n; i++) {
        uint32_t lo = (uint32_t)grant->sample_lo.v[i], hi = (uint32_t)grant->sample_hi.v[i];
        lease.rows[i] = (held_row){ .row = grant->rows.v[i], .lo = lo, .hi = hi, .n_owed = hi - lo, .samples = calloc(hi - lo, 1) };
        fits = lease.rows[i].samples != NULL;
    }
    if (!fits || !grow((void **)&held->v, &held->capacity, held->n, sizeof *held->v)) {
        if (lease.rows) lease_free(&lease);
        return fl_fail(err, FL_FULL, "worker: no memory for a lease of %u rows", n);
    }
    held->v[held->n++] = lease;
    return FL_OK;
}

/* ---- leaving ---- */

static bool waits_to_hand_back(const held_leases *held, uint64_t lease)
{
    for (size_t i = 0; i < held->n_backs; i++)
        if (held->backs[i].lease == lease && !held->backs[i].sent) return true;
    return false;
}

static void drop_handbacks(held_leases *held, uint64_t lease)
{
    size_t n = 0;
    for (size_t i = 0; i < held->n_backs; i++)
        if (held->backs[i].lease != lease) held->backs[n++] = held->backs[i];
    held->n_backs = n;
}

static void leave_if_settled(held_leases *held, held_lease *lease)
{
    for (uint32_t i = 0; i < lease->n_rows; i++)
        if (lease->rows[i].n_gone < lease->rows[i].hi - lease->rows[i].lo) return;
    if (waits_to_hand_back(held, lease->id)) return;
    drop_handbacks(held, lease->id);
    lease_free(lease);
    *lease = held->v[--held->n];
}

/* ---- samples ---- */

static void set_gone(held_row *row, uint32_t i)
{
    if (row->samples[i] == SAMPLE_GONE) return;
    if (row->samples[i] == SAMPLE_OWED) row->n_owed--;
    row->samples[i] = SAMPLE_GONE;
    row->n_gone++;
}

static bool set_made(held_row *row, uint32_t i)
{
    if (row->samples[i] != SAMPLE_OWED) return false;
    row->samples[i] = SAMPLE_MADE;
    row->n_owed--;
    return true;
}

static bool in_row(const held_row *row, uint64_t sample)
{
    return sample >= row->lo && sample < row->hi;
}

bool held_made(held_leases *held, uint64_t id, uint64_t row_id, uint64_t sample)
{
    held_lease *lease = find_lease(held, id);
    bool any = false;
    for (uint32_t r = 0; lease && r < lease->n_rows; r++) {
        held_row *row = &lease->rows[r];
        if (row->row != row_id) continue;
        if (in_row(row, sample)) any |= set_made(row, (uint32_t)sample - row->lo);
        for (uint32_t i = 0; sample == WIRE_WHOLE_ROW && i < row->hi - row->lo; i++) any |= set_made(row, i);
    }
    return any;
}

void held_settle(held_leases *held, uint64_t id, uint64_t row_id, uint64_t sample)
{
    held_lease *lease = find_lease(held, id);
    if (!lease) return;
    for (uint32_t r = 0; r < lease->n_rows; r++) {
        held_row *row = &lease->rows[r];
        if (row->row != row_id) continue;
        if (in_row(row, sample)) set_gone(row, (uint32_t)sample - row->lo);
        for (uint32_t i = 0; sample == WIRE_WHOLE_ROW && i < row->hi - row->lo; i++) set_gone(row, i);
    }
    leave_if_settled(held, lease);
}

void held_settle_lease(held_leases *held, uint64_t id)
{
    held_lease *lease = find_lease(held, id);
    if (!lease) return;
    for (uint32_t r = 0; r < lease->n_rows; r++)
        for (uint32_t i = 0; i < lease->rows[r].hi - lease->rows[r].lo; i++) set_gone(&lease->rows[r], i);
    drop_handbacks(held, id);
    leave_if_settled(held, lease);
}

/* ---- hand-backs ---- */

static bool settle_owed(held_lease *lease, const uint64_t *row)
{
    bool any = false;
    for (uint32_t r = 0; r < lease->n_rows; r++) {
        if (row && lease->rows[r].row != *row) continue;
        for (uint32_t i = 0; i < lease->rows[r].hi - lease->rows[r].lo; i++)
            if (lease->rows[r].samples[i] == SAMPLE_OWED) {
                set_gone(&lease->rows[r], i);
                any = true;
            }
    }
    return any;
}

void held_hand_back(held_leases *held, uint64_t id, const uint64_t *row, wire_handback_reason reason, const char *text, size_t text_bytes)
{
    held_lease *lease = find_lease(held, id);
    if (!lease || !settle_owed(lease, row)) return;
    bool room = grow((void **)&held->backs, &held->backs_capacity, held->n_backs, sizeof *held->backs);
    FL_ASSERT(room);
    handback *back = &held->backs[held->n_backs++];
    *back = (handback){ .lease = id, .row = row ? *row : 0, .whole = row == NULL, .reason = reason };
    back->text_bytes = (uint32_t)(text_bytes < sizeof back->text ? text_bytes : sizeof back->text);
    if (back->text_bytes) memcpy(back->text, text, back->text_bytes);
}

bool held_next_handback(held_leases *held, wire_msg *msg)
{
    for (size_t i = 0; i < held->n_backs; i++) {
        const handback *back = &held->backs[i];
        if (back->sent) continue;
        held->next_back = i;
        *msg = (wire_msg){ .type = WIRE_HANDBACK, .handback = {
            .lease = back->lease, .rows = { back->whole ? NULL : &back->row, back->whole ? 0 : 1 }, .reason = back->reason, .text = { back->text, back->text_bytes },
        } };
        return true;
    }
    return false;
}

void held_handed(held_leases *held)
{
    FL_ASSERT(held->next_back < held->n_backs);
    handback *back = &held->backs[held->next_back];
    back->sent = true;
    held_lease *lease = find_lease(held, back->lease);
    if (lease) leave_if_settled(held, lease);
}

void held_hand_again(held_leases *held)
{
    for (size_t i = 0; i < held->n_backs; i++) held->backs[i].sent = false;
}

/* ---- reading ---- */

wire_list held_ids(held_leases *held)
{
    while (held->ids_capacity < held->n) {
        bool room = grow((void **)&held->ids, &held->ids_capacity, held->ids_capacity, sizeof *held->ids);
        FL_ASSERT(room);
    }
    for (size_t i = 0; i < held->n; i++) held->ids[i] = held->v[i].id;
    return (wire_list){ held->ids, (uint32_t)held->n };
}

void held_present(held_leases *held)
{
    for (size_t i = 0; i < held->n; i++) held->v[i].presented = true;
}

static bool list_has(wire_list list, uint64_t id)
{
    for (uint32_t i = 0; i < list.n; i++)
        if (list.v[i] == id) return true;
    return false;
}

uint64_t held_missing(held_leases *held, wire_list alive)
{
    for (size_t i = 0; i < held->n; i++) {
        if (!held->v[i].presented) continue;
        held->v[i].presented = false;
        if (!list_has(alive, held->v[i].id)) return held->v[i].id;
    }
    return 0;
}

size_t held_count(const held_leases *held)
{
    return held->n;
}

bool held_owes(const held_leases *held)
{
    for (size_t i = 0; i < held->n; i++)
        for (uint32_t r = 0; r < held->v[i].n_rows; r++)
            if (held->v[i].rows[r].n_owed > 0) return true;
    return false;
}

/* A row may stand in a lease more than once, with different samples. */
bool held_owes_one_row(const held_leases *held, uint64_t *lease, uint64_t *row)
{
    bool found = false;
    for (size_t i = 0; i < held->n; i++)
        for (uint32_t r = 0; r < held->v[i].n_rows; r++) {
            if (held->v[i].rows[r].n_owed == 0) continue;
            if (found && (*lease != held->v[i].id || *row != held->v[i].rows[r].row)) return false;
            *lease = held->v[i].id;
            *row = held->v[i].rows[r].row;
            found = true;
        }
    return found;
}
