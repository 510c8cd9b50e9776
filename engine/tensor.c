#include "engine/tensor.h"

#include "kernels/quant.h"

bool tensor_add_dim(uint64_t dim, uint64_t *n_values, uint64_t *extent)
{
    *n_values *= dim;
    return dim <= INT64_MAX && !__builtin_mul_overflow(*extent, dim > 0 ? dim : 1, extent) && *extent <= INT64_MAX;
}

/* Index of the first value whose exponent bits are all ones (NaN or infinite), or -1. Runs of 4,096 values are judged by one flag so
 * that the loop over a good tensor has no branch. */
static int64_t find_bad_16(const uint16_t *v, uint64_t n, uint16_t exponent)
{
    for (uint64_t begin = 0; begin < n; begin += 4096) {
        uint64_t end = n - begin < 4096 ? n : begin + 4096;
        unsigned bad = 0;
        for (uint64_t i = begin; i < end; i++) bad |= (v[i] & exponent) == exponent;
        for (uint64_t i = begin; bad && i < end; i++) if ((v[i] & exponent) == exponent) return (int64_t)i;
    }
    return -1;
}

static int64_t find_bad_32(const uint32_t *v, uint64_t n)
{
    for (uint64_t begin = 0; begin < n; begin += 4096) {
        uint64_t end = n - begin < 4096 ? n : begin + 4096;
        unsigned bad = 0;
        for (uint64_t i = begin; i < end; i++) bad |= (v[i] & 0x7F800000u) == 0x7F800000u;
        for (uint64_t i = begin; bad && i < end; i++) if ((v[i] & 0x7F800000u) == 0x7F800000u) return (int64_t)i;
    }
    return -1;
}

/* F8_E4M3 has no infinity; all ones but for the sign is NaN. */
static int64_t find_bad_8(const uint8_t *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) if ((v[i] & 0x7F) == 0x7F) return (int64_t)i;
    return -1;
}

/* Where the F16 scales of a block lie; second -1: there is one. MXFP4's scale is a power of two in one byte, and NVFP4's are all finite. */
static const struct { int16_t first, second; } scale_places[DTYPE_COUNT] = {
    [DTYPE_Q8_0] = { 0, -1 }, [DTYPE_Q4_0] = { 0, -1 }, [DTYPE_Q4_1] = { 0, 2 },    [DTYPE_Q5_0] = { 0, -1 },   [DTYPE_Q5_1] = { 0, 2 },    [DTYPE_Q2_K] = { 80, 82 },
    [DTYPE_Q3_K] = { 108, -1 }, [DTYPE_Q4_K] = { 0, 2 }, [DTYPE_Q5_K] = { 0, 2 },  [DTYPE_Q6_K] = { 208, -1 }, [DTYPE_IQ4_NL] = { 0, -1 }, [DTYPE_IQ4_XS] = { 0, -1 },
};
enum { E8M0_MOST = 252 };                /* 2^(252 - 127) times 6, the greatest e2m1, is the last that fits fp32 */

/* Index of the first value of the first block with a bad scale. */
static int64_t find_bad_block(const tensor *t)
{
    const uint64_t bytes = (uint64_t)dtype_block_bytes(t->type), n = t->n_bytes / bytes;
    const int64_t values = dtype_block_values(t->type);
    if (t->type == DTYPE_NVFP4) return -1;
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *block = t->data + i * bytes;
        const uint8_t *a = block + scale_places[t->type].first, *b = scale_places[t->type].second < 0 ? a : block + scale_places[t->type].second;
        bool is_bad = t->type == DTYPE_MXFP4 ? block[0] > E8M0_MOST : (a[1] & 0x7C) == 0x7C || (b[1] & 0x7C) == 0x7C;
        if (is_bad) return (int64_t)i * values;
    }
    return -1;
}

fl_status tensor_check_finite(const tensor *t, fl_err *err)
{
    if (!t->is_weight && !t->is_fp8) return FL_OK;
    const bool is_quantized = t->is_weight && dtype_is_quantized(t->type);
    int64_t bad = t->is_fp8             ? find_bad_8(t->data, t->n_bytes)
                : is_quantized          ? find_bad_block(t)
                : t->type == DTYPE_F32  ? find_bad_32((const uint32_t *)(const void *)t->data, t->n_bytes / 4)
                : t->type == DTYPE_BF16 ? find_bad_16((const uint16_t *)(const void *)t->data, t->n_bytes / 2, 0x7F80)
                                        : find_bad_16((const uint16_t *)(const void *)t->data, t->n_bytes / 2, 0x7C00);
    if (bad < 0) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "%s: tensor %s has a NaN or infinite %s at index %lld; the file is damaged: copy it again", t->file, t->name, is_quantized ? "scale" : "value", (long long)bad);
}
