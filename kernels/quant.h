/* quant.h - how quantized weights are stored, and what they mean.
 * Formats  ggml's (GGUF tensors), named as there in small letters; block by block in quant_block.h.
 * Values   a value is scale * (q - offset) or scale * q + min in fp32, each operation rounded once: the bits of the `gguf` Python package's dequantize (0.19).
 * Domain   any bytes are a block: a scale may be NaN or infinite in a file that is not to be trusted (the loader looks). */
#ifndef KERNELS_QUANT_H
#define KERNELS_QUANT_H

#include "kernels/ops.h"

const char *dtype_name(dtype type);              /* "f32", "q4_k" ... */
bool dtype_is_quantized(dtype type);
int32_t dtype_block_values(dtype type);          /* values a block: 32, 64 or 256; 1 for f32, bf16 and f16 */
int32_t dtype_block_bytes(dtype type);

/* Bytes of a row of n_cols values, n_cols a multiple of dtype_block_values(type). */
size_t dtype_row_bytes(dtype type, int32_t n_cols);

/* out[i] = value i of a stored row, any dtype; n a multiple of dtype_block_values(type). The definition of each format. */
void dtype_decode(float *out, dtype type, const void *row, int32_t n);

#endif
