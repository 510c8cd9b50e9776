/* GGUF files made byte by byte: typed readers, what is refused and why, file-type tags, split models. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>
#include "engine/gguf.h"
#include "engine/gguf_names.h"
#include "engine/gguf_type.h"

/* ---- making files ---- */

typedef struct { uint8_t bytes[8192]; size_t n; } file;

static void put(file *f, const void *data, size_t n) { assert_true(f->n + n <= sizeof f->bytes); memcpy(f->bytes + f->n, data, n); f->n += n; }
static void put_u32(file *f, uint32_t v) { put(f, &v, sizeof v); }
static void put_u64(file *f, uint64_t v) { put(f, &v, sizeof v); }
static void put_text(file *f, const char *text) { put_u64(f, strlen(text)); put(f, text, strlen(text)); }

static void begin(file *f, uint64_t n_tensors, uint64_t n_keys) { f->n = 0; put(f, "GGUF", 4); put_u32(f, 3); put_u64(f, n_tensors); put_u64(f, n_keys); }

static void put_scalar(file *f, const char *key, gguf_kind kind, const void *value, size_t n) { put_text(f, key); put_u32(f, kind); put(f, value, n); }

static void put_array(file *f, const char *key, gguf_kind element, uint64_t count, const void *values, size_t n)
{
    put_text(f, key);
    put_u32(f, GGUF_ARRAY);
    put_u32(f, element);
    put_u64(f, count);
    put(f, values, n);
}

static void put_tensor(file *f, const char *name, uint32_t type, uint64_t cols, uint64_t rows, uint64_t offset)
{
    put_text(f, name);
    put_u32(f, 2);
    put_u64(f, cols);
    put_u64(f, rows);
    put_u32(f, type);
    put_u64(f, offset);
}

static void pad(file *f) { while (f->n % 32) put(f, "", 1); }

static gguf *open_good(const file *f)
{
    gguf *g = NULL;
    fl_err err;
    if (gguf_open_bytes(&g, "x.gguf", f->bytes, f->n, &err) != FL_OK) fail_msg("%s", err.text);
    return g;
}

static void refuse(const file *f, fl_status want, const char *part)
{
    gguf *g = NULL;
    fl_err err = { 0 };
    fl_status st = gguf_open_bytes(&g, "x.gguf", f->bytes, f->n, &err);
    if (st != want || !strstr(err.text, part)) fail_msg("%s, wanted %s with \"%s\": %s", fl_status_name(st), fl_status_name(want), part, err.text);
    assert_null(g);
}

/* ---- readers ---- */

static void whole_numbers_of_every_width_are_read(void **state)
{
    static const struct { gguf_kind kind; size_t n; uint64_t bits; int64_t want; } cases[] = {
        { GGUF_U8, 1, 200, 200 }, { GGUF_I8, 1, 200, -56 }, { GGUF_U16, 2, 60000, 60000 }, { GGUF_I16, 2, 60000, -5536 }, { GGUF_U32, 4, 4000000000u, 4000000000 },
        { GGUF_I32, 4, 4000000000u, -294967296 }, { GGUF_U64, 8, INT64_MAX, INT64_MAX }, { GGUF_I64, 8, (uint64_t)INT64_MIN, INT64_MIN },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file f;
        fl_err err;
        int64_t v = 0;
        begin(&f, 0, 1);
        put_scalar(&f, "k", cases[i].kind, &cases[i].bits, cases[i].n);
        gguf *g = open_good(&f);
        assert_int_equal(gguf_int(g, "k", INT64_MIN, INT64_MAX, &v, &err), FL_OK);
        assert_true(v == cases[i].want);
        assert_int_equal(gguf_int(g, "k", 0, 1, &v, &err), FL_CORRUPT);
        assert_int_equal(gguf_int(g, "absent", 0, 1, &v, &err), FL_NOT_FOUND);
        gguf_close(g);
    }
}

static void a_wrong_type_is_told_from_an_absent_key(void **state)
{
    file f;
    fl_err err;
    int64_t v = 7;
    uint32_t *list = NULL;
    size_t n;
    const float half = 0.5f;
    const int32_t numbers[3] = { 1, -2, 3 };
    const uint8_t flags[2] = { 1, 0 };
    (void)state;
    begin(&f, 0, 4);
    put_scalar(&f, "half", GGUF_F32, &half, 4);
    put_array(&f, "numbers", GGUF_I32, 3, numbers, sizeof numbers);
    put_array(&f, "flags", GGUF_BOOL, 2, flags, sizeof flags);
    put_array(&f, "halves", GGUF_F32, 1, &half, 4);
    gguf *g = open_good(&f);
    assert_int_equal(gguf_int(g, "half", 0, 9, &v, &err), FL_CORRUPT);
    assert_string_equal(err.text, "x.gguf: key half is a f32, but a whole number is wanted");
    assert_int_equal(gguf_int(g, "numbers", 0, 9, &v, &err), FL_CORRUPT);
    assert_string_equal(err.text, "x.gguf: key numbers is an array of 3 i32 values, but a whole number is wanted");
    assert_int_equal(gguf_u32_array(g, "numbers", 3, &list, &n, &err), FL_CORRUPT);
    assert_string_equal(err.text, "x.gguf: entry 1 of key numbers is -2, which is not 0 to 4294967295");
    assert_int_equal(gguf_u32_array(g, "halves", 0, &list, &n, &err), FL_CORRUPT);
    assert_int_equal(gguf_u32_array(g, "flags", 3, &list, &n, &err), FL_CORRUPT);
    assert_string_equal(err.text, "x.gguf: key flags has 2 entries, but 3 are wanted");
    assert_int_equal(gguf_u32_array(g, "absent", 0, &list, &n, &err), FL_NOT_FOUND);
    assert_int_equal(gguf_u32_array(g, "flags", 2, &list, &n, &err), FL_OK);
    assert_true(n == 2 && list[0] == 1 && list[1] == 0 && v == 7);
    free(list);
    gguf_close(g);
}

/* ---- what is refused ---- */

static void damaged_files_are_refused_with_their_numbers(void **state)
{
    file f;
    const uint64_t huge = UINT64_MAX;
    (void)state;
    begin(&f, 0, 0);
    f.bytes[0] = 'X';
    refuse(&f, FL_CORRUPT, "does not begin with GGUF");
    begin(&f, 0, 0);
    memcpy(f.bytes + 4, "\0\0\0\3", 4);
    refuse(&f, FL_UNSUPPORTED, "big-endian");
    begin(&f, 0, 0);
    f.bytes[4] = 1;
    refuse(&f, FL_UNSUPPORTED, "version 1");
    begin(&f, 0, huge);
    refuse(&f, FL_CORRUPT, "truncated or damaged");
    begin(&f, 0, 1);
    put_array(&f, "list", GGUF_F64, huge / 4, &huge, 8);
    refuse(&f, FL_CORRUPT, "key list needs 18446744073709551615 bytes at offset");
    begin(&f, 0, 1);
    put_array(&f, "list", GGUF_STRING, huge, &huge, 8);
    refuse(&f, FL_CORRUPT, "key list needs");
    begin(&f, 0, 1);
    put_text(&f, "k");
    put_u32(&f, 13);
    refuse(&f, FL_CORRUPT, "key k has the unknown value type 13");
    begin(&f, 0, 2);
    for (int i = 0; i < 2; i++) put_scalar(&f, "twice", GGUF_U64, &huge, 8);
    refuse(&f, FL_CORRUPT, "key twice is there twice");
}

static void tensors_lie_inside_the_file_and_apart(void **state)
{
    file f;
    (void)state;
    begin(&f, 1, 0);
    put_tensor(&f, "a", 77, 4, 1, 0);
    refuse(&f, FL_UNSUPPORTED, "tensor a has the type number 77");
    begin(&f, 1, 0);
    put_tensor(&f, "a", 2, 33, 1, 0);
    refuse(&f, FL_CORRUPT, "rows of 33 values, which are no whole blocks of Q4_0 (32 values)");
    begin(&f, 1, 0);
    put_tensor(&f, "a", 0, 1ull << 40, 1ull << 40, 0);
    refuse(&f, FL_CORRUPT, "overflows 63 bits");
    begin(&f, 1, 0);                                     /* nor may what is left of it when a dimension is 0 */
    put_text(&f, "a");
    put_u32(&f, 3);
    for (int i = 0; i < 3; i++) put_u64(&f, i == 0 ? 0 : 1ull << 62);
    refuse(&f, FL_CORRUPT, "overflows 63 bits at dimension 2");
    begin(&f, 1, 0);
    put_tensor(&f, "a", 0, 4, 1, 8);
    refuse(&f, FL_CORRUPT, "no multiple of the alignment 32");
    begin(&f, 1, 0);
    put_tensor(&f, "a", 0, 4, 2, UINT64_MAX - 31);
    refuse(&f, FL_CORRUPT, "32 bytes at offset 18446744073709551584 of the data");
    begin(&f, 2, 0);
    put_tensor(&f, "a", 0, 16, 1, 0);
    put_tensor(&f, "b", 0, 16, 1, 32);
    pad(&f);
    for (int i = 0; i < 3; i++) put(&f, (const uint8_t[32]){ 0 }, 32);
    refuse(&f, FL_CORRUPT, "overlap");
    begin(&f, 2, 0);
    put_tensor(&f, "b", 8, 32, 1, 64);
    put_tensor(&f, "a", 0, 16, 1, 0);
    pad(&f);
    for (int i = 0; i < 4; i++) put(&f, (const uint8_t[32]){ 0 }, 32);
    gguf *g = open_good(&f);
    const tensor *t = gguf_tensor_find(g, "b");
    assert_true(gguf_tensor_count(g) == 2 && t->n_bytes == 34 && t->n_dims == 2 && t->shape[0] == 1 && t->shape[1] == 32 && strcmp(t->dtype_name, "Q8_0") == 0);
    gguf_close(g);
    begin(&f, 1, 0);                                     /* a scalar is one value */
    put_text(&f, "a");
    put_u32(&f, 0);
    put_u32(&f, 0);
    put_u64(&f, 0);
    pad(&f);
    put(&f, (const uint8_t[32]){ 0 }, 32);
    g = open_good(&f);
    t = gguf_tensor_find(g, "a");
    assert_true(t->n_dims == 1 && t->shape[0] == 1 && t->n_bytes == 4);
    gguf_close(g);
}

/* ---- tags and names ---- */

static void every_file_type_has_its_tag(void **state)
{
    static const char *const tags[] = { "F32", "F16", "Q4_0", "Q4_1", "", "", "", "Q8_0", "Q5_0", "Q5_1", "Q2_K", "Q3_K_S", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K",
                                        "IQ2_XXS", "IQ2_XS", "Q2_K_S", "IQ3_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ3_M", "IQ2_S", "IQ2_M", "IQ4_XS", "IQ1_M", "BF16", "", "", "",
                                        "TQ1_0", "TQ2_0", "MXFP4_MOE", "NVFP4", "Q1_0", "" };
    (void)state;
    for (int64_t i = 0; i < (int64_t)(sizeof tags / sizeof *tags); i++) assert_string_equal(gguf_file_type_tag(i), tags[i]);
    assert_string_equal(gguf_file_type_tag(1024), "GUESSED");
    assert_string_equal(gguf_file_type_tag(-1), "");
    assert_string_equal(gguf_file_type_tag(INT64_MAX), "");
    assert_null(gguf_type_find(4));
    assert_null(gguf_type_find(UINT32_MAX));
    assert_string_equal(gguf_type_find(23)->name, "IQ4_XS");
}

static void models_are_called_after_their_file(void **state)
{
    static const char *const names[][2] = { { "/a/b/x.gguf", "x" }, { "y-Q4_K_M.GGUF", "y-Q4_K_M" }, { "m/z-00001-of-00003.gguf", "z" }, { "z-0001-of-0003.gguf", "z-0001-of-0003" } };
    (void)state;
    for (size_t i = 0; i < 4; i++) {
        char *name = gguf_model_name(names[i][0]);
        assert_string_equal(name, names[i][1]);
        free(name);
    }
}

static void names_are_those_of_the_package(void **state)
{
    static const struct { const char *family, *name, *want; gguf_change change; } cases[] = {
        { "llama", "model.layers.12.self_attn.q_proj.weight", "blk.12.attn_q.weight", GGUF_TURNED_QUERIES }, { "qwen3", "model.layers.12.self_attn.q_proj.weight", "blk.12.attn_q.weight", GGUF_AS_IS },
        { "gemma3", "model.layers.0.post_attention_layernorm.weight", "blk.0.post_attention_norm.weight", GGUF_AS_IS }, { "llama", "model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", GGUF_AS_IS },
        { "qwen3_5", "model.layers.3.linear_attn.A_log", "blk.3.ssm_a", GGUF_DECAY }, { "laguna", "lm_head.weight", "output.weight", GGUF_AS_IS },
    };
    char out[64];
    gguf_change change;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(gguf_tensor_name(out, sizeof out, &change, cases[i].family, cases[i].name));
        assert_string_equal(out, cases[i].want);
        assert_int_equal(change, cases[i].change);
    }
    assert_false(gguf_tensor_name(out, sizeof out, &change, "llama", "model.layers.0.self_attn.rotary_emb.inv_freq"));
    assert_false(gguf_tensor_name(out, 8, &change, "llama", "model.layers.0.mlp.up_proj.weight"));
}

/* ---- split models ---- */

static void write_part(const char *folder, uint16_t number, uint16_t count, const char *name, int32_t n_tensors)
{
    char path[200];
    file f;
    begin(&f, 1, 3);
    put_scalar(&f, "split.no", GGUF_U16, &number, 2);
    put_scalar(&f, "split.count", GGUF_U16, &count, 2);
    put_scalar(&f, "split.tensors.count", GGUF_I32, &n_tensors, 4);
    put_tensor(&f, name, 0, 8, 1, 0);
    pad(&f);
    put(&f, (const uint8_t[32]){ 0 }, 32);
    snprintf(path, sizeof path, "%s/m-%05d-of-00002.gguf", folder, number + 1);
    FILE *out = fopen(path, "wbe");
    assert_non_null(out);
    assert_int_equal(fwrite(f.bytes, 1, f.n, out), f.n);
    assert_int_equal(fclose(out), 0);
}

static void split_files_are_one_model(void **state)
{
    char folder[] = "/tmp/gguf_test.XXXXXX", first[200], second[200], third[200];
    gguf *g = NULL;
    fl_err err;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(first, sizeof first, "%s/m-00001-of-00002.gguf", folder);
    snprintf(second, sizeof second, "%s/m-00002-of-00002.gguf", folder);
    snprintf(third, sizeof third, "%s/other", folder);
    write_part(folder, 0, 2, "a", 2);
    assert_int_equal(gguf_open(&g, first, &err), FL_NOT_FOUND);
    assert_non_null(strstr(err.text, "m-00002-of-00002.gguf, part 2 of 2 of the model; put all parts beside the first"));
    write_part(folder, 1, 2, "b", 2);
    assert_int_equal(gguf_open(&g, first, &err), FL_OK);
    assert_true(gguf_tensor_count(g) == 2 && gguf_file_count(g) == 2 && gguf_tensor_find(g, "b") && strcmp(gguf_tensor_find(g, "b")->file, "m-00002-of-00002.gguf") == 0);
    gguf_close(g);
    assert_int_equal(gguf_open(&g, second, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "name the first part"));
    assert_int_equal(rename(first, third), 0);           /* the two change names */
    assert_int_equal(rename(second, first), 0);
    assert_int_equal(rename(third, second), 0);
    assert_int_equal(gguf_open(&g, first, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "says that it is part 2 of 2, its name that it is the first; give the parts their own names back"));
    write_part(folder, 0, 2, "a", 2);
    write_part(folder, 1, 3, "b", 2);
    assert_int_equal(gguf_open(&g, first, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "the file says that it is part 2 of 3, its name that it is part 2 of 2"));
    write_part(folder, 1, 2, "a", 2);
    assert_int_equal(gguf_open(&g, first, &err), FL_CORRUPT);
    assert_non_null(strstr(err.text, "tensor a is there twice"));
    unlink(first);
    unlink(second);
    rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers_of_every_width_are_read), cmocka_unit_test(a_wrong_type_is_told_from_an_absent_key), cmocka_unit_test(damaged_files_are_refused_with_their_numbers),
        cmocka_unit_test(tensors_lie_inside_the_file_and_apart), cmocka_unit_test(every_file_type_has_its_tag), cmocka_unit_test(models_are_called_after_their_file),
        cmocka_unit_test(names_are_those_of_the_package), cmocka_unit_test(split_files_are_one_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
