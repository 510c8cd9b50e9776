#include "coordinator/output_maker.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/ledger_lookup.h"
#include "proto/job_row.h"
#include "proto/result.h"

#define BUFFER_KEPT_BYTES (4u << 20)

struct output_maker {
    const output_shared *shared;         /* borrowed */
    rows *lines;                         /* owned */
    ledger_lookup *ledger;               /* owned */
    fl_row row;                          /* of the row in hand */
    fl_result *results; int32_t n_results, capacity;     /* owned; of the row in hand */
    fl_verdict verdicts[FL_SAMPLES_MAX]; /* of a graded job's row in hand */
    char name[32];                       /* row-<line> */
};

void output_batch_reset(output_batch *b, row_index first)
{
    b->first = first;
    b->n_rows = 0;
    b->n_tokens = 0;
    for (int i = 0; i < 2; i++) {
        if (b->lines[i].capacity > BUFFER_KEPT_BYTES) json_out_fini(&b->lines[i]);
        json_out_reset(&b->lines[i], 0);
    }
}

void output_batch_fini(output_batch *b)
{
    json_out_fini(&b->lines[0]);
    json_out_fini(&b->lines[1]);
}

fl_status output_maker_open(output_maker **out, const output_shared *shared, fl_err *err)
{
    output_maker *m = calloc(1, sizeof *m);
    if (!m) return fl_fail(err, FL_FULL, "no memory to make output lines");
    m->shared = shared;
    fl_status st = rows_share(&m->lines, shared->lines, err);
    if (st == FL_OK) st = ledger_lookup_open(&m->ledger, shared->ledger_dir, err);
    if (st == FL_OK) {
        *out = m;
        m = NULL;
    }
    output_maker_close(m);
    return st;
}

static void drop_row(output_maker *m)
{
    for (int32_t i = 0; i < m->n_results; i++) fl_result_free(&m->results[i]);
    m->n_results = 0;
    fl_row_free(&m->row);
    memset(&m->row, 0, sizeof m->row);
}

void output_maker_close(output_maker *m)
{
    if (!m) return;
    drop_row(m);
    free(m->results);
    ledger_lookup_close(m->ledger);
    rows_close(m->lines);
    free(m);
}

fl_status output_maker_is_large(output_maker *m, row_index row, bool *is_large, fl_err *err)
{
    rows_entry entry;
    ledger_place place;
    fl_status st = rows_get(m->lines, row, &entry, err);
    if (st != FL_OK) return st;
    uint64_t total = entry.n_bytes;
    if (ledger_index_error(m->shared->index, row, &place)) total = 0;    /* its line may be read, but no more than that */
    for (uint32_t i = 0; total > 0 && i < entry.n_samples; i++) {
        uint64_t n_bytes = 0;
        if (!ledger_index_result(m->shared->index, row, i, &place)) continue;
        if ((st = ledger_lookup_size(m->ledger, place, &n_bytes, err)) != FL_OK) return st;
        total += n_bytes;
    }
    *is_large = total > OUTPUT_LARGE_BYTES || entry.n_bytes > OUTPUT_LARGE_BYTES;
    return FL_OK;
}

/* A row the job ended without: cancelled or expired. */
static void describe_unfinished(const output_maker *m, output_error *error)
{
    bool cancelled = m->shared->cause == LEDGER_CANCELLED;
    error->code = cancelled ? ROW_CANCELLED : ROW_EXPIRED;
    error->text = cancelled ? "the job was cancelled before this row was finished" : "the job expired before this row was finished";
    error->text_bytes = strlen(error->text);
}

static fl_status write_error(output_maker *m, json_out *out, const rows_entry *entry, const ledger_record *record, fl_err *err)
{
    output_error error = { .line = entry->line };
    if (record) {
        error.code = (fl_row_error)record->code;
        error.text = record->body.data;
        error.text_bytes = record->body.bytes;
    } else {
        describe_unfinished(m, &error);
    }
    if (record && record->kind == LEDGER_INGEST_ERROR) {
        error.line = record->line;
        error.offset = record->line_offset;
        error.custom_id = record->custom_id.data;
        error.custom_id_bytes = record->custom_id.bytes;
    } else {
        error.offset = entry->offset;
        error.custom_id = m->row.custom_id;
        error.custom_id_bytes = m->row.custom_id_bytes;
    }
    if (!error.custom_id || error.custom_id_bytes == 0) {
        snprintf(m->name, sizeof m->name, "row-%" PRIu64, error.line);
        error.custom_id = m->name;
        error.custom_id_bytes = strlen(m->name);
    }
    return output_error_write(out, &m->shared->job, &error, err);
}

/* All samples of the row, decoded. *whole false: one is missing. */
static fl_status read_results(output_maker *m, row_index row, bool *whole, fl_err *err)
{
    *whole = false;
    if (m->row.n > m->capacity) {
        fl_result *grown = realloc(m->results, (size_t)m->row.n * sizeof *grown);
        if (!grown) return fl_fail(err, FL_FULL, "no memory for %d samples", m->row.n);
        m->results = grown;
        m->capacity = m->row.n;
    }
    for (int32_t i = 0; i < m->row.n; i++) {
        fl_bytes body;
        ledger_place place;
        if (!ledger_index_result(m->shared->index, row, (uint32_t)i, &place)) return FL_OK;
        fl_status st = ledger_lookup_result(m->ledger, place, row, (uint32_t)i, &body, err);
        if (st == FL_OK) st = fl_result_decode(&m->results[i], body.data, body.bytes, (int32_t)m->shared->n_vocab, err);
        if (st != FL_OK) return st;
        m->n_results++;
    }
    *whole = true;
    return FL_OK;
}

/* The verdicts of all samples. *whole false: one is missing. */
static fl_status read_verdicts(output_maker *m, row_index row, bool *whole, fl_err *err)
{
    row_index grade = { rows_describe(m->lines)->n_rows + row.v };
    for (int32_t i = 0; *whole && i < m->row.n; i++) {
        fl_bytes body;
        ledger_place place;
        *whole = ledger_index_result(m->shared->index, grade, (uint32_t)i, &place);
        if (!*whole) break;
        fl_status st = ledger_lookup_result(m->ledger, place, grade, (uint32_t)i, &body, err);
        if (st == FL_OK) st = fl_verdict_decode(&m->verdicts[i], body.data, body.bytes, err);
        if (st != FL_OK) return st;
    }
    return FL_OK;
}

static fl_status parse_line(output_maker *m, const rows_entry *entry, fl_err *err)
{
    const char *line = NULL;
    fl_row_fault fault;
    fl_status st = rows_line(m->lines, entry, &line, err);
    if (st != FL_OK) return st;
    fl_row_error bad = fl_row_parse(&m->row, line, entry->n_bytes, entry->line, m->shared->defaults, &fault);
    if (entry->is_renamed && m->row.custom_id) fl_row_rename(&m->row, entry->line);
    if (bad == ROW_OK && m->row.n == (int32_t)entry->n_samples) return FL_OK;
    if (bad == ROW_OK) return fl_fail(err, FL_CORRUPT, "line %" PRIu64 " had %u samples when the job was taken in and has %d now", entry->line, entry->n_samples, m->row.n);
    return fl_fail(err, FL_CORRUPT, "line %" PRIu64 " was good when the job was taken in and is bad now: %s", entry->line, fault.text);
}

fl_status output_maker_add(output_maker *m, output_batch *b, fl_err *err)
{
    FL_ASSERT(b->n_rows < OUTPUT_BATCH_ROWS);
    row_index row = { b->first.v + b->n_rows };
    rows_entry entry;
    ledger_record record;
    ledger_place place;
    bool whole = false;
    drop_row(m);
    fl_status st = rows_get(m->lines, row, &entry, err);
    bool has_error = ledger_index_error(m->shared->index, row, &place);
    if (st == FL_OK && has_error) st = ledger_lookup_error(m->ledger, place, row, &record, err);
    if (st != FL_OK) return st;
    bool is_bad = has_error && record.kind == LEDGER_INGEST_ERROR;
    if (!is_bad && (st = parse_line(m, &entry, err)) != FL_OK) return st;
    if (!has_error && (st = read_results(m, row, &whole, err)) != FL_OK) return st;
    if (whole && m->shared->is_graded && (st = read_verdicts(m, row, &whole, err)) != FL_OK) return st;
    if (!has_error && !whole && m->shared->cause != LEDGER_CANCELLED && m->shared->cause != LEDGER_EXPIRED) {
        return fl_fail(err, FL_CORRUPT, "the ledger says the job is completed, but row %" PRIu64 " has no result", row.v);
    }
    st = whole ? output_line_write(&b->lines[0], &m->shared->job, &m->row, m->results, m->shared->is_graded ? m->verdicts : NULL, m->shared->detok, err)
               : write_error(m, &b->lines[1], &entry, has_error ? &record : NULL, err);
    if (st != FL_OK) return st;
    for (int32_t i = 0; i < m->n_results; i++) b->n_tokens += m->results[i].n_ids;
    b->is_error[b->n_rows++] = !whole;
    return FL_OK;
}
