#include "engine/weight_source.h"

#include "engine/fp8.h"
#include "kernels/quant.h"

fl_status weight_source_read(float *out, const weight_source *s, int64_t first, int32_t n_rows, fl_err *err)
{
    if (s->t->is_fp8) {
        fl_status st = fp8_expand_rows(out, s->t, s->scale, s->n, s->rows, s->cols, s->fp8_block, first, n_rows, err);
        if (st == FL_CORRUPT && tensor_check_finite(s->scale, err) == FL_OK) tensor_check_finite(s->t, err);     /* they name the value */
        return st;
    }
    const size_t row_bytes = dtype_row_bytes(s->t->type, s->cols);
    for (int32_t i = 0; i < n_rows; i++) dtype_decode(out + (size_t)i * (size_t)s->cols, s->t->type, s->t->data + ((size_t)first + (size_t)i) * row_bytes, s->cols);
    return FL_OK;
}
