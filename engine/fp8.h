/* fp8.h - F8_E4M3 weights (4 exponent bits, 3 of fraction, no infinity; Micikevicius et al. 2022, arXiv:2209.05433) and their scales, as fp32.
 * The stored value times its scale, rounded once to fp32, is the weight: what the reference computes when it takes such a checkpoint apart.
 * Threads  plain functions. */
#ifndef ENGINE_FP8_H
#define ENGINE_FP8_H

#include "engine/safetensors.h"
#include "proto/status.h"

float fp8_value(uint8_t byte);       /* 0x7F and 0xFF are NaN */

/* Expand `t`, n matrices [rows, cols] of F8_E4M3, into out [n, rows, cols]. `scale` (F32, BF16 or F16) holds one value for all, or for each matrix one value, one a
 * row, or one a block of block[0] rows and block[1] columns (rows / scale rows where that is a whole number). FL_CORRUPT or FL_UNSUPPORTED, naming file and tensor. */
fl_status fp8_expand(float *out, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err);

/* Rows first .. first + n_rows - 1 of all n * rows rows into out [n_rows, cols], of a tensor whose values were checked or will be. */
fl_status fp8_expand_rows(float *out, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], int64_t first, int64_t n_rows, fl_err *err);

/* The same refusals, but for those of values, without reading one. */
fl_status fp8_check(const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err);

#endif
