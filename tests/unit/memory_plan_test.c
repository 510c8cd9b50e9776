/* The memory plan: what its limits mean, and what is said of one that no machine holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/memory_plan.h"
#include "proto/log.h"

#define MODELS TESTS_DIR "/golden/models/"

static ops *o;

static memory_plan plan_of(const char *name, engine_options options)
{
    char path[512];
    model *m = NULL;
    memory_plan plan = { 0 };
    fl_err err;
    snprintf(path, sizeof path, "%s%s", MODELS, name);
    if (model_map(&m, path, &err) != FL_OK || memory_plan_make(&plan, m, o, &options, &err) != FL_OK) fail_msg("%s", err.text);
    model_close(m);
    return plan;
}

static void plan_grows_with_its_limits_alone(void **state)
{
    (void)state;
    memory_plan one = plan_of("small_qwen3_5", (engine_options){ .batch_max = 1, .context_max = 100, .kv_tokens = 128 }), many = plan_of("small_qwen3_5", (engine_options){ .batch_max = 10, .context_max = 100, .kv_tokens = 1280 });
    assert_int_equal(one.context, 100);
    assert_int_equal(one.kv_blocks, 2);
    assert_int_equal(one.kv, one.sequence_kv);
    assert_int_equal(many.kv, 10 * one.kv);
    assert_int_equal(many.states, 10 * one.states);
    assert_true(one.states > 0 && one.states == one.sequence_state);
    assert_int_equal(many.mapped, one.mapped);
    assert_int_equal(many.tables, one.tables);
    assert_true(many.activations > one.activations);
    assert_int_equal(memory_plan_taken(&one), one.expanded + one.tables + one.weights + one.activations + one.logits + one.kv + one.states);
    assert_int_equal(plan_of("odd_f8", (engine_options){ 0 }).expanded % 4, 0);
}

static void plan_beyond_the_machine_says_what_to_lower(void **state)
{
    (void)state;
    fl_err err;
    memory_plan plan = plan_of("small_llama", (engine_options){ 0 }), large = plan;
    assert_int_equal(memory_plan_check(&plan, &err), FL_OK);
    if (memory_plan_machine() == 0) skip();
    large.kv = memory_plan_machine() + 1;
    assert_int_equal(memory_plan_check(&large, &err), FL_FULL);
    assert_non_null(strstr(err.text, "lower --max-context or --kv-tokens"));
    large = plan;
    large.activations = memory_plan_machine() + 1;
    assert_int_equal(memory_plan_check(&large, &err), FL_FULL);
    assert_non_null(strstr(err.text, "lower --batch or --prefill-budget"));
    large = plan;
    large.mapped = memory_plan_machine() + 1;            /* the system reads and drops mapped files as it needs */
    assert_int_equal(memory_plan_check(&large, &err), FL_OK);
}

/* What the plan's log says, in a file whose bytes are then read. */
static const char *log_of(const memory_plan *plan, char text[4096])
{
    int saved = dup(STDERR_FILENO);
    FILE *file = tmpfile();
    assert_non_null(file);
    fl_log_set_level(FL_LOG_INFO);
    dup2(fileno(file), STDERR_FILENO);
    memory_plan_log(plan);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    text[fread(text, 1, 4095, file)] = '\0';
    fclose(file);
    return text;
}

static bool replay_nothing(ops *self, uint64_t key)
{
    (void)self, (void)key;
    return false;
}

static void log_tells_what_the_bytes_are_for(void **state)
{
    (void)state;
    char text[4096];
    const engine_options options = { .batch_max = 10, .context_max = 100, .kv_tokens = 1280 };
    memory_plan plan = plan_of("small_qwen3_5", options);
    assert_non_null(strstr(log_of(&plan, text), "(1280 tokens)"));
    assert_non_null(strstr(text, "(10 slots)"));
    o->replay = replay_nothing;
    memory_plan padded = plan_of("small_qwen3_5", options);
    o->replay = NULL;
    assert_int_equal(padded.kv, plan.kv + plan.kv / 20);
    assert_int_equal(padded.states, plan.states + plan.sequence_state);
    assert_non_null(strstr(log_of(&padded, text), "(1280 tokens and 64 for padding)"));
    assert_non_null(strstr(text, "(10 slots and 1 for padding)"));
}

static int open_ops(void **state) { (void)state; return ops_cpu_open(&o, 1, NULL) == FL_OK ? 0 : -1; }
static int close_ops(void **state) { (void)state; o->close(o); return 0; }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_grows_with_its_limits_alone),
        cmocka_unit_test(log_tells_what_the_bytes_are_for),
        cmocka_unit_test(plan_beyond_the_machine_says_what_to_lower),
    };
    return cmocka_run_group_tests(tests, open_ops, close_ops);
}
