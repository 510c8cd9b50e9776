#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/bytes.h"

static void numbers_are_little_endian(void **state)
{
    (void)state;
    uint8_t bytes[8];
    fl_put_u64(bytes, 0x0807060504030201u);
    assert_memory_equal(bytes, "\x01\x02\x03\x04\x05\x06\x07\x08", 8);
    assert_int_equal(fl_get_u64(bytes), 0x0807060504030201u);
    assert_int_equal(fl_get_u32(bytes + 1), 0x05040302);
    assert_int_equal(fl_get_u16(bytes + 3), 0x0504);
    fl_put_u32(bytes, 0xFFFEFDFC);
    assert_int_equal(fl_get_u32(bytes), 0xFFFEFDFC);
    fl_put_u16(bytes, 0xFEDC);
    assert_int_equal(fl_get_u16(bytes), 0xFEDC);
}

static void a_checksum_does_not_see_the_borders_of_pieces(void **state)
{
    (void)state;
    const char text[] = "a checksum over pieces is that of the whole";
    uint64_t whole = fl_checksum(3, &(fl_bytes){ text, sizeof text }, 1);
    for (size_t cut = 0; cut <= sizeof text; cut++)
        assert_int_equal(fl_checksum(3, (fl_bytes[]){ { text, cut }, { text + cut, sizeof text - cut } }, 2), whole);
    assert_int_not_equal(fl_checksum(4, &(fl_bytes){ text, sizeof text }, 1), whole);
    assert_int_equal(fl_checksum(0, NULL, 0), 0x2D06800538D394C2u);   /* XXH3-64 of nothing, from its specification */
}

static void varints_come_back_in_one_form_only(void **state)
{
    (void)state;
    const uint32_t values[] = { 0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 268435455, 268435456, INT32_MAX, UINT32_MAX };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        uint8_t bytes[FL_VARINT_BYTES_MAX];
        size_t n = (size_t)(fl_put_varint(bytes, values[i]) - bytes), at = 0;
        assert_int_equal(fl_get_varint(bytes, n, &at), values[i]);
        assert_int_equal(at, n);
        for (size_t cut = 0; cut < n; cut++) {
            at = 0;
            assert_true(fl_get_varint(bytes, cut, &at) == FL_NO_VARINT);
        }
    }
    const char *bad[] = { "\x80\x00", "\x81\x80\x00", "\xff\xff\xff\xff\x10", "\xff\xff\xff\xff\x7f", "\xff\xff\xff\xff\xff\x01" };
    const size_t bad_bytes[] = { 2, 3, 5, 5, 6 };
    for (size_t i = 0; i < 5; i++) {
        size_t at = 0;
        assert_true(fl_get_varint((const uint8_t *)bad[i], bad_bytes[i], &at) == FL_NO_VARINT);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_little_endian),
        cmocka_unit_test(a_checksum_does_not_see_the_borders_of_pieces),
        cmocka_unit_test(varints_come_back_in_one_form_only),
    };
    return cmocka_run_group_tests_name("bytes", tests, NULL, NULL);
}
