/* Hostile weight files, each with its sentence, and what good ones give. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/safetensors.h"

/* The 8-byte length, the JSON padded with spaces to a multiple of 8, then data_bytes zeros. */
static uint8_t *make_file(const char *json, size_t data_bytes, size_t *n_bytes)
{
    size_t header = (strlen(json) + 7) / 8 * 8;
    uint8_t *bytes = calloc(1, 8 + header + data_bytes + 1);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (uint8_t)((uint64_t)header >> (8 * i));
    memset(bytes + 8, ' ', header);
    memcpy(bytes + 8, json, strlen(json));
    *n_bytes = 8 + header + data_bytes;
    return bytes;
}

static void refuse_bytes(const uint8_t *bytes, size_t n_bytes, fl_status want, const char *part)
{
    safetensors *st = NULL;
    fl_err err;
    fl_status got = safetensors_open_bytes(&st, "model.safetensors", bytes, n_bytes, &err);
    if (got == FL_OK) fail_msg("accepted; wanted \"%s\"", part);
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), err.text, part);
    assert_null(st);
}

static void refuse_json(const char *json, size_t data_bytes, fl_status want, const char *part)
{
    size_t n_bytes;
    uint8_t *bytes = make_file(json, data_bytes, &n_bytes);
    refuse_bytes(bytes, n_bytes, want, part);
    free(bytes);
}

#define ENTRY(dtype, shape, begin, end) "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

static void good_file_gives_its_tensors_sorted_by_name(void **state)
{
    (void)state;
    size_t n_bytes;
    safetensors *st = NULL;
    fl_err err;
    uint8_t *bytes = make_file("{\"__metadata__\":{\"format\":\"pt\"},\"b\":" ENTRY("F32", "[2,3]", "0", "24") ",\"a\":" ENTRY("BF16", "[4]", "24", "32")
                               ",\"ids\":" ENTRY("I64", "[1]", "32", "40") ",\"none\":" ENTRY("F16", "[0,7]", "40", "40") "}", 40, &n_bytes);
    if (safetensors_open_bytes(&st, "x", bytes, n_bytes, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(safetensors_count(st), 4);
    assert_string_equal(safetensors_at(st, 0)->name, "a");
    const tensor *b = safetensors_find(st, "b");
    assert_non_null(b);
    assert_int_equal(b->type, DTYPE_F32);
    assert_int_equal(b->n_dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_ptr_equal(b->data, bytes + n_bytes - 40);
    assert_false(safetensors_find(st, "ids")->is_weight);
    assert_int_equal(safetensors_find(st, "none")->n_bytes, 0);
    assert_null(safetensors_find(st, "c"));
    safetensors_close(st);
    free(bytes);
}

static void truncated_file_is_refused(void **state)
{
    (void)state;
    size_t n_bytes;
    uint8_t *bytes = make_file("{\"a\":" ENTRY("F32", "[4]", "0", "16") "}", 16, &n_bytes);
    refuse_bytes(bytes, n_bytes - 1, FL_CORRUPT, "truncated");
    refuse_bytes(bytes, 20, FL_CORRUPT, "truncated");
    refuse_bytes(bytes, 7, FL_CORRUPT, "no safetensors file");
    refuse_bytes(bytes, 0, FL_CORRUPT, "no safetensors file");
    for (size_t n = 0; n < n_bytes; n++) {               /* every prefix, on an allocation of exactly that size */
        uint8_t *cut = malloc(n ? n : 1);
        assert_non_null(cut);
        memcpy(cut, bytes, n);
        safetensors *st = NULL;
        assert_int_equal(safetensors_open_bytes(&st, "x", cut, n, NULL), FL_CORRUPT);
        free(cut);
    }
    free(bytes);
}

static void header_length_outside_the_file_is_refused(void **state)
{
    (void)state;
    uint8_t bytes[32] = { 0 };
    memset(bytes, 0xFF, 8);
    refuse_bytes(bytes, sizeof bytes, FL_CORRUPT, "the header claims 18446744073709551615 bytes");
    memset(bytes, 0, 8);
    bytes[0] = 25;
    refuse_bytes(bytes, sizeof bytes, FL_CORRUPT, "truncated");
    bytes[0] = 0;
    refuse_bytes(bytes, sizeof bytes, FL_CORRUPT, "not JSON");
}

static void header_that_is_no_object_of_tensors_is_refused(void **state)
{
    (void)state;
    refuse_json("[1,2]", 0, FL_CORRUPT, "no JSON object");
    refuse_json("{\"a\":", 0, FL_CORRUPT, "not JSON");
    refuse_json("{}", 0, FL_CORRUPT, "no tensors");
    refuse_json("{\"a\":7}", 0, FL_CORRUPT, "tensor a has no dtype");
    refuse_json("{\"a\":{\"dtype\":\"F32\"}}", 0, FL_CORRUPT, "tensor a has no shape");
    refuse_json("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, FL_CORRUPT, "tensor a has no data_offsets");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "4", "0") "}", 4, FL_CORRUPT, "tensor a has no data_offsets");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "-4", "0") "}", 4, FL_CORRUPT, "tensor a has no data_offsets");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "0", "4") ",\"a\":" ENTRY("F32", "[1]", "4", "8") "}", 8, FL_CORRUPT, "duplicate");
}

static void unknown_dtype_is_named(void **state)
{
    (void)state;
    refuse_json("{\"a\":" ENTRY("F4", "[2]", "0", "1") "}", 1, FL_UNSUPPORTED, "tensor a has the unknown dtype F4");
}

static void shape_that_does_not_fit_its_bytes_is_refused(void **state)
{
    (void)state;
    refuse_json("{\"a\":" ENTRY("F32", "[5]", "0", "16") "}", 16, FL_CORRUPT, "tensor a has 16 bytes, but its shape and dtype need 20");
    refuse_json("{\"a\":" ENTRY("F32", "[-1]", "0", "16") "}", 16, FL_CORRUPT, "no size");
    refuse_json("{\"a\":" ENTRY("F32", "[1.5]", "0", "16") "}", 16, FL_CORRUPT, "no size");
    refuse_json("{\"a\":" ENTRY("F32", "[4294967296,4294967296,1]", "0", "16") "}", 16, FL_CORRUPT, "overflows");
    refuse_json("{\"a\":" ENTRY("F32", "[4611686018427387904]", "0", "0") "}", 0, FL_CORRUPT, "overflows");
    refuse_json("{\"a\":" ENTRY("F32", "[4611686018427387904,2,0]", "0", "0") "}", 0, FL_CORRUPT, "overflows 63 bits");     /* as what is left of it without the 0 */
    refuse_json("{\"a\":" ENTRY("U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, FL_UNSUPPORTED, "9 dimensions");
}

static void offsets_outside_the_file_are_refused(void **state)
{
    (void)state;
    refuse_json("{\"a\":" ENTRY("F32", "[4]", "0", "16") "}", 8, FL_CORRUPT, "but the file holds 8");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "9223372036854775803", "9223372036854775807") "}", 8, FL_CORRUPT, "but the file holds 8");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "99999999999999999999", "99999999999999999999") "}", 8, FL_CORRUPT, "not JSON");
}

static void overlaps_and_holes_are_refused(void **state)
{
    (void)state;
    refuse_json("{\"a\":" ENTRY("F32", "[2]", "0", "8") ",\"b\":" ENTRY("F32", "[2]", "4", "12") "}", 12, FL_CORRUPT, "tensors a and b overlap");
    refuse_json("{\"a\":" ENTRY("F32", "[2]", "0", "8") ",\"b\":" ENTRY("F32", "[2]", "0", "8") "}", 8, FL_CORRUPT, "overlap");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "4", "8") "}", 8, FL_CORRUPT, "4 bytes before tensor a belong to no tensor");
    refuse_json("{\"a\":" ENTRY("F32", "[1]", "0", "4") "}", 8, FL_CORRUPT, "the last 4 bytes belong to no tensor");
}

static void misaligned_weight_is_refused(void **state)
{
    (void)state;
    refuse_json("{\"a\":" ENTRY("U8", "[1]", "0", "1") ",\"b\":" ENTRY("BF16", "[1]", "1", "3") "}", 3, FL_UNSUPPORTED, "tensor b starts at an address");
}

static void check_value(const char *dtype_name, size_t value_bytes, uint32_t bad)
{
    char json[128];
    size_t n_bytes, n = 5000, at = 4321;
    safetensors *st = NULL;
    fl_err err;
    snprintf(json, sizeof json, "{\"w\":{\"dtype\":\"%s\",\"shape\":[%zu],\"data_offsets\":[0,%zu]}}", dtype_name, n, n * value_bytes);
    uint8_t *bytes = make_file(json, n * value_bytes, &n_bytes);
    assert_int_equal(safetensors_open_bytes(&st, "x", bytes, n_bytes, &err), FL_OK);
    assert_int_equal(tensor_check_finite(safetensors_find(st, "w"), &err), FL_OK);
    memcpy(bytes + n_bytes - (n - at) * value_bytes, &bad, value_bytes);
    assert_int_equal(tensor_check_finite(safetensors_find(st, "w"), &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "tensor w has a NaN or infinite value at index 4321"));
    safetensors_close(st);
    free(bytes);
}

static void nan_and_infinity_are_found(void **state)
{
    (void)state;
    check_value("BF16", 2, 0x7FC0);
    check_value("BF16", 2, 0xFF80);
    check_value("F16", 2, 0x7E00);
    check_value("F16", 2, 0xFC00);
    check_value("F32", 4, 0x7FC00000);
    check_value("F32", 4, 0xFF800000);
}

/* ---- directories ---- */

static char folder[64];

static void write_file(const char *name, const void *bytes, size_t n_bytes)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

static void write_shard(const char *name, const char *tensor_name)
{
    char json[128];
    size_t n_bytes;
    snprintf(json, sizeof json, "{\"%s\":" ENTRY("F32", "[1]", "0", "4") "}", tensor_name);
    uint8_t *bytes = make_file(json, 4, &n_bytes);
    write_file(name, bytes, n_bytes);
    free(bytes);
}

static void refuse_folder(fl_status want, const char *part)
{
    safetensors *st = NULL;
    fl_err err;
    fl_status got = safetensors_open(&st, folder, &err);
    if (got != want || !strstr(err.text, part)) fail_msg("%s: \"%s\"; wanted \"%s\"", fl_status_name(got), got == FL_OK ? "" : err.text, part);
}

static void write_index(const char *map)
{
    char json[256];
    snprintf(json, sizeof json, "{\"metadata\":{},\"weight_map\":%s}", map);
    write_file("model.safetensors.index.json", json, strlen(json));
}

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/safetensors_test.XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const names[] = { "a.safetensors", "b.safetensors", "model.safetensors.index.json", "model.safetensors" };
    char path[128];
    for (int i = 0; i < 4; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if (unlink(path) != 0) rmdir(path);
    }
    return rmdir(folder);
}

static void shards_are_read_as_one(void **state)
{
    (void)state;
    safetensors *st = NULL;
    fl_err err;
    write_shard("a.safetensors", "x");
    write_shard("b.safetensors", "y");
    write_index("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}");
    if (safetensors_open(&st, folder, &err) != FL_OK) fail_msg("%s", err.text);
    assert_int_equal(safetensors_file_count(st), 2);
    assert_int_equal(safetensors_count(st), 2);
    assert_non_null(safetensors_find(st, "y"));
    safetensors_close(st);
}

static void index_that_lies_is_refused(void **state)
{
    (void)state;
    write_shard("a.safetensors", "x");
    write_shard("b.safetensors", "y");
    write_index("{\"x\":\"a.safetensors\",\"y\":\"a.safetensors\"}");
    refuse_folder(FL_CORRUPT, "tensor y is not in a.safetensors");
    write_index("{\"x\":\"b.safetensors\",\"y\":\"a.safetensors\"}");
    refuse_folder(FL_CORRUPT, "is not in");
    write_index("{\"x\":\"../a.safetensors\"}");
    refuse_folder(FL_CORRUPT, "no file of this folder");
    write_index("{\"x\":7}");
    refuse_folder(FL_CORRUPT, "no file of this folder");
    write_index("{}");
    refuse_folder(FL_CORRUPT, "no weight_map");
    write_index("{\"x\":\"a.safetensors\",\"z\":\"c.safetensors\"}");
    refuse_folder(FL_NOT_FOUND, "c.safetensors is missing");
    write_file("model.safetensors.index.json", "nonsense", 8);
    refuse_folder(FL_CORRUPT, "not JSON");
    write_shard("b.safetensors", "x");
    write_index("{\"x\":\"a.safetensors\",\"y\":\"b.safetensors\"}");
    refuse_folder(FL_CORRUPT, "tensor x is in two files");
}

static void folder_without_weights_is_refused(void **state)
{
    (void)state;
    char path[128];
    refuse_folder(FL_NOT_FOUND, "name a model directory");
    write_file("model.safetensors", "", 0);
    refuse_folder(FL_CORRUPT, "0 bytes are no safetensors file");
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    refuse_folder(FL_INVALID, "is not a file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_file_gives_its_tensors_sorted_by_name),
        cmocka_unit_test(truncated_file_is_refused),
        cmocka_unit_test(header_length_outside_the_file_is_refused),
        cmocka_unit_test(header_that_is_no_object_of_tensors_is_refused),
        cmocka_unit_test(unknown_dtype_is_named),
        cmocka_unit_test(shape_that_does_not_fit_its_bytes_is_refused),
        cmocka_unit_test(offsets_outside_the_file_are_refused),
        cmocka_unit_test(overlaps_and_holes_are_refused),
        cmocka_unit_test(misaligned_weight_is_refused),
        cmocka_unit_test(nan_and_infinity_are_found),
        cmocka_unit_test_setup_teardown(shards_are_read_as_one, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(index_that_lies_is_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(folder_without_weights_is_refused, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
