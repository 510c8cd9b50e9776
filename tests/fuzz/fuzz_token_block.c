/* fuzz_token_block.c - a block of ids or of floats. Bit 0 of the first byte: the checksum is made right first. What decodes
 * must come back from its own encoding; a stored block whose encoding is stored too is the same bytes. */
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/token_block.h"

#define COUNT_MAX (1u << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void assert_same_when_stored(const uint8_t *in, size_t n_in, const uint8_t *out, size_t n_out)
{
    if (fl_get_u16(in + 6) || fl_get_u16(out + 6)) return;
    FL_ASSERT(n_in == n_out && memcmp(in, out, n_in) == 0);
}

static void try_ids(const uint8_t *data, size_t n_bytes)
{
    int32_t *ids, *again;
    size_t n, n_again, used, n_block, used_again;
    fl_err err = { 0 };
    if (fl_token_block_decode(&ids, &n, &used, data, n_bytes, COUNT_MAX, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return;
    }
    FL_ASSERT(used <= n_bytes && n <= COUNT_MAX);
    uint8_t *block = malloc(fl_token_block_bound(n));
    FL_ASSERT(fl_token_block_encode(block, fl_token_block_bound(n), &n_block, ids, n, &err) == FL_OK);
    FL_ASSERT(fl_token_block_decode(&again, &n_again, &used_again, block, n_block, n, &err) == FL_OK);
    FL_ASSERT(n_again == n && used_again == n_block && (n == 0 || memcmp(ids, again, n * sizeof *ids) == 0));
    assert_same_when_stored(data, used, block, n_block);
    free(ids);
    free(again);
    free(block);
}

static void try_floats(const uint8_t *data, size_t n_bytes)
{
    float *values, *again;
    size_t n, n_again, used, n_block, used_again;
    fl_err err = { 0 };
    if (fl_float_block_decode(&values, &n, &used, data, n_bytes, COUNT_MAX, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return;
    }
    FL_ASSERT(used <= n_bytes && n <= COUNT_MAX);
    uint8_t *block = malloc(fl_float_block_bound(n));
    FL_ASSERT(fl_float_block_encode(block, fl_float_block_bound(n), &n_block, values, n, &err) == FL_OK);
    FL_ASSERT(fl_float_block_decode(&again, &n_again, &used_again, block, n_block, n, &err) == FL_OK);
    FL_ASSERT(n_again == n && used_again == n_block && (n == 0 || memcmp(values, again, n * sizeof *values) == 0));
    assert_same_when_stored(data, used, block, n_block);
    free(values);
    free(again);
    free(block);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    if (n_bytes < 1) return 0;
    size_t n = n_bytes - 1;
    uint8_t *copy = malloc(n + 1);
    memcpy(copy, data + 1, n);
    if (data[0] & 1 && n >= FL_BLOCK_HEADER_BYTES && fl_get_u32(copy + 16) <= n - FL_BLOCK_HEADER_BYTES)
        fl_put_u64(copy + 24, fl_checksum(0, (fl_bytes[]){ { copy, 24 }, { copy + FL_BLOCK_HEADER_BYTES, fl_get_u32(copy + 16) } }, 2));
    try_ids(copy, n);
    try_floats(copy, n);
    free(copy);
    return 0;
}
