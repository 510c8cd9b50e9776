/* weight_source.h - where the values of one weight come from: a stored tensor, F8_E4M3 beside its scales, or the random values of a model without files.
 * Threads  plain functions. */
#ifndef ENGINE_WEIGHT_SOURCE_H
#define ENGINE_WEIGHT_SOURCE_H

#include "engine/safetensors.h"
#include "proto/status.h"

/* n matrices [rows, cols], one behind the other. */
typedef struct {
    const tensor *t;                 /* NULL: random */
    const tensor *scale;             /* of F8_E4M3 */
    int32_t n, rows, cols;
    const int32_t *fp8_block;        /* [2] model_config.h */
    uint64_t seed; float middle, reach;  /* random: middle + reach * (-1 .. 1) */
} weight_source;

/* out [n_rows, cols] = rows first .. first + n_rows - 1 of all n * rows rows, not random. FL_CORRUPT for scales or values that are not finite; FL_UNSUPPORTED. */
fl_status weight_source_read(float *out, const weight_source *s, int64_t first, int32_t n_rows, fl_err *err);

#endif
