/* encode.h - fp32 values as the types that weights and activations have on a device, to the nearest, ties to even: the other way of quant.h's dtype_decode.
 * Threads  plain functions. */
#ifndef KERNELS_ENCODE_H
#define KERNELS_ENCODE_H

#include "kernels/ops.h"

/* out[i] = in[i] as F32, BF16 or F16, i < n. NaN stays NaN; what is beyond F16 becomes infinite. */
void dtype_encode(void *out, dtype type, const float *in, size_t n);

/* Whether n values of F32, BF16 or F16 are all finite. */
bool dtype_is_finite(const void *values, dtype type, size_t n);

#endif
