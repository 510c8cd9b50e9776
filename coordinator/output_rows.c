#include "coordinator/output_rows.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/ledger_index.h"
#include "coordinator/output_line.h"
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/result.h"

struct output_rows {
    rows *lines;                         /* owned */
    row_table *table;                    /* owned */
    ledger_index *index;                 /* owned; borrows table */
    job_settings settings;               /* owned */
    fl_detok *detok;                     /* owned; NULL: the ledger has none */
    char fingerprint[65], numerics[257], model[257];
    uint32_t n_vocab;
    ledger_cause cause;                  /* 0 = not closed */
    output_job job;                      /* borrows from the fields above */
    uint64_t next;
    job_counts counts;
    json_out line;
    fl_row row;                          /* of the last line given out */
    fl_result *results; int32_t n_results;       /* owned */
    char name[32];                       /* row-<line> */
};

static void copy_bytes(char *out, size_t capacity, fl_bytes bytes)
{
    size_t n = bytes.bytes < capacity - 1 ? bytes.bytes : capacity - 1;
    if (n) memcpy(out, bytes.data, n);
    out[n] = '\0';
}

static fl_status note_record(void *context, const ledger_record *record, fl_err *err)
{
    output_rows *o = context;
    switch (record->kind) {
    case LEDGER_JOB:
        return job_settings_parse(&o->settings, record->body.data, record->body.bytes, err);
    case LEDGER_DETOK:
        fl_detok_free(o->detok);
        o->detok = NULL;
        return fl_detok_decode(&o->detok, record->body.data, record->body.bytes, err);
    case LEDGER_PIN:
        copy_bytes(o->fingerprint, sizeof o->fingerprint, record->fingerprint);
        copy_bytes(o->numerics, sizeof o->numerics, record->numerics);
        copy_bytes(o->model, sizeof o->model, record->model);
        o->n_vocab = record->n_vocab;
        return FL_OK;
    case LEDGER_CLOSE:
        o->cause = record->cause;
        return FL_OK;
    default:
        return ledger_index_note(o->index, record, err);
    }
}

fl_status output_rows_open(output_rows **out, const char *job_dir, const char *ledger_dir, fl_err *err)
{
    output_rows *o = calloc(1, sizeof *o);
    if (!o) return fl_fail(err, FL_FULL, "no memory to make output lines");
    fl_status st = rows_open(&o->lines, job_dir, err);
    if (st == FL_OK) st = job_store_table(&o->table, o->lines, err);
    if (st == FL_OK) st = ledger_index_open(&o->index, o->table, ledger_dir, err);
    if (st == FL_OK) st = ledger_scan(ledger_dir, note_record, o, err);
    if (st == FL_OK && !o->cause) st = fl_fail(err, FL_AGAIN, "the job is not finished yet");
    if (st == FL_OK && !o->detok) st = fl_detok_make(&o->detok, 0, (const uint8_t *)"", (const uint32_t[1]){ 0 }, NULL, err);
    if (st == FL_OK) {
        o->job = (output_job){ .created = (int64_t)o->settings.created_s, .model = o->model, .seed = o->settings.seed, .fingerprint = o->fingerprint, .numerics = o->numerics };
        memcpy(o->job.content_hash, rows_describe(o->lines)->hash, sizeof o->job.content_hash);
        *out = o;
        o = NULL;
    }
    output_rows_close(o);
    return st;
}

static void drop_row(output_rows *o)
{
    for (int32_t i = 0; i < o->n_results; i++) fl_result_free(&o->results[i]);
    free(o->results);
    o->results = NULL;
    o->n_results = 0;
    fl_row_free(&o->row);
    memset(&o->row, 0, sizeof o->row);
}

void output_rows_close(output_rows *o)
{
    if (!o) return;
    drop_row(o);
    json_out_fini(&o->line);
    ledger_index_close(o->index);
    row_table_close(o->table);
    rows_close(o->lines);
    job_settings_fini(&o->settings);
    fl_detok_free(o->detok);
    free(o);
}

const job_counts *output_rows_counts(const output_rows *o)
{
    return &o->counts;
}

/* A row the job ended without: cancelled or expired. */
static void describe_unfinished(const output_rows *o, output_error *error)
{
    bool cancelled = o->cause == LEDGER_CANCELLED;
    error->code = cancelled ? ROW_CANCELLED : ROW_EXPIRED;
    error->text = cancelled ? "the job was cancelled before this row was finished" : "the job expired before this row was finished";
    error->text_bytes = strlen(error->text);
}

static fl_status write_error(output_rows *o, const rows_entry *entry, const ledger_record *record, fl_err *err)
{
    output_error error = { .line = entry->line };
    if (record) {
        error.code = (fl_row_error)record->code;
        error.text = record->body.data;
        error.text_bytes = record->body.bytes;
    } else {
        describe_unfinished(o, &error);
    }
    if (record && record->kind == LEDGER_INGEST_ERROR) {
        error.line = record->line;
        error.offset = record->line_offset;
        error.custom_id = record->custom_id.data;
        error.custom_id_bytes = record->custom_id.bytes;
    } else {
        error.offset = entry->offset;
        error.custom_id = o->row.custom_id;
        error.custom_id_bytes = o->row.custom_id_bytes;
    }
    if (!error.custom_id || error.custom_id_bytes == 0) {
        snprintf(o->name, sizeof o->name, "row-%" PRIu64, error.line);
        error.custom_id = o->name;
        error.custom_id_bytes = strlen(o->name);
    }
    return output_error_write(&o->line, &o->job, &error, err);
}

/* All samples of the row, decoded. *whole false: one is missing. */
static fl_status read_results(output_rows *o, row_index row, bool *whole, fl_err *err)
{
    *whole = false;
    o->results = calloc((size_t)o->row.n, sizeof *o->results);
    if (!o->results) return fl_fail(err, FL_FULL, "no memory for %d samples", o->row.n);
    o->n_results = o->row.n;
    for (int32_t i = 0; i < o->row.n; i++) {
        fl_bytes body;
        fl_status st = ledger_index_result(o->index, row, (uint32_t)i, &body, err);
        if (st == FL_NOT_FOUND) return FL_OK;
        if (st == FL_OK) st = fl_result_decode(&o->results[i], body.data, body.bytes, (int32_t)o->n_vocab, err);
        if (st != FL_OK) return st;
    }
    *whole = true;
    return FL_OK;
}

static fl_status parse_line(output_rows *o, const rows_entry *entry, fl_err *err)
{
    const char *line = NULL;
    fl_row_fault fault;
    fl_status st = rows_line(o->lines, entry, &line, err);
    if (st != FL_OK) return st;
    if (fl_row_parse(&o->row, line, entry->n_bytes, entry->line, o->settings.defaults[0] ? o->settings.defaults : NULL, &fault) == ROW_OK) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "line %" PRIu64 " was good when the job was taken in and is bad now: %s", entry->line, fault.text);
}

static void count_row(output_rows *o, bool is_error)
{
    o->counts.rows++;
    o->counts.completed += !is_error;
    o->counts.failed += is_error;
    for (int32_t i = 0; i < o->n_results; i++) o->counts.tokens += o->results[i].n_ids;
}

fl_status output_rows_next(output_rows *o, output_row *out, fl_err *err)
{
    row_index row = { o->next };
    rows_entry entry;
    ledger_record record;
    bool whole = false;
    if (o->next >= rows_describe(o->lines)->n_rows) return FL_CLOSED;
    drop_row(o);
    json_out_reset(&o->line, 0);
    fl_status st = rows_get(o->lines, row, &entry, err);
    if (st != FL_OK) return st;
    fl_status found = ledger_index_error(o->index, row, &record, err);
    if (found != FL_OK && found != FL_NOT_FOUND) return found;
    bool is_bad = found == FL_OK && record.kind == LEDGER_INGEST_ERROR;
    if (!is_bad && (st = parse_line(o, &entry, err)) != FL_OK) return st;
    if (found == FL_NOT_FOUND && (st = read_results(o, row, &whole, err)) != FL_OK) return st;
    if (!whole && found == FL_NOT_FOUND && o->cause == LEDGER_COMPLETED) {
        return fl_fail(err, FL_CORRUPT, "the ledger says the job is completed, but row %" PRIu64 " has no result", row.v);
    }
    st = whole ? output_line_write(&o->line, &o->job, &o->row, o->results, o->detok, err) : write_error(o, &entry, found == FL_OK ? &record : NULL, err);
    if (st != FL_OK) return st;
    count_row(o, !whole);
    o->next++;
    *out = (output_row){ .is_error = !whole, .row = row, .line = o->line.data, .n_bytes = o->line.n_bytes };
    out->custom_id = is_bad && record.custom_id.bytes ? record.custom_id.data : o->row.custom_id;
    out->custom_id_bytes = is_bad && record.custom_id.bytes ? record.custom_id.bytes : o->row.custom_id_bytes;
    if (!out->custom_id) {
        out->custom_id = o->name;
        out->custom_id_bytes = strlen(o->name);
    }
    return FL_OK;
}
