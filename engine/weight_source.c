#include "engine/weight_source.h"

#include <string.h>
#include "engine/fp8.h"
#include "kernels/quant.h"

int64_t weight_source_row(const weight_source *s, int64_t r)
{
    if (s->change != GGUF_TURNED_QUERIES && s->change != GGUF_TURNED_KEYS) return r;
    const int64_t half = s->head_dim / 2, in_head = r % s->head_dim;
    return r - in_head + (in_head < half ? 2 * in_head : 2 * (in_head - half) + 1);
}

/* -exp(A_log) back to A_log. */
static fl_status undo_decays(float *values, const weight_source *s, fl_err *err)
{
    for (int32_t i = 0; i < s->cols; i++) {
        if (!(values[i] < 0.0f)) return fl_fail(err, FL_CORRUPT, "%s: value %d of tensor %s is %g, and a decay must be below 0", s->t->file, i, s->t->name, (double)values[i]);
        values[i] = fl_logf(-values[i]);
    }
    return FL_OK;
}

/* Rows first .. of all, times the factor of their matrix. */
static void multiply_rows(float *values, const weight_source *s, int64_t first, int32_t n_rows)
{
    for (int32_t i = 0; i < n_rows; i++, values += s->cols) {
        const int64_t matrix = s->scale->n_dims > 0 && s->scale->shape[0] > 1 ? (first + i) / s->rows : 0;
        float factor;
        memcpy(&factor, s->scale->data + sizeof factor * (size_t)matrix, sizeof factor);
        for (int32_t c = 0; c < s->cols; c++) values[c] *= factor;
    }
}

fl_status weight_source_check_factors(const weight_source *s, fl_err *err)
{
    const tensor *f = s->scale;
    if (f->is_weight && f->type == DTYPE_F32 && f->n_dims == 1 && (f->shape[0] == 1 || f->shape[0] == s->n)) return FL_OK;
    return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s is beside %s, so it must hold one F32 factor of all values or one for each of %d matrices", f->file, f->name, s->t->name, s->n);
}

fl_status weight_source_read(float *out, const weight_source *s, int64_t first, int32_t n_rows, fl_err *err)
{
    if (s->t->is_fp8) {
        fl_status st = fp8_expand_rows(out, s->t, s->scale, s->n, s->rows, s->cols, s->fp8_block, first, n_rows, err);
        if (st == FL_CORRUPT && tensor_check_finite(s->scale, err) == FL_OK) tensor_check_finite(s->t, err);     /* they name the value */
        return st;
    }
    const size_t row_bytes = dtype_row_bytes(s->t->type, s->cols);
    if (s->rows == 1 && s->change != GGUF_AS_IS && s->change != GGUF_DECAY) {        /* a turned bias */
        for (int32_t i = 0; i < s->cols; i++) dtype_decode(out + i, s->t->type, s->t->data + (size_t)weight_source_row(s, i) * dtype_row_bytes(s->t->type, 1), 1);
        return FL_OK;
    }
    for (int32_t i = 0; i < n_rows; i++) dtype_decode(out + (size_t)i * (size_t)s->cols, s->t->type, s->t->data + (size_t)weight_source_row(s, first + i) * row_bytes, s->cols);
    if (s->scale) multiply_rows(out, s, first, n_rows);
    return s->change == GGUF_DECAY ? undo_decays(out, s, err) : FL_OK;
}
