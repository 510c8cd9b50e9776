#include "kernels/quant.h"

#include "kernels/quant_block.h"

static const char *const names[DTYPE_COUNT] = {
    [DTYPE_F32] = "f32", [DTYPE_BF16] = "bf16", [DTYPE_F16] = "f16", [DTYPE_Q8_0] = "q8_0", [DTYPE_Q4_0] = "q4_0", [DTYPE_Q4_1] = "q4_1", [DTYPE_Q5_0] = "q5_0", [DTYPE_Q5_1] = "q5_1",
    [DTYPE_Q2_K] = "q2_k", [DTYPE_Q3_K] = "q3_k", [DTYPE_Q4_K] = "q4_k", [DTYPE_Q5_K] = "q5_k", [DTYPE_Q6_K] = "q6_k", [DTYPE_IQ4_NL] = "iq4_nl", [DTYPE_IQ4_XS] = "iq4_xs",
    [DTYPE_MXFP4] = "mxfp4", [DTYPE_NVFP4] = "nvfp4",
};

const char *dtype_name(dtype type) { return names[type]; }
bool dtype_is_quantized(dtype type) { return quant_formats[type].values > 0; }
int32_t dtype_block_values(dtype type) { return dtype_is_quantized(type) ? quant_formats[type].values : 1; }
int32_t dtype_block_bytes(dtype type) { return dtype_is_quantized(type) ? quant_formats[type].bytes : type == DTYPE_F32 ? 4 : 2; }

size_t dtype_row_bytes(dtype type, int32_t n_cols)
{
    FL_ASSERT(n_cols >= 0 && n_cols % dtype_block_values(type) == 0);
    return (size_t)(n_cols / dtype_block_values(type)) * (size_t)dtype_block_bytes(type);
}

static void decode_plain(float *out, dtype type, const uint8_t *p, int32_t n)
{
    if (type == DTYPE_F32) { memcpy(out, p, (size_t)n * sizeof *out); return; }
    for (int32_t i = 0; i < n; i++, p += 2) out[i] = type == DTYPE_F16 ? quant_f16(p) : quant_f32_of_bits((uint32_t)p[0] << 16 | (uint32_t)p[1] << 24);
}

void dtype_decode(float *out, dtype type, const void *row, int32_t n)
{
    const quant_format *f = &quant_formats[type];
    const uint8_t *p = row;
    if (!dtype_is_quantized(type)) { decode_plain(out, type, p, n); return; }
    FL_ASSERT(n % f->values == 0);
    for (int32_t at = 0; at < n; at += f->values, p += f->bytes) {
        uint8_t q[QUANT_VALUES_MAX];
        float scale[QUANT_GROUPS_MAX] = { 0 }, min[QUANT_GROUPS_MAX] = { 0 };
        quant_take(q, scale, min, type, p);
        for (int32_t i = 0; i < f->values; i++) {
            int32_t g = i / f->group;
            out[at + i] = f->offset_bits < 0 ? scale[g] * (float)q[i] + min[g] : scale[g] * (float)(q[i] - (1 << f->offset_bits));
        }
    }
}
