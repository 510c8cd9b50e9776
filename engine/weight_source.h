/* weight_source.h - where the values of one weight come from: a stored tensor, one beside its scales or factors, or the random values of a model without files.
 * Threads  plain functions. */
#ifndef ENGINE_WEIGHT_SOURCE_H
#define ENGINE_WEIGHT_SOURCE_H

#include "engine/gguf_names.h"
#include "engine/tensor.h"
#include "proto/status.h"

/* n matrices [rows, cols], one behind the other. */
typedef struct {
    const tensor *t;                 /* NULL: random */
    const tensor *scale;             /* of F8_E4M3; of other types a factor of all, or one of each matrix, in F32; NULL without */
    int32_t n, rows, cols;
    const int32_t *fp8_block;        /* [2] model_config.h */
    gguf_change change;              /* undone by weight_source_read */
    int32_t head_dim;                /* for turned rows */
    uint64_t seed; float middle, reach;  /* random: middle + reach * (-1 .. 1) */
} weight_source;

/* Where row r lies in the tensor: elsewhere where rows are turned. A bias, whose rows is 1, is turned value by value: then r is a value. */
int64_t weight_source_row(const weight_source *s, int64_t r);

/* Whether `scale` can be factors of a tensor that is not F8_E4M3: FL_UNSUPPORTED, naming both. Reads no value. */
fl_status weight_source_check_factors(const weight_source *s, fl_err *err);

/* out [n_rows, cols] = rows first .. first + n_rows - 1 of all n * rows rows, not random. FL_CORRUPT for scales or values that are not finite, and for a decay that is none; FL_UNSUPPORTED. */
fl_status weight_source_read(float *out, const weight_source *s, int64_t first, int32_t n_rows, fl_err *err);

#endif
