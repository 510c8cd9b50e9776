#include "coordinator/job_verify.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "coordinator/commands.h"
#include "coordinator/flags.h"
#include "coordinator/ledger_verify.h"
#include "coordinator/output_rows.h"
#include "coordinator/sha256.h"
#include "proto/job_row.h"

#define FINDINGS_SHOWN 20
#define NAME_BYTES_MAX 120
#define READ_BYTES 65536

typedef struct {
    rows *lines;                         /* owned */
    row_table *table;                    /* owned */
    job_settings settings;               /* owned; empty when the first record cannot be read */
    json_t *findings;                    /* owned */
    uint64_t n_findings;
} verify_run;

static void add_finding(verify_run *v, const char *text)
{
    v->n_findings++;
    if (json_array_size(v->findings) >= FINDINGS_SHOWN) return;
    json_t *sentence = json_string(text);
    json_array_append_new(v->findings, sentence ? sentence : json_string("a finding that is not UTF-8"));
}

/* Printable and bounded, whatever a custom_id holds. */
static void clean_name(char *out, const char *id, size_t n_bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < n_bytes && n < NAME_BYTES_MAX; i++) {
        unsigned char c = (unsigned char)id[i];
        out[n++] = c >= 0x20 && c < 0x7F ? (char)c : '?';
    }
    out[n] = '\0';
}

static void name_row(verify_run *v, row_index row, char out[NAME_BYTES_MAX + 1])
{
    rows_entry entry;
    const char *line = NULL;
    fl_row parsed = { 0 };
    fl_row_fault fault;
    fl_err ignored;
    snprintf(out, NAME_BYTES_MAX + 1, "row %" PRIu64, row.v);
    if (rows_get(v->lines, row, &entry, &ignored) != FL_OK) return;
    snprintf(out, NAME_BYTES_MAX + 1, "row-%" PRIu64, entry.line);
    if (rows_line(v->lines, &entry, &line, &ignored) != FL_OK) return;
    fl_row_parse(&parsed, line, entry.n_bytes, entry.line, v->settings.defaults && v->settings.defaults[0] ? v->settings.defaults : NULL, &fault);
    if (parsed.custom_id && entry.is_renamed) fl_row_rename(&parsed, entry.line);
    if (parsed.custom_id) clean_name(out, parsed.custom_id, parsed.custom_id_bytes);
    fl_row_free(&parsed);
}

static void take_finding(void *context, const ledger_finding *f)
{
    verify_run *v = context;
    char name[NAME_BYTES_MAX + 1], text[640];
    if (f->has_row) name_row(v, f->row, name);
    if (f->place.segment) {
        snprintf(text, sizeof text, "%s%s%s (ledger segment %" PRIu32 ", byte %" PRIu64 ")", f->has_row ? name : "", f->has_row ? ": " : "", f->text, f->place.segment, f->place.offset);
    } else {
        snprintf(text, sizeof text, "%s%s%s", f->has_row ? name : "", f->has_row ? ": " : "", f->text);
    }
    add_finding(v, text);
}

/* Only the first record is wanted. */
static fl_status take_settings(void *context, const ledger_record *record, fl_err *err)
{
    verify_run *v = context;
    fl_status st = record->kind == LEDGER_JOB ? job_settings_parse(&v->settings, record->body.data, record->body.bytes, err) : FL_OK;
    return st == FL_OK ? FL_CLOSED : st;
}

static void check_lines(verify_run *v, const char *ledger_dir)
{
    char hash[JOB_STORE_HASH_BYTES];
    fl_err err;
    if (rows_verify(v->lines, &err) != FL_OK) add_finding(v, err.text);
    if (ledger_scan(ledger_dir, take_settings, v, &err) == FL_CLOSED && v->settings.content[0]) {
        for (int i = 0; i < ROWS_HASH_BYTES; i++) snprintf(hash + 2 * i, 3, "%02x", rows_describe(v->lines)->hash[i]);
        if (strcmp(hash, v->settings.content) != 0) add_finding(v, "the job's lines are not those that the ledger was begun with");
    }
}

/* One of the two files while it is read against the lines it should have. */
typedef struct { const char *path; FILE *file; sha256 hash; char hex[SHA256_HEX_BYTES]; uint64_t at; bool differs, has_row; row_index last; } reading;

static fl_status open_reading(verify_run *v, reading *r, const char *path, fl_err *err)
{
    char text[4400];
    *r = (reading){ .path = path };
    sha256_init(&r->hash);
    r->file = fopen(path, "rbe");
    if (r->file) return FL_OK;
    if (errno != ENOENT) return fl_fail_errno(err, errno, "cannot read %s", path);
    r->differs = true;
    snprintf(text, sizeof text, "%s is not there", path);
    add_finding(v, text);
    return FL_OK;
}

/* The batch's lines of one file hold a difference at byte `from` or later: name the first row whose line is not there as it should be. */
static void name_difference(verify_run *v, const reading *r, const output_batch *b, bool is_error, size_t from)
{
    char text[4600], name[NAME_BYTES_MAX + 1];
    const json_out *lines = &b->lines[is_error];
    size_t at = 0, end = 0;
    uint32_t row = 0;
    for (uint32_t i = 0; i < b->n_rows && end <= from; i++) {
        if (b->is_error[i] != is_error) continue;
        const char *feed = memchr(lines->data + end, '\n', lines->n_bytes - end);
        at = end;
        end = (size_t)(feed - lines->data) + 1;
        row = i;
    }
    name_row(v, (row_index){ b->first.v + row }, name);
    snprintf(text, sizeof text, "%s: %s differs from the ledger at this row's line (byte %" PRIu64 " of the file begins it)", name, r->path, r->at + at);
    add_finding(v, text);
}

/* What comes next in the file must be the batch's lines of it. Behind the first difference nothing more is compared, only hashed. */
static fl_status compare_lines(verify_run *v, reading *r, const output_batch *b, bool is_error, char *buffer, fl_err *err)
{
    const json_out *lines = &b->lines[is_error];
    for (size_t at = 0; r->file && !r->differs && at < lines->n_bytes; ) {
        size_t want = lines->n_bytes - at < READ_BYTES ? lines->n_bytes - at : READ_BYTES, n = fread(buffer, 1, want, r->file);
        if (n < want && ferror(r->file)) return fl_fail_errno(err, errno, "cannot read %s", r->path);
        sha256_add(&r->hash, buffer, n);
        if (n == want && memcmp(buffer, lines->data + at, want) == 0) {
            at += n;
            continue;
        }
        r->differs = true;
        size_t same = 0;
        while (same < n && buffer[same] == lines->data[at + same]) same++;
        name_difference(v, r, b, is_error, at + same);
    }
    r->at += lines->n_bytes;
    for (uint32_t i = b->n_rows; i-- > 0; ) {
        if (b->is_error[i] != is_error) continue;
        r->last = (row_index){ b->first.v + i };
        r->has_row = true;
        break;
    }
    return FL_OK;
}

static fl_status end_reading(verify_run *v, reading *r, char *buffer, fl_err *err)
{
    char text[4600], name[NAME_BYTES_MAX + 1] = "no row";
    uint64_t extra = 0;
    for (size_t n; r->file && (n = fread(buffer, 1, READ_BYTES, r->file)) > 0; extra += n) sha256_add(&r->hash, buffer, n);
    if (r->file && ferror(r->file)) return fl_fail_errno(err, errno, "cannot read %s", r->path);
    if (extra && !r->differs) {
        if (r->has_row) name_row(v, r->last, name);
        snprintf(text, sizeof text, "%s: %s has %" PRIu64 " bytes more than the ledger gives behind this row", name, r->path, extra);
        add_finding(v, text);
    }
    if (r->file) sha256_end(&r->hash, r->hex);           /* a file that is not there has no hash */
    return FL_OK;
}

/* What the lines are compared with. is_broken: the files could not be read, which is no finding but a failure. */
typedef struct { verify_run *v; reading *files; char *buffer; bool is_broken; } comparing;

static fl_status compare_batch(void *context, const output_batch *b, fl_err *err)
{
    comparing *c = context;
    fl_status st = FL_OK;
    for (int i = 0; st == FL_OK && i < 2; i++) st = compare_lines(c->v, &c->files[i], b, i == 1, c->buffer, err);
    c->is_broken = st != FL_OK;
    return st;
}

static fl_status check_outputs(verify_run *v, const char *job_dir, const char *ledger_dir, reading files[2], fl_err *err)
{
    output_rows *expected = NULL;
    comparing c = { v, files, malloc(READ_BYTES), false };
    fl_err why;
    fl_status st = FL_OK, made = FL_OK;
    if (!c.buffer) return fl_fail(err, FL_FULL, "no memory to verify");
    bool has_lines = v->n_findings == 0;
    if (has_lines) {
        made = output_rows_open(&expected, job_dir, ledger_dir, &why);
        if (made == FL_OK) made = output_rows_read(expected, (ledger_place){ 0 }, &why);
        if (made == FL_OK) made = output_rows_make(expected, output_rows_cores(), NULL, compare_batch, &c, &why);
        has_lines = expected != NULL;
    }
    if (c.is_broken) st = fl_fail(err, made, "%s", why.text);
    else if (made != FL_OK) add_finding(v, why.text);
    for (int i = 0; st == FL_OK && i < 2; i++) {
        if (!has_lines || made != FL_OK) files[i].differs = true;        /* hash it only */
        st = end_reading(v, &files[i], c.buffer, err);
    }
    output_rows_close(expected);
    free(c.buffer);
    return st;
}

static json_t *make_report(const verify_run *v, const ledger_report *seen, const reading files[2])
{
    const char *state = v->n_findings ? "broken" : seen->closed ? "sound" : "incomplete";
    return json_pack("{s:s, s:O, s:I, s:I, s:I, s:I, s:I, s:I, s:{s:s, s:s}, s:{s:s, s:s}}", "state", state, "findings", v->findings, "n_findings", (json_int_t)v->n_findings,
                     "rows", (json_int_t)row_table_n_rows(v->table), "results", (json_int_t)seen->n_results, "verdicts", (json_int_t)seen->n_verdicts, "errors", (json_int_t)seen->n_errors, "rows_open",
                     (json_int_t)seen->n_rows_open, "out", "path", files[0].path, "sha256", files[0].hex, "err", "path", files[1].path, "sha256", files[1].hex);
}

fl_status job_verify(const char *job_dir, const char *ledger_dir, const char *out, const char *errors, json_t **report, fl_err *err)
{
    verify_run v = { .findings = json_array() };
    reading files[2] = { { .path = out }, { .path = errors } };
    ledger_report seen = { 0 };
    fl_status st = rows_open(&v.lines, job_dir, err);
    if (st == FL_OK) st = job_store_table(&v.table, v.lines, err);
    if (st != FL_OK) goto done;
    check_lines(&v, ledger_dir);
    if (v.settings.grade && (st = row_table_add_grades(v.table, err)) != FL_OK) goto done;
    if ((st = ledger_verify(ledger_dir, v.table, take_finding, &v, &seen, err)) != FL_OK) goto done;
    if (seen.n_findings > v.n_findings) v.n_findings = seen.n_findings;
    if (seen.closed || v.n_findings) {
        if ((st = open_reading(&v, &files[0], out, err)) != FL_OK) goto done;
        if ((st = open_reading(&v, &files[1], errors, err)) != FL_OK) goto done;
        if ((st = check_outputs(&v, job_dir, ledger_dir, files, err)) != FL_OK) goto done;
    }
    *report = make_report(&v, &seen, files);
    if (!*report) st = fl_fail(err, FL_INVALID, "the paths of the output files are no text in UTF-8");
done:
    if (files[0].file) fclose(files[0].file);
    if (files[1].file) fclose(files[1].file);
    rows_close(v.lines);
    row_table_close(v.table);
    job_settings_fini(&v.settings);
    json_decref(v.findings);
    return st;
}

static const char *text_at(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

int job_verify_print(const json_t *report, const char *command, bool quiet)
{
    const char *state = text_at(report, "state");
    const json_t *findings = json_object_get(report, "findings"), *files[2] = { json_object_get(report, "out"), json_object_get(report, "err") };
    long long n = json_integer_value(json_object_get(report, "n_findings"));
    size_t i;
    json_t *finding;
    json_array_foreach((json_t *)findings, i, finding) fprintf(stderr, "tokenfleet %s: %s\n", command, json_string_value(finding));
    if (n > (long long)json_array_size(findings)) fprintf(stderr, "tokenfleet %s: and %lld findings more\n", command, n - (long long)json_array_size(findings));
    for (i = 0; i < 2 && !quiet; i++) {
        if (text_at(files[i], "sha256")[0]) printf("%s  %s\n", text_at(files[i], "sha256"), command_shown_path(text_at(files[i], "path")));
    }
    long long rows_open_now = json_integer_value(json_object_get(report, "rows_open")), n_rows = json_integer_value(json_object_get(report, "rows"));
    if (strcmp(state, "broken") == 0) return flags_end(ENDED_ROWS_FAILED, command, "the job is broken: %lld finding%s", n, n == 1 ? "" : "s");
    if (strcmp(state, "incomplete") == 0) {
        return flags_end(ENDED_INCOMPLETE, command, "what is there is sound, but the job is not finished: %lld of %lld rows are open", rows_open_now, n_rows);
    }
    if (quiet) return ENDED_WELL;
    printf("sound: %lld rows, %lld results, %lld errors", n_rows, (long long)json_integer_value(json_object_get(report, "results")),
           (long long)json_integer_value(json_object_get(report, "errors")));
    long long n_verdicts = json_integer_value(json_object_get(report, "verdicts"));
    if (n_verdicts) printf(", %lld verdicts", n_verdicts);
    if (rows_open_now) printf(", %lld rows open when the job was ended", rows_open_now);
    printf("\n");
    return ENDED_WELL;
}
