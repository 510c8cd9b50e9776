/* fuzz_code_extract.c - a chat's answer becomes a completion: the same one each time, made of bytes of the answer or a pass, and one that is taken for a program defines the entry point. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/code_extract.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    char *text = malloc(n_bytes + 1), *out = NULL, *again = NULL;
    const char *code;
    size_t n_out, n_again, n_code;
    bool is_script;
    fl_err err;
    FL_ASSERT(text);
    if (n_bytes) memcpy(text, data, n_bytes);
    FL_ASSERT(fl_code_from_chat(text, n_bytes, "f", false, &out, &n_out, &err) == FL_OK && fl_code_from_chat(text, n_bytes, "f", false, &again, &n_again, &err) == FL_OK);
    FL_ASSERT(n_out == n_again && memcmp(out, again, n_out) == 0 && out[n_out] == '\0');
    fl_code_of(out, n_out, &code, &n_code, &is_script);
    FL_ASSERT(!is_script || fl_code_defines(code, n_code, "f") || memmem(text, n_bytes, FL_SCRIPT_MARKER, strlen(FL_SCRIPT_MARKER)));
    FL_ASSERT(n_code <= n_bytes || strcmp(out, "    pass\n") == 0);
    free(text);
    free(out);
    free(again);
    return 0;
}
