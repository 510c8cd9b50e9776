/* fuzz_gguf.c - a GGUF file from any bytes. What is accepted lies inside the input and can be read to its last byte, every key by every reader; config, tokenizer and chat templates
 * come out of it or are refused with a sentence. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"
#include "engine/gguf_config.h"
#include "engine/gguf_tokenizer.h"
#include "kernels/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

static void judge(fl_status st, const fl_err *err) { FL_ASSERT(st == FL_OK || err->text[0]); }

static void read_key(const gguf *g, const gguf_field *f)
{
    char key[1100];
    fl_err err = { 0 };
    int64_t whole;
    double number;
    bool flag;
    const char *text;
    size_t n;
    uint32_t *list = NULL;
    gguf_strings strings;
    snprintf(key, sizeof key, "%.*s", (int)f->key_bytes, f->key);
    FL_ASSERT(gguf_find(g, key) == f);
    judge(gguf_int(g, key, INT64_MIN, INT64_MAX, &whole, &err), &err);
    judge(gguf_number(g, key, &number, &err), &err);
    judge(gguf_flag(g, key, &flag, &err), &err);
    judge(gguf_text(g, key, &text, &n, &err), &err);
    judge(gguf_u32_array(g, key, 0, &list, &n, &err), &err);
    free(list);
    if (gguf_strings_begin(&strings, g, key, &err) == FL_OK)
        while (gguf_strings_next(&strings, &text, &n)) FL_ASSERT((const uint8_t *)text >= f->data && n <= f->n_bytes - (size_t)((const uint8_t *)text - f->data));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gguf *g = NULL;
    fl_err err = { 0 };
    model_config config = { 0 };
    json_t *made = NULL;
    size_t header_bytes;
    if (gguf_open_bytes(&g, "input", data, n_bytes, &err) != FL_OK) {
        FL_ASSERT(err.text[0]);
        return 0;
    }
    FL_ASSERT(gguf_header(g, 0, &header_bytes) == data && header_bytes <= n_bytes);
    for (size_t i = 0; i < gguf_field_count(g); i++) read_key(g, gguf_field_at(g, i));
    for (size_t i = 0; i < gguf_tensor_count(g); i++) {
        const tensor *t = gguf_tensor_at(g, i);
        FL_ASSERT(t->data >= data + header_bytes && t->n_bytes <= (uint64_t)(data + n_bytes - t->data));
        FL_ASSERT(gguf_tensor_find(g, t->name) == t);
        if (t->is_weight && t->n_bytes > 0) FL_ASSERT(t->n_bytes % (uint64_t)dtype_block_bytes(t->type) == 0);
        judge(tensor_check_finite(t, &err), &err);       /* reads all of it */
    }
    judge(gguf_config_read(&config, g, &err), &err);
    model_config_fini(&config);
    judge(gguf_tokenizer_make(&made, g, &err), &err);
    json_decref(made);
    made = NULL;
    judge(gguf_tokenizer_config_make(&made, g, &err), &err);
    json_decref(made);
    gguf_close(g);
    return 0;
}
