/* What a request yields depends on the request and the model alone (ops/DESIGN.md section 7): random requests, the same fl_result_encode bytes whatever the batch
 * limit, prefill budget, KV pool, threads, kernel form, order of arrival and split of samples. Prints its seed; TOKENFLEET_TEST_SEED replays another. */
#include "engine_rows.h"

#define DEMO OPS_DIR "/demo_model"

static outcome expected;

static void check_setting(const char *name, const engine_options *options, bool is_split, const char *kernels)
{
    outcome got;
    if (kernels) setenv("TOKENFLEET_KERNELS", kernels, 1);
    run_rows(&got, options, is_split);
    if (kernels) unsetenv("TOKENFLEET_KERNELS");
    check_same(name, &got, &expected);
    if (options->kv_tokens > 0) assert_true(got.stats.preemptions > 0);
}

static bool has_kernels(const char *form)
{
    ops *o = NULL;
    fl_err err;
    setenv("TOKENFLEET_KERNELS", form, 1);
    fl_status st = ops_cpu_open(&o, 1, &err);
    unsetenv("TOKENFLEET_KERNELS");
    if (st == FL_OK) o->close(o);
    return st == FL_OK;
}

static void results_depend_on_the_request_alone(void **state)
{
    (void)state;
    const char *given = getenv("TOKENFLEET_TEST_SEED");
    const uint64_t first = given ? strtoull(given, NULL, 10) : 20240611;
    print_message("seed %llu\n", (unsigned long long)first);
    make_rows(first, 1024);
    const engine_options plain = { .model = DEMO, .n_threads = 1, .context_max = CONTEXT };
    engine_options o = plain;
    run_rows(&expected, &plain, false);
    print_message("%llu tokens, %llu steps\n", (unsigned long long)expected.n_tokens, (unsigned long long)expected.stats.steps);
    for (int i = 0; i < N_REQUESTS; i++) for (uint32_t k = 0; k < rows[i].n_samples; k++) assert_true(expected.hash[i][k].low64 != 0);

    o.batch_max = 1;                                     check_setting("batch 1", &o, false, NULL);
    o.batch_max = 3; o.prefill_budget = 64;              check_setting("batch 3, budget 64", &o, false, NULL);
    o = plain; o.prefill_budget = 64;                    check_setting("budget 64", &o, false, NULL);
    o = plain; o.prefill_budget = 4096;                  check_setting("budget 4096", &o, false, NULL);
    o = plain; o.n_threads = 2;                          check_setting("2 threads", &o, false, NULL);
    o = plain; o.kv_tokens = 2 * CONTEXT;                check_setting("pool for two", &o, false, NULL);
    o.prefill_budget = 64; o.n_threads = 2;              check_setting("pool for two, budget 64, 2 threads, split", &o, true, NULL);
    o = plain; o.kv_tokens = CONTEXT; o.batch_max = 16;  check_setting("pool for one, batch 16", &o, false, NULL);
    o = plain;                                           check_setting("split, youngest first", &o, true, NULL);
    static const char *const forms[] = { "scalar", "avx2", "avx512" };
    for (int i = 0; i < 3; i++) if (has_kernels(forms[i])) check_setting(forms[i], &plain, false, forms[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(results_depend_on_the_request_alone) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
