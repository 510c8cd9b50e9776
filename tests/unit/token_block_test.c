#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <lz4.h>
#include <math.h>

#include "proto/bytes.h"
#include "proto/token_block.h"

static uint32_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static uint8_t *encode_ids(const int32_t *ids, size_t n, size_t *n_bytes)
{
    uint8_t *block = malloc(fl_token_block_bound(n));
    fl_err err;
    assert_int_equal(fl_token_block_encode(block, fl_token_block_bound(n), n_bytes, ids, n, &err), FL_OK);
    return realloc(block, *n_bytes);                     /* exact, so that the address sanitizer sees a read past the end */
}

static uint8_t *encode_floats(const float *values, size_t n, size_t *n_bytes)
{
    uint8_t *block = malloc(fl_float_block_bound(n));
    fl_err err;
    assert_int_equal(fl_float_block_encode(block, fl_float_block_bound(n), n_bytes, values, n, &err), FL_OK);
    return realloc(block, *n_bytes);
}

static void assert_ids_come_back(const int32_t *ids, size_t n)
{
    size_t n_bytes, got_n = 99, used = 0;
    int32_t *got = NULL;
    uint8_t *block = encode_ids(ids, n, &n_bytes);
    assert_true(n_bytes <= fl_token_block_bound(n));
    assert_int_equal(fl_token_block_decode(&got, &got_n, &used, block, n_bytes, n, NULL), FL_OK);
    assert_int_equal(got_n, n);
    assert_int_equal(used, n_bytes);
    if (n) assert_memory_equal(got, ids, n * sizeof *ids);
    else assert_null(got);
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) most = (uint32_t)ids[i] > most ? (uint32_t)ids[i] : most;
    assert_int_equal(fl_token_block_check(&got_n, &used, block, n_bytes, n, most + 1, NULL), FL_OK);
    assert_int_equal(got_n, n);
    assert_int_equal(used, n_bytes);
    if (n) assert_int_equal(fl_token_block_check(&got_n, &used, block, n_bytes, n, most, NULL), FL_CORRUPT);
    free(got);
    free(block);
}

static void ids_of_every_size_come_back(void **state)
{
    (void)state;
    const int32_t edges[] = { 0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 268435455, 268435456, INT32_MAX };
    for (size_t n = 0; n <= 11; n++) assert_ids_come_back(edges, n);
    static int32_t ids[5000];
    uint64_t random = 7;
    for (int bits = 1; bits <= 31; bits += 6)
        for (size_t n = 0; n <= 5000; n = n * 3 + 1) {
            for (size_t i = 0; i < n; i++) ids[i] = (int32_t)(next_random(&random) & (uint32_t)(((uint64_t)1 << bits) - 1));
            assert_ids_come_back(ids, n);
        }
}

static void repeated_ids_are_packed_and_random_ones_are_stored(void **state)
{
    (void)state;
    static int32_t same[4096], mixed[64];
    uint64_t random = 3;
    for (size_t i = 0; i < 4096; i++) same[i] = 1234;
    for (size_t i = 0; i < 64; i++) mixed[i] = (int32_t)(next_random(&random) & 0x0FFFFFFF);
    size_t n_bytes;
    uint8_t *block = encode_ids(same, 4096, &n_bytes);
    assert_int_equal(fl_get_u16(block + 6), 1);
    assert_true(n_bytes < 100);
    free(block);
    block = encode_ids(mixed, 64, &n_bytes);
    assert_int_equal(fl_get_u16(block + 6), 0);
    free(block);
}

static void the_layout_is_fixed(void **state)
{
    (void)state;
    size_t n_bytes;
    uint8_t *block = encode_ids((int32_t[]){ 300, 5 }, 2, &n_bytes);
    assert_int_equal(n_bytes, 35);
    assert_memory_equal(block, "TTB1\x01\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00\x00\x00\x00\x00", 24);
    assert_memory_equal(block + 32, "\xAC\x02\x05", 3);
    assert_int_equal(fl_get_u64(block + 24), fl_checksum(0, (fl_bytes[]){ { block, 24 }, { block + 32, 3 } }, 2));
    free(block);
    block = encode_floats((float[]){ -1.5f, 2.0f }, 2, &n_bytes);   /* 0xBFC00000, 0x40000000: planes from the low byte up */
    assert_memory_equal(block, "TFB1\x01\x00\x00\x00\x02\x00\x00\x00\x08\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00\x00", 24);
    assert_memory_equal(block + 32, "\x00\x00\x00\x00\xC0\x00\xBF\x40", 8);
    free(block);
}

static void the_room_given_does_not_change_the_bytes(void **state)
{
    (void)state;
    static int32_t ids[1000];
    static uint8_t tight[5 * 1000 + 32], wide[20000];
    uint64_t random = 11;
    for (size_t i = 0; i < 1000; i++) ids[i] = (int32_t)(next_random(&random) % 300);
    size_t a, b;
    assert_int_equal(fl_token_block_encode(tight, fl_token_block_bound(1000), &a, ids, 1000, NULL), FL_OK);
    assert_int_equal(fl_token_block_encode(wide, sizeof wide, &b, ids, 1000, NULL), FL_OK);
    assert_int_equal(a, b);
    assert_memory_equal(tight, wide, a);
}

static void floats_keep_their_bits(void **state)
{
    (void)state;
    const float edges[] = { 0.0f, -0.0f, 1.0f, -9999.0f, INFINITY, -INFINITY, NAN, 1e-45f, 3.4e38f };
    static float values[3000];
    uint64_t random = 5;
    for (size_t i = 0; i < 3000; i++) values[i] = i < 9 ? edges[i] : -(float)(next_random(&random) % 20000) / 1024.0f;
    for (size_t n = 0; n <= 3000; n = n * 2 + 1) {
        size_t n_bytes, got_n = 99, used = 0;
        float *got = NULL;
        uint8_t *block = encode_floats(values, n, &n_bytes);
        assert_int_equal(fl_float_block_decode(&got, &got_n, &used, block, n_bytes, n, NULL), FL_OK);
        assert_int_equal(got_n, n);
        assert_int_equal(used, n_bytes);
        if (n) assert_memory_equal(got, values, n * sizeof *values);
        free(got);
        free(block);
    }
}

static void what_cannot_be_encoded_is_refused(void **state)
{
    (void)state;
    uint8_t out[64];
    size_t n_bytes;
    fl_err err;
    assert_int_equal(fl_token_block_encode(out, sizeof out, &n_bytes, (int32_t[]){ 1, -1 }, 2, &err), FL_INVALID);
    assert_non_null(strstr(err.text, "negative"));
    assert_int_equal(fl_token_block_encode(out, 36, &n_bytes, (int32_t[]){ 1 }, 1, &err), FL_INVALID);
    assert_int_equal(fl_token_block_encode(out, 37, &n_bytes, (int32_t[]){ 1 }, 1, &err), FL_OK);
    assert_int_equal(fl_token_block_encode(out, SIZE_MAX, &n_bytes, NULL, SIZE_MAX / 8, &err), FL_INVALID);
    assert_int_equal(fl_float_block_encode(out, SIZE_MAX, &n_bytes, NULL, SIZE_MAX / 8, &err), FL_INVALID);
}

static fl_status decode_either(const uint8_t *block, size_t n_bytes, size_t count_max)
{
    int32_t *ids = NULL;
    float *values = NULL;
    size_t n = 0, used = 0;
    fl_status as_ids = fl_token_block_decode(&ids, &n, &used, block, n_bytes, count_max, NULL);
    assert_int_equal(fl_token_block_check(&n, &used, block, n_bytes, count_max, UINT32_C(1) << 31, NULL), as_ids);
    fl_status as_floats = fl_float_block_decode(&values, &n, &used, block, n_bytes, count_max, NULL);
    assert_true(as_ids != FL_OK || as_floats != FL_OK);
    assert_true((as_ids == FL_OK) == (ids != NULL) && (as_floats == FL_OK) == (values != NULL));
    free(ids);
    free(values);
    return as_ids == FL_OK || as_floats == FL_OK ? FL_OK : FL_CORRUPT;
}

static void every_cut_and_every_flipped_bit_is_refused(void **state)
{
    (void)state;
    int32_t packed[200];
    float values[40];
    for (int i = 0; i < 200; i++) packed[i] = i % 3 * 1000;
    for (int i = 0; i < 40; i++) values[i] = -0.25f * (float)i;
    size_t sizes[3];
    uint8_t *blocks[3] = { encode_ids(packed, 200, &sizes[0]), encode_ids((int32_t[]){ 7, 300, 70000 }, 3, &sizes[1]), encode_floats(values, 40, &sizes[2]) };
    for (int b = 0; b < 3; b++) {
        assert_int_equal(decode_either(blocks[b], sizes[b], 200), FL_OK);
        for (size_t cut = 0; cut < sizes[b]; cut++) {
            uint8_t *exact = malloc(cut + 1);
            memcpy(exact + 1, blocks[b], cut);
            assert_int_equal(decode_either(exact + 1, cut, 200), FL_CORRUPT);
            free(exact);
        }
        for (size_t i = 0; i < sizes[b] * 8; i++) {
            blocks[b][i / 8] ^= (uint8_t)(1 << i % 8);
            assert_int_equal(decode_either(blocks[b], sizes[b], 200), FL_CORRUPT);
            blocks[b][i / 8] ^= (uint8_t)(1 << i % 8);
        }
        free(blocks[b]);
    }
}

/* A block with a right checksum around whatever the header says. */
static size_t forge(uint8_t *out, const char *magic, uint16_t flags, uint32_t count, uint32_t raw, uint32_t packed, const void *bytes, size_t n)
{
    memcpy(out, magic, 4);
    fl_put_u16(out + 4, 1);
    fl_put_u16(out + 6, flags);
    fl_put_u32(out + 8, count);
    fl_put_u32(out + 12, raw);
    fl_put_u32(out + 16, packed);
    fl_put_u32(out + 20, 0);
    if (n) memcpy(out + 32, bytes, n);
    fl_put_u64(out + 24, fl_checksum(0, (fl_bytes[]){ { out, 24 }, { out + 32, packed < n ? packed : n } }, 2));
    return 32 + n;
}

static void hostile_headers_with_a_right_checksum_are_refused(void **state)
{
    (void)state;
    uint8_t out[128];
    const size_t any = SIZE_MAX;
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 2, 2, 2, "\x01\x02", 2), any), FL_OK);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 2, 2, 2, "\x01\x02", 2), 1), FL_CORRUPT);          /* over the caller's limit */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 3, 2, 2, "\x01\x02", 2), any), FL_CORRUPT);        /* raw below count */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 0, 2, 2, "\x01\x02", 2), any), FL_CORRUPT);        /* raw above 5 * count */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 2, 4, 2, "\x01\x02", 2), any), FL_CORRUPT);        /* stored, sizes differ */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 1, 2, 2, "\x01\x02", 2), any), FL_CORRUPT);        /* bytes after the last id */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 1, 2, 2, "\x81\x00", 2), any), FL_CORRUPT);        /* a longer form of 1 */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 2, 4, 4, "\x81\x00\x01\x01", 4), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 2, 5, 5, "\x81\x80\x00\x01\x01", 5), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 1, 5, 5, "\xff\xff\xff\xff\x0f", 5), any), FL_CORRUPT);   /* 2^32-1 */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 0, 1, 5, 5, "\xff\xff\xff\xff\x07", 5), any), FL_OK);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 2, 2, 2, 2, "\x01\x02", 2), any), FL_CORRUPT);        /* an unknown flag */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 400000000, 2000000000, 20, "\x01\x02", 2), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 400000000, 400000000, 2, "\x01\x02", 2), any), FL_CORRUPT);   /* past LZ4's ratio */
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, UINT32_MAX, UINT32_MAX, 2, "\x01\x02", 2), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 100, 100, 3, "\xff\xff\xff", 3), any), FL_CORRUPT);   /* no LZ4 */
    assert_int_equal(decode_either(out, forge(out, "TFB1", 0, 1, 5, 5, "\x01\x02\x03\x04\x05", 5), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TFB1", 0, 0x40000001, 4, 4, "\x01\x02\x03\x04", 4), any), FL_CORRUPT);   /* 4 * count wraps */
    uint8_t shorter[64];
    char raw[80] = { 0 };
    int packed = LZ4_compress_default(raw, (char *)shorter, 80, 64);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 80, 80, (uint32_t)packed, shorter, (size_t)packed), any), FL_OK);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 81, 81, (uint32_t)packed, shorter, (size_t)packed), any), FL_CORRUPT);
    assert_int_equal(decode_either(out, forge(out, "TTB1", 1, 79, 79, (uint32_t)packed, shorter, (size_t)packed), any), FL_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_of_every_size_come_back),
        cmocka_unit_test(repeated_ids_are_packed_and_random_ones_are_stored),
        cmocka_unit_test(the_layout_is_fixed),
        cmocka_unit_test(the_room_given_does_not_change_the_bytes),
        cmocka_unit_test(floats_keep_their_bits),
        cmocka_unit_test(what_cannot_be_encoded_is_refused),
        cmocka_unit_test(every_cut_and_every_flipped_bit_is_refused),
        cmocka_unit_test(hostile_headers_with_a_right_checksum_are_refused),
    };
    return cmocka_run_group_tests_name("token_block", tests, NULL, NULL);
}
