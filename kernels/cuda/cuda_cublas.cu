/* cuda_cublas.cu - cuBLASLt for products, where it gives the bits of our own kernel.
 *
 * On sm_90 the kernels of algorithm 66 sum as cuda_product.cuh does: ascending steps of 16 columns into one fp32 accumulator, without splitting them. So which of the two
 * computes is a question of speed only, and a batch may change from one to the other at any number of rows. That is not believed but tried: cublas_prepare runs
 * every product of the model at every bucket of rows on random rows with both and keeps an algorithm only when every bit agrees, else tries the next; without one our own
 * kernel serves. The library is opened at run time; where it is missing our own kernel serves everything.
 * Rule     where the product was prepared: the algorithm of its range of rows. Nothing is timed, so the same machine does tomorrow what it does today.
 * Memory   a workspace, which algorithms with many tiles want though they split nothing. */
#include "kernels/cuda/cuda_cublas.h"

#include <stdio.h>

#if __has_include(<cublasLt.h>)
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define ALGORITHM 66                     /* the family of sm_90 */
#define BUCKETS 9
static const int32_t bucket_rows[BUCKETS] = { 16, 32, 64, 128, 256, 512, 1024, 2048, 4096 }; /* the most rows of each; the last serves all beyond */
#define CANDIDATES 32
#define WORKSPACE_BYTES ((size_t)32 << 20)

typedef struct {
    int32_t n_out, n_in, n_tried;
    bool is_f32, is_there[BUCKETS];
    cublasLtMatmulAlgo_t algorithm[BUCKETS];
    cublasLtMatrixLayout_t w, x, y;      /* owned */
} prepared;

struct cublas {
    void *library;                       /* owned */
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtGetVersion) version;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
    decltype(&cublasLtMatmulAlgoConfigGetAttribute) config_get;
    decltype(&cublasLtMatmulAlgoConfigSetAttribute) config_set;
    decltype(&cublasLtMatmulAlgoCheck) check;
    cublasLtHandle_t handle;             /* owned */
    cublasLtMatmulDesc_t desc;           /* owned: y = w^T x of column-major matrices, which is x w^T of ours */
    cublasLtMatmulPreference_t preference;       /* owned */
    cudaDataType_t type;
    void *workspace;                     /* owned */
    prepared *products; int32_t n_products;      /* owned */
};

template <typename F> static bool find(cublas *c, F *function, const char *name)
{
    *(void **)function = dlsym(c->library, name);
    return *function != NULL;
}

#define STRING_(x) #x
#define STRING(x) STRING_(x)
#define LIBRARY "libcublasLt.so." STRING(CUBLAS_VER_MAJOR)

static bool open_library(cublas *c)
{
    static const char *const places[] = { LIBRARY, "/usr/local/cuda/lib64/" LIBRARY };
    for (size_t i = 0; i < sizeof places / sizeof *places && !c->library; i++) c->library = dlopen(places[i], RTLD_NOW | RTLD_LOCAL);
    return c->library && find(c, &c->create, "cublasLtCreate") && find(c, &c->destroy, "cublasLtDestroy") && find(c, &c->version, "cublasLtGetVersion") &&
           find(c, &c->matmul, "cublasLtMatmul") && find(c, &c->desc_create, "cublasLtMatmulDescCreate") && find(c, &c->desc_destroy, "cublasLtMatmulDescDestroy") &&
           find(c, &c->desc_set, "cublasLtMatmulDescSetAttribute") && find(c, &c->layout_create, "cublasLtMatrixLayoutCreate") &&
           find(c, &c->layout_destroy, "cublasLtMatrixLayoutDestroy") && find(c, &c->layout_set, "cublasLtMatrixLayoutSetAttribute") &&
           find(c, &c->preference_create, "cublasLtMatmulPreferenceCreate") && find(c, &c->preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
           find(c, &c->preference_set, "cublasLtMatmulPreferenceSetAttribute") &&
           find(c, &c->heuristic, "cublasLtMatmulAlgoGetHeuristic") && find(c, &c->config_get, "cublasLtMatmulAlgoConfigGetAttribute") &&
           find(c, &c->config_set, "cublasLtMatmulAlgoConfigSetAttribute") && find(c, &c->check, "cublasLtMatmulAlgoCheck");
}

void cublas_close(cublas *c)
{
    if (!c) return;
    for (int32_t i = 0; i < c->n_products; i++) {
        const prepared *p = &c->products[i];
        if (p->w) c->layout_destroy(p->w);
        if (p->x) c->layout_destroy(p->x);
        if (p->y) c->layout_destroy(p->y);
    }
    free(c->products);
    if (c->workspace) cudaFree(c->workspace);
    if (c->preference) c->preference_destroy(c->preference);
    if (c->desc) c->desc_destroy(c->desc);
    if (c->handle) c->destroy(c->handle);
    if (c->library) dlclose(c->library);
    free(c);
}

cublas *cublas_open(const ops_cuda *o, dtype type, char *note)
{
    if (o->sm != 90 || type == DTYPE_F32) return NULL;               /* other architectures have no family of algorithms that was measured */
    cublas *c = (cublas *)calloc(1, sizeof *c);
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const size_t workspace = WORKSPACE_BYTES;
    if (c && open_library(c) && c->create(&c->handle) == CUBLAS_STATUS_SUCCESS && c->desc_create(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
        c->desc_set(c->desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
        c->preference_create(&c->preference) == CUBLAS_STATUS_SUCCESS &&
        c->preference_set(c->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace) == CUBLAS_STATUS_SUCCESS &&
        cudaMalloc(&c->workspace, WORKSPACE_BYTES) == cudaSuccess) {
        c->type = type == DTYPE_BF16 ? CUDA_R_16BF : CUDA_R_16F;
        return c;
    }
    cudaGetLastError();                                              /* out of memory is not sticky */
    snprintf(note, OPS_NOTE_BYTES, LIBRARY " cannot be used (%s): products take our own kernels, with the same bits but more time", c && !c->library ? "not found" : "it failed to start");
    cublas_close(c);
    return NULL;
}

/* ---- a call ---- */

static const prepared *find_product(const cublas *c, int32_t n_out, int32_t n_in, bool is_f32)
{
    for (int32_t i = 0; i < c->n_products; i++) {
        const prepared *p = &c->products[i];
        if (p->n_out == n_out && p->n_in == n_in && p->is_f32 == is_f32) return p;
    }
    return NULL;
}

static int32_t bucket_of(int32_t n_rows)
{
    int32_t b = 0;
    while (b < BUCKETS - 1 && n_rows > bucket_rows[b]) b++;
    return b;
}

static cublasStatus_t set_rows(const cublas *c, const prepared *p, int32_t n_rows)
{
    const uint64_t n = (uint64_t)n_rows;
    const cublasStatus_t st = c->layout_set(p->x, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof n);
    return st != CUBLAS_STATUS_SUCCESS ? st : c->layout_set(p->y, CUBLASLT_MATRIX_LAYOUT_COLS, &n, sizeof n);
}

static cublasStatus_t multiply(const cublas *c, const prepared *p, const cublasLtMatmulAlgo_t *algorithm, void *y, const void *x, const void *w, cudaStream_t stream)
{
    const float one = 1.0f, zero = 0.0f;
    return c->matmul(c->handle, c->desc, &one, w, p->w, x, p->x, &zero, y, p->y, y, p->y, algorithm, c->workspace, WORKSPACE_BYTES, stream);
}

bool cublas_linear(ops_cuda *o, const cublas *c, void *y, const void *x, const weight *w, int32_t n_rows, bool is_f32)
{
    if (!c) return false;
    const prepared *p = find_product(c, w->n_rows, w->n_cols, is_f32);
    const int32_t b = bucket_of(n_rows);
    if (!p || !p->is_there[b] || (((uintptr_t)y | (uintptr_t)x | (uintptr_t)w->data) & 15)) return false;
    if (o->error != cudaSuccess) return true;
    if (set_rows(c, p, n_rows) != CUBLAS_STATUS_SUCCESS || multiply(c, p, &p->algorithm[b], y, x, w->data, o->stream) != CUBLAS_STATUS_SUCCESS) return false;
    cuda_check(o, "linear (cuBLASLt)");
    return true;
}

/* ---- choosing ---- */

static __global__ void random_rows_kernel(uint16_t *x, size_t n, bool is_bf16)
{
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        const float v = random_value(1, i);
        x[i] = is_bf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v)) : __half_as_ushort(__float2half_rn(v));
    }
}
static __global__ void differ_kernel(uint32_t *n_differ, const uint32_t *a, const uint32_t *b, size_t n)
{
    bool is_different = false;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) is_different |= a[i] != b[i];
    if (is_different) atomicAdd(n_differ, 1u);
}

/* Random rows and room for both results; the own kernel's result of the most rows lies in `want`. */
typedef struct { void *x, *want, *got; uint32_t *n_differ; } trial;

/* Whether `algorithm` gives the first n_rows rows of t->want. */
static bool is_equal(ops_cuda *o, const cublas *c, const prepared *p, const cublasLtMatmulAlgo_t *algorithm, const trial *t, const void *w, int32_t n_rows)
{
    const size_t n_words = (size_t)n_rows * (size_t)p->n_out * (p->is_f32 ? 4 : 2) / 4;      /* n_out is even */
    uint32_t n_differ = 1;
    if (cudaMemsetAsync(t->got, 0xff, n_words * 4, o->stream) != cudaSuccess || cudaMemsetAsync(t->n_differ, 0, 4, o->stream) != cudaSuccess) return false;
    if (set_rows(c, p, n_rows) != CUBLAS_STATUS_SUCCESS || multiply(c, p, algorithm, t->got, t->x, w, o->stream) != CUBLAS_STATUS_SUCCESS) return false;
    launch(o, "prepare (compare)", differ_kernel, dim3(512), dim3(256), 0, t->n_differ, (const uint32_t *)t->want, (const uint32_t *)t->got, n_words);
    o->table.download(&o->table, &n_differ, t->n_differ, sizeof n_differ);
    return o->error == cudaSuccess && n_differ == 0;
}

/* The algorithm with one split, where it is of the family and can do without more. */
static bool make_whole(const cublas *c, const prepared *p, cublasLtMatmulAlgo_t *algorithm)
{
    int32_t id = 0;
    const int32_t one = 1;
    const uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    size_t n_written;
    cublasLtMatmulHeuristicResult_t result;
    return c->config_get(algorithm, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof id, &n_written) == CUBLAS_STATUS_SUCCESS && id == ALGORITHM &&
           c->config_set(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &one, sizeof one) == CUBLAS_STATUS_SUCCESS &&
           c->config_set(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &none, sizeof none) == CUBLAS_STATUS_SUCCESS &&
           c->check(c->handle, c->desc, p->w, p->x, p->y, p->y, algorithm, &result) == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= WORKSPACE_BYTES;
}

static void choose(ops_cuda *o, const cublas *c, prepared *p, int32_t bucket, const trial *t, const void *w, int32_t most_rows)
{
    const int32_t rows = bucket_rows[bucket] < most_rows ? bucket_rows[bucket] : most_rows, least = bucket > 0 ? bucket_rows[bucket - 1] + 1 : 1;
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    int n = 0;
    if (least > rows || set_rows(c, p, rows) != CUBLAS_STATUS_SUCCESS ||
        c->heuristic(c->handle, c->desc, p->w, p->x, p->y, p->y, c->preference, CANDIDATES, found, &n) != CUBLAS_STATUS_SUCCESS) return;
    for (int i = 0; i < n && !p->is_there[bucket] && o->error == cudaSuccess; i++) {
        cublasLtMatmulAlgo_t *algorithm = &found[i].algo;
        if (!make_whole(c, p, algorithm)) continue;
        p->n_tried++;
        if (!is_equal(o, c, p, algorithm, t, w, rows) || !is_equal(o, c, p, algorithm, t, w, least) || !is_equal(o, c, p, algorithm, t, w, (least + rows) / 2 | 1)) continue;
        p->algorithm[bucket] = *algorithm;
        p->is_there[bucket] = true;
    }
}

static bool trial_take(trial *t, size_t x_bytes, size_t y_bytes)
{
    if (cudaMalloc(&t->x, x_bytes) == cudaSuccess && cudaMalloc(&t->want, y_bytes) == cudaSuccess && cudaMalloc(&t->got, y_bytes) == cudaSuccess &&
        cudaMalloc((void **)&t->n_differ, 4) == cudaSuccess) return true;
    cudaGetLastError();                                              /* out of memory is not sticky */
    return false;
}
static void trial_give(trial *t)
{
    for (void *p : { t->x, t->want, t->got, (void *)t->n_differ })
        if (p) cudaFree(p);
}

static bool prepare_one(ops_cuda *o, cublas *c, prepared *p, const weight *w, int32_t most_rows)
{
    trial t = {};
    const size_t n_x = (size_t)most_rows * (size_t)p->n_in;
    const bool is_ready = trial_take(&t, n_x * 2, (size_t)most_rows * (size_t)p->n_out * (p->is_f32 ? 4 : 2)) &&
        c->layout_create(&p->w, c->type, (uint64_t)p->n_in, (uint64_t)p->n_out, p->n_in) == CUBLAS_STATUS_SUCCESS &&
        c->layout_create(&p->x, c->type, (uint64_t)p->n_in, 1, p->n_in) == CUBLAS_STATUS_SUCCESS &&
        c->layout_create(&p->y, p->is_f32 ? CUDA_R_32F : c->type, (uint64_t)p->n_out, 1, p->n_out) == CUBLAS_STATUS_SUCCESS;
    if (is_ready) {
        launch(o, "prepare (rows)", random_rows_kernel, dim3(512), dim3(256), 0, (uint16_t *)t.x, n_x, c->type == CUDA_R_16BF);
        if (p->is_f32) o->table.linear_f32(&o->table, (float *)t.want, (const act *)t.x, w, NULL, most_rows);
        else o->table.linear(&o->table, (act *)t.want, (const act *)t.x, w, NULL, most_rows);
        for (int32_t b = 0; b < BUCKETS; b++) choose(o, c, p, b, &t, w->data, most_rows);
    }
    cudaStreamSynchronize(o->stream);
    trial_give(&t);
    return is_ready;
}

void cublas_prepare(ops_cuda *o, cublas *c, const ops_product *products, int32_t n, char *note)
{
    int32_t n_served = 0, n_buckets = 0, n_tried = 0, n_without_memory = 0;
    c->products = (prepared *)calloc((size_t)n + 1, sizeof *c->products);
    if (!c->products) return;
    for (int32_t i = 0; i < n; i++) {
        const weight *w = &products[i].w;
        const int32_t most = products[i].n_rows < bucket_rows[BUCKETS - 1] ? products[i].n_rows : bucket_rows[BUCKETS - 1];
        if (most < 1 || w->n_rows % 8 != 0 || w->n_cols % 8 != 0 || !w->data || find_product(c, w->n_rows, w->n_cols, products[i].is_f32)) continue;
        prepared p = {};
        p.n_out = w->n_rows;
        p.n_in = w->n_cols;
        p.is_f32 = products[i].is_f32;
        const bool is_ready = prepare_one(o, c, &p, w, most);
        c->products[c->n_products++] = p;                            /* only now may calls find it */
        n_without_memory += !is_ready;
        bool is_served = false;
        for (int32_t b = 0; b < BUCKETS; b++) {
            is_served |= p.is_there[b];
            n_buckets += p.is_there[b];
        }
        n_served += is_served;
        n_tried += p.n_tried;
    }
    snprintf(note, OPS_NOTE_BYTES, "cuBLASLt %zu serves %d of %d products (%d ranges of rows, %d algorithms compared with our own kernel; %d products had no memory for it)",
             c->version(), n_served, c->n_products, n_buckets, n_tried, n_without_memory);
}

#else

cublas *cublas_open(const ops_cuda *o, dtype type, char *note)
{
    if (o->sm == 90 && type != DTYPE_F32)
        snprintf(note, OPS_NOTE_BYTES, "this build is without cuBLASLt (its header was not there): products take our own kernels, with the same bits but more time");
    return NULL;
}
void cublas_close(cublas *c) { (void)c; }
void cublas_prepare(ops_cuda *o, cublas *c, const ops_product *products, int32_t n, char *note) { (void)o; (void)c; (void)products; (void)n; (void)note; }
bool cublas_linear(ops_cuda *o, const cublas *c, void *y, const void *x, const weight *w, int32_t n_rows, bool is_f32)
{
    (void)o; (void)c; (void)y; (void)x; (void)w; (void)n_rows; (void)is_f32;
    return false;
}

#endif
