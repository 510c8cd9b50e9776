#include "proto/body_fields.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct { const char *name; size_t n_bytes; int endpoints; } table[] = {
#define BODY_FIELD_ROW(NAME, name, endpoints) { name, sizeof name - 1, endpoints },
    BODY_FIELDS(BODY_FIELD_ROW)
#undef BODY_FIELD_ROW
};

void *row_alloc(size_t n_bytes)
{
    void *p = calloc(1, n_bytes ? n_bytes : 1);
    FL_ASSERT(p);
    return p;
}

/* ---- faults ---- */

static void fault_write_args(fl_row_fault *fault, fl_row_error code, size_t offset, const char *format, va_list args)
{
    fault->code = code;
    fault->offset = offset;
    vsnprintf(fault->text, sizeof fault->text, format, args);
    fault->text[fl_utf8_fault(fault->text, strlen(fault->text))] = '\0';             /* a sentence that was cut ends at a whole character */
}

void row_fault_write(fl_row_fault *fault, fl_row_error code, size_t offset, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fault_write_args(fault, code, offset, format, args);
    va_end(args);
}

/* The value as it was written, cut to what fits a sentence; white space as blanks. */
static void show_value(char out[64], body_value value)
{
    size_t n = value.json.end - value.json.start, cut = n > 48 ? 48 : n;
    const char *from = value.text + value.json.start;
    while (cut < n && ((unsigned char)from[cut] & 0xC0) == 0x80) cut--;
    for (size_t i = 0; i < cut; i++) out[i] = (unsigned char)from[i] < 0x20 ? ' ' : from[i];
    strcpy(out + cut, cut < n ? "..." : "");
}

static bool refuse_args(const body_values *b, body_value value, fl_row_error code, const char *format, va_list args)
{
    char shown[64];
    fault_write_args(b->fault, code, value.is_default ? 0 : value.json.start, format, args);
    show_value(shown, value);
    size_t used = strlen(b->fault->text);
    snprintf(b->fault->text + used, sizeof b->fault->text - used, ", not %s%s", shown, value.is_default ? " (from --set)" : "");
    b->fault->text[fl_utf8_fault(b->fault->text, strlen(b->fault->text))] = '\0';
    return false;
}

bool body_refuse_value(const body_values *b, body_value value, fl_row_error code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    refuse_args(b, value, code, format, args);
    va_end(args);
    return false;
}

bool body_refuse(const body_values *b, body_field field, fl_row_error code, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    refuse_args(b, b->of[field], code, format, args);
    va_end(args);
    return false;
}

static bool must_be(const body_values *b, body_field field, const char *wanted)
{
    return body_refuse(b, field, ROW_INVALID_REQUEST, "%s must be %s", table[field].name, wanted);
}

/* ---- finding fields ---- */

body_field body_field_find(const char *text, fl_json key)
{
    const char *name = text + key.start + 1;
    size_t n = key.end - key.start - 2;
    bool has_escape = memchr(name, '\\', n) != NULL;
    for (int f = 0; f < BODY_FIELD_COUNT; f++)
        if (has_escape ? fl_json_is(text, key, table[f].name) : n == table[f].n_bytes && memcmp(name, table[f].name, n) == 0) return (body_field)f;
    return BODY_FIELD_COUNT;
}

bool body_field_is_chats(body_field field) { return table[field].endpoints == BODY_CHAT; }
bool body_given(const body_values *b, body_field field) { return b->of[field].json.type != FL_JSON_ABSENT; }

bool body_take_defaults(body_values *b, const char *defaults, fl_row_endpoint endpoint)
{
    fl_json object, key, value;
    size_t offset;
    char why[FL_JSON_WHY_BYTES];
    if (fl_json_check(defaults, strlen(defaults), &object, &offset, why) != ROW_OK || object.type != FL_JSON_OBJECT) {
        row_fault_write(b->fault, ROW_INVALID_REQUEST, 0, "the job's --set fields must be one JSON object");
        return false;
    }
    int here = endpoint == ROW_CHAT ? BODY_CHAT : BODY_TEXT;
    bool has_length = body_given(b, BODY_MAX_TOKENS) || body_given(b, BODY_MAX_COMPLETION);
    fl_json_walk walk = fl_json_members(defaults, object);
    while (fl_json_next(&walk, &key, &value)) {
        body_field field = body_field_find(defaults, key);
        if (field == BODY_FIELD_COUNT || field == BODY_PROMPT || field == BODY_MESSAGES || value.type == FL_JSON_NULL) continue;
        bool is_length = field == BODY_MAX_TOKENS || field == BODY_MAX_COMPLETION;   /* two names of one field */
        if (body_given(b, field) || (is_length && has_length) || !(table[field].endpoints & here)) continue;
        b->of[field] = (body_value){ defaults, value, true };
    }
    return true;
}

/* ---- one value each; an absent one leaves *out alone ---- */

/* [low, high], or (low, high] when low_open. */
typedef struct { double low, high; bool low_open; const char *wanted; } float_range;

static bool read_float(body_values *b, body_field field, float_range range, float *out)
{
    if (!body_given(b, field)) return true;
    const body_value *v = &b->of[field];
    if (v->json.type != FL_JSON_NUMBER) return must_be(b, field, range.wanted);
    double value = fl_json_double(v->text, v->json);
    float narrow = (float)value;
    if (!(value >= range.low && value <= range.high) || (range.low_open && !((double)narrow > range.low))) return must_be(b, field, range.wanted);
    *out = narrow == 0.0f ? 0.0f : narrow;               /* -0 reads as 0 */
    return true;
}

static bool read_int(body_values *b, body_field field, int32_t low, int32_t high, int32_t *out)
{
    if (!body_given(b, field)) return true;
    const body_value *v = &b->of[field];
    bool negative;
    uint64_t magnitude;
    bool whole = v->json.type == FL_JSON_NUMBER && fl_json_integer(v->text, v->json, &negative, &magnitude) && magnitude <= INT32_MAX;
    int32_t value = whole ? negative ? -(int32_t)magnitude : (int32_t)magnitude : 0;
    if (!whole || value < low || value > high)
        return body_refuse(b, field, ROW_INVALID_REQUEST, "%s must be an integer from %d to %d", table[field].name, low, high);
    *out = value;
    return true;
}

static bool read_bool(body_values *b, body_field field, bool *out)
{
    if (!body_given(b, field)) return true;
    if (b->of[field].json.type != FL_JSON_BOOL) return must_be(b, field, "true or false");
    *out = fl_json_true(b->of[field].text, b->of[field].json);
    return true;
}

bool body_read_id(const char *text, fl_json json, int32_t *id)
{
    bool negative;
    uint64_t magnitude;
    if (json.type != FL_JSON_NUMBER || !fl_json_integer(text, json, &negative, &magnitude) || magnitude > INT32_MAX || (negative && magnitude)) return false;
    *id = (int32_t)magnitude;
    return true;
}

/* ---- groups of fields ---- */

static bool read_sampling(body_values *b, fl_row *row)
{
    static const float_range temperature = { 0, 100, false, "a number from 0 to 100" }, top_p = { 0, 1, true, "a number above 0, at most 1" },
        min_p = { 0, 1, false, "a number from 0 to 1" }, repetition = { 0, 100, true, "a number above 0, at most 100" },
        penalty = { -2, 2, false, "a number from -2 to 2" };
    static const struct { body_field field; uint32_t bit; } given[] = {
        { BODY_TEMPERATURE, ROW_GIVEN_TEMPERATURE }, { BODY_TOP_P, ROW_GIVEN_TOP_P }, { BODY_TOP_K, ROW_GIVEN_TOP_K }, { BODY_MIN_P, ROW_GIVEN_MIN_P },
        { BODY_REPETITION, ROW_GIVEN_REPETITION }, { BODY_MAX_TOKENS, ROW_GIVEN_MAX_TOKENS }, { BODY_MAX_COMPLETION, ROW_GIVEN_MAX_TOKENS },
        { BODY_SEED, ROW_GIVEN_SEED },
    };
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) if (body_given(b, given[i].field)) row->given |= given[i].bit;

    if (!read_float(b, BODY_TEMPERATURE, temperature, &row->temperature) || !read_float(b, BODY_TOP_P, top_p, &row->top_p)
        || !read_int(b, BODY_TOP_K, -1, INT32_MAX, &row->top_k) || !read_float(b, BODY_MIN_P, min_p, &row->min_p)
        || !read_float(b, BODY_REPETITION, repetition, &row->repetition_penalty)
        || !read_float(b, BODY_PRESENCE, penalty, &row->presence_penalty) || !read_float(b, BODY_FREQUENCY, penalty, &row->frequency_penalty))
        return false;
    if (!body_given(b, BODY_SEED)) return true;
    const body_value *v = &b->of[BODY_SEED];
    bool negative;
    uint64_t magnitude;
    if (v->json.type != FL_JSON_NUMBER || !fl_json_integer(v->text, v->json, &negative, &magnitude) || (negative && magnitude > (uint64_t)1 << 63))
        return must_be(b, BODY_SEED, "an integer of 64 bits");
    row->seed = negative ? (uint64_t)0 - magnitude : magnitude;
    return true;
}

static bool read_lengths(body_values *b, fl_row *row)
{
    if (!read_bool(b, BODY_ECHO, &row->echo) || !read_bool(b, BODY_IGNORE_EOS, &row->ignore_eos)
        || !read_bool(b, BODY_RETURN_IDS, &row->return_token_ids) || !read_int(b, BODY_N, 1, FL_SAMPLES_MAX, &row->n))
        return false;
    if (row->echo && row->endpoint == ROW_CHAT)
        return body_refuse(b, BODY_ECHO, ROW_UNSUPPORTED_FIELD, "echo must be false or absent in a chat");
    int32_t low = row->echo ? 0 : 1;                     /* no new token makes sense only when the prompt comes back */
    if (!read_int(b, BODY_MAX_TOKENS, low, INT32_MAX, &row->max_tokens) || !read_int(b, BODY_MAX_COMPLETION, low, INT32_MAX, &row->max_tokens)
        || !read_int(b, BODY_MIN_TOKENS, 0, INT32_MAX, &row->min_tokens))
        return false;
    bool known = row->endpoint == ROW_COMPLETION || (row->given & ROW_GIVEN_MAX_TOKENS);
    if (known && row->min_tokens > row->max_tokens)
        return body_refuse(b, BODY_MIN_TOKENS, ROW_INVALID_REQUEST, "min_tokens must be at most max_tokens, which is %d", row->max_tokens);
    int32_t best_of = row->n;
    if (!read_int(b, BODY_BEST_OF, 1, INT32_MAX, &best_of)) return false;
    if (best_of > row->n) return body_refuse(b, BODY_BEST_OF, ROW_UNSUPPORTED_FIELD, "best_of must be equal to n, which is %d", row->n);
    if (best_of < row->n) return body_refuse(b, BODY_BEST_OF, ROW_INVALID_REQUEST, "best_of must not be below n, which is %d", row->n);
    return true;
}

/* Completions ask with a number, chats with a switch and a number. */
static bool read_logprobs(body_values *b, fl_row *row)
{
    row->logprobs = row->prompt_logprobs = -1;
    if (!read_int(b, BODY_PROMPT_LOGPROBS, 0, FL_TOP_LOGPROBS_MAX, &row->prompt_logprobs)) return false;
    if (row->endpoint == ROW_COMPLETION) return read_int(b, BODY_LOGPROBS, 0, FL_TOP_LOGPROBS_MAX, &row->logprobs);
    bool wanted = false;
    int32_t n_top = 0;
    if (!read_bool(b, BODY_LOGPROBS, &wanted) || !read_int(b, BODY_TOP_LOGPROBS, 0, FL_TOP_LOGPROBS_MAX, &n_top)) return false;
    if (n_top > 0 && !wanted) return body_refuse(b, BODY_TOP_LOGPROBS, ROW_INVALID_REQUEST, "top_logprobs needs logprobs: true, or must be 0");
    if (wanted) row->logprobs = n_top;
    return true;
}

static bool read_stop_string(body_values *b, fl_row *row, body_value v)
{
    if (v.json.type != FL_JSON_STRING) return body_refuse_value(b, v, ROW_INVALID_REQUEST, "stop must hold strings");
    size_t n_bytes = fl_json_string_bytes(v.text, v.json);
    if (n_bytes == 0 || n_bytes > FL_STOP_BYTES_MAX)
        return body_refuse_value(b, v, ROW_INVALID_REQUEST, "a stop string must have 1 to %d bytes", FL_STOP_BYTES_MAX);
    if (row->n_stop == FL_STOP_STRINGS_MAX) return body_refuse(b, BODY_STOP, ROW_INVALID_REQUEST, "stop must hold at most %d strings", FL_STOP_STRINGS_MAX);
    row->stop[row->n_stop] = fl_json_string(v.text, v.json, &row->stop_bytes[row->n_stop]);
    row->n_stop++;
    return true;
}

static bool read_stops(body_values *b, fl_row *row)
{
    if (body_given(b, BODY_STOP)) {
        body_value v = b->of[BODY_STOP], item = v;
        if (v.json.type != FL_JSON_STRING && v.json.type != FL_JSON_ARRAY) return must_be(b, BODY_STOP, "a string or a list of strings");
        row->stop = row_alloc(FL_STOP_STRINGS_MAX * sizeof *row->stop);
        row->stop_bytes = row_alloc(FL_STOP_STRINGS_MAX * sizeof *row->stop_bytes);
        if (v.json.type == FL_JSON_STRING && !read_stop_string(b, row, v)) return false;
        if (v.json.type == FL_JSON_ARRAY) {
            fl_json_walk walk = fl_json_members(v.text, v.json);
            while (fl_json_next(&walk, NULL, &item.json)) if (!read_stop_string(b, row, item)) return false;
        }
    }
    if (!body_given(b, BODY_STOP_IDS)) return true;
    body_value v = b->of[BODY_STOP_IDS], item = v;
    if (v.json.type != FL_JSON_ARRAY) return must_be(b, BODY_STOP_IDS, "a list of token ids");
    row->stop_ids = row_alloc(FL_STOP_IDS_MAX * sizeof *row->stop_ids);
    fl_json_walk walk = fl_json_members(v.text, v.json);
    while (fl_json_next(&walk, NULL, &item.json)) {
        int32_t id;
        if (!body_read_id(item.text, item.json, &id))
            return body_refuse_value(b, item, ROW_INVALID_REQUEST, "stop_token_ids must hold token ids from 0 to 2147483647");
        if (row->n_stop_ids == FL_STOP_IDS_MAX) return body_refuse(b, BODY_STOP_IDS, ROW_INVALID_REQUEST, "stop_token_ids must hold at most %d ids", FL_STOP_IDS_MAX);
        row->stop_ids[row->n_stop_ids++] = id;
    }
    return true;
}

/* What would change the answer and cannot be done is refused, never ignored. */
static bool check_unsupported(body_values *b)
{
    bool stream = false;
    if (!read_bool(b, BODY_STREAM, &stream)) return false;
    if (stream) return body_refuse(b, BODY_STREAM, ROW_UNSUPPORTED_FIELD, "stream must be false or absent in a job");
    body_value v = b->of[BODY_RESPONSE_FORMAT];
    if (body_given(b, BODY_RESPONSE_FORMAT)) {
        if (v.json.type != FL_JSON_OBJECT) return must_be(b, BODY_RESPONSE_FORMAT, "an object with a type");
        fl_json key, value, type = { FL_JSON_ABSENT, 0, 0 };
        fl_json_walk walk = fl_json_members(v.text, v.json);
        while (fl_json_next(&walk, &key, &value)) if (fl_json_is(v.text, key, "type")) type = value;
        if (type.type != FL_JSON_STRING) return must_be(b, BODY_RESPONSE_FORMAT, "an object with a type");
        if (!fl_json_is(v.text, type, "text")) return body_refuse(b, BODY_RESPONSE_FORMAT, ROW_UNSUPPORTED_FIELD, "response_format must be of type text");
    }
    v = b->of[BODY_LOGIT_BIAS];
    if (body_given(b, BODY_LOGIT_BIAS)) {
        if (v.json.type != FL_JSON_OBJECT) return must_be(b, BODY_LOGIT_BIAS, "an object");
        fl_json value;
        fl_json_walk walk = fl_json_members(v.text, v.json);
        if (fl_json_next(&walk, NULL, &value)) return body_refuse(b, BODY_LOGIT_BIAS, ROW_UNSUPPORTED_FIELD, "logit_bias must be empty or absent");
    }
    v = b->of[BODY_SUFFIX];
    if (body_given(b, BODY_SUFFIX)) {
        if (v.json.type != FL_JSON_STRING) return must_be(b, BODY_SUFFIX, "a string");
        if (!fl_json_is(v.text, v.json, "")) return body_refuse(b, BODY_SUFFIX, ROW_UNSUPPORTED_FIELD, "suffix must be empty or absent");
    }
    return true;
}

static bool check_chat_fields(body_values *b)
{
    fl_json_type tools = b->of[BODY_TOOLS].json.type, kwargs = b->of[BODY_TEMPLATE_KWARGS].json.type;
    bool ignored;
    if (tools != FL_JSON_ABSENT && tools != FL_JSON_ARRAY) return must_be(b, BODY_TOOLS, "a list");
    if (kwargs != FL_JSON_ABSENT && kwargs != FL_JSON_OBJECT) return must_be(b, BODY_TEMPLATE_KWARGS, "an object");
    if (body_given(b, BODY_TOOL_CHOICE) && !fl_json_is(b->of[BODY_TOOL_CHOICE].text, b->of[BODY_TOOL_CHOICE].json, "auto")
        && !fl_json_is(b->of[BODY_TOOL_CHOICE].text, b->of[BODY_TOOL_CHOICE].json, "none"))
        return body_refuse(b, BODY_TOOL_CHOICE, ROW_UNSUPPORTED_FIELD, "tool_choice must be auto, none or absent");
    return read_bool(b, BODY_GENERATION_PROMPT, &ignored);
}

static bool read_model(body_values *b, fl_row *row)
{
    if (!body_given(b, BODY_MODEL)) return true;
    const body_value *v = &b->of[BODY_MODEL];
    if (v->json.type != FL_JSON_STRING) return must_be(b, BODY_MODEL, "a string");
    size_t n_bytes = fl_json_string_bytes(v->text, v->json);
    if (n_bytes > FL_ROW_MODEL_MAX) return body_refuse(b, BODY_MODEL, ROW_INVALID_REQUEST, "model must have at most %d bytes", FL_ROW_MODEL_MAX);
    if (n_bytes == 0) return true;
    row->model = fl_json_string(v->text, v->json, &n_bytes);
    if (strlen(row->model) < n_bytes) return must_be(b, BODY_MODEL, "a string without U+0000");
    return true;
}

bool body_read(body_values *b, fl_row *row)
{
    int here = row->endpoint == ROW_CHAT ? BODY_CHAT : BODY_TEXT;
    for (int f = 0; f < BODY_FIELD_COUNT; f++)
        if (body_given(b, (body_field)f) && !(table[f].endpoints & here)) {
            row_fault_write(b->fault, ROW_INVALID_REQUEST, b->of[f].json.start, "%s has no meaning for %s: remove it", table[f].name,
                            here == BODY_CHAT ? "a chat" : "a prompt; it belongs to chats");
            return false;
        }
    row->top_p = 1.0f;
    row->temperature = 1.0f;
    row->repetition_penalty = 1.0f;
    row->n = 1;
    row->max_tokens = row->endpoint == ROW_CHAT ? 0 : FL_PROMPT_TOKENS_DEFAULT;
    return check_unsupported(b) && check_chat_fields(b) && read_model(b, row) && read_sampling(b, row) && read_lengths(b, row) && read_logprobs(b, row) && read_stops(b, row);
}
