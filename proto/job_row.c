#include "proto/job_row.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "proto/body_fields.h"
#include "proto/grade_line.h"
#include "proto/json_scan.h"

#define UNKNOWN_NAMES_MAX 32
#define UNKNOWN_NAME_BYTES 64

bool fl_line_is_blank(const char *line, size_t n_bytes)
{
    for (size_t i = 0; i < n_bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r' && line[i] != '\n') return false;
    return true;
}

void fl_row_free(fl_row *row)
{
    free(row->custom_id);
    free(row->text);
    free(row->ids);
    free(row->model);
    for (size_t i = 0; i < row->n_stop; i++) free(row->stop[i]);
    free(row->stop);
    free(row->stop_bytes);
    free(row->stop_ids);
    free(row->unknown_fields);
    memset(row, 0, sizeof *row);
}

void fl_row_rename(fl_row *row, uint64_t physical_line)
{
    char suffix[24];
    size_t n = (size_t)snprintf(suffix, sizeof suffix, "#%llu", (unsigned long long)physical_line);
    char *name = realloc(row->custom_id, row->custom_id_bytes + n + 1);
    FL_ASSERT(name);
    memcpy(name + row->custom_id_bytes, suffix, n + 1);
    row->custom_id = name;
    row->custom_id_bytes += n;
}

/* ---- the parts of a line ---- */

/* The fields around a body; a line with method, url or body is the OpenAI batch form. */
typedef struct { fl_json custom_id, method, url, body, grade; } envelope;

static fl_json *envelope_field(envelope *e, const char *line, fl_json key)
{
    if (fl_json_is(line, key, "custom_id")) return &e->custom_id;
    if (fl_json_is(line, key, "method")) return &e->method;
    if (fl_json_is(line, key, "url")) return &e->url;
    if (fl_json_is(line, key, "body")) return &e->body;
    if (fl_json_is(line, key, "grade")) return &e->grade;
    return NULL;
}

static envelope envelope_find(const char *line, fl_json object)
{
    envelope e = { 0 };
    fl_json key, value;
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value)) {
        fl_json *field = envelope_field(&e, line, key);
        if (field && value.type != FL_JSON_NULL) *field = value;
    }
    return e;
}

static void unknown_append(fl_row *row, body_values *b, const char *line, fl_json key)
{
    if (b->n_unknown == UNKNOWN_NAMES_MAX) return;
    if (!row->unknown_fields) row->unknown_fields = row_alloc(UNKNOWN_NAMES_MAX * (UNKNOWN_NAME_BYTES + 1) + 1);
    size_t n_bytes, used = strlen(row->unknown_fields);
    char *name = fl_json_string(line, key, &n_bytes), *out = row->unknown_fields + used;
    if (n_bytes > UNKNOWN_NAME_BYTES)
        for (n_bytes = UNKNOWN_NAME_BYTES; ((unsigned char)name[n_bytes] & 0xC0) == 0x80; n_bytes--) {}
    if (used) *out++ = ',';
    for (size_t i = 0; i < n_bytes; i++) out[i] = (unsigned char)name[i] < 0x20 || name[i] == ',' ? '_' : name[i];
    free(name);
    b->n_unknown++;
}

/* Sort the members of the object that holds the body fields into `b`; what has no name of ours is unknown. */
static void collect_body(body_values *b, fl_row *row, const char *line, fl_json object, bool is_plain)
{
    fl_json key, value;
    envelope ignored;
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value)) {
        body_field field = body_field_find(line, key);
        if (field < BODY_FIELD_COUNT) {
            if (value.type != FL_JSON_NULL) b->of[field] = (body_value){ line, value, false };
        } else if (!is_plain || !envelope_field(&ignored, line, key)) {
            unknown_append(row, b, line, key);
        }
    }
}

/* Beside a body only the envelope's own fields are known. A prompt there would be ignored, so it is refused. */
static bool check_beside_body(fl_row *row, body_values *b, const char *line, fl_json object)
{
    fl_json key, value;
    envelope ignored;
    fl_json_walk walk = fl_json_members(line, object);
    while (fl_json_next(&walk, &key, &value)) {
        if (envelope_field(&ignored, line, key)) continue;
        body_field field = body_field_find(line, key);
        if ((field == BODY_PROMPT || field == BODY_MESSAGES) && value.type != FL_JSON_NULL) {
            row_fault_write(b->fault, ROW_INVALID_REQUEST, key.start, "the line has a %s beside its body: put it into the body",
                            field == BODY_PROMPT ? "prompt" : "messages field");
            return false;
        }
        unknown_append(row, b, line, key);
    }
    return true;
}

static bool read_custom_id(fl_row *row, const char *line, fl_json value, uint64_t physical_line, const body_values *b)
{
    body_value shown = { line, value, false };
    if (value.type == FL_JSON_ABSENT) {
        row->custom_id = row_alloc(32);
        row->custom_id_bytes = (size_t)snprintf(row->custom_id, 32, "row-%llu", (unsigned long long)physical_line);
        return true;
    }
    if (value.type != FL_JSON_STRING) return body_refuse_value(b, shown, ROW_INVALID_REQUEST, "custom_id must be a string");
    size_t n_bytes = fl_json_string_bytes(line, value);
    if (n_bytes == 0 || n_bytes > FL_CUSTOM_ID_MAX)
        return body_refuse_value(b, shown, ROW_INVALID_REQUEST, "custom_id must be a string of 1 to %d bytes", FL_CUSTOM_ID_MAX);
    row->custom_id = fl_json_string(line, value, &row->custom_id_bytes);
    return true;
}

/* The batch form says its endpoint in `url`. */
static bool read_envelope(fl_row *row, const char *line, fl_json object, const envelope *e, const body_values *b)
{
    body_value method = { line, e->method, false }, url = { line, e->url, false }, body = { line, e->body, false };
    const char *missing = e->body.type == FL_JSON_ABSENT ? "body" : e->method.type == FL_JSON_ABSENT ? "method" : e->url.type == FL_JSON_ABSENT ? "url" : NULL;
    if (missing) {
        row_fault_write(b->fault, ROW_INVALID_REQUEST, object.start, "%s is missing: a batch line has custom_id, method, url and body", missing);
        return false;
    }
    if (e->body.type != FL_JSON_OBJECT) return body_refuse_value(b, body, ROW_INVALID_REQUEST, "body must be an object");
    if (!fl_json_is(line, e->method, "POST")) return body_refuse_value(b, method, ROW_INVALID_REQUEST, "method must be \"POST\"");
    if (e->url.type != FL_JSON_STRING) return body_refuse_value(b, url, ROW_INVALID_REQUEST, "url must be a string");
    if (fl_json_is(line, e->url, "/v1/chat/completions")) row->endpoint = ROW_CHAT;
    else if (fl_json_is(line, e->url, "/v1/completions")) row->endpoint = ROW_COMPLETION;
    else return body_refuse_value(b, url, ROW_URL_MISMATCH, "url must be /v1/completions or /v1/chat/completions");
    return true;
}

/* ---- the prompt ---- */

/* The next member of a list when it is an id as they are usually written: digits. Otherwise nothing is taken, and fl_json_next shows what it is. */
static bool next_plain_id(fl_json_walk *walk, int32_t *id)
{
    const char *p = walk->text + walk->at;
    while (*p == ' ' || *p == ',') p++;
    const char *first = p;
    uint64_t value = 0;
    for (; *p >= '0' && *p <= '9' && p - first < 11; p++) value = value * 10 + (uint64_t)(*p - '0');
    if (p == first || value > INT32_MAX || (*p != ',' && *p != ']' && *p != ' ')) return false;
    *id = (int32_t)value;
    walk->at = (size_t)(p - walk->text);
    return true;
}

static bool read_prompt_ids(fl_row *row, const body_values *b)
{
    body_value v = b->of[BODY_PROMPT], item = v;
    size_t n_most = 1;                                   /* what is no list of ids may have more commas than members */
    fl_json_walk walk = fl_json_members(v.text, v.json);
    if (!fl_json_next(&walk, NULL, &item.json)) return body_refuse(b, BODY_PROMPT, ROW_INVALID_REQUEST, "prompt must hold at least one token id");
    for (size_t at = v.json.start; at < v.json.end; at++) n_most += v.text[at] == ',';
    row->ids = row_alloc(n_most * sizeof *row->ids);
    for (walk = fl_json_members(v.text, v.json); ; row->n_ids++) {
        if (next_plain_id(&walk, &row->ids[row->n_ids])) continue;
        if (!fl_json_next(&walk, NULL, &item.json)) break;
        if (body_read_id(item.text, item.json, &row->ids[row->n_ids])) continue;
        if (item.json.type == FL_JSON_STRING || item.json.type == FL_JSON_ARRAY)
            return body_refuse_value(b, item, ROW_UNSUPPORTED_FIELD, "prompt must be one text or one list of token ids a line; prompt[%zu] must be an integer", row->n_ids);
        return body_refuse_value(b, item, ROW_INVALID_REQUEST, "prompt[%zu] must be a token id from 0 to 2147483647", row->n_ids);
    }
    row->prompt_kind = ROW_PROMPT_IDS;
    return true;
}

static bool read_prompt(fl_row *row, const body_values *b)
{
    body_value v = b->of[BODY_PROMPT];
    if (v.json.type == FL_JSON_ARRAY) return read_prompt_ids(row, b);
    if (v.json.type != FL_JSON_STRING) return body_refuse(b, BODY_PROMPT, ROW_INVALID_REQUEST, "prompt must be a string or a list of token ids");
    row->prompt_kind = ROW_PROMPT_TEXT;
    row->text = fl_json_string(v.text, v.json, &row->text_bytes);
    return true;
}

typedef struct { fl_json role, content, tool_calls; } message_fields;

static bool check_content_part(const body_values *b, body_value part, size_t message, size_t index)
{
    fl_json key, value, type = { 0 }, text = { 0 };
    if (part.json.type != FL_JSON_OBJECT)
        return body_refuse_value(b, part, ROW_INVALID_REQUEST, "messages[%zu].content[%zu] must be an object with type and text", message, index);
    fl_json_walk walk = fl_json_members(part.text, part.json);
    while (fl_json_next(&walk, &key, &value)) {
        if (fl_json_is(part.text, key, "type")) type = value;
        if (fl_json_is(part.text, key, "text")) text = value;
    }
    if (type.type != FL_JSON_STRING)
        return body_refuse_value(b, part, ROW_INVALID_REQUEST, "messages[%zu].content[%zu].type must be a string", message, index);
    if (!fl_json_is(part.text, type, "text"))
        return body_refuse_value(b, (body_value){ part.text, type, false }, ROW_UNSUPPORTED_FIELD, "messages[%zu].content[%zu].type must be text", message, index);
    if (text.type != FL_JSON_STRING)
        return body_refuse_value(b, part, ROW_INVALID_REQUEST, "messages[%zu].content[%zu].text must be a string", message, index);
    return true;
}

static bool check_message(const body_values *b, body_value m, size_t index)
{
    if (m.json.type != FL_JSON_OBJECT) return body_refuse_value(b, m, ROW_INVALID_REQUEST, "messages[%zu] must be an object", index);
    message_fields f = { 0 };
    fl_json key, value;
    fl_json_walk walk = fl_json_members(m.text, m.json);
    while (fl_json_next(&walk, &key, &value)) {
        if (value.type == FL_JSON_NULL) continue;
        if (fl_json_is(m.text, key, "role")) f.role = value;
        if (fl_json_is(m.text, key, "content")) f.content = value;
        if (fl_json_is(m.text, key, "tool_calls")) f.tool_calls = value;
    }
    if (f.role.type != FL_JSON_STRING || fl_json_string_bytes(m.text, f.role) == 0)
        return body_refuse_value(b, m, ROW_INVALID_REQUEST, "messages[%zu].role must be a non-empty string", index);
    if (f.tool_calls.type != FL_JSON_ABSENT && f.tool_calls.type != FL_JSON_ARRAY)
        return body_refuse_value(b, (body_value){ m.text, f.tool_calls, false }, ROW_INVALID_REQUEST, "messages[%zu].tool_calls must be a list", index);
    body_value content = { m.text, f.content, false }, part = content;
    switch (f.content.type) {
    case FL_JSON_STRING: return true;
    case FL_JSON_ABSENT:
        if (f.tool_calls.type == FL_JSON_ARRAY || fl_json_is(m.text, f.role, "assistant")) return true;
        row_fault_write(b->fault, ROW_INVALID_REQUEST, m.json.start, "messages[%zu].content is missing", index);
        return false;
    case FL_JSON_ARRAY: break;
    default: return body_refuse_value(b, content, ROW_INVALID_REQUEST, "messages[%zu].content must be a string or a list of text parts", index);
    }
    size_t n_parts = 0;
    for (walk = fl_json_members(m.text, f.content); fl_json_next(&walk, NULL, &part.json); n_parts++)
        if (!check_content_part(b, part, index, n_parts)) return false;
    if (n_parts == 0) return body_refuse_value(b, content, ROW_INVALID_REQUEST, "messages[%zu].content must hold at least one part", index);
    return true;
}

/* The template sees the values exactly as they were written; only the object around them is ours. */
static void join_request(fl_row *row, const body_values *b)
{
    static const struct { body_field field; const char *before; } parts[] = {
        { BODY_MESSAGES, "{\"messages\":" }, { BODY_TOOLS, ",\"tools\":" }, { BODY_TEMPLATE_KWARGS, ",\"chat_template_kwargs\":" },
        { BODY_GENERATION_PROMPT, ",\"add_generation_prompt\":" },
    };
    size_t n_bytes = 1, used = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (body_given(b, parts[i].field)) n_bytes += strlen(parts[i].before) + b->of[parts[i].field].json.end - b->of[parts[i].field].json.start;
    row->text = row_alloc(n_bytes + 1);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!body_given(b, parts[i].field)) continue;
        const body_value *v = &b->of[parts[i].field];
        size_t n = strlen(parts[i].before);
        memcpy(row->text + used, parts[i].before, n);
        memcpy(row->text + used + n, v->text + v->json.start, v->json.end - v->json.start);
        used += n + v->json.end - v->json.start;
    }
    row->text[used++] = '}';
    row->text_bytes = used;
}

static bool read_messages(fl_row *row, const body_values *b)
{
    body_value v = b->of[BODY_MESSAGES], item = v;
    if (v.json.type != FL_JSON_ARRAY) return body_refuse(b, BODY_MESSAGES, ROW_INVALID_REQUEST, "messages must be a list of messages");
    size_t n = 0;
    for (fl_json_walk walk = fl_json_members(v.text, v.json); fl_json_next(&walk, NULL, &item.json); n++)
        if (!check_message(b, item, n)) return false;
    if (n == 0) return body_refuse(b, BODY_MESSAGES, ROW_INVALID_REQUEST, "messages must hold at least one message");
    row->prompt_kind = ROW_PROMPT_MESSAGES;
    join_request(row, b);
    return true;
}

/* ---- a line ---- */

/* How the row's samples are graded, in a job that is graded; checked in any job, so that a line means the same wherever it stands. */
static bool read_grade(fl_row *row, const char *line, fl_json value, const body_values *b)
{
    fl_grade_task task = { 0 };
    fl_err why;
    if (value.type == FL_JSON_ABSENT) return true;
    if (fl_grade_task_read(&task, line, value, &why) != FL_OK) {
        row_fault_write(b->fault, ROW_INVALID_REQUEST, value.start, "%s", why.text);
        return false;
    }
    fl_grade_task_free(&task);
    row->grade_start = value.start;
    row->grade_end = value.end;
    return true;
}

/* The plain form says its endpoint by the prompt's name; the batch form has said it and must agree. */
static bool choose_endpoint(fl_row *row, const body_values *b, bool is_plain, fl_json object)
{
    bool prompt = body_given(b, BODY_PROMPT), messages = body_given(b, BODY_MESSAGES);
    const char *problem = NULL;
    if (is_plain) {
        row->endpoint = messages ? ROW_CHAT : ROW_COMPLETION;
        if (prompt && messages) problem = "the line has both prompt and messages: keep one";
        else if (!prompt && !messages) problem = "the line has neither prompt nor messages: give one";
    } else if (row->endpoint == ROW_CHAT && (prompt || !messages)) {
        problem = prompt ? "prompt does not belong to /v1/chat/completions: give messages, or the url /v1/completions" : "messages is missing from the body";
    } else if (row->endpoint == ROW_COMPLETION && (messages || !prompt)) {
        problem = messages ? "messages does not belong to /v1/completions: give a prompt, or the url /v1/chat/completions" : "prompt is missing from the body";
    }
    if (!problem) return true;
    row_fault_write(b->fault, ROW_INVALID_REQUEST, messages && (prompt || row->endpoint == ROW_COMPLETION) ? b->of[BODY_MESSAGES].json.start
                    : prompt ? b->of[BODY_PROMPT].json.start : object.start, "%s", problem);
    return false;
}

static bool read_line(fl_row *row, body_values *b, const char *line, fl_json object, uint64_t physical_line, const char *defaults)
{
    envelope e = envelope_find(line, object);
    if (!read_custom_id(row, line, e.custom_id, physical_line, b)) return false;
    bool is_plain = e.body.type == FL_JSON_ABSENT && e.method.type == FL_JSON_ABSENT && e.url.type == FL_JSON_ABSENT;
    if (!is_plain && (!read_envelope(row, line, object, &e, b) || !check_beside_body(row, b, line, object))) return false;
    fl_json fields = is_plain ? object : e.body;
    collect_body(b, row, line, fields, is_plain);
    if (!choose_endpoint(row, b, is_plain, fields) || !read_grade(row, line, e.grade, b)) return false;
    if (defaults && defaults[0] && !body_take_defaults(b, defaults, row->endpoint)) return false;
    if (!body_read(b, row)) return false;
    return row->endpoint == ROW_CHAT ? read_messages(row, b) : read_prompt(row, b);
}

fl_row_error fl_row_parse(fl_row *row, const char *line, size_t n_bytes, uint64_t physical_line, const char *defaults, fl_row_fault *fault)
{
    memset(row, 0, sizeof *row);
    *fault = (fl_row_fault){ .code = ROW_OK };
    if (n_bytes > 0 && line[n_bytes - 1] == '\r') n_bytes--;
    if (n_bytes > FL_LINE_BYTES_MAX) {
        row_fault_write(fault, ROW_LINE_TOO_LONG, FL_LINE_BYTES_MAX, "the line has %zu bytes; at most %u are read", n_bytes, FL_LINE_BYTES_MAX);
        return fault->code;
    }
    fl_json object;
    size_t offset;
    char why[FL_JSON_WHY_BYTES];
    fl_row_error code = fl_json_check(line, n_bytes, &object, &offset, why);
    if (code != ROW_OK) {
        row_fault_write(fault, code, offset, "%s", why);
        return code;
    }
    if (object.type != FL_JSON_OBJECT) {
        row_fault_write(fault, ROW_INVALID_REQUEST, object.start, "a line must be a JSON object");
        return fault->code;
    }
    body_values b = { .fault = fault };
    read_line(row, &b, line, object, physical_line, defaults);
    return fault->code;
}

/* ---- --set by itself ---- */

static bool defaults_fit(const char *defaults, fl_row_endpoint endpoint, fl_row_fault *fault)
{
    fl_row row = { .endpoint = endpoint };
    body_values b = { .fault = fault };
    bool fit = body_take_defaults(&b, defaults, endpoint) && body_read(&b, &row);
    fl_row_free(&row);
    return fit;
}

fl_row_error fl_row_defaults_check(const char *defaults, fl_row_fault *fault)
{
    *fault = (fl_row_fault){ .code = ROW_OK };
    fl_json object, key, value;
    size_t offset;
    char why[FL_JSON_WHY_BYTES];
    fl_row_error code = fl_json_check(defaults, strlen(defaults), &object, &offset, why);
    if (code != ROW_OK || object.type != FL_JSON_OBJECT) {
        row_fault_write(fault, code != ROW_OK ? code : ROW_INVALID_REQUEST, offset, "--set: %s", code != ROW_OK ? why : "the fields must form a JSON object");
        return fault->code;
    }
    bool for_chats = false;
    fl_json_walk walk = fl_json_members(defaults, object);
    while (fl_json_next(&walk, &key, &value)) {
        body_field field = body_field_find(defaults, key);
        if (field < BODY_FIELD_COUNT && field != BODY_PROMPT && field != BODY_MESSAGES) { for_chats |= body_field_is_chats(field); continue; }
        int shown = key.end - key.start > 64 ? 64 : (int)(key.end - key.start);
        row_fault_write(fault, ROW_INVALID_REQUEST, key.start, field == BODY_FIELD_COUNT ? "--set knows no field %.*s" : "--set cannot give %.*s: it belongs into the job's lines",
                        shown, defaults + key.start);
        return fault->code;
    }
    if (!for_chats && defaults_fit(defaults, ROW_COMPLETION, fault)) return ROW_OK;
    fl_row_fault chat = { .code = ROW_OK };
    defaults_fit(defaults, ROW_CHAT, &chat);
    if (for_chats || chat.code == ROW_OK) *fault = chat;
    return fault->code;
}
