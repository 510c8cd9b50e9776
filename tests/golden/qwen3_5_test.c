/* qwen3_5 and qwen3_5_moe against transformers: the forward pass row by row, then the engine as users drive it. */
#include "golden_model.h"

#define MODELS TESTS_DIR "/golden/models/"

static void small_dense_model_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_qwen3_5"); }
static void small_mixture_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_qwen3_5_moe"); }
static void wide_dense_model_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_qwen3_5"); }
static void wide_mixture_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_qwen3_5_moe"); }
static void odd_sizes_with_a_tied_head_equal_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_three"); }
static void whole_rotation_and_attention_bias_equal_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_whole"); }
static void fused_experts_in_a_nested_model_equal_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_fused"); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_dense_model_equals_the_reference),
        cmocka_unit_test(small_mixture_equals_the_reference),
        cmocka_unit_test(wide_dense_model_equals_the_reference),
        cmocka_unit_test(wide_mixture_equals_the_reference),
        cmocka_unit_test(odd_sizes_with_a_tied_head_equal_the_reference),
        cmocka_unit_test(whole_rotation_and_attention_bias_equal_the_reference),
        cmocka_unit_test(fused_experts_in_a_nested_model_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
