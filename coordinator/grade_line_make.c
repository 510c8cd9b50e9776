/* grade_line_make.c - a grader's line (proto/grade_line.h), from what a job's folder holds: the row's task and the texts of committed samples. */
#include "coordinator/job_store.h"

#include <stdlib.h>
#include <string.h>
#include "coordinator/json_write.h"
#include "coordinator/ledger_lookup.h"
#include "proto/job_row.h"
#include "proto/result.h"

/* The sample's text as OUT shows it. */
static fl_status add_sample(json_out *out, const stored_job *job, ledger_lookup *lookup, row_index row, uint32_t sample, fl_err *err)
{
    ledger_place place;
    fl_bytes body;
    fl_result result = { 0 };
    uint8_t *text = NULL;
    size_t n_text = 0;
    if (!ledger_index_result(job->results, row, sample, &place)) return fl_fail(err, FL_CORRUPT, "row %llu, sample %u is to be graded and the ledger does not have it", (unsigned long long)row.v, sample);
    fl_status st = ledger_lookup_result(lookup, place, row, sample, &body, err);
    if (st == FL_OK) st = fl_result_decode(&result, body.data, body.bytes, (int32_t)job->n_vocab, err);
    if (st == FL_OK && job->detok) st = fl_detok_text(job->detok, result.ids, result.n_ids, result.text_bytes, &text, &n_text, NULL, err);
    if (st == FL_OK) json_out_bytes(out, text ? text : (const uint8_t *)"", n_text);       /* a model without a tokenizer gives no text */
    free(text);
    fl_result_free(&result);
    return st;
}

fl_status job_store_grade_line(stored_job *job, row_index row, uint32_t sample_lo, uint32_t sample_hi, fl_bytes *line, rows_entry *entry, fl_err *err)
{
    fl_bytes whole;
    fl_row parsed = { 0 };
    fl_row_fault fault;
    json_out out = { 0 };
    ledger_lookup *lookup = NULL;
    const char *defaults = job->settings.defaults[0] ? job->settings.defaults : NULL;
    fl_status st = job->results ? job_store_line(job, row, &whole, entry, err) : fl_fail(err, FL_CORRUPT, "row %llu of a job that is not graded is to be graded", (unsigned long long)row.v);
    if (st != FL_OK) return st;
    if (fl_row_parse(&parsed, whole.data, whole.bytes, entry->line, defaults, &fault) != ROW_OK) {
        st = fl_fail(err, FL_CORRUPT, "line %llu was good when the job was taken in and is bad now: %s", (unsigned long long)entry->line, fault.text);
        goto done;
    }
    if ((st = ledger_lookup_open(&lookup, job->ledger_dir, err)) != FL_OK) goto done;      /* a new one each time: it caches blocks, and the last block grows */
    json_out_begin(&out, '{');
    json_out_key(&out, "grade");
    if (parsed.grade_end > parsed.grade_start) json_out_raw(&out, (const char *)whole.data + parsed.grade_start, parsed.grade_end - parsed.grade_start);
    else json_out_null(&out);
    json_out_key(&out, "chat");
    json_out_bool(&out, parsed.endpoint == ROW_CHAT);
    json_out_key(&out, "samples");
    json_out_begin(&out, '[');
    for (uint32_t i = sample_lo; i < sample_hi && st == FL_OK; i++) st = add_sample(&out, job, lookup, row, i, err);
    json_out_end(&out, ']');
    json_out_end(&out, '}');
    if (st == FL_OK && out.failed) st = fl_fail(err, FL_FULL, "no memory for a grader's line");
    if (st == FL_OK) {
        *line = (fl_bytes){ out.data, out.n_bytes };
        out = (json_out){ 0 };
    }
done:
    json_out_fini(&out);
    ledger_lookup_close(lookup);
    fl_row_free(&parsed);
    return st;
}
