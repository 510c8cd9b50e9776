/* moe_bits_test.cu - the mixture of experts on the GPU: a row's bits do not depend on who else chose its experts, at 1 to 512 rows an expert; values and choices against the
 * scalar reference at odd sizes, with ties, NaN and infinities.
 * Usage: moe_bits_test [f32|bf16|f16 [short]] */
#include "tests/gpu/product_case.h"

typedef struct { int32_t dim, ff, n_experts, top_k; } mixture;

/* Views of equally spaced experts. */
static std::vector<weight> views(act_type t, const void *data, int32_t n, int32_t n_rows, int32_t n_cols, size_t stride)
{
    std::vector<weight> w(n);
    for (int32_t e = 0; e < n; e++) w[e] = { (const char *)data + e * stride * act_size(t), product_dtype(t), n_rows, n_cols };
    return w;
}

/* Which experts row r takes: all different. `heavy` sends nearly all rows to few experts. */
static void choose(const mixture &m, int32_t r, bool heavy, int32_t *ids, float *weights)
{
    const int32_t reach = heavy ? std::min(m.n_experts, m.top_k + 1) : m.n_experts;
    int32_t at = (int32_t)(key_of(7, r, heavy, 0) % (uint64_t)reach);
    for (int32_t s = 0; s < m.top_k; s++, at = (at + 1 + (reach > 2 * m.top_k ? (int32_t)(key_of(8, r, s, 0) % 2) : 0)) % reach) {
        ids[s] = at;
        weights[s] = value_of(key_of(9, r, s, 0), 1.0f);
    }
}

static void test_rows(ops *o, act_type t, const mixture &m, int32_t most, bool heavy)
{
    static const int32_t buckets[] = { 1, 2, 3, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 127, 128, 129, 256, 257, 511, 512, 513, 1000, 1024, 2048 };
    const size_t size = act_size(t), row_bytes = m.dim * size, n_matrix = (size_t)m.ff * m.dim;
    void *gate = device_random(o, product_dtype(t), m.n_experts * n_matrix, 11, 0.05f), *up = device_random(o, product_dtype(t), m.n_experts * n_matrix, 12, 0.05f),
         *down = device_random(o, product_dtype(t), m.n_experts * n_matrix, 13, 0.05f), *x = device_random(o, product_dtype(t), (size_t)most * m.dim, 14, 2.0f);
    const std::vector<weight> gates = views(t, gate, m.n_experts, m.ff, m.dim, n_matrix), ups = views(t, up, m.n_experts, m.ff, m.dim, n_matrix), downs = views(t, down, m.n_experts, m.dim, m.ff, n_matrix);
    std::vector<int32_t> ids((size_t)most * m.top_k);
    std::vector<float> weights(ids.size());
    for (int32_t r = 0; r < most; r++) choose(m, r, heavy, &ids[(size_t)r * m.top_k], &weights[(size_t)r * m.top_k]);
    int32_t *ids_device = (int32_t *)device_take(o, ids.size() * 4);
    float *weights_device = (float *)device_take(o, ids.size() * 4);
    o->upload(o, ids_device, ids.data(), ids.size() * 4);
    o->upload(o, weights_device, weights.data(), ids.size() * 4);
    const size_t scratch_bytes = o->moe_scratch_bytes(o, most, m.dim, m.ff, m.n_experts, m.top_k);
    void *scratch = device_take(o, scratch_bytes);
    char *want = (char *)device_take(o, most * row_bytes), *got = (char *)device_take(o, most * row_bytes);
    const auto run_of = [&](const void *of, char *y, int32_t first, int32_t n) {
        cuda_must(cudaMemsetAsync(scratch, 0xff, scratch_bytes, cuda_of(o)->stream), "memset");
        o->moe_experts(o, (act *)y, (const act *)((const char *)of + first * row_bytes), ids_device + first * m.top_k, weights_device + first * m.top_k, gates.data(), ups.data(), downs.data(), n,
                       m.n_experts, m.top_k, scratch);
    };
    const auto run = [&](char *y, int32_t first, int32_t n) { run_of(x, y, first, n); };
    for (int32_t r = 0; r < most; r++) run(want + r * row_bytes, r, 1);
    char name[160], seen[240] = "";
    bool good = true;
    for (int32_t n : buckets) {
        if (n > most) break;
        for (int32_t place = 0; place < 2 && good; place++) {
            const int32_t first = place * (most - n);
            cuda_must(cudaMemsetAsync(got, 0xff, n * row_bytes, cuda_of(o)->stream), "memset");
            run(got, first, n);
            const difference d = device_differ(o, got, want + first * row_bytes, (size_t)n * m.dim, size);
            good = d.n == 0;
            if (!good) snprintf(seen, sizeof seen, "%d rows from row %d: %llu of %zu differ, first at row %llu column %llu", n, first, d.n, (size_t)n * m.dim, d.first / m.dim, d.first % m.dim);
        }
    }
    snprintf(name, sizeof name, "experts %s dim %d ff %d, %d of %d%s: the same bits for 1 to %d rows", act_name(t), m.dim, m.ff, m.top_k, m.n_experts, heavy ? ", few of them chosen" : "", most);
    case_result(good, name, seen);
    char *padded = (char *)device_take(o, most * row_bytes);
    good = true;
    for (int32_t n : buckets) {                                      /* n rows, and as many behind them that are NaN */
        if (2 * n > most || !good) break;
        o->copy(o, padded, x, n * row_bytes);
        cuda_must(cudaMemsetAsync(padded + n * row_bytes, 0xff, n * row_bytes, cuda_of(o)->stream), "memset");
        run_of(padded, got, 0, 2 * n);
        const difference d = device_differ(o, got, want, (size_t)n * m.dim, size);
        good = d.n == 0;
        if (!good) snprintf(seen, sizeof seen, "%d rows: %llu of %zu differ, first at row %llu column %llu", n, d.n, (size_t)n * m.dim, d.first / m.dim, d.first % m.dim);
    }
    snprintf(name, sizeof name, "experts %s dim %d ff %d, %d of %d%s: the same bits before padding of NaN", act_name(t), m.dim, m.ff, m.top_k, m.n_experts, heavy ? ", few of them chosen" : "");
    case_result(good, name, seen);
    for (void *p : { (void *)padded, gate, up, down, x, (void *)ids_device, (void *)weights_device, scratch, (void *)want, (void *)got }) o->give(o, p, 0);
}

static void test_reference(ops *o, act_type t, const mixture &m, int32_t n_rows, int32_t gap)
{
    const size_t n_matrix = (size_t)m.ff * m.dim, stride = n_matrix + gap, n_y = (size_t)n_rows * m.dim;
    std::vector<float> host[3], x(n_y);
    for (int i = 0; i < 3; i++) {
        host[i].assign(m.n_experts * stride, NAN);
        for (int32_t e = 0; e < m.n_experts; e++)
            for (size_t j = 0; j < n_matrix; j++) host[i][e * stride + j] = act_round(t, value_of(key_of(20 + i, e, j, 0), 0.5f));
    }
    for (size_t i = 0; i < n_y; i++) x[i] = act_round(t, value_of(key_of(30, i, 0, 0), 1.0f));
    std::vector<int32_t> ids((size_t)n_rows * m.top_k);
    std::vector<float> weights(ids.size());
    for (int32_t r = 0; r < n_rows; r++) choose(m, r, false, &ids[(size_t)r * m.top_k], &weights[(size_t)r * m.top_k]);
    act *device[3];
    std::vector<weight> on_device[3], on_host[3];
    for (int i = 0; i < 3; i++) {
        device[i] = act_put(o, t, host[i]);
        const int32_t rows = i == 2 ? m.dim : m.ff, cols = i == 2 ? m.ff : m.dim;
        on_device[i] = views(t, device[i], m.n_experts, rows, cols, stride);
        on_host[i] = views(ACT_F32, host[i].data(), m.n_experts, rows, cols, stride);
    }
    std::vector<double> want(n_y);
    ref_moe_experts(want.data(), x.data(), ids.data(), weights.data(), on_host[0].data(), on_host[1].data(), on_host[2].data(), n_rows, m.top_k);
    act *x_device = act_put(o, t, x), *y = act_put(o, t, std::vector<float>(n_y, NAN));
    int32_t *ids_device = (int32_t *)device_take(o, ids.size() * 4);
    o->upload(o, ids_device, ids.data(), ids.size() * 4);
    float *weights_device = floats_put(o, weights);
    void *scratch = device_take(o, o->moe_scratch_bytes(o, n_rows, m.dim, m.ff, m.n_experts, m.top_k));
    o->moe_experts(o, y, x_device, ids_device, weights_device, on_device[0].data(), on_device[1].data(), on_device[2].data(), n_rows, m.n_experts, m.top_k, scratch);
    fl_err err;
    must(o->finish(o, &err), err);
    char name[160], seen[320] = "";
    const std::vector<float> got = act_get(o, t, y, n_y);
    double worst = 0.0, error = 0.0, norm = 0.0;
    for (size_t i = 0; i < n_y; i++) {
        const double d = isfinite(got[i]) ? fabs((double)got[i] - want[i]) : INFINITY;
        worst = fmax(worst, d);
        error += d * d;
        norm += want[i] * want[i];
    }
    /* hidden values and an expert's sums are rounded to the type: half a step each, of values that are larger than the result; 4 steps of the norm, 100 of an element */
    const double step = t == ACT_F32 ? 1e-6 : t == ACT_BF16 ? 1.0 / 512 : 1.0 / 4096;
    const bool good = sqrt(error / norm) <= 4.0 * step && worst <= 100.0 * step;
    snprintf(seen, sizeof seen, "worst %.3g, %.3g of the norm", worst, sqrt(error / norm));
    snprintf(name, sizeof name, "experts %s dim %d ff %d, %d of %d, %d rows, gap %d: the reference's values", act_name(t), m.dim, m.ff, m.top_k, m.n_experts, n_rows, gap);
    case_result(good, name, seen);
    for (int i = 0; i < 3; i++) o->give(o, device[i], 0);
    for (void *p : { (void *)x_device, (void *)y, (void *)ids_device, (void *)weights_device, scratch }) o->give(o, p, 0);
}

static void test_router(ops *o, int32_t n_experts, int32_t top_k, int32_t n_rows, bool is_sigmoid, bool flag)
{
    const size_t n = (size_t)n_rows * top_k;
    std::vector<float> logits((size_t)n_rows * n_experts), bias(n_experts);
    for (size_t i = 0; i < logits.size(); i++) {                     /* steps that no rounding can turn, many of them equal */
        const float v = value_of(key_of(40, i, n_experts, top_k), 4.0f);
        const uint64_t u = key_of(41, i, n_experts, 0);
        logits[i] = !flag || u % 23 ? rintf(v * 2.0f) / 2.0f : is_sigmoid || u / 23 % 2 ? NAN : -INFINITY;
        if (i % 5 == 0 && logits[i] == 0.0f) logits[i] = -0.0f;
    }
    for (int32_t e = 0; e < n_experts; e++) bias[e] = rintf(value_of(key_of(42, e, 0, 0), 3.0f)) * 2.0f;
    std::vector<int32_t> want_ids(n), ids(n, -7);
    std::vector<double> want(n);
    const weight bias_host = { bias.data(), DTYPE_F32, 1, n_experts };
    if (is_sigmoid) ref_moe_route_sigmoid(want_ids.data(), want.data(), logits.data(), &bias_host, 1.5, n_rows, n_experts, top_k);
    else ref_moe_route(want_ids.data(), want.data(), logits.data(), n_rows, n_experts, top_k, !flag);
    float *logits_device = floats_put(o, logits), *bias_device = floats_put(o, bias), *weights_device = floats_put(o, std::vector<float>(n, 77.0f));
    int32_t *ids_device = (int32_t *)device_take(o, n * 4);
    const weight bias_on_device = { bias_device, DTYPE_F32, 1, n_experts };
    if (is_sigmoid) o->moe_route_sigmoid(o, ids_device, weights_device, logits_device, &bias_on_device, 1.5f, n_rows, n_experts, top_k);
    else o->moe_route(o, ids_device, weights_device, logits_device, n_rows, n_experts, top_k, !flag);
    fl_err err;
    must(o->finish(o, &err), err);
    o->download(o, ids.data(), ids_device, n * 4);
    const std::vector<float> weights = act_get(o, ACT_F32, (act *)weights_device, n);
    char name[160], seen[320] = "";
    bool good = true;
    for (size_t i = 0; i < n && good; i++)
        if (ids[i] != want_ids[i] || !((isnan(want[i]) && isnan(weights[i])) || fabs((double)weights[i] - want[i]) <= 2e-6 * fmax(1.0, fabs(want[i])))) {
            good = false;
            snprintf(seen, sizeof seen, "row %zu slot %zu: expert %d weight %.9g, want %d %.9g", i / top_k, i % top_k, ids[i], (double)weights[i], want_ids[i], want[i]);
        }
    snprintf(name, sizeof name, "router %s, %d of %d, %d rows%s: the reference's choices", is_sigmoid ? "sigmoid" : "softmax", top_k, n_experts, n_rows, flag ? ", with NaN" : "");
    case_result(good, name, seen);
    for (void *p : { (void *)logits_device, (void *)bias_device, (void *)weights_device, (void *)ids_device }) o->give(o, p, 0);
}

static void run_type(act_type t, bool is_short)
{
    ops *o = case_open(t);
    static const mixture small[] = { { 64, 32, 8, 2 }, { 100, 70, 9, 4 }, { 8, 8, 1, 1 }, { 33, 17, 5, 5 }, { 128, 16, 48, 8 }, { 136, 72, 3, 1 } };
    for (const mixture &m : small)
        for (int32_t n_rows : { 1, 9, 70, 300 }) test_reference(o, t, m, n_rows, n_rows % 2 ? 0 : 24);
    for (int32_t n : { 1, 7, 32, 128, 200, 256, 4096 })
        for (int i = 0; i < 4; i++) test_router(o, n, std::min(n, i % 2 ? 8 : 10), n > 1000 ? 5 : 37, i / 2, i % 2);
    if (is_short) {
        test_rows(o, t, { 64, 32, 8, 2 }, 65, false);
        return;
    }
    test_rows(o, t, { 64, 32, 8, 2 }, 1024, false);
    test_rows(o, t, { 33, 17, 5, 3 }, 300, false);
    if (t == ACT_F32) return;
    test_rows(o, t, { 256, 64, 2, 1 }, 1024, false);                 /* 512 rows an expert, every form */
    test_rows(o, t, { 256, 64, 4, 1 }, 512, true);
    test_rows(o, t, { 2048, 512, 256, 8 }, 2048, false);             /* a 35B mixture's layer */
    test_rows(o, t, { 2048, 512, 256, 8 }, 600, true);
    o->close(o);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (act_type t : { ACT_F32, ACT_BF16, ACT_F16 })
        if (argc < 2 || strcmp(argv[1], act_name(t)) == 0) run_type(t, argc > 2 && strcmp(argv[2], "short") == 0);
    return case_end();
}
