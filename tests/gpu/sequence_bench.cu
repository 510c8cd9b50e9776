/* sequence_bench.cu - what mixes the positions of a sequence, timed on GPU 0 in its 16-bit type: attention (prompts, decode rows), causal convolution and the gated delta
 * rule at Qwen3.5-0.8B's sizes. Beside them the copy and product rates of the same run.
 * Medians of CUDA events after a warm-up; every size moves more than the L2 holds, or walks over several sets of inputs. Prints one line a size.
 * Usage: sequence_bench [attention|delta|delta_prefill] */
#include "tests/gpu/gpu_case.h"

#include <algorithm>

static ops *o;
static cudaStream_t stream;

template <typename Work> static double median_ms(int n, Work work)
{
    cudaEvent_t a, b;
    cudaEventCreate(&a);
    cudaEventCreate(&b);
    for (int i = 0; i < 3; i++) work(i);
    std::vector<float> ms;
    for (int i = 0; i < n; i++) {
        cudaEventRecord(a, stream);
        work(i);
        cudaEventRecord(b, stream);
        cudaEventSynchronize(b);
        float t = 0.0f;
        cudaEventElapsedTime(&t, a, b);
        ms.push_back(t);
    }
    fl_err err;
    must(o->finish(o, &err), err);
    cudaEventDestroy(a);
    cudaEventDestroy(b);
    std::sort(ms.begin(), ms.end());
    return (double)ms[ms.size() / 2];
}

static __global__ void fill_kernel(uint16_t *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 0x9e3779b9u + seed;
        z = (z ^ z >> 16) * 0x85ebca6bu;
        z = (z ^ z >> 13) * 0xc2b2ae35u;
        const __nv_bfloat16 v = __float2bfloat16_rn(((float)(z >> 8) * 0x1p-23f - 1.0f));
        memcpy(&p[i], &v, 2);
    }
}
static __global__ void fill_floats(float *p, size_t n, uint32_t seed)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        uint32_t z = (uint32_t)i * 0x9e3779b9u + seed;
        z = (z ^ z >> 16) * 0x85ebca6bu;
        p[i] = (float)(z >> 8) * 0x1p-23f - 1.0f;
    }
}
static void *take(size_t n_bytes)
{
    void *p = NULL;
    fl_err err;
    must(o->take(o, &p, n_bytes, "a bench", &err), err);
    return p;
}
static act *random_acts(size_t n)
{
    act *p = (act *)take(n * 2);
    fill_kernel<<<1024, 256, 0, stream>>>((uint16_t *)p, n, (uint32_t)n);
    return p;
}
static float *random_floats(size_t n)
{
    float *p = (float *)take(n * 4);
    fill_floats<<<1024, 256, 0, stream>>>(p, n, (uint32_t)n);
    return p;
}

static double copy_rate, product_rate;           /* TB/s, TFLOP/s */

static void measure_machine(void)
{
    const size_t n = (size_t)1 << 30;
    void *a = take(n), *b = take(n);
    copy_rate = 2.0 * (double)n / (median_ms(15, [&](int) { cudaMemcpyAsync(b, a, n, cudaMemcpyDeviceToDevice, stream); }) * 1e9);
    o->give(o, a, n);
    o->give(o, b, n);
    const int32_t m = 8192;
    act *x = random_acts((size_t)m * m), *w = random_acts((size_t)m * m), *y = random_acts((size_t)m * m);
    const weight matrix = { w, o->act_type, m, m };
    product_rate = 2.0 * m * (double)m * m / (median_ms(10, [&](int) { o->linear(o, y, x, &matrix, NULL, m); }) * 1e9);
    o->give(o, x, 0);
    o->give(o, w, 0);
    o->give(o, y, 0);
    printf("copy %.2f TB/s, product %.0f TFLOP/s (8192^3 through linear)\n", copy_rate, product_rate);
}

static void begin_step(step_batch &s, int32_t n_seqs, int32_t first, int32_t n_rows, bool is_prefill)
{
    std::vector<piece> pieces;
    for (int32_t i = 0; i < n_seqs; i++) pieces.push_back({ i, first, n_rows, is_prefill, i });
    const int32_t table = (first + n_rows + 63) / 64;
    step_make(s, pieces, table, [=](int32_t id, int32_t j) { return (int32_t)(((int64_t)(id * table + j) * 7919) % ((int64_t)n_seqs * table)); });
    o->begin(o, &s.b);
}

static void attention_size(int32_t n_heads, int32_t n_kv_heads, int32_t head_dim, int32_t n_seqs, int32_t first, int32_t n_rows, bool is_prefill)
{
    step_batch s;
    const size_t n_kv = (size_t)n_seqs * ((first + n_rows + 63) / 64) * 64 * n_kv_heads * head_dim, n_q = (size_t)n_seqs * n_rows * n_heads * head_dim;
    const ops_kv kv = { random_acts(n_kv), random_acts(n_kv), n_kv_heads, head_dim };
    act *q = random_acts(n_q), *out = random_acts(n_q);
    begin_step(s, n_seqs, first, n_rows, is_prefill);
    const double ms = median_ms(is_prefill ? 10 : 30, [&](int) { o->attention(o, out, q, n_heads * head_dim, head_dim, n_heads, &kv, 0.0625f, 0, &s.b); });
    const double keys = is_prefill ? (double)n_rows * ((double)n_rows + 1) / 2 + (double)first * n_rows : first + 1.0;
    const double flop = 4.0 * keys * n_seqs * n_heads * head_dim, bytes = 4.0 * n_seqs * (first + 1.0) * n_kv_heads * head_dim + 4.0 * (double)n_q;
    if (is_prefill)
        printf("attention prefill head_dim %d heads %d/%d, %d x %d tokens: %.3f ms, %.0f TFLOP/s, %.0f%% of the product\n", head_dim, n_heads, n_kv_heads, n_seqs, n_rows, ms, flop / ms / 1e9,
               100.0 * flop / ms / 1e9 / product_rate);
    else
        printf("attention decode head_dim %d heads %d/%d, %d rows x %d positions: %.4f ms, %.2f TB/s, %.0f%% of the copy\n", head_dim, n_heads, n_kv_heads, n_seqs, first + 1, ms, bytes / ms / 1e9,
               100.0 * bytes / ms / 1e9 / copy_rate);
    o->give(o, kv.k, 0);
    o->give(o, kv.v, 0);
    o->give(o, q, 0);
    o->give(o, out, 0);
}

#define N_K 16
#define N_V 16
#define DIM 128
#define WIDTH 4
#define CHANNELS ((2 * N_K + N_V) * DIM)

static void delta_size(int32_t n_seqs, int32_t first, int32_t n_rows, bool is_prefill)
{
    step_batch s;
    const size_t n = (size_t)n_seqs * n_rows, n_state = (size_t)n_seqs * N_V * DIM * DIM, n_conv = (size_t)n_seqs * (WIDTH - 1) * CHANNELS;
    act *x = random_acts(n * CHANNELS), *y = random_acts(n * CHANNELS), *out = random_acts(n * N_V * DIM);
    float *a = random_floats(n * N_V), *b = random_floats(n * N_V), *state = random_floats(n_state), *conv_state = random_floats(n_conv), *w = random_floats((size_t)CHANNELS * WIDTH);
    float *a_log = random_floats(N_V), *dt_bias = random_floats(N_V);
    const weight conv = { w, DTYPE_F32, CHANNELS, WIDTH }, wa = { a_log, DTYPE_F32, 1, N_V }, wd = { dt_bias, DTYPE_F32, 1, N_V };
    begin_step(s, n_seqs, first, n_rows, is_prefill);
    const double conv_ms = median_ms(10, [&](int) { o->conv_silu(o, y, x, CHANNELS, &conv, conv_state, CHANNELS, WIDTH, &s.b); });
    const double ms = median_ms(10, [&](int) { o->gated_delta(o, out, y, a, b, &wa, &wd, state, N_K, N_V, false, DIM, DIM, &s.b); });
    const double conv_bytes = 4.0 * (double)n * CHANNELS + 8.0 * (double)n_conv, bytes = 2.0 * (double)n * (CHANNELS + N_V * DIM) + 8.0 * (double)n_state;
    printf("%s %d x %d: conv_silu %.4f ms, %.2f TB/s, %.0f%% of the copy; gated_delta %.4f ms, %.2f TB/s, %.0f%% of the copy, %.1f M rows/s\n", is_prefill ? "delta prefill" : "delta decode", n_seqs, n_rows,
           conv_ms, conv_bytes / conv_ms / 1e9, 100.0 * conv_bytes / conv_ms / 1e9 / copy_rate, ms, bytes / ms / 1e9, 100.0 * bytes / ms / 1e9 / copy_rate, (double)n / ms / 1e3);
    for (void *p : { (void *)x, (void *)y, (void *)out, (void *)a, (void *)b, (void *)state, (void *)conv_state, (void *)w, (void *)a_log, (void *)dt_bias }) o->give(o, p, 0);
}

int main(int argc, char **argv)
{
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *only = argc > 1 ? argv[1] : "";
    o = case_open(ACT_BF16);
    stream = cuda_of(o)->stream;
    measure_machine();
    if (strcmp(only, "") == 0 || strcmp(only, "attention") == 0) {
        attention_size(32, 8, 128, 4, 0, 4096, true);
        attention_size(32, 8, 128, 1, 0, 16384, true);
        attention_size(16, 4, 256, 4, 0, 4096, true);
        attention_size(16, 4, 256, 1, 0, 16384, true);
        attention_size(32, 8, 64, 4, 0, 4096, true);
        attention_size(8, 2, 256, 64, 0, 512, true);
        attention_size(32, 8, 128, 256, 1023, 1, false);
        attention_size(8, 2, 256, 256, 1023, 1, false);
        attention_size(8, 2, 256, 256, 200, 1, false);
        attention_size(32, 8, 128, 4, 16383, 1, false);
    }
    if (strcmp(only, "") == 0 || strncmp(only, "delta", 5) == 0) {
        delta_size(256, 10, 1, false);
        delta_size(4, 0, 4096, true);
        delta_size(1, 0, 16384, true);
        delta_size(64, 0, 512, true);
    }
    o->close(o);
    return 0;
}
