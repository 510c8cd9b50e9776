#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/msgpack_check.h"

static void every_msgpack_form_is_walked_and_every_cut_is_refused(void **state)
{
    (void)state;
#define FORM(literal) { literal, sizeof literal - 1 }
    const struct { const char *bytes; size_t n; } forms[] = {
        FORM("\x00"), FORM("\x7f"), FORM("\xe0"), FORM("\xff"), FORM("\xc0"), FORM("\xc2"), FORM("\xc3"), FORM("\x80"), FORM("\x90"), FORM("\xa0"),
        FORM("\x81\x01\x02"), FORM("\x92\x01\x91\x02"), FORM("\xa3""abc"), FORM("\xc4\x02""ab"), FORM("\xc5\x00\x02""ab"), FORM("\xc6\x00\x00\x00\x02""ab"),
        FORM("\xc7\x02\x05""ab"), FORM("\xc8\x00\x02\x05""ab"), FORM("\xc9\x00\x00\x00\x02\x05""ab"), FORM("\xca""1234"), FORM("\xcb""12345678"),
        FORM("\xcc\x01"), FORM("\xcd\x01\x02"), FORM("\xce\x01\x02\x03\x04"), FORM("\xcf\x01\x02\x03\x04\x05\x06\x07\x08"), FORM("\xd0\x01"),
        FORM("\xd1\x01\x02"), FORM("\xd2\x01\x02\x03\x04"), FORM("\xd3\x01\x02\x03\x04\x05\x06\x07\x08"), FORM("\xd4\x01""a"), FORM("\xd5\x01""ab"),
        FORM("\xd6\x01""abcd"), FORM("\xd7\x01""abcdefgh"), FORM("\xd8\x01""abcdefghabcdefgh"), FORM("\xd9\x01""a"), FORM("\xda\x00\x01""a"),
        FORM("\xdb\x00\x00\x00\x01""a"), FORM("\xdc\x00\x02\x01\x02"), FORM("\xdd\x00\x00\x00\x02\x01\x02"), FORM("\xde\x00\x01\x01\x02"),
        FORM("\xdf\x00\x00\x00\x01\x01\x02"), FORM("\x93\x92\x90\x80\xa1""a\x82\x01\x02\x03\x91\xc0"),
    };
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        size_t used = 0;
        uint8_t *exact = malloc(forms[i].n + 1);
        memcpy(exact, forms[i].bytes, forms[i].n);
        exact[forms[i].n] = 0xC1;
        assert_int_equal(fl_msgpack_check(exact, forms[i].n + 1, 100, &used, NULL), FL_OK);
        assert_int_equal(used, forms[i].n);
        free(exact);
        for (size_t cut = 0; cut < forms[i].n; cut++) {
            exact = malloc(cut + 1);
            memcpy(exact + 1, forms[i].bytes, cut);
            assert_int_equal(fl_msgpack_check(exact + 1, cut, 100, &used, NULL), FL_CORRUPT);
            free(exact);
        }
    }
}

static void too_many_objects_and_too_deep_ones_are_refused(void **state)
{
    (void)state;
    size_t used;
    const uint8_t ten[] = { 0x99, 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    assert_int_equal(fl_msgpack_check(ten, sizeof ten, 10, &used, NULL), FL_OK);
    assert_int_equal(fl_msgpack_check(ten, sizeof ten, 9, &used, NULL), FL_CORRUPT);
    assert_int_equal(fl_msgpack_check((const uint8_t *)"\xc1", 1, 9, &used, NULL), FL_CORRUPT);
    uint8_t nested[FL_MSGPACK_DEPTH_MAX + 1];
    memset(nested, 0x91, sizeof nested);
    nested[FL_MSGPACK_DEPTH_MAX - 1] = 0x01;
    assert_int_equal(fl_msgpack_check(nested, FL_MSGPACK_DEPTH_MAX, 100, &used, NULL), FL_OK);
    nested[FL_MSGPACK_DEPTH_MAX - 1] = 0x91;
    nested[FL_MSGPACK_DEPTH_MAX] = 0x01;
    assert_int_equal(fl_msgpack_check(nested, sizeof nested, 100, &used, NULL), FL_CORRUPT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_msgpack_form_is_walked_and_every_cut_is_refused),
        cmocka_unit_test(too_many_objects_and_too_deep_ones_are_refused),
    };
    return cmocka_run_group_tests_name("msgpack_check", tests, NULL, NULL);
}
