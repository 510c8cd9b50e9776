/* fuzz_detok.c - an encoded table (its checksum made right first), and the whole input as text to repair. A table has one raw
 * form, so it must come back from its own encoding; repaired text is valid, repairs to itself, and is the input when that was valid. */
#include <stdlib.h>
#include <string.h>

#include "proto/bytes.h"
#include "proto/detok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void try_text(const uint8_t *data, size_t n_bytes)
{
    char *text, *again;
    size_t n, n_again;
    bool was_valid, now_valid;
    FL_ASSERT(fl_utf8_repair(data, n_bytes, &text, &n, &was_valid, NULL) == FL_OK);
    FL_ASSERT(was_valid == fl_utf8_valid(data, n_bytes) && n <= 3 * n_bytes && text[n] == '\0');
    FL_ASSERT(!was_valid || (n == n_bytes && (n == 0 || memcmp(text, data, n) == 0)));
    FL_ASSERT(fl_utf8_repair((const uint8_t *)text, n, &again, &n_again, &now_valid, NULL) == FL_OK);
    FL_ASSERT(now_valid && n == n_again && memcmp(text, again, n) == 0);
    free(text);
    free(again);
}

static void try_table(const uint8_t *data, size_t n_bytes)
{
    fl_detok *table, *again;
    uint8_t *first, *second, *text;
    size_t n_first, n_second, n_text;
    fl_err err = { 0 };
    if (fl_detok_decode(&table, data, n_bytes, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return;
    }
    FL_ASSERT(fl_detok_encode(table, &first, &n_first, &err) == FL_OK);
    FL_ASSERT(fl_detok_decode(&again, first, n_first, &err) == FL_OK);
    FL_ASSERT(fl_detok_encode(again, &second, &n_second, &err) == FL_OK);
    FL_ASSERT(n_first == n_second && memcmp(first, second, n_first) == 0);
    int32_t ids[64];
    for (int32_t i = 0; i < 64; i++) ids[i] = i - 1;
    FL_ASSERT(fl_detok_text(table, ids, 64, -1, &text, &n_text, NULL, &err) == FL_OK);
    fl_detok_free(table);
    fl_detok_free(again);
    free(first);
    free(second);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    try_text(data, n_bytes);
    uint8_t *copy = malloc(n_bytes + 1);
    if (n_bytes) memcpy(copy, data, n_bytes);
    if (n_bytes >= 24) fl_put_u64(copy + 16, fl_checksum(0, (fl_bytes[]){ { copy, 16 }, { copy + 24, n_bytes - 24 } }, 2));
    try_table(copy, n_bytes);
    free(copy);
    return 0;
}
