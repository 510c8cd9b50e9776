#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/frame.h"

/* One frame as a buffer of exactly its size, so that the address sanitizer sees a read past it. */
static uint8_t *frame_of(const char *payload, size_t n, uint16_t kind, uint64_t chain, size_t *n_bytes, uint64_t *checksum)
{
    *n_bytes = FL_FRAME_HEADER_BYTES + n;
    uint8_t *bytes = malloc(*n_bytes);
    fl_bytes parts[2] = { { payload, n / 2 }, { payload + n / 2, n - n / 2 } };
    *checksum = fl_frame_header(bytes, kind, parts, 2, chain);
    if (n) memcpy(bytes + FL_FRAME_HEADER_BYTES, payload, n);
    return bytes;
}

static void a_frame_comes_back_and_bytes_after_it_do_not_matter(void **state)
{
    (void)state;
    const char *payloads[] = { "", "x", "some payload of a frame" };
    for (size_t i = 0; i < 3; i++) {
        size_t n, length = strlen(payloads[i]);
        uint64_t checksum;
        fl_frame frame;
        uint8_t *bytes = frame_of(payloads[i], length, 0x1234, 99, &n, &checksum);
        assert_int_equal(fl_frame_decode(&frame, bytes, n, 99, NULL), FL_OK);
        assert_int_equal(frame.kind, 0x1234);
        assert_int_equal(frame.payload_bytes, length);
        assert_int_equal(frame.checksum, checksum);
        assert_ptr_equal(frame.payload, bytes + FL_FRAME_HEADER_BYTES);
        bytes = realloc(bytes, n + 7);
        memset(bytes + n, 0xAA, 7);
        assert_int_equal(fl_frame_decode(&frame, bytes, n + 7, 99, NULL), FL_OK);
        free(bytes);
    }
}

static void the_layout_is_fixed(void **state)
{
    (void)state;
    size_t n;
    uint64_t checksum;
    uint8_t *bytes = frame_of("abc", 3, 2, 0, &n, &checksum);
    assert_memory_equal(bytes, "TFF1\x01\x00\x02\x00\x03\x00\x00\x00\x00\x00\x00\x00", 16);
    assert_int_equal(fl_get_u64(bytes + 16), checksum);
    free(bytes);
}

static void every_prefix_asks_for_more(void **state)
{
    (void)state;
    size_t n;
    uint64_t checksum;
    fl_frame frame;
    uint8_t *bytes = frame_of("payload", 7, 9, 5, &n, &checksum);
    for (size_t cut = 0; cut < n; cut++) {
        uint8_t *exact = malloc(cut + 1);
        memcpy(exact + 1, bytes, cut);
        assert_int_equal(fl_frame_decode(&frame, exact + 1, cut, 5, NULL), FL_AGAIN);
        assert_int_equal(frame.payload_bytes, cut < FL_FRAME_HEADER_BYTES ? 0 : 7);
        free(exact);
    }
    free(bytes);
}

static void every_flipped_bit_is_noticed(void **state)
{
    (void)state;
    size_t n;
    uint64_t checksum;
    fl_frame frame;
    fl_err err;
    uint8_t *bytes = frame_of("payload", 7, 9, 5, &n, &checksum);
    for (size_t i = 0; i < n * 8; i++) {
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
        fl_status st = fl_frame_decode(&frame, bytes, n, 5, &err);
        if (i / 8 >= 8 && i / 8 < 12) assert_true(st == FL_CORRUPT || st == FL_AGAIN);   /* a longer payload may still come */
        else assert_int_equal(st, FL_CORRUPT);
        bytes[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_int_equal(fl_frame_decode(&frame, bytes, n, 5, &err), FL_OK);
    free(bytes);
}

static void a_frame_is_bound_to_its_chain(void **state)
{
    (void)state;
    size_t n;
    uint64_t checksum;
    fl_frame frame;
    uint8_t *bytes = frame_of("payload", 7, 9, 5, &n, &checksum);
    assert_int_equal(fl_frame_decode(&frame, bytes, n, 6, NULL), FL_CORRUPT);
    assert_int_equal(fl_frame_decode(&frame, bytes, n, 0, NULL), FL_CORRUPT);
    free(bytes);
}

static void a_length_over_the_bound_is_refused_before_its_bytes_come(void **state)
{
    (void)state;
    uint8_t header[FL_FRAME_HEADER_BYTES];
    fl_frame frame;
    fl_frame_header(header, 1, NULL, 0, 0);
    fl_put_u32(header + 8, FL_FRAME_PAYLOAD_MAX);
    assert_int_equal(fl_frame_decode(&frame, header, sizeof header, 0, NULL), FL_AGAIN);
    fl_put_u32(header + 8, FL_FRAME_PAYLOAD_MAX + 1);
    assert_int_equal(fl_frame_decode(&frame, header, sizeof header, 0, NULL), FL_CORRUPT);
}

static void the_largest_payload_fits(void **state)
{
    (void)state;
    uint8_t *bytes = malloc(FL_FRAME_HEADER_BYTES + FL_FRAME_PAYLOAD_MAX);
    memset(bytes, 7, FL_FRAME_HEADER_BYTES + FL_FRAME_PAYLOAD_MAX);
    fl_frame frame;
    fl_frame_header(bytes, 1, &(fl_bytes){ bytes + FL_FRAME_HEADER_BYTES, FL_FRAME_PAYLOAD_MAX }, 1, 0);
    assert_int_equal(fl_frame_decode(&frame, bytes, FL_FRAME_HEADER_BYTES + FL_FRAME_PAYLOAD_MAX, 0, NULL), FL_OK);
    assert_int_equal(frame.payload_bytes, FL_FRAME_PAYLOAD_MAX);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_comes_back_and_bytes_after_it_do_not_matter),
        cmocka_unit_test(the_layout_is_fixed),
        cmocka_unit_test(every_prefix_asks_for_more),
        cmocka_unit_test(every_flipped_bit_is_noticed),
        cmocka_unit_test(a_frame_is_bound_to_its_chain),
        cmocka_unit_test(a_length_over_the_bound_is_refused_before_its_bytes_come),
        cmocka_unit_test(the_largest_payload_fits),
    };
    return cmocka_run_group_tests_name("frame", tests, NULL, NULL);
}
