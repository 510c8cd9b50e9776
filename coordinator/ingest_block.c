#include "coordinator/ingest_block.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "coordinator/fault_list.h"
#include "coordinator/ingest.h"
#include "coordinator/rows.h"
#include "proto/bytes.h"
#include "proto/job_row.h"

enum { FIRST_CAPACITY = 16 * 1024, UNKNOWN_HEAD = 8 };

/* Room for n_bytes more; NULL and b->status when there is no memory. */
static uint8_t *more(ingest_block *b, block_bytes *to, size_t n_bytes)
{
    if (b->status != FL_OK) return NULL;
    if (to->used + n_bytes > to->capacity) {
        size_t capacity = to->capacity ? to->capacity * 2 : FIRST_CAPACITY;
        while (capacity < to->used + n_bytes) capacity *= 2;
        uint8_t *bytes = realloc(to->bytes, capacity);
        if (!bytes) {
            b->status = fl_fail(&b->err, FL_FULL, "no memory to ingest %zu bytes of lines", b->used);
            return NULL;
        }
        to->bytes = bytes;
        to->capacity = capacity;
    }
    to->used += n_bytes;
    return to->bytes + to->used - n_bytes;
}

static void note_unknown(ingest_block *b, const char *names)
{
    uint8_t *last = b->unknown.used ? b->unknown.bytes + b->unknown_last : NULL;
    size_t n = strlen(names);
    if (last && fl_get_u32(last + 4) == n && memcmp(last + UNKNOWN_HEAD, names, n) == 0) {
        fl_put_u32(last, fl_get_u32(last) + 1);
        return;
    }
    uint8_t *out = more(b, &b->unknown, UNKNOWN_HEAD + n);
    if (!out) return;
    b->unknown_last = (size_t)(out - b->unknown.bytes);
    fl_put_u32(out, 1);
    fl_put_u32(out + 4, (uint32_t)n);
    memcpy(out + UNKNOWN_HEAD, names, n);
}

static void note_id(ingest_block *b, const fl_row *row)
{
    id_record *out = (id_record *)more(b, &b->ids, sizeof *out);
    if (!out) return;
    XXH128_hash_t hash = XXH3_128bits(row->custom_id, row->custom_id_bytes);
    *out = (id_record){ hash.high64, hash.low64, b->n_rows };
}

static void note_fault(ingest_block *b, const fl_row *row, const fl_row_fault *fault, uint64_t line, uint64_t offset)
{
    char made[32];
    fault_entry f = { b->n_rows, line, offset + fault->offset, fault->code, (uint32_t)row->custom_id_bytes, (uint32_t)strlen(fault->text), row->custom_id, fault->text };
    if (!f.custom_id) {
        f.custom_id_bytes = (uint32_t)snprintf(made, sizeof made, "row-%llu", (unsigned long long)line);
        f.custom_id = made;
    }
    uint8_t *out = more(b, &b->faults, FAULT_BYTES_MAX);
    if (out) b->faults.used -= FAULT_BYTES_MAX - fault_encode(out, &f);
    b->n_bad++;
}

static uint32_t row_cost(const fl_row *row)
{
    uint64_t prompt = row->prompt_kind == ROW_PROMPT_IDS ? row->n_ids : row->text_bytes / 3;         /* about three bytes a token */
    uint64_t new_tokens = row->endpoint == ROW_CHAT && !(row->given & ROW_GIVEN_MAX_TOKENS) ? INGEST_CHAT_TOKENS : (uint64_t)row->max_tokens;
    uint64_t cost = prompt + new_tokens * (uint64_t)row->n;
    return cost > UINT32_MAX ? UINT32_MAX : cost ? (uint32_t)cost : 1;
}

/* What was read of one line, good or bad, becomes a row. n_bytes: without feed and trailing 0x0D. */
static void take_row(ingest_block *b, const fl_row *row, const fl_row_fault *fault, uint64_t line, uint64_t offset, uint64_t n_bytes)
{
    rows_entry entry = { offset, n_bytes > UINT32_MAX ? UINT32_MAX : (uint32_t)n_bytes, 0, line, 1, false };
    if (row->custom_id) note_id(b, row);
    if (row->unknown_fields) note_unknown(b, row->unknown_fields);
    if (fault->code == ROW_OK) {
        entry.n_samples = (uint32_t)row->n;
        entry.cost = row_cost(row);
        b->n_samples += entry.n_samples;
        b->cost += entry.cost;
    } else {
        note_fault(b, row, fault, line, offset);
    }
    uint8_t *out = more(b, &b->entries, ROWS_ENTRY_BYTES);
    if (out) rows_entry_encode(out, &entry);
    b->n_rows++;
}

static void parse_long(ingest_block *b)
{
    b->n_lines = 1;
    if (!b->long_has_text) return;
    fl_row nothing = { 0 };
    fl_row_fault fault = { .code = ROW_LINE_TOO_LONG, .offset = FL_LINE_BYTES_MAX };
    snprintf(fault.text, sizeof fault.text, "the line has %llu bytes; at most %u are read", (unsigned long long)b->long_bytes, FL_LINE_BYTES_MAX);
    take_row(b, &nothing, &fault, b->first_line, b->offset, b->long_bytes);
}

void ingest_block_parse(ingest_block *b, const char *defaults)
{
    if (b->long_bytes) {
        parse_long(b);
        return;
    }
    size_t at = b->offset == 0 && b->used >= 3 && memcmp(b->data, "\xEF\xBB\xBF", 3) == 0 ? 3 : 0;
    while (at < b->used && b->status == FL_OK) {
        const char *line = b->data + at, *feed = memchr(line, '\n', b->used - at);
        size_t n = feed ? (size_t)(feed - line) : b->used - at;
        uint64_t number = b->first_line + b->n_lines++;
        if (!fl_line_is_blank(line, n)) {
            fl_row row;
            fl_row_fault fault;
            fl_row_parse(&row, line, n, number, defaults, &fault);
            take_row(b, &row, &fault, number, b->offset + at, n - (n > 1 && line[n - 1] == '\r'));
            fl_row_free(&row);
        }
        at += n + 1;
    }
}

void ingest_block_reset(ingest_block *b)
{
    if (b->capacity > BLOCK_BYTES) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
    b->used = 0;
    b->long_bytes = 0;
    b->long_has_text = false;
    b->n_lines = b->n_rows = b->n_bad = b->n_samples = b->cost = 0;
    b->entries.used = b->ids.used = b->faults.used = b->unknown.used = b->unknown_last = 0;
    b->status = FL_OK;
}

void ingest_block_fini(ingest_block *b)
{
    free(b->data);
    free(b->entries.bytes);
    free(b->ids.bytes);
    free(b->faults.bytes);
    free(b->unknown.bytes);
    *b = (ingest_block){ 0 };
}
