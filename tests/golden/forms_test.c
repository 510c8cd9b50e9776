/* Every reference model written again in each form that checkpoints come in (rewrite_model.py): the same tokens and logits. Under a sanitizer the small models. */
#include "golden_model.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODELS TESTS_DIR "/golden/models/"
#define SCRIPT TESTS_DIR "/golden/rewrite_model.py"

static const char *const models[] = { "small_llama", "small_qwen3", "small_qwen3_moe", "small_qwen3_5", "small_qwen3_5_moe", "small_laguna", "small_gemma3",
                                      "wide_llama", "wide_qwen3", "wide_qwen3_5", "wide_qwen3_5_moe", "wide_laguna", "wide_gemma3" };
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define N_MODELS 7
#else
#define N_MODELS (sizeof models / sizeof *models)
#endif
static char folder[64];

static void run(char *const *arguments)
{
    pid_t child;
    int status = -1, failed = posix_spawnp(&child, arguments[0], NULL, NULL, arguments, NULL);
    if (failed) fail_msg("cannot start %s: %s", arguments[0], strerror(failed));
    assert_int_equal(waitpid(child, &status, 0), child);
    if (status != 0) fail_msg("%s ended with status %d", arguments[0], status);
}

static void check_form(const char *form)
{
    for (size_t i = 0; i < N_MODELS; i++) {
        char from[512], to[160];
        snprintf(from, sizeof from, "%s%s", MODELS, models[i]);
        snprintf(to, sizeof to, "%s/%s_%s", folder, models[i], form);
        run((char *const[]){ "/usr/bin/python3", SCRIPT, from, to, (char *)form, NULL });
        golden_check_model(to);
        run((char *const[]){ "/bin/rm", "-r", to, NULL });
    }
}

static void config_of_transformers_4_and_fused_experts(void **state) { (void)state; check_form("older"); }
static void two_shards_with_an_index(void **state) { (void)state; check_form("shards"); }
static void text_model_nested_in_a_vision_model(void **state) { (void)state; check_form("nested"); }
static void float16_tensors(void **state) { (void)state; check_form("f16"); }
static void float32_tensors(void **state) { (void)state; check_form("f32"); }

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/forms_test.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    run((char *const[]){ "/bin/rm", "-r", folder, NULL });
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_of_transformers_4_and_fused_experts),
        cmocka_unit_test(two_shards_with_an_index),
        cmocka_unit_test(text_model_nested_in_a_vision_model),
        cmocka_unit_test(float16_tensors),
        cmocka_unit_test(float32_tensors),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
