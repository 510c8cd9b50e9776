#include "coordinator/job_failures.h"

#include <string.h>
#include "proto/detok.h"

void job_failures_copy(char *out, size_t capacity, const char *text, size_t n_bytes)
{
    size_t used = 0;
    for (size_t at = 0; at < n_bytes; ) {
        bool good = false;
        size_t step = fl_utf8_step((const uint8_t *)text + at, n_bytes - at, &good);
        unsigned char first = (unsigned char)text[at];
        bool is_c1 = good && first == 0xC2 && (unsigned char)text[at + 1] < 0xA0, is_shown = good && !is_c1 && first >= 0x20 && first != 0x7f;
        if (used + (is_shown ? step : 1) >= capacity) break;
        if (is_shown) memcpy(out + used, text + at, step);
        else out[used] = '?';
        used += is_shown ? step : 1;
        at += step;
    }
    out[used] = '\0';
}

/* Where this one goes: a free place, or that of a code that has two examples while this code has none. NULL: it is not needed. */
static failure_example *place_for(job_failures *f, fl_row_error code)
{
    if (f->n_examples < JOB_FAILURES_EXAMPLES) return &f->examples[f->n_examples++];
    if (f->n[code] > 1) return NULL;
    for (int i = JOB_FAILURES_EXAMPLES - 1; i > 0; i--) {
        for (int k = 0; k < i; k++) {
            if (f->examples[i].code == f->examples[k].code) return &f->examples[i];
        }
    }
    return NULL;
}

void job_failures_note(job_failures *f, const ledger_record *record)
{
    if (record->kind != LEDGER_INGEST_ERROR && record->kind != LEDGER_ROW_ERROR) return;
    fl_row_error code = record->code < ROW_ERROR_COUNT ? (fl_row_error)record->code : ROW_OK;
    f->n[code]++;
    failure_example *e = place_for(f, code);
    if (!e) return;
    *e = (failure_example){ .row = record->row, .code = code, .is_named = record->kind == LEDGER_INGEST_ERROR, .line = record->line };
    job_failures_copy(e->text, sizeof e->text, record->body.data, record->body.bytes);
    if (e->is_named) job_failures_copy(e->custom_id, sizeof e->custom_id, record->custom_id.data, record->custom_id.bytes);
}
