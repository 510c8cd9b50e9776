#include "engine/weight_store.h"

#include <stdlib.h>
#include <string.h>
#include "kernels/encode.h"

#define STAGING_BYTES (32u << 20)
#define DECODED_MAX (1 << 20)            /* fp32 values on their way to another type, at least a row */

dtype weight_store_type(const ops *o) { return o->is_host ? DTYPE_BF16 : o->act_type; }

static size_t value_bytes(dtype type) { return type == DTYPE_F32 ? 4 : 2; }

fl_status weight_store_open(weight_store *s, ops *o, size_t n_bytes, fl_err *err)
{
    void *base = NULL;
    *s = (weight_store){ .o = o, .type = weight_store_type(o), .capacity = n_bytes };
    fl_status st = o->take(o, &base, n_bytes, "the weights", err);
    s->base = base;
    for (int i = 0; st == FL_OK && i < 2; i++) st = o->take_host(o, &s->staging[i], STAGING_BYTES, "the loading of weights", err);
    if (st == FL_OK && !(s->decoded = malloc(DECODED_MAX * sizeof *s->decoded))) st = fl_fail(err, FL_FULL, "model: no memory to convert weights");
    return st;
}

static void drop_staging(weight_store *s)
{
    for (int i = 0; i < 2; i++) {
        s->o->give_host(s->o, s->staging[i], STAGING_BYTES);
        s->staging[i] = NULL;
    }
    free(s->decoded);
    s->decoded = NULL;
}

void weight_store_close(weight_store *s)
{
    if (s->o) {
        drop_staging(s);
        s->o->give(s->o, s->base, s->capacity);
    }
    *s = (weight_store){ 0 };
}

/* Rows first .. first + n - 1 in the stored type, into a buffer. */
static fl_status fill_rows(weight_store *s, uint8_t *to, const weight_source *source, dtype type, int64_t first, int64_t n, fl_err *err)
{
    const size_t cols = (size_t)source->cols, row_bytes = cols * value_bytes(type);
    const int64_t n_each = (int64_t)(DECODED_MAX / cols);
    const bool is_stored_so = source->t->is_weight && source->t->type == type && source->change == GGUF_AS_IS && !source->scale;
    fl_status st = FL_OK;
    if (is_stored_so) memcpy(to, source->t->data + (size_t)first * row_bytes, (size_t)n * row_bytes);
    for (int64_t i = 0; !is_stored_so && st == FL_OK && i < n; i += n_each) {
        const int64_t n_some = n - i < n_each ? n - i : n_each;
        st = weight_source_read(s->decoded, source, first + i, (int32_t)n_some, err);
        if (st == FL_OK) dtype_encode(to + (size_t)i * row_bytes, type, s->decoded, (size_t)n_some * cols);
    }
    if (st != FL_OK || dtype_is_finite(to, type, (size_t)n * cols)) return st;
    st = tensor_check_finite(source->t, err);
    return st != FL_OK ? st : fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has values that 16 bits cannot hold on this device; compute in fp32 (--precision f32) or on the CPU", source->t->file, source->t->name);
}

static fl_status send_rows(weight_store *s, uint8_t *to, const weight_source *source, dtype type, fl_err *err)
{
    const size_t row_bytes = (size_t)source->cols * value_bytes(type);
    const int64_t n_rows = (int64_t)source->n * source->rows, n_each = (int64_t)(STAGING_BYTES / row_bytes);
    FL_ASSERT(n_each >= 1 && source->cols <= DECODED_MAX);
    for (int64_t first = 0; first < n_rows; first += n_each) {
        const int64_t n = n_rows - first < n_each ? n_rows - first : n_each;
        s->o->wait_upload(s->o, s->turn);
        fl_status st = fill_rows(s, s->staging[s->turn], source, type, first, n, err);
        if (st != FL_OK) return st;
        s->o->begin_upload(s->o, to + (size_t)first * row_bytes, s->staging[s->turn], (size_t)n * row_bytes, s->turn);
        s->turn ^= 1;
    }
    return FL_OK;
}

fl_status weight_store_put(weight_store *s, weight *out, const weight_source *source, bool is_small, fl_err *err)
{
    const dtype type = is_small ? DTYPE_F32 : s->type;
    const size_t n = (size_t)source->n * (size_t)source->rows * (size_t)source->cols;
    uint8_t *to = s->base ? s->base + s->n_bytes : NULL;
    s->n_bytes += (n * value_bytes(type) + 255) / 256 * 256;
    *out = (weight){ to, type, source->rows, source->cols };
    if (!s->o) return FL_OK;
    FL_ASSERT(s->n_bytes <= s->capacity);
    if (source->t) return send_rows(s, to, source, type, err);
    s->o->fill_random(s->o, to, type, n, source->seed, source->middle, source->reach);
    return FL_OK;
}

fl_status weight_store_finish(weight_store *s, fl_err *err)
{
    fl_status st = s->o->finish(s->o, err);
    FL_ASSERT(s->n_bytes == s->capacity);
    drop_staging(s);
    return st;
}
