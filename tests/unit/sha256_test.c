#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "coordinator/sha256.h"

static void of(const char *text, size_t n_bytes, size_t step, char hex[SHA256_HEX_BYTES])
{
    sha256 state;
    sha256_init(&state);
    for (size_t i = 0; i < n_bytes; i += step) sha256_add(&state, text + i, n_bytes - i < step ? n_bytes - i : step);
    sha256_end(&state, hex);
}

/* The examples of FIPS 180-2 appendix B and the empty message. */
static void the_standards_examples_hold(void **unused)
{
    (void)unused;
    char hex[SHA256_HEX_BYTES];
    of("", 0, 1, hex);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    of("abc", 3, 3, hex);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    const char *two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    of(two, strlen(two), 56, hex);
    assert_string_equal(hex, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    char *million = malloc(1000000);
    assert_non_null(million);
    memset(million, 'a', 1000000);
    of(million, 1000000, 4096, hex);
    assert_string_equal(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void the_pieces_do_not_matter(void **unused)
{
    (void)unused;
    char text[300], whole[SHA256_HEX_BYTES], pieces[SHA256_HEX_BYTES];
    for (size_t i = 0; i < sizeof text; i++) text[i] = (char)(i * 7);
    for (size_t n = 0; n < sizeof text; n++) {
        of(text, n, sizeof text, whole);
        for (size_t step = 1; step < 130; step += 9) {
            of(text, n, step, pieces);
            assert_string_equal(pieces, whole);
        }
    }
}

static void both_forms_of_the_loop_give_the_same(void **unused)
{
    (void)unused;
    uint8_t data[64 * 9];
    uint32_t x = 5, portable[8], here[8];
    for (int round = 0; round < 1000; round++) {
        for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)((x = x * 1664525u + 1013904223u) >> 24);
        for (int i = 0; i < 8; i++) portable[i] = here[i] = x = x * 1664525u + 1013904223u;
        sha256_blocks_portable(portable, data, (size_t)(round % 10));
        sha256_blocks_here()(here, data, (size_t)(round % 10));
        assert_memory_equal(portable, here, sizeof here);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_standards_examples_hold),
        cmocka_unit_test(the_pieces_do_not_matter),
        cmocka_unit_test(both_forms_of_the_loop_give_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
