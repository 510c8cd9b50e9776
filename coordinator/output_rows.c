#include "coordinator/output_rows.h"

#include <stdlib.h>
#include <string.h>
#include "coordinator/cores.h"
#include "coordinator/ledger_reader.h"
#include "coordinator/output_crew.h"

#define CORES_MAX 16

struct output_rows {
    char *ledger_dir;                    /* owned */
    rows *lines;                         /* owned */
    ledger_reader *reader;               /* owned */
    ledger_index *index;                 /* owned */
    job_settings settings;               /* owned */
    fl_detok *detok;                     /* owned; of no ids while the ledger has no table */
    char fingerprint[65], numerics[257], model[257];
    uint32_t n_vocab;
    ledger_cause cause;                  /* 0 = not closed */
    uint64_t next, ready;                /* rows: the next one to hand out, the first one that cannot be made yet */
    job_counts counts;
    output_take take; void *context;     /* of the call in hand */
};

/* The core appends pin and table ahead of the first grant, so they stand before the results whose text they make. */
static fl_status note_record(void *context, const ledger_record *record, fl_err *err)
{
    output_rows *o = context;
    fl_detok *table = NULL;
    fl_status st = FL_OK;
    switch (record->kind) {
    case LEDGER_JOB:
        st = job_settings_parse(&o->settings, record->body.data, record->body.bytes, err);
        return st == FL_OK ? job_store_index(&o->index, o->lines, o->settings.grade, err) : st;      /* it is the first record */
    case LEDGER_DETOK:
        if ((st = fl_detok_decode(&table, record->body.data, record->body.bytes, err)) != FL_OK) return st;
        fl_detok_free(o->detok);
        o->detok = table;
        return FL_OK;
    case LEDGER_PIN:
        fl_bytes_text(o->fingerprint, sizeof o->fingerprint, record->fingerprint);
        fl_bytes_text(o->numerics, sizeof o->numerics, record->numerics);
        fl_bytes_text(o->model, sizeof o->model, record->model);
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
    o->ledger_dir = strdup(ledger_dir);
    fl_status st = o->ledger_dir ? rows_open(&o->lines, job_dir, err) : fl_fail(err, FL_FULL, "no memory to make output lines");
    if (st == FL_OK) st = ledger_reader_open(&o->reader, ledger_dir, err);
    if (st == FL_OK) st = fl_detok_make(&o->detok, 0, (const uint8_t *)"", (const uint32_t[1]){ 0 }, NULL, err);
    if (st == FL_OK) {
        *out = o;
        o = NULL;
    }
    output_rows_close(o);
    return st;
}

void output_rows_close(output_rows *o)
{
    if (!o) return;
    ledger_reader_close(o->reader);
    ledger_index_close(o->index);
    rows_close(o->lines);
    job_settings_fini(&o->settings);
    fl_detok_free(o->detok);
    free(o->ledger_dir);
    free(o);
}

/* All of the row is there, its verdicts with it where the job is graded. */
static bool is_ready(const output_rows *o, row_index row, uint64_t n_rows)
{
    ledger_place place;
    if (!o->index || !ledger_index_finished(o->index, row)) return false;
    return !o->settings.grade || ledger_index_error(o->index, row, &place) || ledger_index_finished(o->index, (row_index){ n_rows + row.v });
}

fl_status output_rows_read(output_rows *o, ledger_place until, fl_err *err)
{
    uint64_t n_rows = rows_describe(o->lines)->n_rows;
    fl_status st = ledger_reader_read(o->reader, until, note_record, o, err);
    if (st != FL_OK) return st;
    if (o->cause) o->ready = n_rows;
    while (o->ready < n_rows && is_ready(o, (row_index){ o->ready }, n_rows)) o->ready++;
    return FL_OK;
}

bool output_rows_is_closed(const output_rows *o) { return o->cause != 0; }
const job_counts *output_rows_counts(const output_rows *o) { return &o->counts; }

int output_rows_cores(void)
{
    int n = cores_here();
    return n > CORES_MAX ? CORES_MAX : n;
}

static fl_status take_batch(void *context, const output_batch *b, fl_err *err)
{
    output_rows *o = context;
    fl_status st = o->take(o->context, b, err);
    if (st != FL_OK) return st;
    for (uint32_t i = 0; i < b->n_rows; i++) o->counts.failed += b->is_error[i];
    o->next += b->n_rows;
    o->counts.rows = o->next;
    o->counts.completed = o->next - o->counts.failed;
    o->counts.tokens += b->n_tokens;
    return FL_OK;
}

fl_status output_rows_make(output_rows *o, int n_threads, const atomic_bool *stop, output_take take, void *context, fl_err *err)
{
    output_shared shared = { .ledger_dir = o->ledger_dir, .lines = o->lines, .index = o->index, .detok = o->detok, .n_vocab = o->n_vocab, .cause = o->cause, .is_graded = o->settings.grade,
                             .defaults = o->settings.defaults && o->settings.defaults[0] ? o->settings.defaults : NULL,
                             .job = { .created = (int64_t)o->settings.created_s, .model = o->model, .seed = o->settings.seed, .fingerprint = o->fingerprint,
                                      .numerics = o->numerics } };
    memcpy(shared.job.content_hash, rows_describe(o->lines)->hash, sizeof shared.job.content_hash);
    o->take = take;
    o->context = context;
    return o->next < o->ready ? output_crew_make(&shared, o->next, o->ready, n_threads, stop, take_batch, o, err) : FL_OK;
}
