/* cpu_pool_test.c - the kernels' thread pool: every item is done exactly once, runs do not mix, and a pool without work uses no CPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>
#include "kernels/cpu/cpu.h"
#include "proto/clock.h"

#define ITEMS_MAX 300
typedef struct { int32_t run; _Atomic int32_t done[ITEMS_MAX]; } items;

static void mark(const void *arg, int32_t begin, int32_t end)
{
    items *it = (items *)(uintptr_t)arg;
    for (int32_t i = begin; i < end; i++) atomic_fetch_add(&it->done[i], it->run);
}

static void every_item_of_every_run_is_done_once(void **state)
{
    (void)state;
    for (int32_t n_threads = 2; n_threads <= 5; n_threads++) {
        cpu_pool *pool = NULL;
        assert_int_equal(cpu_pool_open(&pool, n_threads, NULL), FL_OK);
        for (int32_t run = 1; run < 3000; run++) {
            items it = { .run = run };
            int32_t n = run * 7 % ITEMS_MAX;
            cpu_pool_run(pool, n, 1e9, mark, &it);
            for (int32_t i = 0; i < ITEMS_MAX; i++) assert_int_equal(it.done[i], i < n ? run : 0);
            if (run % 500 == 0) nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);       /* helpers fall asleep and are woken */
        }
        cpu_pool_close(pool);
    }
}

static void small_work_and_a_missing_pool_stay_on_the_caller(void **state)
{
    (void)state;
    items it = { .run = 1 };
    cpu_pool_run(NULL, 10, 1e9, mark, &it);
    cpu_pool_run(NULL, 0, 1e9, mark, &it);
    for (int32_t i = 0; i < 10; i++) assert_int_equal(it.done[i], 1);
}

static void an_idle_pool_uses_no_cpu(void **state)
{
    (void)state;
    cpu_pool *pool = NULL;
    items it = { .run = 1 };
    assert_int_equal(cpu_pool_open(&pool, 3, NULL), FL_OK);
    cpu_pool_run(pool, 100, 1e9, mark, &it);
    int64_t used_us = 1000000;
    for (int i = 0; i < 50 && used_us >= 10000; i++) {       /* they spin for a moment first, which on a loaded machine may lie anywhere; one that never sleeps uses 0.1 s each time */
        int64_t before_us = fl_cpu_us(0);
        nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
        used_us = fl_cpu_us(0) - before_us;
    }
    assert_true(used_us < 10000);
    cpu_pool_close(pool);
}

static void too_many_threads_are_refused(void **state)
{
    (void)state;
    cpu_pool *pool = NULL;
    fl_err err;
    assert_int_equal(cpu_pool_open(&pool, 100000, &err), FL_INVALID);
    assert_null(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_of_every_run_is_done_once),
        cmocka_unit_test(small_work_and_a_missing_pool_stay_on_the_caller),
        cmocka_unit_test(an_idle_pool_uses_no_cpu),
        cmocka_unit_test(too_many_threads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
