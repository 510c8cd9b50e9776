/* What a model directory that does not fit itself is refused with: one sentence that names the file and the tensor. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/model.h"

#define MODELS TESTS_DIR "/golden/models/"

static char folder[64];
static ops *o;

static char *read_file(const char *path, size_t *n_bytes)
{
    FILE *file = fopen(path, "rbe");
    if (!file) fail_msg("cannot open %s", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long n = ftell(file);
    assert_true(n > 0);
    rewind(file);
    char *bytes = malloc((size_t)n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)n, file), n);
    fclose(file);
    bytes[n] = 0;
    *n_bytes = (size_t)n;
    return bytes;
}

/* Copy a file of model `source` into the folder with the first `from` in it written over by `to` of the same length; from NULL copies it as it is. */
static void copy_file(const char *source, const char *name, const char *from, const char *to)
{
    char path[512];
    size_t n_bytes, n = from ? strlen(from) : 0;
    snprintf(path, sizeof path, "%s%s/%s", MODELS, source, name);
    char *bytes = read_file(path, &n_bytes), *at = from ? memmem(bytes, n_bytes, from, n) : NULL;
    if (from) {
        assert_non_null(at);
        assert_int_equal(strlen(to), n);
        memcpy(at, to, n);
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
    free(bytes);
}

static void refuse(fl_status want, const char *part)
{
    model *m = NULL;
    fl_err err;
    fl_status got = model_open(&m, folder, o, 64, 128, &err);
    if (got == FL_OK) { model_close(m); fail_msg("accepted; wanted \"%s\"", part); }
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), err.text, part);
}

static void tensor_that_is_missing_is_named(void **state)
{
    (void)state;
    copy_file("small_llama", "config.json", NULL, NULL);
    copy_file("small_llama", "model.safetensors", "layers.1.mlp.up_proj.weight", "layers.1.mlp.xx_proj.weight");
    refuse(FL_NOT_FOUND, "tensor model.layers.1.mlp.up_proj.weight, which config.json asks for, is missing");
}

static void dtype_that_holds_no_weights_is_named(void **state)
{
    (void)state;
    copy_file("small_llama", "config.json", NULL, NULL);
    copy_file("small_llama", "model.safetensors", "\"BF16\"", "\"I16\" ");
    refuse(FL_UNSUPPORTED, "model.safetensors: tensor ");
    refuse(FL_UNSUPPORTED, "has dtype I16; BF16, F16, F32 and F8_E4M3 with scales are supported");
}

static void shape_that_is_not_the_configs_is_named_with_both(void **state)
{
    (void)state;
    copy_file("small_llama", "config.json", "\"intermediate_size\": 128", "\"intermediate_size\": 127");
    copy_file("small_llama", "model.safetensors", NULL, NULL);
    refuse(FL_CORRUPT, "model.safetensors: tensor model.layers.0.mlp.gate_proj.weight has shape [128, 64], config.json asks for [127, 64]");
    copy_file("small_laguna", "config.json", "    8,\n    8,", "    7,\n    8,");    /* the heads of layer 1 */
    copy_file("small_laguna", "model.safetensors", NULL, NULL);
    refuse(FL_CORRUPT, "config.json: num_attention_heads_per_layer");
}

static void f8_without_its_scales_is_refused(void **state)
{
    (void)state;
    model *m = NULL;
    fl_err err;
    copy_file("odd_f8", "config.json", NULL, NULL);
    copy_file("odd_f8", "model.safetensors", NULL, NULL);
    if (model_map(&m, folder, &err) != FL_OK) fail_msg("%s", err.text);
    model_needs needs;
    assert_int_equal(model_measure(&needs, m, o, 64, 128, &err), FL_OK);
    assert_true(needs.expanded_bytes > 0 && needs.mapped_bytes > 0 && needs.stored_bytes == 0);
    if (model_load(m, o, 64, 128, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(model_dtype(m), DTYPE_BF16);
    model_close(m);
    copy_file("odd_f8", "model.safetensors", "layers.0.mlp.up_proj.weight_scale_inv", "layers.0.mlp.up_proj.weight_xcale_inv");
    refuse(FL_NOT_FOUND, "tensor model.layers.0.mlp.up_proj.weight has dtype F8_E4M3, but neither model.layers.0.mlp.up_proj.weight_scale_inv nor");
}

/* Without files: shapes of a directory or of a name, values of a seed. */
static void random_model_has_the_shape_of_its_config(void **state)
{
    (void)state;
    model *m = NULL;
    model_needs needs;
    fl_err err;
    char path[600];
    copy_file("small_qwen3_5_moe", "config.json", NULL, NULL);
    snprintf(path, sizeof path, "random:7:%s", folder);
    if (model_open(&m, path, o, 64, 128, &err) != FL_OK) fail_msg("%s", err.text);
    assert_null(model_weights(m));
    assert_int_equal(model_dtype(m), DTYPE_BF16);
    model_close(m);
    static const char *const names[] = { "qwen3.5-0.8b", "qwen3-0.6b", "qwen3-8b", "qwen3.5-35b-a3b", "laguna-xs.2" };
    static const double billions[] = { 0.75, 0.6, 8.2, 34.7, 33.4 };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "random:1:%s", names[i]);
        if (model_map(&m, path, &err) != FL_OK) fail_msg("%s", err.text);
        assert_int_equal(model_measure(&needs, m, o, 64, 128, &err), FL_OK);
        double parameters = (double)needs.stored_bytes / 2e9;
        if (parameters < 0.97 * billions[i] || parameters > 1.03 * billions[i]) fail_msg("%s has %.2f billion parameters, not %.2f", names[i], parameters, billions[i]);
        model_close(m);
    }
    static const char *const wrong[] = { "random:", "random:x:qwen3-8b", "random:1", "random:1:", "random:99999999999999999999:qwen3-8b" };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(model_map(&m, wrong[i], &err), FL_INVALID);
        assert_non_null(strstr(err.text, "random:SEED:CONFIG_DIR"));
    }
    assert_int_equal(model_map(&m, "random:1:qwen3-9b", &err), FL_NOT_FOUND);
}

static void untied_head_that_is_missing_is_named(void **state)
{
    (void)state;
    copy_file("small_llama", "config.json", "\"tie_word_embeddings\": true", "\"tie_word_embeddings\":false");
    copy_file("small_llama", "model.safetensors", NULL, NULL);
    refuse(FL_NOT_FOUND, "tensor lm_head.weight");
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/model_open_test.XXXXXX");
    return mkdtemp(folder) && ops_cpu_open(&o, 1, NULL) == FL_OK ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = { "config.json", "model.safetensors" };
    char path[128];
    for (int i = 0; i < 2; i++) { snprintf(path, sizeof path, "%s/%s", folder, names[i]); unlink(path); }
    o->close(o);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_that_is_missing_is_named),
        cmocka_unit_test(dtype_that_holds_no_weights_is_named),
        cmocka_unit_test(shape_that_is_not_the_configs_is_named_with_both),
        cmocka_unit_test(f8_without_its_scales_is_refused),
        cmocka_unit_test(random_model_has_the_shape_of_its_config),
        cmocka_unit_test(untied_head_that_is_missing_is_named),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
