/* linear_bench.cu - products of three models' shapes at 1 to 2,048 rows, beside the copy rate of the same run. Operands rotate through more memory than the L2 holds.
 * Usage: linear_bench [prepared] : our own kernels; with cuBLASLt where it gives the same bits */
#include "tests/gpu/product_case.h"

typedef struct { const char *model; int32_t n_out, n_in; bool is_f32; } product_shape;

static const product_shape shapes[] = {
    { "qwen3.5-0.8b q", 4096, 1024, false }, { "qwen3.5-0.8b o", 1024, 2048, false }, { "qwen3.5-0.8b gate", 3584, 1024, false }, { "qwen3.5-0.8b down", 1024, 3584, false },
    { "qwen3.5-0.8b head", 248320, 1024, true },
    { "qwen3-8b q", 4096, 4096, false }, { "qwen3-8b k", 1024, 4096, false }, { "qwen3-8b gate", 12288, 4096, false }, { "qwen3-8b down", 4096, 12288, false }, { "qwen3-8b head", 151936, 4096, true },
    { "qwen3.5-35b qkv", 8192, 2048, false }, { "qwen3.5-35b o", 2048, 4096, false }, { "qwen3.5-35b router", 256, 2048, true }, { "qwen3.5-35b shared", 512, 2048, false },
};
static const int32_t rows[] = { 1, 16, 32, 64, 256, 2048 };

int main(int argc, char **argv)
{
    const bool is_prepared = argc > 1 && strcmp(argv[1], "prepared") == 0;
    ops *o = case_open(ACT_BF16);
    const double copy = copy_rate(o);
    printf("copy %.2f TB/s (read + written)\n%-20s %7s %6s |", copy, "product", "n_out", "n_in");
    for (int32_t m : rows) printf("      M = %-4d        |", m);
    printf("\n");
    for (const product_shape &s : shapes) {
        const size_t w_bytes = (size_t)s.n_out * s.n_in * 2, y_bytes = s.is_f32 ? 4 : 2;
        const int n_sets = (int)std::min<size_t>(64, 1 + ((size_t)300 << 20) / w_bytes);
        std::vector<void *> w(n_sets);
        for (int i = 0; i < n_sets; i++) w[i] = device_random(o, DTYPE_BF16, (size_t)s.n_out * s.n_in, 3 + i, 1.0f);
        const ops_product product = { { w[0], DTYPE_BF16, s.n_out, s.n_in }, s.is_f32, s.is_f32 && s.n_out > 10000 ? 256 : rows[sizeof rows / sizeof *rows - 1] };
        char note[OPS_NOTE_BYTES];
        fl_err err;
        if (is_prepared) must(o->prepare(o, &product, 1, note, &err), err);
        printf("%-20s %7d %6d |", s.model, s.n_out, s.n_in);
        for (int32_t m : rows) {
            const size_t y_n = (size_t)m * s.n_out;
            if (m > product.n_rows) break;
            void *x = device_random(o, DTYPE_BF16, (size_t)m * s.n_in, 1, 1.0f), *y = device_take(o, y_n * y_bytes);
            const double us = median_us(o, std::max(n_sets, 4), [&](int i) {
                const weight v = { w[i % n_sets], DTYPE_BF16, s.n_out, s.n_in };
                if (s.is_f32) o->linear_f32(o, (float *)y, (act *)x, &v, NULL, m);
                else o->linear(o, (act *)y, (act *)x, &v, NULL, m);
            });
            const double bytes = (double)w_bytes + (double)m * s.n_in * 2 + (double)y_n * y_bytes;
            printf(" %7.1f %4.2f %5.1f |", us, bytes / us / 1e6, 2.0 * (double)y_n * s.n_in / us / 1e6);
            o->give(o, x, 0);
            o->give(o, y, 0);
        }
        printf("  us, TB/s, TFLOP/s%s%s\n", is_prepared ? "; " : "", is_prepared ? note : "");
        fflush(stdout);
        for (void *p : w) o->give(o, p, 0);
    }
    fl_err err;
    must(o->finish(o, &err), err);
    return 0;
}
