/* The n-th allocation of a loader fails, for n = 1, 2, 3 ...: the status says so (FL_FULL), never that the file is damaged, and nothing leaks into the next try. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine/model_config.h"
#include "engine/safetensors.h"
#include "tests/heap_watch.h"

#define CORPUS TESTS_DIR "/fuzz/corpus/"

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    if (!f || !text) fail_msg("cannot read %s", path);
    *n_bytes = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    return text;
}

static fl_status load_config(size_t n_th, fl_err *err)
{
    model_config c = { 0 };
    size_t n;
    char *text = read_file(OPS_DIR "/demo_model/config.json", &n);
    heap_watch_fail_at(n_th);
    fl_status st = model_config_parse(&c, text, n, NULL, 0, err);
    if (st == FL_OK) model_config_fini(&c);
    free(text);
    return st;
}

static fl_status load_weights(size_t n_th, fl_err *err)
{
    safetensors *s = NULL;
    size_t n;
    char *text = read_file(CORPUS "safetensors/good", &n);
    heap_watch_fail_at(n_th);
    fl_status st = safetensors_open_bytes(&s, "input", (const uint8_t *)text, n, err);
    safetensors_close(s);
    free(text);
    return st;
}

static void fails_as_full(const char *what, fl_status (*load)(size_t n_th, fl_err *err))
{
    if (!heap_watch_can_fail()) skip();
    for (size_t n = 1; n < 100000; n++) {
        fl_err err = { 0 };
        fl_status st = load(n, &err);
        bool failed = heap_watch_failed();
        heap_watch_fail_at(0);
        if (!failed) {
            assert_int_equal(st, FL_OK);
            print_message("%s: %zu allocations\n", what, n - 1);
            return;
        }
        if (st != FL_OK && st != FL_FULL) fail_msg("%s: allocation %zu fails as %s: %s", what, n, fl_status_name(st), err.text);
    }
    fail_msg("%s does not end", what);
}

static void a_config_without_memory_is_not_damaged(void **state) { (void)state; fails_as_full("config.json", load_config); }
static void weights_without_memory_are_not_damaged(void **state) { (void)state; fails_as_full("safetensors", load_weights); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_without_memory_is_not_damaged),
        cmocka_unit_test(weights_without_memory_are_not_damaged),
    };
    return cmocka_run_group_tests_name("memory", tests, NULL, NULL);
}
