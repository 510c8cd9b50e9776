/* fuzz_result.c - the body of a result. The checksum of each block in it is made right first. What decodes must encode to a
 * canonical form that decodes again and encodes to itself, and the check must agree with the decoder. */
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/result.h"
#include "proto/token_block.h"

#define VOCAB 300000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void repair_checksums(uint8_t *body, size_t n_bytes)
{
    for (size_t at = 0; at + FL_BLOCK_HEADER_BYTES <= n_bytes; at++) {
        uint8_t *block = body + at;
        if (memcmp(block, "TTB1", 4) != 0 && memcmp(block, "TFB1", 4) != 0) continue;
        uint32_t packed = fl_get_u32(block + 16);
        if (packed > n_bytes - at - FL_BLOCK_HEADER_BYTES) continue;
        fl_put_u64(block + 24, fl_checksum(0, (fl_bytes[]){ { block, 24 }, { block + FL_BLOCK_HEADER_BYTES, packed } }, 2));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    uint8_t *copy = malloc(n_bytes + 1), *first, *second;
    size_t n_first, n_second;
    fl_result result, again;
    fl_err err = { 0 };
    if (n_bytes) memcpy(copy, data, n_bytes);
    repair_checksums(copy, n_bytes);
    fl_status checked = fl_result_check(copy, n_bytes, VOCAB, &err), decoded = fl_result_decode(&result, copy, n_bytes, VOCAB, &err);
    FL_ASSERT(checked == decoded);
    if (decoded == FL_OK) {
        FL_ASSERT(fl_result_encode(&result, &first, &n_first, &err) == FL_OK);
        FL_ASSERT(fl_result_decode(&again, first, n_first, VOCAB, &err) == FL_OK);
        FL_ASSERT(fl_result_encode(&again, &second, &n_second, &err) == FL_OK);
        FL_ASSERT(n_first == n_second && memcmp(first, second, n_first) == 0);
        fl_result_free(&result);
        fl_result_free(&again);
        free(first);
        free(second);
    } else {
        FL_ASSERT(err.text[0]);
    }
    free(copy);
    return 0;
}
