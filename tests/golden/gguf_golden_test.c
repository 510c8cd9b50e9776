/* GGUF files from the reference writer (make_gguf_models.py): reference models as F32 or BF16 against the vectors of their checkpoints, within the same bound; and for four families a model
 * whose matrices are of every quantized type in turn against its dequantized self.
 * Bound    mixed: logits agree within MIXED_TOLERANCE of their spread. Products with quantized weights round what they take to 15 bits in blocks of 32; what is left is mostly that. */
#include "golden_model.h"
#include "engine/gguf.h"

#define MODELS TESTS_DIR "/golden/models/"
#define FILES TESTS_DIR "/golden/gguf/"
#define MIXED_TOLERANCE 0.004

static void check_plain(const char *name)
{
    char file[512], dir[512];
    ops *o = NULL;
    fl_err err;
    snprintf(file, sizeof file, FILES "%s.gguf", name);
    snprintf(dir, sizeof dir, MODELS "%s", name);
    golden_require(ops_cpu_open(&o, 1, &err), &err);
    golden_check_form_on(file, dir, o);
}

static void llama_with_turned_rows_equals_its_checkpoint(void **state) { (void)state; check_plain("small_llama"); }
static void llama_with_biases_and_rotation_factors_equals_its_checkpoint(void **state) { (void)state; check_plain("odd_llama"); }
static void qwen3_equals_its_checkpoint(void **state) { (void)state; check_plain("small_qwen3"); }
static void qwen3_with_experts_equals_its_checkpoint(void **state) { (void)state; check_plain("small_qwen3_moe"); }
static void laguna_with_heads_by_layer_equals_its_checkpoint(void **state) { (void)state; check_plain("small_laguna"); }
static void qwen3_5_with_experts_and_tiled_value_heads_equals_its_checkpoint(void **state) { (void)state; check_plain("small_qwen3_5_moe"); }
static void gemma3_with_whole_norms_equals_its_checkpoint(void **state) { (void)state; check_plain("small_gemma3"); }

/* The largest distance of one row of logits from the reference's. */
static double distance(const float *ours, const json_t *theirs, int32_t n)
{
    double worst = 0.0;
    for (int32_t k = 0; k < n; k++) worst = fmax(worst, fabs((double)ours[k] - golden_number(theirs, k)));
    return worst;
}

static double spread_of(const json_t *rows)
{
    double sum = 0.0, squares = 0.0, n = 0.0;
    for (size_t i = 0; i < json_array_size(rows); i++)
        for (size_t k = 0; k < json_array_size(json_array_get(rows, i)); k++, n++) {
            double v = golden_number(json_array_get(rows, i), (int32_t)k);
            sum += v;
            squares += v * v;
        }
    return sqrt(squares / n - sum / n * (sum / n));
}

static void check_mixed(const char *name)
{
    char file[512];
    json_error_t where;
    fl_err err;
    golden_model g;
    ops *o = NULL;
    double off = 0.0;
    size_t seen = 0;
    json_t *root = json_load_file(FILES "mixed.json", 0, &where);
    assert_non_null(root);
    const json_t *c = json_object_get(root, name), *positions = json_object_get(c, "positions"), *rows = json_object_get(c, "exact");
    const double spread = spread_of(rows);
    int32_t n_prompt, *prompt = golden_ids(json_object_get(c, "prompt"), &n_prompt);
    snprintf(file, sizeof file, FILES "%s_mixed.gguf", name);
    golden_require(ops_cpu_open(&o, 1, &err), &err);
    golden_open_on(&g, file, o);
    for (int32_t first = 0; first < n_prompt; first += OPS_BLOCK_TOKENS) {
        const int32_t n_rows = n_prompt - first < OPS_BLOCK_TOKENS ? n_prompt - first : OPS_BLOCK_TOKENS;
        golden_run(&g, prompt + first, first, n_rows, true);
        for (size_t i = 0; i < json_array_size(positions); i++) {
            const int32_t at = (int32_t)golden_number(positions, (int32_t)i) - first;
            if (at < 0 || at >= n_rows) continue;
            const float *ours = g.logits + (size_t)at * (size_t)g.n_vocab;
            off = fmax(off, distance(ours, json_array_get(rows, i), g.n_vocab) / spread);
            seen++;
        }
    }
    print_message("%s_mixed: %zu positions, of the logits' spread of %.2f they are within %.3f %%\n", name, seen, spread, 100.0 * off);
    assert_int_equal(seen, json_array_size(positions));
    if (!(off <= MIXED_TOLERANCE)) fail_msg("%s_mixed: off by %.3f %%", name, 100.0 * off);
    golden_close(&g);
    free(prompt);
    json_decref(root);
}

static void llama_of_every_type_equals_its_dequantized_self(void **state) { (void)state; check_mixed("llama"); }
static void qwen3_of_every_type_equals_its_dequantized_self(void **state) { (void)state; check_mixed("qwen3"); }
static void qwen3_5_with_experts_of_every_type_equals_its_dequantized_self(void **state) { (void)state; check_mixed("qwen3_5_moe"); }
static void gemma3_of_every_type_equals_its_dequantized_self(void **state) { (void)state; check_mixed("gemma3"); }

/* All 14 quantized types are in the four files, and F16 and BF16. */
static void the_files_hold_every_type(void **state)
{
    static const char *const files[] = { "llama", "qwen3", "qwen3_5_moe", "gemma3" };
    bool seen[DTYPE_COUNT] = { false };
    fl_err err;
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char path[512];
        gguf *g = NULL;
        snprintf(path, sizeof path, FILES "%s_mixed.gguf", files[i]);
        golden_require(gguf_open(&g, path, &err), &err);
        for (size_t k = 0; k < gguf_tensor_count(g); k++) seen[gguf_tensor_at(g, k)->type] = true;
        gguf_close(g);
    }
    for (int i = 0; i < DTYPE_COUNT; i++) if (!seen[i]) fail_msg("no tensor has dtype %d", i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_with_turned_rows_equals_its_checkpoint),
        cmocka_unit_test(llama_with_biases_and_rotation_factors_equals_its_checkpoint),
        cmocka_unit_test(qwen3_equals_its_checkpoint),
        cmocka_unit_test(qwen3_with_experts_equals_its_checkpoint),
        cmocka_unit_test(laguna_with_heads_by_layer_equals_its_checkpoint),
        cmocka_unit_test(qwen3_5_with_experts_and_tiled_value_heads_equals_its_checkpoint),
        cmocka_unit_test(gemma3_with_whole_norms_equals_its_checkpoint),
        cmocka_unit_test(llama_of_every_type_equals_its_dequantized_self),
        cmocka_unit_test(qwen3_of_every_type_equals_its_dequantized_self),
        cmocka_unit_test(qwen3_5_with_experts_of_every_type_equals_its_dequantized_self),
        cmocka_unit_test(gemma3_of_every_type_equals_its_dequantized_self),
        cmocka_unit_test(the_files_hold_every_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
