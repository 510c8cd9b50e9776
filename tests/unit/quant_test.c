/* quant_test.c - stored weights mean what the reference says: bit for bit the values of quant_vectors.bin (tests/unit/data/make_quant_vectors.py). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include "kernels/quant.h"

typedef struct { char name[8]; uint32_t n, bytes, values; } vector_head;

static void must_read(void *to, size_t bytes, FILE *f) { assert_int_equal(fread(to, 1, bytes, f), bytes); }

static void every_quantized_type_decodes_to_the_references_bits(void **state)
{
    (void)state;
    FILE *f = fopen(TESTS_DIR "/unit/data/quant_vectors.bin", "rb");
    assert_non_null(f);
    for (int type = 0; type < DTYPE_COUNT; type++) {
        if (!dtype_is_quantized((dtype)type)) continue;
        vector_head head;
        must_read(&head, sizeof head, f);
        assert_string_equal(head.name, dtype_name((dtype)type));
        assert_int_equal(head.values, dtype_block_values((dtype)type));
        assert_int_equal(head.bytes, dtype_block_bytes((dtype)type));
        int32_t n = (int32_t)(head.n * head.values);
        size_t bytes = (size_t)head.n * head.bytes;
        assert_int_equal(bytes, dtype_row_bytes((dtype)type, n));
        uint8_t *blocks = malloc(bytes);
        float *want = malloc((size_t)n * sizeof *want), *got = malloc((size_t)n * sizeof *got);
        assert_true(blocks && want && got);
        must_read(blocks, bytes, f);
        must_read(want, (size_t)n * sizeof *want, f);
        dtype_decode(got, (dtype)type, blocks, n);
        for (int32_t i = 0; i < n; i++)
            if (memcmp(&want[i], &got[i], sizeof *got) != 0 && !(isnan(want[i]) && isnan(got[i])))
                fail_msg("%s: value %d is %a, the reference says %a", head.name, i, (double)got[i], (double)want[i]);
        free(blocks);
        free(want);
        free(got);
    }
    assert_int_equal(fgetc(f), EOF);
    fclose(f);
}

static void plain_types_decode_to_their_values(void **state)
{
    (void)state;
    const uint16_t bf16[] = { 0x3f80, 0xc000, 0x0001 }, f16[] = { 0x3c00, 0xc000, 0x0001 };
    const float f32[] = { 1.0f, -2.0f, 0x1p-149f };
    float got[3];
    dtype_decode(got, DTYPE_BF16, bf16, 3);
    assert_true(got[0] == 1.0f && got[1] == -2.0f && got[2] == 0x1p-133f);
    dtype_decode(got, DTYPE_F16, f16, 3);
    assert_true(got[0] == 1.0f && got[1] == -2.0f && got[2] == 0x1p-24f);
    dtype_decode(got, DTYPE_F32, f32, 3);
    assert_memory_equal(got, f32, sizeof f32);
    assert_int_equal(dtype_row_bytes(DTYPE_BF16, 3), 6);
    assert_int_equal(dtype_row_bytes(DTYPE_F32, 3), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_quantized_type_decodes_to_the_references_bits),
        cmocka_unit_test(plain_types_decode_to_their_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
