/* cmd_generate.c - `tokenfleet generate`: one prompt, n completions, no job and no spool. The row goes the same way as a job's row (the same line,
 * the same engine, the same output functions), so what it prints is what a job would hold. */
#include "coordinator/commands.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>
#include "coordinator/engine_peer.h"
#include "coordinator/flags.h"
#include "coordinator/output_line.h"
#include "coordinator/set_fields.h"
#include "proto/job_row.h"
#include "proto/result.h"

#define NAME "generate"

typedef struct {
    const char *model, *prompt;
    uint64_t n, seed, n_threads;
    bool chat, as_json;
    flag_list settings;
} generate_options;

/* All of standard input, NUL-terminated; the caller frees. */
static fl_status read_prompt(char **out, fl_err *err)
{
    size_t n = 0, capacity = 4096;
    char *text = malloc(capacity);
    while (text) {
        n += fread(text + n, 1, capacity - 1 - n, stdin);
        if (n < capacity - 1) break;
        capacity *= 2;
        char *more = capacity <= FL_LINE_BYTES_MAX ? realloc(text, capacity) : NULL;
        if (!more) free(text);
        text = more;
    }
    if (!text) return fl_fail(err, FL_FULL, "the prompt on standard input is larger than %u bytes", FL_LINE_BYTES_MAX / 2);
    text[n] = '\0';
    if (strlen(text) != n) {
        free(text);
        return fl_fail(err, FL_INVALID, "the prompt on standard input holds a NUL byte");
    }
    *out = text;
    return FL_OK;
}

/* The row as a line of a job file; the caller frees. */
static fl_status make_line(const generate_options *o, char **out, fl_err *err)
{
    json_t *row = o->chat ? json_pack("{s:s, s:[{s:s, s:s}]}", "custom_id", NAME, "messages", "role", "user", "content", o->prompt)
                          : json_pack("{s:s, s:s}", "custom_id", NAME, "prompt", o->prompt);
    if (!row) return fl_fail(err, FL_INVALID, "the prompt is not UTF-8");
    if (o->n) json_object_set_new(row, "n", json_integer((json_int_t)o->n));
    *out = json_dumps(row, JSON_COMPACT);
    json_decref(row);
    return *out ? FL_OK : fl_fail(err, FL_FULL, "no memory for the prompt");
}

static fl_status send_row(engine_peer *engine, const generate_options *o, const char *line, const char *defaults, uint32_t n_samples, fl_err *err)
{
    static const uint64_t first[1] = { 0 }, line_number[1] = { 1 };
    uint64_t hi[1] = { n_samples };
    fl_bytes parts[FL_LINE_BYTES_MAX / FL_FRAME_PAYLOAD_MAX + 1];
    size_t n_bytes = strlen(line);
    if (n_bytes > FL_LINE_BYTES_MAX) return fl_fail(err, FL_INVALID, "the prompt is larger than a row may be (%u bytes); shorten it", FL_LINE_BYTES_MAX);
    wire_line_cut((fl_bytes){ line, n_bytes }, parts);
    wire_msg job = { .type = WIRE_JOB, .job = { .job = 1, .seed = o->seed, .defaults = wire_text(defaults) } };
    wire_msg grant = { .type = WIRE_GRANT, .n_parts = wire_line_parts(n_bytes), .parts = parts,
                       .grant = { .job = 1, .lease = 1, .rows = { first, 1 }, .sample_lo = { first, 1 }, .sample_hi = { hi, 1 }, .lines = { line_number, 1 }, .renamed = { first, 1 } } };
    fl_status st = engine_peer_send(engine, &job, err);
    return st == FL_OK ? engine_peer_send(engine, &grant, err) : st;
}

/* One sample's body, whose pieces come in order. */
typedef struct { uint8_t *data; size_t n_bytes; } body;

static fl_status take_piece(const wire_msg *msg, body *bodies, fl_result *results, uint32_t n_samples, int32_t n_vocab, uint32_t *n_done, fl_err *err)
{
    const wire_result *r = &msg->result;
    if (r->sample >= n_samples || msg->n_parts != 1) return fl_fail(err, FL_CORRUPT, "the engine answers with a sample that was not asked for");
    body *b = &bodies[r->sample];
    uint8_t *more = realloc(b->data, b->n_bytes + msg->parts[0].bytes);
    if (!more) return fl_fail(err, FL_FULL, "no memory for a completion");
    memcpy(more + b->n_bytes, msg->parts[0].data, msg->parts[0].bytes);
    b->data = more;
    b->n_bytes += msg->parts[0].bytes;
    if (r->piece + 1 < r->n_pieces) return FL_OK;
    ++*n_done;
    return fl_result_decode(&results[r->sample], b->data, b->n_bytes, n_vocab, err);
}

/* Wait for every sample. FL_INVALID: the row has an error, which is the sentence. */
static fl_status collect(engine_peer *engine, fl_result *results, uint32_t n_samples, fl_err *err)
{
    fl_status st = FL_OK;
    uint32_t n_done = 0;
    body *bodies = calloc(n_samples, sizeof *bodies);
    if (!bodies) return fl_fail(err, FL_FULL, "no memory for %u completions", n_samples);
    while (st == FL_OK && n_done < n_samples) {
        wire_msg msg;
        if ((st = engine_peer_recv(engine, &msg, err)) != FL_OK) break;
        if (msg.type == WIRE_RESULT) st = take_piece(&msg, bodies, results, n_samples, engine_peer_describe(engine)->n_vocab, &n_done, err);
        else if (msg.type == WIRE_ROW_ERROR) {
            st = fl_fail(err, FL_INVALID, "%s: %.*s", fl_row_error_name((fl_row_error)msg.row_error.code), (int)msg.row_error.text.n, msg.row_error.text.p);
        } else if (msg.type == WIRE_HANDBACK) st = fl_fail(err, FL_FULL, "the engine has no room for this prompt: %.*s", (int)msg.handback.text.n, msg.handback.text.p);
    }
    for (uint32_t i = 0; i < n_samples; i++) free(bodies[i].data);
    free(bodies);
    return st;
}

static fl_status print_text(const fl_result *result, const fl_detok *detok, uint32_t sample, uint32_t n_samples, fl_err *err)
{
    uint8_t *bytes = NULL;
    char *text = NULL;
    size_t n_bytes = 0, n_text = 0;
    fl_status st = fl_detok_text(detok, result->ids, result->n_ids, result->text_bytes, &bytes, &n_bytes, NULL, err);
    if (st == FL_OK) st = fl_utf8_repair(bytes, n_bytes, &text, &n_text, NULL, err);
    if (st == FL_OK) {
        if (n_samples > 1) printf("%s--- %u of %u\n", sample ? "\n" : "", sample + 1, n_samples);
        fwrite(text, 1, n_text, stdout);
        if (n_text == 0 || text[n_text - 1] != '\n') putchar('\n');
    }
    free(bytes);
    free(text);
    return st;
}

static fl_status print_json(const generate_options *o, const char *line, const fl_row *row, const fl_result *results, const engine_peer_info *info, fl_err *err)
{
    json_out out = { 0 };
    output_job job = { .model = info->model, .seed = o->seed, .fingerprint = info->fingerprint, .numerics = info->numerics };
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(line, strlen(line)));
    memcpy(job.content_hash, hash.digest, sizeof job.content_hash);
    fl_status st = output_line_write(&out, &job, row, results, NULL, info->detok, err);
    if (st == FL_OK) fwrite(out.data, 1, out.n_bytes, stdout);
    json_out_fini(&out);
    return st;
}

static fl_status generate(const generate_options *o, fl_err *err)
{
    fl_status st = FL_OK;
    char *line = NULL, *defaults = NULL;
    fl_row row = { 0 };
    fl_row_fault fault = { 0 };
    fl_result *results = NULL;
    engine_peer *engine = NULL;
    uint32_t n = 0;
    if ((st = set_fields_json(&o->settings, &defaults, err)) != FL_OK) goto done;
    if ((st = make_line(o, &line, err)) != FL_OK) goto done;
    if (fl_row_parse(&row, line, strlen(line), 1, defaults[0] ? defaults : NULL, &fault) != ROW_OK) { st = fl_fail(err, FL_INVALID, "%s", fault.text); goto done; }
    if (!(results = calloc((size_t)row.n, sizeof *results))) { st = fl_fail(err, FL_FULL, "no memory for %d completions", row.n); goto done; }
    n = (uint32_t)row.n;
    if ((st = engine_peer_open(&engine, o->model, o->n_threads, err)) != FL_OK) goto done;
    if ((st = send_row(engine, o, line, defaults, n, err)) != FL_OK) goto done;
    if ((st = collect(engine, results, n, err)) != FL_OK) goto done;
    if (o->as_json) st = print_json(o, line, &row, results, engine_peer_describe(engine), err);
    for (uint32_t i = 0; i < n && !o->as_json && st == FL_OK; i++) st = print_text(&results[i], engine_peer_describe(engine)->detok, i, n, err);
    if (st == FL_OK && fflush(stdout) != 0) st = fl_fail(err, FL_IO, "standard output cannot be written");
done:
    engine_peer_close(engine);
    for (uint32_t i = 0; i < n; i++) fl_result_free(&results[i]);
    free(results);
    fl_row_free(&row);
    free(line);
    free(defaults);
    return st;
}

int cmd_generate(int argc, char **argv)
{
    generate_options o = { 0 };
    const flag flags[] = {
        { "--model", FLAG_TEXT, "PATH", "a model directory, a .gguf file, or demo", &o.model, 0, 0, true },
        { "-n", FLAG_NUMBER, "N", "completions of the prompt (default 1)", &o.n, 1, FL_SAMPLES_MAX, false },
        { "--chat", FLAG_SWITCH, "", "the prompt is a user's message: render the model's chat template", &o.chat, 0, 0, false },
        { "--set", FLAG_LIST, "KEY=VALUE", "a body field, as in temperature=0.7 or max_tokens=100", &o.settings, 0, 0, false },
        { "--seed", FLAG_NUMBER, "S", "seed of the draws (default 0)", &o.seed, 0, UINT64_MAX, false },
        { "--threads", FLAG_NUMBER, "N", "threads of the engine (default all cores)", &o.n_threads, 1, 1024, false },
        { "--json", FLAG_SWITCH, "", "print the output line that a job would have", &o.as_json, 0, 0, false },
    };
    const flag_command command = {
        NAME, "PROMPT|-", "Complete one prompt and print the text; - reads the prompt from standard input.",
        "tokenfleet generate --model demo -n 2 --set max_tokens=40 \"def add(a, b):\"", 1, 1
    };
    const char *operands[FLAGS_OPERANDS_MAX];
    int n_operands = 0, status = flags_parse(&command, flags, sizeof flags / sizeof *flags, argc, argv, operands, &n_operands);
    if (status >= 0) return status;

    fl_err err = { 0 };
    char *typed = NULL;
    fl_status st = FL_OK;
    o.prompt = operands[0];
    if (strcmp(operands[0], "-") == 0 && (st = read_prompt(&typed, &err)) == FL_OK) o.prompt = typed;
    if (st == FL_OK) st = generate(&o, &err);
    free(typed);
    if (st == FL_OK) return ENDED_WELL;
    return flags_end(st == FL_INVALID ? ENDED_USAGE : ENDED_ENVIRONMENT, NAME, "%s", err.text);
}
