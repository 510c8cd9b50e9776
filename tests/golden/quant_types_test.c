/* Each of the 14 quantized types in each of four families: a model whose matrices are all of that type gives the logits of the same values stored as F32, within the type's bound.
 * The files are made here, from the models of tests/golden/gguf whose F32 forms equal transformers' (gguf_golden_test): metadata and vectors as they are, matrices of random blocks with
 * values of a trained model's size; beside each a twin with what dtype_decode, which has the `gguf` package's bits (quant_test), says of them. Where a row is no whole blocks, the matrix is
 * F32 in both.
 * Bound    in percent of the logits' spread, a type's own in llama, qwen3 and gemma3 (`bound`) and in qwen3_5_moe (`bound_moe`: four layers of which three carry a state, and routers). Both
 *          files hold the same weights, so all of it is what products round what they take by: 15 bits, 32 values to a scale. Some 2.5 times what was seen. */
#include "golden_model.h"
#include <unistd.h>
#include "engine/gguf.h"
#include "engine/gguf_type.h"
#include "kernels/quant.h"

#define FILES TESTS_DIR "/golden/gguf/"
#define N_PROMPT 40

/* Where a block's f16 scale lies and, behind it, what a min needs to be so that values lie about 0: at_min -1 = none. */
static const struct { dtype type; uint32_t number; int at, at_min; float min_by; double bound, bound_moe; } types[] = {
    { DTYPE_Q8_0, 8, 0, -1, 0.0f, 0.2, 2 },                 { DTYPE_Q4_0, 2, 0, -1, 0.0f, 0.05, 0.8 },
    { DTYPE_Q4_1, 3, 0, 2, -7.5f, 0.3, 1.1 },               { DTYPE_Q5_0, 6, 0, -1, 0.0f, 0.25, 0.9 },
    { DTYPE_Q5_1, 7, 0, 2, -15.5f, 0.25, 1.7 },             { DTYPE_Q2_K, 10, 80, 82, 1.5f, 0.15, 0.25 },
    { DTYPE_Q3_K, 11, 108, -1, 0.0f, 0.2, 1.9 },            { DTYPE_Q4_K, 12, 0, 2, 7.5f, 0.1, 0.2 },
    { DTYPE_Q5_K, 13, 0, 2, 15.5f, 0.15, 0.2 },             { DTYPE_Q6_K, 14, 208, -1, 0.0f, 0.2, 1 },
    { DTYPE_IQ4_NL, 20, 0, -1, 0.0f, 0.15, 1.5 },           { DTYPE_IQ4_XS, 23, 0, -1, 0.0f, 0.2, 1.7 },
    { DTYPE_MXFP4, 39, -1, -1, 0.0f, 0.2, 1 },              { DTYPE_NVFP4, 40, -1, -1, 0.0f, 0.35, 1.4 },
};
enum { N_TYPES = sizeof types / sizeof *types };

static uint64_t random_state;
static uint32_t random_bits(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}

static void put_f16(uint8_t *p, float f)                 /* normal and in range */
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    uint16_t h = (uint16_t)((u >> 16 & 0x8000u) | (((u >> 23 & 255u) - 112u) << 10) | (u >> 13 & 0x3ffu));
    memcpy(p, &h, sizeof h);
}

/* Blocks of one matrix whose values spread by about `size`. */
static void fill_blocks(uint8_t *p, size_t n_bytes, size_t k, float size)
{
    const size_t block = (size_t)dtype_block_bytes(types[k].type), n = (size_t)dtype_block_values(types[k].type);
    for (size_t i = 0; i < n_bytes; i++) p[i] = (uint8_t)random_bits();
    for (uint8_t *b = p; b < p + n_bytes; b += block) {
        float values[256], squares = 0.0f, unit = 1.0f;
        if (types[k].type == DTYPE_MXFP4) b[0] = (uint8_t)(121 + random_bits() % 2);
        for (int i = 0; types[k].type == DTYPE_NVFP4 && i < 4; i++) b[i] = (uint8_t)(16 + random_bits() % 8);
        for (int round = 0; types[k].at >= 0 && round < 2; round++) {        /* with a scale of 1, to see how far they spread, then with the right one */
            put_f16(b + types[k].at, unit);
            if (types[k].at_min >= 0) put_f16(b + types[k].at_min, unit * types[k].min_by);
            dtype_decode(values, types[k].type, b, (int32_t)n);
            for (size_t i = 0; i < n; i++) squares += values[i] * values[i];
            unit = fmaxf(size / sqrtf(squares / (float)n + 1e-6f), 0x1p-14f);
        }
    }
}

/* ---- writing files ---- */

static void put(FILE *f, const void *p, size_t n) { assert_int_equal(fwrite(p, 1, n, f), n); }
static void put_u32(FILE *f, uint32_t v) { put(f, &v, sizeof v); }
static void put_u64(FILE *f, uint64_t v) { put(f, &v, sizeof v); }

static void put_field(FILE *f, const gguf_field *field)
{
    put_u64(f, field->key_bytes);
    put(f, field->key, field->key_bytes);
    put_u32(f, field->kind);
    if (field->kind == GGUF_ARRAY) put_u32(f, field->element);
    if (field->kind == GGUF_ARRAY) put_u64(f, field->count);
    if (field->kind == GGUF_STRING) put_u64(f, field->n_bytes);
    put(f, field->data, field->n_bytes);
}

typedef struct { uint8_t *data; size_t n_bytes; uint32_t number; float *factors; size_t n_factors; } stored;      /* factors: of whole matrices, in X.scale beside X.weight */

/* The entry of a tensor in the directory; returns where the next one's data begins. */
static uint64_t put_entry(FILE *f, const char *name, size_t n_name, int32_t n_dims, const int64_t *shape, uint32_t number, uint64_t at, size_t n_bytes)
{
    put_u64(f, n_name);
    put(f, name, n_name);
    put_u32(f, (uint32_t)n_dims);
    for (int32_t d = n_dims - 1; d >= 0; d--) put_u64(f, (uint64_t)shape[d]);
    put_u32(f, number);
    put_u64(f, at);
    return at + (n_bytes + 31) / 32 * 32;
}

static void put_padded(FILE *f, const void *data, size_t n_bytes)
{
    static const uint8_t zeros[32] = { 0 };
    put(f, data, n_bytes);
    put(f, zeros, (32 - n_bytes % 32) % 32);
}

static void write_file(const char *path, const gguf *g, const stored *tensors)
{
    static const uint8_t zeros[32] = { 0 };
    const size_t n = gguf_tensor_count(g);
    size_t n_factors = 0;
    uint64_t at = 0;
    FILE *f = fopen(path, "wbe");
    assert_non_null(f);
    for (size_t i = 0; i < n; i++) n_factors += tensors[i].factors != NULL;
    put(f, "GGUF", 4);
    put_u32(f, 3);
    put_u64(f, n + n_factors);
    put_u64(f, gguf_field_count(g));
    for (size_t i = 0; i < gguf_field_count(g); i++) put_field(f, gguf_field_at(g, i));
    for (size_t i = 0; i < n; i++) {
        const tensor *t = gguf_tensor_at(g, i);
        at = put_entry(f, t->name, strlen(t->name), t->n_dims, t->shape, tensors[i].number, at, tensors[i].n_bytes);
    }
    for (size_t i = 0; i < n; i++) {
        char name[128];
        const int64_t count = (int64_t)tensors[i].n_factors;
        const int n_name = snprintf(name, sizeof name, "%.*s.scale", (int)(strlen(gguf_tensor_at(g, i)->name) - strlen(".weight")), gguf_tensor_at(g, i)->name);
        if (tensors[i].factors) at = put_entry(f, name, (size_t)n_name, 1, &count, 0, at, tensors[i].n_factors * sizeof(float));
    }
    put(f, zeros, (size_t)((32 - ftell(f) % 32) % 32));
    for (size_t i = 0; i < n; i++) put_padded(f, tensors[i].data, tensors[i].n_bytes);
    for (size_t i = 0; i < n; i++) if (tensors[i].factors) put_padded(f, tensors[i].factors, tensors[i].n_factors * sizeof(float));
    assert_int_equal(fclose(f), 0);
}

static size_t forced_factors;            /* so many instead; 0 = as many as there are matrices */
static float forced_value;               /* of the first one; 0 = as they come */

/* Give a tensor's matrices a factor each, and its twin the products. */
static void add_factors(stored *one, stored *twin, const tensor *t)
{
    one->n_factors = forced_factors ? forced_factors : t->n_dims == 3 ? (size_t)t->shape[0] : 1;
    one->factors = malloc(one->n_factors * sizeof *one->factors);
    assert_non_null(one->factors);
    for (size_t i = 0; i < one->n_factors; i++) one->factors[i] = 0.75f + (float)(random_bits() % 1000) / 1999.0f;
    if (forced_value != 0.0f) one->factors[0] = forced_value;
    const size_t n = twin->n_bytes / sizeof(float), each = n / one->n_factors;
    float *values = (float *)(void *)twin->data;
    for (size_t i = 0; i < n; i++) values[i] *= one->factors[i / each < one->n_factors ? i / each : 0];
}

static stored as_f32(const tensor *t, dtype type, const uint8_t *data)
{
    const int64_t cols = t->shape[t->n_dims - 1];
    int64_t rows = 1;
    for (int32_t d = 0; d < t->n_dims - 1; d++) rows *= t->shape[d];
    stored s = { .data = malloc((size_t)(rows * cols) * sizeof(float)), .n_bytes = (size_t)(rows * cols) * sizeof(float) };
    assert_non_null(s.data);
    for (int64_t r = 0; r < rows; r++) dtype_decode((float *)(void *)s.data + r * cols, type, data + (size_t)r * dtype_row_bytes(type, (int32_t)cols), (int32_t)cols);
    return s;
}

/* Both files; returns how many matrices are of the type. */
static size_t write_pair(const char *path, const char *twin_path, const char *family, size_t k, bool has_factors)
{
    char from[512];
    fl_err err;
    gguf *g = NULL;
    size_t n_of_type = 0;
    snprintf(from, sizeof from, FILES "%s_mixed.gguf", family);
    golden_require(gguf_open(&g, from, &err), &err);
    const size_t n = gguf_tensor_count(g);
    stored *ones = calloc(n, sizeof *ones), *twins = calloc(n, sizeof *twins);
    assert_true(ones && twins);
    random_state = 20261130u + k;
    for (size_t i = 0; i < n; i++) {
        const tensor *t = gguf_tensor_at(g, i);
        const int64_t cols = t->shape[t->n_dims - 1];
        if (t->type == DTYPE_F32 || cols % dtype_block_values(types[k].type) != 0) { twins[i] = as_f32(t, t->type, t->data); ones[i] = as_f32(t, t->type, t->data); continue; }
        ones[i].n_bytes = dtype_row_bytes(types[k].type, (int32_t)cols);
        for (int32_t d = 0; d < t->n_dims - 1; d++) ones[i].n_bytes *= (size_t)t->shape[d];
        ones[i].number = types[k].number;
        ones[i].data = malloc(ones[i].n_bytes);
        assert_non_null(ones[i].data);
        fill_blocks(ones[i].data, ones[i].n_bytes, k, 0.1f);
        twins[i] = as_f32(t, types[k].type, ones[i].data);
        if (has_factors) add_factors(&ones[i], &twins[i], t);
        n_of_type++;
    }
    write_file(path, g, ones);
    write_file(twin_path, g, twins);
    for (size_t i = 0; i < n; i++) { free(ones[i].data); free(ones[i].factors); free(twins[i].data); }
    free(ones);
    free(twins);
    gguf_close(g);
    return n_of_type;
}

/* ---- the comparison ---- */

static float *logits_of(const char *path, int32_t *n)
{
    int32_t prompt[N_PROMPT];
    golden_model g;
    golden_open(&g, path);
    for (int32_t i = 0; i < N_PROMPT; i++) prompt[i] = (i * 7 + 3) % g.n_vocab;
    golden_run(&g, prompt, 0, N_PROMPT, true);
    *n = N_PROMPT * g.n_vocab;
    float *copy = malloc((size_t)*n * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, g.logits, (size_t)*n * sizeof *copy);
    golden_close(&g);
    return copy;
}

/* How far the logits are from the twin's, in percent of their spread. */
static double difference(const char *family, size_t k, bool has_factors)
{
    char path[64], twin_path[64];
    int32_t n, n_twin;
    double sum = 0.0, squares = 0.0, worst = 0.0;
    snprintf(path, sizeof path, "/tmp/quant_types.%d.gguf", (int)getpid());
    snprintf(twin_path, sizeof twin_path, "/tmp/quant_types.%d.f32.gguf", (int)getpid());
    const size_t n_of_type = write_pair(path, twin_path, family, k, has_factors);
    float *ours = logits_of(path, &n), *wanted = logits_of(twin_path, &n_twin);
    unlink(path);
    unlink(twin_path);
    assert_int_equal(n, n_twin);
    assert_true(n_of_type > 0);
    for (int32_t i = 0; i < n; i++) {
        sum += (double)wanted[i];
        squares += (double)wanted[i] * (double)wanted[i];
        worst = isfinite(ours[i]) ? fmax(worst, fabs((double)ours[i] - (double)wanted[i])) : INFINITY;
    }
    const double spread = sqrt(squares / n - sum / n * (sum / n)), off = 100.0 * worst / spread;
    print_message("%-12s %-7s %2zu matrices%s, logits within %.4f %% of their spread of %.2f\n", family, dtype_name(types[k].type), n_of_type, has_factors ? " with factors" : "", off, spread);
    free(ours);
    free(wanted);
    return off;
}

static void check_family(const char *family)
{
    for (size_t k = 0; k < N_TYPES; k++) {
        const double off = difference(family, k, false), bound = strcmp(family, "qwen3_5_moe") == 0 ? types[k].bound_moe : types[k].bound;
        if (!(off <= bound)) fail_msg("%s of %s: logits differ by %.4f %% of their spread; the bound is %.4f %%", family, dtype_name(types[k].type), off, bound);
    }
}

/* NVFP4 files have factors of whole matrices: such weights become fp32 when the file is opened, the very values of the twin. */
static void factors_of_whole_matrices_are_multiplied_in(void **state)
{
    static const char *const families[] = { "llama", "qwen3_5_moe" };    /* turned rows; a factor for each expert */
    (void)state;
    for (size_t i = 0; i < 2; i++)
        if (difference(families[i], N_TYPES - 1, true) != 0.0) fail_msg("%s: weights times their factors are not the values", families[i]);
}

static void llama_of_each_type_equals_its_values(void **state) { (void)state; check_family("llama"); }
static void qwen3_of_each_type_equals_its_values(void **state) { (void)state; check_family("qwen3"); }
static void qwen3_5_with_experts_of_each_type_equals_its_values(void **state) { (void)state; check_family("qwen3_5_moe"); }
static void gemma3_of_each_type_equals_its_values(void **state) { (void)state; check_family("gemma3"); }

static void refuse_factors(size_t count, float value, fl_status want, const char *part)
{
    char path[64], twin_path[64];
    ops *o = NULL;
    model *m = NULL;
    fl_err err = { 0 };
    snprintf(path, sizeof path, "/tmp/quant_types.%d.gguf", (int)getpid());
    snprintf(twin_path, sizeof twin_path, "/tmp/quant_types.%d.f32.gguf", (int)getpid());
    forced_factors = count;
    forced_value = value;
    assert_true(write_pair(path, twin_path, "llama", N_TYPES - 1, true) > 0);
    forced_factors = 0;
    forced_value = 0.0f;
    golden_require(ops_cpu_open(&o, 1, &err), &err);
    const fl_status got = model_open(&m, path, o, OPS_BLOCK_TOKENS, GOLDEN_CONTEXT, &err);
    unlink(path);
    unlink(twin_path);
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), err.text, part);
    assert_null(m);
    o->close(o);
}

static void factors_that_fit_no_matrices_or_are_no_numbers_are_refused(void **state)
{
    (void)state;
    refuse_factors(3, 0.0f, FL_UNSUPPORTED, "so it must hold one F32 factor of all values or one for each of 1 matrices");
    refuse_factors(0, NAN, FL_CORRUPT, ".scale");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_of_each_type_equals_its_values),
        cmocka_unit_test(qwen3_of_each_type_equals_its_values),
        cmocka_unit_test(qwen3_5_with_experts_of_each_type_equals_its_values),
        cmocka_unit_test(gemma3_of_each_type_equals_its_values),
        cmocka_unit_test(factors_of_whole_matrices_are_multiplied_in),
        cmocka_unit_test(factors_that_fit_no_matrices_or_are_no_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
