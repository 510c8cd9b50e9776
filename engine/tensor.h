/* tensor.h - one tensor of a weight file, where it is mapped. safetensors.h and gguf.h make them, model.c binds them. */
#ifndef ENGINE_TENSOR_H
#define ENGINE_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/ops.h"
#include "proto/status.h"

#define TENSOR_DIMS_MAX 8

typedef struct {
    const char *name, *file;         /* borrowed from what holds the tensor; file: the name of its file */
    const char *dtype_name;          /* as the file calls it: "BF16", "Q4_K" */
    bool is_weight;                  /* dtype below is valid */
    bool is_fp8;                     /* F8_E4M3: a weight beside its scales (fp8.h) */
    dtype type;
    int32_t n_dims;
    int64_t shape[TENSOR_DIMS_MAX];  /* rows before columns */
    const uint8_t *data;             /* borrowed from the mapping */
    uint64_t n_bytes;
} tensor;

/* Multiply by one more dimension of a shape. extent: the product of those that are not 0, so that nobody's product of some of them overflows; both begin at 1. False: it is beyond INT64_MAX. */
bool tensor_add_dim(uint64_t dim, uint64_t *n_values, uint64_t *extent);

/* FL_CORRUPT, naming tensor and index, when a value of a weight, or a scale of its blocks where it is quantized, is NaN or infinite. Reads all of it once. */
fl_status tensor_check_finite(const tensor *t, fl_err *err);

#endif
