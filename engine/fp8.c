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

/* How the scales of n matrices lie: `each` of them a matrix, `across` of them a row of blocks, a block of rows_each by cols_each. */
typedef struct { int64_t n_all, each, across; int32_t rows_each, cols_each; } scale_layout;

static fl_status lay_scales(scale_layout *l, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err)
{
    if (!scale->is_weight) return fl_fail(err, FL_UNSUPPORTED, "%s: tensor %s has dtype %s; scales in F32, BF16 and F16 are supported", scale->file, scale->name, scale->dtype_name);
    l->n_all = 1;
    for (int32_t i = 0; i < scale->n_dims; i++) l->n_all *= scale->shape[i];
    l->each = l->n_all == 1 ? 1 : l->n_all / n;
    l->across = scale->n_dims >= 2 ? scale->shape[scale->n_dims - 1] : 1;
    int64_t down = l->each;
    if (l->across > 0 && l->each % l->across == 0) down = l->each / l->across;
    else l->across = 0;
    l->rows_each = share_of(down, rows, block[0]);
    l->cols_each = share_of(l->across, cols, block[1]);
    if ((l->n_all == 1 || l->n_all % n == 0) && l->rows_each > 0 && l->cols_each > 0) return FL_OK;
    return fl_fail(err, FL_CORRUPT, "%s: tensor %s holds %lld scales, which fit neither the matrix %s [%d, %d], its rows nor its blocks of %d by %d", scale->file,
                   scale->name, (long long)l->n_all, t->name, rows, cols, block[0], block[1]);
}

fl_status fp8_check(const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err)
{
    scale_layout l;
    return lay_scales(&l, t, scale, n, rows, cols, block, err);
}

fl_status fp8_expand_rows(float *out, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], int64_t first, int64_t n_rows, fl_err *err)
{
    scale_layout l;
    fl_status st = lay_scales(&l, t, scale, n, rows, cols, block, err);
    if (st != FL_OK) return st;
    float value[256];
    for (int i = 0; i < 256; i++) value[i] = fp8_value((uint8_t)i);
    const uint8_t *in = t->data + first * cols;
    bool is_finite = true;
    for (int64_t at_row = first; at_row < first + n_rows; at_row++) {
        const int64_t row_scales = (l.n_all == 1 ? 0 : at_row / rows * l.each) + at_row % rows / l.rows_each * l.across;
        for (int32_t c = 0; c < cols;) {
            float by = read_value(scale, (size_t)(row_scales + c / l.cols_each));
            for (int32_t end = (c / l.cols_each + 1) * l.cols_each < cols ? (c / l.cols_each + 1) * l.cols_each : cols; c < end; c++, in++, out++) {
                *out = value[*in] * by;
                is_finite &= isfinite(*out) != 0;
            }
        }
    }
    return is_finite ? FL_OK : fl_fail(err, FL_CORRUPT, "%s: tensor %s times its scales is beyond fp32; the file is damaged: copy it again", t->file, t->name);
}

fl_status fp8_expand(float *out, const tensor *t, const tensor *scale, int32_t n, int32_t rows, int32_t cols, const int32_t block[2], fl_err *err)
{
    fl_status st = fp8_check(t, scale, n, rows, cols, block, err);
    if (st == FL_OK) st = tensor_check_finite(scale, err);
    if (st == FL_OK) st = tensor_check_finite(t, err);
    return st == FL_OK ? fp8_expand_rows(out, t, scale, n, rows, cols, block, 0, (int64_t)n * rows, err) : st;
}
