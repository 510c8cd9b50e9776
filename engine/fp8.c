#include "engine/fp8.h"

#include <math.h>
#include <string.h>

float fp8_value(uint8_t byte)
{
    int exponent = byte >> 3 & 15, fraction = byte & 7;
    float v = exponent == 15 && fraction == 7 ? NAN : exponent ? ldexpf((float)(8 + fraction), exponent - 10) : ldexpf((float)fraction, -9);
    return byte & 0x80 ? -v : v;
}

/* Element `at` of a BF16, F16 or F32 tensor. */
static float read_value(const tensor *t, size_t at)
{
    uint16_t h;
    uint32_t u;
    float f;
    if (t->type == DTYPE_F32) { memcpy(&f, t->data + 4 * at, sizeof f); return f; }
    memcpy(&h, t->data + 2 * at, sizeof h);
    if (t->type == DTYPE_BF16) { u = (uint32_t)h << 16; memcpy(&f, &u, sizeof f); return f; }
    int exponent = h >> 10 & 31, fraction = h & 1023;    /* F16, finite: the caller looked */
    f = exponent ? ldexpf((float)(1024 + fraction), exponent - 25) : ldexpf((float)fraction, -24);
    return h & 0x8000 ? -f : f;
}

/* How many of `size` rows or columns share one of `n_scales`; 0 when the two do not fit. */
static int32_t share_of(int64_t n_scales, int32_t size, int32_t block)
{
    if (n_scales == 1) return size;
    if (n_scales == ((int64_t)size + block - 1) / block) return block;
    return n_scales > 0 && size % n_scales == 0 ? (int32_t)(size / n_scales) : 0;
}

fl_status fp8_expand(float *out, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err)
{
    if (!scale->is_weight) return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has dtype %s; scales in F32, BF16 and F16 are supported", scale->file, scale->name, scale->dtype_name);
    fl_status st = tensor_check_finite(scale, err);
    if (st == FL_OK) st = tensor_check_finite(t, err);
    if (st != FL_OK) return st;

    int64_t n_all = 1;
    for (int32_t i = 0; i < scale->n_dims; i++) n_all *= scale->shape[i];
    const int64_t each = n_all == 1 ? 1 : n_all / n;                 /* scales of one matrix */
    int64_t down = each, across = 1;
    if (scale->n_dims >= 2) across = scale->shape[scale->n_dims - 1];
    if (across > 0 && each % across == 0) down = each / across;
    else across = 0;
    const int32_t rows_each = share_of(down, rows, block[0]), cols_each = share_of(across, cols, block[1]);
    if ((n_all != 1 && n_all % n != 0) || rows_each == 0 || cols_each == 0)
        return fl_fail(err, FL_CORRUPT, "%s: tensor %s holds %lld scales, which fit neither the matrix %s [%d, %d], its rows nor its blocks of %d by %d", scale->file,
                       scale->name, (long long)n_all, t->name, rows, cols, block[0], block[1]);

    float value[256];
    for (int i = 0; i < 256; i++) value[i] = fp8_value((uint8_t)i);
    const uint8_t *in = t->data;
    bool is_finite = true;
    for (int64_t m = 0; m < n; m++)
        for (int32_t r = 0; r < rows; r++)
            for (int32_t c = 0; c < cols;) {
                int64_t at = (n_all == 1 ? 0 : m * each) + r / rows_each * across + c / cols_each;
                float by = read_value(scale, (size_t)at);
                for (int32_t end = (c / cols_each + 1) * cols_each < cols ? (c / cols_each + 1) * cols_each : cols; c < end; c++, in++, out++) {
                    *out = value[*in] * by;
                    is_finite &= isfinite(*out) != 0;
                }
            }
    return is_finite ? FL_OK : fl_fail(err, FL_CORRUPT, "%s: tensor %s times its scales is beyond fp32; the file is damaged: copy it again", t->file, t->name);
}
