/* linear_bits_test.cu - products on the GPU: a row has the same bits whatever the number of rows and its place among them, and the scalar reference's values at odd sizes,
 * tile edges, any alignment and between NaNs.
 * Usage: linear_bits_test [f32|bf16|f16 [short|prepared]]: few cases (for compute-sanitizer); products by cuBLASLt where it can */
#include "tests/gpu/product_case.h"

static void call_linear(ops *o, void *y, const void *x, const weight *w, const weight *bias, int32_t n_rows, bool is_f32)
{
    if (is_f32) o->linear_f32(o, (float *)y, (const act *)x, w, bias, n_rows);
    else o->linear(o, (act *)y, (const act *)x, w, bias, n_rows);
}

/* All buckets of rows, at the batch's begin, middle and end, against rows computed one by one. */
static bool is_prepared;

static void test_buckets(ops *o, act_type t, int32_t n_out, int32_t n_in, int32_t most, bool is_f32, bool with_bias)
{
    static const int32_t buckets[] = { 1, 2, 3, 5, 7, 8, 9, 13, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 100, 127, 128, 129, 191, 255, 256, 257, 383, 511, 512, 513, 777, 1000, 1023, 1024 };
    const dtype type = product_dtype(t);
    const size_t y_bytes = is_f32 ? 4 : act_size(t), row_bytes = (size_t)n_out * y_bytes, x_bytes = (size_t)n_in * act_size(t), guard = 256;
    void *data = device_random(o, type, (size_t)n_out * n_in, 5, 1.0f), *x = device_random(o, type, (size_t)most * n_in, 6, 1.0f);
    void *bias_data = device_random(o, DTYPE_F32, n_out, 7, 1.0f);
    const weight w = { data, type, n_out, n_in }, bias = { with_bias ? bias_data : NULL, DTYPE_F32, 1, n_out };
    char *want = (char *)device_take(o, most * row_bytes + guard), *got = (char *)device_take(o, most * row_bytes + guard), *poison = (char *)device_take(o, guard);
    cuda_must(cudaMemsetAsync(poison, 0xff, guard, cuda_of(o)->stream), "memset");
    for (int32_t r = 0; r < most; r++) call_linear(o, want + r * row_bytes, (const char *)x + r * x_bytes, &w, &bias, 1, is_f32);
    if (is_prepared) {                                               /* from here on by cuBLASLt */
        const ops_product product = { w, is_f32, most };
        char note[OPS_NOTE_BYTES];
        fl_err err;
        must(o->prepare(o, &product, 1, note, &err), err);
        printf("%s\n", note);
    }
    char name[160], seen[240] = "";
    bool good = true;
    for (int32_t m : buckets) {
        if (m > most) break;
        for (int32_t place = 0; place < 3 && good; place++) {
            const int32_t first = place == 0 ? 0 : place == 1 ? (most - m) / 2 : most - m;
            cuda_must(cudaMemsetAsync(got, 0xff, m * row_bytes + guard, cuda_of(o)->stream), "memset");
            call_linear(o, got, (const char *)x + first * x_bytes, &w, &bias, m, is_f32);
            const difference d = device_differ(o, got, want + first * row_bytes, (size_t)m * n_out, y_bytes), behind = device_differ(o, got + m * row_bytes, poison, guard / y_bytes, y_bytes);
            good = d.n == 0 && behind.n == 0;
            if (!good) snprintf(seen, sizeof seen, "%d rows from row %d: %llu of %zu differ, first at row %llu column %llu; %llu written behind", m, first, d.n, (size_t)m * n_out, d.first / n_out,
                                d.first % n_out, behind.n);
        }
    }
    snprintf(name, sizeof name, "linear %s -> %s %d x %d%s: the same bits for 1 to %d rows", act_name(t), is_f32 ? "f32" : "act", n_out, n_in, with_bias ? " + bias" : "", most);
    case_result(good, name, seen);
    for (void *p : { data, x, bias_data, (void *)want, (void *)got, (void *)poison }) o->give(o, p, 0);
}

/* Against the definition; x and w lie `shift` elements behind an aligned address, between NaNs. */
static void test_reference(ops *o, act_type t, int32_t n_out, int32_t n_in, int32_t n_rows, int32_t shift, bool is_f32, bool with_bias)
{
    const size_t n_w = (size_t)n_out * n_in, n_x = (size_t)n_rows * n_in, n_y = (size_t)n_out * n_rows, size = act_size(t), guard = 64;
    std::vector<float> w_host(n_w + shift + guard, NAN), x_host(n_x + shift + guard, NAN), bias_host(n_out + guard, NAN);
    for (size_t i = 0; i < n_w; i++) w_host[shift + i] = act_round(t, value_of(key_of(1, i, n_out, n_in), 1.0f));
    for (size_t i = 0; i < n_x; i++) x_host[shift + i] = act_round(t, value_of(key_of(2, i, n_out, n_in), 1.0f));
    for (int32_t i = 0; i < n_out; i++) bias_host[i] = value_of(key_of(3, i, n_out, n_in), 1.0f);
    const bool lone = n_rows > 2;                                    /* one row of NaN, and what it does to the others: nothing */
    act *w = act_put(o, t, w_host);
    float *bias_device = floats_put(o, bias_host);
    const weight weight_device = { (char *)w + shift * size, product_dtype(t), n_out, n_in }, bias = { with_bias ? bias_device : NULL, DTYPE_F32, 1, n_out };
    const weight weight_host = { w_host.data() + shift, DTYPE_F32, n_out, n_in }, bias_of_host = { with_bias ? bias_host.data() : NULL, DTYPE_F32, 1, n_out };
    std::vector<double> want(n_y);
    ref_linear(want.data(), x_host.data() + shift, &weight_host, &bias_of_host, n_rows);
    if (lone) for (int32_t k = 0; k < n_in; k++) x_host[shift + (size_t)n_in + k] = NAN;
    act *x = act_put(o, t, x_host);
    const act_type y_type = is_f32 ? ACT_F32 : t;
    act *y = act_put(o, y_type, std::vector<float>(n_y + guard, 12345.0f));
    call_linear(o, y, (char *)x + shift * size, &weight_device, &bias, n_rows, is_f32);
    fl_err err;
    must(o->finish(o, &err), err);
    std::vector<float> got = act_get(o, y_type, y, n_y + guard);
    char name[160], seen[320] = "";
    bool good = true;
    for (size_t i = 0; i < guard && good; i++)
        if (got[n_y + i] != act_round(y_type, 12345.0f)) { good = false; snprintf(seen, sizeof seen, "written behind the last row"); }
    const double step = y_type == ACT_F32 ? 1e-6 : y_type == ACT_BF16 ? 1.0 / 256 : 1.0 / 2048;
    for (size_t i = 0; i < n_y && good; i++) {
        const bool is_nan = lone && i / n_out == 1;
        const double error = fabs((double)got[i] - want[i]), allowed = step * fabs(want[i]) + 3e-6 * sqrt((double)n_in) + 1e-7 * n_in;
        if (is_nan ? !isnan(got[i]) : !(error <= allowed)) {
            good = false;
            snprintf(seen, sizeof seen, "row %zu column %zu: %.9g, want %.9g (allowed %.3g)", i / n_out, i % n_out, (double)got[i], is_nan ? NAN : want[i], allowed);
        }
    }
    snprintf(name, sizeof name, "linear %s -> %s %d x %d, %d rows, shift %d%s: the reference's values", act_name(t), is_f32 ? "f32" : "act", n_out, n_in, n_rows, shift, with_bias ? ", bias" : "");
    case_result(good, name, seen);
    o->give(o, w, 0);
    o->give(o, x, 0);
    o->give(o, y, 0);
    o->give(o, bias_device, 0);
}

static void run_type(act_type t, bool is_short)
{
    ops *o = case_open(t);
    static const int32_t sizes[][3] = { { 1, 1, 1 }, { 1, 64, 3 }, { 3, 7, 2 }, { 17, 8, 5 }, { 31, 33, 9 }, { 64, 64, 64 }, { 65, 72, 65 }, { 127, 129, 130 }, { 200, 256, 17 }, { 33, 1000, 40 }, { 130, 136, 300 }, { 9, 4096, 7 } };
    for (const auto &s : sizes)
        for (int32_t i = 0; i < 4; i++) test_reference(o, t, s[0], s[1], s[2], i % 2 * (1 + i), i / 2 % 2, i % 3 == 1);
    if (is_short) {
        test_buckets(o, t, 96, 264, 129, false, true);
        test_buckets(o, t, 35, 77, 40, true, false);
        return;
    }
    if (t == ACT_F32) {
        test_buckets(o, t, 200, 520, 257, false, true);
        test_buckets(o, t, 1, 1024, 100, true, false);
        return;
    }
    test_reference(o, t, 1100, 520, 300, 0, false, false);           /* every form at its edges */
    test_reference(o, t, 4097, 128, 530, 0, true, false);
    static const int32_t shapes[][2] = { { 12288, 1024 }, { 1024, 3584 }, { 4096, 4096 }, { 1, 2048 }, { 32, 2048 }, { 257, 1000 }, { 333, 129 }, { 151, 12288 }, { 6144, 1024 } };
    for (const auto &s : shapes) {
        test_buckets(o, t, s[0], s[1], 1024, false, s[0] % 2 == 1);
        test_buckets(o, t, s[0], s[1], 1024, true, false);
    }
    o->close(o);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    is_prepared = argc > 2 && strcmp(argv[2], "prepared") == 0;
    for (act_type t : { ACT_F32, ACT_BF16, ACT_F16 })
        if (argc < 2 || strcmp(argv[1], act_name(t)) == 0) run_type(t, argc > 2 && strcmp(argv[2], "short") == 0);
    return case_end();
}
