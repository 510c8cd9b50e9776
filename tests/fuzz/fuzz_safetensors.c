/* fuzz_safetensors.c - a weight file from any bytes. What is accepted lies inside the input, covers it without overlap, and can be read to its last byte;
 * an F8_E4M3 matrix beside its scales can be expanded. */
#include <stdlib.h>
#include <string.h>

#include "engine/fp8.h"
#include "engine/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void expand(const safetensors *st, const tensor *t)
{
    static const int32_t block[2] = { 2, 3 };
    char name[512];
    fl_err err = { 0 };
    if (!t->is_fp8 || t->n_dims != 2 || t->shape[0] > 1 << 16 || t->shape[1] > 1 << 16 || strlen(t->name) + 7 > sizeof name) return;
    strcat(strcpy(name, t->name), "_scale");
    const tensor *scale = safetensors_find(st, name);
    float *out = scale ? malloc(((size_t)t->n_bytes + 1) * sizeof *out) : NULL;
    if (!out) return;
    if (fp8_expand(out, t, scale, 1, (int32_t)t->shape[0], (int32_t)t->shape[1], block, &err) != FL_OK) FL_ASSERT(err.text[0]);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    safetensors *st = NULL;
    fl_err err = { 0 };
    size_t header_bytes;
    uint64_t total = 0;
    if (safetensors_open_bytes(&st, "input", data, n_bytes, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return 0;
    }
    FL_ASSERT(safetensors_header(st, 0, &header_bytes) == data && header_bytes <= n_bytes);
    for (size_t i = 0; i < safetensors_count(st); i++) {
        const tensor *t = safetensors_at(st, i);
        uint64_t n_values = 1;
        FL_ASSERT(t->data >= data + header_bytes && t->n_bytes <= (uint64_t)(data + n_bytes - t->data));
        for (int32_t k = 0; k < t->n_dims; k++) n_values *= (uint64_t)t->shape[k];
        if (t->is_weight) FL_ASSERT(t->n_bytes == n_values * (t->type == DTYPE_F32 ? 4 : 2));
        FL_ASSERT(safetensors_find(st, t->name) == t);
        (void)tensor_check_finite(t, &err);              /* reads all of it */
        expand(st, t);
        total += t->n_bytes;
    }
    FL_ASSERT(header_bytes + total == n_bytes);
    safetensors_close(st);
    return 0;
}
