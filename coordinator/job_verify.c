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
typedef struct { const char *path; FILE *file; sha256 hash; char hex[SHA256_HEX_BYTES]; uint64_t at; bool differs; char last[NAME_BYTES_MAX + 1]; } reading;

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

/* The next line of the file must be `row`. Behind the first difference nothing more is compared, only hashed. */
static fl_status compare_line(verify_run *v, reading *r, const output_row *row, char *buffer, fl_err *err)
{
    char text[4600];
    clean_name(r->last, row->custom_id, row->custom_id_bytes);
    for (size_t at = 0; r->file && !r->differs && at < row->n_bytes; ) {
        size_t want = row->n_bytes - at < 65536 ? row->n_bytes - at : 65536, n = fread(buffer, 1, want, r->file);
        if (n < want && ferror(r->file)) return fl_fail_errno(err, errno, "cannot read %s", r->path);
        sha256_add(&r->hash, buffer, n);
        if (n == want && memcmp(buffer, row->line + at, want) == 0) {
            at += n;
            continue;
        }
        r->differs = true;
        snprintf(text, sizeof text, "%s: %s differs from the ledger at this row's line (byte %" PRIu64 " of the file begins it)", r->last, r->path, r->at);
        add_finding(v, text);
    }
    r->at += row->n_bytes;
    return FL_OK;
}

static fl_status end_reading(verify_run *v, reading *r, char *buffer, fl_err *err)
{
    char text[4600];
    uint64_t extra = 0;
    for (size_t n; r->file && (n = fread(buffer, 1, 65536, r->file)) > 0; extra += n) sha256_add(&r->hash, buffer, n);
    if (r->file && ferror(r->file)) return fl_fail_errno(err, errno, "cannot read %s", r->path);
    if (extra && !r->differs) {
        snprintf(text, sizeof text, "%s: %s has %" PRIu64 " bytes more than the ledger gives behind this row", r->last[0] ? r->last : "no row", r->path, extra);
        add_finding(v, text);
    }
    if (r->file) sha256_end(&r->hash, r->hex);           /* a file that is not there has no hash */
    return FL_OK;
}

static fl_status check_outputs(verify_run *v, const char *job_dir, const char *ledger_dir, reading files[2], fl_err *err)
{
    output_rows *expected = NULL;
    char *buffer = malloc(65536);
    fl_err why;
    fl_status st = buffer ? FL_OK : fl_fail(err, FL_FULL, "no memory to verify");
    if (st == FL_OK && v->n_findings == 0 && output_rows_open(&expected, job_dir, ledger_dir, &why) != FL_OK) add_finding(v, why.text);
    while (st == FL_OK && expected) {
        output_row row;
        fl_status next = output_rows_next(expected, &row, &why);
        if (next == FL_CLOSED) break;
        if (next != FL_OK) {
            add_finding(v, why.text);
            break;
        }
        st = compare_line(v, &files[row.is_error], &row, buffer, err);
    }
    for (int i = 0; st == FL_OK && i < 2; i++) {
        if (!expected) files[i].differs = true;          /* hash it only */
        st = end_reading(v, &files[i], buffer, err);
    }
    output_rows_close(expected);
    free(buffer);
    return st;
}

static json_t *make_report(const verify_run *v, const ledger_report *seen, const reading files[2])
{
    const char *state = v->n_findings ? "broken" : seen->closed ? "sound" : "incomplete";
    return json_pack("{s:s, s:O, s:I, s:I, s:I, s:I, s:I, s:{s:s, s:s}, s:{s:s, s:s}}", "state", state, "findings", v->findings, "n_findings", (json_int_t)v->n_findings,
                     "rows", (json_int_t)row_table_n_rows(v->table), "results", (json_int_t)seen->n_results, "errors", (json_int_t)seen->n_errors, "rows_open",
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
    if (rows_open_now) printf(", %lld rows open when the job was ended", rows_open_now);
    printf("\n");
    return ENDED_WELL;
}
