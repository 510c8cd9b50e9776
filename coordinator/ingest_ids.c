#include "coordinator/ingest_ids.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "coordinator/rows.h"
#include "proto/job_row.h"

enum { WINDOW_ENTRIES = 2048, NOTE_EVERY = 1 << 16, DUPLICATE_RUN = 1 << 18 };

struct ingest_ids {
    ingest_ids_options o;
    rows_header header;                  /* as far as entries are checked with it */
    id_runs *duplicates;                 /* owned; high = a row, low = the first row with its id */
    uint8_t window[WINDOW_ENTRIES * ROWS_ENTRY_BYTES]; uint64_t window_first; size_t window_count; bool window_dirty;      /* of rows.idx */
    char *line; size_t line_capacity;    /* owned */
    fl_row row;                          /* the last that was parsed */
    char text[FAULT_TEXT_MAX];
    uint64_t n_steps;
};

/* ---- rows.idx, some entries at a time ---- */

static fl_status move_bytes(const ingest_ids *t, int fd, bool writing, void *data, size_t n_bytes, uint64_t offset, fl_err *err)
{
    for (size_t done = 0; done < n_bytes;) {
        char *at = (char *)data + done;
        ssize_t n = writing ? pwrite(fd, at, n_bytes - done, (off_t)(offset + done)) : pread(fd, at, n_bytes - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return fl_fail_errno(err, n < 0 ? errno : EIO, "ingest: %s in %s", writing ? "write " ROWS_INDEX_FILE : "read the job back", t->o.job_dir);
        done += (size_t)n;
    }
    return FL_OK;
}

static fl_status flush_window(ingest_ids *t, fl_err *err)
{
    if (!t->window_dirty) return FL_OK;
    t->window_dirty = false;
    return move_bytes(t, t->o.index_fd, true, t->window, t->window_count * ROWS_ENTRY_BYTES, ROWS_HEADER_BYTES + t->window_first * ROWS_ENTRY_BYTES, err);
}

static fl_status get_entry(ingest_ids *t, uint64_t row, rows_entry *entry, fl_err *err)
{
    fl_status st = FL_OK;
    if (row < t->window_first || row - t->window_first >= t->window_count) {
        if ((st = flush_window(t, err)) != FL_OK) return st;
        t->window_first = row - row % WINDOW_ENTRIES;
        t->window_count = t->o.n_rows - t->window_first < WINDOW_ENTRIES ? (size_t)(t->o.n_rows - t->window_first) : WINDOW_ENTRIES;
        st = move_bytes(t, t->o.index_fd, false, t->window, t->window_count * ROWS_ENTRY_BYTES, ROWS_HEADER_BYTES + t->window_first * ROWS_ENTRY_BYTES, err);
    }
    return st == FL_OK ? rows_entry_decode(entry, t->window + (row - t->window_first) * ROWS_ENTRY_BYTES, &t->header, err) : st;
}

static void put_entry(ingest_ids *t, uint64_t row, const rows_entry *entry)          /* the one that was got last */
{
    rows_entry_encode(t->window + (row - t->window_first) * ROWS_ENTRY_BYTES, entry);
    t->window_dirty = true;
}

/* One entry somewhere else, without leaving the window. */
static fl_status peek_entry(ingest_ids *t, uint64_t row, rows_entry *entry, fl_err *err)
{
    uint8_t bytes[ROWS_ENTRY_BYTES];
    if (row >= t->window_first && row - t->window_first < t->window_count) return get_entry(t, row, entry, err);
    fl_status st = move_bytes(t, t->o.index_fd, false, bytes, sizeof bytes, ROWS_HEADER_BYTES + row * ROWS_ENTRY_BYTES, err);
    return st == FL_OK ? rows_entry_decode(entry, bytes, &t->header, err) : st;
}

/* Parse a row's line again, for its custom_id. */
static fl_status read_row(ingest_ids *t, const rows_entry *entry, fl_err *err)
{
    fl_row_fault fault;
    if (entry->n_bytes > t->line_capacity) {
        free(t->line);
        t->line_capacity = 0;
        if (!(t->line = malloc(entry->n_bytes))) return fl_fail(err, FL_FULL, "ingest: no memory for a line of %u bytes", entry->n_bytes);
        t->line_capacity = entry->n_bytes;
    }
    fl_status st = move_bytes(t, t->o.job_fd, false, t->line, entry->n_bytes, entry->offset, err);
    if (st != FL_OK) return st;
    fl_row_free(&t->row);
    fl_row_parse(&t->row, t->line, entry->n_bytes, entry->line, t->o.defaults, &fault);
    return t->row.custom_id ? FL_OK : fl_fail(err, FL_CORRUPT, "ingest: line %llu cannot be read again: the job's copy in %s was changed", (unsigned long long)entry->line, t->o.job_dir);
}

static fl_status step(ingest_ids *t, fl_err *err)
{
    return ++t->n_steps % NOTE_EVERY == 0 && t->o.note ? t->o.note(t->o.context, err) : FL_OK;
}

/* ---- the search ---- */

/* Side by side in the merge, the lowest row first: every other row of a group is a duplicate. */
static fl_status find_duplicates(ingest_ids *t, fl_err *err)
{
    id_record first = { 0 }, next;
    bool any = false;
    fl_status st = id_runs_begin(t->o.ids, err);
    while (st == FL_OK && (st = id_runs_next(t->o.ids, &next, err)) == FL_OK) {
        if (any && next.high == first.high && next.low == first.low) {
            id_record duplicate = { next.row, first.row, 0 };
            st = id_runs_add(t->duplicates, &duplicate, 1, err);
        } else {
            first = next;
            any = true;
        }
        if (st == FL_OK) st = step(t, err);
    }
    return st == FL_CLOSED ? FL_OK : st;
}

static void make_bad(ingest_ids *t, uint64_t row, rows_entry entry, ingest_ids_counts *found)
{
    found->n_bad++;
    found->samples_lost += entry.n_samples;
    found->cost_lost += entry.cost;
    entry.n_samples = 0;
    entry.cost = 1;
    entry.is_renamed = false;
    put_entry(t, row, &entry);
}

/* The names that renamed rows would have, by their hashes. */
static fl_status add_name(ingest_ids *t, id_runs *names, uint64_t row, const rows_entry *entry, fl_err *err)
{
    fl_status st = read_row(t, entry, err);
    if (st != FL_OK) return st;
    fl_row_rename(&t->row, entry->line);
    XXH128_hash_t hash = XXH3_128bits(t->row.custom_id, t->row.custom_id_bytes);
    return id_runs_add(names, &(id_record){ hash.high64, hash.low64, row }, 1, err);
}

/* Good duplicates become bad, or renamed with their names in `names`. */
static fl_status mark_duplicates(ingest_ids *t, id_runs *names, ingest_ids_counts *found, fl_err *err)
{
    id_record duplicate;
    fl_status st = id_runs_begin(t->duplicates, err);
    while (st == FL_OK && (st = id_runs_next(t->duplicates, &duplicate, err)) == FL_OK) {
        uint64_t row = duplicate.high;
        rows_entry entry;
        if ((st = get_entry(t, row, &entry, err)) != FL_OK || (st = step(t, err)) != FL_OK) break;
        if (entry.n_samples == 0) continue;              /* bad for another reason */
        if (!names) { make_bad(t, row, entry, found); continue; }
        if ((st = add_name(t, names, row, &entry, err)) != FL_OK) break;
        entry.is_renamed = true;
        found->n_renamed++;
        put_entry(t, row, &entry);
    }
    return st == FL_CLOSED ? FL_OK : st;
}

/* New names that are ids of the job already: both lists are in order. New names differ among themselves, since each ends with its line. */
static fl_status refuse_taken_names(ingest_ids *t, id_runs *names, ingest_ids_counts *found, fl_err *err)
{
    id_record name, id = { 0 };
    rows_entry entry;
    fl_status st = id_runs_begin(names, err), more;
    if (st == FL_OK) st = id_runs_begin(t->o.ids, err);
    if (st != FL_OK) return st;
    more = id_runs_next(t->o.ids, &id, err);
    while (st == FL_OK && (st = id_runs_next(names, &name, err)) == FL_OK) {
        while (more == FL_OK && (id.high < name.high || (id.high == name.high && id.low < name.low))) {
            more = id_runs_next(t->o.ids, &id, err);
            if (more == FL_OK && (st = step(t, err)) != FL_OK) return st;
        }
        if (more != FL_OK && more != FL_CLOSED) return more;
        if (more != FL_OK || id.high != name.high || id.low != name.low) continue;
        if ((st = get_entry(t, name.row, &entry, err)) != FL_OK) break;
        make_bad(t, name.row, entry, found);
        found->n_renamed--;
    }
    return st == FL_CLOSED ? FL_OK : st;
}

fl_status ingest_ids_open(ingest_ids **out, const ingest_ids_options *options, ingest_ids_counts *found, fl_err *err)
{
    id_runs *names = NULL;
    ingest_ids *t = calloc(1, sizeof *t);
    if (!t) return fl_fail(err, FL_FULL, "ingest: no memory");
    t->o = *options;
    t->header = (rows_header){ .n_rows = options->n_rows, .n_bytes = options->n_bytes };
    fl_status st = id_runs_open(&t->duplicates, options->job_dir, DUPLICATE_RUN, err);
    if (st == FL_OK) st = find_duplicates(t, err);
    if (st == FL_OK && options->suffix && id_runs_count(t->duplicates)) st = id_runs_open(&names, options->job_dir, DUPLICATE_RUN, err);
    if (st == FL_OK) st = mark_duplicates(t, names, found, err);
    if (st == FL_OK && names) st = refuse_taken_names(t, names, found, err);
    if (st == FL_OK) st = flush_window(t, err);
    if (st == FL_OK) {
        *out = t;
        t = NULL;
    }
    id_runs_close(names);
    ingest_ids_close(t);
    return st;
}

void ingest_ids_close(ingest_ids *t)
{
    if (!t) return;
    id_runs_close(t->duplicates);
    fl_row_free(&t->row);
    free(t->line);
    free(t);
}

/* ---- the bad ones ---- */

fl_status ingest_ids_begin(ingest_ids *t, fl_err *err) { return id_runs_begin(t->duplicates, err); }

fl_status ingest_ids_next(ingest_ids *t, fault_entry *fault, fl_err *err)
{
    id_record duplicate;
    rows_entry entry, first;
    fl_status st;
    do {
        if ((st = id_runs_next(t->duplicates, &duplicate, err)) != FL_OK) return st;
        if ((st = get_entry(t, duplicate.high, &entry, err)) != FL_OK) return st;
    } while (entry.is_renamed);
    if ((st = peek_entry(t, duplicate.low, &first, err)) != FL_OK) return st;
    *fault = (fault_entry){ .row = duplicate.high, .line = entry.line, .offset = entry.offset, .code = ROW_DUPLICATE_ID };
    if ((st = read_row(t, &entry, err)) != FL_OK) return st;
    fault->custom_id = t->row.custom_id;
    fault->custom_id_bytes = (uint32_t)t->row.custom_id_bytes;
    fault->text_bytes = (uint32_t)snprintf(t->text, sizeof t->text, "line %llu has the same custom_id%s", (unsigned long long)first.line,
                                           t->o.suffix ? ", and the name with a suffix is another row's: make them differ" : ": make them differ");
    fault->text = t->text;
    return FL_OK;
}
