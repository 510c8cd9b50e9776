#include "proto/result.h"

#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/detok.h"
#include "proto/job_row.h"
#include "proto/msgpack_check.h"
#include "proto/token_block.h"

#define VERSION 1
#define LOGPROB_MIN (-9999.0f)

/* The header's keys, and the largest value each may have. */
enum { KEY_VERSION, KEY_FINISH, KEY_STOP_KIND, KEY_STOP_INDEX, KEY_N_PROMPT, KEY_N_IDS, KEY_TEXT_BYTES, KEY_N_TOP, KEY_N_PROMPT_TOP,
       KEY_HAS_PROMPT_IDS, N_KEYS };
static const uint64_t value_max[N_KEYS] = {
    VERSION, FL_FINISH_STOP, FL_STOP_STRING, FL_VOCAB_MAX, FL_RESULT_TOKENS_MAX, FL_RESULT_TOKENS_MAX, INT64_MAX,
    FL_TOP_LOGPROBS_MAX + 1, FL_TOP_LOGPROBS_MAX + 1, 1 };

#define HEADER_BYTES_MAX (1 + N_KEYS * 10)
#define HEADER_ITEMS_MAX (1 + N_KEYS * 2)

/* An array of a result: where it lies, its entries, and what was added to ids so that -1 becomes 0. */
typedef struct { const char *name; bool is_float; size_t n; int32_t shift; int32_t **ids; float **floats; } array;

enum { N_ARRAYS = 8 };

/* The blocks behind the header, in order. An array that the result does not have has n = SIZE_MAX. */
static void list_arrays(array arrays[N_ARRAYS], fl_result *r, bool has_prompt_ids)
{
    size_t n_prompt_scores = r->n_prompt > 0 ? (size_t)r->n_prompt - 1 : 0, none = SIZE_MAX;
    size_t n_top = r->n_top > 0 ? (size_t)r->n_top * r->n_ids : none;
    size_t n_prompt_top = r->n_prompt_top > 0 ? (size_t)r->n_prompt_top * n_prompt_scores : none;
    const array all[N_ARRAYS] = {
        { "ids", false, r->n_ids, 0, &r->ids, NULL },
        { "logprobs", true, r->n_top >= 0 ? r->n_ids : none, 0, NULL, &r->logprobs },
        { "top_ids", false, n_top, 1, &r->top_ids, NULL },
        { "top_logprobs", true, n_top, 0, NULL, &r->top_logprobs },
        { "prompt_ids", false, has_prompt_ids ? (size_t)r->n_prompt : none, 0, &r->prompt_ids, NULL },
        { "prompt_logprobs", true, r->n_prompt_top >= 0 ? n_prompt_scores : none, 0, NULL, &r->prompt_logprobs },
        { "prompt_top_ids", false, n_prompt_top, 1, &r->prompt_top_ids, NULL },
        { "prompt_top_logprobs", true, n_prompt_top, 0, NULL, &r->prompt_top_logprobs },
    };
    memcpy(arrays, all, sizeof all);
}

/* The rules between the header's values. `failure` is FL_INVALID for a result of ours and FL_CORRUPT for a foreign body. */
static fl_status check_header(const fl_result *r, int32_t n_vocab, fl_status failure, fl_err *err)
{
    if ((r->finish == FL_FINISH_STOP) != (r->stop_kind != FL_STOP_NONE))
        return fl_fail(err, failure, "result: finish %d does not go with stop kind %d", (int)r->finish, (int)r->stop_kind);
    int32_t low = r->stop_kind == FL_STOP_NONE ? -1 : 0;
    int32_t high = r->stop_kind == FL_STOP_NONE ? -1 : r->stop_kind == FL_STOP_STRING ? FL_STOP_STRINGS_MAX - 1 : n_vocab - 1;
    if (r->stop_index < low || r->stop_index > high)
        return fl_fail(err, failure, "result: stop index %d of stop kind %d is not in %d .. %d", r->stop_index, (int)r->stop_kind, low, high);
    return FL_OK;
}

/* Without a way out in between, so that the compiler takes many at a time. */
static bool ids_in_range(const int32_t *ids, size_t n, int32_t low, int32_t end)
{
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (size_t i = 0; i < n; i++) {
        least = ids[i] < least ? ids[i] : least;
        most = ids[i] > most ? ids[i] : most;
    }
    return least >= low && most < end;
}

static fl_status check_array(const array *a, int32_t n_vocab, fl_status failure, fl_err *err)
{
    if (a->n == SIZE_MAX || a->n == 0) return FL_OK;
    if (a->is_float ? !*a->floats : !*a->ids) return fl_fail(err, failure, "result: %s is missing", a->name);
    if (!a->is_float && ids_in_range(*a->ids, a->n, -a->shift, n_vocab)) return FL_OK;
    for (size_t i = 0; i < a->n; i++) {
        if (a->is_float && !(isfinite((*a->floats)[i]) && (*a->floats)[i] >= LOGPROB_MIN))
            return fl_fail(err, failure, "result: %s[%zu] is %g, which is no log-probability", a->name, i, (double)(*a->floats)[i]);
        if (!a->is_float && ((*a->ids)[i] < -a->shift || (*a->ids)[i] >= n_vocab))
            return fl_fail(err, failure, "result: %s[%zu] is %d, outside the vocabulary of %d", a->name, i, (*a->ids)[i], n_vocab);
    }
    return FL_OK;
}

/* ---- encode ---- */

typedef struct { uint8_t *bytes; size_t used, capacity; } writer;

static int writer_add(void *data, const char *bytes, size_t n_bytes)
{
    writer *w = data;
    FL_ASSERT(n_bytes <= w->capacity - w->used);         /* fl_result_encode summed the bounds */
    memcpy(w->bytes + w->used, bytes, n_bytes);
    w->used += n_bytes;
    return 0;
}

static void write_header(writer *w, const uint64_t values[N_KEYS])
{
    msgpack_packer packer;
    msgpack_packer_init(&packer, w, writer_add);
    size_t n = 0;
    for (int key = 0; key < N_KEYS; key++) n += values[key] != 0;
    msgpack_pack_map(&packer, n);
    for (int key = 0; key < N_KEYS; key++) {
        if (!values[key]) continue;
        msgpack_pack_uint64(&packer, (uint64_t)key);
        msgpack_pack_uint64(&packer, values[key]);
    }
}

static fl_status write_array(writer *w, const array *a, fl_err *err)
{
    uint8_t *at = w->bytes + w->used;
    size_t room = w->capacity - w->used, n_bytes = 0;
    fl_status st;
    if (a->is_float) st = fl_float_block_encode(at, room, &n_bytes, *a->floats, a->n, err);
    else if (a->shift == 0) st = fl_token_block_encode(at, room, &n_bytes, *a->ids, a->n, err);
    else {
        int32_t *shifted = malloc(a->n * sizeof *shifted + 1);
        if (!shifted) return fl_fail(err, FL_FULL, "result: no memory for %zu %s", a->n, a->name);
        for (size_t i = 0; i < a->n; i++) shifted[i] = (*a->ids)[i] + a->shift;
        st = fl_token_block_encode(at, room, &n_bytes, shifted, a->n, err);
        free(shifted);
    }
    w->used += n_bytes;
    return st;
}

fl_status fl_result_encode(const fl_result *result, uint8_t **out, size_t *n_bytes, fl_err *err)
{
    fl_result r = *result;                               /* list_arrays wants places to point at */
    const int64_t signed_values[N_KEYS] = {
        VERSION, r.finish, r.stop_kind, (int64_t)r.stop_index + 1, r.n_prompt, r.n_ids <= INT64_MAX ? (int64_t)r.n_ids : -1,
        r.text_bytes == INT64_MAX ? -1 : r.text_bytes + 1, (int64_t)r.n_top + 1, (int64_t)r.n_prompt_top + 1, r.prompt_ids && r.n_prompt > 0 };
    uint64_t values[N_KEYS];
    for (int key = 0; key < N_KEYS; key++) {
        values[key] = (uint64_t)signed_values[key];
        if (values[key] > value_max[key])
            return fl_fail(err, FL_INVALID, "result: header value %d is %lld, 0 .. %llu is possible", key, (long long)signed_values[key], (unsigned long long)value_max[key]);
    }
    array arrays[N_ARRAYS];
    list_arrays(arrays, &r, values[KEY_HAS_PROMPT_IDS] != 0);
    size_t capacity = HEADER_BYTES_MAX;
    fl_status st = check_header(&r, FL_VOCAB_MAX, FL_INVALID, err);
    for (int i = 0; st == FL_OK && i < N_ARRAYS; i++) {
        st = check_array(&arrays[i], FL_VOCAB_MAX, FL_INVALID, err);
        if (arrays[i].n != SIZE_MAX) capacity += arrays[i].is_float ? fl_float_block_bound(arrays[i].n) : fl_token_block_bound(arrays[i].n);
    }
    if (st != FL_OK) return st;

    writer w = { malloc(capacity), 0, capacity };
    if (!w.bytes) return fl_fail(err, FL_FULL, "result: no memory for %zu bytes", capacity);
    write_header(&w, values);
    for (int i = 0; st == FL_OK && i < N_ARRAYS; i++)
        if (arrays[i].n != SIZE_MAX) st = write_array(&w, &arrays[i], err);
    if (st != FL_OK) { free(w.bytes); return st; }
    uint8_t *fitted = realloc(w.bytes, w.used);          /* the bounds are generous, and a result may wait in an outbox */
    *out = fitted ? fitted : w.bytes;
    *n_bytes = w.used;
    return FL_OK;
}

/* ---- decode ---- */

/* One unsigned integer of a header that fl_msgpack_check has walked; UINT64_MAX: the object is of another type. */
static uint64_t read_unsigned(const uint8_t *body, size_t *at)
{
    uint8_t first = body[(*at)++];
    if (first < 0x80) return first;
    if (first < 0xCC || first > 0xCF) return UINT64_MAX;
    uint64_t value = 0;
    for (int n = 1 << (first - 0xCC); n > 0; n--) value = value << 8 | body[(*at)++];
    return value;
}

static fl_status read_values(uint64_t values[N_KEYS], const uint8_t *body, size_t used, fl_err *err)
{
    memset(values, 0, N_KEYS * sizeof values[0]);
    if (body[0] < 0x80 || body[0] > 0x8F) return fl_fail(err, FL_CORRUPT, "result: the header is not a small map");
    uint64_t next_key = 0;
    size_t at = 1;
    for (uint32_t i = 0, n = body[0] & 0x0F; i < n; i++) {
        uint64_t key = read_unsigned(body, &at), value = key < N_KEYS ? read_unsigned(body, &at) : 0;
        if (key < next_key || key >= N_KEYS) return fl_fail(err, FL_CORRUPT, "result: header key %llu does not belong here", (unsigned long long)key);
        if (i == 0 && (key != KEY_VERSION || value != VERSION)) return fl_fail(err, FL_CORRUPT, "result: not of version %d, which this program reads", VERSION);
        if (value == 0 || value > value_max[key])
            return fl_fail(err, FL_CORRUPT, "result: header value %llu is %llu, 1 .. %llu is possible", (unsigned long long)key, (unsigned long long)value,
                           (unsigned long long)value_max[key]);
        values[key] = value;
        next_key = key + 1;
    }
    FL_ASSERT(at == used);
    if (values[KEY_VERSION] == 0) return fl_fail(err, FL_CORRUPT, "result: the header is empty");
    if (values[KEY_HAS_PROMPT_IDS] && values[KEY_N_PROMPT] == 0) return fl_fail(err, FL_CORRUPT, "result: ids of an empty prompt");
    return FL_OK;
}

static fl_status read_header(uint64_t values[N_KEYS], size_t *used, const uint8_t *body, size_t n_bytes, fl_err *err)
{
    fl_status st = fl_msgpack_check(body, n_bytes, HEADER_ITEMS_MAX, used, err);
    return st == FL_OK ? read_values(values, body, *used, err) : st;
}

/* Everything but the arrays. */
static fl_status read_fields(fl_result *r, array arrays[N_ARRAYS], size_t *at, const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err)
{
    uint64_t values[N_KEYS];
    fl_status st = read_header(values, at, body, n_bytes, err);
    if (st != FL_OK) return st;
    *r = (fl_result){
        .finish = (fl_finish)values[KEY_FINISH], .stop_kind = (fl_stop_kind)values[KEY_STOP_KIND], .stop_index = (int32_t)values[KEY_STOP_INDEX] - 1,
        .n_prompt = (int32_t)values[KEY_N_PROMPT], .n_ids = (size_t)values[KEY_N_IDS], .text_bytes = (int64_t)values[KEY_TEXT_BYTES] - 1,
        .n_top = (int32_t)values[KEY_N_TOP] - 1, .n_prompt_top = (int32_t)values[KEY_N_PROMPT_TOP] - 1 };
    list_arrays(arrays, r, values[KEY_HAS_PROMPT_IDS] != 0);
    return check_header(r, n_vocab, FL_CORRUPT, err);
}

static fl_status read_array(const array *a, size_t *at, const uint8_t *body, size_t n_bytes, fl_err *err)
{
    size_t n = 0, used = 0;
    fl_status st = a->is_float ? fl_float_block_decode(a->floats, &n, &used, body + *at, n_bytes - *at, a->n, err)
                               : fl_token_block_decode(a->ids, &n, &used, body + *at, n_bytes - *at, a->n, err);
    if (st == FL_OK && n != a->n) st = fl_fail(err, FL_CORRUPT, "result: %zu %s instead of %zu", n, a->name, a->n);
    if (st != FL_OK) return st;
    for (size_t i = 0; a->shift && i < n; i++) (*a->ids)[i] -= a->shift;
    *at += used;
    return FL_OK;
}

fl_status fl_result_decode(fl_result *result, const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err)
{
    fl_result r = { 0 };
    array arrays[N_ARRAYS];
    size_t at = 0;
    fl_status st = read_fields(&r, arrays, &at, body, n_bytes, n_vocab, err);
    if (st != FL_OK) return st;
    for (int i = 0; st == FL_OK && i < N_ARRAYS; i++) {
        if (arrays[i].n == SIZE_MAX) continue;
        st = read_array(&arrays[i], &at, body, n_bytes, err);
        if (st == FL_OK) st = check_array(&arrays[i], n_vocab, FL_CORRUPT, err);
    }
    if (st == FL_OK && at != n_bytes) st = fl_fail(err, FL_CORRUPT, "result: %zu bytes after the last block", n_bytes - at);
    if (st == FL_OK) *result = r;
    else fl_result_free(&r);
    return st;
}

/* Ids are only looked at; log-probabilities, which few results have, are decoded for it. */
static fl_status check_one(const array *a, size_t *at, const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err)
{
    size_t n = 0, used = 0;
    if (a->is_float) {
        fl_status st = read_array(a, at, body, n_bytes, err);
        if (st == FL_OK) st = check_array(a, n_vocab, FL_CORRUPT, err);
        free(*a->floats);
        *a->floats = NULL;
        return st;
    }
    fl_status st = fl_token_block_check(&n, &used, body + *at, n_bytes - *at, a->n, (uint32_t)((n_vocab > 0 ? n_vocab : 0) + a->shift), err);
    if (st == FL_OK && n != a->n) st = fl_fail(err, FL_CORRUPT, "result: %zu %s instead of %zu", n, a->name, a->n);
    *at += used;
    return st;
}

fl_status fl_result_check(const uint8_t *body, size_t n_bytes, int32_t n_vocab, fl_err *err)
{
    fl_result r = { 0 };
    array arrays[N_ARRAYS];
    size_t at = 0;
    fl_status st = read_fields(&r, arrays, &at, body, n_bytes, n_vocab, err);
    for (int i = 0; st == FL_OK && i < N_ARRAYS; i++)
        if (arrays[i].n != SIZE_MAX) st = check_one(&arrays[i], &at, body, n_bytes, n_vocab, err);
    if (st == FL_OK && at != n_bytes) st = fl_fail(err, FL_CORRUPT, "result: %zu bytes after the last block", n_bytes - at);
    return st;
}

void fl_result_free(fl_result *result)
{
    free(result->ids);
    free(result->logprobs);
    free(result->top_ids);
    free(result->top_logprobs);
    free(result->prompt_ids);
    free(result->prompt_logprobs);
    free(result->prompt_top_ids);
    free(result->prompt_top_logprobs);
    *result = (fl_result){ .n_top = -1, .n_prompt_top = -1 };
}
