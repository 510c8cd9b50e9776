/* llama, qwen3, qwen3_moe, laguna and gemma3 against transformers: the forward pass row by row. */
#include "golden_model.h"

#define MODELS TESTS_DIR "/golden/models/"

static void small_llama_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_llama"); }
static void wide_llama_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_llama"); }
static void small_qwen3_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_qwen3"); }
static void wide_qwen3_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_qwen3"); }
static void small_qwen3_mixture_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_qwen3_moe"); }
static void small_laguna_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_laguna"); }
static void wide_laguna_with_yarn_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_laguna"); }
static void small_gemma3_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "small_gemma3"); }
static void wide_gemma3_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "wide_gemma3"); }
static void odd_llama_with_biases_and_llama3_rotation_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_llama"); }
static void odd_qwen3_with_yarn_and_sliding_layers_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_qwen3"); }
static void odd_qwen3_mixture_with_plain_weights_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_qwen3_moe"); }
static void odd_laguna_with_a_capped_router_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_laguna"); }
static void odd_gemma3_nested_with_capped_logits_equals_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_gemma3"); }
static void f8_weights_with_scales_of_every_kind_equal_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_f8"); }
static void fused_f8_experts_equal_the_reference(void **state) { (void)state; golden_check_model(MODELS "odd_f8_moe"); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_llama_equals_the_reference),
        cmocka_unit_test(wide_llama_equals_the_reference),
        cmocka_unit_test(small_qwen3_equals_the_reference),
        cmocka_unit_test(wide_qwen3_equals_the_reference),
        cmocka_unit_test(small_qwen3_mixture_equals_the_reference),
        cmocka_unit_test(small_laguna_equals_the_reference),
        cmocka_unit_test(wide_laguna_with_yarn_equals_the_reference),
        cmocka_unit_test(small_gemma3_equals_the_reference),
        cmocka_unit_test(wide_gemma3_equals_the_reference),
        cmocka_unit_test(odd_llama_with_biases_and_llama3_rotation_equals_the_reference),
        cmocka_unit_test(odd_qwen3_with_yarn_and_sliding_layers_equals_the_reference),
        cmocka_unit_test(odd_qwen3_mixture_with_plain_weights_equals_the_reference),
        cmocka_unit_test(odd_laguna_with_a_capped_router_equals_the_reference),
        cmocka_unit_test(odd_gemma3_nested_with_capped_logits_equals_the_reference),
        cmocka_unit_test(f8_weights_with_scales_of_every_kind_equal_the_reference),
        cmocka_unit_test(fused_f8_experts_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
