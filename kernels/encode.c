#include "kernels/encode.h"

#include <string.h>

static uint16_t to_bf16(uint32_t u)
{
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

static uint16_t to_f16(uint32_t u)
{
    const uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);     /* rounds to 65,536 or is beyond */
    if (magnitude < 0x33000000u) return (uint16_t)sign;                  /* below half of the least subnormal */
    const int32_t exponent = (int32_t)(magnitude >> 23) - 112;
    const int32_t shift = exponent > 0 ? 13 : 14 - exponent;
    const uint32_t fraction = exponent > 0 ? magnitude - (112u << 23) : (magnitude & 0x7fffffu) | 0x800000u;
    const uint32_t kept = fraction >> shift, rest = fraction & ((1u << shift) - 1), half = 1u << (shift - 1);
    return (uint16_t)(sign | (kept + (rest > half || (rest == half && (kept & 1)))));
}

void dtype_encode(void *out, dtype type, const float *in, size_t n)
{
    FL_ASSERT(type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16);
    if (type == DTYPE_F32) {
        memcpy(out, in, n * sizeof *in);
        return;
    }
    uint16_t *half = out;
    for (size_t i = 0; i < n; i++) {
        uint32_t u;
        memcpy(&u, &in[i], sizeof u);
        half[i] = type == DTYPE_BF16 ? to_bf16(u) : to_f16(u);
    }
}

bool dtype_is_finite(const void *values, dtype type, size_t n)
{
    FL_ASSERT(type == DTYPE_F32 || type == DTYPE_BF16 || type == DTYPE_F16);
    unsigned bad = 0;
    if (type == DTYPE_F32) {
        const uint32_t *v = values;
        for (size_t i = 0; i < n; i++) bad |= (v[i] & 0x7f800000u) == 0x7f800000u;
    } else {
        const uint16_t *v = values, exponent = type == DTYPE_BF16 ? 0x7f80 : 0x7c00;
        for (size_t i = 0; i < n; i++) bad |= (v[i] & exponent) == exponent;
    }
    return !bad;
}
