/* moe_bench.cu - a layer's experts of qwen3.5-35b-a3b (256 experts of 512, 8 a row, width 2,048) at 1 to 8,192 rows, beside the copy rate of the same run; rows choose experts at
 * random. Bytes: the weights of the experts that were chosen, once. Three sets of weights (4.8 GB) take turns.
 * Usage: moe_bench */
#include "tests/gpu/product_case.h"

int main(void)
{
    const int32_t dim = 2048, ff = 512, n_experts = 256, top_k = 8, n_sets = 3;
    ops *o = case_open(ACT_BF16);
    const size_t n_matrix = (size_t)dim * ff;
    printf("copy %.2f TB/s (read + written)\n", copy_rate(o));
    std::vector<std::vector<weight>> w[3];
    for (int i = 0; i < 3; i++)
        for (int set = 0; set < n_sets; set++) {
            const char *data = (const char *)device_random(o, DTYPE_BF16, n_experts * n_matrix, 10 * i + set, 0.05f);
            std::vector<weight> v(n_experts);
            for (int32_t e = 0; e < n_experts; e++) v[e] = { data + e * n_matrix * 2, DTYPE_BF16, i == 2 ? dim : ff, i == 2 ? ff : dim };
            w[i].push_back(v);
        }
    for (int32_t m : { 1, 16, 64, 256, 1024, 2048, 8192 }) {
        void *x = device_random(o, DTYPE_BF16, (size_t)m * dim, 1, 1.0f), *y = device_take(o, (size_t)m * dim * 2);
        std::vector<float> logits((size_t)m * n_experts);
        for (size_t i = 0; i < logits.size(); i++) logits[i] = value_of(key_of(50, i, 0, 0), 3.0f);
        float *logits_device = floats_put(o, logits), *weights = (float *)device_take(o, (size_t)m * top_k * 4);
        int32_t *ids = (int32_t *)device_take(o, (size_t)m * top_k * 4);
        void *scratch = device_take(o, o->moe_scratch_bytes(o, m, dim, ff, n_experts, top_k));
        const double route = median_us(o, 4, [&](int) { o->moe_route(o, ids, weights, logits_device, m, n_experts, top_k, true); });
        std::vector<int32_t> host((size_t)m * top_k);
        o->download(o, host.data(), ids, host.size() * 4);
        std::sort(host.begin(), host.end());
        const size_t n_active = std::unique(host.begin(), host.end()) - host.begin();
        const double us = median_us(o, 6, [&](int i) {
            const int set = i % n_sets;
            o->moe_experts(o, (act *)y, (act *)x, ids, weights, w[0][set].data(), w[1][set].data(), w[2][set].data(), m, n_experts, top_k, scratch);
        });
        printf("%5d rows: route %6.1f us, experts %8.1f us, %4zu experts, %.2f TB/s, %6.1f TFLOP/s\n", m, route, us, n_active, 6.0 * n_active * n_matrix / us / 1e6, 6.0 * m * top_k * n_matrix / us / 1e6);
        fflush(stdout);
        for (void *p : { x, y, (void *)logits_device, (void *)weights, (void *)ids, scratch }) o->give(o, p, 0);
    }
    fl_err err;
    must(o->finish(o, &err), err);
    return 0;
}
