/* Any bytes as a tokenizer.json: a sentence, or a tokenizer that encodes and decodes without harm. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <stdio.h>
#include <unistd.h>
#include "engine/tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void encode(const tokenizer *t, const char *text, size_t n_bytes, bool add_special)
{
    int32_t *ids = NULL;
    size_t n = 0;
    fl_err err = { 0 };
    if (tokenizer_encode(t, text, n_bytes, add_special, &ids, &n, &err) != FL_OK) {
        if (err.text[0] == '\0') abort();
        return;
    }
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || ids[i] >= tokenizer_vocab(t)) abort();
    }
    free(ids);
}

static void decode(fl_detok *table)
{
    int32_t ids[64];
    uint8_t *text = NULL;
    size_t n = 0, ends[64];
    for (int i = 0; i < 64; i++) ids[i] = i * 7 % 67 - 1;
    if (fl_detok_text(table, ids, 64, -1, &text, &n, ends, NULL) != FL_OK || ends[63] != n) abort();
    free(text);
    fl_detok_free(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char text[] = "The quick  brown fox's 123 \n\n <|im_start|>ab e\xCC\x81 \xE4\xB8\xAD\xE6\x96\x87 \xF0\x9F\x98\x80\xE2\x80\x8D <a> x\t'll DON'T \xC2\x85\xC5\xBF";
    char path[64];
    int fd = memfd_create("tokenizer", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    tokenizer *t = NULL;
    fl_err err = { 0 };
    fl_status st = tokenizer_open(&t, path, &err);
    close(fd);
    if (st != FL_OK) {
        if (err.text[0] == '\0') abort();
        return 0;
    }
    encode(t, text, sizeof text - 1, true);
    encode(t, text, sizeof text - 1, false);
    if (fl_utf8_valid(data, size)) encode(t, (const char *)data, size < 4096 ? size : 0, false);
    fl_detok *table = NULL;
    if (tokenizer_detok(t, tokenizer_vocab(t) < 100000 ? tokenizer_vocab(t) : 100000, &table, &err) == FL_OK) decode(table);
    tokenizer_close(t);
    return 0;
}
